package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/wheel"
)

// queue is what a lock needs while it is contended: its local waiters in the
// order of their arrival, those who want a release confirmed, and its arbiter.
type queue struct {
	list
	arbiter arbiter

	drawAt int64 // no tokens are drawn for the queue before, after an attempt failed

	searched uint64 // the last search for a circle that met this lock

	trouble string // what Redis answered last, if it was an error

	denial string // why Redis denies the lock: all who wait are refused; "": it does not

	confirms []confirm
	refusal  string // why Redis refuses the release that confirms wait for; "": it does not
}

// needQueue returns the queue of a lock, made if need be.
func (t *Table) needQueue(l *lock) *queue {
	if l.queue == nil {
		l.queue = t.queues.get()
		l.queue.arbiter.rivals = &l.rivals
	}
	return l.queue
}

// noWait reports whether the first waiter waits for a result of Redis only.
func (q *queue) noWait() bool { return q.head != nil && q.head.try }

// waiter is an acquire that has not been answered.
type waiter struct {
	timer   wheel.Timer[timed]
	lock    *lock
	session *session
	id      uint64
	owner   uint64
	since   int64
	links   [lists]struct{ prev, next *waiter }

	leaseMS, maxHoldMS, crashDelayMS uint32

	try          bool // it waits for Redis's answer only: wait_ms is 0, or has passed (see due)
	alone        bool // when it came, no other client here held the lock or waited for it
	notReentrant bool
}

// A waiter stands in three lists: its lock's, its session's and its owner's.
const (
	byLock = iota
	bySession
	byOwner
	lists
)

// list is a doubly linked list through one of the waiter's links.
type list struct {
	head, tail *waiter
	len        int
}

func (q *list) push(w *waiter, by int) {
	w.links[by].prev = q.tail
	if q.tail != nil {
		q.tail.links[by].next = w
	} else {
		q.head = w
	}
	q.tail = w
	q.len++
}

func (q *list) remove(w *waiter, by int) {
	at := &w.links[by]
	if at.prev != nil {
		at.prev.links[by].next = at.next
	} else {
		q.head = at.next
	}
	if at.next != nil {
		at.next.links[by].prev = at.prev
	} else {
		q.tail = at.prev
	}
	at.prev, at.next = nil, nil
	q.len--
}

// pool keeps what most operations need for a moment, for the next one: otherwise that
// would be most of what there is to collect.
type pool[T any] struct{ free []*T }

const maxFree = 256

// get returns a T: a new one, or one as it was put back.
func (p *pool[T]) get() *T {
	last := len(p.free) - 1
	if last < 0 {
		return new(T)
	}
	v := p.free[last]
	p.free[last] = nil
	p.free = p.free[:last]
	return v
}

func (p *pool[T]) put(v *T) {
	if len(p.free) < maxFree {
		p.free = append(p.free, v)
	}
}

// Acquire asks for a lock. It is answered by one Granted or Refusal, now or later,
// unless the session ends first.
func (t *Table) Acquire(now int64, id SessionID, req protocol.Acquire) {
	s := t.sessions[id]
	if s == nil || s.detached {
		return
	}
	l := t.byName[req.Name]
	if l != nil {
		t.expire(now, l)
		if h := &l.hold; !req.NotReentrant && l.ownedBy(s, req.Owner) && h.count < 1<<31 {
			t.reenter(l, req.ID)
			t.settle(now, l)
			return
		}
	}
	if t.limited(now, s, l, &req) {
		if l != nil {
			t.settle(now, l)
		}
		return
	}
	if l == nil {
		l = t.lockFor(req.Name)
		t.charge(l, s.user)
	}
	q := t.needQueue(l)
	t.skipEnded(q)
	switch {
	case req.WaitMS == 0 && (l.hold.num != 0 || q.head != nil):
		code, msg := t.whyNot(now, l, &waiter{since: now})
		t.refuse(s, req.ID, code, "%s", msg)
		t.settle(now, l)
		return
	case req.WaitMS != 0 && req.Owner != 0 && l.hold.num != 0:
		if circle := t.circle(s, req.Owner, l); circle != "" {
			t.refuse(s, req.ID, protocol.Deadlock, "%s", circle)
			t.settle(now, l)
			return
		}
	}
	w := t.waiters.get()
	*w = waiter{
		lock: l, session: s, id: req.ID, owner: req.Owner, since: now,
		leaseMS: uint32(req.LeaseMS), maxHoldMS: uint32(req.MaxHoldMS), crashDelayMS: uint32(req.CrashDelayMS),
		try: req.WaitMS == 0, alone: l.hold.num == 0 && q.head == nil, notReentrant: req.NotReentrant,
	}
	w.timer.Value = w
	if q.head == nil {
		q.arbiter.onFirstRequest(now, w.try)
	}
	q.push(w, byLock)
	s.waits[w.id] = w
	s.queue.push(w, bySession)
	if w.owner != 0 {
		if s.owners[w.owner] == nil {
			s.owners[w.owner] = new(list)
		}
		s.owners[w.owner].push(w, byOwner)
	}
	t.waiting++
	s.user.waiters++
	switch {
	case w.try:
		t.arm(&w.timer, now+int64(t.cfg.TryWithin))
	case req.WaitMS > 0:
		t.arm(&w.timer, now+ms(req.WaitMS))
	}
	t.settle(now, l)
}

