package sidecar

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"golang.org/x/sys/unix"
)

// systemd does not start a daemon again that ended because of a SettingError.
func TestOnlyErrorsThatStayAreSettingErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, taken := net.Listen("unix", path) // bind finds no file, and another process makes the socket
	if !errors.Is(taken, unix.EADDRINUSE) {
		t.Fatal(taken)
	}
	_, missing := os.Open(filepath.Join(dir, "none"))
	sentence := errors.New("lease 0s: choose another one")
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("socket %s: %w", path, taken), false},
		{fmt.Errorf("state file: %w", unix.ENOSPC), false},
		{fmt.Errorf("lock file: %w", unix.EMFILE), false},
		{fmt.Errorf("lock file: %w", unix.ENOLCK), false},
		{fmt.Errorf("mapping: %w", unix.ENOMEM), false},
		{inUse("another sidecar serves"), false},
		{nil, false},
		{missing, true},
		{errSocketDir(path, unix.EACCES), true},
		{errSocketGroup(path, unix.EPERM), true},
		{sentence, true},
		{errors.Join(sentence, sentence), true},
	} {
		var refused *SettingError
		if got := errors.As(asSettingError(tt.err), &refused); got != tt.want {
			t.Errorf("%v: a SettingError %v, want %v", tt.err, got, tt.want)
		}
	}
}

// The lock table has the times of the settings.
//
// Shows docs/queue.md: Settings.
func TestTimesReachTheLockTable(t *testing.T) {
	for _, tt := range []struct {
		cfg          Config
		lease        time.Duration
		linger, turn moment.Span
	}{
		{Config{}, DefaultLease, moment.SpanOf(DefaultLinger), moment.Span{}},
		{Config{Lease: time.Minute, Linger: moment.SpanOf(0), Turn: moment.SpanOf(0)}, time.Minute, moment.SpanOf(0), moment.SpanOf(0)},
		{Config{Lease: time.Second, Linger: moment.SpanOf(maxLinger), Turn: moment.SpanOf(maxTurn)}, time.Second, moment.SpanOf(maxLinger), moment.SpanOf(maxTurn)},
	} {
		if err := tt.cfg.setDefaults(); err != nil {
			t.Fatal(err)
		}
		if got := tt.cfg.table(); got.Lease != tt.lease || got.Contest.Linger != tt.linger || got.Contest.Turn != tt.turn {
			t.Errorf("lease %v, linger %v, turn %v; want %v, %v, %v", got.Lease, got.Contest.Linger, got.Contest.Turn, tt.lease, tt.linger, tt.turn)
		}
	}
}
