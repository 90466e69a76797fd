package rawio

import (
	"errors"
	"io"
	"sync"
	"syscall"
)

// A Writer sends bytes over one connection, in the order in which they are queued, and
// keeps no caller waiting for the peer. Flush writes what the socket takes at once. A
// goroutine writes the rest; it lives only while there is a rest.
//
// The owner's mutex guards the Writer: the caller of a method holds it, except for Wait.
// Flush releases it for the time of a system call.
type Writer struct {
	// Queued holds the bytes that no write has taken yet. The owner appends to it
	// while Accepts is true.
	Queued []byte

	// OnWrite, if it is not nil, is called with the mutex held after each write that
	// left the Writer open.
	OnWrite func()

	// OnClose, if it is not nil, is called with the mutex held when the Writer closes.
	// err is nil if all bytes were written, after Finish.
	OnClose func(err error)

	mu   *sync.Mutex
	conn io.Writer
	raw  syscall.RawConn // nil: the goroutine writes everything

	state writerState
	err   error          // why nothing may be queued any more
	begun int64          // bytes that writes have taken from Queued: the position of Queued[0]
	sent  int64          // see Sent
	spare []byte         // the buffer that follows Queued; empty
	busy  sync.WaitGroup // has one while a goroutine is responsible for writing

	// Changed by the goroutine that writes, with the mutex held; read by it without.
	part  []byte // taken from Queued, and not written yet; empty: there is none
	wrote int    // bytes of part

	// Of the goroutine that writes, during a system call.
	n     int
	errno error
	try   func(fd uintptr) bool // tryWrite
}

// writerState is what a Writer does with the bytes that are queued.
//
//	         Flush, if bytes are queued
//	idle ──────────────────────────────────► writing
//	 │ ▲                                      │   │
//	 │ └──────────────────────────────────────┘   │
//	 │           all bytes are written            │
//	 │ Finish                              Finish │
//	 └────────────────► draining ◄────────────────┘
//	                       │ all bytes are written
//	                       ▼
//	                    closed ◄── Close or a failed write, in every state
type writerState uint8

const (
	// Bytes may be queued. No goroutine writes. The next Flush ends it.
	idle writerState = iota

	// Bytes may be queued. One goroutine writes until all are written: the one that
	// called Flush, or a goroutine of the Writer's own.
	writing

	// Nothing may be queued. One goroutine writes what was queued before.
	draining

	// Nothing may be queued. What was not written is discarded. It has no end.
	closed
)

// ErrFinished is the Err of a Writer on which Finish was called.
var ErrFinished = errors.New("rawio: the writer is finished")

// maxInlineFlushes bounds how often in a row one caller of Flush writes, because other
// goroutines queued bytes meanwhile. It is cheaper than to start a goroutine for them,
// but the caller has work of its own.
const maxInlineFlushes = 4

// maxSpare bounds the buffers that are kept for later: a burst's memory is freed.
const maxSpare = 256 << 10

// NewWriter returns a Writer to a connection, whose Write may block. raw is of the same
// connection, or nil if bytes cannot be given to its socket directly.
func NewWriter(mu *sync.Mutex, conn io.Writer, raw syscall.RawConn) *Writer {
	w := &Writer{mu: mu, conn: conn, raw: raw}
	w.try = w.tryWrite
	return w
}

// Accepts reports whether bytes may be queued.
func (w *Writer) Accepts() bool { return w.state == idle || w.state == writing }

// Err returns why nothing may be queued any more, or nil: ErrFinished, the error of a
// write, or the argument of Close, whichever was first.
func (w *Writer) Err() error { return w.err }

// Begun is the position of the first byte of Queued in the stream of all bytes.
func (w *Writer) Begun() int64 { return w.begun }

// End is the position after the last byte of Queued.
func (w *Writer) End() int64 { return w.begun + int64(len(w.Queued)) }

// Sent is the position before which the peer may have received bytes. It has certainly
// received none after it.
func (w *Writer) Sent() int64 { return w.sent }

