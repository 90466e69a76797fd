package sim

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// newTestWorld returns a world with one lock and a host that is connected.
func newTestWorld() (*world, *host) {
	w := &world{engine: engine{now: sec}, counterExpiry: counterExpiry, plan: plan{
		steps: 1 << 30, names: 1, latency: ms, table: locktable.Config{Lease: 30 * time.Second},
		batches: pipeline.DefaultBatches, timeout: time.Hour, loads: true,
	}}
	w.check.init()
	w.initNames()
	w.initRedis()
	h := w.addHost()
	for !h.conns[0].ok {
		w.step()
	}
	return w, h
}

// executed sends an operation, and returns what Redis answers.
func (w *world) executed(h *host, op redisop.Op) (r redisop.Result) {
	w.issue(h, op)
	c := &h.conns[0]
	c.m.Do(h.clock(w.now), c.ops)
	w.send(h, 0)
	for len(c.toHost) == 0 {
		w.step()
	}
	r.Kind = op.Kind
	answer := c.toHost[0].Reply
	if answer.Kind == '*' && len(answer.List) == 1 && answer.List[0].Kind == '*' {
		answer = answer.List[0] // of a renewal
	}
	if answer.Kind == '-' {
		r.Outcome = wire.OutcomeOf(wire.Code(answer.Text))
	} else if refusal, _, err := wire.Decode(answer, &r); err != nil {
		panic(err)
	} else if refusal != "" {
		r.Outcome = wire.OutcomeOf(wire.Code(refusal))
	}
	return r
}

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
			if op.Name, op.HoldID, op.Count = lockNames[0], 10, 2; op.Kind != redisop.Check {
				op.LeaseMS = 30_000
			}
			w, h := newTestWorld()
			name := &w.redis.names[0]
			name.key = redis.Key{Owner: redis.Owner(h.index), Num: 9, Count: 1, ExpireAt: w.now + 60*sec}
			fault.begin(name)
			before := *name

			if got := w.executed(h, *op); got.Outcome != want {
				t.Errorf("%s: outcome %d of %s, want %d", fault.name, got.Outcome, opString(*op), want)
			}
			if *name != before {
				t.Errorf("%s: %s changed %+v to %+v", fault.name, opString(*op), before, *name)
			}
		}
	}
}
