//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// startUnlock calls Unlock with Confirmed, and returns a function that waits until it returns.
func startUnlock(ctx context.Context, l *Lock) func() error {
	done := async(func() (struct{}, error) { return struct{}{}, l.Unlock(Confirmed(ctx)) })
	return func() error { return errOf(done()) }
}

// expectReleaseAndConfirm reads a release of the hold and a confirm after it, and returns the
// id of the confirm.
func (p *peer) expectReleaseAndConfirm(hold uint64, name string) uint64 {
	p.t.Helper()
	if got := expect[protocol.Release](p); got.Hold != hold {
		p.t.Errorf("sent %+v, want the release of %d", got, hold)
	}
	return p.expectConfirm(name)
}

func (p *peer) expectConfirm(name string) uint64 {
	p.t.Helper()
	got := expect[protocol.Confirm](p)
	if got.Name != name {
		p.t.Errorf("sent %+v, want a confirm of %q", got, name)
	}
	return got.ID
}

// wantOnlyKinds checks that an error is ErrUnconfirmed and of these kinds, and of no other.
func wantOnlyKinds(t *testing.T, err error, kinds ...error) {
	t.Helper()
	wantKind(t, err, append(kinds, ErrUnconfirmed)...)
	for _, other := range []error{ErrHeld, ErrTimeout, ErrDeadlock, ErrUnavailable, ErrDenied, ErrLimit, ErrClosed, ErrLost, ErrNotHeld, ErrUnsupported, context.Canceled} {
		wanted := false
		for _, kind := range kinds {
			wanted = wanted || errors.Is(kind, other)
		}
		if !wanted && errors.Is(err, other) {
			t.Errorf("the error %v is %v, too", err, other)
		}
	}
}

func TestConfirmedUnlockReturnsWhenConfirmed(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	done := l.Done()
	unlocked := startUnlock(t.Context(), l)
	id := p.expectReleaseAndConfirm(1, "a")
	<-done // the lock is released before the release is confirmed
	wantKind(t, l.Err(), ErrNotHeld)
	p.expectNothing(c)
	p.send(protocol.ConfirmOK{ID: id})
	if err := unlocked(); err != nil {
		t.Error(err)
	}
	wantKind(t, l.Unlock(Confirmed(t.Context())), ErrNotHeld)
	p.expectNothing(c)
	if s := c.current.Load(); len(s.calls) != 0 || len(s.holds) != 0 {
		t.Errorf("%d calls and %d holds are left", len(s.calls), len(s.holds))
	}
}

// countedConn counts the system calls that write to it.
type countedConn struct {
	*net.UnixConn
	writes *atomic.Int32
}

type countedRaw struct {
	syscall.RawConn
	writes *atomic.Int32
}

func (c countedConn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.UnixConn.SyscallConn()
	return countedRaw{raw, c.writes}, err
}

func (r countedRaw) Write(f func(fd uintptr) bool) error {
	r.writes.Add(1)
	return r.RawConn.Write(f)
}

func TestReleaseAndConfirmAreOneWrite(t *testing.T) {
	s := listen(t)
	var writes atomic.Int32
	counted := DialOption{func(c *Client) error {
		c.dialer.connect = func(ctx context.Context, path string) (net.Conn, error) {
			nc, err := connectUnix(ctx, path)
			if err != nil {
				return nil, err
			}
			return countedConn{nc.(*net.UnixConn), &writes}, nil
		}
		return nil
	}}
	c, p := s.dial(counted)
	for _, ctx := range []context.Context{context.Background(), NewOwner(context.Background())} {
		locked := async(func() (*Lock, error) { return c.Lock(ctx, "a") })
		p.grant(1, inOneHour())
		l, err := locked()
		if err != nil {
			t.Fatal(err)
		}
		before := writes.Load()
		unlocked := startUnlock(t.Context(), l)
		id := p.expectReleaseAndConfirm(1, "a")
		p.send(protocol.ConfirmOK{ID: id})
		if err := unlocked(); err != nil {
			t.Error(err)
		}
		if n := writes.Load() - before; n != 1 {
			t.Errorf("%d writes", n)
		}
	}
}

