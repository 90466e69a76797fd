package locktable_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// notebook is a Keeper that also writes down in which order it was told what.
type notebook struct {
	last     uint64
	locks    []locktable.LockRecord // by slot − 1; Name "": the slot is free
	sessions []locktable.RememberedSession
	room     int
	calls    []string
}

func (b *notebook) KeepLast(num uint64) {
	b.last = num
	b.calls = append(b.calls, fmt.Sprintf("last %d", num))
}

func (b *notebook) KeepLock(slot uint32, r *locktable.LockRecord) uint32 {
	b.calls = append(b.calls, "lock "+r.Name)
	for i := range b.locks {
		if slot == 0 && b.locks[i].Name == "" {
			slot = uint32(i + 1)
		}
	}
	if slot == 0 {
		if len(b.locks) >= b.room {
			return 0
		}
		b.locks = append(b.locks, locktable.LockRecord{})
		slot = uint32(len(b.locks))
	}
	b.locks[slot-1] = *r
	return slot
}

func (b *notebook) ForgetLock(slot uint32) {
	b.calls = append(b.calls, "forget "+b.locks[slot-1].Name)
	b.locks[slot-1] = locktable.LockRecord{}
}

func (b *notebook) KeepSession(r locktable.SessionRecord) {
	b.calls = append(b.calls, fmt.Sprintf("session %d", r.ID))
	for i := range b.sessions {
		if b.sessions[i].ID == r.ID {
			b.sessions[i].SessionRecord = r
		}
	}
}

func (b *notebook) memory() *locktable.Memory {
	m := &locktable.Memory{Last: b.last, Sessions: append([]locktable.RememberedSession(nil), b.sessions...)}
	for i, r := range b.locks {
		if r.Name != "" {
			m.Locks = append(m.Locks, locktable.RememberedLock{Slot: uint32(i + 1), LockRecord: r})
		}
	}
	return m
}

// lives is a rig whose sidecar can be killed and started again.
type lives struct {
	rig
	book *notebook
	cfg  locktable.Config
}

func newLives(t *testing.T) *lives {
	l := &lives{rig: rig{T: t, now: int64(time.Hour)}, book: &notebook{room: 1 << 20}}
	l.cfg.Keeper = l.book
	l.tb = locktable.New(l.cfg, l.now)
	l.tb.Up(l.now, false)
	for s := range locktable.SessionID(4) {
		p := locktable.Peer{PID: int64(100 + s), Cmd: fmt.Sprintf("worker-%d", s+1)}
		l.tb.Open(l.now, s+1, p)
		l.book.sessions = append(l.book.sessions, locktable.RememberedSession{SessionRecord: l.tb.Record(s + 1), Peer: p})
	}
	return l
}

// takes has a session hold a lock.
func (l *lives) takes(s locktable.SessionID, name string, opts ...opt) {
	l.Helper()
	l.acquire(s, name, opts...)
	l.redis(locktable.Take, locktable.Done)
	l.collect()
	l.log = nil
}

// killed ends the process: what is on its way to Redis gets no answer. A successor
// starts d later.
func (l *lives) killed(d time.Duration) {
	l.killedUnread(d)
	l.collect()
}

// killedUnread leaves the effects of Restore where they are.
func (l *lives) killedUnread(d time.Duration) {
	l.ops, l.log = nil, nil
	l.now += int64(d)
	l.tb = locktable.New(l.cfg, l.now)
	l.tb.Restore(l.now, l.book.memory())
	l.book.calls = nil
}

// claims claims pairs of a hold and its entries.
func (l *lives) claims(s locktable.SessionID, more bool, pairs ...uint64) bool {
	c := protocol.Claim{ID: 77, More: more}
	for i := 0; i < len(pairs); i += 2 {
		c.Holds = append(c.Holds, protocol.ClaimedHold{Hold: pairs[i], Entries: uint32(pairs[i+1])})
	}
	return l.tb.Claim(l.now, s, &c) == ""
}

func (l *lives) row(name string) protocol.LockRow {
	row, _ := l.tb.Info(l.now, name)
	return row
}

