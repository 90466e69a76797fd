package locktable

import (
	"fmt"
	"slices"
)

// Bind sets the terms of a session, if it has none yet. Holds that a predecessor granted count
// when their client claims them.
func (t *Table) Bind(id SessionID, terms *Terms) {
	if s := t.sessions[id]; s.terms == nil {
		s.terms = terms
	}
}

// overHolds says why the policy allows the session no further hold of a name; "": it allows one.
func (s *session) overHolds(name string) string {
	if s.terms == nil {
		return ""
	}
	if q, ok := s.terms.Holds.Of(name); ok {
		return q.Refuse()
	}
	return ""
}

// overWaiters is overHolds for acquires that are not answered.
func (s *session) overWaiters(name string) string {
	if s.terms == nil {
		return ""
	}
	if q, ok := s.terms.Waiters.Of(name); ok {
		return q.Refuse()
	}
	return ""
}

// countWaiter counts a request of the session, or that it is not there any more.
func (s *session) countWaiter(name string, n int) {
	if s.terms == nil {
		return
	}
	if q, ok := s.terms.Waiters.Of(name); ok {
		q.Add(n)
	}
}

// countHold counts a hold for the terms of its session. It counts until it ends: a crash delay
// must not be a way around the limit.
func (h *hold) countHold() {
	if h.session.terms == nil || h.isCounted {
		return
	}
	if q, ok := h.session.terms.Holds.Of(h.lock.name); ok {
		q.Add(1)
		h.isCounted = true
	}
}

func (h *hold) uncountHold() {
	if h.isCounted {
		q, _ := h.session.terms.Holds.Of(h.lock.name)
		q.Add(-1)
		h.isCounted = false
	}
}

// describe returns a process that has a lock for the client of a session, as far as the session may
// know of it.
func (s *session) describe(name string, p Peer) string {
	if s.terms != nil {
		if shown := s.terms.redactPeer(name, &p); !shown {
			return "a process of another user"
		}
	}
	return p.String()
}

// describeOwner is describe for the owner of a hold.
func (s *session) describeOwner(name string, h *hold) string {
	p := h.session.peer
	if s.terms != nil && !s.terms.redactPeer(name, &p) {
		return "a process of another user"
	}
	return fmt.Sprintf("owner %d of %s", h.owner, p)
}

// mayName reports whether the session may know of a lock that processes of these users hold or want.
func (s *session) mayName(name string, users ...int64) bool {
	if s.terms == nil {
		return true
	}
	scope, _ := s.terms.Scope.Of(name)
	return scope == ScopeAll || scope == ScopeOwn && slices.Contains(users, s.terms.UID)
}
