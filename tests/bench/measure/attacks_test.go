package measure

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// shortestTTL reads the time to live of a lock in Redis until stop is called, which returns
// the shortest one.
func shortestTTL(t testing.TB, r *harness.Redis, name string) (stop func() time.Duration) {
	var end atomic.Bool
	var wg sync.WaitGroup
	shortest := time.Hour
	wg.Go(func() {
		every := time.NewTicker(5 * time.Millisecond)
		defer every.Stop()
		for !end.Load() {
			if ttl := r.PTTL(t.Context(), name).Val(); ttl < shortest {
				shortest = ttl
			}
			<-every.C
		}
	})
	return func() time.Duration {
		end.Store(true)
		wg.Wait()
		return shortest
	}
}

// What an attack costs: how long a neighbour's pairs take, how late its renewals are, and how
// much memory the daemon uses.
//
// Shows docs/guarantees.md: Sends as fast as it can.
func TestMeasureAttacks(t *testing.T) { measureAttacks(t, harness.Attacks) }

// The same, if a policy limits how many requests a second each user but root may send.
func TestMeasureAttacksUnderAPolicy(t *testing.T) {
	settings := filepath.Join(t.TempDir(), "settings.toml")
	if err := os.WriteFile(settings, []byte("[[policy]]\nname = \"guests\"\nrequests_per_second = 1000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A user that may send 1,000 requests a second cannot acquire 100,000 locks in the time of a run.
	needsManyLocks := func(a harness.Attack) bool { return a.Kind == "max_hold" || a.Kind == "hold" }
	measureAttacks(t, slices.DeleteFunc(slices.Clone(harness.Attacks), needsManyLocks), "--config="+settings)
}

func measureAttacks(t *testing.T, attacks []harness.Attack, args ...string) {
	measured(t)
	const lease = 3 * time.Second
	for _, a := range attacks {
		if testing.Short() && a.Kind == "max_hold" {
			continue // it takes twelve seconds to prepare
		}
		if testing.Short() {
			a.Size = min(a.Size, 200)
		}
		t.Run(a.Description, func(t *testing.T) {
			r := harness.StartRedis(t)
			d := harness.StartDaemonForAllUsers(t, r, append(args, "--lease="+lease.String())...)
			c := harness.Dial(t, d)
			held, err := c.Lock(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			quiet := harness.TimePairs(t, c, window(3*time.Second))
			attack, _ := harness.StartAttack(t, d, a)
			stop := shortestTTL(t, r, "held")
			if a.Kind == "hold" {
				attack.Signal(syscall.SIGKILL)
			}
			under := harness.TimePairs(t, c, window(6*time.Second))
			late := lease - lease/3 - stop()
			memory := harness.ResidentMemory(t, d.PID())
			killed := time.Now()
			attack.Kill()
			harness.TimePairs(t, c, 0)
			after := time.Since(killed)
			p := func(took []int64, q int) int64 { return took[len(took)*q/1000] }
			if err := held.Err(); err != nil {
				t.Errorf("the lock is lost: %v", err)
			}
			row(a.Description, "quiet p50 %s p99 %s  under p50 %s (%.1f×) p99 %s (%.1f×) max %s; renewal at %.0f %% of the lease late; %d MiB; next pair after it %s",
				ms(p(quiet, 500)), ms(p(quiet, 990)), ms(p(under, 500)), float64(p(under, 500))/float64(p(quiet, 500)),
				ms(p(under, 990)), float64(p(under, 990))/float64(p(quiet, 990)), ms(under[len(under)-1]),
				100*late.Seconds()/lease.Seconds(), memory>>20, ms(int64(after)))
		})
	}
}

// What names that are near to those of sidecars or of another lock cost a lock that two hosts want,
// if a local user of one of them acquires such a name with several clients: grants before and
// during the attack, of the attacked host and of the other one.
func TestMeasureNameAttacks(t *testing.T) {
	measured(t)
	const lock = "wanted by two hosts"
	names := harness.NameAttacks(lock, "", "", "")
	for i := range names {
		t.Run(names[i].Description, func(t *testing.T) {
			r := harness.StartRedis(t)
			attacked := harness.StartDaemonForAllUsers(t, r)
			other, gone := harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.UnixURL())
			a := harness.NameAttacks(lock, harness.UUIDOf(t, r, attacked), harness.UUIDOf(t, r, other), harness.UUIDOf(t, r, gone))[i]
			gone.Kill()
			users := harness.StartUsers(t, lock, 2, attacked, other)
			users.AwaitGrants(0, 1)
			users.AwaitGrants(1, 1)
			count := func() (grants [2]int64) {
				from := [2]int64{users.Grants(0), users.Grants(1)}
				time.Sleep(window(8 * time.Second))
				return [2]int64{users.Grants(0) - from[0], users.Grants(1) - from[1]}
			}
			before := count()
			_, counts := harness.StartNameAttack(t, attacked, a.Name)
			during := count()
			granted, refused := counts()
			row(a.Description, "attacked host %d, then %d grants; other host %d, then %d; the attacker: %d granted, %d refused",
				before[0], during[0], before[1], during[1], granted, refused)
		})
	}
}
