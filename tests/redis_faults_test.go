package tests

import (
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"

	"github.com/locksidecar/locksidecar/protocol"
)

// What happens to locks when something happens to Redis, or to the way to it.
// Each test shows what holds, and, where something does not hold, that too.
//
//	fault                                      test
//	restart, with or without its data          TestLocksOutliveARestartOfRedis
//	restart without its data, two hosts        TestRestartWithoutDataAndTwoHosts
//	FLUSHALL, a deleted key                    TestHoldersAreToldOfAFlush
//	a key that somebody else overwrote         TestHolderIsToldOfATheft
//	stalled for less than a lease              TestStallShorterThanALeaseLosesNothing
//	stalled for longer than a lease            TestStallLongerThanALeaseEndsHolds
//	hanging, and acquires that do not wait     TestTryIsAnsweredWhileRedisHangs
//	not there at the start                     TestRedisIsDown, TestRedisComesLater
//	gone for longer than a lease               TestLockExpiresWhileRedisIsAway
//	gone for good                              TestRedisIsGoneForGood
//	failover to a replica that lags            TestFailoverToAReplicaThatLags
//	planned failover, READONLY                 TestPlannedFailover, TestRedisBecomesAReplica
//	connections killed, reset, half-open, slow;
//	scripts flushed: under load                TestLoadGoesOnThroughFaults
//	half-open connections, one at a time       TestHalfOpenConnections
//	a lost wake-up                             TestLostWakeUpIsFound
//	full (maxmemory)                           TestFullRedis

// nothingNew expects that no new lock is to be had on this host: whoever will not
// wait is told why at once, and others when their time is over.
func nothingNew(t *testing.T, d *harness.Daemon, workers []*harness.Worker, words ...string) {
	t.Helper()
	for _, w := range workers {
		a := w.Try(harness.Command{Do: "lock", As: "new", Name: "new", WaitMS: 0})
		if a.Err != "unavailable" {
			t.Errorf("a try is told %+v", a)
		}
		harness.CheckContains(t, a.Msg, words...)
	}
	w := harness.DialRaw(t, d)
	defer w.Conn.Close()
	harness.CheckContains(t, w.ExpectRefusal(protocol.Unavailable, harness.Message{"op": "acquire", "name": "new", "wait_ms": 300}), words...)
}

// Whoever holds a lock that is deleted from Redis is told so when it would be
// renewed. In between another host may have it: then it has a larger token, and
// the holder is told of that instead.
func TestHoldersAreToldOfAFlush(t *testing.T) {
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), "--lease=3s"), harness.StartDaemon(t, r.UnixURL(), "--lease=1m")
	holds := harness.LockEach(r, harness.StartWorkerPerSDK(t, here), "flushed")
	other := harness.StartGoWorker(t, there)

	r.MustDo("FLUSHALL")
	for _, h := range holds {
		h.ExpectLost(protocol.Deleted)
		// The counter of tokens was flushed too.
		again := h.Lock(h.Name)
		if again.Token <= h.Token {
			t.Errorf("%s: after the flush the token is %d, before it was %d", h.Name, again.Token, h.Token)
		}
		h.Unlock(h.Name)
		if a := other.Lock(h.Name); a.Token <= again.Token {
			t.Errorf("%s: on the other host the token is %d after %d", h.Name, a.Token, again.Token)
		}
		other.Unlock(h.Name)
	}

	// Nothing is renewed here before patience ends, so the other host is first.
	slow := harness.Hold{Worker: other, Name: "flushed unnoticed"}
	slow.Token = slow.Lock(slow.Name).Token
	r.MustDo("FLUSHALL")
	if a := holds[0].Lock(slow.Name); a.Token <= slow.Token {
		t.Errorf("%s: after the flush the token is %d, before it was %d", slow.Name, a.Token, slow.Token)
	}
	slow.CheckHeld() // what does not hold: two believe in it until the renewal
}

