package sim

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The checker knows what every client was told and what Redis really has, and
// compares the two after whatever changes one of them.
//
// The heart of it is cover: as long as a hold is believed in, the key in Redis
// belongs to its host and lives at least until the deadline that the client was
// told. Exclusion between hosts, conservative deadlines and "never released early"
// all follow from that, and it fails at the moment of the mistake, not when
// somebody happens to take the lock in the gap.
//
// The excuse: what destroys a key from outside (an operator, FLUSHALL, a restart
// without data, a foreign client's force) cannot be known to its holder at once.
// The host's belief in that lock is excused until the moment at which the key would
// have expired, but no longer than until the host was told that the key is gone.
// Deadlines confirmed after the destruction are not excused, and between the
// owners of one host nothing is ever excused, with one exception: a client that has
// lost its sidecar cannot be told that its lock was destroyed, or forced by an
// operator. Its belief is excused from the moment at which its table would have told
// it. That a table may not lose a hold for any other reason is checked all the same.
//
// A jump of Redis's clock destroys a key in the same way, if it has it expire early.

type holdState uint8

const (
	none       holdState = iota
	live                 // its client believes in it
	unattended           // its client believes in it, and hears nothing more of it
	away                 // its client believes in it, and has lost its sidecar for now
	stale                // its host has it, and no client believes in it
	orphan               // its client is dead; it is kept for its crash delay
)

// hold is what the checker knows of the newest hold of a lock on a host.
type hold struct {
	state      holdState
	fixed      bool
	count      uint32
	num, token uint64
	owner      uint64
	session    locktable.SessionID

	// Host clock.
	granted     int64
	told        int64 // the newest deadline that the client was told
	confirmed   int64 // the newest that the table can know of
	confirmedAt int64 // since when
	earlier     int64 // what it was before
	maxEnd      int64 // grant + max_hold; 0: none
	crash       int64 // crash delay
	keepUntil   int64 // orphan: when its crash delay ends
	detachedAt  int64

	restored bool // its table may have told more of it than its client heard
}

// believed tells whether a client believes in the hold, and will hear of its end.
func (c *hold) believed() bool { return c.state == live || c.state == away }

// over tells whether its client has stopped believing in the hold by its own clock.
func (c *hold) over(now int64) bool { return now >= c.told || c.maxEnd > 0 && now >= c.maxEnd }

// end is until when the hold must not be given to anybody else.
func (c *hold) end() int64 {
	end := c.told
	if c.state == orphan {
		if !c.fixed && c.detachedAt == 0 {
			end = max(end, c.confirmed)
		}
		end = min(end, c.keepUntil)
	}
	if c.maxEnd > 0 { // the client was told it with the grant
		end = min(end, c.maxEnd)
	}
	return end
}

// hostName is one lock as one host has it.
type hostName struct {
	hold     hold
	inflight int32 // index of the operation in flight; -1: none
	ahead    int32 // of a Drop that it was sent behind; -1: none, or it is answered
	chase    int   // Takes in a row that were sent behind a Drop

	unconfirmed bool // Redis has not said yes to anything since the table was made
	last        locktable.Outcome
	lastKind    locktable.OpKind
	trouble     int64 // world time: when Redis last refused an operation on it
	deniedAt    int64 // world time: the same, or it was not a lock
	excuse      int64 // world time
	endedAt     int64 // world time: when the hold ended
	ranges      [8]tokenRange
	rangeAt     int

	contendedAt int64 // host clock: since when the table knows that others wait; 0: does not
	handoffs    int   // since then
	listeners   int32 // as the table was told last
	stale       bool  // it may have forgotten that: it had no use for the lock meanwhile
	yielding    bool  // it gave the lock back for others, and stands back
	rivalUntil  int64 // host clock: until then it may count another host that has had the lock among those that wait
	mayYield    bool  // as of the last Take
	stoodAt     int64 // host clock: the same, when somebody waited here; 0: nobody did
	droppedAt   int64 // host clock: when it learnt that the lock is given back
	answeredAt  int64 // host clock: when Redis answered last
	otherAsked  int64 // host clock: when it was asked what it answered last with: another has it

	runs     int   // grants since Redis was last asked for the lock
	runSince int64 // host clock: when the first of them was

	lastSeen   uint64 // the token granted last on this host
	lastSeenAt int64  // world time at which it was drawn
	droppedBy  int64  // world time: until when a message may be that of its own release

	pausing    bool  // it gave the lock back for a moment, in which clients that poll may take it
	pauseSince int64 // host clock

	lookedFor uint64 // a hold whose key another program deleted, and of which a message came:
	lookedBy  int64  // its host looks at the key before this world time

	want   bool  // the table wants to be subscribed
	server bool  // Redis has the subscription
	acked  bool  // the table knows
	deafAt int64 // world time: when the table was told that it has lost the subscription
}

func (hn *hostName) protected(now int64) bool {
	return hn.hold.state != none && hn.hold.state != stale && now < hn.hold.end()
}

// othersListen tells whether the table knows that others listen, or that it cannot know.
func (hn *hostName) othersListen() bool {
	return !hn.stale && (hn.listeners < 0 || hn.listeners > 1)
}

const (
	standBack   = 10 * ms
	quietTime   = 100 * ms
	quietPause  = 4 * ms
	rivalMemory = 60 * sec
	tryWithin   = 500 * ms
)

// tokenRange is what one Take drew, as its table was told.
type tokenRange struct {
	next, last uint64
	drawnAt    int64
}

type checker struct {
	forcing      uint64           // hold that the force_release being played is about
	knows        [maxHosts]uint16 // names whose loss a host has been told of
	lastWake     int64
	lastWakeHost int
	digest       digest // of all effects, to compare two runs

	met     [situations]int
	refused map[protocol.Code]int
	lost    map[protocol.Reason]int
}

// Situations that a simulation worth its name gets into.
const (
	firstEntry = iota
	reEntry
	handoff        // a grant that Redis learns of afterwards
	excusedOverlap // two owners, because somebody destroyed the key of the first
	executedLate   // an operation, after its table was told that its end is unknown
	leftUnknown    // an operation that Redis carried out, and whose answer was lost
	keptForOrphan  // a hold whose client is dead
	afterDataLoss  // an assertion of a hold
	counterExpired // a token counter
	chased         // a release, by the next take
	chasedLate     // and its answer came behind the take's
	expiredEarly   // a key, because Redis's clock jumped
	tokensExcused  // a counter was lost while the clock was behind
	toldLess       // a deadline, for holds that were granted with still less
	confirmedFree  // a release, while Redis was being asked
	confirmedTaken // a release, after which the lock passed to another owner here
	closedInSteps  // a session that had more than is done at one time
	lookedInto     // a deletion, because a message came
	foundAlien     // a key of another type under a hold
	drawRefused    // for a hold, that was renewed all the same
	pausedQuietly  // that was made for clients that poll
	birthAbove     // Redis's clock: a counter began at what its host knew
	floorRaised    // of a connection, because its host met a token that is ahead of Redis's clock
	foundSilent    // Redis, by an acquire that would not wait, or not for longer
	grantedForNone // a lock, after the acquire that it was taken for was answered

	killedBeforeKeeping   // a sidecar, with inputs that its memory does not have
	killedWhileKeeping    // between two calls of the Keeper
	killedWhileCarryout   // with effects of which only a part was carried out
	killedWhileRestoring  // before its first effects
	killedWhileClaiming   // of a client
	killedInDoubt         // while it asserted its holds on a Redis that lost its data
	stoppedInOrder        // and finished
	startedAnew           // without a state
	startedWithinLease    // while a client believed
	startedLate           // when all that it remembered was over
	otherLeaseConfigured  // than that of a hold that was restored
	restoredHold          // that its client believes in
	restoredDrop          // a lock that was being given back
	restoredOrphan        // kept for its crash delay
	restoredDetached      // a session that was not served any more
	grantUnread           // of which the client never heard
	releaseUnread         // which the sidecar never read
	diedMeanwhile         // a client, while no sidecar ran
	notResumed            // because the client cannot
	claimedInPages        // by one client
	adriftWhileClaiming   // a client whose connection ended
	diedWhileClaiming     // a client
	claimedHold           // and got it
	claimedFewer          // entries than the sidecar remembered
	unclaimedHold         // given up
	claimedLost           // a hold that is gone
	lostWhileClaiming     // a hold that had been claimed
	overMeanwhile         // a hold that was claimed, and whose deadline passed for its client meanwhile
	resent                // an acquire
	forsakenClient        // which did not come back in time
	renewedForAbsent      // a hold
	newSessionForReturned // because there was nothing to come back to
	suspendedHost         // for longer than a lease
	wholeAgain            // a memory that had no room for a lock
	situations
)

