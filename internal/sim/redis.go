package sim

import (
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The model of Redis: what the scripts do to a lock's key and its token counter,
// the channels, and the two connections that every host has.

type redisName struct {
	key     redis.Key
	natural int64 // when the key would expire, had Redis's clock not jumped; 0: it did not
	counter redis.Counter
	drawn   uint64 // largest token ever drawn, whatever Redis remembers of it
	granted uint64 // largest token ever granted
	fellAt  int64  // when tokens began again below, because the clock had been set back
	lostAt  int64  // when the key or the counter was last destroyed from outside
	freedAt int64  // when the key was last freed
	silent  bool   // and nobody was told
	ghost   bool   // the key was written by an operation that its table had given up, or came back from the dead
	astray  bool   // the counter was lost since the last draw
	refused bool   // the ACL denies it
	muted   bool   // the ACL denies its channel

	overwritten bool // the key is of another type, and nobody's
	broken      bool // so is the counter's
}

type redisServer struct {
	down     bool
	run      int   // run id
	skew     int64 // of its clock
	fell     bool  // its clock went backwards once
	jumped   int64 // by how much in all
	names    [maxNames]redisName
	snapshot [maxNames]redisName
	channels [maxNames]redis.Channel // subscribers: hosts, and foreign clients as foreignSubscriber has it
}

func (r *redisServer) init() {
	r.run = 1
	for n := range r.names {
		r.names[n].key = redis.NoKey
		r.names[n].silent = true
	}
	r.snapshot = r.names
}

// time is TIME, in µs.
func (w *world) time() int64 { return 1_700_000_000_000_000 + (w.now+w.redis.skew)/µs }

// jump sets Redis's clock, which is the wall clock of its machine: keys and
// counters live shorter or longer than they were to.
//
// A key that expires early for it is as good as destroyed by an operator. Tokens go
// on rising as long as the counters are there; a counter that is lost while the
// clock is behind begins again below them, and nobody promises more.
func (w *world) jump(d int64) {
	if w.trace.on {
		w.trace.add(w, -1, nil, "Redis's clock jumps by %s", time.Duration(d))
	}
	r := &w.redis
	r.skew += d
	if d < 0 {
		r.fell = true
		r.jumped -= d
	}
	for n := range w.plan.names {
		w.expire(n)
		name := &r.names[n]
		if k := &name.key; k.Owner >= 0 && k.ExpireAt < redis.NoExpiry {
			if d > 0 && k.Owner < foreignID {
				name.natural = max(name.natural, k.ExpireAt)
				hn := &w.hosts[k.Owner].names[n]
				hn.excuse = max(hn.excuse, k.ExpireAt)
				name.lostAt = w.now
			}
			k.ExpireAt = max(k.ExpireAt-d, w.now)
		}
		name.counter.ExpireAt = earlier(name.counter.ExpireAt, d)
		if k := &r.snapshot[n].key; k.Owner >= 0 && k.ExpireAt < redis.NoExpiry {
			k.ExpireAt -= d
		}
		r.snapshot[n].counter.ExpireAt = earlier(r.snapshot[n].counter.ExpireAt, d)
	}
}

// earlier is an expiry after Redis's clock has jumped by d.
func earlier(at, d int64) int64 {
	if at == redis.NoExpiry {
		return at
	}
	return at - d
}

const counterExpiry = 7 * 24 * 3600 * sec

// counterOf is the name under which the counter and the channel of a lock are kept: "a"
// and "{a}" share theirs.
func (w *world) counterOf(name int) int {
	if w.plan.sharedCounters && name == 1 {
		return 0
	}
	return name
}

// sharers calls f with every name that shares a channel with one.
func (w *world) sharers(name int, f func(n int)) {
	for n := range w.plan.names {
		if w.counterOf(n) == w.counterOf(name) {
			f(n)
		}
	}
}

// tokenFloor is what a host knows of tokens: the largest one that Redis gave it, and when
// that was. It grows with the host's clock, a hundredth more slowly.
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

// mend ends what was wrong with a name.
func (w *world) mend(n int) {
	name := &w.redis.names[n]
	name.refused, name.broken = false, false
	if name.overwritten {
		name.overwritten = false
		name.freedAt, name.silent = w.now, true
		if w.trace.on {
			w.trace.add(w, n, nil, "the string is deleted")
		}
	}
}

// loseCounter has the counter of a lock be gone, or be what it was before.
func (w *world) loseCounter(name int, c redis.Counter) {
	if w.counterOf(name) != name {
		return // it is lost with the other's
	}
	lost := w.redis.names[name].counter != c
	w.redis.names[name].counter = c
	w.sharers(name, func(n int) {
		w.redis.names[n].astray = w.redis.names[n].astray || lost
	})
}

// incr is what Redisson's fenced lock does to the counter.
func (w *world) incr(name int) {
	c := &w.redis.names[w.counterOf(name)].counter
	if !c.Exists {
		*c = redis.Counter{Exists: true, ExpireAt: redis.NoExpiry}
	}
	c.Value++
}

// expire frees a key whose time has come.
func (w *world) expire(name int) {
	n := &w.redis.names[name]
	if n.key.Owner >= 0 && w.now >= n.key.ExpireAt {
		n.freedAt, n.silent = n.key.ExpireAt, true
		if n.natural > n.key.ExpireAt {
			n.lostAt = n.key.ExpireAt
			w.check.met[expiredEarly]++
		}
		n.key, n.natural = redis.NoKey, 0
		n.ghost = false
	}
}

func (w *world) setFree(name int) {
	n := &w.redis.names[name]
	n.freedAt, n.silent = w.now, false
	n.key, n.natural = redis.NoKey, 0
	n.ghost = false
}

// destroy is what neither a table nor time does to a key: an operator's DEL, a
// FLUSHALL, a restart without data, a foreign client's force. Who held it may
// believe in it as long as the key would have lived.
func (w *world) destroy(name int, why string) {
	w.expire(name)
	n := &w.redis.names[name]
	n.lostAt = w.now
	if w.trace.on {
		w.trace.add(w, name, nil, "the key is %s", why)
	}
	if k := &n.key; k.Owner >= 0 {
		if int(k.Owner) < len(w.hosts) {
			hn := &w.hosts[k.Owner].names[name]
			hn.excuse = max(hn.excuse, k.ExpireAt)
		}
		w.setFree(name)
		n.silent = true
	}
}

func (w *world) restart() {
	r := &w.redis
	r.down = true
	for i := range w.ops {
		if o := &w.ops[i]; o.queued && !o.executed {
			o.dead = true
		}
	}
	for _, h := range w.hosts {
		if !h.gone {
			h.conn.late = false
			w.breakConnection(h, true)
			w.breakSubscription(h)
		}
	}
	mode := w.random.below(3)
	if w.trace.on {
		w.trace.add(w, -1, nil, "Redis restarts, its data is %s", []string{"kept", "lost", "as it was some time ago"}[mode])
	}
	for n := range w.plan.names {
		name := &r.names[n]
		w.endForeignWaits(n)
		switch mode {
		case 1:
			w.destroy(n, "lost")
			w.loseCounter(n, redis.Counter{})
		case 2:
			old := &r.snapshot[n]
			if name.key != old.key || name.natural != old.natural {
				w.destroy(n, "replaced by an older one")
				name.key, name.natural, name.ghost = old.key, old.natural, true
				w.expire(n)
				w.changed(n)
			}
			name.lostAt = w.now
			w.loseCounter(n, old.counter)
		}
	}
	r.snapshot = r.names
	w.after(w.random.magnitude(ms, 3*sec), event{kind: evServerUp})
}

func (w *world) serverUp() {
	w.redis.down = false
	w.redis.run++
	if w.trace.on {
		w.trace.add(w, -1, nil, "Redis is up")
	}
}

// ---- operations

// operation is one Op under way.
type operation struct {
	op       locktable.Op
	res      locktable.Result
	host     int16
	name     int8
	gen      uint32
	floor    int64
	birth    int64  // a new counter begins above it
	batch    uint32 // of the connection: one script with others of the same
	at       int64  // it reaches Redis no earlier; or, executed, when it did
	begun    int64  // world time at which it was handed over
	queued   bool   // an event refers to it
	executed bool
	again    bool // its answer is that Redis does not know the script
	taught   bool // that happens once
	settled  bool // the table has its Result
	dead     bool // will not reach Redis
}

type connection struct {
	gen        uint32
	ok         bool // the store believes in it
	dead       bool // nothing comes through any more, whether the store has noticed or not
	late       bool // what a dead connection carried comes through much later
	lateAt     int64
	lastExec   int64
	lastAnswer int64
	floor      int64
	clock      tokenFloor // Redis's, when it was made
	batch      uint32     // steps of the loop
	written    uint32     // the last batch of which something was written
	answered   uint32     // the last batch of which something was answered
	run        int        // run id seen last
	nextRun    int
	inflight   []int32
	queue      []int32 // half duplex: waits for the batch before it
}

func (w *world) lag() int64 {
	if w.random.oneIn(w.plan.slowOps) {
		return w.random.magnitude(w.plan.latency, w.plan.slow)
	}
	return w.random.between(w.plan.latency>>4, w.plan.latency)
}

func (w *world) newOp() int32 {
	if n := len(w.free); n > 0 {
		i := w.free[n-1]
		w.free = w.free[:n-1]
		w.ops[i] = operation{}
		return i
	}
	w.ops = append(w.ops, operation{})
	return int32(len(w.ops) - 1)
}

// recycle frees an operation that nobody refers to any more.
func (w *world) recycle(i int32) {
	if o := &w.ops[i]; !o.queued && o.settled {
		w.free = append(w.free, i)
	}
}

// do hands an operation to the store.
func (w *world) do(h *host, op locktable.Op) {
	n := nameIndex(op.Name)
	i := w.newOp()
	o := &w.ops[i]
	o.op, o.host, o.name, o.begun = op, int16(h.index), int8(n), w.now
	o.res = locktable.Result{Kind: op.Kind, Name: op.Name}
	h.names[n].inflight = i
	if h.owed == 0 {
		h.owedSince = h.clock(w.now)
	}
	h.owed++
	c := &h.conn
	if !c.ok || w.random.oneIn(w.plan.unsent) {
		o.queued = true
		w.after(w.random.below(ms), event{kind: evNotSent, host: o.host, arg: i})
		return
	}
	if w.plan.halfDuplex && len(c.inflight)+len(c.queue) > 0 {
		c.queue = append(c.queue, i)
		return
	}
	w.write(h, i)
}

func (w *world) write(h *host, i int32) {
	c := &h.conn
	o := &w.ops[i]
	c.inflight = append(c.inflight, i)
	o.gen, o.floor, o.batch = c.gen, c.floor, c.batch
	o.birth = h.floor.now(h.clock(w.now))
	if w.floorless {
		o.floor, o.birth = 0, 0
	}
	o.res.Sent = h.clock(w.now)
	at := c.lastExec
	if !w.plan.scripts || c.written != c.batch {
		at = max(at, w.now+w.lag())
	}
	c.written = c.batch
	c.lastExec = at
	if c.dead {
		if !c.late {
			o.dead = true
			return
		}
		at = max(at, c.lateAt)
		c.lastExec = at
	}
	o.at = at
	o.queued = true
	w.after(at-w.now, event{kind: evExec, arg: i})
}

// arrive is an operation that reaches Redis.
func (w *world) arrive(i int32) {
	o := &w.ops[i]
	if o.at > w.now && !o.dead {
		w.after(o.at-w.now, event{kind: evExec, arg: i})
		return
	}
	o.queued = false
	if o.dead {
		w.recycle(i)
		return
	}
	h := w.hosts[o.host]
	if !o.taught && w.random.oneIn(w.plan.untaught) {
		o.taught, o.again = true, true
	} else {
		o.executed, o.at = true, w.now
		w.check.met[executedLate] += btoi(o.settled)
		w.execute(h, o)
	}
	c := &h.conn
	if o.settled || o.gen != c.gen || c.dead {
		w.recycle(i)
		return
	}
	if !w.plan.scripts || c.answered != o.batch {
		c.lastAnswer = max(c.lastAnswer, w.now+w.lag())
	}
	c.answered = o.batch
	o.queued = true
	w.after(c.lastAnswer-w.now, event{kind: evAnswer, host: o.host, arg: i, gen: c.gen})
}

// An overwritten key and a broken counter, as the model has them.
var (
	aString = redis.Content{Type: "string", Text: "x"}
	aList   = redis.Content{Type: "list", Text: "x"}
)

// execute has Redis carry out an operation.
func (w *world) execute(h *host, o *operation) {
	n := int(o.name)
	w.expire(n)
	name := &w.redis.names[n]
	k := &name.key
	res := &o.res
	before := *k
	c := redis.Command{
		Op: &o.op, Owner: redis.Owner(o.host), Now: w.now,
		Floor: o.floor, Fresh: max(w.time(), o.birth), Expiry: w.counterExpiry, KeepsCounterExpiry: o.op.Behind,
		Denied: redis.Denied{Key: name.refused, Channel: name.muted},
	}
	counterName := &w.redis.names[w.counterOf(n)]
	counter := &counterName.counter
	draws := redis.Judge(&o.op, c.Standing(k)).Draws
	var reply redis.Reply
	switch {
	case name.overwritten:
		overwritten := redis.Key{Owner: redis.NoOwner, ExpireAt: redis.NoExpiry, Other: &aString}
		reply = c.Run(&overwritten, counter, w.channel(n))
	case counterName.broken && draws:
		broken := redis.Counter{Exists: true, ExpireAt: redis.NoExpiry, Other: &aList}
		reply = c.Run(k, &broken, w.channel(n))
		*k = before // without the longer lease, of which the table does not know
	case !name.refused && w.random.oneIn(w.plan.busy):
		reply = redis.Reply{Outcome: locktable.Busy, Code: "BUSY", Listeners: locktable.Uncounted}
	default:
		if draws && !name.refused && counter.HasExpired(w.now) {
			w.loseCounter(w.counterOf(n), redis.Counter{})
			w.check.met[counterExpired]++
		}
		reply = c.Run(k, counter, w.channel(n))
	}
	res.Outcome, res.Msg, res.TTLMS = reply.Outcome, reply.Code, reply.TTLMS
	res.Token, res.Made, res.Listeners = reply.Token, reply.Made, reply.Listeners
	switch {
	case reply.Outcome == locktable.NotALock:
		res.Field, res.Msg = "a string", "it is a string"
	case reply.Outcome == locktable.Other && name.overwritten:
		res.Field = "a string"
	case reply.Outcome == locktable.Other:
		res.Field = ownerField(k.Owner)
	}
	if reply.Change == redis.Remove {
		w.setFree(n)
	}
	if reply.Publication != redis.NotPublished {
		w.publish(n)
	}
	if reply.Change == redis.Write {
		name.natural = 0
		if before.Owner == redis.NoOwner {
			w.checkWakeUp(h, n)
		}
		// A successor will know of it, if its memory does.
		name.ghost = o.settled && (!h.gone || h.keeper.find(n) == nil)
	}
	if reply.Token != 0 {
		knows := o.floor
		if reply.Made {
			knows = o.birth
			w.check.met[birthAbove] += btoi(knows > w.time())
		}
		w.checkDraw(n, reply.Token-uint64(o.op.Reserve)+1, reply.Token, uint64(knows))
	}
	if reply.Counted && w.plan.unknownListener && w.random.oneIn(3) {
		res.Listeners = -1
	}
	if w.trace.on {
		late := ""
		if o.settled {
			late = ", late"
		}
		w.trace.add(w, n, h, "Redis executes %s%s: %s; the key is now %s", opString(o.op), late, resultString(*res), keyString(*k))
	}
	if reply.Change != redis.Nothing {
		w.changed(n)
	}
}

// channel is that on which the release of a lock is published.
func (w *world) channel(n int) *redis.Channel { return &w.redis.channels[w.counterOf(n)] }

// foreignSubscriber is the connection of a foreign client that waits for a lock.
func foreignSubscriber(f *foreigner, n int) int32 { return int32(f.id)<<8 + int32(n) }

func (w *world) endForeignWaits(n int) {
	for i := range w.people {
		w.channel(n).Unsubscribe(foreignSubscriber(&w.people[i], n))
	}
}

// setServer notes whether Redis has a host's subscription of a lock.
func (w *world) setServer(h *host, n int, on bool) {
	h.names[n].server = on
	any := false
	w.sharers(n, func(n int) { any = any || h.names[n].server })
	if any {
		w.channel(n).Subscribe(int32(h.index))
	} else {
		w.channel(n).Unsubscribe(int32(h.index))
	}
}

func (w *world) answered(h *host, e event) {
	o := &w.ops[e.arg]
	o.queued = false
	c := &h.conn
	if o.settled || e.gen != c.gen || c.dead {
		w.recycle(e.arg)
		return
	}
	c.inflight = append(c.inflight[:0], c.inflight[1:]...)
	if o.again {
		o.again = false
		w.write(h, e.arg)
		return
	}
	batch := o.batch
	w.deliver(h, e.arg)
	for w.plan.scripts && len(c.inflight) > 0 {
		i := c.inflight[0]
		if o := &w.ops[i]; o.batch != batch || !o.queued || !o.executed {
			break
		}
		c.inflight = append(c.inflight[:0], c.inflight[1:]...)
		w.deliver(h, i)
	}
	w.input(h)
	if len(c.inflight) == 0 && len(c.queue) > 0 && c.ok {
		for _, i := range c.queue {
			w.write(h, i)
		}
		c.queue = c.queue[:0]
	}
}

// deliver gives the table the one Result of an operation.
func (w *world) deliver(h *host, i int32) {
	o := &w.ops[i]
	o.settled = true
	h.owed--
	h.owedSince = h.clock(w.now)
	res := o.res
	w.checkResult(h, o)
	if w.trace.on {
		w.trace.add(w, int(o.name), h, "result of %s: %s", opString(o.op), resultString(res))
	}
	if hn := &h.names[o.name]; hn.ahead == i {
		hn.ahead = -1
		w.check.met[chasedLate] += btoi(hn.inflight < 0)
	} else {
		hn.inflight = -1
	}
	if res.Outcome == locktable.Done {
		h.names[o.name].unconfirmed = false
	}
	w.recycle(i)
	h.floor.raise(h.clock(w.now), int64(res.Token))
	if c := &h.conn; int64(res.Token) > c.clock.token+(h.clock(w.now)-c.clock.at)/µs+1_000_000 && int64(res.Token) > c.floor {
		w.check.met[floorRaised]++
		c.floor = int64(res.Token)
	}
	h.table.Result(h.clock(w.now), res)
}

func (w *world) notSent(h *host, e event) {
	o := &w.ops[e.arg]
	o.queued = false
	if o.settled { // nobody waits for it any more
		w.recycle(e.arg)
		return
	}
	o.res.Outcome, o.res.Msg = locktable.Unsent, "not sent"
	o.res.Sent = h.clock(w.now)
	w.deliver(h, e.arg)
	w.input(h)
}

// ---- the command connection

// breakConnection cuts the wire. Of what is on its way a first part arrives, and
// the rest gets lost or, when only the host has given up the connection, arrives
// whenever it likes.
func (w *world) breakConnection(h *host, serverDied bool) {
	c := &h.conn
	if !c.ok || c.dead { // broken already
		return
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "the command connection breaks")
	}
	c.dead = true
	c.late = w.plan.lateOps && !serverDied && w.random.oneIn(2)
	c.lateAt = w.now + w.random.magnitude(ms, 10*sec)
	h.trouble = w.now
	arrive := w.random.below(int64(len(c.inflight) + 1))
	for _, i := range c.inflight {
		o := &w.ops[i]
		if o.executed || o.dead {
			continue
		}
		if arrive--; arrive >= 0 && !serverDied {
			continue
		}
		if c.late {
			o.at = max(o.at, c.lateAt)
		} else {
			o.dead = true
		}
	}
	w.after(w.random.magnitude(10*µs, 2*sec), event{kind: evDetect, host: int16(h.index), gen: c.gen})
}

