package locktable_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// rig is one table whose Redis the test plays: it answers each operation when
// the test says so, and notes every other effect as a line.
type rig struct {
	*testing.T
	tb     *connectedTable
	now    int64
	ops    []redisop.Op // in flight
	log    []string
	msg    string // of the last refusal
	tokens uint64
	others int32  // listeners on every channel
	holder string // what refusedTake finds; "": another owner
	ids    uint64
}

const (
	lease   = 30 * time.Second
	renewed = lease/3 + lease/20 // a lock is renewed by this time after the last renewal
)

func newRig(t *testing.T) *rig { return newRigOf(t, locktable.Config{}) }

func newRigOf(t *testing.T, cfg locktable.Config) *rig {
	r := &rig{T: t, now: int64(time.Hour)}
	r.tb = connect(newTable(cfg, r.now))
	r.tb.Up(r.now, 0, false, false)
	for s := range locktable.SessionID(4) {
		r.tb.Open(r.now, s+1, locktable.Peer{PID: int64(100 + s), Cmd: fmt.Sprintf("worker-%d", s+1)})
	}
	return r
}

// newTable returns a table that draws few tokens at one time, so that those in a test are small.
func newTable(cfg locktable.Config, now int64) *locktable.Table {
	if cfg.Tokens == 0 {
		cfg.Tokens = 64
	}
	return locktable.New(cfg, now)
}

// connectedTable is a table whose results and messages come over one connection, to the server
// that makes them.
type connectedTable struct {
	*locktable.Table
	conn redisop.Conn
}

func connect(tb *locktable.Table) *connectedTable {
	return &connectedTable{tb, redisop.NewConn(1)}
}

func (t *connectedTable) Result(now int64, r redisop.Result) {
	r.Conn = t.conn
	t.Table.Result(now, r)
}

func (t *connectedTable) Message(now int64, m redisop.Message) {
	m.Conn = t.conn
	t.Table.Message(now, m)
}

// collect takes the effects since the last input.
func (r *rig) collect() {
	for _, e := range r.tb.Effects() {
		switch e.Kind {
		case locktable.Redis:
			r.ops = append(r.ops, e.Op)
		case locktable.Granted:
			r.log = append(r.log, fmt.Sprintf("s%d granted hold=%d token=%d count=%d", e.Session, e.Hold, e.Token, e.Count))
		case locktable.Refusal:
			r.log = append(r.log, fmt.Sprintf("s%d refused %s", e.Session, e.Code))
			r.msg = e.Msg
		case locktable.Released:
			r.log = append(r.log, fmt.Sprintf("s%d released count=%d", e.Session, e.Count))
		case locktable.Lost:
			r.log = append(r.log, fmt.Sprintf("s%d lost hold=%d %s", e.Session, e.Hold, e.Reason))
		case locktable.CutShort:
			r.log = append(r.log, fmt.Sprintf("s%d cut short hold=%d %s %s", e.Session, e.Hold, e.Name, e.Reason))
		case locktable.KeepLost:
			r.log = append(r.log, fmt.Sprintf("keep of hold=%d lost: %s", e.Hold, e.Reason))
		case locktable.Lease:
			r.log = append(r.log, fmt.Sprintf("s%d lease +%v", e.Session, time.Duration(e.Deadline-r.now).Round(time.Second)))
		case locktable.Canceled:
			r.log = append(r.log, fmt.Sprintf("s%d canceled=%v", e.Session, e.WasWaiting))
		case locktable.Claimed:
			r.log = append(r.log, fmt.Sprintf("s%d claimed last=%v", e.Session, e.IsLast))
		case locktable.Confirmed:
			r.log = append(r.log, fmt.Sprintf("s%d confirmed %d", e.Session, e.ID))
		case locktable.Forced:
			r.log = append(r.log, fmt.Sprintf("s%d forced hold=%d", e.Session, e.Hold))
		case locktable.Subscribe:
			r.log = append(r.log, "subscribe "+e.Name)
		case locktable.Unsubscribe:
			r.log = append(r.log, "unsubscribe "+e.Name)
		}
	}
}

// want compares what happened since the last want.
func (r *rig) want(lines ...string) {
	r.Helper()
	r.collect()
	if got, want := strings.Join(r.log, "\n"), strings.Join(lines, "\n"); got != want {
		r.Fatalf("got:\n%s\n\nwant:\n%s", got, want)
	}
	r.log = nil
}

// redis checks the only operation in flight and answers it.
func (r *rig) redis(kind redisop.OpKind, outcome redisop.Outcome) redisop.Op {
	r.Helper()
	r.collect()
	if len(r.ops) != 1 || r.ops[0].Kind != kind {
		r.Fatalf("operations in flight: %+v, want one of kind %d", r.ops, kind)
	}
	op := r.ops[0]
	r.ops = nil
	res := redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: outcome, Sent: r.now, Listeners: listeners(r.others), Msg: "Redis is unwell"}
	switch {
	case outcome == redisop.Done && op.Kind == redisop.Take:
		r.tokens += uint64(op.Reserve)
		res.Token = r.tokens
	case outcome == redisop.HeldByOther:
		res.Field, res.TTLMS = "another:1", 20_000
	}
	r.tb.Result(r.now, withMode(&op, res))
	return op
}

