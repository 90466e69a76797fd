package loglimit

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// own is the uid of the sidecar's user.
const own = 990

func isPrivileged(uid int64) bool { return uid == 0 || uid == own }

func TestLogHasAFewLinesOfAKind(t *testing.T) {
	var log strings.Builder
	l := New(slog.New(slog.NewTextHandler(&log, nil)), isPrivileged)
	of := func(uid int64) Kind { return Warn(uid, "client refused", "bad_frame") }
	want := func(when, part string, n int) {
		t.Helper()
		if got := strings.Count(log.String(), part); got != n {
			t.Errorf("%s: %d lines with %q, want %d:\n%s", when, got, part, n, log.String())
		}
	}
	for range maxLines + 3 {
		l.About(1, of(1000), "", "pid", 1)
	}
	l.About(1, of(1001), "", "pid", 2)
	want("many lines about one user", "pid=1", maxLines)
	want("one line about another user", "pid=2", 1)

	l.Flush()
	want("the window has ended", "lines=", 1)
	want("the window has ended", "about=bad_frame uid=1000 lines=3", 1)

	l.About(1, of(1000), "", "pid", 1)
	want("a new window", "pid=1", maxLines+1)
}

// Shows docs/guarantees.md: Loses thousands of locks in a second.
func TestLinesThatAreLeftOutAreSummedUpWithTheirLocks(t *testing.T) {
	var log strings.Builder
	l := New(slog.New(slog.NewTextHandler(&log, nil)), isPrivileged)
	lost := Warn(1000, "lock lost", "expired")
	for i := range maxLines + 45 {
		l.About(1, lost, fmt.Sprintf("invoice:%02d", i), "hold", i)
	}
	l.About(1, lost, "invoice:49", "hold", 50) // the same lock again
	l.About(1, lost, "a b\n", "hold", 51)
	l.Flush()
	for i := range maxLines + 45 {
		if n := strings.Count(log.String(), fmt.Sprintf("invoice:%02d", i)); n != 1 {
			t.Errorf("invoice:%02d is in the log %d times", i, n)
		}
	}
	if text := log.String(); !strings.Contains(text, "lines=47 ") || !strings.Contains(text, `invoice:49, \"a b\\n\""`) {
		t.Errorf("logged:\n%s", text)
	}

	// The names have a bound, and are shown to be incomplete.
	log.Reset()
	for i := range 10_000 {
		l.About(1, lost, fmt.Sprintf("%d:%0200d", i, i))
	}
	l.Flush()
	if text := log.String(); len(text) > 2*maxSummary || !strings.Contains(text, `, and others"`) || !strings.Contains(text, "lines=9995 ") {
		t.Errorf("logged %d bytes:\n%s", len(text), text)
	}
}

// A forced release is in the log, however many there are. A user who ends his own holds by force all
// the time gets a line with the names instead.
//
// Shows docs/guarantees.md: Loses thousands of locks in a second.
func TestLogHasEveryForcedReleaseOfThePrivileged(t *testing.T) {
	var log strings.Builder
	l := New(slog.New(slog.NewTextHandler(&log, nil)), isPrivileged)
	early := 0
	for i := range 10 * maxAuditLines {
		for _, uid := range []int64{0, own, 1 << 20} {
			if l.Audit(1, Info(uid, "forced", ""), Requester{PID: 7, Cmd: "job"}, fmt.Sprint("x", i)) {
				early++
			}
		}
	}
	if n := strings.Count(log.String(), "msg=forced"); n != 20*maxAuditLines+maxAuditLines {
		t.Errorf("%d lines", n)
	}
	if early != 3*maxLines {
		t.Errorf("%d lines count as early", early)
	}
	l.Flush()
	if text := log.String(); !strings.Contains(text, "uid=1048576 pid=7 cmd=job lines=900 ") || !strings.Contains(text, "x100, x101, ") {
		t.Error("the lines of a user are not summed up")
	}
}

// Audit lines that are left out are summed up by client. However many clients there are, and whatever
// other hosts pretend, the lines are few, and are marked as those of an audit.
func TestAuditLinesAreSummedUpByClient(t *testing.T) {
	for use, line := range map[use]func(*Log, int64, Kind, Requester, string, ...any) bool{audit: (*Log).Audit, auditByHost: (*Log).AuditByHost} {
		var log strings.Builder
		var marks markedHandler
		marks.Handler = slog.NewTextHandler(&log, nil)
		l := New(slog.New(&marks), isPrivileged)
		kind := Warn(1<<20, "refused", "denied")
		client := func(i int) Requester {
			r := Requester{PID: int64(1000 + i), Cmd: "job"}
			if use == auditByHost {
				r.Host, r.Sidecar, r.UID = "db-7", "uuid", 33
			}
			return r
		}
		for i := range 3000 {
			n := i
			if i >= maxAuditLines {
				n = i % (maxRequesters + 30)
			}
			line(l, 1, kind, client(n), fmt.Sprint("lock ", n), "reason", "no")
		}
		l.Flush()
		text := log.String()
		if n := strings.Count(text, "\n"); n != maxAuditLines+maxRequesters+1 {
			t.Errorf("use %d: %d lines", use, n)
		}
		if marks.audit != maxAuditLines+maxRequesters+1 || marks.privileged != 0 {
			t.Errorf("use %d: %d lines are marked, %d as those of the privileged", use, marks.audit, marks.privileged)
		}
		own, rest := "uid=1048576 pid=1003 cmd=job lines=58 locks=\"\\\"lock 3\\\"\"", "pid 1049 (job)"
		if use == auditByHost {
			own = "sidecar=uuid by_pid=1003 by_uid=33 by_cmd=job host=db-7 lines=58 locks=\"\\\"lock 3\\\"\""
			rest = "pid 1049 (job) of uid 33 on host db-7, sidecar uuid"
		}
		if !strings.Contains(text, own) || !strings.Contains(text, "lines=1740 ") || !strings.Contains(text, rest) {
			t.Errorf("use %d: logged:\n%s", use, text[strings.Index(text, "more lines"):])
		}
	}
}

// markedHandler counts the lines of an audit.
type markedHandler struct {
	slog.Handler
	audit, privileged int
}

func (h *markedHandler) Handle(ctx context.Context, r slog.Record) error {
	if is, privileged := IsAudit(ctx); is {
		h.audit++
		if privileged {
			h.privileged++
		}
	}
	return h.Handler.Handle(ctx, r)
}

func TestErrorThatLastsIsLoggedWhenItBegins(t *testing.T) {
	episodes, now := make(Episodes), time.Now()
	for _, tt := range []struct {
		pause time.Duration
		error string
		want  bool
	}{
		{0, "no descriptors", true},
		{50 * time.Second, "no descriptors", false},
		{50 * time.Second, "no descriptors", false}, // it was met less than a minute ago
		{0, "no memory", true},
		{61 * time.Second, "no descriptors", true},
	} {
		now = now.Add(tt.pause)
		if got := episodes.Begins(now, tt.error); got != tt.want {
			t.Errorf("after %v %q begins: %v, want %v", tt.pause, tt.error, got, tt.want)
		}
	}
}
