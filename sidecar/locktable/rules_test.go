package locktable_test

import (
	"fmt"
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

// Rules that the simulation does not notice if they are broken, or not soon.

// answerAll answers each operation in flight with Done.
func (r *rig) answerAll() {
	r.collect()
	for len(r.ops) > 0 {
		op := r.ops[0]
		r.ops = r.ops[1:]
		r.tokens += uint64(op.Reserve)
		r.tb.Result(r.now, withMode(&op, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: r.tokens, Listeners: listeners(r.others)}))
		r.collect()
	}
}

// The timer of a hold may wait behind others that are due. Its client has stopped
// believing at the deadline all the same.
func TestHoldEndsAtItsDeadlineBeforeItsTimerFires(t *testing.T) {
	t.Run("then a result comes", func(t *testing.T) {
		r := newRig(t)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.pass(renewed)
		r.now += int64(20 * time.Second)
		r.redis(redisop.Renew, redisop.KeyMissing)
		r.want("s1 granted hold=1 token=1 count=1", "s1 lost hold=1 expired")
	})
	t.Run("then its client releases it", func(t *testing.T) {
		r := newRig(t)
		r.acquire(1, "a", fixed(time.Second))
		r.redis(redisop.Take, redisop.Done)
		r.now += int64(time.Second)
		r.release(1, 1)
		r.want("s1 granted hold=1 token=1 count=1", "s1 lost hold=1 expired", "s1 refused not_held")
	})
}

// Redis may have the entries of the operation whose result is unknown, which are not
// those of the hold any more.
func TestEntriesAreSetAgainAfterAnUnknownResult(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", owner(7))
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "a", owner(7))
	r.release(1, 1)
	if op := r.redis(redisop.Renew, redisop.Unknown); op.Count != 2 {
		t.Fatalf("%+v", op)
	}
	if op := r.redis(redisop.Renew, redisop.Done); op.Count != 1 {
		t.Fatalf("%+v", op)
	}
	r.quiet()
}

// A host that had the lock without subscribing polls: it needs a moment in which the key
// is free.
func TestTakeDoesNotFollowADropWhileAPollingHostIsKnown(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.pass(40 * time.Millisecond)
	r.redis(redisop.Take, redisop.Done)
	r.want("subscribe a", "s1 granted hold=2 token=1 count=1")
	r.release(1, 2)
	r.acquire(2, "a")
	r.redis(redisop.Drop, redisop.Done)
}

// A foreign client that had the lock is known for ForeignMemory, also if no client waits here meanwhile:
// it gets the lock after one hold of this host.
func TestForeignClientIsKnownWhileNoClientWaits(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.pass(40 * time.Millisecond)
	r.redis(redisop.Take, redisop.Done)
	r.want("subscribe a", "s1 granted hold=2 token=1 count=1")
	r.passAnswered(15 * time.Second) // the subscription has ended
	r.acquire(2, "a")
	r.answerAll()
	r.log = nil
	r.release(1, 2)
	r.want("s1 released count=0")
	r.redis(redisop.Drop, redisop.Done)
}

func TestRenewalsGoBeforeOtherTimers(t *testing.T) {
	r := newRig(t)
	r.acquire(2, "held for long", fixed(time.Hour))
	r.acquire(1, "renewed")
	r.answerAll()
	for range 300 {
		r.acquire(1, "held for long", wait(9*time.Second))
	}
	r.answerAll()
	r.now += int64(11 * time.Second)
	r.tb.Advance(r.now)
	r.collect()
	if !slices.ContainsFunc(r.ops, func(op redisop.Op) bool { return op.Kind == redisop.Renew && op.Name == "renewed" }) {
		t.Errorf("the renewal waits behind other timers: %+v", r.ops)
	}
}

