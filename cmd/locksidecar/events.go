package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type eventsCmd struct {
	socketFlag
	Name    namePattern   `arg:"" optional:"" help:"Only the lock with this name; with * at the end, the locks whose names start so."`
	Follow  bool          `short:"f" help:"Continue with events as they happen, also over restarts of the daemon."`
	Since   time.Duration `help:"Only events of the last TIME, such as 8h." placeholder:"TIME"`
	MinWait time.Duration `help:"Leave out grants after a shorter wait." placeholder:"TIME"`
	JSON    bool          `help:"Print a JSON object on each line."`
}

func (eventsCmd) Help() string {
	return `Prints what happened to the locks of this host: grants after a wait of 10 ms or more, releases after 1 s (or after 10 ms,
if requests waited), crashes of holders, losses, forced releases, deadlocks, restarts of the daemon that took over holds,
and outages of Redis. The daemon keeps the newest 1,024 grants and short holds, 1,024 ends of longer holds, 1,024 changes
of Redis, 1,024 deadlocks and refused forced releases (equal ones of a minute are one line with their number), and 1,024
other events. A user that has half of them displaces its own. Standard error says how many were displaced. If a policy hides locks from you, it prints the events of those that you may see, and
says so on standard error.

It asks the daemon of this host only: each daemon keeps the events of its own host. Ask another host there, as the last
example does. locksidecar who NAME says which host has a lock, and locksidecar ls --all names all hosts.

Examples:

    locksidecar events --since 8h invoice:42      # who had it, and until when
    locksidecar events --follow --min-wait 1s
    locksidecar events --follow 'invoice:*'
    locksidecar events --json | jq 'select(.kind == "lost")'
    ssh db-7 locksidecar events --since 8h invoice:42

Fields of --json; those in brackets are absent where they do not apply:

    time, kind: granted, released, crashed, lost, forced, force_refused, deadlock, takeover, redis_down, redis_degraded, redis_up, data_lost,
      slots_open, slots_closed, missed
    [name, hold, token, shared (of a read/write lock), permits (of a semaphore), session, pid, uid, user, cmd]  of the holder; of forced: who forced it; of deadlock: who was refused
    [waited_ms, msg, remote_field, remote_host: for which hold it waited] of granted, [held_ms] of released and crashed
    [held_ms, reason, remote_field, remote_host] of lost, [msg] of deadlock, takeover, forced, force_refused, redis_down, redis_degraded and slots_open
    [count] of takeover: the holds; of released and crashed: the requests that waited; of missed: the events that came faster than they were read;
            of deadlock and force_refused: how often, if more than once

` + exitTable
}

// awayInterval is how often events --follow looks whether there is a sidecar again.
const awayInterval = time.Second

func (c *eventsCmd) Run(ctx context.Context, out io.Writer) error {
	connecting, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sidecar, err := locksidecar.Dial(connecting, c.Socket)
	if err != nil {
		return err
	}
	defer sidecar.Close()
	p := eventPrinter{out: out, json: c.JSON, pattern: c.Name, minWait: c.MinWait, users: make(display.UserNames), zone: time.Local}
	if c.Since != 0 {
		p.from = time.Now().Add(-c.Since)
	}
	after := uint64(0)
	isBacklog := true // of events that happened before
	dropped := uint64(0)
	isAway := false
	hidden := ""
	for {
		page, err := sidecar.Events(ctx, after, c.Follow && !isBacklog)
		switch {
		case c.Follow && after != 0 && errors.Is(err, locksidecar.ErrUnavailable):
			if !isAway {
				printErr("%v; waiting for a sidecar", err)
			}
			isAway = true
			time.Sleep(awayInterval)
			continue
		case err != nil:
			return err
		}
		isAway = false
		if isBacklog {
			dropped += page.Missed
			page.Missed = 0 // the daemon had displaced them before
		}
		if page.Hidden != "" && page.Hidden != hidden {
			printErr("%s", page.Hidden)
		}
		hidden = page.Hidden
		if err := p.page(&page, time.Now()); err != nil {
			return err
		}
		after = page.Next
		if !isBacklog || len(page.Events) > 0 {
			continue
		}
		isBacklog = false
		if dropped > 0 {
			printErr("the daemon has dropped %s: it keeps the newest 1,024 of each class; see locksidecar events --help", display.Count(int(dropped), "older event"))
		}
		if !c.Follow {
			return p.end()
		}
	}
}

