package topology

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A Redisson program and a sidecar that find the same master exclude and wake each other, before and
// after a failover.
//
// Shows docs/topologies.md: Sentinel.
func TestRedissonBehindSentinels(t *testing.T) {
	t.Parallel()
	master, servers := harness.StartReplicas(t, 1)
	sentinels := harness.StartSentinels(t, master, 1)
	redisson := harness.StartRedissonAt(t, sentinels.URL())
	daemon := harness.StartDaemon(t, sentinels.URL())
	worker := harness.StartGoWorker(t, daemon)
	lock := harness.Command{Do: "lock", Name: "shared", As: "shared", WaitMS: -1}

	// pass has one of them wait for what the other holds.
	pass := func(holder, waiter *harness.Worker, r *harness.Redis) {
		t.Helper()
		if a := waiter.Try(harness.Command{Do: "lock", Name: "shared", As: "no", WaitMS: 0}); a.Err == "" {
			t.Fatalf("the lock is held twice: %+v", a)
		}
		granted := waiter.Send(lock)
		harness.Eventually(t, "the waiter is subscribed", func() bool { return r.Subscribers("shared") > 0 || r.Tickets("shared") > 0 })
		holder.Must(harness.Command{Do: "unlock", Name: "shared", As: "shared"})
		if a := waiter.Await(granted); a.Err != "" {
			t.Fatalf("%+v", a)
		}
	}
	redisson.Must(lock)
	pass(redisson, worker, master)
	pass(worker, redisson, master)
	pass(redisson, worker, master)

	harness.Eventually(t, "the replica has the lock", func() bool {
		return servers[1].Owner("shared") != "" && servers[1].Owner("shared") == master.Owner("shared")
	})
	master.Kill()
	sentinels.AwaitMaster(servers[1])
	awaitAddress(t, daemon, servers[1])
	harness.Eventually(t, "Redisson uses the new master", func() bool {
		a := redisson.Try(harness.Command{Do: "lock", Name: "another", As: "another", WaitMS: 0})
		return a.Err == ""
	})
	pass(worker, redisson, servers[1])
	pass(redisson, worker, servers[1])
}
