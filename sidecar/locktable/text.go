package locktable

import (
	"fmt"
	"strings"
	"time"
)

var holdPhaseNames = [...]string{
	HoldLive: "live", HoldUnrenewable: "unrenewable", HoldUnserved: "unserved", HoldCrashDelayed: "crash-delayed", HoldGivenUp: "given up", HoldKept: "kept",
}

func (p HoldPhase) String() string { return holdPhaseNames[p] }

// Text describes all that the table has of one lock, for failures of tests and for traces: a line
// for each of its parts. Times are from now. "": the table does not know the lock.
func (t *Table) Text(now int64, name string) string {
	l := t.byName[name]
	if l == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "claim: %s\n", l.claim.Text(now))
	for h := range t.holdsOf(l) {
		fmt.Fprintf(&b, "hold: %v num=%d entries=%d token=%d ends in %v\n", h.phase, h.id, h.entries, h.token, time.Duration(t.deadline(h)-now))
	}
	if q := l.queue; q != nil {
		fmt.Fprintf(&b, "contest: %s\n", q.contest.Text(now))
		for w := q.waiters.head; w != nil; w = w.inQueue.next {
			fmt.Fprintf(&b, "waiter: id=%d for %v\n", w.request.id, time.Duration(now-w.request.since))
		}
	}
	return b.String()
}
