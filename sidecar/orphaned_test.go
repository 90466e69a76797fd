package sidecar_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// orphaned asks to free an orphaned lock, and returns the answer, or why it is refused.
func (c *wire) orphaned(name string) (ok protocol.ForceReleaseOrphanedOK, refusal *protocol.Err) {
	c.Helper()
	return c.orphanedOf(name, "")
}

// orphanedOf is orphaned for what a sidecar has that is named.
func (c *wire) orphanedOf(name, sidecar string) (ok protocol.ForceReleaseOrphanedOK, refusal *protocol.Err) {
	c.Helper()
	c.id++
	c.send(protocol.ForceReleaseOrphaned{ID: c.id, Name: name, Sidecar: sidecar})
	switch m := c.next().(type) {
	case *protocol.Err:
		copied := *m
		return ok, &copied
	case *protocol.Answer:
		if err := m.Unpack(&ok); err != nil {
			c.Fatal(err)
		}
	default:
		c.Fatalf("got %+v", m)
	}
	return ok, nil
}

// holdFor acquires a lock with a fixed lease.
func (c *wire) holdFor(name string, lease time.Duration) (m protocol.AcquireOK) {
	c.Helper()
	c.id++
	c.send(protocol.Acquire{ID: c.id, Name: name, WaitMS: protocol.Forever, LeaseMS: lease.Milliseconds()})
	c.answer(c.id, &m)
	return m
}

// A lock of a daemon that is gone is freed once there is no sign of life of it: the next waiter has it
// at once, with a larger token. A daemon that comes back with its earlier state notifies its client.
//
// Shows docs/guarantees.md: A lock of a dead host is freed early only on request.
func TestOrphanedLockIsFreedForTheNextWaiter(t *testing.T) {
	there := newHouse(t, func(c *sidecar.Config) { c.HostName = "db-7" })
	here := newHouse(t, func(c *sidecar.Config) { c.HostName, c.Redis, c.AskWithin = "db-8", there.cfg.Redis, time.Minute })
	r, ctx := redisOf(t, here), context.Background()
	holder, hello := there.hello(true, "")
	contended, alone := holder.holdFor("contended", time.Hour), holder.holdFor("alone", time.Hour)
	renewed := holder.hold("renewed")
	waiter, asker := greeted(t, here.cfg.Socket), greeted(t, here.cfg.Socket)
	asker.hold("c") // Redis serves
	asker.awaitHosts(2)
	waiting := waiter.acquire("contended", protocol.Forever)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(asker.who("contended").Queue) == 0 {
		<-tick.C
	}

	if _, refusal := asker.orphaned("contended"); refusal == nil || refusal.Code != protocol.Denied || !strings.Contains(refusal.Msg, "on host db-7 runs, so the lock is not orphaned: use force-release --host db-7") {
		t.Errorf("of a daemon that runs: %+v", refusal)
	}
	there.stop()
	if _, refusal := asker.orphaned("contended"); refusal == nil || refusal.Code != protocol.Denied || !strings.Contains(refusal.Msg, "on host db-7 was connected to Redis less than 3m0s ago") || !strings.Contains(refusal.Msg, "try again in 2m") && !strings.Contains(refusal.Msg, "try again in 3m") {
		t.Errorf("of a daemon that has just ended: %+v", refusal)
	}
	r.Del(ctx, "locksidecar_host:{"+hello.Sidecar+"}") // as after three minutes

	for name, hold := range map[string]uint64{"alone": alone.Hold, "renewed": renewed.Hold, "contended": contended.Hold} {
		ok, refusal := asker.orphaned(name)
		isWaitedFor := name == "contended"
		if refusal != nil || ok.Sidecar != hello.Sidecar || ok.Hold != hold || ok.Passed != isWaitedFor {
			t.Errorf("%s: %+v, %+v", name, ok, refusal)
		}
		if ok.TTLMS <= 0 || (ok.TTLMS > 60_000) != (name != "renewed") {
			t.Errorf("%s: Redis would have had it for %d ms", name, ok.TTLMS)
		}
	}
	var got protocol.AcquireOK
	waiter.answer(waiting, &got)
	if got.Token <= contended.Token {
		t.Errorf("token %d after %d", got.Token, contended.Token)
	}
	if next := asker.hold("alone"); next.Token <= alone.Token {
		t.Errorf("token %d after %d", next.Token, alone.Token)
	}
	forced := 0
	for _, e := range asker.events(0, false).Events {
		if e.Kind == protocol.EventForced && strings.Contains(e.Msg, "as an orphaned lock of sidecar "+hello.Sidecar) && e.Session != 0 && e.PID != 0 {
			forced++
		}
	}
	if forced != 3 {
		t.Errorf("%d forced releases are events", forced)
	}

	there.start()
	back := there.resumed(hello.Ticket)
	lost := back.claim(
		protocol.ClaimedHold{Hold: contended.Hold, Entries: 1}, protocol.ClaimedHold{Hold: alone.Hold, Entries: 1}, protocol.ClaimedHold{Hold: renewed.Hold, Entries: 1},
	)
	for len(lost) < 3 {
		e, ok := back.next().(*protocol.LostEvent)
		if !ok {
			t.Fatal("the client that comes back is not notified")
		}
		lost[e.Hold] = e.Reason
	}
	if lost[contended.Hold] != protocol.Stolen || lost[alone.Hold] != protocol.Stolen || lost[renewed.Hold] != protocol.Deleted {
		t.Errorf("lost by the daemon that comes back: %v", lost)
	}
	if row := asker.row("alone"); row == nil || row.State != protocol.StateHeld {
		t.Errorf("the new holder lost the lock to the daemon that came back: %+v", row)
	}
}

