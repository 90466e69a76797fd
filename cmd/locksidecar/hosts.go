package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

const (
	// holdersTimeout bounds how long ls asks other hosts for the processes that hold locks.
	holdersTimeout = time.Second

	// maxHolders is for how many locks it asks them.
	maxHolders = 256

	// hostsAtOnce is how many hosts are asked at one time: as many as a sidecar asks for one connection.
	hostsAtOnce = 64
)

// forEach calls do for the numbers below n, hostsAtOnce of them at one time, and returns when all calls have.
func forEach(n int, do func(i int)) {
	var calls sync.WaitGroup
	room := make(chan struct{}, hostsAtOnce)
	for i := range n {
		room <- struct{}{}
		calls.Go(func() {
			do(i)
			<-room
		})
	}
	calls.Wait()
}

// findHolders adds the processes that hold remote locks, as the sidecars of their hosts report
// them. A sidecar that does not answer is not asked again.
func findHolders(ctx context.Context, sidecar *locksidecar.Client, locks []lockView) {
	ctx, cancel := context.WithTimeout(ctx, holdersTimeout)
	defer cancel()
	byHost := make(map[string][]*lockView)
	asked := 0
	for i := range locks {
		if l := &locks[i]; l.RemoteHost != "" && asked < maxHolders {
			asked++
			id, _, _ := strings.Cut(l.RemoteField, ":")
			byHost[id] = append(byHost[id], l)
		}
	}
	ids := slices.Collect(maps.Keys(byHost))
	forEach(len(ids), func(i int) {
		for _, l := range byHost[ids[i]] {
			row, known, err := sidecar.InfoOn(ctx, ids[i], l.Name)
			if err != nil {
				return
			}
			switch {
			case known && state(&row) == stateKept:
				l.isKeptThere = true
			case known && row.State == locksidecar.LockHeld:
				l.RemotePID, l.RemoteCmd = row.PID, row.Cmd
			}
		}
	})
}

// hostView is a host as ls --all --json prints it. The help of ls documents its field names,
// which do not change.
type hostView struct {
	Host    string     `json:"host"`
	Sidecar string     `json:"sidecar"`
	Version string     `json:"version"`
	PID     int        `json:"pid"`
	Started time.Time  `json:"started"`
	Error   string     `json:"error,omitempty"`
	Locks   []lockView `json:"locks"`
}

// hostLocks is what a host answered.
type hostLocks struct {
	locksidecar.HostInfo
	locks []locksidecar.LockInfo
	at    time.Time // when it was asked
	err   error     // nothing is known of its locks
}

// askHosts asks every host for its locks, within the time that ctx has.
func askHosts(ctx context.Context, sidecar *locksidecar.Client) ([]hostLocks, error) {
	rows, err := sidecar.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b locksidecar.HostInfo) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.Sidecar, b.Sidecar))
	})
	hosts := make([]hostLocks, len(rows))
	forEach(len(rows), func(i int) {
		h := hostLocks{HostInfo: rows[i], at: time.Now()}
		if h.locks, h.err = sidecar.ListOn(ctx, h.Sidecar); h.err != nil && ctx.Err() != nil {
			h.err = fmt.Errorf("not asked: all hosts together took longer than %v", requestTimeout)
		}
		hosts[i] = h
	})
	return hosts, nil
}

// silence says why a host did not answer. It was asked by the uuid of its sidecar, because two hosts may have one name.
func silence(h *locksidecar.HostInfo, err error) string {
	text := err.Error()
	if _, why, found := strings.Cut(text, "host "+h.Sidecar+": "); found {
		text = why
	}
	return strings.ReplaceAll(strings.TrimPrefix(text, programName), "host "+h.Sidecar, "host "+h.Host)
}

// listHosts prints every host with its locks.
func (c *lsCmd) listHosts(ctx context.Context, sidecar *locksidecar.Client, out io.Writer) error {
	asked, err := askHosts(ctx, sidecar)
	if err != nil {
		return err
	}
	hosts := make([]hostView, 0, len(asked))
	for i := range asked {
		h := &asked[i]
		v := hostView{Host: h.Host, Sidecar: h.Sidecar, Version: h.Version, PID: h.PID, Started: h.Started.UTC(), Locks: []lockView{}}
		if h.err != nil {
			v.Error = silence(&h.HostInfo, h.err)
		} else {
			v.Locks = viewLocks(h.locks, c.filter(), nil)
		}
		hosts = append(hosts, v)
	}
	if c.By != "" {
		return c.printShares(out, hosts)
	}
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(hosts)
	}
	if len(hosts) == 0 {
		_, err = fmt.Fprintln(out, "no hosts: none has published its name")
		return err
	}
	_, err = io.WriteString(out, hostTables(hosts, width(out), time.Now()))
	return err
}

// hostTables renders hosts, each with its locks.
func hostTables(hosts []hostView, width int, now time.Time) string {
	var text strings.Builder
	for i := range hosts {
		h := &hosts[i]
		if i > 0 {
			text.WriteByte('\n')
		}
		fmt.Fprintf(&text, "HOST %s: locksidecar %s, pid %s, for %s, uuid %s\n", display.Printable(h.Host), display.Printable(h.Version), pid(h.PID), display.Duration(max(0, now.Sub(h.Started))), display.Printable(h.Sidecar))
		switch {
		case h.Error != "":
			text.WriteString("no answer: " + display.Printable(h.Error) + "\n")
		case len(h.Locks) == 0:
			text.WriteString("no locks\n")
		default:
			text.WriteString(lockTable(h.Locks, width))
		}
	}
	return text.String()
}
