package locktable_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Strict order between hosts.

func fair(a *protocol.Acquire) { a.Fair = true }

// waitsInOrder answers the Take in flight: another sidecar has the lock, the ticket of the Take
// stands at this rank, and Redis's clock is arrived.
func (r *rig) waitsInOrder(rank int32, arrived uint64) (take redisop.Op) {
	r.Helper()
	r.collect()
	if len(r.ops) != 1 || r.ops[0].Kind != redisop.Take || !r.ops[0].Has(redisop.Enqueue) {
		r.Fatalf("operations in flight: %+v, want a Take that enqueues", r.ops)
	}
	ticket := r.ops[0].Ticket
	if ticket == 0 {
		ticket = r.ops[0].HoldID
	}
	return r.answer(redisop.Take, redisop.Result{
		Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 20_000, Rank: uint32(rank), IsQueued: true, Ticket: ticket, Recall: redisop.RecallReceived, Arrived: arrived,
	})
}

// arrive answers the Arrive in flight. first is the arrival of the first of the queue.
func (r *rig) arrive(arrived, first uint64) {
	r.Helper()
	r.answer(redisop.Arrive, redisop.Result{Arrived: arrived, FirstArrived: first})
}

// holdsInOrder has session 1 hold the lock, and sessions 2 and 3 wait for it in order.
func holdsInOrder(t *testing.T, cfg locktable.Config) *rig {
	r := newListeningRig(t, cfg)
	r.acquire(1, "a", fair)
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
	r.acquire(2, "a", fair)
	r.redis(redisop.Take, redisop.Done) // which draws tokens for them
	r.pass(time.Millisecond)
	r.acquire(3, "a", fair)
	return r
}

func TestWaitersOfAHolderArriveAtRedis(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.arrive(1000, 0) // of session 2 only: the other came after it was sent
	r.arrive(2000, 0)
	r.quiet()
}

// Shows docs/queue.md: Strict order.
func TestLockPassesOnHereIfNoOtherHostWaitsBefore(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.arrive(1000, 0)
	r.arrive(2000, 1500)
	r.release(1, 1)
	r.want("s1 released count=0", "s2 granted hold=2 token=2 count=1")
	r.release(2, 2)
	r.want("s2 released count=0") // not session 3, which arrived after another host
	drop, take := r.two()
	if drop.Kind != redisop.Drop || take.Arrived != 2000 || !take.Has(redisop.InOrder) || !take.Has(redisop.Enqueue) || take.Ticket != 0 {
		t.Errorf("%+v, %+v", drop, take)
	}
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now, Passed: true})
	r.ops = []redisop.Op{take}
	r.waitsInOrder(0, 3000)
	r.transfer(take.HoldID, 64)
	r.want("s3 granted hold=3 token=33 count=1")
}

// A Drop and a Take behind it pass the lock to the host itself if its next waiter is the first.
//
// Shows docs/queue.md: Strict order.
func TestLockThatComesBackAtOnceIsGranted(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.release(1, 1) // no arrival is known
	r.want("s1 released count=0")
	r.arrive(1000, 900)
	drop, take := r.two()
	if take.Arrived != 1000 {
		t.Fatalf("%+v, %+v", drop, take)
	}
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now, Passed: true, Waiting: 1})
	r.ops = []redisop.Op{take}
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.Done, Token: 40, Waiting: 1})
	r.want("s2 granted hold=2 token=" + itoa(40-uint64(take.Reserve)+1) + " count=1")
}

// Shows docs/queue.md: Strict order.
func TestTicketMovesIfItsWaiterIsGone(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	first := r.acquire(1, "a", fair)
	take := r.waitsInOrder(0, 1000)
	if take.Arrived != 0 || !take.Has(redisop.InOrder) {
		t.Errorf("the first take: %+v", take)
	}
	r.pass(time.Millisecond)
	r.acquire(2, "a", fair)
	r.arrive(2000, 1000)
	r.quiet()
	r.cancel(1, first)
	r.want("s1 refused canceled")
	if moved := r.waitsInOrder(1, 3000); moved.Ticket != take.HoldID || moved.Arrived != 2000 {
		t.Errorf("the ticket of the next: %+v", moved)
	}
	r.quiet()
	r.transfer(take.HoldID, 64)
	r.want("s2 granted hold=3 token=33 count=1")
}

