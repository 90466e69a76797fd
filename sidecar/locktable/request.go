package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/wheel"
)

// request is one acquire that has not been answered. It waits in the queue of each of its
// locks; so far there is one.
type request struct {
	timer     wheel.Timer[timed]
	session   *session
	inSession links[request] // the other requests of the session, in the order of their arrival
	ofOwner   links[request] // the other requests of its owner; not for owner 0
	at        waiter

	id    uint64
	owner uint64
	since int64

	arrived uint64 // by Redis's clock, µs; 0: it is not known; see order

	leaseMS, maxHoldMS, crashDelayMS, keepMS uint32

	lease        LeaseKind
	phase        requestPhase
	isAlone      bool // when it came, no other client here held the lock or waited for it
	notReentrant bool
	isFair       bool // it wants strict order
}

// requestPhase says what a request waits for.
//
//	         wait_ms has passed, and Redis has returned nothing
//	waiting ────────────────────────────────────────────────────▶ trying
//
// wait_ms 0 begins in trying. A grant, a refusal, a cancel and the end of its session end
// both.
type requestPhase uint8

const (
	requestWaiting requestPhase = iota // for the lock
	requestTrying                      // for the next result of Redis only
)

// waiter is the place of a request in the queue of a lock.
type waiter struct {
	request *request
	lock    *lock
	inQueue links[waiter]
}

func (w *waiter) isTrying() bool { return w.request.phase == requestTrying }

func inQueue(w *waiter) *links[waiter]     { return &w.inQueue }
func inSession(r *request) *links[request] { return &r.inSession }
func ofOwner(r *request) *links[request]   { return &r.ofOwner }

// queue is what a lock needs while it is contended: its local waiters in the order of
// their arrival, the confirmations that clients wait for, its arbiter, and its place in the
// queue of the hosts, which is in Redis.
type queue struct {
	waiters list[waiter]
	arbiter arbiter
	place   place
	order   order

	drawAt    int64  // no tokens are reserved for the waiters before, after an attempt failed
	searched  uint64 // the last search for a wait cycle that met this lock
	lastError string // of Redis, if its last result was one
	denial    string // why Redis denies the lock: all waiters are refused; "": it does not

	blocker  blocker
	confirms []confirm
	refusal  string // why Redis refuses the release that confirms wait for; "": it does not
}

// blocker is the client that had the lock last for at least BlockingHold while it was contended.
// Nothing that the table decides depends on it.
type blocker struct {
	peer    *Peer // nil: there was none
	endedAt int64 // of its hold
}

// blockerSince returns for which hold a request waited that came at this time: of a client of this
// host, or of another owner, by its field in Redis; nil and "": it is not known.
func (l *lock) blockerSince(since int64) (local *Peer, field string) {
	q := l.queue
	if q == nil {
		return nil, ""
	}
	remote := &q.arbiter.remote
	switch {
	case q.blocker.peer != nil && q.blocker.endedAt >= since && q.blocker.endedAt >= remote.seenAt:
		return q.blocker.peer, ""
	case remote.field != "" && remote.seenAt >= since:
		return nil, remote.field
	}
	return nil, ""
}

// needQueue returns the queue of a lock, made if need be.
func (t *Table) needQueue(l *lock) *queue {
	if l.queue == nil {
		l.queue = t.queues.get()
		l.queue.arbiter.rivals = &l.rivals
	}
	return l.queue
}

// firstTries reports whether the first waiter waits for the next result of Redis only.
func (q *queue) firstTries() bool { return q.waiters.head != nil && q.waiters.head.isTrying() }

// waiting is how many waiters the lock has, but for those that are being refused.
func (l *lock) waiting() int {
	if q := l.queue; q != nil && q.denial == "" {
		return q.waiters.len
	}
	return 0
}

