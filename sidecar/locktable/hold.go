package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// hold is one granted request, until it is released or lost.
//
// There may be a hundred thousand of these: the fields are in an order that leaves no
// gaps, and holds that ended are used again.
type hold struct {
	id    uint64 // the number in its field in Redis; never used again
	token uint64
	owner uint64 // 0: anonymous
	lock  *lock
	next  *hold // another hold of the lock, or of dirtySet.ended

	session   *session
	inSession links[hold] // the other holds of the session, newest first; not if isOrphan

	granted  int64
	deadline int64 // as its client knows it from the grant; see Table.deadline
	endAt    int64 // its max_hold, or the end of its crash delay, whichever comes first; 0: never
	bucket   int64 // of session.deadlineBuckets, if isTracked

	slot           uint32 // of the journal; 0: none
	entries        uint32
	claimedEntries uint32 // that its client claimed when it resumed the session
	leaseSeq       uint32 // session.leaseSeq at the grant
	leaseMS        uint32 // see leaseOf
	crashDelayMS   uint32
	permits        uint16
	lease          LeaseKind
	mode           Mode
	phase          HoldPhase
	isTracked      bool // its deadline counts in session.deadlineBuckets
	isCounted      bool // it counts for a quota of its session: see Terms
	hasKeep        bool // see Table.keeps
}

// Mode says which other holds of a lock a hold excludes. See compatible. The journal has
// it, so another meaning of a number needs another format of the state file.
type Mode uint8

// Exclusive: it excludes every other hold.
const Exclusive Mode = iota

// LeaseKind says what ends a hold that is not released. It never changes. The journal has
// it, like Mode.
type LeaseKind uint8

const (
	WatchdogLease LeaseKind = iota // it is renewed for as long as its client is served
	FixedLease                     // it ends leaseMS after the grant
)

// HoldPhase is where a hold is between its grant and its end. Its release, max_hold, a
// force-release and its loss in Redis end it in every phase. If its keep lasts, it is kept
// instead of ended: by its release, by max_hold, at its deadline, and by the end of its session.
// The journal has it, like Mode.
//
//	       session unserved
//	 ┌───────────────────────────────▶ unserved ──────┐
//	 │                                     ▲          │ session ended,
//	live ◀──renewed──  unrenewable ────────┘          │ with a crash delay
//	 │  └──renewal ──▶   │   │                        ▼
//	 │     refused       │   └─────session ended─▶ crashDelayed
//	 │                   │ a quarter of a lease       ▲
//	 │                   ▼ is left                    │
//	 │                givenUp                         │
//	 └───────session ended, with a crash delay────────┘
type HoldPhase uint8

const (
	// HoldLive: its client is served, or may resume its session.
	HoldLive HoldPhase = iota

	// HoldUnrenewable: Redis refused to renew it. It is tried again until giveUpAt.
	HoldUnrenewable

	// HoldUnserved: its session is not served any more. It is not renewed, and ends at its
	// deadline, unless its session ends before.
	HoldUnserved

	// HoldCrashDelayed: its client died. It is renewed, if its lease is the watchdog's, and
	// ends at endAt.
	HoldCrashDelayed

	// HoldGivenUp: its client was notified of the loss, or cannot come back for it. Until its
	// deadline no other client gets the lock.
	HoldGivenUp

	// HoldKept: it has ended for its client, and excludes others until its deadline, which is the
	// end of its keep. Redis has its field until then without a renewal, also if this host dies.
	HoldKept
)

// IsOrphan reports whether no session has the hold any more.
func (p HoldPhase) IsOrphan() bool { return p >= HoldCrashDelayed }

func (h *hold) isOrphan() bool { return h.phase.IsOrphan() }

// isRenewed reports whether the watchdog renews the hold.
func (h *hold) isRenewed() bool {
	return h.lease == WatchdogLease && h.phase != HoldUnserved && h.phase != HoldGivenUp && h.phase != HoldKept
}

// sharesLeaseEvents reports whether the lease events of its session are about it.
func (h *hold) sharesLeaseEvents() bool { return h.isRenewed() && !h.isOrphan() }

// compatible is the one place that says when a waiter gets a lock although there are
// holds. Only exclusive holds exist.
func compatible(l *lock, _ *waiter) bool { return l.holds == nil }