type violation struct {
	seed uint64
	step int
	now  int64
	name int
	what string
}

func (v violation) Error() string {
	return fmt.Sprintf("seed %d, step %d, %s, %s: %s", v.seed, v.step, clockString(v.now), nameString(v.name), v.what)
}

func (w *world) violation(name int, format string, args ...any) {
	panic(violation{w.seed, w.steps, w.now, name, fmt.Sprintf(format, args...)})
}

// digest is a hash of a sequence of effects, but for the sentences in them.
type digest uint64

func (d digest) with(e *locktable.Effect) digest {
	op := &e.Op
	for _, x := range [...]uint64{
		uint64(e.Kind), bit(e.Was), uint64(e.Count), uint64(e.Session), e.ID, e.Hold, e.Token, uint64(e.Deadline), uint64(e.End),
		uint64(op.Kind), op.Num, uint64(op.Count), uint64(op.LeaseMS), uint64(op.Reserve), bit(op.Held), bit(op.Behind),
	} {
		d = d.add(x)
	}
	for _, s := range [...]string{string(e.Code), string(e.Reason), e.Name, op.Name} {
		for i := range len(s) {
			d = d.add(uint64(s[i]))
		}
	}
	return d
}

func (d digest) add(x uint64) digest { return (d ^ digest(x)) * 0x100000001b3 }

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// ---- what tables do

// apply carries out one effect of a table, after judging it.
func (w *world) apply(h *host, e *locktable.Effect) {
	w.check.digest = w.check.digest.with(e)
	if w.trace.on {
		w.trace.effect(w, h, e)
	}
	switch e.Kind {
	case locktable.Granted:
		w.granted(h, e)
	case locktable.Released:
		w.released(h, e)
	case locktable.Refusal:
		w.refused(h, e)
	case locktable.Canceled:
		q := w.answers(h, e, reqCancel)
		if e.Was != q.canceled {
			w.violation(int(q.name), "cancel of %d is answered with %v; its acquire was answered with canceled: %v", q.target, e.Was, q.canceled)
		}
		if s := w.sessionOf(h, e); !e.Was && s.find(q.target, reqAcquire) >= 0 {
			w.violation(int(q.name), "cancel of %d is answered with false, but it still waits", q.target)
		}
	case locktable.Forced:
		q := w.answers(h, e, reqForce)
		hn := &h.names[q.name]
		if q.want != "" || e.Hold != q.target {
			w.violation(int(q.name), "force_release ended hold %d; it was to find %d (%q)", e.Hold, q.target, q.want)
		}
		if hn.hold.state == live && hn.hold.num == e.Hold {
			w.violation(int(q.name), "hold %d was forced, and its holder was not told", e.Hold)
		}
		if hn.hold.num == e.Hold {
			w.endHold(h, int(q.name))
		}
	case locktable.Lost:
		if slot := e.Session & 0xff; h.keeper.session(e.Session) != nil && (h.sessions[slot].id != e.Session || !h.sessions[slot].open) {
			// Its client is dead, of which its sidecar did not live to keep all.
			for n := range w.plan.names {
				if c := &h.names[n].hold; c.num == e.Hold && c.state == stale {
					w.endHold(h, n)
				}
			}
			break
		}
		s := w.sessionOf(h, e)
		w.lost(h, s, e, s.link == attached || s.link == claiming && (e.Was || e.Reason == protocol.Forgotten))
	case locktable.Claimed:
		w.claimed(h, e)
	case locktable.Confirmed:
		w.confirmation(h, e)
	case locktable.Closed:
		h.keeper.strike(e.Session)
		w.check.met[closedInSteps] += btoi(w.plan.table.MaxWork > 0 && h.closing > 1)
		h.closing--
	case locktable.Lease:
		w.leased(h, e)
	case locktable.Redis:
		w.asked(h, e.Op)
	case locktable.Subscribe:
		n := nameIndex(e.Name)
		if h.names[n].want {
			w.violation(n, "host %d subscribes twice", h.index)
		}
		w.subscribe(h, n)
	case locktable.Unsubscribe:
		n := nameIndex(e.Name)
		if !h.names[n].want {
			w.violation(n, "host %d unsubscribes from what it is not subscribed to", h.index)
		}
		w.unsubscribe(h, n)
	default:
		w.violation(-1, "effect of kind %d", e.Kind)
	}
}

func (s *session) find(id uint64, kind requestKind) int {
	for i := range s.pend {
		if s.pend[i].id == id && s.pend[i].kind == kind {
			return i
		}
	}
	return -1
}

func (w *world) sessionOf(h *host, e *locktable.Effect) *session {
	slot := int(e.Session & 0xff)
	if slot >= len(h.sessions) || h.sessions[slot].id != e.Session || !h.sessions[slot].open {
		w.violation(-1, "host %d speaks to session %d, which is closed", h.index, e.Session)
	}
	return &h.sessions[slot]
}

// answers takes the request that e answers from those that wait for an answer.
func (w *world) answers(h *host, e *locktable.Effect, kinds ...requestKind) pending {
	s := w.sessionOf(h, e)
	if s.detached || s.link != attached {
		w.violation(-1, "host %d answers session %d, which is not there", h.index, e.Session)
	}
	for _, kind := range kinds {
		if i := s.find(e.ID, kind); i >= 0 {
			q := s.pend[i]
			s.pend = append(s.pend[:i], s.pend[i+1:]...)
			if kind == reqAcquire {
				w.pendings--
				h.tries -= btoi(q.acquire.WaitMS == 0)
			}
			return q
		}
	}
	w.violation(-1, "host %d answers request %d of session %d, which is not waiting for that", h.index, e.ID, e.Session)
	panic("unreachable")
}

