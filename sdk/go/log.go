package locksidecar

import (
	"context"
	"log/slog"
	"time"
)

// lossReport is the line of the log for a hold that was lost. It is written with the notices of
// the end of the hold, when no mutex is held.
type lossReport struct {
	log *slog.Logger // nil: there is nothing to write
	// Immutable.
	name    string
	permits uint16 // 0: it is a lock
	token   uint64
	reason  Reason
}

// lossReportLocked returns what is to be logged about the end of a hold.
func (h *hold) lossReportLocked() lossReport {
	lost, isLost := h.cause.(*LostError)
	if !isLost {
		return lossReport{} // the client was closed
	}
	return lossReport{h.session.dialer.log, h.name, h.permits, h.token, lost.Reason}
}

func (r lossReport) write() {
	switch {
	case r.log == nil:
	case r.permits != 0:
		r.log.Warn("permits are lost; other clients may have them", "semaphore", r.name, "permits", r.permits, "token", r.token, "reason", string(r.reason))
	default:
		r.log.Warn("the lock is lost; another owner may hold it", "lock", r.name, "token", r.token, "reason", string(r.reason))
	}
}

// logDisconnect logs that the connection has ended which served the session.
func (s *session) logDisconnect(why *clientError, held int) {
	if log := s.dialer.log; log != nil {
		log.Info("the connection to the sidecar has ended; connecting again", "socket", s.dialer.path, "err", why.text, "held", held)
	}
}

// logConnect logs that the session continues over another connection after away. held is how
// many holds were claimed, or, if the session was not resumed, cannot be renewed. why is what the sidecar
// said about that.
func (s *session) logConnect(isResumed bool, away time.Duration, held int, why string) {
	log := s.dialer.log
	if log == nil {
		return
	}
	level, msg := slog.LevelInfo, "connected to the sidecar again"
	if !isResumed && held > 0 {
		level, msg = slog.LevelWarn, "the sidecar was restarted without its state: the held locks end at their deadlines"
		if why != "" {
			msg = "the sidecar does not resume the session: " + why
		}
	}
	log.Log(context.Background(), level, msg, "socket", s.dialer.path, "after", away, "held", held)
}
