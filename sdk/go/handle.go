package locksidecar

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// handle is one entry of a hold: what [Lock] and [Permit] have in common.
type handle struct {
	_    noCopy
	hold *hold

	// Guarded by the session's mu.
	state        handleState
	observers    *observers // nil: neither Done nor Context was called
	nextObserved *handle    // of the hold's handles that have observers
}

// handleState is whether a handle was released. Whether its lock is held is the phase of its
// hold.
type handleState uint8

const (
	handleEntered      handleState = iota // not released
	handleReleased                        // released while the lock was held
	handleReleasedLate                    // released after the hold had ended; Err returns why it ended
)

// release is [Lock.Unlock] and [Permit.Release].
func (l *handle) release(how expiryCheck, options ...UnlockOption) error {
	h := l.hold
	s := h.session
	if err := l.lockMu(how); err != nil {
		if l.state == handleEntered {
			l.state = handleReleasedLate
		} else {
			err = l.alreadyReleased()
		}
		s.mu.Unlock()
		return err
	}
	l.state = handleReleased
	h.entries--
	notices := l.removeObserversLocked()
	conn, refusal := s.conn, s.refusal
	wasOrphaned := h.phase == holdOrphaned
	if wasOrphaned {
		conn, refusal = nil, nil // the sidecar knows nothing of the hold
	}
	s.release = protocol.Release{Hold: h.id, CutShort: isCutShort(options)}
	switch {
	case h.entries > 0:
	case h.isOwned && conn != nil:
		// The sidecar may have sent the answer to a re-entry before it receives this
		// release. It sends the answer to the release after that one.
		s.lastID++
		s.release.ID = s.lastID
		s.calls[s.lastID] = &call{kind: releaseCall, hold: h, id: s.lastID, conn: conn}
		h.phase = holdReleasing
	default:
		h.leaveLocked(holdReleased)
	}
	conn.queue(&s.release)
	var c *confirmation
	if len(options) > 0 && refusal == nil {
		c = s.requestConfirmationLocked(h, wasOrphaned, conn, options)
	}
	s.mu.Unlock()

	notify(notices)
	conn.flush()
	if refusal != nil {
		return &clientError{
			text: fmt.Sprintf("cannot release %q: %s; Redis has it until its lease ends", h.name, refusal.text),
			kind: ErrUnavailable, cause: refusal.cause,
		}
	}
	if c != nil {
		return c.await()
	}
	return nil
}

// expiryCheck is what a lock whose deadline has passed depends on.
type expiryCheck bool

const (
	// It is lost only if nothing that has arrived moves its deadline.
	readFirst expiryCheck = true

	// It is lost. For the goroutine that has the turn to read: it cannot read now.
	asHandled expiryCheck = false
)

// lockMu locks session.mu, and returns what Err returns. It checks the clock first.
func (l *handle) lockMu(how expiryCheck) error {
	h := l.hold
	s := h.session
	now := s.clock()
	s.mu.Lock()
	if how == readFirst && h.isHeldLocked() && now >= h.deadlineLocked() {
		conn := s.conn
		s.mu.Unlock()
		s.readArrived(conn)
		s.mu.Lock()
	}
	if notices, expired := h.expireLocked(now); expired {
		conn := s.conn
		s.mu.Unlock()
		notify(notices)
		conn.flush()
		s.mu.Lock()
	}
	if l.state == handleReleased {
		return l.alreadyReleased()
	}
	return h.cause
}

func (l *handle) alreadyReleased() error {
	text := "the lock %q was unlocked; each Lock is for one Unlock"
	if l.hold.permits != 0 {
		text = "the permits of %q were released; each Permit is for one Release"
	}
	return &clientError{text: fmt.Sprintf(text, l.hold.name), kind: ErrNotHeld}
}

// Name returns the name of the lock, or of the semaphore.
func (l *handle) Name() string { return l.hold.name }

// Token returns the fencing token: a number that is larger for every later hold
// of this name. Re-entries share one. That of permits is no fence, because holds of a semaphore
// exist at one time.
func (l *handle) Token() uint64 { return l.hold.token }

// Deadline returns until when the lock, or the permits, are known to be held. The sidecar's
// renewals move it; past it they are lost. After the hold has ended it does not move.
func (l *handle) Deadline() time.Time {
	l.readArrived()
	h := l.hold
	s := h.session
	s.mu.Lock()
	deadline := h.deadlineLocked()
	s.mu.Unlock()
	return time.Now().Add(time.Duration(deadline - s.clock()))
}

// readArrived handles what has arrived for a lock that is held.
func (l *handle) readArrived() {
	s := l.hold.session
	s.mu.Lock()
	conn, isHeld := s.conn, l.hold.isHeldLocked()
	s.mu.Unlock()
	if isHeld {
		s.readArrived(conn)
	}
}

// Err returns nil while the lock, or the permits, are held. After that it returns an ErrLost, of
// type *LostError, an ErrNotHeld if they were released, or an ErrClosed if the Client was
// closed. Err reads the clock: what is held past its deadline is lost, whether or not
// the sidecar has reported it.
func (l *handle) Err() error {
	err := l.lockMu(readFirst)
	l.hold.session.mu.Unlock()
	return err
}

// Done returns a channel that is closed when the lock, or the permits, are not held any more: they
// were lost or released. Err returns which. The channel is closed at the deadline even if the
// sidecar is stopped or gone.
func (l *handle) Done() <-chan struct{} {
	err := l.lockMu(readFirst)
	defer l.hold.session.mu.Unlock()
	if err != nil {
		return closedChannel
	}
	o := l.observersLocked()
	if o.done == nil {
		o.done = make(chan struct{})
	}
	return o.done
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Context returns a context that is cancelled when ctx is, or when the lock, or the permits, are not
// held any more; context.Cause then returns what Err returns. Call the function when the
// context is not needed any more. It does not release what is held.
func (l *handle) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	mu := &l.hold.session.mu
	if err := l.lockMu(readFirst); err != nil {
		mu.Unlock()
		cancel(err)
		return ctx, func() {}
	}
	mine := &cancel
	o := l.observersLocked()
	o.cancels = append(o.cancels, mine)
	mu.Unlock()
	return ctx, func() {
		mu.Lock()
		if o := l.observers; o != nil {
			o.cancels = slices.DeleteFunc(o.cancels, func(c *context.CancelCauseFunc) bool { return c == mine })
		}
		mu.Unlock()
		cancel(nil)
	}
}

// observersLocked returns the handle's observers. The lock is held, and the handle is not
// released.
func (l *handle) observersLocked() *observers {
	if l.observers == nil {
		l.observers = new(observers)
		l.nextObserved, l.hold.observed = l.hold.observed, l
		l.hold.session.alarm.add(l.hold)
	}
	return l.observers
}

// removeObserversLocked removes the observers of a handle that was released, and returns the
// notice for them.
func (l *handle) removeObserversLocked() []endNotice {
	if l.observers == nil {
		return nil
	}
	h := l.hold
	for at := &h.observed; *at != nil; at = &(*at).nextObserved {
		if *at == l {
			*at, l.nextObserved = l.nextObserved, nil
			break
		}
	}
	if h.observed == nil {
		h.session.alarm.remove(h)
	}
	notices := []endNotice{{observers: *l.observers, cause: l.alreadyReleased()}}
	l.observers = nil
	return notices
}
