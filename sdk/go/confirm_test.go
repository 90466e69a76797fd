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

// unlocking unlocks with a confirmation, and returns a function that waits for the end.
func unlocking(ctx context.Context, l *Lock) func() error {
	done := async(func() (struct{}, error) { return struct{}{}, l.Unlock(Confirmed(ctx)) })
	return func() error { return second(done()) }
}

// confirmed reads a release of the hold and a confirm after it, and returns the id of the
// confirm.
func (p *peer) confirmed(hold uint64, name string) uint64 {
	p.t.Helper()
	if got := expect[protocol.Release](p); got.Hold != hold {
		p.t.Errorf("sent %+v, want the release of %d", got, hold)
	}
	return p.confirm(name)
}

func (p *peer) confirm(name string) uint64 {
	p.t.Helper()
	got := expect[protocol.Confirm](p)
	if got.Name != name {
		p.t.Errorf("sent %+v, want a confirm of %q", got, name)
	}
	return got.ID
}

// only checks that an error is ErrUnconfirmed and these other kinds, and no more.
func only(t *testing.T, err error, kinds ...error) {
	t.Helper()
	mustBe(t, err, append(kinds, ErrUnconfirmed)...)
	for _, other := range []error{ErrHeld, ErrTimeout, ErrDeadlock, ErrUnavailable, ErrDenied, ErrLimit, ErrClosed, ErrLost, ErrNotHeld, ErrUnsupported, context.Canceled} {
		wanted := false
		for _, kind := range kinds {
			wanted = wanted || errors.Is(kind, other)
		}
		if !wanted && errors.Is(err, other) {
			t.Errorf("the error %v is %v too", err, other)
		}
	}
}

func TestConfirmedUnlockReturnsWhenTheSidecarHasConfirmed(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, far())
	done := l.Done()
	unlocked := unlocking(t.Context(), l)
	id := p.confirmed(1, "a")
	<-done // it is released before it is confirmed
	mustBe(t, l.Err(), ErrNotHeld)
	p.expectNothing(c)
	p.say(protocol.ConfirmOK{ID: id})
	if err := unlocked(); err != nil {
		t.Error(err)
	}
	mustBe(t, l.Unlock(Confirmed(t.Context())), ErrNotHeld)
	p.expectNothing(c)
	if s := c.current.Load(); len(s.calls) != 0 || len(s.holds) != 0 {
		t.Errorf("%d calls and %d holds are left", len(s.calls), len(s.holds))
	}
}

// countedConn counts the calls that write to it.
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

func TestReleaseAndConfirmLeaveInOneWrite(t *testing.T) {
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
	for _, ctx := range []context.Context{context.Background(), WithOwner(context.Background())} {
		locked := async(func() (*Lock, error) { return c.Lock(ctx, "a") })
		p.grant(1, far())
		l, err := locked()
		if err != nil {
			t.Fatal(err)
		}
		before := writes.Load()
		unlocked := unlocking(t.Context(), l)
		id := p.confirmed(1, "a")
		p.say(protocol.ConfirmOK{ID: id})
		if err := unlocked(); err != nil {
			t.Error(err)
		}
		if n := writes.Load() - before; n != 1 {
			t.Errorf("%d writes", n)
		}
	}
}

func TestConfirmedUnlockOfALostLockIsErrLost(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, far())
	p.say(protocol.LostEvent{Hold: 1, Reason: protocol.Stolen})
	p.expectNothing(c)
	err := l.Unlock(Confirmed(t.Context()))
	mustBe(t, err, ErrLost)
	if errors.Is(err, ErrUnconfirmed) {
		t.Errorf("the error is %v", err)
	}
	mustBe(t, l.Unlock(Confirmed(t.Context())), ErrNotHeld)
	p.expectNothing(c)
}

func TestEntriesThatAreLeftAreConfirmedLikeAnyRelease(t *testing.T) {
	c, p := listen(t).dial()
	owner := WithOwner(context.Background())
	var locks []*Lock
	for count := range uint32(2) {
		locked := async(func() (*Lock, error) { return c.Lock(owner, "a") })
		a := expect[protocol.Acquire](p)
		p.say(protocol.AcquireOK{ID: a.ID, Token: 9, Hold: 5, Count: count + 1, DeadlineNS: far()})
		l, err := locked()
		if err != nil {
			t.Fatal(err)
		}
		locks = append(locks, l)
	}
	for i, l := range locks {
		unlocked := unlocking(t.Context(), l)
		release := expect[protocol.Release](p)
		id := p.confirm("a")
		if release.ID != 0 {
			p.say(protocol.ReleaseOK{ID: release.ID})
		}
		p.say(protocol.ConfirmOK{ID: id})
		if err := unlocked(); err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
		if i == 0 && locks[1].Err() != nil {
			t.Errorf("the other entry: %v", locks[1].Err())
		}
	}
	p.expectNothing(c)
}

