package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// topSamples are two looks, 2 s apart.
func topSamples() (before, cur topSample) {
	at := time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)
	held := func(name string, waiting int, waitMS, heldMS int64, grants uint64) locksidecar.LockInfo {
		l := locksidecar.LockInfo{Name: name, State: locksidecar.LockHeld, PID: 4711, UID: 1000, Cmd: "python3 worker.py\x1b[2J", Held: ms(heldMS), Grants: grants, Waiting: waiting}
		if waiting > 0 {
			l.Waiters = []locksidecar.WaiterInfo{{Waited: ms(waitMS)}, {Waited: ms(1)}}
		}
		return l
	}
	locks := func(at time.Time, l ...locksidecar.LockInfo) []hostLocks { return []hostLocks{{at: at, locks: l}} }
	before = topSample{
		status: locksidecar.Status{Redis: "ok", Sessions: 4},
		hosts:  locks(at, held("hot", 2, 3, 0, 1_000), held("invoice:42", 17, 59_000, 59_200, 3), held("again", 0, 0, 10, 500), held("gone", 1, 5, 5, 1)),
	}
	cur = topSample{
		status: locksidecar.Status{Redis: "ok", RoundTrip: 213_400, Sessions: 4, Held: 5, Waiting: 20, RenewalsLate: 1, Lost: []locksidecar.LossCount{{Reason: locksidecar.ReasonExpired, Count: 3}, {Reason: locksidecar.ReasonStolen, Count: 1}}},
		hosts: locks(at.Add(2*time.Second),
			held("hot", 2, 3, 0, 9_005), held("invoice:42", 17, 61_000, 61_200, 3), held("again", 0, 0, 2_010, 5), held("nightly", 0, 0, 7_500_000, 1),
			locksidecar.LockInfo{Name: "elsewhere", State: locksidecar.LockRemote, RemoteField: "285475da-9152-4c83-822a-67ee2f116a79:52", Waiting: 1, Waiters: []locksidecar.WaiterInfo{{Waited: ms(200)}}},
			locksidecar.LockInfo{Name: "asking", State: locksidecar.LockBusy},
		),
	}
	return before, cur
}

// topOn returns what top shows on a terminal of that size after two looks.
func topOn(width, height int) *topModel {
	m := newTopModel(time.Second)
	m.zone = time.UTC
	m.users = display.UserNames{0: "root", 1000: "app"}
	before, cur := topSamples()
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	m.Update(before)
	m.Update(cur)
	return m
}

func (m *topModel) press(keys ...string) {
	for _, k := range keys {
		key := tea.KeyPressMsg{Text: k, Code: []rune(k)[0]}
		switch k {
		case "esc":
			key = tea.KeyPressMsg{Code: tea.KeyEscape}
		case "enter":
			key = tea.KeyPressMsg{Code: tea.KeyEnter}
		case "backspace":
			key = tea.KeyPressMsg{Code: tea.KeyBackspace}
		case "down":
			key = tea.KeyPressMsg{Code: tea.KeyDown}
		case "up":
			key = tea.KeyPressMsg{Code: tea.KeyUp}
		case "pgdown":
			key = tea.KeyPressMsg{Code: tea.KeyPgDown}
		case "left":
			key = tea.KeyPressMsg{Code: tea.KeyLeft}
		case "end":
			key = tea.KeyPressMsg{Code: tea.KeyEnd}
		}
		m.Update(key)
	}
}

func (m *topModel) names() string {
	var names []string
	for _, r := range m.shown {
		names = append(names, r.lock.Name)
	}
	return strings.Join(names, " ")
}

// unmarked removes the colours of the marked row.
var unmarked = strings.NewReplacer("\x1b[7m", "", "\x1b[33;7m", "", "\x1b[31m", "", "\x1b[33m", "", "\x1b[m", "")

