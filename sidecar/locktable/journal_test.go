package locktable_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// memJournal is a Journal in memory that also writes down its calls in their order. A
// process that is killed after some calls makes no more.
type memJournal struct {
	lastHoldID uint64
	locks      []locktable.LockRecord // by slot - 1; without a name: the slot is free
	holds      []memHold              // by slot - 1
	sessions   []locktable.RestoredSession
	room       int // locks
	holdRoom   int // holds
	calls      []string
	killAfter  int // calls; -1: it is not killed
}

type memHold struct {
	lock uint32 // 0: the slot is free
	locktable.HoldRecord
}

// called notes a call, and reports whether the process is dead.
func (j *memJournal) called(format string, args ...any) (isDead bool) {
	if j.killAfter == 0 {
		return true
	}
	j.killAfter = max(j.killAfter-1, -1)
	j.calls = append(j.calls, fmt.Sprintf(format, args...))
	return false
}

func (j *memJournal) PutLastHoldID(id uint64) {
	if !j.called("last %d", id) {
		j.lastHoldID = id
	}
}

func (j *memJournal) PutLock(slot uint32, r *locktable.LockRecord) uint32 {
	if j.called("lock %s", r.Name) {
		return max(slot, 1)
	}
	for i := range j.locks {
		if slot == 0 && j.locks[i].Name == "" {
			slot = uint32(i + 1)
		}
	}
	if slot == 0 {
		if len(j.locks) >= j.room {
			return 0
		}
		j.locks = append(j.locks, locktable.LockRecord{})
		slot = uint32(len(j.locks))
	}
	j.locks[slot-1] = *r
	return slot
}

func (j *memJournal) DeleteLock(slot uint32) {
	l := &j.locks[slot-1]
	if j.called("delete lock %s", l.Name) {
		return
	}
	for _, h := range j.holds {
		if h.lock == slot {
			panic(fmt.Sprintf("lock %s is deleted before its hold %d", l.Name, h.ID))
		}
	}
	*l = locktable.LockRecord{}
}

func (j *memJournal) PutHold(slot, lock uint32, r *locktable.HoldRecord) uint32 {
	if j.called("hold %d", r.ID) {
		return max(slot, 1)
	}
	if l := j.locks[lock-1]; l.Name == "" || l.MaxHoldID < r.ID {
		panic(fmt.Sprintf("hold %d is stored before its lock: %+v", r.ID, l))
	}
	for i := range j.holds {
		if slot == 0 && j.holds[i].lock == 0 {
			slot = uint32(i + 1)
		}
	}
	if slot == 0 {
		if len(j.holds) >= j.holdRoom {
			return 0
		}
		j.holds = append(j.holds, memHold{})
		slot = uint32(len(j.holds))
	}
	j.holds[slot-1] = memHold{lock, *r}
	return slot
}

func (j *memJournal) DeleteHold(slot uint32) {
	h := &j.holds[slot-1]
	if j.called("delete hold %d", h.ID) {
		return
	}
	if h.lock == 0 {
		panic(fmt.Sprintf("there is no hold in slot %d", slot))
	}
	*h = memHold{}
}

func (j *memJournal) PutSession(r locktable.SessionRecord) {
	if j.called("session %d", r.ID) {
		return
	}
	for i := range j.sessions {
		if j.sessions[i].ID == r.ID {
			j.sessions[i].SessionRecord = r
		}
	}
}

func (j *memJournal) snapshot() *locktable.Snapshot {
	m := &locktable.Snapshot{LastHoldID: j.lastHoldID, Sessions: slices.Clone(j.sessions)}
	for i, l := range j.locks {
		if l.Name == "" {
			continue
		}
		for k, h := range j.holds {
			if h.lock == uint32(i+1) {
				m.Holds = append(m.Holds, locktable.RestoredHold{Slot: uint32(k + 1), Lock: uint32(len(m.Locks)), HoldRecord: h.HoldRecord})
			}
		}
		m.Locks = append(m.Locks, locktable.RestoredLock{Slot: uint32(i + 1), LockRecord: l})
	}
	return m
}

