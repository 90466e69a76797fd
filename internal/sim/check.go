package sim

import (
	"fmt"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The checker knows what every client was sent and what Redis really has, and compares the
// two whenever either changes. check_client.go judges what tables answer their clients,
// check_redis.go what they issue to Redis and what Redis does, check_time.go what should
// have happened by now.
//
// The most important rule is that keys cover holds (checkCovered): as long as a client
// believes in a hold, the key in Redis belongs to its host and lives at least until the
// deadline that the client was sent. Exclusion between hosts, conservative deadlines and
// "never released early" all follow from that, and it fails at the moment of the mistake,
// not when another host happens to take the lock in the gap.
//
// There is one excuse. The holder cannot know at once that its key was destroyed from
// outside: by an operator, a FLUSHALL, a restart without data, a Redisson client's force.
// The belief in that lock is excused until the key would have expired, but no longer than
// until the host was told that the key is gone. Deadlines that were confirmed after the
// destruction are not excused. Between the owners of one host nothing is ever excused,
// with one exception: a client without a sidecar cannot be notified that its lock was
// destroyed, or forced by an operator. Its belief is excused from the moment at which its
// table would have notified it. That a table does not lose a hold for any other reason is
// checked all the same.
//
// A jump of Redis's clock that makes a key expire early destroys it in the same way.

type holdState uint8

const (
	none       holdState = iota
	live                 // its client believes in it
	unserved             // its client believes in it, and gets no more events of it
	away                 // its client believes in it, and has no sidecar for now
	unbelieved           // its host has it, and no client believes in it
	orphaned             // no client has it; it is held for its crash delay or its keep
)

// hold is what the checker knows of the newest hold of a lock on a host.
type hold struct {
	state      holdState
	fixed      bool // a fixed lease; otherwise the watchdog renews it
	count      uint32
	leaseMS    uint32 // the fixed lease
	num, token uint64
	owner      uint64
	session    locktable.SessionID

	// Host clock.
	granted         int64
	deadline        int64 // the newest that the client was sent
	confirmed       int64 // the newest deadline that the table can know of
	confirmedAt     int64 // since when
	confirmedBefore int64 // what it was before
	maxHoldEnd      int64 // grant + max_hold; 0: none
	crashDelay      int64
	orphanedUntil   int64 // when the crash delay ends
	keptUntil       int64 // no other owner gets the lock before; 0: it has no keep
	detachedAt      int64

	restored bool // its table may have sent events of it that its client did not get
}

// isBelieved reports whether a client believes in the hold, and will be notified of its
// end.
func (c *hold) isBelieved() bool { return c.state == live || c.state == away }

// isOver reports whether its client has stopped believing in the hold by its own clock.
func (c *hold) isOver(now int64) bool {
	return now >= c.deadline || c.maxHoldEnd > 0 && now >= c.maxHoldEnd
}

// endsWithKeyOf reports whether the hold has a fixed lease, and its key ends with it after an
// operation with that lease.
func (c *hold) endsWithKeyOf(now int64, leaseMS uint32) bool {
	return c.fixed && now+int64(leaseMS)*ms <= c.deadline+int64(c.leaseMS)*ms/100+4*ms
}

// end is until when no other owner may get the lock.
func (c *hold) end() int64 {
	end := c.deadline
	if c.state == orphaned {
		if !c.fixed && c.detachedAt == 0 {
			end = max(end, c.confirmed)
		}
		end = min(end, c.orphanedUntil)
	}
	if c.maxHoldEnd > 0 { // the client was sent it with the grant
		end = min(end, c.maxHoldEnd)
	}
	return end
}

// lockOnHost is one lock as one host has it.
type lockOnHost struct {
	hold           hold
	inFlight       int32       // index of the operation in flight; or noOp
	dropPending    int32       // index of a Drop that has no reply, after which the operation in flight was sent; or noOp
	arriving       int32       // index of the Arrive in flight; or noOp
	dropped        contract.Op // the last Drop that has a result
	taken          contract.Op // the Take that was pipelined after the Drop in flight, if it has a result
	pipelinedSince int64       // host clock: when the first of the Takes in a row was sent that were sent after such a Drop; 0: the last one was not

	unconfirmed   bool            // Redis has executed nothing since the table was made
	lastOutcome   redisop.Outcome // of an operation
	isOverwritten bool            // it found a key of another type
	lastRepliedAt int64           // host clock
	lateReplyAt   int64           // host clock: when the last reply came that took tryWithin or longer
	refusedAt     int64           // world time: when Redis last refused an operation on it
	deniedAt      int64           // world time: the same, or it was not a lock
	otherIssuedAt int64           // host clock: when the operation was issued that last found another owner
	excusedUntil  int64           // world time
	endedAt       int64           // world time: when the hold ended
	dataLostAt    int64           // when the table was told last that Redis may have lost its data
	movedAt       int64           // when the table was told last that another shard has the lock, or Redis answered that
	movedFrom     redisop.Shard   // the shard that had it before the table was told
	tokens        tokenRanges
	revoked       revokedTokens

	// Whether the table knows that other hosts wait, and what it does then.
	listeners   int32  // as the table was told last
	forgotten   bool   // the table may have forgotten that, while it had no use for the lock
	uncounted   bool   // the table restored the lock, and no result has had listeners since
	waiting     uint32 // sidecars that wait, as the table was told last
	cameAt      int64  // host clock: when the lock came to this host
	turnGrants  int    // since then
	getsMessage bool   // a sidecar has the lock, and sends the first of the queue a message when it is free
	pollerUntil int64  // host clock: it must know of a program that may poll
	rivalUntil  int64  // host clock: until then it may count another host that has had the lock among those that wait
	recalledAt  int64  // host clock: when another host last asked for it
	mayYield    bool   // as of the last Take or Arrive
	yielding    bool   // it released the lock for others, and backs off
	yieldedAt   int64  // host clock: when it did so although a client waited here; 0: it did not
	droppedAt   int64  // host clock: when the table was told that the lock is released
	freedUntil  int64  // host clock: until then a sidecar leaves the lock free, as the table was told

	localGrants      int   // since Redis was last asked for the lock
	localGrantsSince int64 // host clock

	pausing    bool  // it released the lock for a moment, in which clients that poll may take it
	pauseSince int64 // host clock

	lastToken        uint64 // granted on this host
	lastTokenDrawnAt int64  // world time

	takenAt   int64 // host clock: when the last Take was sent that Redis did
	confirmed int64 // host clock: until when the key lives at least, by the last Take or Renew
	gone      goneKey

	wantsMessages bool          // the table wants to be subscribed
	channelAt     redisop.Shard // where
	subscribed    bool          // the table was told that it is
	deafSince     int64         // world time: when the table was told that it has lost the subscription
}

// isProtected reports whether the hold must not be given to another owner.
func (l *lockOnHost) isProtected(now int64) bool {
	return l.hold.state != none && l.hold.state != unbelieved && now < l.hold.end()
}

// othersListen reports whether the table knows that other hosts are subscribed, or that it
// cannot know.
func (l *lockOnHost) othersListen() bool {
	return !l.forgotten && (l.listeners < 0 || l.listeners > 1)
}

// Times that the lock table promises to keep.
const (
	longestTurn  = 20 * ms  // while another sidecar waits
	yieldBackoff = 10 * ms  // at least, before a host competes again for a lock that it released for others
	quietRun     = 100 * ms // local handoffs without a moment in which the lock is free, at most
	pollerRun    = 30 * ms  // the same if a program was found to have the lock without being subscribed
	quietPause   = 4 * ms   // that moment
	rivalMemory  = 60 * sec
	tryWithin    = 500 * ms // in which an acquire is answered that does not wait, although Redis is silent
)

// tokenRanges has what the last Takes drew, as the table was told.
type tokenRanges struct {
	ranges [8]tokenRange
	next   int
}

type tokenRange struct {
	next, last uint64
	drawnAt    int64 // world time
}

func (t *tokenRanges) add(r tokenRange) {
	t.ranges[t.next] = r
	t.next = (t.next + 1) % len(t.ranges)
}

// find returns the range of a token that was not used; nil: there is none.
func (t *tokenRanges) find(token uint64) *tokenRange {
	for i := range t.ranges {
		if r := &t.ranges[i]; r.next <= token && token <= r.last {
			return r
		}
	}
	return nil
}

// revokedTokens has the tokens that a table lost by an input while effects of earlier inputs were not
// carried out yet: one of these may be the grant of such a token. If the input said that the key is not
// this host's, the effects of that input have the loss.
type revokedTokens struct {
	tokens  tokenRanges
	keyGone bool
	hold    uint64 // that was granted with one of them; 0: none was
}

// revokeTokens notes that an input takes the tokens from the table that were drawn for a lock.
func (h *host) revokeTokens(n int, keyGone bool) {
	l := &h.locks[n]
	if h.undrained && l.tokens != (tokenRanges{}) {
		l.revoked = revokedTokens{tokens: l.tokens, keyGone: keyGone}
		h.hasRevoked = true
	}
	l.tokens = tokenRanges{}
}

// forgetRevoked forgets revoked tokens, when no earlier effect is left.
func (h *host) forgetRevoked() {
	if h.hasRevoked {
		h.hasRevoked = false
		for n := range h.locks {
			h.locks[n].revoked = revokedTokens{}
		}
	}
}

// checkRevoked checks that each hold was lost again that was granted before an input said that the key is
// not this host's.
func (w *world) checkRevoked(h *host) {
	for n := range h.locks {
		l := &h.locks[n]
		if r := &l.revoked; h.hasRevoked && r.keyGone && r.hold != 0 && l.hold.state == live && l.hold.num == r.hold {
			w.violation(invariant.Losses, n, "hold %d was granted with an earlier token, and not lost when the key was found to be gone", r.hold)
		}
	}
	h.forgetRevoked()
}

// checker is what the checker knows of the whole world.
type checker struct {
	forcing      uint64           // hold that the force_release is about whose effects are carried out
	lossKnown    [maxHosts]uint16 // names whose loss a host was told of: bits
	lastWake     int64
	lastWakeHost int
	digest       Digest // of all effects of tables, and of the bytes that the store makes of them
	Met
	refused map[protocol.Code]int
	lost    map[protocol.Reason]int
}

func (c *checker) init() {
	c.refused, c.lost = make(map[protocol.Code]int), make(map[protocol.Reason]int)
}

// Violation is an invariant that was broken in a run.
type Violation struct {
	Invariant invariant.Name
	Seed      uint64
	Step      int
	At        int64 // world time
	What      string

	name int // of the lock; -1: none
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d, step %d, %s, %s: invariant %q is violated: %s", v.Seed, v.Step, clockString(v.At), nameString(v.name), v.Invariant, v.What)
}

// violation ends the run.
func (w *world) violation(broken invariant.Name, name int, format string, args ...any) {
	panic(&Violation{broken, w.seed, w.steps, w.now, fmt.Sprintf(format, args...), name})
}

// checkCovered checks that the key of a hold that is protected lives as long as the hold.
func (w *world) checkCovered(h *host, n int) {
	l := &h.locks[n]
	if !l.isProtected(h.clock(w.now)) {
		return
	}
	end := h.worldTime(l.hold.end())
	k := &w.redis.names[n].key
	if int(k.Owner) == h.index && k.ExpireAt >= end || l.excusedUntil >= end {
		return
	}
	w.violation(invariant.KeysCoverHolds, n, "hold %d on host %d is believed in until %s; the key is %s", l.hold.num, h.index, clockString(end), keyString(*k))
}

// keyChanged follows every change of a key.
func (w *world) keyChanged(n int) {
	for _, h := range w.hosts {
		w.checkCovered(h, n)
	}
}

// endHold ends the hold of a lock, as far as its client is concerned.
func (w *world) endHold(h *host, n int) {
	c := &h.locks[n].hold
	if c.isBelieved() {
		w.believed--
		s := &h.sessions[slotOf(c.session)]
		s.noteEnded(c.num)
		s.endedAt = w.now
	}
	c.state, c.keptUntil = none, 0
	h.locks[n].endedAt = w.now
}

// leaveHold ends the hold of a lock, as far as its client is concerned. It is kept if its keep lasts.
func (w *world) leaveHold(h *host, n int) {
	c := &h.locks[n].hold
	until := c.keptUntil
	const known = ms // how exactly until is known: see noteKeep
	if w.endHold(h, n); until != 0 && h.clock(w.now) < until+known {
		c.orphanUntil(until)
		c.keptUntil = until
		w.check.meet(KeptAfterItsEnd)
	}
}

// orphanUntil notes that the host has the lock until then, and no client has it.
func (c *hold) orphanUntil(until int64) {
	c.state, c.fixed, c.maxHoldEnd = orphaned, true, 0
	c.deadline, c.confirmed, c.orphanedUntil = until, until, until
}

// endExcuses ends the excuses of losses that the host was told of.
func (w *world) endExcuses(h *host) {
	if w.check.lossKnown[h.index] == 0 {
		return
	}
	for n := range w.plan.names {
		if w.check.lossKnown[h.index]&(1<<n) != 0 {
			h.locks[n].excusedUntil = 0
		}
	}
	w.check.lossKnown[h.index] = 0
}

// someoneWaits reports whether an acquire on the host waits for the lock since then.
func (h *host) someoneWaits(n int, since int64) bool {
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			if q := &h.sessions[i].requests[j]; q.kind == reqAcquire && int(q.name) == n && q.acquire.WaitMS != 0 && q.arrived <= since {
				return true
			}
		}
	}
	return false
}

