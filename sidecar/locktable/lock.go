package locktable

import (
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/wheel"
)

// lock is one name. Three parts of it have one job each: claim is what Redis has for this
// host; holds and the waiters in queue are what local clients have and want; the arbiter in
// queue decides between this host and others.
//
// There may be a hundred thousand of these: the fields are in an order that leaves no gaps.
type lock struct {
	name       string
	timer      wheel.Timer[timed] // the next time at which anything here is due
	user       *user              // as whose it counts; nil: it counts for no user
	index      uint32             // in Table.locks
	slot       uint32             // of the journal; 0: none
	hotUntil   uint32             // it is hot if it is acquired by then, see shortMoment; 0: it is not
	rivals     rivals
	isHot      bool  // it was acquired here soon after that: it lingers when it is released
	isDirty    bool  // in dirtySet.locks
	isDeferred bool  // in Table.deferred
	group      uint8 // in which it counts: see groupOf

	claim remoteClaim
	holds *hold  // linked by hold.next
	queue *queue // nil while there are no waiters and no subscription
}

// lockFor returns the lock of a name, made if need be.
func (t *Table) lockFor(name string) *lock {
	l := t.byName[name]
	if l == nil {
		l = &lock{name: name, index: uint32(len(t.locks))}
		l.timer.Value, l.claim.window = l, &atRest
		l.hotUntil, l.rivals.pollerAt = t.hotUntil.at(name), t.pollers.at(name)
		l.group = t.groupOf(name)
		t.byName[name] = l
		t.locks = append(t.locks, l)
		t.cells += Cells(name)
	}
	return l
}

func (t *Table) forget(l *lock) {
	if l.isDeferred {
		l.isDeferred = false
		t.deferred = slices.DeleteFunc(t.deferred, func(other *lock) bool { return other == l })
	}
	t.markDirty(l)
	t.charge(l, nil)
	t.cells -= Cells(l.name)
	t.wheel.Remove(&l.timer)
	delete(t.byName, l.name)
	delete(t.grantCarries, l.name)
	last := len(t.locks) - 1
	moved := t.locks[last]
	t.locks[l.index] = moved
	moved.index = l.index
	t.locks[last] = nil
	t.locks = t.locks[:last]
}

func (l *lock) due(t *Table, now int64) { t.reconcile(now, l) }

// isUrgent reports whether the watchdog renews the lock's hold. It need not be due now: the
// lock has one timer, and in the backlog it would not fire when the renewal is due.
func (t *Table) isUrgent(now int64, l *lock) bool {
	h := l.holds
	return h != nil && h.isRenewed() && h.session.phase != SessionEnded && now < t.deadline(h) && (h.endAt == 0 || now < h.endAt)
}

// alarm collects the next time at which a rule applies. A rule compares a time with now by
// due alone, so that the condition of an action and the time of the next look at it are one
// expression.
type alarm struct {
	now, next int64
}

const never = math.MaxInt64

// due reports whether the time has come. If it has not, the alarm is no later than it.
func (a *alarm) due(at int64) bool {
	if a.now >= at {
		return true
	}
	a.next = min(a.next, at)
	return false
}

// reconcile brings a lock to rest after any change: what has ended ends, the next waiter is
// granted if it can be, the operation is sent that brings Redis nearer to what it should
// have, and the timer is set to the next time at which any of that may change.
//
// Nothing leaves the table and nothing is stored before Effects: reconcile appends effects,
// and marks what the journal has to store.
func (t *Table) reconcile(now int64, l *lock) {
	t.now = now
	a := alarm{now, never}
	for t.endDueHold(&a, l) || t.grantNext(now, l) {
		a.next = never // of what has changed
	}
	t.syncRemote(&a, l)
	t.answerConfirms(l)
	t.updateSubscription(&a, l)
	t.closeWindow(l)
	if l.isIdle() {
		t.forget(l)
		return
	}
	t.markDirty(l)
	if a.next == never {
		t.wheel.Remove(&l.timer)
	} else {
		t.arm(&l.timer, a.next)
	}
}

func (l *lock) isIdle() bool {
	return l.holds == nil && l.claim.isIdle() && l.claim.state == claimAbsent && l.queue == nil
}

