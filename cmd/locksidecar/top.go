package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type topCmd struct {
	socketFlag
	Filter   string        `arg:"" optional:"" help:"Only locks whose name contains this."`
	Sort     string        `enum:"waiters,wait,hold,changes,name" default:"waiters" help:"First the locks with the most of this: ${enum}."`
	Interval time.Duration `default:"1s" help:"Time between two looks." placeholder:"TIME"`
	Count    int           `help:"Print so many tables and end. Without a terminal, the default is 1." placeholder:"N"`
	Plain    bool          `help:"Print tables, as without a terminal."`
}

func (topCmd) Help() string {
	return `Shows the locks of this host, again each second: first those for which the most processes wait. CHANGES/S is how often
a second a process of this host got the lock; WAIT is how long the first waiter has waited; HELD is how long the
holder has held.

Keys: w, t, h, c, n sort by waiters, wait time, hold time, changes and name; r reverses the order; / filters by a part of
the name, Escape ends that; arrows and page keys scroll; p pauses; q quits.

If the output or the input is no terminal, it prints tables without keys, one each interval.

Examples:

    locksidecar top
    locksidecar top --sort wait invoice:
    locksidecar top --plain --count 10 --sort changes

` + exitTable
}

// minInterval keeps top from being a load.
const minInterval = 100 * time.Millisecond

func (c *topCmd) Validate() error {
	switch {
	case c.Interval < minInterval:
		return fmt.Errorf("--interval is %v; at least %v is allowed", c.Interval, minInterval)
	case c.Count < 0:
		return fmt.Errorf("--count is %d; give 1 or more", c.Count)
	}
	return nil
}

func (c *topCmd) Run(ctx context.Context, out io.Writer) error {
	connecting, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sidecar, err := locksidecar.Dial(connecting, c.Socket)
	if err != nil {
		return err
	}
	defer sidecar.Close()
	look := func() topSample { return lookAt(ctx, sidecar) }
	m := newTopModel(look, c.Interval)
	m.order, m.filter = topOrders[c.Sort], c.Filter
	if !c.Plain && c.Count == 0 && isTerminal(0) && isTerminal(1) && os.Getenv("TERM") != "dumb" {
		_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithOutput(out)).Run()
		return err
	}
	return m.printTables(out, max(c.Count, 1))
}

// topSample is one look at a sidecar.
type topSample struct {
	at     time.Time
	status locksidecar.Status
	locks  []locksidecar.LockInfo
	err    error // nothing else is known
}

func lookAt(ctx context.Context, sidecar *locksidecar.Client) topSample {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s := topSample{}
	if s.status, s.err = sidecar.Status(ctx); s.err != nil {
		return s
	}
	s.at = time.Now()
	s.locks, s.err = sidecar.List(ctx)
	return s
}

// topRow is a lock as top shows it.
type topRow struct {
	lock    locksidecar.LockInfo
	wait    int64   // of the first waiter, ms; −1: there is none
	held    int64   // ms; −1: no local process holds it
	changes float64 // of the owner, a second; −1: not known
}

// topRows returns the rows of the locks in cur; before is the sample before; nil: there is none.
func topRows(before, cur *topSample) []topRow {
	grants := make(map[string]uint64)
	if before != nil {
		for i := range before.locks {
			grants[before.locks[i].Name] = before.locks[i].Grants
		}
	}
	rows := make([]topRow, 0, len(cur.locks))
	for _, l := range cur.locks {
		r := topRow{lock: l, wait: -1, held: -1, changes: -1}
		if len(l.Waiters) > 0 {
			r.wait = l.Waiters[0].Waited.Milliseconds()
		}
		if l.State == locksidecar.LockHeld {
			r.held = l.Held.Milliseconds()
		}
		if before != nil {
			was := grants[l.Name]
			if was > l.Grants { // it was forgotten meanwhile
				was = 0
			}
			r.changes = float64(l.Grants-was) / cur.at.Sub(before.at).Seconds()
		}
		rows = append(rows, r)
	}
	return rows
}

// topOrder is what rows are sorted by.
type topOrder struct {
	name    string
	compare func(a, b *topRow) int // < 0: a is first
}

