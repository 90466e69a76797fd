package sim

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
)

// A Cluster. Each lock has a slot of its own, and each slot one of two nodes. A third node, the spare, has none until it
// takes over those of another. What a host knows of that is in topology.go.
//
// Kinds of moves differ in what they excuse:
//
//   - A slot is migrated with all its data, at once, on the replicas too. That excuses nothing. Now and then the node
//     that gives it up does so before the other one takes it: for that time each of both names the other one.
//   - A slot is migrated key by key (asking.go). Until that ends, its locks can mostly neither be taken nor
//     released.
//   - The spare takes over all slots of a node whose server dies. It has the data of that
//     server, or what had been replicated. What is missing is excused like what a Redis lost that
//     restarted, and in a durable world nothing is.
//
// Each node has a view of the Cluster, which may be old: it answers MOVED and CLUSTER NODES by it. A server that starts
// may have another address than the one before.
//
// In some worlds the clocks of the nodes differ by up to an hour: what TIME returns, from which tokens
// and the scores of tickets come. Leases last as long everywhere: a key that moves takes what is left of
// its own with it. Names have their state in redisServer.names, whichever node has them.

// nodeID is a node. Each host has a number of its own for it: see topology.
type nodeID int8

// worldNodes is the number of nodes, with node 0: the Redis that is no Cluster, or the one that is no master.
const worldNodes = 4

// node is the server of some locks.
type node struct {
	down         bool // it has no master
	run          int  // run id of the master
	server       *server.Server
	former       []*server.Server // that were the master before, and are replicas
	oldest       int              // run id of the oldest server that runs: from it on, all but the master are replicas
	stalledUntil int64            // its server executes nothing before
	skew         int64            // of its clock, against that of the world
}

// view is what a node knows of the Cluster.
type view struct {
	owners    [maxNames]nodeID   // of slots; 0: none
	epochs    [worldNodes]uint64 // when a node got slots last
	addresses [worldNodes]string
	failed    [worldNodes]bool
	epoch     uint64 // the largest
}

var clusterNodes = [...]nodeID{1, 2, 3}

// longestNews is how long it takes at most until a node has a new view.
const longestNews = 5 * sec

// anyNode returns a node in which something is to fail.
func (w *world) anyNode() nodeID {
	switch {
	case !w.plan.cluster:
		return 0
	case w.plan.oneNodeFails:
		return failingNode
	}
	return clusterNodes[w.random.below(int64(len(clusterNodes)))]
}

// failingNode is where everything fails in a world with plan.oneNodeFails.
const failingNode nodeID = 1

// nodeString names a node for people, in a Cluster.
func (w *world) nodeString(x nodeID) string {
	if !w.plan.cluster {
		return ""
	}
	return [worldNodes]string{" of no node", " of node 1", " of node 2", " of node 3"}[x]
}

// newServer gives a node another server. What was sent to the one before is not executed any more, unless it is a
// replica now.
func (w *world) newServer(x nodeID) {
	r := &w.redis
	r.runs++
	n := &r.nodes[x]
	n.run, n.down = r.runs, false
	n.server = server.New(w)
	n.server.Keys, n.server.Prefixes, n.server.IsNode = w.reader.Keys, w.prefixes, w.plan.cluster
	n.server.Address, n.server.PushesLast, n.server.AsksUnsubscribe = r.bus.addresses[x], w.plan.pushesLast, w.plan.asksUnsubscribe
	n.server.Replicas, n.server.Items = btoi(w.plan.durable), &w.items
}

// newProcess gives a node another server, because the one before has ended. It may have another address.
func (w *world) newProcess(x nodeID) {
	r := &w.redis
	if w.plan.cluster && r.addresses < maxConns-1 && (r.bus.addresses[x] == "" || w.random.oneIn(w.plan.newAddresses)) {
		r.addresses++
		r.bus.addresses[x] = fmt.Sprintf("10.0.0.%d:7000", r.addresses)
		w.spread(x)
	}
	w.newServer(x)
	r.nodes[x].oldest, r.nodes[x].former = r.nodes[x].run, nil
}

// initCluster gives each slot a node. The last node is the spare.
func (w *world) initCluster() {
	r := &w.redis
	for i, x := range clusterNodes {
		w.newProcess(x)
		r.nodes[x].skew = w.plan.clocks[i]
		r.bus.epoch = uint64(x)
		r.bus.epochs[x] = uint64(x)
	}
	r.spare = clusterNodes[len(clusterNodes)-1]
	r.nodes[r.spare].down, r.bus.failed[r.spare] = true, true
	for n := range w.keyNames() {
		if c := w.counterOf(n); c != n {
			r.owners[n] = r.owners[c]
			continue
		}
		r.owners[n] = 1 + nodeID(w.random.below(2))
	}
	r.bus.owners = r.owners
	for x := range r.views {
		r.views[x] = r.bus
	}
}

