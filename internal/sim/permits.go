package sim

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The semaphore of a world, or the read/write lock that it has in its place: its clients, what Redis has of it, its faults, and what
// is checked. The permits of a hold of a read/write lock are its mode: see redisop.Mode.
//
// A client whose sidecar is gone gives some of its permits up, and its requests, and claims the others when it resumes its
// session. What its sidecar had for it beyond those is to be given back.

// permitsWorld is what the world knows of the semaphore.
type permitsWorld struct {
	random  random
	largest int64           // capacity that a request has named
	tokens  map[uint64]bool // that were granted
	written uint64          // of a read/write lock: the largest token of a hold that excluded all others
	read    uint64          // and of one that did not
	wroteAt int64           // when a host last had it for itself, world time
	lostAt  int64           // when what Redis had was last destroyed or changed from outside

	forcing *protocol.ForceRelease // whose effects are carried out

	executedAt           int64 // when Redis last executed an operation on it
	operations, requests int   // so far; operations without those that renew and check
}

// permitsOnHost is what the checker knows of the permits of one host.
type permitsOnHost struct {
	holds        []permitHold // in which clients believe
	excusedUntil int64        // world time: what Redis had of them was destroyed
	hasResult    bool         // one came since
	released     []uint64     // holds that clients released after they were forced, and before they ended
	units        int64        // of its claim
	askedAt      int64        // when it asked for the last of them, or was admitted, world time
	goneAt       int64        // when a request of it last ended without a grant, world time
	deniedAt     int64        // when one was denied last, world time
}

// permitHold is one hold of permits.
type permitHold struct {
	session             locktable.SessionID
	num                 uint64
	permits             int64
	fixed, isUnserved   bool
	isAway              bool  // its client has lost its sidecar, and may claim it
	isClaimed           bool  // isAway: it has claimed it
	isGone              bool  // its sidecar knows that it is lost, and could not send that
	goneIn              int   // isGone: which process of it
	isDestroyed         bool  // isGone: with what Redis had, or by an operator
	restored            bool  // its sidecar was restarted since the grant
	isForced            bool  // a force_release that is about it was answered
	forcedAt            int64 // when it was forced with more than one step may end, or a successor began to end it, world time; 0: it was not
	deadline, endAt     int64 // host clock; endAt 0: none
	granted, crashDelay int64
}

// end is when its client stops believing in it.
func (c *permitHold) end() int64 {
	if c.endAt > 0 {
		return min(c.deadline, c.endAt)
	}
	return c.deadline
}

// isDestroyed reports whether a client believes in a hold of which its sidecar knows that it is lost, and what Redis had was
// destroyed.
func (w *world) isDestroyed(h *host, c *permitHold) bool {
	return c.isDestroyed || c.isGone && h.clock(w.permits.lostAt) >= c.granted
}

// ---- clients

// findPermit returns a hold in which a client believes; nil: it has none.
func (w *world) findPermit(h *host, s *session) *permitHold {
	for i := range h.permits.holds {
		if c := &h.permits.holds[i]; c.session == s.id && !c.isUnserved && !c.isAway && h.clock(w.now) < c.end() {
			return c
		}
	}
	return nil
}

// actOnPermits has a client do something about the semaphore; false: it does something else.
func (w *world) actOnPermits(h *host, s *session) bool {
	r := &w.permits.random
	c := w.findPermit(h, s)
	if w.phase != faulty {
		if c == nil {
			return false
		}
		w.releasePermits(h, s, c)
		w.schedule(h, s, w.pause())
		return true
	}
	if r.oneIn(2) {
		return false
	}
	switch {
	case c != nil && w.plan.readWrite && c.permits == int64(redisop.ExclusiveMode) && r.oneIn(3):
		w.downgrade(h, s, c)
	case c != nil && r.below(1000) < 550:
		w.releasePermits(h, s, c)
	case w.plan.forces && r.oneIn(100-80*btoi64(w.plan.table.MaxWork > 0)): // more where that takes several steps
		w.forcePermits(h, s)
	case len(s.requests) < 4:
		w.acquirePermits(h, s)
	}
	w.schedule(h, s, w.pause())
	return true
}

func (w *world) acquirePermits(h *host, s *session) {
	p, r := &w.plan, &w.permits.random
	of, isWriter := int64(p.permits), false
	if p.readWrite {
		of, isWriter = 1, r.oneIn(3)
	}
	if p.mixedPermits && r.oneIn(3) {
		of += r.between(1, 3)
	}
	permits := r.between(1, min(of, 4))
	req := protocol.Acquire{Name: lockNames[semaphore], WaitMS: protocol.Forever}
	if p.finiteWaits {
		switch r.below(4) {
		case 0:
			req.WaitMS = 0
		case 1:
			req.WaitMS = r.magnitude(1, 2*p.thinkTime/ms+50)
		}
	}
	if p.fixedLease && r.oneIn(3) {
		req.LeaseMS = r.magnitude(protocol.MinLeaseMS, int64(2*p.table.Lease)/ms)
	}
	if p.maxHold && r.oneIn(4) {
		req.MaxHoldMS = r.magnitude(1, int64(p.table.Lease)/ms)
	}
	if p.crashDelay && r.oneIn(2) {
		req.CrashDelayMS = r.magnitude(1, int64(p.table.Lease)/ms*3/2)
	}
	if p.readWrite {
		permits = int64(redisop.SharedMode) + btoi64(isWriter)
	}
	w.sendPermits(h, s, req, uint16(permits), uint16(of))
}

