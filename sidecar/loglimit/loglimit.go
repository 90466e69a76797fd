// Package loglimit bounds what clients can have logged.
package loglimit

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
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

// use says what a line is for, and so how many of its kind the log has in a window.
type use uint8

const (
	// diagnosis: a line like the others of its kind. The log has maxLines of them.
	diagnosis use = iota

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
func (u use) isAudit() bool { return u != diagnosis }

// Requester is the client of an audit line, as far as it tells one client from another.
type Requester struct {
	PID, UID int64 // UID of a client of another host; that of this host is the line's
	Cmd      string
	Host     string // of the client, if it is another host
	Sidecar  string // the same
}

// Args returns what a line says of the client.
func (r *Requester) Args() []any {
	if r.Sidecar == "" {
		return []any{"pid", r.PID, "cmd", r.Cmd}
	}
	return []any{"sidecar", r.Sidecar, "by_pid", r.PID, "by_uid", r.UID, "by_cmd", r.Cmd, "host", r.Host}
}

type auditKey struct{}

// IsAudit reports whether a line of the log says which client ended a hold by force, or tried to. A
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

// Log counts the lines about clients in the present window. Its methods are called by one goroutine at
// a time.
type Log struct {
	log          *slog.Logger
	isPrivileged func(uid int64) bool

	end   int64 // of the window; 0: there is none
	kinds map[key]*count
}

// New makes a log. isPrivileged: a user is root or the sidecar's.
func New(log *slog.Logger, isPrivileged func(uid int64) bool) *Log {
	return &Log{log: log, isPrivileged: isPrivileged}
}

// Kind identifies the lines that are counted together.
type Kind struct {
	Level slog.Level
	UID   int64
	Line  string
	About string // an error code, or the reason why a hold ended
}

// Warn returns a kind of lines about a user.
func Warn(uid int64, line, about string) Kind { return Kind{slog.LevelWarn, uid, line, about} }

// Info returns a kind of lines about a user.
func Info(uid int64, line, about string) Kind { return Kind{slog.LevelInfo, uid, line, about} }

// key identifies a count.
type key struct {
	Kind
	use use
}

// hasRoom reports whether the log has the n-th line of this kind in a window.
func (l *Log) hasRoom(k *key, n int) bool {
	switch k.use {
	case audit:
		return l.isPrivileged(k.UID) || n <= maxAuditLines
	case auditByHost:
		return n <= maxAuditLines
	}
	return n <= maxLines
}

// context returns that of a line of this kind.
func (l *Log) context(k *key) context.Context {
	if !k.use.isAudit() {
		return context.Background()
	}
	return AuditContext(context.Background(), k.use == audit && l.isPrivileged(k.UID))
}

// count counts the lines of one kind.
type count struct {
	lines   int
	leftOut map[Requester]*leftOut // by client; of other lines than those of an audit, all together
	others  *leftOut               // of the clients for which leftOut has no room; nil: there are none
	clients Names                  // what these are
}

// leftOut sums up lines that were left out.
type leftOut struct {
	lines int
	names Names // of their locks
}

// add counts a line that is left out.
func (c *count) add(by Requester, lock string) {
	sum := c.leftOut[by]
	if sum == nil && len(c.leftOut) < maxRequesters {
		sum = new(leftOut)
		if c.leftOut == nil {
			c.leftOut = make(map[Requester]*leftOut)
		}
		c.leftOut[by] = sum
	}
	if sum == nil {
		if c.others == nil {
			c.others = new(leftOut)
		}
		sum = c.others
		if by.Sidecar == "" {
			c.clients.Add(fmt.Sprintf("pid %d (%s)", by.PID, by.Cmd))
		} else {
			c.clients.Add(fmt.Sprintf("pid %d (%s) of uid %d on host %s, sidecar %s", by.PID, by.Cmd, by.UID, by.Host, by.Sidecar))
		}
	}
	sum.lines++
	sum.names.Add(lock)
}

// About logs a line about a client of this user, and about a lock, unless lock is "", or there
// were many lines of its kind: those are summed up when the window ends. It reports whether the
// line is one of the first maxLines.
func (l *Log) About(now int64, kind Kind, lock string, args ...any) (isEarly bool) {
	return l.line(now, key{kind, diagnosis}, Requester{}, lock, args)
}

// Audit is About for a line that says which client of this host ended a hold by force, or tried to.
func (l *Log) Audit(now int64, kind Kind, by Requester, lock string, args ...any) (isEarly bool) {
	return l.line(now, key{kind, audit}, by, lock, append(by.Args(), args...))
}

// AuditByHost is Audit for a client of another host.
func (l *Log) AuditByHost(now int64, kind Kind, by Requester, lock string, args ...any) (isEarly bool) {
	return l.line(now, key{kind, auditByHost}, by, lock, append(by.Args(), args...))
}

func (l *Log) line(now int64, k key, by Requester, lock string, args []any) (isEarly bool) {
	if l.end == 0 {
		l.end, l.kinds = now+int64(window), make(map[key]*count)
	}
	c := l.kinds[k]
	if c == nil {
		c = new(count)
		l.kinds[k] = c
	}
	c.lines++
	if !l.hasRoom(&k, c.lines) {
		c.add(by, lock)
		return false
	}
	if lock != "" {
		args = append([]any{"lock", lock}, args...)
	}
	if k.use != auditByHost {
		args = append(args, "uid", k.UID)
	}
	l.log.Log(l.context(&k), k.Level, k.Line, args...)
	return c.lines <= maxLines
}

// WindowEnd is when Flush is due; 0: nothing was logged since the last one.
func (l *Log) WindowEnd() int64 { return l.end }

// Flush ends the window and sums up the lines that were left out.
func (l *Log) Flush() {
	for k, c := range l.kinds {
		for by, sum := range c.leftOut {
			if k.use.isAudit() {
				l.sum(&k, sum, by.Args()...)
			} else {
				l.sum(&k, sum)
			}
		}
		if c.others != nil {
			l.sum(&k, c.others, "clients", c.clients.String())
		}
	}
	l.end, l.kinds = 0, nil
}

// sum logs the sum of lines that were left out.
func (l *Log) sum(k *key, of *leftOut, by ...any) {
	args := []any{"line", k.Line, "about", k.About}
	if k.use != auditByHost {
		args = append(args, "uid", k.UID)
	}
	args = append(append(args, by...), "lines", of.lines)
	if text := of.names.String(); text != "" {
		args = append(args, "locks", text)
	}
	l.log.Log(l.context(k), k.Level, "more lines like the last ones are left out", args...)
}

// Names has the names of locks, each once, as long as they have room in a line.
type Names struct {
	text   strings.Builder
	known  map[string]struct{}
	noRoom bool // a name was left out
}

// Add adds a name; "" is not one. It reports whether there may be room for more.
func (n *Names) Add(name string) bool {
	if _, isKnown := n.known[name]; name == "" || isKnown || n.noRoom {
		return !n.noRoom
	}
	shown := name
	if strings.ContainsAny(name, ", \"") || strconv.Quote(name) != `"`+name+`"` {
		shown = strconv.Quote(name)
	}
	if n.noRoom = n.text.Len()+len(shown) > maxSummary; n.noRoom {
		return false
	}
	if n.known == nil {
		n.known = make(map[string]struct{})
	}
	n.known[name] = struct{}{}
	if n.text.Len() > 0 {
		n.text.WriteString(", ")
	}
	n.text.WriteString(shown)
	return true
}

// String returns the names, and says if there were more of them.
func (n *Names) String() string {
	if n.noRoom {
		return n.text.String() + ", and others"
	}
	return n.text.String()
}

// Episodes has the time of the last occurrence of each error. An episode of an error ends when it has
// not occurred for a minute; only its first occurrence is logged.
type Episodes map[string]time.Time

// Begins reports whether this occurrence of an error begins an episode.
func (e Episodes) Begins(now time.Time, text string) bool {
	last, occurred := e[text]
	e[text] = now
	return !occurred || now.Sub(last) > time.Minute
}
