package locktable

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/wheel"
)

func (t *Table) emit(e Effect) { t.out = append(t.out, e) }

// next emits an effect that the caller fills in where it is: an Effect is long, and a copy costs.
func (t *Table) next(kind EffectKind) *Effect {
	t.out = append(t.out, Effect{Kind: kind})
	return &t.out[len(t.out)-1]
}

// refuse answers a request with an error. What is left of a session that is over has no
// client that could read it.
func (t *Table) refuse(s *session, id uint64, code protocol.Code, format string, args ...any) {
	if s.phase.IsOver() {
		return
	}
	msg := format
	if len(args) > 0 {
		msg = fmt.Sprintf(format, args...)
	}
	t.emit(Effect{Kind: Refusal, Session: s.id, ID: id, Code: code, Msg: msg})
}

func (t *Table) arm(tm *wheel.Timer[timed], at int64) {
	if tm.Pending() && !tm.Deferred() && tm.Deadline() == at {
		return
	}
	if err := t.wheel.Add(tm, at); err != nil {
		panic("locktable: more timers than locks and waiters: " + err.Error())
	}
}

func (t *Table) markDirty(l *lock) {
	if t.cfg.Journal != nil && !l.isDirty() {
		l.setDirty(true)
		t.dirty.locks = append(t.dirty.locks, l)
	}
}

func (t *Table) markSessionDirty(s *session) {
	if t.cfg.Journal != nil && !s.isDirty {
		s.isDirty = true
		t.dirty.sessions = append(t.dirty.sessions, s)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func millis(ns int64) int64 { return max(0, ns/int64(time.Millisecond)) }

func milliseconds(ns int64) string { return time.Duration(ns).Round(time.Millisecond).String() }

// refuseNotHeld refuses a request about a hold that its client does not have. id 0: the client wants no answer.
func (t *Table) refuseNotHeld(s *session, id, hold uint64) {
	if id != 0 {
		t.refuse(s, id, protocol.NotHeld, "this client does not hold %d: it released it before, lost it, or never had it; nothing was changed", hold)
	}
}
