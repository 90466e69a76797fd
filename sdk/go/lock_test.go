//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestLockSendsOptions(t *testing.T) {
	c, p := listen(t).dial()
	owner := NewOwner(context.Background())
	limited, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	endless, cancel := context.WithTimeout(context.Background(), 1000*time.Hour)
	defer cancel()
	for i, tt := range []struct {
		lock func() (*Lock, error)
		want protocol.Acquire
	}{
		{func() (*Lock, error) { return c.Lock(context.Background(), "a") }, protocol.Acquire{Name: "a", WaitMS: protocol.Forever}},
		{func() (*Lock, error) { return c.TryLock(limited, "a") }, protocol.Acquire{Name: "a", WaitMS: 0}},
		{func() (*Lock, error) { return c.Lock(limited, "a") }, protocol.Acquire{Name: "a", WaitMS: 3_600_000}},
		{func() (*Lock, error) { return c.Lock(endless, "a") }, protocol.Acquire{Name: "a", WaitMS: protocol.Forever}},
		{func() (*Lock, error) { return c.Lock(owner, "a") }, protocol.Acquire{Name: "a", WaitMS: protocol.Forever, Owner: ownerOf(owner)}},
		{func() (*Lock, error) { return c.Lock(owner, "a", NonReentrant()) }, protocol.Acquire{Name: "a", WaitMS: protocol.Forever, Owner: ownerOf(owner), NotReentrant: true}},
		{func() (*Lock, error) { return c.Lock(context.Background(), "a", Fair()) }, protocol.Acquire{Name: "a", WaitMS: protocol.Forever, Fair: true}},
		{func() (*Lock, error) {
			return c.TryLock(context.Background(), "b", WithLease(50*time.Millisecond), WithMaxHold(time.Microsecond), WithCrashDelay(1500*time.Microsecond), WithKeep(time.Microsecond))
		}, protocol.Acquire{Name: "b", LeaseMS: 50, MaxHoldMS: 1, CrashDelayMS: 2, KeepMS: 1}},
		{func() (*Lock, error) {
			return c.TryLock(context.Background(), "b", WithLease(720*time.Hour), WithMaxHold(720*time.Hour), WithCrashDelay(time.Hour), WithKeep(24*time.Hour))
		}, protocol.Acquire{Name: "b", LeaseMS: 2_592_000_000, MaxHoldMS: 2_592_000_000, CrashDelayMS: 3_600_000, KeepMS: 86_400_000}},
	} {
		hold := uint64(i + 1)
		locked := async(tt.lock)
		got := p.grant(hold, inOneHour())
		tt.want.ID = got.ID
		if waited := tt.want.WaitMS - got.WaitMS; tt.want.WaitMS > 0 && waited >= 0 && waited < 60_000 {
			got.WaitMS = tt.want.WaitMS // some of it has passed
		}
		if got != tt.want {
			t.Errorf("%d: sent %+v, want %+v", i, got, tt.want)
		}
		l, err := locked()
		if err != nil {
			t.Fatal(err)
		}
		if l.Name() != tt.want.Name || l.Token() != 1000+hold || l.Err() != nil || time.Until(l.Deadline()) < 59*time.Minute {
			t.Errorf("%d: %q, token %d, %v, until %v", i, l.Name(), l.Token(), l.Err(), l.Deadline())
		}
	}
}

func TestInvalidArgumentsAreNotSent(t *testing.T) {
	c, p := listen(t).dial()
	ctx := context.Background()
	canceled, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("enough"))
	late, stop := context.WithDeadline(ctx, time.Unix(1, 0))
	defer stop()
	for want, err := range map[string]error{
		"name is empty":      errOf(c.Lock(ctx, "")),
		"513 bytes":          errOf(c.TryLock(ctx, strings.Repeat("n", 513))),
		"UTF-8":              errOf(c.Lock(ctx, "\xff")),
		"U+000A":             errOf(c.Lock(ctx, "a\nb")),
		"WithLease(49":       errOf(c.Lock(ctx, "a", WithLease(49*time.Millisecond))),
		"WithLease(-1":       errOf(c.Lock(ctx, "a", WithLease(-time.Second))),
		"WithLease(0s)":      errOf(c.Lock(ctx, "a", WithLease(0))),
		"WithLease(720h0":    errOf(c.Lock(ctx, "a", WithLease(720*time.Hour+1))),
		"WithMaxHold(0s)":    errOf(c.Lock(ctx, "a", WithMaxHold(0))),
		"WithMaxHold(-1":     errOf(c.Lock(ctx, "a", WithMaxHold(-1))),
		"WithCrashDelay(1h0": errOf(c.Lock(ctx, "a", WithCrashDelay(time.Hour+1))),
		"WithCrashDelay(-1":  errOf(c.Lock(ctx, "a", WithCrashDelay(-1))),
		"WithKeep(24h0":      errOf(c.Lock(ctx, "a", WithKeep(24*time.Hour+1))),
		"WithKeep(-1":        errOf(c.Lock(ctx, "a", WithKeep(-1))),
		"enough":             errOf(c.Lock(canceled, "a")),
		"deadline exceeded":  errOf(c.TryLock(late, "a")),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "locksidecar: ") {
			t.Errorf("%q: %v", want, err)
		}
	}
	wantKind(t, errOf(c.Lock(canceled, "a")), context.Canceled)
	wantKind(t, errOf(c.Lock(late, "a")), context.DeadlineExceeded, ErrTimeout)
	p.expectNothing(c)
}

