package locktable_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Lingering: a lock that one host uses again and again stays its own in Redis for a moment
// after each release.

// warmUp has session 1 acquire, release and acquire the lock "a", so that it is hot. It returns
// the hold.
func warmUp(r *rig) (hold uint64) {
	r.Helper()
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, r.lastHold())
	r.redis(redisop.Drop, redisop.Done)
	r.pass(4 * time.Millisecond)
	r.acquire(1, "a")
	if op := r.redis(redisop.Take, redisop.Done); op.Reserve != 256 {
		r.Fatalf("the take of a lock that is used again: %+v", op)
	}
	r.collect()
	r.log = nil
	return r.lastHold()
}

// lingers checks that the lock "a" lingers.
func (r *rig) lingers() {
	r.Helper()
	r.quiet()
	if row, ok := r.tb.Info(r.now, "a"); !ok || row.State != protocol.StateLingering {
		r.Fatalf("the lock does not linger: %+v", row)
	}
}

func newLingeringRig(t *testing.T, cfg locktable.Config) *rig {
	t.Helper()
	r := newHotRig(t, cfg)
	r.release(1, warmUp(r))
	r.want("s1 released count=0")
	r.lingers()
	return r
}

// Shows docs/queue.md: Lingering.
func TestLockThatLingersIsGrantedWithoutAnOperation(t *testing.T) {
	r := newLingeringRig(t, locktable.Config{})
	for i := range uint64(10) { // until Redis gets the number of the hold
		r.pass(4 * time.Millisecond) // shorter than Linger
		s := locktable.SessionID(1 + i%4)
		r.acquire(s, "a")
		hold := r.lastHold()
		r.release(s, hold)
		// Tokens 1 and 2 to 257 were drawn, and 2 was granted.
		r.want(fmt.Sprintf("s%d granted hold=%d token=%d count=1", s, hold, 3+i), fmt.Sprintf("s%d released count=0", s))
		r.lingers()
	}
}

// Its holder could be on any host until then: a lock is not hot from the first.
//
// Shows docs/queue.md: Lingering.
func TestOnlyALockThatIsAcquiredSoonAfterItsReleaseLingers(t *testing.T) {
	for _, tt := range []struct {
		pause   time.Duration
		lingers bool
	}{{5 * time.Millisecond, true}, {5100 * time.Microsecond, false}} {
		r := newHotRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 1)
		r.redis(redisop.Drop, redisop.Done)
		r.pass(tt.pause)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 2)
		r.collect()
		if lingers := len(r.ops) == 0; lingers != tt.lingers {
			t.Errorf("acquired again after %v, it lingers: %v", tt.pause, lingers)
		}
	}
}

// Shows docs/queue.md: Lingering.
func TestLingeringEndsAfterItsTime(t *testing.T) {
	for _, tt := range []struct {
		configured moment.Span
		want       time.Duration
	}{{moment.Span{}, 5 * time.Millisecond}, {moment.SpanOf(18 * time.Millisecond), 18 * time.Millisecond}} {
		r := newLingeringRig(t, locktable.Config{Contest: contest.Config{Linger: tt.configured}})
		if d := r.untilAsked(time.Second); d < tt.want || d > tt.want+3*time.Millisecond {
			t.Errorf("it lingers for %v, want %v", d, tt.want)
		}
		if op := r.redis(redisop.Drop, redisop.Done); op.HoldID < 2 || op.PassedMS < uint32(tt.want/time.Millisecond) {
			t.Errorf("the drop: %+v", op)
		}
		r.forgotten()
	}
}

// useTwice has session 1 acquire the lock "a" twice, hold it for so long each time, and release it
// the second time. Redis takes so long for each answer.
func useTwice(r *rig, latency, held time.Duration) {
	r.Helper()
	answer := func(kind redisop.OpKind) {
		r.Helper()
		r.collect()
		if len(r.ops) != 1 || r.ops[0].Kind != kind {
			r.Fatalf("operations in flight: %+v, want one of kind %d", r.ops, kind)
		}
		r.ops = nil
		sent := r.now
		r.now += int64(latency)
		r.tokens += 256
		r.tb.Result(r.now, redisop.Result{Kind: kind, Name: "a", Sent: sent, Token: r.tokens})
	}
	r.acquire(1, "a")
	answer(redisop.Take)
	r.now += int64(held)
	r.release(1, r.lastHold())
	answer(redisop.Drop)
	r.acquire(1, "a")
	answer(redisop.Take)
	r.now += int64(held)
	r.release(1, r.lastHold())
	r.collect()
}

