package sidecar

import (
	"fmt"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// pidWatch reports when the process of a session has ended. The end of the connection
// is not enough: a forked child may keep the socket open. A session costs a descriptor,
// its pidfd, and no goroutine.
type pidWatch struct{ poller *rawio.Poller }

func watchPids(exited func(locktable.SessionID)) (*pidWatch, error) {
	poller, err := rawio.NewPoller(func(key uint64) { exited(locktable.SessionID(key)) })
	if err != nil {
		return nil, fmt.Errorf("epoll for the clients' processes: %w", err)
	}
	return &pidWatch{poller}, nil
}

// add watches the process of a session, once. The session's number must not be 0.
func (w *pidWatch) add(id locktable.SessionID, pidfd int) error {
	return w.poller.Add(uint64(id), pidfd)
}

func (w *pidWatch) close() { w.poller.Close() }