func (r *rig) quiet() {
	r.Helper()
	r.collect()
	if len(r.ops) != 0 {
		r.Fatalf("operations in flight: %+v, want none", r.ops)
	}
}

func (r *rig) pass(d time.Duration) {
	end := r.now + int64(d)
	for {
		at, ok := r.tb.Next()
		if r.tb.Busy() {
			at, ok = r.now, true
		}
		if !ok || at > end {
			break
		}
		r.now = max(r.now, at)
		r.tb.Advance(r.now)
		r.tb.Work(r.now)
		r.collect()
	}
	r.now = end
	for isDue := true; isDue; {
		r.tb.Advance(r.now)
		r.tb.Work(r.now)
		at, ok := r.tb.Next()
		isDue = ok && at <= r.now || r.tb.Busy()
	}
}

type opt func(*protocol.Acquire)

func owner(n uint64) opt        { return func(a *protocol.Acquire) { a.Owner = n } }
func wait(d time.Duration) opt  { return func(a *protocol.Acquire) { a.WaitMS = d.Milliseconds() } }
func fixed(d time.Duration) opt { return func(a *protocol.Acquire) { a.LeaseMS = d.Milliseconds() } }
func maxHold(d time.Duration) opt {
	return func(a *protocol.Acquire) { a.MaxHoldMS = d.Milliseconds() }
}
func crash(d time.Duration) opt {
	return func(a *protocol.Acquire) { a.CrashDelayMS = d.Milliseconds() }
}
func notReentrant(a *protocol.Acquire) { a.NotReentrant = true }

func (r *rig) acquire(s locktable.SessionID, name string, opts ...opt) uint64 {
	r.ids++
	a := protocol.Acquire{ID: r.ids, Name: name, WaitMS: protocol.Forever}
	for _, o := range opts {
		o(&a)
	}
	r.tb.Acquire(r.now, s, a)
	r.collect()
	return a.ID
}

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

func (r *rig) release(s locktable.SessionID, hold uint64) {
	r.ids++
	r.tb.Release(r.now, s, protocol.Release{ID: r.ids, Hold: hold})
	r.collect()
}

func TestAFreeLockIsTakenAndDropped(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	if op := r.redis(redisop.Take, redisop.Done); op.HoldID != 1 || op.Count != 1 || op.LeaseMS != 30_000 || op.Reserve != 1 || op.Has(redisop.RequireExisting) {
		t.Fatalf("take: %+v", op)
	}
	r.want("s1 granted hold=1 token=1 count=1")
	r.release(1, 1)
	r.want("s1 released count=0")
	r.redis(redisop.Drop, redisop.Done)
	r.quiet()
	if _, ok := r.tb.Info(r.now, "a"); ok {
		t.Fatal("the table still knows the lock")
	}
	if at, ok := r.tb.Next(); ok {
		t.Fatalf("an empty table wants to wake in %v", time.Duration(at-r.now))
	}
}

// In one round trip, not two.
func TestAnAcquireDoesNotWaitForTheReleaseBeforeIt(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.acquire(2, "a")
	r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0")
	drop, take := r.two()
	if drop.HoldID != 1 || take.HoldID != 2 || take.Reserve != 1 || !take.Has(redisop.AfterPendingDrop) {
		t.Fatalf("%+v, %+v", drop, take)
	}
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now})
	r.want()
	r.tokens++
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "a", Sent: r.now, Token: 2})
	r.want("s2 granted hold=2 token=2 count=1")
	r.quiet()
	r.release(2, 2)
	r.redis(redisop.Drop, redisop.Done)
	if _, ok := r.tb.Info(r.now, "a"); ok {
		t.Error("the table still knows the lock")
	}
}

// two takes a Drop and the Take behind it.
func (r *rig) two() (drop, take redisop.Op) {
	r.Helper()
	r.collect()
	if len(r.ops) != 2 || r.ops[0].Kind != redisop.Drop || r.ops[1].Kind != redisop.Take {
		r.Fatalf("operations in flight: %+v, want a drop and a take behind it", r.ops)
	}
	drop, take = r.ops[0], r.ops[1]
	r.ops = nil
	return drop, take
}

