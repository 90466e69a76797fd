package locktable

import (
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/wheel"
)

// What an exhaustive exploration needs of a table: a copy from which it continues in another
// way, and a description by which it recognizes a state that it has been in. Nothing that ships
// calls these. Both have every field that an input can depend on; a test (state_test.go)
// fails if a type has a field that they do not know.

// A Description receives the state of a table as a sequence of values. Two tables with the
// same sequence behave in the same way.
//
// Numbers that grow without end and times come as what they are, so that the caller can
// replace them by something relative.
type Description interface {
	Value(x uint64)       // matters as it is
	Time(at int64)        // it matters how far from now it is
	Number(id uint64)     // of a hold: it matters which of two is larger
	Token(token uint64)   // the same
	Arrival(at uint64)    // of a request, by Redis's clock: it matters which of two is earlier; 0: it is not known
	Session(id SessionID) // it matters which one it is
}

// Clone returns a copy of the table, which shares nothing with it that an input changes, and
// writes to the journal j. Precondition: Effects was called after the last input, Busy reports
// false, the journal has room, Config.Chance has no state, and no session has terms.
func (t *Table) Clone(j Journal) *Table {
	if t.cfg.Chance == nil || len(t.out)+len(t.dirty.locks)+len(t.dirty.sessions)+len(t.dirty.unstored)+len(t.leaseQueue) > 0 || t.dirty.ended != nil || t.Busy() {
		panic("locktable: a table is cloned that has effects, or whose chances cannot be cloned")
	}
	n := &Table{
		cfg: t.cfg, leaseMS: t.leaseMS, policy: t.policy,
		sessions: make(map[SessionID]*session, len(t.sessions)),
		users:    make(map[int64]*user, len(t.users)),
		byName:   make(map[string]*lock, len(t.byName)),
		byHold:   make(map[uint64]*hold, len(t.byHold)),
		cells:    t.cells, waiting: t.waiting, grantCarries: maps.Clone(t.grantCarries), keeps: maps.Clone(t.keeps), hotUntil: t.hotUntil, pollers: t.pollers, isStopping: t.isStopping,
		searches: t.searches, lastNum: t.lastNum, renewalSeed: t.renewalSeed, renewals: t.renewals, redis: t.redis, now: t.now, stats: t.stats,
	}
	n.stats.Groups = slices.Clone(t.stats.Groups)
	n.cfg.Journal = j
	n.policy.cfg = &n.cfg
	n.dirty.lastHoldID = t.dirty.lastHoldID
	// It fires the same timers at the same times, and takes a hundredth of the memory. Only its
	// Next is of no use: see NextDeadline.
	n.wheel = wheel.New[timed](1<<62, 4, t.now)
	n.wheel.MaxPending = t.wheel.MaxPending
	for uid, u := range t.users {
		c := *u
		n.users[uid] = &c
	}
	for id, s := range t.sessions {
		n.sessions[id] = s.clone(n)
	}
	for _, l := range t.locks {
		n.addClone(l)
	}
	return n
}

// clone returns a copy of the session, without its holds and requests.
func (s *session) clone(n *Table) *session {
	if s.terms != nil {
		panic("locktable: a session is cloned whose quotas other sessions share")
	}
	c := &session{
		id: s.id, peer: s.peer, user: n.users[s.user.uid], phase: s.phase, endedAt: s.endedAt,
		confirms: maps.Clone(s.confirms), requests: make(map[uint64]*request), owners: make(map[uint64]*list[request]),
		leaseEvents: s.leaseEvents,
	}
	c.deadlineBuckets = maps.Clone(s.deadlineBuckets)
	return c
}