func (w *world) granted(h *host, e *locktable.Effect) {
	s := w.sessionOf(h, e)
	q := w.answers(h, e, reqAcquire)
	n := int(q.name)
	hn := &h.names[n]
	c := &hn.hold
	now := h.clock(w.now)
	if e.Hold == c.num && c.state == live {
		if c.session != s.id || c.owner == 0 || q.acquire.Owner != c.owner || q.acquire.NotReentrant {
			w.violation(n, "two owners: session %d got hold %d of session %d", s.id, e.Hold, c.session)
		}
		if e.Token != c.token || e.Count != c.count+1 {
			w.violation(n, "re-entry into hold %d: token %d and count %d, want %d and %d", e.Hold, e.Token, e.Count, c.token, c.count+1)
		}
		if now >= c.told {
			w.violation(n, "re-entry into hold %d, whose deadline has passed", c.num)
		}
		c.count++
		w.check.met[reEntry]++
		c.told = max(c.told, e.Deadline)
		w.cover(h, n)
		return
	}
	for i := range h.sessions {
		for j := range h.sessions[i].pend {
			if p := &h.sessions[i].pend[j]; p.kind == reqAcquire && p.name == q.name && p.order < q.order {
				w.violation(n, "session %d was granted request %d out of turn: session %d's request %d came before", s.id, q.id, h.sessions[i].id, p.id)
			}
		}
	}
	if c.believed() && !c.over(now) || c.state == live || hn.protected(now) {
		w.violation(n, "two owners: hold %d of session %d begins while host %d has hold %d of session %d until %d, and it is %d",
			e.Hold, s.id, h.index, c.num, c.session, c.end(), now)
	}
	for _, g := range w.hosts {
		other := &g.names[n]
		if g == h || !other.protected(g.clock(w.now)) {
			continue
		}
		if other.excuse >= g.worldTime(other.hold.end()) || hn.excuse > w.now {
			w.check.met[excusedOverlap]++
			continue
		}
		w.violation(n, "two owners: hold %d on host %d begins while host %d has hold %d until %s",
			e.Hold, h.index, g.index, other.hold.num, clockString(g.worldTime(other.hold.end())))
	}
	if e.Hold <= c.num || e.Count != 1 || h.used[e.Hold] {
		w.violation(n, "a first entry with hold %d and count %d, after hold %d", e.Hold, e.Count, c.num)
	}
	h.used[e.Hold] = true
	if e.Deadline <= now {
		w.violation(n, "hold %d is granted with a deadline that has passed", e.Hold)
	}
	lease := q.acquire.LeaseMS * ms
	if lease > 0 && e.Deadline-now > lease {
		w.violation(n, "hold %d of a fixed lease of %s is granted for longer than that", e.Hold, time.Duration(lease))
	}
	if lease == 0 {
		lease = h.lease
	}
	if e.Deadline-now < lease/3 {
		w.violation(n, "hold %d with a lease of %s is granted for only %s", e.Hold, time.Duration(lease), time.Duration(e.Deadline-now))
	}
	w.checkToken(h, n, e.Token)
	w.checkHandoff(h, n, now)
	w.checkQuiet(h, n, now)
	hn.stoodAt = 0
	*c = hold{
		state: live, num: e.Hold, token: e.Token, count: 1, owner: q.acquire.Owner, session: s.id,
		fixed: q.acquire.LeaseMS > 0, granted: now, told: e.Deadline, confirmed: e.Deadline, earlier: e.Deadline, confirmedAt: now, crash: q.acquire.CrashDelayMS * ms,
	}
	if m := q.acquire.MaxHoldMS; m > 0 {
		c.maxEnd = now + m*ms
	}
	if e.End != c.maxEnd {
		w.violation(n, "hold %d is told to end at %d, its max_hold ends at %d", e.Hold, e.End, c.maxEnd)
	}
	w.lives++
	w.check.met[firstEntry]++
	w.check.met[handoff] += btoi(w.redis.names[n].key.Num != e.Hold)
	w.cover(h, n)
	holds := 0
	for i := range h.names {
		holds += btoi(h.names[i].hold.state == live && h.names[i].hold.session == s.id)
	}
	if limit := w.plan.table.MaxHolds; limit > 0 && holds > limit {
		w.violation(n, "session %d has %d holds; the limit is %d", s.id, holds, limit)
	}
	if w.phase != stormy {
		w.schedule(h, s, w.pause())
	}
}

// checkToken: a token comes from a Take of this host, is used once, and is larger
// than all before, unless it was drawn before Redis lost something.
func (w *world) checkToken(h *host, n int, token uint64) {
	hn := &h.names[n]
	name := &w.redis.names[n]
	for i := range hn.ranges {
		r := &hn.ranges[i]
		if token < r.next || token > r.last {
			continue
		}
		r.next = token + 1
		if r.drawnAt < name.fellAt {
			return
		}
		// Another host that knew of no larger one may have made the counter anew: see
		// checkDraw.
		if token <= hn.lastSeen && name.fellAt <= hn.lastSeenAt {
			w.violation(n, "host %d grants token %d after %d", h.index, token, hn.lastSeen)
		}
		hn.lastSeen, hn.lastSeenAt = token, r.drawnAt
		if token <= name.granted && r.drawnAt > name.lostAt {
			w.violation(n, "token %d after %d", token, name.granted)
		}
		name.granted = max(name.granted, token)
		return
	}
	w.violation(n, "token %d was used before or never drawn by host %d", token, h.index)
}

// checkHandoff: while the table knows that others wait, a lock passes between
// local owners no more often and no longer than it may.
func (w *world) checkHandoff(h *host, n int, now int64) {
	hn := &h.names[n]
	if hn.contendedAt == 0 || !h.up { // while Redis is away nobody else could get it
		return
	}
	budget, limit := 64, 50*ms
	if b := w.plan.table.HandoffBudget; b > 0 {
		budget = b
	}
	if t := w.plan.table.HandoffTime; t > 0 {
		limit = int64(t)
	}
	if hn.handoffs++; hn.handoffs > budget || now-hn.contendedAt > limit {
		w.violation(n, "host %d handed the lock over %d times in %s while others wait", h.index, hn.handoffs, time.Duration(now-hn.contendedAt))
	}
}

// checkQuiet: a lock does not pass between local owners for long without a moment in
// which another program could take it, whether or not one is known to want it.
func (w *world) checkQuiet(h *host, n int, now int64) {
	hn := &h.names[n]
	if hn.runs == 0 {
		hn.runSince = now
	}
	if hn.runs++; hn.runs > 2 && h.up && now-hn.runSince >= quietTime {
		w.violation(n, "host %d has handed the lock over %d times in %s, and never left it free", h.index, hn.runs, time.Duration(now-hn.runSince))
	}
}

// checkPause: a lock that is given back although local clients wait stays free for a
// moment.
func (w *world) checkPause(h *host, n int, op locktable.Op, now int64) {
	hn := &h.names[n]
	if op.Kind == locktable.Drop {
		hn.pausing = hn.runs > 1 && hn.contendedAt == 0 && w.someoneWaits(h, n, now)
		hn.pauseSince = now
		return
	}
	if hn.pausing && w.someoneWaits(h, n, hn.pauseSince) && now < hn.droppedAt+quietPause && !w.triesFirst(h, n) {
		w.violation(n, "host %d gave the lock back for a moment, and takes it %s later", h.index, time.Duration(now-hn.droppedAt))
	}
	w.check.met[pausedQuietly] += btoi(hn.pausing)
	hn.pausing = false
}

// triesFirst tells whether the oldest request for the lock here will not wait.
func (w *world) triesFirst(h *host, n int) bool {
	var first *pending
	for i := range h.sessions {
		for j := range h.sessions[i].pend {
			if q := &h.sessions[i].pend[j]; q.kind == reqAcquire && int(q.name) == n && (first == nil || q.order < first.order) {
				first = q
			}
		}
	}
	return first != nil && !first.waits(h.clock(w.now))
}

// waits tells whether an acquire waits for more than Redis's answer.
func (q *pending) waits(now int64) bool {
	return q.acquire.WaitMS == protocol.Forever || now < q.arrived+q.acquire.WaitMS*ms
}

// latest is when an acquire that does not wait forever must have been answered.
func (q *pending) latest() int64 { return q.arrived + max(q.acquire.WaitMS*ms, tryWithin) }

// silence is how long Redis has answered nothing to a host that waits for an answer.
func (h *host) silence(now int64) int64 {
	if h.owed == 0 {
		return 0
	}
	return now - h.owedSince
}

// endRuns: a lock that nobody here waits for will be given back when it is released.
func (w *world) endRuns(h *host) {
	for n := range w.plan.names {
		if hn := &h.names[n]; hn.runs > 0 && !w.someoneWaits(h, n, h.clock(w.now)) {
			hn.runs = 0
		}
	}
}

// confirmation judges the answer to a confirm: Redis has no hold of this host that ended.
func (w *world) confirmation(h *host, e *locktable.Effect) {
	q := w.answers(h, e, reqConfirm)
	n := int(q.name)
	w.expire(n)
	k := &w.redis.names[n].key
	if int(k.Owner) != h.index || w.redis.names[n].ghost {
		w.check.met[confirmedFree]++
		return
	}
	r := h.keeper.find(n) // a grant of the same step may have been lost with the process
	if c := &h.names[n].hold; c.state == none && (!h.dying || r == nil || r.Hold.Num == 0) {
		w.violation(n, "host %d confirms that its releases are executed; Redis has %s", h.index, keyString(*k))
	}
	w.check.met[confirmedTaken]++
}

// noteMessage is called when a message reaches a host. If another program has deleted
// the key of a hold there, its holder is to be notified soon.
func (w *world) noteMessage(h *host, n int) {
	hn := &h.names[n]
	w.expire(n)
	c := &hn.hold
	if c.state != live || !hn.want || int(w.redis.names[n].key.Owner) == h.index || hn.lookedFor == c.num || w.now <= hn.droppedBy {
		return
	}
	hn.lookedFor, hn.lookedBy = c.num, w.now+10*ms+4*w.slowest+2*eps
}

