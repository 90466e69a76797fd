package locksidecar

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol"
)

// TestMain gives the examples a sidecar to talk to, and checks that nothing is
// left running.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "locksidecar")
	if err != nil {
		panic(err)
	}
	toy := startToy(filepath.Join(dir, "s"))
	os.Setenv("LOCKSIDECAR_SOCKET", toy.path)
	code := m.Run()
	toy.stop()
	os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// script is a sidecar that says what a test tells it to say.
type script struct {
	t       testing.TB
	path    string
	accepts chan net.Conn
}

// listen starts a script at a path of its own.
func listen(t testing.TB) *script {
	s := &script{t: t, path: filepath.Join(shortDir(t), "s")}
	s.open()
	return s
}

// open listens until the test ends.
func (s *script) open() {
	l, err := net.Listen("unix", s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.accepts = make(chan net.Conn)
	ended := make(chan struct{})
	s.t.Cleanup(func() { close(ended); l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case s.accepts <- nc:
			case <-ended:
				nc.Close()
			}
		}
	}()
}

// shortDir is a directory whose path is short enough for a socket.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// accept takes the next connection, and leaves its hello unread.
func (s *script) accept() *peer {
	s.t.Helper()
	select {
	case nc := <-s.accepts:
		return newPeer(s.t, nc)
	case <-time.After(10 * time.Second):
		s.t.Fatal("nobody connected")
		return nil
	}
}

// dial connects a Client to the script.
func (s *script) dial(options ...DialOption) (*Client, *peer) {
	s.t.Helper()
	peers := make(chan *peer, 1)
	go func() {
		p := s.accept()
		p.greet()
		peers <- p
	}()
	c, err := Dial(context.Background(), s.path, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c, <-peers
}

// peer is the sidecar's end of a connection.
type peer struct {
	t       testing.TB
	nc      net.Conn
	frames  *protocol.Reader
	decoder protocol.RequestDecoder
	clock   func() int64
}

func newPeer(t testing.TB, nc net.Conn) *peer {
	p := &peer{t: t, nc: nc, frames: protocol.NewReader(nc), clock: protocol.Now}
	t.Cleanup(func() { nc.Close() })
	return p
}

func (p *peer) greet() {
	p.t.Helper()
	hello := expect[protocol.Hello](p)
	p.say(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: "fake", Version: "0", Session: 1, LeaseMS: 30000, NowNS: p.clock()})
}

func (p *peer) say(m protocol.Reply) {
	p.t.Helper()
	if _, err := p.nc.Write(m.Append(nil)); err != nil {
		p.t.Errorf("%T could not be said: %v", m, err)
	}
}

// expect reads the next request, which must be a T.
func expect[T protocol.Request](p *peer) T {
	p.t.Helper()
	var none T
	_ = p.nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	body, err := p.frames.Next()
	if err != nil {
		p.t.Errorf("no %T came: %v", none, err)
		return none
	}
	m, err := p.decoder.Decode(body)
	if err != nil {
		p.t.Errorf("instead of %T came something bad: %v", none, err)
		return none
	}
	if got, ok := any(m).(*T); ok {
		return *got
	}
	p.t.Errorf("instead of %T came %+v", none, m)
	return none
}

// expectNothing checks that nothing was sent: a ping of the client comes next.
func (p *peer) expectNothing(c *Client) {
	p.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := c.Ping(context.Background())
		done <- err
	}()
	ping := expect[protocol.Ping](p)
	p.say(protocol.PingOK{ID: ping.ID, NowNS: p.clock(), Redis: "ok"})
	if err := <-done; err != nil {
		p.t.Error(err)
	}
}

// grant answers the next acquire; the numbers of holds and tokens follow from
// one.
func (p *peer) grant(hold uint64, deadline int64) protocol.Acquire {
	p.t.Helper()
	a := expect[protocol.Acquire](p)
	p.say(protocol.AcquireOK{ID: a.ID, Token: 1000 + hold, Hold: hold, Count: 1, DeadlineNS: deadline})
	return a
}

// lock has the client lock and the peer grant.
func (p *peer) lock(c *Client, name string, hold uint64, deadline int64, options ...Option) *Lock {
	p.t.Helper()
	type result struct {
		l   *Lock
		err error
	}
	results := make(chan result, 1)
	go func() {
		l, err := c.Lock(context.Background(), name, options...)
		results <- result{l, err}
	}()
	p.grant(hold, deadline)
	r := <-results
	if r.err != nil {
		p.t.Fatal(r.err)
	}
	return r.l
}

func far() int64 { return protocol.Now() + int64(time.Hour) }

// async runs do, and returns a function that waits for what it returned.
func async[T any](do func() (T, error)) func() (T, error) {
	var v T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		v, err = do()
	}()
	return func() (T, error) { <-done; return v, err }
}

func mustBe(t testing.TB, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("the error is %v, not %v", err, kind)
		}
	}
}

// toy is a sidecar without Redis: locks in memory, first come first served.
type toy struct {
	path string
	l    net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	locks map[string]*toyLock
	holds map[uint64]*toyLock
	conns map[*toyConn]bool
	last  uint64
}

type toyLock struct {
	name    string
	holder  *toyConn // nil: free
	hold    uint64
	count   uint32
	owner   uint64
	waiters []toyWaiter
}

type toyWaiter struct {
	conn *toyConn
	req  protocol.Acquire
}

