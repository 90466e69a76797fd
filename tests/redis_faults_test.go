package tests

import (
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

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

// oneOfEach starts a client process in each language.
func oneOfEach(t *testing.T, d *daemon) []*worker {
	t.Helper()
	all := []*worker{startGoWorker(t, d)}
	if havePython() {
		all = append(all, startPythonWorker(t, d))
	}
	return all
}

// A held is a lock that a worker holds, under the same name there.
type held struct {
	*worker
	name  string
	token uint64
	field map[string]string // in Redis
}

// holdOne lets each worker hold a lock of its own.
func holdOne(r *redisServer, workers []*worker, prefix string) []held {
	var holds []held
	for i, w := range workers {
		name := fmt.Sprint(prefix, " ", i)
		token := w.lock(name).Token
		holds = append(holds, held{w, name, token, r.fields(name)})
	}
	return holds
}

// check expects that the holder believes in its lock.
func (h *held) check() {
	h.t.Helper()
	if a := h.try(command{Do: "check", As: h.name}); a.Err != "" {
		h.t.Errorf("%s: the holder was told %+v", h.name, a)
	}
}

// lost waits until the holder is told that it lost the lock, for this reason.
func (h *held) lost(reason protocol.Reason) answer {
	h.t.Helper()
	a := h.try(command{Do: "lost", As: h.name})
	if a.Err != "lost" || a.Reason != string(reason) {
		h.t.Errorf("%s: the holder is told %+v, not that the lock was lost: %s", h.name, a, reason)
	}
	if a := h.try(command{Do: "unlock", As: h.name}); a.Err == "" {
		h.t.Errorf("%s: the holder released a lock that it had lost", h.name)
	}
	return a
}

// inRedis waits until the lock is in Redis as it was when it was granted.
func (h *held) inRedis(r *redisServer) {
	h.t.Helper()
	eventually(h.t, h.name+" is in Redis as before", func() bool { return maps.Equal(r.fields(h.name), h.field) })
}

// passesTo releases the lock and expects that it was not granted before, and
// then to this waiter, with a larger token.
func (h *held) passesTo(next *worker, granted <-chan answer) {
	h.t.Helper()
	h.check()
	released := protocol.Now()
	h.unlock(h.name)
	a := next.await(granted)
	switch {
	case a.Err != "":
		h.t.Fatalf("%s: the waiter is told %+v", h.name, a)
	case a.AtNS < released:
		h.t.Errorf("%s: granted %v before its release", h.name, time.Duration(released-a.AtNS))
	case a.Token <= h.token:
		h.t.Errorf("%s: token %d after %d", h.name, a.Token, h.token)
	}
}

// waitFor queues a worker for a lock and returns when its daemon has asked for it.
func waitFor(w *worker, d *daemon, name string) <-chan answer {
	w.t.Helper()
	before := waiting(w.t, d, name)
	granted := w.ask(command{Do: "lock", As: name, Name: name, WaitMS: -1})
	eventually(w.t, "the waiter for "+name+" waits", func() bool { return waiting(w.t, d, name) > before })
	return granted
}

// nothingNew expects that no new lock is to be had on this host: whoever will not
// wait is told why at once, and others when their time is over.
func nothingNew(t *testing.T, d *daemon, workers []*worker, words ...string) {
	t.Helper()
	for _, w := range workers {
		a := w.try(command{Do: "lock", As: "new", Name: "new", WaitMS: 0})
		if a.Err != "unavailable" {
			t.Errorf("a try is told %+v", a)
		}
		says(t, a.Msg, words...)
	}
	w := dialWire(t, d)
	defer w.conn.Close()
	says(t, w.refused(protocol.Unavailable, message{"op": "acquire", "name": "new", "wait_ms": 300}), words...)
}

// Whoever holds a lock that is deleted from Redis is told so when it would be
// renewed. In between another host may have it: then it has a larger token, and
// the holder is told of that instead.
func TestHoldersAreToldOfAFlush(t *testing.T) {
	r := startRedis(t)
	here, there := startDaemon(t, r.unixURL(), "--lease=3s"), startDaemon(t, r.unixURL(), "--lease=1m")
	holds := holdOne(r, oneOfEach(t, here), "flushed")
	other := startGoWorker(t, there)

	r.do("FLUSHALL")
	for _, h := range holds {
		h.lost(protocol.Deleted)
		// The counter of tokens was flushed too.
		again := h.lock(h.name)
		if again.Token <= h.token {
			t.Errorf("%s: after the flush the token is %d, before it was %d", h.name, again.Token, h.token)
		}
		h.unlock(h.name)
		if a := other.lock(h.name); a.Token <= again.Token {
			t.Errorf("%s: on the other host the token is %d after %d", h.name, a.Token, again.Token)
		}
		other.unlock(h.name)
	}

	// Nothing is renewed here before patience ends, so the other host is first.
	slow := held{worker: other, name: "flushed unnoticed"}
	slow.token = slow.lock(slow.name).Token
	r.do("FLUSHALL")
	if a := holds[0].lock(slow.name); a.Token <= slow.token {
		t.Errorf("%s: after the flush the token is %d, before it was %d", slow.name, a.Token, slow.token)
	}
	slow.check() // what does not hold: two believe in it until the renewal
}

// Whoever holds a lock that somebody else writes into Redis is told so, and
// does not free it.
func TestHolderIsToldOfATheft(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=3s")
	ctx := t.Context()
	for _, h := range holdOne(r, oneOfEach(t, d), "stolen") {
		pipe := r.TxPipeline()
		pipe.Del(ctx, h.name)
		pipe.HSet(ctx, h.name, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		h.lost(protocol.Stolen)
		if n := len(r.fields(h.name)); n != 1 {
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
			r := startRedis(t, c.args...)
			d := startDaemon(t, r.unixURL(), "--lease=20s")
			w := startGoWorker(t, d)
			kept := holdOne(r, []*worker{w}, "kept")[0]

			r.stop()
			stopped := time.Now()
			waiter := startGoWorker(t, d)
			waited := waiter.ask(command{Do: "lock", As: "free", Name: "free", WaitMS: -1})
			if a := waiter.try(command{Do: "lock", As: "no", Name: "no", WaitMS: 0}); a.Err != "unavailable" {
				t.Errorf("a try without Redis is told %+v", a)
			}
			eventually(t, "five seconds", func() bool {
				if a := w.try(command{Do: "check", As: kept.name}); a.Err != "" {
					t.Fatalf("while Redis was away the holder was told %+v", a)
				}
				return time.Since(stopped) > 5*time.Second
			})
			r.start()
			if a := waiter.await(waited); a.Err != "" {
				t.Errorf("the waiter is told %+v", a)
			}
			kept.inRedis(r)
			kept.passesTo(waiter, waitFor(waiter, d, kept.name))
		})
	}
}

// Redis is killed and forgets everything while one host holds locks that the
// other waits for. Both come back by themselves. If the holders' host is first,
// nothing is lost. If the other one is first, exclusion is broken: it gets locks
// that others still believe in, with larger tokens, until the holders' host is
// back, or their deadlines pass.
func TestRestartWithoutDataAndTwoHosts(t *testing.T) {
	start := func(t *testing.T) (r *redisServer, toHere, toThere *proxy, holds []held, next *worker, granted []<-chan answer) {
		r = startRedis(t)
		toHere, toThere = startProxy(t, r), startProxy(t, r)
		// No deadline passes before patience ends.
		here, there := startDaemon(t, toHere.url(), "--lease=1m"), startDaemon(t, toThere.url(), "--lease=1m")
		holds = holdOne(r, oneOfEach(t, here), "forgotten")
		next = startGoWorker(t, there)
		for _, h := range holds {
			granted = append(granted, waitFor(next, there, h.name))
		}
		return
	}

	t.Run("the holders' host is first", func(t *testing.T) {
		r, _, toThere, holds, next, granted := start(t)
		toThere.refuse()
		r.kill9()
		r.start()
		for _, h := range holds {
			h.inRedis(r)
		}
		toThere.admit()
		for i, h := range holds {
			eventually(t, "the other host waits for it again", func() bool { return r.listeners(h.name) == 1 })
			h.passesTo(next, granted[i])
		}
	})

	t.Run("the other host is first", func(t *testing.T) {
		r, toHere, _, holds, next, granted := start(t)
		toHere.refuse()
		r.kill9()
		r.start()
		var grants []answer
		for i, h := range holds {
			a := next.await(granted[i])
			if a.Err != "" || a.Token <= h.token {
				t.Fatalf("%s: the other host is told %+v; the token before was %d", h.name, a, h.token)
			}
			grants = append(grants, a)
			h.check() // what does not hold: two believe in it
		}
		toHere.admit()
		for i, h := range holds {
			before := r.fields(h.name)
			if lost := h.lost(protocol.Stolen); lost.AtNS >= lost.DeadlineNS || lost.AtNS < grants[i].AtNS {
				t.Errorf("%s: granted at %d, the holder before was told at %d; its deadline was %d", h.name, grants[i].AtNS, lost.AtNS, lost.DeadlineNS)
			}
			if a := next.try(command{Do: "check", As: h.name}); a.Err != "" || !maps.Equal(r.fields(h.name), before) {
				t.Errorf("%s: the loss of the one is a loss of the other: %+v", h.name, a)
			}
		}
	})
}

// Redis is away for longer than a lease: the holder is told at its deadline,
// not when Redis is back.
func TestLockExpiresWhileRedisIsAway(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=1s")
	holds := holdOne(r, oneOfEach(t, d), "expiring")
	r.stop()
	for _, h := range holds {
		h.lost(protocol.Expired)
	}
	r.start()
	for _, h := range holds {
		if a := h.lock(h.name); a.Token <= h.token {
			t.Errorf("the token is %d, before it was %d, and Redis has forgotten it", a.Token, h.token)
		}
	}
}

// Redis does not come back. Whoever will not wait is told at once, whoever waits
// is told when its time is over, releases are answered, holders keep what they
// have until their deadlines, and the daemon can be looked at and stopped.
func TestRedisIsGoneForGood(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=4s")
	workers := oneOfEach(t, d)
	holds, released := holdOne(r, workers, "kept"), holdOne(r, workers, "released")
	r.kill9()

	for i, w := range workers {
		w.unlock(released[i].name)
	}
	nothingNew(t, d, workers, "redis", r.socket())
	for _, h := range holds {
		if lost := h.lost(protocol.Expired); lost.AtNS < lost.DeadlineNS {
			t.Errorf("%s: told %v before its deadline", h.name, time.Duration(lost.DeadlineNS-lost.AtNS))
		}
	}
	if out := d.run("ls"); out.code != 0 {
		t.Errorf("`ls` ends with %d: %s", out.code, out.stderr)
	}
	d.terminate()
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the daemon ends with %d", code)
	}
}

