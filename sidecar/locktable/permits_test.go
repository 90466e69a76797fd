package locktable_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// has checks how many permits Redis has for each host, and how many hosts wait.
func (r *pairRig) has(a, b, waiting int) {
	r.Helper()
	s := &r.semaphore
	if got := [...]int{int(s.Claims[0].Units), int(s.Claims[1].Units), len(s.Places)}; got != [...]int{a, b, waiting} {
		r.Fatalf("Redis has %v, want %d and %d permits, and %d hosts that wait: %+v", got, a, b, waiting, *s)
	}
}

func TestPermitsAreGrantedUpToTheCapacity(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 2, 3)
	a.acquire(2, 1, 3)
	a.acquire(3, 1, 3)
	if op := a.redis(); op.Of != redisop.KindPermits || op.Want != 2 || op.Capacity != 3 || op.Count != 0 || op.Times != 1 {
		t.Errorf("asked by %+v", op)
	}
	r.settle()
	a.want("s1 granted", "s2 granted")
	r.has(3, 0, 0) // it waits for itself, so it needs no place
	a.release(2)
	a.want("s3 granted") // Redis has as many permits for this host as before
	a.quiet()
	a.release(1)
	a.release(3)
	r.settle()
	r.has(0, 0, 0)
	if _, ok := a.tb.Info(r.now, "api"); ok || len(a.journal.locks)+len(a.journal.holds) > 0 {
		t.Errorf("something is left: %v", a.journal)
	}
}

// A host asks once for all of its waiters that want the same.
func TestWaitersThatWantTheSameAreGrantedAtOnce(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 5)
	for s := range locktable.SessionID(3) {
		a.acquire(s+2, 1, 5)
	}
	a.acquire(1, 2, 5)
	a.redis()
	if op := a.sent(); op.Times != 3 || op.Want != 1 || op.Count != 1 || op.Reserve < 3 {
		t.Errorf("asked by %+v", op)
	}
	r.settle()
	a.want("s1 granted", "s2 granted", "s3 granted", "s4 granted")
	r.has(4, 0, 0)
}

// The danger: the host has one of two permits idle, and its waiter needs both. Its own idle one would keep its place from
// fitting, for good.
//
// Shows docs/decisions/0063-permits-in-redis.md: Decision.
func TestHostThatWaitsKeepsNoIdlePermits(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 2)
	b.acquire(1, 1, 2)
	r.settle()
	a.acquire(2, 2, 2)
	r.settle()
	r.has(1, 1, 1)
	a.release(1)
	if op := a.sent(); op.Count != 0 || op.Want != 2 || !op.Has(redisop.Yields) {
		t.Errorf("given back by %+v", op)
	}
	r.settle()
	r.has(0, 1, 1)
	b.release(1)
	r.settle()
	a.want("s1 granted", "s2 granted")
	r.has(2, 0, 0)
}

// Idle permits beside a hold stay here for a moment. If another host asks for them, they go to it at once.
func TestIdlePermitsGoToAHostThatAsks(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 2)
	a.acquire(2, 1, 2)
	r.settle()
	a.release(2)
	a.quiet()
	b.acquire(1, 1, 2)
	r.settle()
	b.want("s1 granted") // by its place, with one message
	r.has(1, 1, 0)

	b.release(1)
	r.settle()
	a.acquire(2, 1, 2)
	r.settle()
	a.release(2)
	r.has(2, 0, 0)
	r.pass(20 * time.Millisecond)
	r.has(1, 0, 0)
}

// A host has one place. It is good for what waited when it was asked for; who comes later waits behind the other hosts.
func TestWhoComesLaterWaitsBehindOtherHosts(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 2)
	b.acquire(1, 1, 2)
	r.settle()
	a.acquire(2, 1, 2)
	r.settle()
	r.now += int64(time.Millisecond)
	b.acquire(2, 1, 2)
	r.settle()
	r.has(1, 1, 2)
	r.now += int64(time.Millisecond)
	a.acquire(3, 1, 2)
	r.settle()

	a.release(1) // which was granted before the place was made: its permit is for s2, which is the first of all
	r.settle()
	a.want("s1 granted", "s2 granted")
	a.release(2) // it goes to the other host, which came before s3
	r.settle()
	a.want()
	b.want("s1 granted", "s2 granted")
	r.has(0, 2, 1)
	b.release(1)
	r.settle()
	if a.want("s3 granted"); len(r.semaphore.Places) != 0 {
		t.Errorf("places: %+v", r.semaphore.Places)
	}
}

// A large request is not passed by small ones of other hosts that came later.
func TestLargeRequestIsNotPassed(t *testing.T) {
	r, a, b := newPermitsRig(t)
	b.acquire(1, 2, 3)
	b.acquire(2, 1, 3)
	r.settle()
	a.acquire(1, 3, 3)
	r.settle()
	for s := range locktable.SessionID(2) {
		b.acquire(s+3, 1, 3)
	}
	r.settle()
	b.want("s1 granted", "s2 granted")
	b.release(2)
	r.settle()
	b.want()
	r.has(0, 2, 2)
	b.release(1)
	r.settle()
	a.want("s1 granted")
	b.want()
}

// An admission that is received while an operation is in flight was executed before it: the result counts what it brought.
func TestAdmissionDuringAnOperationIsInItsResult(t *testing.T) {
	r, a, b := newPermitsRig(t)
	b.acquire(1, 2, 3)
	a.acquire(1, 1, 3)
	r.settle()
	a.acquire(2, 1, 3)
	r.settle()
	b.release(1)
	_, dropped := b.run() // it admits host a,
	a.release(1)          // which is giving back what it has
	a.read()
	a.redis()
	b.tb.Result(r.now, dropped)
	r.settle()
	a.want("s1 granted", "s2 granted")
	r.has(1, 0, 0)
}

