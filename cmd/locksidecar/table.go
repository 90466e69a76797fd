package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// Least widths of a lock's name and of a command on a narrow terminal.
const (
	minName    = 12
	minCommand = 24
)

var lockHeader = []string{"LOCK", "STATE", "PID", "USER", "FOR", "LEFT", "TOKEN", "COMMAND"}

// lockTable renders locks for a terminal of the given width; 0: nothing is cut. The command
// is the last column, because it is the one that is cut first.
func lockTable(locks []lockView, width int) string {
	rows := [][]string{lockHeader}
	for _, l := range locks {
		rows = append(rows, lockRow(l))
		for i, w := range l.Waiters {
			rows = append(rows, []string{
				"  waiter " + strconv.Itoa(i+1), "", pid(w.PID), display.Shown(w.User), display.Duration(ms(w.WaitedMS)), "", "", before(wants(w.Permits, w.Shared), w.Cmd),
			})
		}
		if more := l.Waiting - len(l.Waiters); more > 0 {
			rows = append(rows, []string{fmt.Sprintf("  … %d more", more), "", "", "", "", "", "", ""})
		}
	}
	return alignRows(rows, width) + absentNote(locks)
}

// absentNote explains the state absent, below a table with such locks.
func absentNote(locks []lockView) string {
	var last *lockView // the one that is renewed for the longest time
	for i := range locks {
		if l := &locks[i]; l.Absent && !l.Orphan && (last == nil || l.AbsentLeft > last.AbsentLeft) {
			last = l
		}
	}
	if last == nil {
		return ""
	}
	return "\nabsent: " + absence(last) + "; locksidecar who NAME says how to end it\n"
}

// absence says since when the process of a hold is absent, and until when it is renewed.
func absence(l *lockView) string {
	text := "the process lives and has not come back since the daemon was restarted"
	if l.AbsentMS > 0 {
		text += ", " + display.Duration(ms(l.AbsentMS)) + " ago"
	}
	switch {
	case l.LeaseMS > 0:
		return text + "; the lock ends with its lease"
	case l.AbsentLeft > 0:
		return text + "; the lock is renewed for another " + display.Duration(ms(l.AbsentLeft))
	case l.AbsentMS > 0: // or else the daemon is older, and does not say it
		text += "; the lock is not renewed any more"
	}
	return text
}

// state returns the word for the state of a lock, which the help of ls explains.
func state(l *locksidecar.LockInfo) string {
	return stateOf(l.State, l.Orphan, l.Absent, l.KeepLeft > 0)
}

func (l *lockView) state() string { return stateOf(l.State, l.Orphan, l.Absent, l.KeepLeftMS > 0) }

func stateOf(state locksidecar.LockState, isOrphan, isAbsent, hasKeep bool) string {
	switch {
	case state != locksidecar.LockHeld:
		return string(state)
	case isOrphan && hasKeep:
		return stateKept
	case isOrphan:
		return "orphan"
	case isAbsent:
		return "absent"
	}
	return string(state)
}

// shownState returns what the column STATE has of a lock.
func (l *lockView) shownState() string {
	switch {
	case l.Kind == locksidecar.KindPermits:
		return display.Permits(*l.Permits, l.Of)
	case l.Shared > 0:
		return display.Readers(l.Shared)
	case l.Kind != locksidecar.KindLock && l.Kind != locksidecar.KindReadWrite: // of a later sidecar
		return string(l.Kind) + ", " + l.state()
	case l.Count > 1:
		return fmt.Sprintf("%s ×%d", l.state(), l.Count)
	}
	return l.state()
}

// stateKept is the state of a lock that no process holds any more, and that stays held for its keep.
const stateKept = "kept"

// keptCommand stands for the command of a lock that is kept: its process has released it, or is gone.
const keptCommand = "released; its --keep lasts"

func lockRow(l lockView) []string {
	row := []string{l.Name, l.shownState(), "", "", "", "", "", ""}
	switch {
	case l.HeldMS != nil:
		process := pid(l.PID)
		user, cmd := l.holderOf()
		if l.state() == stateKept {
			process, cmd = "", keptCommand
		}
		row[2], row[3], row[4] = process, display.Shown(user), display.Duration(ms(*l.HeldMS))
		row[5] = display.Duration(ms(*l.LeftMS))
		if l.LeaseMS > 0 {
			row[5] += " fixed"
		}
		row[6], row[7] = strconv.FormatUint(l.Token, 10), before(l.has(), cmd)
	case l.RemoteTTLMS != nil:
		if row[7] = elsewhere(&l); row[7] != display.TooFewPermits { // or else the holds of other hosts have their own leases
			row[5] = display.Expiry(ms(*l.RemoteTTLMS))
		}
	}
	return row
}

// elsewhere describes the holder of a lock that this host does not have.
func elsewhere(l *lockView) string {
	if l.isKeptThere {
		return fmt.Sprintf("kept on host %s: %s", l.RemoteHost, keptCommand)
	}
	if l.RemotePID == 0 {
		return remoteHolder(l.Kind, l.RemoteHost, l.RemoteField)
	}
	return fmt.Sprintf("held on host %s by pid %d (%s)", l.RemoteHost, l.RemotePID, l.RemoteCmd)
}

// toTheRight are the columns of numbers and times, by their headers.
var toTheRight = map[string]bool{
	"PID": true, "FOR": true, "TOKEN": true, "HELD": true, "WAITING": true, "WAITERS": true, "WTRS": true, "WAIT": true,
	"CHANGES/S": true, "CHG/S": true, "UP": true, "OLDEST HOLD": true, "OLDEST WAIT": true, "SLOTS": true, "UNSENT": true,
}

// alignRows renders a table for a terminal of the given width; 0: nothing is cut. The first row is its header.
func alignRows(rows [][]string, width int) string {
	last := len(rows[0]) - 1
	widths := make([]int, last+1)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = display.Printable(cell)
			widths[i] = max(widths[i], ansi.StringWidth(row[i]))
		}
	}
	if width > 0 {
		// Names are shortened so that minCommand columns are left for the command.
		fixed := 0
		for _, w := range widths[1:last] {
			fixed += w + 2
		}
		widths[0] = min(widths[0], max(minName, width-fixed-2-minCommand))
	}
	var out strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row[:last] {
			cell = cut(cell, widths[i])
			space := strings.Repeat(" ", widths[i]-ansi.StringWidth(cell))
			if toTheRight[rows[0][i]] {
				line.WriteString(space + cell + "  ")
			} else {
				line.WriteString(cell + space + "  ")
			}
		}
		line.WriteString(row[last])
		text := line.String()
		if width > 0 {
			text = cut(text, width)
		}
		out.WriteString(strings.TrimRight(text, " "))
		out.WriteByte('\n')
	}
	return out.String()
}

// cut shortens a printable text to so many columns of a terminal. A wide character has two.
func cut(s string, width int) string { return ansi.Truncate(s, max(0, width), "…") }

func pid(n int) string {
	if n == 0 {
		return "?"
	}
	return strconv.Itoa(n)
}

// ms converts a number of milliseconds, as the JSON output has them.
func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
