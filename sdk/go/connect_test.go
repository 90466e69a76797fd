//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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

func TestRestartOfSidecarEndsNoCall(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, inOneHour())
	released := p.lock(c, "released", 2, inOneHour())
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "wanted") })
	before := expect[protocol.Acquire](p)
	tried := async(func() (*Lock, error) { return c.TryLock(context.Background(), "tried") })
	expect[protocol.Acquire](p)
	pinged := async(func() (string, error) { return c.Ping(context.Background()) })
	expect[protocol.Ping](p)
	p.send(protocol.Err{Code: protocol.Unavailable, Msg: "the sidecar is stopping"})
	p.nc.Close()
	p = s.acceptResumed()

	// A hold that is unlocked before the claim is answered is released after it.
	claim, holds := p.expectClaim()
	if !maps.Equal(holds, map[uint64]uint32{1: 1, 2: 1}) {
		t.Errorf("claimed %v", holds)
	}
	if err := released.Unlock(); err != nil {
		t.Error(err)
	}
	p.send(protocol.ClaimOK{ID: claim})
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
	p.send(protocol.Err{ID: try.ID, Code: protocol.Timeout, Msg: "pid 7 holds it"})
	p.send(protocol.PingOK{ID: ping.ID, NowNS: 1, Redis: "ok"})
	p.send(protocol.AcquireOK{ID: again.ID, Token: 3, Hold: 3, Count: 1, DeadlineNS: inOneHour()})
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(tried()), ErrHeld)
	if redis, err := pinged(); redis != "ok" || err != nil {
		t.Errorf("ping: %q, %v", redis, err)
	}
	if held.Err() != nil || l.Err() != nil {
		t.Errorf("%v, %v", held.Err(), l.Err())
	}
	p.send(protocol.LostEvent{Hold: 1, Reason: protocol.Stolen})
	p.expectNothing(c)
	wantKind(t, held.Err(), ErrLost)
}

func TestReconnectKeepsOrderOfWaiters(t *testing.T) {
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
		p = s.acceptResumed()
		claim, holds := p.expectClaim()
		if len(holds) != 0 {
			t.Errorf("claimed %v", holds)
		}
		p.send(protocol.ClaimOK{ID: claim})
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
		p.send(protocol.AcquireOK{ID: last - many + 1 + uint64(i), Token: 1, Hold: uint64(i + 1), Count: 1, DeadlineNS: inOneHour()})
		if l, err := locked[i](); err != nil || l.Name() != names[i] {
			t.Errorf("%d: %v, %v", i, l, err)
		}
	}
}