func TestAHoldOutlivesItsSidecar(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a", owner(7))
	l.acquire(1, "a", owner(7))
	l.redis(locktable.Renew, locktable.Done)
	before := l.row("a")
	l.killed(5 * time.Second)
	after := l.row("a")
	if !after.Absent || after.State != protocol.StateHeld || after.Hold != before.Hold || after.Token != before.Token || after.Count != 2 ||
		after.Owner != 7 || after.PID != 100 || after.HeldMS != 5000 || after.DeadlineNS != before.DeadlineNS {
		t.Fatalf("restored: %+v\nbefore: %+v", after, before)
	}
	l.quiet()
	l.tb.Up(l.now, false)
	if op := l.redis(locktable.Renew, locktable.Done); op.HoldID != 1 || op.Count != 2 {
		t.Fatalf("confirming: %+v", op)
	}
	l.want()
	l.tb.Resume(1, locktable.Peer{PID: 100})
	if !l.claims(1, false, 1, 2) {
		t.Fatal("it does not get what it claims")
	}
	l.want("s1 lease +29s", "s1 claimed last=true")
	if l.row("a").Absent {
		t.Fatal("it is still absent")
	}
	l.acquire(1, "a", owner(7))
	l.want("s1 granted hold=1 token=1 count=3")
}

func TestWaitersAskTheSuccessorAgain(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.acquire(2, "a")
	l.acquire(3, "a")
	l.killed(time.Second)
	if n := l.row("a").Waiting; n != 0 {
		t.Fatalf("%d wait", n)
	}
	l.tb.Up(l.now, false)
	l.redis(locktable.Renew, locktable.Done)
	for s := locktable.SessionID(1); s <= 3; s++ {
		l.tb.Resume(s, locktable.Peer{})
		l.claims(s, false)
		if s == 1 {
			l.want("s1 claimed last=true") // what it does not claim it has released
			l.redis(locktable.Drop, locktable.Done)
		}
	}
	l.want("s2 claimed last=true", "s3 claimed last=true")
	l.acquire(3, "a")
	l.acquire(2, "a")
	if op := l.redis(locktable.Take, locktable.Done); op.HoldID <= 1 {
		t.Fatalf("a number is used again: %+v", op)
	}
	l.want("s3 granted hold=2 token=2 count=1")
}

func TestASuccessorGivesBackWhatWasBeingGivenBack(t *testing.T) {
	l := newLives(t)
	l.takes(1, "released")
	l.release(1, 1)
	l.ops = nil // the drop is lost
	l.acquire(2, "asked for")
	l.killed(time.Second)
	l.quiet()
	if n := l.tb.PendingReleases(); n != 0 {
		t.Fatalf("it owes Redis %d locks, which cannot be asked", n)
	}
	l.tb.Up(l.now, false)
	l.collect()
	if len(l.ops) != 2 || l.ops[0].Kind != locktable.Drop || l.ops[1].Kind != locktable.Drop {
		t.Fatalf("operations: %+v", l.ops)
	}
	for _, op := range l.ops {
		if want := map[string]uint64{"released": 1, "asked for": 2}[op.Name]; op.HoldID != want {
			t.Errorf("drop of %s is for %d, want %d", op.Name, op.HoldID, want)
		}
		l.tb.Result(l.now, locktable.Result{Kind: locktable.Drop, Name: op.Name, Outcome: locktable.Done, Sent: l.now})
	}
	l.ops = nil
	l.want()
	if m := l.book.memory(); len(m.Locks) != 0 || m.Last != 2 {
		t.Fatalf("still kept: %+v", m)
	}
}

func TestARedisIsAskedOnlyForWhatIsKept(t *testing.T) {
	l := newLives(t)
	l.collect()
	l.book.calls = nil
	l.acquire(1, "a")
	if got := strings.Join(l.book.calls, ", "); got != "last 1, lock a" {
		t.Fatalf("kept before the first take: %s", got)
	}
	l.redis(locktable.Take, locktable.HeldByOther)
	l.collect()
	if got := l.book.calls[len(l.book.calls)-1]; got != "forget a" {
		t.Fatalf("of somebody else's lock this is kept: %s", got)
	}
}

