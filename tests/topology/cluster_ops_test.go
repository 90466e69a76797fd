package topology

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A daemon that is started again knows which locks it has, and not which master had which slot: it
// asserts them.
//
// Shows docs/topologies.md: A restart of the daemon.
func TestClusterDaemonIsStartedAgain(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0)
	d := harness.StartDaemon(t, c.URL())
	w := harness.StartGoWorker(t, d)
	tokens := make(map[string]uint64)
	for shard := range c.Masters() {
		for _, name := range c.Names(shard, "held", 5) {
			tokens[name] = w.Lock(name).Token
		}
	}
	d.Kill()
	d.Start()
	other := harness.StartGoWorker(t, harness.StartDaemon(t, c.URL()))
	for name, token := range tokens {
		if a := other.Try(harness.Command{Do: "lock", Name: name}); a.Err == "" {
			t.Errorf("%q was granted to another host while it is held", name)
		}
		w.Unlock(name)
		if again := other.Lock(name).Token; again <= token {
			t.Errorf("%q has the token %d after %d", name, again, token)
		}
		other.Unlock(name)
	}
	if lost := d.Run("events").Stdout; strings.Contains(lost, "lost") {
		t.Errorf("holds were lost, or data: %s", lost)
	}
}

// What operators ask has keys in several slots, and goes to hosts over each of their connections.
func TestClusterAnswersOperators(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0)
	d1 := harness.StartDaemon(t, c.URL(), "--host-name=db-1")
	d2 := harness.StartDaemon(t, c.URL(), "--host-name=db-2")
	harness.Eventually(t, "each host knows the other", func() bool {
		out := d1.Run("ls", "--all", "--json").Stdout
		return strings.Contains(out, "db-1") && strings.Contains(out, "db-2")
	})
	w := harness.StartGoWorker(t, d2)
	for shard := range c.Masters() {
		name := c.Names(shard, "asked", 1)[0]
		w.Lock(name)
		out := d1.Run("who", name)
		harness.CheckContains(t, out.Stdout, "db-2", fmt.Sprint(w.PID()))
	}
}

// A lock of a daemon that is gone for good is released, and passes to the waiter.
func TestClusterOrphanedLockIsReleased(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0)
	client := c.Client(t)
	d := harness.StartDaemon(t, c.URL())
	w := harness.StartGoWorker(t, d)
	for shard := range c.Masters() {
		name := c.Names(shard, "orphan", 1)[0]
		const gone = "6a8f1f3e-4f7f-8c2e-9a3c-2f6b8a1d0e5f"
		client.HSet(t.Context(), name, gone+":7", "1")
		client.PExpire(t.Context(), name, time.Minute)
		waiting := w.Enqueue(d, name)
		harness.Eventually(t, "the lock is awaited", func() bool { return strings.Contains(d.Run("who", name).Stdout, "WAITING") })
		if out := d.Run("force-release", "--orphaned", name); out.Code != 0 {
			t.Fatalf("%s%s", out.Stdout, out.Stderr)
		}
		w.Await(waiting)
		w.Unlock(name)

		semaphore, until := c.Names(shard, "orphaned-permits", 1)[0], fmt.Sprint(time.Now().Add(time.Minute).UnixMilli())
		client.HSet(t.Context(), semaphore, "mode", "permits 3 "+until+" "+until+" 1", gone, "7 3 "+until)
		if out := d.Run("force-release", "--orphaned", semaphore); out.Code != 0 || !strings.Contains(out.Stdout, "3 of sidecar "+gone) {
			t.Fatalf("%s%s", out.Stdout, out.Stderr)
		}
		if n := client.Exists(t.Context(), semaphore).Val(); n != 0 {
			t.Error("the permits are still taken")
		}
	}
}
