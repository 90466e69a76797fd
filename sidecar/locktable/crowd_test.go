package locktable_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Very many hosts in the queue of one lock: none of them may do anything at each release but
// the one that gets the lock, and none may take a lock that was left free for others.

func TestHostInQueueSubscribesForLongHoldsOnly(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.acquire(2, "a")
	ticket := r.queued(7).HoldID
	r.pass(time.Second) // more than WatchAfter
	r.transfer(ticket, 32, waitingAfter(9))
	r.want("s1 granted hold=1 token=1 count=1")
	r.pass(90 * time.Millisecond)
	r.want() // its waiter has waited for longer, but not for this hold
	r.pass(20 * time.Millisecond)
	r.want("subscribe a")
	r.tb.Subscribed(r.now, 0, "a")
	for r.collect(); len(r.ops) > 0; r.collect() { // the renewal that looks whether the key is there still
		r.redis(r.ops[0].Kind, redisop.Done)
	}
	r.recall("a")
	r.release(1, 1)
	r.answer(redisop.Drop, redisop.Result{Outcome: redisop.Done, Paused: true, Listeners: listeners(1)})
	r.pass(20 * time.Millisecond)
	r.queued(9)
	r.want("s1 lease +29s", "s1 released count=0", "unsubscribe a") // it would count as a program for which the lock is left free
}

func TestRefreshLeavesFreeLockToHostsBeforeIt(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	first := r.queued(5)
	if !first.Has(redisop.InOrder) || first.Has(redisop.RequireExisting) {
		t.Errorf("the first take of a lock is %+v, want one in the order of the queue", first)
	}
	r.pass(7 * time.Second) // the longest refresh
	refresh := r.answer(redisop.Take, redisop.Result{Outcome: redisop.KeyMissing})
	if !refresh.Has(redisop.RequireExisting) || refresh.Ticket != first.HoldID {
		t.Errorf("the refresh is %+v, want one that takes no free lock", refresh)
	}
	r.pass(9 * time.Millisecond)
	r.quiet()
	r.pass(3 * time.Millisecond)
	r.collect()
	if len(r.ops) != 1 || r.ops[0].Has(redisop.RequireExisting) || r.ops[0].Ticket != first.HoldID {
		t.Errorf("operations in flight: %+v, want a take of a lock that no other host took", r.ops)
	}
}

func TestFirstOfQueueTakesLockThatWasLeftFree(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	ticket := r.queued(5).HoldID // others before it leave
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 4})
	r.pass(3 * time.Millisecond)
	r.quiet()
	r.pass(3 * time.Millisecond)
	if op := r.redis(redisop.Take, redisop.Done); op.Has(redisop.RequireExisting) || op.Ticket != ticket {
		t.Errorf("it sends %+v, want a take", op)
	}
	r.want("s1 granted hold=2 token=1 count=1")
}

// The first of the queue subscribes when it has waited for long. The sidecar that has the lock counts a
// subscriber, and leaves the lock free for a program that there is not.
func TestFirstOfQueueKnowsItsOwnSubscription(t *testing.T) {
	for subscribers, pause := range map[int32]time.Duration{1: 4 * time.Millisecond, 2: 10 * time.Millisecond} {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.queued(0)
		r.pass(110 * time.Millisecond) // more than WatchAfter
		r.want("subscribe a")
		r.tb.Subscribed(r.now, 0, "a")
		r.others = subscribers
		r.queued(0)
		freed := r.now
		r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 10})
		for {
			r.pass(200 * time.Microsecond)
			if r.collect(); len(r.ops) == 0 {
				continue
			}
			if !r.ops[0].Has(redisop.RequireExisting) {
				break
			}
			r.answer(redisop.Take, redisop.Result{Outcome: redisop.KeyMissing, Listeners: listeners(subscribers)}) // a look for a program
		}
		if took := time.Duration(r.now - freed); took < pause || took > pause+3*time.Millisecond {
			t.Errorf("with %d subscribers it asks for the lock after %v, want %v", subscribers, took, pause)
		}
	}
}

func TestTakeAfterExpiryOfLeaseTakesFreeLock(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.refusedTake(3, redisop.NotRecalled, 1000)
	r.pass(1010 * time.Millisecond)
	r.quiet() // the hosts before it ask first
	r.pass(10 * time.Millisecond)
	if op := r.redis(redisop.Take, redisop.Done); op.Has(redisop.RequireExisting) {
		t.Errorf("it sends %+v, want a take", op)
	}
}

func TestHostThatLeftLockFreeDoesNotTakeItAtOnce(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.recall("a")
	r.pass(200 * time.Millisecond)
	r.release(1, 1)
	r.answer(redisop.Drop, redisop.Result{Outcome: redisop.Done, Paused: true, Listeners: listeners(0)})
	r.pass(time.Millisecond) // no client wants it, so the table may forget the lock
	r.acquire(1, "a")
	r.quiet()
	r.pass(12 * time.Millisecond)
	if op := r.redis(redisop.Take, redisop.Done); !op.Has(redisop.InOrder) {
		t.Errorf("it sends %+v, want a take in the order of the queue", op)
	}
}

// Redis refuses a Take because the lock is left free for a moment. The first of the queue asks
// after the pause. All others wait: with a thousand hosts, each such moment would have a thousand
// Takes.
func TestOnlyTheFirstOfTheQueueAsksAfterAFreeMoment(t *testing.T) {
	for _, tt := range []struct {
		rank        int32
		least, most time.Duration
	}{{0, 0, 12 * time.Millisecond}, {1, 4 * time.Second, 7 * time.Second}, {999, 4 * time.Second, 7 * time.Second}} {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.answer(redisop.Take, redisop.Result{
			Outcome: redisop.HeldByOther, LeftFree: true, Rank: uint32(tt.rank), IsQueued: true, Ticket: 1,
		})
		if d := r.untilAsked(10 * time.Second); d < tt.least || d > tt.most {
			t.Errorf("with %d tickets before it, it asks after %v, want %v to %v", tt.rank, d, tt.least, tt.most)
		}
	}
}

// The lock was left free for a moment, and a program took it. The moment is over: when the program
// publishes its release, the host asks at once.
func TestFreeMomentIsOverWhenTheLockIsFoundTaken(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.queued(0)
	r.untilAsked(7 * time.Second)
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 10})
	r.refusedTake(0, redisop.RecallMissed, 20_000)
	r.quiet()
	r.log = nil
	r.message("a")
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=3 token=1 count=1")
}
