package clientfaults

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A process of another user sends whatever the protocol allows, as fast as it can, over as
// many connections as it gets. A neighbour keeps its lock, because it is renewed in time, and
// its requests are answered.
//
// Shows docs/guarantees.md: Sends as fast as it can.
func TestHostileProcessCostsNoOtherProcessALock(t *testing.T) {
	t.Parallel()
	size := func(n int) int {
		if harness.RaceEnabled || testing.Short() {
			return min(n, 200) // the daemon is some ten times as slow
		}
		return min(n, harness.Pick(1000, 50_000))
	}
	seen := make(map[string]bool)
	for _, a := range harness.Attacks {
		if a.Kind == "burn" || a.Kind == "max_hold" {
			continue // the former is no attack, the latter takes twelve seconds to prepare
		}
		if seen[a.Kind] && !harness.Long() {
			continue // the same with more connections
		}
		seen[a.Kind] = true
		t.Run(a.Description, func(t *testing.T) {
			r := harness.StartRedis(t)
			d := harness.StartDaemonForAllUsers(t, r, "--lease=12s")
			c := harness.Dial(t, d)
			held, err := c.Lock(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			attack, _ := harness.StartAttack(t, d, harness.Attack{Kind: a.Kind, Size: size(a.Size)})
			pairs := len(harness.TimePairs(t, c, 200*time.Millisecond))
			awaitRenewals(t, r, "held", 1)
			attack.Kill()
			pairs += len(harness.TimePairs(t, c, 100*time.Millisecond))
			select {
			case <-held.Done():
				t.Errorf("the lock is lost: %v", held.Err())
			default:
			}
			if err := held.Unlock(); err != nil {
				t.Error(err)
			}
			t.Logf("%d pairs", pairs)
			harness.Eventually(t, "the locks of the attacker are free", func() bool {
				return len(r.Keys(t.Context(), "many:*").Val()) == 0
			})
		})
	}
}

// One user opens as many sessions and acquires as many locks as the daemon grants. Another
// user still gets some, and root can list the locks and release them by force.
//
// Shows docs/guarantees.md: Takes all it can get.
func TestOneUserLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
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
	d.Log.AwaitWords(t, "client forced the release of a lock", "lock=crowd:7", "force-release crowd:7", "uid=0")
}
