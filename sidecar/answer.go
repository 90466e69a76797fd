package sidecar

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// onRequest does what one request asks.
func (l *loop) onRequest(now int64, in *request) {
	c := in.conn
	switch in.kind {
	case clientDisconnected:
		l.onDisconnect(now, c)
		return
	case clientProtocolError:
		l.breakOff(now, c, in.fault)
		return
	case clientHello:
		c.taken()
		l.onHello(now, c, in.other.(*protocol.Hello))
		return
	}
	c.taken()
	cl := c.session
	if cl == nil || cl.phase.IsOver() || cl.phase == locktable.SessionLeaving || l.stopping && !isRelease(in) {
		return // its last frame says why, or will
	}
	id := in.id()
	if msg := l.violation(cl, in, id); msg != "" {
		l.breakOff(now, c, badFrame(msg))
		return
	}
	if cl.policy != nil && l.isRefusedByPolicy(now, cl, in, id) {
		return
	}
	switch in.kind {
	case clientAcquire:
		if why := wire.Reserved(l.cfg.KeyPrefix, in.acquire.Name); why != "" {
			l.table.CountRefusal(in.acquire.Name, protocol.Denied)
			l.refuse(c, in.acquire.ID, protocol.Denied, why+"; choose another name")
			return
		}
		if why := l.store.Splits(in.acquire.Name); why != "" {
			l.table.CountRefusal(in.acquire.Name, protocol.BadRequest)
			l.refuse(c, in.acquire.ID, protocol.BadRequest, why)
			return
		}
		switch mode := locktable.Exclusive; in.lock {
		case redisop.KindLock:
			l.table.Acquire(now, cl.id, in.acquire.Acquire)
		case redisop.KindReadWrite:
			if in.shared {
				mode = locktable.Shared
			}
			l.table.AcquireReadWrite(now, cl.id, mode, in.acquire.Acquire)
		case redisop.KindPermits:
			l.table.AcquirePermits(now, cl.id, in.acquire)
		}
		return
	case clientRelease:
		l.table.Release(now, cl.id, in.release)
		return
	}
	switch r := in.other.(type) {
	case *protocol.Downgrade:
		l.table.Downgrade(now, cl.id, *r)
	case *protocol.Confirm:
		l.table.Confirm(now, cl.id, *r)
	case *protocol.Cancel:
		l.table.Cancel(now, cl.id, *r)
	case *protocol.Info:
		l.info(now, cl, r)
	case *protocol.List:
		l.queueReply(c, l.list(now, cl, r))
	case *protocol.Events:
		l.onEvents(cl, r)
	case *statusRequest:
		l.onStatus(now, cl, r)
	case *otherhosts.WhoRequest:
		l.who(now, cl, r)
	case *protocol.ForceRelease:
		l.forceRelease(now, cl, r)
	case *otherhosts.Answered:
		l.queueReply(c, r.Reply)
		if r.Refused != nil {
			l.noteRefusal(cl, r.Refused)
		}
		l.auditAnswered(now, cl, r)
	case *protocol.Claim:
		l.onClaim(now, cl, r)
	case *protocol.Bye:
		// When what it asked before has been answered: see step.
		cl.phase = locktable.SessionLeaving
		l.byes = append(l.byes, bye{cl, id})
	case *protocol.Metrics:
		l.onMetrics(c, cl, r)
	case *pingRequest:
		redis := l.redis.Load()
		l.queueReply(c, &protocol.PingOK{ID: id, NowNS: now, Redis: redis.status, Degraded: redis.isDegraded, RedisAddress: l.store.Address(), RedisRunID: redis.runID, RedisRisk: redis.risk, KeyPrefix: l.cfg.KeyPrefix, Trouble: r.trouble})
	case *refused:
		switch r.Op {
		case "acquire", "acquire_rw", "acquire_permits":
			l.table.CountRefusal("", r.Code)
		}
		if id != 0 {
			l.refuse(c, id, r.Code, r.Msg)
		}
	default:
		if id != 0 {
			l.refuse(c, id, protocol.Unsupported, "this sidecar does not know this op; it speaks version 1 of the protocol")
		}
	}
}

// violation says how a request breaks the protocol in the state in which its session is;
// "": it does not. It comes before what is wrong with the request's own fields.
func (l *loop) violation(cl *session, in *request, id uint64) string {
	claim, isBye := false, false
	switch r := in.other.(type) {
	case *protocol.Claim:
		claim = true
	case *refused:
		claim = r.Op == "claim"
	case *protocol.Bye:
		isBye = true
	}
	switch {
	case claim && cl.phase != locktable.SessionClaiming:
		return "a claim that is not due; a session is claimed once, when it was resumed"
	case cl.phase == locktable.SessionClaiming && !claim && !isBye:
		return "claims are due; a session that was resumed is claimed before anything else"
	case id != 0 && (l.table.InUse(cl.id, id) || l.isFollowing(cl, id)):
		return "the id is in use by a request that is not answered yet; choose another"
	}
	return ""
}

