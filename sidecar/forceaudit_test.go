package sidecar

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/eventlog"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/peers"
)

const someUUID = "99999999-8888-7777-6666-555555555555"

// auditLoop returns a loop that only records, and its log.
func auditLoop() (*loop, *strings.Builder) {
	var log strings.Builder
	l := &loop{log: slog.New(slog.NewTextHandler(&log, nil))}
	l.lines = loglimit.New(l.log, peers.IsPrivileged)
	l.hosts = otherhosts.New(otherhosts.Config{Setting: otherhosts.None})
	l.eventLog = eventlog.New(0)
	return l, &log
}

// Any program that may publish in Redis can ask to end a hold, and chooses what it says of its client.
// An operator's terminal gets neither its escape sequences nor more of it than of a client here.
func TestEventOfAnotherHostHasNoControlCharacters(t *testing.T) {
	r := &protocol.ForceRelease{Name: "a", By: &protocol.Requester{
		Host: "db-7\x1b[2J", PID: 4711, UID: 1000, Cmd: "\u009b2Jworker.py\n" + strings.Repeat("x", 2*protocol.MaxCmd),
	}}
	for what, refusal := range map[string]*protocol.Err{"done": nil, "refused": {Code: protocol.Denied, Msg: "it is not permitted"}} {
		l, _ := auditLoop()
		l.auditForceByHost(1, someUUID, r, 17, 1, refusal)
		rows := append(l.eventLog.Newest(2, func(*protocol.EventRow) bool { return true }), l.afterEffects...)
		if len(rows) != 1 {
			t.Fatalf("%s: %d events", what, len(rows))
		}
		e := rows[0]
		if e.RemoteHost != "db-7 [2J" || !strings.HasPrefix(e.Cmd, "2Jworker.py xxx") || len(e.Cmd) > protocol.MaxCmd || e.PID != 4711 || e.UID != 1000 {
			t.Errorf("%s: host %q, %d bytes of the command %q", what, e.RemoteHost, len(e.Cmd), e.Cmd)
		}
	}
}

// A request to end a hold elsewhere that got no answer may have ended it. So it is in the events and in
// the log, as one of which that is not known. One that found nothing to end is not.
func TestForcedReleaseOfUnknownOutcomeIsAnEvent(t *testing.T) {
	cl := &session{id: 5, peer: locktable.Peer{PID: 4711, UID: 1000, Cmd: "ops"}}
	for _, tt := range []struct {
		name        string
		request     protocol.Request
		code        protocol.Code
		event, line string // "": none
	}{
		{"silent host", &protocol.HostForceRelease{Name: "a", Host: "db-7"}, protocol.Unavailable, "on host db-7: why", "it is not known whether the hold ended"},
		{"silent Redis", &protocol.ForceReleaseOrphaned{Name: "a"}, protocol.Unavailable, "as an orphaned lock: why", "Redis did not confirm it"},
		{"not permitted", &protocol.HostForceRelease{Name: "a", Host: "db-7"}, protocol.Denied, "on host db-7: why", "a client was not permitted to force the release of a lock"},
		{"not held", &protocol.HostForceRelease{Name: "a", Host: "db-7"}, protocol.NotHeld, "", ""},
		{"no such host", &protocol.HostForceRelease{Name: "a", Host: "db-7"}, protocol.BadRequest, "", ""},
	} {
		l, log := auditLoop()
		l.auditAnswered(1, cl, &otherhosts.Answered{Request: tt.request, Reply: &protocol.Err{ID: 2, Code: tt.code, Msg: "why"}})
		rows := l.eventLog.Newest(2, func(*protocol.EventRow) bool { return true })
		if tt.event == "" {
			if len(rows) != 0 || log.String() != "" {
				t.Errorf("%s: %+v; logged %s", tt.name, rows, log)
			}
			continue
		}
		if len(rows) != 1 || rows[0].Kind != protocol.EventRefused || rows[0].Name != "a" || rows[0].Msg != tt.event || rows[0].PID != 4711 || rows[0].Session != 5 {
			t.Errorf("%s: %+v", tt.name, rows)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), tt.line) || !strings.Contains(log.String(), "reason=why") {
			t.Errorf("%s: logged %s", tt.name, log)
		}
	}
}
