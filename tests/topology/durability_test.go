package topology

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// awaitConfirmations waits until so many replicas confirm what a server executes: up to a second after
// they have its data.
func awaitConfirmations(t *testing.T, r *harness.Redis, replicas int) {
	t.Helper()
	r.MustDo("SET", "started", 1)
	if n, err := r.Wait(t.Context(), replicas, 30*time.Second).Result(); err != nil || n < int64(replicas) {
		t.Fatalf("%d replicas confirm: %v", n, err)
	}
	r.MustDo("DEL", "started")
}

// startConfirmed starts a daemon with a durability, whose replicas confirm.
func startConfirmed(t *testing.T, master *harness.Redis, url string, args ...string) *harness.Daemon {
	t.Helper()
	awaitConfirmations(t, master, 1)
	return harness.StartDaemon(t, url, append([]string{"--durability=replicas:1"}, args...)...)
}

// cutReplication ends what a replica gets of its master, and returns what promotes it.
type cutReplication func(t *testing.T, link *harness.Proxy, replica *harness.Redis) (promote func())

const networkLoses = "the network loses the stream"

var waysToCut = map[string]cutReplication{
	"the replica stops": func(t *testing.T, _ *harness.Proxy, replica *harness.Redis) func() {
		replica.Signal(syscall.SIGSTOP)
		return func() {
			replica.Signal(syscall.SIGCONT)
			replica.MustDo("REPLICAOF", "NO", "ONE")
		}
	},
	networkLoses: func(t *testing.T, link *harness.Proxy, replica *harness.Redis) func() {
		link.Blackhole(harness.FromRedis)
		return func() { replica.MustDo("REPLICAOF", "NO", "ONE") }
	},
}

// failedOver has clients of one daemon take locks until after the replica is cut off, kills the
// master, promotes the replica, and has a client at the new master try all that was granted. It
// returns how many were granted, refused, and granted again while their holders believed in them.
func failedOver(t *testing.T, random *rand.Rand, way string, durability string) (granted, refused, again int) {
	master := harness.StartRedis(t, "--repl-diskless-sync-delay", "0")
	replica := harness.StartRedis(t, "--repl-diskless-sync-delay", "0")
	link := harness.StartProxy(t, master)
	replica.MustDo("REPLICAOF", "127.0.0.1", link.Port())
	awaitConfirmations(t, master, 1)
	first := harness.StartDaemon(t, master.TCPURL(), "--durability="+durability, "--lease=30s")

	var mu sync.Mutex
	var held []*locksidecar.Lock
	var failed atomic.Int64
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for g := range 4 {
		c := harness.Dial(t, first)
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				lock, err := c.TryLock(ctx, fmt.Sprintf("order:%d:%d", g, i))
				if err != nil {
					failed.Add(1)
					continue
				}
				mu.Lock()
				held = append(held, lock)
				mu.Unlock()
			}
		})
	}
	harness.Eventually(t, "locks are granted", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(held) > 20
	})
	time.Sleep(time.Duration(random.Int64N(int64(20 * time.Millisecond)))) // it stands for no event: the moment of each fault is random
	promote := waysToCut[way](t, link, replica)
	mu.Lock()
	before := len(held)
	mu.Unlock()
	time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
	if durability == "none" && way == networkLoses {
		harness.Eventually(t, "locks are granted that the replica does not get", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(held) > before+20
		})
	}
	master.Kill()
	stop()
	wg.Wait()
	promote()

	second := harness.StartDaemon(t, replica.TCPURL())
	c := harness.Dial(t, second)
	mu.Lock()
	defer mu.Unlock()
	for _, lock := range held {
		if lock.Err() != nil {
			t.Fatalf("a hold ended: %v", lock.Err())
		}
		if twice, err := c.TryLock(t.Context(), lock.Name()); err == nil {
			again++
			if twice.Token() <= lock.Token() {
				t.Errorf("token %d is granted after %d", twice.Token(), lock.Token())
			}
		}
	}
	return len(held), int(failed.Load()), again
}