// Shows docs/queue.md: Messages.
func TestAdmissionThatIsNotOfTheLivePlaceIsGivenBack(t *testing.T) {
	for name, m := range map[string]redisop.Message{
		"of another place": {Ticket: 77},
		"of no connection": {},
	} {
		t.Run(name, func(t *testing.T) {
			r, a, b := newPermitsRig(t)
			b.acquire(1, 2, 2)
			r.settle()
			a.acquire(1, 1, 2)
			r.settle()
			m.Kind, m.Of, m.Name, m.Units, m.Tokens, m.LastToken, m.LeaseMS = redisop.Admitted, redisop.KindPermits, "api", 1, 1, 9, 30_000
			if m.Ticket == 0 {
				m.Ticket = r.semaphore.Places[0].Num
				a.tb.Table.Message(r.now, m) // over no connection
			} else {
				a.tb.Message(r.now, m)
			}
			if op := a.sent(); op.Count != 0 || op.Want != 1 {
				t.Errorf("asked by %+v", op)
			}
			r.settle()
			a.want()
			r.has(0, 2, 1)
		})
	}
	t.Run("of a semaphore that is not known", func(t *testing.T) {
		r, a, _ := newPermitsRig(t)
		a.tb.Message(r.now, redisop.Message{Kind: redisop.Admitted, Of: redisop.KindPermits, Name: "api", Ticket: 5, Units: 2, Tokens: 1, LastToken: 9, LeaseMS: 30_000})
		if op := a.redis(); op.Kind != redisop.Drop || op.Of != redisop.KindPermits {
			t.Errorf("given back by %+v", op)
		}
		if _, ok := a.tb.Info(r.now, "api"); ok {
			t.Error("the table still knows it")
		}
	})
}

// A result that is lost leaves the claim in doubt, and the next operation says all again. Nothing is granted meanwhile.
func TestLostResultIsFollowedByAnOperationThatSaysAll(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 2, 4)
	r.settle()
	a.acquire(2, 2, 4)
	op, res := a.run()
	r.has(4, 0, 0)
	res.Outcome, res.Msg = redisop.Unknown, "the connection is lost"
	a.tb.Result(r.now, res)
	a.want("s1 granted")
	if next := a.sent(); next.Count != 2 || next.Want != 2 || next.HoldID <= op.HoldID || !next.Has(redisop.RequireExisting) {
		t.Errorf("asked again by %+v", next)
	}
	r.settle()
	a.want("s2 granted")
	r.has(4, 0, 0)
}

func TestPermitsAreAssertedAfterDataLossIfTheyAreFree(t *testing.T) {
	for _, taken := range []bool{false, true} {
		r, a, b := newPermitsRig(t)
		a.acquire(1, 2, 3)
		r.settle()
		a.tb.Down(r.now, 0, "it restarts")
		r.semaphore = redis.Semaphore{}
		if taken {
			b.acquire(1, 2, 3)
			r.settle()
		}
		a.tb.Up(r.now, 0, true, true)
		if op := a.sent(); op.Count != 2 || op.Capacity != 3 || op.Has(redisop.RequireExisting) {
			t.Errorf("asserted by %+v", op)
		}
		r.settle()
		if taken {
			a.want("s1 granted", "s1 lost deleted")
			r.has(0, 2, 0)
		} else {
			a.want("s1 granted")
			r.has(2, 0, 0)
		}
	}
}

func TestPermitsThatAreGoneAreLost(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 2, 3)
	r.settle()
	r.semaphore = redis.Semaphore{} // by an operator
	b.acquire(1, 3, 3)
	r.settle()
	r.pass(12 * time.Second)
	a.want("s1 granted", "s1 lost deleted")
	r.has(0, 3, 0)
}

// A Redis that is full refuses what takes memory. Renewals go on.
func TestRenewalsGoOnWhileTakesFail(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 3)
	r.settle()
	a.acquire(2, 1, 3)
	for range 200 {
		r.now += int64(100 * time.Millisecond)
		a.tb.Advance(r.now)
		a.collect()
		for len(a.ops) > 0 {
			if op := a.ops[0]; op.Kind == redisop.Take {
				a.ops = nil
				a.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Retryable, Sent: r.now, Msg: "OOM"})
			} else {
				a.redis()
			}
			a.collect()
		}
	}
	a.want("s1 granted")
	if end := r.semaphore.Claims[0].Expiry; end < r.now/int64(time.Millisecond)+15_000 {
		t.Errorf("the claim was not renewed: it ends %d ms from now", end-r.now/int64(time.Millisecond))
	}
}

// A client that dies frees its permits at once: the next host has them after one message.
func TestPermitsOfADeadClientGoToTheNextHost(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 2, 2)
	r.settle()
	b.acquire(1, 1, 2)
	r.settle()
	b.want()
	a.tb.Close(r.now, 1)
	r.settle()
	b.want("s1 granted")
	r.has(0, 1, 0)
}

// A successor knows how many permits each hold has.
func TestSuccessorKnowsThePermits(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 2, 4)
	a.acquire(2, 1, 4)
	r.settle()
	a.acquire(4, 4, 4)
	r.semaphore.Held, r.semaphore.Claims[1] = 4, redis.PermitClaim{Units: 1, Expiry: 1 << 50} // of another host, so that it has a place
	a.redis()
	r.has(3, 1, 1)
	r.semaphore.Held = 3
	delete(r.semaphore.Claims, 1)
	snapshot := a.journal.snapshot(map[locktable.SessionID]locktable.Peer{1: {PID: 100}, 2: {PID: 101}})
	a.tb = connect(newTable(locktable.Config{Journal: a.journal}, r.now))
	a.log, a.ops = nil, nil
	a.tb.Restore(r.now, snapshot)
	a.tb.Up(r.now, 0, false, true)
	r.settle()
	r.has(3, 0, 0)
	for s := range locktable.SessionID(2) {
		a.tb.Resume(s+1, locktable.Peer{PID: 100})
	}
	a.tb.Claim(r.now, 1, &protocol.Claim{ID: 1})
	r.pass(10 * time.Millisecond)
	r.has(1, 0, 0)
	a.tb.Open(r.now, 9, locktable.Peer{PID: 9})
	a.acquire(9, 4, 4)
	r.settle()
	r.has(1, 0, 0)
	a.tb.Claim(r.now, 2, &protocol.Claim{ID: 1})
	r.settle()
	if r.has(4, 0, 0); !strings.HasPrefix(a.log[len(a.log)-1], "s9 granted") {
		t.Errorf("sent: %q", a.log)
	}
}

