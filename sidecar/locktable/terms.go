package locktable

import (
	"fmt"

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
	if r.Name == "" {
		return true
	}
	return terms.redactClient(r.Name, r.Session, r.UID, &r.Cmd)
}

// RedactOldest takes out of a status the oldest waiter and hold that are hidden. Its numbers are of all users: the
// metrics have them, which each client may read.
func (terms *Terms) RedactOldest(m *protocol.StatusRow) {
	for _, row := range []**protocol.AgeRow{&m.OldestWaiter, &m.OldestHold} {
		if r := *row; r != nil && !terms.redactClient(r.Name, r.Session, r.UID, &r.Cmd) {
			*row = nil
		}
	}
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
// what the session lists. hasHold: a process of the session's user has the lock, though perhaps no hold in the row.
func (terms *Terms) Redact(r *protocol.LockRow, hasHold bool) (isListed bool) {
	uid := terms.UID
	scope, _ := terms.Scope.Of(r.Name)
	commands, limited := terms.Commands.Of(r.Name)
	hides := func(u int64) bool { return u != uid && scope != ScopeAll }
	isOwn := hasHold
	if r.Session != 0 {
		isHolder := r.UID == uid
		if isOwn = isOwn || isHolder; hides(r.UID) {
			r.Hold, r.Token, r.Owner, r.Session, r.PID, r.UID, r.Cmd = 0, 0, 0, 0, 0, 0, ""
		} else if limited && !commands && !isHolder {
			r.Cmd = ""
		}
	}
	shown := r.Holders[:0]
	for _, h := range r.Holders {
		switch {
		case h.UID == uid:
			isOwn = true
		case hides(h.UID):
			continue
		case limited && !commands:
			h.Cmd = ""
		}
		shown = append(shown, h)
	}
	r.Holders = shown
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
