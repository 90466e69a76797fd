package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestLockPrintsTheTokenAndHoldsUntilItsInputEnds(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "lock", "--lease", "90s", "--fair", "job", "--max-hold=2m", "--crash-delay", "3s", "--keep", "50s", "--wait", "0")
	if token := p.line(); token != "4242" {
		t.Errorf("printed %q", token)
	}
	if a := <-f.acquired; a.Name != "job" || a.LeaseMS != 90_000 || a.MaxHoldMS != 120_000 || a.CrashDelayMS != 3_000 || a.KeepMS != 50_000 || !a.Fair || a.WaitMS != 0 {
		t.Errorf("acquired with %+v", a)
	}
	select {
	case <-f.released:
		t.Error("released before the input ended")
	default:
	}
	p.stdin.Close()
	if rest := expectExit(t, p, 0, ""); rest != "" || p.stderr.String() != "" {
		t.Errorf("printed %q and %q", rest, p.stderr.String())
	}
	<-f.released
	if c := <-f.confirms; c.Name != "job" {
		t.Errorf("confirmed %+v", c)
	}
}

func TestLockHoldsPermitsUntilItsInputEnds(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "lock", "--permits", "2", "--of", "3", "api")
	if token := p.line(); token != "4242" {
		t.Errorf("printed %q", token)
	}
	if a := <-f.acquired; a.Name != "api" || a.Permits != 2 || a.Of != 3 || a.WaitMS != protocol.Forever {
		t.Errorf("acquired with %+v", a)
	}
	p.stdin.Close()
	expectExit(t, p, 0, "")
	if r := <-f.released; r.Hold != fakeHold {
		t.Errorf("released %+v", r)
	}
}

func TestLockEndsWhenTheLockIsLost(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "lock", "job")
	p.line()
	f.event(t, protocol.LostEvent{Hold: fakeHold, Reason: protocol.ByForce})
	expectExit(t, p, exitLost, `"job"`)
	if text := p.stderr.String(); !strings.Contains(text, "lost") || strings.Count(text, "\n") != 1 {
		t.Errorf("printed %q", text)
	}
}

func TestSignalEndsLockAndReleases(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "lock", "job")
	p.line()
	p.signal(syscall.SIGTERM)
	expectExit(t, p, 128+15, "")
	<-f.released

	p = start(t, f, "lock", nameWait)
	for a := range f.acquired {
		if a.Name == nameWait {
			break
		}
	}
	p.signal(syscall.SIGHUP)
	expectExit(t, p, 128+1, "")
}

func TestEndOfInputEndsTheWaitOfLock(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "lock", nameWait)
	<-f.acquired
	p.stdin.Close()
	if got := expectExit(t, p, exitNotAcquired, "standard input ended before this program got the lock"); got != "" {
		t.Errorf("printed %q", got)
	}
	<-f.closed
}

func TestLockReportsWhyTheLockWasNotAcquired(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"--wait", "0", nameHeld}, 75, "is held by another process or host"},
		{[]string{nameDenied}, 77, "does not permit"},
		{[]string{nameNoRedis}, 69, "cannot be reached"},
		{[]string{"--lease", "1ms", "job"}, 64, "--lease 1ms: choose 50ms to 720h0m0s"},
		{[]string{"--wait=-1s", "job"}, 64, "must not be negative"},
		{[]string{""}, 64, "is empty"},
		{[]string{"job", "true"}, 64, "true"},
	} {
		if got := expectExit(t, start(t, startFake(t), append([]string{"lock"}, tt.args...)...), tt.code, tt.stderr); got != "" {
			t.Errorf("%q printed %q", tt.args, got)
		}
	}
}