// Whoever holds a lock that somebody else writes into Redis is told so, and
// does not free it.
func TestHolderIsToldOfATheft(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=3s")
	ctx := t.Context()
	for _, h := range harness.LockEach(r, harness.StartWorkerPerSDK(t, d), "stolen") {
		pipe := r.TxPipeline()
		pipe.Del(ctx, h.Name)
		pipe.HSet(ctx, h.Name, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		h.ExpectLost(protocol.Stolen)
		if n := len(r.Fields(h.Name)); n != 1 {
			t.Errorf("the thief's key has %d fields now", n)
		}
	}
}

// Redis restarts and is away for five seconds. A lock whose lease is longer is
// held all the time, whether Redis kept its data or not; who waits is served
// when it is back.
func TestLocksOutliveARestartOfRedis(t *testing.T) {
	for _, c := range []struct {
		what string
		args []string
	}{
		{"with its data", []string{"--appendonly", "yes", "--appendfsync", "always"}},
		{"without its data", nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := harness.StartRedis(t, c.args...)
			d := harness.StartDaemon(t, r.UnixURL(), "--lease=20s")
			w := harness.StartGoWorker(t, d)
			kept := harness.LockEach(r, []*harness.Worker{w}, "kept")[0]

			r.Stop()
			stopped := time.Now()
			waiter := harness.StartGoWorker(t, d)
			waited := waiter.Send(harness.Command{Do: "lock", As: "free", Name: "free", WaitMS: -1})
			if a := waiter.Try(harness.Command{Do: "lock", As: "no", Name: "no", WaitMS: 0}); a.Err != "unavailable" {
				t.Errorf("a try without Redis is told %+v", a)
			}
			harness.Eventually(t, "five seconds", func() bool {
				if a := w.Try(harness.Command{Do: "check", As: kept.Name}); a.Err != "" {
					t.Fatalf("while Redis was away the holder was told %+v", a)
				}
				return time.Since(stopped) > 5*time.Second
			})
			r.Start()
			if a := waiter.Await(waited); a.Err != "" {
				t.Errorf("the waiter is told %+v", a)
			}
			kept.AwaitInRedis(r)
			kept.PassTo(waiter, waiter.Enqueue(d, kept.Name))
		})
	}
}

// Redis is killed and forgets everything while one host holds locks that the
// other waits for. Both come back by themselves. If the holders' host is first,
// nothing is lost. If the other one is first, exclusion is broken: it gets locks
// that others still believe in, with larger tokens, until the holders' host is
// back, or their deadlines pass.
func TestRestartWithoutDataAndTwoHosts(t *testing.T) {
	start := func(t *testing.T) (r *harness.Redis, toHere, toThere *harness.Proxy, holds []harness.Hold, next *harness.Worker, granted []<-chan harness.Answer) {
		r = harness.StartRedis(t)
		toHere, toThere = harness.StartProxy(t, r), harness.StartProxy(t, r)
		// No deadline passes before patience ends.
		here, there := harness.StartDaemon(t, toHere.URL(), "--lease=1m"), harness.StartDaemon(t, toThere.URL(), "--lease=1m")
		holds = harness.LockEach(r, harness.StartWorkerPerSDK(t, here), "forgotten")
		next = harness.StartGoWorker(t, there)
		for _, h := range holds {
			granted = append(granted, next.Enqueue(there, h.Name))
		}
		return
	}

	t.Run("the holders' host is first", func(t *testing.T) {
		r, _, toThere, holds, next, granted := start(t)
		toThere.Refuse()
		r.Kill()
		r.Start()
		for _, h := range holds {
			h.AwaitInRedis(r)
		}
		toThere.Admit()
		for i, h := range holds {
			harness.Eventually(t, "the other host waits for it again", func() bool { return r.Subscribers(h.Name) == 1 })
			h.PassTo(next, granted[i])
		}
	})

	t.Run("the other host is first", func(t *testing.T) {
		r, toHere, _, holds, next, granted := start(t)
		toHere.Refuse()
		r.Kill()
		r.Start()
		var grants []harness.Answer
		for i, h := range holds {
			a := next.Await(granted[i])
			if a.Err != "" || a.Token <= h.Token {
				t.Fatalf("%s: the other host is told %+v; the token before was %d", h.Name, a, h.Token)
			}
			grants = append(grants, a)
			h.CheckHeld() // what does not hold: two believe in it
		}
		toHere.Admit()
		for i, h := range holds {
			before := r.Fields(h.Name)
			if lost := h.ExpectLost(protocol.Stolen); lost.AtNS >= lost.DeadlineNS || lost.AtNS < grants[i].AtNS {
				t.Errorf("%s: granted at %d, the holder before was told at %d; its deadline was %d", h.Name, grants[i].AtNS, lost.AtNS, lost.DeadlineNS)
			}
			if a := next.Try(harness.Command{Do: "check", As: h.Name}); a.Err != "" || !maps.Equal(r.Fields(h.Name), before) {
				t.Errorf("%s: the loss of the one is a loss of the other: %+v", h.Name, a)
			}
		}
	})
}

