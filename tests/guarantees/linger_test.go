package guarantees

import (
	"errors"
	"fmt"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A process that acquires one lock again and again is granted it without Redis, unless the
// setting linger is 0. Another host gets the lock all the same.
//
// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
// Shows docs/queue.md: Lingering.
func TestLockThatOneHostUsesAgainAndAgainLingers(t *testing.T) {
	t.Parallel()
	const pairs = 100
	r := harness.StartRedis(t)
	// scripts acquires and releases a lock many times, and returns how many scripts Redis ran meanwhile.
	scripts := func(d *harness.Daemon, name string) int {
		c := harness.Dial(t, d)
		defer c.Close()
		before := r.CommandCalls(t.Context())["evalsha"]
		for range pairs {
			l, err := c.Lock(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Unlock(); err != nil {
				t.Fatal(err)
			}
		}
		return r.CommandCalls(t.Context())["evalsha"] - before
	}

	never := harness.StartDaemon(t, r.UnixURL(), "--linger=0")
	if n := scripts(never, "never"); n < pairs {
		t.Errorf("with linger 0, Redis ran %d scripts for %d grants", n, pairs)
	}

	lingers := harness.StartDaemon(t, r.UnixURL(), "--linger=20ms")
	harness.Eventually(t, "a lock is granted without Redis", func() bool { return scripts(lingers, "again") < pairs })
	c := harness.Dial(t, never)
	defer c.Close()
	if l, err := c.Lock(t.Context(), "again"); err != nil {
		t.Error(err)
	} else if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

// makeHot has a client acquire and release a lock several times. After that the lock lingers for a
// moment, if the machine is not too slow.
func makeHot(t *testing.T, c *locksidecar.Client, name string) {
	t.Helper()
	for range 20 {
		l, err := c.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
}

// A lock lingers after its release. Another host that waits for it is granted it at once all the
// same, with a larger token. A request that does not wait is refused at most until the lock has
// lingered.
func TestLockThatLingersIsGivenToAnotherHost(t *testing.T) {
	t.Parallel()
	const rounds = 20
	r := harness.StartRedis(t)
	here := harness.Dial(t, harness.StartDaemon(t, r.UnixURL(), harness.LongLease, "--linger=20ms"))
	there := harness.Dial(t, harness.StartDaemon(t, r.UnixURL(), harness.LongLease, "--linger=20ms"))
	lingered, refused, longest := 0, 0, time.Duration(0)
	for i := range rounds {
		name := fmt.Sprint("waited for ", i)
		makeHot(t, here, name)
		before := r.Owner(name)
		asked := time.Now()
		l, err := there.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if before != "" {
			lingered++
			longest = max(longest, time.Since(asked))
		}
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}

		name = fmt.Sprint("tried ", i)
		makeHot(t, here, name)
		harness.Eventually(t, "a request that does not wait is granted", func() bool {
			l, err := there.TryLock(t.Context(), name)
			if errors.Is(err, locksidecar.ErrHeld) {
				refused++
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			return l.Unlock() == nil
		})
	}
	t.Logf("%d of %d locks lingered when another host asked; the longest wait was %v; %d tries were refused", lingered, rounds, longest, refused)
	if lingered == 0 {
		t.Error("no lock lingered")
	}
}

// On the host that released it, a request that does not wait is granted a lock that lingers.
func TestTryRightAfterAReleaseIsGranted(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	c := harness.Dial(t, d)
	last := uint64(0)
	for i := range 200 {
		l, err := c.TryLock(t.Context(), "tried")
		if err != nil {
			t.Fatalf("try %d: %v", i, err)
		}
		if l.Token() <= last {
			t.Fatalf("try %d: token %d after %d", i, l.Token(), last)
		}
		last = l.Token()
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
}

// A release that is confirmed is executed in Redis, however often the lock was acquired before.
func TestConfirmedReleaseDoesNotLinger(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	c := harness.Dial(t, harness.StartDaemon(t, r.UnixURL(), "--linger=20ms"))
	for range 50 {
		makeHot(t, c, "confirmed")
		l, err := c.Lock(t.Context(), "confirmed")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(locksidecar.Confirmed(t.Context())); err != nil {
			t.Fatal(err)
		}
		if fields := r.Fields("confirmed"); len(fields) > 0 {
			t.Fatalf("after a confirmed release, Redis has %v", fields)
		}
	}
}

// The daemon shows that a lock lingers. A lock lingers for a moment only, so the daemon is asked again and again
// while a process acquires and releases the lock without a pause.
func TestDaemonShowsALockThatLingers(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--linger=20ms")
	w, c := harness.StartGoWorker(t, d), harness.Dial(t, d)
	ended := w.Send(harness.Command{Do: "poll", Name: "hot", WaitMS: -1, ForMS: (10 * time.Minute).Milliseconds()})
	harness.Eventually(t, "the lock lingers", func() bool {
		row, ok, err := c.Info(t.Context(), "hot")
		if err != nil {
			t.Fatal(err)
		}
		return ok && row.State == locksidecar.LockLingering
	})
	w.Must(harness.Command{Do: "stop"})
	if a := w.Await(ended); a.Err != "" {
		t.Errorf("%+v", a)
	}
}

// A daemon is killed while a lock lingers that no process holds. Its successor frees the lock,
// long before the end of the lease. The moment is short, so the test may have to kill several
// times.
func TestLockThatLingersIsFreedAfterARestart(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	for range 20 {
		d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease, "--linger=20ms")
		c := harness.Dial(t, d)
		makeHot(t, c, "left")
		d.Kill()
		lingered := len(r.Fields("left")) > 0
		d.Start(harness.LongLease)
		d.AwaitSocket()
		awaitFree(t, r, "left")
		if lingered {
			return
		}
	}
	t.Fatal("the daemon was never killed while the lock lingered")
}
