//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestASidecarThatStopsIsNoticedByNobody(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, far())
	released := p.lock(c, "released", 2, far())
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "wanted") })
	before := expect[protocol.Acquire](p)
	tried := async(func() (*Lock, error) { return c.TryLock(context.Background(), "tried") })
	expect[protocol.Acquire](p)
	pinged := async(func() (string, error) { return c.Ping(context.Background()) })
	expect[protocol.Ping](p)
	p.say(protocol.Err{Code: protocol.Unavailable, Msg: "the sidecar is stopping"})
	p.nc.Close()
	p = s.again()

	// What is unlocked while the claim is under way, is released behind it.
	claim, holds := p.claimed()
	if !maps.Equal(holds, map[uint64]uint32{1: 1, 2: 1}) {
		t.Errorf("claimed %v", holds)
	}
	if err := released.Unlock(); err != nil {
		t.Error(err)
	}
	p.say(protocol.ClaimOK{ID: claim})
	again := expect[protocol.Acquire](p)
	if again.Name != "wanted" || again.ID == before.ID || again.WaitMS != protocol.Forever {
		t.Errorf("sent %+v", again)
	}
	try := expect[protocol.Acquire](p)
	if try.Name != "tried" || try.WaitMS != 0 {
		t.Errorf("sent %+v", try)
	}
	ping := expect[protocol.Ping](p)
	if got := expect[protocol.Release](p); got.Hold != 2 {
		t.Errorf("sent %+v, want the release of 2", got)
	}
	p.say(protocol.Err{ID: try.ID, Code: protocol.Timeout, Msg: "pid 7 holds it"})
	p.say(protocol.PingOK{ID: ping.ID, NowNS: 1, Redis: "ok"})
	p.say(protocol.AcquireOK{ID: again.ID, Token: 3, Hold: 3, Count: 1, DeadlineNS: far()})
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	mustBe(t, second(tried()), ErrHeld)
	if redis, err := pinged(); redis != "ok" || err != nil {
		t.Errorf("ping: %q, %v", redis, err)
	}
	if held.Err() != nil || l.Err() != nil {
		t.Errorf("%v, %v", held.Err(), l.Err())
	}
	p.say(protocol.LostEvent{Hold: 1, Reason: protocol.Stolen})
	p.expectNothing(c)
	mustBe(t, held.Err(), ErrLost)
}

func TestWaitersAreQueuedAgainInTheirOrder(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	const many = 50
	limited, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var names []string
	var locked []func() (*Lock, error)
	var last uint64
	for i := range many {
		ctx := context.Background()
		if i%2 == 1 {
			ctx = limited
		}
		name := fmt.Sprint("lock ", i*37%many)
		names = append(names, name)
		locked = append(locked, async(func() (*Lock, error) { return c.Lock(ctx, name) }))
		last = expect[protocol.Acquire](p).ID
	}
	for range 3 {
		p.nc.Close()
		p = s.again()
		claim, holds := p.claimed()
		if len(holds) != 0 {
			t.Errorf("claimed %v", holds)
		}
		p.say(protocol.ClaimOK{ID: claim})
		asked := make([]protocol.Acquire, many)
		for i := range asked {
			asked[i] = expect[protocol.Acquire](p)
			a := asked[i]
			wait := a.WaitMS == protocol.Forever
			if i%2 == 1 {
				wait = a.WaitMS < 3_600_000 && a.WaitMS > 3_000_000
			}
			if a.Name != names[i] || a.ID <= last || !wait {
				t.Errorf("%d: sent %+v", i, a)
			}
		}
		last = asked[many-1].ID
	}
	if t.Failed() {
		return
	}
	for i := range many {
		p.say(protocol.AcquireOK{ID: last - many + 1 + uint64(i), Token: 1, Hold: uint64(i + 1), Count: 1, DeadlineNS: far()})
		if l, err := locked[i](); err != nil || l.Name() != names[i] {
			t.Errorf("%d: %v, %v", i, l, err)
		}
	}
}

