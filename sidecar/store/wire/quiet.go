package wire

import (
	_ "embed"
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

	QuietTake = NewScript(scriptText(quietTakeText))
	QuietDrop = NewScript(scriptText(quietDropText))
)

// appendField appends the owner field of a hold as an argument of a command.
func (e *Encoder) appendField(dst []byte, holdID uint64) []byte {
	var digits [20]byte
	text := strconv.AppendUint(digits[:0], holdID, 10)
	dst = appendHead(dst, '$', len(e.Prefix)+len(text))
	dst = append(dst, e.Prefix...)
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// quiet appends the command that runs a script for a lock that is expected to be quiet.
func (e *Encoder) quiet(dst []byte, r Run, op *redisop.Op) []byte {
	if r.Script == QuietTake {
		dst = AppendCommand(dst, r, 3, 4)
		dst = e.Keys.appendKey(dst, op.Name)
		dst = e.Keys.appendDerived(dst, CounterPrefix, op.Name)
		dst = e.Keys.AppendOurs(dst, QueuePrefix, op.Name)
		dst = e.appendField(dst, op.HoldID)
		dst = AppendNumber(dst, int64(op.LeaseMS))
		dst = AppendNumber(dst, e.TokensAbove())
		return AppendNumber(dst, e.Expiry)
	}
	dst = AppendCommand(dst, r, 2, 3)
	dst = e.Keys.appendKey(dst, op.Name)
	dst = e.Keys.AppendOurs(dst, QueuePrefix, op.Name)
	dst = e.appendField(dst, op.HoldID)
	dst = e.Keys.appendDerived(dst, ChannelPrefix, op.Name)
	isSharded := int64(0)
	if e.IsSharded {
		isSharded = 1
	}
	return AppendNumber(dst, isSharded)
}