func TestClaimsComeInPages(t *testing.T) {
	l := newLives(t)
	for _, name := range []string{"a", "b", "c"} {
		l.takes(1, name)
	}
	l.killed(time.Second)
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, true, 1, 1)
	l.claims(1, true, 3, 1)
	l.want("s1 claimed last=false", "s1 claimed last=false")
	if l.row("b").State != protocol.StateHeld {
		t.Fatal("b is given up before the last claim")
	}
	l.tb.Resume(1, locktable.Peer{}) // its connection ended in between: all over again
	l.claims(1, true, 1, 1)
	l.claims(1, false)
	l.want("s1 claimed last=false", "s1 lease +29s", "s1 claimed last=true")
	if l.tb.Holds(1) != 1 || l.row("a").State != protocol.StateHeld {
		t.Fatalf("%d holds", l.tb.Holds(1))
	}
}

func TestAClaimIsNoMoreThanWasGranted(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a", owner(1))
	l.acquire(1, "a", owner(1))
	l.killed(time.Second)
	l.tb.Resume(1, locktable.Peer{})
	if l.claims(1, false, 1, 3) {
		t.Fatal("three entries of two")
	}
	if !l.claims(1, false, 1, 1) { // the release of the other was not read
		t.Fatal("one entry of two")
	}
	if n := l.row("a").Count; n != 1 {
		t.Fatalf("%d entries", n)
	}
}

func TestWhatIsGoneIsToldToWhoClaimsIt(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.takes(1, "b")
	l.takes(2, "c")
	l.killed(time.Second)
	l.tb.ForceRelease(l.now, 4, protocol.ForceRelease{ID: 1, Name: "a"})
	l.want("s1 lost hold=1 forced", "s4 forced hold=1")
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, true, 1, 1, 3, 1, 99, 1) // 3 is somebody else's, 99 nobody's
	l.want("s1 lost hold=1 forgotten", "s1 lost hold=3 forgotten", "s1 lost hold=99 forgotten", "s1 claimed last=false")
	l.claims(1, true, 2, 1)
	for _, claimed := range []bool{true, false} {
		if !claimed {
			l.tb.ForceRelease(l.now, 4, protocol.ForceRelease{ID: 2, Name: "c"})
		} else {
			l.tb.ForceRelease(l.now, 4, protocol.ForceRelease{ID: 2, Name: "b"})
		}
		for _, e := range l.tb.Effects() {
			if e.Kind == locktable.Lost && e.WasClaimed != claimed {
				t.Errorf("of hold %d it says claimed: %v", e.Hold, e.WasClaimed)
			}
		}
	}
}

func TestAHoldEndsAtItsDeadlineIfNobodyCameInTime(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.takes(1, "b", fixed(2*time.Second))
	l.takes(1, "c", maxHold(3*time.Second))
	l.killed(2500 * time.Millisecond)
	l.want("s1 lost hold=2 expired")
	l.pass(time.Second)
	l.want("s1 lost hold=3 max_hold")
	l.killed(time.Minute)
	l.want("s1 lost hold=1 expired")
	l.tb.Up(l.now, false)
	l.collect()
	if len(l.ops) != 3 {
		t.Fatalf("giving back: %+v", l.ops)
	}
}

func TestCrashDelaysOutliveTheSidecar(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a", crash(10*time.Second))
	l.takes(2, "b", crash(10*time.Second))
	l.tb.Close(l.now, 1)
	l.collect()
	l.killed(4 * time.Second)
	if row := l.row("a"); !row.Orphan || row.State != protocol.StateHeld {
		t.Fatalf("restored: %+v", row)
	}
	l.tb.Close(l.now, 2) // its process died meanwhile
	l.pass(5900 * time.Millisecond)
	if l.row("a").State != protocol.StateHeld {
		t.Fatal("a ends early")
	}
	l.pass(150 * time.Millisecond)
	if l.row("a").State == protocol.StateHeld {
		t.Fatal("a does not end")
	}
	l.pass(3800 * time.Millisecond)
	if row := l.row("b"); !row.Orphan {
		t.Fatalf("b: %+v", row)
	}
	l.pass(200 * time.Millisecond)
	if l.row("b").State == protocol.StateHeld {
		t.Fatal("b does not end")
	}
	l.want()
}

func TestADetachedSessionIsRestoredAsOne(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.tb.Suspend(l.now, 1)
	l.collect()
	l.killed(time.Second)
	l.tb.Up(l.now, false)
	l.redis(locktable.Renew, locktable.Done)
	l.pass(28600 * time.Millisecond)
	l.quiet() // not renewed
	l.want()
	l.pass(200 * time.Millisecond)
	l.want("s1 lost hold=1 expired")
}

