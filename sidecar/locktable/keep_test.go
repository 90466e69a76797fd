package locktable_test

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

func keep(d time.Duration) opt { return func(a *protocol.Acquire) { a.KeepMS = d.Milliseconds() } }

// keepsFor expects that Redis has the key of an operation for d, by any clock, and not for much
// longer.
func (r *rig) keepsFor(op redisop.Op, d time.Duration) {
	r.Helper()
	lease := time.Duration(op.LeaseMS) * time.Millisecond
	if valid := lease - lease/100 - 2*time.Millisecond; valid < d || lease > d+d/50+10*time.Millisecond {
		r.Fatalf("the key is given %v, of which %v are valid; the keep has %v left", lease, valid, d)
	}
}

// isKept expects the lock "a" to be kept, and that nothing is sent to Redis for it.
func (r *rig) isKept(left time.Duration) {
	r.Helper()
	r.quiet()
	row, ok := r.tb.Info(r.now, "a")
	if !ok || row.State != protocol.StateHeld || !row.Orphan || row.KeepLeftMS != left.Milliseconds() || row.DeadlineNS != r.now+int64(left) {
		r.Fatalf("the lock is not kept for %v: %+v", left, row)
	}
}

// isDropped expects the lock "a" to be released in Redis.
func (r *rig) isDropped() {
	r.Helper()
	r.redis(redisop.Drop, redisop.Done)
	r.collect()
	r.log = nil
	if row, ok := r.tb.Info(r.now, "a"); ok {
		r.Fatalf("the table still knows the lock: %+v", row)
	}
}

// passAnswered is pass, and answers each operation with Done.
func (r *rig) passAnswered(d time.Duration) {
	for end := r.now + int64(d); r.now < end; {
		r.pass(time.Duration(min(end-r.now, int64(100*time.Millisecond))))
		r.answerAll()
	}
	r.log = nil
}

func TestReleasedLockIsKept(t *testing.T) {
	const whole = 50 * time.Second
	r := newRig(t)
	r.acquire(1, "a", keep(whole))
	r.keepsFor(r.redis(redisop.Take, redisop.Done), whole)
	r.want("s1 granted hold=1 token=1 count=1")
	r.pass(time.Second)
	r.release(1, 1)
	r.want("s1 released count=0")
	r.isKept(whole - time.Second)

	r.release(1, 1)
	r.want("s1 refused not_held")
	r.acquire(2, "a", wait(0))
	r.refused(2, protocol.Timeout, "kept for another 49s: the last hold was by pid 100 (worker-1)")
	r.acquire(1, "a", wait(0), owner(1))
	r.refused(1, protocol.Timeout, "kept for another 49s")
	r.pass(whole - 2*time.Second)
	r.want()
	r.isKept(time.Second)
	r.pass(time.Second)
	r.isDropped()
}

