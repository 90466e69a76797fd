package sim

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// session is one client, and its session in the table of its host. The last byte of its
// id is its index on the host.
type session struct {
	id       locktable.SessionID
	gen      uint32
	open     bool
	detached bool // the sidecar does not serve it any more
	clientState
	requests  []request // that have no answer
	lastID    uint64
	scheduled bool      // there is an evClient
	ended     [4]uint64 // holds that have ended
	endedNext int
	endedAt   int64 // when it last lost or released a hold

	renewedPermitsUntil int64 // when its sidecar last had some for it, of those that have ended, world time
}

// noteEnded notes a hold that has ended, so that the client can release it again.
func (s *session) noteEnded(hold uint64) {
	s.ended[s.endedNext&3] = hold
	s.endedNext++
}

type requestKind uint8

const (
	reqAcquire requestKind = iota
	reqRelease
	reqCancel
	reqForce
	reqConfirm
	reqPermits // an acquire, too
	reqDowngrade
)

// isAcquire reports whether it is an acquire of any kind.
func (k requestKind) isAcquire() bool { return k == reqAcquire || k == reqPermits }

// request is a request that has no answer.
type request struct {
	id      uint64
	kind    requestKind
	name    int8
	acquire protocol.Acquire
	permits uint16 // of reqPermits: that it asks for,
	of      uint16 // and of how many
	arrival uint64 // number of the acquire, in the whole world
	arrived int64  // host clock
	target  uint64 // release, force: the hold. cancel: the request.

	canceled       bool          // cancel: its target was answered with canceled
	isUnheard      bool          // acquire: it was answered, by a sidecar that was killed before the client had that
	mayDeadlock    bool          // acquire
	mustDeadlock   bool          // acquire
	reached        int64         // acquire: when it arrived at Redis, by its clock, µs; 0: it has not
	reachedFirst   int64         // acquire: the same, for the first time
	isArrivalKnown bool          // acquire: to its table
	obstructed     bool          // acquire: another owner held the lock or waited for it when it came
	wantError      protocol.Code // release, force: the error that it must get; "": none
	either         bool          // release, force: the hold is just expiring, so both answers are right
	left           uint32        // release: entries that it leaves
}

// waits reports whether an acquire waits for more than the reply of Redis.
func (q *request) waits(now int64) bool {
	return q.acquire.WaitMS == protocol.Forever || now < q.arrived+q.acquire.WaitMS*ms
}

// latest is when an acquire that does not wait forever must be answered.
func (q *request) latest() int64 { return q.arrived + max(q.acquire.WaitMS*ms, tryWithin) }

// find returns the index of a request that has no answer, or -1.
func (s *session) find(id uint64, kind requestKind) int {
	for i := range s.requests {
		if s.requests[i].id == id && s.requests[i].kind == kind {
			return i
		}
	}
	return -1
}

// findAcquire returns the index of an acquire that has no answer, or -1.
func (s *session) findAcquire() int {
	for i := range s.requests {
		if s.requests[i].kind == reqAcquire {
			return i
		}
	}
	return -1
}

// peer is the process of a client.
func peer(slot int) locktable.Peer {
	return locktable.Peer{PID: int64(slot) + 1, UID: 1000 + int64(slot)%3, Cmd: "sim"}
}

// slotOf is the index of a session on its host.
func slotOf(id locktable.SessionID) int { return int(id & 0xff) }

// open opens a session.
func (w *world) open(h *host, slot int) {
	s := &h.sessions[slot]
	s.gen++
	s.id = locktable.SessionID(uint64(s.gen)<<8 | uint64(slot))
	s.open, s.detached = true, false
	s.clientState = clientState{resumable: !w.plan.notResumable || w.random.oneIn(2)}
	s.requests = s.requests[:0]
	s.lastID = 0
	s.scheduled = false
	if w.trace.on {
		w.trace.add(w, -1, h, "open s%d", s.id)
	}
	h.table.Open(h.clock(w.now), s.id, peer(slot))
	h.journal.open(h.table.Record(s.id), peer(slot))
	w.drain(h)
	w.schedule(h, s, w.pause())
}

