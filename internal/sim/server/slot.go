package server

import (
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// KeySet is a set of the keys that a lock has in Redis. Of a semaphore, the HASH is the LockKey, and the places have the
// QueueKey and the SignsKey.
type KeySet uint8

const (
	LockKey KeySet = 1 << iota
	CounterKey
	QueueKey
	SignsKey

	AllKeys = LockKey | CounterKey | QueueKey | SignsKey
)

// Slot is what a node of a Cluster knows of a slot.
type Slot struct {
	Place Place
	Other string // the address of another node: see Place
}

// Place is which node has a slot.
type Place uint8

const (
	Here      Place = iota // this node
	Migrating              // this node, until all keys are at the other one
	Importing              // the other node, until all keys are here
	Elsewhere              // the other node
	Nowhere                // none
)

const clusterDown = "CLUSTERDOWN Hash slot not served"

func (s *Slot) redirect(word string, n uint16) string {
	return word + " " + strconv.Itoa(int(n)) + " " + s.Other
}

// redirect is the error that a node answers to a run if it does not serve it; "": it does. The keys of a run are of one
// slot.
func (s *Server) redirect(r *Run, wasAsking bool) string {
	if len(r.Ops) == 0 {
		return ""
	}
	first := s.Keys.SlotOf(r.Ops[0].Name)
	slot, _ := s.world.Slot(s, r.Ops[0].Name)
	isMissing, exists, keys := false, false, 0
	for i := range r.Ops {
		op := &r.Ops[i]
		if s.Keys.SlotOf(op.Name) != first {
			return "CROSSSLOT Keys in request don't hash to the same slot"
		}
		needs := LockKey
		switch changes := op.Kind == redisop.Take || op.Kind == redisop.Drop; {
		case op.Of == redisop.KindPermits && changes:
			needs = LockKey | QueueKey | SignsKey
		case op.Of == redisop.KindReadWrite && changes:
			needs = AllKeys
		case op.Of != redisop.KindLock:
		case op.Kind == redisop.Take && !r.Declares:
			needs = LockKey | CounterKey
		case changes && r.Declares:
			needs = AllKeys
		}
		if slot.Place == Migrating || slot.Place == Importing {
			_, has := s.world.Slot(s, op.Name)
			isMissing, exists = isMissing || needs&^has != 0, exists || needs&has != 0
		}
		for ; needs != 0; needs &= needs - 1 {
			keys++
		}
	}
	switch {
	case slot.Place == Nowhere:
		return clusterDown
	case slot.Place == Elsewhere, slot.Place == Importing && !wasAsking:
		return slot.redirect("MOVED", first)
	case slot.Place == Migrating && isMissing && exists && !s.AsksForAny, slot.Place == Importing && isMissing && keys > 1:
		return "TRYAGAIN Multiple keys request during rehashing of slot"
	case slot.Place == Migrating && isMissing:
		return slot.redirect("ASK", first)
	}
	return ""
}