// One conversation, with its connection cut after each byte in each direction, and
// with several cuts at random.
func TestAConversationSurvivesACutAnywhere(t *testing.T) {
	toy := startToy(filepath.Join(shortDir(t), "s"))
	defer toy.stop()
	var fuses [][2]int
	toy.locked(func() {
		toy.fuse = func() (int, int) {
			if len(fuses) == 0 {
				return -1, -1
			}
			f := fuses[0]
			fuses = fuses[1:]
			return f[0], f[1]
		}
	})
	cuts := 0
	run := func(f ...[2]int) (whole bool) {
		toy.locked(func() { fuses, toy.hellos = f, 0 })
		converse(t, toy)
		toy.locked(func() {
			whole = toy.hellos == 1 && len(fuses) == 0
			if toy.fault != "" {
				t.Error(toy.fault)
			}
		})
		if t.Failed() {
			t.Fatalf("with the fuses %v", f)
		}
		cuts++
		return whole
	}
	step := 3
	if testing.Short() {
		step = 23
	}
	for k := 0; !run([2]int{k, -1}); k += step {
	}
	for k := 0; !run([2]int{-1, k}); k += step {
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1800 / step {
		var f [][2]int
		for range 1 + rng.IntN(5) {
			f = append(f, [2]int{rng.IntN(900) - 1, rng.IntN(900) - 1})
		}
		run(f...)
	}
	t.Logf("%d conversations", cuts)
}

// converse is a conversation in which everything happens, and at the end of which
// both sides must agree.
func converse(t *testing.T, toy *toy) {
	c, err := Dial(context.Background(), toy.path)
	if err != nil {
		t.Error(err)
		return
	}
	owner := WithOwner(context.Background())
	token := uint64(0)
	lock := func(ctx context.Context, name string, fresh bool) *Lock {
		l, err := c.Lock(ctx, name)
		if err != nil {
			t.Errorf("lock %s: %v", name, err)
			runtime.Goexit()
		}
		if fresh != (l.Token() > token) || l.Err() != nil {
			t.Errorf("%s has the token %d after %d, %v", name, l.Token(), token, l.Err())
		}
		token = max(token, l.Token())
		return l
	}
	unlock := func(l *Lock) {
		if err := l.Unlock(); err != nil {
			t.Errorf("unlock %s: %v", l.Name(), err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		outer := lock(owner, "a", true)
		inner := lock(owner, "a", false)
		b, err := c.TryLock(context.Background(), "b")
		if err != nil {
			t.Error(err)
			return
		}
		token = max(token, b.Token())
		mustBe(t, second(c.TryLock(owner, "b")), ErrHeld)
		unlock(inner)
		ctx, cancel := context.WithCancel(context.Background())
		gone := async(func() (*Lock, error) { return c.Lock(ctx, "b") })
		waiting := async(func() (*Lock, error) { return c.Lock(context.Background(), "b") })
		runtime.Gosched()
		cancel()
		mustBe(t, second(gone()), context.Canceled)
		again := lock(owner, "a", false)
		unlock(outer)
		unlock(b)
		next, err := waiting()
		if err != nil || next.Token() <= b.Token() {
			t.Errorf("the waiter: %v, %v", next, err)
			return
		}
		if err := again.Unlock(Confirmed(context.Background())); err != nil {
			t.Errorf("confirmed unlock: %v", err)
		}
		toy.locked(func() {
			if toy.holds[again.hold.id] != nil {
				t.Error("a release was confirmed, and the sidecar has the hold")
			}
		})
		unlock(lock(owner, "a", true))
		third := lock(owner, "a", true)
		fourth := lock(owner, "a", false)
		if _, err := c.Ping(context.Background()); err != nil {
			t.Error(err)
		}

		// What one ping has answered, made the client send what the next has.
		agree(t, toy, c, map[string]uint32{"a": 2, "b": 1})
		unlock(fourth)
		unlock(third)
		unlock(next)
		agree(t, toy, c, map[string]uint32{})
	}()
	<-done
	last := lockThrough(t, toy, c)
	c.Close()
	<-c.current.Load().done
	for hung := false; !hung; runtime.Gosched() {
		toy.locked(func() { hung = len(toy.conns) == 0 })
	}
	if holds, waiters := toy.held(); holds != 0 || waiters != 0 {
		t.Errorf("%d holds and %d waiters are left", holds, waiters)
	}
	if last != nil {
		mustBe(t, last.Err(), ErrClosed)
	}
	toy.locked(func() {
		if len(toy.sessions) != 0 {
			t.Errorf("%d sessions are left", len(toy.sessions))
		}
	})
}

// lockThrough leaves Close something to release.
func lockThrough(t *testing.T, toy *toy, c *Client) *Lock {
	l, err := c.Lock(context.Background(), "last")
	if err != nil {
		t.Errorf("the last lock: %v", err)
	}
	return l
}

// agree checks that both sides have the same holds, with the same entries.
func agree(t *testing.T, toy *toy, c *Client, want map[string]uint32) {
	t.Helper()
	for range 2 {
		if _, err := c.Ping(context.Background()); err != nil {
			t.Error(err)
		}
	}
	ours, theirs, waiters := make(map[string]uint32), make(map[string]uint32), 0
	checkInvariants(t, c)
	s := c.current.Load()
	s.mu.Lock()
	for _, h := range s.holds {
		ours[h.name] += h.entries
	}
	calls := len(s.calls)
	s.mu.Unlock()
	toy.locked(func() {
		for num, l := range toy.holds {
			theirs[l.name] += l.count
			waiters += len(l.waiters)
			if h := s.holds[num]; h == nil || h.token != 1_000_000+num {
				t.Errorf("the client does not have hold %d", num)
			}
		}
	})
	if !maps.Equal(ours, want) || !maps.Equal(theirs, want) || waiters != 0 || calls != 0 {
		t.Errorf("the client has %v, the sidecar %v, want %v; %d waiters, %d calls", ours, theirs, want, waiters, calls)
	}
}

// The sidecar is killed again and again under load, and nobody notices.
func TestTheClientComesBack(t *testing.T) {
	toy, c := toySidecar(t)
	var inside [3]atomic.Int32
	var turns atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			token := [len(inside)]uint64{}
			for {
				select {
				case <-stop:
					return
				default:
				}
				n := rng.IntN(len(inside))
				ctx, cancel := WithOwner(context.Background()), context.CancelFunc(func() {})
				if rng.IntN(4) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(2000))*time.Microsecond)
				}
				l, err := c.Lock(ctx, fmt.Sprint("lock", n))
				if err != nil {
					mustBe(t, err, ErrTimeout)
					cancel()
					continue
				}
				if inside[n].Add(1) != 1 || l.Token() <= token[n] {
					t.Errorf("two are inside, or the token %d is not larger than %d", l.Token(), token[n])
				}
				token[n] = l.Token()
				if again, err := c.TryLock(context.WithoutCancel(ctx), l.Name()); err != nil || again.Token() != l.Token() {
					t.Errorf("re-entry: %v, %v", again, err)
				} else if err := again.Unlock(); err != nil {
					t.Error(err)
				}
				turns.Add(1)
				inside[n].Add(-1)
				var options []UnlockOption
				if rng.IntN(2) == 0 {
					options = append(options, Confirmed(context.Background()))
				}
				if err := l.Unlock(options...); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	for range 100 {
		for before := turns.Load(); turns.Load() == before && !t.Failed(); {
			runtime.Gosched()
			checkInvariants(t, c)
		}
		toy.cut()
	}
	close(stop)
	wg.Wait()
	agree(t, toy, c, map[string]uint32{})
}

func TestTenThousandHoldsAreClaimedInPages(t *testing.T) {
	const many = 10_000
	toy, c := toySidecar(t)
	locks := make([]*Lock, many)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := g; i < many; i += 8 {
				l, err := c.Lock(context.Background(), fmt.Sprint("lock", i))
				if err != nil {
					t.Error(err)
					return
				}
				locks[i] = l
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	toy.cut()
	want := make(map[string]uint32)
	for i, l := range locks {
		want[l.Name()] = 1
		if i%100 == 0 {
			delete(want, l.Name())
			if err := l.Unlock(); err != nil {
				t.Error(err)
			}
		}
	}
	agree(t, toy, c, want)
	toy.locked(func() {
		if len(toy.claims) != 3 || toy.claims[0] != protocol.MaxClaims || toy.claims[1] != protocol.MaxClaims {
			t.Errorf("claimed %v", toy.claims)
		}
	})
}

// A successor that lost its state, or does not accept the ticket.
func TestASidecarThatForgotTheSession(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, far())
	watched := p.lock(c, "watched", 2, protocol.Now()+int64(50*time.Millisecond))
	done := watched.Done()
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "wanted") })
	expect[protocol.Acquire](p)
	session := c.current.Load()
	p.say(protocol.LeaseEvent{DeadlineNS: protocol.Now() + int64(50*time.Millisecond)})
	p.nc.Close()
	p = s.accept()
	hello := expect[protocol.Hello](p)
	p.say(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: "another", NowNS: protocol.Now(), Ticket: "a new one"})

	// Its numbers may be those of before.
	a := p.grant(1, far())
	l, err := locked()
	if err != nil || a.Name != "wanted" {
		t.Fatal(err)
	}
	p.say(protocol.LeaseEvent{DeadlineNS: far()})
	p.expectNothing(c)
	if c.current.Load() != session || held.Err() != nil || watched.Err() != nil {
		t.Errorf("%v, %v", held.Err(), watched.Err())
	}
	<-done
	var lost *LostError
	if !errors.As(watched.Err(), &lost) || lost.Reason != ReasonExpired {
		t.Errorf("it ended with %v", watched.Err())
	}
	if err := held.Unlock(); err != nil {
		t.Error(err)
	}
	p.say(protocol.LostEvent{Hold: 2, Reason: protocol.Stolen})
	p.expectNothing(c) // nothing was released
	if err := l.Err(); err != nil {
		t.Errorf("an old hold's end hurt the new one of the same number: %v", err)
	}

	p.nc.Close()
	p = s.accept()
	hello = expect[protocol.Hello](p)
	if hello.Resume != "a new one" {
		t.Errorf("resumes %q, not the newest ticket", hello.Resume)
	}
	p.say(protocol.HelloOK{ID: hello.ID, V: 1, NowNS: protocol.Now(), Ticket: "a new one", Resumed: true})
	if claim, holds := p.claimed(); !maps.Equal(holds, map[uint64]uint32{1: 1}) {
		t.Errorf("claimed %v", holds)
	} else {
		p.say(protocol.ClaimOK{ID: claim})
	}
	if len(session.orphans) != 0 {
		t.Errorf("%d holds of before are remembered", len(session.orphans))
	}
}

