package store

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A slot of a Cluster is open while it is on its way from one master to another one. A program that moves slots closes
// each within moments; one that dies leaves it open, for as long as nobody looks. Locks of the slot are served by both
// masters then, but for those whose keys are divided between them: these wait.
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

	// openInterval is how often the masters of open slots are asked, and openRecent for how long a lock counts as one
	// that waits after Redis has not served it: waiters ask more often.
	openInterval = 2500 * time.Millisecond
	openRecent   = 5 * time.Second

	// maxOpen bounds the open slots that are known. There is one at a time, unless many were left.
	maxOpen = 256
)

// OpenSlot is a slot that is on its way from one master to another one, and has been for longer than it should.
type OpenSlot struct {
	Slot     uint16
	From, To string        // addresses; To may be "": it is not known
	For      time.Duration // since the first sign of it
}

// openSlots has the open slots of a Cluster.
type openSlots struct {
	mu       sync.Mutex // guards what follows; nothing else is locked under it
	slots    map[uint16]*openSlot
	reported string // the sentence that was reported last; "": none is open
	isFelt   bool   // the same: a lock waits
}

type openSlot struct {
	from, to string
	since    int64 // CLOCK_BOOTTIME in ns
	feltAt   int64 // when an operation was not served because of it; 0: none was
}

// note notes a sign that a slot is open, which its master has. isFelt: an operation was not served because of it. It
// reports whether that is new.
func (o *openSlots) note(slot uint16, from, to string, isFelt bool) (isNew bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.slots[slot]
	if s == nil {
		if len(o.slots) >= maxOpen || from == "" {
			return false
		}
		s = &openSlot{from: from, since: protocol.Now()}
		if o.slots == nil {
			o.slots = make(map[uint16]*openSlot)
		}
		o.slots[slot], isNew = s, true
	}
	if to != "" {
		s.to = to
	}
	if isFelt {
		s.feltAt = protocol.Now()
	}
	return isNew
}

// confirm takes in which slots a node moves away, as it says itself. Those of its slots that are not among them are
// closed.
func (o *openSlots) confirm(node string, moving map[uint16]string) {
	for slot, to := range moving {
		o.note(slot, node, to, false)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for slot, s := range o.slots {
		if _, isOpen := moving[slot]; s.from == node && !isOpen {
			delete(o.slots, slot)
		}
	}
}

// masters returns the addresses of the masters of open slots. masterOf is the address of the master that has a slot now:
// a slot that has another one is closed.
func (o *openSlots) masters(masterOf func(slot uint16) string) (addresses []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for slot, s := range o.slots {
		if masterOf(slot) != s.from {
			delete(o.slots, slot)
		} else if !slices.Contains(addresses, s.from) {
			addresses = append(addresses, s.from)
		}
	}
	return addresses
}

// long returns the slots that are open for longer than openAfter, and whether a lock waits because of one. The caller
// holds mu.
func (o *openSlots) long(now int64) (open []OpenSlot, isFelt bool) {
	for slot, s := range o.slots {
		if age := time.Duration(now - s.since); age > openAfter {
			open = append(open, OpenSlot{slot, s.from, s.to, age})
			isFelt = isFelt || s.feltAt != 0 && now-s.feltAt < int64(openRecent)
		}
	}
	slices.SortFunc(open, func(a, b OpenSlot) int { return cmp.Compare(a.Slot, b.Slot) })
	return open, isFelt
}

// change returns the sentence for the slots that are open for too long ("": there is none), and whether a lock waits;
// changed: it is not what was returned last.
func (o *openSlots) change(now int64) (why string, isFelt, changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	open, isFelt := o.long(now)
	if len(open) > 0 {
		why = describeOpen(open)
	}
	changed = why != o.reported || isFelt != o.isFelt
	o.reported, o.isFelt = why, isFelt
	return why, isFelt, changed
}

// describeOpen is the sentence for open slots.
func describeOpen(open []OpenSlot) string {
	first := &open[0]
	what := fmt.Sprintf("slot %d is", first.Slot)
	if n := len(open) - 1; n > 0 {
		what = fmt.Sprintf("slot %d and %d more are", first.Slot, n)
	}
	return fmt.Sprintf("%s on the way from %s to %s for more than %v: if no program moves slots now, one has been ended, and locks of which Redis has some keys at each of the two wait; redis-cli --cluster fix %s ends that",
		what, first.From, cmp.Or(first.To, "another master"), openAfter, first.From)
}

// OpenSlots returns the slots of a Cluster that are open for too long, the smallest first.
func (s *Store) OpenSlots() []OpenSlot {
	if s.cluster == nil {
		return nil
	}
	o := &s.cluster.open
	o.mu.Lock()
	defer o.mu.Unlock()
	open, _ := o.long(protocol.Now())
	return open
}

// noteOpen notes a sign that a slot is open, and has its master asked.
func (cl *cluster) noteOpen(slot uint16, to string, isFelt bool) {
	if cl.open.note(slot, cl.masterOf(slot), to, isFelt) {
		cl.refreshLater()
	}
}

// masterOf returns the address of the master that has a slot; "": none has.
func (cl *cluster) masterOf(slot uint16) string {
	if c := cl.get(redisop.Shard(cl.owners[slot].Load())); c != nil {
		return c.dial.address
	}
	return ""
}

// checkOpen asks the masters of open slots, and reports what has changed. It returns whether there are any.
func (cl *cluster) checkOpen() bool {
	for _, address := range cl.open.masters(cl.masterOf) {
		cl.mu.Lock()
		c := cl.get(cl.byAddress[address])
		cl.mu.Unlock()
		if c != nil && c.isUp.Load() { // another one may be replaced soon, and has its slots as before
			_, _ = cl.ask(address)
		}
	}
	why, isFelt, changed := cl.open.change(protocol.Now())
	if changed {
		if why != "" {
			cl.cfg.Log.Warn("a slot of the Cluster is left between two masters", "reason", why, "locks_wait", isFelt)
		} else {
			cl.cfg.Log.Info("no slot of the Cluster is left between two masters any more")
		}
		if cl.cfg.OnOpenSlots != nil {
			cl.cfg.OnOpenSlots(why, isFelt)
		}
	}
	cl.open.mu.Lock()
	defer cl.open.mu.Unlock()
	return len(cl.open.slots) > 0
}
