package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A slot that migrates key by key. Until it has moved, the shard before has the slot, and each key is at
// one of both. The model of a server answers ASK if none of the keys of a script is here, and TRYAGAIN if some are.
//
// In a durable world the replica of the shard that gets a key, or gets it back, has it at once. Redis does not
// wait for that: docs/topologies.md says what a failover at that moment may lose.
//
// So locks are renewed, and mostly neither taken nor released. What an operation publishes on the channel
// of a lock at the other shard reaches no subscriber: these are at the shard that has the slot.

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
	to    redisop.Shard // 0: it does not
	there keySet        // keys that are at that shard, if they exist
	moves int           // keys that were moved so far
}

// keysOf returns the keys of a lock that exist.
func (w *world) keysOf(n int) (keys keySet) {
	name := &w.redis.names[n]
	if name.key.Owner != redis.NoOwner || name.overwritten {
		keys |= lockKey
	}
	if c := &w.redis.names[w.counterOf(n)]; c.counter.Exists && !c.counter.HasExpired(w.now) || c.brokenCounter {
		keys |= counterKey
	}
	if len(name.queue.Tickets) > 0 {
		keys |= queueKey
	}
	if len(name.queue.Signs) > 0 {
		keys |= signsKey
	}
	return keys
}

// keysThere returns the keys of a lock that are at the shard to which its slot migrates.
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

// Slot is what a shard knows of the slot of a lock.
func (w *world) Slot(s *server.Server, name string) (server.Slot, keySet) {
	if wire.IsProbeLock(name) {
		return server.Slot{}, 0
	}
	n := nameIndex(name)
	owner, open := w.redis.owners[n], &w.redis.open[n]
	switch {
	case owner == 0:
		return server.Slot{Place: server.Nowhere}, 0
	case s == w.redis.shards[owner].server && open.to == 0:
		return server.Slot{}, 0
	case s == w.redis.shards[owner].server:
		return server.Slot{Place: server.Migrating, Other: addressOf(open.to)}, w.keysOf(n) &^ w.keysThere(n)
	case open.to != 0 && s == w.redis.shards[open.to].server:
		return server.Slot{Place: server.Importing, Other: addressOf(owner)}, w.keysThere(n)
	}
	return server.Slot{Place: server.Elsewhere, Other: addressOf(owner)}, 0
}

// addressOf is the address of the node that is a shard.
func addressOf(s redisop.Shard) string { return shardAddresses[s] }

var shardAddresses = [maxShards]string{"10.0.0.0:7000", "10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"}

// shardAt is the shard at an address; 0: there is none.
func shardAt(address string) redisop.Shard {
	return redisop.Shard(max(0, slices.Index(shardAddresses[:], address)))
}

// askThere sends operations to the shard that has their keys already, behind ASKING.
func (w *world) askThere(h *host, d *pipeline.Delivery) {
	s := shardAt(d.Redirect.Address)
	c := &h.conns[s]
	w.check.meetIf(AskNotSent, !c.ok)
	c.m.DoAsking(h.clock(w.now), d.Ops)
	w.send(h, s)
}

// openMigration begins to migrate a slot key by key.
func (w *world) openMigration() {
	slot := w.counterOf(int(w.random.below(int64(w.plan.names))))
	from, to := w.redis.owners[slot], clusterShards[w.random.below(int64(len(clusterShards)))]
	if w.isDown(slot) || to == from || w.redis.shards[to].down || w.stallLeft(to) > 0 {
		return
	}
	w.check.meet(SlotOpened)
	w.sharers(slot, func(n int) {
		if w.trace.on {
			w.trace.add(w, n, nil, "the slot begins to migrate from shard %d to shard %d", from, to)
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
				w.trace.add(w, n, nil, "%s is moved to shard %d", [...]string{lockKey: "the key", counterKey: "the counter", queueKey: "the queue", signsKey: "the signs"}[key], open.to)
			}
		}
	})
	w.after(w.random.magnitude(ms, sec), event{kind: evMoveKey, name: int8(slot)})
}

// closeMigration gives a slot to the shard to which it migrates.
func (w *world) closeMigration(slot int) {
	to := w.redis.open[slot].to
	w.sharers(slot, func(n int) { w.redis.open[n] = openSlot{} })
	w.moveSlot(slot, to)
}

// abandon ends the migration of a slot. All keys are at the shard before again, on its replica, too.
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

// abandonAll ends the migrations from and to a shard; 0: all.
func (w *world) abandonAll(s redisop.Shard) {
	for n := range w.plan.names {
		if w.isOpen(n) && (s == 0 || s == w.redis.owners[n] || s == w.redis.open[n].to) {
			w.abandon(w.counterOf(n))
		}
	}
}
