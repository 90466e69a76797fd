// Package rawio makes the short system calls that sockets need without announcing them
// to Go's scheduler.
//
// An announced system call costs little while the runtime's monitor thread is awake. In
// a program that is idle between two requests that thread sleeps, and each announced
// call wakes it, so that it can take the processor away if the call blocks. A call that
// only copies a few bytes from or to the kernel cannot block: a daemon under load spent
// a fifth of its time on that thread.
package rawio

import (
	"io"
	"os"
	"syscall"
)

// maxInline bounds what one unannounced call copies: the time for more could be long
// enough for the scheduler to miss the thread.
const maxInline = 32 << 10

// maxInlineReads is how many reads in a row may find data before one of them is
// announced. A goroutine that always finds data never blocks. The monitor thread must be
// awake then, because it is what takes the processor away from such a goroutine.
const maxInlineReads = 16

// A Reader reads a connection. If there is no data it waits like the connection's own
// Read, within the connection's deadline. One goroutine at a time may use it.
type Reader struct {
	// Empty, if it is not nil, is called whenever Read finds no data and is about to wait.
	// It must not use the connection's deadline or read from it.
	Empty func()

	conn    syscall.RawConn
	try     func(fd uintptr) bool // tryRead
	buf     []byte
	n       int
	err     error
	inARow  int  // reads since the last one that waited or was announced
	waiting bool // the read under way waits for data
}

// NewReader returns a Reader of a connection.
func NewReader(conn syscall.RawConn) *Reader {
	r := &Reader{conn: conn}
	r.try = r.tryRead
	return r
}

func (r *Reader) Read(b []byte) (int, error) { return r.read(b, true) }

// ReadNow is Read that does not wait: if there is no data the error is syscall.EAGAIN.
func (r *Reader) ReadNow(b []byte) (int, error) { return r.read(b, false) }

func (r *Reader) read(b []byte, wait bool) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	r.buf, r.n, r.err, r.waiting = b, 0, nil, wait
	err := r.conn.Read(r.try)
	r.buf = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != nil:
		return 0, os.NewSyscallError("read", r.err)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// tryRead reads once. It returns false if there is no data and the read waits.
func (r *Reader) tryRead(fd uintptr) bool {
	read := Read
	if r.inARow++; r.inARow > maxInlineReads {
		r.inARow = 0
		read = schedAwareRead
	}
	for {
		r.n, r.err = read(fd, r.buf)
		switch r.err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			r.inARow = 0
			if r.waiting && r.Empty != nil {
				r.Empty()
			}
			return !r.waiting
		}
		return true
	}
}