// breakOff ends the service to a client that broke the protocol; fault is its last frame.
func (l *loop) breakOff(now int64, c *conn, fault *protocol.Err) {
	cl := c.session
	if cl != nil && cl.phase != locktable.SessionClaiming {
		// The session may be over after this, and is then sent no answer. A session whose
		// claims are due has no answers; it is sent its losses when it is claimed again.
		l.applyEffects()
	}
	l.onProtocolError(now, c, cl, fault)
}

// applyEffects does what the table wants done: operations first, because Redis takes
// longest, then the frames, one write for each client.
func (l *loop) applyEffects() {
	effects := l.table.Effects()
	if l.newRedis != nil && l.state != nil {
		// Behind what the table makes of it: a successor that knows the new run of
		// Redis must know which holds were in doubt.
		l.state.PutRedis(state.Redis(*l.newRedis))
	}
	l.newRedis = nil
	l.forgetClosed(effects)
	l.commitState()
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case locktable.Redis:
			l.ops = append(l.ops, e.Op)
		case locktable.Subscribe:
			l.store.Subscribe(e.Op.Shard, e.Name)
		case locktable.Unsubscribe:
			l.store.Unsubscribe(e.Op.Shard, e.Name)
		}
	}
	if len(l.ops) > 0 {
		l.store.Do(l.ops)
		clear(l.ops)
		l.ops = l.ops[:0]
	}
	var lostHolds []*session // of sessions that are not served: they may have no hold left
	for i := range effects {
		e := &effects[i]
		cl := l.sessions[e.Session]
		l.recordEffect(e, cl)
		if e.Kind == locktable.Lost && e.Reason != protocol.Forgotten || e.Kind == locktable.KeepLost || e.Kind == locktable.CutShort {
			l.logLost(e, cl)
		}
		if cl == nil {
			continue
		}
		if cl.phase.IsOver() {
			if e.Kind == locktable.Lost {
				lostHolds = append(lostHolds, cl)
			}
			continue
		}
		c := cl.conn
		if e.Kind == locktable.Lost && cl.deferLost(e) || c == nil {
			continue
		}
		switch e.Kind {
		case locktable.Granted:
			l.granted = protocol.AcquireOK{ID: e.ID, Token: e.Token, Hold: e.Hold, Count: e.Count, DeadlineNS: e.Deadline, EndNS: e.End, Shared: e.IsShared, Permits: e.Permits, Of: e.Capacity}
			l.queueReply(c, &l.granted)
		case locktable.Released:
			l.released = protocol.ReleaseOK{ID: e.ID, Count: e.Count}
			l.queueReply(c, &l.released)
		case locktable.Refusal:
			l.refuse(c, e.ID, e.Code, e.Msg)
			if e.Code == protocol.Limit {
				l.lines.About(l.stepAt, loglimit.Warn(cl.peer.UID, "client met a limit", string(e.Code)), e.Name, "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "reason", e.Msg)
			}
		case locktable.Canceled:
			l.queueReply(c, &protocol.CancelOK{ID: e.ID, Canceled: e.WasWaiting})
		case locktable.Downgraded:
			l.queueReply(c, &protocol.DowngradeOK{ID: e.ID, DeadlineNS: e.Deadline})
		case locktable.Confirmed:
			l.queueReply(c, &protocol.ConfirmOK{ID: e.ID})
		case locktable.Claimed:
			l.queueReply(c, &protocol.ClaimOK{ID: e.ID})
			if e.IsLast {
				l.onResumed(cl)
			}
		case locktable.Forced:
			l.queueReply(c, forceReleased(e.ID, e.Hold, e.Count))
			l.lines.Audit(l.stepAt, loglimit.Info(cl.peer.UID, "client forced the release of a lock", ""), loglimit.Requester{PID: cl.peer.PID, Cmd: cl.peer.Cmd}, e.Name, append(endedHolds(e.Hold, e.Count), "session", cl.id)...)
		case locktable.Lost:
			l.lost = protocol.LostEvent{Hold: e.Hold, Reason: e.Reason}
			l.queueReply(c, &l.lost)
		case locktable.Lease:
			l.lease = protocol.LeaseEvent{DeadlineNS: e.Deadline}
			c.queueLease(&l.lease)
			if !c.dirty {
				c.dirty = true
				l.dirty = append(l.dirty, c)
			}
		}
	}
	for _, row := range l.afterEffects {
		l.record(row)
	}
	l.afterEffects = l.afterEffects[:0]
	for i, c := range l.dirty {
		c.dirty = false
		c.flush()
		l.dirty[i] = nil
	}
	l.dirty = l.dirty[:0]
	for _, p := range l.closing {
		p.conn.hangUp(p.last)
	}
	clear(l.closing)
	l.closing = l.closing[:0]
	for _, cl := range lostHolds {
		l.endIfEmpty(protocol.Now(), cl)
	}
}

// forgetClosed strikes sessions from the state of which the table has nothing left.
func (l *loop) forgetClosed(effects []locktable.Effect) {
	for i := range effects {
		if e := &effects[i]; e.Kind == locktable.Closed && l.state != nil {
			l.state.CloseSession(e.Session)
		}
	}
}