// restartHarness is a rig whose sidecar can be killed and started again.
type restartHarness struct {
	rig
	journal *memJournal
	cfg     locktable.Config
}

func newRestartHarness(t *testing.T) *restartHarness {
	l := &restartHarness{rig: rig{T: t, now: int64(time.Hour)}, journal: &memJournal{room: 1 << 20, holdRoom: 1 << 20, killAfter: -1}}
	l.cfg.Journal = l.journal
	l.tb = connect(locktable.New(l.cfg, l.now))
	l.tb.Up(l.now, 0, false, false)
	for s := range locktable.SessionID(4) {
		p := locktable.Peer{PID: int64(100 + s), Cmd: fmt.Sprintf("worker-%d", s+1)}
		l.tb.Open(l.now, s+1, p)
		l.journal.sessions = append(l.journal.sessions, locktable.RestoredSession{SessionRecord: l.tb.Record(s + 1), Peer: p})
	}
	return l
}

// takes has a session hold a lock.
func (l *restartHarness) takes(s locktable.SessionID, name string, opts ...opt) {
	l.Helper()
	l.acquire(s, name, opts...)
	l.redis(redisop.Take, redisop.Done)
	l.collect()
	l.log = nil
}

// killed ends the process: operations in flight get no result. A successor starts d later.
func (l *restartHarness) killed(d time.Duration) {
	l.killedUnread(d)
	l.collect()
}

// killedUnread is killed, and does not read the effects of Restore.
func (l *restartHarness) killedUnread(d time.Duration) {
	l.ops, l.log = nil, nil
	l.now += int64(d)
	l.tb = connect(locktable.New(l.cfg, l.now))
	l.tb.Restore(l.now, l.journal.snapshot())
	l.journal.calls = nil
}

// claims claims pairs of a hold and its entries.
func (l *restartHarness) claims(s locktable.SessionID, more bool, pairs ...uint64) bool {
	c := protocol.Claim{ID: 77, More: more}
	for i := 0; i < len(pairs); i += 2 {
		c.Holds = append(c.Holds, protocol.ClaimedHold{Hold: pairs[i], Entries: uint32(pairs[i+1])})
	}
	return l.tb.Claim(l.now, s, &c) == ""
}

func (l *restartHarness) row(name string) protocol.LockRow {
	row, _ := l.tb.Info(l.now, name)
	return row
}

