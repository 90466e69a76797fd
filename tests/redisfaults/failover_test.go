package redisfaults

import (
	"maps"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// replication is a master with a replica, and the proxy between them.
type replication struct {
	master, replica *harness.Redis
	way             *harness.Proxy
}

func startReplication(t *testing.T) replication {
	t.Helper()
	master := harness.StartRedis(t, "--repl-diskless-sync-delay", "0")
	way := harness.StartProxy(t, master)
	replica := harness.StartRedis(t)
	replica.MustDo("REPLICAOF", "127.0.0.1", way.Port())
	harness.Eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	return replication{master, replica, way}
}

// lag makes the connection between master and replica half-open: neither of them notices.
func (s replication) lag() {
	s.way.Blackhole(harness.ToRedis, harness.FromRedis)
}

// promote makes the replica a master.
func (s replication) promote() { s.replica.MustDo("REPLICAOF", "NO", "ONE") }

// Replication is asynchronous: a replica that lags does not have the latest locks. When it
// becomes the master, the holders keep these locks if their daemon connects to it first.
// Otherwise the locks may have two holders. Tokens grow in any case.
//
// Shows docs/guarantees.md: Tokens grow.
// Shows docs/guarantees.md: Failover to a replica that lags.
func TestFailoverToAReplicaThatLags(t *testing.T) {
	t.Parallel()
	// The locks "late" are acquired when the replica receives nothing any more.
	start := func(t *testing.T, lease string) (s replication, toHere, toThere *harness.Proxy, here *harness.Daemon, late []harness.Hold, next *harness.Worker, granted []<-chan harness.Answer) {
		s = startReplication(t)
		toHere, toThere = harness.StartProxy(t, s.master), harness.StartProxy(t, s.master)
		here = harness.StartDaemon(t, toHere.URL(), "--lease="+lease)
		there := harness.StartDaemon(t, toThere.URL(), "--lease=1m")
		workers := harness.StartWorkerPerSDK(t, here)
		// The replica has an old value of the first token counter, and no other counter.
		workers[0].Lock("late 0")
		workers[0].Unlock("late 0")
		harness.Eventually(t, "the replica has received that", func() bool {
			n, _ := s.replica.Exists(t.Context(), "redisson_lock_token:{late 0}").Result()
			return n == 1 && len(s.replica.Fields("late 0")) == 0
		})
		s.lag()
		for range 20 {
			workers[0].Lock("late 0")
			workers[0].Unlock("late 0")
		}
		late = harness.LockEach(s.master, workers, "late")
		next = harness.StartGoWorker(t, there)
		for _, h := range late {
			granted = append(granted, next.Enqueue(there, h.Name))
			if f := s.replica.Fields(h.Name); len(f) != 0 {
				t.Fatalf("the replica does not lag: it has %v", f)
			}
		}
		return
	}

	t.Run("the daemon of the holders is first", func(t *testing.T) {
		t.Parallel()
		s, toHere, toThere, _, late, next, granted := start(t, "1m")
		s.master.Kill()
		s.promote()
		toHere.ForwardTo(s.replica)
		for _, h := range late {
			h.AwaitInRedis(s.replica)
		}
		toThere.ForwardTo(s.replica)
		for i, h := range late {
			harness.Eventually(t, "the other daemon waits for the lock again", func() bool { return s.replica.Subscribers(h.Name) == 1 })
			h.PassTo(next, granted[i])
		}
	})

	// Not guaranteed: exclusion, until the deadlines of the holders.
	t.Run("the daemon of the holders stays disconnected", func(t *testing.T) {
		t.Parallel()
		s, toHere, toThere, _, late, next, granted := start(t, "3s")
		s.master.Kill()
		s.promote()
		toThere.ForwardTo(s.replica)
		var last []uint64
		for i, h := range late {
			a := next.Await(granted[i])
			if a.Err != "" || a.Token <= h.Token {
				t.Fatalf("%s: the other host got %+v; the token before was %d", h.Name, a, h.Token)
			}
			last = append(last, a.Token)
		}
		for _, h := range late {
			if lost := h.ExpectLost(protocol.Expired); lost.AtNS < lost.DeadlineNS {
				t.Errorf("%s: lost before its deadline: %+v", h.Name, lost)
			}
		}
		toHere.ForwardTo(s.replica)
		for i, h := range late {
			next.Unlock(h.Name)
			if a := h.Lock(h.Name); a.Token <= last[i] {
				t.Errorf("%s: token %d after %d", h.Name, a.Token, last[i])
			}
		}
	})

	// Not guaranteed: exclusion, for as long as there are two masters. Only a resource that
	// compares tokens notices.
	t.Run("the daemon of the holders stays at the old master", func(t *testing.T) {
		t.Parallel()
		s, toHere, toThere, here, late, next, granted := start(t, "1m")
		s.promote()
		toThere.ForwardTo(s.replica)
		for i, h := range late {
			a := next.Await(granted[i])
			if a.Err != "" || a.Token <= h.Token {
				t.Fatalf("%s: the other host got %+v; the token before was %d", h.Name, a, h.Token)
			}
			h.CheckHeld()
		}
		toHere.ForwardTo(s.replica)
		for _, h := range late {
			theirs := s.replica.Fields(h.Name)
			h.ExpectLost(protocol.Stolen)
			if a := next.Try(harness.Command{Do: "check", As: h.Name}); a.Err != "" || !maps.Equal(s.replica.Fields(h.Name), theirs) {
				t.Errorf("%s: the loss ended the hold of the new holder, too: %+v", h.Name, a)
			}
		}
		here.AwaitRedis("ok")
	})
}

// Master and replica exchange their roles while daemons are connected, as in a planned
// failover, and the daemons are redirected to the new master later. Holds stay.
//
// Shows docs/guarantees.md: Restart with its data.
func TestPlannedFailover(t *testing.T) {
	t.Parallel()
	s := startReplication(t)
	toHere, toThere := harness.StartProxy(t, s.master), harness.StartProxy(t, s.master)
	here, there := harness.StartDaemon(t, toHere.URL(), "--lease=1m"), harness.StartDaemon(t, toThere.URL(), "--lease=1m")
	holds := harness.LockEach(s.master, harness.StartWorkerPerSDK(t, here), "held")
	next := harness.StartGoWorker(t, there)
	var granted []<-chan harness.Answer
	for _, h := range holds {
		granted = append(granted, next.Enqueue(there, h.Name))
		h.AwaitInRedis(s.replica)
	}

	s.promote()
	s.master.MustDo("REPLICAOF", "127.0.0.1", s.replica.Port)
	for _, w := range []*harness.Worker{holds[0].Worker, next} {
		// While the server changes its role, it may refuse connections for another reason.
		harness.Eventually(t, "the daemon reports that Redis is read-only", func() bool {
			a := w.Try(harness.Command{Do: "lock", As: "new", Name: "new", WaitMS: 0})
			if a.Err != "unavailable" {
				t.Fatalf("on a replica, a request that does not wait is answered %+v", a)
			}
			return strings.Contains(a.Msg, "read-only replica")
		})
	}
	for _, h := range holds {
		h.CheckHeld()
	}
	for _, p := range []*harness.Proxy{toThere, toHere} {
		p.ForwardTo(s.replica)
	}
	here.AwaitRedis("ok")
	there.AwaitRedis("ok")
	for i, h := range holds {
		h.AwaitInRedis(s.replica)
		harness.Eventually(t, "the other daemon waits for the lock again", func() bool { return s.replica.Subscribers(h.Name) == 1 })
		h.PassTo(next, granted[i])
	}
}

// A daemon notices that its Redis has become a replica, and that it is a master again.
//
// Shows docs/guarantees.md: Restart with its data.
func TestRedisBecomesAReplica(t *testing.T) {
	t.Parallel()
	master, r := harness.StartRedis(t), harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	ctx := t.Context()
	if err := r.Do(ctx, "REPLICAOF", "127.0.0.1", master.Port).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := harness.Dial(t, d).TryLock(ctx, "x")
	harness.CheckError(t, err, locksidecar.ErrUnavailable, "replica")
	if err := r.Do(ctx, "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	w := harness.StartGoWorker(t, d)
	w.Lock("x")
}