// The answers may come in any order, and the release may have failed: the take says
// how things are. Nothing else is asked before both are answered.
func TestTakePipelinedAfterADropHasItsOwnResult(t *testing.T) {
	for _, first := range []redisop.Outcome{redisop.Done, redisop.NotSent, redisop.Unknown, redisop.Retryable, redisop.Refused} {
		for _, late := range []bool{false, true} {
			r := newRig(t)
			r.acquire(1, "a")
			r.redis(redisop.Take, redisop.Done)
			r.release(1, 1)
			r.acquire(2, "a")
			r.two()
			r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0")
			dropped := func() {
				r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Outcome: first, Sent: r.now, Msg: "unwell"})
			}
			if !late {
				dropped()
			}
			r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "a", Sent: r.now, Token: 2})
			r.want("s2 granted hold=2 token=2 count=1")
			r.release(2, 2)
			r.want("s2 released count=0")
			if late {
				r.quiet()
				dropped()
			}
			if op := r.redis(redisop.Drop, redisop.Done); op.HoldID != 2 {
				t.Errorf("%+v", op)
			}
			r.want()
			r.quiet()
			if _, ok := r.tb.Info(r.now, "a"); ok {
				t.Error("the table still knows the lock")
			}
		}
	}
}

// Who waits elsewhere gets a moment in which the lock is free; and who cannot listen
// gets one now and then.
func TestALockIsNotTakenBackFromUnderOthers(t *testing.T) {
	r := newRig(t)
	r.others = 1
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.acquire(2, "a")
	r.redis(redisop.Drop, redisop.Done)
	r.pass(30 * time.Millisecond)
	r.redis(redisop.Take, redisop.HeldByOther)

	r = newRig(t)
	hold := uint64(1)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	for begin := r.now; ; r.pass(time.Millisecond) {
		r.release(1, hold)
		r.acquire(1, "a")
		r.collect()
		if len(r.ops) == 1 {
			r.redis(redisop.Drop, redisop.Done)
			r.redis(redisop.Take, redisop.Done)
			if d := time.Duration(r.now - begin); d != 100*time.Millisecond {
				t.Errorf("taken back for %v in a row, want 100 ms", d)
			}
			break
		}
		_, take := r.two()
		hold = take.HoldID
		r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now})
		r.tokens++
		r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "a", Sent: r.now, Token: r.tokens})
	}
}

func TestReentryIsAnsweredAtOnceAndMirrored(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", owner(7))
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "a", owner(7))
	r.want("s1 granted hold=1 token=1 count=1", "s1 granted hold=1 token=1 count=2")
	r.acquire(1, "a", owner(7))
	r.want("s1 granted hold=1 token=1 count=3")
	if op := r.redis(redisop.Renew, redisop.Done); op.Count != 2 {
		t.Fatalf("first mirror: %+v", op)
	}
	if op := r.redis(redisop.Renew, redisop.Done); op.Count != 3 {
		t.Fatalf("second mirror: %+v", op)
	}
	r.quiet()
	r.acquire(2, "a", owner(7), wait(0))
	r.want("s2 refused timeout") // another session's owner 7 is another owner
	r.release(1, 1)
	r.release(1, 1)
	r.want("s1 released count=2", "s1 released count=1")
	if op := r.redis(redisop.Renew, redisop.Done); op.Count != 2 {
		t.Fatalf("mirror: %+v", op)
	}
	r.redis(redisop.Renew, redisop.Done)
	r.release(1, 1)
	r.want("s1 released count=0")
	r.redis(redisop.Drop, redisop.Done)
}

func TestAnAnonymousOwnerWaitsForItself(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "a", wait(time.Second))
	r.redis(redisop.Take, redisop.Done) // draws tokens for the handoff to come
	r.want("s1 granted hold=1 token=1 count=1")
	r.pass(2 * time.Second)
	r.want("subscribe a", "s1 refused timeout")
}

func TestHandoffIsAnsweredBeforeTheOperationIsSent(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.acquire(3, "a")
	if op := r.redis(redisop.Take, redisop.Done); !op.Has(redisop.RequireExisting) || op.HoldID != 1 || op.Reserve != 64 {
		t.Fatalf("drawing tokens for a queue: %+v", op)
	}
	r.want("s1 granted hold=1 token=1 count=1")
	r.release(1, 1)
	r.want("s1 released count=0", "s2 granted hold=2 token=2 count=1")
	r.release(2, 2)
	r.want("s2 released count=0", "s3 granted hold=3 token=3 count=1")
	r.quiet() // Redis is told of the last of them, a moment later
	r.pass(20 * time.Millisecond)
	if op := r.redis(redisop.Take, redisop.Done); op.HoldID != 3 || !op.Has(redisop.RequireExisting) || op.Reserve != 0 {
		t.Fatalf("mirror: %+v", op)
	}
	r.quiet()
	r.release(3, 3)
	r.want("s3 released count=0")
	if op := r.redis(redisop.Drop, redisop.Done); op.HoldID != 3 {
		t.Fatalf("drop: %+v", op)
	}
}

func TestOnlyTheHeadOfTheQueueAsksRedis(t *testing.T) {
	r := newRig(t)
	for s := range locktable.SessionID(4) {
		r.acquire(s+1, "a")
	}
	r.redis(redisop.Take, redisop.HeldByOther)
	r.want("subscribe a")
	r.quiet()
	r.tb.Subscribed(r.now, 0, "a") // something may have been published before
	r.redis(redisop.Take, redisop.HeldByOther)
	r.tb.Message(r.now, redisop.Message{Name: "a"})
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=3 token=1 count=1")
}

