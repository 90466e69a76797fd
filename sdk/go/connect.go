package locksidecar

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// run serves the session over conn, and over one connection after another, until there is
// nothing left to be done for it, or ctx ends.
func (s *session) run(ctx context.Context, conn *connection) {
	defer s.shutdown()
	pause := time.Duration(0) // before the next attempt to connect
	for {
		if conn == nil {
			if conn = s.reconnect(ctx, &pause); conn == nil {
				return
			}
		}
		unregister := context.AfterFunc(ctx, conn.hangUp)
		goOn, wasUseful := s.onReadEnd(conn, s.readUntilEnd(conn))
		unregister()
		conn.close()
		if !goOn {
			return
		}
		if wasUseful {
			pause = 0
		}
		conn = nil
	}
}

// shutdown is the end of run.
func (s *session) shutdown() {
	s.stop()
	s.mu.Lock()
	s.phase.set(sessionOver)
	s.conn, s.outage.hasDeadline = nil, false
	if s.byeTimer != nil {
		s.byeTimer.Stop()
	}
	s.mu.Unlock()
	close(s.done)
}

// onReadEnd is called when the reading of a connection has ended, before this side closes it.
// It returns whether the session goes on, and whether the connection was of use to it.
func (s *session) onReadEnd(conn *connection, why error) (goOn, wasUseful bool) {
	switch why := why.(type) {
	case *disconnectError:
		return s.onDisconnected(conn, &why.clientError)
	case *protocolError:
		s.fail(&why.clientError, func(*hold) error { return nil })
	default:
		if why == errBye {
			break // shutdown ends the session
		}
		// When the sidecar finds that the connection has ended, it releases what was held. So
		// the holds end before the connection is closed.
		s.fail(&clientError{text: "the sidecar cannot be understood: " + why.Error(), kind: ErrUnavailable, cause: why},
			func(h *hold) error {
				if h.phase == holdOrphaned {
					return nil
				}
				return h.lostError(reasonProtocol)
			})
	}
	return false, false
}

// fail ends the session because one side broke the protocol. endCause is as in refuseLocked.
func (s *session) fail(why *clientError, endCause func(*hold) error) {
	s.mu.Lock()
	failed, notices := s.refuseLocked(why, endCause)
	s.phase.set(sessionOver)
	s.conn = nil
	s.mu.Unlock()
	notify(notices)
	failAll(failed, why)
}

// onDisconnected takes the connection from the session. Its results are those of onReadEnd.
// The session does not go on if it was closed, and has left nothing with the sidecar.
//
// A connection was of use if a request was answered over it, or if it served for a while. If
// requests kill the sidecar again and again, the patience of their callers goes on, and the
// pauses between the attempts to connect grow.
func (s *session) onDisconnected(conn *connection, why *clientError) (goOn, wasUseful bool) {
	var failed []*call
	now := s.clock()
	s.mu.Lock()
	wasServing := s.phase.get() == sessionServing
	wasUseful = conn.answered || wasServing && now-s.servingSince > int64(longestPause)
	goOn = s.isOpen() || s.hasRemoteState
	switch {
	case s.isOpen():
		s.phase.set(sessionDisconnected)
	case goOn:
		s.phase.set(sessionByeDue)
	default:
		s.phase.set(sessionOver)
	}
	if wasServing && s.isOpen() {
		s.servedUntil = now
	}
	held := len(s.holds) + len(s.orphans)
	s.conn, s.outage = nil, outage{why: why}
	for id, c := range s.calls {
		hasEnded := false
		switch {
		case c.phase == callAbandoned, c.kind == releaseCall, c.kind == byeCall:
			// The claims release the hold, and attach sends bye again.
			delete(s.calls, id)
			continue
		case c.kind == forceCall:
			hasEnded = wasServing // before that it was held back
		}
		if !hasEnded && c.phase == callWaiting && !wasUseful {
			hasEnded = c.waitingSince+int64(s.patience) <= now
		}
		if hasEnded {
			delete(s.calls, id)
			failed = append(failed, c)
			continue
		}
		if c.phase == callSent || wasUseful {
			c.phase, c.waitingSince = callWaiting, now
		}
		s.noteDeadlineLocked(c)
	}
	s.mu.Unlock()
	if wasServing && goOn {
		s.logDisconnect(why, held)
	}
	for _, c := range failed {
		c.fail(c.unanswered(why))
	}
	return goOn, wasUseful
}