// A sidecar without the state of its predecessor grants holds with the same ids again.
func TestExpiryOfReleasedHoldLeavesNewHoldWithItsID(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		released := lockNow(t, c, "released")
		if err := released.Unlock(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		r.cut()
		r.locked(func() { clear(r.sessions); clear(r.locks); clear(r.holds); r.last = 0 })
		held := lockNow(t, c, "held")
		if held.hold.id != released.hold.id {
			t.Fatalf("the ids are %d and %d; the test needs equal ones", released.hold.id, held.hold.id)
		}
		time.Sleep(20 * time.Second) // the deadline of the released hold has passed
		mustBe(t, released.Err(), ErrNotHeld)
		r.cut()
		time.Sleep(time.Second)
		agree(t, r.toy, c, map[string]uint32{"held": 1})
		if err := held.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseEndsWhatTheSidecarForgotToo(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, far())
	p.nc.Close()
	p = s.accept()
	p.greet()
	p.expectNothing(c)
	s.bury(c)
	mustBe(t, held.Err(), ErrClosed)
}

func TestASidecarThatForgotAHold(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, far())
	ctx, stop := held.Context(context.Background())
	defer stop()
	p.nc.Close()
	p = s.again()
	claim, _ := p.claimed()
	p.say(protocol.LostEvent{Hold: 1, Reason: protocol.Forgotten})
	p.say(protocol.LostEvent{Hold: 77, Reason: protocol.Forgotten})
	p.say(protocol.ClaimOK{ID: claim})
	<-ctx.Done()
	var lost *LostError
	if !errors.As(context.Cause(ctx), &lost) || lost.Reason != ReasonForgotten {
		t.Errorf("it ended with %v", context.Cause(ctx))
	}
	says(t, lost, "restarted")
	p.expectNothing(c)
}

