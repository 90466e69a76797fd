package sidecar

import (
	"context"
	"fmt"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
)

// maxConnQuestions bounds the questions to other hosts of one connection that have no answer. It is read no further then.
const maxConnQuestions = 64

// connQuestions has the questions to other hosts that one connection waits for. Its reader owns it.
type connQuestions struct {
	ctx    context.Context // until the reader ends
	cancel context.CancelFunc
	asked  sync.WaitGroup
}

// end returns when no question of the connection is under way: what it requested is handed over before its end.
func (q *connQuestions) end() {
	q.cancel()
	q.asked.Wait()
}

// askHosts has a request about other hosts answered, on a goroutine of its own, because that takes time: one host that
// is silent delays no other one. It waits while maxConnQuestions are under way, and for a client that does not read its
// answers: so no goroutine waits for that.
func (s *Server) askHosts(c *conn, q *connQuestions, req protocol.Request) {
	pending := []request{{kind: clientOther, conn: c}}
	if c.keepPace(&pending); len(pending) == 0 || !c.throttle(maxQueued, maxUnread) {
		return // nothing reads the answer
	}
	c.mu.Lock()
	for c.asking >= maxConnQuestions && !c.isAbandoned && !c.isEnding() {
		c.changed.Wait()
	}
	c.asking++
	c.mu.Unlock()
	q.asked.Go(func() {
		client := &otherhosts.Client{PID: c.peer.PID, UID: c.peer.UID, Cmd: c.peer.Cmd, Rules: c.rules, Refusal: c.refusal, Denial: c.denial}
		if who, is := req.(*protocol.Who); is {
			pending[0].other = s.hosts.Who(q.ctx, client, who)
		} else {
			pending[0].other = s.hosts.Answer(q.ctx, client, req)
		}
		c.mu.Lock()
		c.asking--
		c.queued++
		c.changed.Broadcast()
		c.mu.Unlock()
		s.hand(c, pending...)
	})
}

// onQuestion hands a question of another sidecar to the loop.
func (s *Server) onQuestion(from string, body []byte) {
	switch q := s.hosts.Take(protocol.Now(), body).(type) {
	case nil:
	case *protocol.Status:
		s.readers.Go(func() { s.answerStatus(from, q) }) // because a survey takes several steps of the loop
	default:
		s.submitEvent(event{kind: hostQuestion, text: from, question: q})
	}
}

// answerStatus answers another sidecar that asks for the status of this one.
func (s *Server) answerStatus(from string, m *protocol.Status) {
	defer s.hosts.Done()
	r := s.prepareStatus(m)
	if r.survey == nil {
		return // this sidecar is overloaded
	}
	done := make(chan struct{})
	s.submitEvent(event{kind: loopQuery, done: done, query: func(now int64) {
		s.hosts.Reply(now, from, &protocol.StatusOK{ID: r.ID, StatusRow: s.statusRow(now, r)})
	}})
	select {
	case <-done:
	case <-s.ended:
	}
}

// answerHost answers a question of another sidecar.
func (l *loop) answerHost(now int64, from string, question protocol.Request) {
	l.hosts.Done()
	var reply protocol.Reply
	switch r := question.(type) {
	case *protocol.Info:
		m := &protocol.InfoOK{ID: r.ID}
		if row, ok := l.table.Info(now, r.Name); ok {
			l.locate(now, &row)
			m.Lock = &row
		}
		reply = m
	case *protocol.List:
		reply = l.list(now, nil, r)
	case *protocol.ForceRelease:
		reply = l.forceForHost(now, from, r)
	default:
		return
	}
	l.hosts.Reply(now, from, reply)
}

// forceForHost ends a hold for another sidecar, if that is permitted here.
func (l *loop) forceForHost(now int64, from string, r *protocol.ForceRelease) protocol.Reply {
	if l.cfg.OtherHosts != otherhosts.ForceRelease {
		refusal := &protocol.Err{ID: r.ID, Code: protocol.Denied, Msg: fmt.Sprintf("host %s does not permit it: its setting other_hosts is not %s; force it there", l.cfg.HostName, otherhosts.ForceRelease)}
		l.auditForceByHost(now, from, r, 0, refusal)
		return refusal
	}
	hold, ok := l.table.EndHold(now, r.Name)
	if !ok {
		return &protocol.Err{ID: r.ID, Code: protocol.NotHeld, Msg: fmt.Sprintf("no client on host %s holds %q", l.cfg.HostName, r.Name)}
	}
	l.auditForceByHost(now, from, r, hold, nil)
	return &protocol.ForceReleaseOK{ID: r.ID, Hold: hold}
}
