package sidecar_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

func (h *house) stats() *sidecar.Stats {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := h.srv.Stats(ctx)
	if err != nil {
		h.Fatal(err)
	}
	return s
}

func TestStatsCountsWhatClientsDid(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	c.hold("a")
	other := greeted(t, h.cfg.Socket)
	other.refused(other.acquire("a", 0), protocol.Timeout, "")
	other.acquire("a", protocol.Forever)
	other.ping() // it is behind the acquire

	s := h.stats()
	g, v := s.Groups[0], s.Survey.Groups[0]
	if g.Acquires[locktable.AcquireGranted] != 1 || g.Acquires[locktable.AcquireTimeout] != 1 {
		t.Errorf("acquires: %v", g.Acquires)
	}
	if s.Sessions != 2 || s.Holds != 1 || s.Waiters != 1 || v.Holds != 1 || v.Waiters != 1 {
		t.Errorf("%+v", s)
	}
	if v.OldestHold.Name != "a" || v.OldestWaiter.Name != "a" || v.OldestHold.Session == v.OldestWaiter.Session {
		t.Errorf("%+v", v)
	}
	if s.Redis != "ok" || s.Scripts.Count() == 0 || s.Steps.Count() == 0 || s.LoopDelay <= 0 || s.Now < s.StartedAt {
		t.Errorf("%+v", s)
	}
}

func TestStatsCountsResumedSessionsAndForgottenHolds(t *testing.T) {
	h := newHouse(t, nil)
	c, m := h.hello(true, "")
	hold := c.hold("a").Hold
	h.restart()
	c = h.resumed(m.Ticket)
	c.claim(protocol.ClaimedHold{Hold: hold, Entries: 1}, protocol.ClaimedHold{Hold: hold + 1000, Entries: 1})
	s := h.stats()
	if s.Resumed != 1 || s.TakenOver != 1 || s.Groups[0].Losses[locktable.LossForgotten] != 1 {
		t.Errorf("resumed %d, taken over %d, losses %v", s.Resumed, s.TakenOver, s.Groups[0].Losses)
	}
}

// holdMany acquires n locks, some at a time: a slow machine needs long for a round trip, and a script for all of
// them would have its Redis be silent for too long.
func (c *wire) holdMany(prefix string, n int) {
	c.Helper()
	const atOnce = 40
	for i := 0; i < n; i += atOnce {
		some := min(atOnce, n-i)
		for j := range some {
			c.acquire(fmt.Sprint(prefix, i+j), protocol.Forever)
		}
		for range some {
			if m, ok := c.next().(*protocol.Answer); !ok {
				c.Fatalf("got %+v, want a grant", m)
			}
		}
	}
}

// More locks than one step looks at.
func TestSurveyOfManyLocksIsMadeInParts(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	const n = 300 // surveyPart is 256
	c.hold("lock-0")
	c.holdMany("more", n-1)
	if v := h.stats().Survey.Groups[0]; v.Holds != n || v.OldestHold.Name != "lock-0" {
		t.Errorf("%d holds, and the oldest is %s", v.Holds, v.OldestHold.Name)
	}
}

func TestStatsOfASidecarThatHasStoppedIsAnErrorAtOnce(t *testing.T) {
	h := newHouse(t, nil)
	h.stop()
	for name, err := range map[string]error{
		"Stats": func() error { _, err := h.srv.Stats(context.Background()); return err }(),
		"Ping":  h.srv.Ping(context.Background()),
	} {
		if err == nil || err.Error() != "the sidecar has stopped" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
