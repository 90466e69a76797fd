package sidecar

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/state"
)

// unwatch gives the pidfd back, which also takes it out of the epoll set.
func (c *session) unwatch() { peers.ClosePidfd(&c.pidfd) }

// ticket is what proves that a client is the one that opened a session: only this
// sidecar and its successors can make it, and it is good for one user.
func (l *loop) ticket(id locktable.SessionID, uid int64) string {
	mac := hmac.New(sha256.New, l.key[:])
	mac.Write([]byte(l.uuid))
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(id))
	binary.BigEndian.PutUint64(b[8:], uint64(uid))
	mac.Write(b[:])
	return strconv.FormatUint(uint64(id), 10) + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:18])
}

// deferLost reports whether the loss of a hold is not sent until the client claims the hold.
// If it has claimed it, deferLost puts in the reason.
func (cl *session) deferLost(e *locktable.Effect) bool {
	if cl.conn == nil || cl.phase == locktable.SessionClaiming && !e.WasClaimed && e.Reason != protocol.Forgotten {
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

// sessionForTicket returns the session that a client may resume with this ticket, or nil. A
// client that is still claiming may resume again: it gave up the connection before, whose
// end has not been read yet.
func (l *loop) sessionForTicket(ticket string, uid int64) *session {
	number, _, ok := strings.Cut(ticket, ".")
	id, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		return nil
	}
	cl := l.sessions[locktable.SessionID(id)]
	if cl == nil || !cl.phase.IsAway() || !hmac.Equal([]byte(ticket), []byte(l.ticket(cl.id, uid))) {
		return nil
	}
	return cl
}

// endRefusedClaim ends the absent session whose ticket a client has shown in vain: it knows now that its
// locks end at their deadlines, and nothing can release them before. That is certain only of the process
// of the session. Other sessions of the process stay. why: the reason of the refusal, "": there is none but
// that the user is another one. It returns the reason, or "" if it ended nothing.
func (l *loop) endRefusedClaim(now int64, c *conn, ticket, why string) string {
	number, _, _ := strings.Cut(ticket, ".")
	id, _ := strconv.ParseUint(number, 10, 64)
	cl := l.sessions[locktable.SessionID(id)]
	if cl == nil || cl.phase != locktable.SessionAbsent || l.sessionForTicket(ticket, cl.peer.UID) != cl ||
		cl.peer.PID != c.peer.PID || peers.Compare(cl.process, c.process) != peers.Watched {
		return ""
	}
	if cl.peer.UID != c.peer.UID {
		why = fmt.Sprintf("the user changed: uid %d opened the session, and this process has uid %d", cl.peer.UID, c.peer.UID)
	}
	if why == "" {
		return ""
	}
	l.log.Warn("client came back, and its session cannot be resumed; its locks end at their deadlines",
		"session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "holds", l.table.Holds(cl.id), "reason", why)
	l.giveUp(now, cl)
	l.endIfEmpty(now, cl)
	return why + "; its locks end at their deadlines"
}

const executedWhy = "its process has executed another program"

// restore continues what the predecessor left: it restores the table, watches the
// processes whose sessions it had, and ends the sessions of those that ended.
func (l *loop) restore(now int64, recovered *state.Recovered) {
	l.last = locktable.SessionID(recovered.LastSessionID)
	if recovered.Reset {
		if recovered.ResetReason == "" {
			l.log.Info("no sidecar before this one left its state", "file", l.cfg.State)
		} else {
			l.takeover.reset = recovered.ResetReason
			l.log.Warn("the state of an earlier sidecar cannot be used; its locks end with their leases", "file", l.cfg.State, "reason", recovered.ResetReason)
		}
		return
	}
	l.table.Restore(now, &recovered.Snapshot)
	dead, unseen, unknown := 0, 0, 0
	forced := recovered.Snapshot.Forced()
	// A client that comes back needs two descriptors more, until the one of here is closed.
	below := peers.ClientFDLimit() / 2
	for i := range recovered.Sessions {
		r := &recovered.Sessions[i]
		l.last = max(l.last, r.ID)
		cl := &session{id: r.ID, peer: r.Peer, process: r.Process, pidfd: -1, since: now, resumable: r.Resumable, phase: r.RestoredPhase()}
		l.sessions[r.ID] = cl
		process := peers.Unwatched // in another pid namespace
		if r.Peer.PID > 0 {
			cl.pidfd, process = peers.Find(r.Peer.PID, r.Process, below)
		}
		switch {
		case process == peers.Ended, process == peers.Executed:
			dead++
			why := "its process ended while no sidecar ran"
			if process == peers.Executed {
				why = executedWhy
			}
			l.close(now, cl, why)
			continue
		case l.table.Holds(cl.id) == 0 && !forced[cl.id]: // nothing to come back for
			l.end(now, cl)
			continue
		}
		l.watch(cl)
		cl.until = now + int64(l.resumeTimeout(cl))
		switch {
		case process == peers.Unproven:
			unknown++
		case cl.pidfd < 0 && r.Peer.PID > 0:
			unseen++
		}
		if !cl.resumable && cl.phase == locktable.SessionAbsent {
			l.giveUp(now, cl)
		}
	}
	l.armAbsence()
	if unseen > 0 {
		l.log.Error("too few files may be open to watch every client's process; those that do not come back within resume-unseen lose their locks; raise the limit (LimitNOFILE= of the unit, ulimit -n)",
			"clients", unseen, "limit", peers.FDLimit())
	}
	if unknown > 0 {
		l.log.Warn("cannot find out whether the processes that have the pids of some clients are still those clients; those that do not come back within resume-unseen lose their locks; let the sidecar read the start times of processes (/proc without hidepid), or use Linux 6.9 or later",
			"clients", unknown)
	}
	holds := len(recovered.Snapshot.Holds)
	l.takeover = takeover{holds: holds, opened: len(l.sessions), ended: dead}
	if holds > 0 {
		l.record(protocol.EventRow{AtNS: now, Kind: protocol.EventTakeover, Count: uint32(holds), Msg: describeTakeover(holds, len(l.sessions), dead)})
	}
	l.log.Info("took over from the sidecar before", "locks", len(recovered.Snapshot.Locks), "clients", len(l.sessions), "ended", dead)
}

// describeTakeover describes what a sidecar continues with: holds of all clients of the
// predecessor, clients whose processes live, and how many had ended.
func describeTakeover(holds, clients, ended int) string {
	text := fmt.Sprintf("took over %s; %s with locks may come back", plural(holds, "hold"), plural(clients, "client"))
	if ended > 0 {
		text += fmt.Sprintf("; the processes of %s had ended", plural(ended, "client"))
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// resumeTimeout is how long a client that is away is waited for.
func (l *loop) resumeTimeout(cl *session) time.Duration {
	if cl.pidfd < 0 {
		// It is in another pid namespace, there are too few descriptors, or it
		// is not known which process has its pid: its end is not seen.
		return l.cfg.ResumeUnseen
	}
	return l.cfg.ResumeWithin
}

// armAbsence finds out when the first client that is away has been waited for long enough.
func (l *loop) armAbsence() {
	l.absentUntil = 0
	for _, cl := range l.sessions {
		if cl.phase.IsAway() && (l.absentUntil == 0 || cl.until < l.absentUntil) {
			l.absentUntil = cl.until
		}
	}
}

// endAbsence stops renewing for clients that do not come back.
func (l *loop) endAbsence(now int64) {
	if l.absentUntil == 0 || now < l.absentUntil {
		return
	}
	for _, cl := range l.sessions {
		if cl.phase.IsAway() && now >= cl.until {
			l.log.Warn("client did not come back after the restart; its locks end at their deadlines",
				"session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "holds", l.table.Holds(cl.id))
			if cl.conn != nil {
				l.closeAfterFlush(cl.conn, &protocol.Err{Code: protocol.NoHello, Msg: "the claims did not come to an end in time; locks that are held end at their deadlines"})
				cl.conn.session, cl.conn = nil, nil
			}
			l.giveUp(now, cl)
			l.endIfEmpty(now, cl)
		}
	}
	l.armAbsence()
}

// watch has the end of the client's process end its session.
func (l *loop) watch(cl *session) {
	if cl.pidfd < 0 {
		return
	}
	if err := l.pids.Add(cl.id, cl.pidfd); err != nil {
		l.log.Warn("cannot watch a client's process; its death shows when its connection ends", "session", cl.id, "pid", cl.peer.PID, "error", err)
	}
}

// unsupportedVersion refuses a hello with version v of the protocol.
func (l *loop) unsupportedVersion(v int64) protocol.Err {
	older := "the sidecar"
	if v < protocol.Version {
		older = "the client"
	}
	return protocol.Err{
		Code: protocol.Unsupported,
		Msg:  fmt.Sprintf("this sidecar (%s) speaks version %d of the protocol, the client version %d; upgrade %s", l.cfg.Version, protocol.Version, v, older),
	}
}

// onHello begins a session, or resumes one.
func (l *loop) onHello(now int64, c *conn, m *protocol.Hello) {
	var err protocol.Err
	switch {
	case l.stopping:
		err = stopping
	case m.V != protocol.Version:
		err = l.unsupportedVersion(m.V)
	}
	if err.Code == "" && c.denial != nil {
		err = *c.denial
	}
	var cl *session
	if err.Code == "" && m.Resume != "" {
		cl = l.sessionForTicket(m.Resume, c.peer.UID)
	}
	resumed := cl != nil
	if !resumed && err.Code == "" {
		if why := checkShare("clients", c.peer.UID, len(l.sessions), l.table.Sessions(c.peer.UID), l.cfg.MaxSessions); why != nil {
			err = *why
		}
	}
	var policed *policy.Session
	if err.Code == "" {
		var why *policy.Refusal
		if policed, why = l.openPolicy(now, c, cl); why != nil {
			err = *why.Err()
			l.ledger.Count(why)
			l.lines.About(now, loglimit.Warn(c.peer.UID, "the policy refused a client", string(err.Code)), "", "code", err.Code, "pid", c.peer.PID, "cmd", c.peer.Cmd, "reason", err.Msg)
		}
	}
	var refusedClaim string
	if err.Code == "" && !resumed || err.Code == protocol.Denied {
		refusedClaim = l.endRefusedClaim(now, c, m.Resume, err.Msg)
	}
	if err.Code != "" {
		err.ID = m.ID
		peers.ClosePidfd(&c.pidfd)
		l.closeAfterFlush(c, &err)
		return
	}
	c.peer.Client = m.Client
	if resumed {
		if cl.conn != nil {
			l.closeAfterFlush(cl.conn, &protocol.Err{Code: protocol.Unavailable, Msg: "the session was resumed over a newer connection"})
			l.awaitResume(cl)
		}
		cl.unwatch()
		cl.phase = locktable.SessionClaiming
		l.table.Resume(cl.id, c.peer)
	} else {
		l.last++
		if l.state != nil {
			l.state.PutLastSessionID(uint64(l.last))
		}
		cl = &session{id: l.last, resumable: m.Resumable}
		l.sessions[cl.id] = cl
		l.table.Open(now, cl.id, c.peer)
	}
	cl.conn, c.session = c, cl
	if policed != nil && cl.policy == nil {
		cl.policy = policed
		l.table.Bind(cl.id, policed.Terms())
	}
	cl.peer, cl.process = c.peer, c.process
	cl.pidfd, c.pidfd = c.pidfd, -1
	l.watch(cl)
	if l.state != nil {
		l.state.OpenSession(state.Session{
			SessionRecord: l.table.Record(cl.id), Peer: cl.peer, Process: c.process, Resumable: cl.resumable,
		})
	}
	answer := protocol.HelloOK{
		ID: m.ID, V: protocol.Version, Sidecar: l.uuid, Version: l.cfg.Version,
		Session: uint64(cl.id), LeaseMS: l.cfg.Lease.Milliseconds(), NowNS: now, Resumed: resumed, Msg: refusedClaim,
	}
	if cl.resumable {
		answer.Ticket = l.ticket(cl.id, cl.peer.UID)
	}
	l.queueReply(c, &answer)
}

// onClaim takes in what a client that came back still has.
func (l *loop) onClaim(now int64, cl *session, m *protocol.Claim) {
	if fault := l.table.Claim(now, cl.id, m); fault != "" {
		l.onProtocolError(now, cl.conn, cl, badFrame(fault))
	}
}

// onResumed ends the absence of a client that has claimed all that it has.
func (l *loop) onResumed(cl *session) {
	l.counters.resumed++
	l.counters.forgotten += uint64(cl.forgotten)
	l.losses.add(l.stepAt, protocol.Forgotten, uint32(cl.forgotten))
	l.takeover.back++
	cl.missed = nil
	if cl.phase == locktable.SessionClaiming {
		cl.phase = locktable.SessionServing
	}
	l.log.Info("client is back", "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "holds", l.table.Holds(cl.id), "forgotten", cl.forgotten)
}

// awaitResume waits again for a client whose connection ended while it was claiming.
func (l *loop) awaitResume(cl *session) {
	cl.conn.session = nil
	cl.conn, cl.phase = nil, locktable.SessionAbsent
	l.armAbsence()
}

// onDisconnect ends the session of a connection that ended.
func (l *loop) onDisconnect(now int64, c *conn) {
	cl := c.session
	switch {
	case cl == nil:
		peers.ClosePidfd(&c.pidfd)
	case cl.phase == locktable.SessionDraining:
		l.close(now, cl, "its process ended")
	case c.isDraining.Load() && !c.isOver, cl.phase.IsOver():
	case cl.phase == locktable.SessionClaiming:
		l.awaitResume(cl)
	default:
		why := "its connection ended"
		if l.table.Holds(cl.id) > 0 && peers.IsEnding(cl.pidfd, cl.peer.PID) {
			why = "its process ended" // the pidfd reports it after this
		}
		l.close(now, cl, why)
	}
}

// onProtocolError ends the service to a client that broke the protocol; fault is its last
// frame. What it holds it keeps until the deadlines, or until its process ends.
func (l *loop) onProtocolError(now int64, c *conn, cl *session, fault *protocol.Err) {
	l.closeAfterFlush(c, fault)
	if cl == nil {
		peers.ClosePidfd(&c.pidfd)
		l.lines.About(now, loglimit.Warn(c.peer.UID, "client refused", string(fault.Code)), "", "code", fault.Code, "pid", c.peer.PID, "cmd", c.peer.Cmd, "reason", fault.Msg)
		return
	}
	l.lines.About(now, loglimit.Warn(cl.peer.UID, "client broke the protocol", string(fault.Code)),
		"", "code", fault.Code, "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "reason", fault.Msg, "holds", l.table.Holds(cl.id))
	switch cl.phase {
	case locktable.SessionDraining:
		l.close(now, cl, "its process ended")
		return
	case locktable.SessionClaiming:
		l.awaitResume(cl)
		return
	}
	cl.phase = locktable.SessionUnserved
	l.table.Suspend(now, cl.id)
	l.endIfEmpty(now, cl)
}

// giveUp stops renewing for a client that does not come back.
func (l *loop) giveUp(now int64, cl *session) {
	cl.phase = locktable.SessionGivenUp
	l.table.Suspend(now, cl.id)
}

// endIfEmpty ends a session that is not served any more once it holds nothing.
func (l *loop) endIfEmpty(now int64, cl *session) {
	if cl.phase.IsOver() && l.sessions[cl.id] == cl && l.table.Holds(cl.id) == 0 {
		l.end(now, cl)
	}
}

// onProcessExit ends the session of a process that ended, even if a child of it still has
// the connection. What the process sent last is read first: a process that released a lock,
// and then ended, did not crash with it.
func (l *loop) onProcessExit(now int64, id locktable.SessionID) {
	cl := l.sessions[id]
	switch {
	case cl == nil:
	case cl.phase == locktable.SessionServing || cl.phase == locktable.SessionLeaving:
		cl.phase = locktable.SessionDraining
		rawio.Shutdown(cl.conn.raw)
		cl.conn.abandon()
	default:
		l.close(now, cl, "its process ended")
		if cl.conn != nil {
			cl.conn.nc.Close()
		}
	}
}

func (l *loop) close(now int64, cl *session, why string) {
	if n := l.table.Holds(cl.id); n > 0 {
		var names loglimit.Names
		l.table.HeldNames(cl.id, names.Add)
		l.lines.About(now, loglimit.Info(cl.peer.UID, "client ended with locks held; released", why), "", "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "holds", n, "locks", names.String(), "reason", why)
	}
	l.end(now, cl)
}

func (l *loop) end(now int64, cl *session) {
	l.table.Close(now, cl.id)
	delete(l.sessions, cl.id)
	if cl.policy != nil {
		cl.policy.Close()
	}
	cl.unwatch()
	if cl.conn != nil {
		cl.conn.session = nil // what it still sends is ignored
	}
}

var stopping = protocol.Err{Code: protocol.Unavailable, Msg: "the sidecar is stopping; locks stay held; come back with the ticket when there is a sidecar again"}
