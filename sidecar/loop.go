package sidecar

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// loop is the state of a running sidecar. The goroutine that has locked turn owns all of
// it: one that brought an input while turn was free, for one step; or else run, for what
// was left meanwhile and what is due. Before run and after it, Listen and Serve have it.
type loop struct {
	turn      sync.Mutex  // the first in the order of locks: it is taken with none held
	finishing atomic.Bool // finish has turn, and sleeps with it
	table     *locktable.Table
	store     *store.Store
	pids      *pidWatch
	state     *state.File // nil: nothing is kept for a successor
	sessions  map[locktable.SessionID]*client
	last      locktable.SessionID // newest session
	newRedis  *store.Identity     // what a successor must know of Redis, if it changed in this step
	stopping  bool
	held      bool // requests wait, because too many operations wait to be sent: see step

	events   []event        // emptied, for the next takeEvents
	messages map[string]int // the same
	request  request        // the one that is being done

	timer   *time.Timer // wakes run
	planned int64       // when it does, or did; never later than something is due

	absentUntil int64 // when the next absent client has been waited for long enough; 0: nobody is absent
	logLimit    logLimit

	// Collected in one step and carried out at its end.
	dirty   []*conn
	leaving []leaving
	parting []parting
	ops     []locktable.Op

	// Scratch for frames, so that an answer costs no allocation.
	granted  protocol.AcquireOK
	released protocol.ReleaseOK
	failed   protocol.Err
	lost     protocol.LostEvent
	lease    protocol.LeaseEvent
	page     protocol.ListOK
}

const (
	// maxSleep bounds how late the loop notices what fell due during a suspend.
	maxSleep = time.Second

	// A step does requests of clients for this long. What Redis answers, and what is
	// due, waits for the end of a step.
	requestTime = 50 * time.Microsecond

	// A page of a list is filled with so many bytes of rows.
	pageSize = 16 << 10

	// While so many operations wait to be sent to Redis, no requests are done: they would
	// make more, and a client that asks for little would wait for those of one that asks
	// for much. While Redis is silent nothing is sent anyway: then requests are done, so that
	// those that do not wait are answered.
	maxUnsent = 64
)

// submitEvent gives the loop an event.
func (s *Server) submitEvent(e event) {
	s.inbox.put(e)
	s.takeTurn()
}

// takeTurn is called by a goroutine that has put an input into the inbox. If no other
// goroutine runs the loop, the caller does the step itself: to hand an input to another
// goroutine, and its answer to a third one, takes longer than the step. It does one step
// and no more: the goroutine that reads what Redis answers must not be kept by clients
// that send requests all the time.
func (s *Server) takeTurn() {
	if !s.turn.TryLock() {
		if s.finishing.Load() {
			s.inbox.wake() // finish keeps the turn while it sleeps
		}
		return // the goroutine that has it looks into the inbox again when it has unlocked
	}
	s.plan(s.step())
	s.turn.Unlock()
	if s.inbox.pending() {
		s.inbox.wake()
	}
}

// run serves until stop is closed: it sleeps until something is left in the inbox or
// a timer is due. It gives the turn away for that time.
func (s *Server) run(stop <-chan struct{}) {
	s.timer = time.NewTimer(0)
	defer s.timer.Stop()
	s.turn.Unlock()
	defer s.turn.Lock()
	for {
		select {
		case <-stop:
			return
		case <-s.inbox.ready:
		case <-s.timer.C:
		}
		s.turn.Lock()
		s.plan(s.step())
		s.turn.Unlock()
		if s.inbox.pending() {
			s.inbox.wake()
		}
	}
}

// plan sets the timer to the next time at which something is due. Most steps move
// that to later: then the timer stays, and what it wakes looks again.
func (s *Server) plan(now int64) {
	at, ok := s.next(now)
	for _, due := range []int64{s.absentUntil, s.logLimit.end, s.stateDue()} {
		if due != 0 && (!ok || due < at) {
			at, ok = due, true
		}
	}
	if !ok || now < s.planned && s.planned <= at {
		return
	}
	// Timers stand still while the host is suspended, deadlines do not.
	s.planned = min(at, now+int64(maxSleep))
	s.timer.Reset(time.Duration(s.planned - now))
}

// next is when the table has something to do. What it has left over from earlier steps
// waits, like requests, while many operations wait to be sent: until an answer of Redis,
// which is an event and begins a step, or until Redis is known to be silent.
func (s *Server) next(now int64) (at int64, ok bool) {
	if s.table.Busy() && !s.held {
		return now, true
	}
	at, ok = s.table.Next()
	if silent, owed := s.table.SilentAt(); s.held && owed && (!ok || silent < at) {
		at, ok = silent, true
	}
	return at, ok
}