func TestRefusalsOfAConfirmation(t *testing.T) {
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
		unlocked := unlocking(t.Context(), p.lock(c, "a", hold, far()))
		p.say(protocol.Err{ID: p.confirmed(hold, "a"), Code: code, Msg: "Redis refused"})
		err := unlocked()
		if tt.kind == nil {
			only(t, err)
		} else {
			only(t, err, tt.kind)
		}
		says(t, err, `locksidecar: cannot confirm the release of "a": `, tt.text, "the lock is released here", "within")
	}
	p.expectNothing(c)
}

func TestContextEndsTheWaitForAConfirmationOnly(t *testing.T) {
	c, p := listen(t).dial()
	ctx, cancel := context.WithCancelCause(context.Background())
	unlocked := unlocking(ctx, p.lock(c, "a", 1, far()))
	late := p.confirmed(1, "a")
	why := errors.New("the user went away")
	cancel(why)
	err := unlocked()
	only(t, err, context.Canceled)
	mustBe(t, err, why)
	says(t, err, "the user went away", "the lock is released here", "when its lease ends")
	p.say(protocol.ConfirmOK{ID: late}) // after its call has ended

	// The lock is released even if the context had ended before.
	l := p.lock(c, "b", 2, far())
	only(t, l.Unlock(Confirmed(ctx)), context.Canceled)
	if got := expect[protocol.Release](p); got.Hold != 2 {
		t.Errorf("sent %+v, want the release of 2", got)
	}
	p.expectNothing(c)

	limited, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	err = p.lock(c, "c", 3, far()).Unlock(Confirmed(limited))
	only(t, err, context.DeadlineExceeded, ErrTimeout)
	p.confirmed(3, "c")
	p.expectNothing(c)
	if s := c.current.Load(); len(s.calls) != 0 {
		t.Errorf("%d calls are left", len(s.calls))
	}
}

func TestConfirmedNeedsAContext(t *testing.T) {
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "context.Background()") {
			t.Errorf("the panic is %q", text)
		}
	}()
	var none context.Context
	Confirmed(none)
}

func TestOptionsThatChangeNothing(t *testing.T) {
	c, p := listen(t).dial()
	if err := p.lock(c, "a", 1, far()).Unlock(UnlockOption{}); err != nil {
		t.Error(err)
	}
	expect[protocol.Release](p)
	p.expectNothing(c)
}

func TestConfirmationIsRequestedAgainFromASuccessor(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	kept := p.lock(c, "kept", 1, far())
	unlocked := unlocking(t.Context(), p.lock(c, "a", 2, far()))
	last := p.confirmed(2, "a")
	for range 3 {
		p.nc.Close()
		p = s.again()
		claim, holds := p.claimed()
		if !maps.Equal(holds, map[uint64]uint32{1: 1}) {
			t.Errorf("claimed %v", holds)
		}
		p.say(protocol.ClaimOK{ID: claim})
		again := p.confirm("a")
		if again <= last {
			t.Errorf("the id %d comes after %d", again, last)
		}
		last = again
	}
	p.say(protocol.ConfirmOK{ID: last})
	if err := unlocked(); err != nil {
		t.Error(err)
	}
	p.expectNothing(c)
	if err := kept.Err(); err != nil {
		t.Error(err)
	}
}