// schedule has s act after d, unless it is scheduled already.
func (w *world) schedule(h *host, s *session, d int64) {
	if s.scheduled {
		return
	}
	s.scheduled = true
	w.after(d, event{kind: evClient, host: int16(h.index), arg: int32(slotOf(s.id)), gen: s.gen})
}

// reopen is the event that opens a session in the place of one that was closed.
func reopen(h *host, id locktable.SessionID) event {
	return event{kind: evOpen, host: int16(h.index), arg: int32(slotOf(id))}
}

// pause returns how long a client pauses before it acts.
func (w *world) pause() int64 {
	if w.phase != faulty {
		return w.random.between(ms, 10*ms)
	}
	return w.random.magnitude(w.plan.thinkTime>>6, w.plan.thinkTime)
}

// findHeld returns the name of a lock whose hold the client believes in, or -1. It starts
// at any of them.
func (w *world) findHeld(h *host, s *session) int {
	n := w.plan.names
	at := int(w.random.below(int64(n)))
	for range n {
		if c := &h.locks[at].hold; c.state == live && c.session == s.id {
			return at
		}
		if at++; at == n {
			at = 0
		}
	}
	return -1
}

// act has a client do something.
func (w *world) act(h *host, s *session) {
	if !s.open || h.process == stopping {
		return
	}
	p := &w.plan
	if s.detached {
		w.close(h, s)
		w.after(w.pause(), reopen(h, s.id))
		return
	}
	if p.permits > 0 && w.actOnPermits(h, s) {
		return
	}
	if w.phase != faulty {
		if n := w.findHeld(h, s); n >= 0 {
			w.release(h, s, n)
			if w.findHeld(h, s) >= 0 {
				w.schedule(h, s, w.pause())
			}
		}
		return
	}
	pause := w.pause()
	switch x := w.random.below(1000); {
	case x < 420:
		if n := w.findHeld(h, s); n >= 0 {
			if !p.longHolds || w.random.oneIn(6) {
				w.release(h, s, n)
				if p.confirms && w.random.oneIn(4) {
					w.confirm(h, s, n)
				}
			}
			break
		}
		fallthrough
	case x < 850:
		w.acquire(h, s)
	case x < 870:
		w.releaseEnded(h, s)
	case x < 930 && p.cancels:
		w.cancel(h, s)
	case x < 945 && p.forces:
		w.forceRelease(h, s)
	case x < 960:
		w.readRows(h)
	case x < 975 && p.deaths:
		w.close(h, s)
		w.after(pause, reopen(h, s.id))
		return
	case x < 980 && p.detaches:
		w.detach(h, s)
		pause = w.random.magnitude(ms, 2*h.lease)
	case x < 990 && p.pauses:
		pause = w.random.magnitude(ms, int64(3*p.table.Lease))
	}
	w.schedule(h, s, pause)
}

// acquire sends an acquire of any kind.
func (w *world) acquire(h *host, s *session) {
	p := &w.plan
	r := &w.random
	if len(s.requests) > 3 {
		return
	}
	n := int(r.below(int64(p.names)))
	req := protocol.Acquire{Name: lockNames[n], WaitMS: protocol.Forever}
	if p.finiteWaits {
		switch r.below(4) {
		case 0:
			req.WaitMS = 0
		case 1:
			req.WaitMS = r.magnitude(1, 2*p.thinkTime/ms+50)
		}
	}
	if p.owners && !r.oneIn(4) {
		req.Owner = uint64(r.between(1, 2))
		req.NotReentrant = p.notReentrant && r.oneIn(3)
	}
	if p.fixedLease && r.oneIn(3) {
		req.LeaseMS = r.magnitude(protocol.MinLeaseMS, int64(2*p.table.Lease)/ms)
	}
	req.Fair = r.oneIn(p.fair)
	if p.maxHold && r.oneIn(4) {
		req.MaxHoldMS = r.magnitude(1, int64(p.table.Lease)/ms)
	}
	if p.crashDelay && r.oneIn(2) {
		req.CrashDelayMS = r.magnitude(1, int64(p.table.Lease)/ms*3/2)
	}
	if r.oneIn(p.keep) {
		req.KeepMS = r.magnitude(1, int64(p.table.Lease)/ms*3/2)
	}
	w.sendAcquire(h, s, n, req)
}

