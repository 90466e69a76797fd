package sim

import (
	"testing"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// What Redis refuses changes nothing, whichever fault makes Redis refuse it.
func TestFaultyRedisChangesNothing(t *testing.T) {
	draw := locktable.Op{Kind: locktable.Take, Reserve: 1}
	take, keep := locktable.Op{Kind: locktable.Take}, locktable.Op{Kind: locktable.Renew}
	check, drop := locktable.Op{Kind: locktable.Check}, locktable.Op{Kind: locktable.Drop}
	for _, fault := range []struct {
		name     string
		begin    func(n *redisName)
		outcomes map[*locktable.Op]locktable.Outcome
	}{
		{"denied", func(n *redisName) { n.denied = true }, map[*locktable.Op]locktable.Outcome{
			&draw: locktable.Refused, &take: locktable.Refused, &keep: locktable.Refused, &check: locktable.Refused, &drop: locktable.Refused,
		}},
		{"overwritten", func(n *redisName) { n.overwritten = true }, map[*locktable.Op]locktable.Outcome{
			&draw: locktable.NotALock, &take: locktable.NotALock, &keep: locktable.HeldByOther, &check: locktable.HeldByOther, &drop: locktable.NotALock,
		}},
		{"broken counter", func(n *redisName) { n.brokenCounter = true }, map[*locktable.Op]locktable.Outcome{
			&draw: locktable.Refused,
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

			o := operation{op: *op, server: w.redis.run, floor: 1, birth: 1}
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
