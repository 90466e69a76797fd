package locksidecar

import (
	"container/heap"
	"context"
	"time"
)

// maxAlarmSleep bounds the sleep of the alarm. Go's timers stand still while the host is
// suspended, deadlines do not.
const maxAlarmSleep = time.Second

// observers are what the end of a handle's hold, or its Unlock, is reported to.
type observers struct {
	done    chan struct{} // closed; nil: Done was not called
	cancels []*context.CancelCauseFunc
}

// endNotice is a report to observers that is due. It is sent when no mutex is held: a context
// that is cancelled may run code of the user.
type endNotice struct {
	observers
	cause error
	loss  lossReport
}

func notify(notices []endNotice) {
	for _, n := range notices {
		n.loss.write()
		if n.done != nil {
			close(n.done)
		}
		for _, cancel := range n.cancels {
			(*cancel)(n.cause)
		}
	}
}

// expiryAlarm is a timer for the holds that have observers, ordered by the deadlines that
// they had when they were last checked. A renewal changes nothing here: whether a deadline
// has moved is checked at the old one. Guarded by session.mu.
type expiryAlarm struct {
	queue expiryQueue
	timer *time.Timer // nil: no hold has had observers yet
}

type expiry struct {
	at   int64
	hold *hold
}

// add makes the session check the hold at its deadline.
func (a *expiryAlarm) add(h *hold) {
	if h.alarmIndex != 0 {
		return
	}
	heap.Push(&a.queue, expiry{h.deadlineLocked(), h})
	if h.alarmIndex == 1 {
		a.set(h.session)
	}
}

func (a *expiryAlarm) remove(h *hold) {
	if h.alarmIndex != 0 {
		heap.Remove(&a.queue, int(h.alarmIndex)-1)
	}
	if len(a.queue) == 0 && a.timer != nil {
		a.timer.Stop()
	}
}

// set sets the timer to the first deadline.
func (a *expiryAlarm) set(s *session) {
	if len(a.queue) == 0 {
		return
	}
	sleep := min(time.Duration(a.queue[0].at-s.clock()), maxAlarmSleep)
	if a.timer == nil {
		a.timer = time.AfterFunc(sleep, s.onAlarm)
	} else {
		a.timer.Reset(sleep)
	}
}

// onAlarm ends the observed holds whose deadlines have passed, unless something that has
// arrived moves them.
func (s *session) onAlarm() {
	var notices []endNotice
	hasRead := false
	now := s.clock()
	s.mu.Lock()
	q := &s.alarm.queue
	for len(*q) > 0 && (*q)[0].at <= now {
		h := (*q)[0].hold
		if deadline := h.deadlineLocked(); deadline > now {
			(*q)[0].at = deadline
			heap.Fix(q, 0)
			continue
		}
		if !hasRead {
			hasRead = true
			conn := s.conn
			s.mu.Unlock()
			s.readArrived(conn)
			s.mu.Lock()
			continue
		}
		ended, _ := h.expireLocked(now)
		notices = append(notices, ended...)
	}
	s.alarm.set(s)
	conn := s.conn
	s.mu.Unlock()
	notify(notices)
	conn.flush()
}

// expiryQueue is a heap of holds, the earliest deadline first.
type expiryQueue []expiry

func (q expiryQueue) Len() int           { return len(q) }
func (q expiryQueue) Less(i, j int) bool { return q[i].at < q[j].at }

func (q expiryQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].hold.alarmIndex, q[j].hold.alarmIndex = int32(i+1), int32(j+1)
}

func (q *expiryQueue) Push(x any) {
	e := x.(expiry)
	*q = append(*q, e)
	e.hold.alarmIndex = int32(len(*q))
}

func (q *expiryQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = expiry{}
	*q = old[:len(old)-1]
	last.hold.alarmIndex = 0
	return last
}
