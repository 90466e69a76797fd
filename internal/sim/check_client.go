package sim

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What tables answer their clients, and which events they send.

// apply carries out one effect of a table, and judges it.
func (w *world) apply(h *host, e *locktable.Effect) {
	w.check.digest = w.check.digest.with(e)
	if w.trace.on {
		w.trace.effect(w, h, e)
	}
	switch e.Kind {
	case locktable.Granted:
		w.onGranted(h, e)
	case locktable.Released:
		w.onReleased(h, e)
	case locktable.Downgraded:
		w.onDowngraded(h, e)
	case locktable.Refusal:
		w.onRefusal(h, e)
	case locktable.Canceled:
		w.onCanceled(h, e)
	case locktable.Forced:
		w.onForced(h, e)
	case locktable.KeepLost:
		w.onKeepLost(h, e)
	case locktable.Lost:
		if slot := slotOf(e.Session); h.journal.session(e.Session) != nil && (h.sessions[slot].id != e.Session || !h.sessions[slot].open) {
			// Its client is dead, and its sidecar was killed before it had recorded that.
			for n := range w.plan.names {
				if c := &h.locks[n].hold; c.num == e.Hold && c.state == unbelieved {
					w.loseHold(h, n, e.Reason)
				}
			}
			break
		}
		s := w.sessionOf(h, e)
		w.onLost(h, s, e, s.link == connected || s.link == claiming && (e.WasClaimed || e.Reason == protocol.Forgotten))
	case locktable.Claimed:
		w.onClaimed(h, e)
	case locktable.Confirmed:
		w.onConfirmed(h, e)
	case locktable.Closed:
		h.journal.closed(e.Session)
		w.check.meetIf(ClosedInParts, w.plan.table.MaxWork > 0 && h.closing > 1)
		h.closing--
	case locktable.Lease:
		w.onLease(h, e)
	case locktable.Redis:
		w.onOperation(h, e.Op)
	case locktable.Subscribe:
		n := nameIndex(e.Name)
		if h.locks[n].wantsMessages {
			w.violation(invariant.RedisSynced, n, "host %d subscribes twice", h.index)
		}
		w.subscribe(h, n, e.Op.Shard)
	case locktable.Unsubscribe:
		n := nameIndex(e.Name)
		if !h.locks[n].wantsMessages {
			w.violation(invariant.RedisSynced, n, "host %d unsubscribes from what it is not subscribed to", h.index)
		}
		w.unsubscribe(h, n, e.Op.Shard)
		if l := &h.locks[n]; l.pollerUntil == h.clock(w.now)+rivalMemory {
			l.pollerUntil = 0 // it may have unsubscribed before it read that only it is subscribed
		}
	case locktable.LongHold, locktable.CutShort, locktable.Crashed: // no client gets them
	default:
		w.violation(invariant.Answers, -1, "effect of kind %d", e.Kind)
	}
}

func (w *world) sessionOf(h *host, e *locktable.Effect) *session {
	slot := slotOf(e.Session)
	if slot >= len(h.sessions) || h.sessions[slot].id != e.Session || !h.sessions[slot].open {
		w.violation(invariant.Answers, -1, "host %d sends to session %d, which is closed", h.index, e.Session)
	}
	return &h.sessions[slot]
}

// answered returns the request that the effect answers, which waits no more.
func (w *world) answered(h *host, e *locktable.Effect, kinds ...requestKind) request {
	s := w.sessionOf(h, e)
	if s.detached || s.link != connected {
		w.violation(invariant.Answers, -1, "host %d answers session %d, which is not connected", h.index, e.Session)
	}
	for _, kind := range kinds {
		if i := s.find(e.ID, kind); i >= 0 {
			q := s.requests[i]
			s.requests = append(s.requests[:i], s.requests[i+1:]...)
			if kind.isAcquire() {
				w.waiting--
				h.noWait -= btoi(q.acquire.WaitMS == 0)
			}
			return q
		}
	}
	w.violation(invariant.Answers, -1, "host %d answers request %d of session %d, which is not waiting for that", h.index, e.ID, e.Session)
	panic("unreachable")
}

