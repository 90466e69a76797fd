package sidecar_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/state"
)

// wantPermits asks for permits of a semaphore, and returns the id of the request.
func (c *wire) wantPermits(name string, permits, of uint16, waitMS int64) uint64 {
	c.Helper()
	c.id++
	c.send(protocol.AcquirePermits{Acquire: protocol.Acquire{ID: c.id, Name: name, WaitMS: waitMS}, Permits: permits, Of: of})
	return c.id
}

// permits acquires permits of a semaphore.
func (c *wire) permits(name string, permits, of uint16) (ok protocol.AcquireOK) {
	c.Helper()
	c.answer(c.wantPermits(name, permits, of, protocol.Forever), &ok)
	return ok
}

// Holds have as many permits as a semaphore has, and no more: on a host, and over all.
func TestPermitsAreGrantedUpToTheCapacity(t *testing.T) {
	here := newHouse(t, nil)
	there := newHouse(t, func(c *sidecar.Config) { c.Redis = here.cfg.Redis })
	a, b := greeted(t, here.cfg.Socket), greeted(t, there.cfg.Socket)
	one, two := a.permits("api", 1, 3), a.permits("api", 1, 3)
	if one.Permits != 1 || one.Of != 3 || one.Count != 1 || one.Token >= two.Token || one.Hold == two.Hold {
		t.Errorf("%+v, then %+v", one, two)
	}
	b.refused(b.wantPermits("api", 2, 3, 0), protocol.Timeout, "too few of its permits are free")
	b.permits("api", 1, 3)
	waits := b.wantPermits("api", 2, 3, protocol.Forever)
	a.refused(a.wantPermits("api", 1, 3, 0), protocol.Timeout, "too few of its permits are free")
	a.release(one.Hold)
	a.release(two.Hold)
	var m protocol.AcquireOK
	if b.answer(waits, &m); m.Permits != 2 {
		t.Errorf("%+v", m)
	}
	a.id++
	a.ask(protocol.Confirm{ID: a.id, Name: "api"}, new(protocol.ConfirmOK))
	a.refused(a.acquire("api", 0), protocol.Timeout, "") // it is nothing of this host any more
}

// A name is a lock or a semaphore on a host, until neither is held nor waited for.
func TestNameIsALockOrASemaphore(t *testing.T) {
	c := greeted(t, newHouse(t, nil).cfg.Socket)
	c.permits("api", 1, 3)
	c.refused(c.acquire("api", 0), protocol.Denied, "this name is in use as a semaphore on this host; choose another name")
	c.hold("lock")
	c.refused(c.wantPermits("lock", 1, 3, 0), protocol.Denied, "this name is in use as a lock on this host; choose another name")
	c.refused(c.wantPermits("locksidecar_x", 1, 3, 0), protocol.Denied, "choose another name")
}

// A client that comes back has its permits, and a request that waits is sent again.
func TestPermitsOutlastARestart(t *testing.T) {
	h := newHouse(t, nil)
	c, hello := h.hello(true, "")
	one, two := c.permits("api", 2, 3), c.permits("api", 1, 3)
	h.restart()
	c = h.resumed(hello.Ticket)
	if lost := c.claim(protocol.ClaimedHold{Hold: one.Hold, Entries: 1}, protocol.ClaimedHold{Hold: two.Hold, Entries: 1}); len(lost) > 0 {
		t.Fatalf("lost: %v", lost)
	}
	if row := c.row("api"); row == nil || row.Permits != 3 || row.Held != 2 || row.Of != 3 {
		t.Errorf("%+v", row)
	}
	waits := c.wantPermits("api", 1, 3, protocol.Forever)
	c.release(two.Hold)
	var m protocol.AcquireOK
	if c.answer(waits, &m); m.Hold <= two.Hold {
		t.Errorf("%+v", m)
	}
}

// An operator lowers a semaphore for programs that name more, without them: those that have permits keep them.
func TestPolicyLowersACapacity(t *testing.T) {
	h := newHouse(t, nil)
	c, hello := h.hello(true, "")
	one, two := c.permits("api", 1, 3), c.permits("api", 1, 3)
	h.cfg.Policy = []policy.Entry{{Name: "night", Users: me(), Names: []string{"api"}, Capacity: 1}}
	h.restart()
	c = h.resumed(hello.Ticket)
	if lost := c.claim(protocol.ClaimedHold{Hold: one.Hold, Entries: 1}, protocol.ClaimedHold{Hold: two.Hold, Entries: 1}); len(lost) > 0 {
		t.Fatalf("lost: %v", lost)
	}
	c.permits("other", 1, 1) // it is connected to Redis
	c.refused(c.wantPermits("api", 2, 3, protocol.Forever), protocol.Limit, `rule "night" of the policy limits the semaphore to 1 permits`)
	waits := c.wantPermits("api", 1, 3, protocol.Forever)
	c.release(one.Hold)
	c.refused(c.wantPermits("api", 1, 3, 0), protocol.Timeout, "")
	c.release(two.Hold)
	var m protocol.AcquireOK
	if c.answer(waits, &m); m.Of != 1 {
		t.Errorf("%+v", m)
	}
}

