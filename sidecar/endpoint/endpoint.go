// Package endpoint is the socket on which a sidecar listens, and the files by which clients and other
// sidecars find it.
package endpoint

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Config says which socket a sidecar serves.
type Config struct {
	Path  string      // of the socket that the sidecar makes
	Mode  os.FileMode // of its file
	Group string      // of its file, by name or number; "": that of this process

	// Listener is a socket that another process made and keeps, such as systemd. Path, Mode and
	// Group are then not used.
	Listener *net.UnixListener

	Log *slog.Logger
}

// File is the path of the socket's file; "": the socket has none.
func (c Config) File() string {
	path := c.Path
	if c.Listener != nil {
		path = c.Listener.Addr().String()
	}
	if path == "" || path[0] == '@' {
		return ""
	}
	return path
}

// Endpoint is the listening socket of a sidecar, and the file by which clients reach it.
//
// A person, a program that cleans up, or systemd with a restart of the socket unit may remove
// or replace the file while the sidecar runs. Then no client can connect, and the listening
// socket shows no error. So check compares the inode of the file with the one from before; no
// other file has that inode while the socket exists. If there is no file, check makes the
// socket again, also in the place of one that systemd made. If there is another file, it
// belongs to another process, and Check reports the problem.
type Endpoint struct {
	cfg  Config // Listener: if the file of an inherited socket was replaced, systemd has a new one
	path string // "": an abstract socket, which has no file

	mu       sync.Mutex // guards what follows
	phase    phase
	problem  string // in phase unreachable: why clients cannot connect
	listener *net.UnixListener
	previous *net.UnixListener // before the socket was made again: its queue may have clients until the next check
	lock     *lock             // nil for an inherited socket
	file     *fileID           // the file that leads to listener; nil: there is none
	ownsFile bool              // this process made the file, and removes it when it stops
	mode     os.FileMode       // of the file, if it is made again
	gid      int               // the same; -1: the group of this process
	dirMode  os.FileMode       // of the directory, if it is made again
}

// phase is the state of an endpoint.
//
//	            Check: the file is gone, and was made again
//	                    ┌─────┐
//	                    ▼     │
//	locked ─ Listen ─► reachable
//	                │    ▲
//	 Check: the file│    │Check: the file is
//	 was replaced,  │    │back, or was
//	 or cannot be   │    │made again
//	 made again     ▼    │
//	              unreachable
//
//	 either ── Close ──► closed
type phase uint8

const (
	locked      phase = iota // no other sidecar makes the socket; there is none yet
	reachable                // clients can connect, as of the last check
	unreachable              // they cannot, for the reason in problem; each check tries again
	closed                   // no listener is open, and Check does nothing
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

// Lock locks the socket for this process. Its last step is Unlock.
func Lock(c Config) (*Endpoint, error) {
	e := &Endpoint{cfg: c, path: c.File(), gid: -1, mode: c.Mode, dirMode: 0o755, ownsFile: c.Listener == nil}
	if c.Listener != nil {
		return e, nil // systemd passes it to one process
	}
	if err := CheckPath(c.Path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o755); err != nil {
		return nil, errDirectory(c.Path, err)
	}
	var err error
	e.lock, err = lockSocket(c.Path)
	return e, err
}

// Listen makes the socket, or takes the one that systemd made.
func (e *Endpoint) Listen() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.cfg.Listener
	if l == nil {
		gid, err := GroupID(e.cfg.Group)
		if err != nil {
			return err
		}
		if l, err = Bind(e.cfg.Path, e.cfg.Mode, gid); err != nil {
			return err
		}
	}
	e.listener, e.phase = l, reachable
	if e.path == "" {
		return nil
	}
	// Close removes the file, and only if it is still the one that leads to the listener.
	l.SetUnlinkOnClose(false)
	var st unix.Stat_t
	if unix.Lstat(e.path, &st) != nil {
		return nil
	}
	e.mode, e.gid = os.FileMode(st.Mode).Perm(), int(st.Gid)
	if dir, err := os.Stat(filepath.Dir(e.path)); err == nil {
		e.dirMode = dir.Mode().Perm()
	}
	if _, isOpen := probe(e.path); isOpen || e.cfg.Listener == nil {
		e.file = &fileID{dev: uint64(st.Dev), ino: st.Ino}
	} // else a dead sidecar, which inherited the same socket, made the file in the place of a removed one
	return nil
}

// Listener returns the socket, after Listen.
func (e *Endpoint) Listener() *net.UnixListener {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.listener
}

// Check returns the listener of a socket that it made again, or nil.
func (e *Endpoint) Check() *net.UnixListener {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.path == "" || e.phase != reachable && e.phase != unreachable {
		return nil
	}
	if e.previous != nil {
		e.previous.Close()
		e.previous = nil
	}
	if e.isInPlace() {
		if e.phase == unreachable {
			e.cfg.Log.Info("clients can connect again", "socket", e.path)
			e.phase = reachable
		}
		return nil
	}
	l, err := e.recreate()
	if err != nil {
		problem := fmt.Sprintf("clients cannot connect: the file %s was removed or replaced, and the socket cannot be made again: %v", e.path, err)
		if e.phase != unreachable || problem != e.problem {
			e.cfg.Log.Error("clients cannot connect", "socket", e.path, "reason", err)
		}
		e.phase, e.problem = unreachable, problem
		return nil
	}
	e.cfg.Log.Warn("the socket was removed, and is made again; find out which program removed it", "socket", e.path)
	e.phase = reachable
	return l
}

// isInPlace reports whether the file at path is the one that leads to the listener. The caller
// holds mu.
func (e *Endpoint) isInPlace() bool {
	now := fileAt(e.path)
	return now != nil && e.file != nil && *now == *e.file
}

var errReplaced = errors.New("there is another file in its place; remove it, or, if systemd made it, restart the sidecar")

// recreate makes the socket and its file again. The caller holds mu.
func (e *Endpoint) recreate() (*net.UnixListener, error) {
	if st, err := os.Lstat(e.path); err == nil {
		if _, isOpen := probe(e.path); isOpen || st.Mode()&os.ModeSocket == 0 {
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
	l, err := Bind(e.path, e.mode, e.gid)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	e.file = fileAt(e.path) // nil: it was removed at once, and the next check makes another
	e.previous, e.listener, e.ownsFile = e.listener, l, true
	return l, nil
}

// makeDirectory makes the directory of the socket again, with its mode, if it was removed.
func (e *Endpoint) makeDirectory() error {
	dir := filepath.Dir(e.path)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, e.dirMode); err != nil {
		return err
	}
	return os.Chmod(dir, e.dirMode) // the umask may have removed bits
}

// Unreachable returns why clients cannot connect; "": they can. restart: the file leads to a
// process that listens, so a restart by systemd would give the sidecar that socket.
func (e *Endpoint) Unreachable() (why string, restart bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != unreachable {
		return "", false
	}
	if e.cfg.Listener == nil {
		return e.problem, false
	}
	_, isOpen := probe(e.path)
	return e.problem, isOpen
}

// Close closes the listener, and removes the file if this process made it.
func (e *Endpoint) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != reachable && e.phase != unreachable {
		return
	}
	e.phase = closed
	if e.ownsFile && e.path != "" && e.isInPlace() {
		_ = os.Remove(e.path)
	}
	e.listener.Close()
	if e.previous != nil {
		e.previous.Close()
	}
}

// Unlock lets another process serve the socket.
func (e *Endpoint) Unlock() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lock != nil {
		e.lock.close()
	}
}
