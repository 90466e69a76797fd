package sidecar

import (
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/eventlog"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

const (
	// A grant is an event if its request had waited for so long: longer than a round trip to a
	// Redis nearby, so that an uncontended lock has no events.
	longWait = locktable.BlockingHold

	// What happens in so long is gathered before the requests that wait for events are answered.
	eventDelay = 50 * time.Millisecond
)

// record adds an event to the log. The requests that wait for it are answered a little later:
// see answerFollowers.
func (l *loop) record(row protocol.EventRow) { l.recordAbout(row, eventlog.About{}) }

func (l *loop) recordAbout(row protocol.EventRow, about eventlog.About) {
	l.eventLog.Add(row, about)
	if len(l.followers) > 0 && l.followersDue == 0 {
		l.followersDue = row.AtNS + int64(eventDelay)
	}
}

// recordEffect records the effects of the table that operators want to know of. cl is the
// session of the effect; nil: it is over.
func (l *loop) recordEffect(e *locktable.Effect, cl *session) {
	var row protocol.EventRow
	var about eventlog.About
	var client *locktable.Peer // of the event; nil: it is not known any more
	switch e.Kind {
	case locktable.Lost, locktable.LongHold, locktable.CutShort, locktable.Crashed:
		client = e.Peer
	}
	switch e.Kind {
	case locktable.Granted:
		if e.Since == 0 || l.stepAt-e.Since < int64(longWait) {
			return
		}
		row = protocol.EventRow{Kind: protocol.EventGranted, Token: e.Token, WaitedMS: (l.stepAt - e.Since) / 1e6, RemoteField: e.Msg, RemoteHost: l.hosts.NameOf(e.Msg)}
		if p := e.Peer; p != nil {
			row.Msg = p.OfUser()
			waitedFor := *p
			about.WaitedFor = &waitedFor
		}
	case locktable.LongHold:
		row = protocol.EventRow{Kind: protocol.EventReleased, HeldMS: (l.stepAt - e.Since) / 1e6, Count: e.Count}
	case locktable.Crashed:
		if !l.crash.admit(e.Session) {
			return
		}
		row = protocol.EventRow{Kind: protocol.EventCrashed, HeldMS: max(0, l.stepAt-e.Since) / 1e6, Count: e.Count}
	case locktable.Lost, locktable.CutShort:
		if e.Reason == protocol.Forgotten { // its name is not known
			return
		}
		l.losses.add(l.stepAt, e.Reason, 1)
		row = protocol.EventRow{Kind: protocol.EventLost, Reason: e.Reason, RemoteField: e.Msg, RemoteHost: l.hosts.NameOf(e.Msg), HeldMS: max(0, l.stepAt-e.Since) / 1e6, Msg: l.whyGone(e)}
	case locktable.Forced:
		row = protocol.EventRow{Kind: protocol.EventForced, Count: several(e.Count)}
	case locktable.Refusal:
		if e.Code != protocol.Deadlock {
			return
		}
		row = protocol.EventRow{Kind: protocol.EventDeadlock, Msg: e.Msg}
	default:
		return
	}
	if cl != nil {
		if client = &cl.peer; cl.policy != nil {
			about.Rules = cl.policy.Rules()
		}
	}
	row.AtNS, row.Name, row.Hold, row.Shared, row.Permits = l.stepAt, e.Name, e.Hold, e.IsShared, e.Permits
	if client != nil { // or else the event would be root's, with a uid of 0
		row.Session, row.PID, row.UID, row.Cmd = uint64(e.Session), client.PID, client.UID, client.Cmd
	}
	l.recordAbout(row, about)
}

// recordTrouble records that a shard is in trouble. It is an event again if the trouble is another one.
func (l *loop) recordTrouble(now int64, n redisop.Shard, t redisTrouble) {
	if l.shards.slotsOf(n) == 0 {
		return // a former master of a Cluster, or all slots have one
	}
	was := l.unusable[n]
	if t.kind == protocol.EventRedisDown && was.kind != t.kind {
		l.counters.redisDowns++
	}
	if t == was {
		return
	}
	if l.unusable == nil {
		l.unusable = make(map[redisop.Shard]redisTrouble)
	}
	l.unusable[n] = t
	l.record(protocol.EventRow{AtNS: now, Kind: t.kind, Msg: t.why})
}

// recordUsable records that the trouble of a shard has ended. The first connection of a daemon is no event.
func (l *loop) recordUsable(now int64, n redisop.Shard) {
	if _, was := l.unusable[n]; was {
		delete(l.unusable, n)
		l.record(protocol.EventRow{AtNS: now, Kind: protocol.EventRedisUp})
	}
}

// recordOpenSlots records that slots stay open, others than before, or none any more ("").
func (l *loop) recordOpenSlots(now int64, why string) {
	switch {
	case why == l.openSlots:
		return
	case why == "":
		l.record(protocol.EventRow{AtNS: now, Kind: protocol.EventSlotsClosed})
	default:
		l.record(protocol.EventRow{AtNS: now, Kind: protocol.EventSlotsOpen, Msg: why})
	}
	l.openSlots = why
}

// recordDataLoss records that Redis may have lost data.
func (l *loop) recordDataLoss(now int64) {
	l.counters.dataLosses++
	l.record(protocol.EventRow{AtNS: now, Kind: protocol.EventDataLost})
}

// maxCrashed is how many holds of one session that ended are events: one that had thousands must not
// push all others out of the log.
const maxCrashed = 100

// admit counts one more hold, and reports whether it is an event.
func (c *crash) admit(of locktable.SessionID) bool {
	if c.session != of {
		*c = crash{session: of}
	}
	c.holds++
	return c.holds <= maxCrashed
}

// logLost logs a loss.
func (l *loop) logLost(e *locktable.Effect, c *session) {
	var peer locktable.Peer // of a kept lock whose session is over, it is not known any more
	switch {
	case c != nil:
		peer = c.peer
	case e.Peer != nil:
		peer = *e.Peer
	}
	what := "lock"
	if e.Kind == locktable.KeepLost {
		what = "kept lock"
	}
	kind := loglimit.Warn(peer.UID, what+" lost", string(e.Reason))
	switch e.Reason {
	case protocol.MaxHold, protocol.ByForce:
		kind.Level, kind.Line = slog.LevelInfo, what+" ended"
	case protocol.CutShort:
		kind.Line = "work ended before its lock was lost"
	}
	args := []any{"hold", e.Hold, "session", e.Session, "pid", peer.PID, "cmd", peer.Cmd, "reason", e.Reason}
	if e.Msg != "" {
		args = append(args, "found", e.Msg)
		if host := l.hosts.NameOf(e.Msg); host != "" {
			args = append(args, "host", host)
		}
	}
	if why := l.whyGone(e); why != "" {
		args = append(args, "redis", why)
	}
	l.lines.About(l.stepAt, kind, e.Name, args...)
}

// whyGone returns what Redis is known to do to keys of locks, of a loss because the key was gone; "": nothing.
func (l *loop) whyGone(e *locktable.Effect) string {
	if e.Reason != protocol.Deleted && e.Reason != protocol.Stolen {
		return ""
	}
	return l.store.OnKeysGone(e.Name)
}

// several is how many holds a request has ended, if that is more than one, and else 0: the number of the hold says it.
func several(n uint32) uint32 {
	if n > 1 {
		return n
	}
	return 0
}