// checkLooked finds a hold that is gone in Redis, of which its host could know.
func (w *world) checkLooked(h *host, n int) {
	hn := &h.names[n]
	if hn.lookedFor == 0 {
		return
	}
	switch c := &hn.hold; {
	case c.num != hn.lookedFor || c.state != live:
		w.check.met[lookedInto]++
		hn.lookedFor = 0
	case w.now <= hn.lookedBy:
	case !h.up || h.conn.dead || h.conn.late || w.now-max(h.trouble, hn.trouble) < sec || w.plan.slowOps > 0 || int(w.redis.names[n].key.Owner) == h.index:
		hn.lookedFor = 0 // it could not, or has asserted the hold
	default:
		w.violation(n, "hold %d of session %d on host %d is gone in Redis; a message came %s ago, and nothing was looked into",
			c.num, c.session, h.index, time.Duration(w.now-hn.lookedBy))
	}
}

func (w *world) endHold(h *host, n int) {
	c := &h.names[n].hold
	if c.believed() {
		w.lives--
		s := &h.sessions[c.session&0xff]
		s.retire(c.num)
		s.endedAt = w.now
	}
	c.state = none
	h.names[n].endedAt = w.now
}

func (w *world) released(h *host, e *locktable.Effect) {
	q := w.answers(h, e, reqRelease)
	n := int(q.name)
	if q.want != "" {
		w.violation(n, "the release of hold %d succeeded, though the session does not have it", q.target)
	}
	if e.Count != q.count {
		w.violation(n, "the release of hold %d leaves %d entries, want %d", q.target, e.Count, q.count)
	}
	if !q.either {
		return
	}
	c := &h.names[n].hold
	if c.state != live || c.num != q.target {
		w.violation(n, "hold %d is answered as released after it was lost", q.target)
	}
	if c.count--; c.count == 0 {
		w.endHold(h, n)
	}
}

func (w *world) refused(h *host, e *locktable.Effect) {
	s := w.sessionOf(h, e)
	q := w.answers(h, e, reqAcquire, reqRelease, reqForce, reqConfirm)
	n := int(q.name)
	if e.Msg == "" || len(e.Msg) > protocol.MaxMessage {
		w.violation(n, "a refusal with a message of %d bytes", len(e.Msg))
	}
	if q.kind == reqConfirm {
		if e.Code == protocol.Denied && w.now-h.names[n].deniedAt > eps || e.Code != protocol.Denied && e.Code != protocol.Limit {
			w.violation(n, "confirm %d of session %d is refused with %s", q.id, s.id, e.Code)
		}
		return
	}
	if q.kind != reqAcquire {
		if e.Code != protocol.NotHeld {
			w.violation(n, "request %d is refused with %s", q.id, e.Code)
		}
		c := &h.names[max(n, 0)].hold
		switch {
		case q.want == protocol.NotHeld:
		case !q.either:
			w.violation(n, "hold %d is said not to be held", q.target)
		case c.state == live && c.num == q.target:
			w.violation(n, "hold %d is said not to be held, and its holder was not told that it is lost", q.target)
		}
		return
	}
	hn := &h.names[n]
	now := h.clock(w.now)
	due := q.arrived + q.acquire.WaitMS*ms
	w.check.refused[e.Code]++
	switch e.Code {
	case protocol.Timeout:
		inTheWay := q.ahead || w.occupied(h, n, q.order) || hn.yielding || hn.listeners != 0 || hn.mayYield
		silent := h.up && h.silence(now) >= tryWithin
		switch {
		case q.waits(now):
			w.violation(n, "request %d of session %d timed out %s early", q.id, s.id, time.Duration(due-now))
		case !inTheWay && hn.last != locktable.Other:
			w.violation(n, "request %d of session %d timed out, and no other request was in its way", q.id, s.id)
		case !inTheWay && now < q.arrived+tryWithin && hn.otherAsked < q.arrived:
			w.violation(n, "request %d of session %d timed out before Redis was asked for it", q.id, s.id)
		case silent && hn.hold.state == none && hn.otherAsked < q.arrived:
			w.violation(n, "request %d of session %d timed out, and Redis has been silent for %s", q.id, s.id, time.Duration(h.silence(now)))
		}
	case protocol.Unavailable:
		if q.waits(now) {
			w.violation(n, "request %d of session %d was unavailable too early", q.id, s.id)
		}
		silent := h.silence(now) >= tryWithin
		if hn.inflight >= 0 {
			silent = silent || now >= q.latest() || now-h.clock(w.ops[hn.inflight].begun) >= tryWithin
		}
		if h.up && !h.conn.dead && hn.last < locktable.Unsent && w.now-h.trouble > sec && !silent {
			w.violation(n, "request %d of session %d was unavailable, though Redis answers", q.id, s.id)
		}
		w.check.met[foundSilent] += btoi(silent && h.up && !h.conn.dead)
	case protocol.Denied:
		if w.now-hn.deniedAt > eps {
			w.violation(n, "request %d of session %d was denied, though Redis denied nothing", q.id, s.id)
		}
	case protocol.Deadlock:
		if !q.mayDeadlock {
			w.violation(n, "request %d of session %d was told of a deadlock where there is none", q.id, s.id)
		}
	case protocol.Limit:
		w.checkLimit(h, s, n)
	case protocol.Canceled:
		found := false
		for i := range s.pend {
			if p := &s.pend[i]; p.kind == reqCancel && p.target == q.id {
				p.canceled, found = true, true
			}
		}
		if !found {
			w.violation(n, "request %d of session %d was canceled by nobody", q.id, s.id)
		}
	default:
		w.violation(n, "request %d of session %d was refused with %s", q.id, s.id, e.Code)
	}
}

// occupied tells whether somebody on the host has the lock, or stands before a
// request in its queue.
func (w *world) occupied(h *host, n int, order uint64) bool {
	return h.names[n].hold.state != none || h.waitsBefore(n, order)
}

// waitsBefore tells whether a request for the lock from before that one is unanswered.
func (h *host) waitsBefore(n int, order uint64) bool {
	for i := range h.sessions {
		for j := range h.sessions[i].pend {
			if p := &h.sessions[i].pend[j]; p.kind == reqAcquire && int(p.name) == n && p.order < order {
				return true
			}
		}
	}
	return false
}

// atRest tells whether a table has nothing to do with the lock any more, and need not
// remember it, unless its Redis was away.
func (w *world) atRest(h *host, n int, order uint64) bool {
	hn := &h.names[n]
	held := hn.hold.state != none && h.clock(w.now) < hn.hold.end()
	return !held && hn.inflight < 0 && hn.ahead < 0 && !hn.want && !h.waitsBefore(n, order)
}

func (w *world) checkLimit(h *host, s *session, n int) {
	t := &w.plan.table
	if w.plan.table.MaxWork > 0 {
		return // what sessions that are over leave behind still counts
	}
	if t.MaxHolds == 0 {
		w.violation(n, "a limit was met where none is near")
	}
	holds, waiters, confirms, all := 0, 0, 0, 0
	for i := range h.names {
		holds += btoi(h.names[i].hold.state != none && h.names[i].hold.session == s.id)
	}
	for i := range s.pend {
		waiters += btoi(s.pend[i].kind == reqAcquire)
		confirms += btoi(s.pend[i].kind == reqConfirm)
	}
	for i := range h.sessions {
		for j := range h.sessions[i].pend {
			all += btoi(h.sessions[i].pend[j].kind == reqAcquire || h.sessions[i].pend[j].kind == reqConfirm)
		}
	}
	locks := 0
	h.table.List(h.clock(w.now), 0, func(protocol.LockRow) bool { locks++; return true })
	share := locktable.Share(t.MaxLocks)
	if holds < t.MaxHolds && waiters+confirms < t.MaxWaiters && locks < share && all < share && !w.plan.confirms {
		w.violation(n, "a limit was met by session %d with %d holds, %d waiters and %d confirms, among %d locks", s.id, holds, waiters, confirms, locks)
	}
}

