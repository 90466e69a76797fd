package locktable

import (
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/wheel"
)

// What an exhaustive exploration needs of a table: a copy from which it continues in another
// way, and a description by which it recognizes a state that it has been in. Nothing that ships
// calls these, so the linker leaves them out: they are functions, because it keeps exported methods.
// Both have every field that an input can depend on; a test (state_test.go) fails if a type has a
// field that they do not know.

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
func Clone(t *Table, j Journal) *Table {
	if t.cfg.Chance == nil || len(t.out)+len(t.dirty.locks)+len(t.dirty.sessions)+len(t.dirty.unstored)+len(t.leaseQueue) > 0 || t.dirty.ended != nil || t.Busy() {
		panic("locktable: a table is cloned that has effects, or whose chances cannot be cloned")
	}
	n := &Table{
		cfg: t.cfg, leaseMS: t.leaseMS, contests: t.contests,
		sessions: make(map[SessionID]*session, len(t.sessions)),
		users:    make(map[int64]*user, len(t.users)),
		byName:   make(map[string]*lock, len(t.byName)),
		byHold:   make(map[uint64]*hold, len(t.byHold)),
		cells:    t.cells, waiting: t.waiting, keeps: maps.Clone(t.keeps), many: make(map[*lock]*many, len(t.many)), isStopping: t.isStopping, ends: t.ends,
		searches: t.searches, lastNum: t.lastNum, renewalSeed: t.renewalSeed, renewals: t.renewals, shards: slices.Clone(t.shards), routes: t.routes, now: t.now, stats: t.stats,
	}
	n.stats.Groups = slices.Clone(t.stats.Groups)
	n.cfg.Journal = j
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
		n.addClone(t, l)
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
	c.timer.Value = c
	c.deadlineBuckets = maps.Clone(s.deadlineBuckets)
	return c
}