// A Drop for which something waits goes before thousands that free locks which nothing wants.
//
// Shows docs/guarantees.md: Holds more than Redis can renew.
func TestDropSaysWhetherItCanWait(t *testing.T) {
	for what, c := range map[string]struct {
		want     bool
		programs int32 // that are subscribed
		wait     func(r *rig)
	}{
		"nothing waits":           {true, 0, func(*rig) {}},
		"another host waits":      {false, 0, func(r *rig) { r.recall("a") }},
		"a program is subscribed": {false, 1, func(*rig) {}},
	} {
		t.Run(what, func(t *testing.T) {
			r := newListeningRig(t, locktable.Config{Contest: contest.Config{Linger: moment.SpanOf(0)}})
			r.acquire(1, "a")
			r.answer(redisop.Take, redisop.Result{Outcome: redisop.Done, Listeners: listeners(c.programs), Token: 1})
			c.wait(r)
			r.release(1, 1)
			if len(r.ops) != 1 || r.ops[0].Kind != redisop.Drop || r.ops[0].Has(redisop.CanWait) != c.want {
				t.Errorf("operations in flight: %+v, want a Drop that can wait: %v", r.ops, c.want)
			}
			r.redisDoesAll()
		})
	}

	// A place in the queue is given up, while others may wait behind it.
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.queued(0)
	r.cancel(1, id)
	if len(r.ops) != 1 || r.ops[0].Kind != redisop.Drop || r.ops[0].Has(redisop.CanWait) {
		t.Errorf("operations in flight: %+v, want a Drop that cannot wait", r.ops)
	}
	r.redisDoesAll()
}

func TestEndOfALargeSessionIsSpreadOverSteps(t *testing.T) {
	const holds, most = 200, 64
	r := newRig(t)
	for i := range holds {
		r.acquire(1, fmt.Sprint("lock ", i))
		r.answerAll()
	}
	r.tb.Close(r.now, 1)
	dropped := 0
	for {
		r.collect()
		if len(r.ops) == 0 || len(r.ops) > most {
			t.Fatalf("%d locks are dropped in one step, after %d", len(r.ops), dropped)
		}
		if dropped += len(r.ops); dropped == holds {
			return
		}
		r.ops = nil
		if !r.tb.Busy() {
			t.Fatalf("after %d of %d locks there is nothing to do", dropped, holds)
		}
		r.tb.Work(r.now)
	}
}

// A session that ends need not wait until a larger one is worked off, whether that ended before or after.
func TestSessionsThatEndAreWorkedOffInTurn(t *testing.T) {
	const large, small = 1000, 100
	r := newRig(t)
	hold := func(s locktable.SessionID, n int) {
		for i := range n {
			r.acquire(s, fmt.Sprint("lock ", s, " ", i))
			r.answerAll()
		}
	}
	hold(1, large)
	hold(2, small)
	hold(3, large)
	r.collect()
	r.ops = nil
	for s := range locktable.SessionID(3) {
		r.tb.Close(r.now, 1+s)
	}
	steps, dropped := 0, 0
	for ; dropped < small && steps < 50; steps++ {
		r.collect()
		for _, op := range r.ops {
			if strings.HasPrefix(op.Name, "lock 2 ") {
				dropped++
			}
		}
		r.ops = nil
		r.tb.Work(r.now)
	}
	if steps > 8 {
		t.Errorf("the locks of the small session are dropped in %d steps", steps)
	}
}

// Locks with more waiters than one step may refuse have a step each.
func TestLocksWithManyAnswersShareTheBudget(t *testing.T) {
	const locks, waiters, most = 3, 200, 64
	r := newRig(t)
	for i := range locks {
		for range waiters {
			r.acquire(1, fmt.Sprint("lock ", i))
		}
	}
	r.collect()
	for _, op := range r.ops {
		r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Refused, Msg: "NOPERM", Sent: r.now})
	}
	r.ops = nil
	r.collect()
	if n := r.drained(most); n != locks*(waiters-most) {
		t.Errorf("%d answers in later steps, of %d", n, locks*waiters)
	}
}

