package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

// A log that nobody reads costs lines, and no time.
func TestALogThatIsNotReadHoldsUpNobody(t *testing.T) {
	r, w := io.Pipe()
	l := newLines(w, slog.New(slog.NewTextHandler(w, nil)))
	log := slog.New(slog.NewTextHandler(l, nil))
	for range 2 * maxBacklog {
		log.Info("said")
	}
	read := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, r)
		read <- b.String()
	}()
	l.close()
	w.Close()
	got := <-read
	if n := strings.Count(got, "msg=said"); n < maxBacklog || n >= 2*maxBacklog {
		t.Errorf("%d of %d lines were written, with room for %d", n, 2*maxBacklog, maxBacklog)
	}
	if !strings.Contains(got, "not read fast enough") || !strings.Contains(got, "lines_dropped=") {
		t.Error("nobody is told that lines were dropped")
	}
}