func TestAForcedReleaseIsNotAskedForTwice(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	forced := async(func() (uint64, error) { return c.ForceRelease(context.Background(), "a") })
	expect[protocol.ForceRelease](p)
	p.nc.Close()
	_, err := forced()
	mustBe(t, err, ErrUnavailable)
	says(t, err, "may have happened")

	// Nothing of ours was with the sidecar: the next call connects. Its request is
	// not sent before the claim is answered, and so it is asked for yet.
	forced = async(func() (uint64, error) { return c.ForceRelease(context.Background(), "b") })
	p = s.again()
	p.claimed()
	p.nc.Close()
	p = s.again()
	claim, _ := p.claimed()
	p.say(protocol.ClaimOK{ID: claim})
	p.say(protocol.ForceReleaseOK{ID: expect[protocol.ForceRelease](p).ID, Hold: 7})
	if hold, err := forced(); hold != 7 || err != nil {
		t.Errorf("force_release: %d, %v", hold, err)
	}
}

func TestAForcedReleaseThatNobodyWaitsForMayHappen(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	ctx, cancel := context.WithCancel(context.Background())
	forced := async(func() (uint64, error) { return c.ForceRelease(ctx, "a") })
	expect[protocol.ForceRelease](p)
	cancel()
	_, err := forced()
	mustBe(t, err, context.Canceled)
	says(t, err, "may have happened")
}

// Another sidecar has the locks in another order.
func TestAListIsBegunAgain(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	listed := async(func() ([]LockInfo, error) { return c.List(context.Background()) })
	p.say(protocol.ListOK{ID: expect[protocol.List](p).ID, Locks: []protocol.LockRow{{Name: "a", State: "free"}}, Next: 9})
	expect[protocol.List](p)
	p.nc.Close()
	p = s.again()
	claim, _ := p.claimed()
	p.say(protocol.ClaimOK{ID: claim})
	for _, after := range []uint64{9, 0} {
		req := expect[protocol.List](p)
		if req.After != after {
			t.Errorf("asked for what comes after %d, want %d", req.After, after)
		}
		p.say(protocol.ListOK{ID: req.ID, Locks: []protocol.LockRow{{Name: "b", State: "free"}}})
	}
	if rows, err := listed(); err != nil || len(rows) != 1 || rows[0].Name != "b" {
		t.Errorf("list: %+v, %v", rows, err)
	}
}