func TestErrorCodesBecomeErrorKinds(t *testing.T) {
	c, p := listen(t).dial()
	for code, kind := range map[protocol.Code]error{
		protocol.Timeout: ErrTimeout, protocol.Deadlock: ErrDeadlock, protocol.Unavailable: ErrUnavailable,
		protocol.Denied: ErrDenied, protocol.Limit: ErrLimit, protocol.BadRequest: nil, "sunspots": nil,
	} {
		locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "a") })
		p.send(protocol.Err{ID: expect[protocol.Acquire](p).ID, Code: code, Msg: "do this and that"})
		l, err := locked()
		if l != nil || err == nil || err.Error() != `locksidecar: cannot lock "a": do this and that` {
			t.Errorf("%s: %v, %v", code, l, err)
		}
		if kind != nil {
			wantKind(t, err, kind)
		}
		for _, other := range []error{ErrHeld, ErrTimeout, ErrDeadlock, ErrUnavailable, ErrDenied, ErrLimit, ErrClosed, ErrLost, ErrNotHeld, context.Canceled} {
			if other != kind && errors.Is(err, other) {
				t.Errorf("%s: the error is %v, too", code, other)
			}
		}
	}
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "a") })
	p.send(protocol.Err{ID: expect[protocol.Acquire](p).ID, Code: protocol.Timeout})
	if _, err := locked(); err == nil || !strings.HasSuffix(err.Error(), "timeout") {
		t.Errorf("without a message: %v", err)
	}
}

func TestTryLockOfHeldLockIsErrHeld(t *testing.T) {
	c, p := listen(t).dial()
	locked := async(func() (*Lock, error) { return c.TryLock(context.Background(), "a") })
	p.send(protocol.Err{ID: expect[protocol.Acquire](p).ID, Code: protocol.Timeout, Msg: "pid 7 holds it"})
	_, err := locked()
	wantKind(t, err, ErrHeld)
	if errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "pid 7") {
		t.Errorf("the error is %v", err)
	}
}

