package sim

import (
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The connections of a host, one to each shard: what is in flight on one, and what becomes of that
// when it breaks.

// operation is one Op on its way to Redis and back.
type operation struct {
	op       redisop.Op
	res      redisop.Result
	host     int16
	name     int8
	gen      uint32
	server   int    // run id of that which its connection leads to
	floor    int64  // of its connection
	birth    int64  // a new counter begins above it
	known    int64  // of its connection
	clockAt  int64  // the same
	toldAt   int64  // when the table was told last that another shard has its lock
	script   uint64 // the number of the one that executes it
	at       int64  // it reaches Redis no earlier; or, if executed, when it did
	issuedAt int64  // when the table issued it
	sentAt   int64  // the same, by the clock of the host
	queued   bool   // an event refers to it
	executed bool
	changed  bool // it has changed the key of its lock
	unknown  bool // its reply is that Redis does not know the script
	settled  bool // the table has its result
	lost     bool // will not reach Redis

	via      redisop.Shard // the shard that its connection leads to: that of the Op, or one that was named by ASK
	askAt    redisop.Shard // the shard that is to be asked, as the one answered that it was sent to; 0: none
	isAsking bool          // it is behind ASKING

	movedTo    redisop.Shard // the shard that has its lock, as the one answered that it was sent to; 0: that one had it
	isOutdated bool          // the table was told since that another shard has its lock
}

const noOp = int32(-1) // the index of no operation

type connection struct {
	gen       uint32
	ok        bool // the store believes that it works
	inRedis   bool // Redis has it
	dead      bool // nothing comes through any more, whether the store has detected it or not
	late      bool // what a dead connection carried comes through much later, at lateAt
	lateAt    int64
	lastExec  int64 // when what was sent last reaches Redis
	lastReply int64 // when what was replied last reaches the host
	floor     int64
	known     int64      // the floor of the host at the greeting, the last route, or when the clock was last read
	clock     tokenFloor // Redis's, when it was last read
	clockAt   int64      // when that was
	reading   int64      // of the clock that is asked for
	lifts     bool       // the clock is asked for, because slots came: each counter is lifted to it
	asksAgain bool       // slots came since
	script    script     // that was begun last
	sync      replication
	replied   uint64 // the number of the last script of which something was replied
	repeated  uint64 // the number of the last script that was sent again
	run       int    // run id seen last
	nextRun   int    // run id of the server that the connection leads to
	inFlight  []int32
	queue     []int32 // half duplex: waits for the reply to the batch before

	isListening   bool  // Redis has its subscription of the host's own channel
	isTried       bool  // the store tries to connect, or is connected
	receivesUntil int64 // until then Redis counts a connection of this host that is gone as a receiver

	up          bool  // as the table was told
	upKnown     bool  // it was told whether the shard can be reached
	unanswered  int   // operations whose results the table does not have
	silentSince int64 // host clock: when the table got a result last, or issued the first of them
	troubleAt   int64 // when something last failed between the host and the shard
}

// silence returns how long the shard has replied nothing to a host that waits for a reply.
func (c *connection) silence(now int64) int64 {
	if c.unanswered == 0 {
		return 0
	}
	return now - c.silentSince
}

// isAhead reports whether a token is ahead of Redis's clock, as it was when the connection was made.
func (c *connection) isAhead(now, token int64) bool {
	return token > c.clock.token+(now-c.clock.at)/µs+1_000_000
}

// script is one run of a script, for operations that a store sends at one time.
type script struct {
	number  uint64 // unique in the world: a host has several connections and processes
	unknown bool   // Redis does not know its text
	isOpen  bool   // what is sent next is executed in it, too. Ended by the next step of the loop.
}

// replication is whether the replica confirms a script of a durable world.
type replication struct {
	script     uint64
	isUnsynced bool
}

// tokenFloor is what a host knows of tokens: the largest one that Redis gave it, and when
// that was. It grows with the clock of the host, a hundredth more slowly.
type tokenFloor struct {
	token int64
	at    int64 // host clock; 0: none is known
}

func (f tokenFloor) now(clock int64) int64 {
	if f.at == 0 {
		return 0
	}
	elapsed := (clock - f.at) / µs
	return f.token + elapsed - elapsed/100 - min(elapsed, 1)
}

func (f *tokenFloor) raise(clock, token int64) {
	if token > f.now(clock) {
		*f = tokenFloor{token, clock}
	}
}

// lag is how long something takes between a host and Redis.
func (w *world) lag() int64 {
	if w.random.oneIn(w.plan.slowOps) {
		return w.random.magnitude(w.plan.latency, w.plan.slow)
	}
	return w.random.between(w.plan.latency>>4, w.plan.latency)
}

func (w *world) newOp() int32 {
	if n := len(w.freeOps); n > 0 {
		i := w.freeOps[n-1]
		w.freeOps = w.freeOps[:n-1]
		w.ops[i] = operation{}
		return i
	}
	w.ops = append(w.ops, operation{})
	return int32(len(w.ops) - 1)
}

// freeOp frees an operation to which nothing refers any more.
func (w *world) freeOp(i int32) {
	if o := &w.ops[i]; !o.queued && o.settled {
		w.freeOps = append(w.freeOps, i)
	}
}

// issue gives an operation to the store.
func (w *world) issue(h *host, op redisop.Op) {
	n := nameIndex(op.Name)
	i := w.newOp()
	o := &w.ops[i]
	o.op, o.via, o.host, o.name, o.issuedAt = op, op.Shard, int16(h.index), int8(n), w.now
	o.sentAt = h.clock(w.now)
	o.res = redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard}
	if op.Kind == redisop.Arrive {
		h.locks[n].arriving = i
	} else {
		h.locks[n].inFlight = i
	}
	c := &h.conns[op.Shard]
	if c.unanswered == 0 {
		c.silentSince = h.clock(w.now)
	}
	c.unanswered++
	if !c.ok || w.random.oneIn(w.plan.unsent) {
		o.queued = true
		w.after(w.random.below(ms), event{kind: evNotSent, host: o.host, arg: i})
		return
	}
	joins := c.script.isOpen && len(c.inFlight) > 0 && len(c.queue) == 0
	if w.plan.halfDuplex && len(c.inFlight)+len(c.queue) > 0 && !joins {
		c.queue = append(c.queue, i)
		return
	}
	w.send(h, i)
}

