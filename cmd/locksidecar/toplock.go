package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

const (
	// maxHistory is how many events of a lock top keeps.
	maxHistory = 200

	// maxEventPages is how many pages of events one look reads. A daemon in which events come
	// faster than that has the rest for the next look.
	maxEventPages = 256
)

// topLock is the lock that is open in top.
type topLock struct {
	row     topRow // when it was opened
	opening int    // the number of the opening: answers to an earlier one are ignored

	at        time.Time              // when who was read; before that, when the first host was asked for row
	who       *locksidecar.Ownership // nil: it has not been read
	whoErr    error                  // of the newest read
	history   []locksidecar.Event    // of this host, oldest first
	after     uint64                 // the number of the last event that was read
	hidden    string                 // what the policy hides of the events; "": nothing
	eventsErr error                  // of the newest read
	offset    int                    // of the first line that is on the screen
}

// lockSample is one look at a lock.
type lockSample struct {
	opening   int
	at        time.Time
	who       locksidecar.Ownership
	whoErr    error
	events    []locksidecar.Event
	after     uint64 // where the next look continues
	hidden    string // what the policy hides of the events; "": nothing
	eventsErr error
}

// lookAtLockAgain is the message that it is time for the next look at the lock.
type lookAtLockAgain struct{ opening int }

// lookAtLock asks who has a lock, and for its events after a number.
func lookAtLock(ctx context.Context, sidecar *locksidecar.Client, name string, after uint64) lockSample {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s := lockSample{after: after}
	s.who, s.whoErr = sidecar.Who(ctx, name)
	s.at = time.Now()
	for range maxEventPages {
		var page locksidecar.EventPage
		if page, s.eventsErr = sidecar.Events(ctx, s.after, false); s.eventsErr != nil {
			return s
		}
		// A page of events that are all hidden is empty, too: after the newest one.
		if s.after, s.hidden = page.Next, page.Hidden; len(page.Events) == 0 {
			return s
		}
		for i := range page.Events {
			if page.Events[i].Name == name {
				s.events = append(s.events, page.Events[i])
			}
		}
	}
	return s
}

// open shows one lock instead of the table.
func (m *topModel) open(row *topRow) tea.Cmd {
	m.openings++
	m.opened = &topLock{row: *row, opening: m.openings, at: m.cur.hosts[0].at}
	return m.lookAtLockNow(m.opened)
}

func (m *topModel) lookAtLockNow(o *topLock) tea.Cmd {
	name, after, opening := o.row.key.name, o.after, o.opening
	return func() tea.Msg {
		s := m.lookAtLock(name, after)
		s.opening = opening
		return s
	}
}

func (m *topModel) lookAtLockLater(o *topLock) tea.Cmd {
	opening := o.opening
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return lookAtLockAgain{opening} })
}

// add adds what a look has found. If it has found nothing, what was found before stays.
func (o *topLock) add(s *lockSample) {
	if o.whoErr = s.whoErr; o.whoErr == nil {
		o.who, o.at = &s.who, s.at
	}
	if o.eventsErr, o.after = s.eventsErr, s.after; o.eventsErr == nil {
		o.hidden = s.hidden
	}
	o.history = append(o.history, s.events...)
	o.history = slices.Clone(o.history[max(0, len(o.history)-maxHistory):])
}

func (m *topModel) onLockKey(k string) tea.Cmd {
	if k == "esc" || k == "backspace" || k == "left" {
		m.opened = nil
		return nil
	}
	lines := m.lockLines()
	last := max(0, len(lines)-m.lockRoom())
	m.opened.offset = min(last, scrolled(k, m.opened.offset, len(lines), max(1, m.lockRoom())))
	return nil
}

// lockRoom is how many lines of a lock the terminal has room for.
func (m *topModel) lockRoom() int { return m.height - (topLines - 1) - bottomLines }

// lockScreen renders the lines of the lock that have room, and the last line of the screen.
func (m *topModel) lockScreen() (lines []string, prompt string) {
	lines = m.lockLines()
	room := max(0, m.lockRoom())
	begin := min(m.opened.offset, max(0, len(lines)-room))
	below := max(0, len(lines)-begin-room)
	prompt = "q quit   Esc back   p pause   arrows scroll"
	if below > 0 {
		prompt += fmt.Sprintf(" (%d below)", below)
	}
	return lines[begin:min(begin+room, len(lines))], prompt
}

