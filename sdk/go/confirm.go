package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// UnlockOption changes how one lock is unlocked, or how permits are released. What follows of
// Unlock holds for [Permit.Release].
type UnlockOption struct {
	confirm  context.Context // bounds the wait for the confirmation; nil: none is requested
	cutShort bool
}

// CutShort reports that the work under the lock was ended before it was done, because the lock
// was about to be lost: its deadline came near, and nothing renewed it. The sidecar then counts
// the hold among the losses, with reason [ReasonCutShort], in its events, its log and its
// metrics. Without this option operators see a release like any other.
//
// The lock is released as without this option. A sidecar that is older ignores the report.
func CutShort() UnlockOption { return UnlockOption{cutShort: true} }

func isCutShort(options []UnlockOption) bool {
	return slices.ContainsFunc(options, func(o UnlockOption) bool { return o.cutShort })
}

// Confirmed makes Unlock wait until the sidecar has confirmed that Redis has executed the
// release. After that no other host finds the lock taken by this hold, and the program
// may signal one of them that it is free:
//
//	if err := l.Unlock(locksidecar.Confirmed(ctx)); err != nil {
//		return err
//	}
//	return notify(ctx, otherHost)
//
// If another owner of this host waits for the lock, the lock passes to that owner. The
// sidecar then confirms the release at once, and other hosts find the lock taken by that
// owner. The same is true while this owner has entries left (see [NewOwner]).
//
// The lock is released at once, as without this option, even if no confirmation follows.
// ctx, which must not be nil, bounds the wait for the confirmation only. The Client sends
// the release and the request for its confirmation together. If the sidecar is restarted
// before it has answered, the Client sends the request to the successor, and Unlock
// keeps waiting. While the sidecar cannot reach Redis, Unlock waits as long as ctx allows.
//
// The error is nil if the release was confirmed. If the lock was not held any more, the
// error is the one that Unlock returns without this option. It is ErrUnconfirmed if the
// lock was released here and only the confirmation is missing. Then its text has the time
// at which the lease ends: from then on other hosts find the lock free in any case. errors.Is also
// finds the reason in it:
//
//	ctx.Err()       ctx ended first; ErrTimeout if its deadline passed
//	ErrDenied       Redis refused the release
//	ErrUnsupported  this sidecar is older and does not confirm releases: upgrade it
//	ErrUnavailable  no sidecar answered for too long (see WithReconnectPatience)
//	ErrLimit        too many requests of this Client wait for an answer
//	ErrClosed       the Client was closed in the meantime
//
// or none of these if the sidecar was restarted and its successor has no record of the
// release.
func Confirmed(ctx context.Context) UnlockOption {
	if ctx == nil {
		panic("locksidecar: Confirmed needs a context; use context.Background() to wait as long as it takes")
	}
	return UnlockOption{confirm: ctx}
}

// errNewSession is the error of a confirmCall if the sidecar has begun a new session instead
// of resuming the one of that call. No caller of the package gets it.
var errNewSession = errors.New("the session was not resumed")

// confirmation is an Unlock that waits for Redis. Its hold is released already.
type confirmation struct {
	call
	session *session
	ctx     context.Context
	sidecar string       // uuid of the sidecar that executes the release
	sentOn  *connection  // on which the request was sent first; nil: there was no connection
	refusal *clientError // why the request was not sent; nil: it was, or will be
}

// requestConfirmationLocked queues the request for the confirmation of a release that was
// queued before. It returns nil if no option requests one. wasOrphaned says that the sidecar
// knew nothing of the hold; otherwise the session is open. The caller flushes conn.
func (s *session) requestConfirmationLocked(h *hold, wasOrphaned bool, conn *connection, options []UnlockOption) *confirmation {
	var ctx context.Context
	for _, o := range options {
		if o.confirm != nil {
			ctx = o.confirm
		}
	}
	if ctx == nil {
		return nil
	}
	c := &confirmation{session: s, ctx: ctx, sidecar: s.sidecar, sentOn: conn}
	c.call = *newConfirmCall(h, h.leaseEndLocked())
	switch {
	case wasOrphaned:
		c.refusal = c.unknownRelease()
	case ctx.Err() != nil:
		c.refusal = contextError(ctx, c.task)
	default:
		c.refusal = s.postLocked(&c.call, conn)
	}
	return c
}

