package locktable

import "math"

// flushLeaseEvents coalesces: it sends each session with renewed holds one event, with the
// deadline that all of its watchdog holds have reached, if that is news to some of them.
func (t *Table) flushLeaseEvents() {
	for i := 0; i < len(t.leaseQueue); i++ { // it may grow
		s := t.leaseQueue[i]
		t.leaseQueue[i] = nil
		s.isQueued = false
		if !t.needsLeaseEvent(s) {
			continue
		}
		if t.now >= min(s.leaseSent, s.minUncovered) {
			// Of some holds the client has seen the deadline pass: they are lost,
			// and must not come back to life by this event.
			for h := s.holds.head; h != nil; {
				next := h.inSession.next
				if next == nil || next.lock != h.lock { // it ends all holds of the lock that are over
					t.reconcile(t.visit(t.now, h.lock))
				}
				h = next
			}
			if !t.needsLeaseEvent(s) {
				continue
			}
		}
		d := t.reachedDeadline(s)
		if d < s.leaseSent {
			t.lowerLease(s, d)
			continue
		}
		s.leaseSent, s.minUncovered, s.leaseSentEstimated = d, math.MaxInt64, false
		s.leaseSeq++
		t.markSessionDirty(s)
		if !s.phase.IsAway() { // finishResume sends it, when the client knows what it has lost
			t.emit(Effect{Kind: Lease, Session: s.id, Deadline: d})
		}
	}
	t.leaseQueue = t.leaseQueue[:0]
}
