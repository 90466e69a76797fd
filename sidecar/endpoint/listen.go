package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/settings"
)

// Bind makes a socket with this mode and group; gid −1: the group of this process. It replaces a
// socket at the path on which no process listens.
func Bind(path string, mode os.FileMode, gid int) (*net.UnixListener, error) {
	if err := checkFile(path); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); err == nil {
		// Another sidecar may run although this process has the lock, because its lock
		// file was removed.
		if pid, isOpen := probe(path); isOpen && !awaitExit(pid) {
			return nil, errListening(path, pid)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("removing the socket %s that a dead sidecar left: %w", path, err)
		}
	}
	ln, err := listenPrivately(path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if gid >= 0 {
		if err := os.Chown(path, -1, gid); err != nil {
			ln.Close()
			return nil, errGroup(path, err)
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		ln.Close()
		return nil, fmt.Errorf("mode of socket %s: %w", path, err)
	}
	return ln, nil
}

// CheckFree returns an error if a process listens on a socket.
func CheckFree(path string) error {
	if pid, isOpen := probe(path); isOpen {
		return errListening(path, pid)
	}
	return nil
}

// errListening is the error that a process listens on a socket; pid 0: it is not known.
func errListening(path string, pid int64) error {
	who := "another process"
	if pid > 0 {
		who += fmt.Sprintf(" (pid %d)", pid)
	}
	return settings.InUse("socket %s: %s listens on it; stop that process, or choose another socket", path, who)
}

// listenPrivately makes a socket that only this user can connect to, until Bind has set its
// group and mode. The file has mode 0600 from the moment it exists: Linux gives it the mode of
// the socket, less the umask. The umask itself belongs to the whole process, in which other
// goroutines may make files at the same time, so it stays as it is.
func listenPrivately(path string) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(failed, err)
	}}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return ln.(*net.UnixListener), nil
}

// GroupID returns the number of a group that is given by name or number; −1: "", which is the group of
// this process.
func GroupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	id := name
	if g, err := user.LookupGroup(name); err == nil {
		id = g.Gid
	}
	n, err := strconv.Atoi(id)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("socket group %q: there is no such group on this host", name)
	}
	return n, nil
}

// Check returns the error that Lock or Listen would return if no other process had the socket.
func (c Config) Check() error {
	if err := CheckPath(c.Path); err != nil {
		return err
	}
	if c.Group != "" {
		gid, err := GroupID(c.Group)
		if err != nil {
			return err
		}
		if groups, err := unix.Getgroups(); err == nil && unix.Geteuid() != 0 && gid != unix.Getegid() && !slices.Contains(groups, gid) {
			return errGroup(c.Path, unix.EPERM)
		}
	}
	if _, err := os.Lstat(c.Path); err == nil {
		return checkFile(c.Path) // systemd may have made it, in a directory that only root can write to
	}
	for dir := filepath.Dir(c.Path); ; dir = filepath.Dir(dir) {
		err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
			continue // Lock would make it
		}
		if err != nil {
			return errDirectory(c.Path, &fs.PathError{Op: "access", Path: dir, Err: err})
		}
		return nil
	}
}

// checkFile returns an error if the file at a path is not a socket.
func checkFile(path string) error {
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("socket %s: %w", path, err)
	case st.Mode().Type() != fs.ModeSocket:
		if st.IsDir() {
			return fmt.Errorf("socket %s: it is a directory; name a file in it, such as %s", path, filepath.Join(path, "locksidecar.sock"))
		}
		return fmt.Errorf("socket %s: there is a file that is not a socket; remove it, or choose another socket", path)
	}
	return nil
}

// CheckPath returns an error if a path is too long for a socket.
func CheckPath(path string) error {
	if len(path) > 107 {
		return fmt.Errorf("socket %s: a socket's path has at most 107 bytes, this one has %d; choose a shorter one", path, len(path))
	}
	return nil
}

func errGroup(path string, err error) error {
	return fmt.Errorf("group of socket %s: %w; this user must be root or in that group", path, err)
}

func errDirectory(path string, err error) error {
	return fmt.Errorf("directory of socket %s: %w; create it for this user, or choose another socket", path, err)
}