// addClone adds a copy of another table's lock.
func (t *Table) addClone(from *Table, l *lock) {
	c := &lock{
		name: l.name, index: l.index, slot: l.slot, memory: l.memory, lockMarks: l.lockMarks, group: l.group, shard: l.shard,
	}
	c.timer.Value = c
	c.claim = claim.Clone(&l.claim)
	if l.user != nil {
		c.user = t.users[l.user.uid]
	}
	t.locks = append(t.locks, c)
	t.byName[c.name] = c
	t.cloneHolds(from, l, c)
	if l.timer.Pending() {
		t.arm(&c.timer, l.timer.Deadline())
	}
	if l.queue == nil {
		return
	}
	q := *l.queue
	q.waiters = list[waiter]{}
	q.contest = contest.Clone(&l.queue.contest, &c.memory)
	q.confirms = slices.Clone(q.confirms)
	for i := range q.confirms {
		q.confirms[i].user = t.users[q.confirms[i].user.uid]
	}
	for w := l.queue.waiters.head; w != nil; w = w.inQueue.next {
		r := w.request
		cr := &request{
			session: t.sessions[r.session.id], id: r.id, owner: r.owner, since: r.since,
			leaseMS: r.leaseMS, maxHoldMS: r.maxHoldMS, crashDelayMS: r.crashDelayMS, keepMS: r.keepMS,
			lease: r.lease, mode: r.mode, phase: r.phase, isAlone: r.isAlone, notReentrant: r.notReentrant, isFair: r.isFair, isOfPhase: r.isOfPhase, arrived: r.arrived, permits: r.permits, capacity: r.capacity,
		}
		cr.timer.Value = cr
		cr.at = waiter{request: cr, lock: c}
		q.waiters.push(&cr.at, inQueue)
		if w == l.queue.newcomer {
			q.newcomer = &cr.at
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

// cloneHolds copies the holds of another table's lock to its copy.
func (t *Table) cloneHolds(from *Table, l, c *lock) {
	m := from.manyOf(l)
	if m == nil {
		if h := l.holders.sole(); h != nil {
			c.holders.newest = t.cloneHold(h, c)
		}
		return
	}
	n := *m
	n.holds, n.gaps, n.owned, n.twins, n.changed = nil, 0, make(map[owner]*hold, len(m.owned)), maps.Clone(m.twins), nil
	n.users, n.capacities = slices.Clone(m.users), slices.Clone(m.capacities)
	for h := range from.holdsOf(l) {
		ch := t.cloneHold(h, c)
		n.holds = append(n.holds, numbered{ch.id, ch, m.entryOf(h).of})
		if at := h.ownedBy(); m.owned[at] == h {
			n.owned[at] = ch
		}
		c.holders.newest = ch
	}
	t.many[c] = &n
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
func NextDeadline(t *Table) (at int64, ok bool) {
	at = moment.Never
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
	return at, at != moment.Never
}

// Describe describes a table that knows no other lock than that of the name, except for its
// sessions: see DescribeSession. Nothing depends on arrivals unless a request has wanted strict
// order or may come that does: mayBeInOrder.
func Describe(t *Table, d Description, now int64, name string, mayBeInOrder bool) {
	d.Value(bit(t.isStopping))
	for i := range t.shards {
		s := &t.shards[i]
		d.Value(uint64(s.slots)<<3 | uint64(s.phase)<<1 | bit(s.isListening))
		d.Value(uint64(s.owed))
		if s.owed > 0 {
			d.Time(max(s.silentSince(), now-int64(t.cfg.TryWithin)))
		}
	}
	d.Number(t.lastNum)
	contest.DescribeShared(d, now, &t.contests)
	l := t.byName[name]
	if len(t.locks) != int(bit(l != nil)) {
		panic("locktable: the table knows another lock")
	}
	d.Value(bit(l != nil))
	if l == nil {
		m := t.contests.Remember(name)
		contest.DescribeMemory(d, &t.contests, now, &m)
		return
	}
	contest.DescribeMemory(d, &t.contests, now, &l.memory)
	d.Value(uint64(l.shard))
	d.Value(bit(l.timer.Pending()))
	if l.timer.Pending() {
		d.Time(max(l.timer.Deadline(), now))
	}
	busy, turn := contest.Limits(&t.contests)
	claim.Describe(&l.claim, d, now, claim.Limits{Busy: busy, Turn: turn, Lease: t.cfg.Lease, Tokens: t.cfg.Tokens, PassedMS: redisop.MS(redisop.FreeAfter)})
	d.Value(uint64(l.kind()))
	if m := t.manyOf(l); m != nil {
		d.Time(max(m.dueAt, now))
		d.Time(max(m.validUntil, now))
		d.Time(max(m.latest, now))
		d.Time(max(m.askedAt, now-int64(t.cfg.Lease)))
		d.Value(uint64(m.askedMS)<<1 | bit(m.lookedAt == l.claim.RenewAt()))
		d.Value(uint64(m.came)<<1 | bit(m.idleSince != 0))
		for _, c := range m.capacities {
			d.Value(uint64(c.key)<<32 | uint64(c.n))
		}
		d.Value(uint64(t.ends.takenAt(now)))
		d.Value(uint64(m.met))
		d.Time(max(m.idleSince, now-handBackDelay))
	}
	for h := range t.holdsOf(l) {
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
		d.Value(uint64(r.leaseMS)<<32 | uint64(r.mode)<<8 | uint64(r.lease)<<4 | uint64(r.phase)<<3 | bit(r.isAlone)<<2 | bit(r.notReentrant)<<1 | bit(r.timer.Pending()) | bit(r.isOfPhase)<<16)
		d.Value(uint64(r.maxHoldMS)<<32 | uint64(r.crashDelayMS))
		d.Value(uint64(r.keepMS)<<32 | uint64(r.permits)<<16 | uint64(r.capacity))
		d.Time(max(r.since, now-int64(t.cfg.Lease)))
		// It matters which operations were sent after it came. All that come later are.
		d.Value(bit(r.since <= l.claim.AskedAt())<<2 | bit(r.since <= l.claim.InFlight().SentAt)<<1 | bit(q.contest.Remote().IsKnownSince(r.since)))
		if r.timer.Pending() {
			d.Time(max(r.timer.Deadline(), now))
		}
	}
	contest.DescribePlace(&q.contest, d, &t.contests, now)
	if mayBeInOrder {
		t.describeOrder(d, now, l)
	}
	contest.Describe(&q.contest, d, &t.contests, now)
}

func (t *Table) describeHold(d Description, now int64, h *hold) {
	d.Number(h.id)
	d.Session(h.session.id)
	d.Value(h.owner)
	d.Value(uint64(h.entries)<<32 | uint64(h.claimedEntries))
	d.Value(uint64(h.leaseMS)<<32 | uint64(h.crashDelayMS))
	d.Value(uint64(h.mode)<<24 | uint64(h.lease)<<16 | uint64(h.phase)<<2 | bit(h.isTracked)<<1 | bit(h.leaseSeq == h.session.leaseSeq))
	d.Time(max(h.deadline, now))
	d.Time(max(t.deadline(h), now))
	d.Value(bit(h.endAt != 0))
	d.Time(max(h.endAt, now))
	d.Value(uint64(h.permits)<<1 | bit(h.hasKeep))
	if m := t.manyOf(h.lock); m != nil {
		d.Value(bit(h.id <= m.forced))
	}
	d.Time(max(t.keepUntil(h), now))
	if h.isTracked {
		d.Time(h.bucket * t.bucketWidth())
	}
}

// describeOrder describes what is known of arrivals. A lock that is not in order becomes it with
// the next request that wants strict order, which finds the arrivals of those that wait already.
func (t *Table) describeOrder(d Description, now int64, l *lock) {
	q, c := l.queue, &l.claim
	isOurs := c.State().IsOurs()
	contest.DescribeOrder(&q.contest, d, now, c.InFlight().Has(redisop.Enqueue), isOurs)
	for w := q.waiters.head; w != nil; w = w.inQueue.next {
		r := w.request
		d.Arrival(r.arrived)
		served := contest.DescribeWaiter(&q.contest, c.InFlight().Has(redisop.Enqueue), isOurs, &contest.Waiter{Since: r.since, Arrived: r.arrived})
		d.Value(served<<2 | bit(r.isFair)<<1 | bit(w == q.newcomer))
	}
}

// DescribeSession describes a session, but for its requests and holds.
func DescribeSession(t *Table, d Description, now int64, id SessionID) {
	s := t.sessions[id]
	d.Value(bit(s != nil))
	if s == nil {
		return
	}
	d.Value(uint64(s.phase))
	d.Value(bit(s.minUncovered < moment.Never))
	if s.minUncovered < moment.Never {
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
