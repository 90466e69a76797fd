package sidecar_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
)

// events requests what happened after a number.
func (c *wire) events(after uint64, wait bool) (m protocol.EventsOK) {
	c.Helper()
	c.id++
	c.send(protocol.Events{ID: c.id, After: after, Wait: wait})
	c.answer(c.id, &m)
	return m
}

// follow returns the next n events after a number.
func (c *wire) follow(after uint64, n int) (rows []protocol.EventRow) {
	c.Helper()
	for len(rows) < n {
		m := c.events(after, true)
		rows = append(rows, m.Events...)
		after = m.Next
		if m.Missed != 0 {
			c.Fatalf("missed %d", m.Missed)
		}
	}
	return rows
}

func TestEventsHaveWhatHappenedToLocks(t *testing.T) {
	socket := start(t, nil)
	a, b, reader := greeted(t, socket), greeted(t, socket), greeted(t, socket)
	if m := reader.events(0, false); len(m.Events) != 0 || m.Next == 0 {
		t.Fatalf("at the start: %+v", m)
	}

	// A deadlock: a waits for y, which b has, and b asks for x.
	a.send(protocol.Acquire{ID: 50, Name: "x", Owner: 1, WaitMS: protocol.Forever})
	a.answer(50, new(protocol.AcquireOK))
	var y protocol.AcquireOK
	b.send(protocol.Acquire{ID: 50, Name: "y", Owner: 1, WaitMS: protocol.Forever})
	b.answer(50, &y)
	begin := reader.events(0, false) // on a slow machine, the two had to wait
	a.send(protocol.Acquire{ID: 51, Name: "y", Owner: 1, WaitMS: protocol.Forever})
	a.send(protocol.Ping{ID: 52}) // answered after the acquire has been queued
	a.answer(52, new(protocol.PingOK))
	queued := time.Now()
	b.send(protocol.Acquire{ID: 51, Name: "x", Owner: 1, WaitMS: protocol.Forever})
	b.refused(51, protocol.Deadlock, "")

	// A client ends the hold of another one, and a waiter gets the lock. It must have waited for
	// long enough: a timer of the sidecar answers this one, which came later, no earlier.
	b.refused(b.acquire("x", 20), protocol.Timeout, "")
	if waited := time.Since(queued); waited < 20*time.Millisecond {
		t.Fatalf("timeout after %v", waited)
	}
	b.send(protocol.ForceRelease{ID: 90, Name: "y"})
	if e, ok := b.next().(*protocol.LostEvent); !ok || e.Reason != protocol.ByForce {
		t.Fatalf("got %+v", e)
	}
	b.answer(90, new(protocol.ForceReleaseOK))
	var granted protocol.AcquireOK
	a.answer(51, &granted)

	rows := reader.follow(begin.Next, 4)
	kinds := []string{protocol.EventDeadlock, protocol.EventLost, protocol.EventForced, protocol.EventGranted}
	for i, r := range rows {
		if r.Kind != kinds[i] || r.PID != int64(os.Getpid()) || r.Cmd == "" || r.Session == 0 || r.AtNS == 0 {
			t.Errorf("event %d: %+v, want %s", i, r, kinds[i])
		}
	}
	if d := rows[0]; d.Name != "x" || !strings.Contains(d.Msg, `held by owner 1`) {
		t.Errorf("deadlock: %+v", d)
	}
	if l := rows[1]; l.Name != "y" || l.Hold != y.Hold || l.Reason != protocol.ByForce || l.HeldMS < 20 {
		t.Errorf("lost: %+v", l)
	}
	if f := rows[2]; f.Name != "y" || f.Hold != y.Hold {
		t.Errorf("forced: %+v", f)
	}
	if g := rows[3]; g.Name != "y" || g.Hold != granted.Hold || g.Token != granted.Token || g.WaitedMS < 20 || g.Session == rows[2].Session {
		t.Errorf("granted: %+v", g)
	}
	if len(rows) != 4 {
		t.Errorf("also: %+v", rows[4:])
	}
}