func TestUnlockWithoutAConnectionIsConfirmedByTheSuccessor(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		l := lockNow(t, c, "a")
		kept := lockNow(t, c, "kept")
		r.close(os.ErrNotExist)
		unlocked := took(func() error { return l.Unlock(Confirmed(context.Background())) })
		time.Sleep(9 * time.Second)
		if holds, _ := r.held(); holds != 2 {
			t.Errorf("%d holds are remembered", holds)
		}
		r.close(nil)
		d, err := unlocked()
		if err != nil || d < 9*time.Second || d > 9*time.Second+longestPause*5/4 {
			t.Errorf("after %v: %v", d, err)
		}
		agree(t, r.toy, c, map[string]uint32{"kept": 1})
		if err := kept.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestUnlockWhileClaimsAreDueIsConfirmedAfterThem(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	l := p.lock(c, "a", 1, far())
	p.nc.Close()
	p = s.again()
	claim, holds := p.claimed()
	if !maps.Equal(holds, map[uint64]uint32{1: 1}) {
		t.Errorf("claimed %v", holds)
	}
	unlocked := unlocking(t.Context(), l)
	<-l.Done()
	p.say(protocol.ClaimOK{ID: claim})
	p.say(protocol.ConfirmOK{ID: p.confirmed(1, "a")})
	if err := unlocked(); err != nil {
		t.Error(err)
	}
}

// The successor ends sessions that hold nothing, and knows what it has to release for
// them.
func TestConfirmationIsRequestedInANewSessionOfTheSameSidecar(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	unlocked := unlocking(t.Context(), p.lock(c, "a", 7, far()))
	p.confirmed(7, "a")
	reconnect := func() *peer {
		p.nc.Close()
		p := s.accept()
		p.greet()
		return p
	}
	look := func() {
		info := expect[protocol.Info](p)
		if info.Name != "a" {
			t.Errorf("sent %+v", info)
		}
		// Another owner of this host has the lock by now.
		p.say(protocol.InfoOK{ID: info.ID, Lock: &protocol.LockRow{Name: "a", State: protocol.StateHeld, Hold: 9}})
	}
	p = reconnect()
	expect[protocol.Info](p) // it is not answered
	p = reconnect()
	look()
	p.confirm("a") // neither is this
	p = reconnect()
	look()
	p.confirm("a")

	// This session holds something, and is resumed.
	p.lock(c, "b", 10, far())
	p.nc.Close()
	p = s.again()
	claim, holds := p.claimed()
	if !maps.Equal(holds, map[uint64]uint32{10: 1}) {
		t.Errorf("claimed %v", holds)
	}
	p.say(protocol.ClaimOK{ID: claim})
	p.say(protocol.ConfirmOK{ID: p.confirm("a")})
	if err := unlocked(); err != nil {
		t.Error(err)
	}
	p.expectNothing(c)
}

// A sidecar that still has the hold has not read the release.
func TestSidecarThatHasTheHoldConfirmsNothing(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	unlocked := unlocking(t.Context(), p.lock(c, "a", 7, far()))
	p.confirmed(7, "a")
	p.nc.Close()
	p = s.accept()
	p.greet()
	info := expect[protocol.Info](p)
	p.say(protocol.InfoOK{ID: info.ID, Lock: &protocol.LockRow{Name: "a", State: protocol.StateHeld, Hold: 7}})
	err := unlocked()
	only(t, err)
	says(t, err, "before it had read the release", "the lock is released here")
	p.expectNothing(c)
}

// A successor without its predecessor's state cannot know whether Redis has executed
// what its predecessor sent.
func TestSidecarThatForgotTheSessionConfirmsNothing(t *testing.T) {
	for _, asked := range []int{0, 1, 2} { // of what is asked in a new session
		s := listen(t)
		c, p := s.dial()
		stray := p.lock(c, "stray", 2, far())
		unlocked := unlocking(t.Context(), p.lock(c, "a", 1, protocol.Now()+int64(10*time.Second)))
		p.confirmed(1, "a")
		if asked > 0 {
			p.nc.Close()
			p = s.accept()
			p.greet()
			info := expect[protocol.Info](p)
			if asked > 1 {
				p.say(protocol.InfoOK{ID: info.ID})
				p.confirm("a")
			}
		}
		p.nc.Close()
		p = s.accept()
		p.greetAs("another")
		err := unlocked()
		only(t, err)
		says(t, err, "restarted", `"a"`, "the lock is released here", "within 30s")
		err = stray.Unlock(Confirmed(t.Context()))
		only(t, err)
		says(t, err, "restarted", `"stray"`, "within 1h0m0s")
		p.expectNothing(c)
	}
}

// The context, the end of the client and a refusal end the wait in a new session, too,
// whichever of its two requests they meet.
func TestConfirmationInANewSessionMayFail(t *testing.T) {
	for _, request := range []string{"info", "confirm"} {
		for _, kind := range []error{ErrDenied, context.Canceled, ErrClosed} {
			s := listen(t)
			c, p := s.dial()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			unlocked := unlocking(ctx, p.lock(c, "a", 7, far()))
			p.confirmed(7, "a")
			p.nc.Close()
			p = s.accept()
			p.greet()
			id := expect[protocol.Info](p).ID
			if request == "confirm" {
				p.say(protocol.InfoOK{ID: id})
				id = p.confirm("a")
			}
			switch kind {
			case ErrDenied:
				p.say(protocol.Err{ID: id, Code: protocol.Denied, Msg: "no"})
			case context.Canceled:
				cancel()
			case ErrClosed:
				s.bury(c)
			}
			err := unlocked()
			only(t, err, kind)
			says(t, err, "the lock is released here")
		}
	}
}

func TestConfirmationIsWaitedForAsLongAsPatienceAllows(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		r.locked(func() { r.away = true })
		before := took(func() error { return lockNow(t, c, "a").Unlock(Confirmed(context.Background())) })
		time.Sleep(time.Minute)
		l := lockNow(t, c, "b")
		r.close(os.ErrNotExist)
		after := took(func() error { return l.Unlock(Confirmed(context.Background())) })
		for want, result := range map[time.Duration]func() (time.Duration, error){
			time.Minute + defaultPatience: before, defaultPatience: after,
		} {
			d, err := result()
			only(t, err, ErrUnavailable)
			says(t, err, "/road", "start it", "the lock is released here")
			if d < want || d > want+firstPause {
				t.Errorf("it took %v, want %v", d, want)
			}
		}
		r.close(nil)
		time.Sleep(2 * rarePause)
		agree(t, r.toy, c, map[string]uint32{})
	})
}