// leaseOf is the lease that Redis is given for a request or a hold. leaseMS is that of a
// fixed lease. Under the watchdog it is 0, unless a predecessor, which may have had another
// lease, stopped renewing the hold: then it is the predecessor's.
func (t *Table) leaseOf(kind LeaseKind, leaseMS uint32) uint32 {
	if kind == WatchdogLease && leaseMS == 0 {
		return t.leaseMS
	}
	return leaseMS
}

// remainingLease is the fixed lease of a hold that is not renewed, ms; 0: it is renewed. A
// hold that has lost the watchdog has what is left of the watchdog's lease.
func (t *Table) remainingLease(h *hold) uint32 {
	if h.isRenewed() {
		return 0
	}
	return t.leaseOf(h.lease, h.leaseMS)
}

// deadline is until when the client of the hold may believe in it: the largest deadline
// that it was sent. The key may be this host's for longer, but that does not count: the
// client has stopped believing.
func (t *Table) deadline(h *hold) int64 {
	switch {
	case !h.isRenewed():
		return h.deadline
	case h.isOrphan():
		return h.lock.claim.validUntil
	case h.session.leaseSeq != h.leaseSeq:
		return max(h.deadline, h.session.leaseSent)
	}
	return h.deadline
}

// isChecked reports whether the key of the hold is checked now and then although its lease
// is not renewed: if another program deletes the key or takes it over, the client is
// notified, and the next waiter gets the lock.
func (h *hold) isChecked() bool {
	q := h.lock.queue
	return !h.isRenewed() && (h.phase == HoldLive || h.phase == HoldUnrenewable || q != nil && q.waiters.head != nil)
}

// expireHold ends the hold of a lock if its time is over.
func (t *Table) expireHold(now int64, l *lock) { t.expire(&alarm{now, never}, l) }

// endDueHold ends the hold of a lock if its time is over, or gives it up. It returns whether
// the hold has ended.
func (t *Table) endDueHold(a *alarm, l *lock) bool {
	h := l.holds
	t.expire(a, l)
	if l.holds != nil && h.phase == HoldUnrenewable && a.due(t.giveUpAt(h)) {
		t.giveUpUnrenewable(h)
	}
	return l.holds != h
}

