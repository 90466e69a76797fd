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

// permit acquires permits with the client, and grants them.
func (p *peer) permit(s *Semaphore, n int, hold uint64, options ...Option) *Permit {
	p.t.Helper()
	acquired := async(func() (*Permit, error) { return s.Acquire(context.Background(), n, options...) })
	p.grantPermits(hold)
	permit, err := acquired()
	if err != nil {
		p.t.Fatal(err)
	}
	return permit
}

// grantPermits grants the next request for permits.
func (p *peer) grantPermits(hold uint64) protocol.AcquirePermits {
	p.t.Helper()
	a := expect[protocol.AcquirePermits](p)
	p.send(protocol.AcquireOK{ID: a.ID, Token: 1000 + hold, Hold: hold, Count: 1, DeadlineNS: inOneHour(), Permits: a.Permits, Of: a.Of})
	return a
}

func TestAcquireSendsPermitsAndOptions(t *testing.T) {
	c, p := listen(t).dial()
	sem := c.Semaphore("api", 10)
	if sem.Name() != "api" || sem.Capacity() != 10 {
		t.Errorf("%q with %d permits", sem.Name(), sem.Capacity())
	}
	times := []Option{WithLease(time.Second), WithMaxHold(time.Minute), WithCrashDelay(3 * time.Second)}
	for i, tt := range []struct {
		acquire func(context.Context, int, ...Option) (*Permit, error)
		n       int
		options []Option
		want    protocol.AcquirePermits
	}{
		{sem.Acquire, 2, nil, protocol.AcquirePermits{Acquire: protocol.Acquire{WaitMS: protocol.Forever}, Permits: 2}},
		{sem.TryAcquire, 10, nil, protocol.AcquirePermits{Permits: 10}},
		{sem.Acquire, 1, times, protocol.AcquirePermits{
			Acquire: protocol.Acquire{WaitMS: protocol.Forever, LeaseMS: 1000, MaxHoldMS: 60_000, CrashDelayMS: 3000}, Permits: 1,
		}},
	} {
		ctx := NewOwner(t.Context()) // permits have no owner
		acquired := async(func() (*Permit, error) { return tt.acquire(ctx, tt.n, tt.options...) })
		got := expect[protocol.AcquirePermits](p)
		tt.want.ID, tt.want.Name, tt.want.Of = got.ID, "api", 10
		if got != tt.want {
			t.Errorf("sent %+v, want %+v", got, tt.want)
		}
		hold := uint64(i + 1)
		p.send(protocol.AcquireOK{ID: got.ID, Token: 1000 + hold, Hold: hold, Count: 1, DeadlineNS: inOneHour(), Permits: got.Permits, Of: 10})
		permit, err := acquired()
		if err != nil {
			t.Fatal(err)
		}
		if permit.Permits() != tt.n || permit.Of() != 10 || permit.Token() != 1000+hold || permit.Name() != "api" || permit.Err() != nil || time.Until(permit.Deadline()) < 0 {
			t.Errorf("%d of %d permits of %q, token %d, %v", permit.Permits(), permit.Of(), permit.Name(), permit.Token(), permit.Err())
		}
		if err := permit.Release(); err != nil {
			t.Error(err)
		}
		if got := expect[protocol.Release](p); got != (protocol.Release{Hold: hold}) {
			t.Errorf("sent %+v", got)
		}
	}
}

func TestPolicyMayLowerTheCapacity(t *testing.T) {
	c, p := listen(t).dial()
	for answered, want := range map[uint16]int{4: 4, 0: 10} { // 0: the answer leaves it out
		acquired := async(func() (*Permit, error) { return c.Semaphore("api", 10).Acquire(context.Background(), 2) })
		p.send(protocol.AcquireOK{ID: expect[protocol.AcquirePermits](p).ID, Token: 1, Hold: 1 + uint64(answered), Count: 1, DeadlineNS: inOneHour(), Of: answered})
		permit, err := acquired()
		if err != nil || permit.Permits() != 2 || permit.Of() != want {
			t.Errorf("answered %d: %d of %d, %v", answered, permit.Permits(), permit.Of(), err)
		}
	}
}

