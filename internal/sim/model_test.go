package sim

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The simulation's model of Redis is a second one: in numbers instead of texts, so that
// it is fast. The first one is compared with the scripts in a real Redis, and the second
// one with the first.

// lonely is a world of one host and one name in which nothing happens by itself.
func lonely() (*world, *host) {
	w := &world{plan: plan{names: 1, table: locktable.Config{Lease: 30e9}}, counterExpiry: counterExpiry, now: sec}
	w.redis.init()
	return w, w.addHost()
}

func TestSimulatedRedisExecutesAsTheModelOfTheScripts(t *testing.T) {
	const num, foreign = 10, foreignID
	standings := map[redis.Standing][]key{
		redis.Free:       {{owner: -1}, {owner: 0, num: num, count: 2, expireAt: sec}}, // it has just expired
		redis.Same:       {{owner: 0, num: num, count: 2, expireAt: 40 * sec}, {owner: 0, num: num, count: 2, expireAt: noExpiry}},
		redis.OtherCount: {{owner: 0, num: num, count: 1, expireAt: 40 * sec}},
		redis.Earlier:    {{owner: 0, num: num - 1, count: 2, expireAt: 40 * sec}},
		redis.Foreign:    {{owner: foreign, num: num, count: 2, expireAt: 40 * sec}, {owner: foreign, num: 1, count: 2, expireAt: noExpiry}, {owner: 0, num: num + 1, count: 2, expireAt: 40 * sec}},
		redis.Alien:      {{owner: -1}},
	}
	var ops []locktable.Op
	for _, op := range []locktable.Op{{Kind: locktable.Take}, {Kind: locktable.Take, Held: true}, {Kind: locktable.Keep}, {Kind: locktable.Check}, {Kind: locktable.Drop}} {
		op.Name, op.Num, op.Count, op.LeaseMS = lockNames[0], num, 2, 30_000
		ops = append(ops, op)
		if op.Kind == locktable.Take {
			for _, n := range []uint16{1, 2} {
				op.Reserve = n
				ops = append(ops, op)
			}
		}
	}
	for standing, keys := range standings {
		for _, before := range keys {
			for _, op := range ops {
				t.Run(fmt.Sprint(opString(op), " finds ", standing, " ", keyString(before)), func(t *testing.T) {
					w, h := lonely()
					name := &w.redis.names[0]
					name.key, name.overwritten = before, standing == redis.Alien
					name.foreignWaits[0] = true
					h.names[0].server = true
					o := operation{op: op, res: locktable.Result{Kind: op.Kind, Name: op.Name}, floor: 1, birth: 1}
					want := redis.Judge(&op, standing)
					messages := len(w.agenda.events)

					w.execute(h, &o)

					if o.res.Outcome != want.Outcome {
						t.Errorf("outcome %d, the model has %d", o.res.Outcome, want.Outcome)
					}
					after := before
					switch want.Change {
					case redis.Write:
						after = key{owner: 0, num: num, count: 2, expireAt: w.now + 30*sec}
					case redis.Remove:
						after = key{owner: -1}
					default:
						if standing == redis.Free {
							after = key{owner: -1}
						}
					}
					if name.key != after {
						t.Errorf("the key is %s, the model has %s", keyString(name.key), keyString(after))
					}
					listeners := locktable.Uncounted
					if want.Counts || want.Publishes {
						listeners = 2
					}
					if want.Outcome <= locktable.Other && o.res.Listeners != listeners {
						t.Errorf("%d listeners, the model has %d", o.res.Listeners, listeners)
					}
					if drawn := name.counter.exists; drawn != want.Draws || drawn != (o.res.Token != 0) {
						t.Errorf("token %d, the model draws one: %v", o.res.Token, want.Draws)
					}
					if published := len(w.agenda.events) > messages; published != want.Publishes {
						t.Errorf("published %v, the model %v", published, want.Publishes)
					}
					if ttl := (before.expireAt - w.now) / ms; o.res.Outcome == locktable.Other && standing != redis.Alien && before.expireAt < noExpiry && o.res.TTLMS != ttl {
						t.Errorf("TTL %d, want %d", o.res.TTLMS, ttl)
					}
				})
			}
		}
	}
}

// What Redis refuses changes nothing in either model.
func TestSimulatedRedisRefusesAsTheModelOfTheScripts(t *testing.T) {
	for _, broken := range []bool{false, true} { // the counter; or else the key is denied
		for _, op := range []locktable.Op{{Kind: locktable.Take, Reserve: 1}, {Kind: locktable.Take}, {Kind: locktable.Keep}, {Kind: locktable.Check}, {Kind: locktable.Drop}} {
			op.Name, op.Num, op.Count, op.LeaseMS = lockNames[0], 10, 2, 30_000
			w, h := lonely()
			name := &w.redis.names[0]
			name.refused, name.broken = !broken, broken
			before := name.key
			o := operation{op: op, res: locktable.Result{Kind: op.Kind, Name: op.Name}, floor: 1, birth: 1}
			w.execute(h, &o)

			s := redis.Sidecar{Prefix: "uuid:", Floor: redis.Exactly(1), Fresh: redis.Exactly(1)}
			r := redis.Redis{Keys: make(map[string]redis.Value), Published: make(map[string]int)}
			if broken {
				r.Keys[redis.Counter(op.Name)] = redis.Value{Type: "list", TTL: []int64{redis.NoExpiry}}
			} else {
				s.DeniedKeys = map[string]bool{op.Name: true}
			}
			want := r.Run(&s, &op, false)
			if o.res.Outcome != want.Outcome {
				t.Errorf("%s, counter broken: %v: outcome %d, the model has %d", opString(op), broken, o.res.Outcome, want.Outcome)
			}
			if want.Outcome == locktable.Refused && name.key != before {
				t.Errorf("%s, counter broken: %v: the key is %s", opString(op), broken, keyString(name.key))
			}
		}
	}
}

func TestSimulatedCountersDrawAsTheModelOfTheScripts(t *testing.T) {
	var r random
	r.Seed(1, 2)
	const now = 1000 * sec
	for i := range 20_000 {
		n, floor, fresh := r.between(1, 64), r.between(1000, 2000), r.between(2000, 3000)
		expiry := r.between(14, 28) * sec
		c := counter{exists: !r.oneIn(4)}
		left := int64(redis.NoExpiry)
		if c.exists {
			c.value = uint64(r.between(1, 3000))
			if c.permanent = r.oneIn(3); !c.permanent {
				c.expireAt = now + r.between(1, 2*expiry/sec)*sec
				left = (c.expireAt - now) / ms
			}
		}
		look, was := !r.oneIn(4), c
		got := c.draw(now, uint64(n), uint64(fresh), uint64(floor), expiry, look)

		last, lifting, _ := redis.Draw(redis.Exactly(int64(was.value)), n, redis.Exactly(floor), redis.Exactly(fresh))
		if !last.Has(int64(got)) || c.value != got {
			t.Fatalf("%d: %d tokens of %+v, floor %d, fresh %d: last %d, counter %+v; the model has %d", i, n, was, floor, fresh, got, c, last)
		}
		want := redis.Refreshed(left, !was.exists, lifting == redis.Lifted, expiry/ms)
		if !look && was.exists && lifting == redis.NotLifted {
			want = left
		}
		has := int64(redis.NoExpiry)
		if !c.permanent {
			has = (c.expireAt - now) / ms
		}
		if has != want {
			t.Fatalf("%d: %d tokens of %+v, floor %d, expiry %d ms: it expires in %d ms; the model has %d", i, n, was, floor, expiry/ms, has, want)
		}
	}
}