// fits checks that a screen has no more than these lines and columns, and returns it without its colours.
func fits(t *testing.T, m *topModel) string {
	t.Helper()
	lines := strings.Split(m.screen(), "\n")
	if len(lines) > max(1, m.height) {
		t.Errorf("%d lines on a terminal of %d×%d:\n%s", len(lines), m.width, m.height, m.screen())
	}
	for _, line := range lines {
		if n := ansi.StringWidth(line); n > m.width && m.width > 0 {
			t.Errorf("a line of %d columns on a terminal of %d×%d: %q", n, m.width, m.height, line)
		}
	}
	lines = strings.Split(unmarked.Replace(m.screen()), "\n") // other sequences would be of a process
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ") // of the marked row
	}
	text := strings.Join(lines, "\n")
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("the screen has the character %q:\n%q", r, text)
			break
		}
	}
	return text
}

func TestTopShowsTheLocksWithTheMostWaitersFirst(t *testing.T) {
	golden(t, "top.txt", fits(t, topOn(110, 14))+"\n")
	golden(t, "top-80.txt", fits(t, topOn(80, 24))+"\n")
}

func TestTopOnASmallTerminalFits(t *testing.T) {
	golden(t, "top-small.txt", fits(t, topOn(60, 7))+"\n")
	for width := 0; width < 120; width += harness.Pick(1+width/8, 1) {
		for _, height := range []int{0, 1, 2, 3, 4, 5, 24} {
			m := topOn(width, height)
			fits(t, m)
			m.open(&m.shown[0])
			m.Update(lockSampleOf(m.opened))
			fits(t, m)
			m.press("end")
			fits(t, m)
		}
	}
}

// The row that is selected at first is that with the most waiters.
func TestTopColoursLocksThatAreWaitedFor(t *testing.T) {
	screen := topOn(80, 24).screen()
	for _, want := range []string{"\n\x1b[33;7m> invoice:42 ", "\n\x1b[33m  hot ", "\n  nightly "} {
		if !strings.Contains(screen, want) {
			t.Errorf("no row begins with %q:\n%q", want, screen)
		}
	}
}

// The last line of a terminal of 80 columns has every key.
func TestTopNamesItsKeysIn80Columns(t *testing.T) {
	for width, want := range map[int]string{
		80:  "q quit   Enter open   / filter   p pause   sort: w t h c n, r reverse",
		110: "q quit   Enter open   / filter   p pause   sort: w waiters, t wait, h hold, c changes, n name, r reverse",
	} {
		lines := strings.Split(fits(t, topOn(width, 24)), "\n")
		if got := lines[len(lines)-1]; got != want {
			t.Errorf("in %d columns: %q, want %q", width, got, want)
		}
	}
}

// A process chooses the names of its locks. They must neither control the terminal nor move a column.
func TestTopShowsNamesThatAreHostile(t *testing.T) {
	names := []string{"\x1b[31mred", "\u009b2J", "bell\a\r\n", "大小大小大小大小大小大小大小大小大小大小", "\u202eright", "family 👨\u200d👩\u200d👧", "e\u0301\u0301", "\xff\xfe", "\x7f"}
	m := topOn(80, 24)
	s := topSample{status: locksidecar.Status{Redis: "ok"}, hosts: []hostLocks{{}}}
	for _, name := range names {
		s.hosts[0].locks = append(s.hosts[0].locks, locksidecar.LockInfo{
			Name: name, State: locksidecar.LockHeld, PID: 7, Cmd: name, Waiting: 1, Waiters: []locksidecar.WaiterInfo{{PID: 8, Cmd: name}},
		})
	}
	m.Update(s)
	text := fits(t, m)
	lines := strings.Split(text, "\n")
	header := lines[2]
	column := ansi.StringWidth(header[:strings.Index(header, "STATE")])
	for _, line := range lines[topLines : topLines+len(names)] {
		if at := strings.Index(line, "held "); ansi.StringWidth(line[:max(0, at)]) != column {
			t.Errorf("the columns of %q have moved:\n%s", line, text)
		}
	}
	for i := range names {
		m.open(&m.shown[i])
		fits(t, m)
		sample := lockSampleOf(m.opened)
		for k := range sample.events {
			sample.events[k].Cmd, sample.events[k].Name = names[i], names[i]
		}
		m.Update(sample)
		fits(t, m)
	}
}