func TestNameHasOneKind(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 2)
	r.settle()
	a.want("s1 granted")
	a.tb.Acquire(r.now, 2, protocol.Acquire{ID: 50, Name: "api"})
	a.want("s2 refused denied: this name is in use as a semaphore on this host; choose another name")
	a.release(1)
	a.tb.Acquire(r.now, 2, protocol.Acquire{ID: 51, Name: "api"}) // while the permit is given back
	a.want("s2 refused unavailable: this sidecar has not given back to Redis what it had under this name as a semaphore; try again")
	r.settle()
	a.tb.Acquire(r.now, 2, protocol.Acquire{ID: 52, Name: "api", WaitMS: protocol.Forever})
	if op := a.sent(); op.Of != redisop.KindLock || op.Want != 0 {
		t.Errorf("the lock is asked for by %+v", op)
	}
	a.ops = nil
	a.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "api", Sent: r.now, Token: 9})
	a.want("s2 granted")
	a.acquire(1, 1, 2)
	a.want("s1 refused denied: this name is in use as a lock on this host; choose another name")
}

// A larger capacity counts for the request that names it. The first that waits stops those behind it.
func TestCapacityIsThatOfTheRequest(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 2, 2)
	r.settle()
	b.acquire(1, 1, 3)
	r.settle()
	b.want("s1 granted")
	r.has(2, 1, 0)
	b.acquire(2, 1, 2)
	b.acquire(3, 1, 5)
	r.settle()
	b.want()
	a.release(1)
	r.settle()
	b.want("s2 granted", "s3 granted")
}

// A release is confirmed when Redis has the permits back, also if other clients here have some.
func TestReleaseOfPermitsIsConfirmed(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 2)
	a.acquire(2, 1, 2)
	r.settle()
	a.log = nil
	a.release(1)
	a.tb.Confirm(r.now, 1, protocol.Confirm{ID: 90, Name: "api"})
	a.want()
	if op := a.sent(); op.Count != 1 || op.Want != 0 {
		t.Errorf("given back by %+v", op)
	}
	a.redis()
	a.want("s1 confirmed")
	r.has(1, 0, 0)
}

// Redis has more permits for this host than it knows of. It takes them back, also beside a hold.
func TestUnknownAdmissionBesideAHoldIsGivenBack(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 3)
	r.settle()
	a.tb.Message(r.now, redisop.Message{Kind: redisop.Admitted, Of: redisop.KindPermits, Name: "api", Ticket: 77, Units: 1, Tokens: 1, LastToken: 9, LeaseMS: 30_000})
	if op := a.redis(); op.Kind != redisop.Take || op.Count != 1 || op.Want != 0 {
		t.Errorf("given back by %+v", op)
	}
	a.want("s1 granted")
	a.quiet()
}

// A result that is lost is followed by another operation, also if that one gave back permits only.
func TestLostResultOfWhatIsGivenBack(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 3)
	a.acquire(2, 1, 3)
	r.settle()
	a.release(1)
	r.now += int64(10 * time.Millisecond)
	a.tb.Advance(r.now)
	_, res := a.run()
	res.Outcome, res.Msg = redisop.Unknown, "the connection is lost"
	a.tb.Result(r.now, res)
	a.collect()
	if op := a.redis(); op.Kind != redisop.Take || op.Count != 1 {
		t.Errorf("followed by %+v", op)
	}
	a.quiet()
	r.has(1, 0, 0)
}

// An admission is all that a waiter needs: it has a token, and is valid for as long as the place's last answer says.
func TestAdmissionNeedsNoOperation(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 2)
	r.settle()
	b.acquire(1, 1, 2)
	r.settle()
	asked := r.now + int64(9*time.Second) // when host a asks
	r.now = asked
	a.acquire(2, 1, 2)
	r.settle()
	r.now += int64(time.Second)
	b.release(1)
	b.redis()
	a.read()
	a.want("s1 granted", "s2 granted")
	a.quiet()
	a.release(1) // the row has the deadline of the oldest hold
	row, _ := a.tb.Info(r.now, "api")
	if left := time.Duration(row.DeadlineNS - asked); left != 29_698*time.Millisecond {
		t.Errorf("it is granted for %v from when the place was asked for", left)
	}
}

// The next waiter may get what the first could not.
func TestNextWaiterIsAskedForWhenTheFirstIsGone(t *testing.T) {
	r, a, b := newPermitsRig(t)
	b.acquire(1, 2, 3)
	r.settle()
	a.acquire(1, 3, 3, wait(100*time.Millisecond))
	a.acquire(2, 1, 3)
	r.settle()
	a.want()
	r.pass(101 * time.Millisecond)
	a.want("s1 refused timeout: waited 100ms; "+"too few of its permits are free, or requests of other hosts come first", "s2 granted")
}

// Its place is dead as soon as the operation is sent that gives it up.
func TestPlaceThatIsGivenUpIsDead(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 2)
	r.settle()
	b.acquire(1, 1, 2)
	r.settle()
	id := a.acquire(2, 1, 2)
	r.settle()
	a.tb.Cancel(r.now, 2, protocol.Cancel{Target: id})
	b.release(1)
	b.redis() // it admits the place
	op, res := a.run()
	if op.Want != 0 || op.Count != 1 {
		t.Errorf("given up by %+v", op)
	}
	a.read()
	a.tb.Result(r.now, res)
	a.collect()
	r.settle()
	r.has(1, 0, 0)
}

// What came for waiters here is theirs, and what clients free is not, while another host waits.
func TestOnlyWhatCameForWaitersIsTheirs(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 3)
	a.acquire(2, 1, 3)
	r.settle()
	a.want("s1 granted", "s2 granted")
	b.acquire(1, 2, 3)
	r.settle()
	a.acquire(3, 1, 3)
	a.acquire(4, 1, 3)
	op, res := a.run() // it gets a place behind the other host
	if !op.Has(redisop.Yields) || op.Reserve != 1 || op.Times != 1 {
		t.Errorf("asked by %+v", op)
	}
	a.release(1) // while that is in flight
	a.tb.Result(r.now, res)
	a.want()
	r.settle()
	b.want("s1 granted")
	a.want()
	r.has(1, 2, 1)
	b.release(1)
	r.settle()
	a.want("s3 granted", "s4 granted")
}

