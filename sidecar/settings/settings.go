// Package settings says which setting of a sidecar is refused, and why, and whether the error of a
// start can pass.
package settings

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// An Error says that a setting, or what it names, cannot work until a person changes
// it: another start fails in the same way. All other errors of a start may pass.
type Error struct{ err error }

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// A ValueError says that the value of a setting is refused. It is, or is part of, an Error.
type ValueError struct {
	Setting string // its key, such as "max_locks"
	err     error
}

func (e *ValueError) Error() string { return e.err.Error() }
func (e *ValueError) Unwrap() error { return e.err }

// Refuse makes a ValueError of an error; nil: there is none.
func Refuse(setting string, err error) error {
	if err == nil {
		return nil
	}
	return &ValueError{setting, err}
}

// inUseError is the error that another process uses a file or socket of which a sidecar needs to
// be the only user.
type inUseError struct{ error }

// InUse makes the error that another process uses what a sidecar must have for itself.
func InUse(format string, args ...any) error { return inUseError{fmt.Errorf(format, args...)} }

// permanentErrnos are the errors of system calls that stay until a person changes a path, a
// permission or a setting. All others may pass: ENOSPC, for instance, or EADDRINUSE, if another
// process made the socket a moment ago. With an error of this list, systemd does not start the
// daemon again (exit code 64), so a missing entry does less harm than a wrong one.
var permanentErrnos = []unix.Errno{
	unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG,
	unix.EINVAL, unix.ENODEV, unix.ENXIO, unix.ENOSYS, unix.EOPNOTSUPP,
}

// AsError makes an Error of an error of a start, unless it may pass. An error without an errno is
// about the value of a setting, or one of InUse.
func AsError(err error) error {
	var used inUseError
	if err == nil || errors.As(err, &used) {
		return err
	}
	var errno unix.Errno
	if errors.As(err, &errno) && !slices.Contains(permanentErrnos, errno) {
		return err
	}
	return &Error{err}
}
