package sim

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// tracer collects what happens in a world, for people.
type tracer struct {
	on    bool
	lines []TraceLine
}

// TraceLine is one event of a run.
type TraceLine struct {
	Text string

	name int // of the lock that it is about; -1: of no one lock
}

// IsAbout reports whether the line may have to do with the lock of a violation.
func (l *TraceLine) IsAbout(v *Violation) bool { return v.name < 0 || l.name < 0 || l.name == v.name }

func (t *tracer) add(w *world, name int, h *host, format string, args ...any) {
	where := "     "
	if h != nil {
		where = fmt.Sprintf("host%d", h.index)
	}
	text := fmt.Sprintf("%7d %s %s %-6s  %s", w.steps, clockString(w.now), where, nameString(name), fmt.Sprintf(format, args...))
	t.lines = append(t.lines, TraceLine{text, name})
}

func (t *tracer) effect(w *world, h *host, e *locktable.Effect) {
	name := -1
	if e.Name != "" {
		name = nameIndex(e.Name)
	}
	if slot := slotOf(e.Session); slot < len(h.sessions) && name < 0 {
		for i := range h.sessions[slot].requests {
			if h.sessions[slot].requests[i].id == e.ID {
				name = int(h.sessions[slot].requests[i].name)
			}
		}
	}
	switch e.Kind {
	case locktable.Granted:
		t.add(w, name, h, "  → s%d granted id=%d hold=%d token=%d count=%d until %s", e.Session, e.ID, e.Hold, e.Token, e.Count, clockString(h.worldTime(e.Deadline)))
	case locktable.Released:
		t.add(w, name, h, "  → s%d released id=%d count=%d", e.Session, e.ID, e.Count)
	case locktable.Downgraded:
		t.add(w, name, h, "  → s%d downgraded id=%d hold=%d", e.Session, e.ID, e.Hold)
	case locktable.Refusal:
		t.add(w, name, h, "  → s%d refused id=%d %s: %s", e.Session, e.ID, e.Code, e.Msg)
	case locktable.Canceled:
		t.add(w, name, h, "  → s%d canceled id=%d %v", e.Session, e.ID, e.WasWaiting)
	case locktable.Forced:
		t.add(w, name, h, "  → s%d forced id=%d hold=%d", e.Session, e.ID, e.Hold)
	case locktable.Lost:
		t.add(w, name, h, "  → s%d lost hold=%d %s", e.Session, e.Hold, e.Reason)
	case locktable.KeepLost:
		t.add(w, name, h, "  → keep of hold=%d lost: %s", e.Hold, e.Reason)
	case locktable.Claimed:
		t.add(w, -1, h, "  → s%d claimed id=%d last=%v", e.Session, e.ID, e.IsLast)
	case locktable.Lease:
		t.add(w, -1, h, "  → s%d lease until %s", e.Session, clockString(h.worldTime(e.Deadline)))
	case locktable.Redis:
		t.add(w, nameIndex(e.Op.Name), h, "  → %s", opString(e.Op))
	case locktable.Subscribe:
		t.add(w, name, h, "  → subscribe")
	case locktable.Unsubscribe:
		t.add(w, name, h, "  → unsubscribe")
	}
}

// printLocks appends what each host has of a lock.
func (w *world) printLocks(lines []TraceLine, name int) []TraceLine {
	if !w.trace.on || name < 0 {
		return lines
	}
	for _, h := range w.hosts {
		for line := range strings.Lines(h.table.Text(h.clock(w.now), lockNames[name])) {
			lines = append(lines, TraceLine{fmt.Sprintf("host%d has %s  %s", h.index, lockNames[name], strings.TrimRight(line, "\n")), name})
		}
	}
	return lines
}

func clockString(t int64) string {
	if t >= 1<<62 {
		return "forever"
	}
	return fmt.Sprintf("%.6fs", float64(t)/float64(sec))
}

func nameString(n int) string {
	if n < 0 {
		return "-"
	}
	return lockNames[n]
}

// ownerFields has an owner field for each host and each Redisson client.
var ownerFields = func() (s [maxHosts + 2]string) {
	for i := range s {
		s[i] = fmt.Sprintf("uuid-%d:1", i)
	}
	return s
}()

