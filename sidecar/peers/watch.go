package peers

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// Watch reports when the process of a session has ended. The end of the connection
// is not enough: a forked child may keep the socket open. A session costs a descriptor,
// its pidfd, and no goroutine.
type Watch struct{ poller *rawio.Poller }

// NewWatch makes a watch, which calls exited on a goroutine of its own.
func NewWatch(exited func(locktable.SessionID)) (*Watch, error) {
	poller, err := rawio.NewPoller(func(key uint64) { exited(locktable.SessionID(key)) })
	if err != nil {
		return nil, fmt.Errorf("epoll for the clients' processes: %w", err)
	}
	return &Watch{poller}, nil
}

// Add watches the process of a session, once. The session's number must not be 0.
func (w *Watch) Add(id locktable.SessionID, pidfd int) error {
	return w.poller.Add(uint64(id), pidfd)
}

// Close ends the watch.
func (w *Watch) Close() { w.poller.Close() }

// ClosePidfd closes a pidfd, unless it is −1, which it is then. That takes it out of the watch, too.
func ClosePidfd(fd *int) {
	if *fd >= 0 {
		unix.Close(*fd)
		*fd = -1
	}
}
