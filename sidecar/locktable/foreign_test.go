package locktable_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Other programs on the same Redis: those that poll and do not subscribe, those that
// delete or overwrite a key, those that break a token counter.

// answer answers the only operation in flight with r, whose kind and name it fills in.
func (r *rig) answer(kind redisop.OpKind, res redisop.Result) redisop.Op {
	r.Helper()
	r.collect()
	if len(r.ops) != 1 || r.ops[0].Kind != kind {
		r.Fatalf("operations in flight: %+v, want one of kind %d", r.ops, kind)
	}
	op := r.ops[0]
	r.ops = nil
	res.Kind, res.Name, res.Sent = kind, op.Name, r.now
	r.tb.Result(r.now, res)
	r.collect()
	return op
}

// message is a release by another program.
func (r *rig) message(name string) {
	r.tb.Message(r.now, redisop.Message{Name: name})
	r.collect()
}

// handoffs passes the lock "a" between sessions 1 and 2, which hold it for a millisecond
// each, until the table gives it back, and returns how long that took.
func (r *rig) handoffs(first uint64) time.Duration {
	r.Helper()
	begin := r.now
	hold := first
	for s := locktable.SessionID(1); time.Duration(r.now-begin) < time.Second; s = 3 - s {
		r.pass(time.Millisecond)
		r.collect()
		for _, op := range r.ops { // a mirror, or tokens that are drawn
			r.tokens += uint64(op.Reserve)
			r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: r.tokens, Listeners: listeners(r.others)})
		}
		r.ops = nil
		r.acquire(s, "a")
		r.release(s, hold)
		r.collect()
		if len(r.ops) > 0 && r.ops[len(r.ops)-1].Kind == redisop.Drop {
			return time.Duration(r.now - begin)
		}
		hold++
	}
	r.Fatal("the lock is not given back within a second")
	panic("unreachable")
}

// Shows docs/queue.md: Free moments.
func TestRunOfHandoffsLeavesTheKeyFreeNowAndThen(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	if d := r.handoffs(1); d < 100*time.Millisecond || d > 110*time.Millisecond {
		t.Fatalf("the lock is given back after %v", d)
	}
	r.redis(redisop.Drop, redisop.Done)
	r.log = nil
	r.pass(3 * time.Millisecond)
	r.quiet() // a client that polls each millisecond takes it

	r.pass(30 * time.Millisecond)
	take := r.answer(redisop.Take, redisop.Result{Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 3})
	r.want("subscribe a")

	// From now on the table behaves as if it knew that the other one waits.
	r.pass(60 * time.Millisecond)
	again := r.redis(redisop.Take, redisop.Done)
	if again.HoldID <= take.HoldID {
		t.Fatalf("%+v after %+v", again, take)
	}
	if d := r.handoffs(again.HoldID); d > 51*time.Millisecond {
		t.Errorf("the lock is given back after %v, although another program had it", d)
	}
	r.redis(redisop.Drop, redisop.Done)
	r.pass(9 * time.Millisecond)
	r.quiet()
}

// The pause is for clients that poll. It must not keep the waiter of a holder that dies
// after an hour from having the lock at once.
func TestFirstHandoffAfterALongHoldIsImmediate(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(5 * time.Second)
	r.log = nil
	r.tb.Close(r.now, 1)
	r.want("s2 granted hold=2 token=2 count=1")
}

// Shows docs/queue.md: Free moments.
func TestTryEndsAQuietPause(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	waiter := r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(150 * time.Millisecond) // the host subscribes, so that it remembers the pause
	r.tb.Subscribed(r.now, 0, "a")
	r.handoffs(1)
	r.redis(redisop.Drop, redisop.Done)
	for s := locktable.SessionID(1); s <= 2; s++ { // those who waited give up
		for id := waiter; id <= r.ids; id++ {
			r.tb.Cancel(r.now, s, protocol.Cancel{Target: id})
		}
	}
	r.collect()
	r.log = nil
	r.acquire(3, "a", wait(0))
	take := r.redis(redisop.Take, redisop.Done)
	r.collect()
	if len(r.log) != 1 || r.log[0] != "s3 granted hold="+itoa(take.HoldID)+" token="+itoa(r.tokens)+" count=1" {
		t.Errorf("a try during the pause: %q", r.log)
	}
}

