package locktable

import (
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Result takes Redis's answer to the lock's operation in flight.
func (t *Table) Result(now int64, r Result) {
	l := t.byName[r.Name]
	if l != nil && l.ahead && r.Kind == Drop {
		l.ahead = false // how things are, the answer to the Take behind it says
		t.settle(now, l)
		return
	}
	if l == nil || l.op.kind != r.Kind || r.Kind == NoOp {
		panic("locktable: a result that no operation asked for: " + r.Name)
	}
	// A deadline that passed before this answer came has passed: the holder has
	// stopped believing, whatever Redis did.
	t.expire(now, l)

	op := l.op
	l.op = flight{}
	k, q := &l.known, l.queue
	if q != nil {
		q.trouble = ""
	}
	switch r.Outcome {
	case Done:
		if op.kind == Drop {
			t.dropped(now, l)
			break
		}
		t.confirmed(now, l, op, r)

	case Other:
		*k = known{listeners: k.listeners}
		if l.hold.num != 0 {
			t.lose(l, protocol.Stolen)
		}
		if q = l.queue; q != nil {
			t.heldElsewhere(now, l, op, r)
		}

	case Missing:
		if l.hold.num != 0 && op.lost {
			k.state, k.tokens = maybe, 0 // nobody deleted it: assert it
			break
		}
		*k = known{listeners: k.listeners}
		if l.hold.num != 0 {
			t.lose(l, protocol.Deleted)
		}

	case Unsent:
		l.retryAt = now + int64(t.cfg.RetryAfter)
		t.troubled(l, r.Msg)

	case Unknown:
		// Ask again, with an operation that does no harm if the first one was,
		// or will yet be, carried out.
		switch {
		case op.kind == Drop:
			*k = known{state: maybe, listeners: k.listeners}
		case k.state == none:
			k.state = maybe
		default:
			k.count = 0
		}
		t.troubled(l, r.Msg)

	case Busy:
		l.retryAt = now + int64(t.cfg.RetryAfter)
		t.troubled(l, r.Msg)

	case Refused:
		switch {
		case op.kind == Drop:
			// The key is not ours to touch any more; it ends with its lease.
			*k = known{listeners: k.listeners}
		case l.hold.num != 0:
			l.retryAt = now + int64(t.cfg.RetryAfter)
			l.hold.refused = true
		default:
			for q != nil && q.head != nil {
				w := q.head
				t.unqueue(w)
				t.refuse(w.session, w.id, protocol.Denied, "%s", r.Msg)
			}
		}
	}
	t.settle(now, l)
}

// confirmed notes that the key is ours as the operation wanted it.
func (t *Table) confirmed(now int64, l *lock, op flight, r Result) {
	k := &l.known
	if k.state == none && l.queue != nil {
		l.queue.run, l.queue.stand = 0, false
	}
	k.state, k.fresh = ours, op.fresh
	k.num, k.count, k.leaseMS = op.num, op.count, op.leaseMS
	lease := op.leaseMS
	if l.watched() {
		lease = min(lease, t.leaseMS) // what is above it covers what was told before
	}
	k.until = r.Sent + validity(lease)
	l.renewAt = r.Sent + ms(lease)/3 + t.jitter()
	if op.kind == Take {
		k.listeners = r.Listeners
		if !l.othersListen() {
			k.contended = 0
			if l.queue != nil {
				l.queue.stand = false
			}
		} else if k.contended == 0 {
			k.contended = now
		}
		if op.reserve > 0 {
			k.token, k.tokens = r.Token-uint64(op.reserve)+1, op.reserve
		}
	}
	if q := l.queue; q != nil {
		q.remote = false
	}
	l.hold.refused = false
	t.mark(l)
}

// jitter keeps locks that were taken together from being renewed together for
// ever: up to half a second, less where the lease is short.
func (t *Table) jitter() int64 {
	return t.rng.Int64N(min(int64(500*time.Millisecond), int64(t.cfg.Lease)/20) + 1)
}

// dropped notes that the key has no field of ours.
func (t *Table) dropped(now int64, l *lock) {
	l.known = known{listeners: l.known.listeners}
	if q := l.queue; q != nil {
		q.tryAt = now
		if q.stand {
			q.stand = false
			q.standUntil = now + int64(t.cfg.StandBack)
			q.tryAt = q.standUntil
		}
	}
}

// heldElsewhere notes who has the lock, and until when there is no use in asking
// for it again.
func (t *Table) heldElsewhere(now int64, l *lock, op flight, r Result) {
	q := l.queue
	q.remote, q.field, q.ttlMS, q.seenAt = true, printable(r.Field), r.TTLMS, now
	q.stand = false
	pause := int64(t.cfg.PollDeaf)
	if q.sub == subscribed {
		pause = int64(t.cfg.Poll)
	}
	if r.TTLMS >= 0 {
		pause = min(pause, ms(r.TTLMS+1))
	}
	q.tryAt = now + pause
	if op.wake {
		q.tryAt = now
	}
	for q.head != nil && q.head.try && q.head.since <= op.at {
		w := q.head
		t.unqueue(w)
		t.refuse(w.session, w.id, protocol.Timeout, "%s", l.whyNot())
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

// listen subscribes to the lock's channel while local waiters wait for somebody
// on another host, and lets go of it some time after.
func (t *Table) listen(now int64, l *lock) {
	q := l.queue
	if q == nil {
		return
	}
	if q.head != nil && l.hold.num == 0 && q.remote {
		q.lingerUntil = now + int64(t.cfg.SubscriptionLinger)
		if q.sub == unsubscribed {
			q.sub = asked
			t.emit(Effect{Kind: Subscribe, Name: l.name})
		}
	} else if q.sub != unsubscribed && now >= q.lingerUntil {
		q.sub = unsubscribed
		t.emit(Effect{Kind: Unsubscribe, Name: l.name})
	}
	if q.head == nil && q.sub == unsubscribed && l.known.contended == 0 {
		l.queue = nil
	}
}

// Subscribed says that Redis confirmed the subscription, for the first time or
// again: whatever was published before may have been missed, so a waiter looks
// again.
func (t *Table) Subscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.sub != unsubscribed {
		l.queue.sub = subscribed
		t.wake(now, l)
	}
}

// Unsubscribed says that the subscription is gone or was denied. The sidecar
// polls until Subscribed follows.
func (t *Table) Unsubscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.sub == subscribed {
		q := l.queue
		q.sub = asked
		q.tryAt = min(q.tryAt, max(q.standUntil, now+int64(t.cfg.PollDeaf)))
		t.settle(now, l)
	}
}

// Message says that something was published on the lock's channel.
func (t *Table) Message(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil {
		t.wake(now, l)
	}
}

func (t *Table) wake(now int64, l *lock) {
	l.op.wake = true // even if a local owner believes to have it: the answer may say otherwise
	q := l.queue
	if q.head == nil || l.hold.num != 0 {
		return
	}
	q.tryAt = min(q.tryAt, max(now, q.standUntil))
	t.settle(now, l)
}