func TestTheDeadAreReleasedAndTheOthersRunOut(t *testing.T) {
	l := newLives(t)
	l.takes(1, "dead")
	l.takes(2, "cannot come back")
	l.takes(3, "comes back")
	l.killed(time.Second)
	l.tb.Close(l.now, 1)
	l.tb.Suspend(l.now, 2)
	l.tb.Up(l.now, false)
	l.collect()
	kinds := map[string]locktable.OpKind{}
	for _, op := range l.ops {
		kinds[op.Name] = op.Kind
		l.tb.Result(l.now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Done, Sent: l.now})
	}
	if kinds["dead"] != locktable.Drop || kinds["cannot come back"] != locktable.Renew || kinds["comes back"] != locktable.Renew {
		t.Fatalf("operations: %+v", l.ops)
	}
	l.ops = nil
	l.pass(11 * time.Second)
	if op := l.redis(locktable.Renew, locktable.Done); op.Name != "comes back" {
		t.Fatalf("renewed: %+v", op)
	}
}

func TestASidecarThatStopsLetsNobodyWait(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.acquire(2, "a")
	l.acquire(2, "b")
	l.tb.Adjourn(l.now)
	l.want()
	if l.tb.InUse(2, l.ids) || l.row("a").Waiting != 0 {
		t.Fatal("somebody waits")
	}
	if n := l.tb.PendingReleases(); n != 1 {
		t.Fatalf("it owes Redis %d locks, want 1", n)
	}
	l.tb.Release(l.now, 1, protocol.Release{Hold: 1}) // was read before
	l.want()
	for _, op := range l.ops {
		l.tb.Result(l.now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Done, Sent: l.now, Token: 100})
	}
	l.ops = nil
	l.collect()
	if len(l.ops) != 2 || l.ops[0].Kind != locktable.Drop || l.ops[1].Kind != locktable.Drop {
		t.Fatalf("operations: %+v", l.ops)
	}
	for _, op := range l.ops {
		l.tb.Result(l.now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Done, Sent: l.now})
	}
	l.want()
	if l.tb.PendingReleases() != 0 || len(l.book.memory().Locks) != 0 {
		t.Fatal("something is left")
	}
}

func TestMoreIsRestoredThanMayBeAskedFor(t *testing.T) {
	l := newLives(t)
	for i := range 10 {
		l.takes(1, fmt.Sprint("lock-", i))
	}
	l.cfg.MaxLocks, l.cfg.MaxHolds = 3, 2
	l.killed(time.Second)
	if n := l.tb.Holds(1); n != 10 {
		t.Fatalf("%d holds", n)
	}
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, false, 1, 1, 2, 1, 3, 1, 4, 1)
	l.want("s1 lease +29s", "s1 claimed last=true")
	l.acquire(1, "one more")
	l.want("s1 refused limit")
	l.pass(40 * time.Second) // every timer has its place
	l.want("s1 lost hold=4 expired", "s1 lost hold=3 expired", "s1 lost hold=2 expired", "s1 lost hold=1 expired")
}

// Until the last claim nothing changes: a client that is cut off before may claim again.
func TestEntriesAreReleasedWithTheLastClaim(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a", owner(7))
	l.acquire(1, "a", owner(7))
	l.want("s1 granted hold=1 token=1 count=2")
	l.killed(time.Second)
	l.tb.Resume(1, locktable.Peer{})
	if !l.claims(1, true, 1, 1) || l.row("a").Count != 2 {
		t.Errorf("before the last claim: %+v", l.row("a"))
	}
	if l.claims(1, true, 1, 1) {
		t.Error("a hold was claimed twice")
	}
	l.tb.Resume(1, locktable.Peer{})
	if !l.claims(1, true, 1, 2) {
		t.Error("what was claimed in vain before counts")
	}
	l.tb.Resume(1, locktable.Peer{})
	if !l.claims(1, false, 1, 1) || l.row("a").Count != 1 {
		t.Errorf("after the last claim: %+v", l.row("a"))
	}
	l.collect()
	if h := l.book.memory().Locks[0].Hold; h.Count != 1 {
		t.Errorf("kept with %d entries", h.Count)
	}
}

