package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// answerGrace is how long the answer `timeout` may come behind the deadline of
// the context that set it: the sidecar knows why the lock was not to be had, and
// its clock ticks every 10 ms.
const answerGrace = 25 * time.Millisecond

// errNotSent: the session had ended before the request was sent. It never
// reaches a caller of the package.
var errNotSent = errors.New("not sent")

// session is one connection to the sidecar, from hello to its end, and the holds
// that were granted over it. It is told of what happens in the order in which it
// happened: one goroutine reads, and books each frame before it reads the next.
type session struct {
	// Immutable after the greeting.
	clock func() int64
	nc    net.Conn
	out   *outbox
	hello protocol.HelloOK

	// Owned by whoever greets, then by the reader.
	frames  *protocol.Reader
	decoder protocol.ReplyDecoder

	dead   atomic.Bool   // set with err
	reader chan struct{} // closed when the reader is gone

	// mu guards what follows, and every hold and handle of the session. No other
	// lock is taken, nothing is sent and no code of users runs under it.
	mu     sync.Mutex
	err    *failure // why the session ended; nil: it has not
	lastID uint64
	calls  map[uint64]*call
	holds  map[uint64]*hold // by number: those neither released nor lost

	// A lease event speaks of every hold that was granted before it. So that it
	// costs the same for one hold and for a hundred thousand, it is counted here,
	// and each hold remembers the count at its grant.
	leases uint64
	lease  int64 // deadline that the last of them told

	watches watches
}

// call is a request that waits for its answer.
type call struct {
	task
	done chan struct{} // gets a value when the answer is stored; nil: nobody waits
	err  error         // the answer is this

	answer  protocol.OK      // or is stored here
	acquire protocol.Acquire // or, if there is a name, is a lock
	lock    *Lock
	given   bool  // up: nobody waits, and a lock that is granted goes back
	last    *hold // it is the release of the last entry of this hold
}

// task is what somebody wants, in words for errors.
type task struct{ verb, name string }

func (t task) String() string {
	if t.name == "" {
		return "cannot " + t.verb
	}
	return fmt.Sprintf("cannot %s %q", t.verb, t.name)
}

func newSession(clock func() int64, nc net.Conn) *session {
	return &session{
		clock:  clock,
		nc:     nc,
		out:    newOutbox(nc),
		frames: protocol.NewReader(nc),
		reader: make(chan struct{}),
		lastID: 1, // of hello
		calls:  make(map[uint64]*call),
		holds:  make(map[uint64]*hold),
	}
}

func (s *session) start() { go s.read() }

func (s *session) lives() bool { return !s.dead.Load() }

// close ends the session for good, and with it every hold.
func (s *session) close() {
	closed := &failure{text: "the client was closed", kind: ErrClosed}
	s.end(closed, func(*hold) error { return closed })
	<-s.reader
	s.out.close()
}

// end ends the session, the first time. What was asked and not answered fails.
// What is held ends at its deadline if the sidecar ended the connection. If this
// side does, what it held is somebody else's a moment later: then giveUp says of
// each hold why it ends, and is not nil.
func (s *session) end(why *failure, giveUp func(*hold) error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = why
	s.dead.Store(true)
	calls := s.calls
	s.calls = nil
	var told []ending
	if giveUp != nil {
		for _, h := range s.holds {
			told = s.endHold(h, giveUp(h), told)
		}
	}
	s.mu.Unlock()
	tell(told)
	s.nc.Close()
	for _, c := range calls {
		c.err = s.unanswered(c)
		if c.done != nil {
			c.done <- struct{}{}
		}
	}
}

// unanswered says what became of a call whose answer will not come.
func (s *session) unanswered(c *call) error {
	text := c.String() + ": " + s.err.text
	switch {
	case s.err.kind == ErrClosed:
	case c.acquire.Name != "":
		text += "; it is not held, and what may just have been granted ends with the connection"
	default:
		text += "; it may have happened"
	}
	return &failure{text: text, kind: s.err.kind, cause: s.err.cause}
}

// ask sends a request and waits for its answer.
func (s *session) ask(ctx context.Context, t task, answer protocol.OK, request func(id uint64) protocol.Request) error {
	if s.out.full() {
		return notRead(t)
	}
	c := &call{task: t, answer: answer, done: make(chan struct{}, 1)}
	id, ok := s.enter(c)
	if !ok {
		return errNotSent
	}
	s.out.send(request(id))
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	if s.leave(id) {
		f := ended(ctx, t)
		if f.kind == ErrTimeout {
			f.text, f.kind = t.String()+": the sidecar did not answer in time", ErrUnavailable
		}
		return f
	}
	<-c.done // the reader has it in hand
	return c.err
}

// notRead is the error of a request that was not even queued.
func notRead(t task) *failure {
	return &failure{
		text: fmt.Sprintf("%s: the sidecar is stopped or hangs: it has not read %d bytes of earlier requests; this one was not sent", t, maxUnwritten),
		kind: ErrUnavailable,
	}
}

