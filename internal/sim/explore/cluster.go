package explore

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A Cluster has two shards, and each host a connection to both. The slot of the lock is at shard 1, and
// moves to shard 2 once at most:
//
//   - It is migrated, with all its data. That excuses nothing.
//   - The server of shard 1 dies, and shard 2 takes over with less: without the last write, or without all
//     writes since the root. Until a host learns of the move, results and messages of what was lost may
//     mislead it. After it has asked shard 2, each check holds again.
//
// A host learns of the move when shard 1 answers MOVED, or at any other moment, as by CLUSTER NODES. A
// transfer that is published at one shard reaches the other one later, as a copy. Other messages have copies,
// too, which repeat what the first one said. The simulation has these.

// side is which of the connections of a host something is about. Without a Cluster there is one.
type side uint8

const sideCount = 2

const (
	firstShard  redisop.Shard = 1
	secondShard redisop.Shard = 2

	lockSlot = 7
)

// moved is what a shard answers that does not have the slot.
const moved = "MOVED"

// cluster is what a world with two shards has.
type cluster struct {
	owner    redisop.Shard // it has the slot; 0: this is no Cluster
	isDead   bool          // the server of shard 1
	hasLost  bool          // data, in the failover
	isUnfair bool          // a host learned of the move while it had the lock and no client did: it takes it again, before all tickets
	drawn    uint64        // the largest token
	before   data          // as it was before the last write
	first    data          // as it was at the root
}

// hostInCluster is what a host has in a Cluster.
type hostInCluster struct {
	route redisop.Shard      // the shard that has the slot, as its store knows; 0: none is known
	bus   [sideCount][]frame // copies of messages, on the way to its connection there

	routePends bool // a mutant: its table is not told of the route yet
}

func (w *world) initCluster() {
	if w.plan.Cluster {
		w.owner = firstShard
	}
	w.before, w.first = w.data, w.data
}

// sides returns the number of sides.
func (w *world) sides() side {
	if w.plan.Cluster {
		return sideCount
	}
	return 1
}

func (w *world) shardAt(s side) redisop.Shard {
	if !w.plan.Cluster {
		return 0
	}
	return firstShard + redisop.Shard(s)
}

func (w *world) sideOf(n redisop.Shard) side {
	if n == secondShard {
		return 1
	}
	return 0
}

// hasSlot reports whether the shard at a side has the slot.
func (w *world) hasSlot(s side) bool { return w.shardAt(s) == w.owner }

// isWanted reports whether a host connects to a shard: when it knows of the shards, and there is a server.
func (w *world) isWanted(h *host, s side) bool {
	return !w.plan.Cluster || h.route != 0 && !(w.isDead && s == 0)
}

// floorAtConnect is the floor of tokens of a new connection. In a Cluster it is above all tokens, as the
// time is that the server tells.
func (w *world) floorAtConnect() int64 { return int64(w.drawn)*int64(w.sides()-1) + 1 }

// ---- the move ----------------------------------------------------------------

// moves appends the moves of the slot that can happen.
func (w *world) moves(to []action) []action {
	if w.owner != firstShard {
		return to
	}
	if w.plan.Moves > 0 {
		to = append(to, actionOf(migrate, 0, 0))
	}
	if w.plan.Failovers > 0 {
		to = append(to, actionOf(failOver, 0, 0), actionOf(loseSince, 0, 0))
	}
	return to
}

// migrate moves the slot to shard 2. Shard 1 ends the subscriptions.
func (w *world) migrate() {
	w.owner = secondShard
	for i, h := range w.hosts {
		if !w.isSubscribed(wire(i, 0, false)) {
			continue
		}
		h = w.change(i)
		h.conns[0].push(frame{kind: unsubscribedFrame})
	}
	w.subscribers.Subscribers = nil
}

// failOver has shard 2 take over with this data. The server of shard 1 dies.
func (w *world) failOver(d data) {
	w.key.Expire(w.tickNow())
	d.key.Expire(w.tickNow())
	isKeyLost := w.key != d.key
	w.hasLost = isKeyLost || w.counter != d.counter || w.queue != d.queue
	w.owner, w.isDead = secondShard, true
	for i := range w.hosts {
		h := w.change(i)
		h.conns[0].isServed, h.conns[0].requests, h.olds[0], h.bus[0] = false, nil, nil, nil
		for c := range h.clients {
			if cl := &h.clients[c]; cl.phase == believes {
				cl.excused = cl.excused || isKeyLost
			}
		}
		if int(d.key.Owner) == i && isKeyLost {
			h.noteGhost(d.key.Num)
		}
		for _, t := range d.queue.Tickets {
			if int(t.Owner) == i && !slices.Contains(w.queue.Tickets, t) {
				h.noteGhost(t.Num)
			}
		}
	}
	w.subscribers.Subscribers = nil
	w.data = d
}

// noteWrite notes what there was before a script, if that has changed anything.
func (w *world) noteWrite(before data) {
	if w.plan.Failovers > 0 && (before.key != w.key || before.counter != w.counter || !sameQueue(before.queue, w.queue)) {
		w.before = before
	}
}

func sameQueue(a, b *redis.Queue) bool {
	if len(a.Tickets) != len(b.Tickets) || len(a.Signs) != len(b.Signs) {
		return false
	}
	for i := range a.Tickets {
		if a.Tickets[i] != b.Tickets[i] {
			return false
		}
	}
	for owner, at := range a.Signs {
		if b.Signs[owner] != at {
			return false
		}
	}
	return true
}

