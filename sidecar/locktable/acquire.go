package locktable

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Acquire asks for a lock. It is answered by one Granted or Refusal, now or later,
// unless the session ends first.
func (t *Table) Acquire(now int64, id SessionID, req protocol.Acquire) {
	t.acquire(now, id, wanted{kind: redisop.KindLock, mode: Exclusive}, &req)
}

// AcquireReadWrite asks for a read/write lock, like Acquire.
func (t *Table) AcquireReadWrite(now int64, id SessionID, mode Mode, req protocol.Acquire) {
	t.acquire(now, id, wanted{kind: redisop.KindReadWrite, mode: mode}, &req)
}

// AcquirePermits asks for permits of a semaphore, like Acquire. Each grant is a hold of its own.
func (t *Table) AcquirePermits(now int64, id SessionID, req protocol.AcquirePermits) {
	t.acquire(now, id, wanted{redisop.KindPermits, Units, req.Permits, req.Of}, &req.Acquire)
}

// wanted is what an acquire asks for.
type wanted struct {
	kind              redisop.LockKind
	mode              Mode
	permits, capacity uint16
}

func (t *Table) acquire(now int64, id SessionID, what wanted, req *protocol.Acquire) {
	kind, mode := what.kind, what.mode
	s := t.sessions[id]
	if s == nil || s.phase.IsOver() {
		return
	}
	l := t.byName[req.Name]
	if l != nil {
		t.expireHolds(now, l)
		if !t.becomes(l, kind) {
			code, why := protocol.Denied, "this name is in use as "+l.kind().Noun()+" on this host; choose another name"
			if !l.holders.isHeld() && l.waiting() == 0 {
				code, why = protocol.Unavailable, "this sidecar has not given back to Redis what it had under this name as "+l.kind().Noun()+"; try again"
			}
			t.refuseAcquire(l, s, req.ID, code, why)
			t.reconcile(t.visit(now, l))
			return
		}
		if h := t.holdOf(l, s, req.Owner); !req.NotReentrant && h != nil && h.mode.covers(mode) && h.entries < 1<<31 && !t.expireHold(now, h) {
			t.reenter(h, req.ID)
			t.reconcile(t.visit(now, l))
			return
		}
	}
	if t.refuseOverLimit(now, s, l, kind, req) {
		if l != nil {
			t.reconcile(t.visit(now, l))
		}
		return
	}
	if l == nil {
		l = t.lockFor(req.Name)
		l.setKind(kind)
		t.charge(l, s.user)
	}
	q := t.needQueue(l)
	t.skipEnded(q)
	isFree := l.holders.admits(mode) && q.waiters.head == nil
	isFair := kind == redisop.KindLock && t.wantsOrder(req)
	switch {
	case isFair:
		t.cool(l) // a local waiter is not to pass those that wait in Redis
	case isFree && !l.holders.isHeld():
		t.contests.OnFirstAcquire(&l.memory, now, t.mayLinger(l))
	}
	switch {
	case req.WaitMS == 0 && !isFree:
		code, msg := t.explain(now, l, s, now, mode, false)
		t.refuseAcquire(l, s, req.ID, code, msg)
		t.reconcile(t.visit(now, l))
		return
	case req.WaitMS != 0 && req.Owner != 0 && !isFree && l.holders.isHeld():
		if cycle := t.findWaitCycle(s, req.Owner, l); cycle != "" {
			t.refuseAcquire(l, s, req.ID, protocol.Deadlock, cycle)
			t.reconcile(t.visit(now, l))
			return
		}
	}
	r := t.requests.get()
	*r = request{
		session: s, id: req.ID, owner: req.Owner, since: now,
		leaseMS: uint32(req.LeaseMS), maxHoldMS: uint32(req.MaxHoldMS), crashDelayMS: uint32(req.CrashDelayMS), keepMS: uint32(req.KeepMS),
		mode: mode, isAlone: isFree, notReentrant: req.NotReentrant, isFair: isFair,
		permits: what.permits, capacity: what.capacity,
	}
	if r.leaseMS != 0 {
		r.lease = FixedLease
	}
	if req.WaitMS == 0 {
		r.phase = requestTrying
	}
	r.timer.Value = r
	r.at = waiter{request: r, lock: l}
	if q.waiters.head == nil {
		q.contest.OnFirstRequest(now, r.at.isTrying())
	}
	q.waiters.push(&r.at, inQueue)
	if q.newcomer == nil {
		q.newcomer = &r.at
	}
	q.fair += btoi(isFair)
	q.writers += btoi(mode == Exclusive)
	s.addRequest(r)
	t.waiting++
	switch {
	case req.WaitMS == 0:
		t.arm(&r.timer, now+int64(t.cfg.TryWithin))
	case req.WaitMS > 0:
		t.arm(&r.timer, now+moment.MS(req.WaitMS))
	}
	t.reconcile(t.visit(now, l))
}

// Cancel ends a waiting acquire of the session.
func (t *Table) Cancel(now int64, id SessionID, req protocol.Cancel) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	r := s.requests[req.Target]
	if r != nil {
		t.endRequest(r)
		t.refuseAcquire(r.at.lock, s, r.id, protocol.Canceled, "canceled by the client")
	}
	if req.ID != 0 {
		t.emit(Effect{Kind: Canceled, Session: id, ID: req.ID, WasWaiting: r != nil})
	}
	if r != nil {
		t.reconcile(t.visit(now, r.at.lock))
	}
}

// due ends a request whose time is over. If Redis has not returned a result for it yet, it
// goes on as one that does not wait: otherwise a wait shorter than a round trip would get
// less than none.
func (r *request) due(t *Table, now int64) {
	l, q := r.at.lock, r.at.lock.queue
	latest := t.tryUntil(r)
	if r.phase == requestTrying && now < latest {
		t.arm(&r.timer, latest)
		return
	}
	if r.phase == requestWaiting && r.isAlone && now < latest && !q.contest.Remote().IsKnownSince(r.since) {
		r.phase = requestTrying
		q.contest.OnFirstRequest(now, true)
		t.arm(&r.timer, latest)
		t.reconcile(t.visit(now, l))
		return
	}
	t.endRequest(r)
	code, msg := t.explain(now, l, r.session, r.since, r.mode, r.isAlone)
	if code == protocol.Timeout {
		msg = "waited " + milliseconds(now-r.since) + "; " + msg
	}
	t.refuseAcquire(l, r.session, r.id, code, msg)
	t.reconcile(t.visit(now, l))
}

// DropWaiters ends all requests that wait, without an answer, because the sidecar stops:
// their clients send them to its successor again. No lock lingers from now on.
func (t *Table) DropWaiters(now int64) {
	t.isStopping = true
	for i := len(t.locks) - 1; i >= 0; i-- {
		l := t.locks[i]
		for l.queue != nil && l.queue.waiters.head != nil {
			t.abandon(l.queue.waiters.head.request)
		}
		t.dropConfirms(l)
		t.reconcile(t.visit(now, l))
	}
}
