package otherhosts

import (
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const (
	// maxAnswers is how many questions a sidecar answers in a second. Others are dropped: any
	// program that may publish can send them. One client that lists the locks of a host, page
	// after page, sends about as many.
	maxAnswers = 4000

	// maxUnansweredQuestions is how many questions wait for a step of the loop. Others are dropped.
	maxUnansweredQuestions = 16
)

// questions bounds what other sidecars may ask of this one.
type questions struct {
	waiting atomic.Int32 // for a step of the loop

	// Of the goroutine that reads from Redis.
	second   int64 // since the host was started
	answered int   // in that second
}

// take reports whether a question is to be answered. done is called for it.
func (q *questions) take(now int64) bool {
	if second := now / int64(time.Second); second != q.second {
		q.second, q.answered = second, 0
	}
	if q.answered >= maxAnswers || q.waiting.Load() >= maxUnansweredQuestions {
		return false
	}
	q.answered++
	q.waiting.Add(1)
	return true
}

func (q *questions) done() { q.waiting.Add(-1) }

// Take returns a question of another sidecar, if it is to be answered; nil: it is not. Done is called for
// it before it is answered. One goroutine calls Take.
func (h *Hosts) Take(now int64, body []byte) protocol.Request {
	if h.cfg.Setting == None || !h.questions.take(now) {
		return nil
	}
	var d protocol.RequestDecoder
	req, err := d.Decode(body)
	if err != nil { // a sidecar has checked it: this was sent by another program
		h.questions.done()
		return nil
	}
	return req
}

// Done makes room for another question.
func (h *Hosts) Done() { h.questions.done() }

// Reply answers the question of another sidecar.
func (h *Hosts) Reply(now int64, to string, reply protocol.Reply) {
	switch m := reply.(type) {
	case *protocol.InfoOK:
		if m.Lock != nil {
			toRelative(now, m.Lock)
		}
	case *protocol.ListOK:
		for i := range m.Locks {
			toRelative(now, &m.Locks[i])
		}
	}
	h.Store.Answer(to, frameBody(reply.Append(nil)))
}

// toRelative is the inverse of toOwnClock.
func toRelative(now int64, row *protocol.LockRow) { row.DeadlineNS = max(0, row.DeadlineNS-now) }
