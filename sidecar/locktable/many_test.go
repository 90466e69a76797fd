package locktable_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// shared has a session wait for a hold beside others.
func (r *rig) shared(s locktable.SessionID, name string, opts ...opt) uint64 {
	return r.acquireAs(locktable.Shared, s, name, opts...)
}

// exclusive has a session wait for a hold that excludes the shared ones.
func (r *rig) exclusive(s locktable.SessionID, name string, opts ...opt) uint64 {
	return r.acquireAs(locktable.Exclusive, s, name, opts...)
}

func (r *rig) acquireAs(mode locktable.Mode, s locktable.SessionID, name string, opts ...opt) uint64 {
	r.ids++
	a := protocol.Acquire{ID: r.ids, Name: name, WaitMS: protocol.Forever}
	for _, o := range opts {
		o(&a)
	}
	r.tb.AcquireReadWrite(r.now, s, mode, a)
	r.collect()
	return a.ID
}

// withMode completes the result of an operation that Redis has executed, if that is about a read/write lock that no other host wants.
func withMode(op *redisop.Op, res redisop.Result) redisop.Result {
	if op.Of != redisop.KindReadWrite || res.Outcome != redisop.Done || op.Kind == redisop.Drop {
		return res
	}
	if res.Permits = op.Count; op.Count == 0 {
		res.Permits = uint32(op.Want)
	} else if op.Want != 0 && uint32(op.Want) != op.Count {
		res.Outcome, res.Token, res.Arrived, res.TTLMS = redisop.HeldByOther, 0, 1, 20_000
		res.Queues, res.Ticket, res.IsQueued = op.Times, op.HoldID, op.Times != 0
	}
	return res
}

// reads has sessions 1 to n hold a lock together, under the numbers 1 to n.
func (r *rig) reads(n locktable.SessionID, opts ...opt) {
	r.Helper()
	for s := range n {
		r.shared(s+1, "a", opts...)
		if s == 0 {
			r.redis(redisop.Take, redisop.Done)
		}
		if r.collect(); len(r.ops) > 0 { // for tokens
			r.redis(redisop.Take, redisop.Done)
		}
	}
	r.collect()
	r.log = nil
	r.quiet()
}

// Operators and clients see which holds and waiters are shared.
func TestRowsAndEffectsHaveTheModeOfAHold(t *testing.T) {
	r := newRig(t)
	r.reads(2)
	r.exclusive(3, "a")
	r.shared(4, "a")
	row, _ := r.tb.Info(r.now, "a")
	if row.Kind != "rw" || row.Held != 2 || row.Shared != 2 || !row.Holders[0].Shared || !row.Holders[1].Shared || row.Waiters[0].Shared || !row.Waiters[1].Shared {
		t.Errorf("%+v", row)
	}
	r.collect()
	r.pass(20 * time.Millisecond)
	r.collect()
	modes := make(map[string]bool)
	note := func() {
		for _, e := range r.tb.Effects() {
			switch e.Kind {
			case locktable.Granted, locktable.LongHold, locktable.Lost:
				modes[fmt.Sprintf("%d of %d", e.Kind, e.Hold)] = e.IsShared
			case locktable.Redis:
				r.ops = append(r.ops, e.Op)
			}
		}
	}
	execute := func() {
		for ; len(r.ops) > 0; note() {
			op := r.ops[0]
			r.ops = r.ops[1:]
			r.tokens += uint64(op.Reserve)
			r.tb.Result(r.now, withMode(&op, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: r.tokens}))
		}
	}
	execute()
	for s := range locktable.SessionID(2) {
		r.tb.Release(r.now, s+1, protocol.Release{Hold: uint64(s + 1)})
	}
	note()
	execute()
	r.tb.ForceRelease(r.now, 4, protocol.ForceRelease{ID: 99, Name: "a"})
	note()
	execute()
	want := map[string]bool{
		fmt.Sprintf("%d of 1", locktable.LongHold): true, fmt.Sprintf("%d of 2", locktable.LongHold): true,
		fmt.Sprintf("%d of 4", locktable.Granted): false, fmt.Sprintf("%d of 4", locktable.Lost): false, fmt.Sprintf("%d of 5", locktable.Granted): true,
	}
	if !maps.Equal(modes, want) {
		t.Errorf("%v, want %v", modes, want)
	}
	if row, _ := r.tb.Info(r.now, "a"); row.Held != 1 || row.Shared != 1 || !row.Holders[0].Shared {
		t.Errorf("%+v", row)
	}
}

