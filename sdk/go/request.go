package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
	s.yieldToWoken()
	conn.flush()
	return conn, nil
}

// yieldToWoken has the callers run first that the same read has woken as this one: what they send takes the request
// of this one with it, so a write carries many, and the sidecar answers many at once. A request is written later by
// what those callers compute first; a release is written at once.
func (s *session) yieldToWoken() {
	if s.woken.Load() > 0 {
		runtime.Gosched()
	}
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
	if c.kind == acquireCall && !s.waits.isRunning {
		s.startWatchLocked()
	}
	s.calls[c.id] = c
	return nil
}

// wakeReconnect makes run check again whether an attempt to connect is due.
func (s *session) wakeReconnect() {
	select {
	case s.reconnectNow <- struct{}{}:
	default:
	}
}

// ask sends a request that is no acquire, and waits for its answer.
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

// await returns nil when a call that is no acquire is answered. If the context ends
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

// acquire requests a lock, a read/write lock or permits. If it returns an error nothing is held, and what is granted
// later is released.
func (s *session) acquire(ctx context.Context, t task, req wanted, try bool) (*Lock, error) {
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
	if outcome := s.awaitGrant(ctx, c); outcome != acquireAnswered {
		if err := s.giveUp(ctx, c); err != nil {
			return nil, outcome.explain(c, err)
		}
		<-c.done // another goroutine has read the answer, and is about to store it
	}
	l, err := c.lock, c.err
	if l != nil {
		s.woken.Add(-1)
	}
	s.recycle(c)
	if refusal, ok := err.(*clientError); ok && try && refusal.kind == ErrTimeout {
		refusal.kind = ErrHeld
	}
	return l, err
}

// acquireOutcome is how the wait for the answer to an acquire has ended.
type acquireOutcome uint8

const (
	acquireAnswered   acquireOutcome = iota
	acquireEnded                     // the context has ended
	acquireUnanswered                // by the deadline, the sidecar or Redis has not answered a TryLock
	redisSilent                      // by the deadline, Redis has not answered the sidecar
)

const (
	// answerGrace is how long after the deadline of a context the answer `timeout` may
	// arrive: the sidecar knows why the lock was not free, and its clock ticks every 10 ms.
	answerGrace = 15 * time.Millisecond

	// infoGrace is how long after that the answer to info may arrive.
	infoGrace = 10 * time.Millisecond
)

// awaitGrant returns when an acquire is answered, or its context has ended.
//
// A sidecar that knows the deadline of the context answers `timeout` when it passes, if
// another owner has the lock. It does not answer if Redis has not answered whether the lock is
// free: it waits for Redis, until 500 ms after the request (SPEC §4.2). So after the deadline
// awaitGrant asks the sidecar what it waits for. It does not wait for Redis itself: that could
// take longer than the caller allowed.
func (s *session) awaitGrant(ctx context.Context, c *call) acquireOutcome {
	select {
	case <-c.done:
		return acquireAnswered
	case <-ctx.Done():
	}
	switch {
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return acquireEnded
	case c.deadline.IsZero():
		return acquireUnanswered
	case time.Now().Before(c.deadline): // a context of another kind: the sidecar knows a later deadline
		return acquireEnded
	}
	grace := time.NewTimer(answerGrace)
	defer grace.Stop()
	select {
	case <-c.done:
		return acquireAnswered
	case <-grace.C:
	}
	var info protocol.InfoOK
	query := newCall(queryCall, c.task, &info, func(id uint64) protocol.Request {
		return protocol.Info{ID: id, Name: c.task.name}
	})
	if !s.sendWhileServing(query) {
		return acquireEnded
	}
	defer s.forget(query)
	grace.Reset(infoGrace)
	for answered := query.done; ; {
		select {
		case <-c.done:
			return acquireAnswered
		case <-answered:
			if query.err == nil && info.Lock != nil && info.Lock.State == protocol.StateBusy {
				return redisSilent
			}
			answered = nil
		case <-grace.C:
			return acquireEnded
		}
	}
}

// explain adds to the error of an acquire whose context has ended what is known of the cause.
func (o acquireOutcome) explain(c *call, e *clientError) *clientError {
	var why string
	switch {
	case e.kind != ErrTimeout: // the caller has left, or there was no connection
		return e
	case o == redisSilent:
		why = "Redis has not answered the sidecar"
	case o == acquireUnanswered:
		why = "the sidecar, or its Redis, has not answered"
	default:
		return e
	}
	free := "the lock is"
	if c.acquire.Of != 0 {
		free = "they are"
	}
	text := fmt.Sprintf("%s: %s by the deadline of the context, and whether %s free is not known", c.task, why, free)
	return &clientError{text: text, kind: ErrUnavailable, cause: e}
}

// sendWhileServing sends a call, unless that has to wait for the sidecar.
func (s *session) sendWhileServing(c *call) bool {
	s.mu.Lock()
	conn := s.conn
	isSent := s.phase.get() == sessionServing && s.postLocked(c, conn) == nil
	s.mu.Unlock()
	conn.flush()
	return isSent
}

// forget removes a call from those that wait, if it was not answered.
func (s *session) forget(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.id] == c {
		delete(s.calls, c.id)
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