func TestHoldIsRestored(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a", owner(7))
	l.acquire(1, "a", owner(7))
	l.redis(redisop.Renew, redisop.Done)
	before := l.row("a")
	l.killed(5 * time.Second)
	after := l.row("a")
	if !after.Absent || after.State != protocol.StateHeld || after.Hold != before.Hold || after.Token != before.Token || after.Count != 2 ||
		after.Owner != 7 || after.PID != 100 || after.HeldMS != 5000 || after.DeadlineNS != before.DeadlineNS {
		t.Fatalf("restored: %+v\nbefore: %+v", after, before)
	}
	l.quiet()
	l.tb.Up(l.now, 0, false, false)
	if op := l.redis(redisop.Renew, redisop.Done); op.HoldID != 1 || op.Count != 2 {
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

func TestWaitersAreNotRestored(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.acquire(2, "a")
	l.acquire(3, "a")
	l.killed(time.Second)
	if n := l.row("a").Waiting; n != 0 {
		t.Fatalf("%d wait", n)
	}
	l.tb.Up(l.now, 0, false, false)
	l.redis(redisop.Renew, redisop.Done)
	for s := locktable.SessionID(1); s <= 3; s++ {
		l.tb.Resume(s, locktable.Peer{})
		l.claims(s, false)
		if s == 1 {
			l.want("s1 claimed last=true") // what it does not claim it has released
			l.redis(redisop.Drop, redisop.Done)
		}
	}
	l.want("s2 claimed last=true", "s3 claimed last=true")
	l.acquire(3, "a")
	l.acquire(2, "a")
	if op := l.redis(redisop.Take, redisop.Done); op.HoldID <= 1 {
		t.Fatalf("a number is used again: %+v", op)
	}
	l.want("s3 granted hold=2 token=2 count=1")
}

func TestPendingDropsAreSentAfterRestore(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "released")
	l.release(1, 1)
	l.ops = nil // the drop is lost
	l.acquire(2, "asked for")
	l.killed(time.Second)
	l.quiet()
	if n := l.tb.PendingReleases(); n != 0 {
		t.Fatalf("it owes Redis %d locks, which cannot be asked", n)
	}
	l.tb.Up(l.now, 0, false, false)
	l.collect()
	if len(l.ops) != 2 || l.ops[0].Kind != redisop.Drop || l.ops[1].Kind != redisop.Drop {
		t.Fatalf("operations: %+v", l.ops)
	}
	for _, op := range l.ops {
		if want := map[string]uint64{"released": 1, "asked for": 2}[op.Name]; op.HoldID != want {
			t.Errorf("drop of %s is for %d, want %d", op.Name, op.HoldID, want)
		}
		l.tb.Result(l.now, redisop.Result{Kind: redisop.Drop, Name: op.Name, Outcome: redisop.Done, Sent: l.now})
	}
	l.ops = nil
	l.want()
	if m := l.journal.snapshot(); len(m.Locks) != 0 || m.LastHoldID != 2 {
		t.Fatalf("still stored: %+v", m)
	}
}

func TestLockIsStoredBeforeItsFirstOperation(t *testing.T) {
	l := newRestartHarness(t)
	l.collect()
	l.journal.calls = nil
	l.acquire(1, "a")
	if got := strings.Join(l.journal.calls, ", "); got != "last 1, lock a" {
		t.Fatalf("stored before the first take: %s", got)
	}
	l.redis(redisop.Take, redisop.HeldByOther)
	l.collect()
	if got := l.journal.calls[len(l.journal.calls)-1]; got != "delete lock a" {
		t.Fatalf("of another host's lock this is stored: %s", got)
	}
}

func TestClaimsComeInPages(t *testing.T) {
	l := newRestartHarness(t)
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
	l := newRestartHarness(t)
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

func TestClaimOfALostHoldIsAnsweredWithLost(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.takes(1, "b")
	l.takes(2, "c")
	l.killed(time.Second)
	l.tb.ForceRelease(l.now, 4, protocol.ForceRelease{ID: 1, Name: "a"})
	l.want("s1 lost hold=1 forced", "s4 forced hold=1")
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, true, 1, 1, 3, 1, 99, 1) // another client has 3, no client has 99
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

func TestRestoredHoldEndsAtItsDeadline(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.takes(1, "b", fixed(2*time.Second))
	l.takes(1, "c", maxHold(3*time.Second))
	l.killed(2500 * time.Millisecond)
	l.want("s1 lost hold=2 expired")
	l.pass(time.Second)
	l.want("s1 lost hold=3 max_hold")
	l.killed(time.Minute)
	l.want("s1 lost hold=1 expired")
	l.tb.Up(l.now, 0, false, false)
	l.collect()
	if len(l.ops) != 3 {
		t.Fatalf("giving back: %+v", l.ops)
	}
}

func TestCrashDelayIsRestored(t *testing.T) {
	l := newRestartHarness(t)
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

func TestUnservedSessionIsRestoredAsGivenUp(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.tb.Suspend(l.now, 1)
	l.collect()
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, false)
	l.redis(redisop.Renew, redisop.Done)
	l.pass(28600 * time.Millisecond)
	l.quiet() // not renewed
	l.want()
	l.pass(200 * time.Millisecond)
	l.want("s1 lost hold=1 expired")
}

func TestTheDeadAreReleasedAndTheOthersRunOut(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "dead")
	l.takes(2, "cannot come back")
	l.takes(3, "comes back")
	l.killed(time.Second)
	l.tb.Close(l.now, 1)
	l.tb.Suspend(l.now, 2)
	l.tb.Up(l.now, 0, false, false)
	l.collect()
	kinds := map[string]redisop.OpKind{}
	for _, op := range l.ops {
		kinds[op.Name] = op.Kind
		l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Done, Sent: l.now})
	}
	if kinds["dead"] != redisop.Drop || kinds["cannot come back"] != redisop.Renew || kinds["comes back"] != redisop.Renew {
		t.Fatalf("operations: %+v", l.ops)
	}
	l.ops = nil
	l.pass(11 * time.Second)
	if op := l.redis(redisop.Renew, redisop.Done); op.Name != "comes back" {
		t.Fatalf("renewed: %+v", op)
	}
}