// The result of a Take that was sent for another try is older than this one.
func TestTryAfterACanceledTryGetsATakeOfItsOwn(t *testing.T) {
	r := newRig(t)
	first := r.acquire(1, "a", wait(0))
	r.now += int64(time.Millisecond)
	r.tb.Cancel(r.now, 1, protocol.Cancel{Target: first})
	r.acquire(2, "a", wait(0))
	r.redis(redisop.Take, redisop.HeldByOther)
	r.want("s1 refused canceled", "subscribe a")
	r.redis(redisop.Take, redisop.Done)
	r.want("s2 granted hold=2 token=1 count=1")
}

// No message comes when a lease ends.
func TestWaiterTriesAgainWhenTheLeaseOfAnotherHostEnds(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.tb.Subscribed(r.now, 0, "a")
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 300, Listeners: listeners(1)})
	r.pass(290 * time.Millisecond)
	r.quiet()
	r.pass(20 * time.Millisecond)
	r.redis(redisop.Take, redisop.Done)
	r.want("subscribe a", "s1 granted hold=3 token=1 count=1")
}

// Redis may have executed the check before the key was deleted.
func TestMessageDuringACheckHasTheKeyCheckedAgain(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", fixed(10*time.Minute))
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(150 * time.Millisecond)
	r.tb.Subscribed(r.now, 0, "a")
	r.message("a")
	r.redis(redisop.Check, redisop.Done)
	r.pass(20 * time.Millisecond)
	r.redis(redisop.Check, redisop.KeyMissing)
	r.want("s1 granted hold=1 token=1 count=1", "subscribe a", "s1 lost hold=1 deleted")
}

// The search for a deadlock is given up after a number of steps: a client with many
// owners must not occupy the loop.
func TestSearchForADeadlockIsBounded(t *testing.T) {
	for _, tt := range []struct {
		owners int
		found  bool
	}{{200, true}, {300, false}} {
		r := newRig(t)
		name := func(i int) string { return fmt.Sprint("lock ", i%tt.owners) }
		for i := range tt.owners {
			r.acquire(1, name(i), owner(uint64(i+1)))
			r.answerAll()
		}
		for i := range tt.owners - 1 {
			r.acquire(1, name(i+1), owner(uint64(i+1)))
		}
		r.answerAll()
		r.log = nil
		r.acquire(1, name(tt.owners), owner(uint64(tt.owners)))
		if found := slices.Contains(r.log, "s1 refused deadlock"); found != tt.found {
			t.Errorf("%d owners wait for each other: deadlock found %v, want %v", tt.owners, found, tt.found)
		}
	}
}

// A session was told a deadline, and gets three locks that are good for less. Each time one
// of them is renewed, the session is told of more for those that were renewed before, too.
func TestLesserDeadlineIsRestored(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "renewed")
	leases := map[string]time.Duration{"a": 23 * time.Second, "b": 25500 * time.Millisecond, "c": 28 * time.Second}
	names := []string{"a", "b", "c"}
	for _, name := range names {
		l.takes(2, name, fixed(leases[name]))
	}
	l.pass(renewed)
	l.answerAll()
	for _, name := range names {
		l.acquire(1, name)
		l.answerFor(name)
	}
	for i := range names {
		l.release(2, uint64(2+i))
	}
	l.pass(20 * time.Millisecond)
	l.log = nil
	l.answerFor("a")
	l.answerFor("b")
	l.want("s1 lease +13s", "s1 lease +15s")
	before := l.row("a").DeadlineNS
	l.killed(0)
	if got := l.row("a").DeadlineNS; got != before {
		t.Errorf("restored with a deadline that is %v before the one that its client was told", time.Duration(before-got))
	}
}