// Acquire asks for a lock. It is answered by one Granted or Refusal, now or later,
// unless the session ends first.
func (t *Table) Acquire(now int64, id SessionID, req protocol.Acquire) {
	s := t.sessions[id]
	if s == nil || s.phase.IsOver() {
		return
	}
	l := t.byName[req.Name]
	if l != nil {
		t.expireHold(now, l)
		if h := l.holds; !req.NotReentrant && h.isOwnedBy(s, req.Owner) && h.entries < 1<<31 {
			t.reenter(h, req.ID)
			t.reconcile(now, l)
			return
		}
	}
	if t.refuseOverLimit(now, s, l, &req) {
		if l != nil {
			t.reconcile(now, l)
		}
		return
	}
	if l == nil {
		l = t.lockFor(req.Name)
		t.charge(l, s.user)
	}
	q := t.needQueue(l)
	t.skipEnded(q)
	isFree := l.holds == nil && q.waiters.head == nil
	isFair := t.wantsOrder(&req)
	switch {
	case isFair:
		t.cool(l) // a local waiter is not to pass those that wait in Redis
	case isFree:
		t.warm(now, l)
	}
	switch {
	case req.WaitMS == 0 && !isFree:
		code, msg := t.explain(now, l, s, now, false)
		t.refuseAcquire(l, s, req.ID, code, msg)
		t.reconcile(now, l)
		return
	case req.WaitMS != 0 && req.Owner != 0 && l.holds != nil:
		if cycle := t.findWaitCycle(s, req.Owner, l); cycle != "" {
			t.refuseAcquire(l, s, req.ID, protocol.Deadlock, cycle)
			t.reconcile(now, l)
			return
		}
	}
	r := t.requests.get()
	*r = request{
		session: s, id: req.ID, owner: req.Owner, since: now,
		leaseMS: uint32(req.LeaseMS), maxHoldMS: uint32(req.MaxHoldMS), crashDelayMS: uint32(req.CrashDelayMS), keepMS: uint32(req.KeepMS),
		isAlone: isFree, notReentrant: req.NotReentrant, isFair: isFair,
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
		q.arbiter.onFirstRequest(now, r.at.isTrying())
	}
	q.waiters.push(&r.at, inQueue)
	if q.order.newcomer == nil {
		q.order.newcomer = &r.at
	}
	q.order.fair += btoi(isFair)
	s.addRequest(r)
	t.waiting++
	switch {
	case req.WaitMS == 0:
		t.arm(&r.timer, now+int64(t.cfg.TryWithin))
	case req.WaitMS > 0:
		t.arm(&r.timer, now+ms(req.WaitMS))
	}
	t.reconcile(now, l)
}

// endRequest takes a request out of everything. Its fields are good until the next Acquire.
func (t *Table) endRequest(r *request) {
	t.wheel.Remove(&r.timer)
	q := r.at.lock.queue
	if q.order.newcomer == &r.at {
		q.order.newcomer = r.at.inQueue.next
	}
	q.order.fair -= btoi(r.isFair)
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
		t.reconcile(now, r.at.lock)
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
	if r.phase == requestWaiting && r.isAlone && now < latest && !q.arbiter.remote.isKnownSince(r.since) {
		r.phase = requestTrying
		q.arbiter.onFirstRequest(now, true)
		t.arm(&r.timer, latest)
		t.reconcile(now, l)
		return
	}
	t.endRequest(r)
	code, msg := t.explain(now, l, r.session, r.since, r.isAlone)
	if code == protocol.Timeout {
		msg = "waited " + milliseconds(now-r.since) + "; " + msg
	}
	t.refuseAcquire(l, r.session, r.id, code, msg)
	t.reconcile(now, l)
}

// explain says why a request of a session that came at since, and is in no queue any more, does
// not get the lock.
func (t *Table) explain(now int64, l *lock, s *session, since int64, wasAlone bool) (protocol.Code, string) {
	q := l.queue
	if h := l.holds; h != nil {
		holder := s.describe(l.name, h.session.peer) + " on this host"
		if h.phase == HoldKept {
			return protocol.Timeout, "kept for another " + milliseconds(h.deadline-now) + ": the last hold was by " + holder + ", which asked to keep it"
		}
		return protocol.Timeout, "held by " + holder
	}
	if why := t.whyNoResult(l); why != "" {
		return protocol.Unavailable, why
	}
	// The result of an earlier operation may be out of date.
	a := &q.arbiter
	isKnown := a.remote.isKnownSince(since)
	asked := int64(0)
	if sent, is := l.claim.awaited(); is {
		asked = now - max(sent, t.redis.paused)
	}
	first := q.waiters.head
	switch {
	case !isKnown && (t.IsSilent(now) || asked >= int64(t.cfg.TryWithin)):
		silence := max(asked, int64(t.Silence(now)))
		return protocol.Unavailable, "Redis has not answered for " + milliseconds(silence) + "; whether the lock is free is not known"
	case a.refusesTries(now, &l.claim):
		return protocol.Timeout, anothersTurn
	case a.remote.isKnown:
		return protocol.Timeout, a.remote.describe(&t.cfg)
	case !wasAlone && first != nil && first.request.since <= since:
		return protocol.Timeout, "others on this host wait for it"
	case !wasAlone:
		return protocol.Timeout, "others on this host had it until now"
	case l.claim.op.kind == redisop.NoOp:
		return protocol.Timeout, anothersTurn
	}
	return protocol.Unavailable, "Redis has not answered within " + milliseconds(now-since) + " whether the lock is free"
}

