package rawio

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// A ReadNotifier lets one goroutine wait for data on a connection that other goroutines
// read, without being woken for the data that those wait for. It is a one-shot epoll
// instance that watches the connection, and Go's poller watches the epoll instance. It
// notifies once each time it is armed. To arm and to disarm it are short system calls; a
// timer that is set for every lock costs several times as much.
//
// Arm and Disarm are not safe for concurrent use. The other methods are.
type ReadNotifier struct {
	epoll *os.File
	ready syscall.RawConn // of epoll
	conn  syscall.RawConn

	// For Arm and Disarm.
	events uint32
	errno  error
	modify func(conn uintptr)
}

// oneShot alone watches for nothing that comes in. After a notification the kernel does
// not report the connection again before the next Arm, not even its end.
const oneShot = syscall.EPOLLONESHOT

// NewReadNotifier returns a notifier for a connection. It is not armed.
func NewReadNotifier(conn syscall.RawConn) (*ReadNotifier, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	// A blocking descriptor is a file that Go's poller does not watch.
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	n := &ReadNotifier{epoll: os.NewFile(uintptr(fd), "epoll"), conn: conn}
	n.modify = func(conn uintptr) {
		n.errno = syscall.EpollCtl(fd, syscall.EPOLL_CTL_MOD, int(conn), &syscall.EpollEvent{Events: n.events})
	}
	add := func(conn uintptr) {
		n.errno = syscall.EpollCtl(fd, syscall.EPOLL_CTL_ADD, int(conn), &syscall.EpollEvent{Events: oneShot})
	}
	n.ready, err = n.epoll.SyscallConn()
	if err == nil {
		err = n.epoll.SetReadDeadline(time.Time{}) // fails if Go's poller does not watch it
	}
	if err == nil {
		err = conn.Control(add)
	}
	if err == nil {
		err = n.errno
	}
	if err != nil {
		n.epoll.Close()
		return nil, err
	}
	return n, nil
}

// Arm makes the notifier notify as soon as there is data to read, or the connection ends.
// It returns false if the connection was closed.
func (n *ReadNotifier) Arm() bool { return n.watch(syscall.EPOLLIN | oneShot) }

// Disarm makes the notifier ignore data. It may still notify of the connection's end.
func (n *ReadNotifier) Disarm() { n.watch(oneShot) }

func (n *ReadNotifier) watch(events uint32) bool {
	n.events = events
	return n.conn.Control(n.modify) == nil && n.errno == nil
}

// Wait returns after a notification or an Interrupt. The data may have been read since.
func (n *ReadNotifier) Wait() {
	if n.ready.Read(takeEvent) != nil {
		_ = n.epoll.SetReadDeadline(time.Time{})
	}
}

// takeEvent takes an event from an epoll instance, and reports whether there was one. It
// does not wait.
func takeEvent(epoll uintptr) bool {
	var event syscall.EpollEvent
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&event)), 1, 0, 0, 0)
	return errno == 0 && n > 0
}

// Interrupt makes a Wait return: the one under way, or else the next one.
func (n *ReadNotifier) Interrupt() { _ = n.epoll.SetReadDeadline(time.Unix(1, 0)) }

func (n *ReadNotifier) Close() { n.epoll.Close() }
