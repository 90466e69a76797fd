package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
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
	before = topSample{
		at:     at,
		status: locksidecar.Status{Redis: "ok", Sessions: 4},
		locks:  []locksidecar.LockInfo{held("hot", 2, 3, 0, 1_000), held("invoice:42", 17, 59_000, 59_200, 3), held("again", 0, 0, 10, 500), held("gone", 1, 5, 5, 1)},
	}
	cur = topSample{
		at:     at.Add(2 * time.Second),
		status: locksidecar.Status{Redis: "ok", RoundTrip: 213_400, Sessions: 4, Held: 5, Waiting: 20, RenewalsLate: 1, Lost: []locksidecar.LossCount{{Reason: locksidecar.ReasonExpired, Count: 3}, {Reason: locksidecar.ReasonStolen, Count: 1}}},
		locks: []locksidecar.LockInfo{
			held("hot", 2, 3, 0, 9_005), held("invoice:42", 17, 61_000, 61_200, 3), held("again", 0, 0, 2_010, 5), held("nightly", 0, 0, 7_500_000, 1),
			{Name: "elsewhere", State: locksidecar.LockRemote, RemoteField: "285475da-9152-4c83-822a-67ee2f116a79:52", Waiting: 1, Waiters: []locksidecar.WaiterInfo{{Waited: ms(200)}}},
			{Name: "asking", State: locksidecar.LockBusy},
		},
	}
	return before, cur
}

// topOn returns what top shows on a terminal of that size after two looks.
func topOn(width, height int) *topModel {
	m := newTopModel(nil, time.Second)
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
		case "end":
			key = tea.KeyPressMsg{Code: tea.KeyEnd}
		}
		m.Update(key)
	}
}

func (m *topModel) names() string {
	var names []string
	for _, r := range m.shown() {
		names = append(names, r.lock.Name)
	}
	return strings.Join(names, " ")
}

func TestTopShowsTheLocksWithTheMostWaitersFirst(t *testing.T) {
	m := topOn(110, 14)
	golden(t, "top.txt", m.screen()+"\n")
	for i, line := range strings.Split(m.screen(), "\n") {
		if n := len([]rune(line)); n > 110 || i >= 14 {
			t.Errorf("line %d has %d columns", i, n)
		}
	}
}

func TestTopOnASmallTerminalFits(t *testing.T) {
	golden(t, "top-small.txt", topOn(60, 7).screen()+"\n")
	for _, m := range []*topModel{topOn(20, 3), topOn(1, 1), topOn(0, 0)} {
		m.screen()
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
	if len(m.shown()) != 6 {
		t.Errorf("after Escape: %s", m.names())
	}
}

func TestTopScrolls(t *testing.T) {
	m := topOn(100, topLines+bottomLines+2)
	m.press("n", "down", "down", "up")
	if s := m.screen(); strings.Contains(s, "again ") || !strings.Contains(s, "asking ") || !strings.Contains(s, "elsewhere ") {
		t.Errorf("one line down:\n%s", s)
	}
	m.press("end", "down")
	if s := m.screen(); !strings.Contains(s, "invoice:42 ") || !strings.Contains(s, "nightly ") {
		t.Errorf("at the end:\n%s", s)
	}
}

func TestTopKeepsTheLastLookWhileTheSidecarIsAway(t *testing.T) {
	m := topOn(100, 20)
	_, again := m.Update(topSample{err: errors.New("locksidecar: cannot list the locks: no sidecar")})
	if s := m.screen(); !strings.Contains(s, "NOT UP TO DATE: cannot list the locks: no sidecar") || !strings.Contains(s, "invoice:42") || again == nil {
		t.Errorf("while it is away:\n%s", s)
	}
	_, cur := topSamples()
	cur.at = cur.at.Add(10 * time.Second)
	m.Update(cur)
	if s := m.screen(); strings.Contains(s, "NOT UP") {
		t.Errorf("after that:\n%s", s)
	}
}

func TestTopThatIsPausedDoesNotLook(t *testing.T) {
	m := topOn(100, 20)
	looked := 0
	m.look = func() topSample { looked++; return topSample{} }
	m.press("p")
	if _, cmd := m.Update(lookAgain{}); cmd == nil {
		t.Error("it will not look after the pause")
	}
	m.press("p")
	if _, cmd := m.Update(lookAgain{}); cmd == nil {
		t.Error("it does not look after the pause")
	} else if cmd(); looked != 1 {
		t.Errorf("it looked %d times", looked)
	}
}

func TestTopPrintsTablesWithoutATerminal(t *testing.T) {
	var samples []topSample
	before, cur := topSamples()
	later := cur
	later.at = cur.at.Add(time.Second)
	later.status.Redis, later.status.Trouble = "Redis refuses connections", "the state file was removed"
	samples = append(samples, before, cur, later)
	looks := 0
	m := newTopModel(func() topSample { looks++; return samples[looks-1] }, 0)
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
}

// On a terminal, top takes the whole screen, obeys keys, and gives the terminal back.
func TestTopOnATerminalObeysKeys(t *testing.T) {
	f := startFake(t)
	cmd := command(f, "top", "--interval", "100ms")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	s := onTerminal(t, cmd)
	for _, keys := range []struct{ typed, shows string }{
		{"", "2 locks by waiters"}, {"n/b\r", fmt.Sprintf("that contain %q", "b")}, {"q", "\x1b[?1049l"},
	} {
		s.typeKeys(keys.typed)
		s.await(keys.shows)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