// A result says whether hosts wait, as of its execution.
func TestFreedPermitsStayHereWhenNoHostWaitsAnyMore(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 2, 2)
	r.settle()
	id := b.acquire(1, 1, 2)
	r.settle()
	b.tb.Cancel(r.now, 1, protocol.Cancel{Target: id})
	r.settle()
	a.acquire(2, 2, 2)
	r.settle()
	a.release(1)
	r.settle()
	a.acquire(3, 2, 2)
	r.settle()
	a.log = nil
	a.release(2)
	a.want("s3 granted") // tokens were drawn when a token was all that s2 lacked
	a.quiet()
}

// The permits of a host that is gone are free when its claim has expired, and the first that waits asks then.
func TestFirstThatWaitsAsksWhenAClaimExpires(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 2, 2)
	r.settle()
	a.isDeaf = true
	expiry := r.semaphore.Claims[0].Expiry * int64(time.Millisecond)
	b.acquire(1, 1, 2)
	for len(b.log) == 0 && r.now < expiry+int64(time.Second) {
		r.now += int64(time.Millisecond)
		b.tb.Advance(r.now)
		for b.collect(); len(b.ops) > 0; {
			b.redis()
		}
	}
	b.want("s1 granted")
	if late := time.Duration(r.now - expiry); late > 5*time.Millisecond {
		t.Errorf("granted %v after the claim expired", late)
	}
}

// Idle permits stay for a moment again when no host waits any more.
func TestIdlePermitsStayWhenNoHostWaitsAnyMore(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 2, 4)
	r.settle()
	id := b.acquire(1, 3, 4)
	r.settle()
	b.tb.Cancel(r.now, 1, protocol.Cancel{Target: id})
	r.settle()
	a.acquire(2, 1, 4)
	r.settle()
	a.release(2)
	a.quiet()
}

// lose ends the connection of a host: the operation in flight may be executed later.
func (h *pairHost) lose() (late redisop.Op) {
	h.rig.Helper()
	late, h.ops = h.sent(), nil
	h.tb.Down(h.rig.now, 0, "the connection is lost")
	h.tb.Result(h.rig.now, redisop.Result{Kind: late.Kind, Name: late.Name, Outcome: redisop.Unknown, Sent: h.rig.now, Msg: "the connection is lost"})
	h.collect()
	return late
}

// answer gives the table another result than Redis's of the operation in flight, which is not executed.
func (h *pairHost) answer(outcome redisop.Outcome) (op redisop.Op) {
	h.rig.Helper()
	op, h.ops = h.sent(), nil
	h.tb.Result(h.rig.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: outcome, Sent: h.rig.now, Msg: "Redis is unwell"})
	h.collect()
	return op
}

// The danger: a renewal finds a permit that an operation, which is executed later, gives back. It is granted meanwhile, and
// another host gets it, too.
func TestRenewalDoesNotConfirmWhatALateOperationGivesBack(t *testing.T) {
	r, a, b := newPermitsRig(t)
	for s := range locktable.SessionID(3) {
		a.acquire(s+1, 1, 3)
	}
	r.settle()
	a.release(1)
	r.now += int64(6 * time.Millisecond)
	a.tb.Advance(r.now)
	late := a.lose()
	if late.Kind != redisop.Take || late.Count != 2 {
		t.Fatalf("lost: %+v", late)
	}
	r.now += int64(15 * time.Second)
	a.tb.Advance(r.now)
	a.tb.Up(r.now, 0, false, true)
	if op := a.redis(); op.Kind != redisop.Renew {
		t.Fatalf("renewed by %+v", op)
	}
	a.acquire(4, 1, 3)
	next := a.ops
	a.ops = []redisop.Op{late}
	a.run()
	a.ops = next
	b.acquire(1, 1, 3)
	r.settle()
	if granted := len(a.log) + len(b.log); granted != 4 {
		t.Errorf("one of two is granted; host a: %q, host b: %q", a.log, b.log)
	}
}

// An operation whose result is lost has left its number to the claim. The renewal that follows is none of an earlier one.
func TestRenewalFollowsALostResult(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 3)
	r.settle()
	a.acquire(2, 1, 3)
	op, _ := a.run()
	a.ops = []redisop.Op{op}
	a.lose()
	r.now += int64(15 * time.Second)
	a.tb.Advance(r.now)
	a.tb.Up(r.now, 0, false, true)
	if op := a.redis(); op.Kind != redisop.Renew {
		t.Fatalf("renewed by %+v", op)
	}
	if left := r.semaphore.Claims[0].Expiry - r.now/int64(time.Millisecond); left != 30_000 {
		t.Errorf("the claim lasts for %d ms", left)
	}
	r.settle()
	a.want("s1 granted", "s2 granted")
	r.has(2, 0, 0)
}

// A try has no place, and its result says all the same that hosts wait.
func TestTryForgetsNoHostThatWaits(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 2)
	a.acquire(2, 1, 2)
	r.settle()
	b.acquire(1, 2, 2)
	r.settle()
	a.acquire(3, 1, 2, wait(0))
	r.settle()
	a.log = nil
	a.release(1)
	r.settle()
	r.has(1, 0, 1)
}

// The holds beside which a waiter is refused are renewed by that, but only if replicas have confirmed it.
func TestRefusedTakeThatIsNotSyncedRenewsNothing(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 2)
	b.acquire(1, 1, 2)
	r.settle()
	deadline := func() int64 { row, _ := a.tb.Info(r.now, "api"); return row.DeadlineNS }
	granted := deadline()
	r.now += int64(5 * time.Second)
	a.acquire(2, 1, 2)
	_, res := a.run()
	res.Unsynced = true
	a.tb.Result(r.now, res)
	a.collect()
	if until := deadline(); until > granted {
		t.Errorf("believed in for %v longer", time.Duration(until-granted))
	}
	r.pass(time.Second)
	if until := deadline(); until < granted+int64(4*time.Second) {
		t.Errorf("it is not asked for again: believed in for %v longer", time.Duration(until-granted))
	}
}

