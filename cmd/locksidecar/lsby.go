package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// What ls --by counts locks for.
const (
	byProcess = "process"
	byUser    = "user"
	byPattern = "name-pattern"
)

// shareView is what one process, one user or the names of one pattern hold and wait for, as ls --by --json
// prints it. The help of ls documents its field names, which do not change.
type shareView struct {
	Host    string `json:"host,omitempty"` // with --all, of a process or a user
	Pattern string `json:"pattern,omitempty"`
	PID     int    `json:"pid,omitempty"`
	UID     *int   `json:"uid,omitempty"`
	User    string `json:"user,omitempty"`
	Cmd     string `json:"cmd,omitempty"`

	Held       int    `json:"held"`
	Waiting    int    `json:"waiting"`
	HeldMS     int64  `json:"oldest_held_ms,omitempty"`
	OldestHeld string `json:"oldest_held,omitempty"` // its name
	WaitedMS   int64  `json:"oldest_waited_ms,omitempty"`
	OldestWait string `json:"oldest_wait,omitempty"` // its name
}

// holds adds holds of a lock, of which the oldest has this age; nil: it is not known.
func (s *shareView) holds(l *lockView, n int, heldMS *int64) {
	s.Held += n
	if heldMS != nil && (s.OldestHeld == "" || *heldMS > s.HeldMS) {
		s.HeldMS, s.OldestHeld = *heldMS, l.Name
	}
}

// waits adds waiters of a lock, of which the first has waited for so long.
func (s *shareView) waits(l *lockView, n int, waitedMS int64) {
	s.Waiting += n
	if s.OldestWait == "" || waitedMS > s.WaitedMS {
		s.WaitedMS, s.OldestWait = waitedMS, l.Name
	}
}

// shares collects a shareView for each process, user or pattern.
type shares struct {
	by    string
	index map[shareKey]int
	all   []shareView
}

// shareKey is what makes two locks count together.
type shareKey struct {
	host, pattern string
	session       uint64 // a process that was not seen has its session
	pid, uid      int
	cmd           string // of those that are not known
}

// noUID is the uid of the holders that are not known.
const noUID = -1

// unlistedHolder stands for the command of a process that the daemon does not name.
const unlistedHolder = "not known: not among the oldest 16 of its holds, or hidden by the policy"

// of returns the share of a process, or of its user.
func (s *shares) of(host string, session uint64, pid, uid int, user, cmd string) *shareView {
	key, v := shareKey{host: host, uid: uid}, shareView{Host: host, UID: &uid, User: user}
	if s.by == byProcess {
		key.pid, v.PID, v.Cmd = pid, pid, cmd
		if pid == 0 {
			key.session = session
		}
		if uid == noUID {
			key.cmd = cmd
		}
	}
	return s.at(key, v)
}

func (s *shares) at(key shareKey, v shareView) *shareView {
	i, found := s.index[key]
	if !found {
		i = len(s.all)
		s.index[key] = i
		s.all = append(s.all, v)
	}
	return &s.all[i]
}

// add counts the locks of a host; "": this one.
func (s *shares) add(host string, locks []lockView) {
	for i := range locks {
		l := &locks[i]
		if l.HeldMS == nil && len(l.Waiters) == 0 {
			continue // it is held elsewhere, or lingers
		}
		if s.by == byPattern {
			pattern := patternOf(l.Name)
			share := s.at(shareKey{pattern: pattern}, shareView{Pattern: pattern})
			if l.HeldMS != nil {
				share.holds(l, l.held(), l.HeldMS)
			}
			if len(l.Waiters) > 0 {
				share.waits(l, l.Waiting, l.Waiters[0].WaitedMS)
			}
			continue
		}
		if l.HeldMS != nil && l.state() != stateKept { // which no process holds
			s.addHolders(host, l)
		}
		for _, w := range l.Waiters {
			s.of(host, w.Session, w.PID, w.UID, w.User, w.Cmd).waits(l, 1, w.WaitedMS)
		}
	}
}

