package store

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// often makes probes so frequent that tests need not wait for them.
func often(c *Config) { c.ProbeInterval = 20 * time.Millisecond }

// awaitDegraded waits until Redis is reported as degraded, with words in the reason, or with no
// word until it is not any more.
func (r *recorder) awaitDegraded(words ...string) {
	r.t.Helper()
	why := recv(r.t, r.degraded, "OnDegraded")
	if (why == "") != (len(words) == 0) {
		r.t.Errorf("OnDegraded(%q), want words %q", why, words)
	}
	for _, w := range words {
		if !strings.Contains(why, w) {
			r.t.Errorf("OnDegraded(%q), want %q in it", why, w)
		}
	}
}

// A Redis that executes renewals and pings, and refuses what an acquire needs, is degraded.
func TestRedisThatRefusesAcquiresIsDegraded(t *testing.T) {
	t.Run("out of memory", func(t *testing.T) {
		s := startRedis(t)
		a := s.admin()
		r := connected(t, s.url(), often)
		must(a.ConfigSet(ctx, "maxmemory", "1").Result())
		r.awaitDegraded("out of memory", "maxmemory")
		must(a.ConfigSet(ctx, "maxmemory", "0").Result())
		r.awaitDegraded()
		if log := r.logged(); !strings.Contains(log, "redis is degraded: it refuses what locks need") || !strings.Contains(log, "redis is not degraded any more") {
			t.Errorf("the log does not have it: %s", log)
		}
	})
	for name, rules := range map[string][]string{
		"a command": {"-hset"},
		"no keys":   {"resetkeys"},
	} {
		t.Run("an ACL that is changed: "+name, func(t *testing.T) {
			s := startRedis(t)
			a := s.admin()
			r := connected(t, s.userURL("app", leastRules...), often)
			if res := r.one(takeOp("before", 1)); res.Outcome != redisop.Done {
				t.Fatalf("%+v", res)
			}
			awaitProbes(t, s, 2) // so that one was executed after the Take
			must(a.ACLSetUser(ctx, "app", rules...).Result())
			r.awaitDegraded("does not permit this user", "let its ACL have")
			must(a.ACLSetUser(ctx, "app", leastRules...).Result())
			r.awaitDegraded()
		})
	}
	t.Run("from the greeting on", func(t *testing.T) {
		s := startRedis(t)
		r := connected(t, s.userURL("app", "~*", "&*", "+@all", "-hset"), often)
		r.awaitDegraded("does not permit this user hset", "let its ACL have +hset")
	})
	t.Run("a prefix without its keys", func(t *testing.T) {
		s := startRedis(t)
		r := connected(t, s.userURL("app", "~other:*", "&*", "+@all"), often, func(c *Config) { c.KeyPrefix = "app1:" })
		r.awaitDegraded("~app1:*", "~redisson_lock_token:")
	})
}

// Without a prefix, an ACL may permit the names of some locks. The probe's is not among them,
// which decides nothing while acquires are served.
func TestACLForSomeLocksIsNotDegraded(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("app", "~ok:*", "~redisson_lock_token:{ok:*", "&*", "+@all"), often)
	if res := r.one(takeOp("ok:1", 1)); res.Outcome != redisop.Done {
		t.Fatalf("%+v", res)
	}
	if res := r.one(takeOp("no:1", 1)); res.Outcome != redisop.Refused {
		t.Fatalf("%+v", res)
	}
	awaitProbes(t, s, 5)
	if len(r.degraded) > 0 {
		t.Errorf("OnDegraded(%q)", <-r.degraded)
	}
}

// awaitProbes waits until so many scripts more were called.
func awaitProbes(t *testing.T, s *server, n int) {
	t.Helper()
	a := s.admin()
	calls := func() string { return wire.InfoFields(a.Info(ctx, "commandstats").Val())["cmdstat_evalsha"] }
	for last, end := calls(), time.Now().Add(patience); n > 0; {
		if now := calls(); now != last {
			last = now
			n--
		}
		if time.Now().After(end) {
			t.Fatal("no probes")
		}
	}
}

// The probe's lock is free after each probe. Its counter expires, and clients cannot have it.
func TestProbeLeavesACounterThatExpires(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url(), often)
	awaitProbes(t, s, 3)
	for _, key := range must(a.Keys(ctx, "*").Result()) {
		if key != counterOf(wire.ProbeLock) {
			t.Errorf("the key %s", key)
		}
	}
	if ttl := must(a.PTTL(ctx, counterOf(wire.ProbeLock)).Result()); ttl > 2*20*time.Millisecond || ttl == -1 {
		t.Errorf("the counter of the probe expires after %v", ttl)
	}
	if wire.Reserved("", wire.ProbeLock) == "" || wire.Reserved("app1:", wire.ProbeLock) == "" {
		t.Error("clients can lock the probe's lock")
	}
	// A foreign client that has the lock keeps it, and Redis is not degraded.
	a.HSet(ctx, wire.ProbeLock, otherUUID+":1", "1")
	awaitProbes(t, s, 3)
	if fields := must(a.HGetAll(ctx, wire.ProbeLock).Result()); len(fields) != 1 || fields[otherUUID+":1"] != "1" {
		t.Errorf("the lock of a foreign client has %v", fields)
	}
	if len(r.degraded) > 0 {
		t.Errorf("OnDegraded(%q)", <-r.degraded)
	}
}

// One refusal that may pass is confirmed by a second probe. A Redis that hangs is no degraded one.
func TestOneRefusedProbeIsNotDegraded(t *testing.T) {
	var probed atomic.Int64
	var isFull atomic.Bool
	executed := make(chan struct{}, 100)
	l := listen(t)
	speak(t, l, func(args []string) string {
		if args[0] != "evalsha" || args[1] != wire.AcquireRelease.SHA {
			return greeting(args)
		}
		if probed.Add(1)%2 == 1 || isFull.Load() {
			return fmt.Sprintf("*2\r\n*2\r\n:%d\r\n%s:0\r\n", wire.CodeRefused, bulk("OOM command not allowed when used memory > 'maxmemory'."))
		}
		executed <- struct{}{}
		return "*2\r\n:1700000000000000\r\n:0\r\n"
	})
	r := connected(t, "redis://"+l.Addr().String(), often)
	for range 2 {
		recv(t, executed, "probe")
	}
	if len(r.degraded) > 0 {
		t.Errorf("OnDegraded(%q)", <-r.degraded)
	}
	isFull.Store(true)
	r.awaitDegraded("maxmemory")
}
