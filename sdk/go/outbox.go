package locksidecar

import (
	"net"
	"sync"
	"syscall"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
)

// outbox holds frames until the socket takes them. Neither queue nor flush ever blocks,
// so that a sidecar that is stopped does not keep a caller past the end of its context.
type outbox struct {
	mu    sync.Mutex // guards what follows; no other mutex is taken under it
	w     *rawio.Writer
	limit int    // offer takes nothing while more bytes than that are queued or held
	held  bool   // frames that are queued wait for unhold
	later []byte // those frames
}

// maxUnwritten bounds the memory for frames that the sidecar does not read. Releases and
// cancels exceed it: there is at most one for each lock that is held or waited for.
const maxUnwritten = 1 << 20

// newOutbox returns the outbox of a connection. raw is nil if it has no descriptor.
func newOutbox(nc net.Conn, raw syscall.RawConn) *outbox {
	o := &outbox{limit: maxUnwritten}
	o.w = rawio.NewWriter(&o.mu, nc, raw)
	return o
}

// queue adds a frame to those that flush writes.
func (o *outbox) queue(m protocol.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.addLocked(m)
}

// offer queues a frame, unless more than limit is queued already.
func (o *outbox) offer(m protocol.Request) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.w.Queued)+len(o.later) > o.limit {
		return false
	}
	o.addLocked(m)
	return true
}

func (o *outbox) addLocked(m protocol.Request) {
	switch {
	case !o.w.Accepts(): // the goroutine that reads finds out why
	case o.held:
		o.later = m.Append(o.later)
	default:
		o.w.Queued = m.Append(o.w.Queued)
	}
}

// hold makes the frames that are queued from now on wait for unhold.
func (o *outbox) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = true
}

// unhold ends hold, and writes the frames that waited.
func (o *outbox) unhold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = false
	if o.w.Accepts() {
		o.w.Queued = append(o.w.Queued, o.later...)
	}
	o.later = nil
	o.w.Flush()
}

// raiseLimit excludes what is queued now from the limit: each of these frames was
// admitted under it before, on another connection.
func (o *outbox) raiseLimit() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limit = maxUnwritten + len(o.w.Queued) + len(o.later)
}

// flush writes what is queued, unless another goroutine is writing.
func (o *outbox) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.w.Flush()
}

// close returns when no goroutine writes any more. The connection must be closed.
func (o *outbox) close() {
	o.mu.Lock()
	o.w.Close(net.ErrClosed)
	o.mu.Unlock()
	o.w.Wait()
}
