package sim

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// Sidecars that die, stop, and are started again on the same host, and their
// clients, which come back and claim what they have, or do not.
//
// A client knows what it was told: frames that were written to its socket it reads
// even when the sidecar is dead, others never existed. What it sent may have been
// read by nobody. The sidecar's memory may be ahead of both, never behind.

// ---- the memory

// keeper is what survives a sidecar's process.
type keeper struct {
	w        *world
	h        *host
	slots    [2 * maxNames]locktable.LockRecord
	taken    [2 * maxNames]bool
	room     int
	last     uint64
	run      int // of Redis, with which there was a connection last
	floor    tokenFloor
	sessions []locktable.RememberedSession
	whole    bool // it has everything it was given
	full     bool // it is not whole because a lock found no room
	budget   int  // calls until the process dies; -1: it does not
}

func newKeeper(w *world, h *host) *keeper {
	k := &keeper{w: w, h: h, room: 2 * maxNames, whole: true, budget: -1}
	if w.plan.room > 0 {
		k.room = w.plan.room
	}
	return k
}

// dead tells whether the process dies in this call, or did before.
func (k *keeper) dead() bool {
	if k.budget > 0 {
		k.budget--
	}
	return k.budget == 0 || k.budget == buried
}

const buried = -2 // budget of a process that is dead

// tear writes a part of a record, field by field as sidecar/state does.
func (k *keeper) tear(to, r *locktable.LockRecord) {
	if to.Name != r.Name || k.budget == buried {
		return
	}
	was := &to.Hold
	stores := k.w.random.below(7)
	store := func() bool { stores--; return stores >= 0 }
	if r.Hold.Num == 0 || was.Num != r.Hold.Num {
		if store() {
			*was = locktable.HoldRecord{}
		}
		if store() {
			to.Top = r.Top
		}
		return
	}
	if store() {
		to.Top = r.Top
	}
	if store() {
		was.Deadline = r.Hold.Deadline
	}
	if store() {
		was.End = r.Hold.End
	}
	if store() {
		was.Tells, was.LeaseMS = r.Hold.Tells, r.Hold.LeaseMS
	}
	if store() {
		was.Count, was.CrashDelayMS = r.Hold.Count, r.Hold.CrashDelayMS
	}
	if store() {
		was.Orphan, was.InDoubt = r.Hold.Orphan, r.Hold.InDoubt
	}
}

func (k *keeper) KeepLast(num uint64) {
	if num < k.last {
		k.w.violation(-1, "host %d keeps %d as its last number, after %d", k.h.index, num, k.last)
	}
	if !k.dead() {
		k.last = num
	} else {
		k.budget = buried
	}
}

func (k *keeper) KeepLock(slot uint32, r *locktable.LockRecord) uint32 {
	n := nameIndex(r.Name)
	if h := &r.Hold; h.Num > r.Top || k.budget == -1 && r.Top > k.last ||
		h.Num != 0 && (h.Token == 0 || h.Count == 0 || h.Session == 0 || h.Deadline == 0) {
		k.w.violation(n, "host %d keeps %+v; its last number is %d", k.h.index, *r, k.last)
	}
	if slot != 0 && k.budget != buried && (!k.taken[slot-1] || k.slots[slot-1].Name != r.Name) {
		k.w.violation(n, "host %d keeps a lock in slot %d, which it does not have", k.h.index, slot)
	}
	if k.dead() {
		if slot != 0 && k.w.random.oneIn(2) {
			k.tear(&k.slots[slot-1], r)
		}
		k.budget = buried
		return max(slot, 1)
	}
	if slot == 0 {
		if k.find(n) != nil {
			k.w.violation(n, "host %d keeps a lock in two slots", k.h.index)
		}
		for i := range k.room {
			if !k.taken[i] {
				slot = uint32(i + 1)
			}
		}
		if slot == 0 {
			k.whole, k.full = false, true
			return 0
		}
	}
	k.taken[slot-1], k.slots[slot-1] = true, *r
	return slot
}

func (k *keeper) ForgetLock(slot uint32) {
	if k.dead() {
		k.budget = buried
		return
	}
	if slot == 0 || !k.taken[slot-1] {
		k.w.violation(-1, "host %d frees slot %d, which it does not have", k.h.index, slot)
	}
	k.taken[slot-1], k.slots[slot-1] = false, locktable.LockRecord{}
}

// growRoom now and then has the file system of a full keeper grow.
func (k *keeper) growRoom(t lockTable) {
	if k.full && k.w.random.oneIn(30) {
		k.room = len(k.slots)
		t.KeepAgain()
	}
}

