package redisfaults

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// Redis is full and evicts nothing. Holds stay: they are renewed, handed over to local
// waiters and released. Requests for free locks are refused with the reason until there is
// memory again.
//
// Shows docs/guarantees.md: Full.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t, "--maxmemory-policy", "noeviction")
	here, there := harness.StartDaemon(t, r.UnixURL(), "--lease=3s"), harness.StartDaemon(t, r.UnixURL())
	workers := harness.StartWorkerPerSDK(t, here)
	holds := harness.LockEach(r, workers, "held")
	other := harness.StartGoWorker(t, there)

	fill(t, r)
	checkUnavailable(t, here, workers, "out of memory", "raise maxmemory", "OOM")
	checkUnavailable(t, there, []*harness.Worker{other}, "out of memory", "raise maxmemory", "OOM")
	free := other.Send(harness.Command{Do: "lock", As: "free", Name: "free", WaitMS: -1})

	// For longer than a lease: first while local clients wait, then with holders to which the
	// locks were handed over, so that Redis has to store other fields.
	var names []string
	var granted []<-chan harness.Answer
	next := func(i int) *harness.Worker { return workers[(i+1)%len(workers)] }
	for i, h := range holds {
		names = append(names, h.Name)
		granted = append(granted, next(i).Enqueue(here, h.Name))
	}
	awaitRenewals(t, r, names)
	for i, h := range holds {
		h.PassTo(next(i), granted[i])
	}
	awaitRenewals(t, r, names)
	for i, h := range holds {
		passed := harness.Hold{Worker: next(i), Name: h.Name}
		passed.CheckHeld()
		if n := len(r.Fields(h.Name)); n != 1 {
			t.Errorf("%s has %d fields", h.Name, n)
		}
		passed.Unlock(h.Name)
		harness.Eventually(t, h.Name+" is released", func() bool { return len(r.Fields(h.Name)) == 0 })
	}
	select {
	case a := <-free:
		t.Errorf("a lock was granted by a full Redis: %+v", a)
	default:
	}

	r.MustDo("DEL", "filler")
	if a := other.Await(free); a.Err != "" {
		t.Errorf("with memory again, the waiter got %+v", a)
	}
	for _, h := range holds {
		if a := h.Lock(h.Name); a.Token <= h.Token {
			t.Errorf("%s: token %d after %d", h.Name, a.Token, h.Token)
		}
	}
}

// fill fills r with the key "filler", which can be deleted.
func fill(t *testing.T, r *harness.Redis) {
	t.Helper()
	megabyte := strings.Repeat("x", 1<<20)
	for range 16 {
		r.MustDo("RPUSH", "filler", megabyte)
	}
	r.MustDo("CONFIG", "SET", "maxmemory", "10mb")
}

// awaitRenewals waits until each lock was renewed more often than in one lease.
func awaitRenewals(t *testing.T, r *harness.Redis, names []string) {
	t.Helper()
	rose, last := map[string]int{}, map[string]time.Duration{}
	harness.Eventually(t, "every lock is renewed", func() bool {
		done := true
		for _, name := range names {
			ttl := r.PTTL(t.Context(), name).Val()
			if ttl <= 0 {
				t.Fatalf("%s is not in Redis any more", name)
			}
			if ttl > last[name] {
				rose[name]++ // the first value counts, too
			}
			last[name] = ttl
			done = done && rose[name] > 4
		}
		return done
	})
}