// slotOf is the slot of a lock: names that share a counter share it.
func (w *world) slotOf(name string) uint16 { return uint16(w.counterOf(nameIndex(name))) }

// nodeAt is the node at an address; 0: there is none.
func (w *world) nodeAt(address string) nodeID {
	if address == "" {
		return 0
	}
	return nodeID(max(0, slices.Index(w.redis.bus.addresses[:], address)))
}

// nodeOf is the node that has a server; 0: none has it any more.
func (w *world) nodeOf(s *server.Server) nodeID {
	for x := range w.redis.nodes {
		if w.redis.nodes[x].server == s {
			return nodeID(x)
		}
	}
	return 0
}

// isDown reports whether a lock cannot be asked for at present.
func (w *world) isDown(n int) bool {
	x := w.redis.owners[n]
	return w.plan.cluster && (x == 0 || w.isOpen(n)) || w.redis.nodes[x].down || w.stallLeft(x) > 0
}

// isEachDown reports whether no node has a master.
func (w *world) isEachDown() bool {
	if !w.plan.cluster {
		return w.redis.nodes[0].down
	}
	return !slices.ContainsFunc(clusterNodes[:], func(x nodeID) bool { return !w.redis.nodes[x].down })
}

// stallLeft returns for how long a node will execute nothing.
func (w *world) stallLeft(x nodeID) int64 { return max(0, w.redis.nodes[x].stalledUntil-w.now) }

// isLossless reports whether the plan has no faults for a lock.
func (w *world) isLossless(n int) bool {
	return w.lossless && (!w.plan.oneNodeFails || w.redis.owners[n] != failingNode)
}

// isOrdered reports whether a lock is one of those that the check of strict order is about.
func (w *world) isOrdered(n int) bool { return w.ordered && w.isLossless(n) }

// hasClocks reports whether the clocks of the nodes differ.
func (w *world) hasClocks() bool { return w.plan.clocks != [worldNodes - 1]int64{} }

// spread has each node learn the present state of the Cluster, some of them at once and the others at times of their
// own.
func (w *world) spread(atOnce ...nodeID) {
	for _, x := range clusterNodes {
		if slices.Contains(atOnce, x) {
			w.onSpread(x)
		} else {
			w.after(w.random.magnitude(ms, longestNews), event{kind: evSpread, arg: int32(x)})
		}
	}
}

// onSpread is when a node learns the state of the Cluster. Of a slot that it is to take, it learns when it does so.
func (w *world) onSpread(x nodeID) {
	r := &w.redis
	before := r.views[x].owners
	r.views[x] = r.bus
	for n := range w.keyNames() {
		if r.bus.owners[n] == x && r.owners[n] != x {
			r.views[x].owners[n] = before[n]
		}
	}
}

// describe is what a node answers to CLUSTER NODES.
func (w *world) describe(x nodeID) string {
	v := &w.redis.views[x]
	var text []byte
	for _, y := range clusterNodes {
		flags := "master"
		if v.failed[y] {
			flags = "master,fail"
		}
		text = fmt.Appendf(text, "node-%d %s@1 %s - 0 0 %d connected", y, v.addresses[y], flags, v.epochs[y])
		for n := range w.plan.names {
			if v.owners[n] == y {
				text = fmt.Appendf(text, " %d", n)
			}
			if to := w.redis.open[n].to; y == x && to != 0 && w.redis.owners[n] == x {
				text = fmt.Appendf(text, " [%d->-node-%d]", n, to)
			}
		}
		text = append(text, '\n')
	}
	return string(text)
}

// migrate moves a slot to another node, with its data.
func (w *world) migrate() {
	slot := w.counterOf(int(w.random.below(int64(w.plan.names))))
	from := w.redis.owners[slot]
	if w.isDown(slot) {
		return
	}
	to := clusterNodes[w.random.below(int64(len(clusterNodes)))]
	if to == from || w.redis.nodes[to].down || w.stallLeft(to) > 0 {
		return
	}
	w.check.meet(SlotMigrated)
	w.moveSlot(slot, to, w.random.oneIn(w.plan.disagreements))
}