// Unwritten is how many bytes wait to be taken by the socket.
func (w *Writer) Unwritten() int {
	if w.state == closed {
		return 0
	}
	return len(w.Queued) + len(w.part) - w.wrote
}

// Flush writes what is queued, unless another goroutine is writing: then that one does.
func (w *Writer) Flush() {
	if w.state != idle || len(w.Queued) == 0 {
		return
	}
	w.state = writing
	w.busy.Add(1)
	if w.raw == nil {
		go w.drain()
		return
	}
	for range maxInlineFlushes {
		w.take()
		w.mu.Unlock()
		w.n, w.errno = 0, nil
		err := w.raw.Write(w.try)
		if err == nil {
			err = w.errno
		}
		w.mu.Lock()
		w.onWrite(w.n, err)
		if w.state == closed || w.isEmpty() {
			w.rest()
			return
		}
		if len(w.part) > 0 {
			break // the socket is full
		}
	}
	go w.drain()
}

// tryWrite writes part as far as the socket takes it, and never waits.
func (w *Writer) tryWrite(fd uintptr) bool {
	for b := w.part[w.wrote:]; w.n < len(b); {
		n, err := Write(fd, b[w.n:])
		w.n += n
		switch err {
		case nil, syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			w.errno = err
		}
		break
	}
	return true
}

// drain writes, and waits for the socket, until nothing is left.
func (w *Writer) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.state != closed && !w.isEmpty() {
		if len(w.part) == 0 {
			w.take()
		}
		w.sent = w.begun
		w.mu.Unlock()
		n, err := w.conn.Write(w.part[w.wrote:])
		w.mu.Lock()
		w.onWrite(n, err)
	}
	w.rest()
}

// isEmpty reports whether all bytes are written.
func (w *Writer) isEmpty() bool { return len(w.Queued) == 0 && len(w.part) == 0 }

// take makes what is queued the part that is written next.
func (w *Writer) take() {
	w.part, w.wrote = w.Queued, 0
	w.begun += int64(len(w.Queued))
	w.sent = w.begun
	w.Queued, w.spare = w.spare, nil
}

// onWrite notes the result of a write of what was left of part.
func (w *Writer) onWrite(n int, err error) {
	w.wrote += n
	w.sent = w.begun - int64(len(w.part)-w.wrote)
	if w.wrote == len(w.part) {
		w.recycle(w.part[:0])
		w.part, w.wrote = nil, 0
	}
	switch {
	case err != nil:
		w.Close(err)
	case w.state != closed && w.OnWrite != nil:
		w.OnWrite()
	}
}

// recycle keeps a buffer for later. One is enough while nothing is queued during writes.
func (w *Writer) recycle(b []byte) {
	switch {
	case cap(b) > maxSpare, w.state == closed:
	case cap(w.Queued) == 0:
		w.Queued = b
	default:
		w.spare = b
	}
}

// rest is called by the goroutine that wrote, when there is nothing to be written.
func (w *Writer) rest() {
	switch w.state {
	case writing:
		w.state = idle
	case draining:
		w.close(nil)
	case closed:
		w.part = nil
	}
	w.busy.Done()
}

// Finish ends the stream: nothing may be queued any more, what is queued is written, and
// then the Writer closes.
func (w *Writer) Finish() {
	if !w.Accepts() {
		return
	}
	w.err = ErrFinished
	if w.state == idle {
		w.busy.Add(1)
		go w.drain()
	}
	w.state = draining
}

// Close discards what is not written, and returns false if the Writer was closed before.
// A write may be under way. It ends when its connection is closed, or when the socket
// takes its bytes.
func (w *Writer) Close(why error) bool {
	if w.state == closed {
		return false
	}
	if w.err == nil {
		w.err = why
	}
	w.close(why)
	return true
}

func (w *Writer) close(err error) {
	w.state = closed
	w.Queued, w.spare = nil, nil
	if w.OnClose != nil {
		w.OnClose(err)
	}
}

// Wait returns when no goroutine writes, and none will. The Writer must have been closed
// or finished. The caller does not hold the mutex.
func (w *Writer) Wait() { w.busy.Wait() }
