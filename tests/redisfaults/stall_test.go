package redisfaults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Redis is suspended for longer than the time between two renewals, and for less than a
// lease. No hold is lost.
//
// Shows docs/guarantees.md: Restart with its data.
func TestStallShorterThanALeaseLosesNothing(t *testing.T) {
	t.Parallel()
	const lease = 12 * time.Second
	const renewal = lease/3 + lease/20 // with the delay of its group
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), "--lease="+lease.String()), harness.StartDaemon(t, r.UnixURL())
	holds := harness.LockEach(r, harness.StartWorkerPerSDK(t, here), "held")
	next := harness.StartGoWorker(t, there)
	var granted []<-chan harness.Answer
	for _, h := range holds {
		granted = append(granted, next.Enqueue(there, h.Name))
	}
	// The locks were just granted: two thirds of the lease are left when Redis goes on.
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

// A request that does not wait, or no longer than a round trip, is answered while Redis hangs
// and its connection is open, however many operations wait to be sent. The answer names
// Redis as the cause, and another holder only if there is one.
func TestTryIsAnsweredWhileRedisHangs(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	busy, w := harness.DialRaw(t, d), harness.DialRaw(t, d)
	w.Call(harness.Message{"op": "acquire", "name": "held"})
	for range 300 { // until the daemon has measured that the round trip is short: it sends fewer operations then
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
			t.Fatalf("a request that waits is answered %v (%v)", a, err)
		}
	}
	// The daemon releases what Redis granted after the refusal.
	harness.Eventually(t, "the lock is free in Redis", func() bool { return r.Exists(t.Context(), "free 0").Val() == 0 })
}

// A wait of less than 500 ms ends before the daemon answers that Redis is silent. The Go SDK
// asks the daemon what it waits for, but only for milliseconds: on a busy machine some waits
// end before the answer.
func TestShortWaitReportsThatRedisIsSilent(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	c := harness.Dial(t, d)
	const tries = 20
	inSilence := func(try func() (isReported bool)) {
		t.Helper()
		for range tries {
			// Redis answers again, so the next silence is a new one.
			l, err := c.Lock(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Unlock(locksidecar.Confirmed(t.Context())); err != nil {
				t.Fatal(err)
			}
			r.Signal(syscall.SIGSTOP)
			isReported := try()
			r.Signal(syscall.SIGCONT)
			if isReported || t.Failed() {
				return
			}
		}
		t.Errorf("none of %d waits reported that Redis was silent", tries)
	}
	inSilence(func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := c.Lock(ctx, "a")
		harness.CheckError(t, err, locksidecar.ErrTimeout)
		return errors.Is(err, locksidecar.ErrUnavailable)
	})
	inSilence(func() bool {
		got := d.Run("run", "--wait", "100ms", "a", "--", "echo", "ran")
		if got.Code != 69 && got.Code != 75 || got.Stdout != "" {
			t.Errorf("run: exit code %d, output %q\n%s", got.Code, got.Stdout, got.Stderr)
		}
		return got.Code == 69
	})
}

// Redis is suspended for longer than a lease: its connections stay open, and it does not
// answer. Holds are lost at their deadlines, and requests with a timeout end in time. When
// Redis goes on, the other host is granted the locks, not before those deadlines.
//
// Shows docs/guarantees.md: Longer outage, or a host that is cut off from Redis for longer.
func TestStallLongerThanALeaseEndsHolds(t *testing.T) {
	t.Parallel()
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
		lost := h.ExpectLost(protocol.Expired) // while Redis is suspended
		if lost.AtNS < lost.DeadlineNS {
			t.Errorf("%s: lost %v before its deadline", h.Name, time.Duration(lost.DeadlineNS-lost.AtNS))
		}
		deadlines[h.Name] = lost.DeadlineNS
	}
	r.Signal(syscall.SIGCONT)
	for i, h := range holds {
		a := next.Await(granted[i])
		if a.Err != "" || a.Token <= h.Token || a.AtNS < deadlines[h.Name] {
			t.Errorf("%s: the other host got %+v; the token before was %d, the deadline %d", h.Name, a, h.Token, deadlines[h.Name])
		}
		next.Unlock(h.Name)
		if again := h.Lock(h.Name); again.Token <= a.Token {
			t.Errorf("%s: token %d after %d", h.Name, again.Token, a.Token)
		}
	}
}

// The daemon itself is suspended while Redis answers. The answer waits in the daemon's
// socket: when it continues, it does not take its own pause for a silence of Redis.
func TestPauseOfTheDaemonIsNotBlamedOnRedis(t *testing.T) {
	t.Parallel()
	const tryWithin = 500 * time.Millisecond // after which a request that does not wait is answered
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	w := harness.DialRaw(t, d)
	for attempt := range 20 {
		name := fmt.Sprint("lock ", attempt)
		r.Signal(syscall.SIGSTOP)
		began := time.Now()
		w.Send(harness.Message{"op": "acquire", "id": 100 + attempt, "name": name, "wait_ms": 0})
		w.Send(harness.Message{"op": "ping", "id": 200 + attempt})
		a, err := w.Next() // of ping: the operation has been sent
		d.Suspend()
		inTime := time.Since(began) < tryWithin/2 && err == nil && a["redis"] != nil
		r.Signal(syscall.SIGCONT)
		if inTime {
			harness.Eventually(t, "Redis has executed the operation", func() bool { return len(r.Fields(name)) == 1 })
			harness.Eventually(t, "the pause is longer than the daemon waits for Redis", func() bool { return time.Since(began) > 2*tryWithin })
		}
		d.Signal(syscall.SIGCONT)
		next, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		if inTime {
			if next["err"] != nil {
				t.Fatalf("the request is refused: %v", next)
			}
			return
		}
		// The machine was too slow: the refusal may have come before the pause.
	}
	t.Fatal("the daemon was never suspended in time")
}
