package history

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// checkWaits checks that every acquire is answered, in time if its wait has a limit, and only with
// the errors that the rules allow; and that without a fault no client waits for a free lock for
// longer than the rules allow.
func (r *timeline) checkWaits(report *Report) {
	calm := r.calmSpans()
	for _, s := range calm {
		report.Calm += time.Duration(s.to - s.from)
	}
	for lock, all := range r.locks {
		free := r.freeSpans(lock)
		for _, a := range all {
			r.checkAnswer(report, a)
			wait := span{a.invoked, min(a.answered, a.client.killedFrom, r.end)}
			for _, s := range intersect(intersect([]span{wait}, calm), free) {
				left := time.Duration(s.to - s.from)
				report.LongestFreeWait = max(report.LongestFreeWait, left)
				if left > r.rules.Wake {
					report.violated("wake-up", lock, s.from, append(r.eventsAround(lock, s), acquireEvents(a)...),
						"%s waited for %v, while it was free and there was no fault", a.client.name, left)
				}
			}
		}
	}
}

func (r *timeline) checkAnswer(report *Report, a *acquire) {
	took := min(a.answered, r.end) - a.invoked
	life := span{a.invoked, min(a.answered, r.end)}
	switch {
	case a.client.killedFrom != never && a.answered == never, a.client.mayHaveStopped(life):
	case a.wait != 0 && took > a.wait*1e6+int64(r.rules.Answer):
		report.violated("answer", a.lock, a.invoked, append(acquireEvents(a), r.faultsNear(life)...),
			"%s waits for it for %v at most, and had no answer after %v", a.client.name, time.Duration(a.wait)*time.Millisecond, time.Duration(took))
	case a.answered == never:
		report.violated("answer", a.lock, a.invoked, append(acquireEvents(a), r.faultsNear(life)...),
			"the acquire of %s was never answered", a.client.name)
	}
	for _, kind := range []string{a.err, a.relErr} {
		if kind != "" && kind != LostErr && !slices.Contains(r.rules.Errors, kind) {
			report.violated("answer", a.lock, a.invoked, append(acquireEvents(a), r.faultsNear(life)...),
				"%s got an error that the rules do not allow: %s", a.client.name, kind)
		}
	}
}

// calmSpans returns the times without a fault or its consequences. Stops and kills of clients do
// not count as faults here, because they do not affect other clients.
func (r *timeline) calmSpans() []span {
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
	return r.complement(wrong)
}

// freeSpans returns the times at which no client has the lock, or so few permits of the semaphore
// that the largest request can be granted: others may wait for that one. A client that was stopped
// while it waited may have the lock before it reads the answer.
func (r *timeline) freeSpans(lock string) []span {
	held := map[int64]int{} // by time: how many more are held from then on
	add := func(s span, permits int) {
		held[s.from] += permits
		held[s.to] -= permits
	}
	room := math.MaxInt
	for _, a := range r.locks[lock] {
		room = min(room, a.of-a.permits)
		for _, stop := range a.client.stops {
			if stop.overlaps(span{a.invoked, a.answered}) {
				add(span{max(stop.from, a.invoked), a.answered}, a.permits)
			}
		}
	}
	for _, h := range r.holds[lock] {
		if h.freeAt > h.granted {
			add(span{h.granted, h.freeAt}, h.permits)
		}
	}
	var taken []span
	n := 0
	for _, at := range slices.Sorted(maps.Keys(held)) {
		isFree := n <= room
		n += held[at]
		switch {
		case isFree && n > room:
			taken = append(taken, span{at, never})
		case !isFree && n <= room:
			taken[len(taken)-1].to = at
		}
	}
	return r.complement(taken)
}

// complement returns the time of the run without the spans.
func (r *timeline) complement(spans []span) []span {
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

// intersect returns the intersection of two lists of spans, each sorted and without overlaps.
func intersect(few, many []span) []span {
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

// eventsAround returns the events of the holds before and after a span, and of the faults before
// it.
func (r *timeline) eventsAround(lock string, s span) []Event {
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
			events = append(events, holdEvents(h)...)
		}
	}
	return append(events, r.faultsNear(span{s.from - int64(r.rules.Settle), s.to})...)
}
