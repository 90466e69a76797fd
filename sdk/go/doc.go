// Package locksidecar is the client of the lock sidecar of this host: it
// acquires and releases distributed locks by name.
//
//	c, err := locksidecar.Dial(ctx, "")      // the sidecar's default socket
//	...
//	l, err := c.Lock(ctx, "invoice:42")      // ctx bounds the wait, not the hold
//	if err != nil {
//		return err                           // not held
//	}
//	defer l.Unlock()
//	ctx, stop := l.Context(ctx)              // ends when the lock is lost
//	defer stop()
//	return charge(ctx, l.Token())
//
// A program needs one [Client]; any number of goroutines may use it. The sidecar
// renews what the program holds, and releases it when the program ends, however
// it ends.
//
// # When the sidecar is restarted
//
// A sidecar may be stopped, killed, or replaced by a newer one, while locks are held
// and waited for. The program does not notice: the [Client] connects to the successor
// by itself, held locks stay held with their tokens, waiting calls are queued again in
// their order, and what was unlocked meanwhile is given back. Whoever asks meanwhile
// waits for the successor, up to ten seconds (see [WithPatience]).
//
// There are two exceptions. A successor without the memory of its predecessor cannot
// renew the locks of before: they are lost at their deadlines. And
// [Client.ForceRelease] is not asked twice: its error then says that it may have
// happened.
//
// # What a lock promises
//
// A lock is held from the return of [Client.Lock] until [Lock.Unlock], unless it
// is lost before: its lease ended, Redis could not be reached in time to renew
// it, its key was deleted, an operator took it away, or a sidecar that was
// restarted does not know it any more. A hold is believed in only until its
// deadline, which this package checks by itself, so that a sidecar that is stopped
// or gone leads nobody to believe in a lock that somebody else may have.
// [Lock.Err] tells, [Lock.Done] is closed, and a context made by [Lock.Context] is
// cancelled when that happens.
//
// Nothing can stop a program that is suspended in the middle of its work from
// going on with it after its lock was lost. Whoever stores what was done under
// the lock can refuse such a latecomer: [Lock.Token] is larger for every later
// hold of the lock, on whatever host.
//
// Each successful Lock gives a handle of its own. After its Unlock it does
// nothing any more: a late or second Unlock cannot free a hold that came later.
//
// # Before another host is signalled
//
// Unlock returns before Redis has executed the release. If a program unlocks and then
// signals another host, that host may still find the lock held. With [Confirmed], Unlock
// returns after Redis has executed the release:
//
//	err := l.Unlock(locksidecar.Confirmed(ctx)) // ctx bounds the wait for Redis
//
// The lock is released at once in any case. If only the confirmation is missing, the
// error is ErrUnconfirmed, and its text says when the lock is free at the latest.
//
// # Errors
//
// For [errors.Is]:
//
//	ErrHeld          TryLock: somebody else holds the lock
//	ErrTimeout       the context's deadline passed first; is context.DeadlineExceeded too
//	context.Canceled the context was cancelled first
//	ErrDeadlock      waiting would never end: the holder waits for this owner
//	ErrUnavailable   the sidecar, or its Redis, cannot be reached
//	ErrDenied        no permission: for the socket, for the key in Redis, to force
//	ErrLimit         a limit of the sidecar; the text says which
//	ErrClosed        the Client was closed
//	ErrLost          the lock is not held any more; *LostError says why
//	ErrNotHeld       this handle was unlocked before; ForceRelease: nobody holds it
//	ErrUnconfirmed   Confirmed: the lock is released, Redis's confirmation is missing
//	ErrUnsupported   the sidecar is older than this package, or speaks another version;
//	                 Dial: this system is not Linux
//
// Every error of [Client.Lock] and [Client.TryLock] means that the lock is not
// held and that nothing needs to be cleaned up. Arguments that cannot be (an empty
// name, a negative lease) give errors of none of these kinds.
package locksidecar
