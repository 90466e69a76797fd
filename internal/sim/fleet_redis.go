package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The Redis of a fleet: one core, which reads its connections in turn, and is busy for as
// long as was measured.

// What things cost Redis, ns of one core, over loopback, where a write to a socket pays
// for its receipt too: go test ./sidecar/store -run '^$' -bench BenchmarkRedis. Scripts
// by their instructions (98,600 are 8.8 µs), which no neighbour on the machine changes; what
// they do with queues by CPU time: one script that passes a lock on and queues again, with
// its message, is 40 to 50 µs (BenchmarkRedisQueue), here 44. As two scripts it is 53.5.
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
	costListener  = 5000   // of each connection that a message goes to
	costSubscribe = 1500   // a SUBSCRIBE or UNSUBSCRIBE
	costConnect   = 139000 // connection, greeting, probe, own channel

	redisReads = 16 << 10 // bytes of one connection that Redis reads before it looks at the next
)

// fleetLock is what Redis has under the names of a lock.
type fleetLock struct {
	key     redis.Key
	counter redis.Counter
	channel redis.Channel // subscribers: hosts
	queue   redis.Queue
}

func (l *fleetLock) reset() { *l = fleetLock{key: redis.NoKey} }

// restart is a restart of Redis, with the data or without.
func (l *fleetLock) restart(lost bool) {
	l.channel = redis.Channel{}
	if lost {
		l.reset()
	}
}

// disconnect has Redis close the connection of a host.
func (f *Fleet) disconnect(host int16) {
	h := f.hosts[host]
	h.gen++
	h.listening, h.queued = false, false
	for _, lock := range h.subscribes {
		f.locks[lock].channel.Unsubscribe(int32(host))
	}
}

// enqueue has Redis read the connection of a host when it is its turn.
func (f *Fleet) enqueue(host int16) {
	if h := f.hosts[host]; !h.queued {
		h.queued = true
		f.readQueue = append(f.readQueue, host)
	}
	f.serve()
}

// unfinished is the oldest batch of the host that Redis has and has not executed, or nil.
func (h *fleetHost) unfinished() *batch {
	for _, b := range h.inFlight {
		if b.arrived && !b.isExecuted() {
			return b
		}
	}
	return nil
}

// serve has Redis read what one connection has for it, and execute it. The replies leave
// when that is done.
func (f *Fleet) serve() {
	if f.busy || len(f.readQueue) == 0 {
		return
	}
	host := f.readQueue[0]
	f.readQueue = f.readQueue[1:]
	h := f.hosts[host]
	at := f.now + costArrival
	if h.connecting {
		h.connecting, h.listening = false, true
		at += costConnect
		h.lastIn = max(h.lastIn, at+f.lag(h))
		f.after(h.lastIn-f.now, event{kind: fleetUp, host: host, gen: h.gen})
	}
	replies := 0
	b := h.unfinished()
	for read := 0; read < redisReads && b != nil; {
		read += f.execute(host, b, &at)
		if b.isExecuted() {
			replies++
			b = h.unfinished()
		}
	}
	for range replies {
		f.reply(host, at, received{})
	}
	if h.queued = b != nil; h.queued {
		f.readQueue = append(f.readQueue, host)
	}
	f.served += at - f.now
	f.busy = true
	f.after(at-f.now, event{kind: fleetDone})
}

// reply writes to the connection of a host, at that time.
func (f *Fleet) reply(host int16, at int64, r received) {
	h := f.hosts[host]
	if h.dead {
		return
	}
	h.incoming = append(h.incoming, r)
	h.lastIn = max(h.lastIn, at+f.lag(h))
	f.after(h.lastIn-f.now, event{kind: fleetReceive, host: host, gen: h.gen})
}

// execute executes the next command of a batch, one script or a subscription. It moves the
// time on by what that costs, and returns the length of the command.
func (f *Fleet) execute(host int16, b *batch, at *int64) int {
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
	first := &b.ops[len(b.results)]
	f.ran++
	if first.Kind == redisop.Renew {
		*at += costRenew
		n := 0
		for n < storeKeys && len(b.results) < len(b.ops) && b.ops[len(b.results)].Kind == redisop.Renew {
			*at += costKey
			op := &b.ops[len(b.results)]
			reply := f.run(host, op, nil, &redis.Reply{}, *at)
			b.addResult(op, &reply)
			n++
		}
		f.bytes += int64(130 + 37*n)
		return 126 + 33*n
	}
	*at += costRun
	n := 0
	var previous redis.Reply
	for n < storeKeys && len(b.results) < len(b.ops) && b.ops[len(b.results)].Kind != redisop.Renew {
		op := &b.ops[len(b.results)]
		var next *redisop.Op // the Take that follows this Drop in the same script
		if i := len(b.results) + 1; n+1 < storeKeys && i < len(b.ops) && b.ops[i].AfterPendingDrop && b.ops[i].Name == op.Name {
			next = &b.ops[i]
		}
		dropped := redis.Reply{}
		if op.AfterPendingDrop {
			dropped = previous
		}
		reply := f.run(host, op, next, &dropped, *at)
		previous = reply
		*at += f.cost(op, &reply)
		f.publish(op, &reply, at)
		b.addResult(op, &reply)
		n++
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

func (b *batch) addResult(op *redisop.Op, reply *redis.Reply) {
	res := redisop.Result{
		Kind: op.Kind, Name: op.Name, Outcome: reply.Outcome, Sent: b.sent,
		Token: reply.Token, Made: reply.Made, Listeners: reply.Listeners, TTLMS: reply.TTLMS,
		IsQueued: reply.IsQueued, Rank: reply.Rank, Ticket: reply.Ticket, Recall: reply.Recall,
		Waiting: reply.Waiting, Passed: reply.Passed, Paused: reply.Paused, LeftFree: reply.LeftFree,
	}
	if res.Outcome == redisop.HeldByOther {
		res.Field = "another host"
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

// onCame notes that Redis gave the lock to a host.
func (f *Fleet) onCame(h *fleetHost) {
	if h.stands {
		h.passedOver = max(h.passedOver, f.came-h.standsAt)
		h.stands = false
	}
	f.came++
}

// receivers is how many connections receive what is published to the sidecar of a host.
func (f *Fleet) receivers(host redis.Owner) int32 { return int32(btoi(f.hosts[host].listening)) }

// publish writes what an operation publishes to one connection after the other. Of the
// subscribers of a lock the host that subscribed last comes first, as in Redis 7.
func (f *Fleet) publish(op *redisop.Op, reply *redis.Reply, at *int64) {
	if reply.Publication == redis.Published && reply.Listeners.MayExist() {
		m := redisop.Message{Kind: redisop.Unlocked, Name: op.Name}
		for _, host := range slices.Backward(f.locks[fleetIndex(op.Name)].channel.Subscribers) {
			*at += costListener
			f.reply(int16(host), *at, received{true, m})
		}
	}
	for i := range reply.Sent {
		if m := &reply.Sent[i]; m.Reached > 0 {
			*at += costListener
			f.bytes += 150
			f.reply(int16(m.To), *at, received{true, m.Message})
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
	renewals := 0
	for i := range b.ops {
		if b.ops[i].Kind == redisop.Renew {
			renewals++
		}
	}
	runs := func(n int) int { return (n + storeKeys - 1) / storeKeys }
	f.renewalScripts += runs(renewals)
	f.renewed += renewals
	f.scripts[at] += runs(renewals) + runs(len(b.ops)-renewals)
}