// The same calls, while the connection ends after each byte in each direction, and after several
// bytes at random.
//
// Shows docs/guarantees.md: kill -9, crash, SIGTERM, upgrade.
// Shows docs/guarantees.md: The same, of a daemon that died.
func TestSessionSurvivesDisconnectAtEveryByte(t *testing.T) {
	sidecar := startFakeSidecar(filepath.Join(shortDir(t), "s"))
	defer sidecar.stop()
	var limits [][2]int // bytes that are read and written before each connection ends
	sidecar.locked(func() {
		sidecar.cutAfter = func() (int, int) {
			if len(limits) == 0 {
				return -1, -1
			}
			next := limits[0]
			limits = limits[1:]
			return next[0], next[1]
		}
	})
	runs := 0
	run := func(of ...[2]int) (isComplete bool) {
		sidecar.locked(func() { limits, sidecar.hellos = of, 0 })
		runConversation(t, sidecar)
		sidecar.locked(func() {
			isComplete = sidecar.hellos == 1 && len(limits) == 0
			if sidecar.violation != "" {
				t.Error(sidecar.violation)
			}
		})
		if t.Failed() {
			t.Fatalf("with the limits %v", of)
		}
		runs++
		return isComplete
	}
	step := 23
	if os.Getenv("LOCKSIDECAR_LONG") != "" {
		step = 3
	}
	for k := 0; !run([2]int{k, -1}); k += step {
	}
	for k := 0; !run([2]int{-1, k}); k += step {
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1800 / step {
		var of [][2]int
		for range 1 + rng.IntN(5) {
			of = append(of, [2]int{rng.IntN(900) - 1, rng.IntN(900) - 1})
		}
		run(of...)
	}
	t.Logf("%d runs", runs)
}

// runConversation makes every kind of call. In the end both sides must have the same state.
func runConversation(t *testing.T, sidecar *fakeSidecar) {
	c, err := Dial(context.Background(), sidecar.path)
	if err != nil {
		t.Error(err)
		return
	}
	owner := NewOwner(context.Background())
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
		wantKind(t, errOf(c.TryLock(owner, "b")), ErrHeld)
		unlock(inner)
		ctx, cancel := context.WithCancel(context.Background())
		canceled := async(func() (*Lock, error) { return c.Lock(ctx, "b") })
		waiting := async(func() (*Lock, error) { return c.Lock(context.Background(), "b") })
		runtime.Gosched()
		cancel()
		wantKind(t, errOf(canceled()), context.Canceled)
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
		sidecar.locked(func() {
			if sidecar.holds[again.hold.id] != nil {
				t.Error("a release was confirmed, and the sidecar has the hold")
			}
		})
		unlock(lock(owner, "a", true))
		third := lock(owner, "a", true)
		fourth := lock(owner, "a", false)
		if _, err := c.Ping(context.Background()); err != nil {
			t.Error(err)
		}

		acquire := func(n int) (*Permit, error) { return c.Semaphore("c", 3).Acquire(owner, n) }
		two, err := acquire(2)
		if err != nil {
			t.Error(err)
			return
		}
		waits := async(func() (*Permit, error) { return acquire(3) })
		if err := two.Release(); err != nil {
			t.Errorf("release: %v", err)
		}
		all, err := waits()
		if err != nil || all.Permits() != 3 || all.Token() <= two.Token() {
			t.Errorf("the waiter for permits: %v, %v", all, err)
			return
		}

		wantSameHolds(t, sidecar, c, map[string]uint32{"a": 2, "b": 1, "c": 1})
		unlock(fourth)
		unlock(third)
		unlock(next)
		if err := all.Release(); err != nil {
			t.Errorf("release: %v", err)
		}
		wantSameHolds(t, sidecar, c, map[string]uint32{})
	}()
	<-done
	last := lockLast(t, sidecar, c)
	c.Close()
	<-c.current.Load().done
	for isEmpty := false; !isEmpty; runtime.Gosched() {
		sidecar.locked(func() { isEmpty = len(sidecar.conns) == 0 })
	}
	if holds, waiters := sidecar.counts(); holds != 0 || waiters != 0 {
		t.Errorf("%d holds and %d waiters are left", holds, waiters)
	}
	if last != nil {
		wantKind(t, last.Err(), ErrClosed)
	}
	sidecar.locked(func() {
		if len(sidecar.sessions) != 0 {
			t.Errorf("%d sessions are left", len(sidecar.sessions))
		}
	})
}

// lockLast acquires a lock that Close has to release.
func lockLast(t *testing.T, sidecar *fakeSidecar, c *Client) *Lock {
	l, err := c.Lock(context.Background(), "last")
	if err != nil {
		t.Errorf("the last lock: %v", err)
	}
	return l
}

// wantSameHolds checks that both sides have these holds, by name, with the same entries.
func wantSameHolds(t *testing.T, sidecar *fakeSidecar, c *Client, want map[string]uint32) {
	t.Helper()
	// The answer to the first ping comes after those to all requests before it, and the
	// answer to the second after those to the requests that the client sent meanwhile.
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
	sidecar.locked(func() {
		for num, h := range sidecar.holds {
			theirs[h.lock.name] += h.count
			waiters += len(h.lock.waiters)
			if h := s.holds[num]; h == nil || h.token != 1_000_000+num {
				t.Errorf("the client does not have hold %d", num)
			}
		}
	})
	if !maps.Equal(ours, want) || !maps.Equal(theirs, want) || waiters != 0 || calls != 0 {
		t.Errorf("the client has %v, the sidecar %v, want %v; %d waiters, %d calls", ours, theirs, want, waiters, calls)
	}
}

// The sidecar is killed again and again under load, and no call fails.
func TestReconnectUnderLoad(t *testing.T) {
	sidecar, c := dialFakeSidecar(t)
	var inside [3]atomic.Int32
	var grants atomic.Int64
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
				ctx, cancel := NewOwner(context.Background()), context.CancelFunc(func() {})
				if rng.IntN(4) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(2000))*time.Microsecond)
				}
				l, err := c.Lock(ctx, fmt.Sprint("lock", n))
				if err != nil {
					wantKind(t, err, ErrTimeout)
					cancel()
					continue
				}
				if inside[n].Add(1) != 1 || l.Token() <= token[n] {
					t.Errorf("two goroutines hold the lock, or the token %d is not larger than %d", l.Token(), token[n])
				}
				token[n] = l.Token()
				if again, err := c.TryLock(context.WithoutCancel(ctx), l.Name()); err != nil || again.Token() != l.Token() {
					t.Errorf("re-entry: %v, %v", again, err)
				} else if err := again.Unlock(); err != nil {
					t.Error(err)
				}
				grants.Add(1)
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
		for before := grants.Load(); grants.Load() == before && !t.Failed(); {
			runtime.Gosched()
			checkInvariants(t, c)
		}
		sidecar.disconnectAll()
	}
	close(stop)
	wg.Wait()
	wantSameHolds(t, sidecar, c, map[string]uint32{})
}