func (w *world) sendPermits(h *host, s *session, acquire protocol.Acquire, permits, of uint16) {
	req := protocol.AcquirePermits{Acquire: acquire, Permits: permits, Of: of}
	s.lastID++
	req.ID = s.lastID
	now := h.clock(w.now)
	w.arrivals++
	s.requests = append(s.requests, request{
		id: req.ID, kind: reqPermits, name: semaphore, acquire: req.Acquire, permits: req.Permits, of: req.Of, arrival: w.arrivals, arrived: now,
	})
	w.waiting++
	h.noWait += btoi(req.WaitMS == 0)
	w.permits.largest = max(w.permits.largest, int64(req.Of))
	w.permits.requests++
	if w.trace.on {
		w.trace.add(w, semaphore, h, "s%d acquire id=%d permits=%d of=%d wait=%d lease=%d max_hold=%d crash_delay=%d", s.id, req.ID, req.Permits, req.Of, req.WaitMS, req.LeaseMS, req.MaxHoldMS, req.CrashDelayMS)
	}
	switch {
	case !w.plan.readWrite:
		h.table.AcquirePermits(now, s.id, req)
	case req.Permits == uint16(redisop.ExclusiveMode):
		h.table.AcquireReadWrite(now, s.id, locktable.Exclusive, req.Acquire)
	default:
		h.table.AcquireReadWrite(now, s.id, locktable.Shared, req.Acquire)
	}
	w.drain(h)
}

func (w *world) releasePermits(h *host, s *session, c *permitHold) {
	req := protocol.Release{Hold: c.num}
	if w.permits.random.oneIn(2) {
		s.lastID++
		req.ID = s.lastID
		s.requests = append(s.requests, request{id: req.ID, kind: reqRelease, name: semaphore, target: c.num})
	}
	if w.trace.on {
		w.trace.add(w, semaphore, h, "s%d release id=%d hold=%d", s.id, req.ID, req.Hold)
	}
	if c.forcedAt != 0 { // the table ends it first
		h.permits.released = append(h.permits.released, c.num)
		if req.ID != 0 {
			s.requests[len(s.requests)-1].either = true
		}
	}
	w.endPermits(h, func(o *permitHold) bool { return o.num == req.Hold })
	h.table.Release(h.clock(w.now), s.id, req)
	w.drain(h)
}

// downgrade has a client that writes read on. It does not write any more when it asks for that.
func (w *world) downgrade(h *host, s *session, c *permitHold) {
	s.lastID++
	req := protocol.Downgrade{ID: s.lastID, Hold: c.num}
	s.requests = append(s.requests, request{id: req.ID, kind: reqDowngrade, name: semaphore, target: c.num, either: true})
	if w.trace.on {
		w.trace.add(w, semaphore, h, "s%d downgrade id=%d hold=%d", s.id, req.ID, req.Hold)
	}
	c.permits = int64(redisop.SharedMode)
	h.table.Downgrade(h.clock(w.now), s.id, req)
	w.drain(h)
}

// onDowngraded judges the answer to a downgrade.
func (w *world) onDowngraded(h *host, e *locktable.Effect) {
	q := w.answered(h, e, reqDowngrade)
	if e.Hold != q.target {
		w.violation(invariant.Answers, semaphore, "hold %d is downgraded, instead of hold %d", e.Hold, q.target)
	}
	w.check.meet(HoldDowngraded)
}

// forcePermits ends one hold of the semaphore on a host by force, or all.
func (w *world) forcePermits(h *host, s *session) {
	r, now := &w.permits.random, h.clock(w.now)
	s.lastID++
	req := protocol.ForceRelease{ID: s.lastID, Name: lockNames[semaphore]}
	if n := len(h.permits.holds); n > 0 && r.oneIn(2) {
		req.Hold = h.permits.holds[r.below(int64(n))].num
	}
	s.requests = append(s.requests, request{id: req.ID, kind: reqForce, name: semaphore, target: req.Hold, either: true})
	if w.trace.on {
		w.trace.add(w, semaphore, h, "s%d force_release id=%d hold=%d", s.id, req.ID, req.Hold)
	}
	newest := newestPermits(h) // a request may be granted afterwards
	w.permits.forcing = &req
	h.table.ForceRelease(now, s.id, req)
	w.drain(h)
	w.permits.forcing = nil
	isLeft := false
	for i := range h.permits.holds {
		c := &h.permits.holds[i]
		if req.Hold == 0 && c.num > newest || req.Hold != 0 && c.num != req.Hold {
			continue
		}
		if c.forcedAt = w.now; !c.isUnserved && !c.isGone && now < c.end() {
			if !h.dying && (w.plan.table.MaxWork == 0 || req.Hold != 0) {
				w.violation(invariant.Losses, semaphore, "hold %d of session %d was forced, and its client was not notified", c.num, c.session)
			}
			w.check.meetIf(PermitsForcedInParts, !h.dying)
			isLeft = true
		}
	}
	if isLeft && !h.dying && w.plan.crashes > 0 && r.oneIn(2) {
		w.crash(h)
	}
}

func newestPermits(h *host) (num uint64) {
	for i := range h.permits.holds {
		num = max(num, h.permits.holds[i].num)
	}
	return num
}

// onPermitsForced judges the answer to a force_release. A client that could not be told that its hold is lost is not told of
// the force either.
func (w *world) onPermitsForced(h *host, e *locktable.Effect, q *request) {
	if e.Count == 0 || q.target != 0 && (e.Hold != q.target || e.Count != 1) {
		w.violation(invariant.Answers, semaphore, "force_release of hold %d ended %d holds, up to %d", q.target, e.Count, e.Hold)
	}
	for i := range h.permits.holds {
		if c := &h.permits.holds[i]; c.num == e.Hold || q.target == 0 && c.num < e.Hold {
			c.isForced, c.isDestroyed = true, c.isDestroyed || c.isGone
		}
	}
	w.check.meet(PermitsForced)
}

// endPermits has clients stop believing in holds.
func (w *world) endPermits(h *host, which func(*permitHold) bool) {
	h.permits.holds = slices.DeleteFunc(h.permits.holds, func(c permitHold) bool {
		ends := which(&c)
		if ends && !c.isUnserved {
			w.believed--
			h.sessions[slotOf(c.session)].endedAt = w.now
		}
		return ends
	})
}