// moveSlot gives a slot to another node, with its data. isLater: that takes it some time after this one gave it up.
func (w *world) moveSlot(slot int, to nodeID, isLater bool) {
	r := &w.redis
	from := r.owners[slot]
	r.bus.epoch++
	r.bus.epochs[to] = r.bus.epoch
	w.sharers(slot, func(n int) {
		if w.trace.on {
			w.trace.add(w, n, nil, "the slot is migrated from node %d to node %d", from, to)
		}
		w.endRedissonWaits(n)
		r.owners[n], r.bus.owners[n], r.names[n].cameAt = to, to, w.now
		if isLater {
			r.owners[n] = 0
		}
		w.noteSlotLeft(r.nodes[from].server, n)
		r.nodes[from].server.EndSlot(lockNames[n])
		r.keepSnapshotOf(n)
	})
	w.spread(from, to)
	if isLater {
		w.after(w.random.magnitude(ms, 2*sec), event{kind: evTaken, name: int8(slot), arg: int32(to)})
	}
}

// onTaken is when a node takes a slot that another one gave up.
func (w *world) onTaken(slot int, to nodeID) {
	r := &w.redis
	switch {
	case r.owners[slot] != 0 || r.bus.owners[slot] != to: // another node has taken over
		return
	case r.nodes[to].down:
		w.after(100*ms, event{kind: evTaken, name: int8(slot), arg: int32(to)})
		return
	}
	w.sharers(slot, func(n int) { r.owners[n], r.names[n].cameAt = to, w.now })
	if w.trace.on {
		w.trace.add(w, slot, nil, "node %d takes the slot", to)
	}
	w.onSpread(to)
}

// promote has the spare take over the slots of a node whose server dies. Until then the others still name that, or none.
func (w *world) promote(x nodeID) {
	r := &w.redis
	if r.spare == 0 || r.spare == x || r.nodes[x].down {
		return
	}
	mode := dataKept
	if w.random.usually(3) {
		mode = dataOlder
	}
	if w.trace.on {
		w.trace.add(w, -1, nil, "the server of node %d dies; node %d is to take over with data that is %s", x, r.spare, []string{"the same", "", "older"}[mode])
	}
	w.stopServer(x)
	w.changeData(x, mode)
	w.check.meet(NodeTakenOver)
	isForgotten := w.random.oneIn(3)
	for n := range w.keyNames() {
		if r.owners[n] == x {
			if r.owners[n] = 0; isForgotten {
				r.bus.owners[n] = 0
			}
		}
	}
	r.bus.failed[x] = true
	w.spread()
	w.after(w.random.magnitude(ms, 3*sec), event{kind: evPromoted, arg: int32(r.spare)})
	r.spare, r.former = 0, x
}

// onPromoted is when the spare has taken over. The node before is the spare from now on.
func (w *world) onPromoted(x nodeID) {
	r := &w.redis
	w.newProcess(x)
	r.bus.failed[x] = false
	r.bus.epoch++
	r.bus.epochs[x] = r.bus.epoch
	for n := range w.keyNames() {
		if of := r.bus.owners[n]; r.owners[n] == 0 && (of == 0 || of == r.former) {
			r.owners[n], r.bus.owners[n] = x, x
		}
	}
	r.keepSnapshot(x)
	r.spare = r.former
	if w.trace.on {
		w.trace.add(w, -1, nil, "node %d has taken over from node %d", x, r.former)
	}
	w.spread(x)
}

// stall has a node execute nothing for a time. What is sent to it waits.
func (w *world) stall(x nodeID, d int64) {
	until := w.now + d
	w.redis.nodes[x].stalledUntil = until
	w.check.meet(NodeStalled)
	if w.trace.on {
		w.trace.add(w, -1, nil, "node %d stalls until %s", x, clockString(until))
	}
	for _, h := range w.hosts {
		for c := range h.connsTo(x) {
			c.lastExec = max(c.lastExec, until+1) // after what is on its way
			c.troubleAt = max(c.troubleAt, until)
		}
	}
}

// flush deletes everything that a node has.
func (w *world) flush(x nodeID) {
	if w.redis.owners[semaphore] == x {
		w.changePermits(dataLost)
	}
	for n := range w.plan.names {
		if w.redis.nodeOfKey(n, lockKey) == x {
			w.destroy(n, "FLUSHALL")
		}
		if w.redis.nodeOfKey(n, counterKey) == x {
			w.loseCounter(n, redis.Counter{})
		}
		if w.redis.nodeOfKey(n, queueKey) == x {
			w.loseQueue(n)
		}
	}
}
