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
	"github.com/charmbracelet/x/ansi"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type topCmd struct {
	socketFlag
	Filter   string         `arg:"" optional:"" help:"Only locks whose name contains this."`
	All      bool           `help:"The locks of every host that uses the same Redis."`
	Sort     string         `enum:"waiters,wait,hold,changes,name" default:"waiters" help:"First the locks with the most of this: ${enum}."`
	Interval *time.Duration `help:"Time between two looks (default: 1s, with --all 5s)." placeholder:"TIME"`
	Count    int            `help:"Print so many tables and end. Without a terminal, the default is 1." placeholder:"N"`
	Plain    bool           `help:"Print tables, as without a terminal."`
}

func (topCmd) Help() string {
	return `Shows the locks of this host, again each second: first those for which the most processes wait. CHANGES/S is how often
a second a process of that host got the lock; WAIT is how long the first waiter has waited; HELD is how long the
holder has held. Of a semaphore, STATE is how many permits that host has, of how many; the holder is the oldest one, with
its permits and how many more holds there are, as locksidecar ls shows it.

Keys: arrows and page keys select a lock, and Enter opens it; Escape leads back. An open lock has its holder on any
host, since when, token and lease, the waiters in order, and what happened to it on this host, newest first. An open
semaphore has its holders in place of the holder.
w, t, h, c, n sort by waiters, wait time, hold time, changes and name; r reverses the order; / filters by a part of
the name, Escape ends that; p pauses; q quits.

--all asks the daemons of all hosts, through Redis, for at most ten seconds in all, as ls --all does. A lock has a row
for each host where a process holds it or waits for it. The first line is about this host.

If the output or the input is no terminal, it prints tables without keys, one each interval.

Examples:

    locksidecar top
    locksidecar top --sort wait invoice:
    locksidecar top --all
    locksidecar top --plain --count 10 --sort changes

` + exitTable
}

// The defaults of --interval and its least values, which keep top from being a load. With --all,
// each look asks every host.
const (
	topInterval    = time.Second
	minInterval    = 100 * time.Millisecond
	topIntervalAll = 5 * time.Second
	minIntervalAll = time.Second
)

// interval returns the time between two looks, and the least one that is allowed.
func (c *topCmd) interval() (interval, least time.Duration) {
	interval, least = topInterval, minInterval
	if c.All {
		interval, least = topIntervalAll, minIntervalAll
	}
	if c.Interval != nil {
		interval = *c.Interval
	}
	return interval, least
}

func (c *topCmd) Validate() error {
	switch interval, least := c.interval(); {
	case interval < least && c.All:
		return fmt.Errorf("--interval is %v; with --all at least %v is allowed", interval, least)
	case interval < least:
		return fmt.Errorf("--interval is %v; at least %v is allowed", interval, least)
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
	interval, _ := c.interval()
	m := newTopModel(interval)
	m.look = func() topSample { return lookAt(ctx, sidecar, c.All) }
	m.lookAtLock = func(name string, after uint64) lockSample { return lookAtLock(ctx, sidecar, name, after) }
	m.all, m.order, m.filter = c.All, topOrders[c.Sort], c.Filter
	if !c.Plain && c.Count == 0 && isTerminal(0) && isTerminal(1) && os.Getenv("TERM") != "dumb" {
		_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithOutput(out)).Run()
		return err
	}
	return m.printTables(out, max(c.Count, 1))
}

// topSample is one look at a sidecar, or at all of them.
type topSample struct {
	status locksidecar.Status // of this host
	hosts  []hostLocks        // without --all one, of which only the locks are known
	err    error              // nothing else is known
}

func lookAt(ctx context.Context, sidecar *locksidecar.Client, all bool) topSample {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s := topSample{}
	if s.status, s.err = sidecar.Status(ctx); s.err != nil {
		return s
	}
	if all {
		s.hosts, s.err = askHosts(ctx, sidecar)
		return s
	}
	here := hostLocks{at: time.Now()}
	here.locks, s.err = sidecar.List(ctx)
	s.hosts = []hostLocks{here}
	return s
}

// topKey names a row: a lock has one for each sidecar.
type topKey struct {
	sidecar string // its uuid; "" without --all
	name    string
}

// topRow is a lock as top shows it.
type topRow struct {
	key     topKey
	host    string // its name; "" without --all
	lock    locksidecar.LockInfo
	wait    int64   // of the first waiter, ms; −1: there is none
	held    int64   // ms; −1: no process of the host holds it
	changes float64 // of the owner, a second; −1: not known
}

