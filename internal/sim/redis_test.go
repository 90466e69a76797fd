package sim

import (
	"testing"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What Redis refuses changes nothing, whichever fault makes Redis refuse it.
func TestFaultyRedisChangesNothing(t *testing.T) {
	draw := redisop.Op{Kind: redisop.Take, Asked: redisop.Asked{Reserve: 1}}
	take, keep := redisop.Op{Kind: redisop.Take}, redisop.Op{Kind: redisop.Renew}
	check, drop := redisop.Op{Kind: redisop.Check}, redisop.Op{Kind: redisop.Drop}
	for _, fault := range []struct {
		name     string
		begin    func(n *redisName)
		outcomes map[*redisop.Op]redisop.Outcome
	}{
		{"denied", func(n *redisName) { n.denied = true }, map[*redisop.Op]redisop.Outcome{
			&draw: redisop.Refused, &take: redisop.Refused, &keep: redisop.Refused, &check: redisop.Refused, &drop: redisop.Refused,
		}},
		{"overwritten", func(n *redisName) { n.overwritten = true }, map[*redisop.Op]redisop.Outcome{
			&draw: redisop.NotALock, &take: redisop.NotALock, &keep: redisop.HeldByOther, &check: redisop.HeldByOther, &drop: redisop.NotALock,
		}},
		{"broken counter", func(n *redisName) { n.brokenCounter = true }, map[*redisop.Op]redisop.Outcome{
			&draw: redisop.Refused,
		}},
	} {
		for op, want := range fault.outcomes {
			op.Name, op.HoldID, op.Count, op.LeaseMS = lockNames[0], 10, 2, 30_000
			w := &world{engine: engine{now: sec}, plan: plan{names: 1, table: locktable.Config{Lease: 30e9}}, counterExpiry: counterExpiry}
			w.redis.init()
			h := w.addHost()
			name := &w.redis.names[0]
			name.key = redis.Key{Owner: redis.Owner(h.index), Num: 9, Count: 1, ExpireAt: 2 * sec}
			fault.begin(name)
			before := *name

			o := operation{op: *op, server: w.redis.shards[0].run, floor: 1, birth: 1}
			w.execute(h, &o)

			if o.res.Outcome != want {
				t.Errorf("%s: outcome %d of %s, want %d", fault.name, o.res.Outcome, opString(*op), want)
			}
			if *name != before {
				t.Errorf("%s: %s changed %+v to %+v", fault.name, opString(*op), before, *name)
			}
		}
	}
}

// What a Drop leaves to the Take after it holds in their script only: not for a Take that a later
// process of the host sends alone, because the store did not send its Drop.
func TestDropMattersToTheTakeOfItsOwnScriptOnly(t *testing.T) {
	const lease, expiry = 30_000, 20 * sec
	inOrder := redisop.Op{Kind: redisop.Take, Asked: redisop.Asked{Arrived: 1, Reserve: 7, Flags: redisop.AfterPendingDrop | redisop.Enqueue | redisop.InOrder}}
	waiting := redisop.Op{Kind: redisop.Take, Asked: redisop.Asked{Reserve: 7, Flags: redisop.AfterPendingDrop | redisop.Enqueue}}
	for _, left := range []struct {
		what   string
		passed uint32 // by the Drop, ms
		take   redisop.Op
		rival  bool // another host waits, and has the lock later
		isLeft func(r *redisop.Result, k *redis.Key) bool
	}{
		{"the lock is left free", 150, inOrder, false, func(r *redisop.Result, k *redis.Key) bool {
			return r.Outcome == redisop.HeldByOther
		}},
		{"the lock has passed on", 0, waiting, true, func(r *redisop.Result, k *redis.Key) bool {
			return r.Outcome == redisop.HeldByOther && r.Recall == redisop.NotRecalled
		}},
	} {
		w := &world{
			engine: engine{now: sec}, counterExpiry: counterExpiry,
			plan: plan{names: 1, oneScriptPerBatch: true, latency: ms, table: locktable.Config{Lease: 30e9}},
		}
		w.redis.init()
		h, rival := w.addHost(), w.addHost()
		name := &w.redis.names[0]
		name.counter = redis.Counter{Exists: true, Value: 100, ExpireAt: redis.NoExpiry}

		// send sends operations in one step of the loop, and returns the last one as executed.
		send := func(ops ...redisop.Op) *operation {
			h.conns[0].ok, h.conns[0].nextRun, h.conns[0].lastExec = true, w.redis.shards[0].run, w.now
			rival.conns[0].inRedis, rival.conns[0].isListening, rival.conns[0].nextRun = true, true, w.redis.shards[0].run
			var sent []int32
			for _, op := range ops {
				op.Name, op.Count, op.LeaseMS = lockNames[0], 1, lease
				w.issue(h, op)
				sent = append(sent, h.locks[0].inFlight)
			}
			w.now = h.conns[0].lastExec
			for _, i := range sent {
				w.arrive(i)
			}
			return &w.ops[sent[len(sent)-1]]
		}

		name.key = redis.Key{Owner: redis.Owner(h.index), Num: 1, Count: 1, ExpireAt: expiry}
		if left.rival {
			name.queue.ExpireAt = redis.NoExpiry
			name.queue.Add(redis.Ticket{Owner: redis.Owner(rival.index), Num: 5, Time: w.time(0)})
		}
		left.take.HoldID = 2
		o := send(redisop.Op{Kind: redisop.Drop, HoldID: 1, PassedMS: left.passed}, left.take)
		if !left.isLeft(&o.res, &name.key) {
			t.Errorf("%s: not after a Drop in the same script: %s; the key is %s", left.what, resultString(o.res), keyString(name.key))
		}

		w.end(h)
		w.loseQueue(0)
		name.key = redis.Key{Owner: redis.Owner(h.index), Num: 3, Count: 1, ExpireAt: 40 * sec}
		if left.rival {
			name.key.Owner = redis.Owner(rival.index)
		}
		left.take.HoldID = 4
		o = send(left.take)
		if left.isLeft(&o.res, &name.key) {
			t.Errorf("%s: by a Drop of an earlier script: %s; the key is %s", left.what, resultString(o.res), keyString(name.key))
		}
	}
}