// A host that may not subscribe polls more often, and all its locks together no more
// often than Redis bears.
func TestLocksAreNotPolledTooOften(t *testing.T) {
	r := newRig(t)
	const locks = 100
	polls := func(d time.Duration) (n int) {
		for end := r.now + int64(d); r.now < end; {
			r.pass(time.Millisecond)
			r.collect()
			for _, op := range r.ops {
				n++
				r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.HeldByOther, Sent: r.now, Field: "another:1", TTLMS: 60_000})
			}
			r.ops = nil
		}
		return n
	}
	r.acquire(1, "a")
	if n := polls(time.Second); n < 20 || n > 80 {
		t.Errorf("a lock is asked for %d times in a second", n)
	}
	for i := range locks {
		r.acquire(1, "b"+itoa(uint64(i)))
	}
	polls(time.Second)
	if n := polls(10 * time.Second); n > 6000 || n < 2500 {
		t.Errorf("%d locks are asked for %d times in 10 s", locks, n)
	}
}

func TestReleaseByAnotherProgramUnderAHoldIsLookedInto(t *testing.T) {
	for _, tt := range []struct {
		says  string
		lease opt
		look  redisop.OpKind
	}{
		{"a watchdog hold", fixed(0), redisop.Renew},
		{"a fixed lease", fixed(10 * time.Minute), redisop.Check},
	} {
		t.Run(tt.says, func(t *testing.T) {
			r := newRig(t)
			r.acquire(1, "a", tt.lease)
			r.redis(redisop.Take, redisop.Done)
			r.acquire(2, "a")
			r.redis(redisop.Take, redisop.Done)
			r.want("s1 granted hold=1 token=1 count=1")
			r.pass(150 * time.Millisecond)
			r.want("subscribe a")
			r.tb.Subscribed(r.now, 0, "a") // what was published before may be lost
			r.redis(tt.look, redisop.Done)
			r.quiet()

			r.pass(20 * time.Millisecond)
			r.message("a")
			r.message("a")
			r.redis(tt.look, redisop.Done)
			r.pass(9 * time.Millisecond)
			r.message("a")
			r.quiet() // too soon after the last look
			r.pass(11 * time.Millisecond)
			r.redis(tt.look, redisop.KeyMissing)
			r.want("s1 lost hold=1 deleted")
			r.redis(redisop.Take, redisop.Done)
			r.want("s2 granted hold=2 token=66 count=1")
		})
	}
}

func TestFixedLeaseIsCheckedAThirdOfTheWatchdogLeaseApart(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", fixed(time.Hour))
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
	for range 3 {
		r.pass(lease/3 - 100*time.Millisecond)
		r.quiet()
		r.pass(renewed - lease/3 + 100*time.Millisecond)
		if op := r.redis(redisop.Check, redisop.Done); op.LeaseMS != 0 || op.HoldID != 1 {
			t.Fatalf("%+v", op)
		}
		r.want()
	}
	r.pass(renewed)
	r.answer(redisop.Check, redisop.Result{Outcome: redisop.HeldByOther, Field: "thief:1"})
	r.want("s1 lost hold=1 stolen")
}

// A command of a dead connection came late, to a Redis that had lost the key.
func TestCheckThatFindsAnEarlierHoldSetsTheKeyAgain(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", fixed(time.Hour))
	r.redis(redisop.Take, redisop.Done)
	r.pass(11 * time.Second)
	r.redis(redisop.Check, redisop.Differs)
	if op := r.redis(redisop.Renew, redisop.Done); op.HoldID != 1 || op.Count != 1 || op.LeaseMS < 3_588_000 {
		t.Fatalf("%+v", op)
	}
	r.quiet()
	r.pass(time.Hour)
	r.want("s1 granted hold=1 token=1 count=1", "s1 lost hold=1 expired")
}

// A check whose connection broke has changed nothing, and is asked again.
func TestCheckWithUnknownEndIsAskedAgain(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", fixed(time.Hour))
	r.redis(redisop.Take, redisop.Done)
	r.pass(11 * time.Second)
	r.redis(redisop.Check, redisop.Unknown)
	r.redis(redisop.Check, redisop.Done)
	r.quiet()
}

