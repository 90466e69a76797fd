//go:build linux

package locksidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestDoHoldsTheLockWhileItCallsTheFunction(t *testing.T) {
	c, p := listen(t).dial()
	failure := errors.New("no paper")
	for i, want := range []error{nil, failure} {
		hold := uint64(i + 1)
		done := async(func() (any, error) {
			return nil, c.Do(context.Background(), "a", func(ctx context.Context, token uint64) error {
				if token != 1000+hold || ctx.Err() != nil {
					t.Errorf("token %d, context %v", token, ctx.Err())
				}
				return want
			}, Fair())
		})
		if got := p.grant(hold, inOneHour()); !got.Fair || got.Name != "a" {
			t.Errorf("sent %+v", got)
		}
		if got := expect[protocol.Release](p); got.Hold != hold {
			t.Errorf("released %d", got.Hold)
		}
		if _, err := done(); err != want {
			t.Errorf("Do returned %v, want %v", err, want)
		}
	}
}

// What f has left running is told to end while the lock is held: its context does not end because of the
// release.
func TestDoEndsTheContextBeforeTheRelease(t *testing.T) {
	c, p := listen(t).dial()
	var left context.Context
	done := async(func() (any, error) {
		return nil, c.Do(context.Background(), "a", func(ctx context.Context, _ uint64) error { left = ctx; return nil })
	})
	p.grant(1, inOneHour())
	if _, err := done(); err != nil {
		t.Fatal(err)
	}
	if why := context.Cause(left); why != context.Canceled {
		t.Errorf("the context ended because of %v", why)
	}
}

func TestDoDoesNotCallTheFunctionWithoutTheLock(t *testing.T) {
	c, _ := listen(t).dial()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := c.Do(ctx, "a", func(context.Context, uint64) error { t.Error("called"); return nil })
	wantKind(t, err, context.Canceled)
}

func TestDoJoinsALossToTheResult(t *testing.T) {
	c, p := listen(t).dial()
	failure := errors.New("no paper")
	for i, f := range []func(context.Context) error{
		func(context.Context) error { return nil },
		func(ctx context.Context) error { <-ctx.Done(); return nil },
		func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		func(context.Context) error { return failure },
	} {
		hold := uint64(i + 1)
		done := async(func() (any, error) {
			return nil, c.Do(context.Background(), "a", func(ctx context.Context, _ uint64) error {
				p.send(protocol.LostEvent{Hold: hold, Reason: protocol.Stolen})
				return f(ctx)
			})
		})
		p.grant(hold, inOneHour())
		_, err := done()
		wantKind(t, err, ErrLost)
		if err == nil {
			continue
		}
		if n := strings.Count(err.Error(), "is lost"); n != 1 {
			t.Errorf("%d: the loss is %d times in %q", i, n, err)
		}
		if isJoined := errors.Is(err, failure); isJoined != (i == 3) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestDoReportsThatTheClientWasClosed(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	failure := errors.New("no paper")
	done := async(func() (any, error) {
		return nil, c.Do(context.Background(), "a", func(context.Context, uint64) error {
			s.closeClient(c)
			return failure
		})
	})
	p.grant(1, inOneHour())
	_, err := done()
	wantKind(t, err, ErrClosed, failure)
}

func TestDoReleasesAfterPanicAndGoexit(t *testing.T) {
	c, p := listen(t).dial()
	for i, leave := range []func(){func() { panic("paper jam") }, runtime.Goexit} {
		hold := uint64(i + 1)
		left := make(chan any, 1)
		go func() {
			defer func() { left <- recover() }()
			err := c.Do(context.Background(), "a", func(context.Context, uint64) error { leave(); return nil })
			t.Errorf("Do returned %v", err)
		}()
		p.grant(hold, inOneHour())
		if got := expect[protocol.Release](p); got.Hold != hold {
			t.Errorf("released %d", got.Hold)
		}
		if got := <-left; i == 0 && got != "paper jam" || i == 1 && got != nil {
			t.Errorf("%d: recovered %v", i, got)
		}
	}
}

func TestContextUnlockerReleasesWithAnEndedContext(t *testing.T) {
	c, p := listen(t).dial()
	var l interface {
		Unlock(ctx context.Context) error
	} = p.lock(c, "a", 1, inOneHour()).ContextUnlocker()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if got := expect[protocol.Release](p); got.Hold != 1 {
		t.Errorf("released %d", got.Hold)
	}
	wantKind(t, l.Unlock(ctx), ErrNotHeld)
}

// TestVetReportsCopies vets a source that no run before has seen, so that no result in the build cache answers for
// it: Go 1.26 saves the empty result of a package that it vets for the facts that a dependent needs, and takes it for
// the result of the package itself later. The -x flag shows, after a failure, which tools ran.
func TestVetReportsCopies(t *testing.T) {
	const name = "testdata/copies/copies.go"
	source, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	fresh := filepath.Join(dir, "copies.go")
	if err := os.WriteFile(fresh, fmt.Appendf(source, "\n// %s\n", uuid.New()), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: fresh}})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(config, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "vet", "-x", "-overlay", config, "./testdata/copies").CombinedOutput()
	if err == nil {
		t.Error("go vet has no complaint")
	}
	for _, name := range []string{"Lock", "Client"} {
		if want := "copies lock value: github.com/locksidecar/locksidecar/sdk/go." + name + " contains"; !strings.Contains(string(out), want) {
			t.Errorf("go vet does not report %q:\n%s", want, out)
		}
	}
}

func TestDoneIsClosedByClose(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	l := p.lock(c, "a", 1, inOneHour())
	p.send(protocol.LostEvent{Hold: 1, Reason: protocol.Stolen})
	<-l.Done()
	select {
	case <-c.Done():
		t.Error("the loss of a lock has closed Done")
	default:
	}
	closed := async(func() (any, error) { return nil, c.Close() })
	p.answerUntilEnd()
	<-c.Done()
	wantKind(t, errOf(c.Lock(context.Background(), "a")), ErrClosed)
	closed()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
