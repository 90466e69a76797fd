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

// readAt is when someEvents were read.
var readAt = time.Date(2026, 3, 7, 2, 0, 0, 123_456_789, time.UTC)

// someEvents has every kind of event.
func someEvents() *locksidecar.EventPage {
	at := func(n int64) time.Time { return readAt.Add(-ms(n)) }
	worker := func(e locksidecar.Event) locksidecar.Event {
		e.Session, e.PID, e.UID, e.Cmd = 6, 4712, 1000, "python3 worker.py\x1b[2J"
		return e
	}
	e := []locksidecar.Event{
		{At: at(90_061_000), Kind: locksidecar.EventTakeover, Count: 12, Message: "took over 12 holds; 3 clients with locks may come back"},
		worker(locksidecar.Event{At: at(5_000), Kind: locksidecar.EventGranted, Name: "invoice:42", Hold: 78, Token: 1763695812000018, Waited: ms(1_150)}),
		worker(locksidecar.Event{At: at(4_000), Kind: locksidecar.EventGranted, Name: "stock", Hold: 79, Token: 17, Waited: ms(10)}),
		worker(locksidecar.Event{At: at(3_000), Kind: locksidecar.EventDeadlock, Name: "b", Message: `waiting would never end: you ask for "b", which you hold`}),
		worker(locksidecar.Event{At: at(2_900), Kind: locksidecar.EventReleased, Name: "invoice:42", Hold: 80, Held: 40 * time.Minute, Count: 3}),
		worker(locksidecar.Event{At: at(2_899), Kind: locksidecar.EventGranted, Name: "invoice:42", Hold: 81, Token: 19, Waited: 38 * time.Minute, Message: "pid 4711 (go\x1b[2J) of uid 1000"}),
		worker(locksidecar.Event{At: at(2_898), Kind: locksidecar.EventGranted, Name: "till", Hold: 82, Token: 20, Waited: ms(2_000), RemoteField: "285475da-9152-4c83-822a-67ee2f116a79:52", RemoteHost: "db-7"}),
		worker(locksidecar.Event{At: at(2_800), Kind: locksidecar.EventCrashed, Name: "invoice:42", Hold: 81, Held: ms(99), Count: 1}),
		worker(locksidecar.Event{At: at(2_799), Kind: locksidecar.EventGranted, Name: "partner-api", Hold: 83, Token: 21, Permits: 2, Waited: ms(40)}),
		worker(locksidecar.Event{At: at(2_798), Kind: locksidecar.EventReleased, Name: "partner-api", Hold: 84, Permits: 1, Held: 40 * time.Minute}),
		{At: at(2_700), Kind: locksidecar.EventRedisDown, Message: "10.0.0.7:6379 closed the connection"},
		{At: at(2_650), Kind: locksidecar.EventRedisDegraded, Message: "Redis at 10.0.0.7:6379 is out of memory"},
		{At: at(2_600), Kind: locksidecar.EventRedisUp},
		{At: at(2_600), Kind: locksidecar.EventDataLost},
		{At: at(2_550), Kind: locksidecar.EventSlotsOpen, Message: "slot 42 has been migrating from 10.0.0.7:6379 to 10.0.0.8:6379 for more than 10s"},
		{At: at(2_500), Kind: locksidecar.EventSlotsClosed},
		{At: at(1_001), Kind: "renamed", Name: "later", Message: "of a later sidecar"},
	}
	for _, why := range []locksidecar.Reason{locksidecar.ReasonExpired, locksidecar.ReasonDeleted, locksidecar.ReasonStolen, locksidecar.ReasonForced, locksidecar.ReasonMaxHold} {
		lost := worker(locksidecar.Event{At: at(1_000), Kind: locksidecar.EventLost, Name: "invoice:42", Hold: 78, Held: ms(3_210), Reason: why})
		if why == locksidecar.ReasonStolen {
			lost.RemoteField = "285475da-9152-4c83-822a-67ee2f116a79:52"
		}
		e = append(e, lost)
	}
	e = append(e, locksidecar.Event{At: at(999), Kind: locksidecar.EventForced, Name: "invoice:42", Hold: 78, Session: 9})
	e = append(e, worker(locksidecar.Event{At: at(998), Kind: locksidecar.EventReleased, Name: "catalog", Hold: 79, Shared: true, Held: ms(3_210)}))
	return &locksidecar.EventPage{Events: e, Next: 100, Missed: 1203}
}

