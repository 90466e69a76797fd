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
