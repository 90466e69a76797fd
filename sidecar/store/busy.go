package store

import (
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

const (
	// quietAgain is how long a lock that was busy is not expected to be quiet.
	quietAgain = int64(60e9)

	// maxBusy bounds the locks that are known as busy.
	maxBusy = 1 << 12
)

// busyLocks are locks that are not quiet: until when, by name.
type busyLocks map[string]int64

// add notes a lock that was busy.
func (b busyLocks) add(now int64, name string) {
	if len(b) >= maxBusy {
		clear(b)
	}
	b[name] = now + quietAgain
}

// has reports whether a lock was busy a short time ago.
func (b busyLocks) has(now int64, name string) bool {
	until, ok := b[name]
	if ok && now >= until {
		delete(b, name)
		return false
	}
	return ok
}

// quietScript returns the script for an operation on a lock that is expected to be quiet; nil: it is none, or
// Redis is no Cluster. The caller holds mu.
func (p *pipeline) quietScript(now int64, op *redisop.Op) *wire.Script {
	switch {
	case !p.encoder.Declares, op.Ticket != 0, p.busy.has(now, op.Name):
		return nil
	case op.Kind == redisop.Take && wire.ArgSectionOf(op) == wire.Taken && !op.AfterPendingDrop:
		return wire.QuietTake
	case op.Kind == redisop.Drop:
		return wire.QuietDrop
	}
	return nil
}

// A Take that is pipelined after a quiet Drop waits for its result: if that is busy, the Drop is executed by
// another script, and the Take must come after it. Then both are one run.

// holdBack removes such Takes from ops. Until quietAgain, the Drops of these locks are not quiet. The caller
// holds mu.
func (p *pipeline) holdBack(now int64, ops []redisop.Op) []redisop.Op {
	if len(p.dropping) == 0 {
		return ops
	}
	return slices.DeleteFunc(ops, func(op redisop.Op) bool {
		_, isDropping := p.dropping[op.Name]
		if isDropping && op.AfterPendingDrop {
			p.dropping[op.Name] = op
			p.busy.add(now, op.Name)
			return true
		}
		return false
	})
}

// takeHeld returns the Take that waits for the oldest call, if that is a quiet Drop. The caller holds mu.
func (p *pipeline) takeHeld(cl *call) (held []redisop.Op) {
	if cl.script != wire.QuietDrop || cl.ops == 0 {
		return nil
	}
	name := p.flight.front().Name
	if take := p.dropping[name]; take.Kind != redisop.NoOp {
		held = append(held, take)
	}
	delete(p.dropping, name)
	return held
}

// isBusy reports whether a reply is that of a lock that is not quiet.
func (c *call) isBusy(answer wire.Reply) bool {
	return (c.script == wire.QuietTake || c.script == wire.QuietDrop) && answer.Kind == '$' && answer.Text == "busy"
}

// onBusy runs the oldest call again, by the script for all cases: nothing was changed. The caller holds mu.
func (p *pipeline) onBusy(now int64, cl call, held []redisop.Op) {
	ops := append(p.takeBack(cl), held...)
	p.busy.add(now, ops[0].Name)
	p.queueCommand(now, call{script: wire.AcquireRelease}, ops)
	p.queueWait(now)
}
