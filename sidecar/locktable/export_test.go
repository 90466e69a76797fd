package locktable

import "fmt"

// AuditUsers compares what the table counts for its users with what there is; "": it is
// the same.
func (t *Table) AuditUsers() string {
	count := make(map[*user]user)
	add := func(u *user, more user) {
		c := count[u]
		c.sessions += more.sessions
		c.waiters += more.waiters
		c.cells += more.cells
		count[u] = c
	}
	all := 0
	for _, l := range t.locks {
		cells := Cells(l.name)
		if all += cells; l.user != nil {
			add(l.user, user{cells: cells})
		}
		if l.queue != nil {
			for w := l.queue.waiters.head; w != nil; w = w.inQueue.next {
				add(w.request.session.user, user{waiters: 1})
			}
			for _, c := range l.queue.confirms {
				add(c.user, user{waiters: 1})
			}
		}
		if h := l.holds; h != nil && h.session.user != l.user {
			return fmt.Sprintf("%s is held by user %d and counts as another user's", l.name, h.session.user.uid)
		}
	}
	if all != t.cells {
		return fmt.Sprintf("%d cells are counted, and there are %d", t.cells, all)
	}
	for _, s := range t.sessions {
		add(s.user, user{sessions: 1})
	}
	for _, u := range t.users {
		want := count[u]
		if u.sessions != want.sessions || u.waiters != want.waiters || u.cells != want.cells {
			return fmt.Sprintf("of user %d %+v is counted, and there is %+v", u.uid, *u, want)
		}
		delete(count, u)
	}
	for u, c := range count {
		if c != (user{}) {
			return fmt.Sprintf("user %d is forgotten, and has %+v", u.uid, c)
		}
	}
	return ""
}

// Users is how many users the table would know at this time if each were looked at.
func (t *Table) Users(now int64) (n int) {
	for _, u := range t.users {
		if !u.idle(now) {
			n++
		}
	}
	return n
}
