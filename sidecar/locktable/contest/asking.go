package contest

import (
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// When this host asks Redis for a lock that another host has, or that is left free.

// maxTTL bounds the time to live of another program's key, ms: a year. Redis has any
// number that fits into 63 bits.
const maxTTL = int64(365 * 24 * time.Hour / time.Millisecond)

// expirySpacing is how far apart the hosts of a queue ask for a lock whose holder has let its
// lease end.
const expirySpacing = int64(5 * time.Millisecond)

// Remote returns what is known of the holder on another host.
func (c *Contest) Remote() *Remote { return &c.remote }

// IsKnown reports whether another host had the lock at the last result.
func (r *Remote) IsKnown() bool { return r.isKnown }

// IsKnownSince reports whether Redis, asked at that time or later, answered that another host
// has the lock.
func (r *Remote) IsKnownSince(at int64) bool { return r.isKnown && r.askedAt >= at }

// Field returns the owner field of the holder that was found last, and when: also if it is not known
// any more who has the lock. "": this host had left the lock free, or none was found.
func (r *Remote) Field() (field string, seenAt int64) { return r.field, r.seenAt }

// TTL returns the time to live of the holder's key at a time, ms; −1: it has none.
func (r *Remote) TTL(now int64) int64 {
	if r.ttlMS < 0 {
		return r.ttlMS
	}
	return max(0, r.ttlMS-max(0, now-r.seenAt)/int64(time.Millisecond))
}

// AnothersTurn is why a request does not get a lock that is left to other hosts.
const AnothersTurn = "it is another host's turn"

// Describe describes the holder for people.
func (r *Remote) Describe(s *Shared) string {
	if r.field == "" {
		return AnothersTurn
	}
	if host := r.Host(s); host != "" {
		return "held on host " + host + " (" + r.field + "), not on this host"
	}
	return "held by " + r.field + ", not on this host"
}

// Host returns the name of the holder's host; "": it is not known.
func (r *Remote) Host(s *Shared) string {
	if s.cfg.HostName == nil || r.field == "" {
		return ""
	}
	return s.cfg.HostName(r.field)
}

// Printable makes a foreign owner field fit to be shown.
func Printable(field string) string {
	return strings.ToValidUTF8(field[:min(len(field), protocol.MaxField)], "?")
}

// OnFirstRequest has Redis asked for the lock for a waiter that is now the first. noWait: it
// waits for the result only.
func (c *Contest) OnFirstRequest(now int64, noWait bool) {
	if noWait && !c.areOthersKnown(now) {
		c.backoffUntil = now
		c.phase = contending
	}
	c.nextTry = max(now, c.backoffUntil)
}

// OnFreed notes that another sidecar left the lock free for so long. If this host is the only one that is
// subscribed to the lock's channel, that sidecar took it for a program: a lock that no program waits for is
// left free for QuietPause. A request that does not wait is not kept from it.
func (c *Contest) OnFreed(s *Shared, now, pause int64, noWait bool) {
	switch {
	case noWait:
		pause = 0
	case c.sub == subscribed && c.others() == 0:
		pause = min(pause, int64(s.cfg.QuietPause))
	}
	c.remote.isKnown = false
	c.leaveFree(now, pause)
	c.lookForPoller(s, now)
}

// OnUnlocked notes that a release was published while a client here waits for another host.
//
// A sidecar passes a lock on to the first of its queue, and publishes only if it leaves the lock
// free for foreign clients. So a host with a ticket backs off if a sidecar had the lock. If a foreign
// client had it, the first two of the queue ask at once.
func (c *Contest) OnUnlocked(s *Shared, now int64) {
	switch {
	case !c.place.isQueued():
		c.TryBy(now)
	case c.place.rank >= 2: // those before it ask
	case c.remote.isSidecar:
		c.TryBy(now + int64(s.cfg.Backoff))
	default:
		c.TryBy(now)
	}
}

// mustOnlyAsk decides whether a Take of this host, which shows that it still waits, leaves a
// free lock alone. Such a lock was left free for a moment: for foreign clients, and then for the
// first of the queue. With a thousand hosts, one of them asks in every such moment.
func (c *Contest) mustOnlyAsk(now int64) bool {
	r := &c.remote
	hasExpired := r.ttlMS >= 0 && now > r.seenAt+moment.MS(r.ttlMS)
	return r.isKnown && c.isNotified() && c.place.rank > 0 && !hasExpired
}

// OnFoundFree notes that such a Take found the lock free. If it is still free in a moment, no
// other host wants it. A request that does not wait is not kept from it.
func (c *Contest) OnFoundFree(s *Shared, now int64, noWait bool) {
	c.remote.isKnown = false
	c.nextTry = max(now, c.backoffUntil)
	if c.isBackingOff(now) {
		c.lookForPoller(s, now)
	} else if !noWait {
		c.nextTry = max(now+int64(s.cfg.Backoff), c.backoffUntil)
	}
}

// OnRefused notes that Redis did not execute an operation and does not say who has the lock: the
// holder that it named before may be gone.
func (c *Contest) OnRefused() { c.remote.isKnown = false }

// refreshPause is how long a host with a ticket does not ask again: it shows that it lives,
// and the answer about its ticket is the beginning of a transfer's validity.
func (s *Shared) refreshPause() int64 {
	pause := min(int64(s.cfg.Poll), int64(s.lease)/6)
	return pause + s.rng.Int64N(pause/4+1)
}

// OnHeldByOther notes the result that another host has the lock, and until when there is
// no use in asking again. sentAt is when the operation was sent. mayBeFree: the result may be out of
// date. noWait: the first waiter is a try that came after the operation was sent.
func (c *Contest) OnHeldByOther(s *Shared, now int64, name string, r *redisop.Result, sentAt int64, mayBeFree, noWait bool) {
	isQueued := r.IsQueued
	if s.cfg.HostName != nil && !r.LeftFree && r.Field != c.remote.field {
		s.cfg.HostName(r.Field) // so that it is known when a message needs it
	}
	c.remote = Remote{
		isKnown: true, isSidecar: isQueued && (r.Recall != redisop.RecallMissed || redisop.IsOfSidecar(r.Field)),
		field: Printable(r.Field), ttlMS: min(r.TTLMS, maxTTL), seenAt: now, askedAt: sentAt,
	}
	c.phase = contending
	if r.LeftFree {
		// This host has left it free. The first of the queue asks after the pause; so does a host
		// without a place in it.
		switch {
		case noWait && !c.areOthersKnown(now):
			c.leaveFree(now, 0)
		case r.Rank > 0:
			c.nextTry = now + s.refreshPause()
		default:
			c.leaveFree(now, s.freePause(c.areForeignKnown(now)))
		}
		return
	}
	isNotified := c.isNotified()
	pause := c.pollPause(s)
	if isNotified || isQueued && c.sub == subscribed {
		pause = s.refreshPause()
	}
	if c.remote.ttlMS >= 0 {
		expiry := moment.MS(c.remote.ttlMS + 1)
		if isQueued {
			expiry += int64(r.Rank) * expirySpacing
		}
		pause = min(pause, expiry)
	}
	if !isNotified && c.sub != subscribed {
		// Its period must not be that of the pauses which the holder's host makes.
		pause = pause/2 + s.rng.Int64N(pause)
	}
	c.nextTry = now + pause
	c.backoffUntil = min(c.backoffUntil, now) // the moment in which it was free is over
	if c.others() == 0 && !c.remote.isSidecar {
		c.noteForeignHolder(s, now, name)
	}
	if mayBeFree {
		c.TryBy(now)
	}
}
