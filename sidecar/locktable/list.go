package locktable

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
)

// Info describes one lock; false: no local client holds it or waits for it, and no release of
// it is pending.
func (t *Table) Info(now int64, name string) (protocol.LockRow, bool) {
	l := t.byName[name]
	if l == nil {
		return protocol.LockRow{}, false
	}
	return t.row(now, l), true
}

// List describes locks until yield says that there is no room for the one it was
// given. after is 0, or what the call before returned; it returns 0 at the end.
//
// It walks from the back, and a lock that goes is replaced by the last one: so a
// lock that stays is never missed, though it may be met twice.
func (t *Table) List(now int64, after uint64, yield func(protocol.LockRow) bool) (next uint64) {
	i := len(t.locks)
	if after != 0 {
		i = int(min(after, uint64(i)))
	}
	for ; i > 0; i-- {
		if !yield(t.row(now, t.locks[i-1])) {
			return uint64(i)
		}
	}
	return 0
}

func (t *Table) row(now int64, l *lock) protocol.LockRow {
	r := protocol.LockRow{Name: l.name, State: protocol.StateFree, Grants: l.claim.Granted()}
	if t.routes != nil {
		r.InCluster, r.Slot = true, t.cfg.SlotOf(l.name)
	}
	h, q := l.holders.newest, l.queue
	if l.kind().HasMany() {
		h = t.addHolders(now, &r, l)
	}
	switch {
	case h != nil:
		p := &h.session.peer
		r.State = protocol.StateHeld
		r.Hold, r.Token, r.Count, r.Owner = h.id, h.token, h.entries, h.owner
		r.Session, r.PID, r.UID, r.Cmd = uint64(h.session.id), p.PID, p.UID, p.Cmd
		r.HeldMS, r.DeadlineNS = millis(now-h.granted), t.deadline(h)
		r.KeepLeftMS = millis(t.keepUntil(h) - now)
		r.Orphan, r.Absent = h.isOrphan(), h.isAbsent()
		if h.phase != HoldKept {
			r.LeaseMS = int64(t.remainingLease(h))
		}
	case q != nil && q.contest.Remote().IsKnown():
		remote := q.contest.Remote()
		r.State = protocol.StateRemote
		r.RemoteField, _ = remote.Field()
		r.RemoteHost, r.RemoteTTLMS = remote.Host(&t.contests), remote.TTL(now)
	case l.claim.IsBusy():
		r.State = protocol.StateBusy
	case l.claim.LingerUntil() != 0 && l.claim.State().IsOurs():
		r.State = protocol.StateLingering
	}
	if q != nil {
		r.Waiting = q.waiters.len
		if r.Waiting > 0 {
			r.Waiters = make([]protocol.WaiterRow, 0, min(r.Waiting, protocol.MaxWaiters))
		}
		for w := q.waiters.head; w != nil && len(r.Waiters) < protocol.MaxWaiters; w = w.inQueue.next {
			p := &w.request.session.peer
			r.Waiters = append(r.Waiters, protocol.WaiterRow{
				Session: uint64(w.request.session.id), PID: p.PID, UID: p.UID, Cmd: p.Cmd,
				Owner: w.request.owner, Shared: w.request.mode == Shared, Permits: w.request.permits, WaitedMS: millis(now - w.request.since),
			})
		}
	}
	return r
}

// addHolders adds the holds of a lock that may have many to its row, and returns the oldest; nil: there is none.
func (t *Table) addHolders(now int64, r *protocol.LockRow, l *lock) (oldest *hold) {
	m := t.needMany(l)
	m.compact(protocol.MaxWaiters)
	r.Kind, r.Held, r.Permits, r.Of = l.kind().String(), len(m.holds)-m.gaps, int(m.units), t.capacityOf(l, m)
	for h := range t.holdsOf(l) {
		if oldest == nil {
			if oldest = h; h.isShared() {
				r.Shared = r.Held
			}
		}
		if len(r.Holders) == protocol.MaxWaiters {
			break
		}
		p := &h.session.peer
		r.Holders = append(r.Holders, protocol.HolderRow{
			Hold: h.id, Token: h.token, Shared: h.isShared(), Permits: h.permits, Session: uint64(h.session.id), PID: p.PID, UID: p.UID, Cmd: p.Cmd,
			HeldMS: millis(now - h.granted), Absent: h.isAbsent(), Orphan: h.isOrphan(),
		})
	}
	return oldest
}

func (h *hold) isAbsent() bool {
	return h.session.phase.IsAway() || h.session.phase == SessionGivenUp
}

// HolderUID returns uid, if all who have a name, or the hold of it with a number, are processes of that user, or else another
// user who has it. False: no process has it. hold 0: any.
func (t *Table) HolderUID(name string, hold uint64, uid int64) (of int64, isHeld bool) {
	l := t.byName[name]
	if l == nil {
		return 0, false
	}
	h := t.byHold[hold]
	if hold == 0 {
		h = l.holders.newest
	}
	if h == nil || h.lock != l {
		return 0, false
	}
	if m := t.manyOf(l); m != nil && hold == 0 && m.users.of(uid) > 0 {
		return m.users.other(uid), true
	}
	return h.session.peer.UID, true
}

// HasHold reports whether a process of a user has a name.
func (t *Table) HasHold(name string, uid int64) bool {
	l := t.byName[name]
	if l == nil {
		return false
	}
	if m := t.manyOf(l); m != nil {
		return m.users.of(uid) > 0
	}
	h := l.holders.sole()
	return h != nil && h.session.peer.UID == uid
}

// Holds counts what a session holds.
func (t *Table) Holds(id SessionID) int {
	if s := t.sessions[id]; s != nil {
		return s.holds.len
	}
	return 0
}

// PendingReleases counts the locks that no local client holds and whose release Redis has
// not confirmed. Those whose release cannot be sent do not count.
func (t *Table) PendingReleases() int {
	n := 0
	for _, l := range t.locks {
		if !l.holders.isHeld() && (l.claim.IsBusy() || t.shardOf(l).isUp() && l.claim.State() != claim.Absent) {
			n++
		}
	}
	return n
}

// HeldNames calls yield with the name of each hold of a session, the newest hold first, until it
// returns false.
func (t *Table) HeldNames(id SessionID, yield func(name string) bool) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	for h := s.holds.head; h != nil && yield(h.lock.name); h = h.inSession.next {
	}
}