func TestTenThousandHoldsAreClaimedInPages(t *testing.T) {
	const many = 10_000
	sidecar, c := dialFakeSidecar(t)
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
	sidecar.disconnectAll()
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
	wantSameHolds(t, sidecar, c, want)
	sidecar.locked(func() {
		if len(sidecar.claims) != 3 || sidecar.claims[0] != protocol.MaxClaims || sidecar.claims[1] != protocol.MaxClaims {
			t.Errorf("claimed %v", sidecar.claims)
		}
	})
}

// The successor has lost its state, or does not accept the ticket.
func TestNewSessionOrphansHolds(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, inOneHour())
	observed := p.lock(c, "observed", 2, protocol.Now()+int64(50*time.Millisecond))
	done := observed.Done()
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "wanted") })
	expect[protocol.Acquire](p)
	session := c.current.Load()
	deadline := protocol.Now() + int64(50*time.Millisecond)
	p.send(protocol.LeaseEvent{DeadlineNS: deadline})
	p.nc.Close()
	p = s.accept()
	hello := expect[protocol.Hello](p)
	p.send(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: "another", NowNS: protocol.Now(), Ticket: "a new one"})

	// Its holds may have the ids of earlier ones.
	a := p.grant(1, inOneHour())
	l, err := locked()
	if err != nil || a.Name != "wanted" {
		t.Fatal(err)
	}
	p.send(protocol.LeaseEvent{DeadlineNS: inOneHour()})
	p.expectNothing(c)
	if c.current.Load() != session || held.Err() != nil {
		t.Error(held.Err())
	}
	if err := observed.Err(); err != nil && protocol.Now() < deadline {
		t.Error(err)
	}
	<-done
	var lost *LostError
	if !errors.As(observed.Err(), &lost) || lost.Reason != ReasonExpired {
		t.Errorf("the error is %v", observed.Err())
	}
	if err := held.Unlock(); err != nil {
		t.Error(err)
	}
	p.send(protocol.LostEvent{Hold: 2, Reason: protocol.Stolen})
	p.expectNothing(c) // nothing was released
	if err := l.Err(); err != nil {
		t.Errorf("the end of an old hold ended the new one with its id: %v", err)
	}

	p.nc.Close()
	p = s.accept()
	hello = expect[protocol.Hello](p)
	if hello.Resume != "a new one" {
		t.Errorf("resumes %q, not the newest ticket", hello.Resume)
	}
	p.send(protocol.HelloOK{ID: hello.ID, V: 1, NowNS: protocol.Now(), Ticket: "a new one", Resumed: true})
	if claim, holds := p.expectClaim(); !maps.Equal(holds, map[uint64]uint32{1: 1}) {
		t.Errorf("claimed %v", holds)
	} else {
		p.send(protocol.ClaimOK{ID: claim})
	}
	if len(session.orphans) != 0 {
		t.Errorf("%d orphans are left", len(session.orphans))
	}
}

// A sidecar without the state of its predecessor grants holds with the same ids again.
func TestExpiryOfReleasedHoldLeavesNewHoldWithItsID(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		released := mustLock(t, c, "released")
		if err := released.Unlock(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		network.disconnectAll()
		network.locked(func() { clear(network.sessions); clear(network.locks); clear(network.holds); network.lastID = 0 })
		held := mustLock(t, c, "held")
		if held.hold.id != released.hold.id {
			t.Fatalf("the ids are %d and %d; the test needs equal ones", released.hold.id, held.hold.id)
		}
		time.Sleep(20 * time.Second) // the deadline of the released hold has passed
		wantKind(t, released.Err(), ErrNotHeld)
		network.disconnectAll()
		time.Sleep(time.Second)
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{"held": 1})
		if err := held.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseEndsOrphanedHolds(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, inOneHour())
	p.nc.Close()
	p = s.accept()
	p.answerHello()
	p.expectNothing(c)
	s.closeClient(c)
	wantKind(t, held.Err(), ErrClosed)
}

func TestForgottenHoldIsLost(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, inOneHour())
	ctx, stop := held.Context(context.Background())
	defer stop()
	p.nc.Close()
	p = s.acceptResumed()
	claim, _ := p.expectClaim()
	p.send(protocol.LostEvent{Hold: 1, Reason: protocol.Forgotten})
	p.send(protocol.LostEvent{Hold: 77, Reason: protocol.Forgotten})
	p.send(protocol.ClaimOK{ID: claim})
	<-ctx.Done()
	var lost *LostError
	if !errors.As(context.Cause(ctx), &lost) || lost.Reason != ReasonForgotten {
		t.Errorf("the context ended with %v", context.Cause(ctx))
	}
	wantText(t, lost, "restarted")
	p.expectNothing(c)
}