// hasRenewedPermits reports whether a client has permits that its sidecar renews, or its sidecar has some for it.
func (w *world) hasRenewedPermits(h *host, s *session) bool {
	for _, r := range h.journal.holds {
		if r.hold.Session == s.id && r.hold.LeaseMS == 0 {
			return true
		}
	}
	if s.renewedPermitsUntil == w.now { // in this step, as those that it does not claim
		return true
	}
	return slices.ContainsFunc(h.permits.holds, func(c permitHold) bool { return c.session == s.id && !c.fixed && !c.isUnserved })
}

// disconnectPermits has a client that has lost its sidecar, or its connection while it claimed, give some of its permits up.
func (w *world) disconnectPermits(h *host, id locktable.SessionID) {
	w.forgetPermits(h, id, 3)
	for i := range h.permits.holds {
		if c := &h.permits.holds[i]; c.session == id && !c.isUnserved {
			c.isAway, c.isClaimed, c.restored = true, false, true
		}
	}
}

// restorePermits notes that a successor has what is in a journal. It ends what its predecessor was forced to end, if that was
// stored.
func (w *world) restorePermits(h *host, m *locktable.Snapshot) {
	forced := uint64(0)
	for i := range m.Locks {
		forced = max(forced, m.Locks[i].Forced)
	}
	for i := range h.permits.holds {
		c := &h.permits.holds[i]
		at := slices.IndexFunc(m.Holds, func(r locktable.RestoredHold) bool { return r.ID == c.num })
		if at < 0 {
			continue
		}
		if !m.Holds[at].Phase.IsOrphan() { // its loss was not stored, so there was none
			c.isGone, c.isDestroyed = false, false
		}
		if c.forcedAt == 0 {
			continue
		}
		if c.num > forced && c.isForced {
			w.violation(invariant.Journal, semaphore, "the journal of host %d has hold %d, which was forced; it has %d as the last of these", h.index, c.num, forced)
		}
		if c.isForced = c.num <= forced; c.isForced {
			c.forcedAt = w.now
			w.check.meet(PermitsForcedLater)
		} else {
			c.forcedAt = 0
		}
	}
}

// checkNothingToTell checks that a session that a successor closes, since it has no hold, has lost none that its client has to
// be told of.
func (w *world) checkNothingToTell(h *host, s *session) {
	for i := range h.permits.holds {
		if c := &h.permits.holds[i]; c.session == s.id && c.isGone && c.goneIn == h.life && c.isDestroyed {
			w.violation(invariant.Losses, semaphore, "session %d is closed, and its client will not be told that hold %d is lost", s.id, c.num)
		}
	}
}

// forgetPermits has a client that is away give up one in so many of the permits that it has not claimed, and those that have
// ended.
func (w *world) forgetPermits(h *host, id locktable.SessionID, oneIn int64) {
	now := h.clock(w.now)
	w.endPermits(h, func(c *permitHold) bool {
		return c.session == id && !c.isUnserved && !c.isClaimed && (now >= c.end() || w.permits.random.oneIn(oneIn))
	})
}

// claimPermits has a client claim permits, as many as there is room for. more: it has others.
func (w *world) claimPermits(h *host, s *session, room int, req *protocol.Claim) (more bool) {
	w.forgetPermits(h, s.id, 12*btoi64(w.phase == faulty))
	for i := range h.permits.holds {
		c := &h.permits.holds[i]
		if c.session != s.id || !c.isAway || c.isClaimed || c.isUnserved {
			continue
		}
		if room--; room < 0 {
			return true
		}
		c.isClaimed = true
		req.Holds = append(req.Holds, protocol.ClaimedHold{Hold: c.num, Entries: 1})
	}
	return false
}

// onPermitsClaimed judges that a client has claimed all that it has.
func (w *world) onPermitsClaimed(h *host, s *session) {
	now := h.clock(w.now)
	row, _ := h.table.Info(now, lockNames[semaphore])
	var over []uint64
	for i := range h.permits.holds {
		c := &h.permits.holds[i]
		if c.session != s.id || !c.isAway || c.isUnserved {
			continue
		}
		isHeld := slices.ContainsFunc(row.Holders, func(r protocol.HolderRow) bool {
			return r.Hold == c.num && (int64(r.Permits) == c.permits || w.plan.readWrite) && !r.Absent && !r.Orphan
		})
		if !c.isClaimed || c.isGone || !isHeld && row.Held <= protocol.MaxWaiters {
			w.violation(invariant.ResumedSession, semaphore, "session %d claimed hold %d of %d permits (%v), and does not have it: %+v", s.id, c.num, c.permits, c.isClaimed, row)
		}
		if c.isAway, c.isClaimed = false, false; now >= c.end() { // between the claim and its answer
			over = append(over, c.num)
		}
		w.check.meet(PermitsClaimed)
	}
	for _, num := range over {
		w.endPermits(h, func(c *permitHold) bool { return c.num == num })
		s.surplus = append(s.surplus, protocol.ClaimedHold{Hold: num, Entries: 1})
	}
}

// onPermitsForgotten judges the event that claimed permits are gone; false: the hold is of none.
func (w *world) onPermitsForgotten(h *host, s *session, e *locktable.Effect) bool {
	i := slices.IndexFunc(h.permits.holds, func(c permitHold) bool { return c.num == e.Hold && c.session == s.id })
	if i < 0 {
		return false
	}
	if c := &h.permits.holds[i]; s.link != claiming || !c.isClaimed || !c.isGone {
		w.violation(invariant.ResumedSession, semaphore, "hold %d of session %d was neither released nor lost, and is forgotten", e.Hold, s.id)
	}
	w.check.lost[e.Reason]++
	w.endPermits(h, func(c *permitHold) bool { return c.num == e.Hold })
	return true
}

