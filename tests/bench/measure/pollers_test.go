package measure

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A lock that sidecars hand over between eight processes without a pause, or that one process has
// again and again; and a client on another host that requests it, too: how often it tries and is
// granted, how long it waits at most, and how often the processes have the lock meanwhile.
func TestMeasurePollers(t *testing.T) {
	measured(t)
	const name = "wanted"
	duration := window(10 * time.Second)

	// The end of a poll interrupts a thread that waits in Redisson. If Redis grants the lock at
	// that moment, no thread releases it, and Redisson renews it. So the client is closed
	// before the eight processes stop, and its leases are short. A spin lock has a fixed lease: the
	// longest wait of the processes is then not that for a lock that no thread releases.
	redisson := func(t *testing.T, r *harness.Redis) *harness.Worker {
		return harness.StartRedissonWithWatchdog(t, r, 3000)
	}
	sidecar := func(t *testing.T, r *harness.Redis) *harness.Worker {
		return harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL()))
	}
	unsubscribed := func(t *testing.T, r *harness.Redis) *harness.Worker {
		return harness.StartGoWorker(t, harness.StartDaemonWithoutSubscribe(t, r))
	}
	for _, c := range []struct {
		what   string
		start  func(*testing.T, *harness.Redis) *harness.Worker
		object string
		waitMS int64

		workers, hosts int
		threads        int // of the client; 0: one
	}{
		{"no other client", nil, "", 0, 8, 1, 0},
		{"RLock.tryLock(), each ms", redisson, "lock", 0, 8, 1, 0},
		{"RLock.tryLock(), each ms, against one process", redisson, "lock", 0, 1, 1, 0},
		{"RLock.tryLock(), each ms, against two hosts", redisson, "lock", 0, 8, 2, 0},
		{"RLock.tryLock(5 s)", redisson, "lock", 5000, 8, 1, 0},
		{"RLock.lock()", redisson, "lock", -1, 8, 1, 0},
		{"eight threads in RLock.lock(), against three hosts", redisson, "lock", -1, 9, 3, 8},
		{"NonReentrantLock.lock()", redisson, "nonreentrant", -1, 8, 1, 0},
		{"RFencedLock.tryLockAndGetToken(0), each ms", redisson, "fenced", 0, 8, 1, 0},
		{"RFencedLock.lockAndGetToken()", redisson, "fenced", -1, 8, 1, 0},
		{"RSpinLock.lock()", redisson, "spin", -1, 8, 1, 0},
		{"RFairLock.tryLock(), each ms", redisson, "fair", 0, 8, 1, 0},
		{"RFairLock.lock()", redisson, "fair", -1, 8, 1, 0},
		{"RMultiLock.tryLock(5 s), this one and a free one", redisson, "multi", 5000, 8, 1, 0}, // lock() cannot be interrupted
		{"another sidecar, wait_ms 0, each ms", sidecar, "", 0, 8, 1, 0},
		{"another sidecar, wait_ms 5000", sidecar, "", 5000, 8, 1, 0},
		{"another sidecar, no limit", sidecar, "", -1, 8, 1, 0},
		{"a sidecar without SUBSCRIBE, wait_ms 0, each ms", unsubscribed, "", 0, 8, 1, 0},
		{"a sidecar without SUBSCRIBE, wait_ms 5000", unsubscribed, "", 5000, 8, 1, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := harness.StartRedis(t)
			var w *harness.Worker
			if c.start != nil {
				w = c.start(t, r)
			}
			var hosts []*harness.Daemon
			for range c.hosts {
				hosts = append(hosts, harness.StartDaemon(t, r.UnixURL()))
			}
			end := harness.Contend(t, name, c.workers/c.hosts, hosts...)
			start := time.Now()
			result := ""
			if w == nil {
				time.Sleep(duration)
			} else {
				var polls []<-chan harness.Answer
				threads := []*harness.Worker{w}
				for i := 1; i < c.threads; i++ {
					threads = append(threads, w.OnThread(fmt.Sprint("thread ", i)))
				}
				leaseMS := int64(0)
				if c.object == "spin" {
					leaseMS = 200
				}
				for _, thread := range threads {
					polls = append(polls, thread.Send(harness.Command{
						Do: "poll", Name: name, Names: []string{name, "free"}, Object: c.object, WaitMS: c.waitMS, Lease: leaseMS,
						ForMS: duration.Milliseconds(), Pause: 1,
					}))
				}
				var sum harness.Answer
				var waits []int64
				for i, thread := range threads {
					a := thread.Await(polls[i])
					if a.Err != "" {
						t.Fatalf("%+v", a)
					}
					waits = append(waits, a.Waits...)
					sum.Tries, sum.Grants, sum.LongestNS = sum.Tries+a.Tries, sum.Grants+a.Grants, max(sum.LongestNS, a.LongestNS)
				}
				result = fmt.Sprintf("%6d tries %6d grants, longest wait %v", sum.Tries, sum.Grants, time.Duration(sum.LongestNS).Round(time.Millisecond))
				if len(waits) > 0 {
					slices.Sort(waits)
					result += ", p99 " + time.Duration(waits[(len(waits)-1)*99/100]).Round(time.Millisecond).String()
				}
			}
			took := time.Since(start)
			if c.object != "" {
				w.Disconnect()
			}
			grants, longest := end()
			row(c.what, "%-48s; the processes: %6.0f/s, longest wait %v", result, float64(grants)/took.Seconds(), longest.Round(time.Millisecond))
		})
	}
}
