package display

import (
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Event is what an event is described by. Fields that do not apply to its kind are zero.
type Event struct {
	At   time.Time // in the zone that times are shown in
	Kind string
	Name string // of the lock; "": it is left out

	Token     uint64
	Shared    bool   // the hold is a shared one of a read/write lock
	Permits   int    // of a semaphore; 0: of a lock
	PID       int64  // of the client; 0: it is not visible
	User, Cmd string // of the client
	Waited    time.Duration
	Held      time.Duration
	Reason    protocol.Reason

	RemoteField, RemoteHost string
	Count                   uint64
	Msg                     string
}

// Text describes an event in one line, which may have characters that are not printable.
func (e *Event) Text() string { return strings.TrimSpace(e.text()) }

func (e *Event) text() string {
	about := e.Name + "  "
	if e.Shared {
		about += "shared "
	}
	if e.Permits > 0 {
		about += Count(e.Permits, "permit") + " "
	}
	switch e.Kind {
	case protocol.EventGranted:
		text := fmt.Sprintf("%sto %s, after %s; token %d", about, e.client(), Duration(e.Waited), e.Token)
		switch {
		case e.Msg != "":
			text += "; waited for " + e.Msg
		case e.RemoteField != "":
			text += "; waited while " + Elsewhere(e.RemoteHost, e.RemoteField)
		}
		return text
	case protocol.EventReleased:
		return fmt.Sprintf("%sby %s, %s%s", about, e.client(), e.heldSince(), e.waiters())
	case protocol.EventCrashed:
		return fmt.Sprintf("%sended without a release: %s, %s%s", about, e.client(), e.heldSince(), e.waiters())
	case protocol.EventRedisDown:
		return "Redis cannot be used: " + e.Msg
	case protocol.EventRedisDegraded:
		return "Redis refuses what locks need: " + e.Msg
	case protocol.EventRedisUp:
		return "Redis can be used again"
	case protocol.EventDataLost:
		return "Redis may have lost data: the locks of this host are written again"
	case protocol.EventSlotsOpen:
		return "slots of the Cluster stay open: " + e.Msg
	case protocol.EventSlotsClosed:
		return "no slot of the Cluster stays open any more"
	case protocol.EventLost:
		text := fmt.Sprintf("%s%s: %s; held for %s by %s", about, e.Reason, Reason(e.Reason), Duration(e.Held), e.client())
		if e.RemoteField != "" {
			text += "; now " + Elsewhere(e.RemoteHost, e.RemoteField)
		}
		return text + suffixIf("; ", e.Msg)
	case protocol.EventForced:
		return fmt.Sprintf("%sby %s%s", about, e.requester(), suffixIf(" ", e.Msg))
	case protocol.EventRefused:
		return fmt.Sprintf("%srefused to %s%s: %s", about, e.requester(), e.times(), e.Msg)
	case protocol.EventDeadlock:
		return fmt.Sprintf("%srefused to %s%s: %s", about, e.client(), e.times(), e.Msg)
	case protocol.EventTakeover:
		return "the daemon was restarted: it " + e.Msg
	}
	return about + e.Msg // of a later sidecar
}

// heldSince describes how long the hold was that ended, and when it began.
func (e *Event) heldSince() string {
	return fmt.Sprintf("held for %s since %s", Duration(e.Held), e.At.Add(-e.Held).Format("Jan _2 15:04:05"))
}

// waiters describes how many requests waited when the hold ended.
func (e *Event) waiters() string {
	if e.Count == 0 {
		return ""
	}
	return "; " + Count(int(e.Count), "request") + " waited"
}

// times describes how often a refusal happened that is counted in one event.
func (e *Event) times() string {
	if e.Count < 2 {
		return ""
	}
	return fmt.Sprintf(" %d times", e.Count)
}

// client describes the client of an event.
func (e *Event) client() string { return Client(int(e.PID), e.Cmd, e.User) }

// requester describes the client that asked to end a hold, with its host if it is another one.
func (e *Event) requester() string {
	if e.RemoteHost == "" {
		return e.client()
	}
	return e.client() + " on host " + e.RemoteHost
}

// Client describes a process by its pid, its command and its user, as UserNames.Name returned it. pid is 0 if the
// process is not visible, and user "" if it is not known.
func Client(pid int, cmd, user string) string {
	text := "a process that is not visible from here"
	if pid != 0 {
		text = fmt.Sprintf("pid %d (%s)", pid, cmd)
	}
	if user != "" {
		text += " of " + Shown(user)
	}
	return text
}

// suffixIf returns a text after a separator; "" if there is none.
func suffixIf(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}