// Redis is away for longer than a lease: the holder is told at its deadline,
// not when Redis is back.
func TestLockExpiresWhileRedisIsAway(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=1s")
	holds := harness.LockEach(r, harness.StartWorkerPerSDK(t, d), "expiring")
	r.Stop()
	for _, h := range holds {
		h.ExpectLost(protocol.Expired)
	}
	r.Start()
	for _, h := range holds {
		if a := h.Lock(h.Name); a.Token <= h.Token {
			t.Errorf("the token is %d, before it was %d, and Redis has forgotten it", a.Token, h.Token)
		}
	}
}

// Redis does not come back. Whoever will not wait is told at once, whoever waits
// is told when its time is over, releases are answered, holders keep what they
// have until their deadlines, and the daemon can be looked at and stopped.
func TestRedisIsGoneForGood(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=4s")
	workers := harness.StartWorkerPerSDK(t, d)
	holds, released := harness.LockEach(r, workers, "kept"), harness.LockEach(r, workers, "released")
	r.Kill()

	for i, w := range workers {
		w.Unlock(released[i].Name)
	}
	nothingNew(t, d, workers, "redis", r.Socket())
	for _, h := range holds {
		if lost := h.ExpectLost(protocol.Expired); lost.AtNS < lost.DeadlineNS {
			t.Errorf("%s: told %v before its deadline", h.Name, time.Duration(lost.DeadlineNS-lost.AtNS))
		}
	}
	if out := d.Run("ls"); out.Code != 0 {
		t.Errorf("`ls` ends with %d: %s", out.Code, out.Stderr)
	}
	d.Terminate()
	if code := d.ExitCode(); code != 0 {
		t.Errorf("the daemon ends with %d", code)
	}
}

// Redis stands still for longer than a renewal takes to come round, and for less
// than a lease: its holders do not notice.
func TestStallShorterThanALeaseLosesNothing(t *testing.T) {
	const lease = 12 * time.Second
	const renewal = lease/3 + 500*time.Millisecond // with its jitter
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), "--lease="+lease.String()), harness.StartDaemon(t, r.UnixURL())
	holds := harness.LockEach(r, harness.StartWorkerPerSDK(t, here), "held")
	next := harness.StartGoWorker(t, there)
	var granted []<-chan harness.Answer
	for _, h := range holds {
		granted = append(granted, next.Enqueue(there, h.Name))
	}
	// Just granted: two thirds of the lease are left when it is over.
	r.Signal(syscall.SIGSTOP)
	stopped := time.Now()
	harness.Eventually(t, "a renewal is overdue", func() bool { return time.Since(stopped) > renewal })
	r.Signal(syscall.SIGCONT)
	for _, h := range holds {
		harness.Eventually(t, h.Name+" is renewed", func() bool { return r.PTTL(t.Context(), h.Name).Val() > lease-renewal })
		h.CheckHeld()
		h.AwaitInRedis(r)
	}
	for i, h := range holds {
		h.PassTo(next, granted[i])
	}
}

