package sidecar

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/state"
)

// client is a session as the loop knows it. A resumable one outlives its
// connection and this process: its successor finds it in the state file.
type client struct {
	id    locktable.SessionID
	peer  locktable.Peer
	pidfd int // −1: not watched

	conn      *conn // nil: it is absent, since this process took its session over
	resumable bool
	detached  bool // served no longer, kept for its holds
	leaving   bool // it said bye
	ended     bool // its process has; what it said last is being read
	claiming  bool // it is back, and has not named all its holds yet

	// While it is absent or claiming:
	until  int64                      // how long it is waited for
	missed map[uint64]protocol.Reason // holds that it lost and does not know of

	forgotten int // holds that it claimed and nobody knows of
}

// unwatch gives the pidfd back, which also takes it out of the epoll set.
func (c *client) unwatch() { closePidfd(&c.pidfd) }

func closePidfd(fd *int) {
	if *fd >= 0 {
		unix.Close(*fd)
		*fd = -1
	}
}

// ticket is what proves that a client is the one that opened a session: only this
// sidecar and its successors can make it, and it is good for one user.
func (s *Server) ticket(id locktable.SessionID, uid int64) string {
	mac := hmac.New(sha256.New, s.key[:])
	mac.Write([]byte(s.uuid))
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(id))
	binary.BigEndian.PutUint64(b[8:], uint64(uid))
	mac.Write(b[:])
	return strconv.FormatUint(uint64(id), 10) + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:18])
}

// misses tells whether news of a lost hold waits until the client asks for the hold by
// claiming it. Of one that it does claim, it puts in the reason.
func (cl *client) misses(e *locktable.Effect) bool {
	if cl.conn == nil || cl.claiming && !e.Was && e.Reason != protocol.Forgotten {
		if cl.missed == nil {
			cl.missed = make(map[uint64]protocol.Reason)
		}
		cl.missed[e.Hold] = e.Reason
		return true
	}
	if why, ok := cl.missed[e.Hold]; ok && e.Reason == protocol.Forgotten {
		e.Reason = why
	}
	if e.Reason == protocol.Forgotten {
		cl.forgotten++
	}
	return false
}

// absentee returns the client whose session a ticket is good for, or nil. One that is
// still claiming may come again: it gave up the connection before, whose end has not
// been read yet.
func (s *Server) absentee(ticket string, uid int64) *client {
	number, _, ok := strings.Cut(ticket, ".")
	id, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		return nil
	}
	cl := s.sessions[locktable.SessionID(id)]
	if cl == nil || cl.conn != nil && !cl.claiming || cl.detached || !hmac.Equal([]byte(ticket), []byte(s.ticket(cl.id, uid))) {
		return nil
	}
	return cl
}

// takeOver continues what the predecessor left: it restores the table, watches the
// processes whose sessions it had, and ends the sessions of those that ended.
func (s *Server) takeOver(now int64, left *state.Left) {
	s.last = locktable.SessionID(left.LastSession)
	if left.Fresh {
		if left.Why == "" {
			s.log.Info("no sidecar before this one left its state", "file", s.cfg.State)
		} else {
			s.log.Warn("the state of an earlier sidecar cannot be used; its locks end with their leases", "file", s.cfg.State, "reason", left.Why)
		}
		return
	}
	s.table.Restore(now, &left.Memory)
	dead, unseen, unknown := 0, 0, 0
	// Who comes back needs two descriptors more, until the one of here is given back.
	below := forClients() / 2
	for i := range left.Sessions {
		r := &left.Sessions[i]
		s.last = max(s.last, r.ID)
		cl := &client{id: r.ID, peer: r.Peer, pidfd: -1, resumable: r.Resumable, detached: r.Detached}
		s.sessions[r.ID] = cl
		process := unwatched // in another pid namespace
		if r.Peer.PID > 0 {
			cl.pidfd, process = reopen(r.Peer.PID, r.Process, below)
		}
		switch {
		case process == ended:
			dead++
			s.close(now, cl, "its process ended while no sidecar ran")
			continue
		case s.table.Holds(cl.id) == 0: // nothing to come back for
			s.end(now, cl)
			continue
		}
		s.watch(cl)
		cl.until = now + int64(s.patience(cl))
		switch {
		case process == unproven:
			unknown++
		case cl.pidfd < 0 && r.Peer.PID > 0:
			unseen++
		}
		if !cl.resumable && !cl.detached {
			cl.detached = true
			s.table.Detach(now, cl.id)
		}
	}
	s.planAbsence()
	if unseen > 0 {
		s.log.Error("too few files may be open to watch every client's process; those that do not come back within resume-unseen lose their locks; raise the limit (LimitNOFILE= of the unit, ulimit -n)",
			"clients", unseen, "limit", maxFiles())
	}
	if unknown > 0 {
		s.log.Warn("cannot find out whether the processes that have the pids of some clients are still those clients; those that do not come back within resume-unseen lose their locks; let the sidecar read the start times of processes (/proc without hidepid), or use Linux 6.9 or later",
			"clients", unknown)
	}
	s.log.Info("took over from the sidecar before", "locks", len(left.Memory.Locks), "clients", len(s.sessions), "ended", dead)
}