// lost judges the end of a hold that nobody released. heard: its client is told.
func (w *world) lost(h *host, s *session, e *locktable.Effect, heard bool) {
	if e.Reason == protocol.Forgotten {
		w.forgotten(h, s, e)
		return
	}
	n := -1
	for i := range h.names {
		if c := &h.names[i].hold; c.num == e.Hold && c.session == s.id && c.state != none && c.state != orphan {
			n = i
		}
	}
	if n < 0 {
		w.violation(-1, "session %d is told that it lost hold %d, which it does not have", s.id, e.Hold)
	}
	hn := &h.names[n]
	c := &hn.hold
	now := h.clock(w.now)
	w.check.lost[e.Reason]++
	if c.state == stale { // it may know of it longer than its client did
		c.state = none
		hn.endedAt = w.now
		w.givenUp(h, n)
		return
	}
	early := false
	right := false
	switch e.Reason {
	case protocol.Expired:
		right = now >= c.told
		// Redis refuses to renew: the client is told early, and nobody else gets
		// the lock before the deadline.
		early = !right && !c.fixed && hn.trouble > 0 && w.now-hn.trouble < h.longest &&
			(c.told-now <= h.lease/4 || c.restored && h.longest > h.lease)
		slow := !h.up || h.conn.dead || hn.inflight >= 0 && w.now-w.ops[hn.inflight].begun > h.lease/10
		if right && c.believed() && !c.fixed && !slow && w.now-max(h.trouble, hn.trouble) > h.lease+h.lease/4+eps {
			w.violation(n, "watchdog hold %d of session %d expired, though nothing kept its host from renewing it", c.num, s.id)
		}
		// A session's watchdog holds are as good as the worst of them, up to its end.
		if confirmed := w.confirmed(h, s, c.told); right && c.state == live && !c.fixed &&
			confirmed-h.lease/16 > now && w.now-s.endedAt > eps {
			w.violation(n, "watchdog hold %d of session %d expired, though all that the session holds is confirmed until %s",
				c.num, s.id, clockString(h.worldTime(confirmed)))
		}
	case protocol.MaxHold:
		right = c.maxEnd > 0 && now >= c.maxEnd
	case protocol.Deleted:
		right = hn.last == locktable.Missing
		if w.redis.names[n].lostAt <= h.dataLostAt && c.granted < h.clock(h.dataLostAt) {
			w.violation(n, "hold %d of session %d was deleted with Redis's data, and not asserted again", c.num, s.id)
		}
	case protocol.Stolen:
		right = hn.last == locktable.Other || hn.last == locktable.NotALock
		w.check.met[foundAlien] += btoi(w.redis.names[n].overwritten)
		if e.Msg == "" {
			w.violation(n, "hold %d is stolen, and what was found is not said", c.num)
		}
	case protocol.ByForce:
		right = w.check.forcing == c.num
	}
	if !right && !early {
		w.violation(n, "session %d lost hold %d for the wrong reason: %s (it is %d, the deadline is %d)", s.id, c.num, e.Reason, now, c.told)
	}
	if c.believed() && !s.detached {
		w.hears(h, s, n, e, heard)
	}
	w.endHold(h, n)
	switch {
	case early:
		c.state, c.fixed, c.keepUntil = orphan, true, c.told
	case h.life > 0:
		w.givenUp(h, n)
	}
}

// givenUp looks whether a hold that is lost by its client's clock was given up early by
// a table that knows of more than its client, and keeps it until then.
func (w *world) givenUp(h *host, n int) {
	c := &h.names[n].hold
	if row, _ := h.table.Info(h.clock(w.now), lockNames[n]); row.Hold == c.num && row.Orphan {
		c.state, c.fixed, c.told, c.keepUntil = orphan, true, row.DeadlineNS, row.DeadlineNS
	}
}

// confirmed is until when all watchdog holds of a session are, as its table knew
// before that time.
func (w *world) confirmed(h *host, s *session, before int64) int64 {
	until := int64(1<<63 - 1)
	for n := range w.plan.names {
		if c := &h.names[n].hold; c.state == live && c.session == s.id && !c.fixed {
			if c.confirmedAt < before {
				until = min(until, c.confirmed)
			} else {
				until = min(until, c.earlier)
			}
		}
	}
	return until
}

func (w *world) leased(h *host, e *locktable.Effect) {
	s := w.sessionOf(h, e)
	if s.detached {
		w.violation(-1, "a lease event to session %d, which is detached", s.id)
	}
	switch s.link {
	case absent:
		return // nobody reads it
	case claiming:
		for i := range s.beliefs {
			if b := &s.beliefs[i]; b.gone && !b.hold.fixed && e.Deadline > b.hold.told {
				w.violation(int(b.name), "a lease event has session %d believe for longer in hold %d, which it has lost", s.id, b.hold.num)
			}
		}
	}
	more, less := false, false
	for n := range w.plan.names {
		c := &h.names[n].hold
		if !c.believed() || c.session != s.id || c.fixed {
			continue
		}
		more = more || e.Deadline < c.told
		if e.Deadline <= c.told {
			continue
		}
		less = true
		now := h.clock(w.now)
		if c.state == away && c.over(now) {
			continue // it will be released
		}
		if now > c.told {
			w.violation(n, "a lease event comes %s after the deadline of hold %d: its client has given it up", time.Duration(now-c.told), c.num)
		}
		c.told = e.Deadline
		w.cover(h, n)
	}
	w.check.met[toldLess] += btoi(more && less)
}

// asked judges an operation before the store gets it.
func (w *world) asked(h *host, op locktable.Op) {
	n := nameIndex(op.Name)
	hn := &h.names[n]
	c := &hn.hold
	now := h.clock(w.now)
	if !h.up {
		w.violation(n, "host %d asks Redis, which is down", h.index)
	}
	if hn.inflight >= 0 || hn.ahead >= 0 {
		w.chases(h, n, op)
	} else if op.Kind == locktable.Take {
		hn.chase = 0
	}
	w.check.met[keptForOrphan] += btoi(c.state == orphan && op.Kind == locktable.Keep)
	w.check.met[renewedForAbsent] += btoi(c.state == away && op.Kind == locktable.Keep)
	w.check.met[afterDataLoss] += btoi(c.state == live && op.Kind == locktable.Take && !op.Held && op.Num == c.num)
	if h.keeper.whole {
		if r := h.keeper.find(n); r == nil || r.Top < op.Num || h.keeper.last < op.Num {
			w.violation(n, "Redis is asked for %s, and host %d keeps %+v", opString(op), h.index, r)
		}
	}
	if c.state == orphan && op.Kind != locktable.Drop {
		// Nobody believes in it, and the lease may be shorter than it was.
		until := now + int64(op.LeaseMS)*ms*99/100 - 2*ms
		c.told, c.confirmed = min(c.told, until), min(c.confirmed, until)
	}
	if op.Count == 0 || op.Kind != locktable.Drop && (op.LeaseMS == 0) != (op.Kind == locktable.Check) {
		w.violation(n, "an operation without a count or a lease: %s", opString(op))
	}
	if hn.protected(now) {
		switch {
		case op.Kind == locktable.Drop:
			w.violation(n, "hold %d is given up early: %s", c.num, opString(op))
		case op.Num > c.num:
			w.violation(n, "hold %d is replaced while it lasts: %s", c.num, opString(op))
		case c.state == unattended && op.Kind == locktable.Keep && op.Count == c.count && now-c.detachedAt > h.longest && !hn.unconfirmed:
			w.violation(n, "hold %d of a detached session is renewed: %s", c.num, opString(op))
		}
	}
	if op.Kind == locktable.Drop || op.Kind == locktable.Take && !op.Held {
		w.checkPause(h, n, op, now)
		hn.runs = 0
	}
	switch {
	case op.Kind == locktable.Drop:
		hn.droppedBy = w.now + sec + eps
		hn.yielding = hn.listeners != 0 || hn.contendedAt != 0
		if hn.stoodAt == 0 || !w.someoneWaits(h, n, hn.stoodAt) {
			hn.stoodAt = 0
			if hn.contendedAt != 0 && w.someoneWaits(h, n, now) {
				hn.stoodAt = now
			}
		}
		hn.contendedAt, hn.handoffs = 0, 0
	case op.Kind == locktable.Take && !op.Held:
		if now < hn.droppedAt+standBack && hn.stoodAt != 0 && w.someoneWaits(h, n, hn.stoodAt) {
			w.violation(n, "host %d gave the lock back for others, and does not stand back", h.index)
		}
		hn.yielding, hn.stoodAt = false, 0
	}
	w.do(h, op)
}