// The lock passes to the ticket of a waiter that is gone. The next one arrived later, and others
// may wait before it.
//
// Shows docs/queue.md: Strict order.
func TestTransferForAWaiterThatIsGoneIsNotForTheNext(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	first := r.acquire(1, "a", fair)
	r.waitsInOrder(0, 1000)
	r.pass(time.Millisecond)
	r.acquire(2, "a", fair)
	r.arrive(2000, 1000)
	r.cancel(1, first)
	r.want("s1 refused canceled")
	r.transfer(1, 64, waitingAfter(1)) // while the Take that moves the ticket is under way
	r.want()
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.Done, Token: 66, Waiting: 1})
	r.want()
	if _, take := r.two(); take.Arrived != 2000 {
		t.Errorf("the ticket of the next: %+v", take)
	}
}

// lingering returns a rig in which the lock lingers.
func lingering(t *testing.T) *rig {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Linger: moment.SpanOf(5 * time.Millisecond)}})
	for hold := uint64(1); hold <= 2; hold++ {
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, hold)
		if hold == 1 {
			r.redis(redisop.Drop, redisop.Done)
		}
	}
	r.quiet()
	r.log = nil
	return r
}

// Shows docs/queue.md: Strict order.
func TestFairAcquireDoesNotUseALingeringLock(t *testing.T) {
	r := lingering(t)
	r.acquire(2, "a", fair)
	r.want()
	r.redis(redisop.Drop, redisop.Done)
	r.redis(redisop.Take, redisop.Done)
	r.collect()
	if len(r.log) != 1 {
		t.Fatalf("%q", r.log)
	}
	r.log = nil
	r.release(2, 3)
	r.redis(redisop.Drop, redisop.Done) // it does not linger either
}

// Shows docs/queue.md: Strict order.
func TestLockInOrderHasNoTurns(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(0)}})
	r.arrive(1000, 0)
	r.arrive(2000, 0)
	r.recall("a")
	r.release(1, 1)
	r.want("s1 released count=0", "s2 granted hold=2 token=2 count=1")
	if r.collect(); len(r.ops) == 1 && r.ops[0].Kind == redisop.Take && r.ops[0].Has(redisop.RequireExisting) {
		r.redis(redisop.Take, redisop.Done)
	}
	r.release(2, 2)
	r.want("s2 released count=0", "s3 granted hold=3 token=3 count=1")
}

// A lock that has had no free moment for long is left free for one. Its next waiter keeps its
// place meanwhile.
//
// Shows docs/queue.md: Strict order.
func TestLockInOrderIsLeftFreeForAMoment(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.arrive(1000, 0)
	r.arrive(2000, 0)
	r.pass(50 * time.Millisecond)
	r.release(1, 1)
	r.want("s1 released count=0", "s2 granted hold=2 token=2 count=1")
	if r.pass(60 * time.Millisecond); len(r.ops) == 1 && r.ops[0].Kind == redisop.Take {
		r.redis(redisop.Take, redisop.Done)
	}
	r.release(2, 2)
	r.want("s2 released count=0")
	drop, take := r.two()
	if drop.PassedMS < 100 || take.Arrived != 2000 {
		t.Fatalf("%+v, %+v", drop, take)
	}
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now, Paused: true})
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 4})
	r.ops = []redisop.Op{take}
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.HeldByOther, LeftFree: true, TTLMS: -1, IsQueued: true, Ticket: take.HoldID, Arrived: 3000})
	r.quiet()
	if d := r.untilAsked(time.Second); d < 4*time.Millisecond || d > 8*time.Millisecond {
		t.Errorf("it is taken after %v", d)
	}
	again := r.answer(redisop.Take, redisop.Result{Outcome: redisop.Done, Token: 99, Ticket: take.HoldID})
	if again.Ticket != take.HoldID || again.Arrived != 2000 {
		t.Errorf("%+v", again)
	}
	if r.collect(); len(r.log) != 1 {
		t.Errorf("%q", r.log)
	}
}