// topRows returns the rows of the locks in cur; before is the sample before; nil: there is none.
func topRows(before, cur *topSample) []topRow {
	grants := make(map[topKey]uint64)
	asked := make(map[string]time.Time) // when a sidecar was asked before, by its uuid
	if before != nil {
		for i := range before.hosts {
			h := &before.hosts[i]
			if h.err != nil {
				continue
			}
			asked[h.Sidecar] = h.at
			for k := range h.locks {
				grants[topKey{h.Sidecar, h.locks[k].Name}] = h.locks[k].Grants
			}
		}
	}
	var rows []topRow
	for i := range cur.hosts {
		h := &cur.hosts[i]
		at, isKnown := asked[h.Sidecar]
		for _, l := range h.locks {
			r := topRow{key: topKey{h.Sidecar, l.Name}, host: h.Host, lock: l, wait: -1, held: -1, changes: -1}
			if len(l.Waiters) > 0 {
				r.wait = l.Waiters[0].Waited.Milliseconds()
			}
			if l.State == locksidecar.LockHeld {
				r.held = l.Held.Milliseconds()
			}
			if isKnown {
				was := grants[r.key]
				if was > l.Grants { // it was forgotten meanwhile
					was = 0
				}
				r.changes = float64(l.Grants-was) / h.at.Sub(at).Seconds()
			}
			rows = append(rows, r)
		}
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
	look       func() topSample
	lookAtLock func(name string, after uint64) lockSample
	interval   time.Duration
	users      display.UserNames
	zone       *time.Location
	all        bool // the locks of all hosts

	order      *topOrder
	isReversed bool
	filter     string // of names
	isTyping   bool   // the filter
	isPaused   bool
	width      int
	height     int

	selected *topKey // nil: the first row, whichever that is
	cursor   int     // the row of selected among shown
	offset   int     // of the first row that is on the screen
	opened   *topLock
	openings int // how many locks have been opened

	cur     *topSample // nil: none yet
	rows    []topRow   // of cur
	shown   []topRow   // those of rows that the filter leaves, in their order
	err     error      // of the newest look; nil: it is cur
	looks   int        // how many were begun
	overdue time.Duration
}

func newTopModel(interval time.Duration) *topModel {
	return &topModel{interval: interval, users: make(display.UserNames), zone: time.Local, order: byWaiters}
}

// lookAgain is the message that it is time for the next look.
type lookAgain struct{}

// lookOverdue is the message that a look should have had an answer.
type lookOverdue struct{ look int }

// overdueAfter is how long a look may take before the screen says that it is not up to date.
const overdueAfter = 2 * time.Second

func (m *topModel) Init() tea.Cmd { return m.lookNow() }

func (m *topModel) lookNow() tea.Cmd {
	m.looks++
	return tea.Batch(func() tea.Msg { return m.look() }, m.watchLook())
}

// watchLook returns what reports that the look of now has no answer yet.
func (m *topModel) watchLook() tea.Cmd {
	look := m.looks
	return tea.Tick(overdueAfter, func(time.Time) tea.Msg { return lookOverdue{look} })
}

func (m *topModel) lookLater() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return lookAgain{} })
}

func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var next tea.Cmd
	switch msg := msg.(type) {
	case topSample:
		m.onSample(&msg)
		next = m.lookLater()
	case lookAgain:
		if next = m.lookLater(); !m.isPaused {
			next = m.lookNow()
		}
	case lookOverdue:
		if msg.look == m.looks {
			m.overdue += overdueAfter
			next = m.watchLook()
		}
	case lockSample:
		if o := m.opened; o != nil && o.opening == msg.opening {
			o.add(&msg)
			next = m.lookAtLockLater(o)
		}
	case lookAtLockAgain:
		if o := m.opened; o != nil && o.opening == msg.opening {
			if next = m.lookAtLockLater(o); !m.isPaused {
				next = m.lookAtLockNow(o)
			}
		}
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		next = m.onKey(msg)
	}
	m.arrange()
	return m, next
}

func (m *topModel) onSample(s *topSample) {
	m.overdue = 0
	m.looks++ // so that watchLook reports nothing about this look
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
	case k == "p":
		m.isPaused = !m.isPaused
	case m.opened != nil:
		return m.onLockKey(k)
	case topKeys[k] != nil:
		m.order, m.selected = topKeys[k], nil
	case k == "r":
		m.isReversed, m.selected = !m.isReversed, nil
	case k == "/":
		m.isTyping = true
	case k == "esc":
		m.filter = ""
	case k == "enter" && len(m.shown) > 0:
		return m.open(&m.shown[m.cursor])
	default:
		m.move(k)
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
	m.selected = nil
}

