package locktable_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// newUsersRig has sessions of these users, numbered from 1.
func newUsersRig(t *testing.T, cfg locktable.Config, uids ...int64) *rig {
	r := newRig(t)
	r.tb = connect(locktable.New(cfg, r.now))
	r.tb.Up(r.now, 0, false, false)
	for i, uid := range uids {
		r.tb.Open(r.now, locktable.SessionID(i+1), locktable.Peer{UID: uid})
	}
	t.Cleanup(func() {
		if err := r.tb.Audit(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// takes has a session take locks until one is refused, and returns how many it got.
func (r *rig) takes(s locktable.SessionID, name string) (n int) {
	r.Helper()
	for ; ; n++ {
		r.acquire(s, fmt.Sprintf("%s%d", name, n))
		if r.collect(); len(r.ops) == 0 {
			r.want(fmt.Sprintf("s%d refused limit", s))
			return n
		}
		r.redis(redisop.Take, redisop.Done)
		r.collect()
		r.log = nil
	}
}

// redisDoesAll answers what is in flight until nothing is.
func (r *rig) redisDoesAll() {
	for r.collect(); len(r.ops) > 0; r.collect() {
		op := r.ops[0]
		r.ops = r.ops[1:]
		r.tb.Result(r.now, withMode(&op, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now}))
	}
	r.log = nil
}

// Shows docs/guarantees.md: Takes all it can get.
func TestNoUserGetsAllOfMaxLocks(t *testing.T) {
	r := newUsersRig(t, locktable.Config{MaxLocks: 32, UID: 7}, 1000, 1000, 2000, 0, 7)
	if n := r.takes(1, "a"); n != 24 {
		t.Errorf("one user got %d locks of 32, want three quarters", n)
	}
	if n := r.takes(2, "b"); n != 0 {
		t.Errorf("another client of this user got %d locks more", n)
	}
	if n := r.takes(3, "c"); n != 6 {
		t.Errorf("another user got %d locks, want all but the last sixteenth", n)
	}
	if n := r.takes(5, "d"); n != 2 {
		t.Errorf("the user of the sidecar got %d locks, want the rest", n)
	}
	r.tb.Close(r.now, 3)
	r.redisDoesAll()
	if n := r.takes(4, "e"); n == 0 {
		t.Error("root got no lock")
	}
}

func TestSmallLimitsLeaveRoomToo(t *testing.T) {
	for limit := 1; limit < 100; limit++ {
		share, unreserved := locktable.Share(limit), locktable.Unreserved(limit)
		if share < 1 || share > unreserved || limit > 1 && unreserved >= limit || limit > 4 && share == unreserved && limit >= 16 {
			t.Errorf("of %d one user may have %d, and all together %d", limit, share, unreserved)
		}
	}
}

// Shows docs/guarantees.md: Takes all it can get.
func TestALongNameCountsAsSeveral(t *testing.T) {
	for _, c := range []struct{ bytes, cells int }{{1, 1}, {32, 1}, {33, 2}, {152, 2}, {153, 3}, {protocol.MaxName, 5}} {
		if got := locktable.Cells(strings.Repeat("x", c.bytes)); got != c.cells {
			t.Errorf("a name of %d bytes counts as %d, want %d", c.bytes, got, c.cells)
		}
	}
	r := newUsersRig(t, locktable.Config{MaxLocks: 32}, 1000)
	if n := r.takes(1, strings.Repeat("long", 25)); n != 12 {
		t.Errorf("one user got %d locks that count as two, of 32; want 12", n)
	}
}

// A lock counts as its holder's, also if another user asked for it first.
func TestALockCountsAsItsHolders(t *testing.T) {
	r := newUsersRig(t, locktable.Config{MaxLocks: 16}, 1000, 2000)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0", "s2 granted hold=2 token=2 count=1")
	if n := r.takes(1, "b"); n != 12 {
		t.Errorf("the user that gave a lock to another one got %d more, want its share of 12", n)
	}
}

func TestUsersAreForgotten(t *testing.T) {
	r := newUsersRig(t, locktable.Config{}, 1000, 1000, 2000)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.acquire(3, "a")
	for s := range locktable.SessionID(3) {
		r.tb.Close(r.now, s+1)
	}
	r.collect()
	if r.tb.Users(r.now) != 1 {
		t.Errorf("%d users are known while a lock of one is given back", r.tb.Users(r.now))
	}
	r.redisDoesAll()
	if r.tb.Users(r.now) != 0 {
		t.Errorf("%d users are known when nothing is left of them", r.tb.Users(r.now))
	}
}

// names has a session lock and release names that Redis does not know, until it is
// refused one, and returns how many there were.
func (r *rig) names(s locktable.SessionID, most int) (n int) {
	r.Helper()
	for ; n < most; n++ {
		r.ids++
		r.tb.Acquire(r.now, s, protocol.Acquire{ID: r.ids, Name: fmt.Sprint("name ", r.ids), WaitMS: protocol.Forever})
		if r.collect(); len(r.ops) == 0 {
			r.want(fmt.Sprintf("s%d refused limit", s))
			return n
		}
		op := r.ops[0]
		r.ops = nil
		if n%2 == 0 { // by then, the client may not want it any more
			r.tb.Cancel(r.now, s, protocol.Cancel{Target: r.ids})
		}
		r.tokens++
		r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now, Token: r.tokens, Made: true})
		if n%2 == 1 {
			r.tb.Release(r.now, s, protocol.Release{Hold: op.HoldID})
		}
		r.redisDoesAll()
	}
	return n
}

// Shows docs/guarantees.md: Locks names that were never used before.
func TestNewNamesOfAUserAreBounded(t *testing.T) {
	const often = 10
	r := newUsersRig(t, locktable.Config{NewNames: often}, 1000, 1000, 2000, 0)
	const most = often*600 + 1
	if n := r.names(1, most+1); n != most {
		t.Errorf("one user locked %d new names, want %d: those of ten minutes", n, most)
	}
	if n := r.names(2, 1); n != 0 {
		t.Error("another client of this user got one more")
	}
	if r.names(3, 1) != 1 || r.names(4, most+1) != most+1 {
		t.Error("another user, or root, got none")
	}
	r.acquire(3, "known")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "known")
	r.redisDoesAll()
	r.acquire(1, "no longer known")
	r.want("s1 refused limit")
	r.tb.Close(r.now, 1)
	r.tb.Close(r.now, 2)
	r.tb.Open(r.now, 1, locktable.Peer{UID: 1000}) // a new process changes nothing
	if n := r.names(1, 1); n != 0 {
		t.Error("a new client of this user got one more")
	}
	r.now += int64(5 * time.Second)
	if n := r.names(1, most); n != 5*often {
		t.Errorf("five seconds later one user locked %d new names, want %d", n, 5*often)
	}
}
