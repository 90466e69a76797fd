//go:build linux

package locksidecar

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// waitFor has another goroutine wait for a lock that is held, and returns a function that ends the wait.
func waitFor(t *testing.T, c *Client, name string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := c.Lock(ctx, name)
		done <- err
	}()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func (n *fakeNetwork) set(change func(f *fakeSidecar)) {
	n.fakeSidecar.mu.Lock()
	defer n.fakeSidecar.mu.Unlock()
	change(n.fakeSidecar)
}

func TestAcquireThatWaitsForRedisIsLoggedOnceAfter2S(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		l := mustLock(t, c, "a")
		end, endSecond := waitFor(t, c, "a"), waitFor(t, c, "a")
		network.set(func(f *fakeSidecar) { f.redisIsDown = true })
		time.Sleep(1999 * time.Millisecond)
		if synctest.Wait(); buf.Len() > 0 {
			t.Errorf("logged %q", buf)
		}
		time.Sleep(2 * time.Millisecond)
		want := `level=WARN msg="an acquire waits, because Redis does not serve" lock=a redis="it is away" address=redis:6379/0 socket=/fake`
		wantLog(t, buf, want)
		time.Sleep(time.Hour)
		if synctest.Wait(); buf.Len() > 0 {
			t.Errorf("logged again: %q", buf)
		}
		end()
		endSecond()
		// A grant ends the outage; the next one is logged again.
		mustLock(t, c, "b").Unlock()
		end = waitFor(t, c, "a")
		time.Sleep(3 * time.Second)
		wantLog(t, buf, want)
		end()
		l.Unlock()
	})
}

func TestAcquireThatWaitsForAnotherOwnerIsNotLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		l := mustLock(t, c, "a")
		end := waitFor(t, c, "a")
		time.Sleep(time.Minute)
		if synctest.Wait(); buf.Len() > 0 {
			t.Errorf("logged %q", buf)
		}
		// Redis is asked again later.
		network.set(func(f *fakeSidecar) { f.redisIsDown = true })
		time.Sleep(5 * time.Minute)
		wantLog(t, buf, `level=WARN msg="an acquire waits, because Redis does not serve" lock=a`)
		end()
		l.Unlock()
	})
}

func TestAcquireThatWaitsForASidecarThatHangsIsLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		l := mustLock(t, c, "a")
		end := waitFor(t, c, "a")
		network.set(func(f *fakeSidecar) { f.isHung = true })
		time.Sleep(5 * time.Second)
		wantLog(t, buf, `level=WARN msg="an acquire waits, and the sidecar does not answer" lock=a socket=/fake err=`)
		end()
		l.Unlock()
	})
}

// The danger: a policy that permits no more requests is logged as a sidecar that hangs.
func TestAcquireThatWaitsWhilePingsAreRefusedIsNotLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		l := mustLock(t, c, "a")
		end := waitFor(t, c, "a")
		network.set(func(f *fakeSidecar) { f.refusesPings = true })
		time.Sleep(time.Minute)
		if synctest.Wait(); buf.Len() > 0 {
			t.Errorf("logged %q", buf)
		}
		// Nor does the refusal use up the warning.
		network.set(func(f *fakeSidecar) { f.refusesPings, f.redisIsDown = false, true })
		time.Sleep(5 * time.Minute)
		wantLog(t, buf, `level=WARN msg="an acquire waits, because Redis does not serve" lock=a`)
		end()
		l.Unlock()
	})
}

func TestWaitingAcquireIsLoggedWithoutALogger(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		var buf bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&buf, nil)))
		defer slog.SetDefault(before)
		l := mustLock(t, c, "a")
		end := waitFor(t, c, "a")
		network.set(func(f *fakeSidecar) { f.redisIsDown = true })
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !strings.Contains(buf.String(), "it is away") {
			t.Errorf("logged %q", &buf)
		}
		end()
		l.Unlock()
	})
}