// One hold is ended by force, or all.
func TestForceReleaseOfASemaphore(t *testing.T) {
	h := newHouse(t, nil)
	c, operator := greeted(t, h.cfg.Socket), greeted(t, h.cfg.Socket)
	first := c.permits("api", 1, 5)
	second := c.permits("api", 1, 5)
	third := c.permits("api", 1, 5)
	force := func(hold uint64) (ok protocol.ForceReleaseOK) {
		operator.id++
		operator.ask(protocol.ForceRelease{ID: operator.id, Name: "api", Hold: hold}, &ok)
		return ok
	}
	if m := force(second.Hold); m.Hold != second.Hold || m.Count != 0 {
		t.Errorf("one: %+v", m)
	}
	if m := force(0); m.Hold != third.Hold || m.Count != 2 {
		t.Errorf("all: %+v", m)
	}
	for _, want := range []uint64{second.Hold, first.Hold, third.Hold} {
		if m, ok := c.next().(*protocol.LostEvent); !ok || m.Hold != want || m.Reason != protocol.ByForce {
			t.Errorf("%+v, want hold %d", m, want)
		}
	}
	operator.id++
	operator.send(protocol.ForceRelease{ID: operator.id, Name: "api", Hold: first.Hold})
	operator.refused(operator.id, protocol.NotHeld, "it has ended")
}

// The permits of a host that is gone are freed by force, for those that wait. If several other hosts have some, the request
// names one of them.
//
// Shows docs/guarantees.md: A lock of a dead host is freed early only on request.
func TestOrphanedPermitsAreFreed(t *testing.T) {
	there := newHouse(t, func(c *sidecar.Config) { c.HostName = "db-7" })
	third := newHouse(t, func(c *sidecar.Config) { c.Redis = there.cfg.Redis })
	here := newHouse(t, func(c *sidecar.Config) { c.HostName, c.Redis, c.AskWithin = "db-8", there.cfg.Redis, time.Minute })
	r, ctx := redisOf(t, here), context.Background()
	c, waiter := greeted(t, here.cfg.Socket), greeted(t, here.cfg.Socket)
	c.hold("a") // Redis serves
	holder, gone := there.hello(true, "")
	var held protocol.AcquireOK
	holder.id++
	holder.send(protocol.AcquirePermits{Acquire: protocol.Acquire{ID: holder.id, Name: "api", WaitMS: protocol.Forever, LeaseMS: time.Hour.Milliseconds()}, Permits: 4, Of: 5})
	holder.answer(holder.id, &held)
	c.awaitHosts(3)
	waits := waiter.wantPermits("api", 5, 5, protocol.Forever)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(c.who("api").Queue) == 0 {
		<-tick.C
	}
	denied := func(sidecar string, code protocol.Code, says string) {
		t.Helper()
		if _, refusal := c.orphanedOf("api", sidecar); refusal == nil || refusal.Code != code || !strings.Contains(refusal.Msg, says) {
			t.Errorf("of sidecar %q: %+v", sidecar, refusal)
		}
	}
	denied("", protocol.Denied, "on host db-7 runs")
	denied("db-7", protocol.BadRequest, `field sidecar: "db-7" is no uuid of a sidecar`)
	denied(goneSidecar, protocol.NotHeld, "has no permits of")
	there.stop()
	denied("", protocol.Denied, "on host db-7 was connected to Redis less than 3m0s ago")
	r.Del(ctx, "locksidecar_host:{"+gone.Sidecar+"}") // as after three minutes

	other := greeted(t, third.cfg.Socket)
	_, own := third.hello(false, "")
	later := other.wantPermits("api", 1, 9, protocol.Forever) // it waits behind
	for len(c.who("api").Queue) < 2 {
		<-tick.C
	}
	ok, refusal := c.orphanedOf("api", gone.Sidecar)
	if refusal != nil || ok.Sidecar != gone.Sidecar || ok.Permits != 4 || ok.Hold == 0 || ok.Passed || ok.TTLMS < 50*60_000 || ok.TTLMS > 60*60_000 {
		t.Fatalf("%+v, %+v", ok, refusal)
	}
	var m protocol.AcquireOK
	waiter.answer(waits, &m)
	other.answer(later, &m)
	denied(gone.Sidecar, protocol.NotHeld, "has no permits of")
	denied(own.Sidecar, protocol.Denied, "runs, so the lock is not orphaned")
	r.HSet(ctx, "api", goneSidecar, "7 1 99999999999999")
	denied("", protocol.BadRequest, "field sidecar: several other hosts have permits of \"api\": name one")
	forced := 0
	for _, e := range c.events(0, false).Events {
		if e.Kind == protocol.EventForced && e.Permits == 4 && e.Msg == "as orphaned permits of sidecar "+gone.Sidecar {
			forced++
		}
	}
	if forced != 1 {
		t.Errorf("%d events", forced)
	}
	denied(own.Sidecar, protocol.Denied, "runs, so the lock is not orphaned")
	r.HSet(ctx, "empty", "mode", "permits 1 1 99999999999999 1", goneSidecar, "7 1 1") // as after a lease
	if _, refusal := c.orphaned("empty"); refusal == nil || refusal.Code != protocol.NotHeld || !strings.Contains(refusal.Msg, "no host has permits of") {
		t.Errorf("of permits that have expired: %+v", refusal)
	}
	r.HSet(ctx, "job", goneSidecar+":7", 1)
	if _, refusal := c.orphanedOf("job", own.Sidecar); refusal == nil || refusal.Code != protocol.NotHeld || !strings.Contains(refusal.Msg, "does not have the lock") {
		t.Errorf("of a lock that another sidecar has: %+v", refusal)
	}
	there.start()
	back := there.resumed(gone.Ticket)
	lost := back.claim(protocol.ClaimedHold{Hold: held.Hold, Entries: 1})
	if len(lost) == 0 {
		if e, ok := back.next().(*protocol.LostEvent); !ok || e.Hold != held.Hold || e.Reason != protocol.Deleted {
			t.Errorf("the client that comes back is told %+v", e)
		}
	}
}

