package sidecar_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// me is the user of this process, by number: root and the user of the sidecar are bound only by
// entries that name them.
func me() []string { return []string{fmt.Sprint(os.Geteuid())} }

func withPolicy(entries ...policy.Entry) func(*sidecar.Config) {
	return func(c *sidecar.Config) { c.Policy = entries }
}

func TestRequestsThatThePolicyRefusesNameTheRule(t *testing.T) {
	no := false
	h := newHouse(t, withPolicy(
		policy.Entry{Name: "open", Users: me(), Names: []string{"a:*", "b:*"}, Acquire: "allow"},
		policy.Entry{Name: "closed", Users: me(), Acquire: "deny", List: "none", ForceRelease: "none", Commands: &no},
		policy.Entry{Name: "short", Users: me(), LongestLease: "1s", LongestHold: "1h"},
		policy.Entry{Name: "few", Users: me(), Holds: 2, Sessions: 2},
	))
	socket := h.cfg.Socket
	c := greeted(t, socket)
	if m := c.hold("a:1"); m.EndNS == 0 {
		t.Errorf("%+v: longest_hold ends no hold of a client that set no max_hold", m)
	}
	c.refused(c.acquire("c", 0), protocol.Denied, `rule "closed" of the policy denies acquire`)
	c.id++
	c.send(protocol.Acquire{ID: c.id, Name: "a:2", LeaseMS: 2000})
	c.refused(c.id, protocol.Limit, `rule "short"`)
	c.hold("b:1")
	c.refused(c.acquire("b:2", 0), protocol.Limit, `rule "few" of the policy limits holds of user`)
	c.id++
	c.send(protocol.List{ID: c.id})
	c.refused(c.id, protocol.Denied, `rule "closed"`)
	c.id++
	c.send(protocol.ForceRelease{ID: c.id, Name: "a:1"})
	c.refused(c.id, protocol.Denied, `rule "closed"`)
	c.id++
	c.send(protocol.Events{ID: c.id})
	var events protocol.EventsOK
	if c.answer(c.id, &events); len(events.Events) != 0 || !strings.Contains(events.Hidden, `rule "closed"`) {
		t.Errorf("events: %+v", events)
	}
	c.id++
	c.send(protocol.Status{ID: c.id})
	var status protocol.StatusOK
	if c.answer(c.id, &status); status.OldestHold != nil || status.Held != 2 || !strings.Contains(status.Hidden, `rule "closed"`) {
		t.Errorf("status: %+v", status)
	}
	for _, about := range []func(id uint64) protocol.Request{
		func(id uint64) protocol.Request { return protocol.Hosts{ID: id} },
		func(id uint64) protocol.Request { return protocol.HostForceRelease{ID: id, Host: "db-7", Name: "a:1"} },
	} {
		c.id++
		c.send(about(c.id))
		c.refused(c.id, protocol.Denied, `rule "open" of the policy is about your process`)
	}
	stats, err := h.srv.Stats(t.Context())
	if want := []policy.Refused{{Denied: 2}, {Denied: 3}, {Limit: 1}, {Limit: 1}}; err != nil || !slices.Equal(stats.Policy, want) {
		t.Errorf("counted %+v, %v, want %+v", stats.Policy, err, want)
	}

	var info protocol.InfoOK
	c.id++
	c.send(protocol.Info{ID: c.id, Name: "a:1"})
	c.answer(c.id, &info)
	c.id++
	c.send(protocol.Info{ID: c.id, Name: "c"})
	c.refused(c.id, protocol.Denied, `rule "closed"`)

	greeted(t, socket)
	third := connect(t, socket)
	third.send(protocol.Hello{ID: 1, V: protocol.Version})
	third.refused(1, protocol.Limit, `rule "few" of the policy limits sessions`)
	third.ended()
}

func TestRequestsPerSecondAreRefusedAndReleasesAreNot(t *testing.T) {
	t.Parallel()
	socket := start(t, withPolicy(policy.Entry{Name: "slow", Users: me(), RequestsPerSecond: 1}))
	c := greeted(t, socket)
	m := c.hold("a")
	for code := protocol.Code(""); code != protocol.Limit; { // a request each second is allowed
		c.id++
		c.send(protocol.Ping{ID: c.id})
		if e, ok := c.next().(*protocol.Err); ok {
			if code = e.Code; !strings.Contains(e.Msg, `rule "slow"`) {
				t.Fatalf("refused: %+v", e)
			}
		}
	}
	c.id++
	c.send(protocol.Release{ID: c.id, Hold: m.Hold})
	var released protocol.ReleaseOK
	c.answer(c.id, &released)
}

// A client that goes on sending although it is refused is read no faster than at twice the rate. It
// gets every answer.
//
// Shows docs/guarantees.md: Sends as fast as it can.
func TestClientThatSendsTooFastIsReadMoreSlowly(t *testing.T) {
	t.Parallel()
	const perSecond, requests = 100, 400
	socket := start(t, withPolicy(policy.Entry{Name: "slow", Users: me(), RequestsPerSecond: perSecond}))
	begin := time.Now()
	c := greeted(t, socket)
	var all []byte // in one write: the rate is that at which they are read, however slow the machine is
	for i := range uint64(requests) {
		all = protocol.Ping{ID: 2 + i}.Append(all)
	}
	if _, err := c.nc.Write(all); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for range requests {
		if e, ok := c.next().(*protocol.Err); ok {
			if refused++; e.Code != protocol.Limit {
				t.Errorf("refused: %+v", e)
			}
		}
	}
	if refused == 0 || refused == requests {
		t.Errorf("%d of %d requests are refused", refused, requests)
	}
	if took, least := time.Since(begin), time.Duration(requests-2*perSecond)*time.Second/(2*perSecond); took < least {
		t.Errorf("%d requests are answered in %v, want %v at least", requests, took, least)
	}
}