// However a hold ends for its client, the lock is kept, and then released. The crash delay and the
// keep are counted side by side: the later end counts.
func TestLockIsKeptHoweverItsHoldEnds(t *testing.T) {
	for _, tt := range []struct {
		says  string
		opts  []opt
		after time.Duration // after the grant
		ends  func(r *rig)
		want  string
		until time.Duration
	}{
		{"its session ends", nil, time.Second, func(r *rig) { r.tb.Close(r.now, 1) }, "", 20 * time.Second},
		{"its session is not served, and the lease passes", []opt{fixed(15 * time.Second)}, 15 * time.Second, func(r *rig) { r.tb.Suspend(r.now, 1) }, "s1 lost hold=1 expired", 20 * time.Second},
		{"the crash delay is shorter", []opt{crash(time.Second)}, time.Second, func(r *rig) { r.tb.Close(r.now, 1); r.passAnswered(time.Second) }, "", 20 * time.Second},
		{"max_hold passes", []opt{maxHold(2 * time.Second)}, 2 * time.Second, func(*rig) {}, "s1 lost hold=1 max_hold", 20 * time.Second},
		{"its lease passes", []opt{fixed(2 * time.Second)}, 2 * time.Second, func(*rig) {}, "s1 lost hold=1 expired", 20 * time.Second},
		{"it is released twice, and was entered twice", []opt{owner(1)}, time.Second, func(r *rig) {
			r.acquire(1, "a", owner(1), keep(time.Hour)) // the first entry counts
			r.answerAll()
			r.release(1, 1)
			r.release(1, 1)
			r.answerAll()
			r.log = nil
		}, "", 20 * time.Second},
	} {
		t.Run(tt.says, func(t *testing.T) {
			r := newRig(t)
			r.acquire(1, "a", append(tt.opts, keep(20*time.Second))...)
			r.redis(redisop.Take, redisop.Done)
			r.collect()
			granted := r.now
			r.log = nil
			r.pass(tt.after)
			r.answerAll()
			tt.ends(r)
			if tt.want == "" {
				r.want()
			} else {
				r.want(tt.want)
			}
			left := time.Duration(granted + int64(tt.until) - r.now)
			r.isKept(left)
			r.pass(left - time.Millisecond)
			r.isKept(time.Millisecond)
			r.pass(time.Millisecond)
			r.isDropped()
		})
	}
}

func TestCrashDelayAfterTheEndOfTheKeepCounts(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", crash(10*time.Second), keep(2*time.Second))
	r.redis(redisop.Take, redisop.Done)
	r.pass(time.Second)
	r.tb.Close(r.now, 1)
	r.passAnswered(9900 * time.Millisecond)
	if row, _ := r.tb.Info(r.now, "a"); !row.Orphan || row.KeepLeftMS != 0 {
		t.Fatalf("during its crash delay: %+v", row)
	}
	r.pass(200 * time.Millisecond)
	r.isDropped()
}

func TestHoldThatOutlivesItsKeepEndsWithItsRelease(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", keep(time.Second))
	r.redis(redisop.Take, redisop.Done)
	r.pass(time.Second)
	r.release(1, 1)
	r.isDropped()
}

// If the host dies, nothing but the expiry of the key keeps the lock. So Redis has the key for all
// of the keep from the grant on, and each operation on it leaves that so.
//
// Shows docs/guarantees.md: A lock with a keep stays held until so long after its grant.
func TestEachOperationLeavesTheKeyForTheWholeKeep(t *testing.T) {
	const whole = 10 * time.Minute
	r := newRig(t)
	r.acquire(1, "a", owner(1), keep(whole))
	r.keepsFor(r.redis(redisop.Take, redisop.Done), whole)
	granted := r.now
	left := func() time.Duration { return whole - time.Duration(r.now-granted) }
	r.collect()
	given := r.now
	for range 20 {
		for len(r.ops) == 0 {
			r.pass(10 * time.Millisecond)
			r.collect()
		}
		if at := time.Duration(r.now - given); at < lease/4 || at > renewed {
			t.Fatalf("it is renewed after %v, want a third of the lease", at)
		}
		given = r.now
		r.keepsFor(r.redis(redisop.Renew, redisop.Done), left())
	}
	r.acquire(1, "a", owner(1)) // another entry
	r.keepsFor(r.redis(redisop.Renew, redisop.Done), left())
	r.tb.Up(r.now, 0, true, false) // Redis may have lost its data: the hold is asserted
	r.keepsFor(r.redis(redisop.Take, redisop.Done), left())
	r.log = nil
	r.tb.Close(r.now, 1)
	r.isKept(left())
	r.tb.Up(r.now, 0, true, false)
	r.keepsFor(r.redis(redisop.Take, redisop.Done), left())
	r.isKept(left())
}

