package tests

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// Redis is full and evicts nothing. What is held stays held: it is renewed,
// entered again, passed on to local waiters and released. What is free cannot be
// taken, and whoever wants it is told why, until there is memory again.
func TestFullRedis(t *testing.T) {
	r := harness.StartRedis(t, "--maxmemory-policy", "noeviction")
	here, there := harness.StartDaemon(t, r.UnixURL(), "--lease=4s"), harness.StartDaemon(t, r.UnixURL())
	workers := harness.StartWorkerPerSDK(t, here)
	holds := harness.LockEach(r, workers, "held")
	other := harness.StartGoWorker(t, there)

	fill(t, r)
	nothingNew(t, here, workers, "out of memory", "raise maxmemory", "OOM")
	nothingNew(t, there, []*harness.Worker{other}, "out of memory", "raise maxmemory", "OOM")
	free := other.Send(harness.Command{Do: "lock", As: "free", Name: "free", WaitMS: -1})

	// Longer than a lease, with somebody who waits on the same host, and then with
	// a holder and an entry that Redis learns of only now.
	var names []string
	var granted []<-chan harness.Answer
	next := func(i int) *harness.Worker { return workers[(i+1)%len(workers)] }
	for i, h := range holds {
		names = append(names, h.Name)
		granted = append(granted, next(i).Enqueue(here, h.Name))
	}
	renewed(t, r, names)
	for i, h := range holds {
		h.PassTo(next(i), granted[i])
	}
	renewed(t, r, names)
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
		t.Errorf("a lock was taken in a full Redis: %+v", a)
	default:
	}

	r.MustDo("DEL", "filler")
	if a := other.Await(free); a.Err != "" {
		t.Errorf("with memory again the waiter is told %+v", a)
	}
	for _, h := range holds {
		if a := h.Lock(h.Name); a.Token <= h.Token {
			t.Errorf("%s: token %d after %d", h.Name, a.Token, h.Token)
		}
	}
}

// fill fills r with a key that can be deleted.
func fill(t *testing.T, r *harness.Redis) {
	t.Helper()
	megabyte := strings.Repeat("x", 1<<20)
	for range 16 {
		r.MustDo("RPUSH", "filler", megabyte)
	}
	r.MustDo("CONFIG", "SET", "maxmemory", "10mb")
}

// renewed waits until each lock was renewed more often than once in a lease.
func renewed(t *testing.T, r *harness.Redis, names []string) {
	t.Helper()
	rose, last := map[string]int{}, map[string]time.Duration{}
	harness.Eventually(t, "every lock is renewed", func() bool {
		done := true
		for _, name := range names {
			ttl := r.PTTL(t.Context(), name).Val()
			if ttl <= 0 {
				t.Fatalf("%s is gone from Redis", name)
			}
			if ttl > last[name] {
				rose[name]++ // at the first sight, too
			}
			last[name] = ttl
			done = done && rose[name] > 4
		}
		return done
	})
}