func TestDropWaitersEndsAllRequests(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.acquire(2, "a")
	l.acquire(2, "b")
	l.tb.DropWaiters(l.now)
	l.want()
	if l.tb.InUse(2, l.ids) || l.row("a").Waiting != 0 {
		t.Fatal("a request waits")
	}
	if n := l.tb.PendingReleases(); n != 1 {
		t.Fatalf("it owes Redis %d locks, want 1", n)
	}
	l.tb.Release(l.now, 1, protocol.Release{Hold: 1}) // was read before
	l.want()
	for _, op := range l.ops {
		l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Done, Sent: l.now, Token: 100})
	}
	l.ops = nil
	l.collect()
	if len(l.ops) != 2 || l.ops[0].Kind != redisop.Drop || l.ops[1].Kind != redisop.Drop {
		t.Fatalf("operations: %+v", l.ops)
	}
	for _, op := range l.ops {
		l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Done, Sent: l.now})
	}
	l.want()
	if l.tb.PendingReleases() != 0 || len(l.journal.snapshot().Locks) != 0 {
		t.Fatal("something is left")
	}
}

func TestRestoreIgnoresLimits(t *testing.T) {
	l := newRestartHarness(t)
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
	l := newRestartHarness(t)
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
	if h := l.journal.snapshot().Holds[0]; h.Entries != 1 {
		t.Errorf("stored with %d entries", h.Entries)
	}
}

// unstored expects so many locks to lack room, and these ones to be stored.
func (l *restartHarness) unstored(n int, stored ...string) {
	l.Helper()
	var got []string
	for _, r := range l.journal.snapshot().Locks {
		got = append(got, r.Name)
	}
	if slices.Sort(got); l.tb.Unstored() != n || !slices.Equal(got, stored) {
		l.Fatalf("%d locks are not stored, want %d; stored are %q, want %q", l.tb.Unstored(), n, got, stored)
	}
}

func TestLockWithoutRoomIsStoredWhenThereIsRoom(t *testing.T) {
	l := newRestartHarness(t)
	l.journal.room = 1
	for _, name := range []string{"a", "b", "c", "d"} {
		l.takes(1, name)
	}
	l.unstored(3, "a")
	l.tb.RetryJournal()
	l.journal.calls = nil
	l.collect()
	if len(l.journal.calls) != 1 {
		t.Errorf("with no room for any lock the journal was called %q", l.journal.calls)
	}
	l.journal.room = 3
	l.unstored(3, "a")
	l.tb.RetryJournal()
	l.collect()
	l.unstored(1, "a", "c", "d")
	l.journal.calls = nil
	l.collect()
	if len(l.journal.calls) != 0 {
		t.Errorf("one RetryJournal is good for one round, and then the journal was called %q", l.journal.calls)
	}
	l.journal.room = 4
	l.pass(renewed) // what changes is offered again in any case
	l.unstored(0, "a", "b", "c", "d")
}

