package sim

import (
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// What a host knows of a Cluster: the store's own Map, which is given what nodes answer, and whose effects are carried out
// as the store does. It numbers the nodes by their addresses, in the order in which it learns of them, and uses numbers
// again. A host has a connection to each address that it knows.

// topology is the Map of a process.
type topology struct {
	m     *cluster.Map
	ended [maxConns]bool // these numbers were used before

	armedAt   int64 // when the Map is looked at, at the latest
	isAsking  bool
	toConfirm bool     // the nodes to be asked are the masters of open slots
	round     []string // nodes that are to be asked, the first of them now

	// The answer that is on its way.
	text    string // "": there will be none
	epoch   uint64 // of the Cluster, as the node that answers knows it
	askedAt int64  // host clock
}

// maxConns is more than all addresses of nodes that a world has.
const maxConns = 10

// connsTo are the connections of a host that lead to a node.
func (h *host) connsTo(x nodeID) iter.Seq2[*connection, redisop.Shard] {
	return func(yield func(*connection, redisop.Shard) bool) {
		for s := range h.shards {
			if c := &h.conns[s]; c.m != nil && c.node == x && !yield(c, s) {
				return
			}
		}
	}
}

// connOf returns the connection with which a host asks for a lock.
func (h *host) connOf(n int) *connection { return &h.conns[h.routes[n]] }

// isReached reports whether a host reaches the node that has a lock, as far as it knows, and that has all keys.
func (w *world) isReached(h *host, n int) bool {
	c := h.connOf(n)
	return !w.isOpen(n) && c.up && !c.dead && c.node == w.redis.owners[n]
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

// bootConnections begins the connections of a new process.
func (w *world) bootConnections(h *host) {
	h.shards = max(h.shards, 1)
	if !w.plan.cluster {
		w.newConnection(h, 0, "")
		w.connectIn(h, 0, w.random.below(10*ms))
		return
	}
	h.routes = [maxNames]redisop.Shard{}
	w.newMap(h)
	w.lookAt(h, w.now+w.random.below(10*ms))
}

// newMap makes the Map of a process.
func (w *world) newMap(h *host) {
	h.topology = topology{armedAt: 1 << 62, m: cluster.New(cluster.Config{
		Slots: w.plan.names, SlotOf: w.slotOrProbe, NotYet: "not connected yet", Rand: rand.New(&w.random.PCG),
		Last: wire.Identity{Floor: h.raised.token, FloorAt: h.raised.at},
	}, w.seeds())}
	if w.random.oneIn(2) {
		h.topology.m.Hosts(w.plan.hosts)
	}
}

// slotOrProbe is the slot of a lock, or of one of probes.
func (w *world) slotOrProbe(name string) uint16 {
	if wire.IsProbeLock(name) {
		return w.reader.Keys.SlotOf(name) % uint16(w.plan.names)
	}
	return w.slotOf(name)
}

// seeds are the nodes that the URL names.
func (w *world) seeds() []string { return slices.Clone(w.redis.bus.addresses[1:]) }

// newConnection makes a connection that is not tried yet.
func (w *world) newConnection(h *host, s redisop.Shard, address string) {
	c := &h.conns[s]
	*c = connection{gen: c.gen + 1, run: c.run, receivesUntil: c.receivesUntil, troubleAt: c.troubleAt, attempt: c.attempt}
	c.address, c.node, c.m = address, w.nodeAt(address), w.newMachine(h)
	if w.plan.cluster {
		c.isIdle = true
		c.m.ProbeLock("")
	}
}

// endConnections forgets the connections of a process that has ended.
func (w *world) endConnections(h *host) {
	for s := range h.conns {
		c := &h.conns[s]
		*c = connection{gen: c.gen + 1, receivesUntil: c.receivesUntil, troubleAt: c.troubleAt, attempt: c.attempt}
	}
	h.conns[0].run = h.journal.run
}

// update gives the Map of a host an input, and carries out what it wants done.
func (w *world) update(h *host, input func(m *cluster.Map, now int64)) {
	if h.isDown() {
		return
	}
	t, life := &h.topology, h.life
	input(t.m, h.clock(w.now))
	effects := t.m.Effects()
	if !t.isAsking {
		w.lookAt(h, h.worldTime(t.m.Next()))
	}
	for i := range effects {
		if h.isDown() || h.life != life {
			return
		}
		w.carryOut(h, &effects[i])
	}
}

func (w *world) carryOut(h *host, e *cluster.Effect) {
	s, now := e.Shard, h.clock(w.now)
	c := &h.conns[s]
	switch e.Kind {
	case cluster.Open:
		w.check.meetIf(NumberReused, h.topology.ended[s])
		h.shards = max(h.shards, s+1)
		w.newConnection(h, s, e.Address)
		w.connectIn(h, s, w.random.below(ms))
	case cluster.Lift:
		above := int64(0)
		if e.Floor.Known() {
			above = e.Floor.Above(now)
		}
		if c.m.Lift(now, above, e.AsksClock); c.ok {
			w.send(h, s)
		}
	case cluster.ConnectNow:
		if c.isIdle = false; !c.ok && !c.isConnecting {
			w.connectIn(h, s, w.random.below(ms))
		}
	case cluster.Idle:
		c.isIdle = true
	case cluster.ProbeLock:
		if c.m.ProbeLock(e.Name); c.ok {
			w.send(h, s)
		}
	case cluster.Route:
		w.route(h, e.Routes)
	case cluster.End:
		w.endShard(h, s)
	case cluster.Trouble:
		w.drainDeferred(h)
		h.conns[0].upKnown = true
		h.table.Down(h.clock(w.now), 0, e.Text)
		w.drain(h)
	}
}

// endShard ends the connection to a node that has left the Cluster.
func (w *world) endShard(h *host, s redisop.Shard) {
	c, life := &h.conns[s], h.life
	if c.isConnecting && c.inRedis {
		c.peer.Disconnect()
	}
	c.gen++ // what is on its way is of no use
	c.m.Finish()
	c.m.Refuse("the sidecar is stopping")
	w.handHeld(h, s)
	w.hand(h, s, w.takeDeliveries(c))
	if h.isDown() || h.life != life {
		return
	}
	*c = connection{gen: c.gen, attempt: c.attempt + 1}
	w.drainDeferred(h)
	h.table.Down(h.clock(w.now), s, "this master of the Cluster is not connected yet")
	h.topology.ended[s] = true
	h.topology.m.Ended(s)
	w.drain(h)
}

// lookAt has the Map of a host be looked at, at the latest.
func (w *world) lookAt(h *host, at int64) {
	if at = max(at, w.now); at < h.topology.armedAt {
		h.topology.armedAt = at
		w.after(at-w.now, event{kind: evTopology, host: int16(h.index), gen: uint32(h.life)})
	}
}

// onTopology asks nodes, if that is due.
func (w *world) onTopology(h *host, e event) {
	t := &h.topology
	if h.isDown() || e.gen != uint32(h.life) || w.now < t.armedAt || t.isAsking {
		return
	}
	t.armedAt = 1 << 62
	if t.m.Trouble() != "" {
		t.m.Seeds(w.seeds()) // the URL is read again
	}
	if t.round = t.m.Due(h.clock(w.now)); len(t.round) == 0 {
		w.lookAt(h, h.worldTime(t.m.Next()))
		return
	}
	t.isAsking, t.toConfirm = true, false
	w.askNode(h)
}

// askNode asks the next node. Its answer may be on its way for long.
func (w *world) askNode(h *host) {
	t := &h.topology
	t.text, t.askedAt = "", h.clock(w.now)
	takes := w.random.magnitude(ms, 2*sec)
	if x := w.nodeAt(t.round[0]); x != 0 && !w.redis.nodes[x].down && w.stallLeft(x) == 0 {
		t.text, t.epoch = w.describe(x), w.redis.views[x].epoch
		if !w.random.oneIn(w.plan.lateAnswers) {
			takes = w.lag() + w.lag()
		}
	}
	w.after(takes, event{kind: evAnswered, host: int16(h.index), gen: uint32(h.life)})
}

// onAnswered takes in what a node answered, and asks the next one.
func (w *world) onAnswered(h *host, e event) {
	t := &h.topology
	if h.isDown() || e.gen != uint32(h.life) {
		return
	}
	from := t.round[0]
	t.round = t.round[1:]
	why := "it does not answer"
	if t.text != "" {
		top, err := cluster.ParseTopology(t.text, from, t.askedAt)
		if err != nil {
			panic(err)
		}
		t.m.Confirmed(h.clock(w.now), top, from)
		if why = ""; !t.toConfirm {
			w.check.meetIf(OldTopology, t.epoch < w.redis.bus.epoch)
			w.update(h, func(m *cluster.Map, now int64) { why = m.Learned(now, top, from) })
		}
	}
	if !t.toConfirm && why == "" {
		t.round = nil
	}
	if !t.toConfirm && len(t.round) == 0 {
		if why != "" {
			w.update(h, func(m *cluster.Map, _ int64) { m.NotLearned(why) })
		}
		t.toConfirm, t.round = true, t.m.OpenMasters()
		slices.Sort(t.round) // their order is that of a map
	}
	switch {
	case h.isDown() || e.gen != uint32(h.life):
	case len(t.round) > 0:
		w.askNode(h)
	default:
		t.isAsking = false
		w.update(h, func(m *cluster.Map, now int64) { m.Rest(now) })
	}
}

// redirect is a redirect of a node, with the slot as the Map has it.
func (w *world) redirect(r wire.Redirect) wire.Redirect {
	for n := range w.keyNames() {
		if w.slots[n] == r.Slot {
			r.Slot = uint16(w.counterOf(n))
			return r
		}
	}
	panic("a redirect of a slot that no lock has")
}

// askThere sends operations to the node that has their keys already, behind ASKING.
func (w *world) askThere(h *host, d *pipeline.Delivery) {
	s := redisop.Shard(0)
	w.update(h, func(m *cluster.Map, now int64) { s = m.Asked(now, w.redirect(d.Redirect)) })
	c := &h.conns[s]
	for i := range d.Ops {
		op := &d.Ops[i]
		o := &w.ops[w.recordOf(h, nameIndex(op.Name), op.Kind)]
		w.checkContract(h, o.fate.Asked(), int(o.name), opString(*op))
	}
	w.check.meetIf(AskNotSent, !c.ok)
	c.m.DoAsking(h.clock(w.now), d.Ops)
	w.send(h, s)
}

// route tells the table of a host which shards have slots.
func (w *world) route(h *host, ranges []redisop.SlotRange) {
	life := h.life
	if w.drain(h); h.isDown() || h.life != life { // what the table did before it knew
		return
	}
	for n := range w.keyNames() {
		for _, r := range ranges {
			if slot := uint16(w.counterOf(n)); r.First <= slot && slot <= r.Last {
				w.noteRoute(h, n, r.Shard)
			}
		}
	}
	h.table.Route(h.clock(w.now), ranges)
	w.afterInput(h)
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
		w.trace.add(w, n, h, "shard %d has the lock, at %s, no more shard %d", s, to.address, was)
	}
}