// eventView is an event as --json prints it. The help documents its field names, which do not
// change.
type eventView struct {
	Time        time.Time             `json:"time"`
	Kind        locksidecar.EventKind `json:"kind"`
	Name        string                `json:"name,omitempty"`
	Hold        uint64                `json:"hold,omitempty"`
	Token       uint64                `json:"token,omitempty"`
	Shared      bool                  `json:"shared,omitempty"`
	Permits     int                   `json:"permits,omitempty"`
	Session     uint64                `json:"session,omitempty"`
	PID         int                   `json:"pid,omitempty"`
	UID         *int                  `json:"uid,omitempty"`
	User        string                `json:"user,omitempty"`
	Cmd         string                `json:"cmd,omitempty"`
	WaitedMS    *int64                `json:"waited_ms,omitempty"`
	HeldMS      *int64                `json:"held_ms,omitempty"`
	Reason      string                `json:"reason,omitempty"`
	RemoteField string                `json:"remote_field,omitempty"`
	RemoteHost  string                `json:"remote_host,omitempty"`
	Count       uint64                `json:"count,omitempty"`
	Msg         string                `json:"msg,omitempty"`
}

// kindMissed is the kind of the line that stands for events that were missed. The SDK does not have it.
const kindMissed = "missed"

// eventPrinter prints events, each on one line.
type eventPrinter struct {
	out     io.Writer
	json    bool
	pattern namePattern
	from    time.Time
	minWait time.Duration
	users   display.UserNames
	zone    *time.Location
	printed bool
}

// page prints the events of a page, which was read at now.
func (p *eventPrinter) page(page *locksidecar.EventPage, now time.Time) error {
	if page.Missed > 0 {
		if err := p.print(&eventView{Time: now, Kind: kindMissed, Count: page.Missed}); err != nil {
			return err
		}
	}
	for i := range page.Events {
		e := &page.Events[i]
		isShort := e.Kind == locksidecar.EventGranted && e.Waited < p.minWait
		if isShort || e.At.Before(p.from) || !p.pattern.matches(e.Name) {
			continue
		}
		v := viewEvent(e, p.users)
		if err := p.print(&v); err != nil {
			return err
		}
	}
	return nil
}

func viewEvent(e *locksidecar.Event, users display.UserNames) eventView {
	v := eventView{
		Time: e.At, Kind: e.Kind, Name: e.Name, Hold: e.Hold, Token: e.Token, Shared: e.Shared, Permits: e.Permits, Session: e.Session, PID: e.PID, Cmd: e.Cmd,
		Reason: string(e.Reason), RemoteField: e.RemoteField, RemoteHost: e.RemoteHost, Count: uint64(e.Count), Msg: e.Message,
	}
	if e.Session != 0 {
		v.UID, v.User = &e.UID, users.Name(e.UID)
	} else if isForce(e.Kind) && e.RemoteHost != "" { // of another host, whose users are not those of this one
		v.UID, v.User = &e.UID, display.UserNames(nil).Name(e.UID)
	}
	switch e.Kind {
	case locksidecar.EventGranted:
		waited := e.Waited.Milliseconds()
		v.WaitedMS, v.Msg = &waited, users.Named(e.Message)
	case locksidecar.EventLost, locksidecar.EventReleased, locksidecar.EventCrashed:
		held := e.Held.Milliseconds()
		v.HeldMS = &held
	}
	return v
}

func (p *eventPrinter) print(v *eventView) error {
	p.printed = true
	if p.json {
		v.Time = v.Time.UTC()
		return json.NewEncoder(p.out).Encode(v)
	}
	_, err := fmt.Fprintln(p.out, v.line(p.zone))
	return err
}

// line describes an event in a line for people, with times of a zone.
func (v *eventView) line(zone *time.Location) string {
	v.Time = v.Time.In(zone)
	return fmt.Sprintf("%s  %-10s  %s", v.Time.Format("Jan _2 15:04:05.000"), display.Printable(string(v.Kind)), display.Printable(v.describe()))
}

// end is called after the last page.
func (p *eventPrinter) end() error {
	if p.printed || p.json {
		return nil
	}
	what := "no events"
	if p.pattern != "" {
		what += fmt.Sprintf(" of locks that match %q", string(p.pattern))
	}
	if !p.from.IsZero() {
		what += " since " + p.from.In(p.zone).Format("Jan _2 15:04:05")
	}
	_, err := fmt.Fprintln(p.out, what)
	return err
}

// describe describes an event for people.
func (v *eventView) describe() string {
	if v.Kind == kindMissed {
		return display.Count(int(v.Count), "event") + " came faster than this command read"
	}
	e := v.text()
	return e.Text()
}

// text is what v is described by.
func (v *eventView) text() display.Event {
	e := display.Event{
		At: v.Time, Kind: string(v.Kind), Name: v.Name, Token: v.Token, Shared: v.Shared, Permits: v.Permits, PID: int64(v.PID), User: v.User, Cmd: v.Cmd,
		Reason: protocol.Reason(v.Reason), RemoteField: v.RemoteField, RemoteHost: v.RemoteHost, Count: v.Count, Msg: v.Msg,
	}
	if v.WaitedMS != nil {
		e.Waited = ms(*v.WaitedMS)
	}
	if v.HeldMS != nil {
		e.Held = ms(*v.HeldMS)
	}
	return e
}

// isForce reports whether a kind is that of a release that was forced, or should have been.
func isForce(kind locksidecar.EventKind) bool {
	return kind == locksidecar.EventForced || kind == locksidecar.EventRefused
}
