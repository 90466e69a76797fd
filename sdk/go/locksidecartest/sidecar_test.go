//go:build linux

package locksidecartest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sdk/go/locksidecartest"
)

// shared is the sidecar of the examples, which find it by LOCKSIDECAR_SOCKET.
var shared *locksidecartest.Sidecar

func TestMain(m *testing.M) {
	var err error
	if shared, err = locksidecartest.Start(locksidecartest.Config{}); err != nil {
		panic(err)
	}
	os.Setenv("LOCKSIDECAR_SOCKET", shared.Path())
	code := m.Run()
	shared.Close()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

func start(t *testing.T, lease time.Duration) (*locksidecartest.Sidecar, *locksidecar.Client) {
	t.Helper()
	s, err := locksidecartest.Start(locksidecartest.Config{Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	c, err := s.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, c
}

func lock(t *testing.T, c *locksidecar.Client, name string, options ...locksidecar.Option) *locksidecar.Lock {
	t.Helper()
	l, err := c.Lock(t.Context(), name, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantLost(t *testing.T, l *locksidecar.Lock, reason locksidecar.Reason) {
	t.Helper()
	<-l.Done()
	var lost *locksidecar.LostError
	if !errors.As(l.Err(), &lost) || lost.Reason != reason {
		t.Errorf("it ended with %v, want %s", l.Err(), reason)
	}
}

func TestLossesOnDemand(t *testing.T) {
	s, c := start(t, 3*time.Second) // a loss is found when a renewal is due
	ctx := t.Context()
	l := lock(t, c, "forced")
	if err := s.Force(ctx, "forced"); err != nil {
		t.Fatal(err)
	}
	wantLost(t, l, locksidecar.ReasonForced)

	l = lock(t, c, "deleted")
	if err := s.Delete(ctx, "deleted"); err != nil {
		t.Fatal(err)
	}
	wantLost(t, l, locksidecar.ReasonDeleted)
	if err := s.Delete(ctx, "free"); err == nil {
		t.Error("a lock that nothing holds was deleted")
	}

	l = lock(t, c, "stolen")
	release, err := s.Steal(ctx, "stolen")
	if err != nil {
		t.Fatal(err)
	}
	wantLost(t, l, locksidecar.ReasonStolen)
	if _, err := c.TryLock(ctx, "stolen"); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("another host holds it, and TryLock returned %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if later := lock(t, c, "stolen"); later.Token() <= l.Token() {
		t.Errorf("the token %d is not larger than %d", later.Token(), l.Token())
	}

	wantLost(t, lock(t, c, "leased", locksidecar.WithLease(50*time.Millisecond)), locksidecar.ReasonExpired)
}

func TestReleaseOnAnotherHostWakesAWaiter(t *testing.T) {
	s, c := start(t, time.Minute)
	release, err := s.Steal(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan error)
	go func() {
		_, err := c.Lock(context.Background(), "n")
		granted <- err
	}()
	for {
		info, _, err := c.Info(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		if len(info.Waiters) > 0 {
			break
		}
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil { // has no effect on the new holder
		t.Fatal(err)
	}
	if _, err := c.TryLock(t.Context(), "n"); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("TryLock of a held lock returned %v", err)
	}
}

func TestRestartKeepsLocks(t *testing.T) {
	s, c := start(t, time.Minute)
	l := lock(t, c, "n")
	for range 2 {
		if err := s.Restart(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryLock(t.Context(), "n"); !errors.Is(err, locksidecar.ErrHeld) {
			t.Errorf("TryLock of a held lock returned %v", err)
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := locksidecar.Dial(t.Context(), s.Path(), locksidecar.WithDialPatience(0)); !errors.Is(err, locksidecar.ErrUnavailable) {
		t.Errorf("Dial without a sidecar returned %v", err)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestCloseRemovesFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	s, err := locksidecartest.Start(locksidecartest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	if _, err := locksidecartest.Start(locksidecartest.Config{Lease: time.Millisecond}); err == nil {
		t.Error("a lease that the daemon refuses was accepted")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("a failed start left %v", left)
	}
}

func acquire(t *testing.T, s *locksidecar.Semaphore, n int) *locksidecar.Permit {
	t.Helper()
	p, err := s.Acquire(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Permits of several clients, and a request that waits, survive a restart.
func TestRestartKeepsPermits(t *testing.T) {
	s, c := start(t, time.Minute)
	other, err := s.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ours, theirs := c.Semaphore("n", 4), other.Semaphore("n", 4)
	one, two := acquire(t, ours, 1), acquire(t, theirs, 2)
	granted := make(chan *locksidecar.Permit)
	go func() {
		p, err := ours.Acquire(context.Background(), 3)
		if err != nil {
			t.Error(err)
		}
		granted <- p
	}()
	for waiting := 0; waiting == 0; {
		info, _, err := c.Info(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		if waiting = info.Waiting; waiting != 0 {
			if info.Kind != locksidecar.KindPermits || info.Holds != 2 || info.Permits != 3 || info.Of != 4 || len(info.Holders) != 2 || info.Waiters[0].Permits != 3 {
				t.Errorf("%+v", info)
			}
			if h := info.Holders[1]; h.Permits != 2 || h.Token != two.Token() || h.PID != os.Getpid() {
				t.Errorf("the second holder: %+v", h)
			}
		}
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	for waiting := 0; waiting == 0; { // the clients come back one by one, and a permit is free
		info, _, err := c.Info(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		waiting = info.Waiting
	}
	if _, err := theirs.TryAcquire(t.Context(), 1); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("TryAcquire while another request waits returned %v", err)
	}
	if err := two.Release(locksidecar.Confirmed(t.Context())); err != nil {
		t.Error(err)
	}
	three := <-granted
	if three.Permits() != 3 || three.Of() != 4 || three.Token() <= two.Token() {
		t.Errorf("%d of %d permits, token %d after %d", three.Permits(), three.Of(), three.Token(), two.Token())
	}
	for _, p := range []*locksidecar.Permit{one, three} {
		if err := p.Release(); err != nil {
			t.Error(err)
		}
	}
	if err := acquire(t, theirs, 4).Release(); err != nil {
		t.Error(err)
	}
}

func TestLossesOfPermits(t *testing.T) {
	s, c := start(t, 3*time.Second) // a loss is found when a renewal is due
	ctx := t.Context()
	lost := func(p *locksidecar.Permit, reason locksidecar.Reason) {
		t.Helper()
		<-p.Done()
		if !errors.Is(p.Err(), &locksidecar.LostError{Name: p.Name(), Permits: p.Permits(), Reason: reason}) {
			t.Errorf("it ended with %v, want %s", p.Err(), reason)
		}
	}
	forced := c.Semaphore("forced", 6)
	first, second, third := acquire(t, forced, 1), acquire(t, forced, 2), acquire(t, forced, 3)
	info, _, err := c.Info(ctx, "forced")
	if err != nil || len(info.Holders) != 3 {
		t.Fatalf("%+v, %v", info, err)
	}
	hold := locksidecar.OnlyHold(info.Holders[1].Hold)
	if got, err := c.ForceRelease(ctx, "forced", hold); err != nil || got.Hold != info.Holders[1].Hold || got.Count != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	lost(second, locksidecar.ReasonForced)
	if first.Err() != nil || third.Err() != nil {
		t.Errorf("%v, %v", first.Err(), third.Err())
	}
	if _, err := c.ForceRelease(ctx, "forced", hold); !errors.Is(err, locksidecar.ErrNotHeld) {
		t.Errorf("a hold that has ended: %v", err)
	}
	if err := s.Force(ctx, "forced"); err != nil {
		t.Fatal(err)
	}
	lost(first, locksidecar.ReasonForced)
	lost(third, locksidecar.ReasonForced)

	p := acquire(t, c.Semaphore("deleted", 2), 2)
	if err := s.Delete(ctx, "deleted"); err != nil {
		t.Fatal(err)
	}
	lost(p, locksidecar.ReasonDeleted)

	stolen := c.Semaphore("stolen", 2)
	p = acquire(t, stolen, 1)
	release, err := s.Steal(ctx, "stolen")
	if err != nil {
		t.Fatal(err)
	}
	lost(p, locksidecar.ReasonStolen)
	if _, err := stolen.TryAcquire(ctx, 1); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("another host has it as a lock, and TryAcquire returned %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := acquire(t, stolen, 2).Release(); err != nil {
		t.Error(err)
	}

	leased, err := c.Semaphore("leased", 2).Acquire(ctx, 1, locksidecar.WithLease(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	lost(leased, locksidecar.ReasonExpired)
}

// A name is that of a lock or of a semaphore.
func TestNameOfALockIsNotThatOfASemaphore(t *testing.T) {
	_, c := start(t, time.Minute)
	lock(t, c, "lock")
	acquire(t, c.Semaphore("permits", 2), 1)
	if _, err := c.Semaphore("lock", 2).TryAcquire(t.Context(), 1); !errors.Is(err, locksidecar.ErrDenied) {
		t.Errorf("permits of a lock: %v", err)
	}
	if _, err := c.TryLock(t.Context(), "permits"); !errors.Is(err, locksidecar.ErrDenied) {
		t.Errorf("lock of a semaphore: %v", err)
	}
}