// A hold that was long, or for which another client waited, is an event at its end; and the next
// holder's names the process that it waited for.
func TestEndOfALongHoldIsAnEvent(t *testing.T) {
	socket := start(t, nil)
	a, b, reader := greeted(t, socket), greeted(t, socket), greeted(t, socket)
	first := a.hold("x")
	begin := reader.events(0, false) // on a slow machine it had to wait
	// A timer of the sidecar measures how long the hold is at least.
	b.refused(b.acquire("x", 20), protocol.Timeout, "")
	waiter := b.acquire("x", protocol.Forever)
	b.refused(b.acquire("x", 20), protocol.Timeout, "")
	a.send(protocol.Release{Hold: first.Hold})
	var second protocol.AcquireOK
	b.answer(waiter, &second)
	rows := reader.follow(begin.Next, 2)
	if r := rows[0]; r.Kind != protocol.EventReleased || r.Name != "x" || r.Hold != first.Hold || r.HeldMS < 40 || r.Count != 1 || r.PID != int64(os.Getpid()) || r.Cmd == "" {
		t.Errorf("released: %+v", r)
	}
	if g := rows[1]; g.Kind != protocol.EventGranted || g.Hold != second.Hold || !strings.Contains(g.Msg, fmt.Sprintf("pid %d (", os.Getpid())) {
		t.Errorf("granted: %+v", g)
	}
}

