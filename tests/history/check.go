package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rules is what a history is held to: bounds that follow from how the sidecars
// are configured, never from how fast the machine is.
type Rules struct {
	// Lease is the watchdog's: what was confirmed in Redis is believed in for no
	// longer than this.
	Lease time.Duration
	// Outage is the shortest interruption that may cost a renewed lock. Less than
	// two thirds of the lease, since it is renewed every third.
	Outage time.Duration
	// Settle is how long after a fault its consequences may last: leases that
	// have to end, connections that have to be found dead and made again.
	Settle time.Duration
	// Wake is how long a waiter may leave a free lock alone while nothing is
	// wrong: the time after which the sidecar looks by itself, and some grace.
	Wake time.Duration
	// Answer is how much later than its limit an acquire may be answered,
	// whatever is wrong.
	Answer time.Duration
	// Errors are the kinds with which an acquire or a release may fail.
	Errors []string
}

// A Violation is a broken rule and what the logs say about it.
type Violation struct {
	Rule   string
	Lock   string
	At     int64
	Text   string
	Events []Event
}

// A Report is what Check found.
type Report struct {
	Violations []Violation

	Begin, End   int64
	Events       int
	Acquires     int
	Grants       int
	Holds        int
	Handovers    int            // the next hold is another process's
	Crossings    int            // the next hold is another host's
	Refused      map[string]int // acquires that failed, by kind of error
	Unreleased   map[string]int // releases that failed, by kind of error
	Maybe        int            // of both, those that may have happened nevertheless
	Lost         map[string]int // holds that were lost, by reason
	LostRenewed  int            // of those, what neither a fixed lease nor a max_hold ended
	Outlived     int            // how often a hold was there before an interruption and after it
	Writes       int
	WritesDenied int // the fence refused them
	Overlaps     int // two believed at once, and a fault excuses it
	Regressions  int // a token smaller than one before, and a fault excuses it

	LongestWait     time.Duration // from an acquire to its grant
	LongestFreeWait time.Duration // of that, with the lock free and nothing wrong
	Calm            time.Duration // how much of the time nothing was wrong
}

// Check judges a history.
func Check(events []Event, rules Rules) *Report {
	r := newRun(events, rules)
	report := &Report{
		Violations: r.broken, Events: r.events, Begin: r.begin, End: r.end,
		Refused: map[string]int{}, Unreleased: map[string]int{}, Lost: map[string]int{},
	}
	r.count(report)
	r.checkExclusion(report)
	r.checkTokens(report)
	r.checkReentry(report)
	r.checkOrder(report)
	r.checkTold(report)
	r.checkWaits(report)
	r.checkRegister(report)
	slices.SortStableFunc(report.Violations, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return report
}

func (r *Report) violated(rule, lock string, at int64, events []Event, format string, args ...any) {
	r.Violations = append(r.Violations, Violation{Rule: rule, Lock: lock, At: at, Text: fmt.Sprintf(format, args...), Events: events})
}

func (r *run) count(report *Report) {
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
		if a.maybe {
			report.Maybe++
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
			for _, t := range r.faults {
				if t.has(Interrupts) && h.granted <= t.from && h.ends >= t.to {
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

// Describe returns the violation with its excerpt of the logs, in order of time
// and in seconds since the run began.
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

// How many events are shown of an excerpt. A hold may be entered thousands of
// times.
const (
	excerptBefore = 40
	excerptAfter  = 20
)

func stamp(t, begin int64) string { return fmt.Sprintf("%.6f", float64(t-begin)/1e9) }

func (e *Event) describe(begin int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%12s %-10s %-8s", stamp(e.At, begin), e.Client, e.Kind)
	say := func(name string, value any, is bool) {
		if is {
			fmt.Fprintf(&b, " %s=%v", name, value)
		}
	}
	say("op", e.Op, e.Op != 0)
	say("lock", e.Lock, e.Lock != "")
	say("owner", e.Owner, e.Owner != 0)
	say("wait_ms", e.WaitMS, e.WaitMS != 0)
	say("lease_ms", e.LeaseMS, e.LeaseMS != 0)
	say("max_hold_ms", e.MaxHoldMS, e.MaxHoldMS != 0)
	say("behind", e.Behind, e.Behind != 0)
	say("token", e.Token, e.Token != 0)
	say("until", stamp(e.Until, begin), e.Until != 0)
	say("reason", e.Reason, e.Reason != "")
	say("err", e.Err, e.Err != "")
	say("maybe", e.Maybe, e.Maybe)
	say("value", e.Value, e.Value != "")
	say("refused", e.Refused, e.Refused)
	say("previous", fmt.Sprintf("%d %s", e.PrevToken, e.PrevValue), e.PrevToken != 0)
	say("id", e.ID, e.ID != 0)
	say("fault", e.Fault, e.Fault != "")
	say("target", e.Target, e.Target != "")
	say("asked", stamp(e.Before, begin), e.Before != 0)
	say("msg", e.Msg, e.Msg != "")
	return b.String()
}

func (t *trouble) event() Event {
	return Event{Kind: Fault, At: t.from, ID: t.id, Fault: t.fault, Target: t.target, Lock: t.lock, Effects: t.effect}
}

// near returns the faults around a span, for an excerpt.
func (r *run) near(s span) []Event {
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