func TestInvalidPermitsAreNotSent(t *testing.T) {
	c, p := listen(t).dial()
	ctx := context.Background()
	sem := c.Semaphore("api", 10)
	canceled, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("enough"))
	for want, err := range map[string]error{
		"0 are requested; request from 1 to its capacity, 10": errOf(sem.Acquire(ctx, 0)),
		"-1 are requested":                              errOf(sem.TryAcquire(ctx, -1)),
		"11 are requested":                              errOf(sem.Acquire(ctx, 11)),
		"65537 are requested":                           errOf(sem.Acquire(ctx, 65_537)),
		"its capacity is 0; it must be from 1 to 65535": errOf(c.Semaphore("api", 0).Acquire(ctx, 1)),
		"its capacity is -3":                            errOf(c.Semaphore("api", -3).Acquire(ctx, 1)),
		"its capacity is 65536":                         errOf(c.Semaphore("api", 65_536).Acquire(ctx, 1)),
		"name is empty":                                 errOf(c.Semaphore("", 10).Acquire(ctx, 1)),
		"WithKeep is for locks, and permits end with their hold; leave the option out": errOf(sem.Acquire(ctx, 1, WithKeep(time.Second))),
		"Fair is for locks":         errOf(sem.Acquire(ctx, 1, WithLease(time.Second), Fair())),
		"NonReentrant is for locks": sem.Do(ctx, 1, func(context.Context) error { t.Error("called"); return nil }, NonReentrant()),
		"WithLease(49":              errOf(sem.TryAcquire(ctx, 1, WithLease(49*time.Millisecond))),
		"enough":                    errOf(sem.Acquire(canceled, 1)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "locksidecar: ") {
			t.Errorf("%q: %v", want, err)
		}
	}
	p.expectNothing(c)
}

func TestPermitsThatAreNotFreeAreErrHeld(t *testing.T) {
	c, p := listen(t).dial()
	acquired := async(func() (*Permit, error) { return c.Semaphore("api", 10).TryAcquire(context.Background(), 2) })
	p.send(protocol.Err{ID: expect[protocol.AcquirePermits](p).ID, Code: protocol.Timeout, Msg: "pid 7 has 9 of 10"})
	permit, err := acquired()
	if permit != nil || err == nil || err.Error() != `locksidecar: cannot acquire permits of "api": pid 7 has 9 of 10` || !errors.Is(err, ErrHeld) || errors.Is(err, ErrTimeout) {
		t.Errorf("%v, %v", permit, err)
	}
}

// A sidecar that knows no semaphores answers as it answers every op that it does not know.
func TestSidecarWithoutSemaphoresIsNamed(t *testing.T) {
	c, p := listen(t).dial()
	acquired := async(func() (*Permit, error) { return c.Semaphore("api", 10).Acquire(context.Background(), 1) })
	p.send(protocol.Err{ID: expect[protocol.AcquirePermits](p).ID, Code: protocol.Unsupported, Msg: "this sidecar does not know this op"})
	_, err := acquired()
	wantKind(t, err, ErrUnsupported)
	wantText(t, err, `cannot acquire permits of "api": the sidecar of this host has version 0, which has no semaphores; upgrade it and restart it`)
}

func TestLossOfPermitsIsReported(t *testing.T) {
	c, p := listen(t).dial()
	sem := c.Semaphore("api", 10)
	permit, other := p.permit(sem, 2, 1), p.permit(sem, 1, 2)
	done := permit.Done()
	ctx, stop := permit.Context(context.Background())
	defer stop()
	p.send(protocol.LostEvent{Hold: 1, Reason: protocol.ByForce})
	<-done
	<-ctx.Done()
	for _, err := range []error{permit.Err(), context.Cause(ctx), permit.Release()} {
		wantKind(t, err, ErrLost, &LostError{Name: "api", Permits: 2, Reason: ReasonForced}, &LostError{Name: "api"})
		wantText(t, err, `the hold of 2 of the permits of "api" is lost: an operator ended it; other clients may have them`)
		if errors.Is(err, &LostError{Permits: 1}) {
			t.Errorf("%v is the loss of one permit", err)
		}
	}
	if other.Err() != nil || other.Release() != nil {
		t.Errorf("the other hold: %v", other.Err())
	}
	if got := expect[protocol.Release](p); got.Hold != 2 {
		t.Errorf("released %d", got.Hold)
	}
	wantKind(t, other.Err(), ErrNotHeld)
	wantText(t, other.Release(), `the permits of "api" were released; each Permit is for one Release`)
}

func TestLossOfPermitsIsLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		permit, err := c.Semaphore("api", 10).Acquire(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		network.steal("api")
		wantLog(t, buf, `level=WARN msg="permits are lost; other clients may have them" semaphore=api permits=2 token=`)
		wantKind(t, permit.Release(), ErrLost)
	})
}

// Each hold is claimed alone, and a request that waits keeps what it asks for.
func TestReconnectClaimsPermitsAndRequestsThemAgain(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	sem := c.Semaphore("api", 3)
	one, two := p.permit(sem, 1, 1), p.permit(sem, 2, 2)
	waiting := async(func() (*Permit, error) { return sem.Acquire(context.Background(), 3) })
	first := expect[protocol.AcquirePermits](p)
	p.nc.Close()
	p = s.acceptResumed()
	claim, holds := p.expectClaim()
	if len(holds) != 2 || holds[1] != 1 || holds[2] != 1 {
		t.Errorf("claimed %v", holds)
	}
	p.send(protocol.ClaimOK{ID: claim})
	again := p.grantPermits(3)
	if again.ID == first.ID {
		t.Error("the id was used again")
	}
	if again.ID = first.ID; again != first {
		t.Errorf("sent %+v, and then %+v", first, again)
	}
	three, err := waiting()
	if err != nil || three.Permits() != 3 {
		t.Fatalf("%v, %v", three, err)
	}
	for i, permit := range []*Permit{one, two, three} {
		if err := permit.Release(); err != nil {
			t.Error(err)
		}
		if got := expect[protocol.Release](p); got.Hold != uint64(i+1) {
			t.Errorf("released %d", got.Hold)
		}
	}
}

func TestErrorOfAcquireSaysThatPermitsAreNotHeld(t *testing.T) {
	s := listen(t)
	c, p := s.dial(WithReconnectPatience(0))
	acquired := async(func() (*Permit, error) { return c.Semaphore("api", 3).Acquire(context.Background(), 1) })
	expect[protocol.AcquirePermits](p)
	p.send(protocol.Err{Code: protocol.BadFrame, Msg: "it was too long"})
	_, err := acquired()
	wantKind(t, err, ErrUnavailable)
	wantText(t, err, `cannot acquire permits of "api"`, "; they are not held, and what may just have been granted is given up")
}

// The sidecar shows whether a request waits for Redis.
func TestSilenceOfRedisDuringAcquireIsReported(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		p.lockState = protocol.StateBusy
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := c.Semaphore("api", 3).Acquire(ctx, 1)
		wantKind(t, err, ErrTimeout, ErrUnavailable)
		wantText(t, err, `cannot acquire permits of "api"`, "Redis has not answered", "whether they are free is not known")
	})
}