// unkept expects so many locks to lack room, and these ones to be kept.
func (l *lives) unkept(n int, kept ...string) {
	l.Helper()
	var got []string
	for _, r := range l.book.memory().Locks {
		got = append(got, r.Name)
	}
	if slices.Sort(got); l.tb.Unkept() != n || !slices.Equal(got, kept) {
		l.Fatalf("%d locks are unkept, want %d; kept are %q, want %q", l.tb.Unkept(), n, got, kept)
	}
}

func TestLockWithoutRoomIsKeptWhenThereIsRoom(t *testing.T) {
	l := newLives(t)
	l.book.room = 1
	for _, name := range []string{"a", "b", "c", "d"} {
		l.takes(1, name)
	}
	l.unkept(3, "a")
	l.tb.KeepAgain()
	l.book.calls = nil
	l.collect()
	if len(l.book.calls) != 1 {
		t.Errorf("with no room for any lock the Keeper was called %q", l.book.calls)
	}
	l.book.room = 3
	l.unkept(3, "a")
	l.tb.KeepAgain()
	l.collect()
	l.unkept(1, "a", "c", "d")
	l.book.calls = nil
	l.collect()
	if len(l.book.calls) != 0 {
		t.Errorf("one KeepAgain is good for one round, and then the Keeper was called %q", l.book.calls)
	}
	l.book.room = 4
	l.pass(11 * time.Second) // what changes is offered again in any case
	l.unkept(0, "a", "b", "c", "d")
}

func TestLockWithoutRoomCountsUntilItEnds(t *testing.T) {
	l := newLives(t)
	l.book.room = 1
	l.takes(1, "a") // hold 1
	l.takes(2, "b") // hold 2
	l.takes(3, "c")
	l.unkept(2, "a")
	l.release(2, 2)
	l.collect()
	l.unkept(2, "a") // Redis still has it
	l.redis(locktable.Drop, locktable.Done)
	l.collect()
	l.unkept(1, "a")
	l.tb.Close(l.now, 3)
	l.redis(locktable.Drop, locktable.Done)
	l.collect()
	l.unkept(0, "a")

	// The room of a lock that ends is room for another one.
	l.takes(2, "b") // hold 4
	l.unkept(1, "a")
	l.release(1, 1)
	l.redis(locktable.Drop, locktable.Done)
	l.tb.KeepAgain()
	l.collect()
	l.unkept(0, "b")
}

// A client that is back may still believe in a hold of which its sidecar knows that
// it is lost. A lease event would be about that hold too.
func TestNobodyHearsOfRenewalsBeforeItHearsOfLosses(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.takes(1, "b")
	l.killed(time.Second)
	l.tb.Resume(1, locktable.Peer{})
	l.tb.ForceRelease(l.now, 2, protocol.ForceRelease{ID: 1, Name: "a"})
	l.tb.Up(l.now, false)
	l.collect()
	for _, op := range l.ops {
		l.tb.Result(l.now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Done, Sent: l.now})
	}
	l.ops = nil
	l.want("s1 lost hold=1 forced", "s2 forced hold=1")
	l.claims(1, false, 1, 1, 2, 1)
	l.want("s1 lost hold=1 forgotten", "s1 lease +29s", "s1 claimed last=true")
}

// Its client was told of 30 s, and may believe that when the next sidecar is dead too.
func TestAShorterLeaseBreaksNoOlderPromise(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.takes(2, "b")
	l.cfg.Lease = time.Second
	l.killed(5 * time.Second)
	l.tb.Suspend(l.now, 2) // it cannot come back
	l.tb.Up(l.now, false)
	l.collect()
	for _, op := range l.ops {
		if op.LeaseMS < 24_900 {
			t.Errorf("confirming: %+v", op)
		}
		l.tb.Result(l.now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Done, Sent: l.now})
	}
	l.ops = nil
	l.quiet() // and is content with that
	l.pass(400 * time.Millisecond)
	if op := l.redis(locktable.Renew, locktable.Done); op.Name != "a" || op.LeaseMS < 24_500 {
		t.Fatalf("renewing: %+v", op)
	}
}

// What was told under the longer lease is later than all news for a while.
func TestALongerDeadlineOfBeforeKeepsNoNewsBack(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.cfg.Lease = time.Second
	l.killed(time.Second)
	l.tb.Up(l.now, false)
	l.redis(locktable.Renew, locktable.Done)
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, false, 1, 1)
	l.want("s1 lease +29s", "s1 claimed last=true")
	l.takes(1, "b")
	for range 20 {
		l.pass(100 * time.Millisecond)
		l.collect()
		for _, op := range l.ops {
			l.tb.Result(l.now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Done, Sent: l.now})
		}
		l.ops = nil
	}
	if len(l.log) < 4 || strings.Contains(strings.Join(l.log, "\n"), "lost") {
		t.Fatalf("got %q", l.log)
	}
}

