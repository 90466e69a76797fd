package locksidecar

import (
	"net"
	"sync"
	"syscall"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
)

// outbox holds frames until the socket takes them. Neither queue nor flush ever
// blocks, so that a sidecar that is stopped keeps no caller from its context: what
// the socket does not take at once is written by a goroutine.
type outbox struct {
	nc  net.Conn
	raw syscall.RawConn // nil: there is none

	mu      sync.Mutex // guards what follows; no other lock is taken under it
	buf     []byte     // frames to be written
	spare   []byte     // a buffer to be used next
	bound   int        // offer takes nothing while more bytes than that are unwritten
	dammed  bool       // what is queued goes behind
	behind  []byte     // frames that are not to be written yet
	writing bool       // somebody writes, and sees to buf after that
	broken  bool       // nothing is taken any more
	drains  sync.WaitGroup

	// Of the one who writes.
	part  []byte
	wrote int
	errno error
	try   func(fd uintptr) bool
}

// maxUnwritten bounds what a sidecar that does not read makes us keep. Releases and
// cancels go beyond it: there is at most one for each lock that is held or waited for.
const maxUnwritten = 1 << 20

func newOutbox(nc net.Conn, raw syscall.RawConn) *outbox {
	o := &outbox{nc: nc, raw: raw, bound: maxUnwritten}
	o.try = o.writeSome
	return o
}

// queue adds a frame to those that flush writes.
func (o *outbox) queue(m protocol.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(m)
}

// offer queues a frame, unless too much is queued already.
func (o *outbox) offer(m protocol.Request) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.buf)+len(o.behind) > o.bound {
		return false
	}
	o.add(m)
	return true
}

func (o *outbox) add(m protocol.Request) {
	switch {
	case o.broken: // the reader finds out why
	case o.dammed:
		o.behind = m.Append(o.behind)
	default:
		o.buf = m.Append(o.buf)
	}
}

// dam has what is queued from now on wait for open.
func (o *outbox) dam() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dammed = true
}

// open lets go what waited behind the dam.
func (o *outbox) open() {
	o.mu.Lock()
	o.dammed = false
	if !o.broken {
		o.buf = append(o.buf, o.behind...)
	}
	o.behind = nil
	o.mu.Unlock()
	o.flush()
}

// settle says that what is queued now counts for nothing in the bound: it was
// taken from its askers before.
func (o *outbox) settle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bound = maxUnwritten + len(o.buf) + len(o.behind)
}

// favours is how often in a row one caller writes, because others queued while it
// did. To have a goroutine do it costs more, but this caller has an answer to wait
// for.
const favours = 4

// flush writes what is queued, unless somebody else is writing.
func (o *outbox) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing || o.broken || len(o.buf) == 0 {
		return
	}
	o.writing = true
	if o.raw == nil {
		o.handOver()
		return
	}

	for round := 1; ; round++ {
		o.part, o.buf = o.buf, o.spare[:0]
		o.wrote, o.errno = 0, nil
		o.mu.Unlock()
		err := o.raw.Write(o.try)
		o.mu.Lock()
		if err == nil {
			err = o.errno
		}
		rest := o.part[o.wrote:]
		o.spare = o.part
		switch {
		case err != nil:
			o.fail()
			return
		case len(rest) > 0:
			o.buf = append(rest, o.buf...)
			o.spare = nil
			o.handOver()
			return
		case len(o.buf) == 0:
			o.writing = false
			return
		case round == favours:
			o.handOver()
			return
		}
	}
}

// writeSome writes part as far as the socket takes it.
func (o *outbox) writeSome(fd uintptr) bool {
	for o.wrote < len(o.part) {
		n, err := rawio.Write(fd, o.part[o.wrote:])
		o.wrote += n
		switch err {
		case nil, syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			o.errno = err
		}
		break
	}
	return true // do not wait until there is room
}

// fail drops everything. The caller holds mu.
func (o *outbox) fail() {
	o.broken, o.writing = true, false
	o.buf, o.behind, o.spare, o.part = nil, nil, nil, nil
}

// handOver has a goroutine write what is queued. The caller holds mu.
func (o *outbox) handOver() { o.drains.Go(o.drain) }

func (o *outbox) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.buf) > 0 && !o.broken {
		b := o.buf
		o.buf = o.spare[:0]
		o.mu.Unlock()
		_, err := o.nc.Write(b)
		o.mu.Lock()
		o.spare = b
		if err != nil {
			o.fail()
		}
	}
	o.writing = false
}

// close returns when nobody writes any more. The connection must be closed.
func (o *outbox) close() {
	o.mu.Lock()
	o.broken = true
	o.mu.Unlock()
	o.drains.Wait()
}