func TestForceReleaseIsNotSentTwice(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	forced := async(func() (ForcedRelease, error) { return c.ForceRelease(context.Background(), "a") })
	expect[protocol.ForceRelease](p)
	p.nc.Close()
	_, err := forced()
	wantKind(t, err, ErrUnavailable)
	wantText(t, err, "may have happened")

	// The sidecar has nothing of the session, so only the next call connects. Its request is
	// not sent before the claim is answered, and so it is sent over the next connection.
	forced = async(func() (ForcedRelease, error) { return c.ForceRelease(context.Background(), "b") })
	p = s.acceptResumed()
	p.expectClaim()
	p.nc.Close()
	p = s.acceptResumed()
	claim, _ := p.expectClaim()
	p.send(protocol.ClaimOK{ID: claim})
	p.send(protocol.ForceReleaseOK{ID: expect[protocol.ForceRelease](p).ID, Hold: 7})
	if hold, err := forced(); hold != (ForcedRelease{7, 1}) || err != nil {
		t.Errorf("force_release: %d, %v", hold, err)
	}
}

func TestCanceledForceReleaseMayHaveHappened(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	ctx, cancel := context.WithCancel(context.Background())
	forced := async(func() (ForcedRelease, error) { return c.ForceRelease(ctx, "a") })
	expect[protocol.ForceRelease](p)
	cancel()
	_, err := forced()
	wantKind(t, err, context.Canceled)
	wantText(t, err, "may have happened")
}

// Another sidecar lists its locks in another order.
func TestListStartsAgainAfterReconnect(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	listed := async(func() ([]LockInfo, error) { return c.List(context.Background()) })
	p.send(protocol.ListOK{ID: expect[protocol.List](p).ID, Locks: []protocol.LockRow{{Name: "a", State: "free"}}, Next: 9})
	expect[protocol.List](p)
	p.nc.Close()
	p = s.acceptResumed()
	claim, _ := p.expectClaim()
	p.send(protocol.ClaimOK{ID: claim})
	for _, after := range []uint64{9, 0} {
		req := expect[protocol.List](p)
		if req.After != after {
			t.Errorf("requested the page after %d, want %d", req.After, after)
		}
		p.send(protocol.ListOK{ID: req.ID, Locks: []protocol.LockRow{{Name: "b", State: "free"}}})
	}
	if rows, err := listed(); err != nil || len(rows) != 1 || rows[0].Name != "b" {
		t.Errorf("list: %+v, %v", rows, err)
	}
}

// A successor with a shorter lease sends earlier deadlines than its predecessor did.
func TestLeaseEventsOfSuccessorWithShorterLeaseCount(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	old := p.lock(c, "old", 1, protocol.Now()+int64(time.Minute))
	p.send(protocol.LeaseEvent{DeadlineNS: inOneHour()})
	p.expectNothing(c)
	p.nc.Close()
	p = s.acceptResumed()
	claim, _ := p.expectClaim()
	p.send(protocol.ClaimOK{ID: claim})
	young := p.lock(c, "young", 2, protocol.Now()+int64(time.Minute))
	p.send(protocol.LeaseEvent{DeadlineNS: protocol.Now() + int64(10*time.Minute)})
	p.expectNothing(c)
	if d := time.Until(young.Deadline()); d < 9*time.Minute || d > 10*time.Minute {
		t.Errorf("the young lock is valid for %v", d)
	}
	if d := time.Until(old.Deadline()); d < 59*time.Minute {
		t.Errorf("the old lock is valid for %v", d)
	}
}

func TestLeaseEventsOfNewSessionCount(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	p.send(protocol.LeaseEvent{DeadlineNS: inOneHour()})
	p.expectNothing(c)
	p.nc.Close()
	peers := make(chan *peer, 1)
	go func() {
		p := s.accept()
		p.answerHello()
		peers <- p
	}()
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "a") })
	p = <-peers
	p.grant(1, protocol.Now()+int64(time.Minute))
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	p.send(protocol.LeaseEvent{DeadlineNS: protocol.Now() + int64(10*time.Minute)})
	p.expectNothing(c)
	if d := time.Until(l.Deadline()); d < 9*time.Minute || d > 10*time.Minute {
		t.Errorf("it is valid for %v", d)
	}
}

