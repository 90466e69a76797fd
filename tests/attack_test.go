package tests

import (
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A hostile local user: a process that sends whatever the protocol allows, as fast as it
// can, over as many connections as it gets. Neighbours are safe from it (invariant 7):
// their locks are renewed in time, and their requests are answered.

// ---- the attacker's side ------------------------------------------------------

// ---- the test's side ----------------------------------------------------------

// shortestTTL samples how long a lock still lives in Redis, until stopped.
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

// Whatever a hostile process does, no other process loses a lock, and each gets answers.
func TestHostileProcessCostsNobodyALock(t *testing.T) {
	size := func(n int) int {
		if harness.RaceEnabled || testing.Short() {
			return min(n, 200) // the daemon is some ten times as slow
		}
		return min(n, 50_000)
	}
	for _, a := range harness.Attacks {
		if a.Kind == "burn" || a.Kind == "max_hold" {
			continue // no attack; and one that takes twelve seconds to prepare
		}
		t.Run(a.Description, func(t *testing.T) {
			r := harness.StartRedis(t)
			d := harness.StartDaemonForAllUsers(t, r, "--lease=3s")
			c := harness.Dial(t, d)
			held, err := c.Lock(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			attack, _ := harness.StartAttack(t, d, harness.Attack{Kind: a.Kind, Size: size(a.Size)})
			pairs := len(harness.TimePairs(t, c, time.Second))
			attack.Kill()
			pairs += len(harness.TimePairs(t, c, 300*time.Millisecond))
			select {
			case <-held.Done():
				t.Errorf("the lock is lost: %v", held.Err())
			default:
			}
			if err := held.Unlock(); err != nil {
				t.Error(err)
			}
			t.Logf("%d pairs", pairs)
			harness.Eventually(t, "what the attacker held is given back", func() bool {
				return len(r.Keys(t.Context(), "many:*").Val()) == 0
			})
		})
	}
}

// A user takes all sessions and locks that it gets. Others get some all the same, and root
// sees what is there, and ends it.
func TestOneUserLeavesRoomForOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have a process of another user")
	}
	r := harness.StartRedis(t)
	d := harness.StartDaemonForAllUsers(t, r, "--max-sessions=32", "--max-locks=64")
	_, got := harness.StartAttack(t, d, harness.AttackCrowd)
	if want := []int64{24, 48}; !slices.Equal(got, want) {
		t.Errorf("one user got %v sessions and locks, want %v: three quarters", got, want)
	}
	c := harness.Dial(t, d)
	if _, err := c.TryLock(t.Context(), "mine"); err != nil {
		t.Error(err)
	}
	if got := d.Run("ls"); got.Code != 0 || !strings.Contains(got.Stdout, "crowd:7") {
		t.Errorf("ls: exit code %d, %s %s", got.Code, got.Stdout, got.Stderr)
	}
	if got := d.Run("force-release", "crowd:7"); got.Code != 0 {
		t.Errorf("force-release: exit code %d, %s", got.Code, got.Stderr)
	}
	harness.CheckContains(t, d.Log.String(), "client forced the release of a lock", "lock=crowd:7", "force-release crowd:7", "uid=0")
}

// What a hostile process costs its neighbours: time of a pair, lateness of a renewal,
// memory of the daemon.
func TestMeasureAttacks(t *testing.T) {
	measured(t)
	const lease = 3 * time.Second
	for _, a := range harness.Attacks {
		t.Run(a.Description, func(t *testing.T) {
			r := harness.StartRedis(t)
			d := harness.StartDaemonForAllUsers(t, r, "--lease="+lease.String())
			c := harness.Dial(t, d)
			held, err := c.Lock(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			quiet := harness.TimePairs(t, c, 3*time.Second)
			attack, _ := harness.StartAttack(t, d, a)
			stop := shortestTTL(t, r, "held")
			if a.Kind == "hold" {
				attack.Signal(syscall.SIGKILL)
			}
			under := harness.TimePairs(t, c, 6*time.Second)
			late := lease - lease/3 - stop()
			memory := harness.ResidentMemory(t, d.PID())
			killed := time.Now()
			attack.Kill()
			harness.TimePairs(t, c, time.Nanosecond)
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