func (w *world) sendAcquire(h *host, s *session, n int, req protocol.Acquire) {
	s.lastID++
	req.ID = s.lastID
	now := h.clock(w.now)
	w.arrivals++
	q := request{id: req.ID, kind: reqAcquire, name: int8(n), acquire: req, arrival: w.arrivals, arrived: now}
	w.checkArrival(h, s, &q)
	q.mayDeadlock = q.mayDeadlock || h.dying // there are grants of which no client knows yet
	s.requests = append(s.requests, q)
	w.waiting++
	if req.WaitMS == 0 {
		h.noWait++
	}
	if w.trace.on {
		w.trace.add(w, n, h, "s%d acquire id=%d owner=%d wait=%d lease=%d max_hold=%d crash_delay=%d keep=%d reentrant=%v fair=%v",
			s.id, req.ID, req.Owner, req.WaitMS, req.LeaseMS, req.MaxHoldMS, req.CrashDelayMS, req.KeepMS, !req.NotReentrant, req.Fair)
	}
	h.table.Acquire(now, s.id, req)
	w.drain(h)
	if !h.dying {
		w.checkDeadlock(h, s, req.ID)
	}
}

func (w *world) release(h *host, s *session, n int) {
	c := &h.locks[n].hold
	req := protocol.Release{Hold: c.num, CutShort: c.num%8 == 0}
	now := h.clock(w.now)
	q := request{kind: reqRelease, name: int8(n), target: c.num, left: c.count - 1}
	q.either = now >= c.deadline || c.maxHoldEnd > 0 && now >= c.maxHoldEnd
	if w.random.oneIn(2) || q.either {
		s.lastID++
		req.ID = s.lastID
		q.id = req.ID
		s.requests = append(s.requests, q)
	}
	if w.trace.on {
		w.trace.add(w, n, h, "s%d release id=%d hold=%d", s.id, req.ID, req.Hold)
	}
	if !q.either {
		// The client does not believe in this entry from here on, whatever the answer is.
		if c.count--; c.count == 0 {
			w.leaveHold(h, n)
		}
	}
	h.table.Release(now, s.id, req)
	w.drain(h)
}

// confirm requests an answer when Redis has executed the releases of a lock.
func (w *world) confirm(h *host, s *session, n int) {
	if h.dying || !s.open || len(s.requests) > 5 {
		return
	}
	s.lastID++
	s.requests = append(s.requests, request{id: s.lastID, kind: reqConfirm, name: int8(n)})
	if w.trace.on {
		w.trace.add(w, n, h, "s%d confirm id=%d", s.id, s.lastID)
	}
	h.table.Confirm(h.clock(w.now), s.id, protocol.Confirm{ID: s.lastID, Name: lockNames[n]})
	w.drain(h)
}

// confirmsWait reports whether a confirm has no answer.
func (w *world) confirmsWait() bool {
	for _, h := range w.hosts {
		for i := range h.sessions {
			for j := range h.sessions[i].requests {
				if h.sessions[i].requests[j].kind == reqConfirm {
					return true
				}
			}
		}
	}
	return false
}

// releaseEnded releases a hold that has ended, or one of another session: nothing may
// change.
func (w *world) releaseEnded(h *host, s *session) {
	num := s.ended[w.random.below(4)]
	if w.random.oneIn(3) {
		if c := &h.locks[w.random.below(int64(w.plan.names))].hold; c.state != none && c.session != s.id {
			num = c.num
		}
	}
	for n := range w.plan.names { // its end may have been lost with the sidecar
		if c := &h.locks[n].hold; c.num == num && c.session == s.id && c.state != none && c.state != orphaned {
			return
		}
	}
	if num == 0 {
		return
	}
	s.lastID++
	s.requests = append(s.requests, request{id: s.lastID, kind: reqRelease, name: -1, target: num, wantError: protocol.NotHeld})
	if w.trace.on {
		w.trace.add(w, -1, h, "s%d release id=%d hold=%d (not its own)", s.id, s.lastID, num)
	}
	h.table.Release(h.clock(w.now), s.id, protocol.Release{ID: s.lastID, Hold: num})
	w.drain(h)
}

