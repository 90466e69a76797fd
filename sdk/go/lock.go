package locksidecar

// Lock is a handle for one acquired lock, and for exactly one Unlock. [Client.Lock] and
// [Client.TryLock] return it; the zero Lock cannot be used. Many goroutines may call its
// methods at once. A Lock must not be copied.
type Lock struct{ handle }

// Unlock releases the lock. Without options it does not wait for the sidecar, and no
// context can keep it from working. While the sidecar is being restarted, the successor
// releases the lock; if the successor has no record of the lock, it is free when its
// lease ends.
//
// Redis executes the release a moment after Unlock has returned. A program on another
// host that is signalled in that moment may still find the lock held. With [Confirmed],
// Unlock waits until Redis has executed the release.
//
// The error is ErrLost if the lock was lost before: then others may have held it in
// the meantime. It is ErrNotHeld for every Unlock but the first, ErrClosed if the
// Client was closed before, and ErrUnavailable if the sidecar ended the session
// because of a protocol error of this client: then the lock is free when its lease
// ends. With Confirmed it may also be ErrUnconfirmed; the lock is released all the same.
func (l *Lock) Unlock(options ...UnlockOption) error { return l.release(readFirst, options...) }