func (w *world) onGranted(h *host, e *locktable.Effect) {
	s := w.sessionOf(h, e)
	q := w.answered(h, e, reqAcquire, reqPermits)
	if q.kind == reqPermits {
		w.onPermitsGranted(h, s, e, &q)
		return
	}
	n := int(q.name)
	l := &h.locks[n]
	c := &l.hold
	now := h.clock(w.now)
	if e.Hold == c.num && c.state == live {
		if c.session != s.id || c.owner == 0 || q.acquire.Owner != c.owner || q.acquire.NotReentrant {
			w.violation(invariant.Exclusion, n, "two owners: session %d got hold %d of session %d", s.id, e.Hold, c.session)
		}
		if e.Token != c.token || e.Count != c.count+1 {
			w.violation(invariant.Reentry, n, "re-entry into hold %d: token %d and count %d, want %d and %d", e.Hold, e.Token, e.Count, c.token, c.count+1)
		}
		if now >= c.deadline {
			w.violation(invariant.Validity, n, "re-entry into hold %d, whose deadline has passed", c.num)
		}
		c.count++
		w.check.meet(ReEntry)
		c.deadline = max(c.deadline, e.Deadline)
		w.checkCovered(h, n)
		return
	}
	w.checkFirstEntry(h, s, e, &q)
	w.checkOrder(h, n, &q)
	w.checkToken(h, n, e.Hold, e.Token)
	w.checkHandoff(h, n, now, &q)
	w.checkQuietRun(h, n, now, &q)
	l.yieldedAt = 0
	*c = hold{
		state: live, num: e.Hold, token: e.Token, count: 1, owner: q.acquire.Owner, session: s.id,
		fixed: q.acquire.LeaseMS > 0, leaseMS: uint32(q.acquire.LeaseMS), crashDelay: q.acquire.CrashDelayMS * ms,
		granted: now, deadline: e.Deadline, confirmed: e.Deadline, confirmedBefore: e.Deadline, confirmedAt: now,
	}
	if m := q.acquire.MaxHoldMS; m > 0 {
		c.maxHoldEnd = now + m*ms
	}
	if e.End != c.maxHoldEnd {
		w.violation(invariant.HoldsEnd, n, "hold %d is sent %d as its end; its max_hold ends at %d", e.Hold, e.End, c.maxHoldEnd)
	}
	w.noteKeep(h, n, &q)
	w.believed++
	w.check.meet(FirstEntry)
	w.check.meetIf(GrantedLingering, l.turnGrants > 1 && !q.obstructed)
	w.check.meetIf(Handoff, w.redis.names[n].key.Num != e.Hold)
	w.checkCovered(h, n)
	holds := 0
	for i := range h.locks {
		holds += btoi(h.locks[i].hold.state == live && h.locks[i].hold.session == s.id)
	}
	if limit := w.plan.table.MaxHolds; limit > 0 && holds > limit {
		w.violation(invariant.Limits, n, "session %d has %d holds; the limit is %d", s.id, holds, limit)
	}
	if w.phase != faulty {
		w.schedule(h, s, w.pause())
	}
}

// checkFirstEntry checks that a grant is in turn, excludes all other owners, and lasts as
// long as it should.
func (w *world) checkFirstEntry(h *host, s *session, e *locktable.Effect, q *request) {
	n := int(q.name)
	l := &h.locks[n]
	c := &l.hold
	now := h.clock(w.now)
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			if p := &h.sessions[i].requests[j]; p.kind == reqAcquire && p.name == q.name && p.arrival < q.arrival && !p.isUnheard {
				w.violation(invariant.Order, n, "session %d was granted request %d out of turn: session %d's request %d came before", s.id, q.id, h.sessions[i].id, p.id)
			}
		}
	}
	if c.isBelieved() && !c.isOver(now) || c.state == live || l.isProtected(now) {
		w.violation(invariant.Exclusion, n, "two owners: hold %d of session %d begins while host %d has hold %d of session %d until %d, and it is %d",
			e.Hold, s.id, h.index, c.num, c.session, c.end(), now)
	}
	for _, g := range w.hosts {
		other := &g.locks[n]
		if g == h || !other.isProtected(g.clock(w.now)) {
			continue
		}
		if other.excusedUntil >= g.worldTime(other.hold.end()) || l.excusedUntil > w.now {
			w.check.meet(ExcusedOverlap)
			continue
		}
		w.violation(invariant.Exclusion, n, "two owners: hold %d on host %d begins while host %d has hold %d until %s",
			e.Hold, h.index, g.index, other.hold.num, clockString(g.worldTime(other.hold.end())))
	}
	if e.Hold <= c.num || e.Count != 1 || h.usedHolds[e.Hold] {
		w.violation(invariant.HoldNumbers, n, "a first entry with hold %d and count %d, after hold %d", e.Hold, e.Count, c.num)
	}
	h.usedHolds[e.Hold] = true
	if e.Deadline <= now {
		w.violation(invariant.Validity, n, "hold %d is granted with a deadline that has passed", e.Hold)
	}
	lease := q.acquire.LeaseMS * ms
	if lease > 0 && e.Deadline-now > lease {
		w.violation(invariant.Validity, n, "hold %d of a fixed lease of %s is granted for longer than that", e.Hold, time.Duration(lease))
	}
	if lease == 0 {
		lease = h.lease
	}
	if e.Deadline-now < lease/3 {
		w.violation(invariant.HoldsLast, n, "hold %d with a lease of %s is granted for only %s", e.Hold, time.Duration(lease), time.Duration(e.Deadline-now))
	}
}