// A lease that is shorter than the watchdog's is checked by its own length, and one that is not longer
// than minCheckInterval not at all.
//
// Shows docs/guarantees.md: FLUSHALL, a deleted key, `forceUnlock` of a Redisson program.
// Shows docs/renewals.md: When.
func TestFixedLeaseIsCheckedByItsOwnLease(t *testing.T) {
	for _, tt := range []struct {
		lease  time.Duration
		checks int
		first  time.Duration // not before, and at most a sixtieth of the lease and a tick later
	}{
		{29 * time.Second, 2, 29 * time.Second / 3},
		{8 * time.Second, 2, 8 * time.Second / 3},
		{time.Second, 2, time.Second / 3},
		{300 * time.Millisecond, 2, 100 * time.Millisecond},
		{150 * time.Millisecond, 1, 100 * time.Millisecond},
		{100 * time.Millisecond, 0, 0},
		{10 * time.Millisecond, 0, 0},
	} {
		t.Run(tt.lease.String(), func(t *testing.T) {
			r := newRig(t)
			r.acquire(1, "a", fixed(tt.lease))
			r.redis(redisop.Take, redisop.Done)
			r.want("s1 granted hold=1 token=1 count=1")
			granted := r.now
			for i := range tt.checks {
				asked := r.now
				r.pass(max(tt.lease/3, 100*time.Millisecond) - time.Millisecond)
				r.quiet()
				r.pass(tt.lease/60 + 5*time.Millisecond)
				r.redis(redisop.Check, redisop.Done)
				r.quiet()
				if i == 0 && time.Duration(r.now-asked) < tt.first {
					t.Errorf("the first check is %v after the grant", time.Duration(r.now-asked))
				}
			}
			r.pass(tt.lease - time.Duration(r.now-granted))
			r.want("s1 lost hold=1 expired")
		})
	}
	t.Run("the key is deleted", func(t *testing.T) {
		r := newRig(t)
		r.acquire(1, "a", fixed(8*time.Second))
		r.redis(redisop.Take, redisop.Done)
		r.want("s1 granted hold=1 token=1 count=1")
		r.pass(3 * time.Second)
		r.redis(redisop.Check, redisop.KeyMissing)
		r.want("s1 lost hold=1 deleted")
	})
}

// RBucket.set over a lock that is held.
func TestKeyOfAnotherTypeIsATheft(t *testing.T) {
	const what = "a key of type string, which is not a lock"
	found := func(r *rig) (msg string) {
		for _, e := range r.tb.Effects() {
			if e.Kind == locktable.Lost {
				if e.Reason != protocol.Stolen {
					t.Errorf("lost for the reason %s", e.Reason)
				}
				msg = e.Msg
			}
		}
		return msg
	}
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(renewed)
	r.collect()
	r.ops = nil
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Renew, Name: "a", Outcome: redisop.HeldByOther, Sent: r.now, Field: what})
	if got := found(r); got != what {
		t.Errorf("at a renewal %q was found", got)
	}

	r = newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.collect()
	r.ops = nil // it draws tokens
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "a", Outcome: redisop.NotALock, Sent: r.now, Field: what, Msg: "it is " + what})
	if got := found(r); got != what {
		t.Errorf("at a draw %q was found", got)
	}
	if _, ok := r.tb.Info(r.now, "a"); ok {
		t.Error("the waiter waits for a key that is not a lock")
	}
}

// The counter of a lock is not one: tokens cannot be drawn. Renewals go on.
//
// Shows docs/guarantees.md: Names a lock like another lock's token counter, queue or channel.
// Shows docs/renewals.md: Scripts and commands.
func TestRefusedDrawKeepsNoRenewalBack(t *testing.T) {
	for _, outcome := range []redisop.Outcome{redisop.Refused, redisop.Retryable} {
		r := newRig(t)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.acquire(2, "a")
		renewals := 0
		for range 60_000 {
			r.collect()
			for _, op := range r.ops {
				res := redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Msg: "Redis is unwell"}
				if op.Reserve > 0 {
					res.Outcome = outcome
				}
				if op.Kind == redisop.Renew {
					renewals++
				}
				r.tb.Result(r.now, res)
			}
			r.ops = nil
			r.pass(time.Millisecond)
		}
		r.collect()
		for _, line := range r.log {
			if line == "s1 lost hold=1 expired" {
				t.Fatalf("%v: the hold was lost after %d renewals", outcome, renewals)
			}
		}
		if renewals < 5 {
			t.Errorf("%v: %d renewals in a minute", outcome, renewals)
		}
	}
}

