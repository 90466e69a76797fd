package history

import (
	"cmp"
	"slices"
	"time"
)

// checkWaits: every acquire is answered, in time if it has a limit, and with an
// error only if what happens to locks explains it; and while nothing is wrong,
// nobody waits for a lock that nobody holds.
func (r *run) checkWaits(report *Report) {
	calm := r.calm()
	for _, s := range calm {
		report.Calm += time.Duration(s.to - s.from)
	}
	for lock, all := range r.locks {
		free := r.free(lock)
		for _, a := range all {
			r.checkAnswer(report, a)
			wait := span{a.invoked, min(a.answered, a.client.killedFrom, r.end)}
			for _, s := range common(common([]span{wait}, calm), free) {
				left := time.Duration(s.to - s.from)
				report.LongestFreeWait = max(report.LongestFreeWait, left)
				if left > r.rules.Wake {
					report.violated("wake-up", lock, s.from, append(r.around(lock, s), excerptOf(a)...),
						"%s waited for %v, with nobody holding it and nothing wrong", a.client.name, left)
				}
			}
		}
	}
}

func (r *run) checkAnswer(report *Report, a *acquire) {
	took := min(a.answered, r.end) - a.invoked
	life := span{a.invoked, min(a.answered, r.end)}
	switch {
	case a.client.killedFrom != never && a.answered == never, a.client.stood(life):
	case a.wait != 0 && took > a.wait*1e6+int64(r.rules.Answer):
		report.violated("answer", a.lock, a.invoked, append(excerptOf(a), r.near(life)...),
			"%s asked for it for %v at most, and had no answer after %v", a.client.name, time.Duration(a.wait)*time.Millisecond, time.Duration(took))
	case a.answered == never:
		report.violated("answer", a.lock, a.invoked, append(excerptOf(a), r.near(life)...),
			"%s asked for it and was never answered", a.client.name)
	}
	for _, kind := range []string{a.err, a.relErr} {
		if kind != "" && kind != LostErr && !slices.Contains(r.rules.Errors, kind) {
			report.violated("answer", a.lock, a.invoked, append(excerptOf(a), r.near(life)...),
				"%s was told an error that nothing explains: %s", a.client.name, kind)
		}
	}
}

// calm returns when nothing is wrong, and the consequences of what was are over.
// A client that is stopped or killed is its own business.
func (r *run) calm() []span {
	var wrong []span
	for _, t := range r.faults {
		if len(t.effect) == 0 {
			continue
		}
		to := t.to
		if to != never {
			to += int64(r.rules.Settle)
		}
		wrong = append(wrong, span{t.from, to})
	}
	return r.without(wrong)
}

// free returns when nobody has the lock. A client that stood still while it
// waited may have had it without having seen the answer.
func (r *run) free(lock string) []span {
	var taken []span
	for _, h := range r.holds[lock] {
		taken = append(taken, span{h.granted, h.free})
	}
	for _, a := range r.locks[lock] {
		for _, stop := range a.client.stops {
			if stop.overlaps(span{a.invoked, a.answered}) {
				taken = append(taken, span{max(stop.from, a.invoked), a.answered})
			}
		}
	}
	return r.without(taken)
}

// without returns the rest of the time of the run.
func (r *run) without(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var rest []span
	at := r.begin
	for _, s := range spans {
		if s.from > at {
			rest = append(rest, span{at, s.from})
		}
		at = max(at, s.to)
	}
	if at < r.end {
		rest = append(rest, span{at, r.end})
	}
	return rest
}

// common returns what is in a span of both lists, each in order and without
// overlaps.
func common(few, many []span) []span {
	var both []span
	for _, s := range few {
		i, _ := slices.BinarySearchFunc(many, s.from, func(m span, from int64) int { return cmp.Compare(m.to, from) })
		for ; i < len(many) && many[i].from < s.to; i++ {
			if c := (span{max(s.from, many[i].from), min(s.to, many[i].to)}); c.from < c.to {
				both = append(both, c)
			}
		}
	}
	return both
}

// around returns what the log says of the holds before and after a span, and of
// what was broken before.
func (r *run) around(lock string, s span) []Event {
	var before, after *hold
	for _, h := range r.holds[lock] {
		if h.granted <= s.from && (before == nil || h.granted > before.granted) {
			before = h
		}
		if h.granted >= s.to && (after == nil || h.granted < after.granted) {
			after = h
		}
	}
	var events []Event
	for _, h := range []*hold{before, after} {
		if h != nil {
			events = append(events, excerpt(h)...)
		}
	}
	return append(events, r.near(span{s.from - int64(r.rules.Settle), s.to})...)
}