func TestFailedArriveIsAskedAgain(t *testing.T) {
	for _, outcome := range []redisop.Outcome{redisop.NotSent, redisop.Unknown, redisop.Retryable, redisop.Refused} {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a", fair)
		r.redis(redisop.Take, redisop.Done)
		r.acquire(2, "a", fair)
		r.redis(redisop.Take, redisop.Done) // which draws tokens
		r.redis(redisop.Arrive, outcome)
		r.quiet()
		if d := r.untilAsked(time.Minute); d < 10*time.Millisecond {
			t.Errorf("outcome %d: asked again after %v", outcome, d)
		}
		r.redis(redisop.Arrive, redisop.Done)
	}
}

// Without its own channel a sidecar has no place in the queue, and there is no order to keep.
func TestFairAcquireWithoutAPlaceInTheQueue(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", fair)
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a", fair)
	r.redis(redisop.Take, redisop.Done) // which draws tokens
	r.quiet()
	r.log = nil
	r.release(1, 1)
	r.want("s1 released count=0", "s2 granted hold=2 token=2 count=1")
}

func TestFairAcquireThatDoesNotWaitIsATry(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a", fair, wait(0))
	if op := r.redis(redisop.Take, redisop.HeldByOther); op.Has(redisop.Enqueue) {
		t.Errorf("it queues: %+v", op)
	}
	r.want("s1 refused timeout")

	r = lingering(t)
	r.acquire(1, "a", fair, wait(0))
	if r.collect(); len(r.log) != 1 || !strings.Contains(r.log[0], "granted") {
		t.Errorf("a try for a lock that lingers: %q", r.log)
	}
}

// However often requests come, the host keeps its place in the queue.
func TestArrivalsDoNotKeepTheTicketFromBeingRefreshed(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a", fair)
	r.waitsInOrder(0, 1000)
	for range 100 {
		r.acquire(2, "a", fair)
		r.pass(100 * time.Millisecond)
		if r.collect(); len(r.ops) != 1 {
			t.Fatalf("operations in flight: %+v", r.ops)
		}
		if r.ops[0].Kind == redisop.Take {
			return
		}
		r.acquire(3, "a", fair) // before the result: there is always one more
		r.arrive(2000, 1000)
	}
	t.Error("the Take that keeps the place was not sent within 10 s")
}

// The connection ends, and meanwhile the waiter of the ticket is gone. The next one came later: the
// ticket must not get the lock for it in the place of the first.
func TestTicketOfAWaiterThatIsGoneIsNotUsedForTheNext(t *testing.T) {
	for _, outcome := range []redisop.Outcome{redisop.Unknown, redisop.NotSent} {
		r := newListeningRig(t, locktable.Config{})
		first := r.acquire(1, "a", fair)
		take := r.waitsInOrder(1, 1000)
		r.pass(time.Millisecond)
		r.acquire(2, "a", fair)
		r.tb.Down(r.now, 0, "connection lost")
		r.redis(redisop.Arrive, outcome)
		r.cancel(1, first)
		r.want("s1 refused canceled")
		r.tb.Up(r.now, 0, false, true)
		r.untilAsked(time.Minute)
		r.arrive(3000, 900)
		if moved := r.waitsInOrder(1, 4000); moved.Ticket != take.HoldID || moved.Arrived != 3000 {
			t.Errorf("outcome %d: the ticket of the next: %+v", outcome, moved)
		}
	}
}

// A user of Redis who may not send an Arrive waits all the same: the Take says when its waiter
// arrived.
func TestTicketIsUsedIfArrivalsAreDenied(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	first := r.acquire(1, "a", fair)
	r.waitsInOrder(1, 1000)
	r.pass(time.Millisecond)
	r.acquire(2, "a", fair)
	r.redis(redisop.Arrive, redisop.Refused)
	r.cancel(1, first)
	r.want("s1 refused canceled")
	for range 100 {
		r.pass(100 * time.Millisecond)
		if r.collect(); len(r.ops) == 1 && r.ops[0].Kind == redisop.Take {
			return
		} else if len(r.ops) == 1 {
			r.redis(redisop.Arrive, redisop.Refused)
		}
	}
	t.Error("the Take that keeps the place was not sent within 10 s")
}