func TestConfirmIsAnsweredWhenRedisHasExecutedTheRelease(t *testing.T) {
	confirm := func(r *rig, s locktable.SessionID, id uint64) {
		r.tb.Confirm(r.now, s, protocol.Confirm{ID: id, Name: "a"})
		r.collect()
	}
	held := func(t *testing.T) *rig {
		r := newRig(t)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.want("s1 granted hold=1 token=1 count=1")
		return r
	}
	t.Run("a lock that nobody here knows", func(t *testing.T) {
		r := newRig(t)
		confirm(r, 1, 7)
		r.want("s1 confirmed 7")
	})
	t.Run("a release on its way", func(t *testing.T) {
		r := held(t)
		r.release(1, 1)
		confirm(r, 1, 7)
		r.want("s1 released count=0")
		r.redis(redisop.Drop, redisop.Done)
		r.want("s1 confirmed 7")
		if _, ok := r.tb.Info(r.now, "a"); ok {
			t.Error("the table still knows the lock")
		}
	})
	t.Run("Redis goes away and comes back", func(t *testing.T) {
		r := held(t)
		r.release(1, 1)
		confirm(r, 1, 7)
		r.tb.Down(r.now, 0, "gone")
		r.redis(redisop.Drop, redisop.Unknown)
		r.pass(time.Minute)
		r.want("s1 released count=0")
		r.tb.Up(r.now, 0, false, false)
		r.redis(redisop.Drop, redisop.Done)
		r.want("s1 confirmed 7")
	})
	t.Run("a local waiter has the lock", func(t *testing.T) {
		r := held(t)
		r.acquire(2, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 1)
		confirm(r, 1, 7)
		r.want("s1 released count=0", "s2 granted hold=2 token=2 count=1", "s1 confirmed 7")
	})
	t.Run("a take behind the release", func(t *testing.T) {
		r := held(t)
		r.release(1, 1)
		r.acquire(2, "a")
		confirm(r, 1, 7)
		r.two()
		r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now})
		r.want("s1 released count=0")
		r.tb.Result(r.now, redisop.Result{Kind: redisop.Take, Name: "a", Sent: r.now, Token: 2})
		r.want("s2 granted hold=2 token=2 count=1", "s1 confirmed 7")
	})
	t.Run("the client is gone", func(t *testing.T) {
		r := held(t)
		r.release(1, 1)
		confirm(r, 1, 7)
		confirm(r, 2, 8)
		r.tb.Close(r.now, 1)
		r.redis(redisop.Drop, redisop.Done)
		r.want("s1 released count=0", "s2 confirmed 8")
	})
	t.Run("Redis refuses the release", func(t *testing.T) {
		r := held(t)
		r.release(1, 1)
		confirm(r, 1, 7)
		r.redis(redisop.Drop, redisop.Refused)
		r.want("s1 released count=0", "s1 refused denied")
	})
	t.Run("the sidecar stops", func(t *testing.T) {
		r := held(t)
		r.release(1, 1)
		confirm(r, 1, 7)
		r.tb.DropWaiters(r.now)
		r.redis(redisop.Drop, redisop.Done)
		r.want("s1 released count=0")
	})
	t.Run("too many", func(t *testing.T) {
		r := &rig{T: t, now: int64(time.Hour)}
		r.tb = connect(newTable(locktable.Config{MaxWaiters: 2}, r.now))
		r.tb.Up(r.now, 0, false, false)
		r.tb.Open(r.now, 1, locktable.Peer{})
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 1)
		confirm(r, 1, 7)
		confirm(r, 1, 8)
		confirm(r, 1, 9)
		r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0", "s1 refused limit")
		r.redis(redisop.Drop, redisop.Done)
		r.want("s1 confirmed 7", "s1 confirmed 8")
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.release(1, 2)
		confirm(r, 1, 10)
		r.redis(redisop.Drop, redisop.Done)
		r.want("s1 granted hold=2 token=2 count=1", "s1 released count=0", "s1 confirmed 10")
	})
}

// A message names the host of the holder if its name is known. The table asks for the name when it
// learns of the holder.
func TestMessageNamesTheHost(t *testing.T) {
	asked, name := "", ""
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{HostName: func(field string) string { asked = field; return name }}})
	r.acquire(1, "b")
	r.queued(1)
	if asked != "another:1" {
		t.Errorf("before any message, the table asked for the host of %q", asked)
	}
	r.acquire(1, "a", wait(0))
	r.redis(redisop.Take, redisop.HeldByOther)
	r.refused(1, protocol.Timeout, "held by another:1, not on this host")
	name = "db-7"
	r.acquire(1, "a", wait(0))
	r.redis(redisop.Take, redisop.HeldByOther)
	r.refused(1, protocol.Timeout, "held on host db-7 (another:1), not on this host")
}

// An operation that sets the key of a hold with a fixed lease puts its next check off no further.
func TestFixedLeaseIsCheckedAfterAnOperationThatSetsItsKey(t *testing.T) {
	for leased, within := range map[time.Duration]time.Duration{
		time.Hour:   renewed,
		time.Second: 400 * time.Millisecond, // a cell of time of a lease of 30 s is longer
	} {
		r := newRig(t)
		r.acquire(1, "a", fixed(leased))
		r.redis(redisop.Take, redisop.Done)
		r.acquire(2, "a")
		r.redis(redisop.Take, redisop.Done) // which draws tokens
		r.untilAsked(within)
		r.redis(redisop.Check, redisop.Done)
	}
}