// checkToken checks that the token of a new hold comes from a Take of this host, is used once, and is
// larger than all before, unless it was drawn before Redis lost something.
func (w *world) checkToken(h *host, n int, hold, token uint64) {
	l := &h.locks[n]
	name := &w.redis.names[n]
	r := l.tokens.find(token)
	if r == nil {
		if r = l.revoked.tokens.find(token); r == nil {
			w.violation(invariant.TokensGrow, n, "token %d was used before or never drawn by host %d", token, h.index)
		}
		l.revoked.hold = hold
	}
	r.next = token + 1
	if r.drawnAt < name.restartedAt {
		return
	}
	// Another host that knew of no larger one may have begun the counter again: see
	// checkDraw.
	if token <= l.lastToken && name.restartedAt <= l.lastTokenDrawnAt {
		w.violation(invariant.TokensGrow, n, "host %d grants token %d after %d", h.index, token, l.lastToken)
	}
	l.lastToken, l.lastTokenDrawnAt = token, r.drawnAt
	if token <= name.granted && r.drawnAt > name.lostAt {
		w.violation(invariant.TokensGrow, n, "token %d after %d", token, name.granted)
	}
	name.granted = max(name.granted, token)
}

// checkHandoff checks that while the table knows that others wait, a lock passes between
// local owners no more often and no longer than it may.
func (w *world) checkHandoff(h *host, n int, now int64, q *request) {
	l := &h.locks[n]
	limit := int64(math.MaxInt64)
	switch t := &w.plan.table; {
	case !h.connOf(n).up: // no other host could get it
		return
	case l.waiting > 0 && (w.wantsOrder(h, n) || q.acquire.Fair): // its turn is that of its waiters
	case l.waiting > 0:
		limit = int64(t.Contest.Turn.Or(time.Duration(longestTurn)))
	case l.othersListen() && t.Contest.HandoffTime > 0:
		limit = int64(t.Contest.HandoffTime)
	case l.othersListen():
		limit = 50 * ms
	}
	if l.turnGrants == 0 && l.cameAt == 0 { // it was restored
		l.cameAt = now
	}
	if had := now - l.cameAt; l.turnGrants > 0 && limit != math.MaxInt64 && had > limit {
		w.violation(invariant.Turns, n, "host %d handed the lock over %d times in %s, and %d sidecars wait", h.index, l.turnGrants+1, time.Duration(had), l.waiting)
	}
	l.turnGrants++
}

// quietRun is how long local handoffs may last without a moment in which the lock is free.
func (l *lockOnHost) quietRun(now int64) int64 {
	if now < l.pollerUntil-2*ms {
		return pollerRun
	}
	return quietRun
}

// checkQuietRun checks that a lock does not pass between local owners for long without a
// moment in which another program could take it, whether or not one is known to want it.
func (w *world) checkQuietRun(h *host, n int, now int64, q *request) {
	l := &h.locks[n]
	if l.localGrants == 0 {
		l.localGrantsSince = now
	}
	if l.localGrants++; l.localGrants > 2 && h.connOf(n).up && q.waits(now) && now-l.localGrantsSince >= l.quietRun(now) {
		w.violation(invariant.FreeMoments, n, "host %d has handed the lock over %d times in %s, and never left it free", h.index, l.localGrants, time.Duration(now-l.localGrantsSince))
	}
}

// endRuns: a lock for which no client here waits will be released in Redis when its holder
// releases it, unless it lingers.
func (w *world) endRuns(h *host) {
	now := h.clock(w.now)
	for n := range w.plan.names {
		l := &h.locks[n]
		if l.localGrants == 0 || h.someoneWaits(n, now) {
			continue
		}
		if row, _ := h.table.Info(now, lockNames[n]); row.State != protocol.StateLingering && row.State != protocol.StateHeld {
			l.localGrants = 0
		}
	}
}

func (w *world) onReleased(h *host, e *locktable.Effect) {
	q := w.answered(h, e, reqRelease)
	n := int(q.name)
	if q.wantError != "" {
		w.violation(invariant.Releases, n, "the release of hold %d succeeded, though the session does not have it", q.target)
	}
	if e.Count != q.left {
		w.violation(invariant.Releases, n, "the release of hold %d leaves %d entries, want %d", q.target, e.Count, q.left)
	}
	if !q.either {
		return
	}
	c := &h.locks[n].hold
	if c.state != live || c.num != q.target {
		w.violation(invariant.Releases, n, "hold %d is answered as released after it was lost", q.target)
	}
	if c.count--; c.count == 0 {
		w.leaveHold(h, n)
	}
}