// A successor with a shorter lease tells smaller deadlines than those of before.
func TestRenewalsOfASuccessorAreHeard(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	old := p.lock(c, "old", 1, protocol.Now()+int64(time.Minute))
	p.say(protocol.LeaseEvent{DeadlineNS: far()})
	p.expectNothing(c)
	p.nc.Close()
	p = s.again()
	claim, _ := p.claimed()
	p.say(protocol.ClaimOK{ID: claim})
	young := p.lock(c, "young", 2, protocol.Now()+int64(time.Minute))
	p.say(protocol.LeaseEvent{DeadlineNS: protocol.Now() + int64(10*time.Minute)})
	p.expectNothing(c)
	if d := time.Until(young.Deadline()); d < 9*time.Minute || d > 10*time.Minute {
		t.Errorf("the young lock is good for %v", d)
	}
	if d := time.Until(old.Deadline()); d < 59*time.Minute {
		t.Errorf("the old lock is good for %v", d)
	}
}

func TestRenewalsOfANewSessionAreHeard(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	p.say(protocol.LeaseEvent{DeadlineNS: far()})
	p.expectNothing(c)
	p.nc.Close()
	peers := make(chan *peer, 1)
	go func() {
		p := s.accept()
		p.greet()
		peers <- p
	}()
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "a") })
	p = <-peers
	p.grant(1, protocol.Now()+int64(time.Minute))
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	p.say(protocol.LeaseEvent{DeadlineNS: protocol.Now() + int64(10*time.Minute)})
	p.expectNothing(c)
	if d := time.Until(l.Deadline()); d < 9*time.Minute || d > 10*time.Minute {
		t.Errorf("it is good for %v", d)
	}
}

// What waited before is not what a sidecar that does not read makes us keep.
func TestRequestsAreTakenWhileManyAreAskedAgain(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	const many = maxUnwritten/protocol.MaxName + 1
	ctx, cancel := context.WithCancel(context.Background())
	name := strings.Repeat("n", protocol.MaxName)
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() { mustBe(t, second(c.Lock(ctx, name)), context.Canceled) })
	}
	for range many {
		expect[protocol.Acquire](p)
	}
	p.nc.Close()
	p = s.again()
	claim, _ := p.claimed()
	pinged := async(func() (string, error) { return c.Ping(context.Background()) })
	p.say(protocol.ClaimOK{ID: claim})
	for range many {
		expect[protocol.Acquire](p)
	}
	p.say(protocol.PingOK{ID: expect[protocol.Ping](p).ID, NowNS: 1, Redis: "ok"})
	if _, err := pinged(); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
}

// What was claimed is with the sidecar until it is known to be released.
func TestAClientComesBackForAReleaseThatWasNotRead(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	l := p.lock(c, "a", 1, far())
	p.nc.Close()
	p = s.again()
	claim, holds := p.claimed()
	if !maps.Equal(holds, map[uint64]uint32{1: 1}) {
		t.Errorf("claimed %v", holds)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	p.say(protocol.ClaimOK{ID: claim})
	p.nc.Close()
	p = s.again()
	claim, holds = p.claimed()
	if len(holds) != 0 {
		t.Errorf("claimed %v", holds)
	}
	p.say(protocol.ClaimOK{ID: claim})
	p.expectNothing(c)
}

func TestASidecarThatRefusesAClaimIsNotUnderstood(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	l := p.lock(c, "a", 1, far())
	p.nc.Close()
	p = s.again()
	claim, _ := p.claimed()
	p.say(protocol.Err{ID: claim, Code: protocol.Unsupported, Msg: "what is a claim?"})
	if _, err := p.frames.Next(); err == nil {
		t.Error("the connection goes on")
	}
	mustBe(t, l.Err(), ErrLost)
}

// road leads to a toy in virtual time, and can be closed.
type road struct {
	*toy
	mu       sync.Mutex
	closed   error
	attempts []time.Time
}

func (r *road) close(why error) {
	r.mu.Lock()
	r.closed, r.attempts = why, nil
	r.mu.Unlock()
	if why != nil {
		r.cut()
	}
	synctest.Wait()
}

func (r *road) connect(context.Context, string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts = append(r.attempts, time.Now())
	if r.closed != nil {
		return nil, r.closed
	}
	ours, theirs := net.Pipe()
	r.wg.Go(func() { r.serve(theirs) })
	return ours, nil
}

func (r *road) tried() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.attempts)
}

func virtually(t *testing.T, test func(t *testing.T, c *Client, r *road)) {
	synctest.Test(t, func(t *testing.T) {
		r := &road{toy: newToy()}
		r.clock = func() int64 { return time.Now().UnixNano() }
		c := &Client{dialer: dialer{path: "/road", name: "test", clock: r.clock, connect: r.connect}, patience: defaultPatience}
		if err := c.dial(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, c, r)
		checkInvariants(t, c)
		r.close(nil)
		c.Close()
		checkInvariants(t, c)
		<-c.current.Load().done
		checkInvariants(t, c)
		r.cut()
		r.wg.Wait()
		if r.fault != "" {
			t.Error(r.fault)
		}
	})
}