func TestTopSortsAndReversesByKeys(t *testing.T) {
	m := topOn(100, 20)
	for keys, want := range map[string]string{
		"w": "invoice:42 hot elsewhere again asking nightly",
		"t": "invoice:42 elsewhere hot again asking nightly",
		"h": "nightly invoice:42 again hot asking elsewhere",
		"c": "hot again nightly asking elsewhere invoice:42",
		"n": "again asking elsewhere hot invoice:42 nightly",
	} {
		m.press(keys)
		if got := m.names(); got != want {
			t.Errorf("after %s: %s, want %s", keys, got, want)
		}
	}
	m.press("n", "r")
	if got := m.names(); got != "nightly invoice:42 hot elsewhere asking again" || !strings.Contains(m.screen(), "by name, reversed") {
		t.Errorf("reversed: %s", got)
	}
}

func TestTopFiltersByAPartOfTheName(t *testing.T) {
	m := topOn(100, 20)
	m.press("/", "i", "n", "q", "backspace")
	if got := m.names(); got != "invoice:42 again asking" || !strings.Contains(m.screen(), "names that contain: in_") {
		t.Errorf("while typing: %s\n%s", got, m.screen())
	}
	m.press("enter", "n")
	if got := m.names(); got != "again asking invoice:42" || !strings.Contains(m.screen(), `3 locks by name, of 6, that contain "in"`) {
		t.Errorf("after Enter: %s\n%s", got, m.screen())
	}
	m.press("esc")
	if len(m.shown) != 6 {
		t.Errorf("after Escape: %s", m.names())
	}
}

func TestTopScrolls(t *testing.T) {
	m := topOn(100, topLines+bottomLines+2)
	m.press("n", "down", "down", "up", "down")
	if s := fits(t, m); strings.Contains(s, "again ") || !strings.Contains(s, "  asking ") || !strings.Contains(s, "> elsewhere ") {
		t.Errorf("two lines down:\n%s", s)
	}
	m.press("end", "down")
	if s := fits(t, m); !strings.Contains(s, "  invoice:42 ") || !strings.Contains(s, "> nightly ") {
		t.Errorf("at the end:\n%s", s)
	}
	// A terminal that becomes larger, or smaller, shows the selected row.
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 24})
	if s := fits(t, m); !strings.Contains(s, "> nightly ") || !strings.Contains(s, "  again ") {
		t.Errorf("on a larger terminal:\n%s", s)
	}
	m.Update(tea.WindowSizeMsg{Width: 70, Height: 5})
	if s := fits(t, m); !strings.Contains(s, "> nightly ") || strings.Contains(s, "invoice:42") {
		t.Errorf("on a smaller terminal:\n%s", s)
	}
}

// The selection is a lock, not a place: Enter must open the lock that was selected, wherever it is by now.
func TestTopKeepsALockSelected(t *testing.T) {
	m := topOn(100, 20)
	m.press("down", "down") // invoice:42, hot, elsewhere
	_, cur := topSamples()
	cur.hosts[0].at = cur.hosts[0].at.Add(time.Second)
	cur.hosts[0].locks[4].Waiting = 40
	m.Update(cur)
	if s := fits(t, m); !strings.Contains(s, "> elsewhere ") || m.cursor != 0 {
		t.Errorf("after the lock has moved:\n%s", s)
	}
	cur.hosts[0].locks = cur.hosts[0].locks[:4]
	m.Update(cur)
	if s := fits(t, m); !strings.Contains(s, "> invoice:42 ") {
		t.Errorf("after the lock has gone:\n%s", s)
	}
	cur.hosts[0].locks = nil
	m.Update(cur)
	m.press("down", "enter", "end")
	if s := fits(t, m); m.opened != nil || !strings.Contains(s, "0 locks by waiters") {
		t.Errorf("without locks:\n%s", s)
	}
}

