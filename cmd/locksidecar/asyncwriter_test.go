package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

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
	l.close()
	w.Close()
	got := <-read
	if n := strings.Count(got, "msg=line"); n < maxBacklog || n >= 2*maxBacklog {
		t.Errorf("%d of %d lines were written, with room for %d", n, 2*maxBacklog, maxBacklog)
	}
	if !strings.Contains(got, "not read fast enough") || !strings.Contains(got, "lines_dropped=") {
		t.Error("the log does not say that lines were dropped")
	}
}