// A client that relies on the lease is not sent the expiry of the key.
func TestKeepDoesNotMakeADeadlineLater(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", owner(1), keep(time.Hour))
	r.redis(redisop.Take, redisop.Done)
	for range 3 {
		if d := r.deadline() - time.Duration(r.now); d > lease {
			t.Fatalf("the client may rely on the hold for %v, and the lease is %v", d, lease)
		}
		r.acquire(1, "a", owner(1))
		r.answerAll()
	}
	r.tb.Down(r.now, 0, "gone")
	r.log = nil
	r.pass(lease)
	r.want("s1 lost hold=1 expired")
	r.isKept(time.Hour - lease)
}

// A lock that comes to a request without an operation of its own, from another local client or
// from another host, has too short an expiry. It is granted when Redis has it for the whole keep.
//
// Shows docs/guarantees.md: A lock with a keep stays held until so long after its grant.
func TestKeepIsInRedisBeforeTheGrant(t *testing.T) {
	t.Run("from a local client", func(t *testing.T) {
		r := newRig(t)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.acquire(2, "a", keep(time.Minute))
		r.answerAll() // tokens are reserved
		r.log = nil
		r.release(1, 1)
		r.want("s1 released count=0")
		r.keepsFor(r.redis(redisop.Take, redisop.Done), time.Minute)
		r.want("s2 granted hold=2 token=66 count=1")
	})
	t.Run("from another host", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a", keep(time.Minute))
		ticket := r.queued(0).HoldID
		r.log = nil
		r.transfer(ticket, 40)
		r.want()
		r.keepsFor(r.redis(redisop.Take, redisop.Done), time.Minute)
		r.collect()
		if len(r.log) != 1 || !strings.Contains(r.log[0], "granted") {
			t.Fatalf("%q", r.log)
		}
	})
	t.Run("from a request that was canceled", func(t *testing.T) {
		r := newRig(t)
		id := r.acquire(1, "a")
		r.acquire(2, "a", keep(time.Minute))
		r.tb.Cancel(r.now, 1, protocol.Cancel{Target: id})
		r.redis(redisop.Take, redisop.Done)
		r.want("s1 refused canceled")
		r.keepsFor(r.redis(redisop.Take, redisop.Done), time.Minute)
		r.want("s2 granted hold=2 token=2 count=1")
	})
}

// A keep never becomes longer than what Redis has: what the answer of Redis took is taken from it.
func TestKeepEndsNoLaterThanTheKey(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", keep(40*time.Second))
	op := r.ops[0]
	r.ops = nil
	sent := r.now
	r.pass(5 * time.Second)
	r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: sent, Token: 1})
	row, _ := r.tb.Info(r.now, "a")
	if left := row.KeepLeftMS; left < 34_999 || left > 35_500 {
		t.Fatalf("granted 5 s after the key was given 40 s: kept for another %d ms", left)
	}
}

// The next hold is not left with the long expiry of a kept lock, if it was forced free.
func TestForceReleaseEndsAKeep(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", keep(time.Hour))
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.log = nil
	r.tb.ForceRelease(r.now, 2, protocol.ForceRelease{ID: 9, Name: "a"})
	r.want("keep of hold=1 lost: forced", "s2 forced hold=1")
	r.isDropped()

	r.acquire(1, "a", keep(time.Hour))
	r.redis(redisop.Take, redisop.Done)
	hold := r.lastHold()
	r.acquire(2, "a", fixed(time.Minute))
	r.answerAll()
	r.release(1, hold)
	r.log = nil
	r.tb.ForceRelease(r.now, 3, protocol.ForceRelease{ID: 9, Name: "a"})
	for len(r.ops) == 0 {
		r.pass(time.Millisecond)
		r.collect()
	}
	if op := r.redis(redisop.Renew, redisop.Done); op.LeaseMS > 61_000 {
		t.Fatalf("the next hold has a fixed lease of a minute, and its key lives for %d ms", op.LeaseMS)
	}
}