// onConfirmed judges the answer to a confirm: Redis has no hold of this host that ended.
func (w *world) onConfirmed(h *host, e *locktable.Effect) {
	q := w.answered(h, e, reqConfirm)
	n := int(q.name)
	w.expire(n)
	// Of a key that another program overwrote with another type, a confirm says nothing of replicas (decision 0047).
	if w.plan.durable && h.locks[n].hold.state == none && !h.locks[n].isOverwritten {
		if old := &w.redis.snapshot[n]; int(old.key.Owner) == h.index && w.now < old.key.ExpireAt && !old.ghost {
			w.violation(invariant.Confirms, n, "host %d confirms that its releases are executed; a replica has %s", h.index, keyString(old.key))
		}
	}
	k := &w.redis.names[n].key
	if int(k.Owner) != h.index || w.redis.names[n].ghost {
		w.check.meet(ConfirmedFree)
		return
	}
	r := h.journal.find(n) // a grant of the same step may have been lost with the process
	// A later number is of a ticket, to which the lock has passed since.
	if c := &h.locks[n].hold; c.state == none && k.Num <= c.num && (!h.dying || r == nil || r.hold.ID == 0) {
		w.violation(invariant.Confirms, n, "host %d confirms that its releases are executed; Redis has %s", h.index, keyString(*k))
	}
	w.check.meet(ConfirmedHandedOver)
}

func (w *world) onCanceled(h *host, e *locktable.Effect) {
	q := w.answered(h, e, reqCancel)
	if e.WasWaiting != q.canceled {
		w.violation(invariant.Answers, int(q.name), "cancel of %d is answered with %v; its acquire was answered with canceled: %v", q.target, e.WasWaiting, q.canceled)
	}
	if s := w.sessionOf(h, e); !e.WasWaiting && s.find(q.target, reqAcquire) >= 0 {
		w.violation(invariant.Answers, int(q.name), "cancel of %d is answered with false, but it still waits", q.target)
	}
}

func (w *world) onForced(h *host, e *locktable.Effect) {
	q := w.answered(h, e, reqForce)
	if q.name == semaphore {
		w.onPermitsForced(h, e, &q)
		return
	}
	c := &h.locks[q.name].hold
	if q.wantError != "" || e.Hold != q.target {
		w.violation(invariant.Answers, int(q.name), "force_release ended hold %d, instead of hold %d (%q)", e.Hold, q.target, q.wantError)
	}
	if c.state == live && c.num == e.Hold {
		w.violation(invariant.Losses, int(q.name), "hold %d was forced, and its holder was not notified", e.Hold)
	}
	if c.num == e.Hold {
		w.endHold(h, int(q.name))
	}
}

func (w *world) onRefusal(h *host, e *locktable.Effect) {
	s := w.sessionOf(h, e)
	q := w.answered(h, e, reqAcquire, reqPermits, reqRelease, reqForce, reqConfirm, reqDowngrade)
	n := int(q.name)
	if e.Msg == "" || len(e.Msg) > protocol.MaxMessage {
		w.violation(invariant.Answers, n, "a refusal with a message of %d bytes", len(e.Msg))
	}
	switch q.kind {
	case reqAcquire:
		w.onAcquireRefused(h, s, e, &q)
	case reqPermits:
		w.onPermitsRefused(h, s, e, &q)
	case reqConfirm:
		if e.Code == protocol.Denied && w.now-h.locks[n].deniedAt > eps || e.Code != protocol.Denied && e.Code != protocol.Limit {
			w.violation(invariant.Confirms, n, "confirm %d of session %d is refused with %s", q.id, s.id, e.Code)
		}
	default:
		if e.Code != protocol.NotHeld {
			w.violation(invariant.Answers, n, "request %d is refused with %s", q.id, e.Code)
		}
		c := &h.locks[max(n, 0)].hold
		switch {
		case q.wantError == protocol.NotHeld:
		case !q.either:
			w.violation(invariant.Releases, n, "the answer is that hold %d is not held", q.target)
		case c.state == live && c.num == q.target:
			w.violation(invariant.Releases, n, "the answer is that hold %d is not held, and its holder was not notified of its loss", q.target)
		}
	}
}

