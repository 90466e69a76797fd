package store

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// switching is a fake Sentinel that names one of two servers.
type switching struct {
	*harness.FakeSentinel
	old, promoted *server

	denied map[string]bool // channels

	mu sync.Mutex
	at string
}

func startSwitching(t *testing.T) *switching {
	s := &switching{old: startRedis(t), promoted: startRedis(t)}
	s.at = s.old.tcp()
	s.FakeSentinel = harness.StartFakeSentinel(t, func(int) (string, int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.at, 1
	})
	return s
}

// name has the Sentinel name a server, while it replaces the one at leads.
func (s *switching) name(at *server, leads string) {
	s.mu.Lock()
	s.at = at.tcp()
	s.mu.Unlock()
	s.Set(harness.FakeAnswers{Leads: leads, Denied: s.denied})
}

// aboutMaster is a message about a server as the master.
func aboutMaster(s *server) string {
	host, port, _ := net.SplitHostPort(s.tcp())
	return "master mymaster " + host + " " + port
}

// aboutReplica is a message about a replica of a master.
func aboutReplica(s, master *server) string {
	host, port, _ := net.SplitHostPort(s.tcp())
	return "slave " + s.tcp() + " " + host + " " + port + " @" + strings.TrimPrefix(aboutMaster(master), "master")
}

// awaitOutcome takes a lock until that has an outcome.
func awaitOutcome(r *recorder, want redisop.Outcome) redisop.Result {
	r.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		res := r.one(takeOp("awaited", 1))
		if res.Outcome == want {
			return res
		}
		if time.Now().After(end) {
			r.t.Fatalf("it is still %+v", res)
		}
	}
}

// The danger: the old master grants a lock that the promoted replica does not have.
//
// Shows docs/guarantees.md: `SENTINEL FAILOVER`, without that setting.
// Shows docs/topologies.md: The daemon receives the steps of all Sentinels.
func TestNothingIsDoneAfterAFailoverIsAnnounced(t *testing.T) {
	s := startSwitching(t)
	received := make(chan redisop.Message, 10)
	r := connected(t, s.URL(), func(c *Config) {
		c.UUID, c.ProbeInterval = secondUUID, time.Hour
		c.on(Messages, func(e Event) {
			for _, m := range e.Messages {
				received <- m
			}
		})
	})
	for _, op := range []redisop.Op{takeOp("renewed", 1), takeOp("dropped", 2), takeOp("dropped by and by", 3)} {
		if res := r.one(op); res.Outcome != redisop.Done {
			t.Fatalf("%+v", res)
		}
	}
	// Others are not ours.
	s.Announce(t, sentinel.FailoverChannels[0], "master another 127.0.0.1 "+s.old.port)
	s.Announce(t, sentinel.FailoverChannels[0], aboutMaster(s.promoted))
	s.Announce(t, sentinel.FailoverChannels[1], "nonsense")
	s.name(s.old, s.old.tcp())
	s.Announce(t, sentinel.FailoverChannels[0], aboutMaster(s.old))
	if res := awaitOutcome(r, redisop.NotSynced); !strings.Contains(res.Msg, "fails over the master at "+s.old.tcp()) {
		t.Errorf("%+v", res)
	}
	if why := recv(t, r.degraded, "OnDegraded"); !strings.Contains(why, "fails over the master") {
		t.Errorf("degraded: %s", why)
	}
	byAndBy := dropOp("dropped by and by", 3)
	byAndBy.Flags |= redisop.CanWait
	for _, op := range []redisop.Op{renewOp("renewed", 1), dropOp("dropped", 2), byAndBy, takeOp("taken", 4)} {
		if res := r.one(op); res.Outcome != redisop.NotSynced {
			t.Errorf("%+v", res)
		}
	}
	if res := r.one(checkOp("renewed", 1)); res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
	// A transfer of the old master proves nothing.
	holder := connected(t, s.old.url(), func(c *Config) { c.on(Messages, func(Event) {}) })
	passTo(t, holder, r, "passed")
	m := recv(t, received, "message")
	for m.Kind != redisop.Transferred {
		m = recv(t, received, "message")
	}
	if m.Conn != (redisop.Conn{}) || m.Tokens != 0 {
		t.Errorf("%+v", m)
	}
	// The Sentinel names the promoted replica before the others follow it.
	s.name(s.promoted, s.old.tcp())
	s.Announce(t, "+promoted-slave", aboutReplica(s.promoted, s.old))
	if why := r.down(); !strings.Contains(why, "is no longer the master") {
		t.Errorf("%s", why)
	}
	r.up()
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done || r.Address() != s.promoted.tcp()+"/0" {
		t.Errorf("%+v at %s", res, r.Address())
	}
}