func (w *world) detect(h *host, gen uint32) {
	c := &h.conn
	if h.gone || gen != c.gen || !c.ok {
		return
	}
	w.settle(h)
	c.ok = false
	h.trouble = w.now
	back := w.random.magnitude(5*ms, 5*sec)
	if w.phase != stormy {
		back = w.random.magnitude(5*ms, 100*ms)
	}
	switch w.random.below(3) {
	case 0:
		w.settleLost(h)
		w.settle(h)
		w.down(h)
	case 1:
		w.down(h)
		w.settleLost(h)
	default:
		w.down(h)
		w.after(w.random.below(back), event{kind: evSettle, host: int16(h.index), gen: c.gen})
	}
	w.after(back+2*ms, event{kind: evConnect, host: int16(h.index), gen: c.gen})
}

func (w *world) down(h *host) {
	if w.trace.on {
		w.trace.add(w, -1, h, "down")
	}
	h.up, h.heard = false, true
	h.table.Down(h.clock(w.now), "Redis cannot be reached")
	w.drain(h)
}

// settleLost answers everything that the dead connection will not answer.
func (w *world) settleLost(h *host) {
	c := &h.conn
	if h.gone {
		return
	}
	for len(c.inflight) > 0 {
		i := c.inflight[0]
		c.inflight = append(c.inflight[:0], c.inflight[1:]...)
		o := &w.ops[i]
		sent := o.res.Sent
		w.check.met[leftUnknown] += btoi(o.executed)
		o.res = locktable.Result{Kind: o.op.Kind, Name: o.op.Name, Outcome: locktable.Unknown, Sent: sent, Msg: "connection lost"}
		w.deliver(h, i)
		w.input(h)
	}
	for len(c.queue) > 0 {
		i := c.queue[0]
		c.queue = append(c.queue[:0], c.queue[1:]...)
		o := &w.ops[i]
		o.res.Outcome, o.res.Msg = locktable.Unsent, "connection lost"
		w.deliver(h, i)
		w.input(h)
	}
}

