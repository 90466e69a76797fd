package locktable

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// When requests arrived at Redis, for strict order between hosts: see contest/order.go.

// wantsOrder reports whether an acquire waits in order.
func (t *Table) wantsOrder(req *protocol.Acquire) bool {
	return req.WaitMS != 0 && (req.Fair || slices.ContainsFunc(t.cfg.Fair, func(p NamePattern) bool { return p.Matches(req.Name) }))
}

// arrive notes the arrival of all waiters that came until an operation was sent.
func (q *queue) arrive(sentAt int64, arrived uint64) {
	for q.newcomer != nil && q.newcomer.request.since <= sentAt {
		q.newcomer.request.arrived = arrived
		q.newcomer = q.newcomer.inQueue.next
	}
}

func (s *session) addRequest(r *request) {
	s.requests[r.id] = r
	s.byAge.push(r, inSession)
	if r.owner != 0 {
		if s.owners[r.owner] == nil {
			s.owners[r.owner] = new(list[request])
		}
		s.owners[r.owner].push(r, ofOwner)
	}
	s.user.waiters++
	s.countWaiter(r.at.lock.name, 1)
}

func (s *session) removeRequest(r *request) {
	delete(s.requests, r.id)
	s.byAge.remove(r, inSession)
	if r.owner != 0 {
		own := s.owners[r.owner]
		if own.remove(r, ofOwner); own.len == 0 {
			delete(s.owners, r.owner)
		}
	}
	s.user.waiters--
	s.countWaiter(r.at.lock.name, -1)
}

// endRequest takes a request out of everything. Its fields are good until the next Acquire.
func (t *Table) endRequest(r *request) {
	t.wheel.Remove(&r.timer)
	q := r.at.lock.queue
	if q.newcomer == &r.at {
		q.newcomer = r.at.inQueue.next
	}
	q.fair -= btoi(r.isFair)
	q.writers -= btoi(r.mode == Exclusive)
	q.waiters.remove(&r.at, inQueue)
	r.session.removeRequest(r)
	t.waiting--
	t.requests.put(r)
}

// abandon takes out a request that gets no answer.
func (t *Table) abandon(r *request) {
	t.groupStats(r.at.lock).Acquires[AcquireAbandoned]++
	t.endRequest(r)
}

// refuseAcquire answers an acquire of a lock with an error.
func (t *Table) refuseAcquire(l *lock, s *session, id uint64, code protocol.Code, msg string) {
	t.groupStats(l).Acquires[resultOf(code)]++
	if !s.phase.IsOver() {
		t.emit(Effect{Kind: Refusal, Session: s.id, ID: id, Code: code, Msg: msg, Name: l.name})
	}
}

// skipEnded takes away first waiters whose session is over: as many as do not take long. If
// there are more, a request that does not wait finds them before it.
func (t *Table) skipEnded(q *queue) {
	for left := 64 * t.cfg.MaxWork; q.waiters.head != nil && q.waiters.head.request.session.phase.IsOver() && left > 0; left-- {
		t.abandon(q.waiters.head.request)
	}
}

// becomes makes a lock one of a kind, unless it is in use as one of another.
func (t *Table) becomes(l *lock, kind redisop.LockKind) bool {
	if l.queue != nil {
		t.skipEnded(l.queue)
	}
	isUnused := !l.holders.isHeld() && l.waiting() == 0
	// What Redis has, or an operation in flight may get, is of another form.
	isUnused = isUnused && !l.claim.State().IsOurs() && !l.claim.IsTaking() && (l.queue == nil || !l.queue.contest.HasPlace())
	if l.kind() != kind && isUnused {
		delete(t.many, l)
		l.setKind(kind)
	}
	return l.kind() == kind
}

// beginReadPhase has all readers that wait here come before the writers that do. Those that come later wait for the writers, also
// for those of other hosts (K8).
func (t *Table) beginReadPhase(l *lock) {
	q := l.queue
	if q == nil {
		return
	}
	for q.firstTries() && q.waiters.head.request.mode == Exclusive {
		r := q.waiters.head.request
		t.endRequest(r)
		t.refuseAcquire(l, r.session, r.id, protocol.Timeout, readElsewhere)
	}
	if q.writers == q.waiters.len {
		return
	}
	w := q.waiters.head
	for range q.waiters.len {
		next := w.inQueue.next
		if w.request.isOfPhase = w.request.mode == Shared; !w.request.isOfPhase {
			q.waiters.remove(w, inQueue)
			q.waiters.push(w, inQueue)
		}
		w = next
	}
}

