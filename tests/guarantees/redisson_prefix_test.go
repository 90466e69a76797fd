package guarantees

import (
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A Redisson program with a NameMapper that puts a prefix before each name, and daemons with
// that key prefix.

var mappedPrefixes = []string{"app1:", "{app1}:"}

// Like Redisson, a sidecar derives the token counter and the channel of a lock from the name
// with the prefix. The keys of a lock that is held, the keys after its release, and the
// channels of releases are the same.
func TestKeysWithAPrefixAreThoseOfRedissonWithANameMapper(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	for _, prefix := range mappedPrefixes {
		host := harness.StartRedissonWithPrefix(t, r, prefix)
		w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL(), "--key-prefix="+prefix), 0)
		for _, name := range []string{"order:42", "{order}:42", "odd{", "odd}", "größe 1"} {
			footprint := func(w *harness.Worker) (held, left, channels []string) {
				t.Helper()
				r.MustDo("FLUSHALL")
				c := harness.Command{Do: "lock", As: name, Name: name, Object: "fenced", WaitMS: -1}
				channels = published(t, r, func() {
					w.Must(c)
					held = keysOfLocks(t, r)
					c.Do = "unlock"
					w.Must(c)
					awaitFree(t, r, prefix+name)
				})
				// Redisson does not wait for the deletion of the latch of its unlock.
				harness.Eventually(t, "only the counter is left", func() bool {
					left = keysOfLocks(t, r)
					return len(left) <= 1
				})
				return held, left, channels
			}
			held, left, channels := footprint(host)
			if !slices.Contains(held, prefix+name) || len(held) != 2 || len(left) != 1 || len(channels) != 1 {
				t.Errorf("Redisson has the keys %q, leaves %q and publishes on %q", held, left, channels)
			}
			heldHere, leftHere, channelsHere := footprint(w)
			if !slices.Equal(heldHere, held) || !slices.Equal(leftHere, left) || !slices.Equal(channelsHere, channels) {
				t.Errorf("%s%s: a sidecar has the keys %q, leaves %q and publishes on %q; Redisson %q, %q and %q",
					prefix, name, heldHere, leftHere, channelsHere, held, left, channels)
			}
		}
	}
}

// Each side excludes and wakes the other one, and both draw tokens from one counter. Without
// the prefix, the same name is another lock.
func TestRedissonWithANameMapperAndSidecarsWithAPrefixExcludeEachOther(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	bare := harness.StartRedisson(t, r)
	for i, prefix := range mappedPrefixes {
		d := harness.StartDaemon(t, r.UnixURL(), "--lease=10m", "--key-prefix="+prefix)
		w, other := harness.StartNthWorker(t, d, i), harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL()))
		host := harness.StartRedissonWithPrefix(t, r, prefix)
		const name = "shared"
		c := harness.Command{Do: "lock", As: name, Name: name, Object: "fenced", WaitMS: -1, Lease: tenMinutes}

		here := w.Must(c).Token
		mustBeHeld(t, host, c)
		mustBeFree(t, bare, c)
		mustBeFree(t, other, c)
		awaitFree(t, r, name)
		mustBeHeld(t, bare, harness.Command{Object: "fenced", Name: prefix + name})
		granted := begin(t, r, host, c)
		w.Unlock(name)
		there := host.Await(granted) // due to the message: without it, Redisson would wait for the end of the lease
		if there.Err != "" || there.Token <= here {
			t.Errorf("prefix %q: Redisson waited for a lock with token %d, and got %+v", prefix, here, there)
		}

		mustBeHeld(t, w, c)
		mustBeFree(t, bare, c)
		granted = w.Enqueue(d, name)
		harness.Eventually(t, "the daemon has subscribed to the channel on which Redisson publishes", func() bool {
			return r.PubSubNumSub(t.Context(), mappedChannel(prefix, name)).Val()[mappedChannel(prefix, name)] == 1
		})
		host.Must(harness.Command{Do: "unlock", Object: "fenced", Name: name})
		if a := w.Await(granted); a.Err != "" || a.Token <= there.Token {
			t.Errorf("prefix %q: a worker waited for a lock with token %d, and got %+v", prefix, there.Token, a)
		}
		if seen := host.Must(harness.Command{Do: "get_token", Name: name}).Token; seen <= there.Token {
			t.Errorf("prefix %q: getToken is %d after token %d", prefix, seen, there.Token)
		}
		w.Unlock(name)
		awaitFree(t, r, prefix+name)
	}
}

// mappedChannel returns the channel of a lock whose name has no brace.
func mappedChannel(prefix, name string) string {
	if prefix[0] == '{' {
		return "redisson_lock__channel:" + prefix + name
	}
	return "redisson_lock__channel:{" + prefix + name + "}"
}

// The same holds under load: no increment is lost, and tokens grow in the order of the holds.
func TestRedissonWithANameMapperAndSidecarsWithAPrefixUnderLoad(t *testing.T) {
	t.Parallel()
	const prefix, rounds = "app1:", 25
	r := harness.StartRedis(t)
	var fleet []*harness.Worker
	var commands []harness.Command
	for range 2 {
		host := harness.StartRedissonWithPrefix(t, r, prefix)
		d := harness.StartDaemon(t, r.TCPURL(), "--key-prefix="+prefix)
		for i, w := range []*harness.Worker{host.OnThread("fenced"), host.OnThread("lock"), harness.StartNthWorker(t, d, 0), harness.StartNthWorker(t, d, 1)} {
			c := harness.Hammer(r, rounds)
			if i < 2 {
				c.Object = []string{"fenced", "lock"}[i]
			} else {
				c.Key = prefix + c.Key // which the NameMapper does, too
			}
			fleet, commands = append(fleet, w), append(commands, c)
		}
	}
	all, want := runHammers(t, fleet, commands)
	r.MustDo("RENAME", prefix+"counter", "counter")
	harness.CheckCounter(t, r, all, want)
}