// whyNot says why a waiter, which may be taken out of the queue already, does not get the
// lock.
func (t *Table) whyNot(now int64, l *lock, w *waiter) (protocol.Code, string) {
	q := l.queue
	if l.hold.num != 0 {
		return protocol.Timeout, "held by " + l.hold.session.peer.String() + " on this host"
	}
	if trouble := t.trouble(l); trouble != "" {
		return protocol.Unavailable, trouble
	}
	// An answer to an earlier question may be out of date.
	a := &q.arbiter
	known := a.remote.isKnownSince(w.since)
	asked := int64(0)
	if l.claim.op.kind != NoOp {
		asked = now - l.claim.op.sentAt
	}
	switch {
	case !known && (t.IsSilent(now) || asked >= int64(t.cfg.TryWithin)):
		silence := max(asked, int64(t.Silence(now)))
		return protocol.Unavailable, "Redis has not answered for " + milliseconds(silence) + "; whether the lock is free is not known"
	case a.isYielding(now):
		return protocol.Timeout, anothersTurn
	case a.remote.isKnown:
		return protocol.Timeout, a.remote.String()
	case !w.alone && q.head != nil && q.head.since <= w.since:
		return protocol.Timeout, "others on this host wait for it"
	case !w.alone:
		return protocol.Timeout, "others on this host had it until now"
	case l.claim.op.kind == NoOp:
		return protocol.Timeout, anothersTurn
	}
	return protocol.Unavailable, "Redis has not answered within " + milliseconds(now-w.since) + " whether the lock is free"
}

const anothersTurn = "it is another host's turn"

// isKnownSince reports whether Redis, asked at that time or later, answered that another host
// has the lock.
func (r *remoteHolder) isKnownSince(at int64) bool { return r.isKnown && r.askedAt >= at }

func (r *remoteHolder) String() string { return "held by " + r.field + ", not on this host" }

func milliseconds(ns int64) string { return time.Duration(ns).Round(time.Millisecond).String() }

func (w *waiter) urgent(int64) bool { return false }

// due ends a wait whose time is over. If Redis has not answered for this acquire yet, it
// goes on as one that will not wait: otherwise a wait shorter than a round trip would get
// less than none.
func (w *waiter) due(t *Table, now int64) {
	l, q := w.lock, w.lock.queue
	latest := w.since + int64(t.cfg.TryWithin)
	if !w.try && w.alone && now < latest && !q.arbiter.remote.isKnownSince(w.since) {
		w.try = true
		q.arbiter.onFirstRequest(now, true)
		t.arm(&w.timer, latest)
		t.settle(now, l)
		return
	}
	t.unqueue(w)
	code, msg := t.whyNot(now, l, w)
	if code == protocol.Timeout {
		msg = "waited " + milliseconds(now-w.since) + "; " + msg
	}
	t.refuse(w.session, w.id, code, "%s", msg)
	t.settle(now, l)
}

// trouble says what keeps this sidecar from asking Redis for the lock; "": nothing.
func (t *Table) trouble(l *lock) string {
	switch {
	case !t.up && t.why == "":
		return "Redis has not been reached yet"
	case !t.up:
		return t.why
	case l.queue.trouble == "" && l.claim.retryAt != 0: // it came before the queue
		return "Redis could not carry out the last request for this lock; it is asked again in a moment"
	}
	return l.queue.trouble
}

