package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/loglimit"
)

const (
	maxBacklog   = 4096            // log lines that wait to be written, those of an audit apart
	flushTimeout = 1 * time.Second // how long close waits for them

	// Audit lines that wait to be written have so many bytes. Users who are not privileged can cause
	// such lines, so the last quarter is for those of root and of the daemon's user.
	maxAudit         = 16 << 20
	maxAuditOfOthers = maxAudit / 4 * 3
)

// lineClass says which of the lines that wait a line may push out: none, but it may find no room.
type lineClass uint8

const (
	ordinary        lineClass = iota
	audited                   // a client ended a hold by force, or tried to: see loglimit.IsAudit
	auditPrivileged           // the same, and the client is root or the daemon's user
)

// asyncWriter hands log lines to a goroutine that writes them, in their order. The process that reads
// the log may stall, and a write then blocks; the loop of the sidecar must not. Lines for which there
// is no room are dropped and counted. Ordinary lines take no room from those of an audit.
type asyncWriter struct {
	w      io.Writer
	direct *slog.Logger // writes to w, not through the backlog: reports dropped lines
	done   chan struct{}

	mu         sync.Mutex // guards what follows; nothing blocks while it is held
	changed    sync.Cond  // on mu: there is a line, or isClosing
	backlog    []logLine
	ordinary   int // lines of the backlog
	auditBytes int // of the audit lines of the backlog
	dropped    [auditPrivileged + 1]int
	isClosing  bool
}

// logLine is a line that waits.
type logLine struct {
	text  []byte
	class lineClass
}

func newAsyncWriter(w io.Writer, direct *slog.Logger) *asyncWriter {
	l := &asyncWriter{w: w, direct: direct, done: make(chan struct{})}
	l.changed.L = &l.mu
	go l.run()
	return l
}

// Write never blocks. It is called with one whole line at a time.
func (l *asyncWriter) Write(p []byte) (int, error) { return l.add(p, ordinary) }

func (l *asyncWriter) add(p []byte, class lineClass) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasRoom(class, len(p)) {
		l.dropped[class]++
		return len(p), nil
	}
	if class == ordinary {
		l.ordinary++
	} else {
		l.auditBytes += len(p)
	}
	l.backlog = append(l.backlog, logLine{append([]byte(nil), p...), class})
	l.changed.Signal()
	return len(p), nil
}

// hasRoom reports whether a line is kept. The caller holds mu.
func (l *asyncWriter) hasRoom(class lineClass, size int) bool {
	switch class {
	case audited:
		return l.auditBytes+size <= maxAuditOfOthers
	case auditPrivileged:
		return l.auditBytes+size <= maxAudit
	}
	return l.ordinary < maxBacklog
}

func (l *asyncWriter) run() {
	defer close(l.done)
	for {
		lines, isClosing := l.await()
		if len(lines) == 0 && isClosing {
			return
		}
		for i := range lines {
			_, _ = l.w.Write(lines[i].text) // an error of the log has no place to be reported
			l.onWritten(&lines[i])
			lines[i].text = nil
		}
	}
}

// await waits for lines, and takes them.
func (l *asyncWriter) await() (lines []logLine, isClosing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.backlog) == 0 && !l.isClosing {
		l.changed.Wait()
	}
	lines, l.backlog = l.backlog, nil
	return lines, l.isClosing
}

// onWritten gives the room of a line back, and reports what was dropped until then.
func (l *asyncWriter) onWritten(line *logLine) {
	l.mu.Lock()
	if line.class == ordinary {
		l.ordinary--
	} else {
		l.auditBytes -= len(line.text)
	}
	dropped := l.dropped
	l.dropped = [auditPrivileged + 1]int{}
	l.mu.Unlock()
	if n := dropped[ordinary]; n > 0 {
		l.direct.Warn("the log was not read fast enough", "lines_dropped", n)
	}
	if n := dropped[audited] + dropped[auditPrivileged]; n > 0 {
		l.direct.Error("the log was not read for so long that it lacks who forced releases, or tried to; locksidecar events has the newest of them", "audit_lines_dropped", n)
	}
}

// close writes the backlog, for flushTimeout at most.
func (l *asyncWriter) close() {
	l.mu.Lock()
	l.isClosing = true
	l.changed.Signal()
	l.mu.Unlock()
	timeout := time.NewTimer(flushTimeout)
	defer timeout.Stop()
	select {
	case <-l.done:
	case <-timeout.C:
	}
}

// auditHandler hands a line to the handler for its class. Each writes to one asyncWriter.
type auditHandler struct {
	handlers [auditPrivileged + 1]slog.Handler
}

// newAuditHandler returns the handler of a log that l writes. make makes a handler that writes to a
// writer.
func newAuditHandler(l *asyncWriter, make func(io.Writer) slog.Handler) *auditHandler {
	h := new(auditHandler)
	for class := range h.handlers {
		h.handlers[class] = make(classWriter{l, lineClass(class)})
	}
	return h
}

// classWriter writes lines of one class.
type classWriter struct {
	to    *asyncWriter
	class lineClass
}

func (w classWriter) Write(p []byte) (int, error) { return w.to.add(p, w.class) }

func (h *auditHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.handlers[ordinary].Enabled(ctx, level)
}

func (h *auditHandler) Handle(ctx context.Context, r slog.Record) error {
	class := ordinary
	if is, privileged := loglimit.IsAudit(ctx); privileged {
		class = auditPrivileged
	} else if is {
		class = audited
	}
	return h.handlers[class].Handle(ctx, r)
}

func (h *auditHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := new(auditHandler)
	for class := range h.handlers {
		with.handlers[class] = h.handlers[class].WithAttrs(attrs)
	}
	return with
}

func (h *auditHandler) WithGroup(name string) slog.Handler {
	with := new(auditHandler)
	for class := range h.handlers {
		with.handlers[class] = h.handlers[class].WithGroup(name)
	}
	return with
}
