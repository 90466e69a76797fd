package locktable_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// Lingering: a lock that one host uses again and again stays its own in Redis for a moment
// after each release.

// warmUp has session 1 acquire, release and acquire the lock "a", so that it is hot. It returns
// the hold.
func warmUp(r *rig) (hold uint64) {
	r.Helper()
	r.acquire(1, "a")
	r.redis(locktable.Take, locktable.Done)
	r.release(1, r.lastHold())
	r.redis(locktable.Drop, locktable.Done)
	r.pass(20 * time.Millisecond)
	r.acquire(1, "a")
	if op := r.redis(locktable.Take, locktable.Done); op.Reserve != 256 {
		r.Fatalf("the take of a lock that is used again: %+v", op)
	}
	r.collect()
	r.log = nil
	return r.lastHold()
}

// A client that polls is not known to wait. So the lock is free for a moment now and then.
func TestLockThatLingersIsLeftFreeNowAndThen(t *testing.T) {
	for _, late := range []bool{false, true} {
		r := newListeningRig(t, locktable.Config{})
		hold := warmUp(r)
		begin := r.now
		for {
			r.pass(2 * time.Millisecond)
			r.answerAll()
			if r.release(1, hold); len(r.ops) > 0 && r.ops[0].Kind == locktable.Drop {
				break
			}
			r.answerAll()
			r.pass(time.Millisecond)
			r.acquire(1, "a")
			if hold = r.lastHold(); r.now-begin > int64(time.Second) {
				t.Fatal("it lingers for a second without a free moment")
			}
		}
		if d := time.Duration(r.now - begin); d < 100*time.Millisecond || d > 105*time.Millisecond {
			t.Errorf("the lock is dropped after %v", d)
		}
		if !late {
			r.acquire(1, "a") // before Redis has executed the drop
			r.quietBut(1)
		}
		if op := r.redis(locktable.Drop, locktable.Done); op.PassedMS < 100 {
			t.Errorf("the drop: %+v", op)
		}
		r.pass(time.Millisecond)
		if late {
			r.acquire(1, "a")
		}
		r.pass(2 * time.Millisecond)
		r.quiet() // a client that polls each millisecond gets it
		r.pass(3 * time.Millisecond)
		r.redis(locktable.Take, locktable.Done)
	}
}

// The table forgets the lock when the moment is over.
func TestPauseOfALockThatNoClientWantsEnds(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	hold := warmUp(r)
	r.pass(time.Millisecond)
	r.release(1, hold)
	r.acquire(1, "a")
	r.pass(110 * time.Millisecond)
	r.answerAll()
	r.release(1, r.lastHold())
	r.redis(locktable.Drop, locktable.Done)
	r.pass(10 * time.Millisecond)
	r.forgotten()
	if at, ok := r.tb.Next(); ok {
		t.Errorf("an empty table wants to wake in %v", time.Duration(at-r.now))
	}
}
