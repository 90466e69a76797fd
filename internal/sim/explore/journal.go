package explore

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// journal is the state file of a host, in memory. It has one lock, in slot 1.
type journal struct {
	lock     locktable.LockRecord   // without a name: there is none
	holds    []locktable.HoldRecord // by slot, from 1; without an id: the slot is free
	lastHold uint64
	sessions []locktable.RestoredSession
}

func (j *journal) clone() *journal {
	c := *j
	c.holds, c.sessions = slices.Clone(j.holds), slices.Clone(j.sessions)
	return &c
}

func (j *journal) PutLock(_ uint32, r *locktable.LockRecord) uint32 {
	j.lock = *r
	return 1
}

func (j *journal) DeleteLock(uint32) { j.lock = locktable.LockRecord{} }

func (j *journal) PutHold(slot, _ uint32, r *locktable.HoldRecord) uint32 {
	if slot == 0 {
		slot = uint32(1 + slices.IndexFunc(j.holds, func(r locktable.HoldRecord) bool { return r.ID == 0 }))
	}
	if slot == 0 {
		j.holds = append(j.holds, locktable.HoldRecord{})
		slot = uint32(len(j.holds))
	}
	j.holds[slot-1] = *r
	return slot
}

func (j *journal) DeleteHold(slot uint32) { j.holds[slot-1] = locktable.HoldRecord{} }

// inOrder returns the holds that there are, by their numbers.
func (j *journal) inOrder() []locktable.HoldRecord {
	all := slices.DeleteFunc(slices.Clone(j.holds), func(r locktable.HoldRecord) bool { return r.ID == 0 })
	slices.SortFunc(all, func(a, b locktable.HoldRecord) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

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
		for i, r := range j.holds {
			if r.ID != 0 {
				s.Holds = append(s.Holds, locktable.RestoredHold{Slot: uint32(i + 1), HoldRecord: r})
			}
		}
	}
	return s
}
