package sidecar

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/peers"
)

// Who ended a hold by force, or was not permitted to, is in the log and in the events of the host of
// the hold, and of the host of the client that asked.

// forceTarget is a hold that a client of this host asked to end by force.
type forceTarget struct {
	name       string
	host       string // the other host whose hold it is; "": this one, or an orphaned lock
	sidecar    string // uuid of the sidecar that had an orphaned lock, or of which that was asked; "": none, or not known
	isOrphaned bool
	permits    int    // orphaned ones of a semaphore
	hold       uint64 // the one that is to end; 0: all
	ended      uint32 // so many have; 0 and 1: one
}

// forceRelease ends the hold of a lock, if the client may do that.
func (l *loop) forceRelease(now int64, cl *session, r *protocol.ForceRelease) {
	uid, isHeld := l.table.HolderUID(r.Name, r.Hold, cl.peer.UID)
	if cl.policy != nil {
		if why, decides := cl.policy.ForceRelease(r.Name, isHeld, uid); why != nil {
			l.auditForce(now, cl, forceTarget{name: r.Name, hold: r.Hold}, 0, why.Err())
			l.refuseByPolicy(cl, r.ID, why)
			return
		} else if decides {
			l.table.ForceRelease(now, cl.id, *r)
			return
		}
		// The answer would say whether the lock is held.
		if !(isHeld && l.mayForceRelease(cl.peer.UID, uid)) && !peers.IsPrivileged(cl.peer.UID) {
			if why := cl.policy.Info(r.Name); why != nil {
				l.auditForce(now, cl, forceTarget{name: r.Name, hold: r.Hold}, 0, why.Err())
				l.refuseByPolicy(cl, r.ID, why)
				return
			}
		}
	}
	if isHeld && !l.mayForceRelease(cl.peer.UID, uid) {
		why := "the lock is held by a process of another user; ask as that user, as the sidecar's user, or as root"
		l.auditForce(now, cl, forceTarget{name: r.Name, hold: r.Hold}, 0, &protocol.Err{Code: protocol.Denied, Msg: why})
		l.refuse(cl.conn, r.ID, protocol.Denied, why)
		return
	}
	l.table.ForceRelease(now, cl.id, *r)
}

// forceReleased is the answer to a request that has ended so many holds, of which hold is the newest.
func forceReleased(id, hold uint64, n uint32) *protocol.ForceReleaseOK {
	return &protocol.ForceReleaseOK{ID: id, Hold: hold, Count: several(n)}
}

// endedHolds is what a line says of the holds that a request has ended.
func endedHolds(hold uint64, n uint32) []any {
	if n > 1 {
		return []any{"holds", n, "newest", hold}
	}
	return []any{"hold", hold}
}

// mayForceRelease reports whether a user may end a hold of a process of the user holder. The
// overflow uid proves nothing: it stands for many users.
func (l *loop) mayForceRelease(caller, holder int64) bool {
	return peers.IsPrivileged(caller) || caller == holder && caller != l.overflowUID
}