// addClone adds a copy of another table's lock.
func (t *Table) addClone(l *lock) {
	c := &lock{
		name: l.name, index: l.index, slot: l.slot, hotUntil: l.hotUntil, isHot: l.isHot, group: l.group, claim: l.claim, rivals: l.rivals,
	}
	c.timer.Value = c
	if l.claim.window != &atRest {
		w := *l.claim.window
		c.claim.window = &w
	}
	if l.user != nil {
		c.user = t.users[l.user.uid]
	}
	t.locks = append(t.locks, c)
	t.byName[c.name] = c
	for at, h := &c.holds, l.holds; h != nil; at, h = &(*at).next, h.next {
		*at = t.cloneHold(h, c)
	}
	if l.timer.Pending() {
		t.arm(&c.timer, l.timer.Deadline())
	}
	if l.queue == nil {
		return
	}
	q := *l.queue
	q.waiters = list[waiter]{}
	q.arbiter.rivals = &c.rivals
	q.confirms = slices.Clone(q.confirms)
	for i := range q.confirms {
		q.confirms[i].user = t.users[q.confirms[i].user.uid]
	}
	for w := l.queue.waiters.head; w != nil; w = w.inQueue.next {
		r := w.request
		cr := &request{
			session: t.sessions[r.session.id], id: r.id, owner: r.owner, since: r.since,
			leaseMS: r.leaseMS, maxHoldMS: r.maxHoldMS, crashDelayMS: r.crashDelayMS, keepMS: r.keepMS,
			lease: r.lease, phase: r.phase, isAlone: r.isAlone, notReentrant: r.notReentrant, isFair: r.isFair, arrived: r.arrived,
		}
		cr.timer.Value = cr
		cr.at = waiter{request: cr, lock: c}
		q.waiters.push(&cr.at, inQueue)
		if w == l.queue.order.newcomer {
			q.order.newcomer = &cr.at
		}
		waiters := cr.session.user.waiters
		cr.session.addRequest(cr)
		cr.session.user.waiters = waiters // which counts it already
		if r.timer.Pending() {
			t.arm(&cr.timer, r.timer.Deadline())
		}
	}
	c.queue = &q
}

// cloneHold returns a copy of a hold, as one of the copy of its lock.
func (t *Table) cloneHold(h *hold, l *lock) *hold {
	c := new(hold)
	*c = *h
	c.lock, c.next, c.inSession = l, nil, links[hold]{}
	c.session = t.sessions[h.session.id]
	if c.session == nil {
		c.session = h.session.clone(t)
	}
	t.byHold[c.id] = c
	if !c.isOrphan() {
		t.linkHold(c) // newest first: a session with holds of several locks has them in another order
	}
	return c
}

// NextDeadline is when the first timer is due; false: there is none.
func (t *Table) NextDeadline() (at int64, ok bool) {
	at = never
	for _, l := range t.locks {
		if l.timer.Pending() {
			at = min(at, l.timer.Deadline())
		}
		if l.queue == nil {
			continue
		}
		for w := l.queue.waiters.head; w != nil; w = w.inQueue.next {
			if w.request.timer.Pending() {
				at = min(at, w.request.timer.Deadline())
			}
		}
	}
	return at, at != never
}

// Describe describes a table that knows no other lock than that of the name, except for its
// sessions: see DescribeSession. Nothing depends on arrivals unless a request has wanted strict
// order or may come that does: mayBeInOrder.
func (t *Table) Describe(d Description, now int64, name string, mayBeInOrder bool) {
	r := &t.redis
	d.Value(uint64(r.phase)<<2 | bit(r.isListening)<<1 | bit(t.isStopping))
	d.Value(uint64(r.owed))
	if r.owed > 0 {
		d.Time(max(r.silentSince(), now-int64(t.cfg.TryWithin)))
	}
	d.Number(t.lastNum)
	d.Value(uint64(t.policy.polling))
	if t.cfg.Turn == 0 {
		d.Value(uint64(t.policy.trip))
	}
	d.Value(uint64(t.lingerTime(0)))
	l := t.byName[name]
	if len(t.locks) != int(bit(l != nil)) {
		panic("locktable: the table knows another lock")
	}
	d.Value(bit(l != nil))
	if l == nil {
		t.describeHeat(d, now, t.hotUntil.at(name))
		t.describePoller(d, now, t.pollers.at(name))
		return
	}
	t.describeHeat(d, now, l.hotUntil)
	t.describePoller(d, now, l.rivals.pollerAt)
	d.Value(bit(l.isHot)<<1 | bit(l.timer.Pending()))
	if l.timer.Pending() {
		d.Time(max(l.timer.Deadline(), now))
	}
	d.Value(bit(l.rivals.areWaiting)<<16 | uint64(uint16(l.rivals.listeners)))
	l.claim.describe(d, now, &t.cfg)
	for h := l.holds; h != nil; h = h.next {
		t.describeHold(d, now, h)
	}
	q := l.queue
	d.Value(bit(q != nil))
	if q == nil {
		return
	}
	d.Value(bit(q.lastError != "")<<2 | bit(q.denial != "")<<1 | bit(q.refusal != ""))
	d.Time(max(q.drawAt, now))
	for _, c := range q.confirms {
		d.Session(c.session)
	}
	for w := q.waiters.head; w != nil; w = w.inQueue.next {
		r := w.request
		d.Session(r.session.id)
		d.Value(r.owner)
		d.Value(uint64(r.leaseMS)<<32 | uint64(r.lease)<<4 | uint64(r.phase)<<3 | bit(r.isAlone)<<2 | bit(r.notReentrant)<<1 | bit(r.timer.Pending()))
		d.Value(uint64(r.maxHoldMS)<<32 | uint64(r.crashDelayMS))
		d.Value(uint64(r.keepMS))
		d.Time(max(r.since, now-int64(t.cfg.Lease)))
		// It matters which operations were sent after it came. All that come later are.
		d.Value(bit(r.since <= l.claim.askedAt)<<2 | bit(r.since <= l.claim.op.sentAt)<<1 | bit(q.arbiter.remote.isKnownSince(r.since)))
		if r.timer.Pending() {
			d.Time(max(r.timer.Deadline(), now))
		}
	}
	q.place.describe(d, now, &t.cfg)
	if mayBeInOrder {
		t.describeOrder(d, now, l)
	}
	q.arbiter.describe(d, now, &t.cfg)
}