func (w *world) onAcquireRefused(h *host, s *session, e *locktable.Effect, q *request) {
	n := int(q.name)
	l := &h.locks[n]
	now := h.clock(w.now)
	w.check.refused[e.Code]++
	switch e.Code {
	case protocol.Timeout:
		timedOut := min(now, q.arrived+q.acquire.WaitMS*ms) // its host may have been suspended since
		isRecalled := l.recalledAt > l.takenAt              // what the Take found may be from before
		inTheWay := isRecalled || q.obstructed || h.isObstructed(n, q.arrival) || l.yielding || l.listeners != 0 || l.uncounted || l.waiting > 0 || l.mayYield || timedOut < l.freedUntil
		silent := h.connOf(n).up && h.connOf(n).silence(now) >= tryWithin
		switch {
		case q.waits(now):
			w.violation(invariant.AnswersInTime, n, "request %d of session %d timed out %s early", q.id, s.id, time.Duration(q.arrived+q.acquire.WaitMS*ms-now))
		case !inTheWay && l.lastOutcome != redisop.HeldByOther:
			w.violation(invariant.AnswersInTime, n, "request %d of session %d timed out, and no other request was in its way", q.id, s.id)
		case !inTheWay && now < q.arrived+tryWithin && l.otherIssuedAt < q.arrived:
			w.violation(invariant.AnswersInTime, n, "request %d of session %d timed out before Redis was asked for it", q.id, s.id)
		case silent && l.hold.state == none && l.endedAt < w.now && l.otherIssuedAt < q.arrived: // the holds of a session end in parts
			w.violation(invariant.AnswersInTime, n, "request %d of session %d timed out, and Redis has been silent for %s", q.id, s.id, time.Duration(h.connOf(n).silence(now)))
		}
	case protocol.Unavailable:
		if q.waits(now) {
			w.violation(invariant.AnswersInTime, n, "request %d of session %d was unavailable too early", q.id, s.id)
		}
		silent := h.connOf(n).silence(now) >= tryWithin || l.lateReplyAt >= q.arrived
		if since, is := w.inFlightSince(l); is {
			silent = silent || now >= q.latest() || now-h.clock(since) >= tryWithin
		}
		silent = silent || l.arriving != noOp && now-h.clock(w.ops[l.arriving].issuedAt) >= tryWithin
		if w.isReached(h, n) && l.lastOutcome < redisop.NotSent && w.now-h.troubleOf(n) > sec && !silent {
			w.violation(invariant.AnswersInTime, n, "request %d of session %d was unavailable, though Redis replies", q.id, s.id)
		}
		w.check.meetIf(UnavailableInSilence, silent && w.isReached(h, n))
	case protocol.Denied:
		if w.now-l.deniedAt > eps {
			w.violation(invariant.Answers, n, "request %d of session %d was denied, though Redis denied nothing", q.id, s.id)
		}
	case protocol.Deadlock:
		if !q.mayDeadlock {
			w.violation(invariant.Deadlocks, n, "request %d of session %d was refused because of a deadlock, and there is none", q.id, s.id)
		}
	case protocol.Limit:
		w.checkLimit(h, s, n)
	case protocol.Canceled:
		found := false
		for i := range s.requests {
			if p := &s.requests[i]; p.kind == reqCancel && p.target == q.id {
				p.canceled, found = true, true
			}
		}
		if !found {
			w.violation(invariant.Answers, n, "request %d of session %d was canceled, and its client did not cancel it", q.id, s.id)
		}
	default:
		w.violation(invariant.Answers, n, "request %d of session %d was refused with %s", q.id, s.id, e.Code)
	}
}

// checkLimit checks that an acquire is refused because of a limit only if one is near.
func (w *world) checkLimit(h *host, s *session, n int) {
	t := &w.plan.table
	if t.MaxWork > 0 {
		return // what sessions that have ended leave behind still counts
	}
	if h.dying {
		return // a later one of the inputs that the table took in before the kill may have made room
	}
	if t.MaxHolds == 0 {
		w.violation(invariant.Limits, n, "a limit was met where none is near")
	}
	holds, waiters, confirms, all := 0, 0, 0, 0
	for i := range h.locks {
		holds += btoi(h.locks[i].hold.state != none && h.locks[i].hold.session == s.id)
	}
	for i := range s.requests {
		waiters += btoi(s.requests[i].kind == reqAcquire)
		confirms += btoi(s.requests[i].kind == reqConfirm)
	}
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			kind := h.sessions[i].requests[j].kind
			all += btoi(kind == reqAcquire || kind == reqConfirm)
		}
	}
	locks := 0
	h.table.List(h.clock(w.now), 0, func(protocol.LockRow) bool { locks++; return true })
	share := locktable.Share(t.MaxLocks)
	if holds < t.MaxHolds && waiters+confirms < t.MaxWaiters && locks < share && all < share && !w.plan.confirms {
		w.violation(invariant.Limits, n, "a limit was met by session %d with %d holds, %d waiters and %d confirms, among %d locks", s.id, holds, waiters, confirms, locks)
	}
}

