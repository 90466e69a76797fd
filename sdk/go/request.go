package locksidecar

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// errNotSent is returned for a call that was not sent, because the session had ended. No
// caller of the package gets it.
var errNotSent = errors.New("not sent")

// send sends a call's request, or leaves it to attach if there is no connection.
func (s *session) send(c *call) (*connection, error) {
	s.mu.Lock()
	if !s.isOpen() {
		s.mu.Unlock()
		return nil, errNotSent
	}
	conn := s.conn
	if err := s.postLocked(c, conn); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.mu.Unlock()
	if conn == nil {
		s.wakeReconnect()
	}
	conn.flush()
	return conn, nil
}

// postLocked queues a call's request on the session's connection. Without a connection the
// request is left to attach. The caller then flushes the connection, or calls wakeReconnect
// if there is none. The session is open.
func (s *session) postLocked(c *call, conn *connection) *clientError {
	s.lastID++
	c.id, c.conn = s.lastID, conn
	switch {
	case conn == nil:
		c.phase, c.waitingSince = callWaiting, s.clock()
		s.noteDeadlineLocked(c)
	case !conn.out.offer(c.frameLocked()):
		return c.notRead()
	case c.kind == acquireCall:
		s.hasRemoteState = true
	}
	s.calls[c.id] = c
	return nil
}

// wakeReconnect makes run check again whether calls wait for a connection.
func (s *session) wakeReconnect() {
	select {
	case s.reconnectNow <- struct{}{}:
	default:
	}
}

// ask sends a request that is not for a lock, and waits for its answer.
func (s *session) ask(ctx context.Context, c *call) error {
	conn, err := s.send(c)
	if err != nil {
		return err
	}
	if err := s.await(ctx, c, conn); err != nil {
		if err.kind == ErrTimeout {
			err.text, err.kind = c.String()+": the sidecar did not answer in time", ErrUnavailable
		}
		if c.kind == forceCall && c.conn != nil {
			err.text += "; it may have happened"
		}
		return err
	}
	return c.err
}

// await returns nil when a call that is not for a lock is answered. If the context ends
// first, it returns the error of the call.
func (s *session) await(ctx context.Context, c *call, conn *connection) *clientError {
	s.readFor(ctx, c, conn)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	if err := s.giveUp(ctx, c); err != nil {
		return err
	}
	<-c.done // another goroutine has read the answer, and is about to store it
	return nil
}

// lock requests a lock. If it returns an error nothing is held, and if the lock is granted
// later it is released.
func (s *session) lock(ctx context.Context, t task, req protocol.Acquire, try bool) (*Lock, error) {
	c := s.newAcquire(t, req)
	c.acquire.WaitMS = protocol.Forever
	deadline, isLimited := ctx.Deadline()
	switch {
	case try:
		c.acquire.WaitMS = 0
	case isLimited:
		c.deadline = deadline
	}
	conn, err := s.send(c)
	if err != nil {
		return nil, err
	}
	s.readFor(ctx, c, conn)
	if !c.await(ctx) {
		if err := s.giveUp(ctx, c); err != nil {
			return nil, err
		}
		<-c.done // another goroutine has read the answer, and is about to store it
	}
	l, err := c.lock, c.err
	s.recycle(c)
	if refusal, ok := err.(*clientError); ok && try && refusal.kind == ErrTimeout {
		refusal.kind = ErrHeld
	}
	return l, err
}

// answerGrace is how long after the deadline of a context the answer `timeout` may arrive:
// the sidecar knows why the lock was not free, and its clock ticks every 10 ms.
const answerGrace = 25 * time.Millisecond

// await returns true when the acquire is answered, and false when the context ends. If the
// sidecar knows the deadline of the context, its answer is waited for a moment longer.
func (c *call) await(ctx context.Context) bool {
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
	}
	if c.deadline.IsZero() || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return false
	}
	grace := time.NewTimer(answerGrace)
	defer grace.Stop()
	select {
	case <-c.done:
		return true
	case <-grace.C:
		return false
	}
}

// giveUp ends the wait for an answer because the context has ended, and returns the error
// that says so, or nil if the call was answered. An acquire that was sent stays in calls: the
// sidecar may grant it although it was cancelled, and then it is released.
func (s *session) giveUp(ctx context.Context, c *call) *clientError {
	s.mu.Lock()
	if s.calls[c.id] != c {
		s.mu.Unlock()
		return nil
	}
	conn, outage := s.conn, s.outage.why
	if c.kind == acquireCall && conn != nil {
		c.phase = callAbandoned
		conn.queue(protocol.Cancel{Target: c.id})
	} else {
		delete(s.calls, c.id)
	}
	s.mu.Unlock()
	conn.flush()
	return contextErrorDuring(ctx, c.task, outage)
}