func printEvents(t *testing.T, change func(*eventPrinter)) string {
	t.Helper()
	var out strings.Builder
	p := eventPrinter{out: &out, users: display.UserNames{0: "root", 1000: "app"}, zone: time.FixedZone("", 3600)}
	change(&p)
	if err := p.page(someEvents(), readAt); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestEventsPrintALineForEach(t *testing.T) {
	golden(t, "events.txt", printEvents(t, func(*eventPrinter) {}))
}

// A process that is not known has no user: it would be shown as root. One of another host, which forced a
// release, has its number.
func TestEventOfAnUnknownProcessHasNoUser(t *testing.T) {
	users := display.UserNames{0: "root", 1000: "app"}
	for _, tt := range []struct {
		event locksidecar.Event
		want  string
	}{
		{locksidecar.Event{Kind: locksidecar.EventLost, RemoteHost: "db-7", RemoteField: "uuid-7:1"}, ""},
		{locksidecar.Event{Kind: locksidecar.EventForced, RemoteHost: "db-7", UID: 1000}, "1000"},
		{locksidecar.Event{Kind: locksidecar.EventRefused, RemoteHost: "db-7"}, "0"},
		{locksidecar.Event{Kind: locksidecar.EventForced, Session: 5, UID: 1000}, "app"},
	} {
		if v := viewEvent(&tt.event, users); v.User != tt.want || (v.UID != nil) != (tt.want != "") {
			t.Errorf("%+v: user %q, uid %v, want %q", tt.event, v.User, v.UID, tt.want)
		}
	}
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
	if text := printEvents(t, func(p *eventPrinter) { p.pattern = "stock*" }); strings.Contains(text, "invoice") || !strings.Contains(text, "stock") {
		t.Errorf("of locks that start with stock:\n%s", text)
	}
	if text := printEvents(t, func(p *eventPrinter) { p.minWait = time.Second }); strings.Contains(text, "stock") || !strings.Contains(text, "after 1.1s") {
		t.Errorf("of waits of 1 s:\n%s", text)
	}
}

func TestEventsAreReadToTheNewest(t *testing.T) {
	f := startFake(t)
	out := expectExit(t, start(t, f, "events"), 0, "locksidecar: the daemon has dropped 7 older events")
	if n := strings.Count(out, "\n"); n != 2 || !strings.Contains(out, "a  by pid 1 (first) of root") || !strings.Contains(out, "b  by pid 1 (second) of root") {
		t.Errorf("printed\n%s", out)
	}
	if out := expectExit(t, start(t, f, "events", "nothing"), 0, "has dropped 7 older events"); out != "no events of locks that match \"nothing\"\n" {
		t.Errorf("of no lock: %q", out)
	}
	if out := expectExit(t, start(t, f, "events", "--json", "nothing"), 0, "has dropped 7 older events"); out != "" {
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

// An operator asks for the events of the last hours.
func TestEventsSinceATime(t *testing.T) {
	now := time.Date(2026, 3, 7, 3, 0, 0, 0, time.UTC)
	at := func(ago time.Duration) locksidecar.Event {
		return locksidecar.Event{At: now.Add(-ago), Kind: locksidecar.EventReleased, Name: "invoice:42", PID: 1, Held: time.Minute}
	}
	var out strings.Builder
	p := eventPrinter{out: &out, from: now.Add(-time.Hour), zone: time.UTC}
	if err := p.page(&locksidecar.EventPage{Events: []locksidecar.Event{at(2 * time.Hour), at(59 * time.Minute)}}, now); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "Mar  7 02:01:00.000  released") {
		t.Errorf("got %q", got)
	}
	out.Reset()
	p.printed = false
	if err := p.end(); err != nil || out.String() != "no events since Mar  7 02:00:00\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
