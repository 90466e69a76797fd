//go:build linux

package locksidecar

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// scriptedSidecar is a sidecar whose connections a test answers itself, message by message.
type scriptedSidecar struct {
	t       testing.TB
	path    string
	accepts chan net.Conn
	peers   []*peer
}

// listen starts a scriptedSidecar at a path of its own.
func listen(t testing.TB) *scriptedSidecar {
	s := &scriptedSidecar{t: t, path: filepath.Join(shortDir(t), "s")}
	s.open()
	return s
}

// open listens until the test ends.
func (s *scriptedSidecar) open() {
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

// accept takes the next connection, and leaves its hello unread.
func (s *scriptedSidecar) accept() *peer {
	s.t.Helper()
	select {
	case nc := <-s.accepts:
		p := newPeer(s.t, nc)
		s.peers = append(s.peers, p)
		return p
	case <-time.After(10 * time.Second):
		s.t.Fatal("no client connected")
		return nil
	}
}

// unwatched has a client send nothing of its own when an acquire waits for long: on a busy host, the peer of a test
// would read that ping in the place of another request.
var unwatched = DialOption{func(c *Client) error {
	c.dialer.watchPeriod = time.Hour
	return nil
}}

// dial connects a Client, and begins its session.
func (s *scriptedSidecar) dial(options ...DialOption) (*Client, *peer) {
	s.t.Helper()
	peers := make(chan *peer, 1)
	go func() {
		p := s.accept()
		p.answerHello()
		peers <- p
	}()
	c, err := Dial(context.Background(), s.path, append(options, unwatched)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.closeClient(c) })
	return c, <-peers
}

// closeClient closes a Client, and answers it until its session has ended.
func (s *scriptedSidecar) closeClient(c *Client) {
	for _, p := range s.peers {
		go p.answerUntilEnd()
	}
	s.peers = nil
	c.Close()
	session := c.current.Load()
	for {
		select {
		case <-session.done:
			return
		case nc := <-s.accepts: // by a sidecar without the state of the one before
			p := newPeer(s.t, nc)
			p.send(protocol.HelloOK{ID: expect[protocol.Hello](p).ID, V: 1, NowNS: p.clock()})
		case <-time.After(10 * time.Second):
			s.t.Error("the session does not end")
			return
		}
	}
}

// acceptResumed takes the connection over which a Client resumes its session.
func (s *scriptedSidecar) acceptResumed() *peer {
	s.t.Helper()
	p := s.accept()
	hello := expect[protocol.Hello](p)
	if !hello.Resumable || hello.Resume != ticket {
		s.t.Errorf("sent %+v, want a hello that resumes %q", hello, ticket)
	}
	p.send(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: "fake", Version: "0", Session: 1, LeaseMS: 30000, NowNS: p.clock(), Ticket: ticket, Resumed: true})
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

// ticket of every session of a scriptedSidecar.
const ticket = "open, sesame"

// answerHello begins a session.
func (p *peer) answerHello() { p.answerHelloAs("fake") }

// answerHelloAs begins a session of the sidecar with that uuid.
func (p *peer) answerHelloAs(sidecar string) {
	p.t.Helper()
	hello := expect[protocol.Hello](p)
	if !hello.Resumable {
		p.t.Errorf("sent %+v, want a hello of a client that can resume its session", hello)
	}
	p.send(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: sidecar, Version: "0", Session: 1, LeaseMS: 30000, NowNS: p.clock(), Ticket: ticket})
}

// expectClaim reads a claim, which must be the only one, and returns what it names.
func (p *peer) expectClaim() (id uint64, holds map[uint64]uint32) {
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

// answerUntilEnd answers claims and bye, and ignores all other requests.
func (p *peer) answerUntilEnd() {
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

func (p *peer) send(m protocol.Reply) {
	p.t.Helper()
	if _, err := p.nc.Write(m.Append(nil)); err != nil {
		p.t.Errorf("%T cannot be sent: %v", m, err)
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
		p.t.Errorf("instead of %T came an invalid frame: %v", none, err)
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
	p.send(protocol.PingOK{ID: ping.ID, NowNS: p.clock(), Redis: "ok"})
	if err := <-done; err != nil {
		p.t.Error(err)
	}
}

// grant grants the next acquire. The token follows from the id of the hold.
func (p *peer) grant(hold uint64, deadline int64) protocol.Acquire {
	p.t.Helper()
	a := expect[protocol.Acquire](p)
	p.send(protocol.AcquireOK{ID: a.ID, Token: 1000 + hold, Hold: hold, Count: 1, DeadlineNS: deadline})
	return a
}

// lock acquires a lock with the client, and grants it.
func (p *peer) lock(c *Client, name string, hold uint64, deadline int64, options ...Option) *Lock {
	p.t.Helper()
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), name, options...) })
	p.grant(hold, deadline)
	l, err := locked()
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}