type toyConn struct {
	nc net.Conn
	mu sync.Mutex // of writing
}

func (c *toyConn) say(m protocol.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.nc.Write(m.Append(nil))
}

func startToy(path string) *toy {
	l, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	t := &toy{path: path, l: l, locks: map[string]*toyLock{}, holds: map[uint64]*toyLock{}, conns: map[*toyConn]bool{}}
	t.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			t.wg.Go(func() { t.serve(&toyConn{nc: nc}) })
		}
	})
	return t
}

func (t *toy) stop() {
	t.l.Close()
	t.cut()
	t.wg.Wait()
}

// cut ends every connection.
func (t *toy) cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		c.nc.Close()
	}
}

// held returns how many holds and waiters there are.
func (t *toy) held() (holds, waiters int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.locks {
		waiters += len(l.waiters)
	}
	return len(t.holds), waiters
}

func (t *toy) serve(c *toyConn) {
	t.mu.Lock()
	t.conns[c] = true
	t.mu.Unlock()
	defer t.hangUp(c)
	frames := protocol.NewReader(c.nc)
	var d protocol.RequestDecoder
	for {
		body, err := frames.Next()
		if err != nil {
			return
		}
		m, err := d.Decode(body)
		if err != nil {
			return
		}
		t.handle(c, m)
	}
}

func (t *toy) hangUp(c *toyConn) {
	c.nc.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	for _, l := range t.locks {
		l.forget(func(w toyWaiter) bool { return w.conn == c })
	}
	for _, l := range t.locks {
		if l.holder == c {
			t.free(l)
		}
	}
}

func (l *toyLock) forget(which func(toyWaiter) bool) (found bool) {
	kept := l.waiters[:0]
	for _, w := range l.waiters {
		if which(w) {
			found = true
		} else {
			kept = append(kept, w)
		}
	}
	l.waiters = kept
	return found
}

func (t *toy) handle(c *toyConn, m protocol.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch m := m.(type) {
	case *protocol.Hello:
		c.say(protocol.HelloOK{ID: m.ID, V: 1, Sidecar: "toy", Version: "0", Session: 1, LeaseMS: 30000, NowNS: protocol.Now()})
	case *protocol.Ping:
		c.say(protocol.PingOK{ID: m.ID, NowNS: protocol.Now(), Redis: "ok"})
	case *protocol.Acquire:
		l := t.locks[m.Name]
		if l == nil {
			l = &toyLock{name: m.Name}
			t.locks[m.Name] = l
		}
		switch {
		case l.holder == nil:
			t.grant(l, c, *m)
		case l.holder == c && m.Owner != 0 && l.owner == m.Owner && !m.NotReentrant:
			l.count++
			t.answer(l, m.ID)
		case m.WaitMS == 0:
			c.say(protocol.Err{ID: m.ID, Code: protocol.Timeout, Msg: "somebody else holds it"})
		default:
			w := toyWaiter{c, *m}
			l.waiters = append(l.waiters, w)
			if m.WaitMS > 0 {
				time.AfterFunc(time.Duration(m.WaitMS)*time.Millisecond, func() { t.refuse(l, w, protocol.Timeout) })
			}
		}
	case *protocol.Release:
		code := protocol.NotHeld
		l := t.holds[m.Hold]
		if l != nil && l.holder == c {
			code = ""
			if l.count--; l.count == 0 {
				t.free(l)
			}
		}
		switch {
		case m.ID == 0:
		case code != "":
			c.say(protocol.Err{ID: m.ID, Code: code, Msg: "you do not hold it"})
		default:
			c.say(protocol.ReleaseOK{ID: m.ID, Count: l.count})
		}
	case *protocol.Cancel:
		for _, l := range t.locks {
			if l.forget(func(w toyWaiter) bool { return w.conn == c && w.req.ID == m.Target }) {
				c.say(protocol.Err{ID: m.Target, Code: protocol.Canceled, Msg: "canceled"})
			}
		}
	}
}

func (t *toy) refuse(l *toyLock, w toyWaiter, code protocol.Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.forget(func(other toyWaiter) bool { return other == w }) {
		w.conn.say(protocol.Err{ID: w.req.ID, Code: code, Msg: "it was held for all that time"})
	}
}

func (t *toy) grant(l *toyLock, c *toyConn, req protocol.Acquire) {
	t.last++
	l.holder, l.hold, l.count, l.owner = c, t.last, 1, req.Owner
	t.holds[l.hold] = l
	t.answer(l, req.ID)
}

func (t *toy) answer(l *toyLock, id uint64) {
	l.holder.say(protocol.AcquireOK{ID: id, Token: 1_000_000 + l.hold, Hold: l.hold, Count: l.count, DeadlineNS: protocol.Now() + int64(30*time.Second)})
}

func (t *toy) free(l *toyLock) {
	delete(t.holds, l.hold)
	l.holder, l.count = nil, 0
	if len(l.waiters) > 0 {
		w := l.waiters[0]
		l.waiters = l.waiters[1:]
		t.grant(l, w.conn, w.req)
		return
	}
	delete(t.locks, l.name)
}

func toySidecar(t testing.TB) (*toy, *Client) {
	s := startToy(filepath.Join(shortDir(t), "s"))
	t.Cleanup(s.stop)
	c, err := Dial(context.Background(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, c
}

var _ io.Closer = (*Client)(nil)