// onLost judges the end of a hold that no client released. received: its client gets the
// event.
func (w *world) onLost(h *host, s *session, e *locktable.Effect, received bool) {
	if e.Reason == protocol.Forgotten {
		w.onForgotten(h, s, e)
		return
	}
	if h.journal.permits[e.Hold] {
		w.onPermitsLost(h, s, e, received)
		return
	}
	n := -1
	for i := range h.locks {
		if c := &h.locks[i].hold; c.num == e.Hold && c.session == s.id && c.state != none && c.state != orphaned {
			n = i
		}
	}
	if n < 0 {
		w.violation(invariant.Losses, -1, "session %d is notified that it lost hold %d, which it does not have", s.id, e.Hold)
	}
	l := &h.locks[n]
	c := &l.hold
	now := h.clock(w.now)
	w.check.lost[e.Reason]++
	if c.state == unbelieved { // the table may know it for longer than its client did
		w.loseHold(h, n, e.Reason)
		w.noteGivenUp(h, n)
		return
	}
	early := false
	right := false
	switch e.Reason {
	case protocol.Expired:
		right = now >= c.deadline
		// Redis refuses to renew: the client is notified early, and no other owner gets the
		// lock before the deadline.
		early = !right && !c.fixed && l.refusedAt > 0 && w.now-l.refusedAt < h.longest &&
			(c.deadline-now <= h.lease/4 || c.restored && h.longest > h.lease)
		early = early || !right && !c.fixed && w.keepsOthersDown(h, s, n)
		if right && !c.fixed {
			w.checkNotRenewed(h, s, n)
		}
	case protocol.MaxHold:
		right = c.maxHoldEnd > 0 && now >= c.maxHoldEnd
	case protocol.Deleted:
		right = l.lastOutcome == redisop.KeyMissing
		if w.redis.names[n].lostAt <= l.dataLostAt && c.granted < h.clock(l.dataLostAt) {
			w.violation(invariant.HoldsLast, n, "hold %d of session %d was deleted with Redis's data, and not asserted again", c.num, s.id)
		}
	case protocol.Stolen:
		right = l.lastOutcome == redisop.HeldByOther || l.lastOutcome == redisop.NotALock
		w.check.meetIf(FoundWrongType, w.redis.names[n].overwritten)
		if e.Msg == "" {
			w.violation(invariant.Losses, n, "hold %d is stolen, and the event does not say what was found", c.num)
		}
	case protocol.ByForce:
		right = w.check.forcing == c.num
	}
	if !right && !early {
		w.violation(invariant.Losses, n, "session %d lost hold %d for the wrong reason: %s (it is %d, the deadline is %d)", s.id, c.num, e.Reason, now, c.deadline)
	}
	if c.isBelieved() && !s.detached {
		w.noteLost(h, s, n, e, received)
	}
	until := c.end()
	w.loseHold(h, n, e.Reason)
	switch {
	case early:
		c.orphanUntil(max(until, c.keptUntil))
	case h.life > 0:
		w.noteGivenUp(h, n)
	}
}

// loseHold ends a hold that its client did not release.
func (w *world) loseHold(h *host, n int, why protocol.Reason) {
	if why == protocol.Expired || why == protocol.MaxHold {
		w.leaveHold(h, n)
	} else {
		w.endHold(h, n)
	}
}

// noteKeep notes until when a hold that has just been granted excludes others. It is the keep after
// the grant, or after the Take that gave Redis the lock, if its result took long.
func (w *world) noteKeep(h *host, n int, q *request) {
	l := &h.locks[n]
	c := &l.hold
	row, _ := h.table.Info(c.granted, lockNames[n])
	if row.Hold != c.num { // it has ended in the same step
		return
	}
	keep, left := q.acquire.KeepMS, row.KeepLeftMS
	if took := (c.granted - l.takenAt) / ms; left > keep || left+1 < keep && left+2+took < keep {
		w.violation(invariant.Keeps, n, "hold %d is kept for %d ms after its grant, and %d ms were asked for; the Take was sent %d ms before", c.num, left, keep, took)
	}
	if keep > 0 {
		c.keptUntil = c.granted + left*ms
	}
}

// onKeepLost judges the end of a keep before its time.
func (w *world) onKeepLost(h *host, e *locktable.Effect) {
	n := nameIndex(e.Name)
	l := &h.locks[n]
	right := false
	switch e.Reason {
	case protocol.Deleted:
		right = l.lastOutcome == redisop.KeyMissing
	case protocol.Stolen:
		right = l.lastOutcome == redisop.HeldByOther || l.lastOutcome == redisop.NotALock
	case protocol.ByForce:
		right = w.check.forcing == e.Hold
	}
	if !right {
		w.violation(invariant.Keeps, n, "the keep of hold %d is lost for the wrong reason: %s", e.Hold, e.Reason)
	}
	w.check.meet(KeepLost)
	if c := &l.hold; c.num == e.Hold && c.state == orphaned { // max_hold ended it with the same result
		w.endHold(h, n)
	}
}

// checkNotRenewed checks that something kept the host from renewing a watchdog hold that
// has expired.
func (w *world) checkNotRenewed(h *host, s *session, n int) {
	l := &h.locks[n]
	c := &l.hold
	since, isInFlight := w.inFlightSince(l)
	slow := !w.isReached(h, n) || isInFlight && w.now-since > h.lease/10
	if c.isBelieved() && !slow && w.now-max(h.troubleOf(n), l.refusedAt) > h.lease+h.lease/4+eps {
		w.violation(invariant.HoldsLast, n, "watchdog hold %d of session %d expired, though nothing kept its host from renewing it", c.num, s.id)
	}
	// One deadline covers all watchdog holds of a session: the one that is confirmed for the
	// shortest time, until it ends.
	if confirmed := w.confirmedUntil(h, s, c.deadline); c.state == live && confirmed-h.lease/16 > h.clock(w.now) && w.now-s.endedAt > eps {
		w.violation(invariant.HoldsLast, n, "watchdog hold %d of session %d expired, though all that the session holds is confirmed until %s",
			c.num, s.id, clockString(h.worldTime(confirmed)))
	}
}