// The requests that are sent again do not count against the limit of unread requests.
func TestRequestsSentAgainDoNotCountAsUnread(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	const many = maxUnwritten/protocol.MaxName + 1
	ctx, cancel := context.WithCancel(context.Background())
	name := strings.Repeat("n", protocol.MaxName)
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() { wantKind(t, errOf(c.Lock(ctx, name)), context.Canceled) })
	}
	for range many {
		expect[protocol.Acquire](p)
	}
	p.nc.Close()
	p = s.acceptResumed()
	claim, _ := p.expectClaim()
	pinged := async(func() (string, error) { return c.Ping(context.Background()) })
	p.send(protocol.ClaimOK{ID: claim})
	for range many {
		expect[protocol.Acquire](p)
	}
	p.send(protocol.PingOK{ID: expect[protocol.Ping](p).ID, NowNS: 1, Redis: "ok"})
	if _, err := pinged(); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
}

// A hold that was claimed is with the sidecar until its release is answered.
func TestClientReconnectsForUnreadRelease(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	l := p.lock(c, "a", 1, inOneHour())
	p.nc.Close()
	p = s.acceptResumed()
	claim, holds := p.expectClaim()
	if !maps.Equal(holds, map[uint64]uint32{1: 1}) {
		t.Errorf("claimed %v", holds)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	p.send(protocol.ClaimOK{ID: claim})
	p.nc.Close()
	p = s.acceptResumed()
	claim, holds = p.expectClaim()
	if len(holds) != 0 {
		t.Errorf("claimed %v", holds)
	}
	p.send(protocol.ClaimOK{ID: claim})
	p.expectNothing(c)
}

func TestRefusedClaimEndsSession(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	l := p.lock(c, "a", 1, inOneHour())
	p.nc.Close()
	p = s.acceptResumed()
	claim, _ := p.expectClaim()
	p.send(protocol.Err{ID: claim, Code: protocol.Unsupported, Msg: "what is a claim?"})
	if _, err := p.frames.Next(); err == nil {
		t.Error("the connection is open")
	}
	wantKind(t, l.Err(), ErrLost)
}

// A sidecar that refuses hello for good ends the session: its ticket is not used again.
func TestRefusedHelloEndsSession(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	l := p.lock(c, "a", 1, inOneHour())
	waits := async(func() (*Lock, error) { return c.Lock(context.Background(), "b") })
	expect[protocol.Acquire](p)
	p.nc.Close()
	p = s.accept()
	p.send(protocol.Err{ID: expect[protocol.Hello](p).ID, Code: protocol.Unsupported, Msg: "it speaks version 2"})
	p.nc.Close()
	_, err := waits()
	wantKind(t, err, ErrUnsupported)
	if err := l.Err(); err != nil {
		t.Errorf("%v; the lock is held until its deadline", err)
	}
	waits = async(func() (*Lock, error) { return c.Lock(context.Background(), "c") })
	p = s.accept()
	hello := expect[protocol.Hello](p)
	if hello.Resume != "" {
		t.Errorf("sent %+v, want a hello that resumes nothing", hello)
	}
	p.send(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: "fake", NowNS: p.clock(), Ticket: ticket})
	p.grant(1, inOneHour())
	if _, err := waits(); err != nil {
		t.Error(err)
	}
}

// A sidecar that has no room, or is stopping, is tried again with the ticket.
func TestHelloThatIsRefusedForNowIsSentAgain(t *testing.T) {
	for _, code := range []protocol.Code{protocol.Unavailable, protocol.Limit, protocol.NoHello} {
		s := listen(t)
		c, p := s.dial()
		l := p.lock(c, "a", 1, inOneHour())
		p.nc.Close()
		p = s.accept()
		p.send(protocol.Err{ID: expect[protocol.Hello](p).ID, Code: code, Msg: "try again"})
		p.nc.Close()
		p = s.acceptResumed()
		claim, _ := p.expectClaim()
		p.send(protocol.ClaimOK{ID: claim})
		if err := l.Err(); err != nil {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestPatienceBoundsWaitForSidecar(t *testing.T) {
	for _, patience := range []time.Duration{0, time.Second, defaultPatience} {
		inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
			c.current.Load().patience = patience
			mustLock(t, c, "held")
			waiting := measure(func() error { return errOf(c.Lock(context.Background(), "held")) })
			asked := measure(func() error { return errOf(c.Lock(context.Background(), "held")) })
			time.Sleep(time.Minute)
			network.fail(os.ErrNotExist)
			time.Sleep(patience / 3)
			late := measure(func() error { return errOf(c.TryLock(context.Background(), "other")) })
			forced := measure(func() error { return errOf(c.ForceRelease(context.Background(), "other")) })
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
				wantKind(t, err, ErrUnavailable, os.ErrNotExist)
				wantText(t, err, "/fake", "start it", tt.words)
				// When the patience ends there is one more attempt.
				if d < tt.want || d > tt.want+firstPause {
					t.Errorf("patience %v: it took %v, want %v", patience, d, tt.want)
				}
			}
		})
	}
}

