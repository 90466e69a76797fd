package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rules are the bounds that a history must keep. They follow from the configuration of the
// sidecars, never from the speed of the machine.
type Rules struct {
	// Lease is that of the watchdog: after Redis has confirmed a hold, its client believes in
	// it for no longer than this.
	Lease time.Duration
	// Outage is the shortest interruption by which a renewed lock may be lost. It is less than
	// 0.59 of the lease, because the lock is renewed each third, and up to a twentieth and half a
	// sixtieth later.
	Outage time.Duration
	// Settle is how long the consequences of a fault may last after it: leases have to end,
	// and dead connections have to be detected and made again.
	Settle time.Duration
	// Wake is how long a waiter may wait for a free lock while there is no fault: the interval
	// at which the sidecar polls, and some grace.
	Wake time.Duration
	// Answer is how much later than its limit an acquire may be answered, also during faults.
	Answer time.Duration
	// Errors are the kinds of errors of acquires and releases that are allowed.
	Errors []string
}

// A Violation is a broken rule, with the related events of the logs.
type Violation struct {
	Rule   string
	Lock   string
	At     int64
	Text   string
	Events []Event
}

// A Report is the result of Check.
type Report struct {
	Violations []Violation

	Begin, End      int64
	Events          int
	Acquires        int
	Grants          int
	Holds           int
	Handovers       int            // the next hold is another process's
	Crossings       int            // the next hold is another host's
	Refused         map[string]int // acquires that failed, by kind of error
	Unreleased      map[string]int // releases that failed, by kind of error
	MayHaveHappened int            // of both, those that may have taken effect nevertheless
	Lost            map[string]int // holds that were lost, by reason
	LostRenewed     int            // of those, without the ones that ended by a fixed lease or a max_hold
	Killed          int            // holds whose client was killed
	Outlived        int            // pairs of a hold and an interruption that it outlived
	Writes          int
	WritesDenied    int // of those, refused by the fence
	Overlaps        int // two clients believed in a lock at once, or more in permits than there are, and a fault excuses it
	Regressions     int // a token was smaller than an earlier one, and a fault excuses it

	LongestWait     time.Duration // from an acquire to its grant
	LongestFreeWait time.Duration // the longest part of a wait with the lock free, or enough permits, and no fault
	Calm            time.Duration // the time without a fault
}

// Check checks a history against the rules.
func Check(events []Event, rules Rules) *Report {
	r := newTimeline(events, rules)
	report := &Report{
		Violations: r.malformed, Events: r.events, Begin: r.begin, End: r.end,
		Refused: map[string]int{}, Unreleased: map[string]int{}, Lost: map[string]int{},
	}
	r.fillCounts(report)
	r.checkExclusion(report)
	r.checkTokens(report)
	r.checkReentry(report)
	r.checkOrder(report)
	r.checkLossReports(report)
	r.checkWaits(report)
	r.checkRegister(report)
	slices.SortStableFunc(report.Violations, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return report
}

func (r *Report) violated(rule, lock string, at int64, events []Event, format string, args ...any) {
	r.Violations = append(r.Violations, Violation{Rule: rule, Lock: lock, At: at, Text: fmt.Sprintf(format, args...), Events: events})
}

func (r *timeline) fillCounts(report *Report) {
	report.Acquires = len(r.acquires)
	for _, a := range r.acquires {
		switch {
		case a.granted:
			report.Grants++
			report.LongestWait = max(report.LongestWait, time.Duration(a.answered-a.invoked))
		case a.err != "":
			report.Refused[a.err]++
		}
		if a.relErr != "" && a.relErr != LostErr {
			report.Unreleased[a.relErr]++
		}
		if a.mayHaveHappened {
			report.MayHaveHappened++
		}
	}
	for _, holds := range r.holds {
		report.Holds += len(holds)
		for i, h := range holds {
			if i > 0 && holds[i-1].client != h.client {
				report.Handovers++
			}
			if i > 0 && holds[i-1].client.host != h.client.host {
				report.Crossings++
			}
			if h.isCertain() && h.believedUntil == h.client.killedFrom {
				report.Killed++
			}
			for _, t := range r.faults {
				if t.has(Interrupts) && h.granted <= t.from && h.believedUntil >= t.to {
					report.Outlived++
				}
			}
			for _, a := range h.entries {
				if len(a.lost) > 0 {
					reason := a.lost[0].Reason
					report.Lost[reason]++
					if reason != MaxHold && (reason != Expired || a.lease == 0) {
						report.LostRenewed++
					}
					break
				}
			}
		}
	}
}

// Describe returns the violation with its events, ordered by time, in seconds since the run began.
func (v *Violation) Describe(begin int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s (at %s)\n", v.Rule, v.Lock, v.Text, stamp(v.At, begin))
	events := slices.Clone(v.Events)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	here, _ := slices.BinarySearchFunc(events, v.At, func(e Event, at int64) int { return cmp.Compare(e.At, at) })
	from, to := max(0, here-excerptBefore), min(len(events), here+excerptAfter)
	if from > 0 {
		fmt.Fprintf(&b, "    … %d before\n", from)
	}
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "    %s\n", events[i].describe(begin))
	}
	if to < len(events) {
		fmt.Fprintf(&b, "    … %d after\n", len(events)-to)
	}
	return b.String()
}

