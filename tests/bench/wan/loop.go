package wan

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop is the proxy's one thread and everything it owns. Its sockets do not
// block; only wait does.
type loop struct {
	oneWay int64 // ns
	limit  int   // bytes on their way in one direction of a connection
	target unix.SockaddrInet4
	addr   string
	began  time.Time

	epoll, listener int
	wake            *os.File

	sides   map[int32]*side // by descriptor
	coming  fifo[arrival]   // what is on its way, of all connections
	ready   [128]unix.EpollEvent
	scratch [64 << 10]byte
}

// An arrival is what happens at the far end of a way: bytes come, or its end.
type arrival struct {
	at   int64 // ns since began
	from *side
	n    int // bytes
	what ending
}

// open makes the descriptors.
func (l *loop) open() (err error) {
	l.epoll, l.listener = -1, -1
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if _, err := l.wait(0); err != nil {
		return fmt.Errorf("%w (Linux 5.11 or newer is needed)", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	l.wake = os.NewFile(uintptr(wake), "eventfd")
	if l.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(l.listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(l.listener, unix.SOMAXCONN); err != nil {
		return os.NewSyscallError("listen", err)
	}
	addr, err := unix.Getsockname(l.listener)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	l.addr = fmt.Sprintf("127.0.0.1:%d", addr.(*unix.SockaddrInet4).Port)
	for _, fd := range []int{wake, l.listener} {
		if err := l.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
			return err
		}
	}
	return nil
}

// free resets all connections and gives back every descriptor except wake, which
// others may still write to.
func (l *loop) free() {
	for _, s := range l.sides {
		l.close(s, true)
	}
	for _, fd := range []int{l.listener, l.epoll} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// run serves until wake is written to.
func (l *loop) run() error {
	// The thread ends with this goroutine, and its setting with the thread: to be
	// woken on time, and not with whatever else is due within 50 µs.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	wake := int32(l.wake.Fd())
	for {
		sleep := int64(-1)
		if next, ok := l.coming.first(); ok {
			sleep = max(0, next.at-l.now())
		}
		n, err := l.wait(sleep)
		if err != nil {
			return err
		}
		if err := l.arrive(); err != nil {
			return err
		}
		for _, event := range l.ready[:n] {
			switch event.Fd {
			case wake:
				return nil
			case int32(l.listener):
				if err := l.accept(); err != nil {
					return err
				}
			default:
				// It may be gone by an event before this one. If its descriptor
				// is another's by now, that one finds nothing to read.
				if s := l.sides[event.Fd]; s != nil {
					if err := l.serve(s, event.Events); err != nil {
						return err
					}
				}
			}
		}
	}
}

func (l *loop) now() int64 { return int64(time.Since(l.began)) }

// wait sleeps until something is ready, or for ns nanoseconds unless that is
// negative, and returns how many are ready. It may return early with none.
func (l *loop) wait(ns int64) (int, error) {
	var timeout *unix.Timespec
	if ns >= 0 {
		t := unix.NsecToTimespec(ns)
		timeout = &t
	}
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epoll),
		uintptr(unsafe.Pointer(&l.ready)), uintptr(len(l.ready)), uintptr(unsafe.Pointer(timeout)), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, nil
	}
	return 0, os.NewSyscallError("epoll_pwait2", errno)
}

// watch changes what epoll reports of a descriptor.
func (l *loop) watch(op, fd int, events uint32) error {
	err := unix.EpollCtl(l.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	return os.NewSyscallError("epoll_ctl", err)
}

// accept takes one new connection and begins to connect it to the target. If that
// fails, the target's socket says so when it is read.
func (l *loop) accept() error {
	near, _, err := unix.Accept4(l.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	switch err {
	case nil:
	case unix.EAGAIN, unix.EINTR, unix.ECONNABORTED:
		return nil
	default:
		return os.NewSyscallError("accept4", err)
	}
	far, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		unix.Close(near)
		return os.NewSyscallError("socket", err)
	}
	a, b := &side{fd: near}, &side{fd: far}
	a.peer, b.peer = b, a
	l.sides[int32(near)], l.sides[int32(far)] = a, b
	for _, s := range []*side{a, b} {
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Connect(far, &l.target); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		l.say(b, reset)
	}
	return l.attend(a)
}