// addHolders counts the holds of a lock for their processes.
func (s *shares) addHolders(host string, l *lockView) {
	holders := l.holders()
	for i := range holders {
		h := &holders[i]
		s.of(host, h.Session, h.PID, h.UID, h.User, h.Cmd).holds(l, 1, &h.HeldMS)
	}
	if more := l.held() - len(holders); more > 0 {
		why, oldest := unlistedHolder, l.HeldMS
		if l.Kind == locksidecar.KindLock {
			why = hiddenHolder
		}
		if !l.isHidden {
			oldest = nil // it is that of a holder that is known
		}
		s.of(host, 0, 0, noUID, "?", why).holds(l, more, oldest)
	}
}

// sorted returns the shares, those with the most holds first.
func (s *shares) sorted() []shareView {
	slices.SortStableFunc(s.all, func(a, b shareView) int {
		return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.HeldMS, a.HeldMS),
			cmp.Compare(a.Pattern, b.Pattern), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID))
	})
	return s.all
}

// patternOf returns the pattern of names like this one: up to its first colon, slash or digit, and a star. A name
// without one of these is its own pattern.
func patternOf(name string) string {
	i := strings.IndexFunc(name, func(r rune) bool { return r == ':' || r == '/' || r >= '0' && r <= '9' })
	switch {
	case i < 0:
		return name
	case name[i] == ':' || name[i] == '/':
		i++
	}
	return name[:i] + "*"
}

// printShares prints the shares of the locks of hosts. The hosts that did not answer have none.
func (c *lsCmd) printShares(out io.Writer, hosts []hostView) error {
	s := shares{by: c.By, index: make(map[shareKey]int), all: []shareView{}}
	for i := range hosts {
		s.add(hosts[i].Host, hosts[i].Locks)
	}
	all := s.sorted()
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	var silent []string
	for i := range hosts {
		if hosts[i].Error != "" {
			silent = append(silent, display.Printable(hosts[i].Host)+" ("+display.Printable(hosts[i].Error)+")")
		}
	}
	text := "no process holds a lock or waits for one\n"
	if len(all) > 0 {
		text = shareTable(all, c.By, c.All, width(out))
	}
	if len(silent) > 0 {
		text += fmt.Sprintf("\nnot counted, because they did not answer: %s\n", strings.Join(silent, ", "))
	}
	_, err := io.WriteString(out, text)
	return err
}

// shareTable renders shares for a terminal of the given width; 0: nothing is cut.
func shareTable(all []shareView, by string, hosts bool, width int) string {
	header := []string{"HELD", "WAITING", "OLDEST HOLD", "OLDEST WAIT"}
	switch by {
	case byProcess:
		header = append([]string{"PID", "USER"}, append(header, "COMMAND")...)
	case byUser:
		header = append([]string{"USER"}, append(header, "OLDEST LOCK")...)
	case byPattern:
		header = append([]string{"NAMES"}, append(header, "OLDEST LOCK")...)
	}
	withHost := hosts && by != byPattern
	if withHost {
		header = append([]string{"HOST"}, header...)
	}
	rows := [][]string{header}
	for i := range all {
		s := &all[i]
		var row []string
		if withHost {
			row = append(row, s.Host)
		}
		last := cmp.Or(s.OldestHeld, s.OldestWait)
		switch by {
		case byProcess:
			row, last = append(row, pid(s.PID), display.Shown(s.User)), s.Cmd
		case byUser:
			row = append(row, display.Shown(s.User))
		case byPattern:
			row = append(row, s.Pattern)
		}
		row = append(row, strconv.Itoa(s.Held), strconv.Itoa(s.Waiting), "", "", last)
		if s.OldestHeld != "" {
			row[len(row)-3] = display.Duration(ms(s.HeldMS))
		}
		if s.OldestWait != "" {
			row[len(row)-2] = display.Duration(ms(s.WaitedMS))
		}
		rows = append(rows, row)
	}
	return alignRows(rows, width)
}
