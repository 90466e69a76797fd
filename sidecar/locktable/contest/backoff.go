package contest

// isBackingOff reports whether the lock is left to other hosts.
func (c *Contest) isBackingOff(now int64) bool { return now < c.backoffUntil }

// TryBy moves the next try forward.
func (c *Contest) TryBy(at int64) { c.nextTry = min(c.nextTry, max(at, c.backoffUntil)) }

// TryNow has the next try made now, also if the lock is left to others.
func (c *Contest) TryNow(now int64) { c.nextTry = now }

// leaveFree leaves the lock free for so long.
func (c *Contest) leaveFree(now, pause int64) {
	c.backoffUntil = max(c.backoffUntil, now+pause)
	c.nextTry, c.phase = c.backoffUntil, contending
}

// OnAcquired notes that the lock has come to this host, or that Redis has confirmed that it
// has it. wasOurs: Redis had it for this host before.
func (c *Contest) OnAcquired(wasOurs bool) {
	c.remote.isKnown = false
	c.nextTry = 0 // it was of a holder that is gone
	if !wasOurs && c.phase == yielding {
		c.phase = contending
	}
}

// isNotified reports whether a sidecar will notify this host when it can have the lock, or when to
// ask: it has a ticket, and the holder is a sidecar or others stand before it that would ask.
func (c *Contest) isNotified() bool {
	return c.place.isQueued() && (c.remote.isSidecar || c.place.rank >= 2)
}
