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
	if l != nil && l.queue != nil && r.Kind == Drop {
		l.queue.arbiter.onDropResult(&r)
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

// counted notes how many listen, if Redis said so.
func (l *lock) counted(r Result) {
	if (r.Outcome == Done || r.Outcome == Other) && r.Kind != Keep && r.Listeners != Uncounted {
		l.rivals.listeners = r.Listeners
	}
}

// confirmed notes that the key is ours as the operation wanted it.
func (t *Table) confirmed(now int64, l *lock, op inFlight, r Result) {
	k := &l.claim
	if q := l.queue; q != nil {
		q.arbiter.onClaim(now, k.state)
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
	l.hold.refused = false
	t.mark(l)
}

// noteRivals notes whether another host is known to want the lock. If that is news, a
// run of local handoffs counts from now on.
func (t *Table) noteRivals(now int64, l *lock) {
	q, areKnown := l.queue, false
	if q == nil {
		areKnown = l.rivals.listeners != 0
	} else {
		areKnown = q.arbiter.isContended() || now < q.arbiter.rivalUntil
	}
	if areKnown == l.rivals.areKnown() {
		return
	}
	l.rivals.since = 0
	if areKnown {
		l.rivals.since = now
	}
	if q != nil {
		q.arbiter.onRivalsChanged()
	}
}

// jitter keeps locks that were taken together from being renewed together for
// ever: up to half a second, less where the lease is short.
func (t *Table) jitter() int64 {
	return t.policy.rng.Int64N(min(int64(500*time.Millisecond), int64(t.cfg.Lease)/20) + 1)
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
		q.arbiter.onRelease(&t.policy, now, q.noWait())
	}
}

// heldElsewhere notes who has the lock, and until when there is no use in asking
// for it again.
func (t *Table) heldElsewhere(now int64, l *lock, op inFlight, r Result) {
	q := l.queue
	q.arbiter.onHeldByOther(&t.policy, now, printable(r.Field), r.TTLMS, &op, q.noWait())
	for q.head != nil && q.head.try && q.head.since <= op.sentAt {
		w := q.head
		t.unqueue(w)
		t.refuse(w.session, w.id, protocol.Timeout, "%s", q.arbiter.remote.String())
	}
	if q.noWait() {
		q.arbiter.nextTry = now // it came after the question was sent
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

// updateSubscription has the arbiter subscribe or unsubscribe, and frees a queue that
// nothing needs.
func (t *Table) updateSubscription(now int64, l *lock) {
	q := l.queue
	if q == nil {
		return
	}
	if effect := q.arbiter.updateSubscription(&t.policy, now, q.head, l.hold.num != 0); effect != 0 {
		t.emit(Effect{Kind: effect, Name: l.name})
	}
	if q.head == nil && len(q.confirms) == 0 && q.arbiter.isIdle() {
		l.queue = nil
		*q = queue{}
		t.queues.put(q)
	}
}

// Message notes a message on the lock's channel.
func (t *Table) Message(now int64, name string) {
	l := t.byName[name]
	if l == nil || l.queue == nil {
		return
	}
	q := l.queue
	own := q.arbiter.onMessage(now)
	l.claim.op.wake = true // even if a local owner believes to have it: the answer may say otherwise
	if l.hold.num != 0 && !own {
		l.lookSoon(now)
	}
	switch {
	case q.head == nil:
		q.arbiter.onUnneededMessage(now)
	case l.hold.num == 0:
		q.arbiter.onPublishedRelease(&t.policy, now, own, q.noWait(), l.claim.isBusy())
	}
	t.settle(now, l)
}

// Subscribed notes that Redis confirmed the subscription, for the first time or again.
func (t *Table) Subscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.arbiter.sub != unsubscribed {
		q := l.queue
		l.claim.op.wake = true
		if l.hold.num != 0 {
			l.lookSoon(now)
		}
		q.arbiter.onSubscribed(now, q.head != nil && l.hold.num == 0)
		t.settle(now, l)
	}
}

// Unsubscribed notes that the subscription is gone or was denied. The sidecar polls until
// Subscribed follows.
func (t *Table) Unsubscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.arbiter.sub == subscribed {
		l.queue.arbiter.onUnsubscribed(&t.policy, now)
		t.settle(now, l)
	}
}
