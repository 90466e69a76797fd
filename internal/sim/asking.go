package sim

import (
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A slot that migrates key by key. Until it has moved, the node before has the slot, and each key is at
// one of both. The model of a server answers ASK if none of the keys of a script is here, and TRYAGAIN if some are.
//
// In a durable world the replica of the node that gets a key, or gets it back, has it at once. Redis does not
// wait for that: docs/topologies.md says what a failover at that moment may lose.
//
// So locks are renewed, and mostly neither taken nor released. What an operation publishes on the channel
// of a lock at the other node reaches no subscriber: these are at the node that has the slot.

// The keys of a lock, as the model of a server names them.
const (
	lockKey    = server.LockKey
	counterKey = server.CounterKey
	queueKey   = server.QueueKey
	signsKey   = server.SignsKey
)

type keySet = server.KeySet

// openSlot is a slot that migrates.
type openSlot struct {
	to    nodeID // 0: it does not
	there keySet // keys that are at that node, if they exist
	moves int    // keys that were moved so far
}

// keysOf returns the keys of a lock that exist.
func (w *world) keysOf(n int) (keys keySet) {
	name, shared := &w.redis.names[n], &w.redis.names[w.counterOf(n)]
	if name.overwritten {
		keys |= lockKey
	}
	if shared.brokenCounter {
		keys |= counterKey
	}
	name.semaphore.Expire(w.now)
	name.readWrite.Expire(w.now)
	l := server.Lock{Key: name.key, Queue: *name.queue, Semaphore: *name.semaphore, ReadWrite: *name.readWrite}
	if !shared.counter.HasExpired(w.now) {
		l.Counter = shared.counter
	}
	return keys | l.Keys()
}

// keysThere returns the keys of a lock that are at the node to which its slot migrates.
func (w *world) keysThere(n int) keySet {
	there := w.redis.open[n].there&^counterKey | w.redis.open[w.counterOf(n)].there&counterKey
	return w.keysOf(n) & there
}

// setKeysThere notes where keys of a lock are.
func (w *world) setKeysThere(n int, keys keySet, isThere bool) {
	for _, of := range [...]struct {
		name int
		keys keySet
	}{{n, keys &^ counterKey}, {w.counterOf(n), keys & counterKey}} {
		w.redis.open[of.name].there &^= of.keys
		if isThere {
			w.redis.open[of.name].there |= of.keys
		}
	}
}

// isOpen reports whether the slot of a lock migrates.
func (w *world) isOpen(n int) bool { return w.redis.open[n].to != 0 }

// Slot is what a node knows of the slot of a lock.
func (w *world) Slot(s *server.Server, name string) (server.Slot, keySet) {
	if wire.IsProbeLock(name) {
		return server.Slot{}, 0
	}
	n, x := nameIndex(name), w.nodeOf(s)
	v, owner, open := &w.redis.views[x], w.redis.owners[n], &w.redis.open[n]
	switch {
	case x == owner && open.to == 0:
		return server.Slot{}, 0
	case x == owner:
		return server.Slot{Place: server.Migrating, Other: v.addresses[open.to]}, w.keysOf(n) &^ w.keysThere(n)
	case x == open.to:
		return server.Slot{Place: server.Importing, Other: v.addresses[owner]}, w.keysThere(n)
	}
	to := v.owners[n]
	if to == 0 || to == x {
		return server.Slot{Place: server.Nowhere}, 0
	}
	w.check.meetIf(OwnersDisagree, w.redis.views[to].owners[n] == x)
	return server.Slot{Place: server.Elsewhere, Other: v.addresses[to]}, 0
}

// openMigration begins to migrate a slot key by key.
func (w *world) openMigration() {
	slot := w.counterOf(int(w.random.below(int64(w.plan.names))))
	from, to := w.redis.owners[slot], clusterNodes[w.random.below(int64(len(clusterNodes)))]
	if w.isDown(slot) || to == from || w.redis.nodes[to].down || w.stallLeft(to) > 0 {
		return
	}
	w.check.meet(SlotOpened)
	w.sharers(slot, func(n int) {
		if w.trace.on {
			w.trace.add(w, n, nil, "the slot begins to migrate from node %d to node %d", from, to)
		}
		w.endRedissonWaits(n)
		w.redis.open[n] = openSlot{to: to}
	})
	w.after(w.random.magnitude(ms, sec), event{kind: evMoveKey, name: int8(slot)})
}

// maxKeyMoves is how many keys are moved one by one, at most.
const maxKeyMoves = 8

// moveKey moves the next key of a slot that migrates, or ends that.
func (w *world) moveKey(slot int) {
	open := &w.redis.open[slot]
	if open.to == 0 {
		return // it was abandoned
	}
	left := 0
	w.sharers(slot, func(n int) {
		w.expire(n)
		left += btoi(w.keysOf(n) != w.keysThere(n))
	})
	switch {
	case w.random.oneIn(12):
		w.abandon(slot)
		return
	case left == 0 && w.random.oneIn(2), open.moves >= maxKeyMoves:
		w.closeMigration(slot)
		return
	}
	open.moves++
	w.sharers(slot, func(n int) {
		for key := lockKey; key <= signsKey; key <<= 1 {
			if w.keysOf(n)&^w.keysThere(n)&key == 0 || !w.random.oneIn(2) {
				continue
			}
			w.setKeysThere(n, key, true)
			if w.trace.on {
				w.trace.add(w, n, nil, "%s is moved to node %d", [...]string{lockKey: "the key", counterKey: "the counter", queueKey: "the queue", signsKey: "the signs"}[key], open.to)
			}
		}
	})
	w.after(w.random.magnitude(ms, sec), event{kind: evMoveKey, name: int8(slot)})
}

// closeMigration gives a slot to the node to which it migrates.
func (w *world) closeMigration(slot int) {
	to := w.redis.open[slot].to
	w.sharers(slot, func(n int) { w.redis.open[n] = openSlot{} })
	w.moveSlot(slot, to, false)
}

// abandon ends the migration of a slot. All keys are at the node before again, on its replica, too.
func (w *world) abandon(slot int) {
	w.check.meet(SlotAbandoned)
	w.sharers(slot, func(n int) {
		if w.plan.durable && w.redis.open[n].there != 0 {
			w.redis.keepSnapshotOf(n)
		}
		w.redis.open[n] = openSlot{}
		if w.trace.on {
			w.trace.add(w, n, nil, "the migration is abandoned")
		}
	})
}

// abandonAll ends the migrations from and to a node; 0: all.
func (w *world) abandonAll(x nodeID) {
	for n := range w.plan.names {
		if w.isOpen(n) && (x == 0 || x == w.redis.owners[n] || x == w.redis.open[n].to) {
			w.abandon(w.counterOf(n))
		}
	}
}