func TestAMessageDuringATakeIsNotForgotten(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.tb.Subscribed(r.now, 0, "a")
	r.tb.Message(r.now, redisop.Message{Name: "a"}) // the take that is in flight may have run before
	r.redis(redisop.Take, redisop.HeldByOther)
	r.redis(redisop.Take, redisop.Done)
	r.want("subscribe a", "s1 granted hold=3 token=1 count=1")
}

func TestARemoteLockIsAskedForAgainWhenItsTTLEnds(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.tb.Subscribed(r.now, 0, "a")
	r.redis(redisop.Take, redisop.HeldByOther) // 20 s to live
	r.pass(4900 * time.Millisecond)
	r.quiet()
	r.pass(200 * time.Millisecond) // but never silent for more than Poll
	r.redis(redisop.Take, redisop.HeldByOther)
	r.want("subscribe a")
	r.pass(5100 * time.Millisecond)
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=4 token=1 count=1")
	r.pass(9 * time.Second)
	r.want()
	r.pass(2 * time.Second)
	r.redis(redisop.Renew, redisop.Done)
	r.want("unsubscribe a", "s1 lease +29s")
}

func TestATryAsksOnceAndDoesNotWait(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", wait(0))
	r.redis(redisop.Take, redisop.HeldByOther)
	r.want("s1 refused timeout")
	r.quiet()
	r.acquire(1, "a", wait(0))
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=2 token=1 count=1")
	r.acquire(2, "a", wait(0))
	r.want("s2 refused timeout")
}

func TestTheWatchdogRenewsAtAThirdOfTheLease(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(lease/3 - time.Millisecond)
	r.quiet()
	r.pass(renewed - lease/3 + 10*time.Millisecond) // and a tick
	r.redis(redisop.Renew, redisop.Done)
	r.collect()
	r.want("s1 granted hold=1 token=1 count=1", "s1 lease +28s")
}

func TestAFixedLeaseIsNotRenewedAndEnds(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", fixed(2*time.Second))
	if op := r.redis(redisop.Take, redisop.Done); op.LeaseMS != 2000 {
		t.Fatalf("take: %+v", op)
	}
	for range 2 {
		r.pass(720 * time.Millisecond)
		r.redis(redisop.Check, redisop.Done)
	}
	r.pass(530 * time.Millisecond)
	r.want("s1 granted hold=1 token=1 count=1")
	r.pass(20 * time.Millisecond) // the deadline is 22 ms before the lease's end
	r.want("s1 lost hold=1 expired")
	r.redis(redisop.Drop, redisop.Done) // wakes who waits elsewhere
	r.release(1, 1)
	r.want("s1 refused not_held")
}

func TestALockThatCannotBeRenewedIsLostAtItsDeadline(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(renewed)
	r.redis(redisop.Renew, redisop.Unknown)
	r.tb.Down(r.now, 0, "gone")
	r.want("s1 granted hold=1 token=1 count=1")
	r.redisIsAskedAgain()
	r.acquire(2, "b", wait(0))
	r.acquire(2, "b", wait(time.Second))
	r.pass(2 * time.Second)
	r.want("s2 refused unavailable", "s2 refused unavailable")
	r.pass(17100*time.Millisecond - time.Millisecond)
	r.want("s1 lost hold=1 expired")
	r.tb.Up(r.now, 0, false, false)
	r.redis(redisop.Drop, redisop.Done)
}

func (r *rig) redisIsAskedAgain() {
	r.Helper()
	if len(r.ops) == 1 && r.ops[0].Kind == redisop.Renew {
		r.redis(redisop.Renew, redisop.NotSent)
	}
	r.quiet()
}

func TestADeletedKeyAndAStolenOneAreLost(t *testing.T) {
	for outcome, reason := range map[redisop.Outcome]string{redisop.KeyMissing: "deleted", redisop.HeldByOther: "stolen"} {
		r := newRig(t)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.pass(renewed)
		r.redis(redisop.Renew, outcome)
		r.want("s1 granted hold=1 token=1 count=1", "s1 lost hold=1 "+reason)
		r.quiet() // nothing of ours is there to be dropped
	}
}

func TestAfterDataLossHoldsAreAssertedAgain(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "b")
	r.redis(redisop.Take, redisop.Done)
	r.tb.Down(r.now, 0, "gone")
	r.tb.Up(r.now, 0, true, false)
	r.collect()
	if len(r.ops) != 2 {
		t.Fatalf("asserting: %+v", r.ops)
	}
	for i, outcome := range []redisop.Outcome{redisop.Done, redisop.HeldByOther} {
		op := r.ops[i]
		if op.Kind != redisop.Take || op.Has(redisop.RequireExisting) || op.Reserve != 0 {
			t.Fatalf("asserting: %+v", op)
		}
		r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: outcome, Sent: r.now})
		r.collect()
	}
	r.log = r.log[2:]
	if len(r.log) == 0 || !strings.Contains(r.log[len(r.log)-1], "stolen") {
		t.Fatalf("got %q", r.log)
	}
}

