package redisfaults

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// Clients of two hosts increment one counter as fast as they can, while faults are injected
// into Redis and into the connections. No increment is lost, tokens grow, and no call fails.
//
// Shows docs/guarantees.md: Every waiter is answered.
// Shows docs/guarantees.md: Restart with its data.
func TestNoIncrementIsLostInFaultsUnderLoad(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		what   string
		times  int
		inject func(t *testing.T, r *harness.Redis, ways []*harness.Proxy, i int) (hit int)
	}{
		{"Redis kills all connections", 5, func(t *testing.T, r *harness.Redis, _ []*harness.Proxy, _ int) int {
			clients := r.LockConnections()
			for _, c := range clients {
				r.Do(t.Context(), "CLIENT", "KILL", "ID", c.ID) // an error: it has been closed meanwhile
			}
			return len(clients)
		}},
		{"all connections are reset", 5, func(_ *testing.T, _ *harness.Redis, ways []*harness.Proxy, _ int) (n int) {
			for _, p := range ways {
				n += p.Reset()
			}
			return n
		}},
		{"connections become half-open", 4, func(_ *testing.T, _ *harness.Redis, ways []*harness.Proxy, i int) int {
			// Redis has executed what was sent before, or not.
			lost := [][]harness.Direction{{harness.FromRedis}, {harness.ToRedis, harness.FromRedis}}[i/2%2]
			return ways[i%2].Blackhole(lost...)
		}},
		{"the delay is long and short by turns", 6, func(_ *testing.T, _ *harness.Redis, ways []*harness.Proxy, i int) int {
			ways[i%2].SetDelay([]time.Duration{5 * time.Millisecond, 0}[i/2%2])
			return 1
		}},
		{"scripts are flushed", 10, func(_ *testing.T, r *harness.Redis, _ []*harness.Proxy, _ int) int {
			r.MustDo("SCRIPT", "FLUSH")
			return 1
		}},
	} {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			ways := []*harness.Proxy{harness.StartProxy(t, r), harness.StartProxy(t, r)}
			hosts := []*harness.Daemon{harness.StartDaemon(t, ways[0].URL()), harness.StartDaemon(t, ways[1].URL())}
			rounds, between := harness.Pick(75, 150), harness.Pick(30, 40)
			fleet := harness.StartFleet(t, 3, hosts...)
			answers := harness.SendHammers(r, fleet, rounds)
			done := len(fleet) * rounds
			hits := 0
			for progress := 0; hits < f.times; {
				// Some increments between two faults, so that faults hit different states.
				harness.Eventually(t, "the counter grows", func() bool {
					n, _ := r.Get(t.Context(), "counter").Int()
					if n < progress+between && n < done {
						return false
					}
					progress = n
					return true
				})
				if f.inject(t, r, ways, hits) > 0 {
					hits++
				}
			}
			harness.CheckCounter(t, r, harness.AwaitRounds(t, fleet, answers), done)
			for _, d := range hosts {
				d.AwaitRedis("ok")
			}
		})
	}
}

// A connection becomes half-open, as when a host on the route fails: neither end is
// notified. The daemon detects that before a lease ends, and sends again what was in flight.
// The effect is that of one execution.
//
// Shows docs/guarantees.md: Restart with its data.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		ways []harness.Direction
	}{
		{"requests and replies are lost", []harness.Direction{harness.ToRedis, harness.FromRedis}},
		{"replies are lost", []harness.Direction{harness.FromRedis}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			way := harness.StartProxy(t, r)
			here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
			w, other := harness.StartGoWorker(t, here), harness.StartGoWorker(t, there)

			// An idle connection.
			kept := harness.LockEach(r, []*harness.Worker{w}, "kept")[0]
			released := harness.LockEach(r, []*harness.Worker{w}, "released")[0]
			if n := way.Blackhole(c.ways...); n != 1 {
				t.Fatalf("%d connections", n)
			}
			// A take and a drop are sent on it, in this order.
			taken := w.Send(harness.Command{Do: "lock", As: "taken", Name: "taken", WaitMS: -1})
			harness.Eventually(t, "the request is queued", func() bool { return harness.Waiters(t, here, "taken") == 1 })
			w.Unlock(released.Name)
			a := w.Await(taken)
			if a.Err != "" {
				t.Fatalf("the request is answered %+v", a)
			}
			if b := other.Lock(released.Name); b.Token <= released.Token {
				t.Errorf("token %d after %d", b.Token, released.Token)
			}
			if n := len(r.Fields("taken")); n != 1 {
				t.Errorf("the lock has %d fields", n)
			}
			kept.CheckHeld()
			kept.AwaitInRedis(r)

			h := harness.Hold{Worker: w, Name: "taken", Token: a.Token}
			h.PassTo(other, other.Enqueue(there, h.Name))
			kept.PassTo(other, other.Enqueue(there, kept.Name))
		})
	}
}

// The message of a release is lost, because the connection is half-open or was reset at
// that moment. The waiter is granted the lock all the same, and the daemon subscribes again.
//
// Shows docs/guarantees.md: Every waiter is answered.
// Shows docs/guarantees.md: Messages lost.
func TestWaiterFindsFreeLockAfterALostMessage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		lose func(way *harness.Proxy)
		heal func(way *harness.Proxy)
	}{
		{"half-open", func(way *harness.Proxy) {
			way.Blackhole(harness.ToRedis, harness.FromRedis)
		}, func(*harness.Proxy) {}},
		{"reset", func(way *harness.Proxy) { way.Refuse(); way.Reset() }, (*harness.Proxy).Admit},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			way := harness.StartProxy(t, r)
			here, there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, way.URL(), harness.LongLease)
			holder, waiters := harness.StartGoWorker(t, here), harness.StartWorkerPerSDK(t, there)
			holds := harness.LockEach(r, []*harness.Worker{holder, holder}[:len(waiters)], c.what)
			var granted []<-chan harness.Answer
			for i, h := range holds {
				granted = append(granted, waiters[i].Enqueue(there, h.Name))
				harness.Eventually(t, "the daemon has subscribed", func() bool { return r.Subscribers(h.Name) == 1 })
			}
			c.lose(way)
			for _, h := range holds {
				h.Unlock(h.Name)
				harness.Eventually(t, "the lock is free in Redis", func() bool { return len(r.Fields(h.Name)) == 0 })
			}
			c.heal(way)
			for i, h := range holds {
				a := waiters[i].Await(granted[i])
				if a.Err != "" || a.Token <= h.Token {
					t.Errorf("%s: the waiter got %+v; the token before was %d", h.Name, a, h.Token)
				}
			}
			// The next release wakes the waiter.
			there.AwaitRedis("ok")
			waiters[0].Unlock(holds[0].Name)
			again := harness.LockEach(r, []*harness.Worker{holder}, c.what)[0]
			again.PassTo(waiters[0], waiters[0].Enqueue(there, again.Name))
		})
	}
}
