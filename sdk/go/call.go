package locksidecar

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// call is a request, from before it is sent to its answer, over as many connections as that
// takes. While it waits for its answer it is in session.calls.
type call struct {
	task
	kind callKind
	done chan struct{} // receives a value when the result is stored; nil: no goroutine waits

	// Guarded by session.mu.
	phase        callPhase
	id           uint64      // of the frame that was queued last
	conn         *connection // on which that frame was queued; nil: none was
	waitingSince int64       // in callWaiting: when the patience began

	// Of an acquireCall.
	acquire  wanted
	frame    protocol.AcquireReadWrite // what is sent for a read/write lock
	deadline time.Time                 // of its caller's context; zero: it has none, or the call does not wait for the lock
	looks    int                       // of waitWatch at this call
	lock     *Lock                     // the result; of permits it is a Permit

	// Of the calls that callers wait for, but for an acquireCall.
	request func(id uint64) protocol.Request
	answer  protocol.OK // the result

	// Of a releaseCall: whose last entry it releases. Of a confirmCall: whose release it
	// confirms. Of a downgradeCall: the one that is to be shared.
	hold   *hold
	freeAt int64 // of a confirmCall: when the lease of hold ends in Redis, at the latest

	err error // the result, if it is an error
}

// callKind is what a call requests, as far as calls are treated differently.
type callKind uint8

const (
	// A lock, a read/write lock, or permits. It is sent again over the next connection. If its caller leaves, what
	// is granted is released.
	acquireCall callKind = iota

	// info, list, metrics, events, status or ping. It changes nothing, so it is sent again.
	queryCall

	// force_release. Once it was sent it fails with its connection, because it may have
	// happened, and a second one would end the hold of another owner.
	forceCall

	// The release of a last entry that is answered. No goroutine waits for it. It is not
	// sent again: a hold that the client does not claim is released.
	releaseCall

	// The confirmation of a release, or what a confirmation needs in a new session. It is
	// sent again if the session is resumed. In a new session it fails with errNewSession.
	confirmCall

	// downgrade. It is sent again if the session is resumed: bad_request then means that it was
	// executed before. In a new session it fails with errNewSession.
	downgradeCall

	// bye. No goroutine waits for it. The session itself sends it again.
	byeCall
)

// callPhase is how far a call has come that is in session.calls.
//
//	a new call,              the connection                a new call,
//	disconnected ──► waiting ◄───── ends ────── sent ◄──── connected
//	                    │                         │
//	                    └──────► abandoned ◄──────┘
//	       connected, and the caller of an acquire leaves
//
// The answer ends each of them, and so does the end of the session. The caller ends sent and
// waiting when it leaves, but for an acquire while the session is connected.
type callPhase uint8

const (
	// It was queued on the session's connection, and on none before that.
	callSent callPhase = iota

	// The session has no connection, or has a new one over which the call was sent again.
	// Since waitingSince no sidecar has been of use. If there is no connection when the
	// patience ends, the call fails.
	callWaiting

	// An acquire that was sent, whose caller has left. If it is granted, the hold is
	// released. The end of the connection ends it, too.
	callAbandoned
)

// wanted is what an acquire requests.
type wanted struct {
	protocol.AcquirePermits          // Permits and Of: of a semaphore; of another kind 0
	mode                    holdMode // of a read/write lock
}

// task is what a call is made for, in words for errors.
type task struct{ verb, name string }

func (t task) String() string {
	if t.name == "" {
		return "cannot " + t.verb
	}
	return fmt.Sprintf("cannot %s %q", t.verb, t.name)
}

// newCall returns a call that is no acquireCall.
func newCall(kind callKind, t task, answer protocol.OK, request func(id uint64) protocol.Request) *call {
	return &call{kind: kind, task: t, answer: answer, request: request, done: make(chan struct{}, 1)}
}

// newAcquire returns an acquireCall.
func (s *session) newAcquire(t task, req wanted) *call {
	c, ok := s.spares.Get().(*call)
	if !ok {
		c = &call{done: make(chan struct{}, 1)}
	}
	c.task, c.acquire = t, req
	return c
}

// recycle takes back an acquireCall whose result was received from done. Only its caller
// refers to it.
func (s *session) recycle(c *call) {
	*c = call{done: c.done}
	s.spares.Put(c)
}

// finish wakes the caller of a call that is not in session.calls any more. Its result was
// stored before.
func (c *call) finish() {
	if c.done != nil {
		c.done <- struct{}{}
	}
}

// fail ends a call that is not in session.calls any more.
func (c *call) fail(err error) {
	c.err = err
	c.finish()
}

// frameLocked returns what is sent for a call.
func (c *call) frameLocked() protocol.Request {
	if c.kind != acquireCall {
		return c.request(c.id)
	}
	c.acquire.ID = c.id
	if !c.deadline.IsZero() {
		// At least 1: 0 would not wait at all. If a wait is too long for the protocol,
		// only the context ends it.
		c.acquire.WaitMS = max(1, time.Until(c.deadline).Milliseconds())
		if c.acquire.WaitMS > protocol.MaxDurationMS {
			c.acquire.WaitMS = protocol.Forever
		}
	}
	switch {
	case c.acquire.mode != notReadWrite:
		c.frame = protocol.AcquireReadWrite{Acquire: c.acquire.Acquire, Shared: c.acquire.mode == sharedMode}
		return &c.frame
	case c.acquire.Of == 0:
		return &c.acquire.Acquire
	}
	return &c.acquire.AcquirePermits
}

// refused is the error of a call that the sidecar has refused.
func (c *call) refused(conn *connection, m *protocol.Err) *clientError {
	e := refusedError(c.task, m)
	if e.kind != ErrUnsupported || c.kind != acquireCall {
		return e
	}
	lacks := ""
	switch {
	case c.acquire.Of != 0:
		lacks = "semaphores"
	case c.acquire.mode != notReadWrite:
		lacks = "read/write locks"
	default:
		return e
	}
	e.text = fmt.Sprintf("%s: the sidecar of this host has version %s, which has no %s; upgrade it and restart it", c.task, conn.hello.Version, lacks)
	return e
}

// notHeld is the part of the error of an acquire that says so.
func (c *call) notHeld() string {
	if c.acquire.Of != 0 {
		return "; they are not held"
	}
	return "; it is not held"
}

// unanswered is the error of a call that may have been sent, and whose answer will not come.
func (c *call) unanswered(why *clientError) *clientError {
	text := c.String() + ": " + why.text
	switch {
	case why.kind == ErrClosed, c.kind == confirmCall:
	case c.kind == downgradeCall:
		text += "; it may still exclude others"
	case c.kind == acquireCall:
		text += c.notHeld() + ", and what may just have been granted is given up"
	default:
		text += "; it may have happened"
	}
	return &clientError{text: text, kind: why.kind, cause: why.cause}
}

// unsent is the error of a call whose patience has ended without a connection.
func (c *call) unsent(why *clientError) *clientError {
	text := c.String() + ": " + why.text
	switch c.kind {
	case confirmCall:
	case downgradeCall:
		text += "; it may still exclude others"
	case acquireCall:
		text += c.notHeld() + ", and nothing needs to be cleaned up"
	default:
		text += "; it was not done"
	}
	return &clientError{text: text, kind: ErrUnavailable, cause: why}
}

// notRead is the error of a call that was not even queued.
func (c *call) notRead() *clientError {
	return &clientError{
		text: fmt.Sprintf("%s: the sidecar is stopped or hangs: it has not read %d bytes of earlier requests; this one was not sent", c.task, maxUnwritten),
		kind: ErrUnavailable,
	}
}