// An owner does not enter permits again: it may wait for itself.
func TestEachAcquireIsAHoldOfItsOwn(t *testing.T) {
	_, c := dialFakeSidecar(t)
	ctx := NewOwner(t.Context())
	sem := c.Semaphore("api", 2)
	first, err := sem.Acquire(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	second, err := sem.TryAcquire(ctx, 1)
	if err != nil || second.Token() <= first.Token() {
		t.Fatalf("%v, %v", second, err)
	}
	wantKind(t, errOf(sem.TryAcquire(ctx, 1)), ErrHeld)
	third := async(func() (*Permit, error) { return sem.Acquire(ctx, 1) })
	if err := first.Release(Confirmed(ctx)); err != nil {
		t.Error(err)
	}
	if p, err := third(); err != nil || p.Release() != nil {
		t.Errorf("%v, %v", p, err)
	}
	if err := second.Release(); err != nil {
		t.Error(err)
	}
}

func TestDoHoldsPermitsWhileItCallsTheFunction(t *testing.T) {
	c, p := listen(t).dial()
	failure := errors.New("no paper")
	for i, isLost := range []bool{false, true} {
		hold := uint64(i + 1)
		done := async(func() (any, error) {
			return nil, c.Semaphore("api", 3).Do(context.Background(), 2, func(ctx context.Context) error {
				if ctx.Err() != nil {
					t.Errorf("the context has ended: %v", context.Cause(ctx))
				}
				if isLost {
					p.send(protocol.LostEvent{Hold: hold, Reason: protocol.Stolen})
					<-ctx.Done()
				}
				return failure
			})
		})
		if got := p.grantPermits(hold); got.Permits != 2 || got.Of != 3 {
			t.Errorf("sent %+v", got)
		}
		if !isLost && expect[protocol.Release](p).Hold != hold {
			t.Error("released another hold")
		}
		_, err := done()
		wantKind(t, err, failure)
		if errors.Is(err, ErrLost) != isLost {
			t.Errorf("Do returned %v", err)
		}
	}
}

// The row of a semaphore shows some of its holds only, so the sidecar may still have one that it does not show.
func TestSidecarThatMayStillHavePermitsConfirmsNothing(t *testing.T) {
	other := protocol.HolderRow{Hold: 1, Permits: 1}
	for _, tt := range []struct {
		what string
		row  protocol.LockRow
		has  bool
	}{
		{"another hold", protocol.LockRow{Hold: 1, Held: 1, Holders: []protocol.HolderRow{other}}, false},
		{"the hold among others", protocol.LockRow{Hold: 1, Held: 2, Holders: []protocol.HolderRow{other, {Hold: 7, Permits: 2}}}, true},
		{"one that is not shown", protocol.LockRow{Hold: 1, Held: 2, Holders: []protocol.HolderRow{other}}, true},
	} {
		s := listen(t)
		c, p := s.dial()
		permit := p.permit(c.Semaphore("a", 10), 2, 7)
		released := async(func() (any, error) { return nil, permit.Release(Confirmed(t.Context())) })
		p.expectReleaseAndConfirm(7, "a")
		p.nc.Close()
		p = s.accept()
		p.answerHello()
		tt.row.Name, tt.row.Kind, tt.row.State = "a", protocol.KindPermits, protocol.StateHeld
		p.send(protocol.InfoOK{ID: expect[protocol.Info](p).ID, Lock: &tt.row})
		if !tt.has {
			p.send(protocol.ConfirmOK{ID: expect[protocol.Confirm](p).ID})
		}
		_, err := released()
		if errors.Is(err, ErrUnconfirmed) != tt.has {
			t.Errorf("%s: %v", tt.what, err)
		}
		if tt.has {
			wantText(t, err, "before it had read the release", "; the hold is released here, and other hosts find its permits free within", "when its lease ends")
		}
	}
}

func TestForceReleaseEndsOneHoldOrAll(t *testing.T) {
	c, p := listen(t).dial()
	ctx := context.Background()
	forced := async(func() (ForcedRelease, error) { return c.ForceRelease(ctx, "api") })
	p.send(protocol.ForceReleaseOK{ID: expect[protocol.ForceRelease](p).ID, Hold: 9, Count: 3})
	if got, err := forced(); got != (ForcedRelease{9, 3}) || err != nil {
		t.Errorf("%+v, %v", got, err)
	}

	forced = async(func() (ForcedRelease, error) { return c.ForceRelease(ctx, "api", OnlyHold(8)) })
	request := expect[protocol.ForceRelease](p)
	if request.Name != "api" || request.Hold != 8 {
		t.Errorf("sent %+v", request)
	}
	p.send(protocol.ForceReleaseOK{ID: request.ID, Hold: 8})
	if got, err := forced(); got != (ForcedRelease{8, 1}) || err != nil {
		t.Errorf("%+v, %v", got, err)
	}

	forced = async(func() (ForcedRelease, error) { return c.ForceReleaseOn(ctx, "db-7", "api", OnlyHold(8)) })
	remote := expect[protocol.HostForceRelease](p)
	if remote.Host != "db-7" || remote.Name != "api" || remote.Hold != 8 {
		t.Errorf("sent %+v", remote)
	}
	p.send(protocol.HostForceReleaseOK{ID: remote.ID, Hold: 5}) // it does not know the field
	_, err := forced()
	wantKind(t, err, ErrUnsupported)
	wantText(t, err, "older", "ended hold 5 in the place of hold 8", "upgrade it")

	_, err = c.ForceRelease(ctx, "api", OnlyHold(0))
	wantText(t, err, "OnlyHold(0)", "from 1")
	p.expectNothing(c)
}