// To keep a lock costs others its time; to drop it costs the next client here two operations.
func TestLockLingersForTwoAnswersOfRedisOrAsLongAsItWasHeld(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct{ configured, latency, held, want time.Duration }{
		{20 * ms, 4 * ms, 0, 8 * ms},
		{20 * ms, 4 * ms, 14 * ms, 14 * ms},
		{20 * ms, 4 * ms, 60 * ms, 20 * ms},
		{5 * ms, 4 * ms, 0, 5 * ms},
		{5 * ms, 200 * time.Microsecond, 0, 0},
	} {
		r := newHotRig(t, locktable.Config{Contest: contest.Config{Linger: moment.SpanOf(tt.configured)}})
		useTwice(r, tt.latency, tt.held)
		r.lingers()
		if d := r.untilAsked(time.Second); d < tt.want || d > tt.want+3*ms {
			t.Errorf("answers after %v, held for %v: it lingers for %v, want %v", tt.latency, tt.held, d, tt.want)
		}
	}
}

// A Redis, or a host, that stood still for a moment is not a slow one.
func TestOneSlowAnswerOfRedisDoesNotMakeLocksLinger(t *testing.T) {
	r := newHotRig(t, locktable.Config{Contest: contest.Config{Linger: moment.SpanOf(20 * time.Millisecond)}})
	useTwice(r, 200*time.Microsecond, 0)
	r.acquire(1, "a")
	hold := r.lastHold()
	r.acquire(1, "b")
	r.collect()
	r.ops = nil
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "b", Sent: r.now - int64(400*time.Millisecond), Token: 1})
	r.release(1, hold)
	if d := r.untilAsked(time.Second); d > 3*time.Millisecond {
		t.Errorf("it lingers for %v", d)
	}
}

func TestNoLingerIsNever(t *testing.T) {
	r := newHotRig(t, locktable.Config{Contest: contest.Config{Linger: moment.SpanOf(0)}})
	for hold := uint64(1); hold < 4; hold++ {
		r.acquire(1, "a")
		if op := r.redis(redisop.Take, redisop.Done); op.Reserve != 1 {
			t.Errorf("the take: %+v", op)
		}
		r.release(1, hold)
		r.redis(redisop.Drop, redisop.Done)
	}
}

// Whatever says that the lock must not linger has it dropped at once.
//
// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
// Shows docs/queue.md: Lingering.
func TestLingeringEnds(t *testing.T) {
	for says, end := range map[string]func(r *rig){
		"another sidecar waits": func(r *rig) { r.recall("a") },
		"a client waits for its release": func(r *rig) {
			r.tb.Confirm(r.now, 2, protocol.Confirm{ID: 7, Name: "a"})
		},
		"the sidecar stops": func(r *rig) { r.tb.DropWaiters(r.now) },
		"Redis may have lost its data": func(r *rig) {
			r.tb.Down(r.now, 0, "gone")
			r.quiet()
			r.tb.Up(r.now, 0, true, true)
		},
		"Redis was away for longer": func(r *rig) {
			r.tb.Down(r.now, 0, "gone")
			r.pass(10 * time.Millisecond)
			r.quiet()
			r.tb.Up(r.now, 0, false, true)
		},
		"the sidecar has its channel no more": func(r *rig) {
			r.tb.Down(r.now, 0, "gone")
			r.tb.Up(r.now, 0, false, false)
		},
		"a ticket that was left behind got the lock": func(r *rig) { r.transfer(1, 900) },
	} {
		t.Run(says, func(t *testing.T) {
			r := newLingeringRig(t, locktable.Config{})
			end(r)
			if op := r.redis(redisop.Drop, redisop.Done); op.LeaseMS != 30_000 {
				t.Errorf("the drop: %+v", op)
			}
			r.collect()
			if len(r.log) > 1 || len(r.log) == 1 && r.log[0] != "s2 confirmed 7" {
				t.Errorf("effects: %q", r.log)
			}
			r.log = nil
			r.forgotten()

			// No token from before is granted.
			if says == "the sidecar stops" {
				return
			}
			r.acquire(1, "a")
			r.tokens = 5000
			op := r.redis(redisop.Take, redisop.Done)
			r.want(fmt.Sprintf("s1 granted hold=%d token=5001 count=1", op.HoldID))
		})
	}
}