// syncRemote sends the operation, if there is one, that brings Redis nearer to what it
// should have.
func (t *Table) syncRemote(a *alarm, l *lock) {
	for t.redis.isUp() { // a Take may be pipelined after a Drop
		w := t.want(a, l)
		op := l.claim.step(a, &w)
		if op.Kind == redisop.NoOp {
			return
		}
		t.send(a.now, l, &op)
	}
}

// want is what Redis should have for a lock.
func (t *Table) want(a *alarm, l *lock) want {
	now, q, h, waiting := a.now, l.queue, l.holds, l.waiting()
	switch {
	case h != nil:
		w := want{
			kind: wantHold, holdID: h.id, count: h.entries, leaseMS: t.leaseToSet(now, h), fullLeaseMS: t.leaseOf(h.lease, h.leaseMS),
			isRenewed: h.isRenewed(), isChecked: h.isChecked(), tokens: t.cfg.HandoffBudget, reserveAt: never,
		}
		switch {
		case h.phase == HoldKept: // its end is the end of the claim, so nothing is handed over
		case waiting > 0:
			w.reserveAt = q.drawAt
		case l.isHot:
			w.isHot, w.tokens, w.reserveAt = true, hotTokens, now
		}
		if h.hasKeep {
			w.fullLeaseMS = max(w.fullLeaseMS, leaseKeeping(t.keepUntil(h)-h.granted))
		}
		if t.isInOrder(l) {
			w.arrives, w.arriveAt = q.order.newcomer != nil, q.order.retryAt
		}
		return w
	case waiting > 0:
		first := q.waiters.head
		yields := q.arbiter.phase == yielding && l.claim.state != claimAbsent || l.claim.state.isOurs() && !t.isServed(l, first)
		enqueues := t.redis.isListening && (q.place.live() != 0 || waiting > 1 || !first.isTrying())
		mayPipeline := l.claim.isReleasing() &&
			q.arbiter.mayPipeline(&t.policy, now, &l.claim, yields, enqueues, t.isInOrder(l) && first.request.arrived != 0)
		if yields && !mayPipeline {
			break
		}
		if q.place.phase == placeLeaving {
			break // the journal has no record of a ticket that is forgotten
		}
		w := want{
			kind: wantForQueue, holdID: t.lastNum + 1, count: 1, leaseMS: t.leaseToTake(first.request), reserve: 1,
			notBefore: q.arbiter.nextTry, mayPipeline: mayPipeline,
			ticket: q.place.live(),
		}
		w.onlyAsk = l.claim.state == claimAbsent && !first.isTrying() && q.arbiter.mustOnlyAsk(now, &q.place)
		w.enqueue = enqueues
		w.inOrder = w.enqueue && w.ticket == 0
		if w.enqueue && t.isInOrder(l) {
			w.inOrder, w.arrived = true, first.request.arrived
			w.arrives, w.arriveAt = w.ticket != 0 && q.order.newcomer != nil, q.order.retryAt
			switch {
			case q.mustMove():
				w.notBefore = min(w.notBefore, max(now, q.arbiter.backoffUntil))
			case q.standsForAnother():
				w.notBefore = never // the ticket moves to the arrival of the first waiter before it is used
			}
		}
		if a := &q.arbiter; a.isBackingOff(now) && w.notBefore < a.backoffUntil {
			// The lock is left free. It may be looked at, see lookForPoller.
			w.onlyAsk = l.claim.state == claimAbsent && w.enqueue && !first.isTrying()
			if !w.onlyAsk {
				w.notBefore = a.backoffUntil
			}
		}
		switch {
		case l.isHot:
			w.reserve = hotTokens
		case waiting > 1:
			w.reserve = uint16(max(2, t.cfg.HandoffBudget))
		case l.rivals.listeners < 0:
			w.reserve = 2 // so that they are counted
		}
		return w
	case l.lingers(a, t):
		return want{kind: wantLinger}
	}
	w := want{kind: wantNothing, leaseMS: t.leaseMS}
	if l.claim.isTired(&t.cfg, &l.rivals, now) {
		w.passedMS = pauseAfterMS // Redis leaves it free, too
	}
	if q != nil {
		w.ticket = q.place.ticket
	}
	return w
}

