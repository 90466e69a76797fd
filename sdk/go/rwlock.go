package locksidecar

import (
	"context"

	"github.com/locksidecar/locksidecar/protocol"
)

// RWLock is a read/write lock: over all hosts, one owner holds it exclusive, or any number of
// owners hold it shared. [Client.RWLock] returns it. Many goroutines may use it at once.
type RWLock struct {
	client *Client
	name   string
}

// RWLock returns the read/write lock of that name. It sends nothing. The name is as that of a lock;
// a name is that of a lock, a read/write lock or a semaphore, and of one of them at a time.
func (c *Client) RWLock(name string) *RWLock { return &RWLock{c, name} }

// Name returns the name of the lock.
func (rw *RWLock) Name() string { return rw.name }

// Lock is [Client.WLock].
func (rw *RWLock) Lock(ctx context.Context, options ...Option) (*Lock, error) {
	return rw.client.WLock(ctx, rw.name, options...)
}

// TryLock is [Client.TryWLock].
func (rw *RWLock) TryLock(ctx context.Context, options ...Option) (*Lock, error) {
	return rw.client.TryWLock(ctx, rw.name, options...)
}

// RLock is [Client.RLock].
func (rw *RWLock) RLock(ctx context.Context, options ...Option) (*Lock, error) {
	return rw.client.RLock(ctx, rw.name, options...)
}

// TryRLock is [Client.TryRLock].
func (rw *RWLock) TryRLock(ctx context.Context, options ...Option) (*Lock, error) {
	return rw.client.TryRLock(ctx, rw.name, options...)
}

// RLock acquires a read/write lock shared: beside other shared holds, and not beside an exclusive
// one. It waits also for a WLock that came before it. ctx, and the errors, are as of [Client.Lock].
//
// An owner of [NewOwner] re-enters its hold at once, whether that is shared or exclusive. Without
// NewOwner, a goroutine that calls RLock while it has the lock shared may wait for itself: if a
// WLock came in between, it has to wait for that one, which waits for the first RLock.
//
// The token of a shared hold is larger than that of each earlier exclusive hold. Shared holds may have the
// same one. Store it with what was derived under the lock, and keep what has the larger token: then
// nothing that was derived before a write replaces what was derived after it.
func (c *Client) RLock(ctx context.Context, name string, options ...Option) (*Lock, error) {
	return c.readWriteLock(ctx, name, sharedMode, false, options)
}

// TryRLock is RLock if that need not wait for another owner; otherwise the error is ErrHeld. ctx,
// and the other errors, are as of [Client.TryLock].
func (c *Client) TryRLock(ctx context.Context, name string, options ...Option) (*Lock, error) {
	return c.readWriteLock(ctx, name, sharedMode, true, options)
}

// WLock acquires a read/write lock exclusive: beside no other hold. ctx, and the errors, are as of
// [Client.Lock]. For an owner of [NewOwner] that has the lock shared, the error is ErrDeadlock:
// release it first.
func (c *Client) WLock(ctx context.Context, name string, options ...Option) (*Lock, error) {
	return c.readWriteLock(ctx, name, exclusiveMode, false, options)
}

// TryWLock is WLock if that need not wait; otherwise the error is ErrHeld. ctx, and the other
// errors, are as of [Client.TryLock].
func (c *Client) TryWLock(ctx context.Context, name string, options ...Option) (*Lock, error) {
	return c.readWriteLock(ctx, name, exclusiveMode, true, options)
}

func (c *Client) readWriteLock(ctx context.Context, name string, mode holdMode, try bool, options []Option) (*Lock, error) {
	verb := "lock"
	if mode == sharedMode {
		verb = "share"
	}
	req := wanted{AcquirePermits: protocol.AcquirePermits{Acquire: protocol.Acquire{Name: name, Owner: ownerOf(ctx)}}, mode: mode}
	return c.acquire(ctx, task{verb, name}, req, try, options)
}

// Shared reports whether other shared holds may exist beside this one. It is false for a lock that
// is no read/write lock. An exclusive hold that an owner re-enters by RLock stays exclusive.
func (l *Lock) Shared() bool {
	mu := &l.hold.session.mu
	mu.Lock()
	defer mu.Unlock()
	return l.hold.mode >= downgradingMode
}

// Downgrade makes an exclusive hold of a read/write lock shared, with all handles of its owner and
// its token. No other owner has the lock exclusive in between. It does nothing if the hold is shared.
//
// Shared returns true from the call on, whatever the error is: then other owners may read, and it is
// not known whether they do. While the sidecar is being restarted, the successor downgrades the
// lock. ctx bounds the wait for the answer.
//
// The error is that of [Lock.Err] if the lock is not held, ErrTimeout or that of ctx if ctx ends
// first, and ErrUnavailable if the sidecar does not answer for too long, or has no record of the
// lock. The lock may exclude others until its end then, and Downgrade may be called again.
func (l *Lock) Downgrade(ctx context.Context) error {
	h := l.hold
	s := h.session
	t := task{"downgrade", h.name}
	if err := l.lockMu(readFirst); err != nil {
		s.mu.Unlock()
		return err
	}
	if h.mode == notReadWrite || h.mode == sharedMode {
		s.mu.Unlock()
		if h.mode == sharedMode {
			return nil
		}
		return &clientError{text: t.String() + ": it is no read/write lock; acquire it by WLock"}
	}
	var ok protocol.DowngradeOK
	c := newCall(downgradeCall, t, &ok, func(id uint64) protocol.Request { return protocol.Downgrade{ID: id, Hold: h.id} })
	c.hold = h
	conn := s.conn
	if err := s.postDowngradeLocked(ctx, c, conn); err != nil {
		s.mu.Unlock()
		return err
	}
	h.mode = downgradingMode
	s.mu.Unlock()
	if conn == nil {
		s.wakeReconnect()
	}
	conn.flush()
	if err := s.await(ctx, c, conn); err != nil {
		return err
	}
	if c.err != nil {
		return l.downgradeError(c)
	}
	s.mu.Lock()
	h.mode = sharedMode
	if h.phase == holdLive {
		h.deadline = max(h.receivedDeadlineLocked(), ok.DeadlineNS)
	}
	s.mu.Unlock()
	return nil
}

// postDowngradeLocked queues a downgrade, if the sidecar has the hold.
func (s *session) postDowngradeLocked(ctx context.Context, c *call, conn *connection) error {
	switch {
	case ctx.Err() != nil:
		return contextError(ctx, c.task)
	case c.hold.phase == holdOrphaned:
		return c.noRecord()
	case !s.isOpen():
		return c.unanswered(s.refusal)
	}
	if err := s.postLocked(c, conn); err != nil {
		return err
	}
	return nil
}

// downgradeError is the error of a downgrade that the sidecar has not executed.
func (l *Lock) downgradeError(c *call) error {
	if err := l.Err(); err != nil {
		return err
	}
	if c.err == errNewSession {
		return c.noRecord()
	}
	return c.err
}

func (c *call) noRecord() *clientError {
	return &clientError{
		text: c.String() + ": the sidecar was restarted without its state, and has no record of the lock, which excludes others until its deadline",
		kind: ErrUnavailable,
	}
}