// noteDeadlineLocked makes run try to connect when the patience of a call that waits ends.
func (s *session) noteDeadlineLocked(c *call) {
	o := &s.outage
	if deadline := c.waitingSince + int64(s.patience); !o.hasDeadline || deadline < o.deadline {
		o.hasDeadline, o.deadline = true, deadline
	}
}

// reconnect connects as soon as a sidecar listens, and attaches the connection. It returns nil
// if the session does not need a connection any more.
func (s *session) reconnect(ctx context.Context, pause *time.Duration) *connection {
	began := s.clock()
	for next := *pause; s.waitToReconnect(ctx, next); {
		*pause = nextPause(*pause)
		conn, err := s.dialer.dial(ctx, s.ticket)
		switch {
		case err != nil && errors.Is(err, errRefused):
			s.fail(err, func(*hold) error { return nil })
			return nil
		case err != nil:
			s.connectFailed(err)
			// An attempt to connect costs a sidecar that does not listen nothing.
			if next = min(*pause, lookPause); s.clock()-began > int64(time.Minute) {
				next, *pause = rarePause, rarePause
			}
		case !s.attach(conn):
			conn.close()
			return nil
		default:
			return conn
		}
	}
	return nil
}

// waitToReconnect returns true when the next attempt to connect is due, and false when ctx
// has ended. While the sidecar has nothing of the session, no attempt is due before a call
// waits.
func (s *session) waitToReconnect(ctx context.Context, pause time.Duration) bool {
	now := s.clock()
	earliest, due := now+int64(min(pause, firstPause)), now+int64(jittered(pause))
	for {
		s.mu.Lock()
		isNeeded := s.hasRemoteState || len(s.calls) > 0
		at := due
		if s.outage.hasDeadline {
			// A call whose patience ends gets one more attempt.
			at = max(earliest, min(due, s.outage.deadline))
		}
		s.mu.Unlock()
		timer := time.NewTimer(time.Duration(at - s.clock()))
		if !isNeeded {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-s.reconnectNow:
			timer.Stop()
		case <-timer.C:
			return ctx.Err() == nil
		}
	}
}

// connectFailed notes a failed attempt to connect, and fails the calls whose patience has
// ended.
func (s *session) connectFailed(why *clientError) {
	var failed []*call
	s.mu.Lock()
	now := s.clock()
	s.outage = outage{why: why}
	if s.phase.get() == sessionByeDue {
		select {
		case s.byeFailed <- struct{}{}:
		default:
		}
	}
	for id, c := range s.calls {
		if c.waitingSince+int64(s.patience) > now {
			s.noteDeadlineLocked(c)
			continue
		}
		delete(s.calls, id)
		failed = append(failed, c)
	}
	s.mu.Unlock()
	for _, c := range failed {
		c.fail(c.unsent(why))
	}
}

// attach continues the session over a new connection. It returns false if there is nothing
// left to continue. In one step the holds are claimed, the calls that wait are queued after
// the claims, and the connection becomes that of the session. So a hold that was released
// before is not claimed, and the release of one that is claimed is queued after the claims.
func (s *session) attach(conn *connection) bool {
	isResumed := conn.hello.Resumed
	s.ticket = conn.hello.Ticket
	s.mu.Lock()
	switch s.phase.get() {
	case sessionOver:
		s.mu.Unlock()
		return false
	case sessionByeDue:
		s.outage = outage{}
		if isResumed {
			s.phase.set(sessionByeSent)
			s.conn = conn
			s.queueByeLocked(conn)
		}
		s.mu.Unlock()
		conn.flush()
		return isResumed
	}
	var notices []endNotice
	s.watchdogLease = time.Duration(conn.hello.LeaseMS) * time.Millisecond
	s.sidecar = conn.hello.Sidecar
	if isResumed {
		notices = s.claimLocked(conn)
		s.phase.set(sessionClaiming)
	} else {
		notices = s.orphanHoldsLocked()
		s.hasRemoteState = false
		s.phase.set(sessionServing)
		s.servingSince = s.clock()
	}
	wasServed, away, held := s.servedUntil != 0, time.Duration(s.clock()-s.servedUntil), conn.claimedHolds
	if !isResumed {
		held = len(s.orphans)
	}
	s.servedUntil = 0
	failed := s.sendAgainLocked(conn)
	conn.out.raiseLimit()
	s.conn, s.outage = conn, outage{}
	s.mu.Unlock()
	if wasServed {
		s.logConnect(isResumed, away, held, conn.hello.Msg)
	}
	notify(notices)
	for _, c := range failed {
		c.fail(errNewSession)
	}
	conn.flush()
	return true
}

