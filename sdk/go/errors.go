package locksidecar

import (
	"context"
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// The kinds of errors, for errors.Is. A returned error wraps one of them in a sentence
// about what happened and what to do.
var (
	ErrHeld        = errors.New("locksidecar: somebody else holds the lock")
	ErrTimeout     = error(timeout{})
	ErrDeadlock    = errors.New("locksidecar: deadlock")
	ErrUnavailable = errors.New("locksidecar: the sidecar or its Redis is unavailable")
	ErrDenied      = errors.New("locksidecar: permission denied")
	ErrLimit       = errors.New("locksidecar: a limit of the sidecar is reached")
	ErrClosed      = errors.New("locksidecar: the client is closed")
	ErrLost        = errors.New("locksidecar: the lock is lost")
	ErrNotHeld     = errors.New("locksidecar: the lock is not held")
	ErrUnconfirmed = errors.New("locksidecar: the release of the lock is not confirmed")
	ErrUnsupported = errors.New("locksidecar: the sidecar or this system does not support the request")
)

// timeout is of the kind context.DeadlineExceeded, as callers expect of a
// context's deadline, whoever noticed first that it passed.
type timeout struct{}

func (timeout) Error() string        { return "locksidecar: the lock was not free in time" }
func (timeout) Timeout() bool        { return true }
func (timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// Reason is why a lock was lost. A newer sidecar may send others than those below.
type Reason = protocol.Reason

const (
	ReasonExpired   Reason = protocol.Expired   // its deadline passed
	ReasonDeleted   Reason = protocol.Deleted   // its key vanished from Redis
	ReasonStolen    Reason = protocol.Stolen    // another owner's field is in the key
	ReasonForced    Reason = protocol.ByForce   // an operator ended it
	ReasonMaxHold   Reason = protocol.MaxHold   // WithMaxHold
	ReasonForgotten Reason = protocol.Forgotten // a sidecar that was restarted does not know it
)

// misunderstood: this side ended a connection on which nothing could be relied,
// and with it what was held.
const misunderstood Reason = "the sidecar could not be understood, and the connection was ended"

// LostError is an ErrLost with the name of the lock and the reason.
type LostError struct {
	Name   string
	Reason Reason
}

func (e *LostError) Error() string {
	why, ok := map[Reason]string{
		ReasonExpired:   "its deadline passed without a renewal",
		ReasonDeleted:   "its key was deleted from Redis",
		ReasonStolen:    "somebody else's name is in its key in Redis",
		ReasonForced:    "an operator ended it",
		ReasonMaxHold:   "it was held for as long as WithMaxHold allows",
		ReasonForgotten: "the sidecar was restarted, and what it remembers does not have it",
	}[e.Reason]
	if !ok {
		why = string(e.Reason)
	}
	return fmt.Sprintf("locksidecar: the lock %q is lost: %s; somebody else may hold it", e.Name, why)
}

// Is makes every LostError an ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// failure is a sentence, the kind of error that it is (nil: none), and what
// caused it (nil: nothing that is an error).
type failure struct {
	text        string
	kind, cause error
}

func (f *failure) Error() string { return "locksidecar: " + f.text }

func (f *failure) Unwrap() []error {
	var errs []error
	for _, err := range []error{f.kind, f.cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// kindOf returns the kind of error that a code stands for.
func kindOf(code protocol.Code) error {
	switch code {
	case protocol.Timeout:
		return ErrTimeout
	case protocol.Deadlock:
		return ErrDeadlock
	case protocol.Unavailable:
		return ErrUnavailable
	case protocol.Denied:
		return ErrDenied
	case protocol.Limit:
		return ErrLimit
	case protocol.Canceled:
		return context.Canceled
	case protocol.NotHeld:
		return ErrNotHeld
	case protocol.Unsupported:
		return ErrUnsupported
	}
	return nil
}

// refused makes an error of the sidecar's answer to what was tried.
func refused(what fmt.Stringer, e *protocol.Err) *failure {
	msg := e.Msg
	if msg == "" {
		msg = string(e.Code)
	}
	return &failure{text: what.String() + ": " + msg, kind: kindOf(e.Code)}
}

// ended makes an error of a context that ended while something was tried.
func ended(ctx context.Context, what fmt.Stringer) *failure {
	cause := context.Cause(ctx)
	f := &failure{text: what.String() + ": " + cause.Error(), kind: ctx.Err(), cause: cause}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		f.kind = ErrTimeout
	}
	return f
}

// gaveUp makes an error of a context that ended while something was tried; trouble
// says why the sidecar was out of reach, if it was.
func gaveUp(ctx context.Context, what fmt.Stringer, trouble *failure) *failure {
	f := ended(ctx, what)
	if trouble == nil {
		return f
	}
	return &failure{text: what.String() + ": " + trouble.text, kind: ErrUnavailable, cause: f}
}
