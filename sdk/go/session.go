package locksidecar

import (
	"context"
	"errors"
	"fmt"
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

// session is what the sidecar knows a client by: the holds that it was granted,
// and its requests that wait for an answer. It outlives its connection, and the
// sidecar's process. Without a connection it is adrift: holds are good for as long
// as was told, what is asked waits, and what is released is left out of the claims
// with which the session goes on over the next connection.
//
// It is told of what happens in the order in which it happened: one goroutine at a
// time reads, and books each frame before it reads the next. That is whoever waits
// for an answer and found nobody reading, or run, which connects, and sees to what
// comes while nobody waits: see inbox.
type session struct {
	// Immutable.
	dialer   *dialer
	patience time.Duration
	clock    func() int64
	stop     context.CancelFunc // has run return
	gone     chan struct{}      // closed when it has

	dead   atomic.Bool   // set with err
	wanted chan struct{} // tells run that somebody waits for a connection; room for one
	spares sync.Pool     // calls for locks

	// Owned by whoever starts the session, then by run.
	ticket string // of the newest hello; resumes the session

	// mu guards what follows, and every hold and handle of the session. The
	// outbox's is taken under it, so that what is queued is in the order in which
	// it was decided. No other lock is taken, nothing is written and no code of
	// users runs under it.
	mu      sync.Mutex
	wire    *wire    // nil: the session is adrift
	err     *failure // why the session ended; nil: it has not
	sidecar string   // uuid of the sidecar that answered the newest hello
	lastID  uint64
	calls   map[uint64]*call   // by id
	holds   map[uint64]*hold   // by number: those neither released nor lost
	strays  map[*hold]struct{} // and those of which the sidecar knows nothing any more

	release protocol.Release // while it is queued

	stake     bool          // the sidecar may have something of ours
	lasts     time.Duration // the watchdog's lease
	trouble   *failure      // adrift: why
	impatient int64         // adrift: when the patience of the first call ends; 0: nobody waits
	limit     *time.Timer   // closed: ends the attempts to tell the sidecar

	// A lease event speaks of every hold that was granted before it. So that it
	// costs the same for one hold and for a hundred thousand, it is counted here,
	// and each hold remembers the count at its grant.
	leases uint64
	lease  int64 // deadline that the last of them told; 0: it is in the holds

	watches watches
}

// call is a request that waits for its answer.
type call struct {
	task
	id   uint64        // of the frame that was queued last; guarded by session.mu
	done chan struct{} // gets a value when the answer is stored; nil: nobody waits
	err  error         // the answer is this

	answer  protocol.OK // or is stored here
	request func(id uint64) protocol.Request
	once    bool // it is not asked twice

	acquire protocol.Acquire // or, if there is a name, is a lock
	until   time.Time        // the sidecar is told how long to wait; zero: it is not
	lock    *Lock
	given   bool // up: nobody waits, and a lock that is granted goes back

	last *hold // it is the release of the last entry of this hold

	unlocks *hold // it requests the confirmation of a release of this hold
	free    int64 // when the lease of that hold ends in Redis, at the latest

	bye bool // it ends the session

	over  *wire // on which it was asked
	since int64 // made, or asked in vain, while the session was adrift; 0: neither
}

// spare returns a call for a lock.
func (s *session) spare(t task, req protocol.Acquire) *call {
	c, ok := s.spares.Get().(*call)
	if !ok {
		c = &call{done: make(chan struct{}, 1)}
	}
	c.task, c.acquire = t, req
	return c
}

// recycle takes back a call for a lock that was answered. It is not registered any
// more, and nobody but who asked knows of it.
func (s *session) recycle(c *call) {
	*c = call{done: c.done}
	s.spares.Put(c)
}

// task is what somebody wants, in words for errors.
type task struct{ verb, name string }

func (t task) String() string {
	if t.name == "" {
		return "cannot " + t.verb
	}
	return fmt.Sprintf("cannot %s %q", t.verb, t.name)
}

func newSession(d *dialer, patience time.Duration) *session {
	return &session{
		dialer:   d,
		patience: patience,
		clock:    d.clock,
		gone:     make(chan struct{}),
		wanted:   make(chan struct{}, 1),
		lastID:   1, // of hello
		calls:    make(map[uint64]*call),
		holds:    make(map[uint64]*hold),
		strays:   make(map[*hold]struct{}),
	}
}

// start begins the session, over a wire if there is one.
func (s *session) start(w *wire) {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	if w != nil {
		s.board(w)
	}
	go s.run(ctx, w)
}

func (s *session) lives() bool { return !s.dead.Load() }

// end ends the session, the first time. What was asked and not answered fails.
// giveUp says why a hold ends with the session; nil, or where it returns nil: it
// goes on until its deadline. After that, and before anything else happens, last is
// called with mu held.
func (s *session) end(why *failure, giveUp func(*hold) error, last func()) bool {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return false
	}
	s.err = why
	s.dead.Store(true)
	w := s.wire
	calls := s.calls
	s.calls = make(map[uint64]*call)
	var told []ending
	if giveUp != nil {
		for h := range s.all() {
			if err := giveUp(h); err != nil {
				told = s.endHold(h, err, told)
			}
		}
	}
	if last != nil {
		last()
	}
	s.mu.Unlock()
	tell(told)
	for _, c := range calls {
		c.fail(c.unanswered(why))
	}
	if w != nil {
		w.in.push() // it may be one of those who waited that reads
	}
	return true
}

