package sidecar

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLogHasAFewLinesOfAKind(t *testing.T) {
	var log strings.Builder
	l := &loop{log: slog.New(slog.NewTextHandler(&log, nil))}
	of := func(uid int64) lineKind { return lineKind{slog.LevelWarn, uid, "client refused", "bad_frame"} }
	want := func(when, part string, n int) {
		t.Helper()
		if got := strings.Count(log.String(), part); got != n {
			t.Errorf("%s: %d lines with %q, want %d:\n%s", when, got, part, n, log.String())
		}
	}
	for range maxLines + 3 {
		l.logAbout(of(1000), "pid", 1)
	}
	l.logAbout(of(1001), "pid", 2)
	want("many lines about one user", "pid=1", maxLines)
	want("one line about another user", "pid=2", 1)

	l.flushSuppressed()
	want("the window has ended", "lines=", 1)
	want("the window has ended", "about=bad_frame uid=1000 lines=3", 1)

	l.logAbout(of(1000), "pid", 1)
	want("a new window", "pid=1", maxLines+1)
}

func TestErrorThatLastsIsLoggedWhenItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		episodes := make(errorEpisodes)
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
			time.Sleep(tt.pause)
			if got := episodes.begins(tt.error); got != tt.want {
				t.Errorf("after %v %q begins: %v, want %v", tt.pause, tt.error, got, tt.want)
			}
		}
	})
}
