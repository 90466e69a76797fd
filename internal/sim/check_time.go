package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
)

// What should have happened by now.

// audit finds what should have happened and did not. It runs every few steps.
func (w *world) audit() {
	for _, h := range w.hosts {
		if !h.isDown() && !h.undrained && !h.suspended {
			w.releaseGivenUp(h)
		}
	}
	for _, h := range w.hosts {
		if h.isDown() || h.undrained || h.suspended || !h.asleep && h.wakeAt <= w.now {
			continue // it is about to do more
		}
		if err := h.table.Audit(); err != nil {
			w.violation(invariant.Audit, -1, "host %d: %v", h.index, err)
		}
		now := h.clock(w.now)
		for n := range w.plan.names {
			w.auditLock(h, n, now)
		}
		w.auditPermits(h, now)
		for i := range h.sessions {
			w.auditRequests(&h.sessions[i], now)
		}
	}
}

func (w *world) auditLock(h *host, n int, now int64) {
	c := &h.locks[n].hold
	if c.state == live || c.state == away && !c.isOver(now) {
		h.journal.checkHold(n, c)
	}
	switch c.state {
	case live:
		if now > c.deadline+eps {
			w.violation(invariant.HoldsEnd, n, "session %d was not notified that hold %d is lost; its deadline was %s ago", c.session, c.num, time.Duration(now-c.deadline))
		}
		if c.maxHoldEnd > 0 && now > c.maxHoldEnd+eps {
			w.violation(invariant.HoldsEnd, n, "hold %d has outlived its max_hold by %s", c.num, time.Duration(now-c.maxHoldEnd))
		}
	case unserved:
		if now > max(c.deadline, c.detachedAt+h.longest)+eps {
			w.violation(invariant.HoldsEnd, n, "hold %d of a detached session does not end", c.num)
		}
	}
	if l := &h.locks[n]; l.wantsMessages && l.channelAt != h.routes[n] {
		w.violation(invariant.Routes, n, "host %d is subscribed at shard %d, and was told that shard %d has the lock", h.index, l.channelAt, h.routes[n])
	}
	w.checkKeyCurrent(h, n, now)
	w.checkGone(h, n)
}

func (w *world) auditRequests(s *session, now int64) {
	for i := range s.requests {
		switch q := &s.requests[i]; q.kind {
		case reqAcquire, reqPermits:
			if q.acquire.WaitMS >= 0 && now > q.latest()+eps {
				w.violation(invariant.AnswersInTime, int(q.name), "request %d of session %d has waited %s longer than it would", q.id, s.id, time.Duration(now-q.latest()))
			}
		case reqConfirm:
		default:
			w.violation(invariant.AnswersInTime, int(q.name), "request %d of session %d is not answered", q.id, s.id)
		}
	}
}

// releaseGivenUp has clients release what they stopped believing in by their own clock,
// while their table, which sent their sessions a later deadline before a restart, still has
// it.
func (w *world) releaseGivenUp(h *host) {
	for n := range w.plan.names {
		c := &h.locks[n].hold
		if now := h.clock(w.now); c.state == live && c.restored && h.process == serving && now > c.deadline+eps {
			row, _ := h.table.Info(now, lockNames[n])
			if row.Hold == c.num && row.DeadlineNS > now && !row.Orphan {
				for range c.count {
					w.release(h, &h.sessions[slotOf(c.session)], n)
				}
			}
		}
	}
}

// checkKeyCurrent checks that a table which does nothing about a lock has updated its key in
// Redis.
func (w *world) checkKeyCurrent(h *host, n int, now int64) {
	k := &w.redis.names[n].key
	l := &h.locks[n]
	if int(k.Owner) != h.index || w.now >= k.ExpireAt || w.redis.names[n].ghost || l.inFlight != noOp || l.dropPending != noOp || l.arriving != noOp ||
		!w.isReached(h, n) || w.now-max(h.troubleOf(n), l.refusedAt) < sec {
		return
	}
	c := &l.hold
	if c.isBelieved() && l.isProtected(now) {
		// Redis gets a handoff a moment later, when the next tick has been noticed: 5 ms, or 50 ms if
		// the lock was acquired here soon after its release.
		later := 5 * ms
		if w.plan.table.Contest.Linger != moment.SpanOf(0) {
			later = 50 * ms
		}
		if k.Num < c.num && now-max(c.granted, l.lastRepliedAt) < later+10*ms+eps {
			return
		}
		if k.Num != c.num || k.Count < c.count || k.Count > c.count && c.state == live {
			w.violation(invariant.RedisSynced, n, "host %d has hold %d with count %d, and does not update Redis, which has %s", h.index, c.num, c.count, keyString(*k))
		}
		return
	}
	if c.state == none {
		if row, ok := h.table.Info(now, lockNames[n]); !ok {
			w.violation(invariant.RedisSynced, n, "host %d has forgotten that Redis has %s", h.index, keyString(*k))
		} else if row.State == protocol.StateFree && row.Waiting == 0 {
			w.violation(invariant.RedisSynced, n, "host %d does nothing about %s", h.index, keyString(*k))
		}
	}
}

// reportStuck reports that a run without faults does not come to its end.
func (w *world) reportStuck() {
	var b strings.Builder
	name := -1
	for _, h := range w.hosts {
		for i := range h.sessions {
			s := &h.sessions[i]
			if s.link != connected {
				fmt.Fprintf(&b, "; session %d of host %d is not back", s.id, h.index)
			}
			for _, q := range s.requests {
				fmt.Fprintf(&b, "; session %d of host %d waits for %s", s.id, h.index, nameString(int(q.name)))
				name = int(q.name)
			}
		}
		for n := range h.locks {
			if c := &h.locks[n].hold; c.isBelieved() {
				fmt.Fprintf(&b, "; session %d of host %d holds %s", c.session, h.index, nameString(n))
			}
		}
	}
	w.violation(invariant.WakeUps, name, "nothing fails any more, and still%s", b.String()[1:])
}

// checkEmpty checks that nothing is left of sessions that are all closed.
func (w *world) checkEmpty() {
	for _, h := range w.hosts {
		if h.process == abandoned {
			continue
		}
		w.drainDeferred(h)
		h.journal.checkEmpty()
		now := h.clock(w.now)
		h.table.List(now, 0, func(row protocol.LockRow) bool {
			w.violation(invariant.NothingLeft, nameIndex(row.Name), "all sessions of host %d are closed, and it still has %+v", h.index, row)
			return false
		})
		for n := range w.plan.names {
			if h.locks[n].wantsMessages {
				w.violation(invariant.NothingLeft, n, "all sessions of host %d are closed, and it is still subscribed", h.index)
			}
		}
		if n := h.table.Users(now + int64(time.Hour)); n != 0 {
			w.violation(invariant.NothingLeft, -1, "all sessions of host %d are closed, and its table counts for %d users", h.index, n)
		}
		if at, ok := h.table.Next(); ok {
			w.violation(invariant.NothingLeft, -1, "all sessions of host %d are closed, and its table wants to be advanced in %s", h.index, time.Duration(at-now))
		}
	}
	w.checkPermitsEmpty()
	for n := range w.plan.names {
		w.expire(n)
		if k := &w.redis.names[n].key; k.Owner != redis.NoOwner && int(k.Owner) < len(w.hosts) && w.hosts[k.Owner].process != abandoned {
			w.violation(invariant.NothingLeft, n, "all sessions are closed, and Redis still has %s", keyString(*k))
		}
	}
}