func TestWaitingCallIsAnsweredAfterReconnect(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		l := mustLock(t, c, "a")
		network.fail(os.ErrNotExist)
		tried := measure(func() error { return errOf(c.TryLock(context.Background(), "a")) })
		locked := measure(func() error { return errOf(c.Lock(context.Background(), "b")) })
		time.Sleep(9 * time.Second)
		network.restore()
		d, err := tried()
		wantKind(t, err, ErrHeld)
		if d > 9*time.Second+longestPause*5/4 {
			t.Errorf("it took %v", d)
		}
		if d, err := locked(); err != nil {
			t.Errorf("after %v: %v", d, err)
		}
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{"a": 1, "b": 1})
	})
}

func TestContextEndsWaitForSidecar(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		mustLock(t, c, "held")
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		canceled, giveUp := context.WithCancelCause(context.Background())
		waiting := measure(func() error { return errOf(c.Lock(ctx, "held")) })
		gone := measure(func() error { return errOf(c.Lock(canceled, "held")) })
		synctest.Wait()
		network.fail(os.ErrNotExist)
		late := measure(func() error { return errOf(c.TryLock(ctx, "other")) })
		why := errors.New("enough")
		giveUp(why)
		d, err := gone()
		wantKind(t, err, context.Canceled, why)
		if d != 0 {
			t.Errorf("it took %v", d)
		}
		for _, result := range []func() (time.Duration, error){waiting, late} {
			d, err := result()
			wantKind(t, err, ErrTimeout, context.DeadlineExceeded, ErrUnavailable)
			wantText(t, err, "/fake", "start it")
			if d < 3*time.Second || d > 3*time.Second+answerGrace {
				t.Errorf("it took %v", d)
			}
		}
		network.restore()
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{"held": 1})
	})
}

// After a reconnect, a limited wait is requested for the time that is left of it.
func TestReconnectSendsRemainingWait(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		mustLock(t, c, "held")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		waiting := measure(func() error { return errOf(c.Lock(ctx, "held")) })
		time.Sleep(20 * time.Second)
		network.fail(os.ErrNotExist)
		time.Sleep(5 * time.Second)
		network.restore()
		time.Sleep(time.Second)
		network.locked(func() {
			ms := network.locks["held"].waiters[0].req.WaitMS
			if ms > 35_000 || ms < 34_000 {
				t.Errorf("it waits for %d ms more", ms)
			}
		})
		d, err := waiting()
		wantKind(t, err, ErrTimeout)
		wantText(t, err, "held for all that time")
		if d < time.Minute-time.Millisecond || d > time.Minute {
			t.Errorf("it took %v", d)
		}
	})
}

// Shows docs/guarantees.md: No daemon starts, or only after the deadlines.
func TestHoldsExpireIfSidecarDoesNotReturn(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		l := mustLock(t, c, "a")
		ctx, stop := l.Context(context.Background())
		defer stop()
		released := mustLock(t, c, "b")
		unobserved := mustLock(t, c, "c")
		network.fail(os.ErrNotExist)
		if err := released.Unlock(); err != nil {
			t.Error(err)
		}
		if d := untilDone(l); d != 30*time.Second {
			t.Errorf("it was lost after %v", d)
		}
		<-ctx.Done()
		for _, err := range []error{l.Err(), context.Cause(ctx), unobserved.Err(), unobserved.Unlock()} {
			var lost *LostError
			if !errors.As(err, &lost) || lost.Reason != ReasonExpired {
				t.Errorf("the error is %v", err)
			}
		}
		time.Sleep(time.Hour)
		if n := network.tried(); n < 3600*4/5 || n > 3600*4/3 {
			t.Errorf("tried to connect %d times in an hour", n)
		}
		// What the successor has renewed is released.
		if holds, _ := network.counts(); holds != 3 {
			t.Errorf("the sidecar has %d holds", holds)
		}
		network.restore()
		time.Sleep(2 * rarePause)
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{})
	})
}