// learn has the store of a host learn which shard has the slot. It lifts the floor of tokens there above all
// that it knows of, and tells the table.
func (w *world) learn(h *host) {
	if h.route == w.owner || h.process == nil {
		return
	}
	was := h.route
	h.route = w.owner
	w.isUnfair = w.isUnfair || w.key.Owner == redis.Owner(h.index) && !h.isHeld()
	if m := w.plan.mutant; m == nil || !m.keepsFloor {
		c := &h.conns[w.sideOf(w.owner)]
		c.floor = max(c.floor, w.floorAtConnect())
	}
	if was != 0 && w.plan.mutant.route(w, h, was) {
		return
	}
	w.tellRoute(h)
}

// wasMoved reports whether the store of a host knows that the slot is not where it was at first.
func (h *host) wasMoved() bool { return h.route == secondShard }

// tellRoute tells the table of a host which shard has the slot.
func (w *world) tellRoute(h *host) {
	for s := range h.conns {
		h.conns[s].told.IsMoved = h.wasMoved()
	}
	h.process.table.Route(w.now, []redisop.SlotRange{{First: lockSlot, Last: lockSlot, Shard: h.route}})
	w.drain(h)
}

// redirect has a shard answer what is next on a connection, when it does not have the slot.
func (w *world) redirect(c *connection) {
	r := c.requests[0]
	c.requests = c.requests[1:]
	switch r.kind {
	case locktable.Subscribe:
		c.push(frame{kind: movedFrame})
		return
	case locktable.Unsubscribe:
		return
	}
	answer := func(r *request) {
		c.push(frame{result: w.resultOf(r, &redis.Reply{Outcome: redisop.Retryable, Code: moved})})
	}
	answer(&r)
	if len(c.requests) > 0 && c.requests[0].kind == locktable.Redis && c.requests[0].op.Has(redisop.AfterPendingDrop) && c.requests[0].batch == r.batch {
		answer(&c.requests[0])
		c.requests = c.requests[1:]
	}
}

// onSubscriptionEnded handles that shard has ended a subscription, because the slot has left it. The store
// subscribes again, and learns where the slot is.
func (w *world) onSubscriptionEnded(h *host, s side) {
	if !h.process.listens || h.process.listensAt != s {
		return
	}
	if h.conns[s].subscribed {
		h.conns[s].subscribed = false
		h.process.table.Unsubscribed(w.now, w.shardAt(s), lockName)
		w.drain(h)
	}
	if c := &h.conns[s]; h.process != nil && h.process.listens && h.process.listensAt == s && c.isServed {
		c.request(request{kind: locktable.Subscribe, batch: c.batch})
	}
}

// ---- copies of messages ------------------------------------------------------

// passOn sends a message to a host over the other shard, too. No receiver is counted there.
func (w *world) passOn(h *host, s side, to int, m redisop.Message) {
	if !w.plan.Cluster || m.Kind != redisop.Transferred || !w.hosts[to].conns[1-s].isServed {
		return
	}
	if to != h.index {
		h = w.change(to)
	}
	h.bus[1-s] = push(h.bus[1-s], frame{kind: messageFrame, message: m, isCopy: true})
}

// deliverCopy has a shard send to a host the next copy of what was published at the other one.
func (w *world) deliverCopy(i int, s side) {
	h := w.change(i)
	f := h.bus[s][0]
	h.bus[s] = h.bus[s][1:]
	if c := &h.conns[s]; c.isServed {
		c.push(f)
	}
}

// ---- checks ------------------------------------------------------------------

// endExcuses ends the excuses of a host that has asked the shard which has the slot now: it knows the route,
// is connected, and no operation of it is in flight.
func (w *world) endExcuses() {
	if !w.hasLost {
		return
	}
	for i, h := range w.hosts {
		if h.route != w.owner || !h.conns[w.sideOf(w.owner)].isOpen || len(h.conns[0].unanswered)+len(h.conns[1].unanswered) > 0 || h.stalled {
			continue
		}
		for c := range h.clients {
			if h.clients[c].excused {
				h = w.change(i)
				h.clients[c].excused = false
			}
		}
	}
}

// checkOneShard checks that no operation of a host is in flight at one shard when it sends another one to
// the other. An Arrive changes nothing.
func (w *world) checkOneShard(h *host, s side, op *redisop.Op) {
	for _, r := range h.conns[1-s].unanswered {
		if op.Kind != redisop.Arrive && r.op.Kind != redisop.Arrive {
			w.violated(invariant.OneOperation, "host %d sends an operation to shard %d while one is in flight at shard %d", h.index, w.shardAt(s), w.shardAt(1-s))
		}
	}
}

// checkLoss checks that a client does not lose a hold that nothing has taken from it.
func (w *world) checkLoss(h *host, cl *client, e *locktable.Effect) {
	if w.faults == 0 && !w.hasLapsed && !w.hasLost && w.now < cl.deadline && (e.Reason == protocol.Stolen || e.Reason == protocol.Deleted) {
		w.violated(invariant.HoldsLast, "a client of host %d loses hold %d with reason %s, and nothing has taken its key", h.index, cl.hold, e.Reason)
	}
}