// Redis stands still for longer than a renewal takes to come round, and for less
// than a lease: its holders do not notice.
func TestStallShorterThanALeaseLosesNothing(t *testing.T) {
	const lease = 12 * time.Second
	const renewal = lease/3 + 500*time.Millisecond // with its jitter
	r := startRedis(t)
	here, there := startDaemon(t, r.unixURL(), "--lease="+lease.String()), startDaemon(t, r.unixURL())
	holds := holdOne(r, oneOfEach(t, here), "held")
	next := startGoWorker(t, there)
	var granted []<-chan answer
	for _, h := range holds {
		granted = append(granted, waitFor(next, there, h.name))
	}
	// Just granted: two thirds of the lease are left when it is over.
	r.signal(syscall.SIGSTOP)
	stopped := time.Now()
	eventually(t, "a renewal is overdue", func() bool { return time.Since(stopped) > renewal })
	r.signal(syscall.SIGCONT)
	for _, h := range holds {
		eventually(t, h.name+" is renewed", func() bool { return r.PTTL(t.Context(), h.name).Val() > lease-renewal })
		h.check()
		h.inRedis(r)
	}
	for i, h := range holds {
		h.passesTo(next, granted[i])
	}
}

// An acquire that does not wait, or not for longer than a round trip, is answered while
// Redis hangs and its connection still stands, however many operations wait to be sent. The
// answer blames Redis, and others only if they hold the lock.
func TestTryIsAnsweredWhileRedisHangs(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL())
	busy, w := dialWire(t, d), dialWire(t, d)
	w.ask(message{"op": "acquire", "name": "held"})
	for range 300 { // until the daemon has seen that this Redis is near: it sends less at a time
		hold := w.ask(message{"op": "acquire", "name": "near"})["hold"]
		w.ask(message{"op": "release", "hold": hold})
	}
	r.signal(syscall.SIGSTOP)
	for i := range 1000 {
		busy.send(message{"op": "acquire", "id": 10 + i, "name": fmt.Sprint("lock ", i)})
	}
	for _, wait := range []int{0, 1} {
		msg := w.refused(protocol.Unavailable, message{"op": "acquire", "name": fmt.Sprint("free ", wait), "wait_ms": wait})
		if !strings.Contains(msg, "Redis has not answered for") {
			t.Errorf("wait_ms %d: %s", wait, msg)
		}
		msg = w.refused(protocol.Timeout, message{"op": "acquire", "name": "held", "wait_ms": wait})
		if !strings.Contains(msg, "held by pid") {
			t.Errorf("wait_ms %d: %s", wait, msg)
		}
	}
	r.signal(syscall.SIGCONT)
	for range 1000 {
		if a, err := busy.next(); err != nil || a["err"] != nil {
			t.Fatalf("an acquire that waits was answered with %v (%v)", a, err)
		}
	}
	// What Redis granted after the refusal is given back.
	eventually(t, "the lock is free in Redis", func() bool { return r.Exists(t.Context(), "free 0").Val() == 0 })
}