// lock asks for a lock. Whatever becomes of it: with an error nothing is held,
// and what is granted yet goes back.
func (s *session) lock(ctx context.Context, t task, req protocol.Acquire, try bool) (*Lock, error) {
	deadline, limited := ctx.Deadline()
	req.WaitMS = protocol.Forever
	switch {
	case try:
		req.WaitMS = 0
	case limited:
		// At least 1: 0 would not wait at all. What is longer than can be said
		// is ended by the context alone.
		if ms := max(1, time.Until(deadline).Milliseconds()); ms <= protocol.MaxDurationMS {
			req.WaitMS = ms
		}
	}
	if s.out.full() {
		return nil, notRead(t)
	}
	c := &call{task: t, acquire: req, done: make(chan struct{}, 1)}
	id, ok := s.enter(c)
	if !ok {
		return nil, errNotSent
	}
	c.acquire.ID = id
	s.out.send(&c.acquire)
	if !s.await(ctx, c, limited && !try) {
		if s.giveUp(id) {
			s.out.send(protocol.Cancel{Target: id})
			return nil, ended(ctx, t)
		}
		<-c.done // the reader has it in hand
	}
	if f, ok := c.err.(*failure); ok && try && f.kind == ErrTimeout {
		f.kind = ErrHeld
	}
	return c.lock, c.err
}

// await returns when the call is answered, or, false, when the context ends;
// with told, the sidecar knows when that is, and gets a moment to say more.
func (s *session) await(ctx context.Context, c *call, told bool) bool {
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
	}
	if !told || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
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

// enter registers a call; false: the session has ended.
func (s *session) enter(c *call) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, false
	}
	s.lastID++
	s.calls[s.lastID] = c
	return s.lastID, true
}

// leave unregisters a call that nobody waits for any more; false: it has been
// answered.
func (s *session) leave(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, waiting := s.calls[id]
	delete(s.calls, id)
	return waiting
}

// giveUp stops waiting for a lock; false: it has been answered. The call stays,
// so that the reader gives back what may be granted in spite of the cancel.
func (s *session) giveUp(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, waiting := s.calls[id]
	if waiting {
		c.given = true
	}
	return waiting
}

// read books what the sidecar says, until the connection ends.
func (s *session) read() {
	defer close(s.reader)
	for {
		body, err := s.frames.Next()
		var broken *protocol.ConnError
		if err != nil && !errors.As(err, &broken) {
			s.end(&failure{text: lostConnection(err), kind: ErrUnavailable, cause: err}, nil)
			return
		}
		var m protocol.Received
		if err == nil {
			m, err = s.decoder.Decode(body)
		}
		if err == nil {
			err = s.book(m)
		}
		if err != nil {
			if last, ok := err.(*failure); ok {
				s.end(last, nil)
				return
			}
			s.end(&failure{text: "the sidecar cannot be understood: " + err.Error(), kind: ErrUnavailable, cause: err},
				func(h *hold) error { return &LostError{Name: h.name, Reason: misunderstood} })
			return
		}
	}
}

// book takes in what the sidecar said. An error ends the session; a *failure is
// the sidecar's own last word.
func (s *session) book(m protocol.Received) error {
	switch m := m.(type) {
	case *protocol.Answer:
		return s.answered(m)
	case *protocol.Err:
		if m.ID == 0 {
			return &failure{text: "the sidecar ended the connection: " + m.Msg, kind: ErrUnavailable}
		}
		s.failed(m)
	case *protocol.LeaseEvent:
		s.mu.Lock()
		// An event that tells less than the one before says nothing about holds
		// that only it covers; believing too little of them is safe.
		if m.DeadlineNS > s.lease {
			s.lease = m.DeadlineNS
			s.leases++
		}
		s.mu.Unlock()
	case *protocol.LostEvent:
		var told []ending
		s.mu.Lock()
		if h := s.holds[m.Hold]; h != nil {
			told = s.endHold(h, &LostError{Name: h.name, Reason: m.Reason}, nil)
		}
		s.mu.Unlock()
		tell(told)
	}
	return nil
}

// answered books an answer. One that cannot be understood ends the session.
func (s *session) answered(m *protocol.Answer) error {
	s.mu.Lock()
	c := s.calls[m.ID]
	s.mu.Unlock()
	switch {
	case c == nil: // nobody waits for it any more
		return nil
	case c.last != nil:
		s.take(m.ID)
		s.rest(c.last)
		return nil
	case c.acquire.Name != "":
		return s.granted(m)
	}
	if s.take(m.ID) == nil {
		return nil // nobody waits for it just now
	}
	err := m.Unpack(c.answer)
	if err != nil {
		c.err = &failure{text: c.String() + ": the sidecar cannot be understood: " + err.Error(), kind: ErrUnavailable, cause: err}
	}
	c.done <- struct{}{}
	return err
}

// granted books a lock. An answer that cannot be understood leaves its call to be
// failed by the end of the session.
func (s *session) granted(m *protocol.Answer) error {
	var ok protocol.AcquireOK
	if err := m.Unpack(&ok); err != nil {
		return err
	}
	s.mu.Lock()
	c := s.calls[m.ID]
	delete(s.calls, m.ID)
	if c != nil {
		c.lock = s.enterHold(&c.acquire, &ok)
	}
	s.mu.Unlock()
	switch {
	case c == nil: // the session was closed
	case c.given:
		// It was entered all the same: a re-entry by the same owner may be under
		// way, and only the first entry tells what lease the hold has.
		_ = c.lock.Unlock()
	default:
		c.done <- struct{}{}
	}
	return nil
}

// failed books an error answer.
func (s *session) failed(m *protocol.Err) {
	c := s.take(m.ID)
	switch {
	case c == nil, c.given:
	case c.last != nil:
		s.rest(c.last)
	default:
		c.err = refused(c.task, m)
		c.done <- struct{}{}
	}
}

// take unregisters the call that an answer is for; nil: nobody waits for it.
func (s *session) take(id uint64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	delete(s.calls, id)
	return c
}