// What was not executed has given nothing back: it is given back again.
func TestPermitsThatWereNotGivenBackAreGivenBackAgain(t *testing.T) {
	for _, outcome := range []redisop.Outcome{redisop.NotSent, redisop.Retryable} {
		r, a, _ := newPermitsRig(t)
		a.acquire(1, 1, 2)
		a.acquire(2, 1, 2)
		r.settle()
		a.release(1)
		r.now += int64(10 * time.Millisecond)
		a.tb.Advance(r.now)
		a.answer(outcome)
		r.now += int64(time.Second)
		a.tb.Advance(r.now)
		r.settle()
		r.has(1, 0, 0)
	}
}

func TestReleaseOfPermitsIsNotConfirmedBeforeRedisHasThem(t *testing.T) {
	for _, outcome := range []redisop.Outcome{redisop.NotSent, redisop.Retryable, redisop.Unknown, redisop.NotSynced} {
		r, a, _ := newPermitsRig(t)
		a.acquire(1, 1, 2)
		a.acquire(2, 1, 2)
		r.settle()
		a.log = nil
		a.release(1)
		a.tb.Confirm(r.now, 1, protocol.Confirm{ID: 90, Name: "api"})
		a.answer(outcome)
		a.want()
		r.now += int64(time.Second)
		a.tb.Advance(r.now)
		r.settle()
		a.want("s1 confirmed")
		r.has(1, 0, 0)
	}
}

// A check of a hold with a fixed lease finds what Redis has beyond, and that is given back.
func TestCheckFindsWhatIsBeyond(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 3, fixed(time.Hour))
	r.settle()
	c := r.semaphore.Claims[0]
	c.Units, r.semaphore.Held = 2, 2
	r.semaphore.Claims[0] = c
	for a.collect(); len(a.ops) == 0; a.collect() {
		r.now += int64(100 * time.Millisecond)
		a.tb.Advance(r.now)
	}
	if op := a.redis(); op.Kind != redisop.Check {
		t.Fatalf("checked by %+v", op)
	}
	r.settle()
	r.has(1, 0, 0)
}

// The holds are asserted with the capacity of their own requests, whatever waits.
func TestAssertionHasTheCapacityOfTheHolds(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 5, 10)
	r.settle()
	a.acquire(2, 1, 3) // a new release of the program
	r.settle()
	r.semaphore = redis.Semaphore{}
	a.tb.Up(r.now, 0, true, true)
	if op := a.sent(); op.Count != 5 || op.Want != 0 || op.Capacity != 10 {
		t.Errorf("asserted by %+v", op)
	}
	r.settle()
	a.want("s1 granted")
	r.has(5, 0, 0)
}

// A successor asserts them with it, too.
func TestSuccessorAssertsWithTheCapacity(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 2, 4)
	b.acquire(1, 2, 4)
	r.settle()
	r.semaphore = redis.Semaphore{}
	for _, h := range []*pairHost{a, b} {
		snapshot := h.journal.snapshot(map[locktable.SessionID]locktable.Peer{1: {PID: 100}})
		h.tb = connect(newTable(locktable.Config{Journal: h.journal}, r.now))
		h.tb.Restore(r.now, snapshot)
		h.tb.Up(r.now, 0, true, true)
	}
	r.settle()
	r.has(2, 2, 0)
}

// A part of the claim is left, by hand or in a replica that was behind. It is given back with the loss.
func TestRestOfALostClaimIsGivenBack(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 2, 3)
	r.settle()
	c := r.semaphore.Claims[0]
	c.Units, r.semaphore.Held = 1, 1
	r.semaphore.Claims[0] = c
	r.pass(12 * time.Second)
	a.want("s1 granted", "s1 lost deleted")
	r.has(0, 0, 0)
}

// An operation that failed has asked for nothing: it is sent again as soon as that may help.
func TestFailedOperationIsSentAgainSoon(t *testing.T) {
	for _, outcome := range []redisop.Outcome{redisop.Retryable, redisop.NotSynced, redisop.NotSent} {
		r, a, b := newPermitsRig(t)
		b.acquire(1, 2, 3)
		r.settle()
		id := a.acquire(1, 3, 3)
		a.acquire(2, 1, 3)
		r.settle()
		a.tb.Cancel(r.now, 1, protocol.Cancel{Target: id})
		a.answer(outcome) // it was to ask for s2
		r.pass(300 * time.Millisecond)
		a.want("s1 refused canceled: canceled by the client", "s2 granted")
	}
}

// A waiter's long lease is not that of the permits beside which it waits.
func TestLeaseOfAWaiterIsNotThatOfTheHolds(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.acquire(1, 1, 2)
	b.acquire(1, 1, 2)
	r.settle()
	a.acquire(2, 1, 2, fixed(time.Hour))
	r.settle()
	if left := r.semaphore.Claims[0].Expiry - r.now/int64(time.Millisecond); left > 30_000 {
		t.Errorf("the claim lasts for %d ms", left)
	}
	b.release(1)
	r.settle()
	a.want("s1 granted", "s2 granted")
	if left := r.semaphore.Claims[0].Expiry - r.now/int64(time.Millisecond); left < 3_500_000 {
		t.Errorf("the claim lasts for %d ms, and a hold for an hour", left)
	}
}

// A host that gets no place polls.
func TestHostWithoutAPlacePolls(t *testing.T) {
	r, a, b := newPermitsRig(t)
	b.acquire(1, 1, 1)
	r.settle()
	a.acquire(1, 1, 1)
	_, res := a.run()
	res.IsQueued, res.Ticket, res.Rank = false, 0, 0 // there was no memory for it
	r.semaphore.Places = nil
	a.tb.Result(r.now, res)
	a.collect()
	b.release(1)
	b.redis()
	r.pass(100 * time.Millisecond)
	a.want("s1 granted")
}