func (w *world) connect(h *host, gen uint32) {
	c := &h.conn
	if h.gone || gen != c.gen || c.ok {
		return
	}
	if w.redis.down {
		if !h.heard {
			w.down(h)
		}
		w.after(w.random.between(10*ms, 300*ms), event{kind: evConnect, host: int16(h.index), gen: gen})
		return
	}
	if w.plan.killsOld {
		for i := range w.ops {
			if o := &w.ops[i]; o.queued && !o.executed && o.host == int16(h.index) {
				o.dead = true
			}
		}
	}
	w.settleLost(h) // if it has not been done yet
	c.gen++
	h.floor.raise(h.clock(w.now), w.time())
	c.clock = tokenFloor{w.time(), h.clock(w.now)}
	c.floor = max(w.time(), h.floor.now(h.clock(w.now)))
	c.nextRun = w.redis.run
	w.after(w.lag(), event{kind: evUp, host: int16(h.index), gen: c.gen})
}

func (w *world) connected(h *host, e event) {
	c := &h.conn
	if h.gone || e.gen != c.gen {
		return
	}
	if w.redis.down || w.redis.run != c.nextRun {
		w.after(w.random.between(10*ms, 300*ms), event{kind: evConnect, host: int16(h.index), gen: c.gen})
		return
	}
	w.settle(h)
	dataLost := c.run != 0 && c.run != c.nextRun
	c.run = c.nextRun // kept when the table's holds are known to be in doubt
	c.ok, c.dead = true, false
	c.lastExec, c.lastAnswer = w.now, w.now
	h.up, h.heard = true, true
	h.trouble = w.now
	if w.trace.on {
		w.trace.add(w, -1, h, "up, dataLost=%v", dataLost)
	}
	if dataLost {
		h.dataLostAt = w.now
		for n := range h.names {
			h.names[n].ranges = [len(h.names[n].ranges)]tokenRange{}
		}
	}
	h.table.Up(h.clock(w.now), dataLost)
	w.drain(h)
	w.checkBack(h)
	if dataLost && w.phase == stormy && w.plan.crashes > 0 && w.random.oneIn(4) {
		w.check.met[killedInDoubt]++
		w.crash(h)
	}
}

