package sidecar

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// openPolicy finds out what the policy says about a session, and counts it; nil: it says nothing.
// A session that is resumed has its holds from before; one that is resumed again keeps what was
// found out first.
func (l *loop) openPolicy(now int64, c *conn, resumed *session) (s *policy.Session, refused *policy.Refusal) {
	if resumed != nil && resumed.policy != nil {
		return resumed.policy, nil
	}
	if c.policyPeer == nil {
		return nil, nil
	}
	if c.rules == nil {
		return nil, c.refusal // nil: no entry is about the process
	}
	return l.ledger.Open(now, c.rules, c.peer.UID, resumed != nil)
}

// isRefusedByPolicy answers a request that the policy does not allow. What gives something back is
// never refused. Precondition: the policy says something about the session.
func (l *loop) isRefusedByPolicy(now int64, cl *session, in *request, id uint64) bool {
	switch in.other.(type) {
	case *protocol.Claim, *protocol.Bye, *protocol.Cancel, *refused:
		return false
	}
	if in.kind == clientRelease {
		return false
	}
	why := cl.policy.CountRequest(now)
	if why == nil {
		switch r := in.other.(type) {
		case nil: // see request
			why = cl.policy.Acquire(&in.acquire)
		case *protocol.List:
			why = cl.policy.List()
		case *protocol.Info:
			why = cl.policy.Info(r.Name)
		case *otherhosts.WhoRequest:
			why = cl.policy.Info(r.Name)
		}
	}
	if why == nil {
		return false
	}
	if in.kind == clientAcquire {
		l.table.CountRefusal(in.acquire.Name, why.Code)
	}
	l.refuseByPolicy(cl, id, why)
	return true
}

func (l *loop) refuseByPolicy(cl *session, id uint64, why *policy.Refusal) {
	if id != 0 {
		l.refuse(cl.conn, id, why.Code, why.Msg)
	}
	l.noteRefusal(cl, why)
}

// noteRefusal counts and logs what the policy refused to a client.
func (l *loop) noteRefusal(cl *session, why *policy.Refusal) {
	l.ledger.Count(why)
	l.lines.About(l.stepAt, loglimit.Warn(cl.peer.UID, "the policy refused a request", why.Rule),
		"", "rule", why.Rule, "code", why.Code, "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "reason", why.Msg)
}

// info answers a request for one lock.
func (l *loop) info(now int64, cl *session, r *protocol.Info) {
	m := protocol.InfoOK{ID: r.ID}
	if row, ok := l.rowFor(now, cl, r.Name); ok {
		m.Lock = &row
	}
	l.queueReply(cl.conn, &m)
}

// who answers a who request.
func (l *loop) who(now int64, cl *session, r *otherhosts.WhoRequest) {
	if r.Refusal != nil {
		l.refuse(cl.conn, r.ID, r.Refusal.Code, r.Refusal.Msg)
		return
	}
	m := &protocol.WhoOK{ID: r.ID, WhoRow: r.Found}
	if row, ok := l.rowFor(now, cl, r.Name); ok {
		m.Lock = &row
		if r.IsOurs {
			m.Holder = &row
		}
	}
	if r.IsOurs && m.Holder == nil {
		m.Trouble = "this sidecar does not know the lock any more: it has just been released, or the daemon was restarted without its state"
	}
	l.queueReply(cl.conn, m)
}

// rowFor returns what this sidecar knows of a lock, as far as a client may know it; false: nothing.
func (l *loop) rowFor(now int64, cl *session, name string) (row protocol.LockRow, ok bool) {
	row, ok = l.table.Info(now, name)
	l.locate(now, &row)
	if ok && cl.policy != nil {
		cl.policy.Terms().Redact(&row)
	}
	return row, ok
}

// forceRelease ends the hold of a lock, if the client may do that.
func (l *loop) forceRelease(now int64, cl *session, r *protocol.ForceRelease) {
	row, ok := l.table.Info(now, r.Name)
	isHeld := ok && row.State == protocol.StateHeld
	if cl.policy != nil {
		if why, decides := cl.policy.ForceRelease(r.Name, isHeld, row.UID); why != nil {
			l.auditForce(now, cl, forceTarget{name: r.Name}, 0, why.Err())
			l.refuseByPolicy(cl, r.ID, why)
			return
		} else if decides {
			l.table.ForceRelease(now, cl.id, *r)
			return
		}
		// The answer would say whether the lock is held.
		if !(isHeld && l.mayForceRelease(cl.peer.UID, row.UID)) && !peers.IsPrivileged(cl.peer.UID) {
			if why := cl.policy.Info(r.Name); why != nil {
				l.auditForce(now, cl, forceTarget{name: r.Name}, 0, why.Err())
				l.refuseByPolicy(cl, r.ID, why)
				return
			}
		}
	}
	if isHeld && !l.mayForceRelease(cl.peer.UID, row.UID) {
		const why = "the lock is held by a process of another user; ask as that user, as the sidecar's user, or as root"
		l.auditForce(now, cl, forceTarget{name: r.Name}, 0, &protocol.Err{Code: protocol.Denied, Msg: why})
		l.refuse(cl.conn, r.ID, protocol.Denied, why)
		return
	}
	l.table.ForceRelease(now, cl.id, *r)
}
