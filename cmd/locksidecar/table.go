package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/locksidecar/locksidecar/internal/display"
)

// Least widths of a lock's name and of a command on a narrow terminal.
const (
	minName    = 16
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
				"  waiter " + strconv.Itoa(i+1), "", pid(w.PID), w.User, display.Duration(ms(w.WaitedMS)), "", "", w.Cmd,
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

func lockRow(l lockView) []string {
	row := []string{l.Name, string(l.State), "", "", "", "", "", ""}
	switch {
	case l.HeldMS != nil:
		switch {
		case l.Orphan && l.KeepLeftMS > 0:
			row[1] = "kept"
		case l.Orphan:
			row[1] = "orphan"
		case l.Absent:
			row[1] = "absent"
		}
		if l.Count > 1 {
			row[1] += fmt.Sprintf(" ×%d", l.Count)
		}
		user, cmd := l.holderOf()
		row[2], row[3], row[4] = pid(l.PID), user, display.Duration(ms(*l.HeldMS))
		row[5] = display.Duration(ms(*l.LeftMS))
		if l.LeaseMS > 0 {
			row[5] += " fixed"
		}
		row[6], row[7] = strconv.FormatUint(l.Token, 10), cmd
	case l.RemoteTTLMS != nil:
		row[5], row[7] = display.Expiry(ms(*l.RemoteTTLMS)), elsewhere(&l)
	}
	return row
}

// elsewhere describes the holder of a lock that this host does not have.
func elsewhere(l *lockView) string {
	if l.RemotePID == 0 {
		return display.Elsewhere(l.RemoteHost, l.RemoteField)
	}
	return fmt.Sprintf("held on host %s by pid %d (%s)", l.RemoteHost, l.RemotePID, l.RemoteCmd)
}

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
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+2))
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