// How many events Describe shows before and after the violation. A hold may be entered thousands
// of times.
const (
	excerptBefore = 40
	excerptAfter  = 20
)

func stamp(t, begin int64) string { return fmt.Sprintf("%.6f", float64(t-begin)/1e9) }

func (e *Event) describe(begin int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%12s %-10s %-8s", stamp(e.At, begin), e.Client, e.Kind)
	field := func(name string, value any, is bool) {
		if is {
			fmt.Fprintf(&b, " %s=%v", name, value)
		}
	}
	field("op", e.Op, e.Op != 0)
	field("lock", e.Lock, e.Lock != "")
	field("owner", e.Owner, e.Owner != 0)
	field("wait_ms", e.WaitMS, e.WaitMS != 0)
	field("lease_ms", e.LeaseMS, e.LeaseMS != 0)
	field("max_hold_ms", e.MaxHoldMS, e.MaxHoldMS != 0)
	field("behind", e.AfterOp, e.AfterOp != 0)
	field("permits", fmt.Sprintf("%d of %d", e.Permits, e.Of), e.Of != 0)
	field("token", e.Token, e.Token != 0)
	field("until", stamp(e.Until, begin), e.Until != 0)
	field("reason", e.Reason, e.Reason != "")
	field("err", e.Err, e.Err != "")
	field("maybe", e.MayHaveHappened, e.MayHaveHappened)
	field("value", e.Value, e.Value != "")
	field("refused", e.Refused, e.Refused)
	field("previous", fmt.Sprintf("%d %s", e.PrevToken, e.PrevValue), e.PrevToken != 0)
	field("id", e.ID, e.ID != 0)
	field("fault", e.Fault, e.Fault != "")
	field("target", e.Target, e.Target != "")
	field("earliest", stamp(e.Before, begin), e.Before != 0)
	field("msg", e.Msg, e.Msg != "")
	return b.String()
}

func (t *faultSpan) event() Event {
	return Event{Kind: Fault, At: t.from, ID: t.id, Fault: t.fault, Target: t.target, Lock: t.lock, Effects: t.effect}
}

// faultsNear returns the events of the faults around a span.
func (r *timeline) faultsNear(s span) []Event {
	wide := span{s.from - int64(r.rules.Lease), s.to}
	var events []Event
	for _, t := range r.faults {
		if !t.overlaps(wide) {
			continue
		}
		events = append(events, t.event())
		if t.to != never {
			events = append(events, Event{Kind: Mended, At: t.to, ID: t.id, Fault: t.fault})
		}
	}
	return events
}
