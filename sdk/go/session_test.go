//go:build linux

package locksidecar

import "testing"

// checkInvariants checks that what the session has fits its phase, and the phases of its
// calls and holds.
func checkInvariants(t testing.TB, c *Client) {
	t.Helper()
	s := c.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	phase := s.phase.get()
	isConnected := phase == sessionClaiming || phase == sessionServing || phase == sessionByeSent
	if phase != sessionOver && isConnected != (s.conn != nil) { // over comes a moment before the connection goes
		t.Errorf("in phase %d the connection is %v", phase, s.conn)
	}
	if phase.isOpen() != (s.refusal == nil) {
		t.Errorf("in phase %d calls are refused with %v", phase, s.refusal)
	}
	if phase != sessionDisconnected && s.outage.hasDeadline {
		t.Errorf("in phase %d calls wait for a connection until %d", phase, s.outage.deadline)
	}
	for id, call := range s.calls {
		switch {
		case id != call.id:
			t.Errorf("%+v is in calls under %d", call, id)
		case phase == sessionDisconnected && call.phase != callWaiting:
			t.Errorf("without a connection there is a call in phase %d: %+v", call.phase, call)
		case call.phase == callAbandoned && call.kind != acquireCall:
			t.Errorf("an abandoned call is of kind %d", call.kind)
		case call.kind == releaseCall && call.hold.phase != holdReleasing && call.hold.phase != holdLive && call.hold.phase != holdEnded:
			t.Errorf("in phase %d the release of a hold is not answered", call.hold.phase)
		}
	}
	for id, h := range s.holds {
		switch {
		case id != h.id:
			t.Errorf("%+v is in holds under %d", h, id)
		case h.phase == holdLive && h.entries > 0, h.phase == holdReleasing && h.entries == 0:
		default:
			t.Errorf("in holds is one with %d entries in phase %d", h.entries, h.phase)
		}
	}
	for h := range s.orphans {
		if h.phase != holdOrphaned || h.entries == 0 {
			t.Errorf("in orphans is a hold with %d entries in phase %d", h.entries, h.phase)
		}
	}
	for i, e := range s.alarm.queue {
		if h := e.hold; !h.isHeldLocked() || h.observed == nil || int(h.alarmIndex) != i+1 {
			t.Errorf("in the alarm at %d is a hold in phase %d with index %d and the observed handle %v", i, h.phase, h.alarmIndex, h.observed)
		}
	}
}