// waitsBefore reports whether an acquire of the lock that arrived before that one has no
// answer.
func (h *host) waitsBefore(n int, arrival uint64) bool {
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			if q := &h.sessions[i].requests[j]; q.kind == reqAcquire && int(q.name) == n && q.arrival < arrival {
				return true
			}
		}
	}
	return false
}

// inFlightSince returns when the oldest operation of a lock was issued that has no result and keeps the
// table from sending another; false: there is none. It may be a Drop whose Take has its result.
func (w *world) inFlightSince(l *lockOnHost) (issuedAt int64, is bool) {
	switch {
	case l.dropPending != noOp:
		return w.ops[l.dropPending].issuedAt, true
	case l.inFlight != noOp:
		return w.ops[l.inFlight].issuedAt, true
	}
	return 0, false
}

// isObstructed reports whether an owner on the host has the lock, or an acquire waits for
// it that arrived before that one.
func (h *host) isObstructed(n int, arrival uint64) bool {
	return h.locks[n].hold.state != none || h.waitsBefore(n, arrival)
}

// isIdle reports whether the table has nothing to do with the lock any more, and need not
// remember it, unless Redis could not be reached.
func (h *host) isIdle(now int64, n int, arrival uint64) bool {
	l := &h.locks[n]
	held := l.hold.state != none && now < l.hold.end()
	return !held && l.inFlight == noOp && l.dropPending == noOp && l.arriving == noOp && !l.wantsMessages && !h.waitsBefore(n, arrival)
}

// noteKnownAgain is called before an input that makes the table know a lock: a request, a transfer to the
// host, or a recall. A lock of which the table knew nothing has no known subscribers.
func (w *world) noteKnownAgain(h *host, n int, arrival uint64) {
	if h.isIdle(h.clock(w.now), n, arrival) {
		h.locks[n].forgotten = true
	}
}
