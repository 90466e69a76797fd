package sidecar

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// loop is the state of a running sidecar. The goroutine that runs Server.run owns
// all of it.
type loop struct {
	table    *locktable.Table
	store    *store.Store
	pids     *pidWatch
	sessions map[locktable.SessionID]*conn
	last     locktable.SessionID // newest session
	stopping bool
	batch    []input // emptied, for the next take

	// Collected in one step and carried out at its end.
	dirty []*conn
	ops   []locktable.Op

	// Scratch for frames, so that an answer costs no allocation.
	granted  protocol.AcquireOK
	released protocol.ReleaseOK
	failed   protocol.Err
	lost     protocol.LostEvent
	lease    protocol.LeaseEvent
}

// maxSleep bounds how late the loop notices what fell due during a suspend.
const maxSleep = time.Second

// run serves until stop is closed: it sleeps until somebody says something or a
// timer is due, does the time's work first, and then what was said.
func (s *Server) run(stop <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return
		case <-s.inbox.ready:
		case <-timer.C:
		}
		now := s.step()
		if at, ok := s.table.Next(); ok {
			// Timers stand still while the host is suspended, deadlines do not.
			timer.Reset(min(time.Duration(at-now), maxSleep))
		} else {
			timer.Stop()
		}
	}
}

// step takes in what was said and carries out what the table wants done. One
// reading of the clock serves all of it: a time that is a little old makes
// deadlines earlier, never later.
func (s *Server) step() (now int64) {
	now = protocol.Now()
	s.table.Advance(now)
	batch := s.inbox.take(s.batch)
	for i := range batch {
		s.apply(now, &batch[i])
	}
	s.carryOut()
	clear(batch)
	if cap(batch) > 1<<13 {
		batch = nil // a burst's memory is not kept
	}
	s.batch = batch
	return now
}

func (s *Server) apply(now int64, in *input) {
	switch in.what {
	case clientHello, clientAcquire, clientRelease, clientRequest:
		in.conn.taken()
		s.fromClient(now, in)
	case clientGone:
		s.gone(now, in.conn)
	case clientBroke:
		s.broke(now, in.conn, in.code, in.text)
	case processEnded:
		s.ended(now, in.session)

	case redisResults:
		for i := range in.results {
			s.table.Result(now, in.results[i])
		}
	case redisUp:
		s.table.Up(now, in.flag)
	case redisDown:
		s.table.Down(now, in.text)
	case redisSubscribed:
		for _, name := range in.names {
			s.table.Subscribed(now, name)
		}
	case redisUnsubscribed:
		for _, name := range in.names {
			s.table.Unsubscribed(now, name)
		}
	case redisMessage:
		for _, name := range in.names {
			s.table.Message(now, name)
		}
	case ping:
		close(in.done)
	}
}