// What asserts the holds is refused for good, so they are given up before their deadline keeps others down.
func TestHoldsWhoseAssertionIsRefusedAreGivenUp(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 2)
	r.settle()
	granted := r.now
	a.tb.Up(r.now, 0, true, true)
	for len(a.log) == 1 && r.now < granted+int64(29*time.Second) {
		if a.collect(); len(a.ops) > 0 {
			a.answer(redisop.Refused)
		}
		r.now += int64(50 * time.Millisecond)
		a.tb.Advance(r.now)
		a.collect()
	}
	a.want("s1 granted", "s1 lost expired")
	if after := time.Duration(r.now - granted); after > 23*time.Second {
		t.Errorf("given up after %v", after)
	}
}

// A confirm of a name that is not known asks Redis, as if it were a lock. It keeps no client from the semaphore.
func TestConfirmKeepsNoClientFromTheSemaphore(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.tb = connect(newTable(locktable.Config{Durable: true}, r.now))
	a.begin()
	a.tb.Confirm(r.now, 1, protocol.Confirm{ID: 90, Name: "api"})
	drop := a.sent()
	a.ops = nil
	a.acquire(2, 1, 2)
	a.want()
	a.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: drop.Name, Sent: r.now})
	r.settle()
	a.want("s2 granted", "s1 confirmed")
}

// What came for many waiters is theirs, also while a part of them is granted in the next step.
func TestPermitsThatAreBeingGrantedAreNotGivenBack(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.tb = connect(newTable(locktable.Config{MaxWork: 2, Tokens: 64}, r.now))
	a.begin()
	for range 9 {
		a.acquire(1, 1, 9)
	}
	a.redis()
	a.redis() // it brings what all others want
	if len(a.log) == 9 {
		t.Fatal("all were granted in one step")
	}
	a.tb.Message(r.now, redisop.Message{Kind: redisop.Recalled, Of: redisop.KindPermits, Name: "api"})
	a.quiet()
	r.pass(10 * time.Millisecond)
	r.has(9, 0, 0)
}

// A client that dies frees a permit, and was the first that waited. The next came later than the place was made, and than
// another host.
func TestPlaceOfADeadClientIsNotForThoseThatCameLater(t *testing.T) {
	r, a, b := newPermitsRig(t)
	for _, s := range []locktable.SessionID{1, 3, 4} { // the last two together, with tokens for more
		a.acquire(s, 1, 4)
	}
	r.settle()
	b.acquire(1, 1, 4)
	r.settle()
	a.acquire(1, 1, 4)
	r.settle()
	r.now += int64(time.Millisecond)
	b.acquire(2, 1, 4)
	r.settle()
	r.now += int64(time.Millisecond)
	a.acquire(2, 1, 4)
	a.log, b.log = nil, nil
	a.tb.Close(r.now, 1)
	r.settle()
	b.want("s2 granted")
	a.want()
}

// A row has the oldest hold, and those after it.
func TestRowOfASemaphoreHasItsHolders(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 2, 10)
	a.acquire(2, 1, 8)
	r.settle()
	r.now += int64(3 * time.Second)
	a.acquire(3, 7, 9)
	a.acquire(4, 1, 7)
	r.settle()
	row, _ := a.tb.Info(r.now, "api")
	if row.Kind != protocol.KindPermits || row.State != protocol.StateHeld || row.Held != 2 || row.Permits != 3 || row.Of != 10 || row.Session != 1 || row.HeldMS != 3000 {
		t.Errorf("%+v", row)
	}
	if len(row.Holders) != 2 || row.Holders[0].Hold != row.Hold || row.Holders[0].Permits != 2 || row.Holders[1].Session != 2 || row.Holders[1].HeldMS != 3000 {
		t.Errorf("holders: %+v", row.Holders)
	}
	if len(row.Waiters) != 2 || row.Waiters[0].Permits != 7 || row.Waiters[1].Permits != 1 {
		t.Errorf("waiters: %+v", row.Waiters)
	}
	terms := locktable.Terms{UID: 1, Scope: locktable.ByName[locktable.Scope]{{Value: locktable.ScopeOwn}}}
	if terms.Redact(&row, false) || len(row.Holders)+len(row.Waiters) > 0 || row.Held != 2 {
		t.Errorf("of another user: %+v", row)
	}
}

// A row is short, however many holds there are or have been.
func TestRowOfASemaphoreIsBounded(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	const holds = 300
	var ids []uint64
	for range holds {
		a.acquire(1, 1, holds)
		r.settle()
		ids = append(ids, a.holds[1])
	}
	for _, id := range ids[:200] {
		a.tb.Release(r.now, 1, protocol.Release{Hold: id})
	}
	row, _ := a.tb.Info(r.now, "api")
	if row.Held != 100 || row.Permits != 100 || len(row.Holders) != protocol.MaxWaiters || row.Hold != ids[200] {
		t.Errorf("%d holds, %d permits, %d holders, the first is %d", row.Held, row.Permits, len(row.Holders), row.Hold)
	}
}

// Force ends one hold of a semaphore, or all.
func TestForceEndsOneHoldOrAll(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	for s := range locktable.SessionID(3) {
		a.acquire(s+1, 1, 4)
	}
	r.settle()
	a.log = nil
	if uid, isHeld := a.tb.HolderUID("api", a.holds[2], 7); uid != 0 || !isHeld {
		t.Errorf("hold 2 is of user %d: %v", uid, isHeld)
	}
	if _, isHeld := a.tb.HolderUID("api", 1<<40, 0); isHeld {
		t.Error("a hold that there is not has a user")
	}
	if num, n := a.tb.EndHolds(r.now, "api", a.holds[2]); num != a.holds[2] || n != 1 {
		t.Errorf("hold %d of %d ended", num, n)
	}
	a.want("s2 lost forced")
	if _, n := a.tb.EndHolds(r.now, "api", a.holds[2]); n != 0 {
		t.Error("it ended twice")
	}
	a.tb.ForceRelease(r.now, 4, protocol.ForceRelease{ID: 9, Name: "api", Hold: a.holds[2]})
	a.want(fmt.Sprintf(`s4 refused not_held: no client of this sidecar has hold %d of "api"; it has ended, or is another host's`, a.holds[2]))
	if num, n := a.tb.EndHolds(r.now, "api", 0); num != a.holds[3] || n != 2 {
		t.Errorf("%d holds ended, the newest is %d", n, num)
	}
	a.want("s1 lost forced", "s3 lost forced")
	r.settle()
	r.has(0, 0, 0)
}

