package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type hostsCmd struct {
	socketFlag
	JSON bool `help:"Print a JSON array."`
}

func (hostsCmd) Help() string {
	return `Prints a line for each daemon that uses the same Redis with the same key prefix: its version and the commit that it was
built from, since when it runs, its locks, the oldest waiter, and what is wrong. Those in trouble come first. It asks the
daemons through Redis, many at one time, for half a second each. A host is listed until three minutes after the end of its
daemon.

STATE is

    silent     the daemon did not answer: it has ended or hangs, its host is overloaded, or other_hosts is none there
    trouble    clients cannot connect, or a restart would lose all holds
    down       it cannot use its Redis
    degraded   its Redis refuses what locks need
    risk       it serves, and something endangers locks: locksidecar status on that host has it
    ok         none of these

Example:

    locksidecar hosts

Fields of --json; those in brackets are absent where they do not apply:

    host, sidecar, version, pid, started, state, [why]
    [build, redis ("ok", or a sentence), sessions, held, waiting, oldest_wait_ms, oldest_hold_ms: if it answered]

` + exitTable
}

// hostStates are the states of hosts, the worst first.
var hostStates = []string{"silent", "trouble", "down", "degraded", "risk", "ok"}

// fleetView is a host as hosts --json prints it. The help documents its field names, which do not change.
type fleetView struct {
	Host    string    `json:"host"`
	Sidecar string    `json:"sidecar"`
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	State   string    `json:"state"`
	Why     string    `json:"why,omitempty"`

	*fleetStatus
}

// fleetStatus is what a host answered.
type fleetStatus struct {
	Build      string `json:"build,omitempty"`
	Redis      string `json:"redis"`
	Sessions   int    `json:"sessions"`
	Held       int    `json:"held"`
	Waiting    int    `json:"waiting"`
	OldestWait int64  `json:"oldest_wait_ms,omitempty"`
	OldestHold int64  `json:"oldest_hold_ms,omitempty"`
}

// viewHost shows a host and its status, or why that is not known.
func viewHost(h *locksidecar.HostInfo, s *locksidecar.Status, err error) fleetView {
	v := fleetView{Host: h.Host, Sidecar: h.Sidecar, Version: h.Version, PID: h.PID, Started: h.Started.UTC(), State: "ok"}
	if err != nil {
		v.State, v.Why = "silent", silence(h, err)
		return v
	}
	v.Version = s.Version
	v.fleetStatus = &fleetStatus{Build: s.Build, Redis: s.Redis, Sessions: s.Sessions, Held: s.Held, Waiting: s.Waiting}
	if o := s.OldestWaiter; o != nil {
		v.OldestWait = o.Age.Milliseconds()
	}
	if o := s.OldestHold; o != nil {
		v.OldestHold = o.Age.Milliseconds()
	}
	switch {
	case s.Trouble != "":
		v.State, v.Why = "trouble", s.Trouble
	case s.Degraded:
		v.State, v.Why = "degraded", s.Redis
	case s.Redis != "ok":
		v.State, v.Why = "down", s.Redis
	case s.RedisRisk != "":
		v.State, v.Why = "risk", s.RedisRisk
	}
	return v
}

func (c *hostsCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, sidecar, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	rows, err := sidecar.Hosts(ctx)
	if err != nil {
		return err
	}
	hosts := make([]fleetView, len(rows))
	failed := make([]error, len(rows))
	forEach(len(rows), func(i int) {
		status, err := sidecar.StatusOn(ctx, rows[i].Sidecar)
		hosts[i], failed[i] = viewHost(&rows[i], &status, err), err
	})
	for _, err := range failed {
		switch {
		case errors.Is(err, locksidecar.ErrUnsupported):
			return fmt.Errorf("the daemon of this host is older than this command: upgrade it and restart it, or ask on another host: %w", err)
		case errors.Is(err, locksidecar.ErrDenied):
			return err
		}
	}
	slices.SortFunc(hosts, func(a, b fleetView) int {
		return cmp.Or(slices.Index(hostStates, a.State)-slices.Index(hostStates, b.State), strings.Compare(a.Host, b.Host), strings.Compare(a.Sidecar, b.Sidecar))
	})
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(hosts)
	}
	_, err = io.WriteString(out, fleetTable(hosts, width(out), time.Now()))
	return err
}

// fleetTable renders hosts for a terminal of the given width; 0: nothing is cut.
func fleetTable(hosts []fleetView, width int, now time.Time) string {
	rows := [][]string{{"HOST", "STATE", "VERSION", "UP", "HELD", "WAITING", "OLDEST WAIT", "WHY"}}
	for i := range hosts {
		h := &hosts[i]
		row := []string{h.Host, h.State, h.Version, "", "", "", "", h.Why}
		if s := h.fleetStatus; s != nil {
			if s.Build != "" {
				row[2] += " " + s.Build
			}
			row[3], row[4], row[5] = display.Duration(max(0, now.Sub(h.Started))), strconv.Itoa(s.Held), strconv.Itoa(s.Waiting)
			if s.OldestWait > 0 {
				row[6] = display.Duration(ms(s.OldestWait))
			}
		}
		rows = append(rows, row)
	}
	return alignRows(rows, width)
}
