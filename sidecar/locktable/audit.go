package locktable

import "fmt"

// Audit recounts what the limits count, and returns the first count that is wrong, or nil. It also finds memory of a
// forgotten lock that something still uses.
// (The invariants of a lock are asserted in invariant.go.) It visits every lock and every session, so it is for tests: the
// simulation calls it between its steps. It changes nothing.
//
// The invariants are those of the limits:
//   - cells is the sum of Cells over the names of all locks;
//   - each user has exactly the sessions, the waiters, the pending confirmations and the
//     cells that sessions, queues and locks count as that user's;
//   - a user who is not in the table has none of them;
//   - a lock that is held counts as its holder's;
//   - each quota counts the holds and the requests that it bounds.
func (t *Table) Audit() error {
	counted := make(map[*user]user)
	add := func(u *user, more user) {
		c := counted[u]
		c.sessions += more.sessions
		c.waiters += more.waiters
		c.cells += more.cells
		counted[u] = c
	}
	quotas := make(map[*Quota]int)
	for _, s := range t.sessions {
		if s.terms != nil {
			for _, b := range []ByName[*Quota]{s.terms.Holds, s.terms.Waiters} {
				for _, f := range b {
					quotas[f.Value] += 0
				}
			}
		}
	}
	for _, l := range t.unused.free {
		if _, isUnstored := t.dirty.unstoredAt[l]; !l.isForgotten() || l.isDirty || isUnstored {
			return fmt.Errorf("%s is in use, and its memory is for the next new lock", l.name)
		}
	}
	total := 0
	for i, l := range t.locks {
		if int(l.index) != i || t.byName[l.name] != l {
			return fmt.Errorf("%s is lock %d, and counts as lock %d", l.name, i, l.index)
		}
		cells := Cells(l.name)
		if total += cells; l.user != nil {
			add(l.user, user{cells: cells})
		}
		if l.queue != nil {
			for w := l.queue.waiters.head; w != nil; w = w.inQueue.next {
				add(w.request.session.user, user{waiters: 1})
				if s := w.request.session; s.terms != nil {
					if q, ok := s.terms.Waiters.Of(l.name); ok {
						quotas[q]++
					}
				}
			}
			for _, c := range l.queue.confirms {
				add(c.user, user{waiters: 1})
			}
		}
		for h := range l.holders.each {
			if h.isCounted {
				q, _ := h.session.terms.Holds.Of(l.name)
				quotas[q]++
			}
		}
		if h := l.holders.sole(); h != nil && h.session.user != l.user {
			return fmt.Errorf("%s is held by user %d and counts as another user's", l.name, h.session.user.uid)
		}
	}
	for q, n := range quotas {
		if q.used != n {
			return fmt.Errorf("%d %s of rule %s are counted, and there are %d", q.used, q.What, q.Rule, n)
		}
	}
	if total != t.cells {
		return fmt.Errorf("the table counts %d cells, and its locks have %d", t.cells, total)
	}
	for _, s := range t.sessions {
		add(s.user, user{sessions: 1})
	}
	for _, u := range t.users {
		want := counted[u]
		if u.sessions != want.sessions || u.waiters != want.waiters || u.cells != want.cells {
			return fmt.Errorf("the table counts %+v for user %d, who has %+v", *u, u.uid, want)
		}
		delete(counted, u)
	}
	for u, c := range counted {
		if c != (user{}) {
			return fmt.Errorf("user %d is not in the table, and has %+v", u.uid, c)
		}
	}
	return nil
}

// Users returns how many users the table would know at a time if it visited each of them
// then: it forgets a user with nothing left when it next visits that user. 0 while
// nothing is left of any session.
func (t *Table) Users(now int64) (n int) {
	for _, u := range t.users {
		if !u.isIdle(now) {
			n++
		}
	}
	return n
}