// patience is how long a client that is away is waited for.
func (s *Server) patience(cl *client) time.Duration {
	if cl.pidfd < 0 {
		// It is in another pid namespace, there are too few descriptors, or it
		// is not known which process has its pid: its end is not seen.
		return s.cfg.ResumeUnseen
	}
	return s.cfg.ResumeWithin
}

// away tells whether the client has not taken its session up again.
func (cl *client) away() bool { return (cl.conn == nil || cl.claiming) && !cl.detached }

// planAbsence finds out when somebody has been waited for long enough.
func (s *Server) planAbsence() {
	s.absentUntil = 0
	for _, cl := range s.sessions {
		if cl.away() && (s.absentUntil == 0 || cl.until < s.absentUntil) {
			s.absentUntil = cl.until
		}
	}
}

// endAbsence stops renewing for clients that do not come back.
func (s *Server) endAbsence(now int64) {
	if s.absentUntil == 0 || now < s.absentUntil {
		return
	}
	for _, cl := range s.sessions {
		if cl.away() && now >= cl.until {
			s.log.Warn("client did not come back after the restart; its locks end at their deadlines",
				"session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "holds", s.table.Holds(cl.id))
			if cl.conn != nil {
				s.part(cl.conn, &protocol.Err{Code: protocol.NoHello, Msg: "the claims did not come to an end in time; locks that are held end at their deadlines"})
				cl.conn.client, cl.conn, cl.claiming = nil, nil, false
			}
			cl.detached = true
			s.table.Detach(now, cl.id)
			s.forgetDetached(now, cl)
		}
	}
	s.planAbsence()
}

// watch has the end of the client's process end its session.
func (s *Server) watch(cl *client) {
	if cl.pidfd < 0 {
		return
	}
	if err := s.pids.add(cl.id, cl.pidfd); err != nil {
		s.log.Warn("cannot watch a client's process; its death shows when its connection ends", "session", cl.id, "pid", cl.peer.PID, "error", err)
	}
}

// greet begins a session, or takes up one whose client comes back.
func (s *Server) greet(now int64, c *conn, m *protocol.Hello) {
	var err protocol.Err
	switch {
	case s.stopping:
		err = stopping
	case m.V != protocol.Version:
		err = protocol.Err{Code: protocol.Unsupported, Msg: "this sidecar (" + s.cfg.Version + ") speaks version 1 of the protocol only; install a client and a sidecar of the same release"}
	}
	var cl *client
	if err.Code == "" && m.Resume != "" {
		cl = s.absentee(m.Resume, c.peer.UID)
	}
	resumed := cl != nil
	if !resumed && err.Code == "" {
		if why := crowded("clients", c.peer.UID, len(s.sessions), s.table.Sessions(c.peer.UID), s.cfg.MaxSessions); why != nil {
			err = *why
		}
	}
	if err.Code != "" {
		err.ID = m.ID
		closePidfd(&c.pidfd)
		s.part(c, &err)
		return
	}
	c.peer.Client = m.Client
	if resumed {
		if cl.conn != nil {
			s.part(cl.conn, &protocol.Err{Code: protocol.Unavailable, Msg: "the session was resumed over a newer connection"})
			s.adrift(cl)
		}
		cl.unwatch()
		cl.claiming = true
		s.table.Resume(cl.id, c.peer)
	} else {
		s.last++
		if s.state != nil {
			s.state.KeepLastSession(uint64(s.last))
		}
		cl = &client{id: s.last, resumable: m.Resumable}
		s.sessions[cl.id] = cl
		s.table.Open(now, cl.id, c.peer)
	}
	cl.conn, c.client = c, cl
	cl.peer = c.peer
	cl.pidfd, c.pidfd = c.pidfd, -1
	s.watch(cl)
	if s.state != nil {
		s.state.OpenSession(state.Session{
			SessionRecord: s.table.Record(cl.id), Peer: cl.peer, Process: c.process, Resumable: cl.resumable,
		})
	}
	answer := protocol.HelloOK{
		ID: m.ID, V: protocol.Version, Sidecar: s.uuid, Version: s.cfg.Version,
		Session: uint64(cl.id), LeaseMS: s.cfg.Lease.Milliseconds(), NowNS: now, Resumed: resumed,
	}
	if cl.resumable {
		answer.Ticket = s.ticket(cl.id, cl.peer.UID)
	}
	s.say(c, &answer)
}

// claim takes in what a client that came back still has.
func (s *Server) claim(now int64, cl *client, m *protocol.Claim) {
	if fault := s.table.Claim(now, cl.id, m); fault != "" {
		s.broke(now, cl.conn, badFrame(fault))
	}
}

// takenUp ends the absence of a client that has claimed all that it has.
func (s *Server) takenUp(cl *client) {
	cl.claiming, cl.missed = false, nil
	s.log.Info("client is back", "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "holds", s.table.Holds(cl.id), "forgotten", cl.forgotten)
}

// adrift waits again for a client that was lost while it was claiming.
func (s *Server) adrift(cl *client) {
	cl.conn.client = nil
	cl.conn, cl.claiming = nil, false
	s.planAbsence()
}

// gone ends the session of a connection that ended.
func (s *Server) gone(now int64, c *conn) {
	cl := c.client
	switch {
	case cl == nil:
		closePidfd(&c.pidfd)
	case cl.ended:
		s.close(now, cl, "its process ended")
	case s.stopping, cl.detached:
	case cl.claiming:
		s.adrift(cl)
	default:
		s.close(now, cl, "its connection ended")
	}
}

// badFrame is the last frame to a client that broke the protocol.
func badFrame(msg string) *protocol.Err { return &protocol.Err{Code: protocol.BadFrame, Msg: msg} }

// broke ends the service to a client that broke the protocol; fault is its last frame.
// What it holds it keeps until the deadlines, or until its process ends.
func (s *Server) broke(now int64, c *conn, fault *protocol.Err) {
	s.part(c, fault)
	cl := c.client
	if cl == nil {
		closePidfd(&c.pidfd)
		s.logAbout(lineKind{slog.LevelWarn, c.peer.UID, "client refused", string(fault.Code)}, "code", fault.Code, "pid", c.peer.PID, "cmd", c.peer.Cmd, "reason", fault.Msg)
		return
	}
	s.logAbout(lineKind{slog.LevelWarn, cl.peer.UID, "client broke the protocol", string(fault.Code)},
		"code", fault.Code, "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "reason", fault.Msg, "holds", s.table.Holds(cl.id))
	switch {
	case cl.ended:
		s.close(now, cl, "its process ended")
		return
	case cl.claiming:
		s.adrift(cl)
		return
	}
	cl.detached = true
	s.table.Detach(now, cl.id)
	s.forgetDetached(now, cl)
}

// forgetDetached ends the session of a detached client once it holds nothing.
func (s *Server) forgetDetached(now int64, cl *client) {
	if cl.detached && s.sessions[cl.id] == cl && s.table.Holds(cl.id) == 0 {
		s.end(now, cl)
	}
}

// ended ends the session of a process that ended, even if a child of it still has
// the connection. What the process said last is read first: who gave a lock back, and
// then ended, did not crash with it.
func (s *Server) ended(now int64, id locktable.SessionID) {
	cl := s.sessions[id]
	switch {
	case cl == nil:
	case cl.conn != nil && !cl.claiming && !cl.detached:
		cl.ended = true
		cl.conn.shut()
	default:
		s.close(now, cl, "its process ended")
		if cl.conn != nil {
			cl.conn.nc.Close()
		}
	}
}

func (s *Server) close(now int64, cl *client, why string) {
	if n := s.table.Holds(cl.id); n > 0 {
		s.logAbout(lineKind{slog.LevelInfo, cl.peer.UID, "client ended with locks held; released", why}, "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "holds", n, "reason", why)
	}
	s.end(now, cl)
}

func (s *Server) end(now int64, cl *client) {
	s.table.Close(now, cl.id)
	delete(s.sessions, cl.id)
	cl.unwatch()
	if cl.conn != nil {
		cl.conn.client = nil // what it still says is for nobody
	}
}

// Defaults and bounds of how long an absent client is waited for.
const (
	DefaultResumeWithin = time.Hour
	maxResumeWithin     = 30 * 24 * time.Hour
)
