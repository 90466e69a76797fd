package locktable

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Users. MaxLocks bounds the table, and so the state file, for all clients together. One
// user of the host has three quarters of it at most. The last sixteenth is for the two users
// that may end the holds of others: root, and the user of the sidecar's process. No share
// bounds these two.

// A name that is locked for the first time leaves a token counter in Redis, which stays
// there. So no user may give more than NewNames names a second, on average over
// namesWithin. A user that has given more is refused names that are not in the table.
const namesWithin = 10 * time.Minute

func (t *Table) userOf(uid int64) *user {
	u := t.users[uid]
	if u == nil {
		u = &user{uid: uid}
		t.users[uid] = u
	}
	return u
}

// isIdle reports whether the table needs to know nothing of the user.
func (u *user) isIdle(now int64) bool {
	return u.sessions == 0 && u.waiters == 0 && u.cells == 0 && u.namesUntil <= now
}

// forgetIfIdle forgets a user that has nothing left. One that has just given many new names is
// remembered; there cannot be more of these than users.
func (t *Table) forgetIfIdle(u *user) {
	if u.isIdle(t.now) && t.users[u.uid] == u {
		delete(t.users, u.uid)
	}
}

// isPrivileged reports whether a user is not bounded by a share.
func (t *Table) isPrivileged(u *user) bool { return u.uid == 0 || u.uid == t.cfg.UID }

// Sessions is how many sessions a user has.
func (t *Table) Sessions(uid int64) int {
	if u := t.users[uid]; u != nil {
		return u.sessions
	}
	return 0
}

// charge counts a lock as this user's: the user that holds it, or held it last, or else
// asked for it first. nil: as no user's.
func (t *Table) charge(l *lock, u *user) {
	was := l.user
	if was == u {
		return
	}
	cells := Cells(l.name)
	if l.user = u; u != nil {
		u.cells += cells
	}
	if was != nil {
		was.cells -= cells
		t.forgetIfIdle(was)
	}
}

// chargeHold counts n times the cell that a hold of a lock which may have many has in the state file.
func (t *Table) chargeHold(h *hold, n int) {
	t.cells += n
	if u := h.session.user; u != nil {
		u.cells += n
		t.forgetIfIdle(u)
	}
}

// countNewName counts a name that was not known in Redis.
func (t *Table) countNewName(now int64, u *user) {
	u.namesUntil = max(u.namesUntil, now) + int64(time.Second)/int64(t.cfg.NewNames)
}

// Share is how many of a limit one user may have, unless it is privileged.
func Share(limit int) int { return max(1, limit-max(1, limit/4)) }

// Unreserved is how many of a limit all users that are not privileged may have together.
func Unreserved(limit int) int { return max(1, limit-max(1, limit/16)) }

// limits are how much of MaxLocks all users together may have, and this one.
func (t *Table) limits(u *user) (most, share int) {
	if t.isPrivileged(u) {
		return t.cfg.MaxLocks, t.cfg.MaxLocks
	}
	return Unreserved(t.cfg.MaxLocks), Share(t.cfg.MaxLocks)
}

// usage returns what is used of the limits.
func (t *Table) usage() Usage {
	u := Usage{Locks: max(t.cells, t.waiting)}
	for _, user := range t.users {
		if !t.isPrivileged(user) {
			u.UserLocks = max(u.UserLocks, user.cells, user.waiters)
		}
	}
	for _, s := range t.sessions {
		u.SessionHolds = max(u.SessionHolds, s.holds.len)
		u.SessionWaiters = max(u.SessionWaiters, len(s.requests)+len(s.confirms))
	}
	return u
}

// isFull reports whether the session may hold no more locks. Locks that it waits for do not
// count: MaxWaiters bounds them.
func (t *Table) isFull(s *session) bool { return s.holds.len >= t.cfg.MaxHolds }

// fullOfHolds says why the session may not have one more hold, of this name and kind; "": it may.
func (t *Table) fullOfHolds(s *session, name string, kind redisop.LockKind) string {
	if t.isFull(s) {
		return fmt.Sprintf("this client holds %d locks; release some, or raise max-holds of the sidecar", t.cfg.MaxHolds)
	}
	if why := s.overHolds(name); why != "" || !kind.HasMany() {
		return why
	}
	return t.noRoomForHold(s.user)
}

// refuseOverLimit refuses an acquire that would go over a limit. l is its lock; nil: there is
// none yet.
func (t *Table) refuseOverLimit(now int64, s *session, l *lock, kind redisop.LockKind, req *protocol.Acquire) bool {
	why := t.fullOfHolds(s, req.Name, kind)
	if why == "" {
		why = s.overWaiters(req.Name)
	}
	if why == "" {
		why = t.noRoomToWait(s)
	}
	if why == "" && l == nil {
		why = t.noRoomForName(now, s.user, req.Name)
	}
	if why != "" {
		t.CountRefusal(req.Name, protocol.Limit)
		t.refuse(s, req.ID, protocol.Limit, "%s", why)
	}
	return why != ""
}

// noRoomToWait says why a session may not have one more request that waits; "": it may.
func (t *Table) noRoomToWait(s *session) string {
	switch most, share := t.limits(s.user); {
	case len(s.requests)+len(s.confirms) >= t.cfg.MaxWaiters:
		return fmt.Sprintf("this client has %d requests waiting; wait for some, or raise max-waiters of the sidecar", t.cfg.MaxWaiters)
	case t.waiting >= most:
		return fmt.Sprintf("this sidecar has %d requests waiting; wait for some, or raise max-locks of the sidecar", t.waiting)
	case s.user.waiters >= share:
		return fmt.Sprintf("user %d has %d requests waiting, and one user may have %d; wait for some, or raise max-locks of the sidecar", s.user.uid, s.user.waiters, share)
	}
	return ""
}

// noRoomForHold says why the table does not take up one more hold that has a cell of its own; "": it does.
func (t *Table) noRoomForHold(u *user) string {
	switch most, share := t.limits(u); {
	case t.cells >= most:
		return fmt.Sprintf("this sidecar has %d locks and holds; release some, or raise max-locks of the sidecar", t.cells)
	case u.cells >= share:
		return fmt.Sprintf("user %d has %d locks and holds, and one user may have %d; release some, or raise max-locks of the sidecar", u.uid, u.cells, share)
	}
	return ""
}

// noRoomForName says why the table does not take up one more name; "": it does.
func (t *Table) noRoomForName(now int64, u *user, name string) string {
	cells := Cells(name)
	switch most, share := t.limits(u); {
	case t.cells+cells > most:
		return fmt.Sprintf("this sidecar has %d locks held or waited for; release some, or raise max-locks of the sidecar", len(t.locks))
	case u.cells+cells > share:
		return fmt.Sprintf("user %d has %d locks held or waited for, as which long names count more than once, and one user may have %d; release some, or raise max-locks of the sidecar", u.uid, u.cells, share)
	case u.namesUntil-now > int64(namesWithin) && !t.isPrivileged(u):
		return fmt.Sprintf("user %d has locked more than %d new names a second for %v, and each leaves a key in Redis; lock names that were used before, or raise max-new-names of the sidecar", u.uid, t.cfg.NewNames, namesWithin)
	}
	return ""
}
