package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// The Redis of a fleet: one core, which reads its connections in turn, and is busy for as
// long as was measured. A Cluster has one for each master.

// What things cost Redis, ns of one core, over loopback, where a write to a socket pays
// for its receipt too: go test ./sidecar/store -run '^$' -bench BenchmarkRedis. Scripts
// by their instructions (98,600 are 8.8 µs), which no neighbour on the machine changes; what
// they do with queues by CPU time: one script that passes a lock on and queues again, with
// its message, is 40 to 50 µs (BenchmarkRedisQueue), here 44. As two scripts it is 53.5. A script that
// gives back a permit, for which a host waits, and one that queues again are 70 µs with the message
// (BenchmarkRedisPermitsQueue).
const (
	costArrival   = 6500   // one connection has something: poll, read, write
	costRun       = 3000   // a run of takes and drops
	costTake      = 2800   // and draws a token
	costAssert    = 3000   // take that draws none, and counts the subscribers
	costOther     = 3000   // take that finds another owner, and is not queued
	costEnqueue   = 12500  // take that finds another owner, and puts a ticket into the queue
	costAsk       = 11500  // take that finds another owner, and the ticket in the queue
	costDrop      = 1500   // of a lock that becomes free, without the subscribers
	costPass      = 17000  // drop that passes the lock on, without the message
	costSkip      = 6000   // and each ticket whose sidecar cannot receive that
	costRenew     = 2200   // a run of renewals
	costKey       = 1600   // and each lock
	costPermits   = 3000   // a run of operations of semaphores
	costPermit    = 3000   // and one that gives or takes back permits,
	costPlace     = 21000  // or that gives a host a place, or finds it
	costAdmit     = 22000  // and each host that is admitted, without the message
	costListener  = 5000   // of each connection that a message goes to
	costSubscribe = 1500   // a SUBSCRIBE or UNSUBSCRIBE
	costConnect   = 139000 // connection, greeting, probe, own channel

	redisReads = 16 << 10 // bytes of one connection that Redis reads before it looks at the next
)

// fleetNode is one Redis.
type fleetNode struct {
	readQueue []int16 // hosts whose connections it will read, in that order
	busy      bool
	down      bool
	nodeCount
}

// nodeCount is what is counted of a node since the last Reset, ns of its core.
type nodeCount struct {
	served    int64
	questions int64 // of these: of hosts that ask which master has which slot
	connects  int64 // and of hosts that connect
	renewed   int   // locks
	longest   int64 // that a batch was in Redis
}

// fleetLock is what Redis has under the names of a lock.
type fleetLock struct {
	key     redis.Key
	counter redis.Counter
	channel redis.Channel // subscribers: hosts
	queue   redis.Queue

	semaphore *redis.Semaphore // in place of key and queue; nil: it is a lock
}

func (l *fleetLock) reset() {
	isLock := l.semaphore == nil
	if *l = (fleetLock{key: redis.NoKey}); !isLock {
		l.semaphore = new(redis.Semaphore)
	}
}

// restart is a restart of Redis, with the data or without.
func (l *fleetLock) restart(lost bool) {
	l.channel = redis.Channel{}
	if lost {
		l.reset()
	}
}

// disconnect has Redis close a connection of a host.
func (f *Fleet) disconnect(host int16, shard redisop.Shard) {
	c := &f.hosts[host].conns[shard]
	c.gen++
	c.listening, c.queued = false, false
	for _, lock := range c.subscribes {
		f.locks[lock].channel.Unsubscribe(int32(host))
	}
}

// enqueue has Redis read a connection of a host when it is its turn.
func (f *Fleet) enqueue(host int16, shard redisop.Shard) {
	if c := &f.hosts[host].conns[shard]; !c.queued {
		c.queued = true
		n := &f.nodes[shard]
		n.readQueue = append(n.readQueue, host)
	}
	f.serve(shard)
}

// unfinished is the oldest batch of the connection that Redis has and has not executed, or nil.
func (c *fleetConn) unfinished() *batch {
	for _, b := range c.inFlight {
		if b.arrived != 0 && !b.isExecuted() {
			return b
		}
	}
	return nil
}

// serve has Redis read what one connection has for it, and execute it. The replies leave
// when that is done.
func (f *Fleet) serve(shard redisop.Shard) {
	n := &f.nodes[shard]
	if n.busy || n.down || len(n.readQueue) == 0 {
		return
	}
	host := n.readQueue[0]
	n.readQueue = n.readQueue[1:]
	at := f.now
	f.read(host, n, &f.hosts[host].conns[shard], &at)
	n.served += at - f.now
	f.served += at - f.now
	n.busy = true
	f.after(at-f.now, event{kind: fleetDone, shard: int8(shard)})
}

