package locktable_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// collect prints the effects since the last input, each with the time at which it came.
func (s *scenario) collect() {
	for _, e := range s.table.Effects() {
		line := s.describe(&e)
		if line == "" {
			continue
		}
		at := time.Duration(s.now - startOfScenario).Round(time.Millisecond)
		fmt.Fprintf(&s.out, "%-8v %s\n", at, line)
	}
}

// describe describes an effect; "": it is for operators only.
func (s *scenario) describe(e *locktable.Effect) string {
	client := "to " + s.clientOf(e.Session) + ":"
	switch e.Kind {
	case locktable.Granted:
		s.holds[s.clientOf(e.Session)+" "+e.Name] = e.Hold
		return fmt.Sprintf("%s granted %s with hold %d, token %d, entries %d, valid for %v", client, e.Name, e.Hold, e.Token, e.Count, s.left(e.Deadline))
	case locktable.Released:
		return fmt.Sprintf("%s released, %d entries left", client, e.Count)
	case locktable.Refusal:
		return fmt.Sprintf("%s refused, %s: %s", client, e.Code, e.Msg)
	case locktable.Canceled:
		return fmt.Sprintf("%s canceled, it waited: %v", client, e.WasWaiting)
	case locktable.Claimed:
		return fmt.Sprintf("%s claimed", client)
	case locktable.Lost:
		return fmt.Sprintf("%s lost hold %d, %s%s", client, e.Hold, e.Reason, parenthesised(e.Msg))
	case locktable.Lease:
		return fmt.Sprintf("%s leases are valid for %v", client, s.left(e.Deadline))
	case locktable.Closed:
		return fmt.Sprintf("the session of %s has nothing left", s.clientOf(e.Session))
	case locktable.Subscribe:
		return "subscribe to the channel of " + e.Name
	case locktable.Unsubscribe:
		return "unsubscribe from the channel of " + e.Name
	case locktable.Redis:
		s.inFlight = append(s.inFlight, e.Op)
		return "to Redis: " + operation(&e.Op)
	}
	return ""
}

func (s *scenario) left(deadline int64) time.Duration {
	return time.Duration(deadline - s.now).Round(time.Millisecond)
}

func parenthesised(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// operation describes an operation: what matters for its kind.
func operation(op *redisop.Op) string {
	words := []string{op.Kind.String(), op.Name}
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	lease := time.Duration(op.LeaseMS) * time.Millisecond
	switch op.Kind {
	case redisop.Take:
		add("hold=%d lease=%v tokens=%d", op.HoldID, lease, op.Reserve)
	case redisop.Renew:
		add("hold=%d lease=%v", op.HoldID, lease)
	case redisop.Check, redisop.Drop:
		add("hold=%d", op.HoldID)
	}
	if op.Ticket != 0 {
		add("ticket=%d", op.Ticket)
	}
	if op.Arrived != 0 {
		add("arrived=%d", op.Arrived)
	}
	for _, flag := range []struct {
		is   bool
		word string
	}{
		{op.Has(redisop.RequireExisting), "only-if-ours"},
		{op.Has(redisop.AfterPendingDrop), "after-the-drop"},
		{op.Has(redisop.Enqueue), "enqueue"},
		{op.Has(redisop.InOrder), "in-order"},
		{op.Has(redisop.CanWait), "can-wait"},
	} {
		if flag.is {
			add("%s", flag.word)
		}
	}
	return strings.Join(words, " ")
}

// recordJournal is a Journal in memory, from which restart restores the table.
type recordJournal struct {
	lastSlot   uint32
	lastHoldID uint64
	locks      map[uint32]locktable.LockRecord
	holds      map[uint32]locktable.RestoredHold // with the slot of the lock in Lock
	sessions   map[locktable.SessionID]locktable.SessionRecord
}

func newRecordJournal() *recordJournal {
	return &recordJournal{
		locks: map[uint32]locktable.LockRecord{}, holds: map[uint32]locktable.RestoredHold{},
		sessions: map[locktable.SessionID]locktable.SessionRecord{},
	}
}

func (j *recordJournal) newSlot(slot uint32) uint32 {
	if slot == 0 {
		j.lastSlot++
		return j.lastSlot
	}
	return slot
}

func (j *recordJournal) PutLock(slot uint32, r *locktable.LockRecord) uint32 {
	slot = j.newSlot(slot)
	j.locks[slot] = *r
	return slot
}

func (j *recordJournal) PutHold(slot, lock uint32, r *locktable.HoldRecord) uint32 {
	slot = j.newSlot(slot)
	j.holds[slot] = locktable.RestoredHold{Slot: slot, Lock: lock, HoldRecord: *r}
	return slot
}

func (j *recordJournal) DeleteLock(slot uint32)               { delete(j.locks, slot) }
func (j *recordJournal) DeleteHold(slot uint32)               { delete(j.holds, slot) }
func (j *recordJournal) PutSession(r locktable.SessionRecord) { j.sessions[r.ID] = r }
func (j *recordJournal) PutLastHoldID(id uint64)              { j.lastHoldID = id }

// snapshot returns what a successor finds.
func (j *recordJournal) snapshot(peers map[locktable.SessionID]locktable.Peer) *locktable.Snapshot {
	m := &locktable.Snapshot{LastHoldID: j.lastHoldID}
	index := map[uint32]uint32{}
	for slot := uint32(1); slot <= j.lastSlot; slot++ {
		if r, ok := j.locks[slot]; ok {
			index[slot] = uint32(len(m.Locks))
			m.Locks = append(m.Locks, locktable.RestoredLock{Slot: slot, LockRecord: r})
		}
	}
	for slot := uint32(1); slot <= j.lastSlot; slot++ {
		if r, ok := j.holds[slot]; ok {
			r.Lock = index[r.Lock]
			m.Holds = append(m.Holds, r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		r := j.sessions[id]
		r.ID = id
		m.Sessions = append(m.Sessions, locktable.RestoredSession{SessionRecord: r, Peer: peers[id]})
	}
	return m
}