// Redis refuses to renew the one of which its client was told long ago that it lasts.
func TestAHoldThatCannotBeRenewedDoesNotKeepTheOthersDown(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.cfg.Lease = time.Second
	l.killed(time.Second)
	l.tb.Up(l.now, false)
	l.redis(locktable.Renew, locktable.Done)
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, false, 1, 1)
	l.takes(1, "b")
	for range 20 {
		l.pass(100 * time.Millisecond)
		l.collect()
		for _, op := range l.ops {
			outcome := locktable.Done
			if op.Name == "a" {
				outcome = locktable.Refused
			}
			l.tb.Result(l.now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: outcome, Sent: l.now, Msg: "NOPERM"})
		}
		l.ops = nil
	}
	log := strings.Join(l.log, "\n")
	if !strings.Contains(log, "lost hold=1 expired") || strings.Contains(log, "lost hold=2") {
		t.Fatalf("got %q", l.log)
	}
	if row := l.row("a"); row.State != protocol.StateHeld || !row.Orphan {
		t.Fatalf("a, in which its client may believe: %+v", row)
	}
}

// The key lives as long as the dead client was told, and the lock is kept as long.
func TestACrashDelayBeginsWithWhatWasToldBeforeTheRestart(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a", crash(time.Minute))
	l.cfg.Lease = time.Second
	l.killed(time.Second)
	l.tb.Close(l.now, 1)
	l.pass(20 * time.Second) // Redis cannot be reached
	if row := l.row("a"); !row.Orphan || row.State != protocol.StateHeld {
		t.Fatalf("a: %+v", row)
	}
}

// Redis lost its data, and the sidecar died before it had asserted its holds. The
// successor meets the same Redis, and cannot know.
func TestAHoldInDoubtIsAssertedByTheSuccessor(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.tb.Down(l.now, "gone")
	l.tb.Up(l.now, true)
	l.collect()
	l.killed(time.Second)
	l.tb.Up(l.now, false)
	if op := l.redis(locktable.Take, locktable.Done); op.RequireExisting || op.HoldID != 1 {
		t.Fatalf("asserting: %+v", op)
	}
	l.collect()
	l.killed(time.Second)
	l.tb.Up(l.now, false)
	l.redis(locktable.Renew, locktable.KeyMissing)
	l.want("s1 lost hold=1 deleted")
}

// The process may die between any two calls. A session's last deadline may become an
// earlier one when nothing needs the later one any more: not before that is kept.
func TestTheMemoryIsTrueAfterEveryCall(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.pass(10600 * time.Millisecond)
	l.redis(locktable.Renew, locktable.Done)
	l.collect() // told by a lease event
	l.killedUnread(time.Second)
	l.collect()
	if got := strings.Join(l.book.calls, ", "); got != "lock a, session 1" {
		t.Errorf("after a restart: %s", got)
	}
	l.book.calls = nil
	l.tb.Suspend(l.now, 1)
	l.collect()
	if got := strings.Join(l.book.calls, ", "); got != "session 1, lock a" {
		t.Errorf("detaching: %s", got)
	}

	// Detached, and killed before its hold was kept as a fixed lease.
	l.book.locks[0].Hold.LeaseMS = 0
	l.killed(time.Second)
	if row := l.row("a"); row.LeaseMS == 0 {
		t.Errorf("a hold that is renewed for nobody: %+v", row)
	}
}

// The last claim of a process may be read when its end is known already.
func TestAClaimOfWhoIsDeadIsForNobody(t *testing.T) {
	l := newLives(t)
	l.takes(1, "a")
	l.killed(time.Second)
	l.tb.Resume(1, locktable.Peer{})
	l.tb.Close(l.now, 1)
	if l.tb.Claim(l.now, 1, &protocol.Claim{ID: 9, Holds: []protocol.ClaimedHold{{Hold: 1, Entries: 1}}}) != "" {
		t.Error("a dead client is blamed")
	}
	l.want()
}
