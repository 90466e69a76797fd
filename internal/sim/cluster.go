package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A Cluster. Each lock has a slot of its own, and each slot one of two shards. A third shard, the
// spare, has none until it takes over those of another. A host has a connection to each shard that
// it believes to have slots. It learns that a slot has moved when a shard answers MOVED, or from a
// topology answer, some time later.
//
// Kinds of moves differ in what they excuse:
//
//   - A slot is migrated with all its data, at once, on the replicas too. That excuses nothing.
//   - A slot is migrated key by key (asking.go). Until that ends, its locks can mostly neither be taken nor
//     released.
//   - The spare takes over all slots of a shard whose server dies. It has the data of that
//     server, or what had been replicated. What is missing is excused like what a Redis lost that
//     restarted, and in a durable world nothing is.
//
// In some worlds the clocks of the shards differ by up to an hour: what TIME returns, from which tokens
// and the scores of tickets come. Leases last as long everywhere: a key that moves takes what is left of
// its own with it. Names have their state in redisServer.names, whichever shard has them.

// maxShards is the number of shards, with shard 0: the Redis that is no Cluster, or the one that is
// no master.
const maxShards = 4

// shard is the server of some locks.
type shard struct {
	down         bool // it has no master
	run          int  // run id of the master
	server       *server.Server
	former       []*server.Server // that were the master before, and are replicas
	oldest       int              // run id of the oldest server that runs: from it on, all but the master are replicas
	stalledUntil int64            // its server executes nothing before
	skew         int64            // of its clock, against that of the world
}

var (
	wholeRedis    = [...]redisop.Shard{0}
	clusterShards = [...]redisop.Shard{1, 2, 3}
)

// longestNews is how long it takes at most until a host has a new topology.
const longestNews = 5 * sec

// shards returns the shards of the world.
func (w *world) shards() []redisop.Shard {
	if w.plan.cluster {
		return clusterShards[:]
	}
	return wholeRedis[:]
}

// anyShard returns a shard in which something is to fail.
func (w *world) anyShard() redisop.Shard {
	switch {
	case !w.plan.cluster:
		return 0
	case w.plan.oneShardFails:
		return failingShard
	}
	return clusterShards[w.random.below(int64(len(clusterShards)))]
}

// failingShard is where everything fails in a world with plan.oneShardFails.
const failingShard redisop.Shard = 1

// shardString names a shard for people, in a Cluster.
func (w *world) shardString(s redisop.Shard) string {
	if !w.plan.cluster {
		return ""
	}
	return [maxShards]string{" of no shard", " of shard 1", " of shard 2", " of shard 3"}[s]
}

// newServer gives a shard another server. What was sent to the one before is not executed any more, unless it is a
// replica now.
func (w *world) newServer(s redisop.Shard) {
	r := &w.redis
	r.runs++
	shard := &r.shards[s]
	shard.run, shard.down = r.runs, false
	shard.server = server.New(w)
	shard.server.Keys, shard.server.Prefixes, shard.server.IsNode = w.reader.Keys, w.prefixes, w.plan.cluster
	shard.server.Address, shard.server.PushesLast = addressOf(s), w.plan.pushesLast
	shard.server.Replicas, shard.server.Items = btoi(w.plan.durable), &w.items
}

// newProcess gives a shard another server, because the one before has ended.
func (w *world) newProcess(s redisop.Shard) {
	w.newServer(s)
	w.redis.shards[s].oldest, w.redis.shards[s].former = w.redis.shards[s].run, nil
}

// initCluster gives each slot a shard. The last shard is the spare.
func (w *world) initCluster() {
	r := &w.redis
	for i, s := range clusterShards {
		w.newProcess(s)
		r.shards[s].skew = w.plan.clocks[i]
	}
	r.spare = clusterShards[len(clusterShards)-1]
	r.shards[r.spare].down = true
	for n := range w.plan.names {
		r.owners[n] = 1 + redisop.Shard(w.random.below(2))
		if c := w.counterOf(n); c != n {
			r.owners[n] = r.owners[c]
		}
	}
}

// slotOf is the slot of a lock: names that share a counter share it.
func (w *world) slotOf(name string) uint16 { return uint16(w.counterOf(nameIndex(name))) }

// isDown reports whether a lock cannot be asked for at present.
func (w *world) isDown(n int) bool {
	s := w.redis.owners[n]
	return w.plan.cluster && (s == 0 || w.isOpen(n)) || w.redis.shards[s].down || w.stallLeft(s) > 0
}

// isEachDown reports whether no shard has a master.
func (w *world) isEachDown() bool {
	for _, s := range w.shards() {
		if !w.redis.shards[s].down {
			return false
		}
	}
	return true
}

// stallLeft returns for how long a shard will execute nothing.
func (w *world) stallLeft(s redisop.Shard) int64 {
	return max(0, w.redis.shards[s].stalledUntil-w.now)
}