const anothersTurn = "it is another host's turn"

// isKnownSince reports whether Redis, asked at that time or later, answered that another host
// has the lock.
func (r *remoteHolder) isKnownSince(at int64) bool { return r.isKnown && r.askedAt >= at }

// describe describes the holder for people.
func (r *remoteHolder) describe(cfg *Config) string {
	if r.field == "" {
		return anothersTurn
	}
	if host := r.host(cfg); host != "" {
		return "held on host " + host + " (" + r.field + "), not on this host"
	}
	return "held by " + r.field + ", not on this host"
}

// host returns the name of the holder's host; "": it is not known.
func (r *remoteHolder) host(cfg *Config) string {
	if cfg.HostName == nil || r.field == "" {
		return ""
	}
	return cfg.HostName(r.field)
}

func milliseconds(ns int64) string { return time.Duration(ns).Round(time.Millisecond).String() }

// whyNoResult says what keeps Redis from being asked for the lock, or from granting it; "":
// nothing.
func (t *Table) whyNoResult(l *lock) string {
	switch {
	case !t.redis.isUp():
		return t.redis.why()
	case l.queue.lastError == "" && l.claim.retryAt != 0: // it came before the queue
		return "Redis could not carry out the last request for this lock; it is asked again in a moment"
	}
	return l.queue.lastError
}

// grantNext grants a free lock to the first of its waiters if Redis is known to have it for
// this host, and answers first waiters that do not wait. It returns whether there is a new
// hold.
func (t *Table) grantNext(now int64, l *lock) bool {
	q := l.queue
	if q == nil {
		return false
	}
	for left := t.cfg.MaxWork; q.waiters.head != nil && (q.denial != "" || compatible(l, q.waiters.head)); left-- {
		if left == 0 {
			t.deferReconcile(l)
			return false
		}
		w := q.waiters.head
		r := w.request
		if r.session.phase.IsOver() {
			t.abandon(r)
			continue
		}
		if q.denial != "" {
			t.endRequest(r)
			t.refuseAcquire(l, r.session, r.id, protocol.Denied, q.denial)
			continue
		}
		if l.claim.state.isOurs() && l.claim.op.kind != redisop.Drop &&
			q.arbiter.mayGrant(&t.policy, now, &l.claim, w.isTrying(), t.redis.isUp(), t.isInOrder(l)) && t.isServed(l, w) && t.isCovered(now, l, r) {
			if why := t.fullOfHolds(r.session, l.name); why != "" { // since it began to wait
				t.endRequest(r)
				t.refuseAcquire(l, r.session, r.id, protocol.Limit, why)
				continue
			}
			t.grant(now, l, r)
			return true
		}
		if !w.isTrying() {
			return false
		}
		cannotAsk := l.claim.op.kind == redisop.NoOp && (t.redis.phase == redisDown || now < l.claim.retryAt)
		if !cannotAsk && !q.arbiter.refusesTries(now, &l.claim) && !t.IsSilent(now) {
			return false // until Redis returns a result
		}
		t.endRequest(r)
		code, msg := t.explain(now, l, r.session, r.since, r.isAlone)
		t.refuseAcquire(l, r.session, r.id, code, msg)
	}
	if q.waiters.head == nil {
		q.denial = ""
	}
	return false
}

// skipEnded takes away first waiters whose session is over: as many as do not take long. If
// there are more, a request that does not wait finds them before it.
func (t *Table) skipEnded(q *queue) {
	for left := 64 * t.cfg.MaxWork; q.waiters.head != nil && q.waiters.head.request.session.phase.IsOver() && left > 0; left-- {
		t.abandon(q.waiters.head.request)
	}
}

// deferReconcile has Work reconcile the lock again: it has more requests than one step may answer.
func (t *Table) deferReconcile(l *lock) {
	if !l.isDeferred {
		l.isDeferred = true
		t.deferred = append(t.deferred, l)
	}
}

