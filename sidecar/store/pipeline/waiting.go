package pipeline

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Batches bound what is sent at one time, and what is in flight.
type Batches struct {
	Renewals, Deletes, Others int // in one batch
	InFlight                  int // operations without an answer, and with them what is in doubt when a connection ends

	// When the best round trip seen is below NearRTT, ns, at most NearCalls calls are in flight: Redis executes one
	// while the next waits. Operations that arrive meanwhile join the next batch, and one large script is cheaper for
	// Redis than two small ones. On a distant Redis this would only add latency.
	NearRTT   int64
	NearCalls int
}

const (
	maxFlight = 32 * wire.RunMax
	nearRTT   = int64(200 * time.Microsecond)
	nearCalls = 2
)

// DefaultBatches are as large as Redis answers in a few milliseconds, so that what comes in meanwhile does not wait
// long.
var DefaultBatches = Batches{
	Renewals: 8 * wire.RunMax, Deletes: 2 * wire.RunMax, Others: 512, InFlight: maxFlight,
	NearRTT: nearRTT, NearCalls: nearCalls,
}

// Waiting is the operations that wait to be sent to one server. The model of a fleet has it, too.
type Waiting struct {
	renewals lanes // Renew and Check
	deletes  lanes // Drops that can wait
	others   fifo[redisop.Op]
}

// Add adds an operation.
func (w *Waiting) Add(op redisop.Op) {
	switch {
	case op.Kind == redisop.Renew || op.Kind == redisop.Check:
		w.renewals.push(op)
		return
	case op.Has(redisop.CanWait):
		w.deletes.push(op)
		return
	case op.Has(redisop.AfterPendingDrop):
		// Something waits for the lock now. A Take never overtakes its Drop, so the Drop goes with it.
		if drop, ok := w.deletes.removeDrop(op.Name); ok {
			w.others.push(drop)
		}
	}
	w.others.push(op)
}

// Len is how many there are.
func (w *Waiting) Len() int { return w.renewals.len() + w.deletes.len() + w.others.len() }

// Batch moves the operations of the next batch to the end of dst: renewals first, because a late one costs a client
// its lock. A Drop and the Take that is pipelined after it are in one batch.
func (w *Waiting) Batch(dst []redisop.Op, b *Batches) []redisop.Op {
	dst = w.renewals.pop(dst, b.Renewals)
	dst = w.deletes.pop(dst, b.Deletes)
	dst = w.others.pop(dst, b.Others)
	if n := len(dst); n > 0 && w.others.len() > 0 && wire.IsPair(&dst[n-1], w.others.front()) {
		dst = w.others.pop(dst, 1)
	}
	return dst
}

// All moves all of them to the end of dst.
func (w *Waiting) All(dst []redisop.Op) []redisop.Op {
	dst = w.renewals.pop(dst, w.renewals.len())
	dst = w.deletes.pop(dst, w.deletes.len())
	return w.others.pop(dst, w.others.len())
}
