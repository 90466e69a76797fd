//go:build linux

package locksidecar

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// bell lets one goroutine wait for what comes in on a connection while another one
// reads it, without being woken by what that one waits for. It is an epoll instance
// that watches the connection, and is itself watched by Go's poller. It rings once,
// if it is armed: arming and disarming are short system calls, where a timer that
// is set for every lock would cost several times as much.
type bell struct {
	epoll *os.File
	rings syscall.RawConn // epoll's
	conn  syscall.RawConn

	// Of the one who arms and disarms.
	events uint32
	errno  error
	modify func(conn uintptr)
}

// once: what has rung is quiet until it is armed again, even at the end of the
// connection.
const once = syscall.EPOLLONESHOT

// newBell returns a bell for a connection; it is not armed.
func newBell(conn syscall.RawConn) (*bell, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	// Without this, os takes it for a file that cannot be waited for.
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	b := &bell{epoll: os.NewFile(uintptr(fd), "epoll"), conn: conn}
	b.modify = func(conn uintptr) {
		b.errno = syscall.EpollCtl(fd, syscall.EPOLL_CTL_MOD, int(conn), &syscall.EpollEvent{Events: b.events})
	}
	add := func(conn uintptr) {
		b.errno = syscall.EpollCtl(fd, syscall.EPOLL_CTL_ADD, int(conn), &syscall.EpollEvent{Events: once})
	}
	b.rings, err = b.epoll.SyscallConn()
	if err == nil {
		err = b.epoll.SetReadDeadline(time.Time{}) // refused if the poller does not take it
	}
	if err == nil {
		err = conn.Control(add)
	}
	if err == nil {
		err = b.errno
	}
	if err != nil {
		b.epoll.Close()
		return nil, err
	}
	return b, nil
}

// arm has the bell ring when there is, or comes, something to be read, or the
// connection ends; false: the connection was closed.
func (b *bell) arm() bool { return b.watch(syscall.EPOLLIN | once) }

// disarm has it not ring for what comes in. It may still ring at the connection's end.
func (b *bell) disarm() { b.watch(once) }

func (b *bell) watch(events uint32) bool {
	b.events = events
	return b.conn.Control(b.modify) == nil && b.errno == nil
}

// wait returns when the bell has rung. It may have rung for what was read since.
func (b *bell) wait() {
	if b.rings.Read(hasRung) != nil {
		_ = b.epoll.SetReadDeadline(time.Time{})
	}
}

// hasRung tells whether an epoll instance has something to tell, and takes it. It does
// not wait, and need not be announced: see package rawio.
func hasRung(epoll uintptr) bool {
	var got syscall.EpollEvent
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&got)), 1, 0, 0, 0)
	return errno == 0 && n > 0
}

// ring has wait return.
func (b *bell) ring() { _ = b.epoll.SetReadDeadline(time.Unix(1, 0)) }

func (b *bell) close() { b.epoll.Close() }
