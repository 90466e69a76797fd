//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// readWrite acquires the read/write lock "catalog" with the client, and grants it.
func (p *peer) readWrite(c *Client, shared bool, hold uint64) *Lock {
	p.t.Helper()
	acquired := async(func() (*Lock, error) {
		if shared {
			return c.RLock(context.Background(), "catalog")
		}
		return c.WLock(context.Background(), "catalog")
	})
	a := expect[protocol.AcquireReadWrite](p)
	if a.Shared != shared {
		p.t.Errorf("sent %+v", a)
	}
	p.send(protocol.AcquireOK{ID: a.ID, Token: 1000 + hold, Hold: hold, Count: 1, DeadlineNS: inOneHour(), Shared: shared})
	l, err := acquired()
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

func TestReadWriteLockSendsModeAndOptions(t *testing.T) {
	c, p := listen(t).dial()
	rw := c.RWLock("catalog")
	if rw.Name() != "catalog" {
		t.Error(rw.Name())
	}
	times := []Option{WithLease(time.Second), WithMaxHold(time.Minute), WithCrashDelay(3 * time.Second), Fair(), NonReentrant()}
	all := protocol.Acquire{WaitMS: protocol.Forever, LeaseMS: 1000, MaxHoldMS: 60_000, CrashDelayMS: 3000, Fair: true, NotReentrant: true}
	kept := protocol.Acquire{WaitMS: protocol.Forever, KeepMS: 1000}
	for i, tt := range []struct {
		acquire func(context.Context, ...Option) (*Lock, error)
		options []Option
		want    protocol.AcquireReadWrite
	}{
		{rw.Lock, nil, protocol.AcquireReadWrite{Acquire: protocol.Acquire{WaitMS: protocol.Forever}}},
		{rw.RLock, nil, protocol.AcquireReadWrite{Acquire: protocol.Acquire{WaitMS: protocol.Forever}, Shared: true}},
		{rw.TryLock, nil, protocol.AcquireReadWrite{}},
		{rw.TryRLock, nil, protocol.AcquireReadWrite{Shared: true}},
		{rw.RLock, times, protocol.AcquireReadWrite{Acquire: all, Shared: true}},
		{rw.Lock, times, protocol.AcquireReadWrite{Acquire: all}},
		{rw.Lock, []Option{WithKeep(time.Second)}, protocol.AcquireReadWrite{Acquire: kept}},
	} {
		ctx := NewOwner(t.Context())
		acquired := async(func() (*Lock, error) { return tt.acquire(ctx, tt.options...) })
		got := expect[protocol.AcquireReadWrite](p)
		tt.want.ID, tt.want.Name, tt.want.Owner = got.ID, "catalog", ownerOf(ctx)
		if got != tt.want {
			t.Errorf("sent %+v, want %+v", got, tt.want)
		}
		hold := uint64(i + 1)
		p.send(protocol.AcquireOK{ID: got.ID, Token: 1000 + hold, Hold: hold, Count: 1, DeadlineNS: inOneHour(), Shared: got.Shared})
		l, err := acquired()
		if err != nil {
			t.Fatal(err)
		}
		if l.Shared() != got.Shared || l.Token() != 1000+hold || l.Name() != "catalog" || l.Err() != nil {
			t.Errorf("%q, shared %v, token %d, %v", l.Name(), l.Shared(), l.Token(), l.Err())
		}
		unlocked := async(func() (struct{}, error) { return struct{}{}, l.Unlock() })
		r := expect[protocol.Release](p)
		if r.Hold != hold {
			t.Errorf("sent %+v", r)
		}
		if r.ID != 0 { // of an owner
			p.send(protocol.ReleaseOK{ID: r.ID})
		}
		if _, err := unlocked(); err != nil {
			t.Error(err)
		}
	}
}

func TestSharedLockIsNotKept(t *testing.T) {
	c, p := listen(t).dial()
	_, err := c.RLock(t.Context(), "catalog", WithKeep(time.Second))
	if err == nil || !strings.Contains(err.Error(), `cannot share "catalog": WithKeep is for exclusive locks`) {
		t.Error(err)
	}
	p.expectNothing(c)
}

// An owner that enters its exclusive hold by RLock has an exclusive hold, until that is downgraded.
func TestDowngradeIsOfAllHandlesOfAHold(t *testing.T) {
	_, c := dialFakeSidecar(t)
	ctx := NewOwner(t.Context())
	w, err := c.WLock(ctx, "catalog")
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.RLock(ctx, "catalog")
	if err != nil || r.Shared() || w.Shared() || r.Token() != w.Token() {
		t.Fatalf("%v, shared %v, tokens %d and %d", err, r.Shared(), r.Token(), w.Token())
	}
	wantKind(t, errOf(c.TryRLock(t.Context(), "catalog")), ErrHeld)
	waiting := async(func() (*Lock, error) { return c.RLock(context.Background(), "catalog") })
	for range 2 { // a second one does nothing
		if err := r.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !r.Shared() || !w.Shared() || r.Err() != nil || w.Err() != nil {
		t.Errorf("shared %v and %v, %v, %v", r.Shared(), w.Shared(), r.Err(), w.Err())
	}
	other, err := waiting()
	if err != nil || !other.Shared() {
		t.Fatal(err)
	}
	wantKind(t, errOf(c.WLock(ctx, "catalog")), ErrDeadlock)
	for _, l := range []*Lock{w, r, other} {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
	if l, err := c.TryWLock(t.Context(), "catalog"); err != nil || l.Shared() {
		t.Error(err)
	}
}

func TestDowngradeOfWhatIsNoExclusiveHold(t *testing.T) {
	_, c := dialFakeSidecar(t)
	l, err := c.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Downgrade(t.Context()); err == nil || !strings.Contains(err.Error(), `cannot downgrade "a": it is no read/write lock; acquire it by WLock`) || l.Shared() {
		t.Error(err)
	}
	w, err := c.WLock(t.Context(), "catalog")
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Downgrade(canceled); !errors.Is(err, context.Canceled) || w.Shared() {
		t.Errorf("%v, shared %v", err, w.Shared())
	}
	if err := w.Unlock(); err != nil {
		t.Fatal(err)
	}
	wantKind(t, w.Downgrade(t.Context()), ErrNotHeld)
}

// The lock counts as shared as soon as the downgrade is sent.
func TestDowngradeWithoutAnAnswer(t *testing.T) {
	c, p := listen(t).dial()
	w := p.readWrite(c, false, 7)
	ctx, cancel := context.WithCancel(t.Context())
	downgraded := async(func() (struct{}, error) { return struct{}{}, w.Downgrade(ctx) })
	if m := expect[protocol.Downgrade](p); m.Hold != 7 || m.ID == 0 {
		t.Errorf("sent %+v", m)
	}
	if !w.Shared() {
		t.Error("it is exclusive, although the sidecar may have downgraded it")
	}
	cancel()
	if _, err := downgraded(); !errors.Is(err, context.Canceled) || !w.Shared() || w.Err() != nil {
		t.Errorf("%v, shared %v, %v", err, w.Shared(), w.Err())
	}
	again := async(func() (struct{}, error) { return struct{}{}, w.Downgrade(context.Background()) })
	p.send(protocol.Err{ID: expect[protocol.Downgrade](p).ID, Code: protocol.BadRequest, Msg: "it is shared already"})
	if _, err := again(); err != nil {
		t.Error(err)
	}
}

// A successor is asked again, after the claims.
func TestDowngradeOutlastsARestart(t *testing.T) {
	for name, answer := range map[string]func(id uint64) protocol.Reply{
		"it was not executed": func(id uint64) protocol.Reply { return protocol.DowngradeOK{ID: id, DeadlineNS: inOneHour()} },
		"it was executed": func(id uint64) protocol.Reply {
			return protocol.Err{ID: id, Code: protocol.BadRequest, Msg: "hold 7 is shared already"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := listen(t)
			c, p := s.dial()
			w := p.readWrite(c, false, 7)
			downgraded := async(func() (struct{}, error) { return struct{}{}, w.Downgrade(context.Background()) })
			expect[protocol.Downgrade](p)
			p.nc.Close()
			next := s.acceptResumed()
			claim := expect[protocol.Claim](next)
			if len(claim.Holds) != 1 || claim.Holds[0] != (protocol.ClaimedHold{Hold: 7, Entries: 1}) {
				t.Errorf("claimed %+v", claim)
			}
			next.send(protocol.ClaimOK{ID: claim.ID})
			m := expect[protocol.Downgrade](next)
			next.send(answer(m.ID))
			if _, err := downgraded(); err != nil || m.Hold != 7 || !w.Shared() || w.Err() != nil {
				t.Errorf("%v after %+v, shared %v, %v", err, m, w.Shared(), w.Err())
			}
		})
	}
}

// A sidecar without the state has no hold that it could downgrade.
func TestDowngradeInANewSessionFails(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	w := p.readWrite(c, false, 7)
	downgraded := async(func() (struct{}, error) { return struct{}{}, w.Downgrade(context.Background()) })
	expect[protocol.Downgrade](p)
	p.nc.Close()
	next := s.accept()
	next.send(protocol.HelloOK{ID: expect[protocol.Hello](next).ID, V: 1, Sidecar: "another", NowNS: next.clock()})
	_, err := downgraded()
	wantKind(t, err, ErrUnavailable)
	if w.Err() != nil || !strings.Contains(err.Error(), "has no record of the lock") {
		t.Errorf("%v, %v", err, w.Err())
	}
	wantKind(t, w.Downgrade(context.Background()), ErrUnavailable)
}

func TestReadWriteLockOfAnOlderSidecarIsUnsupported(t *testing.T) {
	c, p := listen(t).dial()
	acquired := async(func() (*Lock, error) { return c.RLock(context.Background(), "catalog") })
	p.send(protocol.Err{ID: expect[protocol.AcquireReadWrite](p).ID, Code: protocol.Unsupported, Msg: "this sidecar does not know this op"})
	_, err := acquired()
	wantKind(t, err, ErrUnsupported)
	if !strings.Contains(err.Error(), "which has no read/write locks; upgrade it and restart it") {
		t.Error(err)
	}
}

func TestRowsHaveTheModeOfHolds(t *testing.T) {
	c, p := listen(t).dial()
	asked := async(func() (LockInfo, error) { info, _, err := c.Info(context.Background(), "catalog"); return info, err })
	p.send(protocol.InfoOK{ID: expect[protocol.Info](p).ID, Lock: &protocol.LockRow{
		Name: "catalog", Kind: protocol.KindReadWrite, State: protocol.StateHeld, Hold: 1, Held: 2, Shared: 2,
		Holders: []protocol.HolderRow{{Hold: 1, Shared: true}, {Hold: 2, Shared: true}}, Waiting: 1, Waiters: []protocol.WaiterRow{{Session: 3, Shared: true}},
	}})
	info, err := asked()
	if err != nil || info.Kind != KindReadWrite || info.Holds != 2 || info.Shared != 2 || !info.Holders[1].Shared || !info.Waiters[0].Shared {
		t.Errorf("%+v, %v", info, err)
	}
}