// connOf returns the connection with which a host asks for a lock.
func (h *host) connOf(n int) *connection { return &h.conns[h.routes[n]] }

// isReached reports whether a host reaches the shard that has a lock, as far as it knows, and that has all keys.
func (w *world) isReached(h *host, n int) bool {
	c := h.connOf(n)
	return !w.isOpen(n) && c.up && !c.dead && h.routes[n] == w.redis.owners[n]
}

// troubleOf returns when something last failed between a host and a lock in Redis.
func (h *host) troubleOf(n int) int64 {
	return max(h.troubleAt, h.connOf(n).troubleAt, h.locks[n].movedAt)
}

// noteTrouble notes an operation that failed, or took long.
func (w *world) noteTrouble(h *host, o *operation) {
	if n := int(o.name); o.isRefused || o.isAsking || o.op.Shard != h.routes[n] {
		h.locks[n].movedAt = w.now // other locks are not concerned
	} else {
		h.conns[o.op.Shard].troubleAt = w.now
	}
}

// isLossless reports whether the plan has no faults for a lock.
func (w *world) isLossless(n int) bool {
	return w.lossless && (!w.plan.oneShardFails || w.redis.owners[n] != failingShard)
}

// isOrdered reports whether a lock is one of those that the check of strict order is about.
func (w *world) isOrdered(n int) bool { return w.ordered && w.isLossless(n) }

// bootConnections begins the connections of a new process.
func (w *world) bootConnections(h *host) {
	for _, s := range w.shards() {
		c := &h.conns[s]
		c.up, c.upKnown, c.isTried = false, false, false
		c.gen++
		c.m = w.newMachine(h)
	}
	at := w.random.below(10 * ms)
	if w.plan.cluster {
		h.routes = [maxNames]redisop.Shard{}
		w.after(at, event{kind: evTopology, host: int16(h.index)})
		return
	}
	h.conns[0].isTried = true
	w.after(at, event{kind: evConnect, host: int16(h.index), gen: h.conns[0].gen})
}

// endConnections forgets the connections of a process that has ended.
func (w *world) endConnections(h *host) {
	for s := range h.conns {
		c := &h.conns[s]
		*c = connection{gen: c.gen + 1, receivesUntil: c.receivesUntil, troubleAt: c.troubleAt}
	}
	h.conns[0].run = h.journal.run
}

// hasClocks reports whether the clocks of the shards differ.
func (w *world) hasClocks() bool { return w.plan.clocks != [maxShards - 1]int64{} }

// isWanted reports whether a host is to be connected to a shard.
func (w *world) isWanted(h *host, s redisop.Shard) bool {
	if !w.plan.cluster {
		return true
	}
	for n := range w.plan.names {
		if h.routes[n] == s {
			return true
		}
	}
	return false
}

// onRedirect handles that a shard does not have a slot.
func (w *world) onRedirect(h *host, from redisop.Shard, r *wire.Redirect) {
	for n := range w.plan.names {
		if w.slots[n] == r.Slot {
			w.onMoved(h, n, from, shardAt(r.Address))
		}
	}
}

// onMoved has a host learn from an answer that another shard has a slot, unless it has learned since
// that the one which answered does not have it.
func (w *world) onMoved(h *host, n int, from, to redisop.Shard) {
	if to == 0 || h.routes[n] != from {
		return
	}
	w.drain(h) // what the table did before it knew: a result may be of the same reply as others
	w.sharers(n, func(n int) { w.noteRoute(h, n, to) })
	slot := uint16(w.counterOf(n))
	w.route(h, []redisop.SlotRange{{First: slot, Last: slot, Shard: to}})
}

// learnTopology has a host learn which shards have the slots.
func (w *world) learnTopology(h *host) {
	if h.isDown() {
		return
	}
	w.drainDeferred(h) // what the table did before it knew
	var ranges []redisop.SlotRange
	for n := range w.plan.names {
		if owner := w.redis.owners[n]; h.routes[n] != owner {
			slot := uint16(w.counterOf(n))
			ranges = append(ranges, redisop.SlotRange{First: slot, Last: slot, Shard: owner})
			w.noteRoute(h, n, owner)
		}
	}
	if len(ranges) > 0 {
		w.route(h, ranges)
	}
}

// noteRoute notes that the table of a host gets a route, which says which shard has a lock.
func (w *world) noteRoute(h *host, n int, s redisop.Shard) {
	l := &h.locks[n]
	for _, i := range [...]int32{l.inFlight, l.dropPending, l.arriving} {
		if i != noOp {
			w.ops[i].isOutdated = true
			w.check.meet(RoutedInFlight)
		}
	}
	was := h.routes[n]
	to := &h.conns[s]
	to.known = max(to.known, h.floor.now(h.clock(w.now)))
	h.routes[n] = s
	h.revokeTokens(n, false)
	l.dataLostAt, l.movedAt, l.movedFrom = w.now, w.now, was
	w.check.meetIf(RoutedHold, l.hold.state == live && was != 0)
	if w.trace.on {
		w.trace.add(w, n, h, "shard %d has the lock, no more shard %d", s, was)
	}
}

