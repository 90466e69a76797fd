package sidecar_test

import (
	"os"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
)

func (c *wire) status() protocol.StatusRow {
	c.Helper()
	c.id++
	c.send(protocol.Status{ID: c.id})
	var m protocol.StatusOK
	c.answer(c.id, &m)
	return m.StatusRow
}

func TestStatusShowsTheOldestHoldAndWaiter(t *testing.T) {
	socket := start(t, func(c *sidecar.Config) { c.Version, c.KeyPrefix = "1.2.3", "app:" })
	a, b := greeted(t, socket), greeted(t, socket)
	if s := a.status(); s.Sessions != 2 || s.Held != 0 || s.Waiting != 0 || s.OldestHold != nil || s.OldestWaiter != nil || s.Lost != nil || s.Restart != nil || s.Trouble != "" {
		t.Errorf("at the start: %+v", s)
	}
	a.hold("first")
	a.hold("second")
	b.acquire("second", protocol.Forever)
	b.acquire("first", protocol.Forever)
	s := b.status()
	for s.OldestHold == nil || s.OldestWaiter == nil { // a survey of the locks may be a little older
		s = b.status()
	}
	if s.Version != "1.2.3" || s.Redis != "ok" || s.KeyPrefix != "app:" || s.RedisAddress == "" || s.RoundTripNS <= 0 || s.StartedNS == 0 || s.NowNS < s.StartedNS {
		t.Errorf("the sidecar: %+v", s)
	}
	if h := s.OldestHold; s.Held != 2 || h == nil || h.Name != "first" || h.PID != int64(os.Getpid()) || h.Cmd == "" {
		t.Errorf("%d holds, the oldest %+v", s.Held, h)
	}
	if w := s.OldestWaiter; s.Waiting != 2 || w == nil || w.Name != "second" || w.Session == 0 {
		t.Errorf("%d waiters, the oldest %+v", s.Waiting, w)
	}

	a.send(protocol.ForceRelease{ID: 90, Name: "first"})
	if e, ok := a.next().(*protocol.LostEvent); !ok {
		t.Fatalf("got %+v", e)
	}
	a.answer(90, new(protocol.ForceReleaseOK))
	if s := a.status(); len(s.Lost) != 1 || s.Lost[0] != (protocol.LossRow{Reason: protocol.ByForce, Count: 1}) {
		t.Errorf("lost: %+v", s.Lost)
	}
}

// The survey of many locks is made in parts, and is used again for a moment. What it found may have ended.
func TestStatusWithoutHoldsHasNoOldestHold(t *testing.T) {
	socket := start(t, nil)
	a, b := greeted(t, socket), greeted(t, socket)
	a.holdMany("lock ", 300) // more than one part of a survey
	a.nc.Close()
	s := b.status()
	for s.Held > 0 {
		s = b.status()
	}
	if s.OldestHold != nil {
		t.Errorf("no hold is left, and the oldest is %+v", s.OldestHold)
	}
}

func TestStatusShowsWhatARestartTookOver(t *testing.T) {
	h := newHouse(t, nil)
	back, hello := h.hello(true, "")
	hold := back.hold("x")
	away, _ := h.hello(true, "")
	away.hold("y")
	h.restart()
	c := greeted(t, h.cfg.Socket)
	if r := c.status().Restart; r == nil || *r != (protocol.RestartRow{Held: 2, Sessions: 2, Away: 2}) {
		t.Errorf("after the restart: %+v", r)
	}
	back = h.resumed(hello.Ticket)
	back.send(protocol.Claim{ID: 40, Holds: []protocol.ClaimedHold{{Hold: hold.Hold, Entries: 1}, {Hold: 1 << 40, Entries: 1}}})
	if e, ok := back.next().(*protocol.LostEvent); !ok || e.Reason != protocol.Forgotten {
		t.Fatalf("got %+v", e)
	}
	for {
		if a, ok := back.next().(*protocol.Answer); ok && a.ID == 40 {
			break
		}
	}
	s := c.status()
	if r := s.Restart; r == nil || *r != (protocol.RestartRow{Held: 2, Sessions: 2, Back: 1, Away: 1}) {
		t.Errorf("after a client came back: %+v", r)
	}
	if len(s.Lost) != 1 || s.Lost[0] != (protocol.LossRow{Reason: protocol.Forgotten, Count: 1}) {
		t.Errorf("lost: %+v", s.Lost)
	}
}

func TestStatusShowsWhyAStateWasNotUsed(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.State = t.TempDir() + "/state" })
	c, _ := h.hello(true, "")
	c.hold("x")
	h.stop()
	stale, err := os.ReadFile(h.cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	h.start()
	greeted(t, h.cfg.Socket).hold("y")
	h.stop()
	if err := os.WriteFile(h.cfg.State, stale, 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	if r := greeted(t, h.cfg.Socket).status().Restart; r == nil || r.Reason == "" || r.Held != 0 {
		t.Errorf("the restart: %+v", r)
	}
}

func TestStatusShowsWhyRedisDoesNotServe(t *testing.T) {
	socket := start(t, func(c *sidecar.Config) { c.Redis = "redis://127.0.0.1:1" })
	if s := greeted(t, socket).status(); s.Redis == "ok" || s.Redis == "" || s.RedisAddress != "127.0.0.1:1/0" || s.RoundTripNS != 0 {
		t.Errorf("status: %+v", s)
	}
}

func TestRowsCountGrants(t *testing.T) {
	socket := start(t, nil)
	a, b := greeted(t, socket), greeted(t, socket)
	grants := func() uint32 {
		var m protocol.InfoOK
		b.send(protocol.Info{ID: 90, Name: "x"})
		b.answer(90, &m)
		return m.Lock.Grants
	}
	var first, again protocol.AcquireOK
	a.send(protocol.Acquire{ID: 50, Name: "x", Owner: 1, WaitMS: protocol.Forever})
	a.answer(50, &first)
	a.send(protocol.Acquire{ID: 51, Name: "x", Owner: 1, WaitMS: protocol.Forever})
	a.answer(51, &again)
	wait := b.acquire("x", protocol.Forever)
	if n := grants(); n != 1 || again.Count != 2 {
		t.Errorf("%d grants after a re-entry", n)
	}
	a.send(protocol.Release{Hold: first.Hold})
	a.send(protocol.Release{Hold: first.Hold})
	b.answer(wait, new(protocol.AcquireOK))
	if n := grants(); n != 2 {
		t.Errorf("%d grants after a handoff", n)
	}
}