// unqueue takes a waiter out of everything. Its fields are good until the next Acquire.
func (t *Table) unqueue(w *waiter) {
	t.wheel.Remove(&w.timer)
	w.lock.queue.remove(w, byLock)
	s := w.session
	delete(s.waits, w.id)
	s.queue.remove(w, bySession)
	if w.owner != 0 {
		own := s.owners[w.owner]
		if own.remove(w, byOwner); own.len == 0 {
			delete(s.owners, w.owner)
		}
	}
	t.waiting--
	s.user.waiters--
	t.waiters.put(w)
}

// Cancel ends a waiting acquire of the session.
func (t *Table) Cancel(now int64, id SessionID, req protocol.Cancel) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	w := s.waits[req.Target]
	if w != nil {
		t.unqueue(w)
		t.refuse(s, w.id, protocol.Canceled, "canceled by the client")
	}
	if req.ID != 0 {
		t.emit(Effect{Kind: Canceled, Session: id, ID: req.ID, Was: w != nil})
	}
	if w != nil {
		t.settle(now, w.lock)
	}
}

// serve grants a free lock to the head of its queue if Redis is known to let us,
// and answers heads that will not wait.
func (t *Table) serve(now int64, l *lock) {
	q := l.queue
	for left := t.cfg.MaxWork; q != nil && q.head != nil && (l.hold.num == 0 || q.denial != ""); left-- {
		if left == 0 {
			t.later(l)
			return
		}
		w := q.head
		if w.session.over() {
			t.unqueue(w)
			continue
		}
		if q.denial != "" {
			t.unqueue(w)
			t.refuse(w.session, w.id, protocol.Denied, "%s", q.denial)
			continue
		}
		if l.claim.state.isOurs() && l.claim.op.kind != Drop {
			if q.arbiter.mayGrant(&t.policy, now, w.try, t.up) && t.grantable(now, l, w) {
				if t.isFull(w.session) { // since it began to wait
					t.unqueue(w)
					t.refuse(w.session, w.id, protocol.Limit, "%s", t.fullOfHolds())
					continue
				}
				t.grant(now, l, w)
				return
			}
		}
		if !w.try {
			return
		}
		cannotAsk := l.claim.op.kind == NoOp && (t.why != "" || now < l.claim.retryAt)
		if !cannotAsk && !q.arbiter.isYielding(now) && !t.IsSilent(now) {
			return // until Redis answers
		}
		t.unqueue(w)
		code, msg := t.whyNot(now, l, w)
		t.refuse(w.session, w.id, code, "%s", msg)
	}
	if q != nil && q.head == nil {
		q.denial = ""
	}
}

// skipEnded takes waiters away that stand first and whose session is over: as many as do
// not take long. If there are more, a request that does not wait finds them before it.
func (t *Table) skipEnded(q *queue) {
	for left := 64 * t.cfg.MaxWork; q.head != nil && q.head.session.over() && left > 0; left-- {
		t.unqueue(q.head)
	}
}

// later has Work settle the lock again: it has more requests than one step may answer.
func (t *Table) later(l *lock) {
	if !l.unsettled {
		l.unsettled = true
		t.unsettled = append(t.unsettled, l)
	}
}

// grantable tells whether what is known of Redis covers the waiter: a token to
// give it, and validity that is long enough to be worth having. A lease that was
// taken for it may have spent up to two thirds on the way; one that it inherits
// has to be as long as its own.
func (t *Table) grantable(now int64, l *lock, w *waiter) bool {
	k := &l.claim
	if k.tokens.isEmpty() {
		return false
	}
	lease, left := t.leaseOf(w.leaseMS), k.validUntil-now
	if w.leaseMS == 0 || k.unassigned && k.leaseMS == lease {
		return left >= ms(lease)/3
	}
	return left >= validity(lease)
}