func TestUnneededSubscriptionEndsAfterAFewMessages(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.tb.Subscribed(r.now, 0, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.tb.Message(r.now, redisop.Message{Name: "a"})
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 3)
	r.redis(redisop.Drop, redisop.Done)
	r.want("subscribe a", "s1 granted hold=3 token=1 count=1", "s1 released count=0")
	for range 3 {
		r.tb.Message(r.now, redisop.Message{Name: "a"})
	}
	r.want()
	r.tb.Message(r.now, redisop.Message{Name: "a"})
	r.want("unsubscribe a")
}

// What is due in the same sixtieth of a lease is renewed together, and not early.
//
// Shows docs/renewals.md: When.
func TestRenewalsMeet(t *testing.T) {
	r := newRig(t)
	taken := make(map[string]int64)
	for i := range 200 {
		name := fmt.Sprint("lock:", i)
		r.pass(3 * time.Millisecond)
		r.acquire(1, name)
		r.redis(redisop.Take, redisop.Done)
		taken[name] = r.now
	}
	for renewed := 0; renewed < len(taken); {
		r.pass(10 * time.Millisecond)
		r.collect()
		for _, op := range r.ops {
			if r.now%int64(lease/60) != 0 {
				t.Errorf("%s is renewed alone", op.Name)
			}
			if age := time.Duration(r.now - taken[op.Name]); op.Kind != redisop.Renew || age < lease/3 || age > lease/3+lease/20 {
				t.Errorf("%s: operation %d after %v", op.Name, op.Kind, age)
			}
			renewed++
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now})
		}
		r.ops = nil
	}
}

// The locks of a renewal group that are due together stay together, and not all groups do.
//
// Shows docs/renewals.md: When.
func TestRenewalGroupsStayTogether(t *testing.T) {
	r := newRig(t)
	const groups = 8
	for i := range groups*redisop.RenewalGroupSize - 1 { // hold numbers begin with 1
		r.acquire(1, fmt.Sprint("lock:", i))
		r.redis(redisop.Take, redisop.Done)
	}
	renewedAt := make(map[uint64]int64) // by the group
	r.pass(20 * time.Millisecond)       // the renewals of a cell take some ticks
	for n := 0; n < 4*(groups*redisop.RenewalGroupSize-1); {
		r.pass(lease / 60)
		r.collect()
		due := make(map[uint64]int)
		for _, op := range r.ops {
			due[redisop.RenewalGroup(op.HoldID)]++
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now})
			n++
		}
		for group, locks := range due {
			if want := redisop.RenewalGroupSize; locks != want && (group != 0 || locks != want-1) {
				t.Fatalf("%d locks of group %d are renewed together", locks, group)
			}
			renewedAt[group] = r.now
		}
		r.ops = nil
	}
	moments := make(map[int64]bool)
	for _, at := range renewedAt {
		moments[at] = true
	}
	if len(moments) < groups/2 {
		t.Errorf("after four renewals, %d groups are renewed at %d moments", groups, len(moments))
	}
}

// Thousands of renewals that are due at one moment do not begin in one tick, but all within half a
// cell: a hundred and twentieth of the lease.
//
// Shows docs/renewals.md: When.
func TestManyRenewalsTakeSomeTicks(t *testing.T) {
	const lease, tick, perTick = 3 * time.Second, 2 * time.Millisecond, 512
	for _, locks := range []int{3 * perTick, 60 * perTick} {
		r := newRig(t)
		r.tb = connect(newTable(locktable.Config{Lease: lease}, r.now))
		r.tb.Up(r.now, 0, false, false)
		for s := range locktable.SessionID(4) { // one may not have so many
			r.tb.Open(r.now, s+1, locktable.Peer{})
		}
		for i := range locks {
			r.acquire(locktable.SessionID(1+i%4), fmt.Sprint("lock:", i))
		}
		r.collect()
		for _, op := range r.ops {
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: 1})
		}
		fullTicks, atOnce := 0, 0
		end := r.now + int64(lease/2)
		for n := 0; n < locks; n += len(r.ops) {
			if r.now > end {
				t.Fatalf("%d of %d locks are renewed", n, locks)
			}
			r.ops = nil
			r.pass(tick)
			r.collect()
			for _, op := range r.ops {
				r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now})
			}
			late := time.Duration(r.now) % (lease / 60)
			switch begun := len(r.ops); {
			case begun > 0 && late > lease/120+tick:
				t.Fatalf("of %d locks, %d are renewed %v late", locks, begun, late)
			case begun > perTick && late < lease/120:
				t.Fatalf("of %d locks, %d are renewed in one tick", locks, begun)
			case begun > perTick:
				atOnce++
			case begun == perTick:
				fullTicks++
			}
		}
		if fullTicks == 0 || (atOnce > 0) != (locks > 30*perTick) {
			t.Errorf("of %d locks, %d ticks had %d renewals each, and %d had more", locks, fullTicks, perTick, atOnce)
		}
	}
}