// read reads a connection of a host, and executes what it has.
func (f *Fleet) read(host int16, n *fleetNode, c *fleetConn, at *int64) {
	*at += costArrival
	if c.connecting {
		c.connecting, c.listening = false, true
		cost := int64(costConnect)
		if f.plan.Masters > 0 {
			cost = costClusterConnect
		}
		*at += cost
		n.connects += cost
		c.lastIn = max(c.lastIn, *at+f.lag(f.hosts[host]))
		f.after(c.lastIn-f.now, event{kind: fleetUp, host: host, gen: c.gen, shard: int8(c.shard)})
	}
	replies := 0
	b := c.unfinished()
	for read := 0; read < redisReads && b != nil; {
		read += f.execute(host, c, b, at)
		if b.isExecuted() {
			n.longest = max(n.longest, *at-b.arrived)
			replies++
			b = c.unfinished()
		}
	}
	for range replies {
		f.reply(host, c.shard, *at, received{})
	}
	if c.queued = b != nil; c.queued {
		n.readQueue = append(n.readQueue, host)
	}
}

// reply writes to the connection of a host, at that time.
func (f *Fleet) reply(host int16, shard redisop.Shard, at int64, r received) {
	h := f.hosts[host]
	if h.dead {
		return
	}
	c := &h.conns[shard]
	c.incoming = append(c.incoming, r)
	c.lastIn = max(c.lastIn, at+f.lag(h))
	f.after(c.lastIn-f.now, event{kind: fleetReceive, host: host, gen: c.gen, shard: int8(shard)})
}

// execute executes the next command of a batch, one script or a subscription. It moves the
// time on by what that costs, and returns the length of the command.
func (f *Fleet) execute(host int16, c *fleetConn, b *batch, at *int64) int {
	if b.isControl {
		*at += b.cost
		b.executed = true
		if b.isQuestion {
			b.answer = f.topology
			f.asks++
			f.nodes[c.shard].questions += costArrival + b.cost
		}
		return 14
	}
	if b.subscription != 0 {
		*at += costSubscribe
		if channel := &f.locks[b.lock].channel; b.subscription == locktable.Subscribe {
			channel.Subscribe(int32(host))
		} else {
			channel.Unsubscribe(int32(host))
		}
		b.executed = true
		return 80
	}
	if f.plan.Masters > 0 {
		return f.executeSlot(host, c, b, at)
	}
	ops := b.ops[len(b.results):]
	script, n := wire.BatchPrefix(ops, nil)
	ops = ops[:n]
	f.ran++
	if script == wire.Renew {
		*at += costRenew
		for i := range ops {
			*at += costKey
			reply := f.run(host, &ops[i], nil, &redis.Reply{}, *at)
			b.addResult(&ops[i], &reply)
		}
		f.bytes += int64(130 + 37*n)
		return 126 + 33*n
	}
	if script == wire.Permits {
		*at += costPermits
		for i := range ops {
			op := &ops[i]
			reply := f.runPermits(host, op, *at)
			*at += f.costOfPermits(&reply)
			f.publish(c.shard, op, &reply, at)
			b.addResult(op, &reply)
		}
		f.bytes += int64(170 + 83*n)
		return 150 + 71*n
	}
	*at += costRun
	var previous redis.Reply
	for i := range ops {
		op := &ops[i]
		var next *redisop.Op // the Take that follows this Drop in the same script
		if i+1 < n && wire.IsPair(op, &ops[i+1]) {
			next = &ops[i+1]
		}
		dropped := redis.Reply{}
		if op.Has(redisop.AfterPendingDrop) {
			dropped = previous
		}
		reply := f.run(host, op, next, &dropped, *at)
		previous = reply
		*at += f.cost(op, &reply)
		f.publish(c.shard, op, &reply, at)
		b.addResult(op, &reply)
	}
	f.bytes += int64(154 + 83*n)
	return 150 + 71*n
}

// cost is what a Take or a Drop costs, without what it publishes.
func (f *Fleet) cost(op *redisop.Op, reply *redis.Reply) int64 {
	skipped := int64(0)
	for i := range reply.Sent {
		skipped += int64(btoi(reply.Sent[i].Reached == 0)) * costSkip
	}
	switch {
	case op.Kind == redisop.Drop && reply.Passed:
		return costPass + skipped
	case op.Kind == redisop.Take && reply.Change == redis.Pass:
		return costEnqueue + costPass + skipped
	case op.Kind == redisop.Drop:
		return costDrop + skipped
	case reply.Outcome == redisop.HeldByOther && reply.Ticket == 0:
		f.bytes += 53
		return costOther
	case reply.Outcome == redisop.HeldByOther && reply.Ticket == op.Ticket:
		f.bytes += 53
		return costAsk
	case reply.Outcome == redisop.HeldByOther:
		f.bytes += 53
		return costEnqueue
	case op.Reserve == 0:
		return costAssert
	}
	return costTake
}