// Its client was told of a long lease, and Redis refuses to confirm the hold. Until it is
// lost, the other holds of the session are good for no longer than it is.
func TestRestoredHoldThatIsNotConfirmedIsLostWithinTheNewLease(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.cfg.Lease = time.Second
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, false)
	l.redis(redisop.Renew, redisop.Refused)
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, false, 1, 1)
	l.pass(600 * time.Millisecond)
	l.ops = nil
	l.want("s1 lease +29s", "s1 claimed last=true")
	l.pass(200 * time.Millisecond)
	l.want("s1 lost hold=1 expired")
}

func TestNoUserWaitsForAllOfMaxLocks(t *testing.T) {
	r := newUsersRig(t, locktable.Config{MaxLocks: 32, UID: 99}, 1000, 1000, 1001)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	waits := func(s locktable.SessionID) (n int) {
		for r.log = nil; len(r.log) == 0; n++ {
			r.acquire(s, "a")
		}
		return n - 1
	}
	r.collect()
	if n := waits(2); n != 24 || r.log[0] != "s2 refused limit" {
		t.Errorf("one user has %d acquires waiting of 32, want three quarters: %s", n, r.log[0])
	}
	if n := waits(3); n != 6 || r.log[0] != "s3 refused limit" {
		t.Errorf("another user has %d acquires waiting, want all but the last sixteenth: %s", n, r.log[0])
	}
}

// Another program may give its key any time to live: it does not overflow.
func TestTimeToLiveOfAnotherProgramsKeyIsBounded(t *testing.T) {
	for _, ttl := range []int64{10_000_000_000_000, 1<<63 - 1} {
		r := newRig(t)
		r.acquire(1, "a")
		r.collect()
		r.ops = nil
		r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "a", Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: ttl, Sent: r.now})
		r.pass(6 * time.Second)
		r.redis(redisop.Take, redisop.Done) // it is asked for again
		r.want("subscribe a", "s1 granted hold=2 token=1 count=1")
	}
}

// A lock has one timer. If that fires among thousands for something that can wait, the
// renewal that is due later is not put off with it.
func TestTimerThatCanWaitDoesNotPutOffTheRenewal(t *testing.T) {
	const others = 20_200
	r := newRig(t)
	r.tb = connect(newTable(locktable.Config{Lease: 3 * time.Second}, r.now))
	r.tb.Up(r.now, 0, false, false)
	r.tb.Open(r.now, 1, locktable.Peer{})
	r.tb.Open(r.now, 2, locktable.Peer{})
	renewed := false
	answer := func() {
		for r.collect(); len(r.ops) > 0; r.collect() {
			op := r.ops[0]
			r.ops = r.ops[1:]
			renewed = renewed || op.Kind == redisop.Renew && op.Name == "victim"
			r.tokens += uint64(op.Reserve)
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: r.tokens})
		}
	}
	for i := range others {
		r.acquire(2, fmt.Sprint("ends ", i), maxHold(time.Second))
		answer()
	}
	r.now += int64(898 * time.Millisecond)
	r.acquire(1, "victim")
	answer()
	r.now += int64(3 * time.Millisecond)
	r.acquire(1, "victim", owner(7)) // after 100 ms it wants to subscribe, just when the others end
	answer()
	granted := r.now
	for !renewed {
		if r.now-granted > int64(1200*time.Millisecond) {
			t.Fatal("the lock is not renewed in time")
		}
		r.now += int64(10 * time.Millisecond)
		r.tb.Advance(r.now)
		answer()
	}
}

// drained calls Work until nothing is left over, and checks that no call does much.
func (r *rig) drained(most int) (effects int) {
	r.Helper()
	for {
		n := len(r.tb.Effects())
		if n > most {
			r.Fatalf("%d effects in one step", n)
		}
		if effects += n; !r.tb.Busy() {
			return effects
		}
		r.tb.Work(r.now)
	}
}