func TestLockWithoutRoomCountsUntilItEnds(t *testing.T) {
	l := newRestartHarness(t)
	l.journal.room = 1
	l.takes(1, "a") // hold 1
	l.takes(2, "b") // hold 2
	l.takes(3, "c")
	l.unstored(2, "a")
	l.release(2, 2)
	l.collect()
	l.unstored(2, "a") // Redis still has it
	l.redis(redisop.Drop, redisop.Done)
	l.collect()
	l.unstored(1, "a")
	l.tb.Close(l.now, 3)
	l.redis(redisop.Drop, redisop.Done)
	l.collect()
	l.unstored(0, "a")

	// The room of a lock that ends is room for another one.
	l.takes(2, "b") // hold 4
	l.unstored(1, "a")
	l.release(1, 1)
	l.redis(redisop.Drop, redisop.Done)
	l.tb.RetryJournal()
	l.collect()
	l.unstored(0, "b")
}

// A client that resumes its session may still believe in a hold that its sidecar knows is
// lost. A lease event would be about that hold too.
func TestLostPrecedesLeaseAfterRestore(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.takes(1, "b")
	l.killed(time.Second)
	l.tb.Resume(1, locktable.Peer{})
	l.tb.ForceRelease(l.now, 2, protocol.ForceRelease{ID: 1, Name: "a"})
	l.tb.Up(l.now, 0, false, false)
	l.collect()
	for _, op := range l.ops {
		l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Done, Sent: l.now})
	}
	l.ops = nil
	l.want("s1 lost hold=1 forced", "s2 forced hold=1")
	l.claims(1, false, 1, 1, 2, 1)
	l.want("s1 lost hold=1 forgotten", "s1 lease +29s", "s1 claimed last=true")
}

// Its client was sent 30 s, and may believe that when the successor is dead, too.
func TestAShorterLeaseBreaksNoOlderPromise(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.takes(2, "b")
	l.cfg.Lease = time.Second
	l.killed(5 * time.Second)
	l.tb.Suspend(l.now, 2) // it cannot come back
	l.tb.Up(l.now, 0, false, false)
	l.collect()
	for _, op := range l.ops {
		if op.LeaseMS < 24_900 {
			t.Errorf("confirming: %+v", op)
		}
		l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Done, Sent: l.now})
	}
	l.ops = nil
	l.quiet() // and is content with that
	l.pass(400 * time.Millisecond)
	if op := l.redis(redisop.Renew, redisop.Done); op.Name != "a" || op.LeaseMS < 24_500 {
		t.Fatalf("renewing: %+v", op)
	}
}

// The deadline that was sent under the longer lease is later than all others for a while.
func TestStaleLongDeadlineDoesNotSuppressLeaseEvents(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.cfg.Lease = time.Second
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, false)
	l.redis(redisop.Renew, redisop.Done)
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, false, 1, 1)
	l.want("s1 lease +29s", "s1 claimed last=true")
	l.takes(1, "b")
	for range 20 {
		l.pass(100 * time.Millisecond)
		l.collect()
		for _, op := range l.ops {
			l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Done, Sent: l.now})
		}
		l.ops = nil
	}
	if len(l.log) < 4 || strings.Contains(strings.Join(l.log, "\n"), "lost") {
		t.Fatalf("got %q", l.log)
	}
}

// Redis refuses to renew the hold whose client was sent a late deadline before the restart.
func TestAHoldThatCannotBeRenewedDoesNotKeepTheOthersDown(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.cfg.Lease = time.Second
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, false)
	l.redis(redisop.Renew, redisop.Done)
	l.tb.Resume(1, locktable.Peer{})
	l.claims(1, false, 1, 1)
	l.takes(1, "b")
	for range 20 {
		l.pass(100 * time.Millisecond)
		l.collect()
		for _, op := range l.ops {
			outcome := redisop.Done
			if op.Name == "a" {
				outcome = redisop.Refused
			}
			l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: outcome, Sent: l.now, Msg: "NOPERM"})
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

