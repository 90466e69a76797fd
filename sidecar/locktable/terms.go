package locktable

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// Terms are what the policy of the host says about a session, as far as the table has to know
// it. They never change while the session lasts: what a hold or a request counts for is found
// again by its name.
type Terms struct {
	// UID is the user whose processes are the session's own; −1: none are, because the uid of the
	// session stands for many users.
	UID int64

	Holds    ByName[*Quota] // of the session's holds
	Waiters  ByName[*Quota] // of its acquires that are not answered
	Scope    ByName[Scope]  // which locks it may list; default ScopeAll
	Commands ByName[bool]   // whether it sees the commands of other users; default true
}

// ByName has a value for each name: that of the first element that matches the name.
type ByName[T any] []ForNames[T]

// ForNames is a value for the names that match one of the patterns; no patterns: for all names.
type ForNames[T any] struct {
	Names []NamePattern
	Value T
}

// Of returns the value for a name; false: there is none.
func (b ByName[T]) Of(name string) (value T, ok bool) {
	for i := range b {
		if b[i].matches(name) {
			return b[i].Value, true
		}
	}
	return value, false
}

func (f *ForNames[T]) matches(name string) bool {
	if len(f.Names) == 0 {
		return true
	}
	for _, p := range f.Names {
		if p.Matches(name) {
			return true
		}
	}
	return false
}

// Scope says of whose processes a session may know, or end the holds.
type Scope uint8

const (
	ScopeAll  Scope = iota // those of all users
	ScopeOwn               // those of its own user
	ScopeNone              // none
)

// Quota bounds what the sessions that share it have at one time. The table counts it.
type Quota struct {
	What    string // "holds", for instance: the key of the policy that sets the limit
	Rule    string // the name of the entry of the policy
	Sharers string // who shares it: "user 1001", for instance
	Most    int
	Refused *uint64 // where refusals are counted; nil: nowhere
	used    int
}

// Used is how much of the quota is used.
func (q *Quota) Used() int { return q.used }

// Refuse says why there is no room for one more, and counts the refusal; "": there is.
func (q *Quota) Refuse() string {
	if q.used < q.Most {
		return ""
	}
	if q.Refused != nil {
		*q.Refused++
	}
	return fmt.Sprintf("rule %q of the policy limits %s of %s to %d; end some, or raise %s of that rule", q.Rule, q.What, q.Sharers, q.Most, q.What)
}

// Add counts n more.
func (q *Quota) Add(n int) {
	if q.used += n; q.used < 0 {
		panic("locktable: less than nothing of a quota is used: " + q.What + " of " + q.Rule)
	}
}

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

// redactPeer takes out of a process that has a lock what the session may not know, and reports whether
// the session may know of the process at all.
func (terms *Terms) redactPeer(name string, p *Peer) (isShown bool) {
	if p.UID == terms.UID {
		return true
	}
	if scope, _ := terms.Scope.Of(name); scope != ScopeAll {
		return false
	}
	if commands, limited := terms.Commands.Of(name); limited && !commands {
		p.Cmd = ""
	}
	return true
}

// RedactEvent takes out of an event what the session may not know, apart from its message, and
// reports whether the session may see it: events of its own processes, or of locks of which it may
// list those of all users. Events about no lock are for all sessions.
func (terms *Terms) RedactEvent(r *protocol.EventRow) (isShown bool) {
	switch r.Kind {
	case protocol.EventTakeover, protocol.EventRedisDown, protocol.EventRedisUp, protocol.EventDataLost:
		return true
	}
	return terms.redactClient(r.Name, r.Session, r.UID, &r.Cmd)
}

// RedactAge is RedactEvent for the oldest hold or waiter.
func (terms *Terms) RedactAge(r *protocol.AgeRow) (isShown bool) {
	return terms.redactClient(r.Name, r.Session, r.UID, &r.Cmd)
}

// redactClient takes out the command of a client that did something with a lock, if the session may
// not know it, and reports whether the session may know that the client did it. A client without a
// session is one of another host, whose users are not those of this one.
func (terms *Terms) redactClient(name string, session uint64, uid int64, cmd *string) (isShown bool) {
	isOwn := session != 0 && uid == terms.UID
	scope, _ := terms.Scope.Of(name)
	if scope == ScopeNone || scope == ScopeOwn && !isOwn {
		return false
	}
	if commands, limited := terms.Commands.Of(name); limited && !commands && !isOwn {
		*cmd = ""
	}
	return true
}

// DescribePeer describes the process for whose hold of a lock another client waited, as far as the
// session may know of it.
func (terms *Terms) DescribePeer(name string, p Peer) string {
	if !terms.redactPeer(name, &p) {
		return "a process of another user"
	}
	return p.OfUser()
}

// Redact takes out of a row what the session may not know, and reports whether the row is in
// what the session lists.
func (terms *Terms) Redact(r *protocol.LockRow) (isListed bool) {
	uid := terms.UID
	scope, _ := terms.Scope.Of(r.Name)
	commands, limited := terms.Commands.Of(r.Name)
	hides := func(u int64) bool { return u != uid && scope != ScopeAll }
	isOwn := false
	if r.Session != 0 {
		if isOwn = r.UID == uid; hides(r.UID) {
			r.Hold, r.Token, r.Owner, r.Session, r.PID, r.UID, r.Cmd = 0, 0, 0, 0, 0, 0, ""
		} else if limited && !commands && !isOwn {
			r.Cmd = ""
		}
	}
	kept := r.Waiters[:0]
	for _, w := range r.Waiters {
		switch {
		case w.UID == uid:
			isOwn = true
		case hides(w.UID):
			continue
		case limited && !commands:
			w.Cmd = ""
		}
		kept = append(kept, w)
	}
	r.Waiters = kept
	return scope == ScopeAll || scope == ScopeOwn && isOwn
}