// closePermits ends the holds of a client that is dead.
func (w *world) closePermits(h *host, id locktable.SessionID) {
	h.permits.goneAt = w.now
	w.endPermits(h, func(c *permitHold) bool { return c.session == id })
}

// detachPermits notes that a client gets no more events.
func (w *world) detachPermits(h *host, id locktable.SessionID) {
	for i := range h.permits.holds {
		if c := &h.permits.holds[i]; c.session == id && !c.isUnserved {
			c.isUnserved = true
			w.believed--
		}
	}
}

// ---- Redis

// semaphoreInRedis is what Redis has of the semaphore.
func (w *world) semaphoreInRedis() *redis.Semaphore {
	s := w.redis.names[semaphore].semaphore
	s.Expire(w.now)
	return s
}

// readWriteInRedis is what Redis has of the read/write lock.
func (w *world) readWriteInRedis() *redis.ReadWrite {
	l := w.redis.names[semaphore].readWrite
	l.Expire(w.now)
	return l
}

// claimOf is the claim that a host has: its permits or its mode, and when it expires, world time.
func (w *world) claimOf(owner redis.Owner) (units, expiry int64) {
	if !w.plan.readWrite {
		s := w.semaphoreInRedis()
		c := s.Claims[owner]
		return c.Units, w.expiryOf(s, c)
	}
	l := w.readWriteInRedis()
	c := l.Claims[owner]
	if c.Mode == redisop.ExclusiveMode {
		return int64(c.Mode), l.ExpireAt
	}
	return int64(c.Mode), w.now + (c.Expiry*1000-w.time(0))*µs
}

// with is what clients have that have so many permits, and another hold: of a read/write lock the stronger mode.
func (w *world) with(held, permits int64) int64 {
	if w.plan.readWrite {
		return max(held, permits)
	}
	return held + permits
}

// executeReadWrite executes an operation on the read/write lock.
func (w *world) executeReadWrite(h *host, o *operation, conn *server.Conn, r *server.Run, c *redis.Command) redis.Reply {
	l, counter := w.readWriteInRedis(), &w.redis.names[semaphore].counter
	w.publishing, c.Receivers, c.Confirms = w.nodeOf(conn.Server), w.receivers, r.Confirms
	if conn.Server.IsReplica {
		w.check.meet(ExecutedAtReplica)
		old := *counter
		l, counter, c.ReadOnly = l.Clone(), &old, true
	}
	if counter.HasExpired(w.now) {
		*counter = redis.Counter{}
	}
	if l.Mode == redisop.ExclusiveMode {
		w.permits.wroteAt = w.now
	}
	reply, _ := c.RunReadWrite(l, counter)
	if w.trace.on {
		late := ""
		if o.settled {
			late = ", late"
		}
		w.trace.add(w, semaphore, h, "Redis executes %s%s: outcome %d %s mode %d; the lock is now %+v", opString(o.op), late, reply.Outcome, reply.Code, reply.Permits, *l)
	}
	if c.ReadOnly {
		return reply
	}
	if l.Mode == redisop.ExclusiveMode {
		w.permits.wroteAt = w.now
	}
	for i := range reply.Sent {
		m := &reply.Sent[i]
		w.check.meetIf(ReadersAdmitted, m.Kind == redisop.Admitted && m.Reached > 0 && m.Units == uint16(redisop.SharedMode))
		w.check.meetIf(WriterAdmitted, m.Kind == redisop.Admitted && m.Reached > 0 && m.Units == uint16(redisop.ExclusiveMode))
	}
	w.permits.executedAt = w.now
	w.semaphoreChanged()
	return reply
}

// executePermits executes an operation on the semaphore.
func (w *world) executePermits(h *host, o *operation, conn *server.Conn, r *server.Run, c *redis.Command) redis.Reply {
	if w.plan.readWrite {
		return w.executeReadWrite(h, o, conn, r, c)
	}
	x := w.nodeOf(conn.Server)
	s := w.semaphoreInRedis()
	w.publishing, c.Receivers, c.Confirms = x, w.receivers, r.Confirms
	if conn.Server.IsReplica {
		w.check.meet(ExecutedAtReplica)
		s, c.ReadOnly = s.Clone(), true
	}
	standing, keysBefore := s.PlaceOf(redis.Owner(h.index)) >= 0, w.keysOf(semaphore)
	c.Migrates = w.isOpen(semaphore) && w.redis.owners[semaphore] == x
	reply := c.RunPermits(s)
	if w.trace.on {
		late := ""
		if o.settled {
			late = ", late"
		}
		w.trace.add(w, semaphore, h, "Redis executes %s%s: outcome %d %s permits %d; the semaphore is now %+v", opString(o.op), late, reply.Outcome, reply.Code, reply.Permits, *s)
	}
	if c.ReadOnly {
		return reply
	}
	if w.isOpen(semaphore) {
		w.setKeysThere(semaphore, w.keysOf(semaphore)&^keysBefore, w.redis.open[semaphore].to == x)
		w.check.meetIf(PermitsWhileMoving, o.op.Kind == redisop.Take || o.op.Kind == redisop.Drop)
	}
	for i := range reply.Sent {
		m := &reply.Sent[i]
		w.check.meetIf(PermitsAdmitted, m.Kind == redisop.Admitted && m.Reached > 0)
		w.check.meetIf(PermitsNotReceived, m.Kind == redisop.Admitted && m.Reached == 0)
		w.check.meetIf(PermitsRecalled, m.Kind == redisop.Recalled && m.Reached > 0)
	}
	w.check.meetIf(PermitsOfOwnPlace, standing && reply.Outcome == redisop.Done && o.op.Want > 0)
	if o.op.Has(redisop.Yields) { // it gave back what it had more
		h.permits.units = min(h.permits.units, int64(o.op.Count))
	}
	w.permits.executedAt = w.now
	w.check.meetIf(PermitsInBatch, reply.Outcome == redisop.Done && o.op.Want > 0 && reply.Permits > o.op.Count+uint32(o.op.Want))
	w.semaphoreChanged()
	if h.permits.askedAt == w.now {
		h.permits.askedAt = o.issuedAt
	}
	return reply
}

