package eventlog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// policySessions returns sessions of users under a policy, in the order of their uids.
func policySessions(t *testing.T, entries []policy.Entry, uids ...int64) (sessions []*policy.Session) {
	t.Helper()
	p, err := policy.New(entries, policy.Resolver{})
	if err != nil {
		t.Fatal(err)
	}
	l := &policy.Ledger{SharedUID: -1}
	for _, uid := range uids {
		rules, refused := p.For(&policy.Peer{UID: uid, Cgroup: fmt.Sprintf("/system.slice/u%d.service", uid)})
		if refused != nil || rules == nil {
			t.Fatalf("user %d: %+v", uid, refused)
		}
		s, refused := l.Open(1, rules, uid, false)
		if refused != nil {
			t.Fatal(refused.Msg)
		}
		sessions = append(sessions, s)
	}
	return sessions
}

// A client sees the events of its own user, and what has a name of another user's lock, process or
// command is missing.
func TestEventsShowAMemberItsOwnHistory(t *testing.T) {
	s := policySessions(t, []policy.Entry{{Name: "rest", List: "own"}}, 1000, 1000, 2000)
	viewer, colleague, other := s[0], s[1], s[2]
	theirs := locktable.Peer{PID: 9, UID: 2000, Cmd: "secret command"}
	mine := locktable.Peer{PID: 8, UID: 1000, Cmd: "my command"}
	g := New(5_000_000)
	add := func(row protocol.EventRow, about About) { g.Add(row, about) }
	own := protocol.EventRow{Session: 3, PID: 8, UID: 1000, Cmd: "my command"}
	event := func(kind, name, msg string, by protocol.EventRow) protocol.EventRow {
		by.Kind, by.Name, by.Msg = kind, name, msg
		return by
	}
	of := protocol.EventRow{Session: 4, PID: 9, UID: 2000, Cmd: "secret command"}
	for _, kind := range []string{protocol.EventGranted, protocol.EventReleased, protocol.EventCrashed, protocol.EventLost, protocol.EventForced, protocol.EventRefused, protocol.EventDeadlock} {
		add(event(kind, "secret", "secret", of), About{})
	}
	add(event(protocol.EventForced, "secret", "secret", protocol.EventRow{UID: 1000, RemoteHost: "db-7"}), About{}) // of another host
	add(event(protocol.EventLost, "secret", "", protocol.EventRow{}), About{})                                      // of a process that is not known
	add(event(protocol.EventGranted, "1", theirs.OfUser(), own), About{WaitedFor: &theirs})
	add(event(protocol.EventGranted, "2", mine.OfUser(), own), About{WaitedFor: &mine})
	add(event(protocol.EventLost, "3", "", own), About{})
	add(event(protocol.EventDeadlock, "4", "for me", own), About{Rules: colleague.Rules()})
	add(event(protocol.EventDeadlock, "5", "secret", own), About{}) // of a client without a policy, or restored
	add(event(protocol.EventDeadlock, "6", "secret", own), About{Rules: policySessions(t, []policy.Entry{{Name: "all", Holds: 9}}, 1000)[0].Rules()})
	add(protocol.EventRow{Kind: protocol.EventRedisUp}, About{})
	add(event(protocol.EventReleased, "secret", "", of), About{})

	rows, next, missed := g.Page(0, 1<<20, viewer, nil)
	var got []string
	for _, r := range rows {
		got = append(got, r.Name+" "+r.Kind+" "+r.Msg)
	}
	want := []string{
		"1 granted a process of another user", "2 granted pid 8 (my command) of uid 1000", "3 lost ", "4 deadlock for me",
		"5 deadlock the policy hides the steps from you", "6 deadlock the policy hides the steps from you", " redis_up ",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("shown:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if next != g.last || missed != 0 {
		t.Errorf("next is %d, missed %d, want %d and 0", next, missed, g.last)
	}
	if all, _, _ := g.Page(0, 1<<20, nil, nil); len(all) != 17 || all[0].Msg != "secret" {
		t.Errorf("the events themselves were changed: %d, %+v", len(all), all[0])
	}
	if rows, _, _ := g.Page(0, 1<<20, other, nil); strings.Contains(fmt.Sprint(rows), "my command") {
		t.Errorf("the other user sees %+v", rows)
	}
	few := policySessions(t, []policy.Entry{{Name: "few", Holds: 9}}, 1000)[0]
	if rows, _, _ := g.Page(0, 1<<20, few, nil); len(rows) != 17 || rows[0].Msg != "secret" {
		t.Errorf("events are redacted for a client from which nothing is hidden: %d, %+v", len(rows), rows[0])
	}
}

// Where commands are hidden, all events are shown, without the commands of others.
func TestEventsHideTheCommandsOfOthers(t *testing.T) {
	no := false
	viewer := policySessions(t, []policy.Entry{{Name: "rest", Commands: &no}}, 1000)[0]
	theirs := locktable.Peer{PID: 9, UID: 2000, Cmd: "secret"}
	g := New(5_000_000)
	g.Add(protocol.EventRow{Kind: protocol.EventGranted, Name: "a", Session: 4, PID: 9, UID: 2000, Cmd: "secret", Msg: theirs.OfUser()}, About{WaitedFor: &theirs})
	g.Add(protocol.EventRow{Kind: protocol.EventDeadlock, Name: "a", Session: 4, PID: 9, UID: 2000, Cmd: "secret", Msg: "secret"}, About{Rules: viewer.Rules()})
	rows, _, _ := g.Page(0, 1<<20, viewer, nil)
	if len(rows) != 2 || strings.Contains(fmt.Sprint(rows), "secret") || rows[0].Msg != "pid 9 of uid 2000" {
		t.Errorf("shown: %+v", rows)
	}
}

// BenchmarkPageOfHiddenEvents is what a client costs the loop that asks for events of which it may
// see none.
func BenchmarkPageOfHiddenEvents(b *testing.B) {
	p, err := policy.New([]policy.Entry{{Name: "a", Names: []string{"a:*", "b:*"}, List: "all"}, {Name: "rest", List: "own"}}, policy.Resolver{})
	if err != nil {
		b.Fatal(err)
	}
	rules, _ := p.For(&policy.Peer{UID: 1000})
	viewer, _ := new(policy.Ledger).Open(1, rules, 1000, false)
	g := New(5_000_000)
	for i := range maxEvents {
		for _, kind := range []string{protocol.EventGranted, protocol.EventCrashed, protocol.EventLost} {
			g.Add(protocol.EventRow{Kind: kind, Name: fmt.Sprint("secret:", i), Session: 4, UID: 2000}, About{})
		}
	}
	for b.Loop() {
		if rows, _, _ := g.Page(0, 16<<10, viewer, nil); len(rows) != 0 {
			b.Fatal("shown")
		}
	}
}