// expire ends the hold of a lock if its time is over, or moves it to the phase that the
// end of its session asks for.
func (t *Table) expire(a *alarm, l *lock) {
	h := l.holds
	if h == nil {
		return
	}
	if !h.isOrphan() {
		switch s := h.session; {
		case s.phase == SessionEnded:
			if t.orphan(a.now, h); l.holds != h {
				return
			}
		case s.phase.IsOver() && h.phase != HoldUnserved:
			t.untrackDeadline(h)
			h.deadline, h.phase = t.deadline(h), HoldUnserved
		}
	}
	for l.holds == h {
		switch {
		case a.due(t.deadline(h)):
			t.notifyLoss(h, protocol.Expired, "")
		case h.endAt != 0 && a.due(h.endAt):
			t.notifyLoss(h, protocol.MaxHold, "") // an orphan has no client to notify
		default:
			return
		}
		t.leave(a.now, h)
	}
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

// orphan ends a hold whose session has ended, or lets it last for its crash delay.
func (t *Table) orphan(now int64, h *hold) {
	t.stats.CrashReleases++
	t.emit(Effect{Kind: Crashed, Session: h.session.id, Name: h.lock.name, Hold: h.id, Since: h.granted, Count: uint32(h.lock.waiting()), Peer: &h.session.peer})
	t.unlinkHold(h)
	c := &h.lock.claim
	c.validUntil = max(c.validUntil, t.deadline(h)) // it may be from before a restart
	if h.isRenewed() {
		h.phase = HoldCrashDelayed
	} else {
		h.phase = HoldGivenUp
	}
	if h.crashDelayMS == 0 {
		t.leave(now, h)
	} else if end := h.session.endedAt + ms(h.crashDelayMS); h.endAt == 0 || end < h.endAt {
		h.endAt = end
	}
}

// giveUpAt is when a hold that Redis refuses to renew is given up: some time before its
// deadline, since that is also the deadline of everything else that the session holds under
// the watchdog. (What was sent of it before a restart with a longer lease may be later: it
// is not what keeps the others' deadline down.)
func (t *Table) giveUpAt(h *hold) int64 {
	return min(t.deadline(h), h.lock.claim.validUntil) - int64(t.cfg.Lease)/4
}

// giveUpUnrenewable notifies the client of a hold that Redis refuses to renew.
func (t *Table) giveUpUnrenewable(h *hold) {
	t.emit(Effect{Kind: Lost, Session: h.session.id, Name: h.lock.name, Hold: h.id, Reason: protocol.Expired, WasClaimed: h.claimedEntries != 0, Since: h.granted, Peer: &h.session.peer})
	t.groupStats(h.lock).Losses[lossIndex(protocol.Expired)]++
	h.deadline = t.deadline(h)
	t.unlinkHold(h)
	h.phase = HoldGivenUp
}

// loseHold ends a hold whose lock has another owner or none, and notifies its client. found is
// what is under its name in Redis, if that is the reason.
func (t *Table) loseHold(now int64, h *hold, why protocol.Reason, found string) {
	t.notifyLoss(h, why, found)
	t.endHold(now, h)
}

// notifyLoss notifies the client of a hold, if it has one, that the hold has ended without a
// release.
func (t *Table) notifyLoss(h *hold, why protocol.Reason, found string) {
	switch {
	case !h.isOrphan():
		t.emit(Effect{Kind: Lost, Session: h.session.id, Name: h.lock.name, Hold: h.id, Reason: why, WasClaimed: h.claimedEntries != 0, Msg: found, Since: h.granted, Peer: &h.session.peer})
		t.groupStats(h.lock).Losses[lossIndex(why)]++
	case h.phase == HoldKept && why != protocol.Expired:
		t.emit(Effect{Kind: KeepLost, Session: h.session.id, Name: h.lock.name, Hold: h.id, Reason: why, Msg: found})
	}
}

// leave ends a hold for its client: the lock is kept, or else is free.
func (t *Table) leave(now int64, h *hold) {
	if now >= t.keepUntil(h) {
		t.endHold(now, h)
		return
	}
	t.observeEnd(now, h)
	c := &h.lock.claim
	c.validUntil = max(c.validUntil, t.keepUntil(h)) // since the grant
	t.unlinkHold(h)
	h.phase, h.deadline, h.endAt = HoldKept, t.keepUntil(h), 0
	h.entries = max(h.entries, 1) // Redis has as many
}

// keepUntil is until when a hold excludes others, however it ends for its client; 0: it has no keep.
func (t *Table) keepUntil(h *hold) int64 {
	if !h.hasKeep {
		return 0
	}
	return t.keeps[h.id]
}

// observeEnd notes for how long the client of a hold had it.
func (t *Table) observeEnd(now int64, h *hold) {
	t.groupStats(h.lock).Held.Observe(LongTimes, time.Duration(now-h.granted))
}

// Operators want to know of a hold that was so long. BlockingHold: clients wait for the lock, and it is
// longer than a round trip to a Redis nearby.
const (
	NotableHold  = time.Second
	BlockingHold = 10 * time.Millisecond
)

// isLong reports whether operators want to know of the end of this hold. Most holds are short: their
// releases yield no effect for it.
func (h *hold) isLong(now int64) bool {
	held := time.Duration(now - h.granted)
	return held >= BlockingHold && (held >= NotableHold || h.lock.waiting() > 0)
}

// endHold makes the lock free for the next local waiter, or to be dropped.
func (t *Table) endHold(now int64, h *hold) {
	if q := h.lock.queue; q != nil && now-h.granted >= int64(BlockingHold) {
		q.blocker = blocker{&h.session.peer, now}
	}
	t.unlinkHold(h)
	h.uncountHold()
	delete(t.byHold, h.id)
	if h.hasKeep {
		delete(t.keeps, h.id)
	}
	if h.phase != HoldKept {
		t.observeEnd(now, h)
	}
	l := h.lock
	for at := &l.holds; ; at = &(*at).next {
		if *at == h {
			*at = h.next
			break
		}
	}
	if h.slot != 0 {
		*h = hold{slot: h.slot, next: t.dirty.ended} // until writeJournal
		t.dirty.ended = h
		return
	}
	t.freeHold(h)
}

func (t *Table) freeHold(h *hold) {
	*h = hold{}
	t.holds.put(h)
}

// addHold makes a hold known by its id.
func (t *Table) addHold(h *hold) {
	h.next, h.lock.holds = h.lock.holds, h
	t.byHold[h.id] = h
}

func holdLinks(h *hold) *links[hold] { return &h.inSession }

func (t *Table) linkHold(h *hold) { h.session.holds.pushFront(h, holdLinks) }

// unlinkHold takes the hold out of its session's list; the session stays known as the one
// that had it.
func (t *Table) unlinkHold(h *hold) {
	if h.isOrphan() {
		return
	}
	h.session.holds.remove(h, holdLinks)
	t.untrackDeadline(h)
}

// isOwnedBy reports whether this owner of this session has the hold.
func (h *hold) isOwnedBy(s *session, owner uint64) bool {
	return h != nil && owner != 0 && h.owner == owner && h.session == s && !h.isOrphan()
}

// reenter grants a further entry of a hold to its owner.
func (t *Table) reenter(h *hold, id uint64) {
	h.entries++
	t.groupStats(h.lock).Acquires[AcquireReentered]++
	if h.isRenewed() {
		h.deadline = max(t.deadline(h), h.lock.claim.validUntil)
	}
	t.emit(Effect{Kind: Granted, Session: h.session.id, ID: id, Token: h.token, Hold: h.id, Count: h.entries, Deadline: t.deadline(h), End: h.endAt})
}

// Release ends one entry of a hold. Redis's answer cannot change this one.
func (t *Table) Release(now int64, id SessionID, req protocol.Release) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	h := t.byHold[req.Hold]
	if h == nil {
		t.refuseRelease(s, &req)
		return
	}
	l := h.lock
	t.expireHold(now, l)
	if h = t.byHold[req.Hold]; h == nil || h.isOrphan() || h.session != s {
		t.refuseRelease(s, &req)
	} else {
		h.entries--
		if req.ID != 0 {
			t.emit(Effect{Kind: Released, Session: id, ID: req.ID, Count: h.entries})
		}
		if h.entries == 0 {
			switch {
			case req.CutShort:
				t.emit(Effect{Kind: CutShort, Session: id, Name: l.name, Hold: h.id, Reason: protocol.CutShort, Since: h.granted, Peer: &s.peer})
				t.groupStats(l).Losses[lossIndex(protocol.CutShort)]++
			case h.isLong(now):
				t.emit(Effect{Kind: LongHold, Session: id, Name: l.name, Hold: h.id, Since: h.granted, Count: uint32(l.waiting()), Peer: &s.peer})
			}
			granted := h.granted
			if t.leave(now, h); l.holds == nil {
				t.linger(now, l, granted)
			}
		}
	}
	t.reconcile(now, l)
}

