package monitor

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
)

const (
	maxFolded  = 256 // events that are folded for the status page
	maxRecent  = 10  // rows of them
	maxHistory = 50  // events on the page of a lock
)

// lockPage is what lock.html shows. Texts that processes chose are printable, except Key.
type lockPage struct {
	Host, At string
	Refresh  int // seconds, or noRefresh

	Key, Name   string // Key is the name itself
	Verdict     string
	Facts       []fact
	QueueText   string
	Queue       []place // the holder, and the waiters in order
	MoreWaiters int
	Events      events
}

// place is a place in the queue of a lock.
type place struct {
	Label    string // "has it", or the number of a waiter
	Who, Cmd string
	IsWaiter bool
}

// events is what happened, newest first.
type events struct {
	Caption  string
	IsFolded bool // the events are of several locks, and equal ones are one row
	Rows     []eventRow
}

type eventRow struct {
	At, First  string // First: of those that are folded; "": there is one
	Kind       string
	Times      uint64
	Key, Name  string
	OtherLocks int // names of those that are folded
	Text       string
	IsLoss     bool
}

// isNotable reports whether an event is one that an operator looks for: all but grants and
// releases, of which there are very many.
func isNotable(e *protocol.EventRow) bool {
	return e.Kind != protocol.EventGranted && e.Kind != protocol.EventReleased
}

// foldedEvent is one event, or several that are the same to an operator.
type foldedEvent struct {
	protocol.EventRow // the newest
	firstNS           int64
	times             uint64
	names             map[string]bool
}

// fold returns the events, newest first, with those folded into one that have the same kind, command, user
// and reason. One outage can end a thousand holds, and must not hide what else happened.
func fold(rows []protocol.EventRow) []foldedEvent {
	type common struct {
		kind, cmd, host, msg string
		uid                  int64
		reason               protocol.Reason
	}
	withoutDigits := func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1 // a pid, a port, a token or a time
		}
		return r
	}
	var folded []foldedEvent
	at := make(map[common]int) // in folded
	for i := range rows {
		r := rows[i]
		times := uint64(1)
		if (r.Kind == protocol.EventDeadlock || r.Kind == protocol.EventRefused) && r.Count > 0 {
			times, r.Count = uint64(r.Count), 0
		}
		key := common{r.Kind, r.Cmd, r.RemoteHost, strings.Map(withoutDigits, r.Msg), r.UID, r.Reason}
		n, isKnown := at[key]
		if !isKnown {
			n = len(folded)
			at[key] = n
			folded = append(folded, foldedEvent{EventRow: r, names: make(map[string]bool)})
		}
		f := &folded[n]
		f.firstNS, f.times, f.names[r.Name] = r.AtNS, f.times+times, true
	}
	return folded
}

// each returns the events, none of which is folded.
func each(rows []protocol.EventRow) []foldedEvent {
	list := make([]foldedEvent, len(rows))
	for i, r := range rows {
		list[i] = foldedEvent{EventRow: r, firstNS: r.AtNS, times: 1, names: map[string]bool{r.Name: true}}
	}
	return list
}

// newEvents describes events that were read at now (CLOCK_BOOTTIME, ns).
func newEvents(rows []foldedEvent, now int64, isFolded bool) events {
	users := make(display.UserNames)
	list := events{IsFolded: isFolded}
	clock := func(ns int64) time.Time { return time.Now().Add(-time.Duration(now - ns)) }
	for i := range rows {
		r := &rows[i]
		at := clock(r.AtNS)
		e := display.Event{
			At: at, Kind: r.Kind, Token: r.Token, Shared: r.Shared, Permits: int(r.Permits), PID: r.PID, Cmd: r.Cmd,
			Waited: time.Duration(r.WaitedMS) * time.Millisecond, Held: time.Duration(r.HeldMS) * time.Millisecond,
			Reason: r.Reason, RemoteField: r.RemoteField, RemoteHost: r.RemoteHost, Count: uint64(r.Count), Msg: r.Msg,
		}
		if r.Kind == protocol.EventGranted {
			e.Msg = users.Named(r.Msg)
		}
		switch {
		case r.Session != 0:
			e.User = users.Name(int(r.UID))
		case r.RemoteHost != "" && (r.Kind == protocol.EventForced || r.Kind == protocol.EventRefused): // by a user of that host
			e.User = strconv.FormatInt(r.UID, 10)
		}
		row := eventRow{
			At: at.Format("Jan _2 15:04:05"), Kind: display.Printable(r.Kind), Times: r.times,
			Key: r.Name, Name: display.Printable(r.Name), OtherLocks: len(r.names) - 1,
			Text: display.Printable(e.Text()), IsLoss: r.Kind == protocol.EventLost,
		}
		if r.firstNS != r.AtNS {
			row.First = clock(r.firstNS).Format("Jan _2 15:04:05")
		}
		list.Rows = append(list.Rows, row)
	}
	return list
}

