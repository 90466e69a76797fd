package sidecar

import (
	"context"
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A client can break the protocol, or lose locks, as often as it likes, and must not fill
// a disk with that. So the log has only the first few lines of a kind about one user in a
// window of time, and then how many more there were.
const (
	maxLines = 5
	window   = 10 * time.Second
)

// logLimit counts the lines about clients in the present window.
type logLimit struct {
	end   int64 // of the window; 0: there is none
	count map[lineKind]int
}

// lineKind is what is counted together.
type lineKind struct {
	level slog.Level
	uid   int64
	line  string
	about string // an error code, or the reason why a lock ended
}

// logAbout logs a line about a client of this user, unless there were many of its kind.
func (l *loop) logAbout(kind lineKind, args ...any) {
	limit := &l.logLimit
	if limit.end == 0 {
		limit.end, limit.count = protocol.Now()+int64(window), make(map[lineKind]int)
	}
	if limit.count[kind]++; limit.count[kind] <= maxLines {
		l.log.Log(context.Background(), kind.level, kind.line, append(args, "uid", kind.uid)...)
	}
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

// errorEpisodes are troubles, each of which is logged when it begins, and not again before
// it has been over for a minute.
type errorEpisodes map[string]time.Time // when they were met last

func (e errorEpisodes) begins(trouble string) bool {
	now := time.Now()
	last, known := e[trouble]
	e[trouble] = now
	return !known || now.Sub(last) > time.Minute
}
