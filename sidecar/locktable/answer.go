package locktable

import (
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Result takes Redis's answer to the lock's operation in flight.
func (t *Table) Result(now int64, r Result) {
	t.owed--
	t.owing = now
	l := t.byName[r.Name]
	if l != nil && r.Kind == Drop {
		l.echoed(r)
	}
	if l == nil {
		panic("locktable: a result for a lock that is not known: " + r.Name)
	}
	op, pipelined := l.claim.answered(r.Kind)
	if pipelined {
		// Nothing to learn here: the result of the Take pipelined after this Drop reports
		// the key's state.
		l.counted(r)
		t.settle(now, l)
		return
	}
	// A deadline that passed before this answer came has passed: the holder has
	// stopped believing, whatever Redis did.
	t.expire(now, l)

	l.counted(r)
	k, q := &l.claim, l.queue
	if q != nil {
		q.trouble = ""
	}
	switch r.Outcome {
	case Done:
		switch op.kind {
		case Drop:
			t.dropped(now, l)
		case Check:
			k.confirmedAt = now
			l.claim.renewAt = t.nextCheck(now)
		default:
			t.confirmed(now, l, op, r)
		}
		if op.look && l.hold.num != 0 {
			l.lookSoon(now)
		}

	case Other:
		l.forgetClaim(claimAbsent)
		if l.hold.num != 0 {
			t.lose(l, protocol.Stolen, r.Field)
		}
		if q = l.queue; q != nil {
			t.heldElsewhere(now, l, op, r)
		}

	case Missing:
		if l.hold.num != 0 && op.lost {
			k.state = claimInDoubt // nobody deleted it: assert it
			k.tokens.drop()
			break
		}
		l.forgetClaim(claimAbsent)
		if l.hold.num != 0 {
			t.lose(l, protocol.Deleted, "")
		}

	case Differs:
		if k.state == claimConfirmed {
			k.state = claimStale // so that it is set again
		}

	case NotALock:
		l.forgetClaim(claimAbsent)
		if l.hold.num != 0 {
			t.lose(l, protocol.Stolen, r.Field)
		}
		t.denyWaiters(l, r.Msg)

	case Unsent:
		l.claim.retryAt = now + int64(t.cfg.RetryAfter)
		t.troubled(l, r.Msg)

	case Unknown:
		if op.kind == Drop {
			l.rivals.since = 0
		}
		k.unknown(now, &op)
		t.troubled(l, r.Msg)

	case Busy:
		if op.reserve > 0 && l.hold.num != 0 {
			t.drawFailed(now, l)
		} else {
			l.claim.retryAt = now + int64(t.cfg.RetryAfter)
		}
		t.troubled(l, r.Msg)

	case Refused:
		switch {
		case op.kind == Drop:
			// The key is not ours to touch any more; it ends with its lease.
			l.forgetClaim(claimAbsent)
			if l.queue != nil && len(l.queue.confirms) > 0 {
				l.queue.refusal = r.Msg
			}
		case op.reserve > 0 && l.hold.num != 0:
			t.drawFailed(now, l)
		case l.hold.num != 0:
			l.claim.retryAt = now + int64(t.cfg.RetryAfter)
			l.hold.refused = true
		default:
			t.denyWaiters(l, r.Msg)
		}
	}
	t.settle(now, l)
}

// drawFailed is called when a hold could not get tokens for those who wait behind it. It
// may be for want of them alone, so it is asked for no more until a while later: until
// then nothing keeps the hold from being renewed.
func (t *Table) drawFailed(now int64, l *lock) {
	if l.queue != nil {
		l.queue.drawAt = now + int64(drawPause)
	}
}

const drawPause = time.Second

// denyWaiters has serve refuse all local waiters.
func (t *Table) denyWaiters(l *lock, msg string) {
	if l.queue != nil && l.queue.head != nil {
		l.queue.denial = msg
	}
}

// echoed corrects how many messages of its own this host expects, after a Drop that
// published none: the next message is another program's.
func (l *lock) echoed(r Result) {
	q := l.queue
	switch {
	case q == nil || q.echoes == 0:
	case r.Outcome == Unknown:
		q.echoes = 0 // if it was published, the key is looked at once without need
	case r.Outcome != Done || r.Listeners == Uncounted:
		q.echoes--
	}
}

// counted notes how many listen, if Redis said so.
func (l *lock) counted(r Result) {
	if (r.Outcome == Done || r.Outcome == Other) && r.Kind != Keep && r.Listeners != Uncounted {
		l.rivals.listeners = r.Listeners
	}
}

// confirmed notes that the key is ours as the operation wanted it.
func (t *Table) confirmed(now int64, l *lock, op inFlight, r Result) {
	k := &l.claim
	if q := l.queue; !k.state.isOurs() && q != nil {
		q.passed, q.turnAt = 0, now
		if k.state == claimAbsent {
			q.run, q.stand = 0, false
		}
	}
	lease := op.leaseMS
	if l.watched() {
		lease = min(lease, t.leaseMS) // what is above it covers what was told before
	}
	k.confirmed(now, r.Sent+validity(lease), &op, r.Token)
	l.claim.renewAt = t.rendezvous(r.Sent + ms(lease)/3 + t.jitter())
	if l.checked() {
		l.claim.renewAt = t.nextCheck(now)
	}
	if op.kind == Take {
		if r.Made && l.user != nil {
			t.named(now, l.user)
		}
		t.noteRivals(now, l)
	}
	if q := l.queue; q != nil {
		q.remote = false
	}
	l.hold.refused = false
	t.mark(l)
}

// noteRivals notes whether another host is known to want the lock. If that is news, a
// run of local handoffs counts from now on.
func (t *Table) noteRivals(now int64, l *lock) {
	q := l.queue
	rivals := l.othersListen() || q != nil && now < q.rivalUntil
	if rivals == (l.rivals.since != 0) {
		return
	}
	l.rivals.since = 0
	if rivals {
		l.rivals.since = now
	}
	if q != nil {
		q.stand = false
		if rivals {
			q.run = 0
		}
	}
}

// jitter keeps locks that were taken together from being renewed together for
// ever: up to half a second, less where the lease is short.
func (t *Table) jitter() int64 {
	return t.rng.Int64N(min(int64(500*time.Millisecond), int64(t.cfg.Lease)/20) + 1)
}

// rendezvous moves a renewal to where it meets others: the locks that are due in the
// same hundred milliseconds of a lease of 30 s leave together, and cost Redis a script
// together. It is never early, and other hosts have other clocks.
func (t *Table) rendezvous(at int64) int64 {
	cell := max(int64(t.cfg.Lease)/300, int64(wheelTick))
	return (at + cell - 1) / cell * cell
}

// dropped notes that the key has no field of ours.
func (t *Table) dropped(now int64, l *lock) {
	l.forgetClaim(claimAbsent)
	if q := l.queue; q != nil {
		if q.stand {
			q.stand = false
			q.standUntil = now + int64(t.cfg.StandBack)
			if q.quiet {
				q.standUntil = now + int64(t.cfg.QuietPause)
			}
		}
		t.givenBack(now, l)
	}
}

// maxTTL bounds what is believed of the time that another program's key has left, ms: a
// year. Redis has any number that fits into 63 bits.
const maxTTL = int64(365 * 24 * time.Hour / time.Millisecond)

// heldElsewhere notes who has the lock, and until when there is no use in asking
// for it again.
func (t *Table) heldElsewhere(now int64, l *lock, op inFlight, r Result) {
	q := l.queue
	q.remote, q.field, q.ttlMS, q.seenAt, q.askedAt = true, printable(r.Field), min(r.TTLMS, maxTTL), now, op.sentAt
	q.stand = false
	pause := int64(t.pause(q))
	if q.ttlMS >= 0 {
		pause = min(pause, ms(q.ttlMS+1))
	}
	if q.sub != subscribed {
		// Its period must not be that of the pauses which the holder's host makes.
		pause = pause/2 + t.rng.Int64N(pause)
	}
	q.tryAt, q.drawn = now+pause, false
	if l.others() == 0 {
		q.rivalUntil = now + int64(t.cfg.RivalMemory)
	}
	if op.wake {
		t.draw(now, l, true)
	}
	for q.head != nil && q.head.try && q.head.since <= op.sentAt {
		w := q.head
		t.unqueue(w)
		t.refuse(w.session, w.id, protocol.Timeout, "%s", q.heldElsewhere())
	}
	if q.head != nil && q.head.try {
		q.tryAt = now // it came after the question was sent
	}
}

// printable makes a foreign owner field fit to be shown.
func printable(field string) string {
	return strings.ToValidUTF8(field[:min(len(field), protocol.MaxField)], "?")
}

// troubled keeps what Redis said for waiters whose time ends before it gets
// better, and answers those that will not wait.
func (t *Table) troubled(l *lock, msg string) {
	q := l.queue
	if q == nil {
		return
	}
	q.trouble = msg
	for l.hold.num == 0 && q.head != nil && q.head.try {
		w := q.head
		t.unqueue(w)
		t.refuse(w.session, w.id, protocol.Unavailable, "%s", msg)
	}
}

// listen subscribes to the lock's channel while local waiters wait for another host, or
// have waited for long for a local holder, and unsubscribes some time after.
func (t *Table) listen(now int64, l *lock) {
	q := l.queue
	if q == nil {
		return
	}
	if q.head == nil && now >= q.tryAt {
		q.drawn = false // nobody wanted the turn
	}
	wanted := false
	switch {
	case q.head == nil:
	case l.hold.num == 0:
		wanted = q.remote || q.drawn
	default:
		wanted = now-q.head.since >= int64(t.cfg.WatchAfter)
	}
	if wanted {
		q.lingerUntil, q.vain = now+int64(t.linger(l)), 0
		if q.sub == unsubscribed {
			q.sub = asked
			t.emit(Effect{Kind: Subscribe, Name: l.name})
		}
	} else if q.sub != unsubscribed && now >= q.lingerUntil {
		q.sub, q.echoes = unsubscribed, 0
		t.emit(Effect{Kind: Unsubscribe, Name: l.name})
	}
	polling := q.head != nil && l.hold.num == 0 && q.remote && q.sub != subscribed
	if polling != q.polling {
		q.polling = polling
		t.polling += btoi(polling) - btoi(!polling)
	}
	if q.head == nil && q.sub == unsubscribed && l.rivals.since == 0 && !q.drawn && len(q.confirms) == 0 {
		l.queue = nil
		*q = queue{}
		t.queues.put(q)
	}
}

// Subscribed says that Redis confirmed the subscription, for the first time or
// again: whatever was published before may have been missed, so a waiter looks
// again.
func (t *Table) Subscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.sub != unsubscribed {
		q := l.queue
		q.sub = subscribed
		l.claim.op.wake = true
		if l.hold.num != 0 {
			l.lookSoon(now)
		}
		if q.head != nil && l.hold.num == 0 && (q.remote || !q.drawn) {
			q.tryAt = min(q.tryAt, max(now, q.standUntil))
		}
		t.settle(now, l)
	}
}

// Unsubscribed says that the subscription is gone or was denied. The sidecar
// polls until Subscribed follows.
func (t *Table) Unsubscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.sub == subscribed {
		q := l.queue
		q.sub, q.echoes = asked, 0
		q.tryAt = min(q.tryAt, max(q.standUntil, now+int64(t.pause(q))))
		t.settle(now, l)
	}
}