// Another program takes a kept lock: only operators are interested.
func TestKeepThatRedisLostIsLogged(t *testing.T) {
	for outcome, line := range map[redisop.Outcome]string{
		redisop.HeldByOther: "keep of hold=1 lost: stolen", redisop.KeyMissing: "keep of hold=1 lost: deleted",
	} {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a", keep(time.Hour))
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 1)
		r.acquire(2, "a")
		r.log = nil
		for len(r.ops) == 0 {
			r.pass(time.Millisecond)
			r.collect()
		}
		r.redis(redisop.Check, outcome)
		r.collect()
		if len(r.log) < 2 || r.log[1] != line {
			t.Errorf("%q, want %q", r.log, line)
		}
	}
}

// What keeps the lock is in Redis since the grant.
func TestReleaseOfAKeptLockIsConfirmedAtOnce(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", keep(time.Hour))
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.log = nil
	r.tb.Confirm(r.now, 1, protocol.Confirm{ID: 8, Name: "a"})
	r.want("s1 confirmed 8")
	r.quiet()
}

// A hot lock lingers after its release, and the next local acquire is granted at once. A kept
// one does not.
func TestKeptLockDoesNotLinger(t *testing.T) {
	r := newLingeringRig(t, locktable.Config{})
	for i := range 3 {
		r.acquire(1, "a", keep(time.Minute))
		r.answerAll()
		r.log = nil
		r.release(1, r.lastHold())
		r.want("s1 released count=0")
		r.isKept(time.Minute)
		r.acquire(2, "a", wait(0))
		r.refused(2, protocol.Timeout, "kept for another 1m0s")
		if i < 2 {
			r.tb.EndHolds(r.now, "a", 0)
			r.answerAll()
			r.log = nil
		}
	}
}

func TestKeptHoldCountsForItsQuotaAndItsUser(t *testing.T) {
	r := newUsersRig(t, locktable.Config{MaxLocks: 32}, 1000, 1000)
	q := quota("holds", 10)
	for id := range locktable.SessionID(2) {
		r.tb.Bind(id+1, &locktable.Terms{Holds: holdsOf(q)})
	}
	for n := range uint64(3) {
		r.tb.Acquire(r.now, 1, protocol.Acquire{ID: n + 1, Name: "k" + itoa(n), WaitMS: protocol.Forever, KeepMS: 60_000})
		r.redisDoesAll()
		r.tb.Release(r.now, 1, protocol.Release{Hold: n + 1})
		r.redisDoesAll()
	}
	r.tb.Close(r.now, 1)
	r.redisDoesAll()
	if q.Used() != 3 {
		t.Errorf("%d holds are counted, want 3", q.Used())
	}
	if n := r.takes(2, "b"); n != 7 {
		t.Errorf("%d holds more, want 7", n)
	}
	r.passAnswered(61 * time.Second)
	if q.Used() != 7 {
		t.Errorf("%d holds are counted after the keeps, want 7", q.Used())
	}
}

func TestKeepIsRestored(t *testing.T) {
	const whole = 50 * time.Second
	for _, tt := range []struct {
		says   string
		before func(l *restartHarness)
		after  func(l *restartHarness)
	}{
		{"of a released lock", func(l *restartHarness) { l.release(1, 1) }, func(*restartHarness) {}},
		{"of a lock whose client is dead", func(*restartHarness) {}, func(l *restartHarness) { l.tb.Close(l.now, 1) }},
		{"of a session that is not known", func(l *restartHarness) { l.release(1, 1); l.journal.sessions = nil }, func(*restartHarness) {}},
		{"of a hold that its client does not claim", func(*restartHarness) {}, func(l *restartHarness) {
			l.tb.Resume(1, locktable.Peer{PID: 100, Cmd: "worker-1"})
			l.claims(1, false)
			l.collect()
			l.log = nil
		}},
		{"of a hold that its client claims and releases", func(*restartHarness) {}, func(l *restartHarness) {
			l.tb.Resume(1, locktable.Peer{PID: 100, Cmd: "worker-1"})
			l.claims(1, false, 1, 1)
			l.release(1, 1)
			l.log = nil
		}},
	} {
		t.Run(tt.says, func(t *testing.T) {
			l := newRestartHarness(t)
			l.takes(1, "a", keep(whole))
			l.pass(time.Second)
			tt.before(l)
			l.log = nil
			l.killed(4 * time.Second)
			tt.after(l)
			l.want()
			l.isKept(45 * time.Second)
			l.tb.Up(l.now, 0, false, false)
			l.keepsFor(l.redis(redisop.Renew, redisop.Done), 45*time.Second)
			l.isKept(45 * time.Second)
			l.pass(45*time.Second - time.Millisecond)
			l.isKept(time.Millisecond)
			l.pass(time.Millisecond)
			l.isDropped()
		})
	}
}