// expiryOf is when a claim expires, world time.
func (w *world) expiryOf(s *redis.Semaphore, c redis.PermitClaim) int64 {
	return min(s.ExpireAt, w.now+(c.Expiry*1000-w.time(0))*µs)
}

// excusePermits excuses what hosts believe in that Redis has not any more.
func (w *world) excusePermits(except *redis.Semaphore) {
	for _, h := range w.hosts {
		if units, expiry := w.claimOf(redis.Owner(h.index)); w.plan.readWrite && units != 0 {
			p := &h.permits
			p.excusedUntil, p.hasResult = max(p.excusedUntil, expiry), false
		}
	}
	s := w.semaphoreInRedis()
	for owner, c := range s.Claims {
		if except != nil && except.Claims[owner] == c || int(owner) >= len(w.hosts) {
			continue
		}
		p := &w.hosts[owner].permits
		p.excusedUntil, p.hasResult = max(p.excusedUntil, w.expiryOf(s, c)), false
	}
	w.permits.lostAt = w.now
}

// changePermits changes the data of a server, or of its successor.
func (w *world) changePermits(mode dataMode) {
	name := &w.redis.names[semaphore]
	switch mode {
	case dataLost:
		w.excusePermits(nil)
		name.semaphore, name.readWrite, name.counter = new(redis.Semaphore), new(redis.ReadWrite), redis.Counter{}
	case dataOlder:
		old := w.redis.snapshot[semaphore].semaphore.Clone()
		if !w.plan.durable { // whatever a client was sent was confirmed by the replica
			w.excusePermits(old)
		}
		name.semaphore, name.readWrite, name.counter = old, w.redis.snapshot[semaphore].readWrite.Clone(), w.redis.snapshot[semaphore].counter
	}
	if w.trace.on && w.plan.permits > 0 {
		w.trace.add(w, semaphore, nil, "the semaphore is now %+v", *name.semaphore)
	}
	w.semaphoreChanged()
}

// jumpPermits notes that Redis's clock is about to jump.
func (w *world) jumpPermits(d int64) {
	if d > 0 {
		w.excusePermits(nil)
	}
	for _, s := range [...]*redis.Semaphore{w.redis.names[semaphore].semaphore, w.redis.snapshot[semaphore].semaphore} {
		if s.ExpireAt != redis.NoExpiry {
			s.ExpireAt -= d
		}
		s.PlacesExpireAt -= d
	}
	w.redis.names[semaphore].readWrite.Jump(d)
	w.redis.snapshot[semaphore].readWrite.Jump(d)
}

// drawPermitsFaults draws what happens to the semaphore from outside.
func (w *world) drawPermitsFaults() {
	p, r := &w.plan, &w.permits.random
	s, l := w.semaphoreInRedis(), w.readWriteInRedis()
	switch {
	case r.oneIn(p.deletions) && r.oneIn(3):
		s.Places, l.Places = nil, [2][]redis.SharePlace{}
	case p.readWrite && r.oneIn(p.deletions):
		w.excusePermits(nil)
		if l.Delete(); r.oneIn(3) {
			l.LifeAt = 0
		}
		w.semaphoreChanged()
	case r.oneIn(p.deletions):
		w.excusePermits(nil)
		*s = redis.Semaphore{Places: s.Places, PlacesExpireAt: s.PlacesExpireAt}
	case p.denied > 0 && r.oneIn(20):
		w.redis.names[semaphore].denied = true
		w.after(r.magnitude(ms, 5*sec), event{kind: evRepair, name: semaphore})
	}
}

// ---- what is checked

// semaphoreChanged checks that claims cover holds, after each change of a claim.
func (w *world) semaphoreChanged() {
	for _, h := range w.hosts {
		p := &h.permits
		units, _ := w.claimOf(redis.Owner(h.index))
		if units > p.units {
			p.askedAt = w.now
		}
		p.units = units
		w.checkPermitsCovered(h)
	}
}

// checkPermitsCovered checks that the claim of a host covers all holds in which clients believe, and lasts as long.
func (w *world) checkPermitsCovered(h *host) {
	p := &h.permits
	if len(p.holds) == 0 {
		return
	}
	now := h.clock(w.now)
	units, expiry := w.claimOf(redis.Owner(h.index))
	held, end := int64(0), int64(0)
	for i := range p.holds {
		if c := &p.holds[i]; now < c.end() && !w.isDestroyed(h, c) {
			held, end = w.with(held, c.permits), max(end, h.worldTime(c.end()))
		}
	}
	if held == 0 || units >= held && expiry >= end || p.excusedUntil >= end {
		return
	}
	w.violation(invariant.KeysCoverHolds, semaphore, "clients of host %d believe in %d permits until %s; its claim is of %d, until %s: %+v",
		h.index, held, clockString(end), units, clockString(expiry), p.holds)
}

// endPermitsExcuse ends the excuse of a loss that a host was told of.
func (w *world) endPermitsExcuse(h *host) {
	if p := &h.permits; p.hasResult {
		p.hasResult, p.excusedUntil = false, 0
	}
}

