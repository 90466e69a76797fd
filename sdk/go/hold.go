package locksidecar

import (
	"cmp"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// hold is one lock or read/write lock held by one owner, or permits of a semaphore. It has a handle for each of its
// entries; the first handle is part of it. It has neither a timer nor a goroutine: a program may
// hold very many.
type hold struct {
	// Immutable.
	session *session
	name    string
	id      uint64
	token   uint64
	leaseMS uint32 // of leaseFixed
	permits uint16 // of a semaphore; 0: it is a lock
	of      uint16 // how many the semaphore has for this hold
	lease   leaseKind
	isOwned bool // its owner may re-enter it

	// Guarded by session.mu.
	phase      holdPhase
	mode       holdMode
	entries    uint32  // not released; 0 in holdReleasing and holdReleased
	deadline   int64   // of the last grant, or later; see receivedDeadlineLocked
	maxHoldEnd int64   // when its max_hold ends; 0: it has none
	leaseSeq   uint64  // session.leaseSeq at the grant: only later lease events concern the hold
	cause      error   // in holdEnded: a *LostError, or an ErrClosed
	observed   *handle // the first of its handles that have observers
	alarmIndex int32   // its place in session.alarm, counted from 1; 0: it has none

	first Lock // a Permit, of a semaphore
}

// holdPhase is what the session, and the sidecar, know of a hold. Unlock is Permit.Release, too.
//
//	             last Unlock, of an anonymous owner
//	  ┌──────────────────────────────────────────────────────────┐
//	  │                                                          ▼
//	live ─── last Unlock, of an owner that may re-enter ─┐    released
//	  │ ▲                                                ▼      ▲ ▲
//	  │ └─── the answer to a re-entry arrives ─── releasing ────┘ │
//	  │                           the release is answered         │
//	  │ a new session                                last Unlock  │
//	  └────────────────────────► orphaned ────────────────────────┘
//
//	live, releasing and orphaned become ended when the hold is lost or the Client is closed.
type holdPhase uint8

const (
	// The lock is held, and the sidecar has the hold. It is in session.holds.
	holdLive holdPhase = iota

	// All entries are unlocked, and the sidecar has not answered the release of the last
	// one. It is in session.holds, because an answer that the sidecar sent before it
	// received the release may enter it again. The answer to the release ends it, or the
	// next connection: the hold is not claimed over it.
	holdReleasing

	// The lock is held, but the sidecar has a new session for this client and knows nothing
	// of the hold. It is valid until its deadline, and can neither be renewed nor released.
	// It is in session.orphans. The last Unlock ends it, or the deadline.
	holdOrphaned

	// All entries are unlocked. It has no end.
	holdReleased

	// The lock was lost, or the Client was closed, before all entries were unlocked. It has
	// no end.
	holdEnded
)

// holdMode is how a read/write lock is held, or is to be acquired.
//
//	exclusive ─── Downgrade ──► downgrading ─── its answer ──► shared
type holdMode uint8

const (
	notReadWrite holdMode = iota // it is of another kind

	// No other hold exists beside it.
	exclusiveMode

	// A downgrade was requested, and its answer has not come: other holds may exist beside it.
	downgradingMode

	// Other shared holds exist beside it.
	sharedMode
)

// leaseKind is how long the sidecar lets Redis keep a hold.
type leaseKind uint8

const (
	// The sidecar renews the hold, and lease events move its deadline.
	leaseWatchdog leaseKind = iota

	// The hold has a lease of its own, which is not renewed.
	leaseFixed

	// The hold was entered again after it had expired here, by this program's clock: the
	// sidecar had renewed it, and had not received its release. Only the answer to the
	// first entry said which lease it has. So lease events do not move its deadline, and
	// the sidecar may renew it.
	leaseUnknown
)

// enterHoldLocked returns the handle of an acquire that was granted.
func (s *session) enterHoldLocked(req *wanted, ok *protocol.AcquireOK) *Lock {
	if h := s.holds[ok.Hold]; h != nil {
		h.phase = holdLive
		h.deadline = max(h.receivedDeadlineLocked(), ok.DeadlineNS)
		h.leaseSeq = s.leaseSeq
		h.entries++
		if ok.Shared && h.mode != notReadWrite {
			h.mode = sharedMode // it may have been downgraded
		}
		l := new(Lock)
		l.hold = h
		return l
	}
	h := &hold{
		session: s, name: req.Name, id: ok.Hold, token: ok.Token,
		permits:    req.Permits,
		of:         cmp.Or(ok.Of, req.Of),
		isOwned:    req.Owner != 0,
		entries:    1,
		deadline:   ok.DeadlineNS,
		maxHoldEnd: ok.EndNS,
		leaseSeq:   s.leaseSeq,
	}
	switch {
	case ok.Count > 1:
		h.lease = leaseUnknown
	case req.LeaseMS != 0:
		h.lease, h.leaseMS = leaseFixed, uint32(req.LeaseMS) // the longest, 30 days, fits
	}
	if req.mode != notReadWrite {
		h.mode = exclusiveMode
		if ok.Shared {
			h.mode = sharedMode
		}
	}
	h.first.hold = h
	s.holds[h.id] = h
	return &h.first
}

func (h *hold) isHeldLocked() bool { return h.phase == holdLive || h.phase == holdOrphaned }

// deadlineLocked returns until when the hold is valid.
func (h *hold) deadlineLocked() int64 {
	if h.maxHoldEnd != 0 {
		return min(h.receivedDeadlineLocked(), h.maxHoldEnd)
	}
	return h.receivedDeadlineLocked()
}

// receivedDeadlineLocked returns the largest deadline that the sidecar has sent for the hold.
// A lease event costs the same for one hold and for a hundred thousand, because it is stored
// in the session only.
func (h *hold) receivedDeadlineLocked() int64 {
	s := h.session
	if h.lease == leaseWatchdog && h.leaseSeq < s.leaseSeq && (h.phase == holdLive || h.phase == holdReleasing) {
		return max(h.deadline, s.leaseDeadline)
	}
	return h.deadline
}

// leaveLocked changes the phase of a hold that the sidecar does not renew any more. Its
// deadline stays what it is now.
func (h *hold) leaveLocked(to holdPhase) {
	h.deadline = h.receivedDeadlineLocked()
	switch h.phase {
	case holdLive, holdReleasing:
		delete(h.session.holds, h.id)
	case holdOrphaned:
		delete(h.session.orphans, h)
	}
	h.phase = to
	if to == holdOrphaned {
		h.session.orphans[h] = struct{}{}
	}
}

// endLocked ends a hold that is not released, and appends the notices for its observers.
func (h *hold) endLocked(cause error, notices []endNotice) []endNotice {
	h.leaveLocked(holdEnded)
	h.cause = cause
	h.session.alarm.remove(h)
	for l := h.observed; l != nil; l = l.nextObserved {
		notices = append(notices, endNotice{observers: *l.observers, cause: cause})
		l.observers = nil
	}
	h.observed = nil
	if report := h.lossReportLocked(); report.log != nil {
		notices = append(notices, endNotice{loss: report})
	}
	return notices
}

func (h *hold) lostError(reason Reason) *LostError {
	return &LostError{Name: h.name, Permits: int(h.permits), Reason: reason}
}

// expireLocked ends a hold that is held and whose deadline had passed at now. It returns the
// notices for its observers, and whether it ended the hold. All that had arrived at now must
// have been read: an event that waited in the socket, because this process was stopped, may
// have moved the deadline. The caller flushes the connection: the hold is released, because
// the sidecar may have renewed it, and the event may not have arrived.
func (h *hold) expireLocked(now int64) (notices []endNotice, expired bool) {
	if !h.isHeldLocked() || now < h.deadlineLocked() {
		return nil, false
	}
	reason := ReasonExpired
	if h.maxHoldEnd != 0 && now >= h.maxHoldEnd {
		reason = ReasonMaxHold
	}
	conn := h.session.conn
	if h.phase == holdOrphaned {
		conn = nil // the sidecar does not have the hold
	}
	notices = h.endLocked(h.lostError(reason), nil)
	for range h.entries {
		conn.queue(protocol.Release{Hold: h.id})
	}
	return notices, true
}

// onReleased is called when the sidecar has answered the release of the last entry.
func (s *session) onReleased(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.phase == holdReleasing {
		h.leaveLocked(holdReleased)
	}
}

// allHoldsLocked yields the holds that are neither released nor ended. Those that it yields
// may be ended meanwhile.
func (s *session) allHoldsLocked() func(yield func(*hold) bool) {
	return func(yield func(*hold) bool) {
		for _, h := range s.holds {
			if !yield(h) {
				return
			}
		}
		for h := range s.orphans {
			if !yield(h) {
				return
			}
		}
	}
}

// leaseEndLocked returns when the lease of a released hold ends in Redis, at the latest, if
// Redis does not execute the release.
func (h *hold) leaseEndLocked() int64 {
	s := h.session
	if h.lease == leaseFixed {
		// The deadline is a hundredth of the lease and 2 ms before the end of the lease.
		// Redis's delay comes on top.
		margin := time.Duration(h.leaseMS)*time.Millisecond/50 + 10*time.Millisecond
		return h.receivedDeadlineLocked() + int64(margin)
	}
	// The sidecar may just have renewed it, and the lease event may not have been received.
	return max(h.receivedDeadlineLocked(), s.clock()+int64(s.watchdogLease))
}