var (
	byWaiters = &topOrder{"waiters", func(a, b *topRow) int { return cmp.Compare(b.lock.Waiting, a.lock.Waiting) }}
	byWait    = &topOrder{"wait", func(a, b *topRow) int { return cmp.Compare(b.wait, a.wait) }}
	byHold    = &topOrder{"hold", func(a, b *topRow) int { return cmp.Compare(b.held, a.held) }}
	byChanges = &topOrder{"changes", func(a, b *topRow) int { return cmp.Compare(b.changes, a.changes) }}
	byName    = &topOrder{"name", func(a, b *topRow) int { return strings.Compare(a.lock.Name, b.lock.Name) }}

	topOrders = map[string]*topOrder{"waiters": byWaiters, "wait": byWait, "hold": byHold, "changes": byChanges, "name": byName}
	topKeys   = map[string]*topOrder{"w": byWaiters, "t": byWait, "h": byHold, "c": byChanges, "n": byName}
)

// topModel is what top shows, and how. It changes by Update only.
type topModel struct {
	look     func() topSample
	interval time.Duration
	users    display.UserNames

	order      *topOrder
	isReversed bool
	filter     string // of names
	isTyping   bool   // the filter
	isPaused   bool
	offset     int // of the first row that is shown
	width      int
	height     int

	cur  *topSample // nil: none yet
	rows []topRow   // of cur
	err  error      // of the newest look; nil: it is cur
}

func newTopModel(look func() topSample, interval time.Duration) *topModel {
	return &topModel{look: look, interval: interval, users: make(display.UserNames), order: byWaiters}
}

// lookAgain is the message that it is time for the next look.
type lookAgain struct{}

func (m *topModel) lookNow() tea.Msg { return m.look() }

func (m *topModel) Init() tea.Cmd { return m.lookNow }

func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case topSample:
		m.onSample(&msg)
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return lookAgain{} })
	case lookAgain:
		if m.isPaused {
			return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return lookAgain{} })
		}
		return m, m.lookNow
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.onKey(msg)
	}
	return m, nil
}

func (m *topModel) onSample(s *topSample) {
	if m.err = s.err; m.err == nil {
		m.rows, m.cur = topRows(m.cur, s), s
	}
}

func (m *topModel) onKey(key tea.KeyPressMsg) tea.Cmd {
	switch k := key.String(); {
	case k == "ctrl+c":
		return tea.Quit
	case m.isTyping:
		m.onFilterKey(k, key.Text)
	case k == "q":
		return tea.Quit
	case topKeys[k] != nil:
		m.order, m.offset = topKeys[k], 0
	case k == "r":
		m.isReversed = !m.isReversed
	case k == "p":
		m.isPaused = !m.isPaused
	case k == "/":
		m.isTyping = true
	case k == "esc":
		m.filter = ""
	default:
		m.scroll(k)
	}
	return nil
}

func (m *topModel) onFilterKey(k, text string) {
	switch {
	case k == "enter":
		m.isTyping = false
	case k == "esc":
		m.isTyping, m.filter = false, ""
	case k == "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	default:
		m.filter += text
	}
	m.offset = 0
}

func (m *topModel) scroll(k string) {
	page := max(1, m.room())
	switch k {
	case "down":
		m.offset++
	case "up":
		m.offset--
	case "pgdown":
		m.offset += page
	case "pgup":
		m.offset -= page
	case "home":
		m.offset = 0
	case "end":
		m.offset = len(m.rows)
	}
	m.offset = max(0, min(m.offset, len(m.shown())-page))
}

// shown returns the rows that the filter leaves, in their order.
func (m *topModel) shown() []topRow {
	rows := make([]topRow, 0, len(m.rows))
	for i := range m.rows {
		if strings.Contains(m.rows[i].lock.Name, m.filter) {
			rows = append(rows, m.rows[i])
		}
	}
	slices.SortFunc(rows, func(a, b topRow) int {
		c := m.order.compare(&a, &b)
		if m.isReversed {
			c = -c
		}
		return cmp.Or(c, strings.Compare(a.lock.Name, b.lock.Name))
	})
	return rows
}

// Lines above and below the rows on a terminal.
const (
	topLines    = 3 // two, and the header of the table
	bottomLines = 1
)

// room is how many rows the terminal has room for.
func (m *topModel) room() int { return m.height - topLines - bottomLines }

func (m *topModel) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	v.WindowTitle = "locksidecar top"
	return v
}

