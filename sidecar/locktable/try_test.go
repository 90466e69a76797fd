package locktable_test

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

const tryWithinDefault = 500 * time.Millisecond

// refused expects the only effect since the last want to be a refusal, and looks at what it
// says.
func (r *rig) refused(s locktable.SessionID, code protocol.Code, part string) {
	r.Helper()
	r.want("s" + itoa(uint64(s)) + " refused " + string(code))
	if !strings.Contains(r.msg, part) {
		r.Fatalf("the refusal says %q, want %q", r.msg, part)
	}
}

// An acquire that does not wait is answered within TryWithin, if Redis hangs. What Redis
// grants after that is given back.
func TestTryIsAnsweredAlthoughRedisIsSilent(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", wait(0))
	r.pass(tryWithinDefault - time.Millisecond)
	r.want()
	r.pass(2 * time.Millisecond)
	r.refused(1, protocol.Unavailable, "Redis has not answered for 50")

	// While the silence lasts, others are answered at once.
	r.acquire(2, "a", wait(0))
	r.refused(2, protocol.Unavailable, "Redis has not answered for 501ms")
	r.acquire(2, "a") // and behind a waiter, too
	r.acquire(3, "a", wait(0))
	r.refused(3, protocol.Unavailable, "Redis has not answered")
	r.tb.Cancel(r.now, 2, protocol.Cancel{Target: r.ids - 1})
	r.want("s2 refused canceled")

	r.redis(redisop.Take, redisop.Done)
	r.want()
	r.redis(redisop.Drop, redisop.Done)
	r.want()
	r.quiet()
	if _, ok := r.tb.Info(r.now, "a"); ok {
		t.Error("the table still knows the lock")
	}
}

// A sidecar that was stopped, or a host that was suspended, has not read what Redis
// returned meanwhile: that time is no silence of Redis.
func TestPauseOfTheSidecarIsNoSilenceOfRedis(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", wait(0))
	r.now += int64(time.Hour)
	r.tb.Paused(r.now)
	r.pass(0)
	r.want()
	if s := r.tb.Silence(r.now); s != 0 {
		t.Errorf("a silence of %v", s)
	}
	r.pass(tryWithinDefault - time.Millisecond)
	r.want()
	r.pass(2 * time.Millisecond)
	r.refused(1, protocol.Unavailable, "Redis has not answered for 50")

	r.acquire(2, "b", wait(0))
	r.refused(2, protocol.Unavailable, "")
	r.now += int64(time.Hour)
	r.tb.Paused(r.now)
	r.pass(0)
	r.acquire(3, "a", wait(0))
	r.want()
	r.redis(redisop.Take, redisop.Done)
	r.want("s3 granted hold=1 token=1 count=1")
}

// Redis answers other locks, and the Take that was pipelined, but not the Drop before it. Until it does,
// nothing else is asked, and whose turn it is has nothing to do with that.
func TestTryThatALateDropDelaysIsUnavailable(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.acquire(2, "a")
	r.two()
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "a", Sent: r.now, Token: 2})
	r.release(2, 2)
	r.acquire(1, "a", wait(0))
	r.log = nil
	r.pass(100 * time.Millisecond)
	r.acquire(2, "b")
	r.redis(redisop.Take, redisop.Done)
	r.collect()
	r.log = nil
	r.pass(tryWithinDefault - 100*time.Millisecond)
	r.refused(1, protocol.Unavailable, "Redis has not answered for 500ms")
}

// Another lock's operation shows the silence of Redis as well.
func TestTryOfAnotherLockIsAnsweredAtOnceWhileRedisIsSilent(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.pass(time.Second)
	r.want()
	r.acquire(2, "b", wait(0))
	r.refused(2, protocol.Unavailable, "Redis has not answered for 1s")
	if s := r.tb.Silence(r.now); s != time.Second {
		t.Errorf("a silence of %v", s)
	}
}

// A grant that comes after the refusal serves an acquire that came meanwhile.
func TestGrantAfterATryWasAnsweredServesTheNextOne(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", wait(0))
	r.pass(tryWithinDefault)
	r.refused(1, protocol.Unavailable, "")
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.want("s2 granted hold=1 token=1 count=1")
}

// A wait shorter than a round trip to Redis gets no less than wait_ms 0 does.
func TestWaitShorterThanARoundTripGetsWhatNoWaitGets(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "free", wait(time.Millisecond))
	r.pass(50 * time.Millisecond)
	r.want()
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")

	r.acquire(2, "remote", wait(time.Millisecond))
	r.pass(50 * time.Millisecond)
	r.want()
	r.redis(redisop.Take, redisop.HeldByOther)
	r.refused(2, protocol.Timeout, "held by another:1, not on this host")
	r.quiet()

	r.acquire(3, "silent", wait(time.Millisecond))
	r.pass(tryWithinDefault - 2*time.Millisecond)
	r.want()
	r.pass(4 * time.Millisecond)
	r.refused(3, protocol.Unavailable, "Redis has not answered for 50")
}

// That another host had the lock some time ago does not say that it has it now.
func TestSilenceCountsMoreThanAnOldAnswer(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.pass(time.Millisecond)
	r.tb.Subscribed(r.now, 0, "a") // it asks again, and gets no answer
	r.acquire(2, "a", wait(time.Second))
	r.pass(time.Second + 4*time.Millisecond)
	r.collect()
	if got := strings.Join(r.log, "\n"); !strings.HasSuffix(got, "s2 refused unavailable") || !strings.Contains(r.msg, "Redis has not answered for 1") {
		t.Errorf("%s (%s)", got, r.msg)
	}
}