// onPermitsOperation judges an operation before the store gets it.
func (w *world) onPermitsOperation(h *host, op redisop.Op) {
	l, now := &h.locks[semaphore], h.clock(w.now)
	held := int64(0)
	for i := range h.permits.holds {
		if c := &h.permits.holds[i]; now < c.end() && !w.isDestroyed(h, c) {
			held = w.with(held, c.permits)
		}
	}
	switch {
	case !h.conns[op.Shard].up:
		w.violation(invariant.RedisDown, semaphore, "host %d issues an operation while Redis is down", h.index)
	case l.inFlight != noOp:
		w.violation(invariant.OneOperation, semaphore, "host %d has two operations in flight", h.index)
	case (op.Of == redisop.KindReadWrite) != w.plan.readWrite || !op.Of.HasMany() || op.Kind == redisop.Arrive:
		w.violation(invariant.RedisSynced, semaphore, "an operation of another kind: %s", opString(op))
	case op.Kind == redisop.Drop && held > 0 || op.Kind != redisop.Drop && int64(op.Count) < held:
		w.violation(invariant.HoldsLast, semaphore, "clients of host %d believe in %d permits: %s", h.index, held, opString(op))
	case !w.plan.readWrite && op.Kind == redisop.Take && (int64(op.Capacity) < int64(op.Want) || op.Want > 0 && op.Times == 0):
		w.violation(invariant.RedisSynced, semaphore, "more permits are wanted than there are: %s", opString(op))
	}
	w.permits.operations += btoi(op.Kind == redisop.Take || op.Kind == redisop.Drop)
	h.journal.checkOperation(semaphore, op)
	w.issue(h, op)
}

// checkPermitsResult notes what a table is about to be told.
func (w *world) checkPermitsResult(h *host, o *operation) {
	l, r := &h.locks[semaphore], &o.res
	if r.Outcome == redisop.Refused {
		l.refusedAt = w.now
	} else if r.Outcome >= redisop.NotSent || w.now-o.issuedAt > h.lease/10 {
		w.noteTrouble(h, o)
	}
	// A Check does not see that the claim has expired by a clock that has jumped.
	isExecuted := r.Outcome <= redisop.Differs && (r.Outcome != redisop.Done || r.Kind != redisop.Check)
	// If another shard has it since, a table asserts what this one does not have.
	isOfBefore := r.Outcome == redisop.KeyMissing && l.movedAt >= o.issuedAt
	// What no replica has confirmed says nothing of those.
	if isExecuted && !isOfBefore && !r.Unsynced && o.at >= w.permits.lostAt {
		h.permits.hasResult = true
	}
}

// onPermitsGranted judges a grant.
func (w *world) onPermitsGranted(h *host, s *session, e *locktable.Effect, q *request) {
	now := h.clock(w.now)
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			isOfMode := !w.plan.readWrite
			p := &h.sessions[i].requests[j]
			if isOfMode = isOfMode || p.permits == q.permits; p.kind == reqPermits && isOfMode && p.arrival < q.arrival && !p.isUnheard {
				w.violation(invariant.Order, semaphore, "session %d was granted request %d out of turn: session %d's request %d came before", s.id, q.id, h.sessions[i].id, p.id)
			}
		}
	}
	if e.Hold == 0 || e.Count != 1 || h.usedHolds[e.Hold] {
		w.violation(invariant.HoldNumbers, semaphore, "permits are granted with hold %d and count %d", e.Hold, e.Count)
	}
	h.usedHolds[e.Hold] = true
	if w.plan.flushes|w.plan.deletions|w.plan.redisRestarts|w.plan.clockJumps|w.plan.roleChanges == 0 {
		w.checkPermitsToken(e.Token, q)
	}
	lease := q.acquire.LeaseMS * ms
	if e.Deadline <= now || lease > 0 && e.Deadline-now > lease || e.Deadline-now < max(lease, btoi64(lease == 0)*h.lease)/3 {
		w.violation(invariant.Validity, semaphore, "hold %d with a lease of %s is granted for %s", e.Hold, time.Duration(lease), time.Duration(e.Deadline-now))
	}
	c := permitHold{
		session: s.id, num: e.Hold, permits: int64(q.permits), fixed: lease > 0, deadline: e.Deadline, endAt: e.End, granted: now, crashDelay: q.acquire.CrashDelayMS * ms,
	}
	h.permits.holds = append(h.permits.holds, c)
	w.believed++
	w.check.meetIf(PermitsGranted, !w.plan.readWrite)
	w.check.meetIf(ReaderGranted, w.plan.readWrite && q.permits == uint16(redisop.SharedMode))
	w.check.meetIf(WriterGranted, w.plan.readWrite && q.permits == uint16(redisop.ExclusiveMode))
	w.check.meetIf(PermitsGrantedHere, h.locks[semaphore].inFlight == noOp)
	held, here, isExcused := int64(0), int64(0), false
	for _, g := range w.hosts {
		isExcused = isExcused || g.permits.excusedUntil > w.now
		for i := range g.permits.holds {
			if o := &g.permits.holds[i]; g.clock(w.now) < o.end() && !w.isDestroyed(g, o) {
				held = w.with(held, o.permits)
				if g == h {
					here += o.permits
				}
				if w.plan.readWrite && o.permits+int64(q.permits) > 2 && (g != h || o.num != e.Hold) && max(g.permits.excusedUntil, h.permits.excusedUntil) <= w.now {
					w.violation(invariant.Exclusion, semaphore, "hold %d in mode %d is granted on host %d beside hold %d in mode %d of host %d", e.Hold, q.permits, h.index, o.num, o.permits, g.index)
				}
				if g == h && o.isForced && o.forcedAt != 0 && !o.isUnserved && w.now-o.forcedAt > w.soon() {
					w.violation(invariant.Losses, semaphore, "hold %d of session %d was forced at %s, and lasts", o.num, o.session, clockString(o.forcedAt))
				}
			}
		}
	}
	if !w.plan.readWrite && held > w.permits.largest && !isExcused {
		w.violation(invariant.Exclusion, semaphore, "hold %d of %d permits is granted on host %d: clients have %d, of %d", e.Hold, q.permits, h.index, held, w.permits.largest)
	}
	if !w.plan.readWrite && here > int64(q.of) && !isExcused {
		w.violation(invariant.Exclusion, semaphore, "hold %d of %d permits is granted on host %d, whose clients have %d: the request named %d", e.Hold, q.permits, h.index, here, q.of)
	}
	w.checkPermitsCovered(h)
	w.checkPermitsOrder(h, q)
	if w.phase != faulty {
		w.schedule(h, s, w.pause())
	}
}

