package explore

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// ---- connections -------------------------------------------------------------

// connect makes a connection. The sidecar is subscribed to its own channel before the table
// knows of the connection.
func (w *world) connect(h *host, s side) {
	h.connects++
	c := &h.conns[s]
	*c = connection{isOpen: true, isServed: true, number: h.connects, floor: w.floorAtConnect(), told: contract.Opened(redisop.NewConn(h.connects), 0, false)}
	c.told.IsMoved = h.wasMoved()
	if h.process.listens && h.process.listensAt == s {
		c.request(request{kind: locktable.Subscribe})
	}
	h.process.table.Up(w.now, w.shardAt(s), false, true)
	w.drain(h)
}

func (w *world) reconnect(i int, s side) { w.connect(w.changeTable(i), s) }

// cut ends a connection at Redis: what the host has sent and Redis has not executed is lost,
// and nothing that is published reaches the host. What was sent to it may still arrive.
func (w *world) cut(i int, s side) {
	h := w.change(i)
	h.conns[s].isServed, h.conns[s].requests = false, nil
	w.unsubscribe(wire(i, s, false))
}

// giveUp is what a host does that notices the end of its connection, or takes it for ended.
func (w *world) giveUp(i int, s side) {
	h := w.changeTable(i)
	t := h.process.table
	unanswered, subscribed := h.conns[s].unanswered, h.conns[s].subscribed
	w.loseConnection(h, s)
	t.Down(w.now, w.shardAt(s), "Redis cannot be reached")
	w.drain(h)
	ended := contract.Conn{IsDown: true}
	for _, r := range unanswered {
		if h.process == nil {
			return
		}
		if r.fate.Results == 0 {
			w.result(h, &ended, &r, redisop.Result{Kind: r.op.Kind, Name: lockName, Shard: r.op.Shard, Outcome: redisop.Unknown, Sent: r.sent, Msg: "connection lost"})
		}
	}
	if h.process != nil && subscribed {
		t.Unsubscribed(w.now, w.shardAt(s), lockName)
		w.drain(h)
	}
}

// loseConnection ends a connection for the host. Redis may still have it.
func (w *world) loseConnection(h *host, s side) {
	if c := &h.conns[s]; c.isServed {
		w.unsubscribe(wire(h.index, s, true))
		if w.isSubscribed(wire(h.index, s, false)) {
			w.unsubscribe(wire(h.index, s, false))
			w.subscribe(wire(h.index, s, true))
		}
		h.olds[s] = &connection{isServed: true, requests: c.requests, floor: c.floor}
	}
	h.conns[s] = connection{}
}

// closeOld has Redis notice the end of a connection that the host has given up.
func (w *world) closeOld(i int, s side) {
	w.change(i).olds[s] = nil
	w.unsubscribe(wire(i, s, true))
}

func (w *world) isSubscribed(id int32) bool {
	for _, s := range w.subscribers.Subscribers {
		if s == id {
			return true
		}
	}
	return false
}

// The list of subscribers is shared between worlds, so it is made again.

func (w *world) subscribe(id int32) {
	w.unsubscribe(id)
	w.subscribers.Subscribers = push(w.subscribers.Subscribers, id)
}

func (w *world) unsubscribe(id int32) {
	var rest []int32
	for _, s := range w.subscribers.Subscribers {
		if s != id {
			rest = append(rest, s)
		}
	}
	w.subscribers.Subscribers = rest
}

// ---- processes ---------------------------------------------------------------

// crash kills a sidecar.
func (w *world) crash(i int) { w.end(w.change(i)) }

// end ends a process. Its clients know that at once.
func (w *world) end(h *host) {
	if h.process == nil {
		return
	}
	h.journal = h.process.journal
	h.process = nil
	for s := range w.sides() {
		w.loseConnection(h, s)
	}
	h.route = 0
	h.stalled, h.doom = false, noDoom
	for c := range h.clients {
		switch cl := &h.clients[c]; cl.phase {
		case waiting, trying:
			cl.phase = idle // it may send its request again
			fallthrough
		default:
			cl.away = true
		}
	}
}