// describeHeat describes until when a lock is hot; until is as lock.hotUntil.
func (t *Table) describeHeat(d Description, now int64, until uint32) {
	left := uint32(0)
	if t.isHotAt(now, until) {
		left = 1 + until - shortMoment(now)
	}
	d.Value(uint64(left))
}

// describePoller describes for how long a program is remembered; at is as rivals.pollerAt. It
// matters only if its lock has free moments more often.
func (t *Table) describePoller(d Description, now int64, at uint32) {
	if t.cfg.PollerTime == t.cfg.QuietTime {
		return
	}
	age := shortMillis(int64(t.cfg.RivalMemory))
	if at != 0 {
		age = min(age, shortMillis(now)-at)
	}
	d.Value(uint64(age))
}

// describeAge describes a time in the past, of which it matters only whether it is longer ago
// than a limit, and if it is not, for how long.
func describeAge(d Description, now, at int64, limit time.Duration) {
	d.Time(max(at, now-int64(limit)))
}

// longestPass is the largest PassedMS that makes a difference to Redis.
const longestPass = 100 * time.Millisecond

func (c *remoteClaim) describe(d Description, now int64, cfg *Config) {
	d.Value(uint64(c.state)<<8 | uint64(c.phase)<<3 | uint64(c.use)<<1 | bit(c.retryAt != 0))
	d.Number(c.maxHoldID)
	d.Time(max(c.retryAt, now))
	if c.state != claimAbsent {
		d.Number(c.holdID)
		d.Value(uint64(c.count)<<32 | uint64(c.leaseMS))
		d.Value(uint64(describedTokens(c.tokensLeft)))
		if c.tokensLeft > 0 {
			d.Token(c.nextToken)
		}
		d.Value(uint64(min(int(c.grants), max(2, cfg.HandoffBudget))))
		describeAge(d, now, c.confirmedAt, time.Duration(max(hotSyncDelay, checkPause)))
		d.Time(max(c.validUntil, now))
		d.Value(bit(c.busySince != 0))
		describeAge(d, now, c.busySince, max(cfg.QuietTime, longestPass))
		describeAge(d, now, c.cameAt, max(cfg.HandoffTime, cfg.Turn))
	}
	if c.state.isOurs() {
		d.Time(max(c.renewAt, now))
	}
	d.Value(bit(c.lingerUntil != 0))
	d.Time(max(c.lingerUntil, now))
	d.Value(bit(c.isAsking))
	if c.isAsking {
		describeAge(d, now, c.askedAt, cfg.Lease)
	}
	if c.isBusy() {
		op := &c.op
		d.Value(uint64(op.kind)<<8 | bit(op.unassigned)<<6 | bit(op.enqueue)<<5 | bit(op.isDoubted)<<4 |
			bit(op.mayBeFree)<<3 | bit(op.checkAgain)<<2 | bit(op.mayHaveLostData)<<1)
		d.Number(op.holdID)
		describeAge(d, now, op.sentAt, cfg.Lease)
		d.Value(uint64(op.count)<<32 | uint64(op.leaseMS))
		d.Value(uint64(op.reserve)<<32 | uint64(min(op.passedMS, uint32(longestPass/time.Millisecond))))
	}
}

// describedTokens describes how many tokens are left, so that two numbers from which it is far to
// where tokens are drawn are the same: for so many grants, they are.
func describedTokens(left uint16) uint16 {
	const far = 16
	switch {
	case left >= hotTokens/4+far:
		return hotTokens/4 + far
	case left < hotTokens/4 && left >= far:
		return far
	}
	return left
}