// beginScript begins a script: what is sent next is executed in it.
func (w *world) beginScript(c *connection, unknown bool) {
	w.scripts++
	c.script = script{number: w.scripts, unknown: unknown, isOpen: true}
	c.lastExec = max(c.lastExec, w.now+w.lag())
}

// send sends an operation to Redis. What one host sends arrives in order.
func (w *world) send(h *host, i int32) {
	o := &w.ops[i]
	c := &h.conns[o.via]
	if !c.script.isOpen {
		w.beginScript(c, w.random.oneIn(w.plan.unknownScript))
	}
	c.script.isOpen = w.plan.oneScriptPerBatch
	c.inFlight = append(c.inFlight, i)
	o.gen, o.server, o.floor = c.gen, c.nextRun, c.floor
	o.script, o.unknown = c.script.number, c.script.unknown
	o.res.Conn = w.connOf(c, o.via)
	o.known = c.known
	o.birth, o.clockAt, o.toldAt = h.floor.now(h.clock(w.now)), c.clockAt, h.locks[o.name].movedAt
	if c.lifts || o.isAsking {
		o.floor, o.clockAt = redis.MaxToken, w.now
	}
	if w.withoutTokenFloor {
		o.floor, o.birth = 1, 0 // only a counter that is not there is below it
	}
	o.res.Sent = h.clock(w.now)
	if c.dead {
		if !c.late {
			o.lost = true
			return
		}
		c.lastExec = max(c.lastExec, c.lateAt)
	}
	o.at = c.lastExec
	o.queued = true
	w.after(o.at-w.now, event{kind: evExec, arg: i})
}

// arrive handles an operation that reaches Redis.
func (w *world) arrive(i int32) {
	o := &w.ops[i]
	if o.at > w.now && !o.lost {
		w.after(o.at-w.now, event{kind: evExec, arg: i})
		return
	}
	if o.lost {
		o.queued = false
		w.freeOp(i)
		return
	}
	if until := w.redis.shards[o.via].stalledUntil; until > w.now {
		w.after(until-w.now, event{kind: evExec, arg: i}) // before what is sent during the stall
		return
	}
	o.queued = false
	h := w.hosts[o.host]
	if !o.unknown {
		o.executed, o.at = true, w.now
		w.check.meetIf(ExecutedLate, o.settled)
		w.execute(h, o)
		w.replicate(h, o)
	}
	c := &h.conns[o.via]
	if o.settled || o.gen != c.gen || c.dead {
		w.freeOp(i)
		return
	}
	if c.replied != o.script {
		c.lastReply = max(c.lastReply, w.now+w.lag())
		if c.sync.script == o.script && c.sync.isUnsynced {
			c.lastReply += w.random.below(min(h.lease/10, 400*ms)) // the WAIT takes its time, and all results wait for it
			c.troubleAt = w.now
		}
	}
	c.replied = o.script
	o.queued = true
	w.after(c.lastReply-w.now, event{kind: evReply, host: o.host, arg: i, gen: c.gen, shard: int8(o.via)})
}

