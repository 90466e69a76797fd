package sidecar

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// endpointInterval is how often a sidecar checks that its socket and its state are where
// clients and successors look for them. A check costs three stats.
const endpointInterval = 2 * time.Second

// endpoint is the listening socket of a sidecar, and the file by which clients reach it.
//
// A person, a program that cleans up, or systemd with a restart of the socket unit may remove
// or replace the file while the sidecar runs. Then no client can connect, and the listening
// socket shows no error. So check compares the inode of the file with the one from before; no
// other file has that inode while the socket exists. If there is no file, check makes the
// socket again, also in the place of one that systemd made. If there is another file, it
// belongs to another process, and check reports the problem.
type endpoint struct {
	log       *slog.Logger
	path      string // "": an abstract socket, which has no file
	inherited bool   // systemd made the socket; if the file was replaced, systemd has a new one

	mu       sync.Mutex // guards what follows
	phase    endpointPhase
	problem  string // in endpointUnreachable: why clients cannot connect
	listener *net.UnixListener
	previous *net.UnixListener // before the socket was made again: its queue may have clients until the next check
	lock     *socketLock       // nil for an inherited socket
	file     *fileID           // the file that leads to listener; nil: there is none
	ownsFile bool              // this process made the file, and removes it when it stops
	mode     os.FileMode       // of the file, if it is made again
	gid      int               // the same; -1: the group of this process
	dirMode  os.FileMode       // of the directory, if it is made again
}

// endpointPhase is the state of an endpoint.
//
//	             check: the file is gone, and was made again
//	                     ┌───────────┐
//	                     ▼           │
//	listening ──► endpointReachable ─┘
//	                │    ▲
//	 check: the file│    │check: the file is
//	 was replaced,  │    │back, or was
//	 or cannot be   │    │made again
//	 made again     ▼    │
//	           endpointUnreachable
//
//	 either ── close ──► endpointClosed
type endpointPhase uint8

const (
	endpointReachable   endpointPhase = iota // clients can connect, as of the last check
	endpointUnreachable                      // they cannot, for the reason in problem; each check tries again
	endpointClosed                           // no listener is open, and check does nothing
)

// fileID identifies a file as long as it exists.
type fileID struct{ dev, ino uint64 }

// fileAt returns the file at a path, which may be a symbolic link; nil: there is none.
func fileAt(path string) *fileID {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return nil
	}
	return &fileID{dev: uint64(st.Dev), ino: st.Ino}
}

func newEndpoint(cfg *Config, l *net.UnixListener, lock *socketLock) *endpoint {
	e := &endpoint{log: cfg.Log, path: l.Addr().String(), inherited: cfg.Listener != nil, listener: l, lock: lock,
		mode: cfg.SocketMode, gid: -1, dirMode: 0o755, ownsFile: cfg.Listener == nil}
	if e.path == "" || e.path[0] == '@' {
		e.path = ""
		return e
	}
	// close removes the file, and only if it is still the one that leads to the listener.
	l.SetUnlinkOnClose(false)
	var st unix.Stat_t
	if unix.Lstat(e.path, &st) != nil {
		return e
	}
	e.mode, e.gid = os.FileMode(st.Mode).Perm(), int(st.Gid)
	if dir, err := os.Stat(filepath.Dir(e.path)); err == nil {
		e.dirMode = dir.Mode().Perm()
	}
	if _, isOpen := probeListener(e.path); isOpen || !e.inherited {
		e.file = &fileID{dev: uint64(st.Dev), ino: st.Ino}
	} // else a dead sidecar, which inherited the same socket, made the file in the place of a removed one
	return e
}

// check returns the listener of a socket that it made again, or nil.
func (e *endpoint) check() *net.UnixListener {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.path == "" || e.phase == endpointClosed {
		return nil
	}
	if e.previous != nil {
		e.previous.Close()
		e.previous = nil
	}
	if e.isInPlace() {
		if e.phase == endpointUnreachable {
			e.log.Info("clients can connect again", "socket", e.path)
			e.phase = endpointReachable
		}
		return nil
	}
	l, err := e.recreate()
	if err != nil {
		problem := fmt.Sprintf("clients cannot connect: the file %s was removed or replaced, and the socket cannot be made again: %v", e.path, err)
		if e.phase != endpointUnreachable || problem != e.problem {
			e.log.Error("clients cannot connect", "socket", e.path, "reason", err)
		}
		e.phase, e.problem = endpointUnreachable, problem
		return nil
	}
	e.log.Warn("the socket was removed, and is made again; find out which program removed it", "socket", e.path)
	e.phase = endpointReachable
	return l
}

// isInPlace reports whether the file at path is the one that leads to the listener. The caller
// holds mu.
func (e *endpoint) isInPlace() bool {
	now := fileAt(e.path)
	return now != nil && e.file != nil && *now == *e.file
}

var errReplaced = errors.New("there is another file in its place; remove it, or, if systemd made it, restart the sidecar")

// recreate makes the socket and its file again. The caller holds mu.
func (e *endpoint) recreate() (*net.UnixListener, error) {
	if st, err := os.Lstat(e.path); err == nil {
		if _, isOpen := probeListener(e.path); isOpen || st.Mode()&os.ModeSocket == 0 {
			return nil, errReplaced
		}
	}
	if err := e.makeDirectory(); err != nil {
		return nil, err
	}
	if e.lock != nil {
		if err := e.lock.renew(e.path); err != nil {
			return nil, err
		}
	}
	l, err := bind(e.path, e.mode, e.gid)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	e.file = fileAt(e.path) // nil: it was removed at once, and the next check makes another
	e.previous, e.listener, e.ownsFile = e.listener, l, true
	return l, nil
}

// makeDirectory makes the directory of the socket again, with its mode, if it was removed.
func (e *endpoint) makeDirectory() error {
	dir := filepath.Dir(e.path)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, e.dirMode); err != nil {
		return err
	}
	return os.Chmod(dir, e.dirMode) // the umask may have removed bits
}

// unreachable returns why clients cannot connect; "": they can. restart: the file leads to a
// process that listens, so a restart by systemd would give the sidecar that socket.
func (e *endpoint) unreachable() (why string, restart bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != endpointUnreachable {
		return "", false
	}
	if !e.inherited {
		return e.problem, false
	}
	_, isOpen := probeListener(e.path)
	return e.problem, isOpen
}

// close closes the listener, and removes the file if this process made it.
func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == endpointClosed {
		return
	}
	e.phase = endpointClosed
	if e.ownsFile && e.path != "" && e.isInPlace() {
		_ = os.Remove(e.path)
	}
	e.listener.Close()
	if e.previous != nil {
		e.previous.Close()
	}
}

// unlock lets another process serve the socket.
func (e *endpoint) unlock() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lock != nil {
		e.lock.close()
	}
}