func TestConfirmedUnlockOfLostLockIsErrLost(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	p.send(protocol.LostEvent{Hold: 1, Reason: protocol.Stolen})
	p.expectNothing(c)
	err := l.Unlock(Confirmed(t.Context()))
	wantKind(t, err, ErrLost)
	if errors.Is(err, ErrUnconfirmed) {
		t.Errorf("the error is %v", err)
	}
	wantKind(t, l.Unlock(Confirmed(t.Context())), ErrNotHeld)
	p.expectNothing(c)
}

func TestUnlockOfOneEntryIsConfirmed(t *testing.T) {
	c, p := listen(t).dial()
	owner := NewOwner(context.Background())
	var locks []*Lock
	for count := range uint32(2) {
		locked := async(func() (*Lock, error) { return c.Lock(owner, "a") })
		a := expect[protocol.Acquire](p)
		p.send(protocol.AcquireOK{ID: a.ID, Token: 9, Hold: 5, Count: count + 1, DeadlineNS: inOneHour()})
		l, err := locked()
		if err != nil {
			t.Fatal(err)
		}
		locks = append(locks, l)
	}
	for i, l := range locks {
		unlocked := startUnlock(t.Context(), l)
		release := expect[protocol.Release](p)
		id := p.expectConfirm("a")
		if release.ID != 0 {
			p.send(protocol.ReleaseOK{ID: release.ID})
		}
		p.send(protocol.ConfirmOK{ID: id})
		if err := unlocked(); err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
		if i == 0 && locks[1].Err() != nil {
			t.Errorf("the other entry: %v", locks[1].Err())
		}
	}
	p.expectNothing(c)
}

func TestRefusedConfirmationIsErrUnconfirmed(t *testing.T) {
	c, p := listen(t).dial()
	hold := uint64(0)
	for code, tt := range map[protocol.Code]struct {
		kind error
		text string
	}{
		protocol.Denied:      {ErrDenied, "Redis refused"},
		protocol.Limit:       {ErrLimit, "Redis refused"},
		protocol.Unsupported: {ErrUnsupported, "does not confirm releases; upgrade it"},
		"sunspots":           {nil, "Redis refused"},
	} {
		hold++
		unlocked := startUnlock(t.Context(), p.lock(c, "a", hold, inOneHour()))
		p.send(protocol.Err{ID: p.expectReleaseAndConfirm(hold, "a"), Code: code, Msg: "Redis refused"})
		err := unlocked()
		if tt.kind == nil {
			wantOnlyKinds(t, err)
		} else {
			wantOnlyKinds(t, err, tt.kind)
		}
		wantText(t, err, `locksidecar: cannot confirm the release of "a": `, tt.text, "the lock is released here", "within")
	}
	p.expectNothing(c)
}

// deadline is a context whose deadline passes when the test closes the channel.
type deadline struct {
	context.Context
	passed chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.passed }

func (d deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestContextEndsOnlyTheWaitForConfirmation(t *testing.T) {
	c, p := listen(t).dial()
	ctx, cancel := context.WithCancelCause(context.Background())
	unlocked := startUnlock(ctx, p.lock(c, "a", 1, inOneHour()))
	late := p.expectReleaseAndConfirm(1, "a")
	why := errors.New("the user went away")
	cancel(why)
	err := unlocked()
	wantOnlyKinds(t, err, context.Canceled)
	wantKind(t, err, why)
	wantText(t, err, "the user went away", "the lock is released here", "when its lease ends")
	p.send(protocol.ConfirmOK{ID: late}) // after its call has ended

	// The lock is released even if the context had ended before.
	l := p.lock(c, "b", 2, inOneHour())
	wantOnlyKinds(t, l.Unlock(Confirmed(ctx)), context.Canceled)
	if got := expect[protocol.Release](p); got.Hold != 2 {
		t.Errorf("sent %+v, want the release of 2", got)
	}
	p.expectNothing(c)

	limited := deadline{context.Background(), make(chan struct{})}
	unlocked = startUnlock(limited, p.lock(c, "c", 3, inOneHour()))
	p.expectReleaseAndConfirm(3, "c")
	close(limited.passed)
	wantOnlyKinds(t, unlocked(), context.DeadlineExceeded, ErrTimeout)
	p.expectNothing(c)
	if s := c.current.Load(); len(s.calls) != 0 {
		t.Errorf("%d calls are left", len(s.calls))
	}
}

func TestConfirmedNeedsContext(t *testing.T) {
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "context.Background()") {
			t.Errorf("the panic is %q", text)
		}
	}()
	var none context.Context
	Confirmed(none)
}