// A recall comes while the lock is held: it does not linger afterwards.
func TestRecalledLockDoesNotLinger(t *testing.T) {
	r := newHotRig(t, locktable.Config{})
	hold := warmUp(r)
	r.recall("a")
	r.release(1, hold)
	r.answer(redisop.Drop, redisop.Result{Passed: true, Waiting: 1})
	r.forgotten()
}

// The recall may have been lost. The Take returns how many wait.
func TestLockThatSidecarsWaitForDoesNotLinger(t *testing.T) {
	r := newHotRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.redis(redisop.Drop, redisop.Done)
	r.acquire(1, "a")
	r.answer(redisop.Take, redisop.Result{Token: 300, Waiting: 1})
	r.release(1, 2)
	r.redis(redisop.Drop, redisop.Done)
}

// Another host that took the lock in between is found by the take.
//
// Shows docs/queue.md: Lingering.
func TestLockThatAnotherHostHadInBetweenIsNotHot(t *testing.T) {
	r := newHotRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.redis(redisop.Drop, redisop.Done)
	r.acquire(1, "a")
	if op := r.queued(1); op.Reserve != 256 {
		t.Fatalf("the take: %+v", op)
	}
	r.transfer(2, 32)
	r.release(1, 2)
	r.redis(redisop.Drop, redisop.Done)
}

// A program that is subscribed waits for the message of a release.
//
// Shows docs/queue.md: Lingering.
func TestLockWithSubscribersDoesNotLinger(t *testing.T) {
	for _, listeners := range []int32{1, -1} {
		r := newHotRig(t, locktable.Config{})
		r.others = listeners
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 1)
		r.redis(redisop.Drop, redisop.Done)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 2)
		r.redis(redisop.Drop, redisop.Done)
	}
}

// While a hot lock is held or lingers, Redis gets the number of its hold each 50 ms, and returns
// whether a program has subscribed since.
//
// Shows docs/queue.md: Faults.
func TestHotLockIsSyncedEach50MS(t *testing.T) {
	r := newHotRig(t, locktable.Config{Contest: contest.Config{QuietTime: time.Hour}})
	hold := warmUp(r)
	synced := r.now
	for range 3 {
		for r.collect(); len(r.ops) == 0; r.collect() {
			r.release(1, hold)
			r.acquire(1, "a")
			hold = r.lastHold()
			r.pass(2 * time.Millisecond)
			if r.now-synced > int64(time.Second) {
				t.Fatal("no operation is sent for a second")
			}
		}
		if d := time.Duration(r.now - synced); d < 50*time.Millisecond || d > 54*time.Millisecond {
			t.Errorf("Redis gets the number of the hold after %v", d)
		}
		if op := r.redis(redisop.Take, redisop.Done); op.HoldID > hold || op.HoldID < hold-1 || !op.Has(redisop.RequireExisting) {
			t.Errorf("%+v for hold %d", op, hold)
		}
		synced = r.now
	}
	for r.collect(); len(r.ops) == 0; r.collect() {
		r.release(1, hold)
		r.acquire(1, "a")
		hold = r.lastHold()
		r.pass(2 * time.Millisecond)
	}
	r.others = 1
	r.redis(redisop.Take, redisop.Done)
	r.release(1, hold)
	r.redis(redisop.Drop, redisop.Done)
}

func lastToken(r *rig) uint64 {
	row, _ := r.tb.Info(r.now, "a")
	return row.Token
}

