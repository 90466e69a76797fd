package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The permits of a semaphore. In Redis, this host has one claim: so many permits as all its holds together, and those
// that came for its waiters.
//
// What a claim has beyond the holds is idle. An idle permit goes to the next local waiter, unless another host waits that
// came before it: see contest/permits.go. Then it goes back, with the operation that asks for the waiter.

// handBackDelay is for how long a host may keep permits that no client of it wants, beside those that one has, while no
// other host asks for them: as long as Redis may have an earlier hold of a lock that is handed over.
const handBackDelay = int64(5 * time.Millisecond)

// wantPermits sets what Redis should have for a semaphore that local clients have permits of, or want.
func (t *Table) wantPermits(w *claim.Want, v *visit) {
	l, q := v.lock, v.lock.queue
	m := t.needMany(l)
	w.Kind, w.HoldID, w.Count, w.LeaseMS = claim.WantExtent, t.lastNum+1, m.units, t.leaseMS
	w.NotBefore, w.GiveBackAt = moment.Never, t.giveBackAt(v, m)
	w.IsRenewed, w.IsChecked = m.renewed > 0, m.renewed == 0
	w.Capacity = max(m.capacities.largest(), uint16(m.units))
	if l.waiting() == 0 || m.units > 0 && l.claim.State().IsUnsure() {
		return // the holds are asserted by what they need alone
	}
	verdict, first := t.decide(v), q.waiters.head.request
	if verdict.Do == contest.Drop {
		t.wantDrop(w, v, verdict)
		return
	}
	if verdict.Do == contest.Grant || v.hasMore {
		w.GiveBackAt = moment.Never
		return // Work grants it
	}
	w.Asked, w.NotBefore, w.LeaseMS = verdict.Asked, verdict.NotBefore, t.leaseToTake(first)
	w.Want, w.Capacity, w.Times, w.Reserve = first.permits, first.capacity, 1, 1
	if w.Has(redisop.Yields) {
		return
	}
	lacksToken := l.claim.Extent() >= m.units+uint32(first.permits)
	if l.memory.IsHot() || v.view.Waiting > 1 || lacksToken {
		w.Reserve = uint16(max(2, t.cfg.Tokens))
	}
	most := min(w.Reserve, maxTimes)
	for next := q.waiters.head.inQueue.next; next != nil && uint16(w.Times) < most && next.request.wantsSame(first); next = next.inQueue.next {
		w.Times++
	}
}

// maxTimes is for how many waiters one operation asks at most.
const maxTimes = 255

// wantsSame reports whether a request wants what another one does, for as long.
func (r *request) wantsSame(other *request) bool {
	return r.permits == other.permits && r.capacity == other.capacity && r.lease == other.lease && r.leaseMS == other.leaseMS
}

// giveBackAt is when Redis is to get back what no client here wants: idle permits, or a place; never: there is nothing.
func (t *Table) giveBackAt(v *visit, m *many) int64 {
	l, q := v.lock, v.lock.queue
	isIdle := l.claim.Extent() > m.units
	switch {
	case !isIdle:
		m.idleSince = 0
	case m.idleSince == 0:
		m.idleSince = v.Now
	}
	hasPlace := q != nil && q.contest.HasPlace()
	switch {
	case hasPlace && l.waiting() == 0, isIdle && (hasPlace || l.memory.HostsWait() || q != nil && len(q.confirms) > 0):
		return v.Now
	case isIdle:
		return m.idleSince + handBackDelay
	}
	return moment.Never
}