// isCovered reports whether the claim covers a request: with a token for it, and with
// validity that is long enough to be worth having. A lease that was acquired for it may have
// spent up to two thirds on the way; one that it inherits has to be as long as its own. A keep
// begins when the lease does, which may be a moment before the grant; an inherited claim, and one
// whose key may have another expiry by now, has to be valid for all of it.
func (t *Table) isCovered(now int64, l *lock, r *request) bool {
	c := &l.claim
	if !c.hasTokens() {
		return false
	}
	lease, left := t.leaseOf(r.lease, r.leaseMS), c.validUntil-now
	isOwn := c.use == claimUnused && c.leaseMS == t.leaseToTake(r)
	switch {
	case !isOwn && left < ms(r.keepMS):
		return false
	case r.lease == WatchdogLease || isOwn:
		return left >= ms(lease)/3
	}
	return left >= validity(lease)
}

// leaseToTake is the lease that Redis is given for a request: from the grant on, it has the lock
// for all of the keep, so that the lock stays held if this host dies.
func (t *Table) leaseToTake(r *request) uint32 {
	return max(t.leaseOf(r.lease, r.leaseMS), leaseKeeping(ms(r.keepMS)))
}

// grant makes a request a hold. If another hold had the lock before, this is a handoff:
// an operation is sent to Redis after the answer.
func (t *Table) grant(now int64, l *lock, r *request) {
	c, s := &l.claim, r.session
	var blockedBy *Peer
	blockingField := ""
	if now-r.since >= int64(BlockingHold) {
		blockedBy, blockingField = l.blockerSince(r.since)
	}
	t.endRequest(r)
	id := c.holdID
	if c.use == claimUsed || id != c.maxHoldID {
		t.lastNum++
		id = t.lastNum
		c.maxHoldID = id
	}
	g := t.groupStats(l)
	g.Acquires[AcquireGranted]++
	g.Wait.Observe(ShortTimes, time.Duration(now-r.since))
	switch {
	case c.use != claimUsed:
	case c.lingerUntil != 0:
		t.stats.Handoffs[HandoffLingering]++
	default:
		t.stats.Handoffs[HandoffLocal]++
	}
	c.use = claimUsed
	h := t.holds.get()
	*h = hold{
		id: id, token: c.takeToken(), owner: r.owner, lock: l, session: s, granted: now, entries: 1,
		lease: r.lease, leaseMS: r.leaseMS, crashDelayMS: r.crashDelayMS, permits: 1, mode: Exclusive,
	}
	t.charge(l, s.user)
	if r.maxHoldMS != 0 {
		h.endAt = now + ms(r.maxHoldMS)
	}
	if r.keepMS != 0 {
		h.hasKeep = true
		t.keeps[id] = min(now+ms(r.keepMS), c.validUntil)
	}
	until := min(c.validUntil, now+validity(t.leaseOf(r.lease, r.leaseMS)))
	h.deadline, h.leaseSeq = until, s.leaseSeq
	if h.lease == FixedLease {
		c.renewAt = t.nextCheck(now, h)
	} else {
		// It may have been set for a hold with a fixed lease.
		c.renewAt = min(c.renewAt, until-int64(t.cfg.Lease)/4)
		// The operation that syncs Redis may shorten the key's life to this.
		c.validUntil = until
		t.onWatchdogGrant(s, until)
	}
	t.countGrant(l)
	c.grants, c.lingerUntil = min(c.grants+1, maxGrants), 0
	t.addHold(h)
	t.linkHold(h)
	h.countHold()
	t.trackDeadline(h)
	t.assertGranted(now, h)
	t.emit(Effect{Kind: Granted, Session: s.id, ID: r.id, Token: h.token, Hold: id, Count: 1, Deadline: until, End: h.endAt, Since: r.since, Name: l.name, Peer: blockedBy, Msg: blockingField})
	t.reenterOthers(h)
}

// reenterOthers answers the other requests of the owner of a new hold: they have become
// re-entries. They are in two lists; the shorter one is walked.
func (t *Table) reenterOthers(h *hold) {
	s, l := h.session, h.lock
	own := s.owners[h.owner]
	if h.owner == 0 || own == nil {
		return
	}
	reenter := func(r *request) {
		if r.at.lock == l && r.session == s && r.owner == h.owner && !r.notReentrant {
			t.endRequest(r)
			t.reenter(h, r.id)
		}
	}
	if l.queue.waiters.len < own.len {
		for w := l.queue.waiters.head; w != nil; {
			next := w.inQueue.next
			reenter(w.request)
			w = next
		}
		return
	}
	for r := own.head; r != nil; {
		next := r.ofOwner.next
		reenter(r)
		r = next
	}
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
		t.reconcile(now, l)
	}
}