// step takes in what was said and carries out what the table wants done. One
// reading of the clock serves all of it: a time that is a little old makes
// deadlines earlier, never later.
func (s *Server) step() (now int64) {
	now = protocol.Now()
	s.table.Advance(now)
	s.endAbsence(now)
	s.retryState(now)
	if s.logLimit.end != 0 && now >= s.logLimit.end {
		s.sumUp()
	}
	s.takeEvents(now)
	// Until Redis has answered something, or is known to be silent.
	s.held = s.store.Unsent() > maxUnsent && !s.table.IsSilent(now)
	s.inbox.hold(s.held)
	if !s.held {
		s.table.Work(now)
		s.takeRequests(now)
	}
	s.carryOut()
	if len(s.leaving) > 0 {
		s.seeOff(now)
	}
	return now
}

func (s *Server) takeEvents(now int64) {
	events, messages := s.inbox.takeEvents(s.events, s.messages)
	for i := range events {
		s.onEvent(now, &events[i])
	}
	for name, n := range messages {
		for range n {
			s.table.Message(now, name)
		}
	}
	clear(events)
	clear(messages)
	if cap(events) > 1<<10 {
		events = nil // a burst's memory is not kept
	}
	s.events, s.messages = events, messages
}

// takeRequests does requests of clients, in the order of the inbox, for requestTime.
func (s *Server) takeRequests(now int64) {
	var from *peerProcess
	begin := time.Now()
	last := time.Duration(0)
	cost := int64(0)
	for last < requestTime && s.inbox.takeRequest(from, cost, &s.request) {
		from = s.request.conn.sender
		s.onRequest(now, &s.request)
		if s.request.kind.last() {
			s.inbox.leave(from)
		}
		spent := time.Since(begin)
		cost, last = int64(spent-last), spent
	}
	s.request = request{}
	if last >= requestTime {
		s.inbox.charge(from, cost)
	}
}

// leaving is a client that said bye.
type leaving struct {
	client *client
	id     uint64
}

// seeOff ends the sessions of those who said bye in this step. They have the answers
// to what they asked before, and bye is answered when a successor would not know them.
func (s *Server) seeOff(now int64) {
	for _, l := range s.leaving {
		if c := l.client.conn; c != nil && s.sessions[l.client.id] == l.client {
			s.close(now, l.client, "it said bye")
			s.part(c, &protocol.ByeOK{ID: l.id})
		}
	}
	clear(s.leaving)
	s.leaving = s.leaving[:0]
	s.carryOut()
}

// part has a connection end with a last frame, when everything that led to it is in
// the state.
func (s *Server) part(c *conn, m protocol.Reply) { s.parting = append(s.parting, parting{c, m}) }

type parting struct {
	conn *conn
	last protocol.Reply
}

func (s *Server) onEvent(now int64, e *event) {
	switch e.kind {
	case processEnded:
		s.ended(now, e.session)

	case redisResults:
		if e.flag {
			redis := e.redis
			s.newRedis = &redis
		}
		for i := range e.results {
			s.table.Result(now, e.results[i])
		}
	case redisUp:
		redis := e.redis // e is emptied before carryOut
		s.newRedis = &redis
		s.table.Up(now, e.flag)
	case redisDown:
		s.table.Down(now, e.text)
	case redisSubscribed:
		for _, name := range e.names {
			s.table.Subscribed(now, name)
		}
	case redisUnsubscribed:
		for _, name := range e.names {
			s.table.Unsubscribed(now, name)
		}
	case loopPing:
		close(e.done)
	}
}

// id is the request's; 0: it has none.
func (in *request) id() uint64 {
	switch in.kind {
	case clientAcquire:
		return in.acquire.ID
	case clientRelease:
		return in.release.ID
	}
	return in.other.RequestID()
}