// scrolled returns where a key of the keyboard leads to from a line of n; page is how many the
// screen has room for.
func scrolled(k string, from, n, page int) int {
	switch k {
	case "down":
		from++
	case "up":
		from--
	case "pgdown":
		from += page
	case "pgup":
		from -= page
	case "home":
		from = 0
	case "end":
		from = n - 1
	}
	return max(0, min(from, n-1))
}

// move selects another row.
func (m *topModel) move(k string) {
	if len(m.shown) == 0 {
		return
	}
	m.cursor = scrolled(k, m.cursor, len(m.shown), max(1, m.room()))
	m.selected = &m.shown[m.cursor].key
}

// arrange finds the rows that are shown, and the selected one among them. A lock that moves to
// another row stays selected; that of the row where it was follows one that has gone.
func (m *topModel) arrange() {
	m.shown = m.shown[:0:0]
	for i := range m.rows {
		if strings.Contains(m.rows[i].lock.Name, m.filter) {
			m.shown = append(m.shown, m.rows[i])
		}
	}
	slices.SortFunc(m.shown, func(a, b topRow) int {
		c := m.order.compare(&a, &b)
		if m.isReversed {
			c = -c
		}
		return cmp.Or(c, strings.Compare(a.lock.Name, b.lock.Name), strings.Compare(a.host, b.host), strings.Compare(a.key.sidecar, b.key.sidecar))
	})
	n := len(m.shown)
	if m.selected == nil || n == 0 {
		m.cursor = 0
	} else if i := slices.IndexFunc(m.shown, func(r topRow) bool { return r.key == *m.selected }); i >= 0 {
		m.cursor = i
	} else {
		m.cursor = min(m.cursor, n-1)
		m.selected = &m.shown[m.cursor].key
	}
	room := max(1, m.room())
	m.offset = max(m.offset, m.cursor-room+1)
	m.offset = max(0, min(m.offset, m.cursor, n-room))
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
	if m.cur == nil && m.err == nil && m.overdue == 0 || m.width == 0 {
		return "waiting for the sidecar"
	}
	lines := []string{cut(m.summary(), m.width), cut(m.caption(), m.width)}
	if m.isAlarming() {
		lines[0] = alarmColour.Styled(lines[0])
	}
	prompt := ""
	if m.opened != nil {
		var part []string
		part, prompt = m.lockScreen()
		lines = append(lines, part...)
	} else {
		lines = append(lines, m.tableLines()...)
		prompt = m.prompt()
	}
	for len(lines) < m.height-bottomLines {
		lines = append(lines, "")
	}
	lines = append(lines[:max(0, m.height-bottomLines)], cut(prompt, m.width))
	return strings.Join(lines, "\n")
}

// The colours of top: locks that processes wait for, and a first line with something that is wrong. A terminal
// without colours, or with NO_COLOR in the environment, has none: the library leaves them out.
var (
	waitingColour = ansi.Style{}.ForegroundColor(ansi.Yellow)
	alarmColour   = ansi.Style{}.ForegroundColor(ansi.Red)
)

// isAlarming reports whether the first line has something that an operator acts on.
func (m *topModel) isAlarming() bool {
	if m.cur == nil || m.err != nil {
		return true
	}
	s := &m.cur.status
	return s.Redis != "ok" || s.Trouble != "" || s.RenewalsLate > 0
}

// tableLines renders the header and the rows that have room, and marks the selected one.
func (m *topModel) tableLines() []string {
	const marked, unmarked = "> ", "  "
	rows := m.shown[min(m.offset, len(m.shown)):min(m.offset+max(0, m.room()), len(m.shown))]
	lines := strings.Split(strings.TrimSuffix(m.table(rows, max(1, m.width-len(marked))), "\n"), "\n")
	for i := range lines {
		var style ansi.Style
		if i > 0 && rows[i-1].lock.Waiting > 0 {
			style = waitingColour
		}
		if i > 0 && m.offset+i-1 == m.cursor {
			line := cut(marked+lines[i], m.width)
			lines[i] = style.Reverse(true).Styled(line + strings.Repeat(" ", max(0, m.width-ansi.StringWidth(line))))
		} else {
			lines[i] = style.Styled(cut(unmarked+lines[i], m.width))
		}
	}
	return lines
}

