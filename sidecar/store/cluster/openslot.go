package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A slot of a Cluster is open while it migrates from one master to another one. redis-cli closes each slot within
// moments; if it is killed, the slot stays open until an administrator finishes the move. Held locks of an open
// slot are renewed, which needs one key. Takes and Drops need several, and Redis answers TRYAGAIN.
//
//	            ASK or TRYAGAIN of a node,                  openAfter
//	            or CLUSTER NODES of its master
//	closed ──────────────────────────────────► open ──────────────────────► reported
//	   ▲                                        │                              │
//	   └────────────────────────────────────────┴──────────────────────────────┘
//	             CLUSTER NODES of its master has it no more, or another master has it
const (
	// openAfter is for how long a slot may be open before that is reported.
	openAfter = 10 * time.Second

	// openInterval is the time between two questions to the masters of open slots.
	openInterval = 2500 * time.Millisecond

	// blockedWithin is for how long a slot counts as blocking after the last TRYAGAIN: waiters retry more often.
	blockedWithin = 5 * time.Second

	// maxOpen bounds the open slots that are known. Usually there is one at a time.
	maxOpen = 256
)

// OpenSlot is a slot that has been migrating for longer than openAfter.
type OpenSlot struct {
	Slot     uint16
	From, To string        // addresses; To may be "": it is not known
	For      time.Duration // since the first sign of it
}

// note notes a sign that a slot of the master from is open. isBlocking: an operation got TRYAGAIN. It reports whether
// the slot was not known to be open.
func (o *openSlots) note(now int64, slot uint16, from, to string, isBlocking bool) (isNew bool) {
	s := o.slots[slot]
	if s == nil {
		if len(o.slots) >= maxOpen || from == "" {
			return false
		}
		s = &openSlot{from: from, since: now}
		if o.slots == nil {
			o.slots = make(map[uint16]*openSlot)
		}
		o.slots[slot], isNew = s, true
	}
	if to != "" {
		s.to = to
	}
	if isBlocking {
		s.blockedAt = now
	}
	return isNew
}

// confirm takes in which slots a node moves away, as it says itself. Those of its slots that are not among them are
// closed.
func (o *openSlots) confirm(now int64, node string, moving map[uint16]string) {
	for slot, to := range moving {
		o.note(now, slot, node, to, false)
	}
	for slot, s := range o.slots {
		if _, isOpen := moving[slot]; s.from == node && !isOpen {
			delete(o.slots, slot)
		}
	}
}

// masters returns the addresses of the masters of open slots. masterOf is the address of the master that has a slot now:
// a slot that has another one is closed.
func (o *openSlots) masters(masterOf func(slot uint16) string) (addresses []string) {
	for slot, s := range o.slots {
		if masterOf(slot) != s.from {
			delete(o.slots, slot)
		} else if !slices.Contains(addresses, s.from) {
			addresses = append(addresses, s.from)
		}
	}
	return addresses
}

// long returns the slots that are open for longer than openAfter, and whether a lock waits because of one.
func (o *openSlots) long(now int64) (open []OpenSlot, isBlocking bool) {
	for slot, s := range o.slots {
		if age := time.Duration(now - s.since); age > openAfter {
			open = append(open, OpenSlot{slot, s.from, s.to, age})
			isBlocking = isBlocking || s.blockedAt != 0 && now-s.blockedAt < int64(blockedWithin)
		}
	}
	slices.SortFunc(open, func(a, b OpenSlot) int { return cmp.Compare(a.Slot, b.Slot) })
	return open, isBlocking
}

// change returns the sentence for the slots that are open for too long ("": there is none), and whether a lock waits;
// changed: it is not what was returned last.
func (o *openSlots) change(now int64) (why string, isBlocking, changed bool) {
	open, isBlocking := o.long(now)
	if len(open) > 0 {
		why = describeOpen(open)
	}
	changed = why != o.reported || isBlocking != o.isBlocking
	o.reported, o.isBlocking = why, isBlocking
	return why, isBlocking, changed
}

// describeOpen is the sentence for open slots.
func describeOpen(open []OpenSlot) string {
	first := &open[0]
	what, them := fmt.Sprintf("slot %d has", first.Slot), "it"
	if n := len(open) - 1; n > 0 {
		what, them = fmt.Sprintf("slot %d and %d more have", first.Slot, n), "them"
	}
	return fmt.Sprintf("%s been migrating from %s to %s for more than %v: held locks of %s are renewed, and none can be taken or released; if no program moves slots now, an administrator finishes the move as docs/runbooks/slot-open.md says",
		what, first.From, cmp.Or(first.To, "another master"), openAfter, them)
}