// checkRoom marks a keeper as whole again when the table misses nothing in it.
func (k *keeper) checkRoom(t lockTable) {
	if !k.full {
		return
	}
	missing := 0
	for n := range k.w.plan.names {
		missing += btoi(k.find(n) == nil)
	}
	if unkept := t.Unkept(); unkept > missing {
		k.w.violation(-1, "host %d has %d locks for which there is no room; its keeper misses %d at most", k.h.index, unkept, missing)
	} else if unkept == 0 {
		k.w.check.met[wholeAgain]++
		k.whole, k.full = true, false
	}
}

func (k *keeper) session(id locktable.SessionID) *locktable.RememberedSession {
	for i := range k.sessions {
		if k.sessions[i].ID == id {
			return &k.sessions[i]
		}
	}
	return nil
}

func (k *keeper) KeepSession(r locktable.SessionRecord) {
	s := k.session(r.ID)
	if s == nil {
		k.w.violation(-1, "host %d keeps session %d, which is not open", k.h.index, r.ID)
	}
	if r.Tells < s.Tells || s.Detached && !r.Detached {
		k.w.violation(-1, "host %d keeps %+v of session %d, after %+v", k.h.index, r, r.ID, s.SessionRecord)
	}
	switch {
	case !k.dead():
		s.SessionRecord = r
	case k.budget == 0:
		s.Told = r.Told // Tells and Detached in one store behind it
		k.budget = buried
	}
}

// open and strike are what the loop does.
func (k *keeper) open(r locktable.SessionRecord, p locktable.Peer) {
	s := k.session(r.ID)
	if s == nil {
		k.sessions = append(k.sessions, locktable.RememberedSession{})
		s = &k.sessions[len(k.sessions)-1]
	}
	*s = locktable.RememberedSession{SessionRecord: r, Peer: p}
}

// strike takes a session out that has ended, once its holds are known to have.
func (k *keeper) strike(id locktable.SessionID) {
	for i := range k.sessions {
		if k.sessions[i].ID == id {
			k.sessions = append(k.sessions[:i], k.sessions[i+1:]...)
			return
		}
	}
}

// find returns what is kept of a lock, or nil.
func (k *keeper) find(n int) *locktable.LockRecord {
	for i := range k.slots {
		if k.taken[i] && k.slots[i].Name == lockNames[n] {
			return &k.slots[i]
		}
	}
	return nil
}

func (k *keeper) memory() locktable.Memory {
	m := locktable.Memory{Last: k.last, Sessions: append([]locktable.RememberedSession(nil), k.sessions...)}
	for i := range k.slots {
		if k.taken[i] {
			m.Locks = append(m.Locks, locktable.RememberedLock{Slot: uint32(i + 1), LockRecord: k.slots[i]})
		}
	}
	return m
}

// told is the deadline that a session was told of a hold, as it is kept.
func (k *keeper) told(r *locktable.HoldRecord) int64 {
	if s := k.session(r.Session); s != nil && r.LeaseMS == 0 && r.Tells != s.Tells {
		return max(r.Deadline, s.Told)
	}
	return r.Deadline
}

// has checks that a hold in which a client believes is kept as the client knows it.
func (k *keeper) has(n int, c *hold) {
	if !k.whole {
		return
	}
	r := k.find(n)
	if r == nil || r.Hold.Num != c.num {
		k.w.violation(n, "host %d does not keep hold %d of session %d, which believes in it", k.h.index, c.num, c.session)
	}
	h := &r.Hold
	if h.Token != c.token || h.Owner != c.owner || h.Session != c.session || h.Granted != c.granted || h.Orphan ||
		h.Count < c.count || h.End != c.maxEnd || int64(h.CrashDelayMS)*ms != c.crash || k.told(h) < c.told {
		k.w.violation(n, "host %d keeps %+v, told until %d; it is %+v", k.h.index, *h, k.told(h), *c)
	}
}

func (k *keeper) checkEmpty() {
	for i := range k.slots {
		if k.taken[i] {
			k.w.violation(-1, "everybody has left host %d, and it still keeps %+v", k.h.index, k.slots[i])
		}
	}
	if len(k.sessions) != 0 {
		k.w.violation(-1, "everybody has left host %d, and it still keeps session %d", k.h.index, k.sessions[0].ID)
	}
}

// ---- clients

type link uint8

const (
	attached link = iota
	absent        // its connection ended with its sidecar
	claiming      // it is back, and has not claimed everything
)

// clientSide is what a client knows of its session, besides what the checker
// assumes that both know, and what the loop of its sidecar knows of it.
type clientSide struct {
	link      link
	resumable bool
	restored  bool // in the table, and not taken up
	forsaken  bool // it will not come back
	doomed    bool // its process will end before it is back
	died      bool // while no sidecar ran
	ended     bool // by its sidecar: there was nothing to come back for
	asked     bool // a claim is under way
	lastClaim bool // the last one is, or was
	pages     int
	beliefs   []belief
	resend    []pending // acquires that were not answered
	surplus   []protocol.ClaimedHold
}