// onReply handles a reply of Redis that reaches the host. It has the results of all operations of
// a script.
func (w *world) onReply(h *host, e event) {
	o := &w.ops[e.arg]
	o.queued = false
	shard := o.via
	c := &h.conns[shard]
	if o.settled || e.gen != c.gen || c.dead {
		w.freeOp(e.arg)
		return
	}
	c.popInFlight()
	if o.unknown {
		w.sendAgain(h, e.arg)
		return
	}
	script := o.script
	isRefused := o.res.Msg == "READONLY"
	w.take(h, e.arg)
	for len(c.inFlight) > 0 {
		i := c.inFlight[0]
		if o := &w.ops[i]; o.script != script || !o.queued || !o.executed || o.askAt != 0 {
			break // one that is sent on is taken when its own event comes, so that none refers to it any more
		}
		c.popInFlight()
		w.deliver(h, i)
	}
	w.afterInput(h)
	if len(c.inFlight) == 0 && len(c.queue) > 0 && c.ok {
		c.script.isOpen = false
		for _, i := range c.queue {
			w.send(h, i)
		}
		c.queue = c.queue[:0]
	}
	if isRefused { // the store ends the session
		w.breakConnection(h, shard, false)
	}
}

// take gives the table the result of an operation, or sends the operation where the answer ASK says.
func (w *world) take(h *host, i int32) {
	if w.ops[i].askAt != 0 {
		w.askThere(h, i)
		return
	}
	w.deliver(h, i)
}

// sendAgain sends an operation whose script Redis did not know. Those of one script are one script
// again.
func (w *world) sendAgain(h *host, i int32) {
	o := &w.ops[i]
	if c := &h.conns[o.via]; c.repeated != o.script {
		c.repeated = o.script
		w.beginScript(c, false)
	}
	w.send(h, i)
}

// connOf returns a connection to a shard as the table of its host knows it.
func (w *world) connOf(c *connection, s redisop.Shard) redisop.Conn {
	if w.plan.namelessServers {
		return redisop.Conn{}
	}
	return redisop.NewConn(c.gen*maxShards + uint32(s))
}

// popInFlight returns the oldest operation in flight, which is in flight no more.
func (c *connection) popInFlight() int32 {
	i := c.inFlight[0]
	c.inFlight = append(c.inFlight[:0], c.inFlight[1:]...)
	return i
}

// deliver gives the table the one result of an operation.
func (w *world) deliver(h *host, i int32) {
	o := &w.ops[i]
	if o.movedTo != 0 && o.res.Msg == moved {
		w.onMoved(h, int(o.name), o.via, o.movedTo)
		o = &w.ops[i]
	}
	if o.op.Kind == redisop.Drop {
		w.drainDeferred(h) // a Take may have been pipelined after it
		o = &w.ops[i]
	}
	o.settled = true
	c := &h.conns[o.op.Shard]
	c.unanswered--
	c.silentSince = h.clock(w.now)
	res := o.res
	w.checkResult(h, o)
	if w.trace.on {
		w.trace.add(w, int(o.name), h, "result of %s: %s", opString(o.op), resultString(res))
	}
	l := &h.locks[o.name]
	if l.arriving == i {
		l.arriving = noOp
	} else if l.dropPending == i {
		l.dropPending = noOp
		w.check.meetIf(DropRepliedAfterTake, l.inFlight == noOp)
	} else {
		l.inFlight = noOp
	}
	if res.Outcome == redisop.Done {
		l.unconfirmed = false
	}
	w.freeOp(i)
	c = &h.conns[o.via]
	token, now := int64(res.Token), h.clock(w.now)
	h.floor.raise(now, token)
	if c.isAhead(now, token) && token > c.floor {
		w.check.meet(FloorRaised)
		c.floor = token
	}
	h.table.Result(now, res)
	if res.Kind == redisop.Arrive && l.inFlight != noOp {
		w.drain(h) // the other result of the lock may be in the same batch
	}
}

// onNotSent handles an operation that the store returns without having sent it.
func (w *world) onNotSent(h *host, e event) {
	o := &w.ops[e.arg]
	o.queued = false
	if o.settled { // no process waits for it any more
		w.freeOp(e.arg)
		return
	}
	o.res.Outcome, o.res.Msg = redisop.NotSent, "not sent"
	o.res.Sent = h.clock(w.now)
	w.deliver(h, e.arg)
	w.afterInput(h)
}