// all yields the holds that have not ended. The caller holds mu.
func (s *session) all() func(yield func(*hold) bool) {
	return func(yield func(*hold) bool) {
		for _, h := range s.holds {
			if !yield(h) {
				return
			}
		}
		for h := range s.strays {
			if !yield(h) {
				return
			}
		}
	}
}

// fail answers a call that is not registered any more.
func (c *call) fail(err error) {
	c.err = err
	if c.done != nil {
		c.done <- struct{}{}
	}
}

// unanswered says what became of a call whose answer will not come.
func (c *call) unanswered(why *failure) *failure {
	text := c.String() + ": " + why.text
	switch {
	case why.kind == ErrClosed, c.unlocks != nil:
	case c.acquire.Name != "":
		text += "; it is not held, and what may just have been granted is given up"
	default:
		text += "; it may have happened"
	}
	return &failure{text: text, kind: why.kind, cause: why.cause}
}

// unasked says what became of a call that waited in vain for somebody to listen.
func (c *call) unasked(why *failure) *failure {
	text := c.String() + ": " + why.text
	switch {
	case c.unlocks != nil:
	case c.acquire.Name != "":
		text += "; it is not held, and nothing needs to be cleaned up"
	default:
		text += "; it was not done"
	}
	return &failure{text: text, kind: ErrUnavailable, cause: why}
}

// frame is what is sent for a call. The caller holds mu.
func (c *call) frame() protocol.Request {
	if c.acquire.Name == "" {
		return c.request(c.id)
	}
	c.acquire.ID = c.id
	if !c.until.IsZero() {
		// At least 1: 0 would not wait at all. What is longer than can be said
		// is ended by the context alone.
		c.acquire.WaitMS = max(1, time.Until(c.until).Milliseconds())
		if c.acquire.WaitMS > protocol.MaxDurationMS {
			c.acquire.WaitMS = protocol.Forever
		}
	}
	return &c.acquire
}

// send asks; adrift, it is asked as soon as there is a connection.
func (s *session) send(c *call) (*wire, error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, errNotSent
	}
	w := s.wire
	if f := s.post(c, w); f != nil {
		s.mu.Unlock()
		return nil, f
	}
	s.mu.Unlock()
	if w == nil {
		s.want()
	}
	w.flush()
	return w, nil
}

// post queues a call's request on the session's wire. Without a wire the request is left
// to board. The caller holds mu, and then flushes the wire, or calls want if there is
// none. The session has not ended.
func (s *session) post(c *call, w *wire) *failure {
	s.lastID++
	c.id, c.over = s.lastID, w
	switch {
	case w == nil:
		c.since = s.clock()
		if s.impatient == 0 {
			s.impatient = c.since + int64(s.patience)
		}
	case !w.out.offer(c.frame()):
		return notRead(c.task)
	case c.acquire.Name != "":
		s.stake = true
	}
	s.calls[c.id] = c
	return nil
}

// want tells run to look again at who waits.
func (s *session) want() {
	select {
	case s.wanted <- struct{}{}:
	default:
	}
}

// notRead is the error of a request that was not even queued.
func notRead(t task) *failure {
	return &failure{
		text: fmt.Sprintf("%s: the sidecar is stopped or hangs: it has not read %d bytes of earlier requests; this one was not sent", t, maxUnwritten),
		kind: ErrUnavailable,
	}
}

// ask sends a request and waits for its answer.
func (s *session) ask(ctx context.Context, c *call) error {
	c.done = make(chan struct{}, 1)
	w, err := s.send(c)
	if err != nil {
		return err
	}
	if f := s.await(ctx, c, w); f != nil {
		if f.kind == ErrTimeout {
			f.text, f.kind = c.String()+": the sidecar did not answer in time", ErrUnavailable
		}
		if c.once && c.over != nil {
			f.text += "; it may have happened"
		}
		return f
	}
	return c.err
}

// await returns nil when a call that is no lock is answered. If the context ends first, it
// returns the failure of the call.
func (s *session) await(ctx context.Context, c *call, w *wire) *failure {
	s.readFor(ctx, c, w)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	if f := s.giveUp(ctx, c); f != nil {
		return f
	}
	<-c.done // another goroutine has read the answer, and is about to store it
	return nil
}