// belief is a hold as a client knows it that has lost its sidecar.
type belief struct {
	name    int8
	claimed bool
	gone    bool // its host knows that it is lost, and could not say so
	reason  protocol.Reason
	life    int // which process of the sidecar knows
	hold    hold
}

func (s *session) belief(num uint64) int {
	for i := range s.beliefs {
		if s.beliefs[i].hold.num == num {
			return i
		}
	}
	return -1
}

func (s *session) disbelieve(i int) { s.beliefs = append(s.beliefs[:i], s.beliefs[i+1:]...) }

// giveUp has a client that is not attached stop believing in a hold.
func (w *world) giveUp(h *host, s *session, i int) {
	b := &s.beliefs[i]
	if c := &h.names[b.name].hold; c.num == b.hold.num && c.state == away {
		c.state = stale
		w.lives--
	}
	s.disbelieve(i)
}

// forgetClient drops everything that only a client without its sidecar has.
func (w *world) forgetClient(s *session) {
	w.pendings -= len(s.resend)
	s.clientSide = clientSide{}
}

// cutOff ends the connection between a client and its sidecar.
func (w *world) cutOff(h *host, s *session) {
	was := s.link
	s.link, s.asked, s.lastClaim = absent, false, false
	for i := range s.beliefs {
		s.beliefs[i].claimed = false
	}
	if was == absent {
		return
	}
	if was == attached {
		for n := range w.plan.names {
			c := &h.names[n].hold
			if c.state != live || c.session != s.id {
				continue
			}
			if w.phase == stormy && w.random.oneIn(8) {
				w.check.met[releaseUnread]++
				w.endHold(h, n)
				c.state = stale
				continue
			}
			c.restored = true
			s.beliefs = append(s.beliefs, belief{name: int8(n), hold: *c})
			c.state = away
		}
		for i := range s.pend {
			q := &s.pend[i]
			if q.kind != reqAcquire {
				continue
			}
			canceled := false
			for j := range s.pend {
				canceled = canceled || s.pend[j].kind == reqCancel && s.pend[j].target == q.id
			}
			if !canceled {
				s.resend = append(s.resend, *q)
				w.pendings++
			}
		}
		w.forgetRequests(h, s)
	}
	s.doomed = w.random.oneIn(8)
	back := w.random.magnitude(ms, max(w.plan.patience, 2*ms))
	if w.phase != stormy {
		back = w.random.between(ms, 100*ms)
	}
	w.after(back, event{kind: evReturn, host: int16(h.index), arg: int32(s.id & 0xff), gen: s.gen})
}

// comesBack is a client that tries to resume its session.
func (w *world) comesBack(h *host, s *session, e event) {
	if s.gen != e.gen || s.link != absent || s.died || s.forsaken || h.left {
		return
	}
	up := !h.gone && !h.stopping
	switch {
	case s.doomed && w.phase == stormy:
		w.dies(h, s)
	case !up:
		w.after(w.random.between(ms, 300*ms), e)
	case s.ended:
		w.settle(h)
		w.check.met[newSessionForReturned]++
		resend := s.resend
		w.open(h, int(e.arg))
		s.resend = resend
		w.resendAll(h, s)
	case w.phase == stormy && w.random.oneIn(12):
		s.forsaken = true
		w.after(w.random.magnitude(h.lease/2, 3*h.longest), event{kind: evForsake, host: e.host, arg: e.arg, gen: e.gen})
	default:
		w.settle(h)
		if w.trace.on {
			w.trace.add(w, -1, h, "s%d comes back", s.id)
		}
		s.link, s.lastClaim, s.pages = claiming, false, 0
		h.table.Resume(s.id, peer(int(e.arg)))
		h.keeper.open(h.table.Record(s.id), peer(int(e.arg)))
		w.drain(h)
		w.after(w.random.below(20*ms), event{kind: evClaim, host: e.host, arg: e.arg, gen: e.gen})
	}
}

// dies is the end of the process of a client that is not attached.
func (w *world) dies(h *host, s *session) {
	reopen := event{kind: evReopen, host: int16(h.index), arg: int32(s.id & 0xff)}
	switch {
	case s.ended:
		w.forgetClient(s)
	case h.gone || h.stopping:
		if w.trace.on {
			w.trace.add(w, -1, h, "the process of s%d ends", s.id)
		}
		w.check.met[diedMeanwhile]++
		w.abandonBeliefs(h, s)
		w.pendings -= len(s.resend)
		s.resend = nil
		s.died = true
		return // its session is closed when its sidecar is back
	default:
		w.settle(h)
		w.close(h, s)
	}
	w.after(w.pause(), reopen)
}

