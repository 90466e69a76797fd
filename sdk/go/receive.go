package locksidecar

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/locksidecar/locksidecar/protocol"
)

// errBye is the end of a connection over which the sidecar has answered bye.
var errBye = errors.New("bye")

// readUntilEnd handles the messages of the sidecar until the connection ends, and returns why
// it ended. It runs on the connection's background goroutine: see sharedReader.
func (s *session) readUntilEnd(conn *connection) error {
	isShared := conn.in.share()
	for {
		if isShared && conn.frames.Buffered() == 0 {
			conn.in.leave()
			if err := conn.in.waitTurn(); err != nil {
				return err
			}
		}
		if err := s.readNext(conn); err != nil {
			return err
		}
	}
}

// readFor reads until the call is answered or the context ends, if the turn to read is free.
// Before it leaves the turn it handles all whole frames that it has read.
func (s *session) readFor(ctx context.Context, c *call, conn *connection) {
	if conn == nil || !conn.in.take() {
		return
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, conn.in.interrupt)()
	}
	for conn.frames.Buffered() > 0 || len(c.done) == 0 && ctx.Err() == nil {
		if err := s.readNext(conn); err != nil {
			conn.in.fail(err)
			return
		}
	}
	conn.in.leave()
}

// readArrived returns when all that has arrived over the connection has been handled. The
// caller holds no mutex, and does not have the turn to read.
func (s *session) readArrived(conn *connection) {
	if conn == nil || conn.in.raw == nil { // a write to a pipe returns when it was read
		return
	}
	for !conn.in.take() {
		if conn.in.awaitDrain() {
			return
		}
	}
	conn.in.nonBlocking = true
	for {
		err := s.readNext(conn)
		if err == syscall.EAGAIN {
			break
		}
		if err != nil {
			conn.in.nonBlocking = false
			conn.in.fail(err)
			return
		}
	}
	conn.in.nonBlocking = false
	conn.in.leave()
}

// readNext handles the next message of the sidecar. It returns nil, too, if the read was
// interrupted.
func (s *session) readNext(conn *connection) error {
	m, err := conn.next()
	switch err {
	case nil:
		return s.onMessage(conn, m)
	case os.ErrDeadlineExceeded:
		conn.in.clearInterrupt()
		return nil
	}
	return err
}

// onMessage handles a message of the sidecar. An error ends the connection.
func (s *session) onMessage(conn *connection, m protocol.Received) error {
	switch m := m.(type) {
	case *protocol.Answer:
		return s.onAnswer(conn, m)
	case *protocol.Err:
		if m.ID == 0 {
			return connectionError(m)
		}
		return s.onError(conn, m)
	case *protocol.LeaseEvent:
		s.onLease(m)
	case *protocol.LostEvent:
		s.onLost(m)
	}
	return nil
}

func (s *session) onAnswer(conn *connection, m *protocol.Answer) error {
	if m.ID <= conn.lastClaim {
		if m.ID == conn.lastClaim {
			s.onClaimed(conn)
		}
		return nil
	}
	conn.answered = true
	s.mu.Lock()
	c := s.calls[m.ID]
	if c != nil && c.kind == acquireCall {
		s.mu.Unlock()
		return s.onGrant(conn, m)
	}
	delete(s.calls, m.ID)
	s.mu.Unlock()
	if c == nil { // its caller has left
		return nil
	}
	switch c.kind {
	case releaseCall:
		s.onReleased(c.hold)
		return nil
	case byeCall:
		return errBye
	}
	err := m.Unpack(c.answer)
	if err != nil {
		c.err = &clientError{text: c.String() + ": the sidecar cannot be understood: " + err.Error(), kind: ErrUnavailable, cause: err}
	}
	c.finish()
	return err
}

// onGrant handles the answer to an acquire. If the answer is malformed the call stays in
// calls, and fails with the session.
func (s *session) onGrant(conn *connection, m *protocol.Answer) error {
	if err := m.Unpack(&conn.grant); err != nil {
		return err
	}
	s.mu.Lock()
	c := s.calls[m.ID]
	delete(s.calls, m.ID)
	if c == nil { // the session was closed
		s.mu.Unlock()
		return nil
	}
	isAbandoned := c.phase == callAbandoned
	c.lock = s.enterHoldLocked(&c.acquire, &conn.grant)
	s.waits.grants++
	s.mu.Unlock()
	if isAbandoned {
		// The hold was entered all the same: a re-entry of the same owner may be granted
		// next, and only the answer to the first entry says what lease the hold has.
		_ = c.lock.release(asHandled)
		return nil
	}
	s.woken.Add(1)
	c.finish()
	return nil
}

func (s *session) onError(conn *connection, m *protocol.Err) error {
	if m.ID <= conn.lastClaim {
		return errors.New("it refused a claim: " + m.Msg)
	}
	conn.answered = true
	s.mu.Lock()
	c := s.calls[m.ID]
	delete(s.calls, m.ID)
	isWaitedFor := c != nil && c.phase != callAbandoned
	s.mu.Unlock()
	switch {
	case !isWaitedFor:
	case c.kind == releaseCall:
		s.onReleased(c.hold)
	case c.kind == byeCall: // an older sidecar; the end of the connection ends the session as well
		return errBye
	case c.kind == downgradeCall && m.Code == protocol.BadRequest: // it was executed before
		c.finish()
	default:
		c.fail(c.refused(conn, m))
	}
	return nil
}

func (s *session) onLease(m *protocol.LeaseEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.DeadlineNS < s.leaseDeadline {
		// Some hold was granted with an earlier deadline. The deadlines that earlier events
		// gave to the other holds stay valid.
		for _, h := range s.holds {
			h.deadline, h.leaseSeq = h.receivedDeadlineLocked(), s.leaseSeq
		}
	}
	s.leaseDeadline = m.DeadlineNS
	s.leaseSeq++
}

func (s *session) onLost(m *protocol.LostEvent) {
	var notices []endNotice
	s.mu.Lock()
	if h := s.holds[m.Hold]; h != nil {
		notices = h.endLocked(h.lostError(Reason(m.Reason)), nil)
	}
	s.mu.Unlock()
	notify(notices)
}