// ---- the subscription

type subscription struct {
	gen      uint32
	ok       bool
	lastUp   int64 // what was sent last reaches Redis then
	lastDown int64
}

func (w *world) subscribe(h *host, n int) {
	hn := &h.names[n]
	hn.want, hn.acked, hn.deafAt = true, false, 0
	if h.sub.ok {
		w.sendSubscribe(h, n, evSub)
	}
}

func (w *world) unsubscribe(h *host, n int) {
	hn := &h.names[n]
	hn.want, hn.acked = false, false
	if h.sub.ok {
		w.sendSubscribe(h, n, evUnsub)
	}
}

func (w *world) sendSubscribe(h *host, n int, kind eventKind) {
	s := &h.sub
	s.lastUp = max(s.lastUp, w.now+w.lag())
	w.after(s.lastUp-w.now, event{kind: kind, host: int16(h.index), name: int8(n), gen: s.gen})
}

func (w *world) subscribeArrives(h *host, e event) {
	if e.gen != h.sub.gen {
		return
	}
	w.setServer(h, int(e.name), !w.redis.names[e.name].muted && !h.deaf)
	h.sub.lastDown = max(h.sub.lastDown, w.now+w.lag())
	w.after(h.sub.lastDown-w.now, event{kind: evSubAck, host: e.host, name: e.name, gen: e.gen})
}

