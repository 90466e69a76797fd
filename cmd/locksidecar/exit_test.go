package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

func TestExitCodesAreThoseOfTheHelp(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{coded{exitUsage, errors.New("x")}, 64},
		{locksidecar.ErrUnavailable, 69},
		{locksidecar.ErrClosed, 69},
		{locksidecar.ErrLimit, 69},
		{coded{exitDegraded, errors.New("x")}, 74},
		{locksidecar.ErrHeld, 75},
		{locksidecar.ErrTimeout, 75},
		{locksidecar.ErrDeadlock, 75},
		{locksidecar.ErrDenied, 77},
		{locksidecar.ErrLost, 79},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("exitCode(%v) = %d, want %d", tt.err, got, tt.want)
		}
		if tt.err == nil {
			continue
		}
		if got := exitCode(fmt.Errorf("more words: %w", tt.err)); got != tt.want {
			t.Errorf("exitCode of wrapped %v = %d, want %d", tt.err, got, tt.want)
		}
	}
}

// The errors of the SDK begin with the name of the program, which a message has once. A path that
// ends with the name stays as it is.
func TestMessageBeginsWithTheNameOnce(t *testing.T) {
	const path = "/var/lib/locksidecar"
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("its directory %s: no such file", path), "locksidecar: its directory /var/lib/locksidecar: no such file\n"},
		{locksidecar.ErrClosed, locksidecar.ErrClosed.Error() + "\n"},
		{fmt.Errorf("cannot open %s: %w", path, locksidecar.ErrClosed),
			"locksidecar: cannot open /var/lib/locksidecar: " + strings.TrimPrefix(locksidecar.ErrClosed.Error(), "locksidecar: ") + "\n"},
		{errors.Join(errors.New("a"), coded{exitFailure, locksidecar.ErrHeld}),
			"locksidecar: a\n  " + strings.TrimPrefix(locksidecar.ErrHeld.Error(), "locksidecar: ") + "\n"},
	} {
		var out strings.Builder
		printMessage(&out, "%v", tt.err)
		if out.String() != tt.want {
			t.Errorf("printed %q, want %q", out.String(), tt.want)
		}
	}
}

// An error may have the text of another host, or of another program. It does not control the terminal,
// and its lines stay.
func TestMessageHasNoControlCharacters(t *testing.T) {
	var out strings.Builder
	printMessage(&out, "%v", fmt.Errorf("host db-7: \x1b[2J\u009b2J\r\a\xff, für\n\tdich"))
	if want := "locksidecar: host db-7: ?[2J?2J??\ufffd, für\n   dich\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

// What people write who do not know the program.
func TestCommandLinesWithoutACommandAreExplained(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "Serve locks to the processes of this host"},
		{[]string{"run"}, "run takes a lock and a command: locksidecar run invoice:42 -- ./report.sh"},
		{[]string{"run", "x"}, "run takes a lock and a command: locksidecar run invoice:42 -- ./report.sh"},
		{[]string{"--socket", "/run/s.sock"}, "Usage: locksidecar <command>"},
		{[]string{"--socket", "/run/s.sock", "version"}, "unknown flag --socket"},
	} {
		var out, errs strings.Builder
		if code := dispatch(tt.args, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), tt.want) || out.Len() > 0 {
			t.Errorf("%q ends with %d and prints %q; to the standard output %q", tt.args, code, errs.String(), out.String())
		}
	}
}

func TestSocketMayStandBeforeTheCommand(t *testing.T) {
	f := startFake(t)
	for _, args := range [][]string{{"--socket", f.path, "ls"}, {"--socket=" + f.path, "ls", "b"}, {"--socket", "/nowhere", "--socket", f.path, "ls"}} {
		var out, errs strings.Builder
		if code := dispatch(args, &out, &errs); code != 0 || !strings.Contains(out.String(), "held") {
			t.Errorf("%q ends with %d and prints %q %q", args, code, out.String(), errs.String())
		}
	}
}

func TestNamesThatAShellWouldChangeDoNotCompleteAWord(t *testing.T) {
	names := []protocol.LockRow{{Name: "invoice:42"}, {Name: "a b"}, {Name: "$(reboot)"}, {Name: "`reboot`"}, {Name: "a;b"}, {Name: "a\nb"}, {Name: "*"}, {Name: "é"}, {Name: "x/y@z"}}
	f := startFake(t, func(f *fakeSidecar) { f.locks = names })
	var out, errs strings.Builder
	if code := dispatch([]string{"names", "--socket", f.path}, &out, &errs); code != 0 || out.String() != "invoice:42\nx/y@z\n" {
		t.Errorf("ends with %d and prints %q %q", code, out.String(), errs.String())
	}
	if code := dispatch([]string{"names", "--socket", "/nowhere"}, &out, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("without a daemon it ends with %d and prints %q", code, errs.String())
	}
}