// However many clients ask for a confirmation, no step is long.
func TestConfirmsAreAnsweredInParts(t *testing.T) {
	const clients, each, most = 10, 100, 64
	for _, outcome := range []redisop.Outcome{redisop.Done, redisop.Refused} {
		r := newRig(t)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 1)
		for c := range locktable.SessionID(clients) {
			r.tb.Open(r.now, 10+c, locktable.Peer{})
			for i := range uint64(each) {
				r.tb.Confirm(r.now, 10+c, protocol.Confirm{ID: i + 1, Name: "a"})
			}
		}
		r.redis(redisop.Drop, outcome)
		if n := r.drained(most); n < (clients*each)-most {
			t.Errorf("%d answers, of %d", n, clients*each)
		}
		if err := r.tb.Audit(); err != nil {
			t.Error(err)
		}
	}
}

// Answers that are left keep no renewal back, also if Work is not called for long.
func TestRenewalIsNotKeptBackByAnswersThatAreLeft(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	for i := range uint64(1000) {
		r.tb.Confirm(r.now, 1, protocol.Confirm{ID: 1000 + i, Name: "a"})
	}
	r.acquire(2, "a")
	r.collect()
	ops := r.ops // a Drop, and the Take that is pipelined after it
	r.ops = nil
	for _, op := range ops { // the second result answers some of the confirms, and grants the lock
		r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: 100})
		r.collect()
	}
	if !slices.ContainsFunc(r.log, func(line string) bool { return strings.HasPrefix(line, "s2 granted") }) {
		t.Fatalf("%q", r.log)
	}
	r.ops = nil
	for end := r.now + int64(12*time.Second); r.now < end && len(r.ops) == 0; r.collect() {
		at, ok := r.tb.Next()
		if !ok {
			t.Fatal("nothing is due")
		}
		r.now = max(r.now, at)
		r.tb.Advance(r.now)
	}
	if len(r.ops) != 1 || r.ops[0].Kind != redisop.Renew {
		t.Errorf("%+v; want a renewal after a third of the lease", r.ops)
	}
}

// A confirmation counts for its user until it is answered, also when its session has
// ended: no user can have more of them by coming again.
func TestConfirmsOfEndedSessionsCount(t *testing.T) {
	r := newUsersRig(t, locktable.Config{MaxLocks: 16, MaxWaiters: 5}, 1000)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.collect()
	r.ops, r.log = nil, nil
	accepted := 0
	for c := range locktable.SessionID(10) {
		r.tb.Open(r.now, 10+c, locktable.Peer{UID: 1000})
		for i := range uint64(5) {
			r.tb.Confirm(r.now, 10+c, protocol.Confirm{ID: i + 1, Name: "a"})
			if r.collect(); len(r.log) == 0 {
				accepted++
			}
			r.log = nil
		}
		r.tb.Close(r.now, 10+c)
	}
	if accepted != 12 {
		t.Errorf("%d confirmations of one user wait, want its share of 12", accepted)
	}
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now})
	r.collect()
}

// The same of waiters: those that Redis denies, and those whose clients are dead.
func TestWaitersAreRefusedInParts(t *testing.T) {
	const waiters, most = 1000, 64
	r := newRig(t)
	for range waiters {
		r.acquire(1, "a")
	}
	r.redis(redisop.Take, redisop.Refused)
	if n := r.drained(most); n > waiters || n < waiters-most {
		t.Errorf("%d answers in later steps, of %d", n, waiters)
	}
	r.acquire(2, "a") // is asked for again
	r.redis(redisop.Take, redisop.Done)

	for range waiters {
		r.acquire(3, "a")
	}
	r.redis(redisop.Take, redisop.Done)
	id := r.acquire(4, "a")
	r.tb.Close(r.now, 3)
	r.collect()
	r.log = nil
	r.release(2, 2)
	for r.tb.Busy() {
		r.tb.Work(r.now)
	}
	r.collect()
	if got := strings.Join(r.log, "; "); !strings.Contains(got, "s4 granted") {
		t.Errorf("the live waiter %d behind dead ones has: %s", id, got)
	}
}