func (w *world) unsubscribeArrives(h *host, e event) {
	if e.gen == h.sub.gen {
		w.setServer(h, int(e.name), false)
	}
}

func (w *world) subscribed(h *host, e event) {
	hn := &h.names[e.name]
	if e.gen != h.sub.gen || !hn.want || h.gone {
		return
	}
	if w.redis.names[e.name].muted || h.deaf {
		hn.deafAt = w.now
		if w.trace.on {
			w.trace.add(w, int(e.name), h, "may not subscribe")
		}
		h.table.Unsubscribed(h.clock(w.now), lockNames[e.name])
		w.input(h)
		return
	}
	hn.acked = true
	if w.trace.on {
		w.trace.add(w, int(e.name), h, "subscribed")
	}
	h.table.Subscribed(h.clock(w.now), lockNames[e.name])
	w.input(h)
}

func (w *world) publish(name int) {
	for _, h := range w.hosts {
		lost := w.random.oneIn(w.plan.lostMessages)
		w.sharers(name, func(n int) {
			if !h.names[n].server || lost {
				return
			}
			h.sub.lastDown = max(h.sub.lastDown, w.now+w.lag())
			w.after(h.sub.lastDown-w.now, event{kind: evMessage, host: int16(h.index), name: int8(n), gen: h.sub.gen})
		})
	}
}

