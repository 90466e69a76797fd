package locksidecar

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// version of this package, as operators see it.
const version = "0.1.0"

// Client is a program's connection to the sidecar of its host. It is meant to be
// one for a whole program, and may be used by many goroutines at once.
//
// When the connection is lost, calls that wait for an answer fail with
// ErrUnavailable, locks that are held stay so until their deadlines, and the
// next call connects again.
type Client struct {
	// Immutable.
	path     string
	name     string
	patience time.Duration
	connect  func(ctx context.Context, path string) (net.Conn, error)
	clock    func() int64 // CLOCK_BOOTTIME

	current atomic.Pointer[session] // the newest; nil: none yet

	mu      sync.Mutex // guards what follows, and changes of current; held for moments only
	closed  bool
	dialing *dialing           // nil: nobody connects
	stop    context.CancelFunc // ends dialing
}

// Dial connects to the sidecar that listens at the path; "" is
// $LOCKSIDECAR_SOCKET, or else /run/locksidecar/locksidecar.sock. A sidecar that
// is just starting is waited for (see WithPatience), as long as ctx allows; ctx
// has no meaning for the Client after that.
func Dial(ctx context.Context, path string, options ...DialOption) (*Client, error) {
	if path == "" {
		path = protocol.DefaultSocket()
	}
	c := &Client{path: path, name: "go/" + version, patience: defaultPatience, connect: connectUnix, clock: protocol.Now}
	for _, o := range options {
		if err := o.apply(c); err != nil {
			return nil, &failure{text: err.Error(), cause: err}
		}
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, c.connecting())
	}
	if _, err := c.session(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connection. The sidecar then releases every lock that the Client
// holds, as if the program had ended (see WithCrashDelay), and their handles say
// ErrClosed. Close returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	d := c.dialing
	if d != nil {
		c.stop()
	}
	c.mu.Unlock()
	if d != nil {
		<-d.done
	}
	if s := c.current.Load(); s != nil {
		s.close()
	}
	return nil
}

func (c *Client) connecting() task { return task{"connect to the sidecar at", c.path} }

func errClosed() error {
	return &failure{text: "the client was closed", kind: ErrClosed}
}

// session returns the connection, and makes one if there is none.
func (c *Client) session(ctx context.Context) (*session, error) {
	if s := c.current.Load(); s != nil && s.lives() {
		return s, nil
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errClosed()
	}
	if s := c.current.Load(); s != nil && s.lives() {
		c.mu.Unlock()
		return s, nil
	}
	d := c.dialing
	if d == nil {
		// Callers come and go, and share what one of them began: it ends with
		// none of them.
		var dialCtx context.Context
		dialCtx, c.stop = context.WithCancel(context.Background())
		d = &dialing{done: make(chan struct{})}
		c.dialing = d
		go c.redial(dialCtx, d)
	}
	c.mu.Unlock()

	select {
	case <-d.done:
		return d.session, d.err
	case <-ctx.Done():
		f := ended(ctx, c.connecting())
		if lately := d.lately.Load(); lately != nil {
			return nil, &failure{text: lately.text, kind: lately.kind, cause: f}
		}
		return nil, f
	}
}

func (c *Client) redial(ctx context.Context, d *dialing) {
	defer close(d.done)
	s, err := c.dial(ctx, d)
	c.mu.Lock()
	c.stop()
	c.dialing = nil
	if err == nil {
		c.current.Store(s)
	}
	closed := c.closed
	c.mu.Unlock()
	if err == nil && closed {
		s.close()
		s, err = nil, errClosed()
	}
	d.session, d.err = s, err
}

// Lock acquires the lock, and waits for it as long as ctx allows. On this host,
// who asked first gets it first.
//
// ctx bounds the wait only. The lock is then held until Unlock, or until it is
// lost; see [Lock.Context] for a context that ends with it.
func (c *Client) Lock(ctx context.Context, name string, options ...Option) (*Lock, error) {
	return c.acquire(ctx, name, false, options)
}

// TryLock acquires the lock if nobody else holds it and nobody waits for it;
// otherwise the error is ErrHeld. ctx bounds how long Redis and the sidecar may
// take to answer.
func (c *Client) TryLock(ctx context.Context, name string, options ...Option) (*Lock, error) {
	return c.acquire(ctx, name, true, options)
}

func (c *Client) acquire(ctx context.Context, name string, try bool, options []Option) (*Lock, error) {
	if err := protocol.CheckName(name); err != nil {
		return nil, &failure{text: err.Error()}
	}
	t := task{"lock", name}
	req := protocol.Acquire{Name: name, Owner: ownerOf(ctx)}
	for _, o := range options {
		if err := o.apply(&req); err != nil {
			return nil, &failure{text: t.String() + ": " + err.Error(), cause: err}
		}
	}
	var l *Lock
	err := c.with(ctx, t, func(s *session) (err error) {
		l, err = s.lock(ctx, t, req, try)
		return err
	})
	return l, err
}

// with calls do with the session, and with a new one if the first turns out to
// have ended before anything was sent.
func (c *Client) with(ctx context.Context, t task, do func(*session) error) error {
	for range 2 {
		if ctx.Err() != nil {
			return ended(ctx, t)
		}
		s, err := c.session(ctx)
		if err != nil {
			return err
		}
		if err := do(s); err != errNotSent {
			return err
		}
	}
	return &failure{text: t.String() + ": the sidecar ends connections as soon as they are made; see its log", kind: ErrUnavailable}
}
