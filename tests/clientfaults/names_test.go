package clientfaults

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A local user without rights has several clients acquire a lock whose name is near to the channel of
// a sidecar, to the keys of a lock that two hosts want, or to those of a host. Names that are not the
// user's are refused. Both hosts are still granted the lock, and pass it on to each other; their
// channels stay subscribed; and a host that died is not taken for one that lives.
// TestMeasureNameAttacks in tests/bench/measure counts the grants.
//
// Shows docs/redisson.md: A name in braces.
func TestNamesNearToThoseOfSidecarsHarmNoOtherLock(t *testing.T) {
	t.Parallel()
	const lock = "wanted by two hosts"
	r := harness.StartRedis(t)
	attacked := harness.StartDaemonForAllUsers(t, r)
	other, gone := harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.UnixURL(), "--lease=10m")
	own, others, dead := harness.UUIDOf(t, r, attacked), harness.UUIDOf(t, r, other), harness.UUIDOf(t, r, gone)
	gone.Kill()
	harness.Eventually(t, "Redis has noticed the end of the host", func() bool { return !r.IsReached(dead) })
	users := harness.StartUsers(t, lock, 2, attacked, other)
	users.AwaitGrants(0, 1)
	users.AwaitGrants(1, 1)
	for _, a := range harness.NameAttacks(lock, own, others, dead) {
		t.Run(a.Description, func(t *testing.T) {
			attacker, counts := harness.StartNameAttack(t, attacked, a.Name)
			harness.Eventually(t, "the attack is answered", func() bool {
				granted, refused := counts()
				return granted+refused >= 8
			})
			transfers := transfersTo(t, attacked)
			for range 10 {
				users.AwaitGrants(0, 5)
				users.AwaitGrants(1, 5)
				if !r.IsReached(own) || !r.IsReached(others) {
					t.Fatal("a sidecar is not subscribed to its channel any more")
				}
				if r.IsReached(dead) {
					t.Fatal("the dead sidecar seems to be subscribed to its channel")
				}
			}
			harness.Eventually(t, "the attacked host is passed the lock", func() bool { return transfersTo(t, attacked) > transfers })
			switch granted, refused := counts(); {
			case a.IsAllowed && (granted == 0 || refused > 0):
				t.Errorf("%s is granted %d times, and refused %d times", a.Name, granted, refused)
			case !a.IsAllowed && granted > 0:
				t.Errorf("%s is reserved, and is granted %d times", a.Name, granted)
			}
			attacker.Kill()
		})
	}
}

// While clients of a host wait for {x}, no sidecar is subscribed to its channel, which is that of x:
// a subscriber would count as a program for which sidecars leave x free.
//
// Shows docs/redisson.md: A name in braces.
func TestWaitersForANameInBracesAreNoSubscribersOfTheOther(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	holding, d := harness.StartDaemonForAllUsers(t, r), harness.StartDaemonForAllUsers(t, r)
	// A foreign client has it, for whose release a sidecar would subscribe.
	r.MustDo("HSET", "{x}", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
	for _, host := range []*harness.Daemon{holding, d} {
		harness.StartGoWorker(t, host).Enqueue(host, "{x}")
	}
	before := r.CommandCalls(t.Context())["pttl"]
	harness.Eventually(t, "the hosts have asked again", func() bool { return r.CommandCalls(t.Context())["pttl"] >= before+6 })
	if n := r.Subscribers("x"); n != 0 {
		t.Errorf("%d connections are subscribed to the channel of x", n)
	}
	r.MustDo("DEL", "{x}")
}

// transfersTo returns how often other hosts have passed a lock on to a host.
func transfersTo(t testing.TB, d *harness.Daemon) int {
	t.Helper()
	got := d.Run("metrics")
	m := regexp.MustCompile(`locksidecar_handoffs_total\{[^}]*"transfer"[^}]*\} (\d+)`).FindStringSubmatch(got.Stdout)
	if m == nil {
		t.Fatalf("the metrics have no transfers: exit code %d, %s", got.Code, got.Stderr)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
