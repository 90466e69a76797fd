package guarantees

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A process that acquires one lock again and again is granted it without Redis, unless the
// setting linger is 0. Another host gets the lock all the same.
func TestLockThatOneHostUsesAgainAndAgainLingers(t *testing.T) {
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
