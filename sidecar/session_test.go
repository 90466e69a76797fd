package sidecar

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestTicketIsForOneSessionOfOneUserAndOneSidecar(t *testing.T) {
	var s, other, stranger loop
	s.uuid, other.uuid, stranger.uuid = "a", "b", "a"
	stranger.key[0] = 1
	ticket := s.ticket(7, 1000)
	if again := s.ticket(7, 1000); again != ticket {
		t.Errorf("%s, then %s", ticket, again)
	}
	for what, got := range map[string]string{
		"another session":           s.ticket(8, 1000),
		"another user":              s.ticket(7, 1001),
		"another sidecar":           other.ticket(7, 1000),
		"a sidecar without the key": stranger.ticket(7, 1000),
		"the numbers the other way": s.ticket(1000, 7),
	} {
		if got == ticket {
			t.Errorf("%s has the same ticket", what)
		}
	}
}

func TestLockIsForcedByItsUserOrAnAdministrator(t *testing.T) {
	us := int64(unix.Geteuid())
	holder, neighbor := us+1, us+2
	for caller, want := range map[int64]bool{0: true, us: true, holder: true, neighbor: false} {
		if (&loop{overflowUID: -1}).mayForceRelease(caller, holder) != want {
			t.Errorf("uid %d forces a lock of uid %d: %v, want %v", caller, holder, !want, want)
		}
	}
}
