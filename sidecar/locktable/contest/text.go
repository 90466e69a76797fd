package contest

import (
	"fmt"
	"time"
)

var (
	phaseNames        = [...]string{contending: "contending", yielding: "yielding"}
	placeNames        = [...]string{placeNone: "no place", placeAsked: "place asked for", placeQueued: "queued", placeLeaving: "leaving the queue"}
	subscriptionNames = [...]string{unsubscribed: "not subscribed", subscribing: "subscribing", subscribed: "subscribed"}
)

// Text describes the contest for failures of tests and for traces. Times are from now.
func (c *Contest) Text(now int64) string {
	text := phaseNames[c.phase] + ", " + c.place.String() + ", " + subscriptionNames[c.sub]
	if c.remote.isKnown {
		text += fmt.Sprintf(", %s had it %v ago", c.remote.field, time.Duration(now-c.remote.seenAt))
	}
	if c.nextTry > now {
		text += fmt.Sprintf(", no try for %v", time.Duration(c.nextTry-now))
	}
	if c.backoffUntil > now {
		text += fmt.Sprintf(", backs off for %v", time.Duration(c.backoffUntil-now))
	}
	return text
}

func (p *Place) String() string {
	text := placeNames[p.phase]
	if p.phase != placeNone {
		text += fmt.Sprintf(" ticket=%d", p.ticket)
	}
	if p.phase == placeQueued {
		text += fmt.Sprintf(" rank=%d", p.rank)
	}
	if p.mayHaveLock {
		text += ", may have the lock"
	}
	return text
}
