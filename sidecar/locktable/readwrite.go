package locktable

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Read/write locks. In Redis, this host has a lock as a reader, for all its readers together, or as a writer.
//
// Read and write phases alternate also among the clients of this host: see beginReadPhase. A writer that has ended leaves the
// lock to the readers that wait here, and Redis gets to know that with the next operation.

// wantReadWrite sets what Redis should have for a read/write lock that local clients have, or want.
func (t *Table) wantReadWrite(w *claim.Want, v *visit) {
	l, c := v.lock, &v.lock.claim
	m, needed := t.needMany(l), t.neededOf(l)
	keep := redisop.Mode(needed)
	w.Kind, w.HoldID, w.Count, w.LeaseMS, w.OfMode = claim.WantExtent, t.lastNum+1, needed, t.leaseMS, true
	w.NotBefore, w.GiveBackAt = moment.Never, moment.Never
	w.IsRenewed, w.IsChecked = m.renewed > 0, m.renewed == 0
	isOtherMode := c.Extent() > needed
	if keep == redisop.SharedMode && c.Extent() != needed {
		w.Reserve = 1 // for the readers of this host
	}
	if keep != redisop.NoMode && c.State().IsUnsure() {
		return // the holds are asserted by what they need alone
	}
	queues := l.queue.modes()
	if t.shardOf(l).isListening {
		w.Times = queues &^ uint8(keep)
	}
	if keep != redisop.NoMode && isOtherMode || l.queue != nil && l.queue.contest.Queues()&^queues != 0 {
		w.GiveBackAt = v.Now
	}
	if l.waiting() == 0 || keep == redisop.ExclusiveMode {
		return
	}
	verdict, first := t.decide(v), l.queue.waiters.head.request
	if verdict.Do == contest.Drop {
		t.wantDrop(w, v, verdict)
		return
	}
	if verdict.Do == contest.Grant || v.hasMore {
		if keep == redisop.NoMode {
			w.GiveBackAt = moment.Never
		}
		return // Work grants it. The readers of other hosts do not wait for that
	}
	w.Asked, w.NotBefore, w.LeaseMS = verdict.Asked, verdict.NotBefore, t.leaseToTake(first)
	w.Want, w.Reserve = uint16(first.mode.inRedis()), 1
	if first.mode == Exclusive && keep == redisop.NoMode && !w.Has(redisop.Yields) && (l.memory.IsHot() || v.view.Waiting > 1) {
		w.Reserve = uint16(min(max(2, t.cfg.Tokens), redisop.PassedTokens))
	}
}

// onMode notes that Redis has a read/write lock for this host in a mode, and had it in another one before: a phase begins.
func (t *Table) onMode(now int64, l *lock, before, mode redisop.Mode) {
	hasReaders := l.holders.isHeld() && l.holders.newest.mode == Shared
	if mode == before || mode == redisop.SharedMode && hasReaders { // a share that was in doubt is confirmed
		return
	}
	l.claim.BeginTurn(now)
	switch {
	case mode == redisop.SharedMode:
		t.beginReadPhase(l)
	case mode == redisop.ExclusiveMode:
		l.beginWritePhase()
	}
}