// The request for which the Take was sent is gone, and no other host waits: the lock is not given
// back before the next one, which came before the Take.
func TestLockIsKeptForRequestsThatCameBeforeTheTake(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.arrive(1000, 900) // of session 2
	r.arrive(2000, 900)
	r.release(1, 1)
	r.want("s1 released count=0")
	drop, take := r.two()
	if take.Arrived != 1000 {
		t.Fatalf("%+v, %+v", drop, take)
	}
	r.acquire(4, "a", fair)
	for _, s := range []locktable.SessionID{2, 3} {
		r.tb.Close(r.now, s)
	}
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now, Passed: true})
	r.ops = []redisop.Op{take}
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.Done, Token: 99})
	if r.collect(); len(r.log) != 1 || !strings.HasPrefix(r.log[0], "s4 granted") {
		t.Errorf("%q", r.log)
	}
}

// Redis's clock was set back. What is known of arrivals from before keeps no host from the lock.
func TestClockThatGoesBackDoesNotKeepTheLockHere(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.arrive(5000, 0)
	r.arrive(6000, 0)
	r.acquire(4, "a", fair)
	r.arrive(1000, 900)
	r.release(1, 1)
	r.want("s1 released count=0")
	if _, take := r.two(); take.Arrived != 5000 {
		t.Errorf("%+v", take)
	}
}

// Redis is slow to answer an Arrive. The renewal does not wait for it.
func TestRenewalDoesNotWaitForAnArrive(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.pass(renewed)
	r.collect()
	if len(r.ops) != 2 || r.ops[0].Kind != redisop.Arrive || r.ops[1].Kind != redisop.Renew {
		t.Fatalf("operations in flight: %+v, want an Arrive and a Renew", r.ops)
	}
	arrive, renew := r.ops[0], r.ops[1]
	r.ops = []redisop.Op{renew}
	r.redis(redisop.Renew, redisop.Done)
	r.ops = append(r.ops, arrive)
	r.pass(lease - renewed + time.Second) // the lease of the Take is over
	if r.collect(); slices.ContainsFunc(r.log, func(line string) bool { return strings.Contains(line, "lost") }) {
		t.Errorf("%q", r.log)
	}
}

// What passes the lock on waits for the Arrive, which says for which request the ticket stands.
func TestReleaseWaitsForAnArrive(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.release(1, 1)
	r.want("s1 released count=0")
	r.arrive(1000, 900)
	if _, take := r.two(); take.Arrived != 1000 {
		t.Errorf("%+v", take)
	}
}

// Redis was short of memory when the ticket was to be kept. The arrival that is known from before is
// no reason to ask again at each answer.
func TestHostThatLostItsTicketDoesNotAskAtEachAnswer(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a", fair)
	r.waitsInOrder(0, 1000)
	r.untilAsked(7 * time.Second)
	r.refusedTake(noTicket, redisop.RecallReceived, 20_000)
	r.quiet()
}

// The lock passes to the first of the queue that an Arrive has found, also if no client here waits
// any more: the release is not sent behind those that nothing waits for.
func TestReleaseIsForTheQueueThatAnArriveFound(t *testing.T) {
	for _, first := range []uint64{0, 900} {
		r := holdsInOrder(t, locktable.Config{})
		r.arrive(1000, first)
		r.arrive(2000, first)
		r.cancel(2, 2)
		r.cancel(3, 3)
		r.release(1, 1)
		if drop := r.redis(redisop.Drop, redisop.Done); drop.Has(redisop.CanWait) != (first == 0) {
			t.Errorf("with a first arrival of %d: %+v", first, drop)
		}
	}
}

// A transfer is of the request for which the ticket stands. A later one of this host may have other
// hosts before it.
func TestTransferServesNoRequestThatArrivedLater(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a", fair)
	r.waitsInOrder(0, 1000)
	r.pass(time.Millisecond)
	r.acquire(2, "a", fair)
	r.arrive(2000, 1000)
	r.transfer(1, 64, waitingAfter(1))
	r.release(1, 1)
	r.want("s1 granted hold=1 token=33 count=1", "s1 released count=0")
	if _, take := r.two(); take.Arrived != 2000 {
		t.Errorf("%+v", take)
	}
}

