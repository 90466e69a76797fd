package guarantees

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Redisson programs beside sidecars that queue in Redis, pass a lock on, and let it linger.
// Programs have no ticket: they get the lock when it is free.

// A Redisson program gets a lock that sidecars use all the time: whether they hand it over on one
// host, pass it on between two, or keep it for a moment after each release. So does a program
// that calls tryLock each millisecond.
func TestRedissonProgramsDoNotStarve(t *testing.T) {
	t.Parallel()
	const (
		name    = "wanted"
		pauseMS = 20 // after a grant, so that a program is not granted the lock twice while it is free once
	)
	grants, within := harness.Pick(6, 15), harness.Patience*2/3
	for _, c := range []struct {
		what           string
		hosts, clients int
	}{
		{"eight clients of one host", 1, 8},
		{"four clients on each of two hosts", 2, 4},
		{"one client in a hot loop", 1, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			var fleet []*harness.Worker
			var ended []<-chan harness.Answer
			for range c.hosts {
				d := harness.StartDaemon(t, r.UnixURL())
				for range c.clients {
					fleet = append(fleet, harness.StartGoWorker(t, d))
				}
			}
			for _, w := range fleet {
				ended = append(ended, w.Send(harness.Command{Do: "poll", Name: name, WaitMS: -1, ForMS: (10 * time.Minute).Milliseconds()}))
			}
			host := harness.StartRedisson(t, r)
			for what, waitMS := range map[string]int64{"tryLock, each ms": 0, "lock": -1} {
				t.Run(what, func(t *testing.T) {
					a := host.In(t).Must(harness.Command{
						Do: "poll", Name: name, Object: "lock", WaitMS: waitMS, Count: grants, Pause: pauseMS, ForMS: within.Milliseconds(),
					})
					t.Logf("%d of %d tries were granted, %.1f %%; the longest wait was %v",
						a.Grants, a.Tries, float64(a.Grants)*100/float64(a.Tries), time.Duration(a.LongestNS).Round(time.Millisecond))
					if a.Grants < grants {
						t.Errorf("%d grants in %v, want %d", a.Grants, within, grants)
					}
				})
			}
			total := 0
			for i, w := range fleet {
				w.Must(harness.Command{Do: "stop"})
				a := w.Await(ended[i])
				if a.Err != "" {
					t.Errorf("client %d: %s: %s", i, a.Err, a.Msg)
				}
				total += a.Grants
			}
			t.Logf("the clients of the sidecars were granted the lock %d times", total)
		})
	}
}

// enqueueEach has a client of each of several hosts wait for a lock, in this order.
func enqueueEach(t *testing.T, r *harness.Redis, name string, hosts int) (fleet []*harness.Worker, granted []<-chan harness.Answer) {
	t.Helper()
	for i := range hosts {
		d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
		w := harness.StartNthWorker(t, d, i)
		fleet, granted = append(fleet, w), append(granted, w.Enqueue(d, name))
		harness.Eventually(t, "the host has a ticket", func() bool { return r.Tickets(name) == int64(i+1) })
	}
	return fleet, granted
}

// passThrough has each worker be granted the lock and release it, in any order, and checks that
// one at a time has it, and that tokens grow.
func passThrough(t *testing.T, name string, fleet []*harness.Worker, granted []<-chan harness.Answer) {
	t.Helper()
	type grant struct {
		i int
		a harness.Answer
	}
	grants := make(chan grant, len(fleet))
	for i := range fleet {
		go func() { grants <- grant{i, <-granted[i]} }()
	}
	last := uint64(0)
	for range fleet {
		var g grant
		select {
		case g = <-grants:
		case <-time.After(harness.Patience):
			t.Fatalf("no host was granted %s within %v", name, harness.Patience)
		}
		if g.a.Err != "" || g.a.Token <= last {
			t.Errorf("host %d got %+v; the token before was %d", g.i, g.a, last)
		}
		last = g.a.Token
		select {
		case other := <-grants:
			t.Fatalf("hosts %d and %d hold %s", g.i, other.i, name)
		default:
		}
		fleet[g.i].Unlock(name)
	}
}

// A Redisson program holds a lock that many hosts wait for. Only two of them have subscribed to
// its channel, so its release wakes no more. All are granted the lock, one after another.
func TestReleaseOfRedissonWakesTwoHosts(t *testing.T) {
	t.Parallel()
	const name, hosts = "theirs", 6
	r := harness.StartRedis(t)
	host := harness.StartRedisson(t, r)
	host.Must(harness.Command{Do: "lock", Name: name, WaitMS: -1, Lease: tenMinutes})
	fleet, granted := enqueueEach(t, r, name, hosts)
	harness.Eventually(t, "the first two hosts have subscribed", func() bool { return r.Subscribers(name) == 2 })
	asked := r.CommandCalls(t.Context())["zrank"] // of hosts that ask again
	harness.Eventually(t, "each host has asked again", func() bool { return r.CommandCalls(t.Context())["zrank"] >= asked+hosts })
	if n := r.Subscribers(name); n != 2 {
		t.Errorf("%d hosts have subscribed to the lock's channel", n)
	}
	host.Must(harness.Command{Do: "unlock", Name: name})
	passThrough(t, name, fleet, granted)
	awaitFree(t, r, name)
}

// A Redisson program deletes the key of a lock that hosts queue for. The first of them finds that
// the lock is free: by the message that forceUnlock publishes, or when it asks again, after 5 to
// 6.25 s. The holder finds it at the next renewal.
func TestDeletedLockIsNoticedByHostsThatQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		do   string
	}{{"forceUnlock", "force_unlock"}, {"DEL", "delete"}} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			host := harness.StartRedisson(t, r)
			w := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL(), "--lease=10s"))
			h := harness.LockEach(r, []*harness.Worker{w}, "deleted")[0]
			fleet, granted := enqueueEach(t, r, h.Name, 3)
			deleted := time.Now()
			if a := host.Must(harness.Command{Do: c.do, Name: h.Name}); !a.Yes {
				t.Errorf("%s returns that the lock was not held", c.what)
			}
			passThrough(t, h.Name, fleet, granted)
			t.Logf("three hosts have had the lock %v after %s", time.Since(deleted).Round(time.Millisecond), c.what)
			if lost := w.Try(harness.Command{Do: "lost", As: h.Name}); lost.Reason != string(protocol.Deleted) && lost.Reason != string(protocol.Stolen) {
				t.Errorf("the SDK of the holder reports %+v", lost)
			}
		})
	}
}

// The same while clients of the holder's host wait, too. Then the holder finds it at once.
func TestDeletedLockIsNoticedByItsHostWhileOtherHostsQueue(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	host := harness.StartRedisson(t, r)
	d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	w, local := harness.StartGoWorker(t, d), harness.StartGoWorker(t, d)
	for i := range 3 {
		h := harness.LockEach(r, []*harness.Worker{w}, fmt.Sprint("round ", i))[0]
		mine := local.Enqueue(d, h.Name)
		fleet, granted := enqueueEach(t, r, h.Name, 2)
		harness.Eventually(t, "the holder's host has subscribed", func() bool { return r.Subscribers(h.Name) >= 1 })
		host.Must(harness.Command{Do: "force_unlock", Name: h.Name})
		if lost := w.Try(harness.Command{Do: "lost", As: h.Name}); lost.Reason != string(protocol.Deleted) && lost.Reason != string(protocol.Stolen) {
			t.Errorf("the SDK of the holder reports %+v", lost)
		}
		passThrough(t, h.Name, append(fleet, local), append(granted, mine))
	}
}