// leaseToSet is the lease that Redis is given for a hold now.
func (t *Table) leaseToSet(now int64, h *hold) uint32 {
	if h.phase == HoldKept {
		return leaseKeeping(h.deadline - now)
	}
	lease := t.leaseMS
	if !h.isRenewed() {
		// What is left of a fixed lease, and its drift, so that the key
		// does not outlive the hold by more than it would have.
		full := t.leaseOf(h.lease, h.leaseMS)
		left := h.deadline - now + ms(full) - validity(full)
		lease = uint32((left + int64(time.Millisecond) - 1) / int64(time.Millisecond))
	}
	if !h.isRenewed() || !h.isOrphan() {
		// What was sent when a longer lease was configured stays true.
		lease = max(lease, leaseCovering(t.deadline(h)-now))
	}
	if h.hasKeep {
		lease = max(lease, leaseKeeping(t.keepUntil(h)-now))
	}
	return lease
}

func (t *Table) send(now int64, l *lock, op *redisop.Op) {
	op.Name, op.User = l.name, redisop.NoUser
	if l.user != nil {
		op.User = l.user.uid
	}
	op.CanWait = op.Kind == redisop.Drop && !l.isAwaited(op)
	l.claim.assertSent(l, op)
	if op.Kind == redisop.Take && l.holds == nil {
		t.lastNum = op.HoldID
		if op.Enqueue {
			l.queue.order.onTakeSent(now, op, &l.queue.place)
			l.queue.place.onTakeSent(now, op)
		}
	}
	if op.Kind == redisop.Drop && l.queue != nil {
		l.queue.arbiter.onDropSent(now)
		l.queue.place.onDropSent()
		l.queue.order.served = served{}
		if l.waiting() > 0 && !l.queue.waiters.head.request.isAlone && l.mustLeaveFree(&t.cfg, now) {
			l.queue.arbiter.phase = yielding // those that wake up get their chance
		}
	}
	t.openWindow(l)
	l.claim.sent(now, op, l.holds == nil)
	if op.Kind == redisop.Take || op.Kind == redisop.Renew {
		t.trackDeadline(l.holds)
	}
	t.redis.onSent(now)
	t.emit(Effect{Kind: Redis, Op: *op})
}

// mustLeaveFree reports whether a Drop is to leave the lock free for a moment: this host has it, and
// other programs want it; or it has had no free moment for long, also if Redis may have lost it since.
// A Drop that gives up no more than a ticket leaves nothing to others.
func (l *lock) mustLeaveFree(cfg *Config, now int64) bool {
	return l.claim.state.isOurs() && l.queue.arbiter.arePrograms(now) || l.claim.isTired(cfg, &l.rivals, now)
}

// isAwaited reports whether a request of this host, another host, or a program that is subscribed
// waits for the lock that a Drop frees, as far as this host knows.
func (l *lock) isAwaited(op *redisop.Op) bool {
	q := l.queue
	return op.Ticket != 0 || l.rivals.areWaiting || l.rivals.listeners > 0 || q != nil && (q.waiters.head != nil || len(q.confirms) > 0)
}

// forgetClaim notes that Redis has no field of this host, or that nothing is known of it.
func (l *lock) forgetClaim(s claimState) {
	l.claim.forget(s)
	l.rivals.areWaiting = false
	if l.queue != nil {
		l.queue.order.served = served{}
	}
	if s == claimAbsent && l.queue != nil {
		l.queue.arbiter.phase = contending // there is nothing to yield
	}
}

// checkSoon has the key of the current hold renewed or checked now, because another
// program may have changed it. However many messages say so, it is not sooner than
// checkPause after the last time.
func (l *lock) checkSoon(now int64) {
	l.claim.renewAt = min(l.claim.renewAt, max(now, l.claim.confirmedAt+checkPause))
	if l.claim.isBusy() {
		l.claim.op.checkAgain = true // it may have been executed before
	}
}

const checkPause = int64(10 * time.Millisecond)
