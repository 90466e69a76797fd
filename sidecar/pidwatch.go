package sidecar

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// pidWatch tells when a session's process has ended. The end of the connection
// is not enough: a forked child may keep the socket open.
//
// All pidfds wait in one epoll set, so that a session costs a descriptor and no
// goroutine.
type pidWatch struct {
	epoll, stop int
	done        chan struct{}
}

func watchPids(exited func(locktable.SessionID)) (*pidWatch, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll for the clients' processes: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("eventfd for the clients' processes: %w", err)
	}
	w := &pidWatch{epoll: epoll, stop: stop, done: make(chan struct{})}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		unix.Close(epoll)
		unix.Close(stop)
		return nil, fmt.Errorf("epoll for the clients' processes: %w", err)
	}
	go w.run(exited)
	return w, nil
}

func (w *pidWatch) run(exited func(locktable.SessionID)) {
	defer close(w.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // only if the descriptor is gone
		}
		for _, e := range events[:n] {
			id := locktable.SessionID(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32)
			if id == 0 {
				return
			}
			exited(id)
		}
	}
}

// add watches the process of a session, once. The session's number must not be 0.
func (w *pidWatch) add(id locktable.SessionID, pidfd int) error {
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, pidfd, &unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLONESHOT,
		Fd:     int32(uint32(id)), Pad: int32(uint32(id >> 32)),
	})
}

func (w *pidWatch) close() {
	// The counter's value does not matter; that it can be read does.
	_, _ = unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-w.done
	unix.Close(w.epoll)
	unix.Close(w.stop)
}