// A run of holds by requests that do not wait leaves the key free now and then, too.
//
// Shows docs/queue.md: Free moments.
func TestLocalPollersLeaveTheKeyFreeNowAndThen(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", wait(0))
	r.redis(redisop.Take, redisop.Done)
	hold, s := uint64(1), locktable.SessionID(2)
	for n := range 5 {
		r.now += int64(300 * time.Millisecond)
		r.tb.Advance(r.now)
		r.release(3-s, hold)
		r.acquire(s, "a", wait(0))
		if len(r.ops) == 1 && n > 0 {
			return // the Take comes when Redis has executed the Drop
		}
		ops := r.ops
		r.ops = nil
		for _, op := range ops {
			r.tokens++
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: r.tokens})
			if r.collect(); op.Kind == redisop.Take {
				hold = op.HoldID
			}
		}
		for _, op := range r.ops {
			r.tokens++
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: r.tokens})
			hold = op.HoldID
		}
		r.ops = nil
		s = 3 - s
	}
	t.Error("the key was never free in 1.5 s")
}

// A lock has no timer for what the result of its operation in flight decides, nor for a hold
// that has ended: an idle sidecar sleeps.
func TestTimerIsForTheNextChangeOnly(t *testing.T) {
	t.Run("an operation was sent", func(t *testing.T) {
		r := newRig(t)
		r.tb = connect(newTable(locktable.Config{Tokens: 1}, r.now))
		r.tb.Up(r.now, 0, false, false)
		for s := range locktable.SessionID(3) {
			r.tb.Open(r.now, s+1, locktable.Peer{})
		}
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.acquire(2, "a")
		r.redis(redisop.Take, redisop.Done)
		r.acquire(3, "a")
		r.release(1, 1)
		r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0", "s2 granted hold=2 token=2 count=1")
		if len(r.ops) != 1 || r.ops[0].Reserve != 1 {
			t.Fatalf("operations in flight: %+v, want one that reserves a token for the next waiter", r.ops)
		}
		if at, ok := r.tb.Next(); !ok || time.Duration(at-r.now) < 100*time.Millisecond {
			t.Errorf("the next timer is due in %v, want 100 ms, when the host subscribes for its waiter", time.Duration(at-r.now))
		}
	})
	t.Run("a hold has ended", func(t *testing.T) {
		r := newRig(t)
		r.acquire(1, "a", maxHold(time.Second))
		r.redis(redisop.Take, redisop.Done)
		r.pass(1010 * time.Millisecond)
		r.want("s1 granted hold=1 token=1 count=1", "s1 lost hold=1 max_hold")
		if at, ok := r.tb.Next(); ok {
			t.Errorf("while the lock is being dropped, a timer is due in %v", time.Duration(at-r.now))
		}
		r.redis(redisop.Drop, redisop.Done)
	})
}

// Redis refused to renew the hold once, and renewed it when it was asked again. If Redis
// cannot be reached after that, the hold lasts as long as any other.
func TestHoldThatIsRenewedAfterARefusalLastsUntilItsDeadline(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(renewed)
	r.redis(redisop.Renew, redisop.Refused)
	r.pass(110 * time.Millisecond)
	r.redis(redisop.Renew, redisop.Done)
	r.tb.Down(r.now, 0, "gone")
	r.want("s1 granted hold=1 token=1 count=1", "s1 lease +30s")
	r.pass(25 * time.Second)
	r.want()
	r.pass(5 * time.Second)
	r.want("s1 lost hold=1 expired")
}

