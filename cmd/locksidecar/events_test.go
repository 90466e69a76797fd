package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// someEvents has every kind of event.
func someEvents() *locksidecar.EventPage {
	at := func(ms int64) int64 { return 1_000_000_000_000 - ms*1_000_000 }
	worker := func(e protocol.EventRow) protocol.EventRow {
		e.Session, e.PID, e.UID, e.Cmd = 6, 4712, 1000, "python3 worker.py\x1b[2J"
		return e
	}
	e := []protocol.EventRow{
		{AtNS: at(90_061_000), Kind: protocol.EventTakeover, Count: 12, Msg: "took over 12 holds; 3 clients with locks may come back"},
		worker(protocol.EventRow{AtNS: at(5_000), Kind: protocol.EventGranted, Name: "invoice:42", Hold: 78, Token: 1763695812000018, WaitedMS: 1_150}),
		worker(protocol.EventRow{AtNS: at(4_000), Kind: protocol.EventGranted, Name: "stock", Hold: 79, Token: 17, WaitedMS: 10}),
		worker(protocol.EventRow{AtNS: at(3_000), Kind: protocol.EventDeadlock, Name: "b", Msg: `waiting would never end: you ask for "b", which you hold`}),
		{AtNS: at(1_001), Kind: "renamed", Name: "later", Msg: "of a later sidecar"},
	}
	for _, why := range []protocol.Reason{protocol.Expired, protocol.Deleted, protocol.Stolen, protocol.ByForce, protocol.MaxHold} {
		lost := worker(protocol.EventRow{AtNS: at(1_000), Kind: protocol.EventLost, Name: "invoice:42", Hold: 78, HeldMS: 3_210, Reason: why})
		if why == protocol.Stolen {
			lost.RemoteField = "285475da-9152-4c83-822a-67ee2f116a79:52"
		}
		e = append(e, lost)
	}
	e = append(e, protocol.EventRow{AtNS: at(999), Kind: protocol.EventForced, Name: "invoice:42", Hold: 78, Session: 9})
	return &locksidecar.EventPage{Events: e, Next: 100, Missed: 1203}
}

func printEvents(t *testing.T, change func(*eventPrinter)) string {
	t.Helper()
	var out strings.Builder
	p := eventPrinter{out: &out, users: display.UserNames{0: "root", 1000: "app"}, zone: time.FixedZone("", 3600)}
	change(&p)
	if err := p.page(someEvents(), 1_000_000_000_000, time.Date(2026, 3, 7, 2, 0, 0, 123_456_789, time.UTC)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestEventsPrintALineForEach(t *testing.T) {
	golden(t, "events.txt", printEvents(t, func(*eventPrinter) {}))
}

func TestEventsJSONHasStableFields(t *testing.T) {
	text := printEvents(t, func(p *eventPrinter) { p.json = true })
	golden(t, "events.json", text)
	for line := range strings.Lines(text) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

func TestEventsLeaveOutOtherLocksAndShortWaits(t *testing.T) {
	if text := printEvents(t, func(p *eventPrinter) { p.prefix = "stock" }); strings.Contains(text, "invoice") || !strings.Contains(text, "stock") {
		t.Errorf("of locks that start with stock:\n%s", text)
	}
	if text := printEvents(t, func(p *eventPrinter) { p.minWait = time.Second }); strings.Contains(text, "stock") || !strings.Contains(text, "after 1.1s") {
		t.Errorf("of waits of 1 s:\n%s", text)
	}
}

func TestEventsAreReadToTheNewest(t *testing.T) {
	f := startFake(t)
	out := expectExit(t, start(t, f, "events"), 0, "")
	if n := strings.Count(out, "\n"); n != 2 || !strings.Contains(out, "a  by pid 1 (first) of root") || !strings.Contains(out, "b  by pid 1 (second) of root") {
		t.Errorf("printed\n%s", out)
	}
	if out := expectExit(t, start(t, f, "events", "nothing"), 0, ""); out != "no events since the sidecar was started of locks that start with \"nothing\"\n" {
		t.Errorf("of no lock: %q", out)
	}
	if out := expectExit(t, start(t, f, "events", "--json", "nothing"), 0, ""); out != "" {
		t.Errorf("as JSON, of no lock: %q", out)
	}
}

func TestFollowPrintsEventsAsTheyHappen(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "events", "--follow", "--json")
	for _, name := range []string{"a", "b"} {
		if line := p.line(); !strings.Contains(line, `"name":"`+name+`"`) {
			t.Errorf("printed %s", line)
		}
	}
	m := <-f.followed
	f.event(t, protocol.EventsOK{ID: m.ID, Events: []protocol.EventRow{{AtNS: protocol.Now(), Kind: protocol.EventLost, Name: "c", Reason: protocol.Expired}}, Next: m.After + 10, Missed: 9})
	for _, part := range []string{`"kind":"missed","count":9`, `"kind":"lost","name":"c"`} {
		if line := p.line(); !strings.Contains(line, part) {
			t.Errorf("printed %s, want %s", line, part)
		}
	}
}