func (w *world) abandonBeliefs(h *host, s *session) {
	for len(s.beliefs) > 0 {
		w.giveUp(h, s, 0)
	}
}

// forsaken is the end of a sidecar's patience.
func (w *world) forsaken(h *host, s *session, e event) {
	if s.gen != e.gen || s.link != absent || !s.forsaken || h.left {
		return
	}
	if h.gone || h.stopping {
		w.after(h.lease, e)
		return
	}
	w.settle(h)
	w.check.met[forsakenClient]++
	if w.phase != stormy {
		w.close(h, s)
		return
	}
	w.detach(h, s)
	w.schedule(h, s, w.random.magnitude(ms, 2*h.lease))
}

// claims is a client that claims the next page of its holds, unless something comes
// in between.
func (w *world) claims(h *host, s *session, e event) {
	if s.gen != e.gen || s.link != claiming || h.gone {
		return
	}
	w.settle(h)
	if w.phase == stormy {
		switch w.random.below(24) {
		case 0, 1:
			w.check.met[adriftWhileClaiming] += btoi(s.pages > 0)
			w.cutOff(h, s)
			return
		case 2:
			w.check.met[diedWhileClaiming]++
			w.dies(h, s)
			return
		case 3:
			if w.plan.crashes > 0 {
				w.check.met[killedWhileClaiming] += btoi(s.pages > 0)
				w.crash(h)
				return
			}
		}
	}
	w.claimPage(h, s)
}

func (w *world) claimPage(h *host, s *session) {
	if s.asked {
		return
	}
	now := h.clock(w.now)
	for i := 0; i < len(s.beliefs); {
		b := &s.beliefs[i]
		if !b.claimed && (b.hold.over(now) || w.phase == stormy && w.random.oneIn(12)) {
			w.giveUp(h, s, i)
			continue
		}
		if !b.claimed && b.hold.count > 1 && w.random.oneIn(4) { // it left once in the meantime
			w.check.met[claimedFewer]++
			b.hold.count--
			if c := &h.names[b.name].hold; c.num == b.hold.num && c.state == away {
				c.count--
			}
		}
		i++
	}
	s.lastID++
	req := protocol.Claim{ID: s.lastID}
	room := int(w.random.between(0, 2))
	for i := range s.beliefs {
		b := &s.beliefs[i]
		if b.claimed {
			continue
		}
		if room--; room < 0 {
			req.More = true
			break
		}
		b.claimed = true
		req.Holds = append(req.Holds, protocol.ClaimedHold{Hold: b.hold.num, Entries: b.hold.count})
	}
	req.More = req.More || w.random.oneIn(4)
	s.asked, s.lastClaim = true, !req.More
	if s.pages++; s.pages == 2 {
		w.check.met[claimedInPages]++
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "s%d claims id=%d %v more=%v", s.id, req.ID, req.Holds, req.More)
	}
	if fault := h.table.Claim(now, s.id, &req); fault != "" {
		w.violation(-1, "host %d says of session %d: %s; it claims %v", h.index, s.id, fault, req.Holds)
	}
	w.drain(h)
	if h.dying {
		return
	}
	if s.link == claiming {
		if s.asked {
			w.violation(-1, "the claim %d of session %d is not answered", req.ID, s.id)
		}
		pause := w.random.magnitude(10*µs, 200*ms)
		if w.phase == stormy && w.random.oneIn(3) {
			pause = w.random.between(ms, 2*h.lease)
		}
		w.after(pause, event{kind: evClaim, host: int16(h.index), arg: int32(s.id & 0xff), gen: s.gen})
		return
	}
	for _, c := range s.surplus {
		for range c.Entries {
			if w.trace.on {
				w.trace.add(w, -1, h, "s%d releases %d, which it has given up", s.id, c.Hold)
			}
			h.table.Release(now, s.id, protocol.Release{Hold: c.Hold})
			w.drain(h)
		}
	}
	for n := range w.plan.names {
		if c := &h.names[n].hold; len(s.surplus) > 0 && c.session == s.id && c.state == stale {
			c.state = none
		}
	}
	s.surplus = nil
	w.resendAll(h, s)
}

