package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Client is a program's connection to the sidecar of its host. [Dial] returns it; the zero
// Client cannot be used. A program needs one Client; many goroutines may use it at once. A
// Client must not be copied. It has one
// goroutine and two file descriptors, however many locks there are.
//
// The connection may be lost: the sidecar is restarted, upgraded or killed. The Client
// then connects again by itself and resumes its session: held locks stay held, with
// their tokens, and waiting calls are queued again in their order. Only if no sidecar
// listens for too long (see [WithReconnectPatience]) do calls fail, with ErrUnavailable; locks
// are held until their deadlines even then.
type Client struct {
	// Immutable.
	dialer       dialer
	dialPatience time.Duration
	patience     time.Duration
	done         chan struct{} // closed by the first Close when it has ended the session

	_       noCopy
	current atomic.Pointer[session]

	mu       sync.Mutex // guards isClosed, and changes of current; no other mutex is taken under it
	isClosed bool
}

// Dial connects to the sidecar that listens at the path; "" is
// $LOCKSIDECAR_SOCKET, or else /run/locksidecar/locksidecar.sock. A relative path is that from the
// present working directory, also if that changes. Dial waits for a
// sidecar that is just starting (see WithDialPatience), as long as ctx allows; ctx has no
// meaning for the Client after that.
//
// The error is ErrUnavailable if no sidecar listens or answers, and ErrDenied if this user may
// not connect to the socket.
//
// The sidecar runs on Linux. On another system Dial returns an error that is both
// ErrUnsupported and [errors.ErrUnsupported].
func Dial(ctx context.Context, path string, options ...DialOption) (*Client, error) {
	if runtime.GOOS != "linux" {
		return nil, &clientError{
			text: "the sidecar runs on Linux only, and this program runs on " + runtime.GOOS + "; run it on a Linux host or in a Linux container, beside a sidecar",
			kind: ErrUnsupported, cause: errors.ErrUnsupported,
		}
	}
	if path == "" {
		path = protocol.DefaultSocket()
	}
	if scheme, _, isURL := strings.Cut(path, "://"); isURL && !strings.Contains(scheme, "/") {
		// Without the rest of the URL, which may have a password.
		return nil, &clientError{text: fmt.Sprintf("%s://… is not the path of a socket: pass the path of the sidecar's socket, or \"\" for the default; the sidecar connects to Redis, and its setting redis has the URL", scheme)}
	}
	c := newClient(dialer{path: absolute(path), name: "go/" + Version, connect: connectUnix, clock: protocol.Now})
	for _, o := range options {
		if err := o.apply(c); err != nil {
			return nil, &clientError{text: err.Error(), cause: err}
		}
	}
	if err := c.dial(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// newClient returns a Client without a session.
func newClient(d dialer) *Client {
	return &Client{dialer: d, dialPatience: dialPatience, patience: defaultPatience, done: make(chan struct{})}
}

// dial starts the first session.
func (c *Client) dial(ctx context.Context) error {
	conn, err := c.dialer.dialFirst(ctx, c.dialPatience)
	if err != nil {
		return err
	}
	c.startSession(conn)
	return nil
}

// startSession starts a session and makes it the current one.
func (c *Client) startSession(conn *connection) *session {
	s := newSession(&c.dialer, c.patience)
	s.start(conn)
	c.current.Store(s)
	return s
}

// Close ends the session: the sidecar releases every lock that the Client holds, as if
// the program had ended (see WithCrashDelay), and their handles return ErrClosed. Close
// waits for the answer of the sidecar for at most a second, and not at all if no sidecar
// listens. Without an answer the Client keeps trying to reach the sidecar, or its
// successor, until the leases of the locks have ended. Close returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	isFirst := !c.isClosed
	c.isClosed = true
	c.mu.Unlock()
	if isFirst {
		defer close(c.done)
	}
	if s := c.current.Load(); s != nil {
		s.close()
	}
	return nil
}

// Done returns a channel that is closed when the first Close has ended the session, just
// before that Close returns: no lock of the Client is held, and every call returns
// ErrClosed. Only Close closes it. The loss of the connection, or of a lock, does not.
func (c *Client) Done() <-chan struct{} { return c.done }

// noCopy makes go vet report copies of the struct that has it as a field.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// session returns the current session. It starts one if the last has ended because one side
// broke the protocol.
func (c *Client) session() (*session, error) {
	if s := c.current.Load(); s.isOpen() {
		return s, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, &clientError{text: "the client was closed", kind: ErrClosed}
	}
	if s := c.current.Load(); s.isOpen() {
		return s, nil
	}
	return c.startSession(nil), nil
}

// Lock acquires the lock, and waits for it as long as ctx allows. On one host, waiting
// calls get the lock in the order in which they were made. The name has 1 to 512 bytes of
// UTF-8 without control characters, and is the same lock on all hosts with this Redis.
//
// ctx bounds the wait only. The lock is then held until Unlock, or until it is
// lost; see [Lock.Context] for a context that ends with it.
//
// If the deadline of ctx passes, the error is ErrTimeout. It is ErrUnavailable, too, if
// that was not because of another owner: Redis has not answered, or no sidecar listens.
// To find out whether Redis has answered, Lock asks the sidecar, for at most 25 ms after
// the deadline. If the sidecar does not answer in that time either, the error is
// ErrTimeout only.
func (c *Client) Lock(ctx context.Context, name string, options ...Option) (*Lock, error) {
	return c.lock(ctx, name, false, options)
}

// TryLock acquires the lock if no other owner holds it and no other call on this host
// waits for it; otherwise the error is ErrHeld. It may also be ErrHeld for a few
// milliseconds after a release on another host, whose sidecar keeps the lock for its next
// client. ctx bounds how long Redis and the sidecar may take to answer: if its deadline
// passes, the error is ErrUnavailable, and ErrTimeout, too.
func (c *Client) TryLock(ctx context.Context, name string, options ...Option) (*Lock, error) {
	return c.lock(ctx, name, true, options)
}

func (c *Client) lock(ctx context.Context, name string, try bool, options []Option) (*Lock, error) {
	req := protocol.Acquire{Name: name, Owner: ownerOf(ctx)}
	return c.acquire(ctx, task{"lock", name}, wanted{AcquirePermits: protocol.AcquirePermits{Acquire: req}}, try, options)
}

// acquire acquires a lock, a read/write lock, or permits: then the result is a Permit.
func (c *Client) acquire(ctx context.Context, t task, req wanted, try bool, options []Option) (*Lock, error) {
	if err := protocol.CheckName(req.Name); err != nil {
		return nil, &clientError{text: err.Error()}
	}
	if len(options) > 0 {
		var err error
		if req, err = withOptions(req, options); err != nil {
			return nil, &clientError{text: t.String() + ": " + err.Error(), cause: err}
		}
	}
	var l *Lock
	err := c.withSession(ctx, t, func(s *session) (err error) {
		l, err = s.acquire(ctx, t, req, try)
		return err
	})
	return l, err
}

// withSession calls do with the session. If do returns errNotSent, because that session has
// just ended, it calls do with a new one.
func (c *Client) withSession(ctx context.Context, t task, do func(*session) error) error {
	for range 2 {
		if ctx.Err() != nil {
			return contextError(ctx, t)
		}
		s, err := c.session()
		if err != nil {
			return err
		}
		if err := do(s); err != errNotSent {
			return err
		}
	}
	return &clientError{text: t.String() + ": the sidecar ends sessions as soon as they are begun; see its log", kind: ErrUnavailable}
}
