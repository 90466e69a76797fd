package rawio

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A Poller reports when descriptors of a set become readable, each of them once. One
// goroutine waits for all of them, so that each costs no goroutine of its own. A
// descriptor that is closed leaves the set.
type Poller struct {
	epoll, stop int
	done        chan struct{}
}

// NewPoller returns a Poller. It calls ready, one call at a time, with the key of each
// descriptor that has become readable.
func NewPoller(ready func(key uint64)) (*Poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	p := &Poller{epoll: epoll, stop: stop, done: make(chan struct{})}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, event(unix.EPOLLIN, stopKey)); err != nil {
		unix.Close(epoll)
		unix.Close(stop)
		return nil, fmt.Errorf("epoll_ctl: %w", err)
	}
	go p.run(ready)
	return p, nil
}

// stopKey is the key of the descriptor that ends run.
const stopKey = 0

func (p *Poller) run(ready func(key uint64)) {
	defer close(p.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // only if the descriptor is gone
		}
		for _, e := range events[:n] {
			key := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if key == stopKey {
				return
			}
			ready(key)
		}
	}
}

// event holds the key in the 64 bits that the kernel returns unchanged.
func event(events uint32, key uint64) *unix.EpollEvent {
	return &unix.EpollEvent{Events: events, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
}

// Add adds a descriptor to the set. The key must not be 0.
func (p *Poller) Add(key uint64, fd int) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, event(unix.EPOLLIN|unix.EPOLLONESHOT, key))
}

// Close returns when ready is not running and will not be called again.
func (p *Poller) Close() {
	// The eventfd becomes readable; the value of its counter has no meaning.
	_, _ = unix.Write(p.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-p.done
	unix.Close(p.epoll)
	unix.Close(p.stop)
}
