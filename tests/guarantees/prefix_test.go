package guarantees

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// For daemons with different key prefixes, one name stands for different locks. Daemons with
// the same prefix exclude and wake each other. Each prefix has its own keys in Redis.
func TestKeyPrefixesSeparateTheLocksOfOneRedis(t *testing.T) {
	t.Parallel()
	const name = "order:42"
	r := harness.StartRedis(t)
	r.MustDo("SET", "another program's "+name, "value")
	type host struct {
		prefix string
		d      *harness.Daemon
		c      *locksidecar.Client
	}
	var hosts []host
	for _, prefix := range []string{"", "app1:", "app2:", "{app2}:", "redisson_lock"} {
		d := harness.StartDaemon(t, r.UnixURL(), "--lease=10m", "--key-prefix="+prefix)
		hosts = append(hosts, host{prefix, d, harness.Dial(t, d)})
	}
	var held []*locksidecar.Lock
	keys := []string{"another program's " + name}
	for _, h := range hosts {
		l, err := h.c.TryLock(t.Context(), name)
		if err != nil {
			t.Fatalf("with prefix %q: %v", h.prefix, err)
		}
		held = append(held, l)
		derived := "{" + h.prefix + name + "}"
		if strings.Contains(h.prefix, "{") {
			derived = h.prefix + name
		}
		keys = append(keys, h.prefix+name, "redisson_lock_token:"+derived)
		checkLayout(t, r, h.prefix+name, "1")
		what := "Redis at " + r.Socket() + "/0, run id "
		if out := h.d.Run("ping"); h.prefix != "" && !strings.HasSuffix(out.Stdout, fmt.Sprintf(", key prefix %q\n", h.prefix)) ||
			h.prefix == "" && strings.Contains(out.Stdout, "key prefix") || !strings.Contains(out.Stdout, what) {
			t.Errorf("with prefix %q, ping prints %q", h.prefix, out.Stdout)
		}
		rows, err := h.c.List(t.Context())
		if err != nil || len(rows) != 1 || rows[0].Name != name {
			t.Errorf("with prefix %q, the locks are %+v, %v", h.prefix, rows, err)
		}
	}
	slices.Sort(keys)
	if got := keysOfLocks(t, r); !slices.Equal(got, keys) {
		t.Errorf("Redis has the keys %q, want %q", got, keys)
	}

	for i, h := range hosts[:3] {
		twin := harness.StartDaemon(t, r.UnixURL(), "--lease=10m", "--key-prefix="+h.prefix)
		if _, err := harness.Dial(t, twin).TryLock(t.Context(), name); !errors.Is(err, locksidecar.ErrHeld) || strings.Contains(err.Error(), "app") {
			t.Errorf("another host with prefix %q: %v", h.prefix, err)
		}
		w := harness.StartNthWorker(t, twin, i)
		granted := w.Enqueue(twin, name)
		harness.Eventually(t, "the other host has subscribed", func() bool { return r.Subscribers(h.prefix+name) == 1 })
		if err := held[i].Unlock(); err != nil {
			t.Fatal(err)
		}
		if a := w.Await(granted); a.Err != "" || a.Token <= held[i].Token() {
			t.Errorf("the waiter with prefix %q got %+v after token %d", h.prefix, a, held[i].Token())
		}
	}
}

// A daemon with a prefix ignores a key of another program that has the name of a lock. It
// refuses a lock whose key another program uses, and names that key as it is in Redis.
func TestKeyPrefixKeepsOtherDataApart(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	r.MustDo("SET", "report", "value")
	r.MustDo("RPUSH", "app1:queue", "value")
	c := harness.Dial(t, harness.StartDaemon(t, r.UnixURL(), "--key-prefix=app1:"))
	l, err := c.TryLock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	_, err = c.TryLock(t.Context(), "queue")
	harness.CheckError(t, err, locksidecar.ErrDenied, `"app1:queue"`, `the lock "queue"`, "list")
	_, err = harness.Dial(t, harness.StartDaemon(t, r.UnixURL())).TryLock(t.Context(), "report")
	harness.CheckError(t, err, locksidecar.ErrDenied, `"report"`, "string")
}

// A daemon that is started with another prefix does not restore the holds of its predecessor.
// The SDKs report the locks as lost, the log says why, and the old keys expire.
//
// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
func TestRestartWithAnotherKeyPrefixLosesTheHolds(t *testing.T) {
	t.Parallel()
	const name = "kept"
	r := harness.StartRedis(t)
	for i, prefix := range []string{"", "app1:"} {
		d := harness.StartDaemon(t, r.UnixURL(), "--lease=3s", "--key-prefix=app0:")
		w := harness.StartNthWorker(t, d, i)
		w.Lock(name)
		owner := checkLayout(t, r, "app0:"+name, "1")
		d.Kill()
		d.Start("--lease=3s", "--key-prefix="+prefix)
		d.AwaitSocket()
		d.AwaitRedis("ok")
		d.Log.AwaitWords(t, fmt.Sprintf(`key prefix was \"app0:\" when the state was written, and is \"%s\" now`, prefix))
		if a := w.Try(harness.Command{Do: "lost", As: name}); a.Reason != string(protocol.Forgotten) && a.Reason != string(protocol.Expired) {
			t.Errorf("the SDK of the holder reports %+v", a)
		}
		// The lock was neither renewed nor released, under both keys.
		if fields := r.Fields(prefix + name); len(fields) != 0 {
			t.Errorf("under the new key there is %v", fields)
		}
		harness.Eventually(t, "the old key expires", func() bool {
			fields := r.Fields("app0:" + name)
			if _, ok := fields[owner]; !ok && len(fields) != 0 {
				t.Fatalf("under the old key there is %v", fields)
			}
			return len(fields) == 0
		})
		harness.StartNthWorker(t, d, i).Lock(name)
		checkLayout(t, r, prefix+name, "1")
		r.MustDo("FLUSHALL")
	}
}

// keysOfLocks returns the keys of Redis, sorted, without those in which daemons publish their host,
// and the token counters of their probes. A daemon writes these within some milliseconds of its start,
// and then each minute.
func keysOfLocks(t *testing.T, r *harness.Redis) []string {
	t.Helper()
	keys := slices.DeleteFunc(r.Keys(t.Context(), "*").Val(), func(key string) bool {
		return strings.HasPrefix(key, "locksidecar_host") || strings.Contains(key, "locksidecar_probe")
	})
	slices.Sort(keys)
	return keys
}