// A program deletes the key of a lock that lingers, and acquires it. Local grants go on for 50 ms and
// two ticks after the last operation that Redis answered, and no longer than until the next one is
// answered. Their tokens were drawn before, so the program's is larger than all of them, and those
// that are drawn after the loss are larger still.
//
// Shows docs/guarantees.md: FLUSHALL, a deleted key, `forceUnlock` of a Redisson program.
func TestKeyOfALingeringLockThatIsDeletedIsNoticedWithin50MS(t *testing.T) {
	r := newLingeringRig(t, locktable.Config{Contest: contest.Config{QuietTime: time.Hour}})
	synced, taken := r.now, r.tokens+1 // the program's token
	r.tokens = taken
	for r.collect(); len(r.ops) == 0; r.collect() {
		r.log = nil
		r.acquire(1, "a")
		hold := r.lastHold()
		if token := lastToken(r); token >= taken {
			t.Errorf("a grant without an operation has the token %d, and another owner has %d", token, taken)
		}
		r.pass(2 * time.Millisecond)
		if r.collect(); len(r.ops) == 0 {
			r.release(1, hold)
		}
		if d := time.Duration(r.now - synced); d > 54*time.Millisecond {
			t.Fatalf("no operation is sent for %v", d)
		}
	}
	r.log = nil
	hold := r.lastHold()
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.HeldByOther, Field: "thief:1", TTLMS: 20_000})
	r.want("s1 lost hold=" + itoa(hold) + " stolen")
	r.quiet()
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	if r.collect(); lastToken(r) <= taken {
		t.Errorf("the token after the loss is %d, and another owner had %d", lastToken(r), taken)
	}
}

// If the tokens ended, an acquire would wait for a round trip.
func TestTokensOfAHotLockAreReservedBeforeTheLast(t *testing.T) {
	r := newHotRig(t, locktable.Config{})
	hold := warmUp(r) // with the first of 256
	granted := 1
	for r.collect(); len(r.ops) == 0; r.collect() {
		r.release(1, hold)
		r.acquire(1, "a")
		hold = r.lastHold()
		if granted++; granted > 256 {
			t.Fatal("no tokens are reserved")
		}
	}
	if granted != 193 {
		t.Errorf("tokens are reserved when %d are left", 256-granted)
	}
	// The holds go on while the operation is in flight.
	for range 40 {
		r.release(1, hold)
		r.acquire(1, "a")
		hold = r.lastHold()
	}
	if len(r.ops) != 1 || r.ops[0].Reserve != 256 || !r.ops[0].Has(redisop.RequireExisting) {
		t.Fatalf("tokens are reserved by %+v", r.ops)
	}
	r.log = nil
	r.tokens = 10_000
	r.redis(redisop.Take, redisop.Done)
	r.release(1, hold)
	r.acquire(1, "a")
	r.want("s1 released count=0", fmt.Sprintf("s1 granted hold=%d token=10001 count=1", r.lastHold()))
}

// Redis may be short of memory. The lock is then used like any other.
func TestHotLockWhoseTokensCannotBeReservedIsDropped(t *testing.T) {
	for _, outcome := range []redisop.Outcome{redisop.Refused, redisop.Retryable} {
		r := newHotRig(t, locktable.Config{})
		hold := warmUp(r)
		for r.collect(); len(r.ops) == 0; r.collect() {
			r.release(1, hold)
			r.acquire(1, "a")
			hold = r.lastHold()
		}
		r.redis(redisop.Take, outcome)
		r.quiet()
		r.release(1, hold)
		r.redis(redisop.Drop, redisop.Done)
	}
}

// useUntilDropped acquires and releases a lock that lingers until the table drops it, and returns
// how long that took.
func (r *rig) useUntilDropped(hold uint64) time.Duration {
	r.Helper()
	begin := r.now
	for {
		r.pass(5 * time.Millisecond)
		r.answerAll()
		if r.release(1, hold); len(r.ops) > 0 && r.ops[0].Kind == redisop.Drop {
			return time.Duration(r.now - begin)
		}
		r.answerAll()
		r.pass(2 * time.Millisecond)
		r.acquire(1, "a")
		if hold = r.lastHold(); r.now-begin > int64(time.Second) {
			r.Fatal("it lingers for a second without a free moment")
		}
	}
}

