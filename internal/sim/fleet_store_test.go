package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A fleet sends what the store sends, in the same runs, and as much at one time.
func TestFleetSendsAsTheStoreDoes(t *testing.T) {
	for _, trip := range []time.Duration{100 * time.Microsecond, 2 * time.Millisecond} {
		for seed := range uint64(4) {
			f := NewFleet(FleetPlan{Seed: seed, Hosts: 1, Held: 1, Trip: trip})
			c := &f.hosts[0].conns[0]
			m := pipeline.New(pipeline.Config{Keys: wire.NewKeyspace(""), Timeout: time.Minute, Batches: pipeline.DefaultBatches})
			now := int64(time.Hour)
			m.Up(now, &pipeline.Greeting{Loads: true})
			answer := func(ops int) { // the oldest run, of so many operations
				first := m.Commands()[0]
				if len(first.Ops) != ops {
					t.Fatalf("%v, seed %d: the store's oldest run has %d operations, the fleet's %d", trip, seed, len(first.Ops), ops)
				}
				reply := wire.Reply{Kind: ':', Num: int64(ops)}
				if first.Script != wire.Renew.SHA {
					status := wire.Reply{Kind: ':', Num: 1}
					if reply = status; ops > 1 {
						reply = wire.Reply{Kind: '*', List: slices.Repeat([]wire.Reply{status}, ops)}
					}
				}
				for i := range reply.List {
					reply.List[i].Num = int64(btoi(first.Ops[i].Kind == redisop.Take))
				}
				if ops == 1 && first.Ops[0].Kind == redisop.Drop {
					reply.Num = 0
				}
				if err := m.Reply(now, &reply); err != nil {
					t.Fatal(err)
				}
			}
			// The first trip shows whether Redis is near.
			m.Do(now, []redisop.Op{{Kind: redisop.Drop, Name: "first", HoldID: 1}})
			now += int64(trip)
			answer(1)
			_ = m.Rest(now)
			random := rand.New(rand.NewPCG(seed, 7))
			for step := range 80 {
				if len(c.inFlight) > 0 && random.IntN(3) == 0 {
					b := c.inFlight[0]
					c.inFlight = c.inFlight[1:]
					now += int64(trip)
					for left := b.ops; len(left) > 0; {
						_, n := wire.BatchPrefix(left, nil)
						answer(n)
						left = left[n:]
					}
					_ = m.Rest(now)
				} else {
					for i := range random.IntN(1 + 40<<random.IntN(6)) {
						op := anyOp(random, fmt.Sprint(step, "-", i))
						c.waiting.Add(op)
						m.Do(now, []redisop.Op{op})
						f.send(0, c)
					}
				}
				f.send(0, c)
				if want, got := m.InFlight(), inFlight(c); want != got {
					t.Fatalf("%v, seed %d, step %d: %d operations are in flight, the store has %d", trip, seed, step, got, want)
				}
			}
		}
	}
}

func anyOp(random *rand.Rand, name string) redisop.Op {
	op := redisop.Op{Name: name, HoldID: 1 + random.Uint64N(1000), LeaseMS: 30_000, Count: 1}
	switch op.Kind = []redisop.OpKind{redisop.Renew, redisop.Take, redisop.Drop}[random.IntN(3)]; op.Kind {
	case redisop.Take:
		op.Reserve = 1
	case redisop.Drop:
		op.Set(redisop.CanWait, random.IntN(2) == 0)
	}
	return op
}

func inFlight(c *fleetConn) (ops int) {
	for _, b := range c.inFlight {
		ops += len(b.ops)
	}
	return ops
}