// A client that comes back after a restart learns that its permits have ended by force, although the daemon that was forced died
// before it ended them, and the client has nothing else.
func TestForceThatASuccessorEndsIsToldToItsClient(t *testing.T) {
	h := newHouse(t, nil)
	c, hello := h.hello(true, "")
	held := c.permits("api", 1, 2)
	h.stop()
	f, err := state.Open(h.cfg.Socket + ".state")
	if err != nil {
		t.Fatal(err)
	}
	l := f.Recovered().Snapshot.Locks[0]
	l.Forced = held.Hold
	f.PutLock(l.Slot, &l.LockRecord)
	f.Commit(0)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	h.start()
	other := greeted(t, h.cfg.Socket)
	other.permits("api", 2, 2)
	back := h.resumed(hello.Ticket)
	if lost := back.claim(protocol.ClaimedHold{Hold: held.Hold, Entries: 1}); lost[held.Hold] != protocol.ByForce {
		t.Errorf("the client that comes back has lost %v", lost)
	}
}

// Permits of this host are not orphaned.
func TestOwnPermitsAreNotOrphaned(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	c.permits("api", 1, 5)
	if _, refusal := c.orphaned("api"); refusal == nil || refusal.Code != protocol.Denied || !strings.Contains(refusal.Msg, "use force-release without --orphaned") {
		t.Errorf("%+v", refusal)
	}
}

// Events have the permits of the hold.
func TestEventsHavePermits(t *testing.T) {
	h := newHouse(t, nil)
	c, operator := greeted(t, h.cfg.Socket), greeted(t, h.cfg.Socket)
	c.permits("api", 3, 3)
	waits := c.wantPermits("api", 2, 3, protocol.Forever)
	operator.refused(operator.wantPermits("api", 1, 3, 20), protocol.Timeout, "") // later: so the other one has waited for 20 ms
	operator.id++
	operator.ask(protocol.ForceRelease{ID: operator.id, Name: "api"}, new(protocol.ForceReleaseOK))
	if m, ok := c.next().(*protocol.LostEvent); !ok {
		t.Fatalf("%+v", m)
	}
	c.answer(waits, new(protocol.AcquireOK))
	permits := map[string]uint16{}
	for _, e := range operator.follow(0, 3) {
		permits[e.Kind] = e.Permits
	}
	if permits[protocol.EventLost] != 3 || permits[protocol.EventGranted] != 2 {
		t.Errorf("%v", permits)
	}
}
