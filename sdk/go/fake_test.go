//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"fmt"
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
	peers   []*peer
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
		p := newPeer(s.t, nc)
		s.peers = append(s.peers, p)
		return p
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
	s.t.Cleanup(func() { s.bury(c) })
	return c, <-peers
}

// bury closes a Client, and has the sidecar let it go.
func (s *script) bury(c *Client) {
	for _, p := range s.peers {
		go p.farewell()
	}
	s.peers = nil
	c.Close()
	session := c.current.Load()
	for {
		select {
		case <-session.done:
			return
		case nc := <-s.accepts: // of a sidecar that has forgotten everything
			p := newPeer(s.t, nc)
			p.say(protocol.HelloOK{ID: expect[protocol.Hello](p).ID, V: 1, NowNS: p.clock()})
		case <-time.After(10 * time.Second):
			s.t.Error("the session does not end")
			return
		}
	}
}

// again takes the connection with which a Client comes back, and resumes its
// session.
func (s *script) again() *peer {
	s.t.Helper()
	p := s.accept()
	hello := expect[protocol.Hello](p)
	if !hello.Resumable || hello.Resume != ticket {
		s.t.Errorf("said %+v, want a hello that resumes %q", hello, ticket)
	}
	p.say(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: "fake", Version: "0", Session: 1, LeaseMS: 30000, NowNS: p.clock(), Ticket: ticket, Resumed: true})
	return p
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

// ticket of every session of a script.
const ticket = "open, sesame"

// greet begins a session.
func (p *peer) greet() { p.greetAs("fake") }

// greetAs begins a session of the sidecar with that uuid.
func (p *peer) greetAs(sidecar string) {
	p.t.Helper()
	hello := expect[protocol.Hello](p)
	if !hello.Resumable {
		p.t.Errorf("said %+v, want a hello of somebody who will come back", hello)
	}
	p.say(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: sidecar, Version: "0", Session: 1, LeaseMS: 30000, NowNS: p.clock(), Ticket: ticket})
}

// claimed reads a claim, which must be the only one, and returns what it names.
func (p *peer) claimed() (id uint64, holds map[uint64]uint32) {
	p.t.Helper()
	claim := expect[protocol.Claim](p)
	if claim.More {
		p.t.Error("another claim follows")
	}
	holds = make(map[uint64]uint32)
	for _, h := range claim.Holds {
		holds[h.Hold] = h.Entries
	}
	return claim.ID, holds
}

// farewell lets a client go, whatever else it says.
func (p *peer) farewell() {
	_ = p.nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		body, err := p.frames.Next()
		if err != nil {
			return
		}
		switch m, _ := p.decoder.Decode(body); m := m.(type) {
		case *protocol.Claim:
			_, _ = p.nc.Write(protocol.ClaimOK{ID: m.ID}.Append(nil))
		case *protocol.Bye:
			_, _ = p.nc.Write(protocol.ByeOK{ID: m.ID}.Append(nil))
		}
	}
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

// toy is a sidecar without Redis: locks in memory, first come first served. What it
// remembers of sessions outlives their connections, as if it had been restarted,
// if it is the toy that ends them.
type toy struct {
	path  string
	l     net.Listener
	clock func() int64
	fuse  func() (read, write int) // bytes after which the next connection is cut; nil, or -1: none
	wg    sync.WaitGroup

	mu       sync.Mutex
	locks    map[string]*toyLock
	holds    map[uint64]*toyLock
	conns    map[*toyConn]bool
	sessions map[string]*toySession // by ticket
	last     uint64
	hellos   int
	claims   []int  // how many holds each claim named
	away     bool   // Redis is: no confirm is answered
	deaf     bool   // only hello is heard
	deadly   bool   // an acquire kills it
	fault    string // what a client did that it must not do
}

type toySession struct {
	ticket  string
	conn    *toyConn // nil: it has not come back
	claimed map[uint64]uint32
}

type toyLock struct {
	name    string
	holder  *toySession // nil: free
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
	nc      net.Conn
	session *toySession
	due     bool       // claims are
	cut     bool       // by the toy
	said    bool       // bye
	mu      sync.Mutex // of writing
}

func (c *toyConn) say(m protocol.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.nc.Write(m.Append(nil))
}

func newToy() *toy {
	return &toy{
		clock: protocol.Now, locks: map[string]*toyLock{}, holds: map[uint64]*toyLock{},
		conns: map[*toyConn]bool{}, sessions: map[string]*toySession{},
	}
}