// lockSampleOf is an answer about a lock that another process of this host holds.
func lockSampleOf(o *topLock) lockSample {
	at := time.Date(2026, 3, 7, 2, 0, 5, 0, time.UTC)
	lock := o.row.lock
	lock.State, lock.PID, lock.UID, lock.Cmd = locksidecar.LockHeld, 4711, 1000, "python3 worker.py\x1b[2J"
	lock.Hold, lock.Token, lock.Deadline = 78, 1763695812000018, at.Add(28*time.Second)
	lock.Waiters = []locksidecar.WaiterInfo{{PID: 4712, UID: 1000, Cmd: "python3 worker.py", Waited: ms(61_000)}, {PID: 812, Cmd: "locksidecar run job", Waited: ms(1_000)}}
	s := lockSample{opening: o.opening, at: at, after: o.after + 3, who: locksidecar.Ownership{
		Redis: "ok", Key: locksidecar.KeyLock, TTL: 28 * time.Second, Lock: &lock, Holder: &lock,
		Owners: []locksidecar.LockOwner{{Field: "uuid-7:78", Sidecar: "uuid-7", Host: "db-7", Entries: 1}},
		Queue:  []locksidecar.LockOwner{{Field: "uuid-8:9", Sidecar: "uuid-8", Host: "web-1", Waited: ms(3_000)}}, Queued: 1,
	}}
	s.events = []locksidecar.Event{
		{At: at.Add(-2 * time.Minute), Kind: locksidecar.EventLost, Name: lock.Name, Session: 6, PID: 4710, UID: 1000, Cmd: "go", Held: time.Minute, Reason: locksidecar.ReasonExpired},
		{At: at.Add(-time.Minute), Kind: locksidecar.EventGranted, Name: lock.Name, Session: 7, PID: 4711, UID: 1000, Cmd: "python3 worker.py", Waited: time.Second, Token: 19, Message: "pid 4710 (go) of uid 1000"},
	}
	return s
}

// Enter opens a lock: its holder, its waiters in order, and what happened to it, newest first.
func TestTopOpensALock(t *testing.T) {
	m := topOn(80, 24)
	asked := 0
	m.lookAtLock = func(name string, after uint64) lockSample {
		asked++
		if name != "invoice:42" || after != 0 {
			t.Errorf("asked for %s after %d", name, after)
		}
		return lockSampleOf(m.opened)
	}
	_, look := m.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
	if s := fits(t, m); !strings.Contains(s, "held on this host by pid 4711, user app") || !strings.Contains(s, "LOCK    invoice:42\n") {
		t.Errorf("before there is an answer:\n%s", s)
	}
	_, again := m.Update(look())
	golden(t, "top-lock.txt", fits(t, m)+"\n")
	if asked != 1 || again == nil {
		t.Errorf("it asked %d times", asked)
	}
	// An answer about a lock that was closed is not shown as that of another one.
	late := lockSampleOf(m.opened)
	m.press("esc", "down", "enter")
	if _, next := m.Update(late); next != nil || m.opened.who != nil || len(m.opened.history) > 0 {
		t.Errorf("it shows the answer about another lock:\n%s", fits(t, m))
	}
	m.press("left")
	if s := fits(t, m); !strings.Contains(s, "> hot ") {
		t.Errorf("back in the table:\n%s", s)
	}
}