// breakConnection breaks the connection. Of what is on its way a first part arrives. The
// rest is lost; or, if only the host has given up the connection, it may arrive much later.
func (w *world) breakConnection(h *host, s redisop.Shard, serverDied bool) {
	c := &h.conns[s]
	if !c.ok || c.dead { // broken already
		return
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "the connection%s breaks", w.shardString(s))
	}
	c.dead, c.inRedis = true, false
	w.endSubscriptions(h, s)
	if !serverDied && c.isListening && w.isAtMaster(h, s) && w.random.oneIn(2) {
		// Redis does not know that the connection is gone.
		c.receivesUntil = w.now + w.random.magnitude(ms, 60*sec)
	}
	c.late = w.plan.lateOps && !serverDied && w.random.oneIn(2)
	c.lateAt = w.now + w.random.magnitude(ms, 10*sec)
	c.troubleAt = w.now
	arrive := w.random.below(int64(len(c.inFlight) + 1))
	for _, i := range c.inFlight {
		o := &w.ops[i]
		if o.executed || o.lost {
			continue
		}
		if arrive--; arrive >= 0 && !serverDied {
			continue
		}
		if c.late {
			o.at = max(o.at, c.lateAt)
		} else {
			o.lost = true
		}
	}
	w.after(w.random.magnitude(10*µs, 2*sec), event{kind: evConnectionLost, host: int16(h.index), gen: c.gen, shard: int8(s)})
}

// onConnectionLost handles that the store has detected a dead connection.
func (w *world) onConnectionLost(h *host, s redisop.Shard, gen uint32) {
	c := &h.conns[s]
	if h.isDown() || gen != c.gen || !c.ok {
		return
	}
	w.drainDeferred(h)
	c.ok = false
	c.troubleAt = w.now
	back := w.random.magnitude(5*ms, 5*sec)
	if w.phase != faulty {
		back = w.random.magnitude(5*ms, 100*ms)
	}
	switch w.random.below(3) {
	case 0:
		w.failInFlight(h, s)
		w.drainDeferred(h)
		w.reportDown(h, s)
	case 1:
		w.reportDown(h, s)
		w.failInFlight(h, s)
	default:
		w.reportDown(h, s)
		w.after(w.random.below(w.failsWithin(back)), event{kind: evFailInFlight, host: int16(h.index), gen: c.gen, shard: int8(s)})
	}
	w.after(back+2*ms, event{kind: evConnect, host: int16(h.index), gen: c.gen, shard: int8(s)})
}

// failsWithin is when the operations that a dead connection carried have their results at the latest,
// if the store connects again in so long. In a Cluster, slots move while it is not connected, so it does
// not wait for that.
func (w *world) failsWithin(back int64) int64 {
	if w.plan.cluster {
		return min(back, 20*ms)
	}
	return back
}

func (w *world) reportDown(h *host, s redisop.Shard) {
	if w.trace.on {
		w.trace.add(w, -1, h, "down%s", w.shardString(s))
	}
	h.conns[s].up, h.conns[s].upKnown = false, true
	h.table.Down(h.clock(w.now), s, "Redis cannot be reached")
	w.drain(h)
	w.reportUnsubscribed(h, s)
}

// failInFlight gives the table the results of everything that the dead connection will not
// reply to.
func (w *world) failInFlight(h *host, s redisop.Shard) {
	c := &h.conns[s]
	if h.isDown() {
		return
	}
	for len(c.inFlight) > 0 {
		i := c.popInFlight()
		o := &w.ops[i]
		sent := o.res.Sent
		w.check.meetIf(ExecutedUnknown, o.executed)
		switch {
		case w.deliversWithheld && o.executed && o.res.Outcome == redisop.NotSynced:
			o.res.Outcome, o.res.Msg = redisop.Done, ""
		default:
			o.res = redisop.Result{Kind: o.op.Kind, Name: o.op.Name, Shard: o.op.Shard, Outcome: redisop.Unknown, Sent: sent, Msg: "connection lost"}
		}
		w.deliver(h, i)
		w.afterInput(h)
	}
	for len(c.queue) > 0 {
		i := c.queue[0]
		c.queue = append(c.queue[:0], c.queue[1:]...)
		o := &w.ops[i]
		o.res.Outcome, o.res.Msg = redisop.NotSent, "connection lost"
		w.deliver(h, i)
		w.afterInput(h)
	}
}