// Redis could not carry out an Arrive, and may do so later. Until then the ticket is not used for a
// waiter whose arrival is not known.
func TestTicketIsNotUsedIfAnArriveMayPassLater(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	first := r.acquire(1, "a", fair)
	r.waitsInOrder(1, 1000)
	r.pass(time.Millisecond)
	r.acquire(2, "a", fair)
	r.redis(redisop.Arrive, redisop.Retryable)
	r.cancel(1, first)
	for range 100 {
		r.pass(100 * time.Millisecond)
		if r.collect(); len(r.ops) > 0 {
			r.redis(redisop.Arrive, redisop.Retryable)
		}
	}
}

// While Redis cannot be reached, no other host can get the lock: it passes on here.
func TestLockInOrderPassesOnHereWhileRedisIsAway(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.arrive(1000, 900)
	r.tb.Down(r.now, 0, "connection lost")
	r.redis(redisop.Arrive, redisop.Unknown)
	r.release(1, 1)
	r.want("s1 released count=0", "s2 granted hold=2 token=2 count=1")
}

func TestWaiterBehindOneThatIsGoneArrives(t *testing.T) {
	r := holdsInOrder(t, locktable.Config{})
	r.cancel(2, 2)
	r.arrive(1000, 0) // it was sent before session 3 asked
	r.arrive(2000, 0)
	r.quiet()
}

// A short wait is over, so a Take is sent for it although the ticket stands for a waiter that is
// gone. What the ticket gets is for no request that came after that one: another host waits.
func TestTicketOfAWaiterThatIsGoneServesNoShortWait(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a", fair)
	r.waitsInOrder(1, 1000)
	r.pass(time.Millisecond)
	r.acquire(2, "a", fair)
	for _, s := range []locktable.SessionID{1, 2} {
		r.tb.Close(r.now, s) // the ticket is kept until the Arrive for session 2 has its answer
	}
	r.pass(time.Millisecond)
	r.acquire(3, "a", fair, wait(time.Millisecond))
	r.acquire(4, "a", fair)
	r.pass(2 * time.Millisecond)
	r.arrive(2000, 900)
	r.collect()
	if len(r.ops) != 1 || r.ops[0].Ticket == 0 || r.ops[0].Arrived != 0 {
		t.Fatalf("operations in flight: %+v, want a Take with the ticket, and no arrival", r.ops)
	}
	r.log = nil
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.Done, Token: 99, Ticket: r.ops[0].Ticket, Waiting: 1})
	if r.collect(); slices.ContainsFunc(r.log, func(s string) bool { return strings.Contains(s, "granted") }) {
		t.Errorf("%q", r.log)
	}
	if drop, take := r.two(); drop.Kind != redisop.Drop || take.Ticket != 0 || !take.Has(redisop.InOrder) {
		t.Errorf("the next operations: %+v, %+v", drop, take)
	}
}

// A Take waits for the result of an Arrive. If that does not come, Redis is what the request waited
// for, and not another host.
func TestArriveWithoutAResultIsTheReasonOfATimeout(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Linger: moment.SpanOf(0)}})
	r.acquire(1, "a", fair)
	r.redis(redisop.Take, redisop.Done)
	waiter := r.acquire(2, "a", fair)
	r.redis(redisop.Take, redisop.Done) // tokens for it
	r.cancel(2, waiter)
	r.release(1, 1)
	r.log = nil
	r.acquire(3, "a", wait(10*time.Millisecond), fixed(time.Hour)) // it needs a Take
	r.collect()
	if n := len(r.ops); n != 1 || r.ops[0].Kind != redisop.Arrive {
		t.Fatalf("in flight: %+v", r.ops)
	}
	arrive := r.ops[0]
	r.ops = nil
	r.pass(490 * time.Millisecond)
	r.acquire(1, "b") // Redis is not silent
	r.redis(redisop.Take, redisop.Done)
	r.collect()
	r.log = nil
	r.pass(20 * time.Millisecond)
	r.refused(3, protocol.Unavailable, "Redis has not answered for 501ms")
	r.tb.Result(r.now, redisop.Result{Kind: arrive.Kind, Name: "a", Sent: r.now})
}
