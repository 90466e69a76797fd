package locktable

import "math"

// Lease events. A session is sent one deadline for all its watchdog holds: the one that
// each of them has reached. Its holds are counted in buckets by their deadlines, so that
// their minimum costs nothing however many there are.

// bucketWidth is the width of a bucket of deadlineBuckets.
func (t *Table) bucketWidth() int64 { return int64(t.cfg.Lease) / 16 }

// trackDeadline counts the deadline of a watchdog hold in its session. It is called
// whenever the validity of the lock's claim changes.
func (t *Table) trackDeadline(h *hold) {
	if h == nil || !h.sharesLeaseEvents() {
		return
	}
	b, m := t.validUntil(h.lock)/t.bucketWidth(), t.manyOf(h.lock)
	if m != nil && m.bucket != b {
		m.bucket = 0 // not all are in one bucket
	}
	if h.isTracked && h.bucket == b {
		return
	}
	t.untrackDeadline(h)
	h.isTracked, h.bucket = true, b
	if m != nil && t.cfg.SlotOf != nil {
		m.dueAt = min(m.dueAt, t.giveUpForOthersAt(h.lock)) // its shard may be down by then
	}
	s := h.session
	s.deadlineBuckets[b]++
	s.minBucket = min(s.minBucket, b)
}

// trackDeadlines counts the deadlines of all holds of a lock, whose claim is valid until another time.
func (t *Table) trackDeadlines(l *lock) {
	m := t.manyOf(l)
	if m == nil {
		t.trackDeadline(l.holders.sole())
		return
	}
	if m.orphans > 0 {
		m.dueAt = min(m.dueAt, t.validUntil(l)) // when these end, if they are renewed
	}
	if b := t.validUntil(l) / t.bucketWidth(); m.bucket != b {
		for h := range t.holdsOf(l) {
			t.trackDeadline(h)
		}
		m.bucket = b
	}
}

func (t *Table) untrackDeadline(h *hold) {
	if !h.isTracked {
		return
	}
	h.isTracked = false
	s := h.session
	if s.deadlineBuckets[h.bucket]--; s.deadlineBuckets[h.bucket] == 0 {
		delete(s.deadlineBuckets, h.bucket)
		t.queueLeaseEvent(s) // this one may have kept the others' deadline down
	}
	if len(s.deadlineBuckets) == 0 {
		s.minBucket = math.MaxInt64
	}
}

// giveUpForOthersAt is the earliest time at which holds of a lock are given up for the sake of others.
func (t *Table) giveUpForOthersAt(l *lock) int64 { return t.validUntil(l) - 2*t.bucketWidth() }

// lastsShortest reports whether other holds of the session are confirmed for longer by a quarter of a
// lease at least. Precondition: the hold is tracked.
func (t *Table) lastsShortest(h *hold) bool {
	const quarter = 4 // of 16 buckets
	for b := range h.session.deadlineBuckets {
		if b >= h.bucket+quarter {
			return true
		}
	}
	return false
}

// onWatchdogGrant notes that the session is granted a watchdog hold until a deadline.
func (t *Table) onWatchdogGrant(s *session, until int64) {
	if len(s.deadlineBuckets) == 0 || s.leaseSentEstimated && until < s.leaseSent {
		s.leaseSent = until / t.bucketWidth() * t.bucketWidth() // an event with less is not needed
		s.leaseSentEstimated = true
		t.markSessionDirty(s)
	}
	if until < s.leaseSent {
		s.minUncovered = min(s.minUncovered, until)
	}
}

// queueLeaseEvent marks the session for the next flush of lease events.
func (t *Table) queueLeaseEvent(s *session) {
	if !s.isQueued {
		s.isQueued = true
		t.leaseQueue = append(t.leaseQueue, s)
	}
}

// lowerLease sends a session a deadline that is below the last one, for holds that were
// granted since then with still less. The last one stays true of the others.
func (t *Table) lowerLease(s *session, d int64) {
	s.minUncovered = d
	for h := s.holds.head; h != nil && h.leaseSeq == s.leaseSeq; h = h.inSession.next { // newest first
		if h.isRenewed() && h.deadline < d {
			h.deadline = d
			t.touch(h)
			t.markDirty(h.lock)
		}
	}
	t.emit(Effect{Kind: Lease, Session: s.id, Deadline: d})
}

// reachedDeadline is the deadline that all watchdog holds of the session have reached.
func (t *Table) reachedDeadline(s *session) int64 {
	for s.deadlineBuckets[s.minBucket] == 0 {
		s.minBucket++
	}
	return s.minBucket * t.bucketWidth()
}

func (t *Table) needsLeaseEvent(s *session) bool {
	if len(s.deadlineBuckets) == 0 || s.phase.IsOver() {
		return false
	}
	d := t.reachedDeadline(s)
	return d > s.leaseSent || s.minUncovered < d && (d == s.leaseSent || !s.phase.IsAway())
}