// A semaphore has the number of its permits in place of a state. An open one has its holders, and what its waiters want.
func TestTopShowsThePermitsOfASemaphore(t *testing.T) {
	at := time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)
	m := topOn(100, 24)
	here := locksidecar.LockInfo{
		Name: "partner-api", Kind: locksidecar.KindPermits, State: locksidecar.LockHeld, PID: 902, UID: 1000, Cmd: "sync", Held: ms(192_000), Holds: 4, Permits: 5, Of: 10, Holders: someHolders(3),
		Waiting: 1, Waiters: []locksidecar.WaiterInfo{{PID: 5, UID: 1000, Cmd: "cron", Permits: 7, Waited: ms(2_000)}},
	}
	wanted := locksidecar.LockInfo{Name: "slots", Kind: locksidecar.KindPermits, State: locksidecar.LockRemote, Of: 4}
	m.Update(topSample{status: locksidecar.Status{Redis: "ok"}, hosts: []hostLocks{{at: at.Add(3 * time.Second), locks: []locksidecar.LockInfo{here, wanted}}}})
	table := fits(t, m)
	m.open(&m.shown[0])
	asked := fits(t, m)
	s := lockSampleOf(m.opened)
	s.events = nil
	s.who = locksidecar.Ownership{
		Redis: "ok", Key: locksidecar.KeyPermits, Permits: 6, Of: 10, Lock: &here, Owners: []locksidecar.LockOwner{
			{Field: "uuid-7:9", Sidecar: "uuid-7", Host: "db-7", Permits: 5, Holds: 4, Holders: here.Holders},
			{Field: "uuid-8:9", Sidecar: "uuid-8", Host: "db-8", Permits: 1, Holds: 1, Holders: []locksidecar.HolderInfo{{Hold: 5, Token: 6, Permits: 1, PID: 7, UID: 1000, Cmd: "sync", Held: ms(1_000)}}},
		},
	}
	m.Update(s)
	golden(t, "top-permits.txt", table+"\n"+asked+"\n"+fits(t, m)+"\n")
	m.all = true
	if s := fits(t, m); !strings.Contains(s, ": pid 5, user 1000, for 2.0s, wants 7: cron") {
		t.Errorf("with --all:\n%s", s)
	}
}

// On a small terminal the lines of a lock scroll, and the last line says that there are more.
func TestTopScrollsInALock(t *testing.T) {
	m := topOn(80, 8)
	m.open(&m.shown[0])
	m.Update(lockSampleOf(m.opened))
	if s := fits(t, m); !strings.Contains(s, "LOCK    invoice:42") || !strings.Contains(s, "arrows scroll (11 below)") {
		t.Errorf("at the beginning:\n%s", s)
	}
	m.press("pgdown", "pgdown", "pgdown", "pgdown", "down")
	if s := fits(t, m); !strings.Contains(s, "expired: its deadline passed") || strings.Contains(s, "below") {
		t.Errorf("at the end:\n%s", s)
	}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 40})
	if s := fits(t, m); !strings.Contains(s, "LOCK    invoice:42") {
		t.Errorf("on a larger terminal:\n%s", s)
	}
}

// A policy hides the events of a lock: an empty list does not read as if nothing had happened to it.
func TestTopSaysThatEventsOfALockAreHidden(t *testing.T) {
	m := topOn(100, 24)
	m.open(&m.shown[0])
	s := lockSampleOf(m.opened)
	s.events, s.hidden = nil, `rule "rest" of the policy hides much`
	m.Update(s)
	if s := fits(t, m); !strings.Contains(s, `HIDDEN: rule "rest" of the policy hides much`) || !strings.Contains(s, "none that you may see") || strings.Contains(s, "none; grants") {
		t.Errorf("all are hidden:\n%s", s)
	}
	// That stays while the daemon is away.
	m.Update(lockSample{opening: m.opened.opening, eventsErr: errors.New("locksidecar: no sidecar")})
	if s := fits(t, m); !strings.Contains(s, "HIDDEN: ") {
		t.Errorf("without a daemon:\n%s", s)
	}
	m.Update(lockSampleOf(m.opened))
	if s := fits(t, m); strings.Contains(s, "HIDDEN: ") {
		t.Errorf("nothing is hidden any more:\n%s", s)
	}
}

