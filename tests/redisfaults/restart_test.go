package redisfaults

import (
	"maps"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Redis restarts and is unreachable for five seconds. A lock with a longer lease stays held,
// whether Redis keeps its data or not. A waiter is granted its lock when Redis is back.
//
// Shows docs/guarantees.md: Restart with its data.
// Shows docs/guarantees.md: Restart without its data.
func TestLocksOutliveARestartOfRedis(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		args []string
	}{
		{"with its data", []string{"--appendonly", "yes", "--appendfsync", "always"}},
		{"without its data", nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t, c.args...)
			d := harness.StartDaemon(t, r.UnixURL(), "--lease=20s")
			w := harness.StartGoWorker(t, d)
			kept := harness.LockEach(r, []*harness.Worker{w}, "kept")[0]

			r.Stop()
			stopped := time.Now()
			waiter := harness.StartGoWorker(t, d)
			waited := waiter.Send(harness.Command{Do: "lock", As: "free", Name: "free", WaitMS: -1})
			if a := waiter.Try(harness.Command{Do: "lock", As: "no", Name: "no", WaitMS: 0}); a.Err != "unavailable" {
				t.Errorf("without Redis, a request that does not wait is answered %+v", a)
			}
			harness.Eventually(t, "five seconds", func() bool {
				if a := w.Try(harness.Command{Do: "check", As: kept.Name}); a.Err != "" {
					t.Fatalf("while Redis is unreachable, the SDK of the holder reports %+v", a)
				}
				return time.Since(stopped) > 5*time.Second
			})
			r.Start()
			if a := waiter.Await(waited); a.Err != "" {
				t.Errorf("the waiter got %+v", a)
			}
			kept.AwaitInRedis(r)
			kept.PassTo(waiter, waiter.Enqueue(d, kept.Name))
		})
	}
}

// Redis is killed and loses its data while clients of one host hold locks that another host
// waits for. Both daemons reconnect by themselves. If the daemon of the holders is first,
// nothing is lost. If the other one is first, exclusion is violated: its waiters are granted
// the locks, with larger tokens, and the holders learn of that when their daemon has
// reconnected, or at their deadlines.
//
// Shows docs/guarantees.md: Tokens grow.
// Shows docs/guarantees.md: Restart without its data.
func TestRestartWithoutDataAndTwoHosts(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (r *harness.Redis, toHere, toThere *harness.Proxy, holds []harness.Hold, next *harness.Worker, granted []<-chan harness.Answer) {
		r = harness.StartRedis(t)
		toHere, toThere = harness.StartProxy(t, r), harness.StartProxy(t, r)
		// No lease ends before the test does.
		here, there := harness.StartDaemon(t, toHere.URL(), "--lease=1m"), harness.StartDaemon(t, toThere.URL(), "--lease=1m")
		holds = harness.LockEach(r, harness.StartWorkerPerSDK(t, here), "forgotten")
		next = harness.StartGoWorker(t, there)
		for _, h := range holds {
			granted = append(granted, next.Enqueue(there, h.Name))
		}
		return
	}

	t.Run("the daemon of the holders is first", func(t *testing.T) {
		t.Parallel()
		r, _, toThere, holds, next, granted := start(t)
		toThere.Refuse()
		r.Kill()
		r.Start()
		for _, h := range holds {
			h.AwaitInRedis(r)
		}
		toThere.Admit()
		for i, h := range holds {
			harness.Eventually(t, "the other daemon waits for the lock again", func() bool { return r.Subscribers(h.Name) == 1 })
			h.PassTo(next, granted[i])
		}
	})

	t.Run("the other daemon is first", func(t *testing.T) {
		t.Parallel()
		r, toHere, _, holds, next, granted := start(t)
		toHere.Refuse()
		r.Kill()
		r.Start()
		var grants []harness.Answer
		for i, h := range holds {
			a := next.Await(granted[i])
			if a.Err != "" || a.Token <= h.Token {
				t.Fatalf("%s: the waiter got %+v; the token before was %d", h.Name, a, h.Token)
			}
			grants = append(grants, a)
			h.CheckHeld() // not guaranteed: the lock has two holders
		}
		toHere.Admit()
		for i, h := range holds {
			before := r.Fields(h.Name)
			if lost := h.ExpectLost(protocol.Stolen); lost.AtNS >= lost.DeadlineNS || lost.AtNS < grants[i].AtNS {
				t.Errorf("%s: granted at %d; lost by the holder before at %d, whose deadline was %d", h.Name, grants[i].AtNS, lost.AtNS, lost.DeadlineNS)
			}
			if a := next.Try(harness.Command{Do: "check", As: h.Name}); a.Err != "" || !maps.Equal(r.Fields(h.Name), before) {
				t.Errorf("%s: the loss ended the hold of the new holder, too: %+v", h.Name, a)
			}
		}
	})
}

// Redis is unreachable for longer than a lease. The lock is lost at its deadline, not when
// Redis is back.
//
// Shows docs/guarantees.md: No holder relies on a lock for too long.
// Shows docs/guarantees.md: Longer outage, or a host that is cut off from Redis for longer.
func TestLockExpiresWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=1s")
	holds := harness.LockEach(r, harness.StartWorkerPerSDK(t, d), "expiring")
	r.Stop()
	for _, h := range holds {
		h.ExpectLost(protocol.Expired)
	}
	r.Start()
	for _, h := range holds {
		if a := h.Lock(h.Name); a.Token <= h.Token {
			t.Errorf("after Redis lost its data, the token is %d; before, it was %d", a.Token, h.Token)
		}
	}
}

// Redis does not come back. Requests are refused, releases are answered, holds last until
// their deadlines, and an operator can inspect and stop the daemon.
//
// Shows docs/guarantees.md: Longer outage, or a host that is cut off from Redis for longer.
func TestRedisIsGoneForGood(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=4s")
	workers := harness.StartWorkerPerSDK(t, d)
	holds, released := harness.LockEach(r, workers, "kept"), harness.LockEach(r, workers, "released")
	r.Kill()

	for i, w := range workers {
		w.Unlock(released[i].Name)
	}
	checkUnavailable(t, d, workers, "redis", r.Socket())
	for _, h := range holds {
		if lost := h.ExpectLost(protocol.Expired); lost.AtNS < lost.DeadlineNS {
			t.Errorf("%s: lost %v before its deadline", h.Name, time.Duration(lost.DeadlineNS-lost.AtNS))
		}
	}
	if out := d.Run("ls"); out.Code != 0 {
		t.Errorf("`ls` ends with %d: %s", out.Code, out.Stderr)
	}
	d.Terminate()
	if code := d.ExitCode(); code != 0 {
		t.Errorf("the daemon ends with %d", code)
	}
}

// A daemon that has started without Redis grants locks as soon as Redis can be reached.
//
// Shows docs/guarantees.md: Not reachable at the start.
func TestWaiterIsGrantedWhenRedisStarts(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	r.Stop()
	d := harness.LaunchDaemon(t, r.UnixURL())
	w := harness.StartGoWorker(t, d)
	granted := w.Send(harness.Command{Do: "lock", As: "x", Name: "x", WaitMS: -1})
	harness.Eventually(t, "the waiter waits", func() bool { return harness.Waiters(t, d, "x") == 1 })
	r.Start()
	if a := w.Await(granted); a.Err != "" {
		t.Errorf("the waiter got %+v", a)
	}
}