// A client that ended its work because the lock was about to be lost makes its release an event,
// one of the losses of the last hour, and a line of the log.
func TestReleaseThatWasCutShortIsALossForOperators(t *testing.T) {
	var log bytes.Buffer
	h := newHouse(t, func(c *sidecar.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	a := greeted(t, h.cfg.Socket)
	held := a.hold("x")
	begin := a.events(0, false)
	a.send(protocol.Release{Hold: held.Hold, CutShort: true})
	e := a.follow(begin.Next, 1)[0]
	if e.Kind != protocol.EventLost || e.Reason != protocol.CutShort || e.Name != "x" || e.Hold != held.Hold || e.PID != int64(os.Getpid()) {
		t.Errorf("%+v", e)
	}
	if s := a.status(); len(s.Lost) != 1 || s.Lost[0] != (protocol.LossRow{Reason: protocol.CutShort, Count: 1}) {
		t.Errorf("lost in the last hour: %+v", s.Lost)
	}
	a.hold("x") // the release was one
	h.stop()
	if !strings.Contains(log.String(), `level=WARN msg="work ended before its lock was lost"`) {
		t.Errorf("the log: %s", log.String())
	}
}

// A client that ends with locks is an event for each of them, up to a bound.
func TestCrashNamesTheLocks(t *testing.T) {
	var log bytes.Buffer
	h := newHouse(t, func(c *sidecar.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	socket := h.cfg.Socket
	a, reader := greeted(t, socket), greeted(t, socket)
	const locks = 120
	for i := range locks {
		a.hold(fmt.Sprint("x", i))
	}
	begin := reader.events(0, false) // on a slow machine some had to wait
	a.nc.Close()
	rows := reader.follow(begin.Next, 100)
	names := make(map[string]bool)
	for _, r := range rows {
		names[r.Name] = true
		if r.Kind != protocol.EventCrashed || r.PID != int64(os.Getpid()) || r.UID != int64(os.Geteuid()) || r.Session == 0 || r.Hold == 0 {
			t.Errorf("%+v", r)
		}
	}
	h.stop()
	if text := log.String(); !strings.Contains(text, "client ended with locks held; released") || !strings.Contains(text, "x119, x118, ") || !strings.Contains(text, ", x0\"") {
		t.Errorf("logged:\n%s", text)
	}
	if len(rows) != 100 || len(names) != 100 {
		t.Errorf("%d events of %d locks", len(rows), len(names))
	}
}

// Locks that were free, and passed on at once, are no events.
func TestGrantsWithoutAWaitAreNoEvents(t *testing.T) {
	c := greeted(t, start(t, nil))
	for range 10 {
		c.send(protocol.Release{Hold: c.hold("x").Hold})
	}
	for _, e := range c.events(0, false).Events {
		if e.WaitedMS < 10 { // on a slow machine some wait for Redis
			t.Errorf("event: %+v", e)
		}
	}
}

func TestLaterEventsRequestHasTheEarlierOneAnswered(t *testing.T) {
	socket := start(t, nil)
	c, other := greeted(t, socket), greeted(t, socket)
	other.hold("x")
	begin := c.events(0, false)
	c.send(protocol.Events{ID: 10, After: begin.Next, Wait: true})
	c.send(protocol.Events{ID: 11, After: begin.Next, Wait: true})
	var m protocol.EventsOK
	c.answer(10, &m)
	if len(m.Events) != 0 {
		t.Errorf("events: %+v", m)
	}
	other.send(protocol.ForceRelease{ID: 90, Name: "x"})
	c.answer(11, &m)
	if len(m.Events) == 0 || m.Events[0].Kind != protocol.EventLost {
		t.Errorf("events: %+v", m)
	}

	// An id is in use until its answer.
	c.send(protocol.Events{ID: 12, After: m.Next + 1<<20, Wait: false}) // a number of no sidecar: the oldest
	c.answer(12, &m)
	c.send(protocol.Events{ID: 13, After: m.Next, Wait: true})
	c.send(protocol.Ping{ID: 13})
	c.refused(0, protocol.BadFrame, "in use")
	c.ended()
}

// The requests of all clients that wait are bounded, and clients that left do not count.
//
// Shows docs/guarantees.md: Follows the events and does not read them.
func TestRequestsThatWaitForEventsAreLimited(t *testing.T) {
	socket := start(t, nil)
	waiting := func() *wire {
		c := greeted(t, socket)
		c.send(protocol.Events{ID: 10, Wait: true})
		c.send(protocol.Ping{ID: 11})
		return c
	}
	var all []*wire
	for range 16 {
		c := waiting()
		c.answer(11, new(protocol.PingOK))
		all = append(all, c)
	}
	waiting().refused(10, protocol.Limit, "16 requests wait")

	// bye is answered when the session has ended.
	all[0].send(protocol.Bye{ID: 12})
	all[0].answer(12, new(protocol.ByeOK))
	waiting().answer(11, new(protocol.PingOK))

	// Each of them gets the event.
	other := greeted(t, socket)
	other.hold("x")
	other.send(protocol.ForceRelease{ID: 90, Name: "x"})
	for _, c := range all[1:] {
		var m protocol.EventsOK
		if c.answer(10, &m); len(m.Events) == 0 {
			t.Error("no events")
		}
	}
}

// Which process had a lock, and until when, is known after a restart. Clients that follow the events
// get none of them twice.
func TestEventsSurviveARestart(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.State = t.TempDir() + "/state" })
	a, b, reader := greeted(t, h.cfg.Socket), greeted(t, h.cfg.Socket), greeted(t, h.cfg.Socket)
	a.hold("invoice:42")
	b.hold("x")
	before := reader.events(0, false)
	a.nc.Close()
	crashed := reader.follow(before.Next, 1)[0]
	before = reader.events(0, false)
	b.send(protocol.ForceRelease{ID: 90, Name: "x"}) // a client ends its own hold
	for _, isEvent := b.next().(*protocol.LostEvent); !isEvent; _, isEvent = b.next().(*protocol.LostEvent) {
	}
	h.restart()
	reader = greeted(t, h.cfg.Socket)
	all := reader.events(0, false)
	found := false
	for _, e := range all.Events {
		found = found || e == crashed
	}
	if !found || all.Missed != 0 {
		t.Errorf("after the restart: %+v, without %+v", all, crashed)
	}
	for _, e := range reader.events(before.Next, false).Events {
		if e == crashed {
			t.Errorf("a client that follows gets %+v twice", e)
		}
	}
}

func TestRestartIsAnEventAfterWhichTheNumbersContinue(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.State = t.TempDir() + "/state" })
	c, hello := h.hello(true, "")
	c.hold("x")
	before := c.events(0, false)
	h.restart()
	c = greeted(t, h.cfg.Socket)
	m := c.events(before.Next, true)
	if len(m.Events) != 1 || m.Events[0].Kind != protocol.EventTakeover || m.Events[0].Count != 1 || m.Events[0].Msg != "took over 1 hold; 1 client with locks may come back" {
		t.Errorf("after the restart: %+v", m)
	}
	if m.Next <= before.Next || m.Missed != 0 {
		t.Errorf("next %d, before the restart %d; missed %d", m.Next, before.Next, m.Missed)
	}
	h.resumed(hello.Ticket)
}