// lockLines describes the lock that is open.
func (m *topModel) lockLines() []string {
	o := m.opened
	var lines []string
	add := func(text string) {
		for line := range strings.Lines(text) {
			lines = append(lines, wrapLine(strings.TrimSuffix(line, "\n"), m.width)...)
		}
	}
	v := m.viewOpened()
	if v == nil {
		add(fmt.Sprintf("LOCK    %s\nSTATE   asking all hosts\n", display.Printable(o.row.key.name)))
	} else {
		add(v.text(o.at, m.zone))
	}
	if m.all {
		add(m.waitersOnHosts(o.row.key.name))
	}
	add("\nEVENTS  of this host, newest first\n")
	if host := v.otherHost(); host != "" {
		add(display.Printable(fmt.Sprintf("        host %s has its own: ssh %s locksidecar events %s", host, host, quoteForShell(o.row.key.name))) + "\n")
	}
	if o.hidden != "" {
		add("        HIDDEN: " + display.Printable(o.hidden) + "\n")
	}
	switch {
	case o.eventsErr != nil:
		add("        not read: " + display.Printable(strings.TrimPrefix(o.eventsErr.Error(), programName)) + "\n")
	case len(o.history) == 0 && o.hidden != "":
		add("        none that you may see\n")
	case len(o.history) == 0:
		add("        none; grants after a wait of 10 ms and holds of 1 s are events\n")
	}
	for _, e := range slices.Backward(o.history) {
		view := viewEvent(&e, m.users)
		view.Name = ""
		add(view.line(m.zone) + "\n")
	}
	return lines
}

// otherHost returns a host that has the lock and is not this one; "": none that is known.
func (v *whoView) otherHost() string {
	if v == nil {
		return ""
	}
	for i := range v.Owners {
		if o := &v.Owners[i]; !o.isHere && o.Host != "" {
			return o.Host
		}
	}
	return ""
}

// viewOpened returns what is known of the holder: what all hosts said, or else what the table has.
// nil: it is of another host, which was not asked yet.
func (m *topModel) viewOpened() *whoView {
	o := m.opened
	found := o.who
	if found == nil {
		if m.all {
			return nil
		}
		found = &locksidecar.Ownership{Redis: "it is being asked", Lock: &o.row.lock}
		if o.whoErr != nil {
			found.Redis = strings.TrimPrefix(o.whoErr.Error(), programName)
		}
	}
	v := viewOwnership(o.row.key.name, found, o.at, m.users)
	if m.all { // waitersOnHosts has them
		for _, l := range []*lockView{v.Here, v.Holder} {
			if l != nil {
				l.Waiters, l.Waiting = nil, 0
			}
		}
	}
	return v
}

// waitersOnHosts describes the waiters of a lock on each host.
func (m *topModel) waitersOnHosts(name string) string {
	var b strings.Builder
	for i := range m.rows {
		r := &m.rows[i]
		if r.key.name != name || r.lock.Waiting == 0 {
			continue
		}
		line := func(format string, args ...any) {
			fmt.Fprintf(&b, "%-7s %s\n", "WAITING", display.Printable("on host "+r.host+": "+fmt.Sprintf(format, args...)))
		}
		for _, w := range r.lock.Waiters {
			line("pid %s, user %d, %s: %s", pid(w.PID), w.UID, waits(w.Waited, w.Permits, w.Shared), w.Cmd)
		}
		if more := r.lock.Waiting - len(r.lock.Waiters); more > 0 {
			line("%d more", more)
		}
	}
	return b.String()
}

// wrapIndent is where the further lines of a line begin that is too long: below its text.
const wrapIndent = 8

// wrapLine breaks a printable line into those that a terminal has room for, between words if it can.
func wrapLine(text string, width int) []string {
	indent := ""
	if width >= 3*wrapIndent {
		indent = strings.Repeat(" ", wrapIndent) // as wide as a label
	}
	var lines []string
	for begin := ""; ; begin = indent {
		text = begin + text
		if width <= 0 || ansi.StringWidth(text) <= width {
			return append(lines, text)
		}
		part := ansi.Truncate(text, width, "")
		// The space after the part is a place to break, too. One in the label or before the text is not.
		if at := strings.LastIndexByte(text[:min(len(part)+1, len(text))], ' '); at > len(indent) {
			part = part[:min(at, len(part))]
		}
		if part == "" || strings.TrimSpace(part) == "" { // not even one character has room
			return append(lines, text)
		}
		lines = append(lines, strings.TrimRight(part, " "))
		text = strings.TrimLeft(text[len(part):], " ")
	}
}