// A renewal that is postponed, because thousands are due, keeps nothing else of its lock back.
func TestPostponedRenewalDoesNotPostponeTheEndOfAHold(t *testing.T) {
	r := newRig(t)
	const locks, end = 60_000, lease/3 + lease/60 + 10*time.Millisecond // soon after the beginning of a cell
	for i := range locks {
		r.acquire(locktable.SessionID(1+i%4), fmt.Sprint("lock:", i), maxHold(end))
	}
	answerAll := func() {
		r.collect()
		for _, op := range r.ops {
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: 1})
		}
		r.ops = nil
	}
	answerAll()
	for start := r.now; r.now < start+int64(end); {
		r.pass(2 * time.Millisecond)
		answerAll()
	}
	r.log = nil
	r.pass(lease / 60)
	r.collect()
	if n := strings.Count(strings.Join(r.log, "\n"), "max_hold"); n != 0 {
		t.Errorf("%d holds end late", n)
	}
	for s := range locktable.SessionID(4) {
		if n := r.tb.Holds(s + 1); n != 0 {
			t.Errorf("session %d has %d holds left", s+1, n)
		}
	}
}

// Locks of a renewal group that were taken at different times are renewed together later.
//
// Shows docs/renewals.md: When.
func TestRenewalGroupsMeet(t *testing.T) {
	r := newRig(t)
	const locks = 100
	renewals := make(map[string]int)
	last := make(map[string]int64)
	for i := range locks {
		name := fmt.Sprint("lock:", i)
		r.acquire(1, name)
		r.redis(redisop.Take, redisop.Done)
		renewals[name] = 0
		r.pass(30 * time.Millisecond)
	}
	// A lock is at most half a period away from its offset, which is 5.2 s, and gets nearer by
	// an eighth of a second in each period, on average.
	const periods = 80
	for done := 0; done < locks; {
		r.pass(10 * time.Millisecond)
		r.collect()
		for _, op := range r.ops {
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now})
			if renewals[op.Name]++; renewals[op.Name] == periods {
				last[op.Name] = r.now
				done++
			}
		}
		r.ops = nil
	}
	var first int64
	for name, at := range last {
		if first == 0 {
			first = at
		}
		if apart := time.Duration(at-first) % (lease/3 + lease/30); apart != 0 {
			t.Fatalf("%s and another lock of its group are renewed %v apart", name, apart)
		}
	}
}

func TestMaxHoldEndsAHold(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", maxHold(time.Second))
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
	r.pass(1010 * time.Millisecond)
	r.want("subscribe a", "s1 lost hold=1 max_hold", "s2 granted hold=2 token=2 count=1")
}

func TestADeadSessionFreesItsLocksAtOnceOrAfterItsCrashDelay(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "b", crash(time.Second))
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "c") // a waiter that vanishes
	r.acquire(2, "a")
	r.collect()
	r.ops = nil
	r.tb.Close(r.now, 1)
	r.want("s1 granted hold=1 token=1 count=1", "s1 granted hold=2 token=2 count=1")
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "a", Outcome: redisop.Done, Sent: r.now, Token: 70})
	r.want("s2 granted hold=4 token=7 count=1")
	row, ok := r.tb.Info(r.now, "b")
	if !ok || !row.Orphan || row.State != protocol.StateHeld {
		t.Fatalf("b after the death of its holder: %+v", row)
	}
	r.ops = nil
	r.pass(1010 * time.Millisecond)
	r.collect()
	if row, _ := r.tb.Info(r.now, "b"); row.State == protocol.StateHeld {
		t.Fatalf("b after its crash delay: %+v", row)
	}
}

func TestADetachedSessionKeepsItsHoldsUnrenewed(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.tb.Suspend(r.now, 1)
	r.pass(29600 * time.Millisecond)
	r.want("s1 granted hold=1 token=1 count=1")
	r.quiet()
	r.pass(200 * time.Millisecond)
	r.want("s1 lost hold=1 expired")
	if r.tb.Holds(1) != 0 {
		t.Fatal("it still holds")
	}
}