// To connect counts, too: a client that reconnects all the time is not served faster.
//
// Shows docs/guarantees.md: Sends as fast as it can.
func TestClientThatReconnectsTooFastWaits(t *testing.T) {
	t.Parallel()
	const perSecond, connections = 10, 20
	socket := start(t, withPolicy(policy.Entry{Name: "slow", Users: me(), RequestsPerSecond: perSecond}))
	begin := time.Now()
	for range connections {
		greeted(t, socket).nc.Close()
	}
	// Each counts as three requests, the hello among them, and those of a second may come at once.
	if took, least := time.Since(begin), time.Duration(3*connections-2*perSecond)*time.Second/(2*perSecond); took < least {
		t.Errorf("%d clients are connected in %v, want %v at least", connections, took, least)
	}
}

// What a client has sent before it went is not read slowly: until it is read, its locks stay.
//
// Shows docs/guarantees.md: Sends as fast as it can.
func TestClientThatHasGoneIsNotReadSlowly(t *testing.T) {
	const tooMany = 2000 // at the pace of this entry, they would take minutes
	socket := start(t, withPolicy(policy.Entry{Name: "slow", Users: me(), RequestsPerSecond: 5}))
	c := greeted(t, socket)
	c.hold("a")
	var flood []byte
	for i := range uint64(tooMany) {
		flood = protocol.Ping{ID: 100 + i}.Append(flood)
	}
	if _, err := c.nc.Write(flood); err != nil {
		t.Fatal(err)
	}
	c.nc.Close()
	next := greeted(t, socket)
	next.hold("a")
}

// Without an entry that names it, the user of the sidecar is not bound: a person must be able to
// repair what a policy broke.
func TestPolicyForEveryoneDoesNotBindTheUserOfTheSidecar(t *testing.T) {
	socket := start(t, withPolicy(policy.Entry{Name: "rest", Acquire: "deny", List: "none", ForceRelease: "none", Sessions: 1}))
	greeted(t, socket)
	c := greeted(t, socket)
	c.hold("a")
	var forced protocol.ForceReleaseOK
	c.id++
	c.send(protocol.ForceRelease{ID: c.id, Name: "a"})
	if a, ok := c.next().(*protocol.LostEvent); !ok || a.Reason != protocol.ByForce {
		t.Fatalf("%+v, want the loss", a)
	}
	c.answer(c.id, &forced)
}

// Holds from before a restart count from when their client claims them, and none is lost although
// the policy allows fewer by then.
func TestHoldsOfAResumedSessionCountForThePolicy(t *testing.T) {
	h := newHouse(t, nil)
	c, hello := h.hello(true, "")
	var holds []protocol.ClaimedHold
	for _, name := range []string{"a", "b"} {
		holds = append(holds, protocol.ClaimedHold{Hold: c.hold(name).Hold, Entries: 1})
	}
	h.cfg.Policy = []policy.Entry{{Name: "few", Users: me(), Holds: 2, Sessions: 1}}
	h.restart()
	other, _ := h.hello(true, "") // the only session that is allowed, while the first is away
	c, resumed := h.hello(true, hello.Ticket)
	if !resumed.Resumed {
		t.Fatal("not resumed")
	}
	c.id++
	c.send(protocol.Claim{ID: c.id, Holds: holds})
	for claimed := false; !claimed; {
		switch m := c.next().(type) {
		case *protocol.Answer:
			claimed = true
		case *protocol.Err, *protocol.LostEvent:
			t.Fatalf("%+v", m)
		}
	}
	other.refused(other.acquire("c", 0), protocol.Limit, `rule "few" of the policy limits holds of user`)
}

// The groups and the cgroup of a peer come from the kernel.
func TestPeerIsMatchedByItsGroupsAndCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run a process with other groups")
	}
	if os.Getenv("LOCKSIDECAR_TEST_POLICY_SOCKET") != "" {
		c := greeted(t, os.Getenv("LOCKSIDECAR_TEST_POLICY_SOCKET"))
		c.refused(c.acquire("by-group", 0), protocol.Denied, `rule "group"`)
		c.refused(c.acquire("by-primary-group", 0), protocol.Denied, `rule "primary"`)
		c.refused(c.acquire("by-cgroup", 0), protocol.Denied, `rule "cgroup"`)
		c.hold("other")
		return
	}
	h := newHouse(t, func(c *sidecar.Config) {
		c.SocketMode = 0o666
		c.Policy = []policy.Entry{
			{Name: "group", Groups: []string{"54321"}, Names: []string{"by-group"}, Acquire: "deny"},
			{Name: "primary", Groups: []string{"54322"}, Names: []string{"by-primary-group"}, Acquire: "deny"},
			{Name: "cgroup", Groups: []string{"54321"}, Cgroups: []string{"/"}, Names: []string{"by-cgroup"}, Acquire: "deny"},
		}
	})
	greeted(t, h.cfg.Socket).hold("by-group") // of this process, which is not in the group
	if err := os.Chmod(strings.TrimSuffix(h.cfg.Socket, "/s"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestPeerIsMatchedByItsGroupsAndCgroup$", "-test.v")
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_TEST_POLICY_SOCKET="+h.cfg.Socket)
	groups := []uint32{}
	for i := range uint32(40) { // more than are read at first
		groups = append(groups, 60_000+i)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: 54322, Groups: append(groups, 54321)}}
	if out, err := cmd.CombinedOutput(); errors.Is(err, os.ErrPermission) {
		t.Skip("this root may not start a process with other groups: ", err)
	} else if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v: %s", err, out)
	}
}
