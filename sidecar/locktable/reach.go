package locktable

import "time"

// shardOf returns the shard that has a lock.
func (t *Table) shardOf(*lock) *shard { return &t.shard }

// Silence is how long Redis has owed answers without giving any.
func (t *Table) Silence(now int64) time.Duration { return t.shard.silence(now) }

// Paused notes that the caller took no input for long until now: the host was suspended, or
// the process stopped. A result of Redis may have arrived meanwhile that it has not read, so
// no time before now counts as a silence of Redis.
func (t *Table) Paused(now int64) { t.shard.paused = now }

// tryUntil is when a request that waits for the next result of Redis only is answered at the
// latest.
func (t *Table) tryUntil(r *request) int64 {
	return max(r.since, t.shardOf(r.at.lock).paused) + int64(t.cfg.TryWithin)
}

// isSilent is IsSilent for the shard of a lock.
func (t *Table) isSilent(now int64, l *lock) bool {
	return t.shardOf(l).silence(now) >= t.cfg.TryWithin
}

// IsSilent reports whether Redis has been silent for so long that an acquire that does not
// wait is not to wait for it.
func (t *Table) IsSilent(now int64) bool { return t.shard.silence(now) >= t.cfg.TryWithin }

// SilentAt is when IsSilent will be true, if Redis gives no answer until then; false: it
// owes none.
func (t *Table) SilentAt() (int64, bool) {
	return t.shard.silentSince() + int64(t.cfg.TryWithin), t.shard.owed > 0
}