// screen renders the terminal's content.
func (m *topModel) screen() string {
	if m.cur == nil && m.err == nil || m.width == 0 {
		return "waiting for the sidecar"
	}
	rows := m.shown()
	all := len(rows)
	begin := min(m.offset, all)
	rows = rows[begin:min(begin+max(0, m.room()), all)]
	var b strings.Builder
	b.WriteString(cut(m.summary(), m.width) + "\n")
	b.WriteString(cut(m.caption(all), m.width) + "\n")
	b.WriteString(m.table(rows, m.width))
	for range m.room() - len(rows) {
		b.WriteByte('\n')
	}
	b.WriteString(cut(m.prompt(), m.width))
	return b.String()
}

// summary describes the sidecar in one line.
func (m *topModel) summary() string {
	if m.cur == nil {
		return "no answer from the sidecar"
	}
	s := &m.cur.status
	redis := "redis"
	switch {
	case s.Degraded:
		redis = "REDIS degraded: " + s.Redis
	case s.Redis != "ok":
		redis = "REDIS does not serve: " + s.Redis
	case s.RoundTrip != 0:
		redis += " " + describeMicros(s.RoundTrip.Microseconds())
	default:
		redis += " serves"
	}
	text := fmt.Sprintf("%s; %d sessions, %d held, %d waiting", redis, s.Sessions, s.Held, s.Waiting)
	if s.RenewalsLate > 0 {
		text += fmt.Sprintf("; %d RENEWALS LATE", s.RenewalsLate)
	}
	lost := 0
	for _, l := range s.Lost {
		lost += l.Count
	}
	if lost > 0 {
		text += fmt.Sprintf("; %d LOST in the last hour", lost)
	}
	if s.Trouble != "" {
		text = "TROUBLE: " + s.Trouble + "; " + text
	}
	return display.Printable(text)
}

// caption describes the rows in one line.
func (m *topModel) caption(shown int) string {
	if m.err != nil {
		return display.Printable("NOT UP TO DATE: " + strings.TrimPrefix(m.err.Error(), "locksidecar: "))
	}
	text := fmt.Sprintf("%d locks by %s", shown, m.order.name)
	if m.isReversed {
		text += ", reversed"
	}
	if m.filter != "" {
		text += fmt.Sprintf(", of %d, that contain %q", len(m.rows), m.filter)
	}
	if m.isPaused {
		text += "; PAUSED"
	}
	return display.Printable(text)
}

// prompt is the last line on a terminal.
func (m *topModel) prompt() string {
	if m.isTyping {
		return "names that contain: " + display.Printable(m.filter) + "_"
	}
	return "sort: w waiters, t wait, h hold, c changes, n name, r reverse   / filter   p pause   q quit"
}

var topHeader = []string{"LOCK", "WAITERS", "WAIT", "HELD", "CHANGES/S", "STATE", "PID", "USER", "COMMAND"}

// table renders rows for a terminal of the given width; 0: nothing is cut.
func (m *topModel) table(rows []topRow, width int) string {
	cells := [][]string{topHeader}
	for i := range rows {
		r := &rows[i]
		row := []string{r.lock.Name, strconv.Itoa(r.lock.Waiting), "", "", "", string(r.lock.State), "", "", ""}
		if r.wait >= 0 {
			row[2] = display.Duration(ms(r.wait))
		}
		if r.changes >= 0 {
			row[4] = strconv.FormatFloat(r.changes, 'f', 1, 64)
		}
		switch r.lock.State {
		case locksidecar.LockHeld:
			row[3], row[6], row[7], row[8] = display.Duration(ms(r.held)), pid(r.lock.PID), m.users.Name(r.lock.UID), r.lock.Cmd
		case locksidecar.LockRemote:
			row[8] = display.Elsewhere(r.lock.RemoteHost, r.lock.RemoteField)
		}
		cells = append(cells, row)
	}
	return alignRows(cells, width)
}

// printTables prints so many tables. The first one needs two looks, for the changes a second.
func (m *topModel) printTables(out io.Writer, count int) error {
	for i := 0; i <= count; i++ {
		if i > 0 {
			time.Sleep(m.interval)
		}
		s := m.look()
		if s.err != nil {
			return s.err
		}
		m.onSample(&s)
		if i == 0 {
			continue
		}
		if i > 1 {
			if _, err := fmt.Fprintln(out); err != nil {
				return err
			}
		}
		rows := m.shown()
		if _, err := fmt.Fprintf(out, "%s\n%s\n%s", m.summary(), m.caption(len(rows)), m.table(rows, 0)); err != nil {
			return err
		}
	}
	return nil
}