// While a program is remembered that had the lock without being subscribed, it may poll, and the
// lock is free more often. The table remembers it although it has forgotten the lock.
//
// Shows docs/queue.md: Free moments.
func TestLockThatAProgramMayPollIsLeftFreeMoreOften(t *testing.T) {
	r := newHotRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.refusedTake(0, redisop.RecallMissed, 20_000)
	r.cancel(1, id)
	r.answerAll()
	r.pass(11 * time.Second)
	r.answerAll()
	r.forgotten()
	r.log = nil
	for _, want := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond} {
		if took := r.useUntilDropped(warmUp(r)); took < want || took > want+5*time.Millisecond {
			t.Errorf("the lock is dropped after %v, want %v", took, want)
		}
		if op := r.redis(redisop.Drop, redisop.Done); op.PassedMS < 100 {
			t.Errorf("Redis may pass it on: %+v", op)
		}
		r.pass(time.Minute) // and the program is forgotten
		r.answerAll()
		r.log = nil
	}
}

// A lock that is left free is looked at in that time, which takes it from no program. A
// program that has it then may poll it: it is not looked for again.
//
// Shows docs/queue.md: Free moments.
func TestLockThatIsLeftFreeIsLookedAt(t *testing.T) {
	const pause = 4 * time.Millisecond
	r := newHotRig(t, locktable.Config{})
	freed := func() (after time.Duration) {
		r.Helper()
		r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 4})
		return r.untilAsked(time.Second)
	}
	// Redis is near, but not so near that the round trip is not known.
	answer := func(res redisop.Result) redisop.Op {
		r.Helper()
		return r.answerAfter(200*time.Microsecond, res)
	}
	held := func(recall redisop.Recall) redisop.Result {
		return redisop.Result{Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 20_000, IsQueued: true, Ticket: 1, Recall: recall}
	}
	r.acquire(1, "a")
	answer(held(redisop.RecallReceived))
	after := freed()
	begin := r.now
	for looks := 0; ; looks++ {
		if r.now-begin >= int64(pause-after) {
			if op := answer(held(redisop.RecallReceived)); looks == 0 || r.now-begin > int64(pause-after+3*time.Millisecond) || op.Has(redisop.RequireExisting) {
				t.Errorf("after %d looks: %+v", looks, op)
			}
			break
		}
		if op := answer(redisop.Result{Outcome: redisop.KeyMissing}); !op.Has(redisop.RequireExisting) || op.Ticket != 1 {
			t.Errorf("in the pause: %+v", op)
		}
		r.untilAsked(time.Second)
	}
	if after, op := freed(), answer(held(redisop.RecallMissed)); after >= pause || !op.Has(redisop.RequireExisting) {
		t.Errorf("after %v: %+v", after, op)
	}
	if after, op := freed(), answer(held(redisop.RecallMissed)); after < pause || op.Has(redisop.RequireExisting) {
		t.Errorf("a program was met, and after %v: %+v", after, op)
	}
}

// Clients that are subscribed are known. A look that finds one of them would only end the moment,
// which is for all of them.
//
// Shows docs/queue.md: Free moments.
func TestLockOfSubscribersIsNotLookedAt(t *testing.T) {
	for _, tt := range []struct {
		others int32
		looks  bool
	}{{0, true}, {1, false}, {-1, true}} {
		r := newHotRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.answerAfter(200*time.Microsecond, redisop.Result{
			Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 20_000, IsQueued: true, Ticket: 1,
			Recall: redisop.RecallReceived, Listeners: listeners(tt.others),
		})
		r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 10})
		after := r.untilAsked(time.Second)
		if looks := after < 10*time.Millisecond; looks != tt.looks {
			t.Errorf("%d other subscribers: a lock that is left free for 10 ms is asked for after %v", tt.others, after)
		}
	}
}

