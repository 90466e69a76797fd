package locktable

import (
	"math"

	"github.com/locksidecar/locksidecar/protocol"
)

// session is one client: its holds, its waiters, and what it was told about its
// watchdog deadlines.
type session struct {
	id       SessionID
	peer     Peer
	user     *user
	detached bool // lives, but is no longer served: its holds are not renewed
	ended    bool // its client is dead
	sweeping bool // in Table.sweeping
	absent   bool // was restored, and its client has not claimed its holds yet
	noted    bool // in notes.sessions
	unheard  bool // see told

	holds  *lock // first of the locks it holds, linked by hold.next
	nholds int

	confirms map[uint64]struct{} // ids of its confirms that are not answered; nil: it has sent none

	endedAt int64

	queue  list               // its waiters in the order of their arrival
	waits  map[uint64]*waiter // the same by request id
	owners map[uint64]*list   // the same by owner, without those of owner 0

	// Deadlines of its watchdog holds, counted in buckets of a sixteenth of the
	// lease, so that their minimum costs nothing however many there are.
	marks  map[int64]int32
	low    int64 // no bucket below it is in marks
	listed bool  // in Table.renewed

	told   int64  // deadline of the last Lease effect; unheard: about that of the worst watchdog hold, none was told since the first
	behind int64  // earliest deadline before told of a hold that was granted since then
	tells  uint32 // Lease effects so far
}

// Open begins a session.
func (t *Table) Open(_ int64, id SessionID, p Peer) { t.open(id, p) }

func (t *Table) open(id SessionID, p Peer) *session {
	s := &session{
		id:     id,
		peer:   p,
		waits:  make(map[uint64]*waiter),
		owners: make(map[uint64]*list),
		marks:  make(map[int64]int32),
		low:    math.MaxInt64,
		behind: math.MaxInt64,
	}
	s.user = t.userOf(p.UID)
	s.user.sessions++
	t.sessions[id] = s
	return s
}

// Close ends a session because its client died: its waiters vanish without an answer,
// its holds are released, each after its crash delay. What is left of a large session is
// done in Work. Closed follows when nothing is.
func (t *Table) Close(now int64, id SessionID) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	delete(t.sessions, id)
	s.user.sessions--
	s.ended, s.endedAt = true, now
	t.over(now, s)
}

// Detach ends the service to a client that lives but misbehaves: its waiters vanish, its
// holds stay, unrenewed, until their deadlines. Close releases them earlier.
func (t *Table) Detach(now int64, id SessionID) {
	s := t.sessions[id]
	if s == nil || s.detached {
		return
	}
	s.detached = true
	t.noteSession(s)
	t.over(now, s)
}

// over reports whether the session is not served any more.
func (s *session) over() bool { return s.ended || s.detached }

// over does what the end of a session asks of its waiters and holds, or leaves it for
// Work.
func (t *Table) over(now int64, s *session) {
	t.now = now
	if !s.sweeping && t.sweep(now, s, t.cfg.MaxWork) == 0 {
		s.sweeping = true
		t.sweeping = append(t.sweeping, s)
	}
}

// sweep takes a session's waiters away, and settles the locks that it holds, so that
// expire sees that it is over: at most so many. It returns how many of those are left
// over; 0: there may be more to do.
//
// Of a detached session each hold ends by its timer. It is only settled now if that is
// quick.
func (t *Table) sweep(now int64, s *session, most int) (left int) {
	for s.queue.head != nil {
		if most == 0 {
			return 0
		}
		most--
		w := s.queue.head
		t.unqueue(w)
		t.settle(now, w.lock)
	}
	if !s.ended {
		for l := s.holds; l != nil && most > 1; most-- {
			next := l.hold.next
			t.settle(now, l)
			l = next
		}
		return max(most, 1)
	}
	for s.holds != nil {
		if most == 0 {
			return 0
		}
		most--
		t.settle(now, s.holds)
	}
	if most == 0 {
		return 0
	}
	t.leave(s.user)
	t.emit(Effect{Kind: Closed, Session: s.id})
	return most
}

// orphan ends a hold whose session has ended, or keeps it for its crash delay.
func (t *Table) orphan(l *lock) {
	h := &l.hold
	t.unlinkHold(l)
	l.claim.validUntil = max(l.claim.validUntil, l.until()) // it may be from before a restart
	h.orphan = true
	if h.crashDelayMS == 0 {
		t.endHold(l)
	} else if end := h.session.endedAt + ms(h.crashDelayMS); h.endAt == 0 || end < h.endAt {
		h.endAt = end
	}
}

func (t *Table) settleAll(now int64, locks []*lock) {
	for _, l := range locks {
		if t.byName[l.name] == l { // it may be listed twice, and be gone by now
			t.settle(now, l)
		}
	}
}

// InUse tells whether the session has a request with this id that is not answered yet.
// Only an acquire and a confirm are not answered at once.
func (t *Table) InUse(id SessionID, request uint64) bool {
	s := t.sessions[id]
	if s == nil || len(s.waits)+len(s.confirms) == 0 {
		return false
	}
	_, confirms := s.confirms[request]
	return confirms || s.waits[request] != nil
}

func (t *Table) linkHold(l *lock) {
	h := &l.hold
	s := h.session
	h.prev, h.next = nil, s.holds
	if s.holds != nil {
		s.holds.hold.prev = l
	}
	s.holds = l
	s.nholds++
}

