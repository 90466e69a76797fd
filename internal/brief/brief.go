//go:build linux

// Package brief reads and writes sockets that do not block, without a word to Go's
// scheduler.
//
// To announce a system call costs little while the runtime's monitor thread is awake.
// In a program that is idle between two requests it has gone to sleep, and each
// announced call wakes it, to see whether the call lasts. A call that only copies a
// few bytes from or to the kernel cannot last; a sidecar under load spent a fifth of
// its time on that thread.
package brief

import (
	"io"
	"os"
	"syscall"
	"unsafe"
)

// most is as much as is copied before the scheduler could have missed the thread.
const most = 32 << 10

// Read is read(2) on a descriptor that does not block. It does not repeat what a
// signal interrupted. It reads no more than 32 KiB, however much room there is.
func Read(fd uintptr, b []byte) (int, error) {
	b = b[:min(len(b), most)]
	if len(b) == 0 || raceEnabled {
		return announced(fd, b)
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// Write is write(2) on a descriptor that does not block. It does not repeat what a
// signal interrupted.
func Write(fd uintptr, b []byte) (int, error) {
	if len(b) == 0 || len(b) > most || raceEnabled {
		n, err := syscall.Write(int(fd), b)
		return max(n, 0), err // −1 with an error
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// restless is how many reads in a row may find something without one that is
// announced. A goroutine that always finds something never comes to rest: then the
// monitor must be awake, for it is what takes the processor from such a goroutine.
const restless = 16

// Reader reads a connection. It waits for what is not there yet like the connection's
// own Read, within the connection's deadline. One goroutine at a time may use it.
type Reader struct {
	// Empty, if it is not nil, is called whenever Read finds nothing to be read and is about
	// to wait. It must not use the connection's deadline or read from it.
	Empty func()

	conn  syscall.RawConn
	try   func(fd uintptr) bool
	room  []byte
	got   int
	err   error
	inRow int // reads since the last one that waited or was announced
	waits bool
}

// NewReader returns a Reader of a connection.
func NewReader(conn syscall.RawConn) *Reader {
	r := &Reader{conn: conn}
	r.try = r.once
	return r
}

func (r *Reader) Read(b []byte) (int, error) { return r.read(b, true) }

// ReadNow is Read that does not wait: if there is nothing to be read the error is
// syscall.EAGAIN.
func (r *Reader) ReadNow(b []byte) (int, error) { return r.read(b, false) }

func (r *Reader) read(b []byte, waits bool) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	r.room, r.got, r.err, r.waits = b, 0, nil, waits
	err := r.conn.Read(r.try)
	r.room = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != nil:
		return 0, os.NewSyscallError("read", r.err)
	case r.got == 0:
		return 0, io.EOF
	}
	return r.got, nil
}

// once reads; false: there is nothing yet.
func (r *Reader) once(fd uintptr) bool {
	read := Read
	if r.inRow++; r.inRow > restless {
		r.inRow = 0
		read = announced
	}
	for {
		r.got, r.err = read(fd, r.room)
		switch r.err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			r.inRow = 0
			if r.waits && r.Empty != nil {
				r.Empty()
			}
			return !r.waits
		}
		return true
	}
}

func announced(fd uintptr, b []byte) (int, error) {
	n, err := syscall.Read(int(fd), b)
	return max(n, 0), err // −1 with an error
}