func TestZeroUnlockOptionRequestsNoConfirmation(t *testing.T) {
	c, p := listen(t).dial()
	if err := p.lock(c, "a", 1, inOneHour()).Unlock(UnlockOption{}); err != nil {
		t.Error(err)
	}
	expect[protocol.Release](p)
	p.expectNothing(c)
}

func TestConfirmationIsRequestedAgainFromSuccessor(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	kept := p.lock(c, "kept", 1, inOneHour())
	unlocked := startUnlock(t.Context(), p.lock(c, "a", 2, inOneHour()))
	last := p.expectReleaseAndConfirm(2, "a")
	for range 3 {
		p.nc.Close()
		p = s.acceptResumed()
		claim, holds := p.expectClaim()
		if !maps.Equal(holds, map[uint64]uint32{1: 1}) {
			t.Errorf("claimed %v", holds)
		}
		p.send(protocol.ClaimOK{ID: claim})
		again := p.expectConfirm("a")
		if again <= last {
			t.Errorf("the id %d comes after %d", again, last)
		}
		last = again
	}
	p.send(protocol.ConfirmOK{ID: last})
	if err := unlocked(); err != nil {
		t.Error(err)
	}
	p.expectNothing(c)
	if err := kept.Err(); err != nil {
		t.Error(err)
	}
}

func TestUnlockWithoutConnectionIsConfirmedBySuccessor(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		l := mustLock(t, c, "a")
		kept := mustLock(t, c, "kept")
		network.fail(os.ErrNotExist)
		unlocked := measure(func() error { return l.Unlock(Confirmed(context.Background())) })
		time.Sleep(9 * time.Second)
		if holds, _ := network.counts(); holds != 2 {
			t.Errorf("the sidecar has %d holds", holds)
		}
		network.restore()
		d, err := unlocked()
		if err != nil || d < 9*time.Second || d > 9*time.Second+longestPause*5/4 {
			t.Errorf("after %v: %v", d, err)
		}
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{"kept": 1})
		if err := kept.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestUnlockDuringClaimIsConfirmedAfterClaim(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	l := p.lock(c, "a", 1, inOneHour())
	p.nc.Close()
	p = s.acceptResumed()
	claim, holds := p.expectClaim()
	if !maps.Equal(holds, map[uint64]uint32{1: 1}) {
		t.Errorf("claimed %v", holds)
	}
	unlocked := startUnlock(t.Context(), l)
	<-l.Done()
	p.send(protocol.ClaimOK{ID: claim})
	p.send(protocol.ConfirmOK{ID: p.expectReleaseAndConfirm(1, "a")})
	if err := unlocked(); err != nil {
		t.Error(err)
	}
}