func lockNow(t *testing.T, c *Client, name string, options ...Option) *Lock {
	t.Helper()
	l, err := c.Lock(context.Background(), name, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// took returns how long do takes, and its error.
func took(do func() error) func() (time.Duration, error) {
	start := time.Now()
	return async(func() (time.Duration, error) {
		err := do()
		return time.Since(start), err
	})
}

func TestCallsAreAsPatientAsWasSaid(t *testing.T) {
	for _, patience := range []time.Duration{0, time.Second, defaultPatience} {
		virtually(t, func(t *testing.T, c *Client, r *road) {
			c.current.Load().patience = patience
			lockNow(t, c, "held")
			waiting := took(func() error { return second(c.Lock(context.Background(), "held")) })
			asked := took(func() error { return second(c.Lock(context.Background(), "held")) })
			time.Sleep(time.Minute)
			r.close(os.ErrNotExist)
			time.Sleep(patience / 3)
			late := took(func() error { return second(c.TryLock(context.Background(), "other")) })
			forced := took(func() error { return second(c.ForceRelease(context.Background(), "other")) })
			for _, tt := range []struct {
				result func() (time.Duration, error)
				want   time.Duration
				words  string
			}{
				{waiting, time.Minute + patience, "not held"},
				{asked, time.Minute + patience, "nothing needs to be cleaned up"},
				{late, patience, "not held"},
				{forced, patience, "not done"},
			} {
				d, err := tt.result()
				mustBe(t, err, ErrUnavailable, os.ErrNotExist)
				says(t, err, "/road", "start it", tt.words)
				// There is one more attempt, a moment after the one before.
				if d < tt.want || d > tt.want+firstPause {
					t.Errorf("patience %v: it took %v, want %v", patience, d, tt.want)
				}
			}
		})
	}
}

func TestACallThatWaitsForASidecarIsAnsweredWhenThereIsOne(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		l := lockNow(t, c, "a")
		r.close(os.ErrNotExist)
		tried := took(func() error { return second(c.TryLock(context.Background(), "a")) })
		locked := took(func() error { return second(c.Lock(context.Background(), "b")) })
		time.Sleep(9 * time.Second)
		r.close(nil)
		d, err := tried()
		mustBe(t, err, ErrHeld)
		if d > 9*time.Second+longestPause*5/4 {
			t.Errorf("it took %v", d)
		}
		if d, err := locked(); err != nil {
			t.Errorf("after %v: %v", d, err)
		}
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		agree(t, r.toy, c, map[string]uint32{"a": 1, "b": 1})
	})
}

func TestAContextThatEndsWhileNobodyListens(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		lockNow(t, c, "held")
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		canceled, giveUp := context.WithCancelCause(context.Background())
		waiting := took(func() error { return second(c.Lock(ctx, "held")) })
		gone := took(func() error { return second(c.Lock(canceled, "held")) })
		synctest.Wait()
		r.close(os.ErrNotExist)
		late := took(func() error { return second(c.TryLock(ctx, "other")) })
		why := errors.New("enough")
		giveUp(why)
		d, err := gone()
		mustBe(t, err, context.Canceled, why)
		if d != 0 {
			t.Errorf("it took %v", d)
		}
		for _, result := range []func() (time.Duration, error){waiting, late} {
			d, err := result()
			mustBe(t, err, ErrTimeout, context.DeadlineExceeded, ErrUnavailable)
			says(t, err, "/road", "start it")
			if d < 3*time.Second || d > 3*time.Second+answerGrace {
				t.Errorf("it took %v", d)
			}
		}
		r.close(nil)
		agree(t, r.toy, c, map[string]uint32{"held": 1})
	})
}

// A wait that is limited goes on with what is left of it.
func TestAWaitGoesOnWithWhatIsLeftOfIt(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		lockNow(t, c, "held")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		waiting := took(func() error { return second(c.Lock(ctx, "held")) })
		time.Sleep(20 * time.Second)
		r.close(os.ErrNotExist)
		time.Sleep(5 * time.Second)
		r.close(nil)
		time.Sleep(time.Second)
		r.locked(func() {
			ms := r.locks["held"].waiters[0].req.WaitMS
			if ms > 35_000 || ms < 34_000 {
				t.Errorf("it waits for another %d ms", ms)
			}
		})
		d, err := waiting()
		mustBe(t, err, ErrTimeout)
		says(t, err, "held for all that time")
		if d < time.Minute-time.Millisecond || d > time.Minute {
			t.Errorf("it took %v", d)
		}
	})
}

