package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/loglimit"
)

// While the log is not read, ordinary lines are dropped, and those of an audit are not. Users who are not
// privileged leave room for the lines of root. The lines are written in their order.
func TestAsyncWriterDropsNoAuditLineForAnOrdinaryOne(t *testing.T) {
	r, w := io.Pipe()
	l := newAsyncWriter(w, slog.New(slog.NewTextHandler(w, nil)))
	of := func(class lineClass) io.Writer { return classWriter{l, class} }
	fmt.Fprintln(of(audited), "first")
	for range 2 * maxBacklog {
		fmt.Fprintln(l, "line")
	}
	fmt.Fprintln(of(audited), "after the flood")
	long := strings.Repeat("x", 1<<20-1) + "\n"
	for range 2 * maxAudit >> 20 {
		io.WriteString(of(audited), long)
	}
	for range 1 << 10 { // and no room is left for a short one
		io.WriteString(of(audited), strings.Repeat("y", 1<<10-1)+"\n")
	}
	for range 1 << 10 {
		io.WriteString(of(audited), "\n")
	}
	io.WriteString(of(audited), "no room"+long)
	fmt.Fprintln(of(auditPrivileged), "by root")
	for range 2 * maxAudit >> 20 {
		io.WriteString(of(auditPrivileged), long)
	}
	fmt.Fprintln(l, "no room either")
	read := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, r)
		read <- b.String()
	}()
	l.mu.Lock()
	l.isClosing = true
	l.changed.Signal()
	l.mu.Unlock()
	<-l.done
	w.Close()
	got := <-read
	first, flood, root := strings.Index(got, "first\n"), strings.Index(got, "after the flood\n"), strings.Index(got, "by root\n")
	if first < 0 || flood < first || root < flood || strings.Contains(got, "no room") {
		t.Errorf("lines at %d, %d and %d", first, flood, root)
	}
	if n := strings.Count(got, "\nline\n") + strings.Count(got, "line\nline\n"); n == 0 || strings.Count(got, "line\n") > maxBacklog+1 {
		t.Errorf("%d ordinary lines were written", strings.Count(got, "line\n"))
	}
	if n := strings.Count(got, "x\n"); n < 12 || n > 15 {
		t.Errorf("%d MiB of audit lines were kept", n)
	}
	if !strings.Contains(got, "audit_lines_dropped=") || !strings.Contains(got, " lines_dropped=") {
		t.Error("the log does not say what was dropped")
	}
}

// The lines that the daemon marks are those of an audit, also of a logger with attributes.
func TestAuditHandlerKnowsTheLinesOfAnAudit(t *testing.T) {
	var out bytes.Buffer
	l := &asyncWriter{}
	l.changed.L = &l.mu
	log := slog.New(newAuditHandler(l, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })).With("a", 1).WithGroup("g")
	log.InfoContext(loglimit.AuditContext(t.Context(), false), "audited")
	log.InfoContext(loglimit.AuditContext(t.Context(), true), "privileged")
	log.Info("ordinary")
	for _, line := range l.backlog {
		fmt.Fprintf(&out, "%d %s", line.class, line.text)
	}
	for class, msg := range []string{"ordinary", "audited", "privileged"} {
		if want := fmt.Sprintf("%d time=", class); !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "msg="+msg+" a=1") {
			t.Errorf("no line %q of class %d in\n%s", msg, class, out.String())
		}
	}
}

func TestAsyncWriterDropsLinesAndDoesNotBlock(t *testing.T) {
	r, w := io.Pipe()
	l := newAsyncWriter(w, slog.New(slog.NewTextHandler(w, nil)))
	log := slog.New(slog.NewTextHandler(l, nil))
	for range 2 * maxBacklog {
		log.Info("line")
	}
	read := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, r)
		read <- b.String()
	}()
	l.mu.Lock()
	l.isClosing = true
	l.changed.Signal()
	l.mu.Unlock()
	<-l.done
	w.Close()
	got := <-read
	if n := strings.Count(got, "msg=line"); n < maxBacklog || n >= 2*maxBacklog {
		t.Errorf("%d of %d lines were written, with room for %d", n, 2*maxBacklog, maxBacklog)
	}
	if !strings.Contains(got, "not read fast enough") || !strings.Contains(got, "lines_dropped=") {
		t.Error("the log does not say that lines were dropped")
	}
}