func ownerField(owner redis.Owner) string {
	if owner >= firstRedisson {
		return ownerFields[maxHosts+int(owner-firstRedisson)]
	}
	return ownerFields[owner]
}

func opString(op redisop.Op) string {
	switch op.Kind {
	case redisop.Take:
		held := ""
		if op.Has(redisop.RequireExisting) {
			held = " held"
		}
		if op.Has(redisop.Enqueue) {
			held += fmt.Sprintf(" enqueue ticket=%d", op.Ticket)
		}
		if op.Has(redisop.InOrder) {
			held += fmt.Sprintf(" in order arrived=%d", op.Arrived)
		}
		if op.Want > 0 {
			held += fmt.Sprintf(" want=%d×%d of %d", op.Times, op.Want, op.Capacity)
		}
		if op.Has(redisop.Yields) {
			held += " yields"
		}
		return fmt.Sprintf("take%s num=%d count=%d lease=%dms reserve=%d", held, op.HoldID, op.Count, op.LeaseMS, op.Reserve)
	case redisop.Renew:
		return fmt.Sprintf("renew num=%d count=%d lease=%dms", op.HoldID, op.Count, op.LeaseMS)
	case redisop.Check:
		return fmt.Sprintf("check num=%d", op.HoldID)
	case redisop.Arrive:
		return "arrive"
	case redisop.Drop:
		return fmt.Sprintf("drop num=%d ticket=%d passed=%dms", op.HoldID, op.Ticket, op.PassedMS)
	}
	return fmt.Sprintf("op %d", op.Kind)
}

func resultString(r redisop.Result) string {
	what := [...]string{"done", "other", "missing", "differs", "not a lock", "unsent", "unknown", "refused", "busy", "not synced"}[r.Outcome]
	if r.Outcome <= redisop.HeldByOther && r.Listeners.State != redisop.Uncounted {
		what += fmt.Sprintf(", listeners %+v", r.Listeners)
	}
	switch {
	case r.Permits > 0:
		return fmt.Sprintf("%s, permits %d, token %d, place %d rank %d, %d wait, ttl %d ms", what, r.Permits, r.Token, r.Ticket, r.Rank, r.Waiting, r.TTLMS)
	case r.Outcome == redisop.Done && r.Kind == redisop.Take:
		return fmt.Sprintf("%s, token %d, ticket %d, %d wait", what, r.Token, r.Ticket, r.Waiting)
	case r.Kind == redisop.Arrive:
		return fmt.Sprintf("%s, arrived %d, first %d", what, r.Arrived, r.FirstArrived)
	case r.Outcome == redisop.HeldByOther:
		return fmt.Sprintf("%s, %s, ttl %d ms, ticket %d rank %d recall %d arrived %d", what, r.Field, r.TTLMS, r.Ticket, r.Rank, r.Recall, r.Arrived)
	case r.Passed:
		return fmt.Sprintf("%s, passed, %d wait", what, r.Waiting)
	case r.Paused:
		return what + ", free for a moment"
	}
	return what
}

func messageString(m *redisop.Message) string {
	switch m.Kind {
	case redisop.Transferred:
		return fmt.Sprintf("transferred ticket=%d tokens=%d last=%d lease=%dms waiting=%d passed=%dms", m.Ticket, m.Tokens, m.LastToken, m.LeaseMS, m.Waiting, m.PassedMS)
	case redisop.Admitted:
		return fmt.Sprintf("admitted place=%d permits=%d last=%d lease=%dms waiting=%d", m.Ticket, m.Units, m.LastToken, m.LeaseMS, m.Waiting)
	case redisop.Recalled:
		return "recalled"
	case redisop.Freed:
		return fmt.Sprintf("freed for %d ms", m.PauseMS)
	case redisop.Requeue:
		return "requeue"
	}
	return "unlocked"
}

func keyString(k redis.Key) string {
	if k.Owner == redis.NoOwner {
		return "free"
	}
	owner := fmt.Sprintf("host %d's", k.Owner)
	if k.Owner >= firstRedisson {
		owner = fmt.Sprintf("Redisson %d's", k.Owner-firstRedisson)
	}
	return fmt.Sprintf("%s, num %d, count %d, until %s", owner, k.Num, k.Count, clockString(k.ExpireAt))
}