// route tells the table of a host which shards have slots, and has the host connect to them.
func (w *world) route(h *host, ranges []redisop.SlotRange) {
	now := h.clock(w.now)
	for s := redisop.Shard(1); s < maxShards; s++ {
		if slices.ContainsFunc(ranges, func(r redisop.SlotRange) bool { return r.Shard == s }) {
			h.conns[s].m.Lift(now, h.raised.now(now), true)
			if h.conns[s].ok {
				w.send(h, s)
			}
		}
	}
	h.table.Route(h.clock(w.now), ranges)
	w.afterInput(h)
	for _, r := range ranges {
		if c := &h.conns[r.Shard]; r.Shard != 0 && !c.ok && !c.isTried {
			c.isTried = true
			w.after(w.random.below(ms), event{kind: evConnect, host: int16(h.index), gen: c.gen, shard: int8(r.Shard)})
		}
	}
}

// announce has each host learn the present topology, at a time of its own.
func (w *world) announce() {
	for _, h := range w.hosts {
		w.after(w.random.magnitude(ms, longestNews), event{kind: evTopology, host: int16(h.index)})
	}
}

// migrate moves a slot to another shard, with its data.
func (w *world) migrate() {
	slot := w.counterOf(int(w.random.below(int64(w.plan.names))))
	from := w.redis.owners[slot]
	if w.isDown(slot) {
		return
	}
	to := clusterShards[w.random.below(int64(len(clusterShards)))]
	if to == from || w.redis.shards[to].down || w.stallLeft(to) > 0 {
		return
	}
	w.check.meet(SlotMigrated)
	w.moveSlot(slot, to)
}

// moveSlot gives a slot to another shard, with its data.
func (w *world) moveSlot(slot int, to redisop.Shard) {
	from := w.redis.owners[slot]
	w.sharers(slot, func(n int) {
		if w.trace.on {
			w.trace.add(w, n, nil, "the slot is migrated from shard %d to shard %d", from, to)
		}
		w.endRedissonWaits(n)
		w.redis.owners[n], w.redis.names[n].cameAt = to, w.now
		w.redis.shards[from].server.EndSlot(lockNames[n])
		w.redis.keepSnapshotOf(n)
	})
	w.announce()
}

// promote has the spare take over the slots of a shard whose server dies.
func (w *world) promote(s redisop.Shard) {
	r := &w.redis
	if r.spare == 0 || r.spare == s || r.shards[s].down {
		return
	}
	mode := dataKept
	if w.random.usually(3) {
		mode = dataOlder
	}
	if w.trace.on {
		w.trace.add(w, -1, nil, "the server of shard %d dies; shard %d is to take over with data that is %s", s, r.spare, []string{"the same", "", "older"}[mode])
	}
	w.stopServer(s)
	w.changeData(s, mode)
	w.check.meet(ShardTakenOver)
	for n := range w.plan.names {
		if r.owners[n] == s {
			r.owners[n] = 0
		}
	}
	w.announce()
	w.after(w.random.magnitude(ms, 3*sec), event{kind: evPromoted, shard: int8(r.spare)})
	r.spare, r.former = 0, s
}

// onPromoted is when the spare has taken over. The shard before is the spare from now on.
func (w *world) onPromoted(s redisop.Shard) {
	r := &w.redis
	w.newProcess(s)
	for n := range w.plan.names {
		if r.owners[n] == 0 {
			r.owners[n] = s
		}
	}
	r.keepSnapshot(s)
	r.spare = r.former
	if w.trace.on {
		w.trace.add(w, -1, nil, "shard %d has taken over from shard %d", s, r.former)
	}
	w.announce()
}

// stall has a shard execute nothing for a time. What is sent to it waits.
func (w *world) stall(s redisop.Shard, d int64) {
	until := w.now + d
	w.redis.shards[s].stalledUntil = until
	w.check.meet(ShardStalled)
	if w.trace.on {
		w.trace.add(w, -1, nil, "shard %d stalls until %s", s, clockString(until))
	}
	for _, h := range w.hosts {
		c := &h.conns[s]
		c.lastExec = max(c.lastExec, until+1) // after what is on its way
		c.troubleAt = max(c.troubleAt, until)
	}
}

// flush deletes everything that a shard has.
func (w *world) flush(s redisop.Shard) {
	for n := range w.plan.names {
		if w.redis.shardOf(n, lockKey) == s {
			w.destroy(n, "FLUSHALL")
		}
		if w.redis.shardOf(n, counterKey) == s {
			w.loseCounter(n, redis.Counter{})
		}
		if w.redis.shardOf(n, queueKey) == s {
			w.loseQueue(n)
		}
	}
}
