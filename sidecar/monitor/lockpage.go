package monitor

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
)

const (
	maxRecent  = 10 // events on the status page
	maxHistory = 50 // events on the page of a lock
)

// lockPage is what lock.html shows. Texts that processes chose are printable, except Key.
type lockPage struct {
	Host, At string
	Refresh  int // seconds, or noRefresh

	Key, Name   string // Key is the name itself
	Verdict     string
	Facts       []fact
	Waiters     []placedWaiter
	MoreWaiters int
	Events      events
}

type placedWaiter struct {
	Place int
	waiterRow
}

// events is what happened, newest first.
type events struct {
	Caption  string
	HasLocks bool // the events are of several locks
	Rows     []eventRow
}

type eventRow struct {
	At, Kind  string
	Key, Name string
	Text      string
	IsLoss    bool
}

// isNotable reports whether an event is one that an operator looks for: all but grants and
// releases, of which there are very many.
func isNotable(e *protocol.EventRow) bool {
	return e.Kind != protocol.EventGranted && e.Kind != protocol.EventReleased
}

// newEvents describes events that were read at now (CLOCK_BOOTTIME, ns).
func newEvents(rows []protocol.EventRow, now int64, hasLocks bool) events {
	users := make(display.UserNames)
	list := events{HasLocks: hasLocks}
	for i := range rows {
		r := &rows[i]
		at := time.Now().Add(-time.Duration(now - r.AtNS))
		e := display.Event{
			At: at, Kind: r.Kind, Token: r.Token, PID: r.PID, Cmd: r.Cmd,
			Waited: time.Duration(r.WaitedMS) * time.Millisecond, Held: time.Duration(r.HeldMS) * time.Millisecond,
			Reason: r.Reason, RemoteField: r.RemoteField, RemoteHost: r.RemoteHost, Count: uint64(r.Count), Msg: r.Msg,
		}
		switch {
		case r.Session != 0:
			e.User = users.Name(int(r.UID))
		case r.RemoteHost != "" && (r.Kind == protocol.EventForced || r.Kind == protocol.EventRefused): // by a user of that host
			e.User = strconv.FormatInt(r.UID, 10)
		}
		list.Rows = append(list.Rows, eventRow{
			At: at.Format("Jan _2 15:04:05"), Kind: display.Printable(r.Kind), Key: r.Name, Name: display.Printable(r.Name),
			Text: display.Printable(e.Text()), IsLoss: r.Kind == protocol.EventLost,
		})
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
		Verdict: "No process of this host holds it or waits for it.", Events: newEvents(history, now, false),
	}
	if p.Events.Caption = "What happened to it on this host, newest first: grants after a wait of 10 ms, ends of holds of 1 s, losses."; len(history) == 0 {
		p.Events.Caption = "None. Grants after a wait of 10 ms, ends of holds of 1 s and losses are events."
	}
	if len(rows) == 0 {
		return p, nil
	}
	r, l := &rows[0], &lockRows(now, rows)[0]
	p.Verdict, p.MoreWaiters = verdict(l, r), l.MoreWaiters
	for i, w := range l.Waiters {
		p.Waiters = append(p.Waiters, placedWaiter{i + 1, w})
	}
	add := func(name, format string, args ...any) {
		p.Facts = append(p.Facts, fact{name, fmt.Sprintf(format, args...)})
	}
	clock := func(from time.Duration) string { return time.Now().Add(from).Format("2006-01-02 15:04:05") }
	switch r.State {
	case protocol.StateHeld:
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
	case protocol.StateRemote:
		add("Expires", "%s, unless it is renewed", l.Left)
	}
	add("Waiters", "%d", r.Waiting)
	add("Grants", "%d on this host, since the daemon knows the lock", r.Grants)
	return p, nil
}

// verdict says in one sentence who has a lock.
func verdict(l *lockRow, r *protocol.LockRow) string {
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