// keepsOthersDown reports whether a hold of a Cluster is about to end, and with it the deadline of holds
// of its session that other shards renewed.
func (w *world) keepsOthersDown(h *host, s *session, n int) bool {
	l := &h.locks[n]
	c := &l.hold
	now := h.clock(w.now)
	confirmed := c.confirmed
	if c.confirmedAt == now {
		confirmed = c.confirmedBefore // the table may not have taken the result in: it is of the same batch
	}
	isShorter := h.longest > h.lease // the lease, since a restart: of what the table knows, the checker does not know more
	if !w.plan.cluster || !isShorter && confirmed-now > h.lease/8+eps {
		return false
	}
	if l.inFlight != noOp && !isShorter {
		o := &w.ops[l.inFlight]
		sent := h.clock(o.issuedAt)
		if (o.op.Kind == redisop.Renew || o.op.Kind == redisop.Take) && now+eps < sent+min(h.lease/32, (confirmed-sent)/4) {
			return false // its renewal was just sent
		}
	}
	if w.hasRenewedPermits(h, s) {
		return true // until when these are confirmed is not known here
	}
	for i := range w.plan.names {
		if h.dying && i != n { // the grant of another hold may be among what its client does not get
			row, _ := h.table.Info(now, lockNames[i])
			if row.State == protocol.StateHeld && row.Session == uint64(s.id) && row.LeaseMS == 0 && row.DeadlineNS-confirmed >= h.lease/8 {
				return true
			}
		}
		o := &h.locks[i].hold
		isSharing := i != n && o.session == s.id && !o.fixed && (o.isBelieved() || o.state == unbelieved)
		isLonger := o.confirmed-confirmed >= h.lease/8
		hasLonger := h.locks[i].confirmed-confirmed >= h.lease/8 // for the hold before this one
		if isSharing && (isShorter || isLonger || hasLonger || o.state == unbelieved) {
			w.check.meet(GivenUpForOthers)
			return true
		}
	}
	return false
}

// confirmedUntil returns until when all watchdog holds of a session are confirmed, as far
// as its table knew before that time.
func (w *world) confirmedUntil(h *host, s *session, before int64) int64 {
	until := int64(1<<63 - 1)
	if w.hasRenewedPermits(h, s) {
		return 0 // until when these are confirmed is not known here
	}
	for n := range w.plan.names {
		if c := &h.locks[n].hold; c.state == live && c.session == s.id && !c.fixed {
			if c.confirmedAt < before {
				until = min(until, c.confirmed)
			} else {
				until = min(until, c.confirmedBefore)
			}
		}
	}
	return until
}

// noteGivenUp notes whether a hold that is lost by its client's clock is kept by its table,
// which knows of a later deadline than its client, until then.
func (w *world) noteGivenUp(h *host, n int) {
	c := &h.locks[n].hold
	if row, _ := h.table.Info(h.clock(w.now), lockNames[n]); row.Hold == c.num && row.Orphan {
		c.state, c.fixed, c.deadline, c.orphanedUntil = orphaned, true, row.DeadlineNS, row.DeadlineNS
	}
}

// onLease judges a lease event: all watchdog holds of the session are confirmed until its
// deadline.
func (w *world) onLease(h *host, e *locktable.Effect) {
	s := w.sessionOf(h, e)
	if s.detached {
		w.violation(invariant.Answers, -1, "a lease event to session %d, which is detached", s.id)
	}
	switch s.link {
	case disconnected:
		return // no client gets it
	case claiming:
		for i := range s.beliefs {
			if b := &s.beliefs[i]; b.gone && !b.hold.fixed && e.Deadline > b.hold.deadline {
				w.violation(invariant.Validity, int(b.name), "a lease event has session %d believe for longer in hold %d, which it has lost", s.id, b.hold.num)
			}
		}
	}
	below, above := false, false
	for n := range w.plan.names {
		c := &h.locks[n].hold
		if !c.isBelieved() || c.session != s.id || c.fixed {
			continue
		}
		below = below || e.Deadline < c.deadline
		if e.Deadline <= c.deadline {
			continue
		}
		above = true
		now := h.clock(w.now)
		if c.state == away && c.isOver(now) {
			continue // its client will release it
		}
		if now > c.deadline {
			w.violation(invariant.Validity, n, "a lease event comes %s after the deadline of hold %d: its client has given it up", time.Duration(now-c.deadline), c.num)
		}
		c.deadline = e.Deadline
		w.checkCovered(h, n)
	}
	w.onPermitsLease(h, s, e.Deadline)
	w.check.meetIf(LeaseEventBelowHold, below && above)
}

// ---- requests

