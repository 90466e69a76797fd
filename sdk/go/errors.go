package locksidecar

import (
	"context"
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// The kinds of errors, for [errors.Is]. A returned error wraps one of them, or several, in a
// sentence about what happened and what to do. The package comment has the calls that return
// them.
var (
	// TryLock: another owner holds the lock, or a call on this host waits for it. TryAcquire: too few
	// permits are free, or a call waits for some.
	ErrHeld = errors.New("locksidecar: another owner holds the lock")

	// The deadline of the context passed first. It is context.DeadlineExceeded, too.
	ErrTimeout = error(timeout{})

	// Waiting would never end: the holder waits for a lock of this owner.
	ErrDeadlock = errors.New("locksidecar: deadlock")

	// The sidecar, or its Redis, cannot be reached or does not answer.
	ErrUnavailable = errors.New("locksidecar: the sidecar or its Redis is unavailable")

	// This process may not use the socket, the lock or the request, or Redis refused the key.
	ErrDenied = errors.New("locksidecar: permission denied")

	// A limit of the sidecar is reached; the text has which.
	ErrLimit = errors.New("locksidecar: a limit of the sidecar is reached")

	// Client.Close was called.
	ErrClosed = errors.New("locksidecar: the client is closed")

	// The lock, or the permits, were held, and ended without a release. The error is a *LostError.
	ErrLost = errors.New("locksidecar: the lock is lost")

	// The handle was released before; or ForceRelease found no hold of this host.
	ErrNotHeld = errors.New("locksidecar: the lock is not held")

	// A release with Confirmed: it is released, and Redis's confirmation is missing.
	ErrUnconfirmed = errors.New("locksidecar: the release of the lock is not confirmed")

	// The sidecar is older than this package or speaks another version; or Dial: this
	// system is not Linux.
	ErrUnsupported = errors.New("locksidecar: the sidecar or this system does not support the request")
)

// timeout is of the kind context.DeadlineExceeded, as callers expect of a context's deadline,
// whether the sidecar or this package noticed first that it passed.
type timeout struct{}

func (timeout) Error() string        { return "locksidecar: the lock was not free in time" }
func (timeout) Timeout() bool        { return true }
func (timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// Reason is why a lock was lost. A newer sidecar may send reasons other than those below, and
// a Client that receives an invalid message ends its locks with a sentence as the reason.
type Reason string

const (
	ReasonExpired   Reason = "expired"   // its deadline passed without a renewal
	ReasonDeleted   Reason = "deleted"   // its key vanished from Redis
	ReasonStolen    Reason = "stolen"    // another owner's field is in its key
	ReasonForced    Reason = "forced"    // an operator ended it, as with [Client.ForceRelease]
	ReasonMaxHold   Reason = "max_hold"  // it was held for as long as WithMaxHold allows
	ReasonForgotten Reason = "forgotten" // a sidecar that was restarted does not know it

	// In events and counts only; no LostError has it. See [CutShort].
	ReasonCutShort Reason = "cut_short"
)

// String describes the reason in a clause for people. string(r) is the reason in one word, as
// metrics and logs have it.
func (r Reason) String() string {
	switch r {
	case ReasonExpired:
		return "its deadline passed without a renewal"
	case ReasonDeleted:
		return "its key was deleted from Redis"
	case ReasonStolen:
		return "another owner's name is in its key in Redis"
	case ReasonForced:
		return "an operator ended it"
	case ReasonMaxHold:
		return "it was held for as long as WithMaxHold allows"
	case ReasonForgotten:
		return "the sidecar was restarted, and what it remembers does not have it"
	case ReasonCutShort:
		return "its client ended the work, because the lock was about to be lost"
	}
	return string(r)
}

// reasonProtocol is the reason if this side closed a connection over which the sidecar sent
// something invalid, and with it ended the holds.
const reasonProtocol Reason = "the sidecar could not be understood, and the connection was ended"

// LostError is the error of a lock, or of permits, that were lost, with the name and the reason. For
// [errors.Is] it is ErrLost, and a LostError whose fields that are set are the same:
//
//	errors.Is(err, &locksidecar.LostError{Reason: locksidecar.ReasonMaxHold})
type LostError struct {
	Name    string // of the lock, or of the semaphore
	Permits int    // of the hold; 0: it was a lock
	Reason  Reason
}

func (e *LostError) Error() string {
	if e.Permits != 0 {
		return fmt.Sprintf("locksidecar: the hold of %d of the permits of %q is lost: %v; other clients may have them", e.Permits, e.Name, e.Reason)
	}
	return fmt.Sprintf("locksidecar: the lock %q is lost: %v; another owner may hold it", e.Name, e.Reason)
}

// Is reports whether target is ErrLost, or a *LostError without a field that is set otherwise.
func (e *LostError) Is(target error) bool {
	if t, ok := target.(*LostError); ok {
		return (t.Name == "" || t.Name == e.Name) && (t.Permits == 0 || t.Permits == e.Permits) && (t.Reason == "" || t.Reason == e.Reason)
	}
	return target == ErrLost
}

// clientError is every error of this package but LostError: a sentence, the kind of error that
// it is (nil: none), and the error that caused it (nil: none).
type clientError struct {
	text        string
	kind, cause error
}

func (e *clientError) Error() string { return "locksidecar: " + e.text }

func (e *clientError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.kind, e.cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// kindOf returns the kind of error for a code of the protocol; nil: there is none.
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

// refusedError converts the sidecar's error answer to a request.
func refusedError(what fmt.Stringer, e *protocol.Err) *clientError {
	msg := e.Msg
	if msg == "" {
		msg = string(e.Code)
	}
	return &clientError{text: what.String() + ": " + msg, kind: kindOf(e.Code)}
}

// contextError is the error of something that was not done because a context has ended.
func contextError(ctx context.Context, what fmt.Stringer) *clientError {
	cause := context.Cause(ctx)
	e := &clientError{text: what.String() + ": " + cause.Error(), kind: ctx.Err(), cause: cause}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.kind = ErrTimeout
	}
	return e
}

// contextErrorDuring is contextError. outage is why there was no connection to the sidecar
// when the context ended; nil: there was one.
func contextErrorDuring(ctx context.Context, what fmt.Stringer, outage *clientError) *clientError {
	e := contextError(ctx, what)
	if outage == nil {
		return e
	}
	return &clientError{text: what.String() + ": " + outage.text, kind: ErrUnavailable, cause: e}
}