// onRequest does what one request asks.
func (s *Server) onRequest(now int64, in *request) {
	c := in.conn
	switch in.kind {
	case clientGone:
		s.gone(now, c)
		return
	case clientBroke:
		s.broke(now, c, in.fault)
		return
	case clientHello:
		c.taken()
		s.greet(now, c, in.other.(*protocol.Hello))
		return
	}
	c.taken()
	cl := c.client
	if cl == nil || cl.detached || cl.leaving || s.stopping && !ending(in) {
		return // it was told why, or is being told
	}
	id := in.id()
	if msg := s.violation(cl, in, id); msg != "" {
		s.broke(now, c, badFrame(msg))
		return
	}
	switch in.kind {
	case clientAcquire:
		if prefix := store.Reserved(in.acquire.Name); prefix != "" {
			s.refuse(c, in.acquire.ID, protocol.Denied, "names that begin with "+prefix+" are reserved for the token counters and queues of other locks; choose another name")
			return
		}
		s.table.Acquire(now, cl.id, in.acquire)
		return
	case clientRelease:
		s.table.Release(now, cl.id, in.release)
		return
	}
	switch r := in.other.(type) {
	case *protocol.Confirm:
		s.table.Confirm(now, cl.id, *r)
	case *protocol.Cancel:
		s.table.Cancel(now, cl.id, *r)
	case *protocol.Info:
		m := protocol.InfoOK{ID: id}
		if row, ok := s.table.Info(now, r.Name); ok {
			m.Lock = &row
		}
		s.say(c, &m)
	case *protocol.List:
		s.say(c, s.list(now, r))
	case *protocol.ForceRelease:
		if row, ok := s.table.Info(now, r.Name); ok && row.State == protocol.StateHeld && !s.mayForce(cl.peer.UID, row.UID) {
			s.refuse(c, id, protocol.Denied, "the lock is held by a process of another user; ask as that user, as the sidecar's user, or as root")
			return
		}
		s.table.ForceRelease(now, cl.id, *r)
	case *protocol.Claim:
		s.claim(now, cl, r)
	case *protocol.Bye:
		// When what it asked before has been answered: see step.
		cl.leaving = true
		s.leaving = append(s.leaving, leaving{cl, id})
	case *protocol.Ping:
		redis := s.redis.Load()
		s.say(c, &protocol.PingOK{ID: id, NowNS: now, Redis: redis.status, RedisAddress: s.store.Address(), RedisRunID: redis.runID})
	case *refused:
		if id != 0 {
			s.refuse(c, id, r.Code, r.Msg)
		}
	default:
		if id != 0 {
			s.refuse(c, id, protocol.Unsupported, "this sidecar does not know this op; it speaks version 1 of the protocol")
		}
	}
}

// ending tells whether a request gives something back: a sidecar that stops still
// listens to those that it has read.
func ending(in *request) bool {
	_, bye := in.other.(*protocol.Bye)
	return bye || in.kind == clientRelease
}

// violation says how a request breaks the protocol in the state in which its session is;
// "": it does not. It comes before what is wrong with the request's own fields.
func (s *Server) violation(cl *client, in *request, id uint64) string {
	claim, bye := false, false
	switch r := in.other.(type) {
	case *protocol.Claim:
		claim = true
	case *refused:
		claim = r.Op == "claim"
	case *protocol.Bye:
		bye = true
	}
	switch {
	case claim && !cl.claiming:
		return "a claim that is not due; a session is claimed once, when it was resumed"
	case cl.claiming && !claim && !bye:
		return "claims are due; a session that was resumed is claimed before anything else"
	case id != 0 && s.table.InUse(cl.id, id):
		return "the id is in use by a request that is not answered yet; choose another"
	}
	return ""
}

// list fills one page. It is small: a client that asks for thousands of locks pays for
// each page with a turn.
func (s *Server) list(now int64, r *protocol.List) *protocol.ListOK {
	m := &s.page
	m.ID, m.Locks = r.ID, m.Locks[:0]
	size := 0
	m.Next = s.table.List(now, r.After, func(row protocol.LockRow) bool {
		size += row.Size()
		if size > pageSize && len(m.Locks) > 0 {
			return false
		}
		m.Locks = append(m.Locks, row)
		return true
	})
	return m
}

func (s *Server) say(c *conn, m protocol.Reply) {
	c.say(m)
	if !c.dirty {
		c.dirty = true
		s.dirty = append(s.dirty, c)
	}
}

func (s *Server) refuse(c *conn, id uint64, code protocol.Code, msg string) {
	s.failed = protocol.Err{ID: id, Code: code, Msg: msg}
	s.say(c, &s.failed)
}

