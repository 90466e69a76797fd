package tests

import (
	"testing"
	"time"
)

// Two hosts work on one counter as fast as they can while something happens to
// Redis or to their connections again and again. Nobody notices but by waiting:
// no addition is lost, no token falls, no call fails.
func TestLoadGoesOnThroughFaults(t *testing.T) {
	for _, f := range []struct {
		what   string
		times  int
		inject func(r *redisServer, ways []*proxy, i int) (hit int)
	}{
		{"Redis kills all connections", 5, func(r *redisServer, _ []*proxy, _ int) int {
			clients := r.lockClients()
			for _, c := range clients {
				r.Do(r.t.Context(), "CLIENT", "KILL", "ID", c.id) // it may be gone by itself
			}
			return len(clients)
		}},
		{"all connections are reset", 5, func(_ *redisServer, ways []*proxy, _ int) (n int) {
			for _, p := range ways {
				n += p.reset()
			}
			return n
		}},
		{"connections become half-open", 4, func(_ *redisServer, ways []*proxy, i int) int {
			// What was sent may have been done, or not.
			lost := [][]direction{{fromRedis}, {toRedis, fromRedis}}[i/2%2]
			return ways[i%2].swallow([]kind{commands, subscription}, lost...)
		}},
		{"the way is long and short by turns", 6, func(_ *redisServer, ways []*proxy, i int) int {
			ways[i%2].slow([]time.Duration{5 * time.Millisecond, 0}[i/2%2])
			return 1
		}},
		{"scripts are flushed", 10, func(r *redisServer, _ []*proxy, _ int) int {
			r.do("SCRIPT", "FLUSH")
			return 1
		}},
	} {
		t.Run(f.what, func(t *testing.T) {
			r := startRedis(t)
			ways := []*proxy{startProxy(t, r), startProxy(t, r)}
			hosts := []*daemon{startDaemon(t, ways[0].url()), startDaemon(t, ways[1].url())}
			const rounds = 150
			var fleet []*worker
			var answers []<-chan answer
			for i := range 6 {
				w := startAnyWorker(t, hosts[i%2], i/2)
				fleet = append(fleet, w)
				answers = append(answers, w.ask(hammer(r, rounds)))
			}
			done := len(fleet) * rounds
			hits := 0
			for progress := 0; hits < f.times; {
				// Some work between two faults, so that they hit all that is going on.
				eventually(t, "the fleet works on", func() bool {
					n, _ := r.Get(t.Context(), "counter").Int()
					if n < progress+40 && n < done {
						return false
					}
					progress = n
					return true
				})
				if f.inject(r, ways, hits) > 0 {
					hits++
				}
			}
			var all []round
			for i, w := range fleet {
				a := w.await(answers[i])
				if a.Err != "" {
					t.Fatalf("worker %d: %s: %s", i, a.Err, a.Msg)
				}
				all = append(all, a.Rounds...)
			}
			checkCounter(t, r, all, done)
			for _, d := range hosts {
				d.awaitRedis("ok")
			}
		})
	}
}

// A connection becomes half-open, as when a host on the way vanishes: nobody is
// told. The daemon finds out by itself, for each of its two connections, before
// a lease ends; what was asked on it is asked again and done once.
func TestHalfOpenConnections(t *testing.T) {
	for _, c := range []struct {
		what string
		ways []direction
	}{
		{"the question is lost", []direction{toRedis, fromRedis}},
		{"the answer is lost", []direction{fromRedis}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := startRedis(t)
			way := startProxy(t, r)
			here, there := startDaemon(t, way.url(), longLease), startDaemon(t, r.unixURL(), longLease)
			w, other := startGoWorker(t, here), startGoWorker(t, there)

			// An idle connection.
			kept := holdOne(r, []*worker{w}, "kept")[0]
			released := holdOne(r, []*worker{w}, "released")[0]
			if n := way.swallow([]kind{commands}, c.ways...); n != 1 {
				t.Fatalf("%d command connections", n)
			}
			// A take and a drop on it, in this order.
			taken := w.ask(command{Do: "lock", As: "taken", Name: "taken", WaitMS: -1})
			eventually(t, "it is asked for", func() bool { return waiting(t, here, "taken") == 1 })
			w.unlock(released.name)
			a := w.await(taken)
			if a.Err != "" {
				t.Fatalf("a lock is told %+v", a)
			}
			if b := other.lock(released.name); b.Token <= released.token {
				t.Errorf("token %d after %d", b.Token, released.token)
			}
			if n := len(r.fields("taken")); n != 1 {
				t.Errorf("the lock has %d fields", n)
			}
			kept.check()
			kept.inRedis(r)

			h := held{worker: w, name: "taken", token: a.Token}
			h.passesTo(other, waitFor(other, there, h.name))
			kept.passesTo(other, waitFor(other, there, kept.name))
		})
	}
}

// The message that a lock is free is lost, because the subscription is half-open
// or was cut at that moment: the waiter finds out by itself, and is told of
// later releases again.
func TestLostWakeUpIsFound(t *testing.T) {
	for _, c := range []struct {
		what string
		lose func(way *proxy)
		mend func(way *proxy)
	}{
		{"half-open", func(way *proxy) { way.swallow([]kind{subscription}, toRedis, fromRedis) }, func(*proxy) {}},
		{"cut", func(way *proxy) { way.refuse(); way.reset() }, (*proxy).admit},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := startRedis(t)
			way := startProxy(t, r)
			here, there := startDaemon(t, r.unixURL(), longLease), startDaemon(t, way.url(), longLease)
			holder, waiters := startGoWorker(t, here), oneOfEach(t, there)
			holds := holdOne(r, []*worker{holder, holder}[:len(waiters)], c.what)
			var granted []<-chan answer
			for i, h := range holds {
				granted = append(granted, waitFor(waiters[i], there, h.name))
				eventually(t, "the daemon listens", func() bool { return r.listeners(h.name) == 1 })
			}
			c.lose(way)
			for _, h := range holds {
				h.unlock(h.name)
				eventually(t, "it is free in Redis", func() bool { return len(r.fields(h.name)) == 0 })
			}
			c.mend(way)
			for i, h := range holds {
				a := waiters[i].await(granted[i])
				if a.Err != "" || a.Token <= h.token {
					t.Errorf("%s: the waiter is told %+v; the token before was %d", h.name, a, h.token)
				}
			}
			// Of the next release the daemon is told.
			eventually(t, "the daemon listens again", func() bool { return there.log.contains("releases are heard again") })
			waiters[0].unlock(holds[0].name)
			again := holdOne(r, []*worker{holder}, c.what)[0]
			again.passesTo(waiters[0], waitFor(waiters[0], there, again.name))
		})
	}
}