// checkPermitsToken checks the token of a new hold.
func (w *world) checkPermitsToken(token uint64, q *request) {
	p := &w.permits
	switch isWriter := q.permits == uint16(redisop.ExclusiveMode); {
	case !w.plan.readWrite:
		if p.tokens[token] {
			w.violation(invariant.TokensGrow, semaphore, "token %d is granted twice", token)
		}
		p.tokens[token] = true
	case token <= p.written || isWriter && token <= p.read:
		w.violation(invariant.TokensGrow, semaphore, "token %d is granted in mode %d, after %d to a writer and %d to a reader", token, q.permits, p.written, p.read)
	case isWriter:
		p.written = token
	default:
		p.read = max(p.read, token)
	}
}

// checkReadersWait checks that no reader gets the lock while a writer of another host waits that was there before it, but with the
// readers of its phase (K8).
func (w *world) checkReadersWait(h *host, q *request, came int64) {
	l := w.readWriteInRedis()
	if q.permits != uint16(redisop.SharedMode) || l.Mode == redisop.ExclusiveMode || came < w.permits.wroteAt+w.soon() {
		return // Redis does not know yet that the phase has begun; or it began after that
	}
	for _, p := range l.Places[1] {
		if at := w.now - (w.time(0)-p.Time)*µs; int(p.Owner) != h.index && at+w.soon() < came {
			w.violation(invariant.PermitsInOrder, semaphore, "request %d, which came at %s, reads on host %d, and host %d waits to write since %s: %+v",
				q.id, clockString(came), h.index, p.Owner, clockString(at), p)
		}
	}
}

// checkPermitsOrder checks that no request is granted before those of other hosts that had a place in the queue when it
// came, as its host could know.
func (w *world) checkPermitsOrder(h *host, q *request) {
	if !w.isLossless(semaphore) || !h.connOf(semaphore).up {
		return
	}
	came := h.worldTime(q.arrived)
	if w.plan.readWrite {
		w.checkReadersWait(h, q, came)
		return
	}
	if p, soon := &h.permits, w.soon(); p.goneAt > p.askedAt-soon && w.now-p.goneAt < soon {
		return // they are of a request that is gone
	}
	for _, p := range w.semaphoreInRedis().Places {
		if at := w.now - (w.time(0)-p.Time)*µs; int(p.Owner) != h.index && at+w.soon() < came {
			w.violation(invariant.PermitsInOrder, semaphore, "request %d, which came at %s, is granted on host %d before the place of host %d, of %s: %+v",
				q.id, clockString(came), h.index, p.Owner, clockString(at), p)
		}
	}
}

// checkPermitsIdle checks that a host keeps no permits that no client of it has, while it or another host waits.
func (w *world) checkPermitsIdle(h *host) {
	s := w.semaphoreInRedis()
	waiting := len(s.Places)
	if w.plan.readWrite {
		l := w.readWriteInRedis()
		waiting = len(l.Places[0]) + len(l.Places[1])
	}
	isAboutToGrant := !h.asleep && h.wakeAt <= w.now+5*ms // the rest of its waiters
	if !w.isLossless(semaphore) || isAboutToGrant || waiting == 0 || h.locks[semaphore].inFlight != noOp || w.now-w.permits.executedAt < w.soon() {
		return
	}
	held := int64(0)
	for _, r := range h.journal.holds {
		units := int64(r.hold.Permits)
		if w.plan.readWrite {
			units = int64(redisop.SharedMode) + btoi64(r.hold.Mode == locktable.Exclusive)
		}
		held = w.with(held, units)
	}
	if units, _ := w.claimOf(redis.Owner(h.index)); units > held {
		w.violation(invariant.PermitsInOrder, semaphore, "host %d has %d permits for holds of %d, and hosts wait: %+v, %+v", h.index, units, held, *s, *w.readWriteInRedis())
	}
}

func btoi64(b bool) int64 { return int64(btoi(b)) }

// onPermitsRefused judges the refusal of a request.
func (w *world) onPermitsRefused(h *host, s *session, e *locktable.Effect, q *request) {
	now := h.clock(w.now)
	h.permits.goneAt = w.now
	w.check.refused[e.Code]++
	switch e.Code {
	case protocol.Timeout:
		if q.waits(now) {
			w.violation(invariant.AnswersInTime, semaphore, "request %d of session %d timed out %s early", q.id, s.id, time.Duration(q.arrived+q.acquire.WaitMS*ms-now))
		}
	case protocol.Unavailable:
		isWorth := q.acquire.LeaseMS == 0 || q.acquire.LeaseMS*ms > 6*w.slowest // else it may be over before Redis has answered
		since, isInFlight := w.inFlightSince(&h.locks[semaphore])
		isSlow := isInFlight && w.now-since > 3*w.slowest // it was in a batch behind others, and another operation before
		if q.waits(now) || w.isLossless(semaphore) && isWorth && !isSlow && w.isReached(h, semaphore) && w.now-h.troubleOf(semaphore) > sec {
			w.violation(invariant.AnswersInTime, semaphore, "request %d of session %d is refused as unavailable: %s", q.id, s.id, e.Msg)
		}
	case protocol.Denied:
		// Those that wait are denied, in parts, until none is left.
		since := max(h.locks[semaphore].refusedAt, h.permits.deniedAt)
		if h.permits.deniedAt = w.now; w.now-since > eps && q.arrived > h.clock(since)+eps {
			w.violation(invariant.Answers, semaphore, "request %d of session %d is denied: %s", q.id, s.id, e.Msg)
		}
	case protocol.Canceled:
		for i := range s.requests {
			if p := &s.requests[i]; p.kind == reqCancel && p.target == q.id {
				p.canceled = true
			}
		}
	default:
		w.violation(invariant.Answers, semaphore, "request %d of session %d was refused with %s", q.id, s.id, e.Code)
	}
}

