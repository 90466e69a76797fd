package history

import (
	"slices"
	"time"
)

// checkLossReports checks that a client believes in a lock until its deadline, its release or the
// report of its loss, and not after that; that a loss is reported once; and that a fault or a
// setting explains its reason.
func (r *timeline) checkLossReports(report *Report) {
	outages := r.outages()
	for _, a := range r.acquires {
		if a.granted {
			r.checkBelief(report, a)
			r.checkLoss(report, a, outages)
		}
	}
}

func (r *timeline) checkBelief(report *Report, a *acquire) {
	bad := func(at int64, format string, args ...any) {
		report.violated("belief", a.lock, at, append(acquireEvents(a), r.faultsNear(span{a.invoked, at})...), format, args...)
	}
	end, why := never, ""
	for _, e := range a.events {
		switch e.Kind {
		case Checked:
			// The deadline may be too early by the duration of the check.
			if e.earliest() > e.Until+(e.At-e.earliest()) {
				bad(e.At, "%s believed in it %v after its deadline", a.client.name, time.Duration(e.earliest()-e.Until))
			}
			if e.earliest() >= end {
				bad(e.At, "%s believes in it again after %s", a.client.name, why)
			}
		case Lost:
			end, why = min(end, e.At), "the report of its loss"
		case Release:
			end, why = min(end, e.At), "its release"
		}
	}
	if a.release == never && len(a.lost) == 0 && a.client.killedBy == never && a.until < r.end-int64(r.rules.Settle) {
		bad(r.end, "%s did not release it, and its loss was never reported", a.client.name)
	}
}

func (r *timeline) checkLoss(report *Report, a *acquire, outages []span) {
	if len(a.lost) == 0 {
		return
	}
	bad := func(e *Event, format string, args ...any) {
		report.violated("lost", a.lock, e.At, append(acquireEvents(a), r.faultsNear(span{a.invoked, e.At})...), format, args...)
	}
	reports := 0
	for _, e := range a.lost {
		if e.Kind == Lost {
			reports++
		}
		if e.Kind == Lost && e.At > a.released {
			bad(e, "the loss was reported to %s after it had released it", a.client.name)
		}
		if e.Reason != a.lost[0].Reason {
			bad(e, "two reasons were reported to %s: %s and %s", a.client.name, a.lost[0].Reason, e.Reason)
		}
	}
	e := a.lost[0]
	if reports > 1 {
		bad(e, "the loss was reported to %s %d times", a.client.name, reports)
	}
	if reports > 0 && a.released != never && a.relErr == "" && e.At < a.release {
		bad(e, "%s released it after its loss, without an error", a.client.name)
	}
	if !r.isExplained(a, e, outages) {
		bad(e, "the loss was reported to %s with the reason %q, and no fault or setting explains it", a.client.name, e.Reason)
	}
}

// isExplained reports whether a fault or a setting explains the reason of a loss.
func (r *timeline) isExplained(a *acquire, e *Event, outages []span) bool {
	// A sidecar that has not noticed the fault yet goes on to hand the lock over, for a lease
	// at most: the acquire may be younger than the fault.
	caused := func(effect Effect) bool {
		return slices.ContainsFunc(r.faults, func(t *faultSpan) bool {
			return t.has(effect) && t.concerns(a.lock) && t.from <= e.At &&
				(t.to == never || t.to+int64(r.rules.Lease) >= a.invoked)
		})
	}
	switch e.Reason {
	case Expired:
		switch {
		case e.At < a.until:
			return false // before the deadline
		case a.lease != 0 || a.client.mayHaveStopped(span{a.invoked, e.At}):
			return true
		}
		// The renewals must have failed for a while.
		return slices.ContainsFunc(outages, func(o span) bool {
			return o.from <= e.At && (o.to == never || e.At <= o.to+int64(r.rules.Settle))
		})
	case MaxHold:
		return a.maxHold != 0 && e.At >= a.invoked+a.maxHold*1e6
	case Deleted, Stolen:
		return caused(LosesData)
	case Forced:
		return caused(Forces)
	case Forgotten:
		// Over a restart, a sidecar may forget only holds that have ended.
		return e.At >= a.until
	}
	return false
}

// outages returns the interruptions that last long enough for a lock to be lost. Several that
// follow each other closely are one, because all renewals between them may have failed.
func (r *timeline) outages() []span {
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
