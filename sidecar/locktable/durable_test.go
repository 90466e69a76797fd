package locktable_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The danger: a failover to a replica that did not confirm the lock gives it to a second owner.
func TestLockThatReplicasDidNotConfirmIsNotGranted(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", wait(0))
	r.redis(redisop.Take, redisop.NotSynced)
	r.want("s1 refused unavailable")
	if r.msg != "Redis is unwell" {
		t.Errorf("the sentence is %q", r.msg)
	}
	r.quiet() // not before a pause
	r.acquire(2, "a")
	r.pass(90 * time.Millisecond)
	r.quiet()
	r.pass(20 * time.Millisecond)
	r.redis(redisop.Take, redisop.NotSynced)
	r.want() // it waits
	r.pass(110 * time.Millisecond)
	r.redis(redisop.Take, redisop.Done)
	r.want("s2 granted hold=3 token=1 count=1")
}

// Without a waiter, what Redis has is given back.
func TestLockThatReplicasDidNotConfirmIsGivenBack(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", wait(0))
	r.redis(redisop.Take, redisop.NotSynced)
	r.want("s1 refused unavailable")
	for range 2 {
		r.pass(110 * time.Millisecond)
		if op := r.redis(redisop.Drop, redisop.NotSynced); op.HoldID != 1 {
			t.Errorf("%+v", op)
		}
	}
	r.pass(110 * time.Millisecond)
	r.redis(redisop.Drop, redisop.Done)
	r.quiet()
	if _, ok := r.tb.Info(r.now, "a"); ok {
		t.Error("the table still knows the lock")
	}
}

// The danger: a client believes in a renewal that a failover undoes.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestRenewalThatReplicasDidNotConfirmExtendsNothing(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
	row, _ := r.tb.Info(r.now, "a")
	for end := r.now + int64(20*time.Second); r.now < end; {
		r.pass(100 * time.Millisecond)
		if r.collect(); len(r.ops) > 0 {
			r.redis(redisop.Renew, redisop.NotSynced)
			r.pass(50 * time.Millisecond)
			r.quiet() // the next one is a pause later
		}
	}
	r.want()
	if after, _ := r.tb.Info(r.now, "a"); after.DeadlineNS != row.DeadlineNS {
		t.Errorf("the deadline has moved by %v", time.Duration(after.DeadlineNS-row.DeadlineNS))
	}
	r.untilAsked(200 * time.Millisecond)
	r.redis(redisop.Renew, redisop.Done)
	r.want("s1 lease +29s")
}

// It may be for the sake of waiters that the operation failed: the hold is renewed without them.
func TestTokensThatReplicasDidNotConfirmKeepNoRenewalBack(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.want("s1 granted hold=1 token=1 count=1")
	if op := r.redis(redisop.Take, redisop.NotSynced); op.Reserve == 0 {
		t.Fatalf("%+v", op)
	}
	r.redis(redisop.Renew, redisop.NotSynced) // what Redis has is not certain
	r.pass(110 * time.Millisecond)
	r.redis(redisop.Renew, redisop.Done)
	r.pass(900 * time.Millisecond)
	if op := r.redis(redisop.Take, redisop.Done); op.Reserve == 0 {
		t.Errorf("%+v", op)
	}
	r.release(1, 1)
	r.want("subscribe a", "s1 released count=0", "s2 granted hold=2 token=2 count=1")
}

// The danger: another host is told that a lock is free, and after a failover it is not.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestConfirmWaitsForADropThatReplicasConfirmed(t *testing.T) {
	for _, tt := range []struct {
		name    string
		durable bool
	}{{"durable", true}, {"not durable", false}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newListeningRig(t, locktable.Config{Durable: tt.durable, RetryAfter: 100 * time.Millisecond})
			r.acquire(1, "a")
			r.redis(redisop.Take, redisop.Done)
			r.release(1, 1)
			r.tb.Confirm(r.now, 1, protocol.Confirm{ID: 7, Name: "a"})
			r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0")
			if op := r.redis(redisop.Drop, redisop.Done); !op.Has(redisop.CanWait) {
				t.Errorf("%+v", op)
			}
			if tt.durable {
				r.want()
				if op := r.redis(redisop.Drop, redisop.NotSynced); op.Has(redisop.CanWait) || op.HoldID != 1 {
					t.Errorf("%+v", op)
				}
				r.want()
				r.pass(110 * time.Millisecond)
				r.redis(redisop.Drop, redisop.Done)
			}
			r.want("s1 confirmed 7")
			r.quiet()
		})
	}
}

