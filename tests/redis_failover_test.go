package tests

import (
	"maps"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"

	"github.com/locksidecar/locksidecar/protocol"
)

// replication is a master with a replica, and the way between them.
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
	harness.Eventually(t, "the replica is in step", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	return replication{master, replica, way}
}

// lag cuts the replica off from what comes; neither side learns of it.
func (s replication) lag() {
	s.way.Blackhole([]harness.ConnectionKind{harness.Commands}, harness.ToRedis, harness.FromRedis)
}

// promote makes the replica a master.
func (s replication) promote() { s.replica.MustDo("REPLICAOF", "NO", "ONE") }

// Replication is asynchronous: a lock that was granted a moment ago is not in a
// replica that lags. When that becomes the master, holders keep the lock if their
// host is the first to come over, and else two may believe in it. Tokens grow in
// any case.
func TestFailoverToAReplicaThatLags(t *testing.T) {
	// The locks "late" were taken when the replica had been cut off.
	start := func(t *testing.T, lease string) (s replication, toHere, toThere *harness.Proxy, here *harness.Daemon, late []harness.Hold, next *harness.Worker, granted []<-chan harness.Answer) {
		s = startReplication(t)
		toHere, toThere = harness.StartProxy(t, s.master), harness.StartProxy(t, s.master)
		here = harness.StartDaemon(t, toHere.URL(), "--lease="+lease)
		there := harness.StartDaemon(t, toThere.URL(), "--lease=1m")
		workers := harness.StartWorkerPerSDK(t, here)
		// Its counters know less than the master's, or nothing.
		workers[0].Lock("late 0")
		workers[0].Unlock("late 0")
		harness.Eventually(t, "the replica has heard of all that", func() bool {
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

	t.Run("the holders' host is first", func(t *testing.T) {
		s, toHere, toThere, _, late, next, granted := start(t, "1m")
		s.master.Kill()
		s.promote()
		toHere.ForwardTo(s.replica)
		for _, h := range late {
			h.AwaitInRedis(s.replica)
		}
		toThere.ForwardTo(s.replica)
		for i, h := range late {
			harness.Eventually(t, "the other host waits for it again", func() bool { return s.replica.Subscribers(h.Name) == 1 })
			h.PassTo(next, granted[i])
		}
	})

	// What does not hold: exclusion, until the holders' deadlines.
	t.Run("the holders' host does not come over", func(t *testing.T) {
		s, toHere, toThere, _, late, next, granted := start(t, "3s")
		s.master.Kill()
		s.promote()
		toThere.ForwardTo(s.replica)
		var last []uint64
		for i, h := range late {
			a := next.Await(granted[i])
			if a.Err != "" || a.Token <= h.Token {
				t.Fatalf("%s: the other host is told %+v; the token before was %d", h.Name, a, h.Token)
			}
			last = append(last, a.Token)
		}
		for _, h := range late {
			if lost := h.ExpectLost(protocol.Expired); lost.AtNS < lost.DeadlineNS {
				t.Errorf("%s: told %+v before its deadline", h.Name, lost)
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

	// What does not hold: exclusion, for as long as there are two masters. Only who
	// checks the token finds out.
	t.Run("the old master goes on for the holders' host", func(t *testing.T) {
		s, toHere, toThere, here, late, next, granted := start(t, "1m")
		s.promote()
		toThere.ForwardTo(s.replica)
		for i, h := range late {
			a := next.Await(granted[i])
			if a.Err != "" || a.Token <= h.Token {
				t.Fatalf("%s: the other host is told %+v; the token before was %d", h.Name, a, h.Token)
			}
			h.CheckHeld()
		}
		toHere.ForwardTo(s.replica)
		for _, h := range late {
			theirs := s.replica.Fields(h.Name)
			h.ExpectLost(protocol.Stolen)
			if a := next.Try(harness.Command{Do: "check", As: h.Name}); a.Err != "" || !maps.Equal(s.replica.Fields(h.Name), theirs) {
				t.Errorf("%s: the loss of the one is a loss of the other: %+v", h.Name, a)
			}
		}
		here.AwaitRedis("ok")
	})
}

// The master becomes a replica of its replica under the daemons, as in a planned
// failover, and they are led to the new master later: what is held stays held,
// and the old master is not asked any more.
func TestPlannedFailover(t *testing.T) {
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
		// The new role may still let nobody in; the sentence is about the role.
		harness.Eventually(t, "the daemons find that it is read-only", func() bool {
			a := w.Try(harness.Command{Do: "lock", As: "new", Name: "new", WaitMS: 0})
			if a.Err != "unavailable" {
				t.Fatalf("a try on a replica is told %+v", a)
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
		harness.Eventually(t, "the other host waits for it again", func() bool { return s.replica.Subscribers(h.Name) == 1 })
		h.PassTo(next, granted[i])
	}
}