func (w *world) message(h *host, e event) {
	if e.gen != h.sub.gen || h.gone {
		return
	}
	if !h.names[e.name].want && w.random.oneIn(2) {
		return
	}
	if w.trace.on {
		w.trace.add(w, int(e.name), h, "message")
	}
	w.noteMessage(h, int(e.name))
	h.table.Message(h.clock(w.now), lockNames[e.name])
	w.input(h)
}

// breakSubscription ends the other connection: what is on its way is lost, and
// until the store notices so is what is published.
func (w *world) breakSubscription(h *host) {
	s := &h.sub
	if !s.ok {
		return
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "the subscription breaks")
	}
	s.gen++
	for n := range w.plan.names {
		w.setServer(h, n, false)
	}
	w.after(w.random.magnitude(10*µs, 2*sec), event{kind: evDeaf, host: int16(h.index), gen: s.gen})
}

func (w *world) deaf(h *host, gen uint32) {
	s := &h.sub
	if h.gone || gen != s.gen || !s.ok {
		return
	}
	s.ok = false
	for n := range w.plan.names {
		hn := &h.names[n]
		if !hn.want {
			continue
		}
		hn.acked, hn.deafAt = false, w.now
		if w.trace.on {
			w.trace.add(w, n, h, "unsubscribed")
		}
		h.table.Unsubscribed(h.clock(w.now), lockNames[n])
		w.input(h)
	}
	w.after(w.random.magnitude(5*ms, 3*sec), event{kind: evListen, host: int16(h.index), gen: gen})
}

func (w *world) listen(h *host, gen uint32) {
	s := &h.sub
	if h.gone || gen != s.gen || s.ok {
		return
	}
	if w.redis.down {
		w.after(w.random.between(10*ms, 300*ms), event{kind: evListen, host: int16(h.index), gen: gen})
		return
	}
	s.ok = true
	s.gen++
	s.lastUp, s.lastDown = w.now, w.now
	for n := range w.plan.names {
		if h.names[n].want {
			w.sendSubscribe(h, n, evSub)
		}
	}
}