// The state file has room for a hold without its end, so the table must not lose the keep itself.
func TestKeepOfAHoldThatEndedIsForgotten(t *testing.T) {
	l := newRestartHarness(t)
	l.takes(1, "a", keep(time.Second))
	l.pass(2 * time.Second)
	l.release(1, 1)
	l.isDropped()
	if m := l.journal.snapshot(); len(m.Holds)+len(m.Locks) != 0 {
		t.Errorf("%+v", m)
	}
}

// A claim covers a keep only while its key is as it was made for the keep. Others may be granted with
// the claim from before while the Take is in flight, and change the key's expiry.
func TestClaimOfAnotherLeaseIsNotThatOfAKeep(t *testing.T) {
	keeps := keep(10 * time.Second)
	r := newListeningRig(t, locktable.Config{Lease: time.Second, Contest: contest.Config{Linger: moment.SpanOf(0)}})
	r.acquire(1, "a", owner(1))
	r.redis(redisop.Take, redisop.Done)
	waiter := r.acquire(2, "a", keeps)
	r.redis(redisop.Take, redisop.Done) // tokens
	r.release(1, 1)
	r.collect()
	if len(r.ops) != 1 || r.ops[0].Kind != redisop.Take || r.ops[0].LeaseMS < 10_000 {
		t.Fatalf("in flight: %+v", r.ops)
	}
	take := r.ops[0]
	r.ops = nil
	r.tb.Cancel(r.now, 2, protocol.Cancel{ID: 99, Target: waiter})
	r.acquire(3, "a")
	r.log = nil
	r.tb.Result(r.now, redisop.Result{Kind: take.Kind, Name: "a", Sent: r.now, Token: 1000})
	r.acquire(2, "a", keeps)
	r.log = nil
	r.release(3, 3)
	r.want("s3 released count=0")
	r.redis(redisop.Renew, redisop.Done) // of the hold that has ended
	r.keepsFor(r.redis(redisop.Take, redisop.Done), 10*time.Second)
	r.want("s2 granted hold=4 token=66 count=1")
}

// A Take that is in flight for another waiter may give the key a shorter expiry than the keep needs.
func TestClaimIsNotThatOfAKeepWhileATakeMayShortenIt(t *testing.T) {
	keeps := keep(10 * time.Second)
	r := newListeningRig(t, locktable.Config{Lease: time.Second, Contest: contest.Config{Linger: moment.SpanOf(0)}})
	first := r.acquire(1, "a", keeps)
	r.collect()
	take := r.ops[0]
	r.ops = nil
	r.pass(5 * time.Second)
	second := r.acquire(2, "a", fixed(8*time.Second))
	r.cancel(1, first)
	r.tb.Result(r.now, redisop.Result{Kind: take.Kind, Name: "a", Sent: r.now - int64(5*time.Second), Token: 1000})
	r.collect()
	if len(r.ops) != 1 || r.ops[0].Kind != redisop.Take || r.ops[0].LeaseMS != 8000 {
		t.Fatalf("in flight: %+v", r.ops)
	}
	r.cancel(2, second)
	r.log = nil
	r.acquire(3, "a", keeps)
	r.want()
	r.redis(redisop.Take, redisop.Done)
	r.want()
	r.keepsFor(r.redis(redisop.Take, redisop.Done), 10*time.Second)
	r.want("s3 granted hold=3 token=2 count=1")
}
