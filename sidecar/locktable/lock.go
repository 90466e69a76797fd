package locktable

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/wheel"
)

// lock is one name: the hold that a local owner has, the local queue, what is
// known of Redis, and the operation in flight.
type lock struct {
	name      string
	timer     wheel.Timer[timed] // the next time at which anything here is due
	user      *user              // as whose it counts; nil: it counts for no user
	place     uint32             // its index in Table.locks
	slot      uint32             // of the Keeper; 0: none
	unkept    uint32             // its index in notes.unkept plus 1; 0: it is not there
	noted     bool               // in notes.locks
	unsettled bool               // in Table.unsettled

	hold   hold
	claim  remoteClaim
	rivals rivals
	queue  *queue // nil while nobody waits and nothing is subscribed
}

// hold is one acquisition. num 0: nobody local holds the lock.
//
// There may be a hundred thousand of these: the fields stand in an order that
// leaves no gaps.
type hold struct {
	num, token   uint64
	owner        uint64
	session      *session
	prev, next   *lock // the session's other holds
	granted      int64
	deadline     int64  // as the client was told with the grant
	endAt        int64  // max_hold, or an orphan's crash delay, whichever ends first; 0: never
	bucket       int64  // see session.marks
	tells        uint32 // session.tells at the grant
	count        uint32
	claimed      uint32 // entries that its client claimed, which has come back; 0: it has not claimed it
	leaseMS      uint32 // 0: watchdog
	crashDelayMS uint32
	orphan       bool // its session is gone
	refused      bool // Redis refused to renew it
	marked       bool // bucket counts in session.marks
}

// mirrorAfter is how long Redis may know an earlier hold of ours than the one that a
// lock was handed over to. To tell it of each would put it on the path again: where a
// lock passes from one process to the next all the time, Redis took part in nine of ten
// handoffs, and they were a third fewer. What is to be known in time, that somebody on
// another host waits, is so some milliseconds later.
const mirrorAfter = int64(5 * time.Millisecond)

func (t *Table) leaseOf(leaseMS uint32) uint32 {
	if leaseMS == 0 {
		return t.leaseMS
	}
	return leaseMS
}

// lockFor returns the lock of a name, made if need be.
func (t *Table) lockFor(name string) *lock {
	l := t.byName[name]
	if l == nil {
		l = &lock{name: name, place: uint32(len(t.locks))}
		l.timer.Value = l
		t.byName[name] = l
		t.locks = append(t.locks, l)
		t.cells += Cells(name)
	}
	return l
}

func (t *Table) forget(l *lock) {
	if l.unsettled {
		l.unsettled = false
		t.unsettled = slices.DeleteFunc(t.unsettled, func(other *lock) bool { return other == l })
	}
	t.note(l)
	t.charge(l, nil)
	t.cells -= Cells(l.name)
	t.wheel.Remove(&l.timer)
	delete(t.byName, l.name)
	last := len(t.locks) - 1
	moved := t.locks[last]
	t.locks[l.place] = moved
	moved.place = l.place
	t.locks[last] = nil
	t.locks = t.locks[:last]
}

// until is the deadline of the current hold: the largest that its client was
// told. The key may be ours for longer, but nobody may act on what the client
// does not know: it has stopped believing.
func (l *lock) until() int64 {
	h := &l.hold
	switch {
	case h.leaseMS != 0:
		return h.deadline
	case h.orphan:
		return l.claim.validUntil
	case h.session.tells != h.tells:
		return max(h.deadline, h.session.told)
	}
	return h.deadline
}

func (l *lock) due(t *Table, now int64) { t.settle(now, l) }

// urgent reports whether the watchdog renews the lock's hold. It need not be due now: the
// lock has one timer, and in the backlog it would not fire when the renewal is due.
func (l *lock) urgent(now int64) bool {
	h := &l.hold
	return l.watched() && !h.session.ended && now < l.until() && (h.endAt == 0 || now < h.endAt)
}

// settle brings a lock to rest after any change: what has ended ends, who can be
// granted is granted, what Redis must be told is asked, and the timer is set to
// the next time at which any of that may change.
func (t *Table) settle(now int64, l *lock) {
	t.now = now
	t.expire(now, l)
	if l.hold.refused && now >= t.abandonAt(l) {
		t.abandon(l)
	}
	t.serve(now, l)
	t.ask(now, l)
	t.answerConfirms(l)
	t.updateSubscription(now, l)
	if l.idle() {
		t.forget(l)
		return
	}
	t.note(l)
	if at, ok := t.wakeAt(l); ok {
		t.arm(&l.timer, at)
	} else {
		t.wheel.Remove(&l.timer)
	}
}