// A client that polls is not known to wait. So the lock is free for a moment now and then.
//
// Shows docs/queue.md: Free moments.
func TestLockThatLingersIsLeftFreeNowAndThen(t *testing.T) {
	for _, late := range []bool{false, true} {
		r := newHotRig(t, locktable.Config{})
		hold := warmUp(r)
		if d := r.useUntilDropped(hold); d < 100*time.Millisecond || d > 105*time.Millisecond {
			t.Errorf("the lock is dropped after %v", d)
		}
		if !late {
			r.acquire(1, "a") // before Redis has executed the drop
			r.quietBut(1)
		}
		if op := r.redis(redisop.Drop, redisop.Done); op.PassedMS < 100 {
			t.Errorf("the drop: %+v", op)
		}
		r.pass(time.Millisecond)
		if late {
			r.acquire(1, "a")
		}
		r.pass(2 * time.Millisecond)
		r.quiet() // a client that polls each millisecond gets it
		r.pass(3 * time.Millisecond)
		r.redis(redisop.Take, redisop.Done)
	}
}

// The table forgets the lock when the moment is over.
func TestPauseOfALockThatNoClientWantsEnds(t *testing.T) {
	r := newHotRig(t, locktable.Config{})
	hold := warmUp(r)
	r.pass(time.Millisecond)
	r.release(1, hold)
	r.acquire(1, "a")
	r.pass(110 * time.Millisecond)
	r.answerAll()
	r.release(1, r.lastHold())
	r.redis(redisop.Drop, redisop.Done)
	r.pass(10 * time.Millisecond)
	r.forgotten()
	if at, ok := r.tb.Next(); ok {
		t.Errorf("an empty table wants to wake in %v", time.Duration(at-r.now))
	}
}

// It is not renewed while it lingers, so it must not linger until its lease ends.
func TestLockDoesNotLingerUntilItsLeaseEnds(t *testing.T) {
	r := newHotRig(t, locktable.Config{Lease: 600 * time.Millisecond, Contest: contest.Config{Linger: moment.SpanOf(time.Second)}})
	hold := warmUp(r)
	sent := r.now
	r.pass(100 * time.Millisecond)
	r.answerAll()
	sent = max(sent, r.now-int64(100*time.Millisecond))
	r.release(1, hold)
	r.lingers()
	r.untilAsked(time.Second)
	r.redis(redisop.Drop, redisop.Done)
	// valid for 592 ms from the last operation, less a third of the lease
	if d := time.Duration(r.now - sent); d < 390*time.Millisecond || d > 396*time.Millisecond {
		t.Errorf("it lingers until %v after its lease began", d)
	}
}

// A waiter with a longer lease needs an operation, as in a handoff.
func TestLockThatLingersIsTakenForALongerLease(t *testing.T) {
	r := newLingeringRig(t, locktable.Config{})
	r.acquire(1, "a", fixed(10*time.Minute))
	r.want()
	if op := r.redis(redisop.Take, redisop.Done); op.LeaseMS != 600_000 {
		t.Errorf("the take: %+v", op)
	}
	r.want(fmt.Sprintf("s1 granted hold=%d token=%d count=1", r.lastHold(), r.tokens-255))
}

// A hold that ends in another way than by its release is of a lock that is in trouble, or is
// not wanted again.
func TestOnlyAReleasedLockLingers(t *testing.T) {
	for says, end := range map[string]func(r *rig){
		"its client died": func(r *rig) { r.tb.Close(r.now, 1) },
		"it was forced":   func(r *rig) { r.tb.ForceRelease(r.now, 2, protocol.ForceRelease{ID: 1, Name: "a"}) },
	} {
		t.Run(says, func(t *testing.T) {
			r := newHotRig(t, locktable.Config{})
			warmUp(r)
			end(r)
			r.redis(redisop.Drop, redisop.Done)
		})
	}
}