func TestTopKeepsTheNewestEventsOfALock(t *testing.T) {
	m := topOn(80, 24)
	m.open(&m.shown[0])
	for n := range 3 * maxHistory {
		m.Update(lockSample{opening: m.opened.opening, after: uint64(n + 1), events: []locksidecar.Event{{Kind: locksidecar.EventForced, Token: uint64(n)}}})
	}
	h := m.opened.history
	if len(h) != maxHistory || h[len(h)-1].Token != 3*maxHistory-1 || m.opened.after != 3*maxHistory {
		t.Errorf("%d events, the newest %d, after %d", len(h), h[len(h)-1].Token, m.opened.after)
	}
	// What was read stays while the daemon is away.
	m.Update(lockSampleOf(m.opened))
	away := errors.New("locksidecar: no sidecar")
	m.Update(lockSample{opening: m.opened.opening, after: m.opened.after, whoErr: away, eventsErr: away})
	if s := fits(t, m); !strings.Contains(s, "NOT UP TO DATE: no sidecar") || !strings.Contains(s, "held on this host, db-7") || !strings.Contains(s, "not read: no sidecar") {
		t.Errorf("without a daemon:\n%s", s)
	}
}

// With --all, a lock has a row for each host, and one that does not answer is named.
func TestTopShowsAllHosts(t *testing.T) {
	m := topOn(110, 16)
	m.all = true
	at := time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)
	host := func(name string, at time.Time, locks ...locksidecar.LockInfo) hostLocks {
		return hostLocks{HostInfo: locksidecar.HostInfo{Host: name, Sidecar: "uuid of " + name}, at: at, locks: locks}
	}
	held := locksidecar.LockInfo{Name: "invoice:42", State: locksidecar.LockHeld, PID: 4711, UID: 1000, Cmd: "worker", Held: ms(3_000), Grants: 7}
	waits := locksidecar.LockInfo{
		Name: "invoice:42", State: locksidecar.LockRemote, RemoteHost: "db-7", RemoteField: "uuid:78", Waiting: 3,
		Waiters: []locksidecar.WaiterInfo{{PID: 5, UID: 1000, Cmd: "cron", Waited: ms(2_000)}, {PID: 6, UID: 1001, Cmd: "cron", Waited: ms(1_000)}},
	}
	silent := host("db-9", at)
	silent.err = errors.New("db-9 did not answer")
	first := topSample{status: locksidecar.Status{Redis: "ok"}, hosts: []hostLocks{host("db-7", at, held), host("web-1", at, waits), silent}}
	held.Grants = 17
	second := topSample{status: first.status, hosts: []hostLocks{
		host("db-7", at.Add(5*time.Second), held), host("web-1", at.Add(5*time.Second), waits),
		host("db-9", at.Add(5*time.Second), locksidecar.LockInfo{Name: "new", State: locksidecar.LockHeld, Session: 9, Grants: 99}),
	}}
	m.Update(first)
	if s := fits(t, m); !strings.Contains(s, "NO ANSWER from db-9; 2 locks of 2 hosts by waiters") {
		t.Errorf("while a host does not answer:\n%s", s)
	}
	m.Update(second)
	golden(t, "top-all.txt", fits(t, m)+"\n")
	m.open(&m.shown[0])
	if s := fits(t, m); !strings.Contains(s, "STATE   asking all hosts") {
		t.Errorf("before there is an answer:\n%s", s)
	}
	sample := lockSampleOf(m.opened)
	sample.who.Lock = nil // no process of this host has to do with it
	m.Update(sample)
	s := fits(t, m)
	for _, want := range []string{
		"STATE   held on host db-7", "WAITING on host web-1: pid 5, user 1000, for 2.0s: cron", "WAITING on host web-1: 1 more",
		"host db-7 has its own: ssh db-7 locksidecar events invoice:42",
	} {
		if !strings.Contains(s, want) {
			t.Errorf("the lock does not have %q:\n%s", want, s)
		}
	}
}

