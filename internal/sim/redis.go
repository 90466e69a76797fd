package sim

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The model of Redis: what the scripts do to a lock's key and its token counter,
// the channels, and the two connections that every host has.

const noExpiry = int64(1 << 62)

// key is a lock's hash, which has at most one field.
type key struct {
	owner    int16 // index of a host, foreignID and up, or -1: no key
	count    uint32
	num      uint64
	expireAt int64
	natural  int64 // when it would expire, had Redis's clock not jumped; 0: it did not
}

type counter struct {
	exists    bool
	permanent bool // came without an expiry
	value     uint64
	expireAt  int64
}

type redisName struct {
	key     key
	counter counter
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

	foreignWaits [2]bool // foreign clients that listen on the channel
}

type redisServer struct {
	down     bool
	run      int   // run id
	skew     int64 // of its clock
	fell     bool  // its clock went backwards once
	jumped   int64 // by how much in all
	names    [maxNames]redisName
	snapshot [maxNames]redisName
}

func (r *redisServer) init() {
	r.run = 1
	for n := range r.names {
		r.names[n].key.owner = -1
		r.names[n].silent = true
	}
	r.snapshot = r.names
}

// time is TIME, in µs.
func (w *world) time() uint64 { return uint64(1_700_000_000_000_000 + (w.now+w.redis.skew)/µs) }

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
		if k := &name.key; k.owner >= 0 && k.expireAt < noExpiry {
			if d > 0 && k.owner < foreignID {
				k.natural = max(k.natural, k.expireAt)
				hn := &w.hosts[k.owner].names[n]
				hn.excuse = max(hn.excuse, k.expireAt)
				name.lostAt = w.now
			}
			k.expireAt = max(k.expireAt-d, w.now)
		}
		name.counter.expireAt -= d
		if k := &r.snapshot[n].key; k.owner >= 0 && k.expireAt < noExpiry {
			k.expireAt -= d
		}
		r.snapshot[n].counter.expireAt -= d
	}
}

const counterExpiry = 7 * 24 * 3600 * sec

// draw takes n tokens from the counter of a lock and returns the last. A look refreshes
// the counter's expiry.
func (w *world) draw(name int, n, floor, birth uint64, look bool) uint64 {
	name = w.counterOf(name)
	c := &w.redis.names[name].counter
	if c.exists && !c.permanent && w.now >= c.expireAt {
		w.loseCounter(name, counter{})
		w.check.met[counterExpired]++
	}
	return c.draw(w.now, n, max(w.time(), birth), floor, w.counterExpiry, look)
}

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
	token uint64
	at    int64 // host clock; 0: none is known
}

func (f tokenFloor) now(clock int64) uint64 {
	if f.at == 0 {
		return 0
	}
	elapsed := uint64((clock - f.at) / µs)
	return f.token + elapsed - elapsed/100 - min(elapsed, 1)
}

