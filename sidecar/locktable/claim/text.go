package claim

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

var stateNames = [...]string{
	Absent: "absent", Uncertain: "uncertain", InDoubt: "in doubt", Restored: "restored", Stale: "stale", Confirmed: "confirmed",
}

func (s State) String() string { return stateNames[s] }

// Text describes the claim for failures of tests and for traces. Times are from now.
func (c *Claim) Text(now int64) string {
	text := c.state.String()
	if c.state != Absent {
		text += fmt.Sprintf(" num=%d", c.holdID)
		if c.count > 1 {
			text += fmt.Sprintf(" entries=%d", c.count)
		}
		if c.use() != used {
			text += " unused"
		}
		text += fmt.Sprintf(" valid for %v, %d tokens", time.Duration(c.validUntil-now), c.tokensLeft)
	}
	if c.lingerUntil != 0 {
		text += fmt.Sprintf(", lingers for %v", time.Duration(c.lingerUntil-now))
	}
	if c.IsBusy() {
		text += fmt.Sprintf(", %v num=%d in flight for %v", c.op.Kind, c.op.HoldID, time.Duration(now-c.op.SentAt))
		if c.phase == windowDropAndTake {
			text += ", after a drop"
		}
	}
	if c.phase == windowLateDrop {
		text += ", a drop in flight"
	}
	if c.isAsking {
		text += fmt.Sprintf(", %v in flight", redisop.Arrive)
	}
	if c.retryAt != 0 {
		text += fmt.Sprintf(", again in %v", time.Duration(c.retryAt-now))
	}
	return text
}