// onPermitsLost judges the end of a hold that no client released. received: its client gets the event.
func (w *world) onPermitsLost(h *host, s *session, e *locktable.Effect, received bool) {
	i := slices.IndexFunc(h.permits.holds, func(c permitHold) bool { return c.num == e.Hold })
	if i < 0 {
		isReleased := slices.Contains(h.permits.released, e.Hold)
		if !s.restored && s.link == connected && !s.detached && h.life == 0 && !isReleased {
			w.violation(invariant.Losses, semaphore, "session %d is notified that it lost hold %d, which it does not have", s.id, e.Hold)
		}
		return // its client gave it up when its sidecar died
	}
	c, now := h.permits.holds[i], h.clock(w.now)
	l := &h.locks[semaphore]
	w.check.lost[e.Reason]++
	right := false
	switch e.Reason {
	case protocol.Expired:
		right = now >= c.deadline || !c.fixed && !w.isLossless(semaphore) && (c.deadline-now <= h.longest/4 || c.restored && h.longest > h.lease)
		since, isInFlight := w.inFlightSince(l)
		isSlow := isInFlight && w.now-since > h.lease/10 // as for locks
		if w.isLossless(semaphore) && !c.fixed && !c.isUnserved && !isSlow && w.now-max(h.troubleOf(semaphore), l.refusedAt) > h.lease+h.lease/4+eps {
			w.violation(invariant.HoldsLast, semaphore, "watchdog hold %d of session %d expired, though nothing kept its host from renewing it", c.num, s.id)
		}
	case protocol.MaxHold:
		right = c.endAt > 0 && now >= c.endAt
	case protocol.Deleted:
		right = w.permits.lostAt > 0
	case protocol.Stolen:
		right = w.plan.readWrite && w.permits.lostAt > 0
	case protocol.ByForce:
		right = w.permits.forcing != nil && (w.permits.forcing.Hold == 0 || w.permits.forcing.Hold == c.num) || c.forcedAt != 0
	}
	if !right {
		w.violation(invariant.Losses, semaphore, "session %d lost hold %d for the wrong reason: %s (it is %d, the deadline is %d)", s.id, c.num, e.Reason, now, c.deadline)
	}
	w.check.meetIf(PermitsLost, e.Reason == protocol.Deleted && !w.plan.readWrite)
	w.check.meetIf(ReadWriteLost, e.Reason != protocol.Expired && e.Reason != protocol.MaxHold && w.plan.readWrite)
	if !received && !c.isUnserved { // its client finds that out when it claims it, or believes in it until its end
		g := &h.permits.holds[i]
		g.isGone, g.isDestroyed, g.goneIn = true, e.Reason == protocol.Deleted || e.Reason == protocol.ByForce, h.life
		return
	}
	w.endPermits(h, func(o *permitHold) bool { return o.num == e.Hold })
}

// onPermitsLease notes a lease event.
func (w *world) onPermitsLease(h *host, s *session, deadline int64) {
	now := h.clock(w.now)
	for i := range h.permits.holds {
		c := &h.permits.holds[i]
		if c.session != s.id || c.fixed || c.isUnserved || deadline <= c.deadline {
			continue
		}
		if now > c.deadline && c.isAway {
			continue // its client has given it up, or is about to
		}
		if now > c.deadline {
			w.violation(invariant.Validity, semaphore, "a lease event comes %s after the deadline of hold %d: its client has given it up", time.Duration(now-c.deadline), c.num)
		}
		c.deadline = deadline
	}
	w.checkPermitsCovered(h)
}

// auditPermits finds what should have happened and did not.
func (w *world) auditPermits(h *host, now int64) {
	w.checkPermitsIdle(h)
	next, isDue := h.table.Next()
	isBehind := w.plan.table.MaxWork > 0 && isDue && next <= now+eps // the next step ends what this one might not
	for i := range h.permits.holds {
		if c := &h.permits.holds[i]; !c.isUnserved && !c.isAway && now > c.end()+eps && !(isBehind && now < c.deadline) {
			w.violation(invariant.HoldsEnd, semaphore, "session %d was not notified that hold %d is lost; its end was %s ago", c.session, c.num, time.Duration(now-c.end()))
		}
	}
	w.endPermits(h, func(c *permitHold) bool { return (c.isUnserved || c.isAway && !c.isClaimed) && now > c.end()+eps })
}

// checkPermitsEmpty checks that no permits are left of sessions that are all closed.
func (w *world) checkPermitsEmpty() {
	// A host asks again for what it waits for after a sixth of a lease, and when a claim may expire.
	refreshes := len(w.hosts) * int(w.now/min(5*sec, w.longestLease()/6))
	if most := 8*w.permits.requests + refreshes + 200; w.isLossless(semaphore) && w.permits.operations > most {
		w.violation(invariant.Rest, semaphore, "%d requests made %d operations, in %s; it would be %d at most", w.permits.requests, w.permits.operations, time.Duration(w.now), most)
	}
	for owner, c := range w.readWriteInRedis().Claims {
		if int(owner) < len(w.hosts) && owner != redis.NoOwner && w.hosts[owner].process != abandoned {
			w.violation(invariant.Leaks, semaphore, "all sessions are closed, and Redis still has %+v for host %d", c, owner)
		}
	}
	s := w.semaphoreInRedis()
	for owner, c := range s.Claims {
		if int(owner) < len(w.hosts) && w.hosts[owner].process != abandoned {
			w.violation(invariant.Leaks, semaphore, "all sessions are closed, and Redis still has %+v for host %d", c, owner)
		}
	}
}
