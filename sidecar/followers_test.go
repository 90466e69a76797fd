package sidecar

import (
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The last requests that may wait for events are for root and the user of the sidecar.
func TestUserHasAShareOfTheRequestsThatWaitForEvents(t *testing.T) {
	l, end := unserved(t)
	defer func() {
		l.followers = nil // their connections cannot be written to, and that Redis is away is an event
		end()
	}()
	const user, other = 1 << 20, 1<<20 + 1
	follow := func(uid int64) {
		cl := &session{peer: locktable.Peer{UID: uid}}
		l.followers = append(l.followers, follower{session: cl, conn: &conn{session: cl}})
	}
	for n, uid := range []int64{user, user, user, user, user, user, user, user, user, user, user, user, other, other, other} {
		if why := l.checkFollowers(uid); why != "" {
			t.Errorf("after %d: %s", n, why)
		}
		follow(uid)
		if n == 11 && l.checkFollowers(user) == "" {
			t.Error("one user may have all")
		}
	}
	if l.checkFollowers(other) == "" || l.checkFollowers(0) != "" {
		t.Error("the last one is not for root")
	}
	follow(0)
	if l.checkFollowers(0) == "" {
		t.Error("there is no limit")
	}
}