func TestClientWithoutRemoteStateReconnectsOnDemand(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		if _, err := c.Ping(context.Background()); err != nil {
			t.Fatal(err)
		}
		network.fail(os.ErrNotExist)
		time.Sleep(time.Hour)
		if n := network.tried(); n != 0 {
			t.Errorf("tried to connect %d times", n)
		}
		wantKind(t, errOf(c.Ping(context.Background())), ErrUnavailable)
		if n := network.tried(); n == 0 || n > 50 {
			t.Errorf("tried to connect %d times", n)
		}
		network.restore()
		time.Sleep(time.Hour)
		if n := network.tried(); n != 0 {
			t.Errorf("tried to connect %d times when no call waited any more", n)
		}
		mustLock(t, c, "a")

		// A hold is with the sidecar until the sidecar has received its release.
		if err := mustLock(t, c, "b").Unlock(); err != nil {
			t.Error(err)
		}
		network.fail(os.ErrNotExist)
		time.Sleep(10 * time.Second)
		if n := network.tried(); n < 20 {
			t.Errorf("tried to connect %d times", n)
		}

		// The sidecar has one hold of the session now, so the client reconnects.
		for range 2 {
			network.restore()
			time.Sleep(time.Second)
			if n := network.tried(); n != 1 {
				t.Errorf("connected %d times", n)
			}
			wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{"a": 1})
			network.fail(os.ErrNotExist)
		}
		time.Sleep(time.Minute)
		network.restore()
		time.Sleep(2 * rarePause)
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{})
		network.fail(os.ErrNotExist)
		time.Sleep(time.Hour)
		if n := network.tried(); n != 0 {
			t.Errorf("tried to connect %d times without need", n)
		}
	})
}

// A request that kills the sidecar is not sent again without end.
func TestRequestThatKillsSidecarIsGivenUp(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		l := mustLock(t, c, "held")
		before := network.tried()
		network.locked(func() { network.diesOnAcquire = true })
		d, err := measure(func() error { return errOf(c.Lock(context.Background(), "deadly")) })()
		wantKind(t, err, ErrUnavailable)
		wantText(t, err, "not held", "given up")
		if d < defaultPatience || d > defaultPatience+longestPause*5/4 {
			t.Errorf("it took %v", d)
		}
		if n := network.tried() - before; n > 40 {
			t.Errorf("it was killed %d times", n)
		}
		network.locked(func() { network.diesOnAcquire = false })
		time.Sleep(longestPause)
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{"held": 1})
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestExpiredHoldIsNotClaimed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		mustLock(t, c, "unobserved")
		l := mustLock(t, c, "observed")
		l.Done()
		time.Sleep(20 * time.Second)
		later := mustLock(t, c, "later")
		network.fail(os.ErrNotExist)
		time.Sleep(20 * time.Second)
		network.restore()
		time.Sleep(time.Second)
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{"later": 1})
		wantKind(t, l.Err(), ErrLost)
		if err := later.Err(); err != nil {
			t.Error(err)
		}
		network.locked(func() {
			if !slices.Equal(network.claims, []int{1}) {
				t.Errorf("claimed %v", network.claims)
			}
		})
	})
}

