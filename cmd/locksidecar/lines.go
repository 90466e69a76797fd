package main

import (
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	maxBacklog = 4096            // log lines that wait to be written
	lastLines  = 1 * time.Second // for what waits when the program ends
)

// lines hands log lines to a goroutine that writes them: whoever reads the log may
// stall, the locks may not. Lines beyond the backlog are dropped and counted.
type lines struct {
	w       io.Writer
	direct  *slog.Logger // writes to w, for the count
	backlog chan []byte  // nil in it: the end
	done    chan struct{}
	dropped atomic.Int64
}

func newLines(w io.Writer, direct *slog.Logger) *lines {
	l := &lines{w: w, direct: direct, backlog: make(chan []byte, maxBacklog), done: make(chan struct{})}
	go l.run()
	return l
}

// Write never blocks. It is called with one whole line at a time.
func (l *lines) Write(p []byte) (int, error) {
	select {
	case l.backlog <- append([]byte(nil), p...):
	default:
		l.dropped.Add(1)
	}
	return len(p), nil
}

func (l *lines) run() {
	defer close(l.done)
	for p := range l.backlog {
		if p == nil {
			return
		}
		_, _ = l.w.Write(p) // there is nobody to tell
		if n := l.dropped.Swap(0); n > 0 {
			l.direct.Warn("the log was not read fast enough", "lines_dropped", n)
		}
	}
}

// close writes what is left, as far as it is read in time.
func (l *lines) close() {
	bound := time.NewTimer(lastLines)
	defer bound.Stop()
	select {
	case l.backlog <- nil:
	case <-bound.C:
		return
	}
	select {
	case <-l.done:
	case <-bound.C:
	}
}