// A wait longer than TryWithin ends in time.
func TestLongWaitEndsInTimeAlthoughRedisIsSilent(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", wait(time.Second))
	r.acquire(2, "a", wait(time.Second))
	r.pass(time.Second - time.Millisecond)
	r.want()
	r.pass(3 * time.Millisecond)
	r.want("s1 refused unavailable", "s2 refused unavailable")
}

// A waiter that was kept by others is told so, and not of Redis.
func TestRefusalNamesWhatKeptTheLock(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.acquire(2, "a", wait(0))
	r.refused(2, protocol.Timeout, "others on this host wait for it")
	r.acquire(2, "a", wait(time.Millisecond))
	r.pass(4 * time.Millisecond)
	r.refused(2, protocol.Timeout, "others on this host wait for it")
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
	r.acquire(2, "a", wait(time.Millisecond))
	r.pass(4 * time.Millisecond)
	r.refused(2, protocol.Timeout, "held by pid 100")

	r.tb.Down(r.now, 0, "Redis is away")
	r.acquire(3, "b")
	r.acquire(2, "b", wait(0))
	r.refused(2, protocol.Unavailable, "Redis is away")

	r.acquire(2, "b", wait(time.Millisecond))
	r.tb.Down(r.now, 0, "Redis does not accept the password")
	r.pass(4 * time.Millisecond)
	r.refused(2, protocol.Unavailable, "Redis does not accept the password")
	r.acquire(2, "b", wait(0))
	r.refused(2, protocol.Unavailable, "Redis does not accept the password")
}

// Before Redis was reached for the first time, an acquire that does not wait waits for that,
// but not for long.
func TestTryIsAnsweredBeforeRedisIsReached(t *testing.T) {
	r := newRig(t)
	r.tb = connect(newTable(locktable.Config{}, r.now))
	r.tb.Open(r.now, 1, locktable.Peer{PID: 100})
	r.acquire(1, "a", wait(0))
	r.want()
	r.pass(tryWithinDefault + 2*time.Millisecond)
	r.refused(1, protocol.Unavailable, "has not been reached yet")
}

// A sidecar has been restarted, and a client has sent its request again. A try behind it is refused for
// that one, and not because Redis has not been reached: who tries at each start of a sidecar would take
// it for a failure.
func TestTryBehindAWaiterIsRefusedForItBeforeRedisIsReached(t *testing.T) {
	r := newRig(t)
	r.tb = connect(newTable(locktable.Config{}, r.now))
	r.tb.Open(r.now, 1, locktable.Peer{PID: 100})
	r.acquire(1, "a")
	r.acquire(1, "a", wait(0))
	r.refused(1, protocol.Timeout, "others on this host wait for it")
	r.acquire(1, "a", wait(time.Millisecond))
	r.pass(tryWithinDefault + 2*time.Millisecond)
	r.refused(1, protocol.Unavailable, "has not been reached yet") // it has waited for Redis
}

// The turn of this host is over, because Redis did not say how many subscribe to the lock's
// channel. A try waits for the result of the Drop, which does: nothing is known to want the lock.
func TestTryIsNotRefusedForRivalsThatAreNotKnown(t *testing.T) {
	for _, listeners := range []int32{-1, 0} {
		r := newRig(t)
		r.others = -1
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		waiter := r.acquire(2, "a")
		r.answerAll()
		r.pass(200 * time.Millisecond)
		r.answerAll()
		r.release(1, 1)
		r.tb.Cancel(r.now, 2, protocol.Cancel{Target: waiter})
		r.collect()
		r.log = nil
		r.acquire(3, "a", wait(0))
		r.want()
		r.others = listeners
		r.redis(redisop.Drop, redisop.Done)
		if listeners < 0 {
			r.refused(3, protocol.Timeout, "another host's turn") // they are not counted at all
			continue
		}
		r.redis(redisop.Take, redisop.Done)
		if r.collect(); len(r.log) != 1 || !strings.HasPrefix(r.log[0], "s3 granted") {
			t.Errorf("%q", r.log)
		}
	}
}

// A host that gives up a place in the queue leaves no lock to others, so it does not back off.
func TestHostThatGivesUpOnlyATicketDoesNotBackOff(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	first := r.acquire(1, "a")
	r.refusedTake(0, redisop.RecallMissed, 20_000) // a program may have it
	r.cancel(1, first)
	second := r.acquire(2, "a")
	r.acquire(3, "a")
	r.cancel(2, second)
	r.redis(redisop.Drop, redisop.Unknown) // it is sent again, with a waiter that others were before
	r.redis(redisop.Drop, redisop.Done)
	r.redis(redisop.Take, redisop.Done)
}

// A host may have had the lock, and passed it on, before Redis refused the last operations.
func TestRefusedOperationsSayNothingOfTheHolderBefore(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.queued(1)
	r.pass(6300 * time.Millisecond)
	r.redis(redisop.Take, redisop.Refused)
	r.refused(1, protocol.Denied, "")
	r.acquire(2, "a", wait(3*time.Millisecond))
	r.pass(100 * time.Millisecond)
	r.redis(redisop.Drop, redisop.Refused)
	r.pass(410 * time.Millisecond)
	r.refused(2, protocol.Unavailable, "Redis has not answered within 501ms whether the lock is free")
}