func (l *lock) idle() bool {
	return l.hold.num == 0 && !l.claim.isBusy() && l.claim.state == claimAbsent && l.queue == nil
}

// expire ends a hold whose time is over, or whose session is.
func (t *Table) expire(now int64, l *lock) {
	h := &l.hold
	if h.num != 0 && !h.orphan {
		switch {
		case h.session.ended:
			t.orphan(l)
		case h.session.detached && h.leaseMS == 0:
			// Without the watchdog, what is left of its lease is a fixed lease.
			t.unmark(l)
			h.deadline = l.until()
			h.leaseMS = t.leaseMS
		}
	}
	switch {
	case h.num == 0:
	case now >= l.until():
		t.lose(l, protocol.Expired, "")
	case h.endAt != 0 && now >= h.endAt:
		t.lose(l, protocol.MaxHold, "") // an orphan has no client to notify
	}
}

// endHold makes the lock free for the next local waiter, or to be dropped.
func (t *Table) endHold(l *lock) {
	t.unlinkHold(l)
	delete(t.byHold, l.hold.num)
	l.hold = hold{}
}

// watched tells whether the watchdog renews the current hold.
func (l *lock) watched() bool { return l.hold.num != 0 && l.hold.leaseMS == 0 }

// checked tells whether the key of the current hold is checked now and then although its
// lease is not renewed: if another program deletes the key or takes it over, the client
// is to be notified, and the next waiter is to have the lock.
func (l *lock) checked() bool {
	h, q := &l.hold, l.queue
	return h.num != 0 && h.leaseMS != 0 && (!h.orphan && !h.session.detached || q != nil && q.head != nil)
}

// nextCheck is when the key of a hold with a fixed lease is checked again.
func (t *Table) nextCheck(now int64) int64 {
	return t.rendezvous(now + int64(t.cfg.Lease)/3 + t.jitter())
}

// lookSoon has the key of the current hold renewed or checked now, because another
// program may have changed it. However many messages say so, it is not sooner than
// lookPause after the last time.
func (l *lock) lookSoon(now int64) {
	l.claim.renewAt = min(l.claim.renewAt, max(now, l.claim.confirmedAt+lookPause))
	l.claim.op.look = true // what is in flight may have been executed before
}

const lookPause = int64(10 * time.Millisecond)

// ask sends the operation, if there is one, that brings Redis nearer to what it
// should have. At most one is in flight, or a Take behind a Drop.
func (t *Table) ask(now int64, l *lock) {
	chasing := t.canPipelineTake(now, l)
	if l.claim.isBusy() && !chasing || !t.up || now < l.claim.retryAt {
		return
	}
	l.claim.retryAt = 0
	k, h := &l.claim, &l.hold
	waiters := 0
	if l.queue != nil && l.queue.denial == "" {
		waiters = l.queue.len
	}
	switch {
	case h.num != 0:
		lease := t.leaseMS
		if h.leaseMS != 0 {
			// What is left of a fixed lease, and its drift, so that the key
			// does not outlive the hold by more than it would have.
			left := h.deadline - now + ms(h.leaseMS) - validity(h.leaseMS)
			lease = uint32((left + int64(time.Millisecond) - 1) / int64(time.Millisecond))
		}
		if h.leaseMS != 0 || !h.orphan {
			// What was told when a longer lease was configured stays true.
			lease = max(lease, leaseCovering(l.until()-now))
		}
		// A draw fails where the key of the counter is not one, or memory is short. It
		// must not take the renewal with it: see drawFailed.
		mayDraw := waiters > 0 && now >= l.queue.drawAt
		reserve := uint16(0)
		if mayDraw && int(k.tokens.left) < max(1, t.cfg.HandoffBudget/4) {
			reserve = uint16(t.cfg.HandoffBudget)
		}
		restored := k.state == claimRestored // confirmed like a renewal: there may be very many
		passed := k.holdID != h.num && !restored
		switch {
		case k.state.isUnsure(): // Redis lost its data: assert what we hold
			t.send(now, l, Op{Kind: Take, Num: h.num, Count: h.count, LeaseMS: lease, Reserve: reserve})
		case passed && now >= k.confirmedAt+mirrorAfter, mayDraw && (restored || k.tokens.isEmpty()):
			t.send(now, l, Op{Kind: Take, Num: h.num, Count: h.count, LeaseMS: lease, Reserve: reserve, Held: true})
		case (k.state == claimStale || k.count != h.count) && !passed, l.watched() && now >= l.claim.renewAt, restored,
			// It was taken for a waiter with a longer lease, who is gone: its renewal
			// is not due in time, and the key would outlive a dead sidecar for longer.
			k.leaseMS > t.leaseOf(h.leaseMS) && lease <= t.leaseOf(h.leaseMS):
			t.send(now, l, Op{Kind: Keep, Num: h.num, Count: h.count, LeaseMS: lease})
		case l.checked() && now >= l.claim.renewAt && !passed:
			t.send(now, l, Op{Kind: Check, Num: h.num, Count: h.count})
		}
	case waiters > 0 && !(l.queue.arbiter.phase == yielding && k.state != claimAbsent):
		if k.state.isOurs() || now >= l.queue.arbiter.nextTry {
			reserve := uint16(1)
			switch {
			case waiters > 1:
				reserve = uint16(max(2, t.cfg.HandoffBudget))
			case l.rivals.listeners < 0:
				reserve = 2 // so that they are counted
			}
			if chasing {
				if l.claim.pipelined == 0 {
					l.claim.pipelinedSince = shortMillis(now)
				}
				l.claim.pipelined++
				l.forgetClaim(claimUncertain)
			} else {
				l.claim.pipelined = 0
			}
			t.lastNum++
			l.queue.arbiter.onTake()
			t.send(now, l, Op{Kind: Take, Num: t.lastNum, Count: 1, LeaseMS: t.leaseOf(l.queue.head.leaseMS), Reserve: reserve, Behind: chasing})
		}
	case k.state != claimAbsent:
		t.send(now, l, Op{Kind: Drop, Num: l.claim.maxHoldID, Count: 1})
	}
}

