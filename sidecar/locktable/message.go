package locktable

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Message notes what was published to this host.
func (t *Table) Message(now int64, m redisop.Message) {
	l := t.byName[m.Name]
	switch m.Kind {
	case redisop.Unlocked:
		if l != nil && l.queue != nil {
			t.onUnlocked(now, l)
		}
	case redisop.Transferred:
		if l = t.lockOfMessage(l, &m); l != nil {
			t.onTransferred(now, l, &m)
		}
	case redisop.Admitted:
		if l = t.lockOfMessage(l, &m); l != nil {
			t.onAdmitted(now, l, &m)
		}
	case redisop.Recalled:
		if l = t.lockOfMessage(l, &m); l != nil {
			t.onRecalled(l)
		}
	case redisop.Freed:
		if l != nil && l.queue != nil && l.waiting() > 0 && !l.claim.State().IsOurs() { // otherwise it is late
			l.queue.contest.OnFreed(&t.contests, now, moment.MS(m.PauseMS), l.queue.firstTries())
		}
	case redisop.Requeue:
		if l != nil && l.queue != nil {
			l.queue.contest.OnRequeue(now, &m, l.claim.IsBusy())
		}
	}
	if l != nil {
		t.reconcile(t.visit(now, l))
	}
}

// lockOfMessage returns the lock of a message that says that Redis has, or had, a field of
// this host; nil: the table does not know it and has no room, or knows another kind under the name. An operation of a connection that
// is gone, or of a predecessor, may have made the field.
func (t *Table) lockOfMessage(l *lock, m *redisop.Message) *lock {
	switch {
	case l == nil && t.cells+Cells(m.Name) <= t.cfg.MaxLocks+strayCells:
		l = t.lockFor(m.Name)
		l.setKind(m.Of)
	case l != nil && l.kind() != m.Of && !t.becomes(l, m.Of):
		return nil // what Redis has is of another kind than what is in use here, and expires
	}
	return l
}

// onTransferred takes a lock that another sidecar passed on to a ticket of this host.
func (t *Table) onTransferred(now int64, l *lock, m *redisop.Message) {
	c, q := &l.claim, l.queue
	isLive := q != nil && q.contest.IsLive(m.Ticket)
	switch {
	case c.IsBusy() && !isLive && c.GivesBack(m.Ticket):
		// It is being given back, if the Drop is executed.
		c.MayBeBack()
		if t.routes != nil {
			c.Note(claim.TransferReceived) // the Drop may be in flight at another shard than made the transfer
		}
	case c.State().IsOurs():
		// The key was deleted, and a ticket got it that this host, or its predecessor, had given
		// up: the next operation sets it again.
		c.OnOverwritten()
		c.EndLinger()
	case c.IsBusy():
		// The operation in flight was executed after the transfer. Its result is of the same
		// field, or of what became of it.
		c.OnTransferInFlight(m.PassedMS)
		if isLive {
			q.contest.OnTransferredInFlight()
		}
		t.doubt(l)
	case isLive && !l.holders.isHeld() && q.contest.IsProof(m):
		t.stats.Handoffs[HandoffTransfer]++
		validSince := q.contest.OnTransferred(c.State().IsOurs(), m)
		busySince := now - moment.MS(m.PassedMS) - t.contests.Way(now)
		c.Transfer(now, validSince+claim.Validity(m.LeaseMS), busySince, m)
		c.SetRenewAt(t.renewalAfter(validSince, moment.MS(m.LeaseMS), t.renewalGroup(l)))
	default:
		t.doubt(l)
		if isLive {
			q.contest.OnTransferUnproved()
		}
	}
}

// onRecalled notes that another sidecar waits for a lock that Redis has for this host.
func (t *Table) onRecalled(l *lock) {
	c := &l.claim
	switch {
	case c.State().IsOurs(): // a Drop in flight passes it on, or has
		l.memory.NoteHosts(true)
		t.cool(l)
	case c.IsBusy():
		if c.InFlight().Kind == redisop.Take {
			l.memory.NoteHosts(true)
		}
	default:
		t.doubt(l)
	}
}

// onUnlocked notes a message on the lock's channel. If a release of this host has published it, the key
// is looked at once without need, and a lock that lingers again lingers no longer.
func (t *Table) onUnlocked(now int64, l *lock) {
	q := l.queue
	l.claim.EndLinger()
	l.claim.Note(claim.LockMayBeFree) // even if a local client believes to have it: the result may say otherwise
	if l.holders.isHeld() {
		l.claim.CheckSoon(now)
	}
	switch {
	case q.waiters.head == nil:
		q.contest.OnUnneededMessage(now)
	case !l.holders.isHeld() && !l.claim.IsBusy() && !q.contest.IsYielding():
		q.contest.OnUnlocked(&t.contests, now)
	}
}