func (t *Table) refuseRelease(s *session, req *protocol.Release) {
	if req.ID != 0 {
		t.refuse(s, req.ID, protocol.NotHeld, "this client does not hold %d: it released it before, lost it, or never had it; nothing was changed", req.Hold)
	}
}

// ForceRelease ends the hold on a name, of any owner. The caller has checked that the
// session may.
func (t *Table) ForceRelease(now int64, id SessionID, req protocol.ForceRelease) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	l := t.byName[req.Name]
	num, ok := t.forceHold(now, l)
	if !ok {
		t.refuse(s, req.ID, protocol.NotHeld, "no client of this sidecar holds %q; force it on the host of its holder", req.Name)
	} else {
		t.emit(Effect{Kind: Forced, Session: id, ID: req.ID, Hold: num, Name: req.Name})
	}
	if l != nil {
		t.reconcile(now, l)
	}
}

// EndHold ends the hold that a session has on a lock, with reason forced, and returns its number.
// False: no session holds the lock.
func (t *Table) EndHold(now int64, name string) (num uint64, ok bool) {
	l := t.byName[name]
	num, ok = t.forceHold(now, l)
	if l != nil {
		t.reconcile(now, l)
	}
	return num, ok
}

// forceHold ends the hold on a lock, if there is one. l may be nil. The caller reconciles.
func (t *Table) forceHold(now int64, l *lock) (num uint64, ok bool) {
	if l == nil {
		return 0, false
	}
	t.expireHold(now, l)
	if l.holds == nil {
		return 0, false
	}
	num = l.holds.id
	t.loseHold(now, l.holds, protocol.ByForce, "")
	return num, true
}