// An acquire that does not wait, or not for longer than a round trip, is answered while
// Redis hangs and its connection still stands, however many operations wait to be sent. The
// answer blames Redis, and others only if they hold the lock.
func TestTryIsAnsweredWhileRedisHangs(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	busy, w := harness.DialRaw(t, d), harness.DialRaw(t, d)
	w.Call(harness.Message{"op": "acquire", "name": "held"})
	for range 300 { // until the daemon has seen that this Redis is near: it sends less at a time
		hold := w.Call(harness.Message{"op": "acquire", "name": "near"})["hold"]
		w.Call(harness.Message{"op": "release", "hold": hold})
	}
	r.Signal(syscall.SIGSTOP)
	for i := range 1000 {
		busy.Send(harness.Message{"op": "acquire", "id": 10 + i, "name": fmt.Sprint("lock ", i)})
	}
	for _, wait := range []int{0, 1} {
		msg := w.ExpectRefusal(protocol.Unavailable, harness.Message{"op": "acquire", "name": fmt.Sprint("free ", wait), "wait_ms": wait})
		if !strings.Contains(msg, "Redis has not answered for") {
			t.Errorf("wait_ms %d: %s", wait, msg)
		}
		msg = w.ExpectRefusal(protocol.Timeout, harness.Message{"op": "acquire", "name": "held", "wait_ms": wait})
		if !strings.Contains(msg, "held by pid") {
			t.Errorf("wait_ms %d: %s", wait, msg)
		}
	}
	r.Signal(syscall.SIGCONT)
	for range 1000 {
		if a, err := busy.Next(); err != nil || a["err"] != nil {
			t.Fatalf("an acquire that waits was answered with %v (%v)", a, err)
		}
	}
	// What Redis granted after the refusal is given back.
	harness.Eventually(t, "the lock is free in Redis", func() bool { return r.Exists(t.Context(), "free 0").Val() == 0 })
}

// Redis stands still for longer than a lease: it is there, and does not answer.
// A lock is believed in until its deadline and no longer, a bounded wait ends in
// time, and when Redis goes on, the other host has the lock, not before the
// holder stopped believing.
func TestStallLongerThanALeaseEndsHolds(t *testing.T) {
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), "--lease=2s"), harness.StartDaemon(t, r.UnixURL())
	holds := harness.LockEach(r, harness.StartWorkerPerSDK(t, here), "hanging")
	next := harness.StartGoWorker(t, there)
	var granted []<-chan harness.Answer
	for _, h := range holds {
		granted = append(granted, next.Enqueue(there, h.Name))
	}
	r.Signal(syscall.SIGSTOP)
	if a := holds[0].Try(harness.Command{Do: "lock", As: "x", Name: "x", WaitMS: 100}); a.Err == "" {
		t.Errorf("a lock was granted by a Redis that does not answer: %+v", a)
	}
	deadlines := map[string]int64{}
	for _, h := range holds {
		lost := h.ExpectLost(protocol.Expired) // while Redis stands still
		if lost.AtNS < lost.DeadlineNS {
			t.Errorf("%s: told %v before its deadline", h.Name, time.Duration(lost.DeadlineNS-lost.AtNS))
		}
		deadlines[h.Name] = lost.DeadlineNS
	}
	r.Signal(syscall.SIGCONT)
	for i, h := range holds {
		a := next.Await(granted[i])
		if a.Err != "" || a.Token <= h.Token || a.AtNS < deadlines[h.Name] {
			t.Errorf("%s: the other host is told %+v; the token before was %d, its deadline %d", h.Name, a, h.Token, deadlines[h.Name])
		}
		next.Unlock(h.Name)
		if again := h.Lock(h.Name); again.Token <= a.Token {
			t.Errorf("%s: token %d after %d", h.Name, again.Token, a.Token)
		}
	}
}
