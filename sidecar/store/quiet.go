package store

import (
	_ "embed"
	"slices"
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// In a Cluster, one run of a script has locks of one slot, so most runs have one lock. Nearly every lock
// that is taken is free, and nearly none that is dropped has a queue. These cases have scripts of their
// own, which cost Redis half of what acquireRelease does for one lock. They answer busy to anything
// else; then acquireRelease follows, and for quietAgain this lock goes there at once.

var (
	//go:embed scripts/quiet_take.lua
	quietTakeText string
	//go:embed scripts/quiet_drop.lua
	quietDropText string

	quietTake = newScript(scriptText(quietTakeText))
	quietDrop = newScript(scriptText(quietDropText))
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
func (p *pipeline) quietScript(now int64, op *redisop.Op) *script {
	switch {
	case !p.encoder.declares, op.Ticket != 0, p.busy.has(now, op.Name):
		return nil
	case op.Kind == redisop.Take && argSectionOf(op) == taken && !op.Has(redisop.AfterPendingDrop):
		return quietTake
	case op.Kind == redisop.Drop:
		return quietDrop
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
		if isDropping && op.Has(redisop.AfterPendingDrop) {
			p.dropping[op.Name] = op
			p.busy.add(now, op.Name)
			return true
		}
		return false
	})
}

// takeHeld returns the Take that waits for the oldest call, if that is a quiet Drop. The caller holds mu.
func (p *pipeline) takeHeld(cl *call) (held []redisop.Op) {
	if cl.script != quietDrop || cl.ops == 0 {
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
func (c *call) isBusy(answer reply) bool {
	return (c.script == quietTake || c.script == quietDrop) && answer.kind == '$' && answer.text == "busy"
}

// onBusy runs the oldest call again, by the script for all cases: nothing was changed. The caller holds mu.
func (p *pipeline) onBusy(now int64, cl call, held []redisop.Op) {
	ops := append(p.takeBack(cl), held...)
	p.busy.add(now, ops[0].Name)
	p.queueCommand(now, call{script: acquireRelease}, ops)
	p.queueWait(now)
}

// appendField appends the owner field of a hold as an argument of a command.
func (e *encoder) appendField(dst []byte, holdID uint64) []byte {
	var digits [20]byte
	text := strconv.AppendUint(digits[:0], holdID, 10)
	dst = appendHead(dst, '$', len(e.prefix)+len(text))
	dst = append(dst, e.prefix...)
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// quiet appends the command that runs a script for a lock that is expected to be quiet.
func (e *encoder) quiet(dst []byte, f form, s *script, op *redisop.Op) []byte {
	if s == quietTake {
		dst = appendCommand(dst, f, s, 3, 4)
		dst = e.keys.appendKey(dst, op.Name)
		dst = e.keys.appendDerived(dst, counterPrefix, op.Name)
		dst = e.keys.appendOurs(dst, queuePrefix, op.Name)
		dst = e.appendField(dst, op.HoldID)
		dst = appendNumber(dst, int64(op.LeaseMS))
		dst = appendNumber(dst, e.tokensAbove())
		return appendNumber(dst, e.expiry)
	}
	dst = appendCommand(dst, f, s, 2, 3)
	dst = e.keys.appendKey(dst, op.Name)
	dst = e.keys.appendOurs(dst, queuePrefix, op.Name)
	dst = e.appendField(dst, op.HoldID)
	dst = e.keys.appendDerived(dst, channelPrefix, op.Name)
	isSharded := int64(0)
	if e.isSharded {
		isSharded = 1
	}
	return appendNumber(dst, isSharded)
}
