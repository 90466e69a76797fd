package link

import (
	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// newWired takes over a connection from its greeting.
func newWired(l *Link, s *readyConn) *wired {
	w := &wired{readyConn: s, link: l, ended: make(chan struct{})}
	s.wire.release()
	if s.wire.secure {
		w.from = s.wire
		w.out = rawio.NewWriter(&l.mu, s.wire, nil)
	} else {
		w.from = rawio.NewReader(s.wire.raw)
		w.out = rawio.NewWriter(&l.mu, s.wire, s.wire.raw)
	}
	s.in.Reader = w
	w.out.OnClose = func(error) {
		l.behindMu.m.Cut() // it comes from a method of guarded
		w.wire.Close()
	}
	w.lastByteAt.Store(protocol.Now())
	return w
}

// read takes in what Redis sends until the connection ends. It is a goroutine of its own.
func (w *wired) read() {
	defer close(w.ended)
	l := w.link
	var err error
	for err == nil {
		var answer wire.Reply
		if answer, err = w.replies.Next(); err == nil {
			held := l.lock()
			err = held.m.Reply(w.now, &answer)
			held.unlock()
		}
	}
	held := l.lock()
	held.cut(w, err)
	held.unlock()
	_ = w.rest()
}

// Read reads what Redis sends. Before it waits for more bytes, what was taken in is handed on: the rest of a reply that
// has begun may take its time.
func (w *wired) Read(b []byte) (int, error) {
	if err := w.rest(); err != nil {
		return 0, err
	}
	n, err := w.from.Read(b)
	w.now = protocol.Now()
	if n > 0 {
		w.lastByteAt.Store(w.now)
	}
	return n, err
}

// rest sends the operations that waited for the replies which have come, and hands on what these brought: Redis gets
// those before the loop gets the results. The error ends the connection.
func (w *wired) rest() error {
	l := w.link
	held := l.lock()
	err := held.m.Rest(protocol.Now())
	held.flush()
	if held.m.IsOver() {
		l.nudge()
	}
	deliveries := held.m.TakeDeliveries(w.deliveries)
	if held.m.WantsSpare() {
		held.m.Spare(l.cfg.Shared.spare.get())
	}
	l.roundTrip.Store(held.m.RoundTrip())
	counts := held.m.TakeRedirects()
	held.unlock()
	l.cfg.Shared.redirects.add(counts)
	l.handAll(deliveries)
	clear(deliveries)
	w.deliveries = deliveries
	return err
}
