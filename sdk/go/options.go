package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Option changes how one lock is acquired or held. An invalid value makes Lock, TryLock or Do
// return an error. Durations are rounded up to milliseconds. A re-entry keeps the lease, the
// maximum and the crash delay of the first entry.
//
// All but [WithKeep], [NonReentrant] and [Fair] are also for the permits of a [Semaphore], and all
// but WithKeep for shared locks.
type Option struct {
	apply         func(*protocol.Acquire) error
	notForPermits string // what makes it meaningless for permits; "": nothing does
}

// withOptions applies options to a request. It moves the request to the heap, so it is not
// called without options.
func withOptions(req wanted, options []Option) (wanted, error) {
	for _, o := range options {
		if o.notForPermits != "" && req.Of != 0 {
			return req, errors.New(o.notForPermits + "; leave the option out")
		}
		if err := o.apply(&req.Acquire); err != nil {
			return req, err
		}
	}
	if req.mode == sharedMode && req.KeepMS != 0 {
		return req, errors.New("WithKeep is for exclusive locks, and shared ones end with their hold; leave the option out")
	}
	return req, nil
}

// WithLease gives the lock a fixed lease: it is lost after d, from 50 ms to 30 days, with
// ReasonExpired, even if the program lives. Without this option the sidecar renews the lock
// for as long as it is held.
func WithLease(d time.Duration) Option {
	return Option{apply: func(a *protocol.Acquire) (err error) {
		a.LeaseMS, err = inMS("WithLease", d, protocol.MinLeaseMS, protocol.MaxDurationMS)
		return err
	}}
}

// WithMaxHold bounds how long the lock is held: after d, from 1 ms to 30 days, it is lost with
// ReasonMaxHold. So a worker that hangs does not keep it forever. Until then the sidecar
// renews the lock, unless it has a lease of its own (see [WithLease]).
func WithMaxHold(d time.Duration) Option {
	return Option{apply: func(a *protocol.Acquire) (err error) {
		a.MaxHoldMS, err = inMS("WithMaxHold", d, 1, protocol.MaxDurationMS)
		return err
	}}
}

// WithCrashDelay keeps the lock for d, up to an hour, after the program ended, or closed the
// Client, while it held the lock. Without this option such a lock is free within
// milliseconds. An Unlock releases the lock at once, unless [WithKeep] keeps it.
func WithCrashDelay(d time.Duration) Option {
	return Option{apply: func(a *protocol.Acquire) (err error) {
		a.CrashDelayMS, err = inMS("WithCrashDelay", d, 0, protocol.MaxCrashDelayMS)
		return err
	}}
}

// WithKeep keeps the lock for d, up to a day, from the grant on: after Unlock and after a loss of
// the lock, and also if the program, the daemon or the host dies. It is for a job that many hosts
// start at one time, and that one of them is to run: each other TryLock returns ErrHeld until then.
func WithKeep(d time.Duration) Option {
	return Option{func(a *protocol.Acquire) (err error) {
		a.KeepMS, err = inMS("WithKeep", d, 0, protocol.MaxKeepMS)
		return err
	}, "WithKeep is for locks, and permits end with their hold"}
}

// NonReentrant makes an owner of [NewOwner] wait for this lock like any other owner, instead
// of re-entering it. If that owner holds the lock itself, the error is ErrDeadlock.
// Without NewOwner it changes nothing.
func NonReentrant() Option {
	return Option{func(a *protocol.Acquire) error {
		a.NotReentrant = true
		return nil
	}, "NonReentrant is for locks, and permits are never entered again"}
}

// Fair asks for strict order between hosts: the locks that are requested with Fair are
// granted over all hosts in the order in which the requests reach Redis. Without it a lock
// stays on one host for several grants, which is faster: with Fair each grant of a lock that
// others want takes a message from Redis. Every request for the lock should have it, or the
// sidecars the setting fair. It has no effect on TryLock.
func Fair() Option {
	return Option{func(a *protocol.Acquire) error {
		a.Fair = true
		return nil
	}, "Fair is for locks, and permits are always granted in the order of their requests"}
}

func inMS(option string, d time.Duration, low, high int64) (int64, error) {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	if d < 0 || ms < low || ms > high {
		return 0, fmt.Errorf("%s(%v): it must be from %v to %v", option, d, time.Duration(low)*time.Millisecond, time.Duration(high)*time.Millisecond)
	}
	return ms, nil
}

type ownerKey struct{}

var lastOwner atomic.Uint64

// NewOwner returns a context that stands for a new owner, also if ctx stands for one. A call
// with this context, or with one derived from it, re-enters a lock that such a call holds, at
// once and as often as wanted; the lock is free after as many Unlocks. Without NewOwner every
// Lock is an owner of its own, and waits even for a lock that the same goroutine holds.
//
// All goroutines with the context share its locks: do not pass it to goroutines that
// must exclude each other.
func NewOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, lastOwner.Add(1))
}

func ownerOf(ctx context.Context) uint64 {
	owner, _ := ctx.Value(ownerKey{}).(uint64)
	return owner
}

// DialOption changes how a Client reaches its sidecar, or what it logs. An invalid value makes
// Dial return an error.
type DialOption struct{ apply func(*Client) error }

// WithDialPatience sets for how long Dial waits while no sidecar listens, if its context
// allows. Default: 2 s. 0: one attempt.
func WithDialPatience(d time.Duration) DialOption {
	return DialOption{func(c *Client) error {
		if d < 0 {
			return fmt.Errorf("WithDialPatience(%v): it must not be negative", d)
		}
		c.dialPatience = d
		return nil
	}}
}

// WithReconnectPatience sets for how long a call of the Client waits while no sidecar
// listens, for example during a restart: from the moment at which it was made or the
// connection was lost. Default: 10 s. 0: one attempt. It bounds neither the wait for a lock
// that another owner holds, which the context of the call bounds, nor Dial (see
// [WithDialPatience]).
func WithReconnectPatience(d time.Duration) DialOption {
	return DialOption{func(c *Client) error {
		if d < 0 {
			return fmt.Errorf("WithReconnectPatience(%v): it must not be negative", d)
		}
		c.patience = d
		return nil
	}}
}

// WithClientName sets the name, up to 128 bytes, under which the sidecar shows this
// client to its operator. Default: go/ and this package's version.
func WithClientName(name string) DialOption {
	return DialOption{func(c *Client) error {
		if len(name) > protocol.MaxClient {
			return fmt.Errorf("WithClientName: the name has %d bytes; at most %d are allowed", len(name), protocol.MaxClient)
		}
		c.dialer.name = name
		return nil
	}}
}

// WithLogger makes the Client log, each with the path of the socket or the name of the lock:
//
//   - at level Warn the loss of a lock, with its token and the reason, when it is noticed, and
//     a sidecar that was restarted without its state and so cannot renew what is held;
//   - at level Warn an acquire that has waited for 2 s while Redis does not serve or the sidecar
//     does not answer, once until a lock is granted again;
//   - at level Info the loss of the connection to the sidecar, and the next connection, with
//     the time in between.
//
// Default: only a waiting acquire is logged, with [slog.Default].
func WithLogger(log *slog.Logger) DialOption {
	return DialOption{func(c *Client) error {
		c.dialer.log = log
		return nil
	}}
}