// claimLocked queues the claims of what is held, and holds back the frames after them until
// they are answered. It returns the notices for the holds whose deadlines have passed.
func (s *session) claimLocked(conn *connection) (notices []endNotice) {
	now := s.clock()
	claims := make([]protocol.ClaimedHold, 0, len(s.holds))
	for id, h := range s.holds {
		if h.phase == holdReleasing { // a hold that is not claimed is released
			h.leaveLocked(holdReleased)
			continue
		}
		if ended, expired := h.expireLocked(now); expired {
			notices = append(notices, ended...)
			continue
		}
		h.deadline, h.leaseSeq = h.receivedDeadlineLocked(), s.leaseSeq
		claims = append(claims, protocol.ClaimedHold{Hold: id, Entries: h.entries})
	}
	// The successor may have a shorter lease, and its lease events earlier deadlines.
	s.leaseDeadline = 0
	conn.claimedHolds = len(claims)
	for more := true; more; {
		page := claims[:min(len(claims), protocol.MaxClaims)]
		claims = claims[len(page):]
		more = len(claims) > 0
		s.lastID++
		conn.lastClaim = s.lastID
		conn.queue(protocol.Claim{ID: s.lastID, Holds: page, More: more})
	}
	conn.out.hold()
	return notices
}

// onClaimed is called when the last claim was answered: the sidecar has nothing of the session
// but what was claimed, and what the frames after the claims request.
func (s *session) onClaimed(conn *connection) {
	s.mu.Lock()
	if s.phase.get() == sessionClaiming {
		s.phase.set(sessionServing)
		s.servingSince = s.clock()
		s.hasRemoteState = conn.claimedHolds > 0 || len(s.calls) > 0
	}
	s.mu.Unlock()
	conn.out.unhold()
}

// orphanHoldsLocked separates the session from its holds, because the sidecar has begun a new
// session. It returns the notices for the holds whose deadlines have passed.
func (s *session) orphanHoldsLocked() (notices []endNotice) {
	now := s.clock()
	for _, h := range s.holds {
		if h.phase == holdReleasing {
			h.leaveLocked(holdReleased)
		} else {
			h.leaveLocked(holdOrphaned)
		}
	}
	for h := range s.orphans {
		ended, _ := h.expireLocked(now)
		notices = append(notices, ended...)
	}
	s.leaseDeadline = 0
	return notices
}

// sendAgainLocked queues the requests of the calls that wait, in the order in which they were
// first sent. It returns the calls that cannot be sent in a new session.
func (s *session) sendAgainLocked(conn *connection) (failed []*call) {
	for _, id := range slices.Sorted(maps.Keys(s.calls)) {
		c := s.calls[id]
		delete(s.calls, id)
		isOfHold := c.kind == confirmCall || c.kind == downgradeCall
		if isOfHold && !conn.hello.Resumed {
			failed = append(failed, c)
			continue
		}
		if c.kind == confirmCall {
			c.freeAt = c.hold.leaseEndLocked() // the successor may have renewed it
		}
		s.lastID++
		c.id, c.conn = s.lastID, conn
		s.calls[c.id] = c
		conn.queue(c.frameLocked())
		if c.kind == acquireCall {
			s.hasRemoteState = true
		}
	}
	return failed
}