// restart starts the successor of a dead process, which restores what is in the journal.
func (w *world) restart(i int) {
	h := w.change(i)
	h.journal = h.journal.clone()
	h.process, h.inherited, h.told = &process{journal: h.journal}, h.journal.lastHold, 0
	t := locktable.New(w.config(h), w.now)
	h.process.table = t
	snapshot := h.journal.snapshot()
	w.plan.mutant.restore(&snapshot)
	t.Restore(w.now, &snapshot)
	w.drain(h)
	for _, s := range snapshot.Sessions {
		cl := &h.clients[clientOf(s.ID)]
		if cl.session == s.ID && !cl.dead && t.Holds(s.ID) > 0 {
			continue // it may resume its session
		}
		t.Close(w.now, s.ID)
		w.drain(h)
	}
	for c := range h.clients {
		cl := &h.clients[c]
		if cl.dead || t.Holds(cl.session) == 0 {
			if cl.phase == believes && w.now < cl.deadline && !cl.isLost {
				w.violated(invariant.Journal, "client %d of host %d believes in hold %d, and the journal does not have it", c, i, cl.hold)
			}
			w.openSession(h, c)
		}
	}
	w.copyProcess(h)
}

// ---- Redis -------------------------------------------------------------------

// execute has Redis execute what is next on a connection: one command, or a Drop and the Take
// that was sent with it.
func (w *world) execute(i int, s side, old bool) {
	h := w.change(i)
	var c *connection
	if old {
		o := *h.olds[s]
		c = &o
		h.olds[s] = c
	} else {
		c = &h.conns[s]
	}
	if !w.hasSlot(s) {
		w.redirect(c)
		return
	}
	r := c.requests[0]
	c.requests = c.requests[1:]
	id := wire(i, s, old)
	switch r.kind {
	case locktable.Subscribe:
		w.subscribe(id)
		c.push(frame{kind: subscribedFrame, asked: r.asked})
		return
	case locktable.Unsubscribe:
		w.unsubscribe(id)
		return
	}
	w.key.Expire(w.tickNow())
	defer w.noteWrite(w.data)
	w.queue, w.semaphore = w.queue.Clone(), w.semaphore.Clone()
	var next *request
	if len(c.requests) > 0 && c.requests[0].kind == locktable.Redis && c.requests[0].op.Has(redisop.AfterPendingDrop) && c.requests[0].batch == r.batch {
		next = &c.requests[0]
		c.requests = c.requests[1:]
	}
	dropped := w.run(h, s, c, &r, next, nil)
	if next != nil {
		w.run(h, s, c, next, nil, dropped)
	}
}