// One field in Redis serves all holds of a host, and its release is that of the last one.
func TestSharedHoldsHaveOneClaim(t *testing.T) {
	r := newRig(t)
	r.shared(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.shared(2, "a")
	r.shared(3, "a")
	r.quiet()
	r.want("s1 granted hold=1 token=1 count=1", "s2 granted hold=2 token=1 count=1", "s3 granted hold=3 token=1 count=1")
	r.release(2, 2)
	r.release(1, 1)
	r.quiet()
	r.release(3, 3)
	r.want("s2 released count=0", "s1 released count=0", "s3 released count=0")
	r.redis(redisop.Drop, redisop.Done)
}

func TestExclusiveHoldWaitsForAllSharedOnes(t *testing.T) {
	r := newRig(t)
	r.reads(2)
	r.exclusive(3, "a")
	r.shared(4, "a")
	r.exclusive(4, "a", wait(0))
	r.answerAll()
	r.release(1, 1)
	r.want("s4 refused timeout", "s1 released count=0")
	r.release(2, 2)
	r.answerAll()
	r.want("s2 released count=0", "subscribe a", "s3 granted hold=4 token=3 count=1")
	r.release(3, 4)
	r.answerAll()
	r.want("s3 released count=0", "s4 granted hold=5 token=4 count=1")
}

func TestOwnerEntersItsHoldAgainIfThatCoversTheMode(t *testing.T) {
	r := newRig(t)
	r.reads(2, owner(5))
	r.shared(2, "a", owner(5))
	r.exclusive(2, "a", owner(5))
	r.want("s2 granted hold=2 token=1 count=2", "s2 refused deadlock")
	r.release(1, 1)
	r.release(2, 2)
	r.release(2, 2)
	r.exclusive(2, "a", owner(5))
	r.answerAll()
	r.shared(2, "a", owner(5))
	r.want("s1 released count=0", "s2 released count=1", "s2 released count=0", "s2 granted hold=3 token=2 count=1", "s2 granted hold=3 token=2 count=2")
}

// Each hold has its own end. The others stay.
func TestEachSharedHoldEndsByItself(t *testing.T) {
	r := newRig(t)
	r.shared(1, "a", maxHold(5*time.Second))
	r.redis(redisop.Take, redisop.Done)
	r.shared(2, "a", crash(3*time.Second))
	r.shared(3, "a")
	r.quiet()
	r.log = nil
	r.tb.Close(r.now, 2)
	r.release(3, 3)
	r.pass(5 * time.Second)
	r.want("s3 released count=0", "s1 lost hold=1 max_hold")
	r.redis(redisop.Drop, redisop.Done)

	r.shared(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.shared(3, "a", crash(3*time.Second))
	r.answerAll()
	r.tb.Close(r.now, 3)
	r.release(1, 4)
	r.pass(3*time.Second - 1)
	r.quiet()
	r.pass(1)
	r.redis(redisop.Drop, redisop.Done)
}

// A renewal is one operation, and each session is sent its deadline.
func TestRenewalOfSharedHoldsIsOneOperation(t *testing.T) {
	r := newRig(t)
	r.reads(3)
	r.pass(renewed)
	r.redis(redisop.Renew, redisop.Done)
	r.collect()
	slices.Sort(r.log)
	r.want("s1 lease +28s", "s2 lease +28s", "s3 lease +28s")
}

// The key has the lease that the longest hold needs, also if that ends before.
func TestSharedHoldsHaveTheLongestLease(t *testing.T) {
	r := newRig(t)
	r.reads(2)
	r.shared(3, "a", fixed(5*time.Minute))
	op := r.redis(redisop.Take, redisop.Done)
	if op.LeaseMS != 300_000 || !op.Has(redisop.RequireExisting) {
		t.Fatalf("%+v", op)
	}
	r.want("s3 granted hold=4 token=2 count=1")
	r.pass(renewed)
	if op := r.redis(redisop.Renew, redisop.Done); op.LeaseMS < 280_000 || op.LeaseMS > 300_000 {
		t.Errorf("renewed for %d ms", op.LeaseMS)
	}
	r.log = nil
	r.release(3, 4)
	r.pass(6 * time.Minute)
	r.collect()
	for _, op := range r.ops {
		if op.Kind == redisop.Renew && op.LeaseMS < 30_000 {
			t.Errorf("%+v", op)
		}
	}
}

func TestLossEndsEachSharedHoldOnce(t *testing.T) {
	r := newRig(t)
	r.reads(3)
	r.pass(renewed)
	r.redis(redisop.Renew, redisop.HeldByOther)
	r.want("s1 lost hold=1 stolen", "s2 lost hold=2 stolen", "s3 lost hold=3 stolen")
	r.redis(redisop.Drop, redisop.Done) // Redis may have it for this host in the other mode
	r.reads(2)
	r.tb.ForceRelease(r.now, 4, protocol.ForceRelease{ID: 99, Name: "a"})
	r.want("s1 lost hold=4 forced", "s2 lost hold=5 forced", "s4 forced hold=5")
}

// A renewal that Redis refuses is that of all holds: each is given up, and each goes on if it is renewed again.
func TestRefusedRenewalIsThatOfAllSharedHolds(t *testing.T) {
	for _, again := range []bool{false, true} {
		r := newRig(t)
		r.reads(2)
		r.pass(renewed)
		r.redis(redisop.Renew, redisop.Refused)
		if again {
			r.pass(time.Second)
			r.redis(redisop.Renew, redisop.Done)
			r.collect()
			r.log = nil
			r.pass(5 * time.Second)
			r.want()
			continue
		}
		for range 20 {
			r.pass(time.Second)
			if r.collect(); len(r.ops) > 0 {
				r.redis(r.ops[0].Kind, redisop.Refused)
			}
		}
		r.want("s1 lost hold=1 expired", "s2 lost hold=2 expired")
	}
}

func TestWaitCycleThroughAnyHolder(t *testing.T) {
	r := newRig(t)
	r.reads(3, owner(5))
	r.exclusive(4, "b", owner(5))
	r.redis(redisop.Take, redisop.Done)
	r.exclusive(2, "b", owner(5))
	r.collect()
	r.log = nil
	r.exclusive(4, "a", owner(5))
	r.want("s4 refused deadlock")
	if want := `waiting would never end: you ask for "a", held by owner 5 of pid 101 (worker-2), who waits for "b", which you hold; release it first, or take the two in one order everywhere`; r.msg != want {
		t.Errorf("got  %s\nwant %s", r.msg, want)
	}
}

// K14: a name has one kind at a time.
func TestNameInUseHasOneKind(t *testing.T) {
	r := newRig(t)
	r.reads(1)
	r.acquire(2, "a")
	r.want("s2 refused denied")
	r.release(1, 1)
	r.acquire(2, "a") // Redis still has it as a read/write lock
	r.answerAll()
	r.acquire(2, "a")
	r.answerAll()
	r.shared(3, "a")
	r.want("s1 released count=0", "s2 refused unavailable", "s2 granted hold=2 token=2 count=1", "s3 refused denied")
}

// passDone passes time with a Redis that does everything at once.
func (r *rig) passDone(d time.Duration) {
	for end := r.now + int64(d); r.now < end; {
		r.pass(min(100*time.Millisecond, time.Duration(end-r.now)))
		r.answerAll()
	}
}

var leaseOfWatchdog = regexp.MustCompile(`^s2 lease \+(2\d|30)s$`)

// Who reads under the watchdog is renewed for the watchdog's lease, whatever others have asked for before or after.
func TestWatchdogBesideALongFixedLease(t *testing.T) {
	for _, isFirst := range []bool{false, true} {
		r := newRig(t)
		if isFirst {
			r.shared(1, "a", fixed(24*time.Hour))
			r.answerAll()
		}
		r.shared(2, "a")
		r.answerAll()
		if !isFirst {
			r.shared(1, "a", fixed(24*time.Hour))
			r.answerAll()
		}
		r.log = nil
		for range 100 {
			r.passDone(time.Second)
			for _, line := range r.log {
				if !leaseOfWatchdog.MatchString(line) {
					t.Errorf("the fixed lease is first: %v: %s", isFirst, line)
				}
			}
			r.log = nil
		}
	}
}

// The key outlives the holds by no more than a lease once a long one has ended.
func TestLeaseOfAnEndedHoldIsForgotten(t *testing.T) {
	r := newRig(t)
	r.reads(1)
	r.shared(2, "a", fixed(24*time.Hour))
	r.answerAll()
	r.shared(3, "a", maxHold(time.Second)) // at whose end all holds are looked at
	r.pass(2 * time.Second)
	r.release(2, 3)
	r.pass(renewed)
	if op := r.redis(redisop.Renew, redisop.Done); op.LeaseMS != 30_000 {
		t.Errorf("the key is renewed for %d ms", op.LeaseMS)
	}
}

// A reconcile ends all holds of a lock that are over, also those that a walk over the session comes to next.
func TestSeveralHoldsOfASessionEndTogether(t *testing.T) {
	r := newRig(t)
	for range 3 {
		r.shared(1, "a", maxHold(time.Second))
		r.answerAll()
	}
	r.log = nil
	r.now += int64(time.Second)
	r.tb.Suspend(r.now, 1)
	r.collect()
	if err := r.tb.Audit(); err != nil {
		t.Error(err)
	}

	r = newRig(t)
	for range 2 {
		r.shared(1, "b")
		r.answerAll()
	}
	r.acquire(1, "a")
	r.answerAll()
	for range 290 {
		r.pass(100 * time.Millisecond)
		r.collect()
		for i := 0; i < len(r.ops); {
			if op := r.ops[i]; op.Name == "b" {
				r.ops = slices.Delete(r.ops, i, i+1)
				r.tb.Result(r.now, withMode(&op, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now}))
				r.collect()
			} else {
				i++
			}
		}
	}
	r.now = int64(time.Hour) + int64(29800*time.Millisecond) // no timer fires before the result
	r.answerAll()
	if err := r.tb.Audit(); err != nil {
		t.Error(err)
	}
}

func TestRequestThatIsAdmittedNeedsNoWait(t *testing.T) {
	r := newRig(t)
	r.reads(2, owner(5))
	r.exclusive(3, "b", owner(5))
	r.answerAll()
	r.exclusive(1, "b", owner(5))
	r.answerAll()
	r.log = nil
	r.shared(3, "a", owner(5))               // of which session 1 has one, which waits for session 3
	r.shared(2, "a", owner(5), notReentrant) // beside its own
	r.want("s3 granted hold=4 token=1 count=1", "s2 granted hold=5 token=1 count=1")
}

// A keep excludes others until its end, and no longer.
func TestKeepOfAnExclusiveHoldOfManyKinds(t *testing.T) {
	r := newRig(t)
	r.exclusive(1, "a", keep(5*time.Second))
	r.answerAll()
	r.exclusive(2, "a")
	r.passDone(time.Second)
	r.release(1, 1)
	r.passDone(4*time.Second - 50*time.Millisecond)
	r.log = nil
	r.passDone(150 * time.Millisecond)
	r.want("s2 granted hold=2 token=2 count=1")
}

// However long others read, a reader is admitted beside them: it takes nothing from others.
func TestReaderIsAdmittedBesideALongReader(t *testing.T) {
	for _, isListening := range []bool{false, true} {
		r := newRig(t)
		r.tb.Up(r.now, 0, false, isListening)
		r.reads(2)
		r.passDone(time.Minute)
		r.log = nil
		r.shared(3, "a")
		r.shared(4, "a", wait(0))
		r.want("s3 granted hold=3 token=1 count=1", "s4 granted hold=4 token=1 count=1")
	}
}

// A client that died has lost nothing that it could be told of.
func TestHoldOfADeadClientIsNotLost(t *testing.T) {
	for _, acquire := range []func(*rig, string){
		func(r *rig, name string) { r.acquire(1, name) },
		func(r *rig, name string) { r.shared(1, name) },
	} {
		r := newRigOf(t, locktable.Config{MaxWork: 1})
		acquire(r, "a")
		r.answerAll()
		for _, name := range []string{"x1", "x2", "x3", "x4"} {
			r.acquire(1, name)
			r.answerAll()
		}
		r.pass(renewed)
		r.collect()
		r.log = nil
		r.tb.Close(r.now, 1)
		r.tb.Result(r.now, redisop.Result{Kind: redisop.Renew, Name: "a", Outcome: redisop.HeldByOther, Sent: r.now, Field: "x:1", TTLMS: 1000})
		if r.want(); r.tb.Stats().CrashReleases != 2 {
			t.Errorf("%d holds of dead clients were released", r.tb.Stats().CrashReleases)
		}
	}
}

func TestLongestHoldIsTheOldestOfItsLock(t *testing.T) {
	r := newRig(t)
	r.reads(1)
	r.passDone(20 * time.Second)
	r.shared(2, "a")
	r.answerAll()
	var v locktable.Survey
	r.tb.Survey(r.now, &v, 100)
	if len(v.LongestHeld) != 1 || v.LongestHeld[0].Rank != int64(20*time.Second) || v.Groups[0].Holds != 2 {
		t.Errorf("%+v, %+v", v.LongestHeld, v.Groups)
	}
}

// One step answers no more requests than it may.
func TestManyReadersAreAdmittedInSteps(t *testing.T) {
	r := newRigOf(t, locktable.Config{MaxWork: 10, Tokens: 256})
	r.exclusive(1, "a")
	r.answerAll()
	for range 100 {
		r.shared(2, "a")
	}
	r.answerAll()
	r.log = nil
	r.release(1, 1)
	r.answerAll()
	if n := len(r.log); n < 5 || n > 12 {
		t.Errorf("%d answers in one step", n)
	}
	r.passDone(time.Second)
	if n := r.tb.Holds(2); n != 100 {
		t.Errorf("%d readers", n)
	}
}

// A hold that stays is stored once, whatever happens beside it.
func TestReleaseAmongManyStoresNoOther(t *testing.T) {
	l := newRestartHarness(t)
	for range 100 {
		l.shared(1, "a")
		l.answerAll()
	}
	l.shared(2, "a", crash(time.Hour))
	l.answerAll()
	l.tb.Close(l.now, 2)
	l.answerAll()
	l.journal.calls = nil
	for n := range uint64(100) {
		l.shared(3, "a")
		l.answerAll()
		l.release(3, 102+n)
	}
	holds := 0
	for _, call := range l.journal.calls {
		holds += btoi(strings.HasPrefix(call, "hold "))
	}
	if holds > 110 || l.tb.Holds(3) != 0 {
		t.Errorf("%d holds are stored for 100 acquires and releases, %d are left", holds, l.tb.Holds(3))
	}
}

// What finds no room is stored when there is some, and is not collected until then.
func TestManyHoldsFindNoRoom(t *testing.T) {
	l := newRestartHarness(t)
	l.journal.room = 0
	for n := range uint64(20) {
		l.shared(1, "a")
		l.answerAll()
		if n%2 == 1 {
			l.release(1, n+1)
		}
		if err := l.tb.Audit(); err != nil {
			t.Fatal(err)
		}
	}
	l.journal.room = 1
	l.tb.RetryJournal()
	l.collect()
	holds := 0
	for _, h := range l.journal.holds {
		holds += btoi(h.lock != 0)
	}
	if l.tb.Unstored() != 0 || holds != 10 {
		t.Errorf("%d locks find no room, and %d holds are stored", l.tb.Unstored(), holds)
	}
}

// Each hold takes a cell of its user.
func TestSharedHoldsCountAsCells(t *testing.T) {
	r := newRigOf(t, locktable.Config{MaxLocks: 16, UID: 7})
	r.tb.Open(r.now, 9, locktable.Peer{UID: 1000})
	granted := 0
	for range 16 {
		r.shared(9, "a")
		r.answerAll()
		granted++
	}
	refused := 0
	for _, line := range r.log {
		if line == "s9 refused limit" {
			refused++
		}
	}
	if holds := r.tb.Holds(9); holds != 11 || refused != 5 { // 12 of 16 cells, and one is that of the name
		t.Errorf("%d holds, %d refused\n%v", holds, refused, r.log)
	}
	if err := r.tb.Audit(); err != nil {
		t.Error(err)
	}
}

func TestJournalHasEachOfManyHolds(t *testing.T) {
	j := newRecordJournal()
	r := newRigOf(t, locktable.Config{Journal: j})
	r.reads(3)
	r.tb.Suspend(r.now, 2)
	r.collect()
	phases := map[uint64]locktable.HoldPhase{}
	for _, h := range j.holds {
		if h.Mode != locktable.Shared || j.locks[h.Lock].Kind != redisop.KindReadWrite {
			t.Errorf("%+v of %+v", h, j.locks[h.Lock])
		}
		phases[h.ID] = h.Phase
	}
	if want := map[uint64]locktable.HoldPhase{1: locktable.HoldLive, 2: locktable.HoldUnserved, 3: locktable.HoldLive}; !maps.Equal(phases, want) {
		t.Errorf("the journal has %v", phases)
	}
}

// Of a large session that is not served any more, not each hold is looked at then.
func TestUnservedHoldIsNotRenewedWithOthers(t *testing.T) {
	r := newRigOf(t, locktable.Config{MaxWork: 1})
	r.shared(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.tb.Suspend(r.now, 1)
	r.pass(renewed)
	r.redis(redisop.Check, redisop.Done)
}