// The danger: one request, or one moment, ends tens of thousands of holds, and the answers of all other clients wait for it.
func TestManyHoldsOfASemaphoreEndInSteps(t *testing.T) {
	const holds, inStep = 60, 3
	for what, end := range map[string]func(a *pairHost) (after locktable.SessionID){
		"forced": func(a *pairHost) locktable.SessionID {
			if _, n := a.tb.EndHolds(a.rig.now, "api", 0); n != holds {
				t.Errorf("%d holds are to end, want %d", n, holds)
			}
			return 2
		},
		"max_hold": func(a *pairHost) locktable.SessionID {
			a.rig.now = startOfPair + int64(61*time.Second)
			a.tb.Advance(a.rig.now)
			return 2
		},
		"of two sessions": func(a *pairHost) locktable.SessionID {
			a.tb.EndHolds(a.rig.now, "api", 0)
			a.tb.Close(a.rig.now, 1)
			return 2
		},
	} {
		t.Run(what, func(t *testing.T) {
			r, a, _ := newPermitsRig(t)
			a.tb = connect(newTable(locktable.Config{Lease: time.Hour, MaxWork: 3, Tokens: 64}, r.now))
			a.begin()
			for range holds {
				a.acquire(1, 1, holds, maxHold(time.Minute))
			}
			r.pass(50 * time.Millisecond)
			a.log = nil
			next := end(a)
			a.collect()
			first := len(a.log)
			if first == 0 || first > inStep {
				t.Fatalf("%d holds end in one step: %q", first, a.log)
			}
			a.acquire(next, holds, holds) // until the others have ended, it waits
			steps := 0
			for len(a.log) < holds && steps <= holds {
				r.now++
				at, isDue := a.tb.Next()
				if before := len(a.log); a.tb.Busy() || isDue && at <= r.now {
					a.tb.Advance(r.now)
					a.tb.Work(r.now)
					if a.collect(); len(a.log)-before > inStep {
						t.Fatalf("%d holds end in one step", len(a.log)-before)
					}
				}
				steps++
			}
			r.pass(50 * time.Millisecond)
			if a.log[len(a.log)-1] != "s2 granted" {
				t.Errorf("sent: %q", a.log[first:])
			}
			r.has(holds, 0, 0)
		})
	}
}

// A hold that is to end with thousands of others is not released meanwhile: its client learns that it was ended.
func TestHoldThatIsToEndIsNotReleased(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.tb = connect(newTable(locktable.Config{MaxWork: 4, Tokens: 64}, r.now))
	a.begin()
	for s := range locktable.SessionID(8) {
		if s >= 4 {
			a.tb.Open(r.now, s+1, locktable.Peer{PID: 1})
		}
		a.acquire(s+1, 1, 8)
	}
	r.pass(50 * time.Millisecond)
	a.log = nil
	a.tb.EndHolds(r.now, "api", 0)
	a.want("s1 lost forced", "s2 lost forced", "s3 lost forced", "s4 lost forced")
	a.tb.Release(r.now, 8, protocol.Release{ID: 50, Hold: a.holds[8]})
	a.want("s8 lost forced", fmt.Sprintf("s8 refused not_held: this client does not hold %d: it released it before, lost it, or never had it; nothing was changed", a.holds[8]))
	if uid, isHeld := a.tb.HolderUID("api", a.holds[7], 0); !isHeld || uid != 0 {
		t.Errorf("hold 7: user %d, %v", uid, isHeld)
	}
	a.acquire(9-1, 1, 9)
	r.pass(50 * time.Millisecond)
	if !slices.Contains(a.log, "s8 granted") || len(a.log) != 4 {
		t.Errorf("sent: %q", a.log)
	}
	r.has(1, 0, 0)
}

// The danger: an operator ends thousands of holds, the daemon is killed after its answer, and the others go on.
func TestSuccessorEndsWhatWasForced(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.tb = connect(newTable(locktable.Config{MaxWork: 2, Tokens: 64, Journal: a.journal}, r.now))
	a.begin()
	for s := range locktable.SessionID(4) {
		a.acquire(s+1, 1, 9)
	}
	r.pass(50 * time.Millisecond)
	a.log = nil
	if _, n := a.tb.EndHolds(r.now, "api", 0); n != 4 {
		t.Errorf("%d holds are to end", n)
	}
	a.want("s1 lost forced", "s2 lost forced")
	peers := map[locktable.SessionID]locktable.Peer{1: {PID: 100}, 2: {PID: 101}, 3: {PID: 102}, 4: {PID: 103}}
	snapshot := a.journal.snapshot(peers)
	if i := slices.IndexFunc(snapshot.Holds, func(h locktable.RestoredHold) bool { return h.ID == a.holds[4] }); i < 0 || snapshot.Locks[0].Forced != a.holds[4] {
		t.Fatalf("the journal has %+v", snapshot)
	}
	a.tb = connect(newTable(locktable.Config{MaxWork: 2, Tokens: 64, Journal: a.journal}, r.now))
	a.log = nil
	a.tb.Restore(r.now, snapshot)
	r.pass(50 * time.Millisecond)
	a.want("s3 lost forced", "s4 lost forced")
}

// How many permits there are is what those who have some named, not what others did before.
func TestCapacityIsThatOfTheHoldsThatLast(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 1, 10)
	a.acquire(2, 1, 3)
	a.acquire(3, 1, 3)
	r.settle()
	a.release(1)
	a.release(2)
	r.settle()
	row, _ := a.tb.Info(r.now, "api")
	if row.Permits != 1 || row.Of != 3 {
		t.Errorf("%d of %d", row.Permits, row.Of)
	}
	snapshot := a.journal.snapshot(map[locktable.SessionID]locktable.Peer{1: {PID: 100}, 2: {PID: 101}, 3: {PID: 102}})
	a.tb = connect(newTable(locktable.Config{Journal: a.journal}, r.now))
	a.tb.Restore(r.now, snapshot)
	if row, _ = a.tb.Info(r.now, "api"); row.Permits != 1 || row.Of != 3 {
		t.Errorf("after a restart: %d of %d", row.Permits, row.Of)
	}
}

