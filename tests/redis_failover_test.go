package tests

import (
	"maps"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// replication is a master with a replica, and the way between them.
type replication struct {
	master, replica *redisServer
	way             *proxy
}

func startReplication(t *testing.T) replication {
	t.Helper()
	master := startRedis(t, "--repl-diskless-sync-delay", "0")
	way := startProxy(t, master)
	replica := startRedis(t)
	replica.do("REPLICAOF", "127.0.0.1", way.port())
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	return replication{master, replica, way}
}

// lag cuts the replica off from what comes; neither side learns of it.
func (s replication) lag() { s.way.swallow([]kind{commands}, toRedis, fromRedis) }

// promote makes the replica a master.
func (s replication) promote() { s.replica.do("REPLICAOF", "NO", "ONE") }

// Replication is asynchronous: a lock that was granted a moment ago is not in a
// replica that lags. When that becomes the master, holders keep the lock if their
// host is the first to come over, and else two may believe in it. Tokens grow in
// any case.
func TestFailoverToAReplicaThatLags(t *testing.T) {
	// The locks "late" were taken when the replica had been cut off.
	start := func(t *testing.T, lease string) (s replication, toHere, toThere *proxy, here *daemon, late []held, next *worker, granted []<-chan answer) {
		s = startReplication(t)
		toHere, toThere = startProxy(t, s.master), startProxy(t, s.master)
		here = startDaemon(t, toHere.url(), "--lease="+lease)
		there := startDaemon(t, toThere.url(), "--lease=1m")
		workers := oneOfEach(t, here)
		// Its counters know less than the master's, or nothing.
		workers[0].lock("late 0")
		workers[0].unlock("late 0")
		eventually(t, "the replica has heard of all that", func() bool {
			n, _ := s.replica.Exists(t.Context(), "redisson_lock_token:{late 0}").Result()
			return n == 1 && len(s.replica.fields("late 0")) == 0
		})
		s.lag()
		for range 20 {
			workers[0].lock("late 0")
			workers[0].unlock("late 0")
		}
		late = holdOne(s.master, workers, "late")
		next = startGoWorker(t, there)
		for _, h := range late {
			granted = append(granted, waitFor(next, there, h.name))
			if f := s.replica.fields(h.name); len(f) != 0 {
				t.Fatalf("the replica does not lag: it has %v", f)
			}
		}
		return
	}

	t.Run("the holders' host is first", func(t *testing.T) {
		s, toHere, toThere, _, late, next, granted := start(t, "1m")
		s.master.kill9()
		s.promote()
		toHere.lead(s.replica)
		for _, h := range late {
			h.inRedis(s.replica)
		}
		toThere.lead(s.replica)
		for i, h := range late {
			eventually(t, "the other host waits for it again", func() bool { return s.replica.listeners(h.name) == 1 })
			h.passesTo(next, granted[i])
		}
	})

	// What does not hold: exclusion, until the holders' deadlines.
	t.Run("the holders' host does not come over", func(t *testing.T) {
		s, toHere, toThere, _, late, next, granted := start(t, "3s")
		s.master.kill9()
		s.promote()
		toThere.lead(s.replica)
		var last []uint64
		for i, h := range late {
			a := next.await(granted[i])
			if a.Err != "" || a.Token <= h.token {
				t.Fatalf("%s: the other host is told %+v; the token before was %d", h.name, a, h.token)
			}
			last = append(last, a.Token)
		}
		for _, h := range late {
			if lost := h.lost(protocol.Expired); lost.AtNS < lost.DeadlineNS {
				t.Errorf("%s: told %+v before its deadline", h.name, lost)
			}
		}
		toHere.lead(s.replica)
		for i, h := range late {
			next.unlock(h.name)
			if a := h.lock(h.name); a.Token <= last[i] {
				t.Errorf("%s: token %d after %d", h.name, a.Token, last[i])
			}
		}
	})

	// What does not hold: exclusion, for as long as there are two masters. Only who
	// checks the token finds out.
	t.Run("the old master goes on for the holders' host", func(t *testing.T) {
		s, toHere, toThere, here, late, next, granted := start(t, "1m")
		s.promote()
		toThere.lead(s.replica)
		for i, h := range late {
			a := next.await(granted[i])
			if a.Err != "" || a.Token <= h.token {
				t.Fatalf("%s: the other host is told %+v; the token before was %d", h.name, a, h.token)
			}
			h.check()
		}
		toHere.lead(s.replica)
		for _, h := range late {
			theirs := s.replica.fields(h.name)
			h.lost(protocol.Stolen)
			if a := next.try(command{Do: "check", As: h.name}); a.Err != "" || !maps.Equal(s.replica.fields(h.name), theirs) {
				t.Errorf("%s: the loss of the one is a loss of the other: %+v", h.name, a)
			}
		}
		here.awaitRedis("ok")
	})
}

// The master becomes a replica of its replica under the daemons, as in a planned
// failover, and they are led to the new master later: what is held stays held,
// and the old master is not asked any more.
func TestPlannedFailover(t *testing.T) {
	s := startReplication(t)
	toHere, toThere := startProxy(t, s.master), startProxy(t, s.master)
	here, there := startDaemon(t, toHere.url(), "--lease=1m"), startDaemon(t, toThere.url(), "--lease=1m")
	holds := holdOne(s.master, oneOfEach(t, here), "held")
	next := startGoWorker(t, there)
	var granted []<-chan answer
	for _, h := range holds {
		granted = append(granted, waitFor(next, there, h.name))
		h.inRedis(s.replica)
	}

	s.promote()
	s.master.do("REPLICAOF", "127.0.0.1", s.replica.port)
	for _, w := range []*worker{holds[0].worker, next} {
		// The new role may still let nobody in; the sentence is about the role.
		eventually(t, "the daemons find that it is read-only", func() bool {
			a := w.try(command{Do: "lock", As: "new", Name: "new", WaitMS: 0})
			if a.Err != "unavailable" {
				t.Fatalf("a try on a replica is told %+v", a)
			}
			return strings.Contains(a.Msg, "read-only replica")
		})
	}
	for _, h := range holds {
		h.check()
	}
	for _, p := range []*proxy{toThere, toHere} {
		p.lead(s.replica)
	}
	here.awaitRedis("ok")
	there.awaitRedis("ok")
	for i, h := range holds {
		h.inRedis(s.replica)
		eventually(t, "the other host waits for it again", func() bool { return s.replica.listeners(h.name) == 1 })
		h.passesTo(next, granted[i])
	}
}