// costOfPermits is what an operation of a semaphore costs, without the messages.
func (f *Fleet) costOfPermits(reply *redis.Reply) (cost int64) {
	if cost = costPermit; reply.Outcome == redisop.HeldByOther {
		f.bytes += 53
		cost = costPlace
	}
	for i := range reply.Sent {
		cost += int64(btoi(reply.Sent[i].Kind == redisop.Admitted)) * costAdmit
	}
	return cost
}

func (b *batch) addResult(op *redisop.Op, reply *redis.Reply) {
	res := redisop.Result{
		Kind: op.Kind, Name: op.Name, Shard: op.Shard, Outcome: reply.Outcome, Sent: b.sent,
		Token: reply.Token, Made: reply.Made, Listeners: reply.Listeners, TTLMS: reply.TTLMS,
		IsQueued: reply.IsQueued, Rank: reply.Rank, Ticket: reply.Ticket, Recall: reply.Recall,
		Waiting: reply.Waiting, Passed: reply.Passed, Paused: reply.Paused, LeftFree: reply.LeftFree,
		Permits: reply.Permits, Arrived: reply.Arrived,
	}
	if res.Outcome == redisop.HeldByOther && op.Of == redisop.KindLock {
		res.Field = uuidOf(1, false) + ":1" // of another host
	}
	b.results = append(b.results, res)
}

// run is what the script does to one lock. next is the Take that follows a Drop in the same
// script; dropped is the reply to the Drop before a Take in it.
func (f *Fleet) run(host int16, op, next *redisop.Op, dropped *redis.Reply, at int64) redis.Reply {
	l := &f.locks[fleetIndex(op.Name)]
	l.key.Expire(at)
	wasFree := !l.key.Exists()
	c := redis.Command{
		Op: op, Owner: redis.Owner(host), Now: at,
		Floor: 1, Fresh: 1, Expiry: counterExpiry,
		Denied: redis.Denied{Queue: f.plan.DenyQueues},
		Queue:  &l.queue, Clock: at / µs, Receivers: f.receivers, Next: next, PassedOn: dropped.Passed,
	}
	reply := c.Run(&l.key, &l.counter, &l.channel)
	switch {
	case reply.Change == redis.Pass:
		f.passed++
		f.onCame(f.hosts[l.key.Owner])
	case op.Kind == redisop.Take && reply.Outcome == redisop.Done && wasFree:
		f.onCame(f.hosts[host])
	case op.Kind == redisop.Take && reply.Outcome != redisop.Done:
		f.asked += btoi(op.Ticket != 0)
		if h := f.hosts[host]; reply.Ticket != 0 && !h.stands {
			h.stands, h.standsAt = true, f.came
		}
	}
	return reply
}

// runPermits is what the script does to one semaphore.
func (f *Fleet) runPermits(host int16, op *redisop.Op, at int64) redis.Reply {
	c := redis.Command{Op: op, Owner: redis.Owner(host), Now: at, Fresh: 1, Clock: at / µs, Receivers: f.receivers}
	reply := c.RunPermits(f.locks[fleetIndex(op.Name)].semaphore)
	f.asked += btoi(op.Ticket != 0 && reply.Outcome == redisop.HeldByOther)
	return reply
}

// onCame notes that Redis gave the lock to a host.
func (f *Fleet) onCame(h *fleetHost) {
	if h.stands {
		h.passedOver = max(h.passedOver, f.came-h.standsAt)
		h.stands = false
	}
	f.came++
}

// receivers is how many connections receive what is published to the sidecar of a host.
func (f *Fleet) receivers(host redis.Owner) int32 {
	return int32(btoi(f.hosts[host].conns[0].listening))
}

// publish writes what an operation publishes to one connection after the other. Of the
// subscribers of a lock the host that subscribed last comes first, as in Redis 7.
func (f *Fleet) publish(shard redisop.Shard, op *redisop.Op, reply *redis.Reply, at *int64) {
	if reply.Publication == redis.Published && reply.Listeners.MayExist() {
		m := redisop.Message{Kind: redisop.Unlocked, Name: op.Name}
		for _, host := range slices.Backward(f.locks[fleetIndex(op.Name)].channel.Subscribers) {
			*at += costListener
			f.reply(int16(host), shard, *at, received{true, m})
		}
	}
	for i := range reply.Sent {
		if m := &reply.Sent[i]; m.Reached > 0 {
			*at += costListener
			f.bytes += 150
			f.reply(int16(m.To), shard, *at, received{true, m.Message})
		}
	}
}

// count counts what a batch has for Redis.
func (f *Fleet) count(b *batch) {
	at := int((f.now - f.since) / fleetBucket)
	for len(f.load) <= at {
		f.load, f.scripts = append(f.load, 0), append(f.scripts, 0)
	}
	f.load[at] += len(b.ops)
	if f.plan.Masters > 0 {
		return // executeSlot counts scripts
	}
	for left := b.ops; len(left) > 0; {
		script, n := wire.BatchPrefix(left, nil)
		if script == wire.Renew {
			f.renewalScripts++
			f.renewed += n
		}
		f.scripts[at]++
		left = left[n:]
	}
}