func TestCloseSendsBye(t *testing.T) {
	wantEnd := func(t *testing.T, c *Client, low, high time.Duration) {
		t.Helper()
		start := time.Now()
		<-c.current.Load().done
		if d := time.Since(start); d < low || d > high {
			t.Errorf("the session ended after %v, want %v to %v", d, low, high)
		}
	}
	wantClose := func(t *testing.T, c *Client, low, high time.Duration) {
		t.Helper()
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < low || d > high {
			t.Errorf("Close took %v, want %v to %v", d, low, high)
		}
	}
	wantNothingLeft := func(t *testing.T, network *fakeNetwork) {
		t.Helper()
		synctest.Wait()
		holds, waiters := network.counts()
		network.locked(func() {
			if holds != 0 || waiters != 0 || len(network.sessions) != 0 {
				t.Errorf("%d holds, %d waiters and %d sessions are left", holds, waiters, len(network.sessions))
			}
		})
	}
	for name, test := range map[string]func(t *testing.T, c *Client, network *fakeNetwork){
		"which is answered": func(t *testing.T, c *Client, network *fakeNetwork) {
			mustLock(t, c, "a")
			wantClose(t, c, 0, firstPause)
			wantEnd(t, c, 0, 0)
			wantNothingLeft(t, network)
		},
		"to a successor": func(t *testing.T, c *Client, network *fakeNetwork) {
			l := mustLock(t, c, "a")
			network.fail(os.ErrNotExist)
			waiting := measure(func() error { return errOf(c.Lock(context.Background(), "a")) })
			synctest.Wait()
			wantClose(t, c, 0, firstPause)
			wantKind(t, l.Err(), ErrClosed)
			_, err := waiting()
			wantKind(t, err, ErrClosed)
			time.Sleep(10 * time.Second)
			network.restore()
			wantEnd(t, c, 0, longestPause*5/4)
			wantNothingLeft(t, network)
			network.locked(func() {
				if len(network.claims) != 0 {
					t.Errorf("claimed %v", network.claims)
				}
			})
		},
		"to a successor that listens when it is called": func(t *testing.T, c *Client, network *fakeNetwork) {
			mustLock(t, c, "a", WithLease(time.Hour))
			network.fail(os.ErrNotExist)
			time.Sleep(2 * time.Minute) // the pauses between attempts are long now
			network.restore()
			wantClose(t, c, 0, firstPause)
			wantEnd(t, c, 0, 0)
			wantNothingLeft(t, network)
		},
		"again if the connection ends before the answer": func(t *testing.T, c *Client, network *fakeNetwork) {
			mustLock(t, c, "a")
			network.locked(func() { network.isSilent = true })
			closed := async(func() (any, error) { return nil, c.Close() })
			time.Sleep(500 * time.Millisecond)
			network.locked(func() { network.isSilent = false })
			network.disconnectAll()
			_, _ = closed()
			wantEnd(t, c, 0, 0)
			wantNothingLeft(t, network)
		},
		"until the leases have ended, if no sidecar listens": func(t *testing.T, c *Client, network *fakeNetwork) {
			mustLock(t, c, "a", WithLease(time.Second))
			time.Sleep(10 * time.Second)
			mustLock(t, c, "b")
			network.fail(os.ErrNotExist)
			wantClose(t, c, 0, firstPause)
			wantEnd(t, c, time.Minute-firstPause, time.Minute)
		},
		"to a sidecar that hangs": func(t *testing.T, c *Client, network *fakeNetwork) {
			mustLock(t, c, "a")
			network.locked(func() { network.isSilent = true })
			wantClose(t, c, byeGrace, byeGrace)
			wantEnd(t, c, time.Minute-byeGrace, time.Minute-byeGrace)
			network.locked(func() { network.isSilent = false })
		},
		"to a successor that hangs": func(t *testing.T, c *Client, network *fakeNetwork) {
			mustLock(t, c, "a")
			network.fail(os.ErrNotExist)
			wantClose(t, c, 0, firstPause)
			network.locked(func() { network.isSilent = true })
			network.restore()
			wantEnd(t, c, time.Minute-firstPause, time.Minute)
			if n := network.tried(); n != 1 {
				t.Errorf("connected %d times", n)
			}
			network.locked(func() { network.isSilent = false })
		},
		"to a sidecar that hangs and has nothing of the session": func(t *testing.T, c *Client, network *fakeNetwork) {
			network.locked(func() { network.isSilent = true })
			wantClose(t, c, byeGrace, byeGrace)
			wantEnd(t, c, 0, 0)
			network.locked(func() { network.isSilent = false })
		},
		"only if the sidecar has something of the session": func(t *testing.T, c *Client, network *fakeNetwork) {
			network.fail(os.ErrNotExist)
			wantClose(t, c, 0, firstPause)
			wantEnd(t, c, 0, 0)
			if n := network.tried(); n != 0 {
				t.Errorf("tried to connect %d times", n)
			}
		},
		"not to a successor without the state": func(t *testing.T, c *Client, network *fakeNetwork) {
			mustLock(t, c, "a")
			network.fail(os.ErrNotExist)
			wantClose(t, c, 0, firstPause)
			network.locked(func() { clear(network.sessions); clear(network.locks); clear(network.holds) })
			network.restore()
			wantEnd(t, c, 0, longestPause)
			wantNothingLeft(t, network)
		},
	} {
		t.Run(name, func(t *testing.T) { inVirtualTime(t, test) })
	}
}

func TestCloseWithSidecarThatRefusesBye(t *testing.T) {
	c, p := listen(t).dial()
	p.lock(c, "a", 1, inOneHour())
	closed := async(func() (any, error) { return nil, c.Close() })
	p.send(protocol.Err{ID: expect[protocol.Bye](p).ID, Code: protocol.Unsupported, Msg: "what is bye?"})
	if _, err := closed(); err != nil {
		t.Error(err)
	}
	if _, err := p.frames.Next(); err == nil {
		t.Error("the connection is open")
	}
}

// After it has sent a claim, the client does not close the connection before the claim is
// answered, however long that takes, because it believes in the claimed holds.
func TestConnectionStaysOpenUntilClaimIsAnswered(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		l := mustLock(t, c, "a")
		network.locked(func() { network.isSilent = true })
		network.disconnectAll()
		time.Sleep(time.Second)
		canceled, cancel := context.WithCancel(context.Background())
		locked := measure(func() error { return errOf(c.Lock(canceled, "b")) })
		time.Sleep(20 * time.Second)
		cancel()
		_, err := locked()
		wantKind(t, err, context.Canceled)
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
		network.locked(func() {
			if network.hellos != 2 {
				t.Errorf("received %d hellos", network.hellos)
			}
		})
		network.locked(func() { network.isSilent = false })
		network.disconnectAll()
		time.Sleep(time.Second)
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{})
	})
}