// summary describes the sidecar in one line. On a terminal, which may cut the line, it begins with
// what is wrong.
func (m *topModel) summary() string {
	if m.cur == nil {
		return "no answer from the sidecar"
	}
	s := &m.cur.status
	redis := "redis"
	isWell := false
	switch {
	case s.Degraded:
		redis = "REDIS degraded: " + s.Redis
	case s.Redis != "ok":
		redis = "REDIS does not serve: " + s.Redis
	case s.RoundTrip != 0:
		redis += " " + describeMicros(s.RoundTrip.Microseconds())
		isWell = true
	default:
		redis += " serves"
		isWell = true
	}
	texts := []string{fmt.Sprintf("%s; %s, %d held, %d waiting", redis, display.Count(s.Sessions, "session"), s.Held, s.Waiting)}
	var alarms []string
	if s.RenewalsLate > 0 {
		alarms = append(alarms, fmt.Sprintf("%d RENEWALS LATE", s.RenewalsLate))
	}
	lost := 0
	for _, l := range s.Lost {
		lost += l.Count
	}
	if lost > 0 {
		alarms = append(alarms, fmt.Sprintf("%d LOST in the last hour", lost))
	}
	if m.width > 0 && isWell {
		texts = append(alarms, texts...)
	} else {
		texts = append(texts, alarms...)
	}
	if s.Hidden != "" {
		texts = append(texts, s.Hidden)
	}
	if s.Trouble != "" {
		texts = append([]string{"TROUBLE: " + s.Trouble}, texts...)
	}
	return display.Printable(strings.Join(texts, "; "))
}

// caption describes the rows in one line.
func (m *topModel) caption() string {
	err := m.err
	if err == nil && m.opened != nil {
		err = m.opened.whoErr
	}
	if err != nil {
		return display.Printable("NOT UP TO DATE: " + strings.TrimPrefix(err.Error(), programName))
	}
	if m.overdue > 0 {
		return fmt.Sprintf("NOT UP TO DATE: no answer from the daemon for %s", display.Duration(m.overdue))
	}
	if m.opened != nil {
		text := "asking"
		if m.opened.who != nil {
			text = "as of " + m.opened.at.In(m.zone).Format(time.TimeOnly)
		}
		if m.isPaused {
			text += "; PAUSED"
		}
		return text
	}
	what, silence := display.Count(len(m.shown), "lock"), ""
	if m.all {
		var silent []string
		for i := range m.cur.hosts {
			if m.cur.hosts[i].err != nil {
				silent = append(silent, m.cur.hosts[i].Host)
			}
		}
		what += " of " + display.Count(len(m.cur.hosts)-len(silent), "host")
		if len(silent) > 0 {
			silence = "NO ANSWER from " + strings.Join(silent, ", ") + "; "
		}
	}
	text := fmt.Sprintf("%s%s by %s", silence, what, m.order.name)
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

// prompt is the last line on a terminal: the longest one that fits. The shorter one has room in 80 columns.
func (m *topModel) prompt() string {
	if m.isTyping {
		return "names that contain: " + display.Printable(m.filter) + "_"
	}
	const keys = "q quit   Enter open   / filter   p pause   sort: "
	const long = keys + "w waiters, t wait, h hold, c changes, n name, r reverse"
	if len(long) <= m.width {
		return long
	}
	return keys + "w t h c n, r reverse"
}

var topHeader = []string{"LOCK", "WAITERS", "WAIT", "HELD", "CHANGES/S", "STATE", "PID", "USER", "COMMAND"}

// narrow is below how many columns the table of top leaves the user out, and has shorter headers, so that a command
// can be read in 80 columns.
const narrow = 100

// maxHostColumn is how much of a host's name a terminal shows.
const maxHostColumn = 20

// table renders rows for a terminal of the given width; 0: nothing is cut.
func (m *topModel) table(rows []topRow, width int) string {
	cells := [][]string{slices.Clone(topHeader)}
	users := m.users
	if m.all {
		users = nil // another host has other users
	}
	for i := range rows {
		r := &rows[i]
		shown := lockRow(viewLock(&r.lock, time.Time{}, users))
		row := []string{r.lock.Name, strconv.Itoa(r.lock.Waiting), "", shown[4], "", shown[1], shown[2], shown[3], shown[7]}
		if r.wait >= 0 {
			row[2] = display.Duration(ms(r.wait))
		}
		if r.changes >= 0 {
			row[4] = strconv.FormatFloat(r.changes, 'f', 1, 64)
		}
		cells = append(cells, row)
	}
	if width > 0 && width < narrow {
		cells[0][1], cells[0][4] = "WTRS", "CHG/S"
		for i := range cells {
			cells[i] = slices.Delete(cells[i], 7, 8)
		}
	}
	if m.all {
		for i := range cells {
			host := "HOST"
			if i > 0 {
				host = display.Printable(rows[i-1].host)
			}
			if width > 0 {
				host = cut(host, maxHostColumn)
			}
			cells[i] = slices.Insert(cells[i], 1, host)
		}
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
		m.Update(s)
		if i == 0 {
			continue
		}
		if i > 1 {
			if _, err := fmt.Fprintln(out); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(out, "%s\n%s\n%s", m.summary(), m.caption(), m.table(m.shown, 0)); err != nil {
			return err
		}
	}
	return nil
}
