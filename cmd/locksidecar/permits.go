package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// holdView is one hold as --json prints it. The help of ls documents its field names, which do not change.
type holdView struct {
	Hold    uint64 `json:"hold"`
	Token   uint64 `json:"token"`
	Shared  bool   `json:"shared,omitempty"`
	Permits int    `json:"permits,omitempty"`
	Session uint64 `json:"session"`
	PID     int    `json:"pid"`
	UID     int    `json:"uid"`
	User    string `json:"user"`
	Cmd     string `json:"cmd"`
	HeldMS  int64  `json:"held_ms"`
	Absent  bool   `json:"absent,omitempty"`
	Orphan  bool   `json:"orphan,omitempty"`
}

func viewHolds(holders []locksidecar.HolderInfo, users display.UserNames) []holdView {
	var views []holdView
	for _, h := range holders {
		views = append(views, holdView{h.Hold, h.Token, h.Shared, h.Permits, h.Session, h.PID, h.UID, users.Name(h.UID), h.Cmd, h.Held.Milliseconds(), h.Absent, h.Orphan})
	}
	return views
}

// holders returns the holds of a lock whose processes are known, the oldest first: of a lock with many 16 at most, and
// none that the policy hides.
func (l *lockView) holders() []holdView {
	switch {
	case l.Holds != nil:
		return l.Holders
	case l.HeldMS == nil || l.isHidden:
		return nil
	}
	return []holdView{{l.Hold, l.Token, false, 0, l.Session, l.PID, *l.UID, l.User, l.Cmd, *l.HeldMS, l.Absent, l.Orphan}}
}

// held returns how many holds a lock has.
func (l *lockView) held() int {
	switch {
	case l.Holds != nil:
		return *l.Holds
	case l.HeldMS == nil:
		return 0
	}
	return 1
}

// permits returns how many permits of a semaphore processes of its host have, of how many.
func (l *lockView) permits() string { return permitsHeld(*l.Permits, l.Of) }

// permitsHeld is display.Permits with the noun.
func permitsHeld(held, of int) string {
	text := display.Permits(held, of)
	if of != 0 {
		text += " permits"
	}
	return text
}

// has describes what the oldest of many holders has, and how many more there are, before the command of
// that holder: a narrow terminal cuts its end.
func (l *lockView) has() string {
	var parts []string
	if !l.isHidden && len(l.Holders) > 0 {
		text := ""
		if l.Kind == locksidecar.KindPermits {
			text = fmt.Sprintf("has %d ", l.Holders[0].Permits)
		}
		if state := l.state(); state != string(locksidecar.LockHeld) && (text != "" || l.Shared > 0) {
			text += "(" + state + ")"
		}
		if text = strings.TrimSpace(text); text != "" {
			parts = append(parts, text)
		}
	}
	if more := l.held() - 1; more > 0 {
		parts = append(parts, fmt.Sprintf("+%d more", more))
	}
	return strings.Join(parts, ", ")
}

// wants describes what a waiter waits for; "": a lock, or a read/write lock to write.
func wants(permits int, shared bool) string {
	switch {
	case shared:
		return "wants to read"
	case permits == 0:
		return ""
	}
	return fmt.Sprintf("wants %d", permits)
}

// waits describes for how long a waiter has waited, and for what.
func waits(waited time.Duration, permits int, shared bool) string {
	text := "for " + display.Duration(waited)
	if what := wants(permits, shared); what != "" {
		text += ", " + what
	}
	return text
}

// before puts a text before a command, if there is one.
func before(text, cmd string) string {
	if text == "" {
		return cmd
	}
	return text + ": " + cmd
}

// remoteHolder describes what keeps a lock, or permits, from this host.
func remoteHolder(kind locksidecar.LockKind, host, field string) string {
	if kind == locksidecar.KindPermits && field == "" {
		return display.TooFewPermits
	}
	return display.Elsewhere(host, field)
}

// viewPermits adds what the daemon found of a semaphore on all hosts.
func (v *whoView) viewPermits(o *locksidecar.Ownership, users display.UserNames) {
	v.Permits, v.Of = &o.Permits, o.Of
	if o.Of != 0 {
		free := max(0, o.Of-o.Permits)
		v.Free = &free
	}
	for i := range o.Owners {
		from, to := &o.Owners[i], &v.Owners[i]
		// The numbers of holds are those of each host, and tokens are those of all.
		to.isHere = o.Lock != nil && len(from.Holders) > 0 && len(o.Lock.Holders) > 0 &&
			from.Holders[0].Hold == o.Lock.Holders[0].Hold && from.Holders[0].Token == o.Lock.Holders[0].Token
		names := users
		if !to.isHere {
			names = nil
		}
		to.Permits, to.Holds, to.Holders = from.Permits, from.Holds, viewHolds(from.Holders, names)
	}
}

// statePermits says how many permits of a semaphore all hosts have.
func (v *whoView) statePermits() string {
	text := "a semaphore: " + permitsHeld(*v.Permits, v.Of) + " held"
	if v.Free == nil {
		return text + "; how many it has is not known"
	}
	return fmt.Sprintf("%s, %d free", text, *v.Free)
}

// textPermits describes which hosts have permits of a semaphore, and which of their processes.
func (v *whoView) textPermits(line func(label, format string, args ...any), since func(heldMS int64) string) {
	var absent *holdView
	isAbsentHere, isListed, listed := false, false, 0
	holds := func(holders []holdView, all int, isHere bool) {
		for i := range holders {
			h, mark := &holders[i], ""
			if h.Orphan {
				mark = " (its process is gone)"
			} else if h.Absent {
				mark = " (absent)"
				if absent == nil {
					absent, isAbsentHere = h, isHere
				}
			}
			line("", "hold %d%s: %s, pid %s, user %s, since %s: %s", h.Hold, mark, display.Count(h.Permits, "permit"), pid(h.PID), namedUser(h.User), since(h.HeldMS), h.Cmd)
		}
		if more := all - len(holders); more > 0 && len(holders) > 0 {
			line("", "… %s", display.Count(more, "more hold"))
		}
	}
	for i := range v.Owners {
		o := &v.Owners[i]
		holders, all := o.Holders, o.Holds
		if o.isHere { // of which more holders are known
			isListed, holders, all = true, v.Here.Holders, v.Here.held()
		}
		whose := ""
		if all == 0 {
			whose = "; by which processes is not known"
		} else if len(holders) == 0 {
			whose = ", in " + display.Count(all, "hold")
		}
		line("HELD", "%d on %s%s", o.Permits, o.where(), whose)
		holds(holders, all, o.isHere)
		listed += o.Permits
	}
	if v.Permits != nil && *v.Permits > listed {
		line("HELD", "%d on more hosts", *v.Permits-listed)
	}
	if h := v.Here; h != nil && len(h.Holders) > 0 && !isListed {
		line("HERE", "%s of this host", display.Count(h.held(), "hold"))
		holds(h.Holders, h.held(), true)
	}
	if v.Trouble != "" {
		line("TROUBLE", "%s", v.Trouble)
	}
	if absent != nil {
		explainAbsence(line, absence(&lockView{}), commandFor(fmt.Sprintf("force-release --hold %d", absent.Hold), v.Name), isAbsentHere)
	}
}
