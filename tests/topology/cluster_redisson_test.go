package topology

import (
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A Redisson program and a sidecar exclude and wake each other in a Cluster: each sends its releases on
// the channels to which the other one subscribes, which are sharded if the servers have such.
//
// Shows docs/topologies.md: Redisson programs.
func TestRedissonInCluster(t *testing.T) {
	t.Parallel()
	const (
		rounds = 7 // for each master, in each direction

		// maxWake is far more than a message takes, and far less than a waiter without one waits: Redisson
		// for the lease of 30 s, and a sidecar until it polls.
		maxWake = 100 * time.Millisecond
	)
	c := harness.StartCluster(t, 3, 0)
	redisson := harness.StartRedissonAt(t, c.URL())
	daemon := harness.StartDaemon(t, c.URL())
	worker := harness.StartGoWorker(t, daemon)

	// pass has one of them wait for what the other one holds, and returns how long it waited after the
	// release.
	pass := func(holder, waiter *harness.Worker, name string, waits func() bool) time.Duration {
		t.Helper()
		if a := waiter.Try(harness.Command{Do: "lock", Name: name, As: "no"}); a.Err != "held" {
			t.Fatalf("a try of a lock that is held: %+v", a)
		}
		granted := waiter.Send(harness.Command{Do: "lock", Name: name, As: name, WaitMS: -1})
		harness.Eventually(t, "the waiter has subscribed", func() bool {
			return waits() && (c.Subscribers(name) > 0 || c.MasterOf(name).Tickets(name) > 0)
		})
		released := time.Now()
		holder.Unlock(name)
		if a := waiter.Await(granted); a.Err != "" {
			t.Fatalf("%s: %+v", name, a)
		}
		return time.Since(released)
	}
	var toRedisson, toDaemon []time.Duration
	for shard := range c.Masters() {
		name := c.Names(shard, "shared", 1)[0]
		worker.Lock(name)
		for range rounds {
			toRedisson = append(toRedisson, pass(worker, redisson, name, func() bool {
				return redisson.Must(harness.Command{Do: "is_waiting"}).Yes
			}))
			toDaemon = append(toDaemon, pass(redisson, worker, name, func() bool {
				return harness.Waiters(t, daemon, name) > 0
			}))
		}
		worker.Unlock(name)
	}
	for who, took := range map[string][]time.Duration{"Redisson": toRedisson, "the daemon's client": toDaemon} {
		slices.Sort(took)
		median := took[len(took)/2]
		t.Logf("%s waited after a release for %v, in the median for %v", who, took, median)
		if median > maxWake {
			t.Errorf("%s was not woken by the other's releases: it waited for %v in the median", who, median)
		}
	}
	t.Logf("subscriptions by %d SSUBSCRIBE and %d SUBSCRIBE", c.CommandCalls(t.Context())["ssubscribe"], c.CommandCalls(t.Context())["subscribe"])
}
