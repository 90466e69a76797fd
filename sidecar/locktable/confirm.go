package locktable

import "github.com/locksidecar/locksidecar/protocol"

// A release is answered before Redis has executed it. A client that is about to tell
// another host that a lock is free asks for a confirmation: the answer comes when Redis
// has no field of a hold that has ended, so that the other host does not find the lock
// taken by it.

// confirm is a confirmation that was asked for.
type confirm struct {
	session *session
	id      uint64
}

// Confirm is answered when Redis has executed every release of the lock that this
// sidecar has answered. If another local owner has the lock by then, that is so, too: it
// is taken, but not by an ended hold.
func (t *Table) Confirm(now int64, id SessionID, req protocol.Confirm) {
	s := t.sessions[id]
	if s == nil || s.detached {
		return
	}
	l := t.byName[req.Name]
	if l == nil {
		t.emit(Effect{Kind: Confirmed, Session: id, ID: req.ID})
		return
	}
	if len(s.waits)+s.confirms >= t.cfg.MaxWaiters {
		t.refuse(s, req.ID, protocol.Limit, "this client has %d requests waiting; wait for some, or raise max-waiters of the sidecar", t.cfg.MaxWaiters)
		return
	}
	if l.queue == nil {
		l.queue = t.queues.get()
	}
	l.queue.confirms = append(l.queue.confirms, confirm{s, req.ID})
	s.confirms++
	t.settle(now, l)
}

// answerConfirms answers those who asked for a confirmation if Redis has no ended hold.
func (t *Table) answerConfirms(l *lock) {
	if q := l.queue; q == nil || len(q.confirms) == 0 || l.hold.num == 0 && (l.known.state != none || l.asking()) {
		return
	}
	t.endConfirms(l, func(c confirm) { t.emit(Effect{Kind: Confirmed, Session: c.session.id, ID: c.id}) })
}

// refuseConfirms is called when Redis does not let this sidecar release the lock.
func (t *Table) refuseConfirms(l *lock, msg string) {
	t.endConfirms(l, func(c confirm) {
		t.refuse(c.session, c.id, protocol.Denied, "the lock is released here, and its lease ends in Redis, but Redis refused the release: %s", msg)
	})
}

func (t *Table) endConfirms(l *lock, answer func(confirm)) {
	q := l.queue
	if q == nil {
		return
	}
	for _, c := range q.confirms {
		c.session.confirms--
		if !c.session.over() {
			answer(c)
		}
	}
	q.confirms = nil
}