// chases judges an operation that is sent while another one is in flight: only a Take
// may be, behind one Drop, if nobody else is known to wait, and not for ever.
func (w *world) chases(h *host, n int, op locktable.Op) {
	hn := &h.names[n]
	if hn.ahead >= 0 || w.ops[hn.inflight].op.Kind != locktable.Drop || op.Kind != locktable.Take || op.Held {
		w.violation(n, "host %d has two operations in flight", h.index)
	}
	if op.Num <= w.ops[hn.inflight].op.Num {
		w.violation(n, "the release before it would undo %s", opString(op))
	}
	budget := 64
	if b := w.plan.table.HandoffBudget; b > 0 {
		budget = b
	}
	if hn.chase++; hn.chase > budget || hn.othersListen() {
		w.violation(n, "host %d takes what it gives back, for the %dth time in a row; %d listen", h.index, hn.chase, hn.listeners)
	}
	hn.ahead, hn.inflight = hn.inflight, -1
	w.check.met[chased]++
}

// ---- what Redis does

// changed follows every change of a key.
func (w *world) changed(n int) {
	for _, h := range w.hosts {
		w.cover(h, n)
	}
}

// cover: whoever believes in a hold, its host's key lives as long.
func (w *world) cover(h *host, n int) {
	hn := &h.names[n]
	if !hn.protected(h.clock(w.now)) {
		return
	}
	end := h.worldTime(hn.hold.end())
	k := &w.redis.names[n].key
	if int(k.Owner) == h.index && k.ExpireAt >= end || hn.excuse >= end {
		return
	}
	w.violation(n, "hold %d on host %d is believed in until %s; the key is %s", hn.hold.num, h.index, clockString(end), keyString(*k))
}

// checkResult notes what a table is about to be told.
func (w *world) checkResult(h *host, o *operation) {
	n := int(o.name)
	hn := &h.names[n]
	r := &o.res
	hn.last, hn.lastKind, hn.answeredAt = r.Outcome, r.Kind, h.clock(w.now)
	if r.Outcome == locktable.Refused || r.Outcome == locktable.NotALock {
		hn.deniedAt = w.now
	}
	if r.Outcome == locktable.Refused {
		if r.Msg != "WRONGTYPE" { // a counter that cannot be drawn from is no reason not to renew
			hn.trouble = w.now
		}
	} else if r.Outcome >= locktable.Unsent || w.now-o.begun > h.lease/10 {
		h.trouble = w.now
	}
	if (r.Outcome == locktable.Done || r.Outcome == locktable.Other) && r.Listeners != locktable.Uncounted {
		hn.listeners, hn.stale = r.Listeners, false
	}
	if r.Outcome == locktable.Other {
		hn.otherAsked = h.clock(o.begun)
	}
	if r.Outcome == locktable.Other && (hn.listeners == 0 || hn.listeners == 1 && hn.acked) {
		hn.rivalUntil = h.clock(w.now) + rivalMemory
	}
	switch r.Outcome {
	case locktable.Done:
		if r.Kind == locktable.Drop {
			if hn.ahead < 0 || o != &w.ops[hn.ahead] { // else it was taken back at once
				hn.droppedAt = h.clock(w.now)
			}
			break
		}
		if c := &hn.hold; c.num == o.op.Num && r.Kind != locktable.Check && hn.protected(h.clock(w.now)) {
			lease := int64(o.op.LeaseMS) * ms
			if !c.fixed {
				lease = min(lease, h.lease) // what is above it covers what was told before
			}
			c.earlier, c.confirmedAt = c.confirmed, h.clock(w.now)
			c.confirmed = r.Sent + lease - lease/100 - 2*ms
		}
		if r.Kind != locktable.Take {
			break
		}
		w.check.met[grantedForNone] += btoi(!w.occupied(h, n, math.MaxUint64))
		if o.op.Reserve > 0 {
			hn.ranges[hn.rangeAt] = tokenRange{r.Token - uint64(o.op.Reserve) + 1, r.Token, o.at}
			hn.rangeAt = (hn.rangeAt + 1) % len(hn.ranges)
		}
		hn.mayYield = hn.othersListen() || h.clock(w.now) < hn.rivalUntil
		if hn.mayYield || hn.listeners > 0 {
			hn.runs = 0 // a run may count anew
		}
		switch others := hn.othersListen(); {
		case !others:
			hn.contendedAt, hn.handoffs = 0, 0
		case hn.contendedAt == 0:
			hn.contendedAt = h.clock(w.now)
		}
	case locktable.Missing, locktable.Other, locktable.NotALock:
		if r.Kind == locktable.Drop {
			break // the Take after it says what became of the key
		}
		w.check.knows[h.index] |= 1 << n
		hn.ranges = [len(hn.ranges)]tokenRange{}
		if hn.hold.state == orphan { // there is nobody to be told
			w.endHold(h, n)
		}
		hn.contendedAt, hn.handoffs = 0, 0
	case locktable.Refused:
		w.check.met[drawRefused] += btoi(r.Msg == "WRONGTYPE" && hn.hold.state == live)
		if r.Kind == locktable.Drop {
			w.redis.names[n].ghost = true
		}
	}
}

// told ends the excuses of losses that the host has heard of.
func (w *world) told(h *host) {
	for n := range w.plan.names {
		if w.check.knows[h.index]&(1<<n) == 0 {
			continue
		}
		h.names[n].excuse = 0
	}
	w.check.knows[h.index] = 0
}

// checkDraw: whatever Redis has forgotten, it never gives a token twice, nor one
// that is smaller than any before.
func (w *world) checkDraw(n int, first, last, floor uint64) {
	name := &w.redis.names[n]
	if first <= name.drawn {
		// The host of this draw has seen none of those that are larger, and Redis, whose
		// clock was set back, has forgotten them.
		if !name.astray || !w.redis.fell || floor >= name.drawn {
			w.violation(n, "Redis gives token %d after %d to a host that knows of %d", first, name.drawn, floor)
		}
		w.check.met[tokensExcused]++
		w.sharers(n, func(n int) {
			w.redis.names[n].granted, w.redis.names[n].fellAt = 0, w.now
		})
	}
	w.sharers(n, func(n int) {
		w.redis.names[n].drawn, w.redis.names[n].astray = last, false
	})
}

// longestDraw is how long a host may let others go first: where holds are long, those
// who listen are to ask 20 ms apart, on average, and who has just had the lock is to be
// thrice as late as the rest. The count of those who listen may have this host in it.
func (w *world) longestDraw() int64 {
	return int64(w.plan.hosts+w.plan.foreigners)*3*20*ms + 10*ms
}

// checkWakeUp is called when a Take gets a free key: had nobody noticed for long
// that it was free, though somebody waited who could have?
func (w *world) checkWakeUp(_ *host, n int) {
	name := &w.redis.names[n]
	longest := w.poll() + 6*w.slowest + 2*sec
	if w.lossless && !name.silent {
		longest = 16*w.slowest + 20*ms + 2*eps + w.longestDraw()
	}
	for _, g := range w.hosts {
		gn := &g.names[n]
		bound, since := longest, max(name.freedAt, g.trouble, gn.trouble, gn.endedAt)
		if gn.want && !gn.acked && gn.deafAt > 0 {
			bound = min(bound, 500*ms+6*w.slowest+sec)
			since = max(since, gn.deafAt)
		}
		if g.gone || g.stopping || g.frozen || !g.up || g.conn.dead || gn.hold.state != none || w.now-since <= bound {
			continue
		}
		for i := range g.sessions {
			for j := range g.sessions[i].pend {
				p := &g.sessions[i].pend[j]
				if p.kind == reqAcquire && int(p.name) == n && p.acquire.WaitMS != 0 && g.clock(w.now-bound) > p.arrived {
					w.violation(n, "lost wake-up: free since %s, session %d of host %d waits since %s, and nobody asked",
						clockString(name.freedAt), g.sessions[i].id, g.index, clockString(g.worldTime(p.arrived)))
				}
			}
		}
	}
}

// ---- requests

