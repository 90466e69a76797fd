package locktable

import "time"

// reachability is whether Redis can be asked, and whether it answers.
type reachability struct {
	phase redisPhase
	cause string // of redisDown, for people

	isListening bool // this sidecar has its own channel: it may stand in queues, and locks may linger

	owed   int   // operations that have no Result yet
	silent int64 // since when Redis has owed a Result without giving any, while owed is not 0
	paused int64 // until when the caller last took no input; see Paused
}

// redisPhase is whether Redis can be asked.
//
//	never reached ──Up──▶ up ◀──Up── down ──┐ Down: another reason
//	      │                │          ▲ ▲   │
//	      └──────Down──────┴──────────┘ └───┘
type redisPhase uint8

const (
	redisNeverReached redisPhase = iota // neither Up nor Down was called
	redisUp
	redisDown
)

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

// Up says that Redis can be asked. With dataLost it may have forgotten what it
// knew: holds whose deadline has not passed are asserted again, and tokens drawn
// before are not handed out any more. isListening: the sidecar is subscribed to its own channel
// on the connection that results come from. Messages from before are lost.
func (t *Table) Up(now int64, dataLost, isListening bool) {
	t.redis.phase, t.redis.cause, t.redis.isListening = redisUp, "", isListening
	for i := len(t.locks) - 1; i >= 0; i-- {
		l := t.locks[i]
		l.claim.endPause()
		if dataLost {
			l.claim.dataLost()
		}
		if q := l.queue; q != nil {
			if !isListening {
				q.place = place{} // a transfer would reach no connection, so Redis passes it on
			}
			q.arbiter.remote.isKnown = false // of before
			q.order.endPause()
			q.arbiter.tryBy(now)
		}
		t.reconcile(now, l)
	}
}

// Down says that Redis cannot be asked until Up; why is for people. During an outage it changes
// the reason only: waiters whose time ends are refused with the last one.
func (t *Table) Down(now int64, why string) {
	wasDown := t.redis.phase == redisDown
	t.redis.phase, t.redis.cause = redisDown, why
	if wasDown {
		return // no lock depends on the reason
	}
	for i := len(t.locks) - 1; i >= 0; i-- {
		t.reconcile(now, t.locks[i])
	}
}
