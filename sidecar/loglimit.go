package sidecar

import (
	"context"
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A client can break the protocol, or lose locks, as often as it likes, and must not fill the
// disk with log lines. So the log has only the first few lines of a kind about one user in a
// window of time, and at its end the number of the others.
const (
	maxLines = 5
	window   = 10 * time.Second
)

// logLimit counts the lines about clients in the present window.
type logLimit struct {
	end   int64 // of the window; 0: there is none
	count map[lineKind]int
}

// lineKind identifies the lines that are counted together.
type lineKind struct {
	level slog.Level
	uid   int64
	line  string
	about string // an error code, or the reason why a hold ended
}

// logAbout logs a line about a client of this user, unless there were many of its kind. It reports
// whether it did.
func (l *loop) logAbout(kind lineKind, args ...any) (isLogged bool) {
	limit := &l.logLimit
	if limit.end == 0 {
		limit.end, limit.count = protocol.Now()+int64(window), make(map[lineKind]int)
	}
	if limit.count[kind]++; limit.count[kind] > maxLines {
		return false
	}
	l.log.Log(context.Background(), kind.level, kind.line, append(args, "uid", kind.uid)...)
	return true
}

// flushSuppressed ends the window and logs how many lines were left out.
func (l *loop) flushSuppressed() {
	for kind, n := range l.logLimit.count {
		if n > maxLines {
			l.log.Log(context.Background(), kind.level, "more lines like the last ones are left out", "line", kind.line, "about", kind.about, "uid", kind.uid, "lines", n-maxLines)
		}
	}
	l.logLimit = logLimit{}
}

// errorEpisodes has the time of the last occurrence of each error. An episode of an error ends
// when it has not occurred for a minute; only its first occurrence is logged.
type errorEpisodes map[string]time.Time

// begins reports whether this occurrence of an error begins an episode.
func (e errorEpisodes) begins(text string) bool {
	now := time.Now()
	last, occurred := e[text]
	e[text] = now
	return !occurred || now.Sub(last) > time.Minute
}
