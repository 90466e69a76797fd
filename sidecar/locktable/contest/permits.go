package contest

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The contest for the permits of a semaphore. There are no turns: while another host waits that came before, what a
// local client frees goes back to Redis, and to that host. So permits are granted in the order in which hosts asked.
//
// A host has one place in the queue, with the arrival of the Take that made it. It is good for all requests that
// came here before: these pass freed permits on among themselves while no other place is before it (hostsWait). When the first
// waiter is one that came later, the place moves behind all others.

// decideForPermits decides about a semaphore for which local clients wait.
func (c *Contest) decideForPermits(w *Verdict, v *View) {
	p, first := &c.place, &v.First
	stands := p.live() != 0
	cameLater := stands && first.Since > p.since
	isNext := !c.memory.hostsWait && (!stands || p.isQueued() && !cameLater)
	switch {
	case p.phase == placeLeaving:
		w.Do = Drop
		return
	case v.Claim == Ours && !v.IsDropping && v.IsCovered && (v.CameForFirst || isNext || !v.IsReachable):
		w.Do = Grant
		return
	}
	w.Do, w.NotBefore, w.ArriveAt, w.Ticket = Ask, c.nextTry, never, p.live()
	if cameLater {
		w.Arrived = redisop.ArrivesNow
	}
	if cameLater || v.IsIdle && (!isNext || v.Fits) || c.asked != (asked{first.Permits, first.Capacity}) {
		w.NotBefore = v.Now
	}
	w.Set(redisop.Enqueue, c.mayEnqueue(v))
	w.Set(redisop.Yields, (stands || c.memory.hostsWait) && !v.CameForFirst) // else it lacks a token, or validity
}

// OnPermitsWanted notes the result that too few permits are free, and until when there is no use in asking again.
// sentAt and mayBeFree are as in OnHeldByOther. isNotified: a message says when this host gets them, or its own clients
// have all.
func (c *Contest) OnPermitsWanted(s *Shared, now int64, r *redisop.Result, sentAt int64, isNotified, mayBeFree bool) {
	c.remote = Remote{isKnown: true, isSidecar: true, ttlMS: min(r.TTLMS, maxTTL), seenAt: now, askedAt: sentAt}
	c.phase = contending
	pause := c.pollPause(s)
	if isNotified {
		pause = s.refreshPause()
	}
	if r.TTLMS >= 0 {
		pause = min(pause, moment.MS(c.remote.ttlMS+1)+int64(r.Rank)*expirySpacing)
	}
	c.nextTry = now + pause
	if mayBeFree {
		c.TryBy(now)
	}
}
