package locktable

import (
	"fmt"
	"math"

	"github.com/locksidecar/locksidecar/protocol"
)

// A client resumes its session after a restart of the sidecar: the loop has checked its ticket
// (sidecar/session.go, onHello), Restore has made its holds again (journal.go), and the client
// claims those that it still has.

// Resume notes that the client of an absent session is connected, and about to claim.
func (t *Table) Resume(id SessionID, p Peer) {
	s := t.sessions[id]
	s.peer = p
	for h := s.holds.head; h != nil; h = h.inSession.next {
		h.claimedEntries = 0
	}
}

// Claim notes that the client of an absent session has these holds, with that many
// entries; it has lost those that the session does not have. The last claim ends the
// absence: holds and entries that were not claimed are released, for a release, or a grant,
// did not get through. Until then nothing changes, for the client may come back again and
// claim again. fault says how the claim breaks the protocol; "": it does not.
func (t *Table) Claim(now int64, id SessionID, req *protocol.Claim) (fault string) {
	s := t.sessions[id]
	if s == nil {
		return ""
	}
	for _, c := range req.Holds {
		h := t.byHold[c.Hold]
		if h == nil || h.session != s || h.isOrphan() {
			t.emit(Effect{Kind: Lost, Session: id, Hold: c.Hold, Reason: protocol.Forgotten})
			continue
		}
		switch {
		case h.claimedEntries != 0:
			return fmt.Sprintf("hold %d is claimed twice", c.Hold)
		case h.entries < c.Entries:
			return fmt.Sprintf("more entries of hold %d are claimed than were granted", c.Hold)
		}
		h.claimedEntries = c.Entries
		h.countHold()
		l := h.lock
		t.expireHold(now, h) // it may be over just now
		t.reconcile(t.visit(now, l))
	}
	if !req.More {
		t.finishResume(now, s)
	}
	t.emit(Effect{Kind: Claimed, Session: id, ID: req.ID, IsLast: !req.More})
	return ""
}

// finishResume ends the absence of a session whose client has claimed all that it has.
func (t *Table) finishResume(now int64, s *session) {
	s.phase = SessionServing
	var changed []*lock
	until := int64(math.MaxInt64)
	for h := s.holds.head; h != nil; {
		next, l, hasEnded := h.inSession.next, h.lock, false
		switch {
		case h.claimedEntries == 0:
			hasEnded = t.leave(now, h)
			changed = append(changed, l)
		case h.entries != h.claimedEntries:
			h.entries = h.claimedEntries
			t.touch(h)
			changed = append(changed, l)
			hasEnded = t.expireHold(now, h) // it may be over since
		default:
			if hasEnded = t.expireHold(now, h); hasEnded {
				changed = append(changed, l)
			}
		}
		if !hasEnded && h.isRenewed() {
			until = min(until, t.deadline(h))
		}
		h = next
	}
	for _, l := range changed {
		if t.byName[l.name] == l { // it may be listed twice, and be gone by now
			t.reconcile(t.visit(now, l))
		}
	}
	if until != math.MaxInt64 {
		// What it was sent while it was absent, or just before and did not receive.
		t.emit(Effect{Kind: Lease, Session: s.id, Deadline: until})
	}
}
