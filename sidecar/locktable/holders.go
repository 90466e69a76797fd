package locktable

// The holds of one lock. Locks of kind lock have one hold at most. What follows from that calls sole:
// there, a further kind has to look at each.

// mode is that of the hold which a request becomes.
func (r *request) mode() Mode { return Exclusive }

func (h *hold) mode() Mode { return Exclusive }

// units is how many permits of its lock a hold has.
func (h *hold) units() uint16 { return 1 }

// isHeld reports whether a client of this host has the lock, or had it until its keep ends.
func (s *holders) isHeld() bool { return s.newest != nil }

// sole returns the hold of a lock that has one at most; nil: there is none.
func (s *holders) sole() *hold { return s.newest }

// add adds a hold.
func (s *holders) add(h *hold) { h.next, s.newest = s.newest, h }

// remove removes a hold, which is one of them.
func (s *holders) remove(h *hold) {
	at := &s.newest
	for *at != h {
		at = &(*at).next
	}
	*at = h.next
}

// admits reports whether the holds, if there are any, admit one of a mode beside them. It is the one
// place that says when a waiter gets a lock although there are holds.
func (s *holders) admits(next Mode) bool {
	for h := s.newest; h != nil; h = h.next {
		if !h.mode().admits(next) {
			return false
		}
	}
	return true
}

// each yields the holds, in any order.
func (s *holders) each(yield func(*hold) bool) {
	for h := s.newest; h != nil && yield(h); h = h.next {
	}
}
