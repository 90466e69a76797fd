package link

import (
	"os"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// flush writes what the Machine has made, and has run look at the Machine when it is due.
func (g *guarded) flush() {
	l := g.link
	for _, q := range g.m.TakeExpired() {
		go q.Done(nil, wire.Unavailable("it was not sent to Redis in time")) // no callback comes with the mutex locked
	}
	l.unsentOps.Store(int64(g.m.Unsent()))
	w := g.wired
	if w == nil {
		l.nudge() // run has the answer
		return
	}
	if g.m.HasBytes() && w.out.Accepts() {
		if len(w.out.Queued) == 0 {
			w.out.Queued = g.m.TakeBytes(w.out.Queued)
		} else {
			bytes := g.m.TakeBytes(nil)
			w.out.Queued = append(w.out.Queued, bytes...)
			_ = g.m.TakeBytes(bytes)
		}
	}
	if g.m.Next() < g.armed {
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

// cut ends a connection. Its reader finds that out, and reports it.
func (g *guarded) cut(w *wired, why error) { w.out.Close(why) }

func (g *guarded) advance(now, lastByteAt int64) {
	w := g.wired
	hasUnread := g.m.IsOverdue() && rawio.HasUnread(w.wire.raw) // a system call, and with replicas each batch comes here
	if g.m.Advance(now, lastByteAt, hasUnread) {
		g.cut(w, os.ErrDeadlineExceeded)
	}
}

// handAll hands on what a Machine delivered, in its order.
func (l *Link) handAll(deliveries []pipeline.Delivery) {
	for i := range deliveries {
		l.cfg.Hand(&deliveries[i])
	}
}
