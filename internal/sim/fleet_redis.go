package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The Redis of a fleet: one core, which reads its connections in turn, and is busy for as
// long as was measured.

// What things cost Redis, ns of one core, over loopback, where a write to a socket pays
// for its receipt too: go test ./sidecar/store -run '^$' -bench BenchmarkRedis. Scripts
// by their instructions (98,600 are 8.8 µs), which no neighbour on the machine changes.
const (
	costArrival  = 6500   // one connection has something: poll, read, write
	costRun      = 3000   // a run of takes and drops
	costTake     = 2800   // and draws a token
	costAssert   = 3000   // take that draws none, and counts the subscribers
	costOther    = 3000   // take that finds another owner
	costDrop     = 1500   // without the subscribers
	costKeep     = 2200   // a run of renewals
	costKey      = 1600   // and each lock
	costListener = 5000   // of each that a message goes to
	costConnect  = 101000 // connection, greeting, probe

	redisReads = 16 << 10 // bytes of one connection that Redis reads before it looks at the next
)

// fleetLock is what Redis has under the three names of a lock.
type fleetLock struct {
	key     redis.Key
	counter redis.Counter
	channel redis.Channel // subscribers: hosts
}

func (l *fleetLock) reset() { *l = fleetLock{key: redis.NoKey} }

// restart is a restart of Redis, with the data or without.
func (l *fleetLock) restart(lost bool) {
	l.channel = redis.Channel{}
	if lost {
		l.reset()
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

// unfinished is the oldest batch of the host that Redis has and has not finished, or nil.
func (h *fleetHost) unfinished() *batch {
	for _, b := range h.inFlight {
		if b.arrived && len(b.results) < len(b.ops) {
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
		h.connecting = false
		at += costConnect
		f.after(at-f.now+f.lag(h), event{kind: fleetUp, host: host, gen: h.gen})
	}
	finished := 0
	b := h.unfinished()
	for read := 0; read < redisReads && b != nil; {
		read += f.execute(host, b, &at)
		if len(b.results) == len(b.ops) {
			finished++
			b = h.unfinished()
		}
	}
	for range finished {
		h.lastIn = max(h.lastIn, at+f.lag(h))
		f.after(h.lastIn-f.now, event{kind: fleetReply, host: host, gen: h.gen})
	}
	if h.queued = b != nil; h.queued {
		f.readQueue = append(f.readQueue, host)
	}
	f.served += at - f.now
	f.busy = true
	f.after(at-f.now, event{kind: fleetDone})
}

// execute runs the next script of a batch at a time, which it moves on by what that costs,
// and returns the length of the command.
func (f *Fleet) execute(host int16, b *batch, at *int64) int {
	op := &b.ops[len(b.results)]
	f.ran++
	if op.Kind == locktable.Renew {
		*at += costKeep
		n := 0
		for n < storeKeys && len(b.results) < len(b.ops) && b.ops[len(b.results)].Kind == locktable.Renew {
			*at += costKey
			b.reply(f.run(host, &b.ops[len(b.results)], *at))
			n++
		}
		f.bytes += int64(130 + 37*n)
		return 126 + 33*n
	}
	*at += costRun
	n := 0
	for n < storeKeys && len(b.results) < len(b.ops) && b.ops[len(b.results)].Kind != locktable.Renew {
		op := &b.ops[len(b.results)]
		res := f.run(host, op, *at)
		switch {
		case op.Kind == locktable.Drop:
			*at += costDrop
			if l := &f.locks[fleetIndex(op.Name)]; !l.key.Exists() {
				*at = f.publish(l, *at)
			}
		case res.Outcome != locktable.Done:
			*at += costOther
			f.bytes += 53
		case op.Reserve == 0:
			*at += costAssert
		default:
			*at += costTake
		}
		b.reply(res)
		n++
	}
	f.bytes += int64(154 + 83*n)
	return 150 + 71*n
}

func (b *batch) reply(res locktable.Result) {
	res.Sent = b.sent
	b.results = append(b.results, res)
}

// run is what the script does to one lock.
func (f *Fleet) run(host int16, op *locktable.Op, at int64) locktable.Result {
	l := &f.locks[fleetIndex(op.Name)]
	l.key.Expire(at)
	wasFree := !l.key.Exists()
	c := redis.Command{
		Op: op, Owner: redis.Owner(host), Now: at,
		Floor: 1, Fresh: 1, Expiry: counterExpiry, KeepsCounterExpiry: op.AfterPendingDrop,
		Denied: redis.Denied{PubSub: f.plan.HideListeners},
	}
	reply := c.Run(&l.key, &l.counter, &l.channel)
	res := locktable.Result{
		Kind: op.Kind, Name: op.Name, Outcome: reply.Outcome,
		Token: reply.Token, Listeners: reply.Listeners, TTLMS: reply.TTLMS,
		Rank: reply.Rank, Ticket: reply.Ticket, HolderReached: reply.HolderReached,
		Waiting: reply.Waiting, Passed: reply.Passed, Paused: reply.Paused,
	}
	switch {
	case op.Kind == locktable.Drop:
		f.drops++
		if reply.Change == redis.Remove {
			f.retries = append(f.retries, f.retry)
			f.retry = 0
		}
	case res.Outcome == locktable.HeldByOther:
		f.failed++
		f.retry++
		res.Field = "another host"
	case op.Kind == locktable.Take && res.Outcome == locktable.Done && wasFree:
		f.taken++
		h := f.hosts[host]
		h.missed, h.last = max(h.missed, f.taken-h.last-1), f.taken
	}
	return res
}

// publish writes to one connection after the other. The host that subscribed last comes
// first, as in Redis 7.
func (f *Fleet) publish(l *fleetLock, at int64) int64 {
	for _, id := range slices.Backward(l.channel.Subscribers) {
		at += costListener
		h := f.hosts[id]
		h.lastMessage = max(h.lastMessage, at+f.lag(h))
		f.after(h.lastMessage-f.now, event{kind: fleetMessage, host: int16(id), gen: h.gen})
	}
	return at
}

// count counts what a batch has for Redis.
func (f *Fleet) count(b *batch) {
	at := int((f.now - f.since) / fleetBucket)
	for len(f.load) <= at {
		f.load, f.scripts = append(f.load, 0), append(f.scripts, 0)
	}
	f.load[at] += len(b.ops)
	keeps := 0
	for i := range b.ops {
		if b.ops[i].Kind == locktable.Renew {
			keeps++
		}
	}
	runs := func(n int) int { return (n + storeKeys - 1) / storeKeys }
	f.keeps += runs(keeps)
	f.renewed += keeps
	f.scripts[at] += runs(keeps) + runs(len(b.ops)-keeps)
}
