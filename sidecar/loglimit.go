package sidecar

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/peers"
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

	// maxRequesters is how many clients have a line of their own about what was left out of them. One
	// more line has the rest.
	maxRequesters = 20
)

// lineUse says what a line is for, and so how many of its kind the log has in a window.
type lineUse uint8

const (
	// diagnosis: a line like the others of its kind. The log has maxLines of them.
	diagnosis lineUse = iota

	// audit: it says which client ended the hold of another one by force, or tried to. The log has
	// all of root and of the sidecar's user, and maxAuditLines of any other user, who could force
	// the release of his own locks to push the lines of others out of the log. The lines that are left
	// out are summed up by client.
	audit

	// auditByHost: the same, if another host asked. Any program that may publish in Redis can pretend
	// to be one, so the log has maxAuditLines of all of them.
	auditByHost
)

// isAudit reports whether a line says which client ended a hold by force, or tried to.
func (u lineUse) isAudit() bool { return u != diagnosis }

// requester is the client of an audit line, as far as it tells one client from another.
type requester struct {
	pid, uid int64 // uid of a client of another host; that of this host is the line's
	cmd      string
	host     string // of the client, if it is another host
	sidecar  string // the same
}

// args returns what a line says of the client.
func (r *requester) args() []any {
	if r.sidecar == "" {
		return []any{"pid", r.pid, "cmd", r.cmd}
	}
	return []any{"sidecar", r.sidecar, "by_pid", r.pid, "by_uid", r.uid, "by_cmd", r.cmd, "host", r.host}
}

type auditKey struct{}

// IsAudit reports whether a line of Config.Log says which client ended a hold by force, or tried to. A
// program that cannot write all lines leaves out others before these. privileged: that client is
// root or the sidecar's user; no other user can cause such a line.
func IsAudit(ctx context.Context) (is, privileged bool) {
	privileged, is = ctx.Value(auditKey{}).(bool)
	return is, privileged
}

// AuditContext marks a line for IsAudit.
func AuditContext(ctx context.Context, privileged bool) context.Context {
	return context.WithValue(ctx, auditKey{}, privileged)
}

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
	switch k.use {
	case audit:
		return peers.IsPrivileged(k.uid) || n <= maxAuditLines
	case auditByHost:
		return n <= maxAuditLines
	}
	return n <= maxLines
}

// context returns that of a line of this kind.
func (k *lineKind) context() context.Context {
	if !k.use.isAudit() {
		return context.Background()
	}
	return AuditContext(context.Background(), k.use == audit && peers.IsPrivileged(k.uid))
}

// lineCount counts the lines of one kind.
type lineCount struct {
	lines   int
	leftOut map[requester]*leftOut // by client; of other lines than those of an audit, all together
	others  *leftOut               // of the clients for which leftOut has no room; nil: there are none
	clients nameList               // what these are
}

// leftOut sums up lines that were left out.
type leftOut struct {
	lines int
	names nameList // of their locks
}

// add counts a line that is left out.
func (c *lineCount) add(by requester, lock string) {
	sum := c.leftOut[by]
	if sum == nil && len(c.leftOut) < maxRequesters {
		sum = new(leftOut)
		if c.leftOut == nil {
			c.leftOut = make(map[requester]*leftOut)
		}
		c.leftOut[by] = sum
	}
	if sum == nil {
		if c.others == nil {
			c.others = new(leftOut)
		}
		sum = c.others
		if by.sidecar == "" {
			c.clients.add(fmt.Sprintf("pid %d (%s)", by.pid, by.cmd))
		} else {
			c.clients.add(fmt.Sprintf("pid %d (%s) of uid %d on host %s, sidecar %s", by.pid, by.cmd, by.uid, by.host, by.sidecar))
		}
	}
	sum.lines++
	sum.names.add(lock)
}

// logAbout logs a line about a client of this user, and about a lock, unless lock is "", or there
// were many lines of its kind: those are summed up when the window ends. It reports whether the
// line is one of the first maxLines.
func (l *loop) logAbout(kind lineKind, lock string, args ...any) (isEarly bool) {
	return l.logLine(kind, requester{}, lock, args)
}

// logAudit is logAbout for an audit line, with the client that asked.
func (l *loop) logAudit(kind lineKind, by requester, lock string, args ...any) (isEarly bool) {
	return l.logLine(kind, by, lock, append(by.args(), args...))
}

func (l *loop) logLine(kind lineKind, by requester, lock string, args []any) (isEarly bool) {
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
		count.add(by, lock)
		return false
	}
	if lock != "" {
		args = append([]any{"lock", lock}, args...)
	}
	if kind.use != auditByHost {
		args = append(args, "uid", kind.uid)
	}
	l.log.Log(kind.context(), kind.level, kind.line, args...)
	return count.lines <= maxLines
}

// flushSuppressed ends the window and sums up the lines that were left out.
func (l *loop) flushSuppressed() {
	for kind, count := range l.logLimit.kinds {
		for by, sum := range count.leftOut {
			if kind.use.isAudit() {
				l.logSum(&kind, sum, by.args()...)
			} else {
				l.logSum(&kind, sum)
			}
		}
		if count.others != nil {
			l.logSum(&kind, count.others, "clients", count.clients.String())
		}
	}
	l.logLimit = logLimit{}
}

// logSum logs the sum of lines that were left out.
func (l *loop) logSum(kind *lineKind, sum *leftOut, by ...any) {
	args := []any{"line", kind.line, "about", kind.about}
	if kind.use != auditByHost {
		args = append(args, "uid", kind.uid)
	}
	args = append(append(args, by...), "lines", sum.lines)
	if text := sum.names.String(); text != "" {
		args = append(args, "locks", text)
	}
	l.log.Log(kind.context(), kind.level, "more lines like the last ones are left out", args...)
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
