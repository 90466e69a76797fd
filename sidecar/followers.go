package sidecar

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/peers"
)

// So many requests of all clients may wait for events.
const maxFollowers = 16

// isOver reports whether no client waits for the answer any more.
func (f *follower) isOver() bool { return f.conn.session != f.session || f.session.phase.IsOver() }

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
