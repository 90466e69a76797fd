package link

import (
	"os"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// flush writes what the Machine has made, and has run look at the Machine when it is due. The caller holds mu, which the
// Writer unlocks for the time of a system call.
func (l *Link) flush() {
	for _, q := range l.m.TakeExpired() {
		go q.Done(nil, wire.Unavailable("it was not sent to Redis in time")) // the caller holds mu
	}
	l.unsentOps.Store(int64(l.m.Unsent()))
	w := l.wired
	if w == nil {
		l.nudge() // run has the answer
		return
	}
	if l.m.HasBytes() && w.out.Accepts() {
		if len(w.out.Queued) == 0 {
			w.out.Queued = l.m.TakeBytes(w.out.Queued)
		} else {
			bytes := l.m.TakeBytes(nil)
			w.out.Queued = append(w.out.Queued, bytes...)
			_ = l.m.TakeBytes(bytes)
		}
	}
	if l.m.Next() < l.armed {
		l.nudge()
	}
	w.out.Flush()
}

func (l *Link) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// cut ends the connection. The reader finds that out, and reports it. The caller holds mu.
func (w *wired) cut(why error) { w.out.Close(why) }

func (l *Link) advance(now, lastByteAt int64) {
	if w := l.wired; l.m.Advance(now, lastByteAt, rawio.HasUnread(w.wire.raw)) {
		w.cut(os.ErrDeadlineExceeded)
	}
}

// handAll hands on what a Machine delivered, in its order.
func (l *Link) handAll(deliveries []pipeline.Delivery) {
	for i := range deliveries {
		l.cfg.Hand(&deliveries[i])
	}
}
