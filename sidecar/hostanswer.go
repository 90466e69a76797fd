package sidecar

import (
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
)

// answerHost answers a question of another sidecar.
func (l *loop) answerHost(now int64, from string, question protocol.Request) {
	l.hosts.Done()
	var reply protocol.Reply
	switch r := question.(type) {
	case *protocol.Info:
		m := &protocol.InfoOK{ID: r.ID}
		if row, ok := l.table.Info(now, r.Name); ok {
			l.locate(now, &row)
			m.Lock = &row
		}
		reply = m
	case *protocol.List:
		reply = l.list(now, nil, r)
	case *protocol.ForceRelease:
		reply = l.forceForHost(now, from, r)
	default:
		return
	}
	l.hosts.Reply(now, from, reply)
}

// forceForHost ends a hold for another sidecar, if that is permitted here.
func (l *loop) forceForHost(now int64, from string, r *protocol.ForceRelease) protocol.Reply {
	if l.cfg.OtherHosts != otherhosts.ForceRelease {
		refusal := &protocol.Err{ID: r.ID, Code: protocol.Denied, Msg: fmt.Sprintf("host %s does not permit it: its setting other_hosts is not %s; force it there", l.cfg.HostName, otherhosts.ForceRelease)}
		l.auditForceByHost(now, from, r, 0, 0, refusal)
		return refusal
	}
	hold, n := l.table.EndHolds(now, r.Name, r.Hold)
	if n == 0 {
		return &protocol.Err{ID: r.ID, Code: protocol.NotHeld, Msg: fmt.Sprintf("no client on host %s holds %q", l.cfg.HostName, r.Name)}
	}
	l.auditForceByHost(now, from, r, hold, n, nil)
	return forceReleased(r.ID, hold, n)
}
