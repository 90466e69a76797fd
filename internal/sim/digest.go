package sim

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Digest is a hash of a sequence of effects, except for the sentences in them, and of the commands that the store sends.
// A refactoring of the table or of the store does not change it.
type Digest uint64

func (d Digest) with(e *locktable.Effect) Digest {
	op := &e.Op
	for _, x := range [...]uint64{
		uint64(e.Kind), bit(e.WasWaiting || e.IsLast || e.WasClaimed), uint64(e.Count), uint64(e.Session), e.ID, e.Hold, e.Token, uint64(e.Deadline), uint64(e.End),
		uint64(op.Kind), op.HoldID, uint64(op.Count), uint64(op.LeaseMS), uint64(op.Reserve), bit(op.Has(redisop.RequireExisting)), bit(op.Has(redisop.AfterPendingDrop)),
		bit(op.Has(redisop.Enqueue)), bit(op.Has(redisop.InOrder)), bit(op.Has(redisop.CountListeners)), bit(op.Has(redisop.CanWait)), op.Ticket, op.Arrived, uint64(op.PassedMS), uint64(op.User), uint64(e.Since),
	} {
		d = d.Add(x)
	}
	for _, s := range [...]string{string(e.Code), string(e.Reason), e.Name, op.Name} {
		for i := range len(s) {
			d = d.Add(uint64(s[i]))
		}
	}
	return d
}

// Add adds a number to the sequence.
func (d Digest) Add(x uint64) Digest { return (d ^ Digest(x)) * 0x100000001b3 }

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
