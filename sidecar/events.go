package sidecar

import (
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/eventlog"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

const (
	// A grant is an event if its request had waited for so long: longer than a round trip to a
	// Redis nearby, so that an uncontended lock has no events.
	longWait = locktable.BlockingHold

	// What happens in so long is gathered before the requests that wait for events are answered.
	eventDelay = 50 * time.Millisecond

	// So many requests of all clients may wait for events.
	maxFollowers = 16
)

// follower is an `events` request that waits for an event.
type follower struct {
	session *session
	conn    *conn
	id      uint64
	after   uint64
}

// isOver reports whether no client waits for the answer any more.
func (f *follower) isOver() bool { return f.conn.session != f.session || f.session.phase.IsOver() }

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
		row = protocol.EventRow{Kind: protocol.EventForced}
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
	row.AtNS, row.Name, row.Hold = l.stepAt, e.Name, e.Hold
	if client != nil { // or else the event would be root's, with a uid of 0
		row.Session, row.PID, row.UID, row.Cmd = uint64(e.Session), client.PID, client.UID, client.Cmd
	}
	l.recordAbout(row, about)
}

// redisTrouble is why Redis, or a master of a Cluster, cannot be used as it should.
type redisTrouble struct {
	kind string // of the event
	why  string
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

// crash counts the holds of the session that ended last with holds.
type crash struct {
	session locktable.SessionID
	holds   int
}

// admit counts one more hold, and reports whether it is an event.
func (c *crash) admit(of locktable.SessionID) bool {
	if c.session != of {
		*c = crash{session: of}
	}
	c.holds++
	return c.holds <= maxCrashed
}

// onEvents answers an `events` request, or has it wait.
func (l *loop) onEvents(cl *session, m *protocol.Events) {
	c := cl.conn
	if i := l.followerOf(cl); i >= 0 {
		f := l.followers[i]
		l.followers = slices.Delete(l.followers, i, i+1)
		l.queueEvents(&f, false)
	}
	f := follower{cl, c, m.ID, m.After}
	if !m.Wait || l.eventLog.HasAfter(m.After) {
		if l.queueEvents(&f, m.Wait) {
			return
		}
	}
	l.followers = slices.DeleteFunc(l.followers, func(f follower) bool { return f.isOver() })
	if why := l.checkFollowers(cl.peer.UID); why != "" {
		l.refuse(c, m.ID, protocol.Limit, why)
		return
	}
	l.followers = append(l.followers, f)
}

// checkFollowers returns why a user may not have one more request that waits for events; "": it
// may.
func (l *loop) checkFollowers(uid int64) string {
	unreserved, share := peers.Shares(uid, maxFollowers)
	own := 0
	for i := range l.followers {
		if l.followers[i].session.peer.UID == uid {
			own++
		}
	}
	if len(l.followers) < unreserved && own < share {
		return ""
	}
	return fmt.Sprintf("%d requests wait for events, %d of them of user %d; all users may have %d, and one user %d; end a program that follows the events", len(l.followers), own, uid, unreserved, share)
}

// followerOf is the index of the session's request that waits for an event; −1: there is none.
func (l *loop) followerOf(cl *session) int {
	return slices.IndexFunc(l.followers, func(f follower) bool { return f.session == cl && !f.isOver() })
}

// isFollowing reports whether the session's request with this id waits for an event.
func (l *loop) isFollowing(cl *session, id uint64) bool {
	i := l.followerOf(cl)
	return i >= 0 && l.followers[i].id == id
}

// answerFollowers answers one request that waits for events, if it is time. Another step answers
// the next one: an answer can be long.
func (l *loop) answerFollowers(now int64) {
	if l.followersDue == 0 || now < l.followersDue {
		return
	}
	l.followers = slices.DeleteFunc(l.followers, func(f follower) bool { return f.isOver() })
	for i := range l.followers {
		if l.eventLog.HasAfter(l.followers[i].after) {
			if l.queueEvents(&l.followers[i], true) {
				l.followers = slices.Delete(l.followers, i, i+1)
			}
			l.followersDue = now
			return
		}
	}
	l.followersDue = 0
}

// nameHosts adds the names of hosts that were not known when the events happened, and may be now.
func (l *loop) nameHosts(rows []protocol.EventRow) {
	for i := range rows {
		if e := &rows[i]; e.RemoteField != "" && e.RemoteHost == "" {
			e.RemoteHost = l.hosts.NameOf(e.RemoteField)
		}
	}
}

// queueEvents answers a request for events. If the request waits for events that the client may see, and
// there are none, it is not answered, and goes on after those that are hidden.
func (l *loop) queueEvents(f *follower, waits bool) (isAnswered bool) {
	m := &l.eventPage
	m.ID, m.Hidden = f.id, ""
	if p := f.session.policy; p != nil {
		m.Hidden = p.Hidden()
	}
	// The rows of the page have room for names of hosts: a page is a quarter of a frame.
	m.Events, m.Next, m.Missed = l.eventLog.Page(f.after, pageSize, f.session.policy, m.Events[:0])
	if waits && len(m.Events) == 0 && m.Missed == 0 {
		f.after = m.Next
		return false
	}
	l.nameHosts(m.Events)
	l.queueReply(f.conn, m)
	clear(m.Events)
	return true
}
