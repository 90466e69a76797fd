package explore

import (
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// journal is the state file of a host, in memory. It has one lock with one hold, in slot 1.
type journal struct {
	lock     locktable.LockRecord // without a name: there is none
	hold     locktable.HoldRecord // without an id: there is none
	lastHold uint64
	sessions []locktable.RestoredSession
}

func (j *journal) clone() *journal {
	c := *j
	c.sessions = slices.Clone(j.sessions)
	return &c
}

func (j *journal) PutLock(_ uint32, r *locktable.LockRecord) uint32 {
	j.lock = *r
	return 1
}

func (j *journal) DeleteLock(uint32) { j.lock = locktable.LockRecord{} }

func (j *journal) PutHold(_, _ uint32, r *locktable.HoldRecord) uint32 {
	j.hold = *r
	return 1
}

func (j *journal) DeleteHold(uint32) { j.hold = locktable.HoldRecord{} }

func (j *journal) PutSession(r locktable.SessionRecord) {
	if s := j.session(r.ID); s != nil {
		s.SessionRecord = r
	}
}

func (j *journal) PutLastHoldID(id uint64) { j.lastHold = id }

func (j *journal) open(id locktable.SessionID, p locktable.Peer) {
	j.sessions = append(j.sessions, locktable.RestoredSession{SessionRecord: locktable.SessionRecord{ID: id}, Peer: p})
}

func (j *journal) closed(id locktable.SessionID) {
	j.sessions = slices.DeleteFunc(j.sessions, func(s locktable.RestoredSession) bool { return s.ID == id })
}

func (j *journal) session(id locktable.SessionID) *locktable.RestoredSession {
	for i := range j.sessions {
		if j.sessions[i].ID == id {
			return &j.sessions[i]
		}
	}
	return nil
}

func (j *journal) snapshot() locktable.Snapshot {
	s := locktable.Snapshot{LastHoldID: j.lastHold, Sessions: slices.Clone(j.sessions)}
	if j.lock.Name != "" {
		s.Locks = []locktable.RestoredLock{{Slot: 1, LockRecord: j.lock}}
		if j.hold.ID != 0 {
			s.Holds = []locktable.RestoredHold{{Slot: 1, HoldRecord: j.hold}}
		}
	}
	return s
}