// run runs one operation. next is the Take in the same run, and dropped what the Drop in the same
// run returned; nil: there is none.
func (w *world) run(h *host, s side, c *connection, r, next *request, dropped *redis.Reply) *redis.Reply {
	w.scripts++
	cmd := redis.Command{
		Op: &r.op, Owner: redis.Owner(h.index), Now: w.tickNow(), Floor: c.floor, Fresh: max(freshToken, int64(w.drawn)),
		Queue: w.queue, Clock: w.clock(),
		Receivers: func(to redis.Owner) int32 {
			n := int32(0)
			if w.hosts[to].conns[s].isServed {
				n++
			}
			if w.hosts[to].olds[s] != nil {
				n++
			}
			return n
		},
	}
	if r.op.Of == redisop.KindPermits {
		w.runPermits(h, s, c, r, &cmd)
		return nil
	}
	if next != nil {
		cmd.Next = &next.op
	}
	if dropped != nil {
		cmd.PassedOn = dropped.Passed
		cmd.LeftFree = dropped.Paused && r.op.Has(redisop.Enqueue) && r.op.Arrived != 0
	}
	reply := cmd.Run(&w.key, &w.counter, &w.subscribers)
	w.noteArrival(h, r, &reply)
	w.drawn = max(w.drawn, uint64(w.counter.Value))
	if c == h.olds[s] && r.op.Kind == redisop.Take {
		id := r.op.HoldID
		if reply.Outcome == redisop.Done && reply.Ticket != 0 {
			id = reply.Ticket // which has got the lock
		}
		h.noteGhost(id)
	}
	if isAnswer := r.op.Kind == redisop.Drop || r.op.Kind == redisop.Take; isAnswer && r.op.Ticket == 0 && reply.Ticket == 0 {
		for _, t := range w.queue.Tickets { // of a process before: the table knows now that it has no key, and of no ticket
			if t.Owner == redis.Owner(h.index) && t.Num <= min(h.inherited, r.op.HoldID) {
				h.noteGhost(t.Num)
			}
		}
	}
	for i := range reply.Sent {
		m := &reply.Sent[i]
		w.hasLapsed = w.hasLapsed || m.Kind == redisop.Requeue
		if m.Reached > 0 {
			w.publish(h, s, c, int(m.To), m.Message)
		}
		w.passOn(h, s, int(m.To), m.Message)
	}
	if reply.Publication == redis.Published {
		for _, id := range w.subscribers.Subscribers {
			if id%(2*hostCount) < hostCount {
				w.publish(h, s, c, int(id%(2*hostCount)), redisop.Message{Kind: redisop.Unlocked, Name: lockName})
			}
		}
	}
	c.push(frame{result: w.resultOf(r, &reply)})
	if c == &h.conns[s] {
		w.noteExecuted(h, c, reply.Outcome)
	}
	return &reply
}

// publish sends a message to a host, if Redis has a connection on which it arrives.
func (w *world) publish(h *host, s side, c *connection, to int, m redisop.Message) {
	f := frame{kind: messageFrame, message: m}
	switch {
	case to != h.index:
		if w.hosts[to].conns[s].isServed {
			other := w.change(to)
			other.conns[s].push(f)
		}
	case h.conns[s].isServed:
		h.conns[s].push(f) // c may be the old one
	}
}

// tickNow is the beginning of the tick.
func (w *world) tickNow() int64 { return w.now / tick * tick }

// clock is what Redis's TIME returns, in µs. Keys do not expire by it: one that ends early because the
// clock was set forward has two owners in any case.
func (w *world) clock() int64 { return w.order() + w.shift }

// order is a clock that nothing sets, in µs. Each script takes some.
func (w *world) order() int64 {
	perTick := int64(clockPerTick)
	if w.plan.Permits {
		perTick = tick / 1000 // claims expire by it
	}
	return w.now/tick*perTick + w.scripts
}

func (w *world) resultOf(r *request, reply *redis.Reply) redisop.Result {
	res := redisop.Result{
		Kind: r.op.Kind, Name: lockName, Shard: r.op.Shard, Outcome: reply.Outcome, Sent: r.sent, Msg: reply.Code,
		Token: reply.Token, Made: reply.Made, Listeners: reply.Listeners, TTLMS: reply.TTLMS,
		IsQueued: reply.IsQueued, Rank: reply.Rank, Ticket: reply.Ticket, Recall: reply.Recall, Waiting: reply.Waiting,
		Passed: reply.Passed, Paused: reply.Paused, LeftFree: reply.LeftFree, Arrived: reply.Arrived, FirstArrived: reply.FirstArrived,
		Permits: reply.Permits,
	}
	if reply.Outcome == redisop.HeldByOther && w.key.Exists() {
		res.Field = "00000000-0000-8000-8000-000000000000:1" // of a sidecar: a message to it may be lost
	}
	return res
}

// ---- what arrives at hosts ---------------------------------------------------