// checkArrival notes what must become of an acquire, before the table sees it.
func (w *world) checkArrival(h *host, s *session, q *pending) {
	n := int(q.name)
	q.ahead = w.occupied(h, n, q.order)
	if w.atRest(h, n, q.order) {
		h.names[n].stale = true
	}
	c := &h.names[n].hold
	if c.state == live && c.session == s.id && c.owner != 0 && c.owner == q.acquire.Owner && !q.acquire.NotReentrant {
		return
	}
	if q.acquire.Owner != 0 {
		q.mayDeadlock = w.circle(h, s, q.acquire.Owner, n, false, new(uint16))
		q.mustDeadlock = q.acquire.WaitMS != 0 && w.circle(h, s, q.acquire.Owner, n, true, new(uint16))
	}
}

// circle follows lock -> holder -> what the holder waits for, and tells whether
// that comes back to the newcomer. With certain it counts only holds that have not
// run out and waits that last.
func (w *world) circle(h *host, s *session, owner uint64, n int, certain bool, seen *uint16) bool {
	if *seen&(1<<n) != 0 {
		return false
	}
	*seen |= 1 << n
	hn := &h.names[n]
	c := &hn.hold
	if c.state != live || c.owner == 0 || certain && !(hn.protected(h.clock(w.now)) && (c.maxEnd == 0 || h.clock(w.now) < c.maxEnd)) {
		return false
	}
	if c.session == s.id && c.owner == owner {
		return true
	}
	holder := &h.sessions[c.session&0xff]
	for i := range holder.pend {
		p := &holder.pend[i]
		if p.kind != reqAcquire || p.acquire.Owner != c.owner || certain && p.acquire.WaitMS == 0 {
			continue
		}
		if w.circle(h, s, owner, int(p.name), certain, seen) {
			return true
		}
	}
	return false
}

// checkDeadlock is called when the table has taken an acquire.
func (w *world) checkDeadlock(h *host, s *session, id uint64) {
	i := s.find(id, reqAcquire)
	if i < 0 {
		return
	}
	q := &s.pend[i]
	if q.mustDeadlock {
		w.violation(int(q.name), "request %d of session %d closes a circle, and waits", id, s.id)
	}
	c := &h.names[q.name].hold
	if c.state == live && c.session == s.id && c.owner != 0 && c.owner == q.acquire.Owner && !q.acquire.NotReentrant {
		w.violation(int(q.name), "request %d of session %d is a re-entry, and waits", id, s.id)
	}
	waiters := 0
	for i := range s.pend {
		waiters += btoi(s.pend[i].kind == reqAcquire || s.pend[i].kind == reqConfirm)
	}
	if limit := w.plan.table.MaxWaiters; limit > 0 && waiters > limit {
		w.violation(int(q.name), "session %d has %d acquires and confirms waiting; the limit is %d", s.id, waiters, limit)
	}
}

// checkTries: a request that will not wait is there only while Redis is being asked,
// or before it is known whether it can be.
func (w *world) checkTries(h *host) {
	if !h.heard {
		return
	}
	for i := range h.sessions {
		s := &h.sessions[i]
		for j := range s.pend {
			if q := &s.pend[j]; q.kind == reqAcquire && q.acquire.WaitMS == 0 && h.names[q.name].inflight < 0 && h.names[q.name].ahead < 0 {
				w.violation(int(q.name), "request %d of session %d will not wait, and waits", q.id, s.id)
			}
		}
	}
}

// checkBack: when Redis is back, it is asked at once for whatever somebody waits for.
func (w *world) checkBack(h *host) {
	now := h.clock(w.now)
	for n := range w.plan.names {
		hn := &h.names[n]
		if hn.hold.state == none && hn.inflight < 0 && hn.ahead < 0 && now >= hn.droppedAt+standBack && w.someoneWaits(h, n, now) {
			w.violation(n, "Redis is back, and host %d does not ask", h.index)
		}
	}
}

// someoneWaits tells whether an acquire on the host waits for the lock since then.
func (w *world) someoneWaits(h *host, n int, since int64) bool {
	for i := range h.sessions {
		for j := range h.sessions[i].pend {
			if q := &h.sessions[i].pend[j]; q.kind == reqAcquire && int(q.name) == n && q.acquire.WaitMS != 0 && q.arrived <= since {
				return true
			}
		}
	}
	return false
}

func (w *world) checkRow(h *host, n int, row protocol.LockRow, ok bool) {
	hn := &h.names[n]
	c := &hn.hold
	now := h.clock(w.now)
	waiting := 0
	for i := range h.sessions {
		for j := range h.sessions[i].pend {
			waiting += btoi(h.sessions[i].pend[j].kind == reqAcquire && int(h.sessions[i].pend[j].name) == n)
		}
	}
	held := ok && row.State == protocol.StateHeld
	if w.plan.table.MaxWork > 0 { // the waiters of sessions that are over go in steps
		waiting = max(waiting, row.Waiting)
		if s := &h.sessions[row.Session&0xff]; held && (uint64(s.id) != row.Session || !s.open) {
			return // what is left of a session that has ended
		}
	}
	switch {
	case row.Waiting != waiting:
		w.violation(n, "host %d shows %d waiters; there are %d", h.index, row.Waiting, waiting)
	case hn.protected(now) && !held:
		w.violation(n, "host %d does not show hold %d", h.index, c.num)
	case held && c.state == none:
		w.violation(n, "host %d shows hold %d, which has ended", h.index, row.Hold)
	case held && (row.Hold != c.num || row.Token != c.token || row.Count < c.count || row.Owner != c.owner ||
		row.Count > c.count && c.state == live ||
		row.Session != uint64(c.session) || row.Orphan != (c.state == orphan)):
		w.violation(n, "host %d shows %+v; it is %+v", h.index, row, *c)
	}
}

// ---- time

// audit finds what should have happened and did not.
func (w *world) audit() {
	for _, h := range w.hosts {
		if !h.gone && !h.undrained && !h.frozen {
			w.givesUp(h)
		}
	}
	for _, h := range w.hosts {
		if h.gone || h.undrained || h.frozen || !h.asleep && h.wakeAt <= w.now {
			continue // it is about to do more
		}
		if err := h.table.Audit(); err != nil {
			w.violation(-1, "host %d: %v", h.index, err)
		}
		now := h.clock(w.now)
		for n := range w.plan.names {
			hn := &h.names[n]
			c := &hn.hold
			if c.state == live || c.state == away && !c.over(now) {
				h.keeper.has(n, c)
			}
			switch c.state {
			case live:
				if now > c.told+eps {
					w.violation(n, "session %d was not told that hold %d is lost; its deadline was %s ago", c.session, c.num, time.Duration(now-c.told))
				}
				if c.maxEnd > 0 && now > c.maxEnd+eps {
					w.violation(n, "hold %d has outlived its max_hold by %s", c.num, time.Duration(now-c.maxEnd))
				}
			case unattended:
				if now > max(c.told, c.detachedAt+h.longest)+eps {
					w.violation(n, "hold %d of a detached session does not end", c.num)
				}
			}
			w.checkMirror(h, n, now)
			w.checkLooked(h, n)
		}
		for i := range h.sessions {
			s := &h.sessions[i]
			for j := range s.pend {
				if q := &s.pend[j]; q.kind == reqAcquire && q.acquire.WaitMS >= 0 && now > q.latest()+eps {
					w.violation(int(q.name), "request %d of session %d has waited %s longer than it would", q.id, s.id, time.Duration(now-q.latest()))
				}
				if q := &s.pend[j]; q.kind != reqAcquire && q.kind != reqConfirm {
					w.violation(int(q.name), "request %d of session %d is not answered", q.id, s.id)
				}
			}
		}
	}
}

// givesUp has clients release what they stopped believing in by their own clock, while
// their table, which had told their sessions more before a restart, still has it.
func (w *world) givesUp(h *host) {
	for n := range w.plan.names {
		c := &h.names[n].hold
		if now := h.clock(w.now); c.state == live && c.restored && !h.stopping && now > c.told+eps {
			row, _ := h.table.Info(now, lockNames[n])
			if row.Hold == c.num && row.DeadlineNS > now && !row.Orphan {
				for range c.count {
					w.release(h, &h.sessions[c.session&0xff], n)
				}
			}
		}
	}
}