func TestASidecarThatDoesNotComeBack(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		l := lockNow(t, c, "a")
		ctx, stop := l.Context(context.Background())
		defer stop()
		released := lockNow(t, c, "b")
		silent := lockNow(t, c, "c")
		r.close(os.ErrNotExist)
		if err := released.Unlock(); err != nil {
			t.Error(err)
		}
		if d := left(l); d != 30*time.Second {
			t.Errorf("it ended after %v", d)
		}
		<-ctx.Done()
		for _, err := range []error{l.Err(), context.Cause(ctx), silent.Err(), silent.Unlock()} {
			var lost *LostError
			if !errors.As(err, &lost) || lost.Reason != ReasonExpired {
				t.Errorf("it ended with %v", err)
			}
		}
		time.Sleep(time.Hour)
		if n := r.tried(); n < 3600*4/5 || n > 3600*4/3 {
			t.Errorf("tried to connect %d times in an hour", n)
		}
		// What the successor has renewed goes back.
		if holds, _ := r.held(); holds != 3 {
			t.Errorf("%d holds are remembered", holds)
		}
		r.close(nil)
		time.Sleep(2 * rarePause)
		agree(t, r.toy, c, map[string]uint32{})
	})
}

func TestAClientWithNothingAtStakeConnectsWhenItIsAsked(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		if _, err := c.Ping(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.close(os.ErrNotExist)
		time.Sleep(time.Hour)
		if n := r.tried(); n != 0 {
			t.Errorf("tried to connect %d times", n)
		}
		mustBe(t, second(c.Ping(context.Background())), ErrUnavailable)
		if n := r.tried(); n == 0 || n > 50 {
			t.Errorf("tried to connect %d times", n)
		}
		r.close(nil)
		time.Sleep(time.Hour)
		if n := r.tried(); n != 0 {
			t.Errorf("tried to connect %d times when nobody waited any more", n)
		}
		lockNow(t, c, "a")

		// What was given back is with the sidecar until it was told.
		if err := lockNow(t, c, "b").Unlock(); err != nil {
			t.Error(err)
		}
		r.close(os.ErrNotExist)
		time.Sleep(10 * time.Second)
		if n := r.tried(); n < 20 {
			t.Errorf("tried to connect %d times", n)
		}

		// What it knows now is one hold: that brings the client back again.
		for range 2 {
			r.close(nil)
			time.Sleep(time.Second)
			if n := r.tried(); n != 1 {
				t.Errorf("connected %d times", n)
			}
			agree(t, r.toy, c, map[string]uint32{"a": 1})
			r.close(os.ErrNotExist)
		}
		time.Sleep(time.Minute)
		r.close(nil)
		time.Sleep(2 * rarePause)
		agree(t, r.toy, c, map[string]uint32{})
		r.close(os.ErrNotExist)
		time.Sleep(time.Hour)
		if n := r.tried(); n != 0 {
			t.Errorf("tried to connect %d times for nothing", n)
		}
	})
}

// A request that kills the sidecar must not keep killing it.
func TestASidecarThatDiesOfARequestIsNotAskedForever(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		l := lockNow(t, c, "held")
		before := r.tried()
		r.locked(func() { r.deadly = true })
		d, err := took(func() error { return second(c.Lock(context.Background(), "poison")) })()
		mustBe(t, err, ErrUnavailable)
		says(t, err, "not held", "given up")
		if d < defaultPatience || d > defaultPatience+longestPause*5/4 {
			t.Errorf("it took %v", d)
		}
		if n := r.tried() - before; n > 40 {
			t.Errorf("it was killed %d times", n)
		}
		r.locked(func() { r.deadly = false })
		time.Sleep(longestPause)
		agree(t, r.toy, c, map[string]uint32{"held": 1})
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatIsLostByTheClockIsNotClaimed(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		lockNow(t, c, "unwatched")
		l := lockNow(t, c, "watched")
		l.Done()
		time.Sleep(20 * time.Second)
		later := lockNow(t, c, "later")
		r.close(os.ErrNotExist)
		time.Sleep(20 * time.Second)
		r.close(nil)
		time.Sleep(time.Second)
		agree(t, r.toy, c, map[string]uint32{"later": 1})
		mustBe(t, l.Err(), ErrLost)
		if err := later.Err(); err != nil {
			t.Error(err)
		}
		r.locked(func() {
			if !slices.Equal(r.claims, []int{1}) {
				t.Errorf("claimed %v", r.claims)
			}
		})
	})
}

