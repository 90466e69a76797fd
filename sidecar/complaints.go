package sidecar

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A client can break the rules as often as it likes, and must not fill a disk with
// it. So of each kind of error the log gets only the first few in a while, and how
// many more there were.
const (
	fewComplaints = 5
	aWhile        = 10 * time.Second
)

// complaints are what was to be said about connections in the present while.
type complaints struct {
	end   int64 // of the while; 0: there is none
	count map[protocol.Code]int
}

// complain logs that a connection was ended with this error, unless many were.
func (s *Server) complain(now int64, code protocol.Code, msg string, args ...any) {
	c := &s.complaints
	if c.end == 0 {
		c.end, c.count = now+int64(aWhile), make(map[protocol.Code]int)
	}
	if c.count[code]++; c.count[code] <= fewComplaints {
		s.log.Warn(msg, append([]any{"code", code}, args...)...)
	}
}

// sumUp ends the while and logs what was left out.
func (s *Server) sumUp() {
	for code, n := range s.complaints.count {
		if n > fewComplaints {
			s.log.Warn("more clients were refused, or broke the protocol", "code", code, "connections", n-fewComplaints)
		}
	}
	s.complaints = complaints{}
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