func TestWaitCycleIsRefusedWithItsOwners(t *testing.T) {
	r := newRig(t)
	for s, name := range []string{"a", "b", "c"} {
		r.acquire(locktable.SessionID(s+1), name, owner(5))
		r.redis(redisop.Take, redisop.Done)
	}
	r.acquire(1, "b", owner(5))
	r.acquire(2, "c", owner(5))
	r.log = nil
	r.ops = nil
	r.ids++
	r.tb.Acquire(r.now, 3, protocol.Acquire{ID: r.ids, Name: "a", Owner: 5, WaitMS: protocol.Forever})
	effects := r.tb.Effects()
	if len(effects) != 1 || effects[0].Code != protocol.Deadlock || effects[0].Session != 3 {
		t.Fatalf("got %+v", effects)
	}
	want := `waiting would never end: you ask for "a", held by owner 5 of pid 100 (worker-1), who waits for "b", held by owner 5 of pid 101 (worker-2), who waits for "c", which you hold; release it first, or take the two in one order everywhere`
	if effects[0].Msg != want {
		t.Errorf("got  %s\nwant %s", effects[0].Msg, want)
	}
	r.acquire(3, "a", owner(5), wait(0))
	r.want("s3 refused timeout") // a try waits for nobody
	r.acquire(1, "a", owner(5), notReentrant)
	r.want("s1 refused deadlock")

	r.ids++
	r.tb.Acquire(r.now, 1, protocol.Acquire{ID: r.ids, Name: "a", Owner: 5, NotReentrant: true, WaitMS: protocol.Forever})
	want = `waiting would never end: you ask for "a", which you hold; release it first, or acquire it as a re-entrant lock`
	if effects := r.tb.Effects(); len(effects) != 1 || effects[0].Msg != want {
		t.Errorf("got  %+v\nwant %s", effects, want)
	}
}

func TestACancelEndsAWaitOrComesTooLate(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	id := r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.tb.Cancel(r.now, 2, protocol.Cancel{ID: 900, Target: id})
	r.want("s1 granted hold=1 token=1 count=1", "s2 refused canceled", "s2 canceled=true")
	r.tb.Cancel(r.now, 2, protocol.Cancel{ID: 901, Target: id})
	r.want("s2 canceled=false")
}

func TestAnOperatorEndsAHold(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.tb.ForceRelease(r.now, 4, protocol.ForceRelease{ID: 1, Name: "a"})
	r.want("s1 granted hold=1 token=1 count=1", "s1 lost hold=1 forced", "s4 forced hold=1")
	r.redis(redisop.Drop, redisop.Done)
	r.tb.ForceRelease(r.now, 4, protocol.ForceRelease{ID: 2, Name: "a"})
	r.want("s4 refused not_held")
}

func TestAnAmbiguousTakeIsAskedAgainOrDropped(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	id := r.acquire(1, "b")
	r.collect()
	r.ops = nil
	for _, name := range []string{"a", "b"} {
		r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: name, Outcome: redisop.Unknown, Msg: "connection lost"})
		r.collect()
	}
	r.ops = nil // asked again at once; these get no answer either
	for _, name := range []string{"a", "b"} {
		r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: name, Outcome: redisop.NotSent, Msg: "no connection"})
	}
	r.tb.Down(r.now, 0, "gone")
	r.tb.Cancel(r.now, 1, protocol.Cancel{Target: id})
	r.want("s1 refused canceled")
	r.tb.Up(r.now, 0, false, false)
	r.collect()
	kinds := map[string]redisop.OpKind{}
	for _, op := range r.ops {
		kinds[op.Name] = op.Kind
	}
	if kinds["a"] != redisop.Take || kinds["b"] != redisop.Drop {
		t.Fatalf("after the outage: %+v", r.ops)
	}
}

func TestRefusalOfRedisRefusesAllWaiters(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Refused)
	r.want("s1 refused denied", "s2 refused denied")
	r.quiet()
}

func TestEachLimitIsNamedInItsRefusal(t *testing.T) {
	r := newRig(t)
	r.tb = connect(newTable(locktable.Config{MaxLocks: 3, MaxHolds: 2, MaxWaiters: 1}, r.now))
	r.tb.Up(r.now, 0, false, false)
	r.tb.Open(r.now, 1, locktable.Peer{})
	r.tb.Open(r.now, 2, locktable.Peer{})
	r.acquire(1, "a")
	r.acquire(1, "b")
	r.want("s1 refused limit") // one waiter
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "b")
	r.redis(redisop.Take, redisop.Done)
	r.collect()
	r.log = nil
	r.acquire(1, "c")
	r.want("s1 refused limit") // two holds
	r.acquire(2, "c")
	r.redis(redisop.Take, redisop.Done)
	r.collect()
	r.log = nil
	r.acquire(2, "d")
	r.want("s2 refused limit") // three locks
}

// MaxHolds bounds holds, not waits. A session that is full when its turn comes is refused, and
// the next one is served.
func TestMaxHoldsCountsHolds(t *testing.T) {
	r := newRig(t)
	r.tb = connect(newTable(locktable.Config{MaxHolds: 2}, r.now))
	r.tb.Up(r.now, 0, false, false)
	for s := range locktable.SessionID(3) {
		r.tb.Open(r.now, s+1, locktable.Peer{})
	}
	take := func(s locktable.SessionID, name string) {
		r.acquire(s, name)
		r.redis(redisop.Take, redisop.Done)
	}
	take(2, "x")
	r.acquire(1, "x")
	r.acquire(3, "x")
	r.collect()
	r.ops = nil // tokens for those that wait
	r.acquire(1, "x")
	take(1, "a")
	take(1, "b")
	r.want("s2 granted hold=1 token=1 count=1", "s1 granted hold=2 token=2 count=1", "s1 granted hold=3 token=3 count=1")
	r.acquire(1, "c")
	r.refused(1, protocol.Limit, "holds 2 locks")
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "x", Sent: r.now, Token: 100})
	r.release(2, 1)
	r.want("s2 released count=0", "s1 refused limit", "s3 granted hold=4 token=37 count=1")
}

