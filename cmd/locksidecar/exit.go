package main

import (
	"errors"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// Exit codes are those of sysexits(3) where one fits. They do not change: scripts depend on
// them.
const (
	exitFailure     = 1
	exitUsage       = 64
	exitUnavailable = 69
	exitDegraded    = 74
	exitNotAcquired = 75
	exitDenied      = 77
	exitLost        = 79 // sysexits ends at 78, kong's own codes start at 80
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// exitTable is for help texts.
const exitTable = `Exit codes:

    0    done
    1    failed, see the message
    64   wrong usage, or a setting that is refused
    69   the sidecar or its Redis cannot be reached, or a limit refuses the request
    77   not permitted`

// exitStatus ends the program with a code and without a message.
type exitStatus int

func (exitStatus) Error() string { return "" }

// coded gives an error its exit code.
type coded struct {
	code int
	error
}

func (c coded) Unwrap() error { return c.error }

func exitCode(err error) int {
	var c coded
	switch {
	case err == nil:
		return 0
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, locksidecar.ErrLost):
		return exitLost
	case errors.Is(err, locksidecar.ErrDenied):
		return exitDenied
	case errors.Is(err, locksidecar.ErrUnavailable), errors.Is(err, locksidecar.ErrClosed), errors.Is(err, locksidecar.ErrLimit):
		return exitUnavailable // before ErrTimeout: an error that is both names the cause here
	case errors.Is(err, locksidecar.ErrHeld), errors.Is(err, locksidecar.ErrTimeout), errors.Is(err, locksidecar.ErrDeadlock):
		return exitNotAcquired
	default:
		return exitFailure
	}
}
