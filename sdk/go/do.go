package locksidecar

import (
	"context"
	"errors"
)

// Do acquires the lock as [Client.Lock] does, and waits for it as long as ctx allows. It calls f while the lock is held, and releases
// the lock. f gets the fencing token of the hold, and a context that ends when ctx ends or
// the lock is lost; context.Cause then returns the reason.
//
// If the lock was not acquired, f is not called, and the error is that of Lock. Otherwise
// Do returns what f returned, joined with the error of the release. So errors.Is(err,
// ErrLost) is true whenever the lock was lost before f returned, also if f returned nil:
//
//	err := c.Do(ctx, "invoice:42", func(ctx context.Context, token uint64) error {
//		return charge(ctx, token)
//	})
//
// If f panics or calls [runtime.Goexit], Do releases the lock, and the panic or the exit of
// the goroutine continues.
//
// A deadline of ctx bounds the wait for the lock and also f. To bound only the wait, use
// Lock and [Lock.Context].
func (c *Client) Do(ctx context.Context, name string, f func(ctx context.Context, token uint64) error, options ...Option) error {
	l, err := c.Lock(ctx, name, options...)
	if err != nil {
		return err
	}
	return l.whileHeld(ctx, func(ctx context.Context) error { return f(ctx, l.Token()) })
}

// whileHeld calls f, and releases what is held.
func (l *handle) whileHeld(ctx context.Context, f func(context.Context) error) (err error) {
	work, stop := l.Context(ctx)
	defer func() {
		stop() // before the release: what f has left running ends while the lock is held
		l.readArrived()
		err = joinRelease(err, l.release(readFirst))
	}()
	return f(work)
}

// joinRelease joins the error of a release to the result of the work that it ends. The work
// may have returned the same error: the cause of its context.
func joinRelease(result, release error) error {
	switch {
	case release == nil || errors.Is(result, release):
		return result
	case result == nil:
		return release
	}
	return errors.Join(result, release)
}

// ContextUnlocker releases a lock with a method that takes a context, as the interfaces of
// some schedulers need it. See [Lock.ContextUnlocker].
type ContextUnlocker struct{ lock *Lock }

// ContextUnlocker returns the lock as a value whose Unlock takes a context. For example, a
// Locker of github.com/go-co-op/gocron is:
//
//	type locker struct{ client *locksidecar.Client }
//
//	func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
//		held, err := l.client.TryLock(ctx, key, locksidecar.WithKeep(50*time.Second))
//		if err != nil {
//			return nil, err
//		}
//		return held.ContextUnlocker(), nil
//	}
//
// [WithKeep] makes one host run each slot of the schedule: the lock stays held after Unlock,
// so a host whose clock is behind finds it held. The keep is longer than the clocks of the
// hosts differ, and shorter than the time to the next slot. Without WithKeep such a locker
// only keeps a job from running on two hosts at one time.
func (l *Lock) ContextUnlocker() ContextUnlocker { return ContextUnlocker{l} }

// Unlock is [Lock.Unlock]. It does not wait, so ctx has no effect: the lock is released
// even if ctx has ended.
func (u ContextUnlocker) Unlock(ctx context.Context) error { return u.lock.Unlock() }