const readElsewhere = "clients of other hosts read, or requests of other hosts come first"

// beginWritePhase has the first writer that waits here come before the readers that do.
func (l *lock) beginWritePhase() {
	if l.queue == nil || l.queue.writers == 0 || l.queue.firstTries() {
		return
	}
	w := l.queue.waiters.head
	for w.request.mode != Exclusive {
		w = w.inQueue.next
	}
	l.queue.waiters.remove(w, inQueue)
	l.queue.waiters.pushFront(w, inQueue)
}

// blockerSince returns for which hold a request waited that came at this time: of a client of this
// host, or of another owner, by its field in Redis; nil and "": it is not known.
func (l *lock) blockerSince(since int64) (local *Peer, field string) {
	q := l.queue
	if q == nil {
		return nil, ""
	}
	field, seenAt := q.contest.Remote().Field()
	switch {
	case q.blocker.peer != nil && q.blocker.endedAt >= since && q.blocker.endedAt >= seenAt:
		return q.blocker.peer, ""
	case field != "" && seenAt >= since:
		return nil, field
	}
	return nil, ""
}

// leaveRest has Work reconcile the lock again: it has more requests than one step may answer.
func (t *Table) leaveRest(v *visit) {
	v.hasMore = true
	v.onChange()
	t.budget -= t.cfg.MaxWork
}

// answerConfirms answers those who asked for a confirmation: that Redis has no ended
// hold, or that it refuses the release. Those that one step may not answer, Work does.
func (t *Table) answerConfirms(v *visit) {
	l, q := v.lock, v.lock.queue
	isReleased := l.holders.isHeld() || l.claim.State() == claim.Absent && !l.claim.IsBusy()
	if l.kind().HasMany() && l.holders.isHeld() {
		isReleased = l.claim.State() == claim.Confirmed && l.claim.Extent() <= t.neededOf(l) && !l.claim.IsBusy()
	}
	if q == nil || q.refusal == "" && !isReleased {
		return
	}
	n := min(len(q.confirms), t.cfg.MaxWork)
	for _, c := range q.confirms[:n] {
		switch s := t.endConfirm(c); {
		case s == nil:
		case q.refusal != "":
			t.refuse(s, c.id, protocol.Denied, "the lock is released here, and its lease ends in Redis, but Redis refused the release: %s", q.refusal)
		case !s.phase.IsOver():
			t.emit(Effect{Kind: Confirmed, Session: s.id, ID: c.id})
		}
	}
	if q.confirms = q.confirms[n:]; len(q.confirms) > 0 {
		t.leaveRest(v)
		return
	}
	q.confirms, q.refusal = nil, ""
}

// endConfirm counts a confirmation no more, and returns its session if there still is one.
func (t *Table) endConfirm(c confirm) *session {
	t.waiting--
	c.user.waiters--
	s := t.sessions[c.session]
	if s == nil {
		t.forgetIfIdle(c.user)
		return nil
	}
	delete(s.confirms, c.id)
	return s
}

// dropConfirms forgets what was asked for, without an answer.
func (t *Table) dropConfirms(l *lock) {
	if q := l.queue; q != nil {
		for _, c := range q.confirms {
			t.endConfirm(c)
		}
		q.confirms, q.refusal = nil, ""
	}
}

// denyWaiters has grantNext refuse all local waiters.
func (t *Table) denyWaiters(l *lock, msg string) {
	if l.queue != nil && l.queue.waiters.head != nil {
		l.queue.denial = msg
	}
}

// onRedisError keeps what Redis returned for waiters whose time ends before it gets
// better, and answers those that do not wait.
func (t *Table) onRedisError(l *lock, msg string) {
	q := l.queue
	if q == nil {
		return
	}
	q.lastError = msg
	for !l.holders.isHeld() && q.firstTries() {
		r := q.waiters.head.request
		t.endRequest(r)
		t.refuseAcquire(l, r.session, r.id, protocol.Unavailable, msg)
	}
}

// doubtForConfirms notes that a failover may bring a field of this host back, if replicas did not confirm the
// operation which found that there is none, and clients wait for that. Another operation follows.
func (t *Table) doubtForConfirms(l *lock, isUnsynced bool) {
	if q := l.queue; t.cfg.Durable && isUnsynced && q != nil && len(q.confirms) > 0 && !l.holders.isHeld() {
		l.claim.MayBeBack()
	}
}
