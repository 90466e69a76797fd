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

// endpointInterval is how often a sidecar finds out whether its socket and its state are where
// clients and successors look for them. It costs three stats.
const endpointInterval = 2 * time.Second

// endpoint is the listening socket of a sidecar, and the file that leads clients to it.
//
// The file may be removed or replaced while the sidecar runs: by hand, by a program that
// cleans up, or by systemd when the socket unit is restarted. No client can connect then,
// and the socket does not show it. So check compares the inode of the file now and then; while
// the socket exists, no other file has that inode. If there is no file, check makes the
// socket again, also in the place of one that systemd made. If there is another file, that
// belongs to another process: then the trouble is reported.
type endpoint struct {
	log       *slog.Logger
	path      string // "": an abstract socket, which has no file
	inherited bool   // systemd made the socket, and has another one if the file was replaced

	mu       sync.Mutex // guards what follows
	listener *net.UnixListener
	previous *net.UnixListener // the one before; clients may be in its queue until the next check
	lock     *socketLock       // nil for an inherited socket
	file     unix.Stat_t       // of the file at path that leads to listener; Ino 0: it was not there
	mode     os.FileMode       // for a socket that is made again
	gid      int               // the same; -1: the group of this process
	dirMode  os.FileMode       // of the directory, if that is made again
	ownsFile bool              // listener is not the inherited socket
	closed   bool
	trouble  string // why clients cannot connect; "": they can
}

func newEndpoint(cfg *Config, l *net.UnixListener, lock *socketLock) *endpoint {
	e := &endpoint{log: cfg.Log, path: l.Addr().String(), inherited: cfg.Listener != nil, listener: l, lock: lock,
		mode: cfg.SocketMode, gid: -1, dirMode: 0o755, ownsFile: cfg.Listener == nil}
	if e.path == "" || e.path[0] == '@' {
		e.path = ""
		return e
	}
	// The file goes when this sidecar stops, but only if it is still the one that leads here.
	l.SetUnlinkOnClose(false)
	if err := unix.Lstat(e.path, &e.file); err != nil {
		e.file = unix.Stat_t{}
		return e
	}
	e.mode, e.gid = os.FileMode(e.file.Mode).Perm(), int(e.file.Gid)
	if dir, err := os.Stat(filepath.Dir(e.path)); err == nil {
		e.dirMode = dir.Mode().Perm()
	}
	if _, yes := probeListener(e.path); !yes && e.inherited {
		// A dead sidecar that was given the same socket made this file, in place of one
		// that had been removed. It leads nowhere.
		e.file = unix.Stat_t{}
	}
	return e
}

// check returns the listener of a socket that it made again, or nil.
func (e *endpoint) check() *net.UnixListener {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.path == "" || e.closed {
		return nil
	}
	if e.previous != nil {
		e.previous.Close()
		e.previous = nil
	}
	if e.isInPlace() {
		if e.trouble != "" {
			e.log.Info("clients can connect again", "socket", e.path)
			e.trouble = ""
		}
		return nil
	}
	l, err := e.recreate()
	if err != nil {
		trouble := fmt.Sprintf("clients cannot connect: the file %s was removed or replaced, and the socket cannot be made again: %v", e.path, err)
		if trouble != e.trouble {
			e.log.Error("clients cannot connect", "socket", e.path, "reason", err)
		}
		e.trouble = trouble
		return nil
	}
	e.log.Warn("the socket was removed, and is made again; find out which program removed it", "socket", e.path)
	e.trouble = ""
	return l
}

// isInPlace reports whether the file at path is that of the listener. The caller holds mu.
func (e *endpoint) isInPlace() bool {
	var st unix.Stat_t
	err := unix.Lstat(e.path, &st)
	return err == nil && st.Ino == e.file.Ino && st.Dev == e.file.Dev
}

var errReplaced = errors.New("there is another file in its place; remove it, or, if systemd made it, restart the sidecar")

// recreate makes the socket and its file again. The caller holds mu.
func (e *endpoint) recreate() (*net.UnixListener, error) {
	if st, err := os.Lstat(e.path); err == nil {
		if _, yes := probeListener(e.path); yes || st.Mode()&os.ModeSocket == 0 {
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
	if err := unix.Lstat(e.path, &e.file); err != nil {
		e.file = unix.Stat_t{} // removed at once: the next check finds that out
	}
	e.previous, e.listener, e.ownsFile = e.listener, l, true
	return l, nil
}

// makeDirectory makes the directory of the socket if it was removed, as it was.
func (e *endpoint) makeDirectory() error {
	dir := filepath.Dir(e.path)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, e.dirMode); err != nil {
		return err
	}
	return os.Chmod(dir, e.dirMode) // whatever the umask is
}

// unreachable returns why clients cannot connect; "": they can. restart: a restart by
// systemd would bring the socket to which the file leads, because a process listens on it.
func (e *endpoint) unreachable() (why string, restart bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.trouble == "" || !e.inherited {
		return e.trouble, false
	}
	_, yes := probeListener(e.path)
	return e.trouble, yes
}

// close ends the listening, and removes the file of a socket that this process made.
func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.closed = true
	if e.ownsFile && e.path != "" && e.isInPlace() {
		_ = os.Remove(e.path)
	}
	e.listener.Close()
	if e.previous != nil {
		e.previous.Close()
	}
}

// unlock lets another process claim the socket.
func (e *endpoint) unlock() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lock != nil {
		e.lock.close()
	}
}