// What another host says of its processes and of itself does not control the terminal.
func TestTopShowsNoControlCharactersOfOtherHosts(t *testing.T) {
	m := topOn(110, 24)
	m.all = true
	const hostile = "cron\x1b[2J\u009b2J\r\a"
	lock := locksidecar.LockInfo{
		Name: "a", State: locksidecar.LockHeld, PID: 7, Cmd: hostile, Waiting: 2, Waiters: []locksidecar.WaiterInfo{{PID: 5, Cmd: hostile}},
	}
	m.Update(topSample{status: locksidecar.Status{Redis: "ok"}, hosts: []hostLocks{{
		HostInfo: locksidecar.HostInfo{Host: "db-7" + hostile, Sidecar: "uuid-7"}, locks: []locksidecar.LockInfo{lock},
	}}})
	fits(t, m)
	m.open(&m.shown[0])
	fits(t, m)
	sample := lockSampleOf(m.opened)
	sample.who = locksidecar.Ownership{
		Redis: "ok", Key: locksidecar.KeyLock, Trouble: hostile, Owners: []locksidecar.LockOwner{{Field: "uuid-7:78", Sidecar: "uuid-7", Host: "db-7" + hostile}},
	}
	sample.hidden = hostile
	m.Update(sample)
	s := fits(t, m)
	for _, want := range []string{"WAITING on host db-7cron?[2J", "host db-7cron?[2J?2J?? has its own: ssh"} {
		if !strings.Contains(s, want) {
			t.Errorf("the lock does not have %q:\n%s", want, s)
		}
	}
	sample.whoErr, sample.eventsErr = errors.New(hostile), errors.New(hostile)
	m.Update(sample)
	fits(t, m)
}

// A daemon that is being restarted answers no look: the screen says so before the look fails.
func TestTopThatGetsNoAnswerSaysSo(t *testing.T) {
	m := topOn(100, 20)
	_, next := m.Update(lookAgain{})
	look := m.looks
	if next == nil {
		t.Fatal("it does not look")
	}
	if _, next = m.Update(lookOverdue{look}); next == nil {
		t.Error("it does not go on to watch the look")
	}
	m.Update(lookOverdue{look})
	if s := fits(t, m); !strings.Contains(s, "NOT UP TO DATE: no answer from the daemon for 4.0s") || !strings.Contains(s, "invoice:42") {
		t.Errorf("without an answer:\n%s", s)
	}
	_, cur := topSamples()
	cur.hosts[0].at = cur.hosts[0].at.Add(time.Minute)
	m.Update(cur)
	m.Update(lookOverdue{look})
	if s := fits(t, m); strings.Contains(s, "NOT UP") {
		t.Errorf("after an answer:\n%s", s)
	}
}

