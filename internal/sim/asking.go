package sim

import (
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A slot that migrates key by key. Until it has moved, the shard before has the slot, and each key is at
// one of both. A script declares all keys that it may make:
//
//   - All of them are here: it is executed.
//   - None is here: the answer is ASK. The store sends the operation to the other shard, behind ASKING,
//     and alone (sidecar/store/cluster.go, askThere). There it is executed if all its keys are, or if it has
//     one key only. If that shard is not connected, it was not sent.
//   - Some are here: the answer is TRYAGAIN, and the operation was not executed.
//
// In a durable world the replica of the shard that gets a key, or gets it back, has it at once. Redis does not
// wait for that: docs/topologies.md says what a failover at that moment may lose.
//
// So locks are renewed, and mostly neither taken nor released. What an operation publishes on the channel
// of a lock at the other shard reaches no subscriber: these are at the shard that has the slot.

// keySet is a set of the keys that a lock has in Redis.
type keySet uint8

const (
	lockKey keySet = 1 << iota
	counterKey
	queueKey
	signsKey

	allKeys = lockKey | counterKey | queueKey | signsKey
)

// openSlot is a slot that migrates.
type openSlot struct {
	to    redisop.Shard // 0: it does not
	there keySet        // keys that are at that shard, if they exist
	moves int           // keys that were moved so far
}

// What a shard answers while a slot migrates.
const (
	ask      = "ASK"
	tryAgain = "TRYAGAIN"
)

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

// isHere reports whether a shard executes an operation as far as the place of its keys matters. If not, it is
// answered.
func (w *world) isHere(h *host, o *operation) bool {
	n := int(o.name)
	open := &w.redis.open[n]
	if isPair := o.op.Has(redisop.AfterPendingDrop) && w.redis.names[n].dropped.script == o.script; open.to == 0 || isPair {
		return true // the keys of both are declared once
	}
	needs, exist, there := lockKey, w.keysOf(n), w.keysThere(n)
	if o.op.Kind == redisop.Take || o.op.Kind == redisop.Drop {
		needs = allKeys
	}
	missing := needs &^ (exist &^ there)
	if o.via == open.to {
		missing = needs &^ there
	}
	switch {
	case missing == 0, o.isAsking && needs == lockKey:
		return true
	case w.declaresNothing && !o.isAsking:
		if there&lockKey != 0 {
			w.redis.names[n].key = redis.NoKey // the script does not find it here
		}
		return true
	case missing == needs && !o.isAsking:
		o.res.Outcome, o.res.Msg, o.askAt = redisop.Retryable, ask, open.to
		w.check.meet(OperationAsked)
	default:
		o.res.Outcome, o.res.Msg = redisop.Retryable, tryAgain
		w.check.meet(TriedAgain)
	}
	if w.trace.on {
		w.trace.add(w, n, h, "shard %d answers %s to %s", o.via, o.res.Msg, opString(o.op))
	}
	return false
}

// askThere sends an operation to the shard that has its keys, behind ASKING. It is a script of its own.
func (w *world) askThere(h *host, i int32) {
	o := &w.ops[i]
	o.via, o.askAt, o.isAsking, o.executed = o.askAt, 0, true, false
	o.res = redisop.Result{Kind: o.op.Kind, Name: o.op.Name, Shard: o.op.Shard}
	c := &h.conns[o.via]
	if !c.ok {
		w.check.meet(AskNotSent)
		o.queued = true
		w.after(w.random.below(ms), event{kind: evNotSent, host: o.host, arg: i})
		return
	}
	c.script.isOpen = false
	w.send(h, i)
	c.script.isOpen = false
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