func TestListingMeetsEveryLockThatStays(t *testing.T) {
	r := newRig(t)
	for i := range 100 {
		r.acquire(1, fmt.Sprintf("lock-%03d", i))
		r.redis(redisop.Take, redisop.Done)
	}
	seen := map[string]bool{}
	gone := uint64(0)
	for after := uint64(0); ; {
		room := 7
		after = r.tb.List(r.now, after, func(row protocol.LockRow) bool {
			if room--; room < 0 {
				return false
			}
			seen[row.Name] = true
			return true
		})
		if after == 0 {
			break
		}
		// One goes and one comes between any two pages.
		gone += 3
		r.release(1, gone)
		r.redis(redisop.Drop, redisop.Done)
		r.acquire(1, fmt.Sprintf("new-%d", gone))
		r.redis(redisop.Take, redisop.Done)
	}
	for i := range 100 {
		if name := fmt.Sprintf("lock-%03d", i); !seen[name] {
			if _, still := r.tb.Info(r.now, name); still {
				t.Errorf("%s was there all the time and is not listed", name)
			}
		}
	}
}

func TestAWatchdogHoldThatInheritsALongLeaseIsRenewedInTime(t *testing.T) {
	r := newRig(t)
	gone := r.acquire(1, "a", fixed(10*time.Minute))
	r.acquire(2, "a")
	r.tb.Cancel(r.now, 1, protocol.Cancel{Target: gone})
	if op := r.redis(redisop.Take, redisop.Done); op.LeaseMS != 600_000 {
		t.Fatalf("take: %+v", op)
	}
	r.want("s1 refused canceled", "s2 granted hold=1 token=1 count=1")
	if op := r.redis(redisop.Renew, redisop.Done); op.LeaseMS != 30_000 {
		t.Fatalf("bringing the lease down: %+v", op)
	}
	r.pass(renewed)
	r.redis(redisop.Renew, redisop.Done)
}

// answerFor answers the operation on one lock with Done.
func (r *rig) answerFor(name string) {
	r.Helper()
	r.collect()
	i := slices.IndexFunc(r.ops, func(op redisop.Op) bool { return op.Name == name })
	if i < 0 {
		r.Fatalf("nothing is asked of %q: %+v", name, r.ops)
	}
	op := r.ops[i]
	r.ops = slices.Delete(r.ops, i, i+1)
	r.tokens += uint64(op.Reserve)
	r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: name, Sent: r.now, Token: r.tokens})
	r.collect()
}

// A session was told a deadline, and gets locks that are good for less. One of them is
// renewed, another is not for a while: the first may be believed in for as long as the
// second, not only for as long as it was granted.
func TestLeaseEventMayLowerDeadline(t *testing.T) {
	r := newRig(t)
	answer := r.answerFor
	r.acquire(1, "renewed")
	answer("renewed")
	r.acquire(2, "y", fixed(25*time.Second))
	answer("y")
	r.acquire(2, "z", fixed(28*time.Second))
	answer("z")
	r.pass(renewed)
	answer("renewed")
	answer("y") // a check
	answer("z")
	r.acquire(1, "y")
	answer("y")
	r.acquire(1, "z")
	answer("z")
	r.want("s1 granted hold=1 token=1 count=1", "s2 granted hold=2 token=2 count=1", "s2 granted hold=3 token=3 count=1", "s1 lease +28s")
	r.release(2, 2)
	r.release(2, 3)
	r.want("s2 released count=0", "s1 granted hold=4 token=4 count=1", "s2 released count=0", "s1 granted hold=5 token=68 count=1")
	r.pass(20 * time.Millisecond)
	answer("y")
	r.want("s1 lease +15s")
	r.pass(14 * time.Second) // y was granted until then
	r.want()
	answer("z")
	r.want("s1 lease +14s")
}

func TestARenewalThatMeetsAnEmptyRedisIsNoDeletion(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(renewed)
	r.tb.Down(r.now, 0, "gone")
	r.tb.Up(r.now, 0, true, false) // the renewal that is in flight runs on what came up
	r.redis(redisop.Renew, redisop.KeyMissing)
	r.want("s1 granted hold=1 token=1 count=1")
	if op := r.redis(redisop.Take, redisop.Done); op.Has(redisop.RequireExisting) || op.HoldID != 1 {
		t.Fatalf("asserting: %+v", op)
	}
	r.quiet()
}