// checkArrival notes what must become of an acquire, before the table gets it.
func (w *world) checkArrival(h *host, s *session, q *request) {
	n := int(q.name)
	l := &h.locks[n]
	q.obstructed = h.isObstructed(n, q.arrival)
	w.noteKnownAgain(h, n, q.arrival)
	if l.hold.reenters(s, q) {
		return
	}
	if q.acquire.Owner != 0 {
		q.mayDeadlock = w.closesCycle(h, s, q.acquire.Owner, n, false, new(uint16))
		q.mustDeadlock = q.acquire.WaitMS != 0 && w.closesCycle(h, s, q.acquire.Owner, n, true, new(uint16))
	}
}

// reenters reports whether an acquire is a re-entry into the hold.
func (c *hold) reenters(s *session, q *request) bool {
	return c.state == live && c.session == s.id && c.owner != 0 && c.owner == q.acquire.Owner && !q.acquire.NotReentrant
}

// closesCycle follows lock, holder, and what the holder waits for, and reports whether that
// comes back to the owner. certain: it counts only holds that have not expired, and waits
// that last.
func (w *world) closesCycle(h *host, s *session, owner uint64, n int, certain bool, seen *uint16) bool {
	if *seen&(1<<n) != 0 {
		return false
	}
	*seen |= 1 << n
	l := &h.locks[n]
	c := &l.hold
	now := h.clock(w.now)
	if c.state != live || c.owner == 0 || certain && !(l.isProtected(now) && (c.maxHoldEnd == 0 || now < c.maxHoldEnd)) {
		return false
	}
	if c.session == s.id && c.owner == owner {
		return true
	}
	holder := &h.sessions[slotOf(c.session)]
	for i := range holder.requests {
		p := &holder.requests[i]
		if p.kind != reqAcquire || p.acquire.Owner != c.owner || certain && p.acquire.WaitMS == 0 {
			continue
		}
		if w.closesCycle(h, s, owner, int(p.name), certain, seen) {
			return true
		}
	}
	return false
}

// checkDeadlock is called when the table has an acquire.
func (w *world) checkDeadlock(h *host, s *session, id uint64) {
	i := s.find(id, reqAcquire)
	if i < 0 {
		return
	}
	q := &s.requests[i]
	if q.mustDeadlock {
		w.violation(invariant.Deadlocks, int(q.name), "request %d of session %d closes a cycle, and waits", id, s.id)
	}
	if h.locks[q.name].hold.reenters(s, q) {
		w.violation(invariant.Reentry, int(q.name), "request %d of session %d is a re-entry, and waits", id, s.id)
	}
	waiters := 0
	for i := range s.requests {
		waiters += btoi(s.requests[i].kind == reqAcquire || s.requests[i].kind == reqConfirm)
	}
	if limit := w.plan.table.MaxWaiters; limit > 0 && waiters > limit {
		w.violation(invariant.Limits, int(q.name), "session %d has %d acquires and confirms waiting; the limit is %d", s.id, waiters, limit)
	}
}

// checkNoWait checks that an acquire with wait 0 is there only while Redis is being asked,
// or before it is known whether Redis can be.
func (w *world) checkNoWait(h *host) {
	for i := range h.sessions {
		s := &h.sessions[i]
		for j := range s.requests {
			q := &s.requests[j]
			if l := &h.locks[max(q.name, 0)]; q.kind.isAcquire() && h.connOf(int(q.name)).upKnown && q.acquire.WaitMS == 0 && l.inFlight == noOp && l.dropPending == noOp && l.arriving == noOp {
				w.violation(invariant.AnswersInTime, int(q.name), "request %d of session %d has wait 0, and waits", q.id, s.id)
			}
		}
	}
}

// checkRow checks a row of the table.
func (w *world) checkRow(h *host, n int, row protocol.LockRow, ok bool) {
	l := &h.locks[n]
	c := &l.hold
	now := h.clock(w.now)
	waiting := 0
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			waiting += btoi(h.sessions[i].requests[j].kind == reqAcquire && int(h.sessions[i].requests[j].name) == n)
		}
	}
	held := ok && row.State == protocol.StateHeld
	if w.plan.table.MaxWork > 0 { // the waiters of sessions that have ended are removed in parts
		waiting = max(waiting, row.Waiting)
		if s := &h.sessions[row.Session&0xff]; held && (uint64(s.id) != row.Session || !s.open) {
			return // what is left of a session that has ended
		}
	}
	switch {
	case row.Waiting != waiting:
		w.violation(invariant.Lists, n, "host %d shows %d waiters; there are %d", h.index, row.Waiting, waiting)
	case l.isProtected(now) && !held:
		w.violation(invariant.Lists, n, "host %d does not show hold %d", h.index, c.num)
	case held && c.state == none:
		w.violation(invariant.Lists, n, "host %d shows hold %d, which has ended", h.index, row.Hold)
	case held && (row.Hold != c.num || row.Token != c.token || row.Count < c.count || row.Owner != c.owner ||
		row.Count > c.count && c.state == live ||
		row.Session != uint64(c.session) || row.Orphan != (c.state == orphaned)):
		w.violation(invariant.Lists, n, "host %d shows %+v; it is %+v", h.index, row, *c)
	}
}