// The key lives until the deadline that the dead client was sent, and so does the hold.
func TestCrashDelayAfterRestartBeginsWithTheDeadlineSentBefore(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a", crash(time.Minute))
	l.cfg.Lease = time.Second
	l.killed(time.Second)
	l.tb.Close(l.now, 1)
	l.pass(20 * time.Second) // Redis cannot be reached
	if row := l.row("a"); !row.Orphan || row.State != protocol.StateHeld {
		t.Fatalf("a: %+v", row)
	}
}

// The Renew in flight gave the key the lease that covers the old deadline. Its result comes when no
// client is left that could believe in that deadline, and the crash delay is not over.
func TestCrashDelayUnderAShorterLeaseOutlivesTheRenewalInFlight(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a", crash(time.Minute))
	l.cfg.Lease = time.Second
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, false)
	l.collect()
	sent := l.now
	l.tb.Close(l.now, 1)
	l.now += int64(2 * time.Second)
	op := l.ops[0]
	l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Done, Sent: sent})
	if row := l.row("a"); !row.Orphan || row.State != protocol.StateHeld {
		t.Fatalf("a: %+v", row)
	}
}

// Redis lost its data, and the daemon died before it had asserted its holds. The successor
// finds the same run of Redis, and cannot know.
func TestHoldInDoubtIsAssertedAfterRestore(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.tb.Down(l.now, 0, "gone")
	l.tb.Up(l.now, 0, true, false)
	l.collect()
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, false)
	if op := l.redis(redisop.Take, redisop.Done); op.Has(redisop.RequireExisting) || op.HoldID != 1 {
		t.Fatalf("asserting: %+v", op)
	}
	l.collect()
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, false)
	l.redis(redisop.Renew, redisop.KeyMissing)
	l.want("s1 lost hold=1 deleted")
}

// The process may die between any two calls. A session's last deadline may become an
// earlier one when no hold needs the later one any more: the holds are stored first.
func TestSessionsAndHoldsAreStoredInAnOrderThatIsTrue(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.pass(renewed)
	l.redis(redisop.Renew, redisop.Done)
	l.collect() // with a lease event
	l.killedUnread(time.Second)
	l.collect()
	if got := strings.Join(l.journal.calls, ", "); got != "lock a, hold 1, session 1" {
		t.Errorf("after a restart: %s", got)
	}
	l.journal.calls = nil
	l.tb.Suspend(l.now, 1)
	l.collect()
	if got := strings.Join(l.journal.calls, ", "); got != "session 1, lock a, hold 1" {
		t.Errorf("detaching: %s", got)
	}

	// Detached, and killed before its hold was stored as unserved.
	l.journal.holds[0].Phase, l.journal.holds[0].LeaseMS = locktable.HoldLive, 0
	l.killed(time.Second)
	if row := l.row("a"); row.LeaseMS == 0 {
		t.Errorf("a hold is renewed although its session is not served: %+v", row)
	}
}

// The records of a handoff: at no time does the journal have two holds of the lock, or a
// hold with a larger number than the lock.
func TestHandoffDeletesTheEndedHoldBeforeItStoresTheNext(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.acquire(2, "a")
	l.redis(redisop.Take, redisop.Done) // for a token
	l.collect()
	l.journal.calls = nil
	l.release(1, 1)
	l.want("s1 released count=0", "s2 granted hold=2 token=2 count=1")
	if got := strings.Join(l.journal.calls, ", "); got != "last 2, delete hold 1, lock a, hold 2, session 2" {
		t.Errorf("stored: %s", got)
	}
	l.journal.calls = nil
	l.release(2, 2)
	l.collect()
	if got := strings.Join(l.journal.calls, ", "); got != "delete hold 2, lock a" {
		t.Errorf("stored: %s", got)
	}
	l.journal.calls = nil
	l.redis(redisop.Drop, redisop.Done)
	l.collect()
	if got := strings.Join(l.journal.calls, ", "); got != "delete lock a" {
		t.Errorf("stored: %s", got)
	}
}

