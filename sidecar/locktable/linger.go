package locktable

// A lock that is used again and again by one host lingers: after a release that no client waits
// for, it stays this host's in Redis for Config.Linger, and the next local acquire is granted
// with the next token that was drawn, without a round trip. Another sidecar's Take recalls it
// at once. A program that is no sidecar waits for the rest of the moment.
//
// Only a hot lock lingers: one that was acquired here soon after its last release here, with no
// other host in between. How soon, and how long it lingers, is lingerTime.

// hotTokens is how many tokens are drawn at one time for a hot lock. A draw of many costs Redis
// no more than a draw of one. They are granted at more than a microsecond each, so the counter
// still grows more slowly than the time.
const hotTokens = 256

// lingerTime is how long a lock lingers that was held for so long. To keep it costs other
// programs that time if no client here acquires it; to drop it costs the next client here two
// operations of Redis. So it lingers for as long as these take now, or as it was held, and never
// is it taken for much more than twice the time for which it would be without lingering. (Ski
// rental: an unused moment costs no more than what it was to save.)
func (t *Table) lingerTime(held int64) int64 {
	if t.policy.latency == 0 {
		return int64(t.cfg.Linger)
	}
	return min(max(2*t.policy.latency, held), int64(t.cfg.Linger))
}

// linger has a lock linger that was released by its owner, who had it since then, if no other
// host is known to want it. A lock that has had no free moment for long is dropped instead, and
// stays free for a moment.
func (t *Table) linger(now int64, l *lock, since int64) {
	until := now + t.lingerTime(now-since)
	l.hotUntil = max(1, shortMoment(until))
	t.hotUntil.note(l.name, l.hotUntil)
	c := &l.claim
	if !l.isHot || l.waiting() > 0 || l.isWanted(now) || !t.mayLinger() {
		return
	}
	if c.grants >= 2 && c.isTired(&t.cfg, &l.rivals, now) {
		t.needQueue(l).arbiter.phase = yielding
		return
	}
	c.lingerUntil = until
}

// mayLinger reports whether any lock may linger.
func (t *Table) mayLinger() bool {
	return t.cfg.Linger != NoLinger && !t.isStopping && t.redis.isListening && t.redis.isUp()
}

// isWanted reports whether another host, or a program, is known to want the lock, or whether
// a client here waits for its release.
func (l *lock) isWanted(now int64) bool {
	if q := l.queue; q != nil {
		return q.arbiter.areRivalsKnown(now) || len(q.confirms) > 0
	}
	return l.rivals.areWaiting || l.rivals.listeners != 0
}

// lingers reports whether the lock stays this host's in Redis although no local client wants
// it.
func (l *lock) lingers(a *alarm, t *Table) bool {
	c := &l.claim
	if c.lingerUntil == 0 {
		return false
	}
	if !t.mayLinger() || c.state != claimConfirmed || c.isBusy() || !c.hasTokens() || l.isWanted(a.now) ||
		a.due(min(c.lingerUntil, c.validUntil-ms(c.leaseMS)/3)) {
		c.lingerUntil = 0
		return false
	}
	return true
}

// warm notes an acquire of a lock that no local client has or waits for.
func (t *Table) warm(now int64, l *lock) {
	l.isHot = t.mayLinger() && t.isHotAt(now, l.hotUntil)
}

// isHotAt reports whether a time that has not come yet is until; see lock.hotUntil.
func (t *Table) isHotAt(now int64, until uint32) bool {
	return until != 0 && until-shortMoment(now) <= shortMoment(int64(t.cfg.Linger))+1
}

// cool notes that another host wants the lock, or that it is not to linger for another reason.
func (t *Table) cool(l *lock) {
	if l.hotUntil != 0 {
		t.hotUntil.note(l.name, 0)
	}
	l.isHot, l.hotUntil, l.claim.lingerUntil = false, 0, 0
}

// shortMoment is a time or a duration in units of 2^16 ns, for differences of less than three days.
func shortMoment(ns int64) uint32 { return uint32(ns >> 16) }

// recentTimes remembers when something happened to locks, also those that the table has forgotten
// since. It has a fixed size: two names may share a cell, and then a lock may linger for a
// moment although it is not hot, or have free moments that no program needs.
type recentTimes [1 << 10]uint32

// note notes the time of an event; see shortMillis.
func (r *recentTimes) note(name string, at uint32) { r[hash(name)%uint32(len(r))] = at }

// at is when it happened to the lock last; 0: it is not known.
func (r *recentTimes) at(name string) uint32 { return r[hash(name)%uint32(len(r))] }

// hash is FNV-1a.
func hash(name string) uint32 {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return h
}