// grant makes the waiter the holder. If another hold had the lock before, this
// is a handoff: Redis learns of it behind the answer.
func (t *Table) grant(now int64, l *lock, w *waiter) {
	k, q, s := &l.claim, l.queue, w.session
	t.unqueue(w)
	num := k.holdID
	if !k.unassigned || num != k.maxHoldID {
		t.lastNum++
		num = t.lastNum
		k.maxHoldID = num
	}
	k.unassigned = false
	l.hold = hold{
		num: num, token: k.tokens.take(), owner: w.owner, session: s, granted: now, count: 1,
		leaseMS: w.leaseMS, crashDelayMS: w.crashDelayMS,
	}
	t.charge(l, s.user)
	h := &l.hold
	if w.maxHoldMS != 0 {
		h.endAt = now + ms(w.maxHoldMS)
	}
	until := min(k.validUntil, now+validity(t.leaseOf(w.leaseMS)))
	h.deadline, h.tells = until, s.tells
	if h.leaseMS != 0 {
		l.claim.renewAt = t.nextCheck(now)
	} else {
		// It may have been set for a hold with a fixed lease.
		l.claim.renewAt = min(l.claim.renewAt, until-int64(t.cfg.Lease)/4)
		// The operation that tells Redis may shorten the key's life to this.
		k.validUntil = until
		if len(s.marks) == 0 || s.unheard && until < s.told {
			s.told = until / t.bucket() * t.bucket() // nobody needs to hear of less
			s.unheard = true
			t.noteSession(s)
		}
		if until < s.told {
			s.behind = min(s.behind, until)
		}
	}
	q.arbiter.onGrant(now)
	t.byHold[num] = l
	t.linkHold(l)
	t.mark(l)
	t.emit(Effect{Kind: Granted, Session: s.id, ID: w.id, Token: h.token, Hold: num, Count: 1, Deadline: until, End: h.endAt})

	// Other acquires of the same owner have become re-entries.
	if own := s.owners[w.owner]; w.owner != 0 && own != nil {
		// They stand in two lists; the shorter one is walked.
		o, by := own.head, byOwner
		if q.len < own.len {
			o, by = q.head, byLock
		}
		for o != nil {
			next := o.links[by].next
			if o.lock == l && o.session == s && o.owner == w.owner && !o.notReentrant {
				t.unqueue(o)
				t.reenter(l, o.id)
			}
			o = next
		}
	}
}

// ownedBy tells whether this owner of this session has the lock.
func (l *lock) ownedBy(s *session, owner uint64) bool {
	h := &l.hold
	return h.num != 0 && owner != 0 && h.owner == owner && h.session == s && !h.orphan
}

func (t *Table) reenter(l *lock, id uint64) {
	h := &l.hold
	h.count++
	if l.watched() {
		h.deadline = max(l.until(), l.claim.validUntil)
	}
	t.emit(Effect{Kind: Granted, Session: h.session.id, ID: id, Token: h.token, Hold: h.num, Count: h.count, Deadline: l.until(), End: h.endAt})
}

// Release ends one entry of a hold. Redis's answer cannot change this one.
func (t *Table) Release(now int64, id SessionID, req protocol.Release) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	l := t.byHold[req.Hold]
	if l != nil {
		t.expire(now, l)
	}
	if l == nil || l.hold.num != req.Hold || l.hold.orphan || l.hold.session != s {
		if req.ID != 0 {
			t.refuse(s, req.ID, protocol.NotHeld, "this client does not hold %d: it released it before, lost it, or never had it; nothing was changed", req.Hold)
		}
	} else {
		l.hold.count--
		if req.ID != 0 {
			t.emit(Effect{Kind: Released, Session: id, ID: req.ID, Count: l.hold.count})
		}
		if l.hold.count == 0 {
			t.endHold(l)
		}
	}
	if l != nil {
		t.settle(now, l)
	}
}

// ForceRelease ends the hold on a name, whoever owns it. The caller has checked
// that the session may.
func (t *Table) ForceRelease(now int64, id SessionID, req protocol.ForceRelease) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	l := t.byName[req.Name]
	if l != nil {
		t.expire(now, l)
	}
	if l == nil || l.hold.num == 0 {
		t.refuse(s, req.ID, protocol.NotHeld, "nobody holds %q through this sidecar; force it on the host of its holder", req.Name)
	} else {
		num := l.hold.num
		t.lose(l, protocol.ByForce, "")
		t.emit(Effect{Kind: Forced, Session: id, ID: req.ID, Hold: num, Name: req.Name})
	}
	if l != nil {
		t.settle(now, l)
	}
}