func (w *world) cancel(h *host, s *session) {
	target := s.lastID
	name := int8(-1)
	if i := s.findAcquire(); i >= 0 && !w.random.oneIn(4) {
		target, name = s.requests[i].id, s.requests[i].name
	}
	if target == 0 {
		return
	}
	s.lastID++
	s.requests = append(s.requests, request{id: s.lastID, kind: reqCancel, name: name, target: target})
	if w.trace.on {
		w.trace.add(w, int(name), h, "s%d cancel id=%d target=%d", s.id, s.lastID, target)
	}
	h.table.Cancel(h.clock(w.now), s.id, protocol.Cancel{ID: s.lastID, Target: target})
	w.drain(h)
}

func (w *world) forceRelease(h *host, s *session) {
	n := int(w.random.below(int64(w.plan.names)))
	l := &h.locks[n]
	c := &l.hold
	now := h.clock(w.now)
	s.lastID++
	q := request{id: s.lastID, kind: reqForce, name: int8(n), target: c.num}
	if c.state == none {
		q.wantError = protocol.NotHeld
	} else {
		q.either = !l.isProtected(now) || c.maxHoldEnd > 0 && now >= c.maxHoldEnd
		w.check.forcing = c.num
	}
	if c.state == away || c.state == unbelieved { // its host may know of it for longer than its client
		q.either = true
	}
	s.requests = append(s.requests, q)
	if w.trace.on {
		w.trace.add(w, n, h, "s%d force_release id=%d", s.id, s.lastID)
	}
	h.table.ForceRelease(now, s.id, protocol.ForceRelease{ID: s.lastID, Name: lockNames[n]})
	w.drain(h)
	if !h.dying {
		w.check.forcing = 0
	}
}

// readRows reads rows of the table, which must change nothing and be right.
func (w *world) readRows(h *host) {
	now := h.clock(w.now)
	n := int(w.random.below(int64(w.plan.names)))
	row, ok := h.table.Info(now, lockNames[n])
	w.checkRow(h, n, row, ok)
	h.table.List(now, 0, func(protocol.LockRow) bool { return true })
	w.drain(h)
}

// close ends a client's process, or its connection.
func (w *world) close(h *host, s *session) {
	if w.trace.on {
		w.trace.add(w, -1, h, "close s%d", s.id)
	}
	w.dropRequests(h, s)
	w.resetClient(s)
	s.open = false
	w.closeInTable(h, s.id)
	w.drain(h)
}

// closeInTable closes a session, whose client is dead, in the table of its host.
func (w *world) closeInTable(h *host, id locktable.SessionID) {
	now := h.clock(w.now)
	for n := range w.plan.names {
		c := &h.locks[n].hold
		if c.session != id || c.state == none || c.state == orphaned {
			continue
		}
		crashDelay := c.crashDelay
		if w.leaveHold(h, n); c.state == none && crashDelay > 0 {
			c.state = orphaned
			c.orphanedUntil = now + crashDelay
		}
	}
	w.closePermits(h, id)
	h.closing++
	h.table.Close(now, id)
}

// detach has the sidecar stop serving a session. Its holds stay until they expire.
func (w *world) detach(h *host, s *session) {
	if w.trace.on {
		w.trace.add(w, -1, h, "detach s%d", s.id)
	}
	w.onDetached(h, s)
	h.detaching = true
	h.table.Suspend(h.clock(w.now), s.id)
	w.drain(h)
}

func (w *world) onDetached(h *host, s *session) {
	w.dropRequests(h, s)
	w.resetClient(s)
	s.detached = true
	now := h.clock(w.now)
	for n := range w.plan.names {
		c := &h.locks[n].hold
		if c.session != s.id || !c.isBelieved() && c.state != unbelieved {
			continue
		}
		c.detachedAt = now
		if c.isBelieved() {
			w.believed--
			c.state = unserved
		}
	}
	w.detachPermits(h, s.id)
}

// dropRequests forgets the requests of a client, which gets no answers any more.
func (w *world) dropRequests(h *host, s *session) {
	for i := range s.requests {
		if s.requests[i].kind.isAcquire() {
			w.waiting--
			if s.requests[i].acquire.WaitMS == 0 {
				h.noWait--
			}
		}
	}
	s.requests = s.requests[:0]
}
