// Package locksidecar is the client of the lock sidecar of this host: it
// acquires and releases distributed locks by name.
//
//	c, err := locksidecar.Dial(ctx, "")      // the sidecar's default socket
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // for the wait and the work
//	defer cancel()
//	err = c.Do(ctx, "invoice:42", func(ctx context.Context, token uint64) error {
//		return charge(ctx, token)            // ctx ends when the lock is lost
//	})                                       // ErrLost is joined to the error of charge
//
// [Client.Lock] and [Client.TryLock] return a [Lock], whose [Lock.Unlock] returns ErrLost if
// the lock was lost. Check that error: a deferred Unlock without a check drops it.
//
// A program needs one [Client]; any number of goroutines may use it. The sidecar
// renews the locks that the program holds, and releases them when the program ends,
// however it ends.
//
// # When the sidecar is restarted
//
// A sidecar may be stopped, killed or upgraded while a program holds locks and waits
// for others. The program does not notice it: the [Client] connects to the successor by
// itself, held locks stay held with their tokens, waiting calls are queued again in
// their order, and the successor releases what the program unlocked in the meantime.
// Calls that are made in the meantime wait for the successor, for up to ten seconds (see
// [WithReconnectPatience]).
//
// There are two exceptions. A successor without the state of its predecessor cannot
// renew the held locks: they are lost at their deadlines. And the Client does not repeat
// [Client.ForceRelease]: if its answer is lost, the error says that it may have been
// executed.
//
// # What a lock guarantees
//
// A lock is held from the return of [Client.Lock] until [Lock.Unlock], unless it is
// lost before: its lease ended, Redis could not be reached in time to renew it, its key
// was deleted or taken over, an operator ended it, or a sidecar that was restarted has
// no record of it. When that happens, [Lock.Err] returns the reason, [Lock.Done] is
// closed, and a context made by [Lock.Context] is cancelled.
//
// A lock is valid only until its deadline. This package checks the deadline by itself:
// if the sidecar is stopped or gone, no program relies on a lock that another one may
// hold.
//
// No lock service can stop a program that is suspended in the middle of its work from
// continuing after its lock was lost, nor a statement that a database executes after its
// program has died and the lock is free. The resource can: [Lock.Token] is larger for every
// later hold of the lock, on whatever host. It is not enough that the resource refuses
// smaller tokens: a late write that comes between the read and the write of the next holder
// has the largest token so far. To read, change and write a value, write the token first:
//
//	UPDATE items SET fence = $token WHERE name = $name AND fence <= $token RETURNING stock
//	UPDATE items SET stock = $new WHERE name = $name AND fence = $token
//
// If a statement changes no row, stop: a later holder has written its token. Each later
// write has the condition of the second statement, or all of them are one transaction, which
// ends before Unlock. Without a fence, [WithCrashDelay] keeps the lock while a database may
// still execute statements of a program that has died.
//
// Each successful Lock returns a handle of its own. After its Unlock the handle does
// nothing: a late or second Unlock cannot release a later hold.
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
// # Owners
//
// Every Lock is an owner of its own. Calls whose contexts derive from one [NewOwner] are the
// same owner, and re-enter each other's locks.
//
// # Read/write locks
//
// An [RWLock] is held by one owner alone, or by any number of owners that share it, over all hosts.
// [RWLock.Lock] excludes all others, [RWLock.RLock] only those of Lock:
//
//	catalog := c.RWLock("catalog")
//	l, err := catalog.RLock(ctx)             // beside other readers
//
// Both return a [Lock]. [Lock.Downgrade] makes an exclusive one a shared one. A name is that of a
// lock, of a read/write lock or of a semaphore, and of one of them at a time.
//
// # Semaphores
//
// A [Semaphore] admits several clients at one time, over all hosts, instead of one. Each of them
// holds some of its permits:
//
//	api := c.Semaphore("partner-api", 10)    // at most 10 at one time
//	err := api.Do(ctx, 1, func(ctx context.Context) error {
//		return call(ctx)                     // ctx ends when the permit is lost
//	})
//
// [Semaphore.Acquire] and [Semaphore.TryAcquire] return a [Permit]. What is said of a lock above
// holds for it, but that its token is no fence and that it has no owner. All programs name the same
// capacity; one that names another one needs nothing else.
//
// # For operators
//
// [Client.Info], [Client.List], [Client.Events], [Client.Status] and [Client.Hosts] describe
// locks and sidecars. [Client.ForceRelease] takes a lock or permits away from their holders. The policy of a
// sidecar may hide what other users do, or refuse the request with ErrDenied.
//
// # Logging and tests
//
// [WithLogger] makes a Client log losses and reconnects. Without it, a Client logs only, by
// [log/slog.Default], an acquire that has waited for 2 s because Redis does not serve: an
// acquire without a deadline waits as long as that takes. Package locksidecartest starts a
// sidecar, with its Redis, in the process of a test.
//
// # Errors
//
// For [errors.Is]:
//
//	ErrHeld          TryLock: another owner holds the lock; TryAcquire: too few permits are free
//	ErrTimeout       the context's deadline passed first; is context.DeadlineExceeded too
//	context.Canceled the context was cancelled first
//	ErrDeadlock      waiting would never end: the holder waits for this owner
//	ErrUnavailable   the sidecar, or its Redis, cannot be reached or does not answer; if a
//	                 deadline passed meanwhile, the error is ErrTimeout, too: test this first
//	ErrDenied        no permission: for the socket, for the key in Redis, to force
//	ErrLimit         a limit of the sidecar; the text says which
//	ErrClosed        the Client was closed
//	ErrLost          the lock is not held any more; *LostError says why
//	ErrNotHeld       this handle was released before; ForceRelease: no process of this host holds it
//	ErrUnconfirmed   Confirmed: the lock is released, Redis's confirmation is missing
//	ErrUnsupported   the sidecar is older than this package (one without read/write locks,
//	                 for example), or speaks another version;
//	                 Dial: this system is not Linux
//
// Every error of [Client.Lock], [Client.TryLock], [Semaphore.Acquire] and
// [Semaphore.TryAcquire] means that nothing is
// held and that nothing needs to be cleaned up. Invalid arguments (an empty name, a
// negative lease) give errors of none of these kinds.
package locksidecar