// lock serves the page of one lock.
func (m *Monitor) lock(w http.ResponseWriter, r *http.Request) {
	name, refresh := r.URL.Query().Get("name"), refreshOf(r)
	if err := protocol.CheckName(name); err != nil {
		http.Error(w, "the page of a lock is /lock?name=NAME: "+err.Error(), http.StatusBadRequest)
		return
	}
	serve(w, m.lockPages.get(strconv.Itoa(refresh)+" "+name, m.pacer, func() answer { return m.writeLockPage(name, refresh) }))
}

// writeLockPage returns the page of a lock, which a browser loads again after so many seconds.
func (m *Monitor) writeLockPage(name string, refresh int) answer {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	p, err := m.newLockPage(ctx, name)
	if err != nil {
		return answer{why: "the daemon does not answer: " + err.Error()}
	}
	p.Refresh = refresh
	return m.render("lock.html", p)
}

func (m *Monitor) newLockPage(ctx context.Context, name string) (*lockPage, error) {
	rows, err := m.sidecar.Rows(ctx, []string{name})
	if err != nil {
		return nil, err
	}
	history, now, err := m.sidecar.Events(ctx, maxHistory, func(e *protocol.EventRow) bool { return e.Name == name })
	if err != nil {
		return nil, err
	}
	p := &lockPage{
		Host: display.Printable(m.sidecar.Config().HostName), At: time.Now().Format("2006-01-02 15:04:05 MST"), Key: name, Name: display.Printable(name),
		Verdict: "No process of this host holds it or waits for it.", Events: newEvents(each(history), now, false),
	}
	if p.Events.Caption = "What happened to it on this host, newest first: grants after a wait of 10 ms, ends of holds of 1 s, losses."; len(history) == 0 {
		p.Events.Caption = "None. Grants after a wait of 10 ms, ends of holds of 1 s and losses are events."
	}
	if len(rows) == 0 {
		return p, nil
	}
	r, l := &rows[0], &lockRows(now, rows)[0]
	p.Verdict, p.MoreWaiters = whoHas(l, r), l.MoreWaiters
	p.Queue, p.QueueText = queue(l, r), queueText(l)
	add := func(name, format string, args ...any) {
		p.Facts = append(p.Facts, fact{name, fmt.Sprintf(format, args...)})
	}
	clock := func(from time.Duration) string { return time.Now().Add(from).Format("2006-01-02 15:04:05") }
	switch {
	case r.Kind == protocol.KindPermits:
		add("Permits here", "%s, in %s", l.State, display.Count(r.Held, "hold"))
	case r.Shared > 0:
		add("Shared", "by %s; it is read", display.Count(r.Shared, "hold"))
	case r.State == protocol.StateHeld:
		add("Holder", "%s", display.Printable(display.Client(int(r.PID), r.Cmd, l.User)))
		add("Since", "%s (%s)", clock(-l.held), l.For)
		add("Token", "%s", l.Token)
		left := time.Duration(max(0, r.DeadlineNS-now))
		renewed := "; the daemon renews it"
		if r.LeaseMS > 0 {
			renewed = "; fixed: it is not renewed"
		}
		add("Lease", "%s left, until %s%s", display.Duration(left), clock(left), renewed)
		if r.Count > 1 {
			add("Entered", "%d times", r.Count)
		}
	case r.State == protocol.StateRemote:
		add("Expires", "%s, unless it is renewed", l.Left)
	}
	add("Waiters", "%d", r.Waiting)
	add("Grants", "%d on this host, since the daemon knows the lock", r.Grants)
	return p, nil
}