// claimed judges the answer to a claim.
func (w *world) claimed(h *host, e *locktable.Effect) {
	s := w.sessionOf(h, e)
	if s.link != claiming || s.detached || !s.asked || e.ID != s.lastID || e.Was != s.lastClaim {
		w.violation(-1, "session %d is told that its claim %d is done (last: %v)", s.id, e.ID, e.Was)
	}
	for i := range s.beliefs {
		if b := &s.beliefs[i]; b.claimed && b.gone {
			w.violation(int(b.name), "session %d claimed hold %d, which is gone, and is not told", s.id, b.hold.num)
		}
	}
	s.asked = false
	if !e.Was {
		return
	}
	now := h.clock(w.now)
	for n := range w.plan.names {
		hn := &h.names[n]
		c := &hn.hold
		if c.session != s.id || c.state != away && c.state != stale {
			continue
		}
		row, _ := h.table.Info(now, lockNames[n])
		if c.state == stale {
			if row.State == protocol.StateHeld && row.Hold == c.num {
				w.violation(n, "session %d did not claim hold %d, and still has it", s.id, c.num)
			}
			w.check.met[unclaimedHold]++
			w.endHold(h, n)
			continue
		}
		if row.Hold != c.num || row.Count != c.count || row.Token != c.token || row.Absent {
			w.violation(n, "session %d claimed hold %d with %d entries, token %d; it has %+v", s.id, c.num, c.count, c.token, row)
		}
		w.check.met[claimedHold]++
		if c.over(now) { // between the claim and its answer its client stopped believing
			w.check.met[overMeanwhile]++
			c.state = stale
			w.lives--
			s.surplus = append(s.surplus, protocolClaim(c))
			continue
		}
		c.state = live
	}
	s.link, s.restored = attached, false
	s.beliefs = nil
	w.schedule(h, s, w.pause())
}

func protocolClaim(c *hold) protocol.ClaimedHold {
	return protocol.ClaimedHold{Hold: c.num, Entries: c.count}
}

// resendAll asks again for what the client waits for, in the order of before.
func (w *world) resendAll(h *host, s *session) {
	now := h.clock(w.now)
	for len(s.resend) > 0 && !h.gone {
		q := s.resend[0]
		s.resend = s.resend[1:]
		w.pendings--
		if q.acquire.WaitMS > 0 {
			if q.acquire.WaitMS = (q.arrived + q.acquire.WaitMS*ms - now) / ms; q.acquire.WaitMS <= 0 {
				continue
			}
		}
		w.check.met[resent]++
		w.send(h, s, int(q.name), q.acquire)
		if w.phase == stormy && w.plan.crashes > 0 && w.random.oneIn(50) {
			w.crash(h)
		}
	}
}

// hears notes that a hold in which a client believes is lost, and whether it knows.
func (w *world) hears(h *host, s *session, n int, e *locktable.Effect, heard bool) {
	i := s.belief(e.Hold)
	switch {
	case heard && s.link == attached:
	case heard:
		if i < 0 || !s.beliefs[i].claimed {
			w.violation(n, "session %d is told that it lost hold %d before it has claimed it", s.id, e.Hold)
		}
		w.check.met[lostWhileClaiming]++
		s.disbelieve(i)
	default:
		if i < 0 {
			i = len(s.beliefs)
			s.beliefs = append(s.beliefs, belief{name: int8(n), hold: h.names[n].hold})
		}
		b := &s.beliefs[i]
		b.gone, b.reason, b.life = true, e.Reason, h.life
	}
}

// forgotten judges the news that a claimed hold is gone.
func (w *world) forgotten(h *host, s *session, e *locktable.Effect) {
	i := s.belief(e.Hold)
	if s.link != claiming || i < 0 || !s.beliefs[i].claimed {
		w.violation(-1, "session %d is told that hold %d is forgotten, and did not claim it", s.id, e.Hold)
	}
	b := &s.beliefs[i]
	if !b.gone {
		w.violation(int(b.name), "hold %d of session %d was neither released nor lost, and is forgotten", e.Hold, s.id)
	}
	reason := protocol.Forgotten
	if b.life == h.life {
		reason = b.reason // the loop knows
	}
	w.check.lost[reason]++
	w.check.met[claimedLost]++
	s.disbelieve(i)
}

// ---- the end of a process