// newConfirmCall returns the call that is answered when Redis has executed the release of h.
// freeAt is when the lease of h ends.
func newConfirmCall(h *hold, freeAt int64) *call {
	c := newCall(confirmCall, task{"confirm the release of", h.name}, new(protocol.ConfirmOK), func(id uint64) protocol.Request {
		return protocol.Confirm{ID: id, Name: h.name}
	})
	c.hold, c.freeAt = h, freeAt
	return c
}

// await returns nil when the release is confirmed, and an error when it will not be.
func (c *confirmation) await() error {
	s := c.session
	why := c.refusal
	if why == nil {
		if c.sentOn == nil {
			s.wakeReconnect()
		}
		why = s.await(c.ctx, &c.call, c.sentOn)
	}
	if why == nil && c.err == errNewSession {
		why = c.awaitInNewSession()
	} else if why == nil && c.err != nil {
		why = c.err.(*clientError)
	}
	if why == nil {
		return nil
	}
	if why.kind == ErrUnsupported {
		why.text = fmt.Sprintf("%s: this sidecar is older than this client and does not confirm releases; upgrade it", c.task)
	}
	s.mu.Lock()
	left := time.Duration(c.freeAt - s.clock())
	s.mu.Unlock()
	what, its := "lock", "it"
	if c.hold.permits != 0 {
		what, its = "hold", "its permits"
	}
	free := "its lease has ended in Redis meanwhile"
	if left > 0 {
		// Rounded up to seconds, so that it is not too short.
		free = fmt.Sprintf("other hosts find %s free within %v at the latest, when its lease ends", its, (left + time.Second - 1).Truncate(time.Second))
	}
	return &clientError{
		text: fmt.Sprintf("%s; the %s is released here, and %s", why.text, what, free),
		kind: ErrUnconfirmed, cause: why,
	}
}

// awaitInNewSession requests the confirmation in a new session. A successor ends the
// sessions that hold nothing, so also that of a client that has released its last lock.
// A successor with the same uuid still knows which releases its predecessor had not
// executed, and can confirm them. If it still has the hold, the predecessor did not read
// the release, and an answer to confirm would prove nothing.
func (c *confirmation) awaitInNewSession() *clientError {
	s := c.session
	for {
		s.mu.Lock()
		sidecar := s.sidecar
		c.freeAt = c.hold.leaseEndLocked()
		s.mu.Unlock()
		if sidecar != c.sidecar {
			return c.unknownRelease()
		}
		var info protocol.InfoOK
		look := newConfirmCall(c.hold, c.freeAt)
		look.answer, look.request = &info, func(id uint64) protocol.Request {
			return protocol.Info{ID: id, Name: c.hold.name}
		}
		if err := c.ask(look); err != nil {
			return err
		}
		if look.err == errNewSession {
			continue
		}
		if look.conn.hello.Sidecar != c.sidecar {
			return c.unknownRelease()
		}
		if mayHave(info.Lock, c.hold.id) {
			return &clientError{text: c.String() + ": the sidecar was restarted before it had read the release, and its successor did not resume this client's session"}
		}
		confirm := newConfirmCall(c.hold, c.freeAt)
		if err := c.ask(confirm); err != nil {
			return err
		}
		if confirm.err == errNewSession {
			continue
		}
		if confirm.conn.hello.Sidecar != c.sidecar {
			return c.unknownRelease()
		}
		return nil
	}
}

// mayHave reports whether a hold of a name may be one of those of a row; nil: the sidecar does not know the
// name. The row of a semaphore shows some of its holds only.
func mayHave(row *protocol.LockRow, hold uint64) bool {
	return row != nil && (row.Hold == hold || row.Held > len(row.Holders) ||
		slices.ContainsFunc(row.Holders, func(h protocol.HolderRow) bool { return h.Hold == hold }))
}

// ask sends a request and waits for its answer. It returns why there is none, or the error
// that it is. It returns nil if there is an answer, or if the call has failed with
// errNewSession.
func (c *confirmation) ask(request *call) *clientError {
	s := c.session
	conn, err := s.send(request)
	switch err := err.(type) {
	case nil:
	case *clientError:
		return err
	default: // errNotSent
		s.mu.Lock()
		defer s.mu.Unlock()
		return request.unanswered(s.refusal)
	}
	if err := s.await(c.ctx, request, conn); err != nil {
		return err
	}
	refusal, _ := request.err.(*clientError)
	return refusal
}

// unknownRelease is the error of a confirmation after the sidecar that had the hold was
// replaced by one with another uuid.
func (c *confirmation) unknownRelease() *clientError {
	return &clientError{text: c.String() + ": the sidecar was restarted without its state, and does not know of the release"}
}