func (t *Table) describeHold(d Description, now int64, h *hold) {
	d.Number(h.id)
	d.Session(h.session.id)
	d.Value(h.owner)
	d.Value(uint64(h.entries)<<32 | uint64(h.claimedEntries))
	d.Value(uint64(h.leaseMS)<<32 | uint64(h.crashDelayMS))
	d.Value(uint64(h.lease)<<16 | uint64(h.mode)<<8 | uint64(h.phase)<<2 | bit(h.isTracked)<<1 | bit(h.leaseSeq == h.session.leaseSeq))
	d.Time(max(h.deadline, now))
	d.Time(max(t.deadline(h), now))
	d.Value(bit(h.endAt != 0))
	d.Time(max(h.endAt, now))
	d.Value(bit(h.hasKeep))
	d.Time(max(t.keepUntil(h), now))
	if h.isTracked {
		d.Time(h.bucket * t.bucketWidth())
	}
}

func (p *place) describe(d Description, now int64, cfg *Config) {
	d.Value(uint64(p.phase))
	if p.phase != placeNone {
		d.Number(p.ticket)
		d.Value(uint64(uint32(p.rank)))
		describeAge(d, now, p.since, cfg.WatchAfter)
		describeAge(d, now, p.validSince, cfg.Lease)
		conn, isKnown := p.conn.Number()
		d.Value(uint64(conn)<<2 | bit(isKnown)<<1 | bit(p.mayHaveLock))
	}
}

// describeOrder describes what is known of arrivals. A lock that is not in order becomes it with
// the next request that wants strict order, which finds the arrivals of those that wait already.
func (t *Table) describeOrder(d Description, now int64, l *lock) {
	q, c := l.queue, &l.claim
	o := &q.order
	d.Time(max(o.retryAt, now))
	d.Value(bit(o.isDenied))
	if c.op.enqueue {
		d.Arrival(o.asked)
		d.Arrival(o.toServe.upTo)
	}
	if q.place.phase != placeNone {
		d.Arrival(q.place.arrived)
	}
	isOurs := c.state.isOurs() // only then does it matter which waiters are served
	if isOurs {
		d.Arrival(o.served.upTo)
	}
	for w := q.waiters.head; w != nil; w = w.inQueue.next {
		d.Arrival(w.request.arrived)
		cameLater := q.place.phase != placeNone && w.request.arrived == 0 && w.request.since > q.place.since
		d.Value(bit(c.op.enqueue && o.toServe.includes(w.request))<<4 | bit(cameLater)<<3 | bit(w.request.isFair)<<2 | bit(w == o.newcomer)<<1 | bit(isOurs && o.served.includes(w.request)))
	}
}

func (a *arbiter) describe(d Description, now int64, cfg *Config) {
	d.Value(uint64(a.phase)<<8 | uint64(a.sub)<<4 | bit(a.isPolling)<<3 | bit(a.remote.isKnown)<<2 | bit(a.remote.isSidecar)<<1 | bit(a.ownPublishesPending > 0))
	d.Time(max(a.nextTry, now))
	d.Time(max(a.backoffUntil, now))
	d.Time(max(a.rivalUntil, now))
	if a.remote.isKnown {
		describeAge(d, now, a.remote.askedAt, cfg.Lease)
		d.Value(bit(a.remote.ttlMS >= 0))
		d.Time(max(a.remote.seenAt+ms(max(a.remote.ttlMS, 0)), now))
	}
	if a.sub != unsubscribed {
		d.Time(max(a.lingerUntil, now))
		d.Value(uint64(a.unneededMessages)<<8 | uint64(a.ownPublishesPending))
		if a.ownPublishesPending > 0 {
			d.Time(max(a.ownPublishesDeadline, now))
		}
	}
}

// DescribeSession describes a session, but for its requests and holds.
func (t *Table) DescribeSession(d Description, now int64, id SessionID) {
	s := t.sessions[id]
	d.Value(bit(s != nil))
	if s == nil {
		return
	}
	d.Value(uint64(s.phase))
	d.Value(bit(s.minUncovered < never))
	if s.minUncovered < never {
		d.Time(max(s.minUncovered, now))
	}
	if s.holds.len == 0 {
		return // the next grant sets it
	}
	d.Value(bit(s.leaseSentEstimated))
	d.Time(max(s.leaseSent, now))
	for _, b := range slices.Sorted(maps.Keys(s.deadlineBuckets)) {
		d.Time(b * t.bucketWidth())
		d.Value(uint64(s.deadlineBuckets[b]))
	}
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