func TestCloseSaysBye(t *testing.T) {
	ends := func(t *testing.T, c *Client, low, high time.Duration) {
		t.Helper()
		start := time.Now()
		<-c.current.Load().done
		if d := time.Since(start); d < low || d > high {
			t.Errorf("the session ended after %v, want %v to %v", d, low, high)
		}
	}
	closes := func(t *testing.T, c *Client, want time.Duration) {
		t.Helper()
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != want {
			t.Errorf("Close took %v, want %v", d, want)
		}
	}
	gone := func(t *testing.T, r *road) {
		t.Helper()
		synctest.Wait()
		holds, waiters := r.held()
		r.locked(func() {
			if holds != 0 || waiters != 0 || len(r.sessions) != 0 {
				t.Errorf("%d holds, %d waiters and %d sessions are left", holds, waiters, len(r.sessions))
			}
		})
	}
	for name, test := range map[string]func(t *testing.T, c *Client, r *road){
		"and is answered": func(t *testing.T, c *Client, r *road) {
			lockNow(t, c, "a")
			closes(t, c, 0)
			ends(t, c, 0, 0)
			gone(t, r)
		},
		"to a successor": func(t *testing.T, c *Client, r *road) {
			l := lockNow(t, c, "a")
			r.close(os.ErrNotExist)
			waiting := took(func() error { return second(c.Lock(context.Background(), "a")) })
			synctest.Wait()
			closes(t, c, 0)
			mustBe(t, l.Err(), ErrClosed)
			_, err := waiting()
			mustBe(t, err, ErrClosed)
			time.Sleep(10 * time.Second)
			r.close(nil)
			ends(t, c, 0, longestPause*5/4)
			gone(t, r)
			r.locked(func() {
				if len(r.claims) != 0 {
					t.Errorf("claimed %v", r.claims)
				}
			})
		},
		"when the connection ends without an answer": func(t *testing.T, c *Client, r *road) {
			lockNow(t, c, "a")
			r.locked(func() { r.deaf = true })
			closed := async(func() (any, error) { closes(t, c, 500*time.Millisecond); return nil, nil })
			time.Sleep(500 * time.Millisecond)
			r.locked(func() { r.deaf = false })
			r.cut()
			_, _ = closed()
			ends(t, c, 0, longestPause)
			gone(t, r)
		},
		"to nobody, until nothing can be held any more": func(t *testing.T, c *Client, r *road) {
			lockNow(t, c, "a", WithLease(time.Second))
			time.Sleep(10 * time.Second)
			lockNow(t, c, "b")
			r.close(os.ErrNotExist)
			closes(t, c, 0)
			ends(t, c, time.Minute, time.Minute)
		},
		"to one that hangs": func(t *testing.T, c *Client, r *road) {
			lockNow(t, c, "a")
			r.locked(func() { r.deaf = true })
			closes(t, c, byeGrace)
			ends(t, c, time.Minute-byeGrace, time.Minute-byeGrace)
			r.locked(func() { r.deaf = false })
		},
		"to a successor that hangs": func(t *testing.T, c *Client, r *road) {
			lockNow(t, c, "a")
			r.close(os.ErrNotExist)
			closes(t, c, 0)
			r.locked(func() { r.deaf = true })
			r.close(nil)
			ends(t, c, time.Minute, time.Minute)
			if n := r.tried(); n != 1 {
				t.Errorf("connected %d times", n)
			}
			r.locked(func() { r.deaf = false })
		},
		"to one that hangs, and needs not to be told": func(t *testing.T, c *Client, r *road) {
			r.locked(func() { r.deaf = true })
			closes(t, c, byeGrace)
			ends(t, c, 0, 0)
			r.locked(func() { r.deaf = false })
		},
		"to nobody if nobody needs to be told": func(t *testing.T, c *Client, r *road) {
			r.close(os.ErrNotExist)
			closes(t, c, 0)
			ends(t, c, 0, 0)
			if n := r.tried(); n != 0 {
				t.Errorf("tried to connect %d times", n)
			}
		},
		"to one that has forgotten everything": func(t *testing.T, c *Client, r *road) {
			lockNow(t, c, "a")
			r.close(os.ErrNotExist)
			closes(t, c, 0)
			r.locked(func() { clear(r.sessions); clear(r.locks); clear(r.holds) })
			r.close(nil)
			ends(t, c, 0, longestPause)
			gone(t, r)
		},
	} {
		t.Run(name, func(t *testing.T) { virtually(t, test) })
	}
}

func TestAnOlderSidecarIsLeftWithoutAWord(t *testing.T) {
	c, p := listen(t).dial()
	p.lock(c, "a", 1, far())
	closed := async(func() (any, error) { return nil, c.Close() })
	p.say(protocol.Err{ID: expect[protocol.Bye](p).ID, Code: protocol.Unsupported, Msg: "what is bye?"})
	if _, err := closed(); err != nil {
		t.Error(err)
	}
	if _, err := p.frames.Next(); err == nil {
		t.Error("the connection goes on")
	}
}

// A connection that is taken up is not closed from here, however long the answer
// to the claim takes, as long as a claimed hold is believed in.
func TestAClaimIsWaitedFor(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		l := lockNow(t, c, "a")
		r.locked(func() { r.deaf = true })
		r.cut()
		time.Sleep(time.Second)
		canceled, cancel := context.WithCancel(context.Background())
		locked := took(func() error { return second(c.Lock(canceled, "b")) })
		time.Sleep(20 * time.Second)
		cancel()
		_, err := locked()
		mustBe(t, err, context.Canceled)
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
		if hellos := 2; r.hellos != hellos {
			t.Errorf("said hello %d times", r.hellos)
		}
		r.locked(func() { r.deaf = false })
		r.cut()
		time.Sleep(time.Second)
		agree(t, r.toy, c, map[string]uint32{})
	})
}