func TestWrappedLinesFitAndHaveEveryWord(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "",
		"LOCK    a":                             "LOCK    a",
		"STATE   held by a process of this one": "STATE   held by a process|        of this one",
		"LOCK    " + strings.Repeat("x", 40):    "LOCK    xxxxxxxxxxxxxxxxxx|        xxxxxxxxxxxxxxxxxx|        xxxx",
		"LOCK    大小大小大小大小大小大小": "LOCK    大小大小大小大小大|        小大小",
	} {
		if got := strings.Join(wrapLine(text, 26), "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestTopKeepsTheLastLookWhileTheSidecarIsAway(t *testing.T) {
	m := topOn(100, 20)
	_, again := m.Update(topSample{err: errors.New("locksidecar: cannot list the locks: no sidecar")})
	if s := m.screen(); !strings.Contains(s, "NOT UP TO DATE: cannot list the locks: no sidecar") || !strings.Contains(s, "invoice:42") || again == nil {
		t.Errorf("while it is away:\n%s", s)
	}
	_, cur := topSamples()
	cur.hosts[0].at = cur.hosts[0].at.Add(10 * time.Second)
	m.Update(cur)
	if s := m.screen(); strings.Contains(s, "NOT UP") {
		t.Errorf("after that:\n%s", s)
	}
}

func TestTopThatIsPausedDoesNotLook(t *testing.T) {
	m := topOn(100, 20)
	looks := m.looks
	m.press("p")
	if _, next := m.Update(lookAgain{}); next == nil || m.looks != looks {
		t.Error("it looks during the pause, or will not after it")
	}
	m.press("p")
	if _, next := m.Update(lookAgain{}); next == nil || m.looks != looks+1 {
		t.Error("it does not look after the pause")
	}
	m.lookAtLock = func(string, uint64) lockSample { return lockSample{opening: m.openings} }
	m.press("enter", "p")
	if _, next := m.Update(lookAtLockAgain{m.opened.opening}); next == nil {
		t.Error("it will not look at the lock after the pause")
	}
	m.press("p")
	if _, next := m.Update(lookAtLockAgain{m.opened.opening}); next == nil {
		t.Error("it does not look at the lock after the pause")
	} else if _, ok := next().(lockSample); !ok {
		t.Error("it does not look at the lock at once")
	}
}

func TestTopPrintsTablesWithoutATerminal(t *testing.T) {
	var samples []topSample
	before, cur := topSamples()
	later := cur
	later.hosts = []hostLocks{{at: cur.hosts[0].at.Add(time.Second), locks: cur.hosts[0].locks}}
	later.status.Redis, later.status.Trouble = "Redis refuses connections", "the state file was removed"
	samples = append(samples, before, cur, later)
	looks := 0
	m := newTopModel(0)
	m.look = func() topSample { looks++; return samples[looks-1] }
	m.users, m.filter = display.UserNames{0: "root", 1000: "app"}, "e"
	var out strings.Builder
	if err := m.printTables(&out, 2); err != nil {
		t.Fatal(err)
	}
	golden(t, "top-plain.txt", out.String())
}

func TestTopOfAPipePrintsOneTable(t *testing.T) {
	f := startFake(t)
	out := expectExit(t, start(t, f, "top", "--interval", "100ms"), 0, "")
	if !strings.Contains(out, "2 locks by waiters\nLOCK ") || strings.Count(out, "LOCK") != 1 {
		t.Errorf("printed\n%s", out)
	}
	expectExit(t, start(t, f, "top", "--interval", "1ms"), exitUsage, "at least 100ms")
	expectExit(t, start(t, f, "top", "--all", "--interval", "500ms"), exitUsage, "with --all at least 1s")
}

// A lock that processes wait for has a colour, unless the environment has NO_COLOR.
func TestTopHasColoursUnlessTheUserWantsNone(t *testing.T) {
	for _, environment := range []string{"COLOUR=yes", "NO_COLOR=1"} {
		f := startFake(t, func(f *fakeSidecar) { f.hidden = "the policy hides some" })
		cmd := command(f, "top", "--interval", "100ms")
		cmd.Env = append(cmd.Env, "TERM=xterm-256color", environment)
		s := onTerminal(t, cmd)
		s.await("theirs")
		s.typeKeys("\x1b[B") // down: the row with waiters is not the selected one any more
		if environment == "COLOUR=yes" {
			s.await("\x1b[33m")
		}
		s.typeKeys("p")
		s.await("PAUSED")
		s.typeKeys("q")
		s.await("\x1b[?1049l")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		if hasColour := strings.Contains(s.seen.String(), "\x1b[33m"); hasColour != (environment == "COLOUR=yes") {
			t.Errorf("%s: colour %v:\n%q", environment, hasColour, s.seen.String())
		}
	}
}

// On a terminal, top takes the whole screen, obeys keys, and gives the terminal back.
func TestTopOnATerminalObeysKeys(t *testing.T) {
	f := startFake(t)
	cmd := command(f, "top", "--interval", "100ms")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	s := onTerminal(t, cmd)
	for _, keys := range []struct{ typed, shows string }{
		{"", "2 locks by waiters"}, {"n/b\r", fmt.Sprintf("that contain %q", "b")}, {"\r", "newest"}, {"q", "\x1b[?1049l"},
	} {
		s.typeKeys(keys.typed)
		s.await(keys.shows)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