// crash is kill -9, at any point between two instructions.
func (w *world) crash(h *host) {
	if w.trace.on {
		w.trace.add(w, -1, h, "kill -9")
	}
	h.dying = true
	inputs := h.undrained
	last := w.random.below(4)
	if s := &h.sessions[w.random.below(int64(len(h.sessions)))]; w.plan.forces && s.open && !s.detached && !h.stopping && s.link == attached && w.random.oneIn(3) {
		h.dying = false
		w.settle(h)
		h.dying = true
		w.forceRelease(h, s)
		inputs, last = true, 0
	}
	for ; last > 0; last-- {
		s := &h.sessions[w.random.below(int64(len(h.sessions)))]
		switch {
		case s.open && s.forsaken && s.restored && !h.stopping:
			h.table.Detach(h.clock(w.now), s.id)
		case !s.open || s.detached || h.stopping || s.link == absent:
			continue
		case s.link == claiming:
			w.claimPage(h, s)
		case last == 1 && w.random.oneIn(2):
			w.acquire(h, s)
		default:
			if n := w.held(h, s); n >= 0 {
				w.release(h, s, n)
			}
		}
		inputs = true
	}
	switch w.random.below(4) {
	case 0:
		w.check.met[killedBeforeKeeping] += btoi(inputs)
	case 1:
		h.keeper.budget = int(w.random.between(1, 4))
		effects := h.table.Effects()
		w.check.met[killedWhileKeeping] += btoi(h.keeper.budget == buried)
		h.keeper.budget = -1
		for i := range effects {
			w.unsent(h, &effects[i])
		}
	default:
		w.carryOutSome(h)
	}
	h.dying, h.undrained = false, false
	w.check.forcing = 0
	w.end(h)
}

// carryOutSome has the process die while it hands its operations to one writer, and
// its frames to others.
func (w *world) carryOutSome(h *host) {
	effects := h.table.Effects()
	h.keeper.run, h.keeper.floor = h.conn.run, h.floor
	ops := int64(0)
	for i := range effects {
		ops += int64(btoi(effects[i].Kind == locktable.Redis))
	}
	left := w.random.below(ops + 1)
	if w.random.oneIn(2) {
		left = ops
	}
	var cut [256]bool
	all := w.random.oneIn(4)
	lost := 0
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case locktable.Redis:
			if left--; left >= 0 {
				w.apply(h, e)
			} else {
				lost++
			}
		case locktable.Subscribe, locktable.Unsubscribe, locktable.Closed:
		default:
			slot := e.Session & 0xff
			if cut[slot] = cut[slot] || all || w.random.oneIn(3); cut[slot] {
				lost++
				w.unsent(h, e)
			} else {
				w.apply(h, e)
			}
		}
	}
	w.check.met[killedWhileCarryout] += btoi(lost > 0)
}

// unsent is an effect of which the memory knows and no client.
func (w *world) unsent(h *host, e *locktable.Effect) {
	if w.trace.on && e.Kind != locktable.Redis {
		w.trace.effect(w, h, e)
		w.trace.add(w, -1, h, "     (which nobody gets)")
	}
	switch e.Kind {
	case locktable.Lost:
		w.lost(h, w.sessionOf(h, e), e, false)
	case locktable.Forced:
		for n := range w.plan.names {
			if c := &h.names[n].hold; c.num == e.Hold && c.state == orphan {
				w.endHold(h, n)
			}
		}
	case locktable.Granted:
		w.check.met[grantUnread]++
	}
}

// stop is an orderly end: what was read is done, nobody is told to wait, and what is
// given back is given back while there is time.
func (w *world) stop(h *host) {
	w.settle(h)
	if w.trace.on {
		w.trace.add(w, -1, h, "stop")
	}
	h.stopping = true
	now := h.clock(w.now)
	for i := range h.sessions {
		if s := &h.sessions[i]; s.open && !s.detached {
			w.cutOff(h, s)
		}
	}
	h.table.Adjourn(now)
	w.drain(h)
	for i := range h.sessions { // requests that were read before
		s := &h.sessions[i]
		for j := 0; j < len(s.beliefs); {
			b := s.beliefs[j]
			if s.restored || b.gone || !w.random.oneIn(4) {
				j++
				continue
			}
			w.giveUp(h, s, j)
			for range b.hold.count {
				h.table.Release(now, s.id, protocol.Release{Hold: b.hold.num})
				w.drain(h)
			}
		}
	}
	w.after(w.random.magnitude(ms, 2*sec), event{kind: evExit, host: int16(h.index), gen: uint32(h.life)})
}

func (w *world) exit(h *host) {
	w.settle(h)
	w.check.met[stoppedInOrder]++
	if w.trace.on {
		w.trace.add(w, -1, h, "exit")
	}
	w.end(h)
}

