package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// A SettingError says that a setting, or what it names, cannot work until a person changes
// it: another start fails in the same way. All other errors of Listen may pass.
type SettingError struct{ err error }

func (e *SettingError) Error() string { return e.err.Error() }
func (e *SettingError) Unwrap() error { return e.err }

// inUseError says that another process has what a sidecar needs for itself.
type inUseError struct{ error }

func inUse(format string, args ...any) error { return inUseError{fmt.Errorf(format, args...)} }

// permanentErrnos are the errors of system calls that stay until a person changes a path, a
// permission or a setting. All others may pass: EADDRINUSE, for instance, because another
// process made the socket a moment ago, or ENOSPC. An error that is listed here keeps systemd
// from starting the daemon again (exit code 64), so one that is missing does less harm than one
// too many.
var permanentErrnos = []unix.Errno{
	unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG,
	unix.EINVAL, unix.ENODEV, unix.ENXIO, unix.ENOSYS, unix.EOPNOTSUPP,
}

// setting makes a SettingError of an error about a path or another setting, unless it passes
// by itself. An error without an errno is a sentence about a setting, or says that another
// process has what the sidecar needs.
func setting(err error) error {
	var used inUseError
	var state *state.InUseError
	if err == nil || errors.As(err, &used) || errors.As(err, &state) {
		return err
	}
	var errno unix.Errno
	if errors.As(err, &errno) && !slices.Contains(permanentErrnos, errno) {
		return err
	}
	return &SettingError{err}
}

// Check returns why Listen would refuse the settings, as far as that can be found out
// without a change to any file, and while another sidecar serves. nil: nothing was found.
func (c Config) Check() error {
	if err := c.setDefaults(); err != nil {
		return setting(err)
	}
	errs := []error{checkMaxFiles(), store.Check(store.Config{URL: c.Redis, TLS: c.tls()})}
	if !c.isInherited() {
		errs = append(errs, checkSocket(&c))
	}
	if c.State != StateNone {
		errs = append(errs, checkState(&c))
	}
	return setting(errors.Join(errs...))
}

// CheckInherited is Check for a sidecar whose Listener would be a socket with this address,
// which another process has. An abstract address begins with "@".
func (c Config) CheckInherited(socket string) error {
	c.Socket, c.inherited = socket, true
	return c.Check()
}

// checkState is state.Check. The directory of the socket need not be there yet.
func checkState(c *Config) error {
	dir := filepath.Dir(c.State)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && !c.isInherited() && dir == filepath.Dir(c.Socket) {
		return nil
	}
	return state.Check(c.State)
}

// checkSocket finds out whether claim and listen would work, but for other processes.
func checkSocket(c *Config) error {
	if err := checkSocketPath(c.Socket); err != nil {
		return err
	}
	if c.SocketGroup != "" {
		gid, err := groupID(c.SocketGroup)
		if err != nil {
			return err
		}
		if groups, err := unix.Getgroups(); err == nil && unix.Geteuid() != 0 && gid != unix.Getegid() && !slices.Contains(groups, gid) {
			return errSocketGroup(c.Socket, unix.EPERM)
		}
	}
	if _, err := os.Lstat(c.Socket); err == nil {
		return checkPlace(c.Socket) // the directory may be root's, with a socket that systemd made
	}
	for dir := filepath.Dir(c.Socket); ; dir = filepath.Dir(dir) {
		err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
			continue // it would be made
		}
		if err != nil {
			return errSocketDir(c.Socket, &fs.PathError{Op: "access", Path: dir, Err: err})
		}
		return nil
	}
}

// checkPlace refuses a path at which there is something that is not a socket.
func checkPlace(path string) error {
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("socket %s: %w", path, err)
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket %s: there is a file that is not a socket; remove it, or choose another socket", path)
	}
	return nil
}

func checkSocketPath(path string) error {
	if len(path) > 107 {
		return fmt.Errorf("socket %s: a socket's path has at most 107 bytes, this one has %d; choose a shorter one", path, len(path))
	}
	return nil
}

func errSocketGroup(path string, err error) error {
	return fmt.Errorf("group of socket %s: %w; this user must be root or in that group", path, err)
}

func errSocketDir(path string, err error) error {
	return fmt.Errorf("directory of socket %s: %w; create it for this user, or choose another socket", path, err)
}
