package sidecar

import (
	"context"
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

// A ValueError says that the value of a setting is refused. It is, or is part of, a SettingError.
type ValueError struct {
	Setting string // its key, such as "max_locks"
	err     error
}

func (e *ValueError) Error() string { return e.err.Error() }
func (e *ValueError) Unwrap() error { return e.err }

// refuseValue makes a ValueError of an error; nil: there is none.
func refuseValue(setting string, err error) error {
	if err == nil {
		return nil
	}
	return &ValueError{setting, err}
}

// inUseError is the error that another process uses a file or socket of which a sidecar needs to
// be the only user.
type inUseError struct{ error }

func inUse(format string, args ...any) error { return inUseError{fmt.Errorf(format, args...)} }

// permanentErrnos are the errors of system calls that stay until a person changes a path, a
// permission or a setting. All others may pass: ENOSPC, for instance, or EADDRINUSE, if another
// process made the socket a moment ago. With an error of this list, systemd does not start the
// daemon again (exit code 64), so a missing entry does less harm than a wrong one.
var permanentErrnos = []unix.Errno{
	unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG,
	unix.EINVAL, unix.ENODEV, unix.ENXIO, unix.ENOSYS, unix.EOPNOTSUPP,
}

// asSettingError makes a SettingError of an error of Listen, unless it may pass. An error without
// an errno is about the value of a setting, or an inUseError.
func asSettingError(err error) error {
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

// Check returns the error that Listen would return for the settings, as far as it can be found
// without a change to any file and while another sidecar serves; nil: none was found.
func (c Config) Check() error {
	if err := c.setDefaults(); err != nil {
		return asSettingError(err)
	}
	errs := []error{checkFDLimit(), store.Check(store.Config{URL: c.Redis, TLS: c.tls()})}
	if !c.isInherited() {
		errs = append(errs, checkSocket(&c))
	}
	if c.State != StateNone {
		errs = append(errs, checkState(&c))
	}
	if c.Metrics != "" {
		errs = append(errs, checkMetrics(&c))
	}
	return asSettingError(errors.Join(errs...))
}

// FoundRedis is what TryRedis found.
type FoundRedis = store.Found

// TryRedis connects to Redis with these settings, and again until ctx ends if that fails, or if it
// reaches some masters of a Cluster only, and that is not enough.
func (c Config) TryRedis(ctx context.Context, isEnough func(*FoundRedis) bool) (FoundRedis, error) {
	or(&c.Redis, DefaultRedis)
	return store.Try(ctx, store.Config{URL: c.Redis, KeyPrefix: c.KeyPrefix, TLS: c.tls(), Replicas: c.Replicas}, isEnough)
}

// CheckInherited is Check for a sidecar whose Listener will be a socket with this address, which
// only another process has now. An abstract address begins with "@".
func (c Config) CheckInherited(socket string) error {
	c.Socket, c.inherited = socket, true
	return c.Check()
}

// checkState is state.Check, which also accepts that Listen has to make the directory.
func checkState(c *Config) error {
	dir := filepath.Dir(c.State)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && !c.isInherited() && dir == filepath.Dir(c.Socket) {
		return nil
	}
	return state.Check(c.State)
}

// checkSocket returns the error that acquireSocketLock or listen would return if no other
// process had the socket.
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
		return checkSocketFile(c.Socket) // systemd may have made it, in a directory that only root can write to
	}
	for dir := filepath.Dir(c.Socket); ; dir = filepath.Dir(dir) {
		err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
			continue // Listen would make it
		}
		if err != nil {
			return errSocketDir(c.Socket, &fs.PathError{Op: "access", Path: dir, Err: err})
		}
		return nil
	}
}

// checkSocketFile returns an error if the file at a path is not a socket.
func checkSocketFile(path string) error {
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