// Redis refuses to renew the hold until it is given up: a quarter of the lease before its
// deadline its client is notified. Until the deadline the client may still use the lock, so
// no other client gets it; and the hold is not renewed.
func TestHoldThatIsGivenUpExcludesOthersUntilItsDeadline(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	for end := r.now + int64(23*time.Second); r.now < end; {
		r.pass(10 * time.Millisecond)
		if r.collect(); len(r.ops) > 0 {
			r.redis(redisop.Renew, redisop.Refused)
		}
	}
	r.want("s1 granted hold=1 token=1 count=1", "s1 lost hold=1 expired")
	r.pass(6 * time.Second)
	r.quiet()
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done) // for tokens
	r.want()
	r.pass(time.Second)
	r.want("subscribe a")
	if op := r.redis(redisop.Take, redisop.Done); op.HoldID != 2 {
		t.Fatalf("when the hold has ended: %+v", op)
	}
	r.want("s2 granted hold=2 token=66 count=1")
}

// Redis refused to renew the hold, and the sidecar was restarted. Redis has not refused the
// new process, so the hold lasts until its deadline.
func TestHoldThatCouldNotBeRenewedLastsAfterARestart(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.pass(renewed)
	l.redis(redisop.Renew, redisop.Refused)
	l.collect()
	l.killed(time.Second)
	l.pass(13 * time.Second)
	l.want()
	l.pass(6 * time.Second)
	l.want("s1 lost hold=1 expired")
}

func TestCrashDelayEndsNoLaterThanMaxHold(t *testing.T) {
	for _, tt := range []struct{ maxHold, crashDelay, want time.Duration }{
		{4 * time.Second, 10 * time.Second, 4 * time.Second},
		{10 * time.Second, 2 * time.Second, 3 * time.Second},
	} {
		r := newRig(t)
		r.acquire(1, "a", maxHold(tt.maxHold), crash(tt.crashDelay))
		r.redis(redisop.Take, redisop.Done)
		r.pass(time.Second)
		r.tb.Close(r.now, 1)
		r.pass(tt.want - time.Second - 10*time.Millisecond)
		r.quiet()
		r.pass(20 * time.Millisecond)
		r.redis(redisop.Drop, redisop.Done)
	}
}

// No other host could get the lock, so it passes between local clients.
func TestHostThatCannotReachRedisDoesNotYield(t *testing.T) {
	for _, tt := range []struct {
		says string
		down bool
		want []string
	}{
		{"Redis is up", false, []string{"s1 released count=0"}},
		{"Redis is down", true, []string{"s1 released count=0", "s2 granted hold=2 token=2 count=1"}},
	} {
		t.Run(tt.says, func(t *testing.T) {
			r := newRig(t)
			r.others = 1
			r.acquire(1, "a")
			r.redis(redisop.Take, redisop.Done)
			r.acquire(2, "a")
			r.redis(redisop.Take, redisop.Done)
			r.pass(60 * time.Millisecond) // longer than HandoffTime
			if tt.down {
				r.tb.Down(r.now, 0, "gone")
			}
			r.want("s1 granted hold=1 token=1 count=1")
			r.release(1, 1)
			r.want(tt.want...)
		})
	}
}

// A host yields, and loses its connection to Redis before the result of the Drop. Messages
// come over another connection: they do not have it try again before it has yielded.
func TestHostThatYieldsDropsTheLockAfterAnOutage(t *testing.T) {
	r := newRig(t)
	r.others = 40 // so many that a host seldom retries at once
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.tb.Subscribed(r.now, 0, "a")
	hold := r.redis(redisop.Take, redisop.Done).HoldID
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(60 * time.Millisecond) // longer than HandoffTime
	r.release(1, hold)
	r.tb.Down(r.now, 0, "gone")
	r.redis(redisop.Drop, redisop.Unknown)
	r.message("a")
	r.pass(time.Second)
	r.quiet()
	r.tb.Up(r.now, 0, false, false)
	r.redis(redisop.Drop, redisop.Done)
	r.pass(9 * time.Millisecond)
	r.quiet() // it backs off
}
