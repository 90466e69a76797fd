package measure

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A lock that a process uses for 1 % of the time, at several periods, and a client elsewhere that
// tries it each 20 to 80 ms, or waits for it: how often a try is refused, and how long a wait is.
// With --linger=0 the share of refusals is that of the time for which the lock is taken: while
// the process has it, and on the way to Redis and back.
func TestMeasureUsersOfALockThatLingers(t *testing.T) {
	measured(t)
	const name = "used"
	tries := count(100)
	redisson := func(t *testing.T, r *harness.Redis) *harness.Worker {
		return harness.StartRedissonWithWatchdog(t, r, 3000)
	}
	sidecar := func(t *testing.T, r *harness.Redis) *harness.Worker {
		return harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL()))
	}
	for _, setting := range []string{"--linger=0", "--linger=5ms"} {
		for _, c := range []struct {
			what   string
			start  func(*testing.T, *harness.Redis) *harness.Worker
			waitMS int64
		}{
			{"RLock.tryLock()", redisson, 0},
			{"RLock.lock()", redisson, -1},
			{"a try of another sidecar", sidecar, 0},
			{"a wait of another sidecar", sidecar, -1},
		} {
			for _, period := range []time.Duration{0, time.Millisecond, 2 * time.Millisecond, 6 * time.Millisecond, 20 * time.Millisecond} {
				what := fmt.Sprintf("%s, used each %v: %s", setting, period, c.what)
				t.Run(what, func(t *testing.T) {
					r := harness.StartRedis(t)
					w := c.start(t, r)
					end := usePeriodically(t, harness.StartDaemon(t, r.UnixURL(), setting), name, period)
					refused, waits := 0, []int64(nil)
					for range tries {
						time.Sleep(20*time.Millisecond + rand.N(60*time.Millisecond))
						// The runtime ends several sleeps at one time: the tries must not follow the uses.
						for spin, begun := rand.N(period+1), time.Now(); time.Since(begun) < spin; {
						}
						asked := protocol.Now()
						if a := w.Try(harness.Command{Do: "lock", As: name, Name: name, WaitMS: c.waitMS}); a.Err != "" {
							refused++
							continue
						}
						waits = append(waits, protocol.Now()-asked)
						w.Unlock(name)
					}
					used := end()
					slices.Sort(waits)
					if len(waits) == 0 {
						waits = []int64{0}
					}
					row(what, "%3d %% refused; wait p50 %s  p99 %s; the process: pairs p50 %s  p99 %s", 100*refused/tries,
						ms(waits[(len(waits)-1)/2]), ms(waits[(len(waits)-1)*99/100]), ms(used[(len(used)-1)/2]), ms(used[(len(used)-1)*99/100]))
				})
			}
		}
	}
}

// usePeriodically has a client acquire a lock, hold it for a hundredth of the period, release
// it and sleep for a period, again and again. end stops it, and returns the time of each acquire, sorted.
func usePeriodically(t *testing.T, d *harness.Daemon, name string, period time.Duration) (end func() []int64) {
	c := harness.Dial(t, d)
	var stop atomic.Bool
	times := make(chan []int64, 1)
	go func() {
		var took []int64
		for !stop.Load() {
			time.Sleep(period)
			asked := time.Now()
			l, err := c.Lock(t.Context(), name)
			if err != nil {
				t.Error(err)
				break
			}
			took = append(took, int64(time.Since(asked)))
			for held := time.Now(); time.Since(held) < period/100; {
			}
			if err := l.Unlock(); err != nil {
				t.Error(err)
				break
			}
		}
		slices.Sort(took)
		times <- took
	}()
	return func() []int64 {
		stop.Store(true)
		return <-times
	}
}