// fromClient does what one request asks.
func (s *Server) fromClient(now int64, in *input) {
	c := in.conn
	if in.what == clientHello {
		s.greet(now, c, in.request.(*protocol.Hello))
		return
	}
	if c.id == 0 || c.detached || s.stopping && in.what != clientRelease {
		return // it was told why, or is being told
	}
	switch in.what {
	case clientAcquire:
		if s.table.Waiting(c.id, in.acquire.ID) {
			s.broke(now, c, protocol.BadFrame, "id is in use by an acquire that is not answered yet; choose another")
			return
		}
		s.table.Acquire(now, c.id, in.acquire)
		return
	case clientRelease:
		s.table.Release(now, c.id, in.release)
		return
	}
	id := in.request.RequestID()
	switch r := in.request.(type) {
	case *protocol.Cancel:
		s.table.Cancel(now, c.id, *r)
	case *protocol.Info:
		m := protocol.InfoOK{ID: id}
		if row, ok := s.table.Info(now, r.Name); ok {
			m.Lock = &row
		}
		s.say(c, &m)
	case *protocol.List:
		s.say(c, s.list(now, r))
	case *protocol.ForceRelease:
		if row, ok := s.table.Info(now, r.Name); ok && row.State == protocol.StateHeld && !mayForce(c.peer.UID, row.UID) {
			s.refuse(c, id, protocol.Denied, "the lock is held by a process of another user; ask as that user, as the sidecar's user, or as root")
			return
		}
		s.table.ForceRelease(now, c.id, *r)
	case *protocol.Ping:
		s.say(c, &protocol.PingOK{ID: id, NowNS: now, Redis: s.Redis()})
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

func (s *Server) greet(now int64, c *conn, m *protocol.Hello) {
	var err protocol.Err
	switch {
	case s.stopping:
		err = stopping
	case m.V != protocol.Version:
		err = protocol.Err{Code: protocol.Unsupported, Msg: "this sidecar (" + s.cfg.Version + ") speaks version 1 of the protocol only; install a client and a sidecar of the same release"}
	case len(s.sessions) >= s.cfg.MaxSessions:
		err = protocol.Err{Code: protocol.Limit, Msg: "too many clients; close some, or raise max-sessions of the sidecar"}
	}
	if err.Code != "" {
		err.ID = m.ID
		c.unwatch()
		c.hangUp(&err)
		return
	}
	s.last++
	c.id = s.last
	c.peer.Client = m.Client
	s.sessions[c.id] = c
	s.table.Open(now, c.id, c.peer)
	if c.pidfd >= 0 {
		if err := s.pids.add(c.id, c.pidfd); err != nil {
			s.log.Warn("cannot watch a client's process; its death shows when its connection ends", "session", c.id, "pid", c.peer.PID, "error", err)
		}
	}
	s.say(c, &protocol.HelloOK{
		ID: m.ID, V: protocol.Version, Sidecar: s.uuid, Version: s.cfg.Version,
		Session: uint64(c.id), LeaseMS: s.cfg.Lease.Milliseconds(), NowNS: now,
	})
}

// gone ends the session of a connection that ended.
func (s *Server) gone(now int64, c *conn) {
	switch {
	case s.sessions[c.id] != c || s.stopping:
		c.unwatch()
		return
	case c.detached:
		return
	}
	s.close(now, c, "its connection ended")
}

// broke ends the service to a client that broke the protocol. What it holds it
// keeps until the deadlines, or until its process ends.
func (s *Server) broke(now int64, c *conn, code protocol.Code, text string) {
	c.hangUp(&protocol.Err{Code: code, Msg: text})
	if s.sessions[c.id] != c {
		c.unwatch()
		s.log.Warn("client refused", "pid", c.peer.PID, "cmd", c.peer.Cmd, "code", code, "reason", text)
		return
	}
	s.log.Warn("client broke the protocol", "session", c.id, "pid", c.peer.PID, "cmd", c.peer.Cmd,
		"code", code, "reason", text, "holds", s.table.Holds(c.id))
	c.detached = true
	s.table.Detach(now, c.id)
	s.forgetDetached(now, c)
}

// forgetDetached ends the session of a detached client once it holds nothing.
func (s *Server) forgetDetached(now int64, c *conn) {
	if c.detached && s.sessions[c.id] == c && s.table.Holds(c.id) == 0 {
		s.table.Close(now, c.id)
		delete(s.sessions, c.id)
		c.unwatch()
	}
}

// ended ends the session of a process that ended, even if a child of it still has
// the connection.
func (s *Server) ended(now int64, id locktable.SessionID) {
	if c := s.sessions[id]; c != nil {
		s.close(now, c, "its process ended")
		c.nc.Close()
	}
}

func (s *Server) close(now int64, c *conn, why string) {
	if n := s.table.Holds(c.id); n > 0 {
		s.log.Info("client ended with locks held; released", "session", c.id, "pid", c.peer.PID, "cmd", c.peer.Cmd, "holds", n, "reason", why)
	}
	s.table.Close(now, c.id)
	delete(s.sessions, c.id)
	c.unwatch()
}

// unwatch gives the pidfd back, which also takes it out of the epoll set.
func (c *conn) unwatch() {
	if c.pidfd >= 0 {
		unix.Close(c.pidfd)
		c.pidfd = -1
	}
}

func mayForce(caller, holder int64) bool {
	return caller == 0 || caller == holder || caller == int64(unix.Geteuid())
}

// list fills one page.
func (s *Server) list(now int64, r *protocol.List) *protocol.ListOK {
	m := &protocol.ListOK{ID: r.ID}
	room := protocol.ListRoom
	m.Next = s.table.List(now, r.After, func(row protocol.LockRow) bool {
		if room -= row.Size(); room < 0 {
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
	var broken []*conn
	for i := range effects {
		e := &effects[i]
		c := s.sessions[e.Session]
		if e.Kind == locktable.Lost {
			s.logLost(e, c)
		}
		if c == nil {
			continue
		}
		if c.detached {
			if e.Kind == locktable.Lost {
				broken = append(broken, c)
			}
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
		case locktable.Canceled:
			s.say(c, &protocol.CancelOK{ID: e.ID, Canceled: e.Was})
		case locktable.Forced:
			s.say(c, &protocol.ForceReleaseOK{ID: e.ID, Hold: e.Hold})
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
	for _, c := range broken {
		s.forgetDetached(protocol.Now(), c)
	}
}

func (s *Server) logLost(e *locktable.Effect, c *conn) {
	pid, cmd := int64(0), ""
	if c != nil {
		pid, cmd = c.peer.PID, c.peer.Cmd
	}
	if e.Reason == protocol.MaxHold || e.Reason == protocol.ByForce {
		s.log.Info("lock ended", "lock", e.Name, "hold", e.Hold, "session", e.Session, "pid", pid, "cmd", cmd, "reason", e.Reason)
		return
	}
	s.log.Warn("lock lost", "lock", e.Name, "hold", e.Hold, "session", e.Session, "pid", pid, "cmd", cmd, "reason", e.Reason)
}

var stopping = protocol.Err{Code: protocol.Unavailable, Msg: "the sidecar is stopping; locks stay held until their deadlines; connect again when it is back"}

// hangUp says goodbye to every client. Waiters are gone with that; holds stay as
// they are.
func (s *Server) hangUp() {
	s.stopping = true
	now := protocol.Now()
	for id := range s.sessions {
		s.table.Detach(now, id)
	}
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
	for reading := (<-chan struct{})(quiet); ; {
		now := s.step()
		if reading == nil && s.table.Owing() == 0 {
			return
		}
		if at, ok := s.table.Next(); ok {
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
