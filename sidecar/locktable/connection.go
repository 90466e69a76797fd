package locktable

import "github.com/locksidecar/locksidecar/sidecar/locktable/claim"

// Up says that Redis can be asked. With dataLost it may have forgotten what it
// knew: holds whose deadline has not passed are asserted again, and tokens drawn
// before are not handed out any more. isListening: the sidecar is subscribed to its own channel
// on the connection that results come from. Messages from before are lost.
func (t *Table) Up(now int64, dataLost, isListening bool) {
	t.shard.onUp(isListening)
	for i := len(t.locks) - 1; i >= 0; i-- {
		l := t.locks[i]
		l.claim.EndPause()
		if dataLost {
			l.claim.OnDataLost()
		}
		if q := l.queue; q != nil {
			q.contest.OnUp(now, isListening)
		}
		t.reconcile(now, l)
	}
}

// Down says that Redis cannot be asked until Up; why is for people. During an outage it changes
// the reason only: waiters whose time ends are refused with the last one.
func (t *Table) Down(now int64, why string) {
	if wasDown := t.shard.onDown(why); wasDown {
		return // no lock depends on the reason
	}
	for i := len(t.locks) - 1; i >= 0; i-- {
		t.reconcile(now, t.locks[i])
	}
}

// Subscribed notes that Redis confirmed the subscription, for the first time or again.
func (t *Table) Subscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.contest.IsSubscribing() {
		q := l.queue
		l.claim.Note(claim.LockMayBeFree)
		if l.holds != nil {
			l.claim.CheckSoon(now)
		}
		q.contest.OnSubscribed(now, q.waiters.head != nil && l.holds == nil)
		t.reconcile(now, l)
	}
}

// Unsubscribed notes that the subscription is gone or was denied. The sidecar polls until
// Subscribed follows.
func (t *Table) Unsubscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.contest.IsSubscribed() {
		l.queue.contest.OnUnsubscribed(&t.contests, now)
		t.reconcile(now, l)
	}
}