func startToy(path string) *toy {
	t := newToy()
	t.path = path
	t.listen()
	return t
}

func (t *toy) listen() {
	l, err := net.Listen("unix", t.path)
	if err != nil {
		panic(err)
	}
	t.l = l
	t.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			t.wg.Go(func() { t.serve(nc) })
		}
	})
}

// stop ends the toy as a kill does.
func (t *toy) stop() {
	t.l.Close()
	t.cut()
	t.wg.Wait()
}

// cut ends every connection, as a restart does.
func (t *toy) cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		t.sever(c)
	}
}

// sever ends a connection. The caller holds mu.
func (t *toy) sever(c *toyConn) {
	c.cut = true
	for _, l := range t.locks {
		l.forget(func(w toyWaiter) bool { return w.conn == c })
	}
	if c.session != nil && c.session.conn == c {
		c.session.conn = nil
	}
	c.nc.Close()
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

// rob takes a lock from its holder, and says so; false: nobody has it.
func (t *toy) rob(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.locks[name]
	if l == nil || l.holder == nil || l.holder.conn == nil {
		return false
	}
	l.holder.conn.say(protocol.LostEvent{Hold: l.hold, Reason: protocol.Stolen})
	t.free(l)
	return true
}

// fused is a connection that breaks after so many bytes. Writing, the toy's mu is
// held.
type fused struct {
	net.Conn
	read, write int // bytes left; -1: any number
	blow        func()
	locked      func(func())
}

func (f *fused) Read(b []byte) (int, error) {
	if f.read < 0 {
		return f.Conn.Read(b)
	}
	if f.read == 0 {
		f.locked(f.blow)
		return 0, io.EOF
	}
	n, err := f.Conn.Read(b[:min(len(b), f.read)])
	f.read -= n
	return n, err
}

func (f *fused) Write(b []byte) (int, error) {
	if f.write < 0 || f.write >= len(b) {
		if f.write >= 0 {
			f.write -= len(b)
		}
		return f.Conn.Write(b)
	}
	n, _ := f.Conn.Write(b[:f.write])
	f.write = 0
	f.blow()
	return n, io.ErrClosedPipe
}

func (t *toy) locked(do func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	do()
}

func (t *toy) serve(nc net.Conn) {
	c := &toyConn{nc: nc}
	t.locked(func() {
		if t.fuse != nil {
			f := &fused{Conn: nc, blow: func() { t.sever(c) }, locked: t.locked}
			f.read, f.write = t.fuse()
			c.nc = f
		}
		t.conns[c] = true
	})
	defer t.hangUp(c)
	frames := protocol.NewReader(c.nc)
	var d protocol.RequestDecoder
	for {
		body, err := frames.Next()
		if err != nil {
			return
		}
		m, err := d.Decode(body)
		if err == nil {
			err = t.handle(c, m)
		}
		if err != nil {
			t.mu.Lock()
			t.fault = err.Error()
			t.mu.Unlock()
			return
		}
		if c.said {
			return
		}
	}
}

func (t *toy) hangUp(c *toyConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	s := c.session
	if s == nil || s.conn != c {
		c.nc.Close()
		return
	}
	died := c.cut || c.due
	t.sever(c)
	if !died {
		t.end(s)
	}
}

// end ends a session for good.
func (t *toy) end(s *toySession) {
	delete(t.sessions, s.ticket)
	for _, l := range t.locks {
		l.forget(func(w toyWaiter) bool { return w.conn.session == s })
	}
	for _, l := range t.locks {
		if l.holder == s {
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

func (t *toy) hello(c *toyConn, m *protocol.Hello) {
	t.hellos++
	s := t.sessions[m.Resume]
	resumed := s != nil && s.conn == nil && t.holdsAny(s)
	if resumed {
		c.due = true
	} else {
		t.last++
		s = &toySession{ticket: fmt.Sprint("ticket ", t.last)}
		t.sessions[s.ticket] = s
	}
	s.conn, s.claimed = c, map[uint64]uint32{}
	c.session = s
	c.say(protocol.HelloOK{ID: m.ID, V: 1, Sidecar: "toy", Version: "0", Session: 1, LeaseMS: 30000, NowNS: t.clock(), Ticket: s.ticket, Resumed: resumed})
	if c.cut && !resumed {
		delete(t.sessions, s.ticket) // nobody knows of it
	}
}

// holdsAny tells whether there is anything to come back for.
func (t *toy) holdsAny(s *toySession) bool {
	for _, l := range t.holds {
		if l.holder == s {
			return true
		}
	}
	delete(t.sessions, s.ticket)
	return false
}

func (t *toy) claim(c *toyConn, m *protocol.Claim) error {
	s := c.session
	t.claims = append(t.claims, len(m.Holds))
	for _, h := range m.Holds {
		l := t.holds[h.Hold]
		switch {
		case l == nil || l.holder != s:
			c.say(protocol.LostEvent{Hold: h.Hold, Reason: protocol.Forgotten})
		case h.Entries > l.count:
			return fmt.Errorf("%d entries of hold %d were claimed, which has %d", h.Entries, h.Hold, l.count)
		default:
			s.claimed[h.Hold] = h.Entries
		}
	}
	if !m.More {
		for hold, l := range t.holds {
			if l.holder != s {
				continue
			}
			if l.count = s.claimed[hold]; l.count == 0 {
				t.free(l)
			}
		}
		c.due = false
	}
	c.say(protocol.ClaimOK{ID: m.ID})
	return nil
}

func (t *toy) handle(c *toyConn, m protocol.Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.cut {
		return nil // it died before this
	}
	switch m.(type) {
	case *protocol.Claim, *protocol.Bye, *protocol.Hello:
	default:
		if c.due {
			return fmt.Errorf("%+v came while claims were due", m)
		}
	}
	if _, hello := m.(*protocol.Hello); t.deaf && !hello {
		return nil
	}
	switch m := m.(type) {
	case *protocol.Hello:
		t.hello(c, m)
	case *protocol.Claim:
		if !c.due {
			return errors.New("a claim came that was not due")
		}
		return t.claim(c, m)
	case *protocol.Bye:
		t.end(c.session)
		c.session = nil
		c.said = true
		c.say(protocol.ByeOK{ID: m.ID})
	case *protocol.Ping:
		c.say(protocol.PingOK{ID: m.ID, NowNS: t.clock(), Redis: "ok"})
	case *protocol.Acquire:
		if t.deadly {
			t.sever(c)
			return nil
		}
		t.acquire(c, m)
	case *protocol.Release:
		code := protocol.NotHeld
		l := t.holds[m.Hold]
		if l != nil && l.holder == c.session {
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
	case *protocol.Info:
		ok := protocol.InfoOK{ID: m.ID}
		if l := t.locks[m.Name]; l != nil {
			ok.Lock = &protocol.LockRow{Name: l.name, State: protocol.StateHeld, Hold: l.hold, Count: l.count}
		}
		c.say(ok)
	case *protocol.Confirm:
		if !t.away {
			c.say(protocol.ConfirmOK{ID: m.ID})
		}
	case *protocol.Cancel:
		for _, l := range t.locks {
			if l.forget(func(w toyWaiter) bool { return w.conn == c && w.req.ID == m.Target }) {
				c.say(protocol.Err{ID: m.Target, Code: protocol.Canceled, Msg: "canceled"})
			}
		}
	}
	return nil
}

func (t *toy) acquire(c *toyConn, m *protocol.Acquire) {
	l := t.locks[m.Name]
	if l == nil {
		l = &toyLock{name: m.Name}
		t.locks[m.Name] = l
	}
	switch {
	case l.holder == nil:
		t.grant(l, c, *m)
	case l.holder == c.session && m.Owner != 0 && l.owner == m.Owner && !m.NotReentrant:
		l.count++
		t.answer(l, c, m.ID)
	case m.WaitMS == 0:
		c.say(protocol.Err{ID: m.ID, Code: protocol.Timeout, Msg: "somebody else holds it"})
	default:
		w := toyWaiter{c, *m}
		l.waiters = append(l.waiters, w)
		if m.WaitMS > 0 {
			time.AfterFunc(time.Duration(m.WaitMS)*time.Millisecond, func() { t.refuse(l, w, protocol.Timeout) })
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
	l.holder, l.hold, l.count, l.owner = c.session, t.last, 1, req.Owner
	t.holds[l.hold] = l
	t.answer(l, c, req.ID)
}

func (t *toy) answer(l *toyLock, c *toyConn, id uint64) {
	c.say(protocol.AcquireOK{ID: id, Token: 1_000_000 + l.hold, Hold: l.hold, Count: l.count, DeadlineNS: t.clock() + int64(30*time.Second)})
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
	t.Cleanup(func() {
		s.stop()
		if s.fault != "" {
			t.Error(s.fault)
		}
	})
	c, err := Dial(context.Background(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, c
}

var _ io.Closer = (*Client)(nil)