func (f *tokenFloor) raise(clock int64, token uint64) {
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

// draw is what take does to a counter that has not expired. A new one begins at
// fresh, and so does one that is behind the floor, which keeps its expiry.
func (c *counter) draw(now int64, n, fresh, floor uint64, expiry int64, look bool) uint64 {
	if !c.exists {
		*c = counter{exists: true, value: fresh + n, expireAt: now + expiry}
		return c.value
	}
	if c.value += n; c.value < floor+n {
		c.value = fresh + n
		return c.value
	}
	if look && !c.permanent && c.expireAt-now < expiry/14*13 {
		c.expireAt = now + expiry
	}
	return c.value
}

// loseCounter has the counter of a lock be gone, or be what it was before.
func (w *world) loseCounter(name int, c counter) {
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
	if !c.exists {
		*c = counter{exists: true, permanent: true}
	}
	c.value++
}

// expire frees a key whose time has come.
func (w *world) expire(name int) {
	n := &w.redis.names[name]
	if n.key.owner >= 0 && w.now >= n.key.expireAt {
		n.freedAt, n.silent = n.key.expireAt, true
		if n.key.natural > n.key.expireAt {
			n.lostAt = n.key.expireAt
			w.check.met[expiredEarly]++
		}
		n.key = key{owner: -1}
		n.ghost = false
	}
}

func (w *world) setFree(name int) {
	n := &w.redis.names[name]
	n.freedAt, n.silent = w.now, false
	n.key = key{owner: -1}
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
	if k := &n.key; k.owner >= 0 {
		if int(k.owner) < len(w.hosts) {
			hn := &w.hosts[k.owner].names[name]
			hn.excuse = max(hn.excuse, k.expireAt)
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
	mode := w.random.upto(3)
	if w.trace.on {
		w.trace.add(w, -1, nil, "Redis restarts, its data is %s", []string{"kept", "lost", "as it was some time ago"}[mode])
	}
	for n := range w.plan.names {
		name := &r.names[n]
		name.foreignWaits = [2]bool{}
		switch mode {
		case 1:
			w.destroy(n, "lost")
			w.loseCounter(n, counter{})
		case 2:
			old := &r.snapshot[n]
			if name.key != old.key {
				w.destroy(n, "replaced by an older one")
				name.key, name.ghost = old.key, true
				w.expire(n)
				w.changed(n)
			}
			name.lostAt = w.now
			w.loseCounter(n, old.counter)
		}
	}
	r.snapshot = r.names
	w.after(w.random.wide(ms, 3*sec), event{kind: evServerUp})
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
	floor    uint64
	birth    uint64 // a new counter begins above it
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
	floor      uint64
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
		return w.random.wide(w.plan.latency, w.plan.slow)
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
		w.after(w.random.upto(ms), event{kind: evNotSent, host: o.host, arg: i})
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

// run is what a script does to a key that has not expired, for a host, and what
// it answers.
func (k *key) run(now int64, host int16, op *locktable.Op) locktable.Outcome {
	ours := k.owner == host && k.num <= op.Num
	switch {
	case op.Kind == locktable.Drop:
		if ours {
			*k = key{owner: -1}
		}
		return locktable.Done
	case k.owner < 0 && (op.Kind == locktable.Keep || op.Kind == locktable.Check || op.Held):
		return locktable.Missing
	case k.owner >= 0 && !ours:
		return locktable.Other
	case op.Kind == locktable.Check && (k.num != op.Num || k.count != op.Count):
		return locktable.Differs
	case op.Kind == locktable.Check:
		return locktable.Done
	}
	*k = key{owner: host, num: op.Num, count: op.Count, expireAt: now + int64(op.LeaseMS)*ms}
	return locktable.Done
}

// ttl is its PTTL.
func (k *key) ttl(now int64) int64 {
	if k.expireAt == noExpiry {
		return -1
	}
	return (k.expireAt - now) / ms
}

// execute has Redis carry out an operation.
func (w *world) execute(h *host, o *operation) {
	n := int(o.name)
	w.expire(n)
	name := &w.redis.names[n]
	k := &name.key
	res := &o.res
	res.Listeners = locktable.Uncounted
	before := *k
	switch {
	case name.refused:
		res.Outcome, res.Msg = locktable.Refused, "NOPERM"
	case name.overwritten && (o.op.Kind == locktable.Keep || o.op.Kind == locktable.Check):
		res.Outcome, res.Field, res.TTLMS = locktable.Other, "a string", -1
	case name.overwritten:
		res.Outcome, res.Field, res.Msg = locktable.NotALock, "a string", "it is a string"
	case w.redis.names[w.counterOf(n)].broken && o.op.Reserve > 0 && (k.owner < 0 && !o.op.Held || k.owner == o.host && k.num <= o.op.Num):
		res.Outcome, res.Msg = locktable.Refused, "WRONGTYPE"
	case w.random.oneIn(w.plan.busy):
		res.Outcome, res.Msg = locktable.Busy, "BUSY"
	default:
		res.Outcome = k.run(w.now, o.host, &o.op)
		switch {
		case o.op.Kind == locktable.Drop:
			if *k != before {
				w.setFree(n)
			}
			if k.owner < 0 {
				w.publish(n)
				res.Listeners = w.heard(n)
			}
		case res.Outcome == locktable.Other:
			res.Field = ownerField(k.owner)
			res.TTLMS = k.ttl(w.now)
			if o.op.Kind == locktable.Take {
				res.Listeners = w.listeners(n)
			}
		case res.Outcome == locktable.Done && o.op.Kind != locktable.Check:
			if before.owner < 0 {
				w.checkWakeUp(h, n)
			}
			// A successor will know of it, if its memory does.
			name.ghost = o.settled && (!h.gone || h.keeper.find(n) == nil)
			if o.op.Kind == locktable.Take {
				if o.op.Reserve > 0 {
					knows := o.floor
					if c := &w.redis.names[w.counterOf(n)].counter; !c.exists || !c.permanent && w.now >= c.expireAt {
						knows = o.birth
						res.Made = true
						w.check.met[birthAbove] += btoi(knows > w.time())
					}
					res.Token = w.draw(n, uint64(o.op.Reserve), o.floor, o.birth, !o.op.Behind)
					w.checkDraw(n, res.Token-uint64(o.op.Reserve)+1, res.Token, knows)
				}
				if o.op.Reserve != 1 || before.owner >= 0 {
					res.Listeners = w.listeners(n)
				}
			}
		}
	}
	if w.trace.on {
		late := ""
		if o.settled {
			late = ", late"
		}
		w.trace.add(w, n, h, "Redis executes %s%s: %s; the key is now %s", opString(o.op), late, resultString(*res), keyString(*k))
	}
	if *k != before {
		w.changed(n)
	}
}

// heard is how many listen, as a release finds out that was just published.
func (w *world) heard(n int) int32 {
	switch {
	case w.redis.names[n].muted:
		return -1
	case w.ears(n) == 0:
		return 0
	}
	return w.listeners(n)
}

func (w *world) listeners(n int) int32 {
	if w.plan.unknownListener && w.random.oneIn(3) {
		return -1
	}
	return w.ears(n)
}

// ears is how many listen.
func (w *world) ears(n int) int32 {
	count := 0
	for _, h := range w.hosts {
		server := false
		w.sharers(n, func(n int) { server = server || h.names[n].server })
		count += btoi(server)
	}
	w.sharers(n, func(n int) {
		for _, waits := range w.redis.names[n].foreignWaits {
			count += btoi(waits)
		}
	})
	return int32(count)
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
	h.floor.raise(h.clock(w.now), res.Token)
	if c := &h.conn; res.Token > c.clock.token+uint64((h.clock(w.now)-c.clock.at)/µs)+1_000_000 && res.Token > c.floor {
		w.check.met[floorRaised]++
		c.floor = res.Token
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
	c.lateAt = w.now + w.random.wide(ms, 10*sec)
	h.trouble = w.now
	arrive := w.random.upto(int64(len(c.inflight) + 1))
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
	w.after(w.random.wide(10*µs, 2*sec), event{kind: evDetect, host: int16(h.index), gen: c.gen})
}

func (w *world) detect(h *host, gen uint32) {
	c := &h.conn
	if h.gone || gen != c.gen || !c.ok {
		return
	}
	w.settle(h)
	c.ok = false
	h.trouble = w.now
	back := w.random.wide(5*ms, 5*sec)
	if w.phase != stormy {
		back = w.random.wide(5*ms, 100*ms)
	}
	switch w.random.upto(3) {
	case 0:
		w.settleLost(h)
		w.settle(h)
		w.down(h)
	case 1:
		w.down(h)
		w.settleLost(h)
	default:
		w.down(h)
		w.after(w.random.upto(back), event{kind: evSettle, host: int16(h.index), gen: c.gen})
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
	h.names[e.name].server = !w.redis.names[e.name].muted && !h.deaf
	h.sub.lastDown = max(h.sub.lastDown, w.now+w.lag())
	w.after(h.sub.lastDown-w.now, event{kind: evSubAck, host: e.host, name: e.name, gen: e.gen})
}

func (w *world) unsubscribeArrives(h *host, e event) {
	if e.gen == h.sub.gen {
		h.names[e.name].server = false
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
	for n := range h.names {
		h.names[n].server = false
	}
	w.after(w.random.wide(10*µs, 2*sec), event{kind: evDeaf, host: int16(h.index), gen: s.gen})
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
	w.after(w.random.wide(5*ms, 3*sec), event{kind: evListen, host: int16(h.index), gen: gen})
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