// An announced failover that does not take place ends when the Sentinel says so, by a message or an answer.
//
// Shows docs/guarantees.md: `SENTINEL FAILOVER`, without that setting.
// Shows docs/topologies.md: An aborted failover.
func TestFailoverThatIsAbortedWithholdsNoMore(t *testing.T) {
	for _, channel := range []string{"-failover-abort-no-good-slave", "-failover-abort-slave-timeout", "-failover-abort-master-timeout", "lost"} {
		t.Run(channel, func(t *testing.T) {
			t.Parallel()
			s := startSwitching(t)
			r := connected(t, s.URL())
			s.name(s.old, s.old.tcp())
			s.Announce(t, sentinel.FailoverChannels[1], aboutReplica(s.promoted, s.old))
			awaitOutcome(r, redisop.NotSynced)
			s.name(s.old, "")
			s.Announce(t, channel, aboutMaster(s.old))
			awaitOutcome(r, redisop.Done)
		})
	}
}

// The danger: a connection that is made after the announcement knows nothing of it. Or the message was lost.
func TestNewConnectionToAMasterThatIsReplacedWithholds(t *testing.T) {
	s := startSwitching(t)
	s.name(s.old, s.old.tcp())
	r := connected(t, s.URL())
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.NotSynced {
		t.Errorf("%+v", res)
	}
	must(s.old.admin().ClientKillByFilter(ctx, "type", "pubsub").Result())
	r.down()
	r.up()
	if res := r.one(takeOp("lock", 2)); res.Outcome != redisop.NotSynced {
		t.Errorf("%+v", res)
	}
}

// A user that may receive +switch-master only is served as before, and the log names what it lacks.
func TestUserWithoutTheStepsOfAFailover(t *testing.T) {
	s := startSwitching(t)
	s.denied = map[string]bool{sentinel.FailoverChannels[0]: true}
	s.name(s.old, "")
	r := connected(t, s.URL())
	_, from, _ := net.SplitHostPort(s.old.tcp())
	_, to, _ := net.SplitHostPort(s.promoted.tcp())
	s.name(s.promoted, "")
	s.Publish(t, "mymaster 127.0.0.1 "+from+" 127.0.0.1 "+to)
	r.down()
	r.up()
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done || r.Address() != s.promoted.tcp()+"/0" {
		t.Errorf("%+v at %s", res, r.Address())
	}
	if log := r.logged(); strings.Count(log, "&"+strings.Join(sentinel.FailoverChannels, " &")) != 1 || !strings.Contains(log, "the old one may grant locks") {
		t.Errorf("the log is:\n%s", log)
	}
}

// Any Sentinel may lead the failover.
func TestMessagesOfAllSentinelsAreReceived(t *testing.T) {
	nowhere := func(int) (string, int) { return "127.0.0.1:1", 1 }
	a, b := harness.StartFakeSentinel(t, nowhere), harness.StartFakeSentinel(t, nowhere)
	open(t, "redis+sentinel://"+a.Address+","+b.Address+"/mymaster")
	for _, s := range []*harness.FakeSentinel{a, b} {
		s.AwaitSteps(t)
	}
}
