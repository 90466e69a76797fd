package sidecar

import (
	"context"
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

// ask has a request about other hosts answered, on a goroutine of its own, because that takes time: one host that
// is silent delays no other one. It waits while maxConnQuestions are under way, and for a client that does not read its
// answers: so no goroutine waits for that.
func (q *connQuestions) ask(l *loop, c *conn, req protocol.Request) {
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
			pending[0].other = l.hosts.Who(q.ctx, client, who)
		} else {
			pending[0].other = l.hosts.Answer(q.ctx, client, req)
		}
		c.mu.Lock()
		c.asking--
		c.queued++
		c.changed.Broadcast()
		c.mu.Unlock()
		l.hand(c, pending...)
	})
}
