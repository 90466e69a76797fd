package tests

import (
	"strings"
	"testing"
	"time"
)

// Redis is full and evicts nothing. What is held stays held: it is renewed,
// entered again, passed on to local waiters and released. What is free cannot be
// taken, and whoever wants it is told why, until there is memory again.
func TestFullRedis(t *testing.T) {
	r := startRedis(t, "--maxmemory-policy", "noeviction")
	here, there := startDaemon(t, r.unixURL(), "--lease=4s"), startDaemon(t, r.unixURL())
	workers := oneOfEach(t, here)
	holds := holdOne(r, workers, "held")
	other := startGoWorker(t, there)

	fill(t, r)
	nothingNew(t, here, workers, "out of memory", "raise maxmemory", "OOM")
	nothingNew(t, there, []*worker{other}, "out of memory", "raise maxmemory", "OOM")
	free := other.ask(command{Do: "lock", As: "free", Name: "free", WaitMS: -1})

	// Longer than a lease, with somebody who waits on the same host, and then with
	// a holder and an entry that Redis learns of only now.
	var names []string
	var granted []<-chan answer
	next := func(i int) *worker { return workers[(i+1)%len(workers)] }
	for i, h := range holds {
		names = append(names, h.name)
		granted = append(granted, waitFor(next(i), here, h.name))
	}
	renewed(t, r, names)
	for i, h := range holds {
		h.passesTo(next(i), granted[i])
	}
	renewed(t, r, names)
	for i, h := range holds {
		passed := held{worker: next(i), name: h.name}
		passed.check()
		if n := len(r.fields(h.name)); n != 1 {
			t.Errorf("%s has %d fields", h.name, n)
		}
		passed.unlock(h.name)
		eventually(t, h.name+" is released", func() bool { return len(r.fields(h.name)) == 0 })
	}
	select {
	case a := <-free:
		t.Errorf("a lock was taken in a full Redis: %+v", a)
	default:
	}

	r.do("DEL", "filler")
	if a := other.await(free); a.Err != "" {
		t.Errorf("with memory again the waiter is told %+v", a)
	}
	for _, h := range holds {
		if a := h.lock(h.name); a.Token <= h.token {
			t.Errorf("%s: token %d after %d", h.name, a.Token, h.token)
		}
	}
}

// fill fills r with a key that can be deleted.
func fill(t *testing.T, r *redisServer) {
	t.Helper()
	megabyte := strings.Repeat("x", 1<<20)
	for range 16 {
		r.do("RPUSH", "filler", megabyte)
	}
	r.do("CONFIG", "SET", "maxmemory", "10mb")
}

// renewed waits until each lock was renewed more often than once in a lease.
func renewed(t *testing.T, r *redisServer, names []string) {
	t.Helper()
	rose, last := map[string]int{}, map[string]time.Duration{}
	eventually(t, "every lock is renewed", func() bool {
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
