package locktable

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
)

// maxSteps bounds the search for a wait cycle. A search that is given up finds none:
// the request waits, as it would without the search.
const maxSteps = 256

// findWaitCycle searches the wait-for graph of the local owners: from the holder of l, by
// what each owner waits for, back to the owner that asks. It returns the cycle in words for
// the client, or "". Only a new request can close a cycle, so the search when a request
// begins to wait is enough, as long as each owner waits for one lock at a time.
func (t *Table) findWaitCycle(s *session, owner uint64, l *lock) string {
	t.searches++
	l.queue.searched = t.searches
	path := append(t.path[:0], step{lock: l, from: -1})
	defer func() {
		clear(path)
		t.path = path
	}()
	for i, steps := 0, 0; i < len(path); i++ {
		at := path[i].lock
		if t.holdOf(at, s, owner) != nil {
			var cycle []step
			for j := i; j >= 0; j = path[j].from {
				cycle = append(cycle, path[j])
			}
			return s.describeCycle(cycle)
		}
		for h := range t.holdsOf(at) {
			if steps += btoi(h != at.holders.newest); steps > maxSteps {
				return ""
			}
			if h.owner == 0 || h.isOrphan() || h.session.phase.IsOver() {
				continue
			}
			own := h.session.owners[h.owner]
			if own == nil {
				continue
			}
			for r := own.head; r != nil; r = r.ofOwner.next {
				if steps++; steps > maxSteps {
					return ""
				}
				if q := r.at.lock.queue; q.searched != t.searches {
					q.searched = t.searches
					path = append(path, step{r.at.lock, i, h})
				}
			}
		}
	}
	return ""
}

// describeCycle describes a wait cycle: the new request's owner holds the lock of the first step, a holder
// of each further lock waits for the one before it, and the new request, of this session, asks
// for the last.
func (s *session) describeCycle(cycle []step) string {
	var b strings.Builder
	last := len(cycle) - 1
	fmt.Fprintf(&b, "waiting would never end: you ask for %q", cycle[last].lock.name)
	for i := last; i > 0; i-- {
		fmt.Fprintf(&b, ", held by %s, who waits for %s", s.describeOwner(cycle[i].lock.name, cycle[i-1].hold), s.nameInCycle(cycle, i-1))
	}
	b.WriteString(", which you hold; release it first, or ")
	if last == 0 {
		b.WriteString("acquire it as a re-entrant lock")
	} else {
		b.WriteString("take the two in one order everywhere")
	}
	if b.Len() <= protocol.MaxMessage {
		return b.String()
	}
	return fmt.Sprintf("waiting would never end: you ask for %.200q, whose holder waits for somebody else in a circle of %d owners that ends with %.200q, which you hold",
		cycle[last].lock.name, len(cycle), cycle[0].lock.name)
}

// nameInCycle returns the name of a lock of a wait cycle, if the session may know it: the locks at
// both ends are its own, and the policy decides about those between them. Otherwise a deadlock,
// which two processes of one user can make on purpose, would be a list of names.
func (s *session) nameInCycle(cycle []step, i int) string {
	name := cycle[i].lock.name
	if i > 0 && i < len(cycle)-1 && !s.mayName(name, cycle[i-1].hold.session.peer.UID, cycle[i].hold.session.peer.UID) {
		return "a lock that the policy hides from you"
	}
	return fmt.Sprintf("%q", name)
}