// lock asks for a lock. Whatever becomes of it: with an error nothing is held,
// and what is granted yet goes back.
func (s *session) lock(ctx context.Context, t task, req protocol.Acquire, try bool) (*Lock, error) {
	c := s.spare(t, req)
	c.acquire.WaitMS = protocol.Forever
	deadline, limited := ctx.Deadline()
	switch {
	case try:
		c.acquire.WaitMS = 0
	case limited:
		c.until = deadline
	}
	w, err := s.send(c)
	if err != nil {
		return nil, err
	}
	s.readFor(ctx, c, w)
	if !c.await(ctx) {
		if f := s.giveUp(ctx, c); f != nil {
			return nil, f
		}
		<-c.done // whoever reads has it in hand
	}
	l, err := c.lock, c.err
	s.recycle(c)
	if f, ok := err.(*failure); ok && try && f.kind == ErrTimeout {
		f.kind = ErrHeld
	}
	return l, err
}

// await returns when the call is answered, or, false, when the context ends. If
// the sidecar knows when that is, it gets a moment to say more.
func (c *call) await(ctx context.Context) bool {
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
	}
	if c.until.IsZero() || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
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

// giveUp stops waiting because the context has ended, and returns the error that
// says so; nil: the call has been answered. A call for a lock stays if it was sent,
// so that what may be granted in spite of the cancel goes back.
func (s *session) giveUp(ctx context.Context, c *call) *failure {
	s.mu.Lock()
	if s.calls[c.id] != c {
		s.mu.Unlock()
		return nil
	}
	w, trouble := s.wire, s.trouble
	if c.acquire.Name != "" && w != nil {
		c.given = true
		w.queue(protocol.Cancel{Target: c.id})
	} else {
		delete(s.calls, c.id)
	}
	s.mu.Unlock()
	w.flush()
	return gaveUp(ctx, c.task, trouble)
}

// book takes in what the sidecar said. An error ends the connection.
func (s *session) book(w *wire, m protocol.Received) error {
	switch m := m.(type) {
	case *protocol.Answer:
		return s.answered(w, m)
	case *protocol.Err:
		if m.ID == 0 {
			return lastWord(m)
		}
		return s.failed(w, m)
	case *protocol.LeaseEvent:
		s.mu.Lock()
		if m.DeadlineNS < s.lease {
			// It speaks of holds that were granted with less. What the others were
			// told stays true.
			for _, h := range s.holds {
				h.deadline, h.leases = h.told(), s.leases
			}
		}
		s.lease = m.DeadlineNS
		s.leases++
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

// answered books an answer.
func (s *session) answered(w *wire, m *protocol.Answer) error {
	if w.claim != 0 && m.ID <= w.claim {
		if m.ID == w.claim {
			s.takenUp(w)
		}
		return nil
	}
	w.served = true
	s.mu.Lock()
	c := s.calls[m.ID]
	if c != nil && c.acquire.Name != "" {
		s.mu.Unlock()
		return s.granted(w, m)
	}
	delete(s.calls, m.ID)
	s.mu.Unlock()
	switch {
	case c == nil: // nobody waits for it any more
		return nil
	case c.last != nil:
		s.rest(c.last)
		return nil
	case c.bye:
		c.done <- struct{}{}
		return errBye
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
func (s *session) granted(w *wire, m *protocol.Answer) error {
	if err := m.Unpack(&w.grant); err != nil {
		return err
	}
	s.mu.Lock()
	c := s.calls[m.ID]
	delete(s.calls, m.ID)
	if c != nil {
		c.lock = s.enterHold(&c.acquire, &w.grant)
	}
	s.mu.Unlock()
	switch {
	case c == nil: // the session was closed
	case c.given:
		// It was entered all the same: a re-entry by the same owner may be under
		// way, and only the first entry tells what lease the hold has.
		_ = c.lock.unlock(asBooked)
	default:
		c.done <- struct{}{}
	}
	return nil
}

// failed books an error answer.
func (s *session) failed(w *wire, m *protocol.Err) error {
	if w.claim != 0 && m.ID <= w.claim {
		return errors.New("it refused a claim: " + m.Msg)
	}
	w.served = true
	c := s.take(m.ID)
	switch {
	case c == nil, c.given:
	case c.last != nil:
		s.rest(c.last)
	case c.bye: // an older sidecar: to close the connection is all it needs
		c.done <- struct{}{}
		return errBye
	default:
		c.fail(refused(c.task, m))
	}
	return nil
}

// take unregisters the call that an answer is for; nil: nobody waits for it.
func (s *session) take(id uint64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	delete(s.calls, id)
	return c
}