// The successor ends sessions that hold nothing, and knows which of their holds it has to
// release.
func TestConfirmationIsRequestedInNewSessionOfSameSidecar(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	unlocked := startUnlock(t.Context(), p.lock(c, "a", 7, inOneHour()))
	p.expectReleaseAndConfirm(7, "a")
	reconnect := func() *peer {
		p.nc.Close()
		p := s.accept()
		p.answerHello()
		return p
	}
	answerInfo := func() {
		info := expect[protocol.Info](p)
		if info.Name != "a" {
			t.Errorf("sent %+v", info)
		}
		// Another owner of this host has the lock by now.
		p.send(protocol.InfoOK{ID: info.ID, Lock: &protocol.LockRow{Name: "a", State: protocol.StateHeld, Hold: 9}})
	}
	p = reconnect()
	expect[protocol.Info](p) // it is not answered
	p = reconnect()
	answerInfo()
	p.expectConfirm("a") // it is not answered either
	p = reconnect()
	answerInfo()
	p.expectConfirm("a")

	// This session has a hold, so it is resumed.
	p.lock(c, "b", 10, inOneHour())
	p.nc.Close()
	p = s.acceptResumed()
	claim, holds := p.expectClaim()
	if !maps.Equal(holds, map[uint64]uint32{10: 1}) {
		t.Errorf("claimed %v", holds)
	}
	p.send(protocol.ClaimOK{ID: claim})
	p.send(protocol.ConfirmOK{ID: p.expectConfirm("a")})
	if err := unlocked(); err != nil {
		t.Error(err)
	}
	p.expectNothing(c)
}

// A sidecar that still has the hold has not read the release.
func TestSidecarThatStillHasHoldConfirmsNothing(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	unlocked := startUnlock(t.Context(), p.lock(c, "a", 7, inOneHour()))
	p.expectReleaseAndConfirm(7, "a")
	p.nc.Close()
	p = s.accept()
	p.answerHello()
	info := expect[protocol.Info](p)
	p.send(protocol.InfoOK{ID: info.ID, Lock: &protocol.LockRow{Name: "a", State: protocol.StateHeld, Hold: 7}})
	err := unlocked()
	wantOnlyKinds(t, err)
	wantText(t, err, "before it had read the release", "the lock is released here")
	p.expectNothing(c)
}

// A successor without its predecessor's state cannot know whether Redis has executed
// what its predecessor sent.
func TestSidecarWithoutStateConfirmsNothing(t *testing.T) {
	for _, sent := range []int{0, 1, 2} { // requests in a new session before that
		s := listen(t)
		c, p := s.dial()
		orphan := p.lock(c, "orphan", 2, inOneHour())
		unlocked := startUnlock(t.Context(), p.lock(c, "a", 1, protocol.Now()+int64(10*time.Second)))
		p.expectReleaseAndConfirm(1, "a")
		if sent > 0 {
			p.nc.Close()
			p = s.accept()
			p.answerHello()
			info := expect[protocol.Info](p)
			if sent > 1 {
				p.send(protocol.InfoOK{ID: info.ID})
				p.expectConfirm("a")
			}
		}
		p.nc.Close()
		p = s.accept()
		p.answerHelloAs("another")
		err := unlocked()
		wantOnlyKinds(t, err)
		wantText(t, err, "restarted", `"a"`, "the lock is released here", "within 30s")
		err = orphan.Unlock(Confirmed(t.Context()))
		wantOnlyKinds(t, err)
		wantText(t, err, "restarted", `"orphan"`, "within 1h0m0s")
		p.expectNothing(c)
	}
}

// The context, Close and a refusal end the wait in a new session, too, whichever of its two
// requests waits.
func TestConfirmationInNewSessionMayFail(t *testing.T) {
	for _, request := range []string{"info", "confirm"} {
		for _, kind := range []error{ErrDenied, context.Canceled, ErrClosed} {
			s := listen(t)
			c, p := s.dial()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			unlocked := startUnlock(ctx, p.lock(c, "a", 7, inOneHour()))
			p.expectReleaseAndConfirm(7, "a")
			p.nc.Close()
			p = s.accept()
			p.answerHello()
			id := expect[protocol.Info](p).ID
			if request == "confirm" {
				p.send(protocol.InfoOK{ID: id})
				id = p.expectConfirm("a")
			}
			switch kind {
			case ErrDenied:
				p.send(protocol.Err{ID: id, Code: protocol.Denied, Msg: "no"})
			case context.Canceled:
				cancel()
			case ErrClosed:
				s.closeClient(c)
			}
			err := unlocked()
			wantOnlyKinds(t, err, kind)
			wantText(t, err, "the lock is released here")
		}
	}
}