// canPipelineTake decides whether a Take may be sent after a Drop that has no result yet.
func (t *Table) canPipelineTake(now int64, l *lock) bool {
	q := l.queue
	return l.claim.op.kind == Drop && l.claim.phase == windowOne && l.claim.state.isOurs() && q != nil && q.head != nil && q.denial == "" &&
		q.arbiter.mayPipeline(&t.policy, now, &l.claim.window)
}

func (t *Table) send(now int64, l *lock, op Op) {
	op.Name = l.name
	l.claim.sent(now, &op, l.hold.num == 0)
	if op.Kind == Drop {
		if l.queue != nil {
			l.queue.arbiter.onDropSent(now)
		}
	} else if op.Kind != Check {
		t.mark(l)
	}
	if t.owed == 0 {
		t.owing = now
	}
	t.owed++
	t.emit(Effect{Kind: Redis, Op: op})
}

// forgetClaim notes that Redis has no field of this host, or that nothing is known of it.
func (l *lock) forgetClaim(s claimState) {
	l.claim.forget(s)
	l.rivals.since = 0
}

// wakeAt is the next time at which settle would do something.
func (t *Table) wakeAt(l *lock) (at int64, ok bool) {
	sooner := func(v int64) {
		if !ok || v < at {
			at, ok = v, true
		}
	}
	canAsk := !l.claim.isBusy() && t.up
	if h := &l.hold; h.num != 0 {
		sooner(l.until())
		if h.endAt != 0 {
			sooner(h.endAt)
		}
		if h.refused {
			sooner(t.abandonAt(l))
		}
		if canAsk && l.claim.holdID != h.num {
			sooner(max(l.claim.confirmedAt+mirrorAfter, l.claim.retryAt))
		}
		if canAsk && (l.watched() || l.checked() && l.claim.holdID == h.num) {
			sooner(max(l.claim.renewAt, l.claim.retryAt))
		}
	}
	if q := l.queue; q != nil {
		a := &q.arbiter
		if q.head == nil || l.hold.num != 0 {
			switch {
			case a.sub != unsubscribed:
				sooner(a.lingerUntil)
			case q.head != nil:
				sooner(q.head.since + int64(t.cfg.WatchAfter))
			}
			if a.phase == retryScheduled {
				sooner(a.nextTry)
			}
			if q.head != nil && canAsk && l.claim.tokens.isEmpty() {
				sooner(max(q.drawAt, l.claim.retryAt))
			}
		} else if canAsk {
			sooner(max(a.nextTry, l.claim.retryAt))
		}
	}
	if canAsk && l.claim.retryAt != 0 {
		sooner(l.claim.retryAt)
	}
	return at, ok
}