func TestCloseEndsTheWaitForAConfirmation(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		r.locked(func() { r.away = true })
		unlocked := took(func() error { return lockNow(t, c, "a").Unlock(Confirmed(context.Background())) })
		time.Sleep(time.Second)
		c.Close()
		d, err := unlocked()
		only(t, err, ErrClosed)
		says(t, err, "the client was closed; the lock is released here")
		if d != time.Second {
			t.Errorf("it took %v", d)
		}
		if holds, _ := r.held(); holds != 0 {
			t.Errorf("%d holds are left", holds)
		}
	})
}

// The error of an Unlock that was not confirmed says until when Redis may keep the lock.
func TestUnconfirmedUnlockSaysWhenTheLeaseEnds(t *testing.T) {
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
			virtually(t, func(t *testing.T, c *Client, r *road) {
				r.locked(func() { r.away = true })
				l := lockNow(t, c, "a", tt.options...)
				ctx, cancel := context.WithTimeout(context.Background(), tt.waits)
				defer cancel()
				err := l.Unlock(Confirmed(ctx))
				only(t, err, ErrTimeout)
				says(t, err, tt.want)
			})
		})
	}
}

// The successor may have renewed the lock until the client resumed its session.
func TestResumeMovesTheEndOfTheLeaseInTheError(t *testing.T) {
	virtually(t, func(t *testing.T, c *Client, r *road) {
		r.locked(func() { r.away = true })
		lockNow(t, c, "kept")
		l := lockNow(t, c, "a")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		unlocked := unlocking(ctx, l)
		time.Sleep(8 * time.Second)
		r.cut()
		err := unlocked()
		only(t, err, ErrTimeout)
		says(t, err, "within 28s at the latest")
	})
}

func TestUnlockOfASessionThatEndedIsNotUnconfirmed(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, far())
	session := c.current.Load()
	p.say(protocol.Err{Code: protocol.BadFrame, Msg: "what was that"})
	<-session.done
	err := l.Unlock(Confirmed(t.Context()))
	mustBe(t, err, ErrUnavailable)
	if errors.Is(err, ErrUnconfirmed) {
		t.Errorf("the error is %v", err)
	}
}

func TestSidecarThatDoesNotReadConfirmsNothing(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, far())
	session := c.current.Load()
	session.mu.Lock()
	session.conn.out.mu.Lock()
	session.conn.out.limit = -1 // as if too much were queued
	session.conn.out.mu.Unlock()
	session.mu.Unlock()
	err := l.Unlock(Confirmed(t.Context()))
	only(t, err, ErrUnavailable)
	says(t, err, "stopped or hangs", "the lock is released here")
	if got := expect[protocol.Release](p); got.Hold != 1 {
		t.Errorf("sent %+v, want the release of 1", got)
	}
}