// end is what is left when a process is gone: Redis's side of its connections, its
// memory, and clients.
func (w *world) end(h *host) {
	for i := range h.sessions {
		s := &h.sessions[i]
		if s.open && !s.detached {
			w.cutOff(h, s)
		}
	}
	w.breakConnection(h, false)
	for i := range w.ops {
		o := &w.ops[i]
		if int(o.host) != h.index || o.settled {
			continue
		}
		if !o.queued && !o.executed {
			o.dead = true // it was not written
		}
		o.settled = true
		if !o.queued {
			w.free = append(w.free, int32(i))
		}
	}
	h.conn = connection{gen: h.conn.gen + 1, run: h.keeper.run}
	h.floor = h.keeper.floor
	h.closing = 0
	h.sub = subscription{gen: h.sub.gen + 1}
	h.gone, h.asleep, h.up, h.stopping, h.undrained = true, true, false, false, false
	h.tries, h.owed = 0, 0
	w.check.knows[h.index] = 0
	for n := range w.plan.names {
		w.setServer(h, n, false)
	}
	for n := range h.names {
		hn := &h.names[n]
		*hn = hostName{hold: hn.hold, inflight: -1, ahead: -1, excuse: hn.excuse, endedAt: hn.endedAt, trouble: hn.trouble, lastSeen: hn.lastSeen, lastSeenAt: hn.lastSeenAt}
	}
	if h.keeper.whole {
		for n := range w.plan.names {
			w.remember(h, n)
		}
		w.checkBeliefs(h)
		for i := range h.sessions {
			s := &h.sessions[i]
			if r := h.keeper.session(s.id); r != nil && r.Detached && s.open && !s.detached {
				w.detached(h, s)
			}
		}
	}
	pause := w.random.magnitude(5*ms, h.lease/2)
	if w.plan.longPauses && w.random.oneIn(3) {
		pause = w.random.magnitude(h.lease/2, 2*h.lease)
	}
	if w.phase != stormy {
		pause = w.random.between(ms, 100*ms)
	}
	w.after(pause, event{kind: evStart, host: int16(h.index)})
}

// remember compares what is kept of a lock with what its client knows, and makes of
// it what a successor will find.
func (w *world) remember(h *host, n int) {
	hn := &h.names[n]
	now := h.clock(w.now)
	c := &hn.hold
	var r locktable.HoldRecord
	if kept := h.keeper.find(n); kept != nil {
		r = kept.Hold
	}
	if c.state == away || c.state == unattended {
		if r.Num == c.num && !r.Orphan {
			if !c.over(now) {
				h.keeper.has(n, c)
			}
			c.confirmed = h.keeper.told(&r)
			return
		}
		if !c.over(now) {
			h.keeper.has(n, c)
		}
		w.endHold(h, n)
	}
	if r.Num == 0 {
		if hn.protected(now) {
			w.violation(n, "host %d does not keep hold %d, whose crash delay lasts", h.index, c.num)
		}
		c.state = none
		return
	}
	h.used[r.Num] = true
	was := c.state
	if r.Num != c.num {
		*c = hold{
			num: r.Num, token: r.Token, count: r.Count, owner: r.Owner, session: r.Session, fixed: r.LeaseMS > 0,
			granted: r.Granted, maxEnd: r.End, crash: int64(r.CrashDelayMS) * ms, keepUntil: r.End,
		}
		was = none
	}
	if r.Orphan {
		if was != orphan {
			c.keepUntil = now
		}
		c.state = orphan
		if c.fixed {
			return
		}
		c.told, c.confirmed = r.Deadline, r.Deadline
		return
	}
	c.state = stale
	c.told, c.confirmed = h.keeper.told(&r), h.keeper.told(&r)
	if was == orphan && h.keeper.session(r.Session) == nil {
		w.violation(n, "host %d keeps hold %d as its session's, which is closed", h.index, c.num)
	}
	if int(r.Session&0xff) >= len(h.sessions) {
		w.violation(n, "host %d keeps hold %d of session %d", h.index, r.Num, r.Session)
	}
	s := &h.sessions[r.Session&0xff]
	if i := s.belief(r.Num); i >= 0 && s.id == r.Session && s.open {
		// Its loss was not kept, so there was none.
		b := &s.beliefs[i]
		b.gone = false
		*c = b.hold
		c.state = away
		w.lives++
		if !c.over(now) {
			h.keeper.has(n, c)
		}
		c.confirmed = h.keeper.told(&r)
	}
}

// checkBeliefs: every hold that a client would claim is kept, or known to be lost.
func (w *world) checkBeliefs(h *host) {
	now := h.clock(w.now)
	for i := range h.sessions {
		s := &h.sessions[i]
		for j := range s.beliefs {
			b := &s.beliefs[j]
			if c := &h.names[b.name].hold; !b.gone && !b.hold.over(now) && (c.num != b.hold.num || c.state != away) {
				w.violation(int(b.name), "session %d believes in hold %d; host %d keeps %+v", s.id, b.hold.num, h.index, *c)
			}
		}
	}
}

// ---- the successor