// The danger: a number that is lowered never counts on a busy host, because each permit that is released goes to the next
// waiter at once.
func TestSmallerCapacityCountsForPermitsOfThisHost(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	for range 10 {
		a.acquire(1, 1, 10)
	}
	r.settle()
	var held []uint64
	for id := range 10 {
		held = append(held, a.holds[1]-uint64(id))
	}
	for range 40 {
		a.acquire(2, 1, 3)
	}
	r.settle()
	a.log = nil
	for i, id := range held {
		a.tb.Release(r.now, 1, protocol.Release{Hold: id})
		r.pass(10 * time.Millisecond)
		row, _ := a.tb.Info(r.now, "api")
		if most := max(3, 9-i); row.Permits > most || i < 7 && len(a.log) > 0 {
			t.Fatalf("after %d releases %d permits are held: %q", i+1, row.Permits, a.log)
		}
	}
	r.has(3, 0, 0)
	for range 20 {
		a.release(2)
		r.pass(10 * time.Millisecond)
		r.has(3, 0, 0)
	}

	r, a, _ = newPermitsRig(t)
	a.tb = connect(newTable(locktable.Config{Tokens: 64}, r.now))
	a.begin()
	a.acquire(1, 1, 10)
	for _, s := range []locktable.SessionID{2, 3, 4} { // with tokens for more
		a.acquire(s, 3, 10)
	}
	r.settle()
	for range 5 {
		a.acquire(1, 1, 3)
	}
	r.settle()
	a.log = nil
	for s := range locktable.SessionID(4) {
		a.release(s + 1)
	}
	a.want("s1 granted", "s1 granted", "s1 granted") // ten are idle, of which no hold is left that names ten
	r.pass(10 * time.Millisecond)
	r.has(3, 0, 0)
}

// Those of other hosts count for it, too: only Redis knows them.
func TestSmallerCapacityCountsForPermitsOfOtherHosts(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.tb = connect(newTable(locktable.Config{Tokens: 64}, r.now))
	a.begin()
	for _, s := range []locktable.SessionID{1, 2, 4} { // with tokens for more
		a.acquire(s, 1, 10)
	}
	r.settle()
	b.acquire(1, 7, 10)
	r.settle()
	a.acquire(3, 1, 3)
	r.settle()
	a.release(2)
	r.pass(10 * time.Millisecond)
	a.want("s1 granted", "s2 granted", "s4 granted")
	r.has(2, 7, 1)
	b.release(1)
	r.pass(10 * time.Millisecond)
	a.want("s3 granted")
	r.has(3, 0, 0)
}

// A user may list the name of its own hold, though others have the sixteen that the row has.
func TestOwnHoldIsKnownBehindThoseOfOthers(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.tb.Open(r.now, 9, locktable.Peer{PID: 9, UID: 1000})
	for range 20 {
		a.acquire(1, 1, 30)
		r.settle()
	}
	a.acquire(9, 1, 30)
	r.settle()
	if !a.tb.HasHold("api", 1000) || a.tb.HasHold("api", 1001) || a.tb.HasHold("other", 1000) {
		t.Error("who has a hold is not known")
	}
	terms := locktable.Terms{UID: 1000, Scope: locktable.ByName[locktable.Scope]{{Value: locktable.ScopeOwn}}}
	row, _ := a.tb.Info(r.now, "api")
	if !terms.Redact(&row, true) || len(row.Holders) != 0 || row.Session != 0 {
		t.Errorf("%+v", row)
	}
	a.release(9)
	if a.tb.HasHold("api", 1000) {
		t.Error("it has one after its end")
	}
}

// Another user's hold is found among many of a client's own.
func TestHolderOfAnotherUserIsFound(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.tb.Open(r.now, 9, locktable.Peer{PID: 9, UID: 1000})
	a.acquire(1, 1, 4)
	a.acquire(9, 1, 4)
	a.acquire(2, 1, 4)
	r.settle()
	for uid, of := range map[int64]int64{0: 1000, 1000: 0} {
		if got, isHeld := a.tb.HolderUID("api", 0, uid); got != of || !isHeld {
			t.Errorf("asked by user %d: %d, %v", uid, got, isHeld)
		}
	}
}

// A survey has the permits that clients have, and how many there are.
func TestSurveyHasPermits(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.acquire(1, 2, 10)
	a.acquire(2, 3, 8)
	r.settle()
	a.acquire(3, 8, 12) // waits, and knows of 12
	r.settle()
	a.tb.Acquire(r.now, 4, protocol.Acquire{ID: 1, Name: "a lock", WaitMS: protocol.Forever})
	var v locktable.Survey
	for a.tb.Survey(r.now, &v, 1) {
	}
	if g := v.Groups[0]; g.Permits != 5 || g.Capacity != 12 {
		t.Errorf("%d permits of %d", g.Permits, g.Capacity)
	}
}

// What an operation brings for a request that was granted others meanwhile is not for a later request, before which
// another host waits.
func TestPermitsOfARequestThatIsMetGoBack(t *testing.T) {
	r, a, b := newPermitsRig(t)
	for i, permits := range []uint16{2, 1, 1, 1} { // those after the first one reserve tokens
		a.acquire(locktable.SessionID(i+1), permits, 5)
	}
	r.settle()
	a.release(3)
	a.release(4)
	r.settle()
	b.acquire(1, 2, 5)
	r.settle()
	a.acquire(3, 2, 5)
	r.settle()
	r.now += int64(time.Millisecond)
	b.acquire(2, 2, 5)
	r.settle()
	r.now += int64(time.Millisecond)
	a.acquire(4, 1, 5)
	r.settle()
	a.log, b.log = nil, nil
	a.release(2) // too few for s3: an operation asks for it
	b.release(1)
	b.redis() // so that they are free
	_, res := a.run()
	a.release(1)
	a.want("s3 granted") // what s1 has released, while the operation is in flight
	a.tb.Result(r.now, res)
	a.want() // what came is not for s4: host b has asked before
	r.settle()
	a.want("s4 granted")
	b.want("s2 granted")
}