// connect tries to connect to a shard.
func (w *world) connect(h *host, s redisop.Shard, gen uint32) {
	c := &h.conns[s]
	if h.isDown() || gen != c.gen || c.ok {
		return
	}
	if !w.isWanted(h, s) {
		c.isTried = false
		return
	}
	if w.redis.shards[s].down {
		if !c.upKnown {
			w.reportDown(h, s)
		}
		w.after(w.random.between(10*ms, 300*ms), event{kind: evConnect, host: int16(h.index), gen: gen, shard: int8(s)})
		return
	}
	if w.plan.killsOld {
		for i := range w.ops {
			if o := &w.ops[i]; o.queued && !o.executed && o.host == int16(h.index) && o.via == s {
				o.lost = true
			}
		}
	}
	w.failInFlight(h, s) // if it has not been done yet
	c.gen++
	now := h.clock(w.now)
	h.floor.raise(now, w.time(s))
	c.clock = tokenFloor{w.time(s), now}
	c.known = max(w.time(s), h.floor.now(now))
	if c.floor = c.known; w.floorsApart {
		c.floor = w.time(s)
	}
	c.clockAt, c.lifts, c.asksAgain = w.now, false, false
	c.nextRun = w.redis.shards[s].run
	c.dead, c.inRedis, c.isListening = false, true, !h.mayNotSubscribe
	c.lastExec, c.lastReply = w.now, w.now
	w.after(w.lag()+w.stallLeft(s), event{kind: evConnected, host: int16(h.index), gen: c.gen, shard: int8(s)})
}

// askClock has the tokens of slots that have just come to a shard be above its clock.
func (w *world) askClock(h *host, s redisop.Shard) {
	switch c := &h.conns[s]; {
	case c.dead: // it is read when the next connection is made
	case c.lifts:
		c.asksAgain = true
	default:
		c.lifts = true
		w.after(w.lag(), event{kind: evClockAsked, host: int16(h.index), gen: c.gen, shard: int8(s)})
	}
}

// onClockAsked has a shard tell its clock.
func (w *world) onClockAsked(h *host, e event) {
	c := &h.conns[e.shard]
	if e.gen != c.gen || c.dead {
		return
	}
	c.reading, c.clockAt = w.time(redisop.Shard(e.shard)), w.now
	w.after(w.lag()+w.stallLeft(redisop.Shard(e.shard)), event{kind: evClockReported, host: int16(h.index), gen: c.gen, shard: e.shard})
}

// onClockReported handles that a shard has reported its clock.
func (w *world) onClockReported(h *host, e event) {
	c := &h.conns[e.shard]
	if e.gen != c.gen || c.dead {
		return
	}
	now := h.clock(w.now)
	c.clock = tokenFloor{c.reading, now}
	h.floor.raise(now, c.reading)
	c.known = max(c.known, c.reading, h.floor.now(now))
	c.floor = max(c.floor, c.known)
	c.lifts = false
	w.check.meet(ClockReported)
	if c.asksAgain {
		c.asksAgain = false
		w.askClock(h, redisop.Shard(e.shard))
	}
}

// onConnected handles that the store has connected.
func (w *world) onConnected(h *host, e event) {
	s := redisop.Shard(e.shard)
	c := &h.conns[s]
	if h.isDown() || e.gen != c.gen {
		return
	}
	if shard := &w.redis.shards[s]; shard.down || c.nextRun < shard.oldest || c.dead {
		c.dead, c.inRedis, c.isListening = true, false, false
		w.after(w.random.between(10*ms, 300*ms), event{kind: evConnect, host: int16(h.index), gen: c.gen, shard: int8(s)})
		return
	}
	w.drainDeferred(h)
	dataLost := c.run != 0 && c.run != c.nextRun
	c.run = c.nextRun // the journal has it when the table's holds are known to be in doubt
	c.ok = true
	c.up, c.upKnown = true, true
	c.troubleAt = w.now
	if w.trace.on {
		w.trace.add(w, -1, h, "up%s, dataLost=%v", w.shardString(s), dataLost)
	}
	if dataLost {
		for n := range h.locks {
			if l := &h.locks[n]; h.routes[n] == s {
				h.revokeTokens(n, false)
				l.dataLostAt = w.now
			}
		}
	}
	h.table.Up(h.clock(w.now), s, dataLost, c.isListening)
	w.drain(h)
	w.resubscribe(h, s)
	w.checkBack(h, s)
	if dataLost && w.phase == faulty && w.plan.crashes > 0 && w.random.oneIn(4) {
		w.check.meet(KilledInDoubt)
		w.crash(h)
	}
}