// A hold ends, and its lock with it, in one step: the hold is deleted first.
func TestHoldIsDeletedBeforeItsLock(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.pass(renewed)
	l.journal.calls = nil
	l.redis(redisop.Renew, redisop.KeyMissing)
	l.want("s1 lost hold=1 deleted")
	if got := strings.Join(l.journal.calls, ", "); got != "delete hold 1, delete lock a" {
		t.Errorf("stored: %s", got)
	}
}

// A process dies after each number of calls that a handoff makes. Its clients have not been
// answered, so the successor has the old hold, or none and drops what Redis has, or the new
// one.
func TestHandoffSurvivesDeathAfterEveryCall(t *testing.T) {
	for calls, want := range []struct {
		hold uint64
		kind redisop.OpKind
		num  uint64
	}{
		{1, redisop.Renew, 1}, // none
		{1, redisop.Renew, 1}, // last 2
		{0, redisop.Drop, 1},  // delete hold 1
		{0, redisop.Drop, 2},  // lock a
		{2, redisop.Renew, 2}, // hold 2
		{2, redisop.Renew, 2}, // session 2
	} {
		l := newRestartHarness(t)
		l.takes(1, "a")
		l.acquire(2, "a")
		l.redis(redisop.Take, redisop.Done)
		l.collect()
		l.journal.killAfter = calls
		l.release(1, 1)
		l.collect()
		l.journal.killAfter = -1
		l.killed(time.Second)
		if row := l.row("a"); row.Hold != want.hold {
			t.Errorf("after %d calls hold %d is restored, want %d", calls, row.Hold, want.hold)
		}
		l.tb.Up(l.now, 0, false, false)
		l.collect()
		if len(l.ops) != 1 || l.ops[0].Kind != want.kind || l.ops[0].HoldID != want.num {
			t.Errorf("after %d calls: %+v, want a %v for hold %d", calls, l.ops, want.kind, want.num)
		}
	}
}

// A step hands two locks over, and the process dies after each number of calls that it makes. Each
// lock has its old hold, or none, or the next one; and Redis is asked for just that.
func TestTwoHandoffsSurviveDeathAfterEveryCall(t *testing.T) {
	for calls := range 12 {
		l := newRestartHarness(t)
		l.takes(1, "a")
		l.takes(1, "b")
		for _, name := range []string{"a", "b"} {
			l.acquire(2, name)
			l.redis(redisop.Take, redisop.Done)
			l.collect()
		}
		old := map[string]uint64{"a": l.row("a").Hold, "b": l.row("b").Hold}
		l.journal.killAfter = calls
		for _, hold := range old {
			l.tb.Release(l.now, 1, protocol.Release{ID: 90 + hold, Hold: hold})
		}
		l.collect()
		l.journal.killAfter = -1
		l.killed(time.Second)
		l.tb.Up(l.now, 0, false, false)
		l.collect()
		if len(l.ops) != 2 {
			t.Fatalf("after %d calls: operations %+v, want one for each lock", calls, l.ops)
		}
		for _, op := range l.ops {
			switch row := l.row(op.Name); {
			case op.HoldID < old[op.Name]:
				t.Errorf("after %d calls: %+v is for an earlier hold than %d", calls, op, old[op.Name])
			case row.Hold != 0 && (op.Kind != redisop.Renew || op.HoldID != row.Hold):
				t.Errorf("after %d calls: %+v, and %s has hold %d", calls, op, op.Name, row.Hold)
			case row.Hold == 0 && op.Kind != redisop.Drop:
				t.Errorf("after %d calls: %+v, and %s has no hold", calls, op, op.Name)
			}
		}
	}
}