// The danger: the daemon ends after its Drop was executed, and the successor confirms what no replica has.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestConfirmOfALockThatIsNotKnownWaitsForReplicas(t *testing.T) {
	for _, durable := range []bool{true, false} {
		r := newListeningRig(t, locktable.Config{Durable: durable, RetryAfter: 100 * time.Millisecond})
		r.acquire(1, "other")
		r.redis(redisop.Take, redisop.Done)
		r.want("s1 granted hold=1 token=1 count=1")
		r.tb.Confirm(r.now, 1, protocol.Confirm{ID: 7, Name: "a"})
		if durable {
			r.want()
			if op := r.redis(redisop.Drop, redisop.NotSynced); op.Name != "a" || op.Has(redisop.CanWait) || op.HoldID != 1 {
				t.Errorf("%+v", op)
			}
			r.want()
			r.pass(110 * time.Millisecond)
			r.redis(redisop.Drop, redisop.Done)
		}
		r.want("s1 confirmed 7")
		r.quiet()
		if _, ok := r.tb.Info(r.now, "a"); ok {
			t.Error("the table still knows the lock")
		}
	}
}

// A renewal that finds another owner writes nothing, so its WAIT says nothing of what replicas have: a Drop follows.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestConfirmWaitsForADropAfterARenewalThatFindsAnotherOwner(t *testing.T) {
	for _, durable := range []bool{true, false} {
		r := newListeningRig(t, locktable.Config{Durable: durable})
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.untilAsked(20 * time.Second)
		r.release(1, 1)
		r.tb.Confirm(r.now, 1, protocol.Confirm{ID: 7, Name: "a"})
		r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0")
		r.answer(redisop.Renew, redisop.Result{Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 60_000})
		if durable {
			r.want()
			if op := r.redis(redisop.Drop, redisop.Done); op.Has(redisop.CanWait) || op.HoldID != 1 {
				t.Errorf("%+v", op)
			}
		}
		r.want("s1 confirmed 7")
		r.quiet()
	}
}

// A lock that a local client waits for is not dropped. Then the Take shows that the release was executed.
func TestConfirmWaitsForATakeThatReplicasConfirmed(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Durable: true, RetryAfter: 100 * time.Millisecond})
	r.acquire(2, "a")
	heldByOther := redisop.Result{Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 60_000}
	r.answer(redisop.Take, heldByOther)
	r.want("subscribe a")
	r.tb.Confirm(r.now, 1, protocol.Confirm{ID: 7, Name: "a"})
	r.want()
	unsynced := heldByOther
	unsynced.Unsynced = true
	r.answer(redisop.Take, unsynced)
	r.want()
	r.tb.Subscribed(r.now, 0, "a")
	r.answer(redisop.Take, heldByOther)
	r.want("s1 confirmed 7")
}

// A ticket that Redis took out of the queue for a lock which replicas did not confirm may come back.
func TestTicketOfATakeThatReplicasDidNotConfirmMayStand(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	first := r.queued(0)
	r.untilAsked(7 * time.Second)
	r.redis(redisop.Take, redisop.NotSynced)
	r.want("subscribe a")
	r.pass(200 * time.Millisecond)
	if op := r.redis(redisop.Take, redisop.Done); op.Ticket != first.HoldID {
		t.Errorf("the ticket %d is forgotten: %+v", first.HoldID, op)
	}
	r.want("s1 granted hold=3 token=1 count=1", "unsubscribe a")
}