// A lock that is not orphaned, or may not be, stays as it is.
//
// Shows docs/guarantees.md: A lock of a dead host is freed early only on request.
func TestLockThatIsNotOrphanedIsNotFreed(t *testing.T) {
	h := newHouse(t, nil)
	c, hello := h.hello(false, "")
	c.hold("own")
	r, ctx := redisOf(t, h), context.Background()
	const silent = "285475da-9152-8c83-822a-67ee2f116a70"
	sub := r.Subscribe(ctx, "redisson_lock__channel:{locksidecar}:"+silent)
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	r.HSet(ctx, "program", programField, 1)
	r.HSet(ctx, "reading", "mode", "read", programField, 1)
	r.HSet(ctx, "hash", "a", 1, "b", 2)
	r.Set(ctx, "text", "x", 0)
	r.HSet(ctx, "silent", silent+":3", 1)
	r.HSet(ctx, "written", goneSidecar+":3:write", 1)
	const unending = "285475da-9152-8c83-822a-67ee2f116a71"
	r.HSet(ctx, "unending", unending+":3", 1)
	r.HSet(ctx, "locksidecar_host:{"+unending+"}", "about", "{}")
	for _, reserved := range []string{"{locksidecar}:x", "locksidecar_host:{x}", "redisson_lock_token:{x}"} {
		r.HSet(ctx, reserved, goneSidecar+":3", 1)
	}
	for name, want := range map[string]struct {
		code protocol.Code
		msg  string
	}{
		"free":                    {protocol.NotHeld, "is free in Redis"},
		"own":                     {protocol.Denied, "use force-release without --orphaned"},
		"program":                 {protocol.Denied, programField + " of a foreign client"},
		"written":                 {protocol.Denied, goneSidecar + ":3:write of a foreign client"},
		"reading":                 {protocol.Denied, "read-write lock of a foreign client, in mode read"},
		"hash":                    {protocol.Denied, "is no lock in Redis, but a hash with 2 fields"},
		"text":                    {protocol.Denied, "is no lock in Redis, but a key of type string"},
		"silent":                  {protocol.Denied, "is connected to Redis and does not answer, so it may be alive"},
		"unending":                {protocol.Unavailable, "has no expiry, so it is not that of a sidecar"},
		"{locksidecar}:x":         {protocol.Denied, "reserved"},
		"locksidecar_host:{x}":    {protocol.Denied, "reserved"},
		"redisson_lock_token:{x}": {protocol.Denied, "reserved"},
	} {
		before := r.Dump(ctx, name).Val()
		if _, refusal := c.orphaned(name); refusal == nil || refusal.Code != want.code || !strings.Contains(refusal.Msg, want.msg) {
			t.Errorf("%s: %+v", name, refusal)
		}
		if r.Dump(ctx, name).Val() != before {
			t.Errorf("%s was changed", name)
		}
	}
	refused := map[string]bool{}
	for _, e := range c.events(0, false).Events {
		if e.Kind == protocol.EventRefused && strings.HasPrefix(e.Msg, "as an orphaned lock: ") {
			refused[e.Name] = true
		}
	}
	if len(refused) == 0 || refused["free"] { // the first ones that were denied
		t.Errorf("the events have refusals of %v", refused)
	}
	if row := c.row("own"); row.State != protocol.StateHeld {
		t.Errorf("of sidecar %s: %+v", hello.Sidecar, row)
	}
}

// A rule of the policy, a setting and a Redis that does not serve keep a client from freeing orphaned locks.
func TestOrphanedLocksAreFreedOnlyWhereThatIsPermitted(t *testing.T) {
	base := newHouse(t, nil)
	r, ctx := redisOf(t, base), context.Background()
	r.HSet(ctx, "gone", goneSidecar+":3", 1)
	yes := true
	for _, tt := range []struct {
		change func(*sidecar.Config)
		code   protocol.Code
		msg    string
	}{
		{func(c *sidecar.Config) { c.Policy = []policy.Entry{{Name: "few", Users: me(), Holds: 2}} }, protocol.Denied, `rule "few"`},
		{func(c *sidecar.Config) { c.Policy = []policy.Entry{{Name: "admin", Users: me(), ForceRelease: "all"}} }, protocol.Denied, `rule "admin"`},
		{func(c *sidecar.Config) { c.Policy = []policy.Entry{{Name: "looks", Users: me(), Hosts: &yes}} }, protocol.Denied, `rule "looks"`},
		{func(c *sidecar.Config) { c.OtherHosts = otherhosts.None }, protocol.Denied, "other_hosts is none"},
		{func(c *sidecar.Config) { c.Redis = "redis://127.0.0.1:1" }, protocol.Unavailable, "nothing was changed"},
	} {
		h := newHouse(t, func(c *sidecar.Config) {
			c.Redis = base.cfg.Redis
			tt.change(c)
		})
		c, _ := h.hello(false, "")
		if tt.code == protocol.Denied {
			c.hold("serves " + tt.msg)
		}
		if _, refusal := c.orphaned("gone"); refusal == nil || refusal.Code != tt.code || !strings.Contains(refusal.Msg, tt.msg) {
			t.Errorf("%s: %+v", tt.msg, refusal)
		}
	}
	if r.HLen(ctx, "gone").Val() != 1 {
		t.Error("the lock was freed")
	}
	c, _ := base.hello(false, "")
	c.hold("b") // Redis serves
	if _, refusal := c.orphaned("gone"); refusal != nil {
		t.Errorf("without any of these: %+v", refusal)
	}
}
