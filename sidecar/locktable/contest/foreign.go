package contest

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Foreign clients are known by three signs: they are subscribed to the lock's channel, they had the
// lock when this host asked for it, or they published a release.

// quietTime is how long the lock passes from owner to owner without a free moment.
func (s *Shared) quietTime(m *Memory, now int64) int64 {
	if m.pollerAt != 0 && moment.ShortMillis(now)-m.pollerAt < moment.ShortMillis(int64(s.cfg.ForeignMemory)) {
		return int64(s.cfg.PollerTime)
	}
	return int64(s.cfg.QuietTime)
}

// isTired reports whether the key has had no free moment for QuietTime, or for PollerTime if a
// foreign client may be polling it.
func (s *Shared) isTired(m *Memory, v *View) bool {
	return v.BusySince != 0 && v.Now-v.BusySince >= s.quietTime(m, v.Now)
}

// others is how many foreign clients are subscribed to the lock's channel, as far as is known;
// −1: it is not. This host does not count.
func (c *Contest) others() int16 {
	n := c.memory.subscribers
	if n > 0 && c.sub == subscribed {
		n--
	}
	return n
}

// areForeignKnown reports whether a foreign client is known to want the lock, or likely to.
func (c *Contest) areForeignKnown(now int64) bool { return c.others() != 0 || now < c.foreignUntil }

// areOthersKnown reports whether another host is known to want the lock, or a foreign client is
// likely to.
func (c *Contest) areOthersKnown(now int64) bool { return c.memory.hostsWait || c.areForeignKnown(now) }

// freePause is how long a host leaves a lock free that it has released for others. foreign: a foreign
// client is known to want it, or is likely to. That other sidecars are in the queue makes no
// difference: the first of them asks after QuietPause or Backoff, too.
func (s *Shared) freePause(foreign bool) int64 {
	if foreign {
		return int64(s.cfg.Backoff)
	}
	return int64(s.cfg.QuietPause)
}

// lookEvery is the longest time between two looks at a lock that is left free. A foreign client may
// have it for less than half a millisecond. With one or two looks in a free moment, an RSpinLock, which
// tries each 128 ms, was found after some seconds only.
const lookEvery = int64(500 * time.Microsecond)

// lookForPoller has Redis asked while the lock is left free, at a random moment: a foreign client that
// polls may have the lock then. Without that, only one that has it for longer is found. Redis is asked
// again until the answer may come after the pause, and not if a foreign client was found lately, or if
// clients are subscribed: these are known. Such a Take takes nothing: it has RequireExisting.
func (c *Contest) lookForPoller(s *Shared, now int64) {
	m := c.memory
	isKnown := m.pollerAt != 0 && moment.ShortMillis(now)-m.pollerAt < moment.ShortMillis(int64(s.cfg.ForeignMemory)/2)
	if left := c.backoffUntil - now - 2*s.trip; s.trip > 0 && left > 0 && !isKnown && c.others() <= 0 {
		c.nextTry = now + s.rng.Int64N(min(left, lookEvery))
	}
}

// noteForeignHolder notes that a foreign client has the lock that is not subscribed to its channel.
func (c *Contest) noteForeignHolder(s *Shared, now int64, name string) {
	c.foreignUntil = now + int64(s.cfg.ForeignMemory)
	c.memory.pollerAt = max(1, moment.ShortMillis(now))
	s.pollers.note(name, c.memory.pollerAt)
}

// NoteSubscribers notes how many are subscribed to the lock's channel, if Redis counted them.
func (m *Memory) NoteSubscribers(r *redisop.Result) {
	if (r.Outcome == redisop.Done || r.Outcome == redisop.HeldByOther) && r.Kind != redisop.Renew && r.Listeners.State != redisop.Uncounted {
		m.subscribers = int16(min(r.Listeners.N, math.MaxInt16))
		if r.Listeners.State != redisop.Counted {
			m.subscribers = -1
		}
	}
}

// ForgetSubscribers notes that the subscribers are not known.
func (m *Memory) ForgetSubscribers() { m.subscribers = -1 }