// unlinkHold takes the hold out of its session's list; the session stays known
// as the one that took it.
func (t *Table) unlinkHold(l *lock) {
	h := &l.hold
	if h.orphan {
		return
	}
	if h.prev != nil {
		h.prev.hold.next = h.next
	} else {
		h.session.holds = h.next
	}
	if h.next != nil {
		h.next.hold.prev = h.prev
	}
	h.prev, h.next = nil, nil
	h.session.nholds--
	t.unmark(l)
}

// mark counts the deadline of a watchdog hold in its session. It is called
// whenever known.until changes.
func (t *Table) mark(l *lock) {
	h := &l.hold
	if h.num == 0 || h.leaseMS != 0 || h.orphan {
		return
	}
	b := l.claim.validUntil / t.bucket()
	if h.marked && h.bucket == b {
		return
	}
	t.unmark(l)
	h.marked, h.bucket = true, b
	s := h.session
	s.marks[b]++
	s.low = min(s.low, b)
}

// bucket is the width of a bucket of session.marks.
func (t *Table) bucket() int64 { return int64(t.cfg.Lease) / 16 }

func (t *Table) unmark(l *lock) {
	h := &l.hold
	if !h.marked {
		return
	}
	h.marked = false
	s := h.session
	if s.marks[h.bucket]--; s.marks[h.bucket] == 0 {
		delete(s.marks, h.bucket)
		t.news(s) // this one may have kept the others' deadline down
	}
	if len(s.marks) == 0 {
		s.low = math.MaxInt64
	}
}

// news has tellLeases look at the session.
func (t *Table) news(s *session) {
	if !s.listed {
		s.listed = true
		t.renewed = append(t.renewed, s)
	}
}

// tellLeases sends each session with renewed holds the deadline that all of its
// watchdog holds have reached, if that is news to some of them.
func (t *Table) tellLeases() {
	for i := 0; i < len(t.renewed); i++ { // it may grow
		s := t.renewed[i]
		t.renewed[i] = nil
		s.listed = false
		if !s.hasNews(t) {
			continue
		}
		if t.now >= min(s.told, s.behind) {
			// Of some holds the client has seen the deadline pass: they are lost,
			// and must not come back to life by this event.
			for l := s.holds; l != nil; {
				next := l.hold.next
				t.settle(t.now, l)
				l = next
			}
			if !s.hasNews(t) {
				continue
			}
		}
		d := s.reached(t)
		if d < s.told {
			t.tellLess(s, d)
			continue
		}
		s.told, s.behind, s.unheard = d, math.MaxInt64, false
		s.tells++
		t.noteSession(s)
		if !s.absent { // takeUp tells those who are, when they know what they have lost
			t.emit(Effect{Kind: Lease, Session: s.id, Deadline: d})
		}
	}
	t.renewed = t.renewed[:0]
}

// tellLess sends a session a deadline that is less than it was told before, for holds
// that were granted since then with still less. What was told stays true of the others.
func (t *Table) tellLess(s *session, d int64) {
	s.behind = d
	for l := s.holds; l != nil && l.hold.tells == s.tells; l = l.hold.next { // newest first
		if h := &l.hold; h.leaseMS == 0 && h.deadline < d {
			h.deadline = d
			t.note(l)
		}
	}
	t.emit(Effect{Kind: Lease, Session: s.id, Deadline: d})
}

// reached is the deadline that all watchdog holds of the session have reached.
func (s *session) reached(t *Table) int64 {
	for s.marks[s.low] == 0 {
		s.low++
	}
	return s.low * t.bucket()
}

func (s *session) hasNews(t *Table) bool {
	if len(s.marks) == 0 || s.detached || s.ended {
		return false
	}
	d := s.reached(t)
	return d > s.told || s.behind < d && (d == s.told || !s.absent)
}

// abandonAt is when a hold that Redis refuses to renew is given up for lost: some
// time before its deadline, since that is also the deadline of everything else that
// the session holds under the watchdog. (What was told of it before a restart with a
// longer lease may be later: it is not what keeps the others down.)
func (t *Table) abandonAt(l *lock) int64 {
	if !l.watched() || l.hold.orphan {
		return math.MaxInt64
	}
	return min(l.until(), l.claim.validUntil) - int64(t.cfg.Lease)/4
}

// abandon tells the owner of such a hold that it is lost. Nobody else gets the lock
// before its deadline.
func (t *Table) abandon(l *lock) {
	h := &l.hold
	t.emit(Effect{Kind: Lost, Session: h.session.id, Name: l.name, Hold: h.num, Reason: protocol.Expired, Was: h.claimed != 0})
	h.deadline = l.until()
	h.leaseMS = t.leaseMS
	t.unlinkHold(l)
	h.orphan = true
}

// lose ends a hold that its owner did not release, and notifies the owner. found is
// what is under its name in Redis, if that is the reason.
func (t *Table) lose(l *lock, why protocol.Reason, found string) {
	h := &l.hold
	if !h.orphan {
		t.emit(Effect{Kind: Lost, Session: h.session.id, Name: l.name, Hold: h.num, Reason: why, Was: h.claimed != 0, Msg: found})
	}
	t.endHold(l)
}