// checkMirror: a table at rest has told Redis how things are.
func (w *world) checkMirror(h *host, n int, now int64) {
	k := &w.redis.names[n].key
	hn := &h.names[n]
	if int(k.Owner) != h.index || w.now >= k.ExpireAt || w.redis.names[n].ghost || hn.inflight >= 0 || hn.ahead >= 0 ||
		!h.up || h.conn.dead || w.now-max(h.trouble, hn.trouble) < sec {
		return
	}
	c := &hn.hold
	if c.believed() && hn.protected(now) {
		// Of a handoff Redis hears a moment later, when the next tick has been noticed.
		if k.Num < c.num && now-max(c.granted, hn.answeredAt) < 5*ms+10*ms+eps {
			return
		}
		if k.Num != c.num || k.Count < c.count || k.Count > c.count && c.state == live {
			w.violation(n, "host %d has hold %d with count %d, tells nobody, and Redis has %s", h.index, c.num, c.count, keyString(*k))
		}
		return
	}
	if c.state == none {
		if row, ok := h.table.Info(now, lockNames[n]); !ok {
			w.violation(n, "host %d has forgotten that Redis has %s", h.index, keyString(*k))
		} else if row.State == protocol.StateFree && row.Waiting == 0 {
			w.violation(n, "host %d does nothing about %s", h.index, keyString(*k))
		}
	}
}

// stuck reports that the tail of a run does not come to its end.
func (w *world) stuck() {
	var b strings.Builder
	name := -1
	for _, h := range w.hosts {
		for i := range h.sessions {
			if s := &h.sessions[i]; s.link != attached {
				fmt.Fprintf(&b, "; session %d of host %d is not back", s.id, h.index)
			}
			for _, q := range h.sessions[i].pend {
				fmt.Fprintf(&b, "; session %d of host %d waits for %s", h.sessions[i].id, h.index, nameString(int(q.name)))
				name = int(q.name)
			}
		}
		for n := range h.names {
			if c := &h.names[n].hold; c.believed() {
				fmt.Fprintf(&b, "; session %d of host %d holds %s", c.session, h.index, nameString(n))
			}
		}
	}
	w.violation(name, "nothing is wrong any more, and still%s", b.String()[1:])
}

// checkEmpty: with all sessions gone, nothing is left of anything.
func (w *world) checkEmpty() {
	for _, h := range w.hosts {
		if h.left {
			continue
		}
		w.settle(h)
		h.keeper.checkEmpty()
		now := h.clock(w.now)
		h.table.List(now, 0, func(row protocol.LockRow) bool {
			w.violation(nameIndex(row.Name), "everybody has left host %d, and it still has %+v", h.index, row)
			return false
		})
		for n := range w.plan.names {
			if h.names[n].want {
				w.violation(n, "everybody has left host %d, and it is still subscribed", h.index)
			}
		}
		if n := h.table.Users(h.clock(w.now) + int64(time.Hour)); n != 0 {
			w.violation(-1, "everybody has left host %d, and its table counts for %d users", h.index, n)
		}
		if at, ok := h.table.Next(); ok {
			w.violation(-1, "everybody has left host %d, and its table wants to be woken in %s", h.index, time.Duration(at-now))
		}
	}
	for n := range w.plan.names {
		w.expire(n)
		if k := &w.redis.names[n].key; k.Owner >= 0 && int(k.Owner) < len(w.hosts) && !w.hosts[k.Owner].left {
			w.violation(n, "everybody has left, and Redis still has %s", keyString(*k))
		}
	}
}

// ---- words

type tracer struct {
	on    bool
	lines []traceLine
}

type traceLine struct {
	name int
	text string
}

func (t *tracer) add(w *world, name int, h *host, format string, args ...any) {
	who := "     "
	if h != nil {
		who = fmt.Sprintf("host%d", h.index)
	}
	t.lines = append(t.lines, traceLine{name, fmt.Sprintf("%7d %s %s %-6s  %s", w.steps, clockString(w.now), who, nameString(name), fmt.Sprintf(format, args...))})
}

func (t *tracer) effect(w *world, h *host, e *locktable.Effect) {
	name := -1
	if e.Name != "" {
		name = nameIndex(e.Name)
	}
	if slot := int(e.Session & 0xff); slot < len(h.sessions) && name < 0 {
		for i := range h.sessions[slot].pend {
			if h.sessions[slot].pend[i].id == e.ID {
				name = int(h.sessions[slot].pend[i].name)
			}
		}
	}
	switch e.Kind {
	case locktable.Granted:
		t.add(w, name, h, "  → s%d granted id=%d hold=%d token=%d count=%d until %s", e.Session, e.ID, e.Hold, e.Token, e.Count, clockString(h.worldTime(e.Deadline)))
	case locktable.Released:
		t.add(w, name, h, "  → s%d released id=%d count=%d", e.Session, e.ID, e.Count)
	case locktable.Refusal:
		t.add(w, name, h, "  → s%d refused id=%d %s: %s", e.Session, e.ID, e.Code, e.Msg)
	case locktable.Canceled:
		t.add(w, name, h, "  → s%d canceled id=%d %v", e.Session, e.ID, e.Was)
	case locktable.Forced:
		t.add(w, name, h, "  → s%d forced id=%d hold=%d", e.Session, e.ID, e.Hold)
	case locktable.Lost:
		t.add(w, name, h, "  → s%d lost hold=%d %s", e.Session, e.Hold, e.Reason)
	case locktable.Claimed:
		t.add(w, -1, h, "  → s%d claimed id=%d last=%v", e.Session, e.ID, e.Was)
	case locktable.Lease:
		t.add(w, -1, h, "  → s%d lease until %s", e.Session, clockString(h.worldTime(e.Deadline)))
	case locktable.Redis:
		t.add(w, nameIndex(e.Op.Name), h, "  → %s", opString(e.Op))
	case locktable.Subscribe:
		t.add(w, name, h, "  → subscribe")
	case locktable.Unsubscribe:
		t.add(w, name, h, "  → unsubscribe")
	}
}

func clockString(t int64) string {
	if t >= 1<<62 {
		return "for ever"
	}
	return fmt.Sprintf("%.6fs", float64(t)/float64(sec))
}

func nameString(n int) string {
	if n < 0 {
		return "-"
	}
	return lockNames[n]
}

var fields = func() (s [maxHosts + 2]string) {
	for i := range s {
		s[i] = fmt.Sprintf("uuid-%d:1", i)
	}
	return s
}()

func ownerField(owner redis.Owner) string {
	if owner >= foreignID {
		return fields[maxHosts+int(owner-foreignID)]
	}
	return fields[owner]
}

func opString(op locktable.Op) string {
	switch op.Kind {
	case locktable.Take:
		held := ""
		if op.Held {
			held = " held"
		}
		return fmt.Sprintf("take%s num=%d count=%d lease=%dms reserve=%d", held, op.Num, op.Count, op.LeaseMS, op.Reserve)
	case locktable.Keep:
		return fmt.Sprintf("keep num=%d count=%d lease=%dms", op.Num, op.Count, op.LeaseMS)
	case locktable.Check:
		return fmt.Sprintf("check num=%d", op.Num)
	case locktable.Drop:
		return fmt.Sprintf("drop num=%d", op.Num)
	}
	return fmt.Sprintf("op %d", op.Kind)
}

func resultString(r locktable.Result) string {
	what := [...]string{"done", "other", "missing", "differs", "not a lock", "unsent", "unknown", "refused", "busy"}[r.Outcome]
	if r.Outcome <= locktable.Other && r.Listeners != locktable.Uncounted {
		what += fmt.Sprintf(", %d listeners", r.Listeners)
	}
	switch {
	case r.Outcome == locktable.Done && r.Kind == locktable.Take:
		return fmt.Sprintf("%s, token %d", what, r.Token)
	case r.Outcome == locktable.Other:
		return fmt.Sprintf("%s, %s, ttl %d ms", what, r.Field, r.TTLMS)
	}
	return what
}

func keyString(k redis.Key) string {
	if k.Owner < 0 {
		return "free"
	}
	who := fmt.Sprintf("host %d's", k.Owner)
	if k.Owner >= foreignID {
		who = fmt.Sprintf("foreign %d's", k.Owner-foreignID)
	}
	return fmt.Sprintf("%s, num %d, count %d, until %s", who, k.Num, k.Count, clockString(k.ExpireAt))
}
