package main

import (
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	maxBacklog   = 4096            // log lines that wait to be written
	flushTimeout = 1 * time.Second // how long close waits for them
)

// asyncWriter hands log lines to a goroutine that writes them. The process that reads the
// log may stall, and a write then blocks; the loop of the sidecar must not. Lines beyond the
// backlog are dropped and counted.
type asyncWriter struct {
	w       io.Writer
	direct  *slog.Logger // writes to w, not through the backlog: reports dropped lines
	backlog chan []byte  // nil: run ends
	done    chan struct{}
	dropped atomic.Int64
}

func newAsyncWriter(w io.Writer, direct *slog.Logger) *asyncWriter {
	l := &asyncWriter{w: w, direct: direct, backlog: make(chan []byte, maxBacklog), done: make(chan struct{})}
	go l.run()
	return l
}

// Write never blocks. It is called with one whole line at a time.
func (l *asyncWriter) Write(p []byte) (int, error) {
	select {
	case l.backlog <- append([]byte(nil), p...):
	default:
		l.dropped.Add(1)
	}
	return len(p), nil
}

func (l *asyncWriter) run() {
	defer close(l.done)
	for p := range l.backlog {
		if p == nil {
			return
		}
		_, _ = l.w.Write(p) // an error of the log has no place to be reported
		if n := l.dropped.Swap(0); n > 0 {
			l.direct.Warn("the log was not read fast enough", "lines_dropped", n)
		}
	}
}

// close writes the backlog, for flushTimeout at most.
func (l *asyncWriter) close() {
	timeout := time.NewTimer(flushTimeout)
	defer timeout.Stop()
	select {
	case l.backlog <- nil:
	case <-timeout.C:
		return
	}
	select {
	case <-l.done:
	case <-timeout.C:
	}
}
