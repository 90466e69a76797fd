package sidecar

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A client can break the protocol, or lose locks, as often as it likes, and must not fill the
// disk with log lines. So the log has only the first lines of a kind about one user in a window of
// time, and at its end one line with the number of the others and the names of their locks.
const (
	maxLines      = 5
	maxAuditLines = 100
	window        = 10 * time.Second

	// maxSummary bounds the names in the line about those that were left out, in bytes.
	maxSummary = 4 << 10
)

// lineUse says what a line is for, and so how many of its kind the log has in a window.
type lineUse uint8

const (
	// diagnosis: a line like the others of its kind. The log has maxLines of them.
	diagnosis lineUse = iota

	// audit: it says which client ended the hold of another one by force, or tried to. The log has
	// all of root and of the sidecar's user, and maxAuditLines of any other user, who could force
	// the release of his own locks to push the lines of others out of the log.
	audit
)

// logLimit counts the lines about clients in the present window.
type logLimit struct {
	end   int64 // of the window; 0: there is none
	kinds map[lineKind]*lineCount
}

// lineKind identifies the lines that are counted together.
type lineKind struct {
	level slog.Level
	uid   int64
	line  string
	about string // an error code, or the reason why a hold ended
	use   lineUse
}

// hasRoom reports whether the log has the n-th line of this kind in a window.
func (k *lineKind) hasRoom(n int) bool {
	if k.use == audit {
		return isPrivileged(k.uid) || n <= maxAuditLines
	}
	return n <= maxLines
}

// lineCount counts the lines of one kind.
type lineCount struct {
	lines, leftOut int
	names          nameList // of the locks of those that were left out
}

// logAbout logs a line about a client of this user, and about a lock, unless lock is "", or there
// were many lines of its kind: those are summed up when the window ends. It reports whether the
// line is one of the first maxLines.
func (l *loop) logAbout(kind lineKind, lock string, args ...any) (isEarly bool) {
	limit := &l.logLimit
	if limit.end == 0 {
		limit.end, limit.kinds = protocol.Now()+int64(window), make(map[lineKind]*lineCount)
	}
	count := limit.kinds[kind]
	if count == nil {
		count = new(lineCount)
		limit.kinds[kind] = count
	}
	count.lines++
	if !kind.hasRoom(count.lines) {
		count.leftOut++
		count.names.add(lock)
		return false
	}
	if lock != "" {
		args = append([]any{"lock", lock}, args...)
	}
	l.log.Log(context.Background(), kind.level, kind.line, append(args, "uid", kind.uid)...)
	return count.lines <= maxLines
}

// flushSuppressed ends the window and sums up the lines that were left out.
func (l *loop) flushSuppressed() {
	for kind, count := range l.logLimit.kinds {
		if count.leftOut == 0 {
			continue
		}
		args := []any{"line", kind.line, "about", kind.about, "uid", kind.uid, "lines", count.leftOut}
		if text := count.names.String(); text != "" {
			args = append(args, "locks", text)
		}
		l.log.Log(context.Background(), kind.level, "more lines like the last ones are left out", args...)
	}
	l.logLimit = logLimit{}
}

// nameList has the names of locks, each once, as long as they have room in a line.
type nameList struct {
	text   strings.Builder
	known  map[string]struct{}
	noRoom bool // a name was left out
}

// add adds a name; "" is not one.
func (n *nameList) add(name string) {
	if _, isKnown := n.known[name]; name == "" || isKnown || n.noRoom {
		return
	}
	shown := name
	if strings.ContainsAny(name, ", \"") || strconv.Quote(name) != `"`+name+`"` {
		shown = strconv.Quote(name)
	}
	if n.noRoom = n.text.Len()+len(shown) > maxSummary; n.noRoom {
		return
	}
	if n.known == nil {
		n.known = make(map[string]struct{})
	}
	n.known[name] = struct{}{}
	if n.text.Len() > 0 {
		n.text.WriteString(", ")
	}
	n.text.WriteString(shown)
}

// String returns the names, and says if there were more of them.
func (n *nameList) String() string {
	if n.noRoom {
		return n.text.String() + ", and others"
	}
	return n.text.String()
}

// errorEpisodes has the time of the last occurrence of each error. An episode of an error ends
// when it has not occurred for a minute; only its first occurrence is logged.
type errorEpisodes map[string]time.Time

// begins reports whether this occurrence of an error begins an episode.
func (e errorEpisodes) begins(text string) bool {
	now := time.Now()
	last, occurred := e[text]
	e[text] = now
	return !occurred || now.Sub(last) > time.Minute
}