// auditForce notes that a client of this host asked to end a hold by force. Without a refusal, the
// hold has ended.
func (l *loop) auditForce(now int64, cl *session, target forceTarget, hold uint64, refusal *protocol.Err) {
	row := protocol.EventRow{
		AtNS: now, Kind: protocol.EventForced, Name: target.name, Hold: cmp.Or(hold, target.hold), Count: several(target.ended),
		Session: uint64(cl.id), PID: cl.peer.PID, UID: cl.peer.UID, Cmd: cl.peer.Cmd,
	}
	args := []any{"session", cl.id}
	by := loglimit.Requester{PID: cl.peer.PID, Cmd: cl.peer.Cmd}
	line := "client forced the release of a lock on another host"
	unknown := "a client asked another host to force the release of a lock, and it is not known whether the hold ended"
	switch {
	case target.permits > 0:
		row.Msg, row.Hold = "as orphaned permits", 0 // no number of a hold is known
		row.Permits = uint16(min(target.permits, protocol.MaxPermits))
		args = append(args, "orphaned", true, "permits", target.permits)
		line = "client freed orphaned permits"
	case target.isOrphaned:
		row.Msg = "as an orphaned lock"
		args = append(args, "orphaned", true)
		line = "client freed an orphaned lock"
		unknown = "a client asked to free an orphaned lock, and Redis did not confirm it"
	case target.host != "":
		row.Msg = "on host " + target.host
		args = append(args, "on_host", target.host)
	}
	if target.sidecar != "" {
		row.Msg += " of sidecar " + target.sidecar
		args = append(args, "sidecar", target.sidecar)
	}
	if refusal == nil {
		if target.permits == 0 {
			args = append(args, endedHolds(hold, target.ended)...)
		}
		l.lines.Audit(now, loglimit.Info(cl.peer.UID, line, ""), by, target.name, args...)
		l.record(row)
		return
	}
	if target.hold != 0 {
		args = append(args, "hold", target.hold)
	}
	if row.Kind = protocol.EventRefused; row.Msg != "" {
		row.Msg += ": "
	}
	row.Msg += refusal.Msg
	line = "a client was not permitted to force the release of a lock"
	if refusal.Code == protocol.Unavailable {
		line = unknown
	}
	if l.lines.Audit(now, loglimit.Warn(cl.peer.UID, line, string(refusal.Code)), by, target.name, append(args, "reason", refusal.Msg)...) {
		l.record(row) // the others would push what happened out of the events
	}
}

// auditForceByHost notes that another host asked to end a hold of this one by force. What it says of
// its client is not proved: any program that may publish in Redis can say it.
func (l *loop) auditForceByHost(now int64, from string, r *protocol.ForceRelease, hold uint64, n uint32, refusal *protocol.Err) {
	row := protocol.EventRow{AtNS: now, Kind: protocol.EventForced, Name: r.Name, Hold: cmp.Or(hold, r.Hold), Count: several(n), RemoteHost: l.hosts.NameOf(from + ":")}
	if by := r.By; by != nil {
		row.PID, row.UID, row.Cmd = by.PID, by.UID, peers.Printable([]byte(by.Cmd), false)
		if row.RemoteHost == "" {
			row.RemoteHost = peers.Printable([]byte(by.Host), false)
		}
	}
	client := loglimit.Requester{PID: row.PID, UID: row.UID, Cmd: row.Cmd, Host: row.RemoteHost, Sidecar: from}
	if refusal == nil {
		// Each ends a hold, so their number is bounded by that of the grants.
		args := slices.Concat([]any{"lock", r.Name}, endedHolds(hold, n), client.Args())
		l.log.Log(loglimit.AuditContext(context.Background(), false), slog.LevelInfo, "another host forced the release of a lock", args...)
		l.afterEffects = append(l.afterEffects, row)
		return
	}
	row.Kind, row.Msg = protocol.EventRefused, refusal.Msg
	if l.lines.AuditByHost(now, loglimit.Warn(0, "another host was not permitted to force the release of a lock", string(refusal.Code)), client, r.Name, "reason", refusal.Msg) {
		l.record(row)
	}
}

// auditAnswered notes the outcome of a request to end a hold of another host, or an orphaned one.
func (l *loop) auditAnswered(now int64, cl *session, a *otherhosts.Answered) {
	var target forceTarget
	switch r := a.Request.(type) {
	case *protocol.HostForceRelease:
		target = forceTarget{name: r.Name, host: r.Host, hold: r.Hold}
	case *protocol.ForceReleaseOrphaned:
		target = forceTarget{name: r.Name, isOrphaned: true, sidecar: r.Sidecar}
	default:
		return
	}
	switch m := a.Reply.(type) {
	case *protocol.HostForceReleaseOK:
		target.ended = m.Count
		l.auditForce(now, cl, target, m.Hold, nil)
	case *protocol.ForceReleaseOrphanedOK:
		target.sidecar, target.permits = m.Sidecar, m.Permits
		l.auditForce(now, cl, target, m.Hold, nil)
	case *protocol.Err:
		// After unavailable, the hold may have ended.
		if m.Code == protocol.Denied || m.Code == protocol.Unavailable {
			l.auditForce(now, cl, target, 0, m)
		}
	}
}