func (w *world) start(h *host) {
	if !h.gone || h.left {
		return
	}
	if !h.keeper.whole {
		w.startAnew(h)
		return
	}
	h.gone = false
	h.life++
	now := h.clock(w.now)
	before := h.lease
	if w.plan.otherLease > 0 && w.random.oneIn(2) {
		h.lease = int64(w.plan.table.Lease) + int64(w.plan.otherLease) - h.lease
		h.longest = max(h.longest, h.lease)
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "start, lease %s", time.Duration(h.lease))
	}
	w.boot(h)
	m := h.keeper.memory()
	h.table.Restore(now, &m)
	h.trouble = w.now
	believed := 0
	for n := range w.plan.names {
		c := &h.names[n].hold
		w.check.met[restoredOrphan] += btoi(c.state == orphan)
		w.check.met[restoredHold] += btoi(c.state == away)
		believed += btoi(c.state == away && !c.over(now))
		if r := h.keeper.find(n); r != nil {
			w.check.met[restoredDrop] += btoi(r.Hold.Num == 0)
			w.check.met[otherLeaseConfigured] += btoi(r.Hold.Num != 0 && h.lease != before)
		}
	}
	w.check.met[startedWithinLease] += btoi(believed > 0)
	w.check.met[startedLate] += btoi(believed == 0 && len(m.Locks) > 0)
	for i := range h.sessions {
		h.sessions[i].restored = true
	}
	if w.phase == stormy && w.random.oneIn(10) {
		w.check.met[killedWhileRestoring]++
		w.crash(h)
		return
	}
	w.drain(h)
	for n := range w.plan.names {
		row, ok := h.table.Info(now, lockNames[n])
		w.checkRow(h, n, row, ok)
	}
	w.takeOver(h, &m)
	w.drain(h)
}

// takeOver is what the loop does with the sessions that it finds.
func (w *world) takeOver(h *host, m *locktable.Memory) {
	for _, r := range m.Sessions {
		s := &h.sessions[r.ID&0xff]
		reopen := event{kind: evReopen, host: int16(h.index), arg: int32(r.ID & 0xff)}
		switch {
		case !s.open || s.id != r.ID: // it was closed, and died with that unkept
			w.closeTable(h, r.ID)
		case s.died:
			w.close(h, s)
			w.after(w.pause(), reopen)
		case h.table.Holds(r.ID) == 0 && s.detached:
			w.close(h, s)
			w.after(w.pause(), reopen)
		case h.table.Holds(r.ID) == 0:
			s.open, s.ended = false, true
			w.closeTable(h, r.ID)
		case s.detached:
			w.check.met[restoredDetached]++
			w.schedule(h, s, w.pause())
		case !s.resumable:
			w.check.met[notResumed]++
			w.detach(h, s)
			w.schedule(h, s, w.pause())
		}
	}
}

// startAnew is a start without a usable state, as if on another host: the clients
// are alone with what they have, which is valid until the deadlines they were told.
func (w *world) startAnew(h *host) {
	w.check.met[startedAnew]++
	h.left = true
	for i := range h.sessions {
		s := &h.sessions[i]
		w.forgetClient(s)
		s.open = false
	}
	for n := range w.plan.names {
		hn := &h.names[n]
		switch c := &hn.hold; c.state {
		case away:
			w.lives--
			c.state = unattended
		case orphan, stale:
			c.state = none
		}
		hn.want, hn.acked = false, false
		w.setServer(h, n, false)
	}
	if len(w.hosts) < maxHosts { // or else nobody starts it
		w.addHost()
	}
}

// allBack tells whether every sidecar that will run runs, and every client that will
// come back is back.
func (w *world) allBack() bool {
	for _, h := range w.hosts {
		if h.left {
			continue
		}
		if h.gone || h.stopping {
			return false
		}
		for i := range h.sessions {
			if h.sessions[i].link != attached {
				return false
			}
		}
	}
	return true
}

// ---- suspended hosts

// freeze suspends a host: nothing there runs, and its clock does.
func (w *world) freeze(h *host, d int64) {
	if !h.gone {
		w.settle(h)
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "suspended for %s", time.Duration(d))
	}
	w.check.met[suspendedHost] += btoi(d > h.lease)
	h.frozen, h.thawAt = true, w.now+d
	h.wakeAt = max(h.wakeAt, h.thawAt)
	w.after(d, event{kind: evThaw, host: int16(h.index)})
}

func (w *world) thaw(h *host) {
	if !h.frozen {
		return
	}
	h.frozen, h.thawAt = false, 0
	for _, e := range h.deferred {
		w.after(0, e)
	}
	h.deferred = h.deferred[:0]
	if w.trace.on {
		w.trace.add(w, -1, h, "wakes up")
	}
	h.trouble = w.now
	if h.gone {
		return
	}
	h.table.Advance(h.clock(w.now)) // time's work comes first
	h.table.Work(h.clock(w.now))
	h.nextAt = -1
	w.drain(h)
}
