package history

import (
	"slices"
	"time"
)

// checkTold: a belief ends at its deadline, at its release or when it is told to
// be lost, and does not come back; a loss is told once and has the reason that
// it is said to have.
func (r *run) checkTold(report *Report) {
	outages := r.outages()
	for _, a := range r.acquires {
		if a.granted {
			r.checkBelief(report, a)
			r.checkLoss(report, a, outages)
		}
	}
}

func (r *run) checkBelief(report *Report, a *acquire) {
	bad := func(at int64, format string, args ...any) {
		report.violated("belief", a.lock, at, append(excerptOf(a), r.near(span{a.invoked, at})...), format, args...)
	}
	over, why := never, ""
	for _, e := range a.events {
		switch e.Kind {
		case Checked:
			// The deadline that it reports may be too small by as long as it took to ask.
			if e.earliest() > e.Until+(e.At-e.earliest()) {
				bad(e.At, "%s believed in it %v after its deadline", a.client.name, time.Duration(e.earliest()-e.Until))
			}
			if e.earliest() >= over {
				bad(e.At, "%s believes in it again after %s", a.client.name, why)
			}
		case Lost:
			over, why = min(over, e.At), "it was told that it is lost"
		case Release:
			over, why = min(over, e.At), "its release"
		}
	}
	if a.release == never && len(a.lost) == 0 && a.client.killedBy == never && a.until < r.end-int64(r.rules.Settle) {
		bad(r.end, "%s never was told that it is lost, nor released it", a.client.name)
	}
}

func (r *run) checkLoss(report *Report, a *acquire, outages []span) {
	if len(a.lost) == 0 {
		return
	}
	bad := func(e *Event, format string, args ...any) {
		report.violated("lost", a.lock, e.At, append(excerptOf(a), r.near(span{a.invoked, e.At})...), format, args...)
	}
	told := 0
	for _, e := range a.lost {
		if e.Kind == Lost {
			told++
		}
		if e.Kind == Lost && e.At > a.released {
			bad(e, "%s was told that it lost what it had released", a.client.name)
		}
		if e.Reason != a.lost[0].Reason {
			bad(e, "%s was told two reasons: %s and %s", a.client.name, a.lost[0].Reason, e.Reason)
		}
	}
	e := a.lost[0]
	if told > 1 {
		bad(e, "%s was told %d times that it lost it", a.client.name, told)
	}
	if told > 0 && a.released != never && a.relErr == "" && e.At < a.release {
		bad(e, "%s released what it had lost before", a.client.name)
	}
	if !r.plausible(a, e, outages) {
		bad(e, "%s was told that it lost it: %q, and nothing happened that explains this", a.client.name, e.Reason)
	}
}

// plausible tells whether something happened that costs a lock for the reason
// that was told.
func (r *run) plausible(a *acquire, e *Event, outages []span) bool {
	// A sidecar that has not heard of a fault goes on to hand over what it believes
	// to have, for a lease at most: the acquire may be younger than the fault.
	caused := func(effect Effect) bool {
		return slices.ContainsFunc(r.faults, func(t *trouble) bool {
			return t.has(effect) && t.concerns(a.lock) && t.from <= e.At &&
				(t.to == never || t.to+int64(r.rules.Lease) >= a.invoked)
		})
	}
	switch e.Reason {
	case Expired:
		switch {
		case e.At < a.until:
			return false // too early
		case a.lease != 0 || a.client.stood(span{a.invoked, e.At}):
			return true
		}
		// The renewals of one lease must have failed, for a while at least.
		return slices.ContainsFunc(outages, func(o span) bool {
			return o.from <= e.At && (o.to == never || e.At <= o.to+int64(r.rules.Settle))
		})
	case MaxHold:
		return a.hold != 0 && e.At >= a.invoked+a.hold*1e6
	case Deleted, Stolen:
		return caused(LosesData)
	case Forced:
		return caused(Forces)
	case Forgotten:
		// What a sidecar may forget over a restart is what had ended before.
		return e.At >= a.until
	}
	return false
}

// outages returns the interruptions that last long enough to cost a lock.
// Several that follow each other closely are one: the renewals between them may
// have met each of them.
func (r *run) outages() []span {
	var all []span
	for _, t := range r.faults {
		if !t.has(Interrupts) {
			continue
		}
		if n := len(all); n > 0 && (all[n-1].to == never || t.from-all[n-1].to < int64(r.rules.Outage)) {
			all[n-1].to = max(all[n-1].to, t.to)
			continue
		}
		all = append(all, t.span)
	}
	return slices.DeleteFunc(all, func(s span) bool { return s.to != never && s.to-s.from < int64(r.rules.Outage) })
}