// Redis stands still for longer than a lease: it is there, and does not answer.
// A lock is believed in until its deadline and no longer, a bounded wait ends in
// time, and when Redis goes on, the other host has the lock, not before the
// holder stopped believing.
func TestStallLongerThanALeaseEndsHolds(t *testing.T) {
	r := startRedis(t)
	here, there := startDaemon(t, r.unixURL(), "--lease=2s"), startDaemon(t, r.unixURL())
	holds := holdOne(r, oneOfEach(t, here), "hanging")
	next := startGoWorker(t, there)
	var granted []<-chan answer
	for _, h := range holds {
		granted = append(granted, waitFor(next, there, h.name))
	}
	r.signal(syscall.SIGSTOP)
	if a := holds[0].try(command{Do: "lock", As: "x", Name: "x", WaitMS: 100}); a.Err == "" {
		t.Errorf("a lock was granted by a Redis that does not answer: %+v", a)
	}
	deadlines := map[string]int64{}
	for _, h := range holds {
		lost := h.lost(protocol.Expired) // while Redis stands still
		if lost.AtNS < lost.DeadlineNS {
			t.Errorf("%s: told %v before its deadline", h.name, time.Duration(lost.DeadlineNS-lost.AtNS))
		}
		deadlines[h.name] = lost.DeadlineNS
	}
	r.signal(syscall.SIGCONT)
	for i, h := range holds {
		a := next.await(granted[i])
		if a.Err != "" || a.Token <= h.token || a.AtNS < deadlines[h.name] {
			t.Errorf("%s: the other host is told %+v; the token before was %d, its deadline %d", h.name, a, h.token, deadlines[h.name])
		}
		next.unlock(h.name)
		if again := h.lock(h.name); again.Token <= a.Token {
			t.Errorf("%s: token %d after %d", h.name, again.Token, a.Token)
		}
	}
}