// The danger: the new master does not have a lock that a client holds, and a second client gets it.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
// Shows docs/decisions/0047-durability.md: Measured.
func TestFailoverKeepsLocksThatReplicasConfirmed(t *testing.T) {
	t.Parallel()
	for way := range waysToCut {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			random := harness.Random(t)
			for _, durability := range []string{"replicas:1", "none"} {
				for range harness.Pick(1, 3) {
					granted, refused, again := failedOver(t, random, way, durability)
					t.Logf("durability %s: %d granted, %d refused, %d granted again while they were held", durability, granted, refused, again)
					if granted == 0 {
						t.Error("no lock was granted")
					}
					if durability != "none" && again > 0 {
						t.Errorf("%d locks were granted again", again)
					}
					// A replica that stops has what it was sent in its buffers, and may have all.
					if durability == "none" && way == networkLoses && again == 0 {
						t.Error("no lock was granted again without durability: the replica had them all")
					}
				}
			}
		})
	}
}

// While too few replicas confirm, acquires are refused or wait, and the daemon says why.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestReplicaThatStopsAndReturns(t *testing.T) {
	t.Parallel()
	master, servers := harness.StartReplicas(t, 1)
	daemon := startConfirmed(t, master, master.TCPURL(), "--lease=3s")
	c := harness.Dial(t, daemon)
	kept, err := c.Lock(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	short, err := c.Lock(t.Context(), "short")
	if err != nil {
		t.Fatal(err)
	}
	servers[1].Signal(syscall.SIGSTOP)
	// On a busy machine, the first WAIT may be silent for so long that the daemon says just that.
	harness.Eventually(t, "a try is refused, because no replica confirms", func() bool {
		_, err := c.TryLock(t.Context(), "another")
		if err == nil {
			t.Fatal("a lock is granted that no replica confirmed")
		}
		return strings.Contains(err.Error(), "0 of 1 replicas of Redis at 127.0.0.1:")
	})
	health, err := c.Health(t.Context())
	if err != nil || !health.Degraded || !strings.Contains(health.Redis, "0 of 1 replicas") {
		t.Errorf("health %+v, %v", health, err)
	}
	confirmed := make(chan error, 1)
	go func() { confirmed <- short.Unlock(locksidecar.Confirmed(t.Context())) }()
	waited := make(chan error, 1)
	go func() {
		_, err := c.Lock(t.Context(), "waited for")
		waited <- err
	}()
	// No renewal is confirmed, so the hold ends at its deadline and not later.
	select {
	case <-kept.Done():
	case <-time.After(harness.Patience):
		t.Fatal("a hold whose renewals no replica confirms does not end")
	}
	if left := time.Until(kept.Deadline()); left > 0 {
		t.Errorf("the hold ended %v before its deadline: %v", left, kept.Err())
	}
	select {
	case err := <-confirmed:
		t.Errorf("a release is confirmed that no replica has: %v", err)
	case err := <-waited:
		t.Errorf("an acquire that waits is answered: %v", err)
	default:
	}
	servers[1].Signal(syscall.SIGCONT)
	if err := <-confirmed; err != nil {
		t.Errorf("the release: %v", err)
	}
	if err := <-waited; err != nil {
		t.Errorf("the acquire: %v", err)
	}
	harness.Eventually(t, "Redis is not degraded any more", func() bool {
		h, err := c.Health(t.Context())
		return err == nil && h.Redis == "ok"
	})
}

// The danger: at a planned failover, the old master goes on serving for seconds.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestSentinelFailoverThatIsPlannedWithDurability(t *testing.T) {
	t.Parallel()
	master, servers := harness.StartReplicas(t, 1)
	sentinels := harness.StartSentinels(t, master, 1)
	first := startConfirmed(t, master, sentinels.URL(), "--lease=1s")
	daemons := []*harness.Daemon{first, harness.StartDaemon(t, sentinels.URL(), "--durability=replicas:1", "--lease=1s")}
	failOverUnderLoad(t, sentinels, servers, daemons)
}
