package locksidecar

import (
	"container/heap"
	"context"
	"time"
)

// longestSleep is how long the alarm sleeps at most. Go's timers stand still
// while the host is suspended, deadlines do not.
const longestSleep = time.Second

// watch is what is to be told when a handle's hold ends.
type watch struct {
	done    chan struct{} // nil: Done was not called
	cancels []*context.CancelCauseFunc
}

// ending is a watch that is due. It is told when no mutex is held: a context that
// is cancelled may run code of the user.
type ending struct {
	watch
	cause error
}

func tell(all []ending) {
	for _, e := range all {
		if e.done != nil {
			close(e.done)
		}
		for _, cancel := range e.cancels {
			(*cancel)(e.cause)
		}
	}
}

// watches is the alarm clock of a session: the holds whose end somebody wants to
// be told, by the deadlines that they had when they were last looked at. A
// renewal changes nothing here; whose deadline has moved is found out when the
// old one comes. Guarded by session.mu.
type watches struct {
	queue watchQueue
	alarm *time.Timer // made with the first watch
}

type watched struct {
	at   int64
	hold *hold
}

// add sees to it that somebody looks at the hold at its deadline.
func (w *watches) add(h *hold) {
	if h.place != 0 {
		return
	}
	heap.Push(&w.queue, watched{h.until(), h})
	if h.place == 1 {
		w.arm(h.session)
	}
}

func (w *watches) remove(h *hold) {
	if h.place != 0 {
		heap.Remove(&w.queue, int(h.place)-1)
	}
	if len(w.queue) == 0 && w.alarm != nil {
		w.alarm.Stop()
	}
}

// arm sets the alarm to the next deadline.
func (w *watches) arm(s *session) {
	if len(w.queue) == 0 {
		return
	}
	sleep := min(time.Duration(w.queue[0].at-s.clock()), longestSleep)
	if w.alarm == nil {
		w.alarm = time.AfterFunc(sleep, s.wake)
	} else {
		w.alarm.Reset(sleep)
	}
}

// wake ends the watched holds whose deadlines have passed, if what has arrived does not
// move them.
func (s *session) wake() {
	var told []ending
	caughtUp := false
	now := s.clock()
	s.mu.Lock()
	q := &s.watches.queue
	for len(*q) > 0 && (*q)[0].at <= now {
		h := (*q)[0].hold
		if until := h.until(); until > now {
			(*q)[0].at = until
			heap.Fix(q, 0)
			continue
		}
		if !caughtUp {
			caughtUp = true
			w := s.wire
			s.mu.Unlock()
			s.catchUp(w)
			s.mu.Lock()
			continue
		}
		ended, _ := h.expire(now)
		told = append(told, ended...)
	}
	s.watches.arm(s)
	w := s.wire
	s.mu.Unlock()
	tell(told)
	w.flush()
}

// watchQueue is a heap of holds, the earliest first.
type watchQueue []watched

func (q watchQueue) Len() int           { return len(q) }
func (q watchQueue) Less(i, j int) bool { return q[i].at < q[j].at }

func (q watchQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].hold.place, q[j].hold.place = int32(i+1), int32(j+1)
}

func (q *watchQueue) Push(x any) {
	w := x.(watched)
	*q = append(*q, w)
	w.hold.place = int32(len(*q))
}

func (q *watchQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = watched{}
	*q = old[:len(old)-1]
	last.hold.place = 0
	return last
}