func TestGrantAfterCancelIsReleased(t *testing.T) {
	c, p := listen(t).dial()
	for _, try := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(context.Background())
		locked := async(func() (*Lock, error) {
			if try {
				return c.TryLock(ctx, "a")
			}
			return c.Lock(ctx, "a")
		})
		a := expect[protocol.Acquire](p)
		why := errors.New("the user left")
		cancel(why)
		l, err := locked()
		wantKind(t, err, context.Canceled, why)
		if l != nil {
			t.Error("a lock was returned")
		}
		if got := expect[protocol.Cancel](p); got != (protocol.Cancel{Target: a.ID}) {
			t.Errorf("sent %+v, want a cancel of %d without an id", got, a.ID)
		}
		// The sidecar had granted it before it received the cancel.
		p.send(protocol.AcquireOK{ID: a.ID, Token: 1, Hold: 5, Count: 1, DeadlineNS: inOneHour()})
		if got := expect[protocol.Release](p); got != (protocol.Release{Hold: 5}) {
			t.Errorf("sent %+v, want the release of 5", got)
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	locked := async(func() (*Lock, error) { return c.Lock(ctx, "a") })
	a := expect[protocol.Acquire](p)
	cancel()
	wantKind(t, errOf(locked()), context.Canceled)
	expect[protocol.Cancel](p)
	p.send(protocol.Err{ID: a.ID, Code: protocol.Canceled, Msg: "canceled"})
	p.expectNothing(c)
	if s := c.current.Load(); len(s.calls) != 0 || len(s.holds) != 0 {
		t.Errorf("%d calls and %d holds are left", len(s.calls), len(s.holds))
	}
}

// The caller of the first acquire leaves after it was granted, and the sidecar answers the
// second one as a re-entry.
func TestReentryOfAbandonedGrantIsRenewed(t *testing.T) {
	c, p := listen(t).dial()
	owner := NewOwner(context.Background())
	ctx, cancel := context.WithCancel(owner)
	gone := async(func() (*Lock, error) { return c.Lock(ctx, "a") })
	first := expect[protocol.Acquire](p)
	cancel()
	wantKind(t, errOf(gone()), context.Canceled)
	expect[protocol.Cancel](p)
	locked := async(func() (*Lock, error) { return c.Lock(owner, "a") })
	again := expect[protocol.Acquire](p)
	soon := protocol.Now() + int64(time.Minute)
	p.send(protocol.AcquireOK{ID: first.ID, Token: 9, Hold: 5, Count: 1, DeadlineNS: soon})
	p.send(protocol.AcquireOK{ID: again.ID, Token: 9, Hold: 5, Count: 2, DeadlineNS: soon})
	p.send(protocol.LeaseEvent{DeadlineNS: inOneHour()})
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	release := expect[protocol.Release](p)
	p.send(protocol.ReleaseOK{ID: release.ID, Count: 1})
	p.expectNothing(c)
	if time.Until(l.Deadline()) < 30*time.Minute {
		t.Errorf("it is valid until %v only", l.Deadline())
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	if got := expect[protocol.Release](p); got.Hold != 5 {
		t.Errorf("sent %+v, want the release of 5", got)
	}
}

func TestOnlyFirstUnlockReleases(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	done := l.Done()
	ctx, stop := l.Context(context.Background())
	defer stop()
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if got := expect[protocol.Release](p); got != (protocol.Release{Hold: 1}) {
		t.Errorf("sent %+v", got)
	}
	<-done
	<-ctx.Done()
	<-l.Done()
	wantKind(t, context.Cause(ctx), ErrNotHeld)
	wantKind(t, l.Err(), ErrNotHeld)

	next := p.lock(c, "a", 2, inOneHour())
	wantKind(t, l.Unlock(), ErrNotHeld)
	wantKind(t, l.Unlock(), ErrNotHeld)
	p.expectNothing(c)
	if err := next.Err(); err != nil {
		t.Errorf("the late unlocks ended the next hold: %v", err)
	}
	late, stop := l.Context(context.Background())
	stop()
	wantKind(t, context.Cause(late), ErrNotHeld)
	if s := c.current.Load(); len(s.holds) != 1 || len(s.alarm.queue) != 0 {
		t.Errorf("%d holds and %d in the alarm are left", len(s.holds), len(s.alarm.queue))
	}
}

func TestLossIsReportedToAllObservers(t *testing.T) {
	c, p := listen(t).dial()
	for i, reason := range []Reason{ReasonExpired, ReasonDeleted, ReasonStolen, ReasonForced, ReasonMaxHold, "eclipse"} {
		hold := uint64(i + 1)
		l := p.lock(c, "a", hold, inOneHour())
		silent := p.lock(c, "b", 100+hold, inOneHour())
		other := p.lock(c, "c", 200+hold, inOneHour())
		done := l.Done()
		if done != l.Done() {
			t.Error("two calls of Done return different channels")
		}
		ctx, stop := l.Context(context.Background())
		stopped, stopIt := l.Context(context.Background())
		stopIt()
		p.send(protocol.LostEvent{Hold: hold, Reason: protocol.Reason(reason)})
		p.send(protocol.LostEvent{Hold: 100 + hold, Reason: protocol.Reason(reason)})
		<-done
		<-ctx.Done()
		p.expectNothing(c)
		for _, err := range []error{l.Err(), context.Cause(ctx), silent.Err()} {
			var lost *LostError
			if !errors.As(err, &lost) || lost.Reason != reason || !errors.Is(err, ErrLost) || errors.Is(err, ErrNotHeld) {
				t.Errorf("%s: %v", reason, err)
			}
		}
		if context.Cause(stopped) != context.Canceled {
			t.Errorf("the stopped context ended with %v", context.Cause(stopped))
		}
		<-silent.Done()
		wantKind(t, l.Unlock(), ErrLost)
		wantKind(t, l.Unlock(), ErrNotHeld)
		wantKind(t, l.Err(), ErrLost)
		wantKind(t, silent.Unlock(), ErrLost)
		p.expectNothing(c) // the sidecar has ended both holds
		if err := other.Unlock(); err != nil {
			t.Error(err)
		}
		expect[protocol.Release](p)
		stop()
	}
}

func TestContextEndsWithItsParent(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	why := errors.New("shutdown")
	parent, cancel := context.WithCancelCause(context.Background())
	ctx, stop := l.Context(parent)
	defer stop()
	cancel(why)
	<-ctx.Done()
	if context.Cause(ctx) != why || l.Err() != nil {
		t.Errorf("the context ended with %v, the lock with %v", context.Cause(ctx), l.Err())
	}
}

func TestReentryIsOneHoldWithOneHandlePerEntry(t *testing.T) {
	c, p := listen(t).dial()
	ctx := NewOwner(context.Background())
	enter := func(hold uint64, count uint32) *Lock {
		t.Helper()
		locked := async(func() (*Lock, error) { return c.Lock(ctx, "a") })
		p.send(protocol.AcquireOK{ID: expect[protocol.Acquire](p).ID, Token: 9, Hold: hold, Count: count, DeadlineNS: inOneHour()})
		l, err := locked()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	outer, inner := enter(1, 1), enter(1, 2)
	innerDone, outerDone := inner.Done(), outer.Done()
	if err := inner.Unlock(); err != nil {
		t.Fatal(err)
	}
	if got := expect[protocol.Release](p); got != (protocol.Release{Hold: 1}) {
		t.Errorf("sent %+v", got)
	}
	<-innerDone
	wantKind(t, inner.Err(), ErrNotHeld)
	wantKind(t, inner.Unlock(), ErrNotHeld)
	select {
	case <-outerDone:
		t.Error("the outer handle ended with the inner one")
	default:
	}
	if err := outer.Err(); err != nil {
		t.Error(err)
	}

	// The last entry is unlocked while another caller of this owner enters the lock, and
	// the sidecar receives the acquire first.
	locked := async(func() (*Lock, error) { return c.Lock(ctx, "a") })
	a := expect[protocol.Acquire](p)
	if err := outer.Unlock(); err != nil {
		t.Fatal(err)
	}
	release := expect[protocol.Release](p)
	if release.ID == 0 || release.Hold != 1 {
		t.Errorf("sent %+v, want a release of 1 that is answered", release)
	}
	p.send(protocol.AcquireOK{ID: a.ID, Token: 9, Hold: 1, Count: 2, DeadlineNS: protocol.Now() + 1})
	p.send(protocol.ReleaseOK{ID: release.ID, Count: 1})
	p.send(protocol.LeaseEvent{DeadlineNS: inOneHour()})
	again, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	p.expectNothing(c)
	if again.Err() != nil || again.Token() != 9 {
		t.Errorf("the re-entry is another hold: %v", again.Err())
	}
	if err := again.Unlock(); err != nil {
		t.Fatal(err)
	}
	p.send(protocol.Err{ID: expect[protocol.Release](p).ID, Code: protocol.NotHeld})
	p.expectNothing(c)
	if s := c.current.Load(); len(s.holds) != 0 || len(s.calls) != 0 {
		t.Errorf("%d holds and %d calls are left", len(s.holds), len(s.calls))
	}
	first, second := NewOwner(context.Background()), NewOwner(ctx)
	if ownerOf(ctx) == 0 || ownerOf(first) == ownerOf(ctx) || ownerOf(second) == ownerOf(ctx) || ownerOf(context.Background()) != 0 {
		t.Error("two owners are equal")
	}
}

func TestLossOfReenteredHoldEndsAllHandles(t *testing.T) {
	c, p := listen(t).dial()
	var handles []*Lock
	for i := range uint32(3) {
		locked := async(func() (*Lock, error) { return c.Lock(NewOwner(context.Background()), "a") })
		p.send(protocol.AcquireOK{ID: expect[protocol.Acquire](p).ID, Token: 9, Hold: 1, Count: i + 1, DeadlineNS: inOneHour()})
		l, err := locked()
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, l)
	}
	if err := handles[1].Unlock(); err != nil {
		t.Fatal(err)
	}
	expect[protocol.Release](p)
	done := handles[2].Done()
	p.send(protocol.LostEvent{Hold: 1, Reason: protocol.ByForce})
	<-done
	wantKind(t, handles[0].Err(), ErrLost)
	wantKind(t, handles[1].Err(), ErrNotHeld)
	wantKind(t, handles[0].Unlock(), ErrLost)
	wantKind(t, handles[2].Unlock(), ErrLost)
	p.expectNothing(c)
}

// Goroutines lock, unlock, and give up at random moments. They exclude each other, and in the
// end nothing is held and nothing waits.
func TestCancelAtAnyMomentLeaksNothing(t *testing.T) {
	sidecar, c := dialFakeSidecar(t)
	var inside [3]atomic.Int32
	var wg sync.WaitGroup
	var got, gaveUp atomic.Int32
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 300 {
				n := rng.IntN(len(inside))
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				switch rng.IntN(3) {
				case 0:
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(2000))*time.Microsecond)
				case 1:
					ctx, cancel = context.WithCancel(ctx)
					time.AfterFunc(time.Duration(rng.IntN(300))*time.Microsecond, cancel)
				}
				l, err := c.Lock(ctx, fmt.Sprint("lock", n))
				if err != nil {
					if !errors.Is(err, ErrTimeout) && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					gaveUp.Add(1)
					cancel()
					continue
				}
				if inside[n].Add(1) != 1 {
					t.Error("two goroutines hold the lock")
				}
				got.Add(1)
				runtime.Gosched()
				inside[n].Add(-1)
				if err := l.Unlock(); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if got.Load() == 0 || gaveUp.Load() == 0 {
		t.Errorf("%d got the lock, %d gave up; the test needs both", got.Load(), gaveUp.Load())
	}
	// The answer to the first ping comes after those to all requests before it, and the
	// answer to the second after those to the requests that the client sent meanwhile.
	for range 2 {
		if _, err := c.Ping(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if holds, waiters := sidecar.counts(); holds != 0 || waiters != 0 {
		t.Errorf("%d holds and %d waiters are left", holds, waiters)
	}
	s := c.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) != 0 || len(s.holds) != 0 {
		t.Errorf("the client has %d calls and %d holds left", len(s.calls), len(s.holds))
	}
}

func TestOwnersReenterAndExcludeEachOther(t *testing.T) {
	sidecar, c := dialFakeSidecar(t)
	var mu sync.Mutex
	holder, entries := uint64(0), 0
	enter := func(owner uint64) {
		mu.Lock()
		defer mu.Unlock()
		if entries > 0 && holder != owner {
			t.Errorf("the owners %d and %d hold the lock", holder, owner)
		}
		holder, entries = owner, entries+1
	}
	leave := func() {
		mu.Lock()
		defer mu.Unlock()
		entries--
	}
	var wg sync.WaitGroup
	for range 4 {
		ctx := NewOwner(context.Background())
		for range 3 {
			wg.Go(func() {
				for range 50 {
					l, err := c.Lock(ctx, "a")
					if err != nil {
						t.Error(err)
						return
					}
					enter(ownerOf(ctx))
					runtime.Gosched()
					leave()
					if err := l.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if _, err := c.Ping(context.Background()); err != nil {
		t.Fatal(err)
	}
	if holds, waiters := sidecar.counts(); holds != 0 || waiters != 0 {
		t.Errorf("%d holds and %d waiters are left", holds, waiters)
	}
}

// A hundred thousand holds need no goroutines, no timers, and little memory.
func TestManyHoldsNeedLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("acquires 100,000 locks")
	}
	const many = 100_000
	_, c := dialFakeSidecar(t)
	names := make([]string, many)
	for i := range names {
		names[i] = fmt.Sprintf("lock-%06d", i)
	}
	locks := make([]*Lock, many)
	goroutines := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := g; i < many; i += 8 {
				l, err := c.Lock(context.Background(), names[i])
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
	if n := runtime.NumGoroutine(); n > goroutines+2 {
		t.Errorf("%d goroutines, before the locks %d", n, goroutines)
	}
	s := c.current.Load()
	if len(s.holds) != many || s.alarm.timer != nil {
		t.Errorf("%d holds, alarm %v", len(s.holds), s.alarm.timer)
	}

	// The memory of the holds is what is freed with them. The fake sidecar keeps its locks.
	before := inUse()
	s.mu.Lock()
	s.holds = make(map[uint64]*hold)
	s.mu.Unlock()
	clear(locks)
	perLock := float64(before-inUse()) / many
	t.Logf("%.0f bytes per lock", perLock)
	if perLock > 300 {
		t.Errorf("a lock takes %.0f bytes", perLock)
	}
	runtime.KeepAlive(locks)
}

func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