// queue returns the holders of a lock, and its waiters in order.
func queue(l *lockRow, r *protocol.LockRow) []place {
	places := holders(r)
	if l.Kind == "" {
		places = []place{holder(l)}
	}
	for i, w := range l.Waiters {
		places = append(places, place{strconv.Itoa(i + 1), fmt.Sprintf("pid %s of %s, waits for %s", w.PID, w.User, w.Waited), w.Cmd, true})
	}
	return places
}

// holder returns the holder of a lock.
func holder(l *lockRow) place {
	p := place{Label: "has it", Cmd: l.Cmd}
	switch l.State {
	case protocol.StateHeld, "orphan", "absent":
		p.Who = fmt.Sprintf("pid %s of %s, for %s", l.PID, l.User, l.For)
	case protocol.StateRemote:
		p.Who, p.Cmd = l.Cmd, ""
	default:
		p.Label = l.State // kept, free or soon free: no process has it
	}
	return p
}

// holders returns those that have permits of a semaphore, or share a read/write lock.
func holders(r *protocol.LockRow) (places []place) {
	users := make(display.UserNames)
	for i := range r.Holders {
		h := &r.Holders[i]
		p := place{Label: fmt.Sprintf("has %d", h.Permits), Cmd: display.Printable(h.Cmd)}
		if h.Shared {
			p.Label = "reads"
		}
		p.Who = fmt.Sprintf("pid %d of %s, for %s", h.PID, users.Name(int(h.UID)), display.Duration(time.Duration(h.HeldMS)*time.Millisecond))
		switch {
		case h.Orphan:
			p.Who += ", which is gone"
		case h.Absent:
			p.Who += ", which has not come back since the daemon was restarted"
		}
		places = append(places, p)
	}
	if more := r.Held - len(r.Holders); more > 0 {
		label := fmt.Sprintf("%d more have some", more)
		if r.Shared > 0 {
			label = fmt.Sprintf("%d more read", more)
		}
		places = append(places, place{Label: label})
	}
	return places
}

// queueText describes the waiters of a lock in two sentences.
func queueText(l *lockRow) string {
	if len(l.Waiters) == 0 {
		return "No process of this host waits for it."
	}
	return fmt.Sprintf("Waiters of this host: %d, in the order in which they get the lock. The first one has waited for %s.", l.Waiting, l.Waiters[0].Waited)
}

// whoHas says in one sentence who has a lock.
func whoHas(l *lockRow, r *protocol.LockRow) string {
	switch l.Kind {
	case protocol.KindReadWrite:
		return "A read/write lock, which processes of this host read."
	case protocol.KindPermits:
		return fmt.Sprintf("A semaphore, of which processes of this host have %s.", l.State)
	}
	switch l.State {
	case protocol.StateHeld:
		return "A process of this host holds it."
	case "kept":
		return "Its hold has ended, and it is kept for another " + display.Duration(time.Duration(r.KeepLeftMS)*time.Millisecond) + ", as its holder asked."
	case "orphan":
		return "The process that held it is gone, and it is kept a little longer."
	case "absent":
		text := "A process of this host holds it, which has not come back since the daemon was restarted"
		if r.AbsentLeftMS > 0 {
			text += ", and it is renewed for another " + display.Duration(time.Duration(r.AbsentLeftMS)*time.Millisecond)
		}
		return text + "."
	case protocol.StateRemote:
		return "It is " + l.Cmd + "."
	case protocol.StateBusy:
		return "The daemon waits for an answer of Redis about it."
	case protocol.StateLingering:
		return "It was released, and lingers on this host for a moment."
	}
	return "It is free."
}
