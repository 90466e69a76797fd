package locksidecar

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// session is the state that the sidecar and this client share: the holds that were granted,
// and the requests that wait for an answer. It outlives its connection and the sidecar's
// process. While it has no connection, holds are valid until their deadlines, calls wait, and
// a hold that is released is left out of the claims with which the session is resumed over
// the next connection.
//
// Messages of the sidecar are handled in the order in which they were sent: one goroutine at
// a time reads, and handles each message before it reads the next. See sharedReader.
type session struct {
	// Immutable.
	dialer   *dialer
	patience time.Duration
	clock    func() int64
	stop     context.CancelFunc // makes run return
	done     chan struct{}      // closed when run has returned

	reconnectNow chan struct{} // wakes run while it waits to reconnect, when a call was made or the session was closed; room for one
	byeFailed    chan struct{} // ends the wait of close: bye cannot be sent now; room for one
	spares       sync.Pool     // of calls for locks
	woken        atomic.Int32  // acquires that were granted, and whose callers have not run since; see yieldToWoken

	// Owned by the goroutine that starts the session, then by run.
	ticket string // of the newest answer to hello; resumes the session

	// phase is changed with mu held, and read with it, but for Client.session.
	phase atomicPhase

	// mu guards what follows, and every call, hold and Lock of the session. Methods whose
	// names end with Locked need it.
	//
	// Lock order: mu, then the mutex of conn.out, so that frames are queued in the order in
	// which they were decided. No other mutex is taken while mu is held, and mu is not taken
	// while Client.mu or the mutex of conn.in is held. No system call that may block and no
	// code of users runs while mu is held.
	mu      sync.Mutex
	conn    *connection  // in the phases that are connected; else nil
	refusal *clientError // in the phases that are not open: why calls are refused
	outage  outage       // in sessionDisconnected
	sidecar string       // uuid of the sidecar that sent the newest answer to hello
	lastID  uint64
	calls   map[uint64]*call   // by id
	holds   map[uint64]*hold   // by id: those that are live or releasing
	orphans map[*hold]struct{} // those that are orphaned

	servingSince  int64         // in sessionServing
	servedUntil   int64         // when the last connection ended that had served; 0: none has, or another one serves
	watchdogLease time.Duration // of the sidecar
	byeTimer      *time.Timer   // ends the attempts to send bye; nil: there are none

	// hasRemoteState says that the sidecar may have a hold or a request of this session that
	// must not outlive it. Then the client connects again even if no call waits.
	hasRemoteState bool

	// A lease event concerns all holds that were granted before it. So it is stored here
	// once, however many holds there are, and each hold has the number of the last lease
	// event before its grant.
	leaseSeq      uint64 // of the last lease event
	leaseDeadline int64  // its deadline; 0: the deadlines of all lease events are in the holds

	alarm   expiryAlarm
	waits   waitWatch
	release protocol.Release // that is being queued: Unlock allocates none
}

// sessionPhase is how far a session has come on the connection that it has now. dialer.dial
// makes the connection and waits for the answer to hello; attach gives it to the session.
//
//	                attach, resumed             last claim answered
//	disconnected ───────────────────► claiming ─────────────────────► serving
//	 │        ▲ │          attach, not resumed: nothing to claim        ▲ │
//	 │        │ └───────────────────────────────────────────────────────┘ │
//	 │        └─── the connection ends, from claiming and serving ◄───────┘
//	 │                                  │
//	 │ close; the sidecar               │ close, from claiming and serving
//	 ▼ has state of it                  ▼
//	byeDue ─── attach, resumed ──────► byeSent
//	 ▲                                  │
//	 └─── the connection ends ──────────┘
//
// over comes when the sidecar has answered bye, when it has nothing of a session that was
// closed, when it may not have anything any more (see byeTimer), or when one side broke the
// protocol.
type sessionPhase uint32

const (
	// There is no connection, or none over which hello was answered. Calls wait for one.
	// attach ends it, or close.
	sessionDisconnected sessionPhase = iota

	// Connected. The claims of what is held were queued. All frames after them are held
	// back until the last claim is answered. The answer ends it, the end of the connection,
	// or close.
	sessionClaiming

	// Connected. Requests are sent. The end of the connection ends it, or close.
	sessionServing

	// Closed: calls are refused and nothing is held. There is no connection, and a successor
	// of the sidecar would renew what the sidecar has of the session. attach ends it, or
	// byeTimer.
	sessionByeDue

	// Closed as in sessionByeDue, and connected. bye was queued. Its answer ends it, or the
	// end of the connection.
	sessionByeSent

	// Calls are refused, and nothing is sent. What is still held is valid until its
	// deadline. It has no end.
	sessionOver
)

// isOpen reports whether the session takes calls.
func (p sessionPhase) isOpen() bool { return p <= sessionServing }

