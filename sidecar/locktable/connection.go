package locktable

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Up says that a shard can be asked. With dataLost it may have forgotten what it
// knew: holds whose deadline has not passed are asserted again, and tokens drawn
// before are not handed out any more. isListening: the sidecar is subscribed to its own channel
// on the connection that results come from. Messages from before are lost.
func (t *Table) Up(now int64, n redisop.Shard, dataLost, isListening bool) {
	t.shardAt(n).onUp(isListening)
	for i := len(t.locks) - 1; i >= 0; i-- {
		l := t.locks[i]
		if l.shard != n {
			continue
		}
		l.claim.EndPause()
		if dataLost {
			l.claim.OnDataLost()
		}
		if q := l.queue; q != nil {
			q.contest.OnUp(now, isListening)
		}
		t.reconcile(t.visit(now, l))
	}
}

// Down says that a shard cannot be asked until Up; why is for people. During an outage it changes
// the reason only: waiters whose time ends are refused with the last one.
func (t *Table) Down(now int64, n redisop.Shard, why string) {
	if wasDown := t.shardAt(n).onDown(why); wasDown {
		return // no lock depends on the reason
	}
	for i := len(t.locks) - 1; i >= 0; i-- {
		if l := t.locks[i]; l.shard == n {
			t.reconcile(t.visit(now, l))
		}
	}
}

// Route says that other shards have these slots from now on. Whatever the reason, their locks may have
// lost data, as after Up with dataLost: a replica that was promoted may lack what its master had
// confirmed. An operation in flight stays in flight: it was sent to the shard before, which gives its
// result. Precondition: the Table has Config.SlotOf.
func (t *Table) Route(now int64, ranges []redisop.SlotRange) {
	if !t.setRoutes(ranges) {
		return
	}
	for i := len(t.locks) - 1; i >= 0; i-- {
		if l := t.locks[i]; l.shard != t.routeOf(l.name) {
			t.move(now, l)
		}
	}
}

// move notes that another shard has a lock.
func (t *Table) move(now int64, l *lock) {
	before := l.shard
	l.shard = t.routeOf(l.name)
	l.claim.EndPause()
	l.claim.OnMoved()
	if q := l.queue; q != nil {
		q.contest.OnMoved(now, t.shardOf(l).isListening)
		if q.contest.IsSubscribing() {
			q.contest.OnUnsubscribed(&t.contests, now)
			t.emit(Effect{Kind: Unsubscribe, Name: l.name, Op: redisop.Op{Shard: before}})
			t.emit(Effect{Kind: Subscribe, Name: l.name, Op: redisop.Op{Shard: l.shard}})
		}
	}
	t.reconcile(t.visit(now, l))
}

// Subscribed notes that Redis confirmed the subscription, for the first time or again.
func (t *Table) Subscribed(now int64, n redisop.Shard, name string) {
	if l := t.byName[name]; l != nil && l.shard == n && l.queue != nil && l.queue.contest.IsSubscribing() {
		q := l.queue
		l.claim.Note(claim.LockMayBeFree)
		if l.holders.isHeld() {
			l.claim.CheckSoon(now)
		}
		q.contest.OnSubscribed(now, q.waiters.head != nil && !l.holders.isHeld())
		t.reconcile(t.visit(now, l))
	}
}

// Unsubscribed notes that the subscription is gone or was denied. The sidecar polls until
// Subscribed follows.
func (t *Table) Unsubscribed(now int64, n redisop.Shard, name string) {
	if l := t.byName[name]; l != nil && l.shard == n && l.queue != nil && l.queue.contest.IsSubscribed() {
		l.queue.contest.OnUnsubscribed(&t.contests, now)
		t.reconcile(t.visit(now, l))
	}
}