// The successor of a process that dies drops what lingered.
//
// Shows docs/queue.md: Faults.
func TestLockThatLingersIsInTheJournal(t *testing.T) {
	l := newRestartHarness(t)
	l.tb.Up(l.now, 0, false, true)
	l.release(1, warmUp(&l.rig))
	l.lingers()
	hold := l.journal.lastHoldID
	if m := l.journal.snapshot(); len(m.Locks) != 1 || m.Locks[0].MaxHoldID != hold || len(m.Holds) != 0 {
		t.Fatalf("stored while it lingers: %+v", m)
	}
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, true)
	if op := l.redis(redisop.Drop, redisop.Done); op.HoldID != hold {
		t.Errorf("the successor drops %+v", op)
	}
	l.forgotten()

	// A lock of whose holds Redis does not have the last one is renewed for that one.
	l = newRestartHarness(t)
	l.tb.Up(l.now, 0, false, true)
	for h, i := warmUp(&l.rig), 0; i < 5; i++ {
		l.release(1, h)
		l.acquire(1, "a")
		h = l.lastHold()
	}
	l.quiet()
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, true)
	if op := l.redis(redisop.Renew, redisop.Done); op.HoldID != l.lastHold() {
		t.Errorf("the successor renews %+v", op)
	}
}

// Many locks may linger at a time, and none is lost sight of.
func TestManyLocksLinger(t *testing.T) {
	r := newHotRig(t, locktable.Config{})
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("lock ", i))
	}
	for range 2 {
		for _, name := range names {
			r.acquire(1, name)
		}
		r.answerAll()
		for _, name := range names {
			row, _ := r.tb.Info(r.now, name)
			r.release(1, row.Hold)
		}
		if len(r.ops) != 0 && len(r.ops) != len(names) {
			t.Fatalf("%d operations", len(r.ops))
		}
		r.answerAll()
	}
	if n := r.tb.PendingReleases(); n != len(names) {
		t.Fatalf("%d locks linger", n)
	}
	r.pass(8 * time.Millisecond)
	r.collect()
	dropped := 0
	for _, op := range r.ops {
		dropped += btoi(op.Kind == redisop.Drop && slices.Contains(names, op.Name))
	}
	if dropped != len(names) {
		t.Errorf("%d locks of %d are dropped", dropped, len(names))
	}
}

// The result of the operation in flight is of a hold that has ended: the lock lingers for no time
// in which its next operation waits for that.
func TestLockDoesNotLingerWhileAnOperationIsInFlight(t *testing.T) {
	r := newHotRig(t, locktable.Config{Contest: contest.Config{QuietTime: time.Hour}})
	hold := warmUp(r)
	for r.collect(); len(r.ops) == 0; r.collect() {
		r.release(1, hold)
		r.acquire(1, "a")
		hold = r.lastHold()
	}
	r.release(1, hold)
	r.redis(redisop.Take, redisop.Done) // which reserves tokens
	r.redis(redisop.Drop, redisop.Done)
	r.forgotten()
}

// A lock without a token lingers for nothing: the next acquire needs an operation.
func TestLockWithoutATokenDoesNotLinger(t *testing.T) {
	r := newHotRig(t, locktable.Config{Contest: contest.Config{QuietTime: time.Hour}})
	hold := warmUp(r) // with the first of 256 tokens
	for range 255 {
		r.release(1, hold)
		r.acquire(1, "a")
		hold = r.lastHold()
	}
	r.redis(redisop.Take, redisop.NotSent)
	r.release(1, hold)
	if row, ok := r.tb.Info(r.now, "a"); !ok || row.State == protocol.StateLingering {
		t.Errorf("the lock lingers: %+v", row)
	}
}

// Another host had the lock in between, and the table has forgotten it since.
func TestForgottenLockThatAnotherHostHadIsNotHot(t *testing.T) {
	r := newHotRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.redis(redisop.Drop, redisop.Done)
	r.forgotten()
	r.acquire(1, "a", wait(0))
	r.refusedTake(noTicket, redisop.RecallReceived, 20_000)
	r.pass(3 * time.Millisecond)
	r.acquire(1, "a", wait(0))
	if op := r.redis(redisop.Take, redisop.Done); op.Reserve == 256 {
		t.Errorf("the take: %+v", op)
	}
}
