package claim

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A Description receives the state of a claim as a sequence of values: see locktable.Description,
// which has what each of them is for.
type Description interface {
	Value(x uint64)
	Time(at int64)
	Number(id uint64)
	Token(token uint64)
}

// Limits are what the table and the contest make of a claim: beyond which times and numbers it makes
// no difference.
type Limits struct {
	Busy, Turn, Lease time.Duration
	Tokens            int // that are drawn at one time
	PassedMS          uint32
}

// Clone returns a copy, for a cloned table.
func Clone(c *Claim) Claim {
	n := *c
	if c.window != &atRest {
		w := *c.window
		n.window = &w
	}
	return n
}

// IsAtRest reports whether the claim has no window of its own.
func IsAtRest(c *Claim) bool { return c.window == &atRest }

// Describe describes the claim.
func Describe(c *Claim, d Description, now int64, limits Limits) {
	d.Value(uint64(c.state)<<8 | uint64(c.phase)<<3 | uint64(c.use())<<1 | bit(c.retryAt != 0))
	d.Number(c.maxHoldID)
	d.Time(max(c.retryAt, now))
	if c.state != Absent {
		d.Number(c.holdID)
		d.Value(uint64(c.count)<<32 | uint64(c.leaseMS))
		d.Value(uint64(describedTokens(c.tokensLeft, uint16(limits.Tokens/4))))
		if c.tokensLeft > 0 {
			d.Token(c.nextToken)
		}
		d.Value(uint64(c.Grants()))
		describeAge(d, now, c.confirmedAt, time.Duration(max(hotSyncDelay, checkPause)))
		d.Time(max(c.validUntil, now))
		d.Value(bit(c.busySince != 0))
		describeAge(d, now, c.busySince, limits.Busy)
		describeAge(d, now, c.cameAt, limits.Turn)
	}
	if c.state.IsOurs() {
		d.Time(max(c.renewAt, now))
	}
	d.Value(bit(c.lingerUntil != 0))
	d.Time(max(c.lingerUntil, now))
	d.Value(bit(c.isAsking))
	if c.isAsking {
		describeAge(d, now, c.askedAt, limits.Lease)
	}
	if c.IsBusy() {
		op := &c.op
		d.Value(uint64(op.Kind)<<8 | bit(op.Unassigned)<<7 | bit(op.Has(redisop.Enqueue))<<6 | uint64(op.Since))
		d.Number(op.HoldID)
		describeAge(d, now, op.SentAt, limits.Lease)
		d.Value(uint64(op.Count)<<32 | uint64(op.LeaseMS))
		d.Value(uint64(op.Queues)<<32 | uint64(op.Had))
		d.Value(uint64(op.Want)<<48 | uint64(op.Reserve)<<32 | uint64(min(op.PassedMS, limits.PassedMS)))
	}
}

// describedTokens describes how many tokens are left, so that two numbers from which it is far to
// where tokens are drawn are the same: for so many grants, they are. Tokens are drawn when fewer than
// drawn are left.
func describedTokens(left, drawn uint16) uint16 {
	const far = 16
	switch {
	case left >= drawn+far:
		return drawn + far
	case left < drawn && left >= far:
		return far
	}
	return left
}

// describeAge describes a time in the past, of which it matters only whether it is longer ago
// than a limit, and if it is not, for how long.
func describeAge(d Description, now, at int64, limit time.Duration) {
	d.Time(max(at, now-int64(limit)))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
