package guarantees

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// What threads of Redisson programs do that docs/redisson.md warns of.

// An interrupt of lockInterruptibly comes while the script that takes the lock is on its way: the
// method throws, and Redis gives the lock to the thread. The watchdog renews it. A waiter here is
// refused with the same owner field each time, and the thread can unlock.
//
// Shows docs/redisson.md: An interrupt of.
func TestInterruptOfRedissonCanLeaveALockTaken(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	host := harness.StartRedissonWithWatchdog(t, r, 8000)
	const name = "left by an interrupt"
	host.Lock("the scripts are loaded")
	host.Unlock("the scripts are loaded")

	r.Signal(syscall.SIGSTOP)
	refused := host.Send(harness.Command{Do: "lock", Name: name, WaitMS: -1})
	harness.Eventually(t, "the thread waits for Redis", func() bool { return host.Must(harness.Command{Do: "is_waiting"}).Yes })
	host.Must(harness.Command{Do: "interrupt"})
	a := host.Await(refused)
	r.Signal(syscall.SIGCONT)
	if a.Err == "" || !strings.Contains(a.Msg, "RedisException") {
		t.Fatalf("the thread that was interrupted got %+v", a)
	}

	harness.Eventually(t, "the lock is taken", func() bool { return len(r.Fields(name)) == 1 })
	if a := host.Must(harness.Command{Do: "look", Name: name}); !a.Mine || a.Entries != 1 {
		t.Errorf("the thread that was interrupted finds %+v", a)
	}
	field := ""
	for f := range r.Fields(name) {
		field = f
	}
	before := r.CommandCalls(t.Context())["pexpire"]
	w := harness.StartGoWorker(t, d)
	for _, waitMS := range []int64{0, 300} {
		// A short wait may end before the daemon has answered what it waits for.
		harness.Eventually(t, "a client of a sidecar is refused with the owner field", func() bool {
			a := w.Try(harness.Command{Do: "lock", As: name, Name: name, WaitMS: waitMS})
			if a.Err == "" {
				t.Fatalf("a client of a sidecar is granted the lock of %s", field)
			}
			return strings.Contains(a.Msg, "held by "+field+", not on this host")
		})
	}
	// Three renewals are a lease.
	harness.Eventually(t, "the watchdog renews the lock", func() bool { return r.CommandCalls(t.Context())["pexpire"] >= before+4 })
	if fields := r.Fields(name); len(fields) != 1 || fields[field] != "1" {
		t.Errorf("after a lease the key has %v", fields)
	}
	host.Must(harness.Command{Do: "unlock", Name: name})
	mustBeFree(t, w, harness.Command{Name: name})
}

// A release here wakes one thread of each program, so the threads of a program in lock() need as
// many free moments as they are. Each is granted the lock, while clients of two hosts take it again
// and again.
//
// Shows docs/redisson.md: Free moments.
func TestManyThreadsOfRedissonShareTheFreeMoments(t *testing.T) {
	t.Parallel()
	const name, threads, grants = "wanted by many threads", 12, 3
	r := harness.StartRedis(t)
	end := harness.Contend(t, name, 3, harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.UnixURL()))
	hosts := []*harness.Worker{harness.StartRedisson(t, r), harness.StartRedisson(t, r)}
	var fleet []*harness.Worker
	var ended []<-chan harness.Answer
	for i := range threads {
		w := hosts[i%len(hosts)].OnThread(fmt.Sprint("thread ", i))
		fleet = append(fleet, w)
		ended = append(ended, w.Send(harness.Command{
			Do: "poll", Name: name, WaitMS: -1, Count: grants, Pause: 5, ForMS: (harness.Patience * 2 / 3).Milliseconds(),
		}))
	}
	longest := int64(0)
	for i, w := range fleet {
		a := w.Await(ended[i])
		if a.Err != "" || a.Grants < grants {
			t.Errorf("thread %d is granted the lock %d times, want %d: %s %s", i, a.Grants, grants, a.Err, a.Msg)
		}
		longest = max(longest, a.LongestNS)
	}
	held, _ := end()
	t.Logf("the longest wait of a thread was %d ms; the clients of the sidecars held the lock %d times", longest/1e6, held)
}
