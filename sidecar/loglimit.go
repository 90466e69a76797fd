package sidecar

import (
	"context"
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A client can break the protocol, or lose locks, as often as it likes, and must not fill
// a disk with that. So the log has only the first few lines of a kind about one user in a
// while, and then how many more there were.
const (
	fewLines = 5
	aWhile   = 10 * time.Second
)

// logLimit counts the lines about clients in the present while.
type logLimit struct {
	end   int64 // of the while; 0: there is none
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
func (s *Server) logAbout(kind lineKind, args ...any) {
	l := &s.logLimit
	if l.end == 0 {
		l.end, l.count = protocol.Now()+int64(aWhile), make(map[lineKind]int)
	}
	if l.count[kind]++; l.count[kind] <= fewLines {
		s.log.Log(context.Background(), kind.level, kind.line, append(args, "uid", kind.uid)...)
	}
}

// sumUp ends the while and logs how many lines were left out.
func (s *Server) sumUp() {
	for kind, n := range s.logLimit.count {
		if n > fewLines {
			s.log.Log(context.Background(), kind.level, "more lines like the last ones are left out", "line", kind.line, "about", kind.about, "uid", kind.uid, "lines", n-fewLines)
		}
	}
	s.logLimit = logLimit{}
}

// episodes are troubles, each of which is logged when it begins, and not again before
// it has been over for a minute.
type episodes map[string]time.Time // when they were met last

func (e episodes) begins(trouble string) bool {
	now := time.Now()
	last, known := e[trouble]
	e[trouble] = now
	return !known || now.Sub(last) > time.Minute
}
