package sidecar

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
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
	case *protocol.Claim, *protocol.Bye, *protocol.Cancel, *protocol.Downgrade, *refused:
		return false
	}
	if in.kind == clientRelease {
		return false
	}
	why := cl.policy.CountRequest(now)
	if why == nil {
		switch r := in.other.(type) {
		case nil: // see request
			why = cl.policy.Acquire(in.lock, &in.acquire)
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