// carryOut does what the table wants done: operations first, for Redis takes
// longest, then the frames, one write for each client.
func (s *Server) carryOut() {
	effects := s.table.Effects()
	if s.newRedis != nil && s.state != nil {
		// Behind what the table makes of it: a successor that knows the new run of
		// Redis must know which holds were in doubt.
		s.state.KeepRedis(state.Redis(*s.newRedis))
	}
	s.newRedis = nil
	s.forgetClosed(effects)
	s.commitState()
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case locktable.Redis:
			s.ops = append(s.ops, e.Op)
		case locktable.Subscribe:
			s.store.Subscribe(e.Name)
		case locktable.Unsubscribe:
			s.store.Unsubscribe(e.Name)
		}
	}
	if len(s.ops) > 0 {
		s.store.Do(s.ops)
		clear(s.ops)
		s.ops = s.ops[:0]
	}
	var broken []*client
	for i := range effects {
		e := &effects[i]
		cl := s.sessions[e.Session]
		if e.Kind == locktable.Lost && e.Reason != protocol.Forgotten {
			s.logLost(e, cl)
		}
		if cl == nil {
			continue
		}
		if cl.detached {
			if e.Kind == locktable.Lost {
				broken = append(broken, cl)
			}
			continue
		}
		c := cl.conn
		if e.Kind == locktable.Lost && cl.misses(e) || c == nil {
			continue
		}
		switch e.Kind {
		case locktable.Granted:
			s.granted = protocol.AcquireOK{ID: e.ID, Token: e.Token, Hold: e.Hold, Count: e.Count, DeadlineNS: e.Deadline, EndNS: e.End}
			s.say(c, &s.granted)
		case locktable.Released:
			s.released = protocol.ReleaseOK{ID: e.ID, Count: e.Count}
			s.say(c, &s.released)
		case locktable.Refusal:
			s.refuse(c, e.ID, e.Code, e.Msg)
			if e.Code == protocol.Limit {
				s.logAbout(lineKind{slog.LevelWarn, cl.peer.UID, "client met a limit", string(e.Code)}, "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "reason", e.Msg)
			}
		case locktable.Canceled:
			s.say(c, &protocol.CancelOK{ID: e.ID, Canceled: e.Was})
		case locktable.Confirmed:
			s.say(c, &protocol.ConfirmOK{ID: e.ID})
		case locktable.Claimed:
			s.say(c, &protocol.ClaimOK{ID: e.ID})
			if e.Was {
				s.takenUp(cl)
			}
		case locktable.Forced:
			s.say(c, &protocol.ForceReleaseOK{ID: e.ID, Hold: e.Hold})
			s.logAbout(lineKind{slog.LevelInfo, cl.peer.UID, "client forced the release of a lock", ""}, "lock", e.Name, "hold", e.Hold, "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd)
		case locktable.Lost:
			s.lost = protocol.LostEvent{Hold: e.Hold, Reason: e.Reason}
			s.say(c, &s.lost)
		case locktable.Lease:
			s.lease = protocol.LeaseEvent{DeadlineNS: e.Deadline}
			c.sayLease(&s.lease)
			if !c.dirty {
				c.dirty = true
				s.dirty = append(s.dirty, c)
			}
		}
	}
	for i, c := range s.dirty {
		c.dirty = false
		c.flush()
		s.dirty[i] = nil
	}
	s.dirty = s.dirty[:0]
	for _, p := range s.parting {
		p.conn.hangUp(p.last)
	}
	clear(s.parting)
	s.parting = s.parting[:0]
	for _, c := range broken {
		s.forgetDetached(protocol.Now(), c)
	}
}

// forgetClosed strikes sessions from the state of which the table has nothing left.
func (s *Server) forgetClosed(effects []locktable.Effect) {
	for i := range effects {
		if e := &effects[i]; e.Kind == locktable.Closed && s.state != nil {
			s.state.CloseSession(e.Session)
		}
	}
}

func (s *Server) logLost(e *locktable.Effect, c *client) {
	var peer locktable.Peer // of a session that is over, it is not known any more
	if c != nil {
		peer = c.peer
	}
	kind := lineKind{slog.LevelWarn, peer.UID, "lock lost", string(e.Reason)}
	if e.Reason == protocol.MaxHold || e.Reason == protocol.ByForce {
		kind.level, kind.line = slog.LevelInfo, "lock ended"
	}
	args := []any{"lock", e.Name, "hold", e.Hold, "session", e.Session, "pid", peer.PID, "cmd", peer.Cmd, "reason", e.Reason}
	if e.Msg != "" {
		args = append(args, "found", e.Msg)
	}
	s.logAbout(kind, args...)
}

var stopping = protocol.Err{Code: protocol.Unavailable, Msg: "the sidecar is stopping; locks stay held; come back with the ticket when there is a sidecar again"}

// hangUp says goodbye to every client. Waiters are gone with that, and ask again
// when there is a successor; holds stay as they are.
func (s *Server) hangUp() {
	s.stopping = true
	s.table.Adjourn(protocol.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for c := range s.conns { // those that have not said hello too
		c.hangUp(&stopping)
	}
}

// finish goes on until the readers have handed over what they read and Redis has
// been told of every release, until bound ends.
func (s *Server) finish(bound context.Context) {
	quiet := make(chan struct{})
	go func() {
		s.readers.Wait()
		close(quiet)
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	s.finishing.Store(true)
	for reading := (<-chan struct{})(quiet); ; {
		now := s.step()
		if s.inbox.pending() && bound.Err() == nil {
			continue
		}
		if reading == nil && s.table.Owing() == 0 {
			return
		}
		if at, ok := s.next(now); ok {
			timer.Reset(time.Duration(at - now)) // something is to be asked again
		}
		select {
		case <-reading:
			reading = nil
		case <-s.inbox.ready:
		case <-timer.C:
		case <-bound.Done():
			if n := s.table.Owing(); n > 0 {
				s.log.Warn("some releases did not reach Redis in time; those locks end with their leases", "locks", n)
			}
			return
		}
	}
}