// nextPhases are the phases that may follow each phase.
var nextPhases = [...][]sessionPhase{
	sessionDisconnected: {sessionClaiming, sessionServing, sessionByeDue, sessionOver},
	sessionClaiming:     {sessionServing, sessionDisconnected, sessionByeSent, sessionOver},
	sessionServing:      {sessionDisconnected, sessionByeSent, sessionOver},
	sessionByeDue:       {sessionByeSent, sessionOver},
	sessionByeSent:      {sessionByeDue, sessionOver},
	sessionOver:         {sessionOver},
}

// atomicPhase is a sessionPhase that one goroutine at a time changes and others read.
type atomicPhase struct{ v atomic.Uint32 }

func (p *atomicPhase) get() sessionPhase { return sessionPhase(p.v.Load()) }

func (p *atomicPhase) set(to sessionPhase) {
	if from := p.get(); !slices.Contains(nextPhases[from], to) {
		panic(fmt.Sprintf("locksidecar: a session goes from phase %d to %d; this is a defect of the package, report it", from, to))
	}
	p.v.Store(uint32(to))
}

// outage is what a session without a connection has to do about it.
type outage struct {
	why *clientError // why there is no connection; nil: none was tried yet

	// When run tries to connect at the latest: when the patience of the first call that waits
	// ends, if any call waits; at once, when the session was closed and bye is due.
	hasDeadline bool
	deadline    int64
}

func newSession(d *dialer, patience time.Duration) *session {
	return &session{
		dialer:       d,
		patience:     patience,
		clock:        d.clock,
		done:         make(chan struct{}),
		reconnectNow: make(chan struct{}, 1),
		byeFailed:    make(chan struct{}, 1),
		lastID:       1, // of hello
		calls:        make(map[uint64]*call),
		holds:        make(map[uint64]*hold),
		orphans:      make(map[*hold]struct{}),
	}
}

// start begins the session, over a connection if there is one.
func (s *session) start(conn *connection) {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	if conn != nil {
		s.attach(conn)
	}
	go s.run(ctx, conn)
}

// isOpen reports whether the session takes calls. It needs no mutex.
func (s *session) isOpen() bool { return s.phase.get().isOpen() }

// refuseLocked makes the session refuse calls from now on. The caller changes the phase. The
// calls that wait are returned, for failAll. endCause returns why a hold ends now; nil: it
// is valid until its deadline. The notices are those of the holds that ended.
func (s *session) refuseLocked(why *clientError, endCause func(*hold) error) (failed map[uint64]*call, notices []endNotice) {
	if s.isOpen() {
		s.refusal = why
	}
	failed, s.calls = s.calls, make(map[uint64]*call)
	s.waits.stop()
	s.outage.hasDeadline = false
	for h := range s.allHoldsLocked() {
		if cause := endCause(h); cause != nil {
			notices = h.endLocked(cause, notices)
		}
	}
	return failed, notices
}

// failAll ends the calls that waited when the session ended.
func failAll(calls map[uint64]*call, why *clientError) {
	for _, c := range calls {
		c.fail(c.unanswered(why))
	}
}

// byeGrace is how long Close waits for the sidecar to confirm it.
const byeGrace = time.Second

// close ends the session for good, and with it every hold. It waits for the answer to bye for
// byeGrace, or until an attempt to connect has failed. Without an answer, run goes on trying
// for as long as a successor might renew what was held.
func (s *session) close() {
	why := &clientError{text: "the client was closed", kind: ErrClosed}
	s.mu.Lock()
	if !s.isOpen() {
		s.mu.Unlock()
		return
	}
	now := s.clock()
	renewedUntil := now // by the sidecar, as far as is known
	failed, notices := s.refuseLocked(why, func(h *hold) error {
		if h.phase != holdOrphaned {
			renewedUntil = max(renewedUntil, h.deadlineLocked())
		}
		return why
	})
	conn, isNeeded := s.conn, s.hasRemoteState
	switch {
	case conn != nil:
		s.queueByeLocked(conn)
		s.phase.set(sessionByeSent)
	case isNeeded:
		s.phase.set(sessionByeDue)
		s.outage.hasDeadline, s.outage.deadline = true, now
	default:
		s.phase.set(sessionOver)
	}
	if isNeeded {
		s.byeTimer = time.AfterFunc(time.Duration(renewedUntil-now)+s.watchdogLease, s.stop)
	}
	s.mu.Unlock()
	notify(notices)
	failAll(failed, why)
	if conn != nil {
		conn.in.interrupt() // the goroutine that reads may be one whose call has failed
		conn.flush()
	} else {
		s.wakeReconnect()
	}
	if conn != nil || isNeeded {
		grace := time.NewTimer(byeGrace)
		defer grace.Stop()
		select {
		case <-s.done: // bye was answered
		case <-s.byeFailed:
		case <-grace.C:
		}
	}
	if !isNeeded {
		s.stop()
		<-s.done
	}
}

// queueByeLocked queues the session's last request.
func (s *session) queueByeLocked(conn *connection) {
	s.lastID++
	s.calls[s.lastID] = &call{kind: byeCall, id: s.lastID, conn: conn}
	conn.queue(protocol.Bye{ID: s.lastID})
}