func TestPatienceBoundsWaitForConfirmation(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		network.locked(func() { network.redisIsDown = true })
		before := measure(func() error { return mustLock(t, c, "a").Unlock(Confirmed(context.Background())) })
		time.Sleep(time.Minute)
		l := mustLock(t, c, "b")
		network.fail(os.ErrNotExist)
		after := measure(func() error { return l.Unlock(Confirmed(context.Background())) })
		for want, result := range map[time.Duration]func() (time.Duration, error){
			time.Minute + defaultPatience: before, defaultPatience: after,
		} {
			d, err := result()
			wantOnlyKinds(t, err, ErrUnavailable)
			wantText(t, err, "/fake", "start it", "the lock is released here")
			if d < want || d > want+firstPause {
				t.Errorf("it took %v, want %v", d, want)
			}
		}
		network.restore()
		time.Sleep(2 * rarePause)
		wantSameHolds(t, network.fakeSidecar, c, map[string]uint32{})
	})
}

func TestCloseEndsWaitForConfirmation(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		network.locked(func() { network.redisIsDown = true })
		unlocked := measure(func() error { return mustLock(t, c, "a").Unlock(Confirmed(context.Background())) })
		time.Sleep(time.Second)
		c.Close()
		d, err := unlocked()
		wantOnlyKinds(t, err, ErrClosed)
		wantText(t, err, "the client was closed; the lock is released here")
		if d != time.Second {
			t.Errorf("it took %v", d)
		}
		if holds, _ := network.counts(); holds != 0 {
			t.Errorf("%d holds are left", holds)
		}
	})
}

// The error of an Unlock that was not confirmed says when Redis frees the lock at the latest.
func TestErrUnconfirmedSaysWhenLeaseEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		options []Option
		waits   time.Duration
		want    string
	}{
		"the sidecar's lease":      {nil, 2 * time.Second, "within 28s at the latest"},
		"a lease of an hour":       {[]Option{WithLease(time.Hour)}, 2 * time.Second, "within 1m41s at the latest"},
		"a lease that has ended":   {nil, time.Minute, "its lease has ended in Redis meanwhile"},
		"a fixed lease that ended": {[]Option{WithLease(time.Minute)}, time.Minute, "its lease has ended in Redis meanwhile"},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
				network.locked(func() { network.redisIsDown = true })
				l := mustLock(t, c, "a", tt.options...)
				ctx, cancel := context.WithTimeout(context.Background(), tt.waits)
				defer cancel()
				err := l.Unlock(Confirmed(ctx))
				wantOnlyKinds(t, err, ErrTimeout)
				wantText(t, err, tt.want)
			})
		})
	}
}

// The successor may have renewed the lock until the client resumed its session.
func TestResumeMovesLeaseEndInErrUnconfirmed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		network.locked(func() { network.redisIsDown = true })
		mustLock(t, c, "kept")
		l := mustLock(t, c, "a")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		unlocked := startUnlock(ctx, l)
		time.Sleep(8 * time.Second)
		network.disconnectAll()
		err := unlocked()
		wantOnlyKinds(t, err, ErrTimeout)
		wantText(t, err, "within 28s at the latest")
	})
}

func TestUnlockAfterProtocolErrorIsErrUnavailable(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	session := c.current.Load()
	p.send(protocol.Err{Code: protocol.BadFrame, Msg: "the frame is odd"})
	<-session.done
	err := l.Unlock(Confirmed(t.Context()))
	wantKind(t, err, ErrUnavailable)
	if errors.Is(err, ErrUnconfirmed) {
		t.Errorf("the error is %v", err)
	}
}

func TestConfirmationFailsIfSidecarDoesNotRead(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	session := c.current.Load()
	session.mu.Lock()
	session.conn.out.mu.Lock()
	session.conn.out.limit = -1 // as if the sidecar had read nothing for long
	session.conn.out.mu.Unlock()
	session.mu.Unlock()
	err := l.Unlock(Confirmed(t.Context()))
	wantOnlyKinds(t, err, ErrUnavailable)
	wantText(t, err, "stopped or hangs", "the lock is released here")
	if got := expect[protocol.Release](p); got.Hold != 1 {
		t.Errorf("sent %+v, want the release of 1", got)
	}
}
