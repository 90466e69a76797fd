package locktable

import (
	"fmt"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
)

// Audit recounts what the limits count, and returns the first count that is wrong, or nil. It also finds memory of a
// forgotten lock that something still uses.
// (The invariants of a lock are asserted in invariant.go.) It visits every lock and every session, so it is for tests: the
// simulation calls it between its steps. It changes nothing.
//
// The invariants are those of the limits:
//   - cells is the sum of Cells over the names of all locks, and one for each hold of a lock that may have many;
//   - each user has exactly the sessions, the waiters, the pending confirmations and the
//     cells that sessions, queues and locks count as that user's;
//   - a user who is not in the table has none of them;
//   - a lock that is held counts as its holder's, if that is the only one;
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
		if _, isUnstored := t.dirty.unstoredAt[l]; !l.isForgotten() || l.isDirty() || isUnstored {
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
		for h := range t.holdsOf(l) {
			if h.isCounted {
				q, _ := h.session.terms.Holds.Of(l.name)
				quotas[q]++
			}
			if l.kind().HasMany() {
				total++
				if h.session.user != nil {
					add(h.session.user, user{cells: 1})
				}
			}
		}
		if err := t.auditMany(l); err != nil {
			return err
		}
		if h := l.holders.newest; h != nil && !l.kind().HasMany() && h.session.user != l.user {
			return fmt.Errorf("%s is held by user %d and counts as another user's", l.name, h.session.user.uid)
		}
	}
	for l := range t.many {
		if l.isForgotten() {
			return fmt.Errorf("%s is forgotten, and its holds are not", l.name)
		}
	}
	for q, n := range quotas {
		if q.used != n {
			return fmt.Errorf("%d %s of rule %s are counted, and there are %d", q.used, q.What, q.Rule, n)
		}
	}
	if total != t.cells {
		return fmt.Errorf("the table counts %d cells, and its locks and holds have %d", t.cells, total)
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

// auditMany recounts what is known of the holds of a lock that may have many.
func (t *Table) auditMany(l *lock) error {
	m := t.many[l]
	if !l.kind().HasMany() || m == nil {
		if m != nil || l.kind().HasMany() && l.holders.isHeld() {
			return fmt.Errorf("%s is of kind %d, held: %v, and its record of many holds is %+v", l.name, l.kind(), l.holders.isHeld(), m)
		}
		return nil
	}
	want := many{}
	last, dueAt, owned := uint64(0), int64(moment.Never), make(map[owner]bool)
	for h := range t.holdsOf(l) {
		want.count(h, 1)
		if h.id <= last || t.byHold[h.id] != h || h.lock != l {
			return fmt.Errorf("%s has hold %d after %d, and that is of another lock, or not known", l.name, h.id, last)
		}
		if last = h.id; h.owner != 0 && !h.isOrphan() {
			if owned[h.ownedBy()] = true; m.owned[h.ownedBy()] == nil {
				return fmt.Errorf("%s has hold %d, whose owner is not known", l.name, h.id)
			}
		}
		if dueAt = min(dueAt, t.deadline(h)); h.endAt != 0 {
			dueAt = min(dueAt, h.endAt)
		}
		if m.latest < t.keepUntil(h) || m.latest < h.deadline && !h.isRenewed() {
			return fmt.Errorf("%s has hold %d, which lasts longer than is known", l.name, h.id)
		}
		if b := t.validUntil(l) / t.bucketWidth(); h.isTracked && (h.bucket > b || h.bucket != b && m.bucket == b) {
			return fmt.Errorf("%s has hold %d, whose deadline counts in bucket %d; its claim is valid until bucket %d", l.name, h.id, h.bucket, b)
		}
		if o := m.owned[h.ownedBy()]; o != nil && (o.lock != l || o.isOrphan() || o.ownedBy() != h.ownedBy()) {
			return fmt.Errorf("%s has hold %d, whose owner enters another one", l.name, h.id)
		}
	}
	gaps := 0
	for _, n := range m.holds {
		gaps += int(btoi(n.hold == nil))
	}
	switch {
	case want.renewed != m.renewed || want.refused != m.refused || want.orphans != m.orphans || gaps != m.gaps || len(owned) != len(m.owned):
		return fmt.Errorf("%s counts %d renewed, %d refused, %d orphans, %d gaps and %d owners; there are %d, %d, %d, %d and %d",
			l.name, m.renewed, m.refused, m.orphans, m.gaps, len(m.owned), want.renewed, want.refused, want.orphans, gaps, len(owned))
	case len(m.changed) > 0 && !l.isDirty():
		return fmt.Errorf("%s has %d changes that no journal gets", l.name, len(m.changed))
	case dueAt < m.dueAt:
		return fmt.Errorf("%s looks at its holds at %d, and one is due at %d", l.name, m.dueAt, dueAt)
	case l.holders.isHeld() != (len(m.holds) > 0), len(m.holds) > 0 && m.holds[len(m.holds)-1].hold != l.holders.newest:
		return fmt.Errorf("%s does not know its newest hold", l.name)
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