// deliver has a host read the next frame of its connection.
func (w *world) deliver(i int, s side) {
	h := w.changeTable(i)
	c := &h.conns[s]
	f := c.frames[0]
	c.frames = c.frames[1:]
	switch f.kind {
	case resultFrame:
		if f.result.Msg == moved {
			w.learn(h)
		}
		if h.process == nil {
			return
		}
		r := c.unanswered[0]
		c.unanswered = c.unanswered[1:]
		f.result.Conn = c.told.ID
		if r.fate.Results == 0 {
			w.result(h, &c.told, &r, f.result)
		}
		return
	case messageFrame:
		f.message.Conn = c.told.ID
		if f.isCopy && !w.plan.mutant.accepts() {
			f.message.Conn, f.message.Tokens = redisop.Conn{}, 0 // the store takes them out
		}
		if m := &f.message; m.Kind == redisop.Transferred && (!w.hasLost || w.hasSlot(s) && !f.isCopy) { // else the transfer is lost
			h.ghosts = slices.DeleteFunc(slices.Clone(h.ghosts), func(id uint64) bool { return id == m.Ticket })
		}
		w.checkMessage(h, c, &f)
		if w.plan.mutant.message(h, &f.message) {
			h.process.table.Message(w.now, f.message)
		}
	case subscribedFrame:
		if f.asked != c.asked { // the table wanted something else since, and that is confirmed
			return
		}
		c.subscribed = true
		w.checkContract(h, contract.Subscribed(!c.isServed || w.isSubscribed(wire(i, s, false)) || c.isUnsubscribed(), true), "the lock's channel")
		w.checkContract(h, c.told.Tell("a subscription", f.seq), "the lock's channel")
		h.process.table.Subscribed(w.now, w.shardAt(s), lockName)
	case unsubscribedFrame:
		w.onSubscriptionEnded(h, s)
		return
	case movedFrame:
		w.learn(h)
		return
	}
	w.drain(h)
}

// result gives the table the result of a request, which came over a connection.
func (w *world) result(h *host, c *contract.Conn, of *request, r redisop.Result) {
	w.checkResult(h, c, of, &r)
	r.Sent = w.now - (w.now-r.Sent)/tick*tick // a round trip takes whole ticks
	w.plan.mutant.result(w, h, &r)
	h.process.table.Result(w.now, r)
	w.drain(h)
	w.plan.mutant.routesAfter(w, h)
}

// ---- time --------------------------------------------------------------------

// nextTick is when something is due that happens by itself; false: there is nothing.
func (w *world) nextTick() (int64, bool) {
	at, ok := int64(0), false
	within := w.now % tick
	add := func(t int64) {
		t = max((t-within+tick-1)/tick*tick+within, w.now)
		if !ok || t < at {
			at, ok = t, true
		}
	}
	for _, h := range w.hosts {
		if h.process != nil && !h.stalled {
			if t, ok := locktable.NextDeadline(h.process.table); ok {
				add(t + w.plan.mutant.lateBy())
			}
		}
	}
	if w.key.Exists() {
		add(w.key.ExpireAt)
	}
	if w.semaphore.Exists {
		add(w.semaphore.ExpireAt)
	}
	return at, ok
}

// advance moves the time to the next tick at which something is due.
func (w *world) advance() {
	at, _ := w.nextTick()
	if at > w.now {
		for _, h := range w.hosts {
			for s := range h.conns {
				w.wasLate = w.wasLate || len(h.conns[s].requests)+len(h.conns[s].frames)+len(h.bus[s]) > 0
			}
		}
		w.now, w.scripts = at, 0
	}
	w.hasLapsed = w.hasLapsed || w.key.Exists() && w.key.ExpireAt <= w.now
	w.key.Expire(w.tickNow())
	w.semaphore = w.semaphore.Clone()
	w.semaphore.Expire(w.tickNow())
	for i := range w.hosts {
		if !w.hosts[i].stalled {
			w.fire(i)
		}
	}
}

// fire fires the timers of a table that are due.
func (w *world) fire(i int) {
	h := w.hosts[i]
	if h.process == nil {
		return
	}
	if at, ok := locktable.NextDeadline(h.process.table); ok && at+w.plan.mutant.lateBy() <= w.now {
		h = w.changeTable(i)
		h.process.table.Advance(w.now)
		w.drain(h)
	}
}

// resume ends a stall: the host's timers come first.
func (w *world) resume(i int) {
	w.change(i).stalled = false
	w.fire(i)
}
