package locktable

import "time"

func (r *reachability) isUp() bool { return r.phase == redisUp }

// why says why Redis cannot be asked.
func (r *reachability) why() string {
	if r.phase == redisNeverReached {
		return "Redis has not been reached yet"
	}
	return r.cause
}

// onSent notes that an operation is being sent.
func (r *reachability) onSent(now int64) {
	if r.owed == 0 {
		r.silent = now
	}
	r.owed++
}

// onResult notes that an operation has its result.
func (r *reachability) onResult(now int64) {
	r.owed--
	r.silent = now
}

// Silence is how long Redis has owed answers without giving any.
func (t *Table) Silence(now int64) time.Duration {
	if t.redis.owed == 0 {
		return 0
	}
	return time.Duration(now - t.redis.silentSince())
}

// silentSince is since when Redis has owed a Result without giving any, as far as the caller
// could have received it.
func (r *reachability) silentSince() int64 { return max(r.silent, r.paused) }

// Paused notes that the caller took no input for long until now: the host was suspended, or
// the process stopped. A result of Redis may have arrived meanwhile that it has not read, so
// no time before now counts as a silence of Redis.
func (t *Table) Paused(now int64) { t.redis.paused = now }

// tryUntil is when a request that waits for the next result of Redis only is answered at the
// latest.
func (t *Table) tryUntil(r *request) int64 {
	return max(r.since, t.redis.paused) + int64(t.cfg.TryWithin)
}

// IsSilent reports whether Redis has been silent for so long that an acquire that does not
// wait is not to wait for it.
func (t *Table) IsSilent(now int64) bool { return t.Silence(now) >= t.cfg.TryWithin }

// SilentAt is when IsSilent will be true, if Redis gives no answer until then; false: it
// owes none.
func (t *Table) SilentAt() (int64, bool) {
	return t.redis.silentSince() + int64(t.cfg.TryWithin), t.redis.owed > 0
}
