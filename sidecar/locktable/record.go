package locktable

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// A Journal stores for a successor what the table must not forget when its process dies:
// for which locks Redis may have a field of this sidecar, and which holds there are. The
// table stores every change before it returns the effects of that change, and never reads
// the journal: the successor does, and restores the table from it.
//
// A record has a slot, which the journal chooses and the table remembers. Slot 0 is none.
// A Put that finds no room returns 0. The journal is then incomplete until Table.Unstored
// is 0 again, and until then no successor may restore it under the same uuid: Redis would
// take the successor's first Take of that lock for a later hold of the same owner, and
// grant what a living client holds.
type Journal interface {
	// PutLock stores a lock in a new slot, if slot is 0, or in place of the record of the
	// same lock in slot, for which there is always room.
	PutLock(slot uint32, r *LockRecord) uint32

	// DeleteLock deletes a lock: Redis has no field of this sidecar under its name. The
	// holds of the lock are deleted before.
	DeleteLock(slot uint32)

	// PutHold stores a hold of the lock in the slot lock, which was put with the number of
	// the hold or a larger one. slot is as for PutLock.
	PutHold(slot, lock uint32, r *HoldRecord) uint32

	// DeleteHold deletes a hold that has ended.
	DeleteHold(slot uint32)

	// PutSession stores what changes of an open session.
	PutSession(r SessionRecord)

	// PutLastHoldID stores the largest number that a hold or an operation ever had.
	PutLastHoldID(id uint64)
}

// LockRecord is a lock for which Redis may have a field or a ticket of this sidecar. If the
// lock has no hold, the field is to be dropped. A ticket is given back when it is transferred.
type LockRecord struct {
	Name      string
	MaxHoldID uint64           // largest number that any hold of it, or operation on it, had
	Kind      redisop.LockKind // of another than redisop.KindLock, each hold is in a slot of its own
	Forced    uint64           // of another than redisop.KindLock: holds up to this number end by force
}

// HoldRecord is a hold as its client knows it. ID, Token, Owner, Session, Granted, KeepUntil,
// Permits, Capacity and Lease never change, and Mode only with a downgrade.
type HoldRecord struct {
	ID, Token, Owner uint64
	Session          SessionID
	Granted          int64
	Deadline         int64 // sent with the grant; see SessionRecord.LeaseSent
	End              int64 // max_hold, or the end of the crash delay; 0: never
	KeepUntil        int64 // until when it excludes others, however it ends; 0: it has no keep
	LeaseSeq         uint32
	LeaseMS          uint32 // of a fixed lease; of a watchdog lease that is not renewed any more; or 0
	Entries          uint32
	CrashDelayMS     uint32
	Permits          uint16 // of a semaphore: that it has; of other locks 1
	Capacity         uint16 // of a semaphore: the largest one that a request had named at the grant; of other locks 0
	Lease            LeaseKind
	Mode             Mode
	Phase            HoldPhase
	InDoubt          bool // Redis may have lost its data, and the field with it: it is to be asserted
}

// SessionRecord is what a session was sent of its deadlines: LeaseSent holds for each of
// its watchdog holds that has another LeaseSeq. Phase is SessionServing, or, if the session
// is not served any more, SessionGivenUp or SessionUnserved.
type SessionRecord struct {
	ID        SessionID
	LeaseSent int64
	LeaseSeq  uint32
	Phase     SessionPhase
}

// RestoredPhase is the phase of the session in a successor: its client is away.
func (r *SessionRecord) RestoredPhase() SessionPhase {
	if r.Phase.IsOver() {
		return SessionGivenUp
	}
	return SessionAbsent
}

// Snapshot is what a successor finds in a journal.
type Snapshot struct {
	LastHoldID uint64
	Sessions   []RestoredSession
	Locks      []RestoredLock
	Holds      []RestoredHold
}

// Forced returns the sessions that had holds which end by force. Their clients cannot know of that by themselves.
func (m *Snapshot) Forced() map[SessionID]bool {
	sessions := make(map[SessionID]bool)
	for i := range m.Holds {
		if h := &m.Holds[i]; h.ID <= m.Locks[h.Lock].Forced {
			sessions[h.Session] = true
		}
	}
	return sessions
}

// RestoredSession is a session that was open.
type RestoredSession struct {
	SessionRecord
	Peer Peer
}

// RestoredLock is a lock, and the slot of its record.
type RestoredLock struct {
	Slot uint32
	LockRecord
}

// RestoredHold is a hold, and the slot of its record.
type RestoredHold struct {
	Slot uint32
	Lock uint32 // its index in Snapshot.Locks
	HoldRecord
}