// The journal has room for a lock and not for its hold.
func TestHoldWithoutRoomIsStoredWhenThereIsRoom(t *testing.T) {
	l := newRestartHarness(t)
	l.journal.holdRoom = 1
	l.takes(1, "a")
	l.takes(2, "b")
	l.unstored(1, "a", "b")
	l.journal.holdRoom = 2
	l.tb.RetryJournal()
	l.collect()
	l.unstored(0, "a", "b")
	if holds := l.journal.snapshot().Holds; len(holds) != 2 || holds[1].ID != 2 {
		t.Errorf("stored: %+v", holds)
	}
	l.journal.calls = nil
	l.release(2, 2)
	l.collect()
	if got := strings.Join(l.journal.calls, ", "); got != "delete hold 2, lock b" {
		t.Errorf("stored: %s", got)
	}
	l.redis(redisop.Drop, redisop.Done)

	l.takes(3, "c") // in the place of hold 2
	l.takes(4, "d")
	l.unstored(1, "a", "c", "d")
	l.release(4, 4)
	l.collect()
	l.unstored(0, "a", "c", "d")
}

// Each phase of a hold is restored as what a successor makes of it.
func TestPhaseOfAHoldIsRestored(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "live")
	l.takes(2, "unserved")
	l.tb.Suspend(l.now, 2)
	l.takes(3, "crash delayed", crash(time.Minute))
	l.takes(3, "given up", crash(time.Minute), fixed(20*time.Second))
	l.tb.Close(l.now, 3)
	l.takes(4, "unrenewable")
	l.pass(11 * time.Second)
	l.collect()
	for _, op := range l.ops {
		outcome := redisop.Done
		if op.Name == "unrenewable" {
			outcome = redisop.Refused
		}
		l.tb.Result(l.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: outcome, Sent: l.now, Msg: "NOPERM"})
	}
	l.collect()
	for name, want := range map[string]locktable.HoldPhase{
		"live": locktable.HoldLive, "unserved": locktable.HoldUnserved, "crash delayed": locktable.HoldCrashDelayed,
		"given up": locktable.HoldGivenUp, "unrenewable": locktable.HoldUnrenewable,
	} {
		m := l.journal.snapshot()
		i := slices.IndexFunc(m.Holds, func(h locktable.RestoredHold) bool { return m.Locks[h.Lock].Name == name })
		if i < 0 || m.Holds[i].Phase != want {
			t.Fatalf("%s: stored is %+v", name, m.Holds)
		}
	}
	l.cfg.Lease = 10 * time.Second
	l.killed(time.Second)
	for name, want := range map[string]struct {
		orphan bool
		lease  int64
	}{
		"live": {false, 0}, "unserved": {false, 30_000}, "crash delayed": {true, 0}, "given up": {true, 20_000}, "unrenewable": {false, 0},
	} {
		if row := l.row(name); row.State != protocol.StateHeld || row.Orphan != want.orphan || row.LeaseMS != want.lease {
			t.Errorf("%s: %+v", name, row)
		}
	}
}

// The last claim of a process may be read after its end was noticed.
func TestClaimOfAClosedSessionHasNoEffect(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.killed(time.Second)
	l.tb.Resume(1, locktable.Peer{})
	l.tb.Close(l.now, 1)
	if l.tb.Claim(l.now, 1, &protocol.Claim{ID: 9, Holds: []protocol.ClaimedHold{{Hold: 1, Entries: 1}}}) != "" {
		t.Error("the claim of a dead client is a fault")
	}
	l.want()
}

// The state file lacks the session of a hold: no client can come back for it. It ends at its
// deadline.
func TestHoldWithoutASessionEnds(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a")
	l.journal.sessions = l.journal.sessions[1:]
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, false)
	for end := l.now + int64(lease+time.Second); l.now < end; {
		if l.collect(); len(l.ops) > 0 {
			l.redis(l.ops[0].Kind, redisop.Done)
		}
		l.pass(100 * time.Millisecond)
	}
	l.forgotten()
}
