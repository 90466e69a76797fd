package sidecar

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/state"
)

const (
	// A client whose unread answers exceed maxUnread bytes, or whose requests in
	// the inbox exceed maxQueued, is not read from until there are fewer. What
	// can still be added then is bounded by its waiters and holds: one answer or
	// one `lost` each.
	maxUnread = 256 << 10
	maxQueued = 64

	// If the unread answers of all clients exceed maxUnreadAll bytes, each of them may
	// have only lessUnread.
	maxUnreadAll = 64 << 20
	lessUnread   = 16 << 10

	// connections that have not said hello may exceed the sessions by this much.
	spareConns = 256

	// how long the last frame to a client that is being closed may take.
	lastFrame = time.Second
)

// conn is one connection. Its reader goroutine decodes and hands over, and mostly
// does the loop's step, too; answers are written in the step itself as long as the
// socket takes them, and by a goroutine that lives no longer than the backlog
// otherwise.
type conn struct {
	nc  *net.UnixConn
	raw syscall.RawConn

	sender *peerProcess  // its process in the inbox; set before the reader starts
	unread *atomic.Int64 // of all connections: bytes of answers that no socket has taken

	// Set before the reader hands over anything, then owned by the loop.
	peer    locktable.Peer
	process state.Process
	pidfd   int // −1: not watched, or the client's by now

	// Owned by the loop.
	session *session // nil: there is none
	dirty   bool     // in loop.dirty

	mu      sync.Mutex // guards what follows; nothing is called with it held
	changed sync.Cond  // on mu: queued or out became less, or closed
	queued  int        // requests that the loop has not taken
	out     []byte     // frames not yet given to the socket
	given   int        // of out, in flush
	spare   []byte     // the other of two buffers, while a goroutine writes
	lease   int        // where in out the newest `lease` stands; −1: it is not there
	writing bool       // a goroutine writes
	last    bool       // no frame after those in out: close when they are written
	closed  bool       // nothing is written or read any more

	give func(fd uintptr) bool // giveSome
}

func newConn(nc *net.UnixConn, unread *atomic.Int64) (*conn, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{nc: nc, raw: raw, unread: unread, pidfd: -1, lease: -1}
	c.changed.L = &c.mu
	c.give = c.giveSome
	return c, nil
}

// refuseConn tells a client why it is not served, and gives it time to read it.
func (s *Server) refuseConn(c *conn, why *protocol.Err) {
	defer s.leave(c)
	c.sayLast(why)
	c.linger()
	c.end()
}

// serveConn reads one connection until it ends.
func (s *Server) serveConn(c *conn) {
	defer s.leave(c)
	if fault := s.read(c); fault != nil {
		s.hand(c, request{kind: clientBroke, conn: c, fault: fault})
		c.linger()
	} else {
		s.hand(c, request{kind: clientGone, conn: c})
	}
	c.end()
}

// hand gives the loop requests of a connection.
func (s *Server) hand(c *conn, requests ...request) {
	s.inbox.add(c.sender, requests)
	s.runIfIdle()
}

// enter notes a connection; false: the sidecar stops.
func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// read hands over requests until the connection ends, or until the client breaks
// the protocol: then it returns the last frame that the client is sent. What came before
// the fault is handed over, too.
func (s *Server) read(c *conn) (fault *protocol.Err) {
	_ = c.nc.SetReadDeadline(time.Now().Add(protocol.HelloTimeout))
	frames := protocol.NewReader(rawio.NewReader(c.raw))
	var decoder protocol.RequestDecoder
	var batch []request
	defer func() {
		if len(batch) > 0 {
			s.submit(c, batch)
		}
	}()
	greeted := false
	for {
		body, err := frames.Next()
		if err != nil {
			var broken *protocol.ConnError
			switch {
			case errors.As(err, &broken):
				return &protocol.Err{Code: broken.Code, Msg: broken.Msg}
			case !greeted && errors.Is(err, os.ErrDeadlineExceeded) && !s.isEnding():
				return &protocol.Err{Code: protocol.NoHello, Msg: "no hello within 5 s; say hello first"}
			}
			return nil
		}
		req, bad, fault := decode(&decoder, body)
		if fault != nil {
			return fault
		}
		hello, isHello := req.(*protocol.Hello)
		if bad != nil {
			isHello = bad.Op == "hello"
		}
		switch {
		case isHello && greeted:
			return &protocol.Err{Code: protocol.NoHello, Msg: "a second hello; a connection says it once"}
		case !isHello && !greeted:
			return &protocol.Err{Code: protocol.NoHello, Msg: "the first frame was not hello; say hello first"}
		case isHello && bad != nil:
			fault := bad.Reply()
			return &fault
		case isHello:
			greeted = true
			_ = c.nc.SetReadDeadline(time.Time{})
			if c.peer.PID > 0 {
				c.peer.Cmd, c.process = s.commands.of(c.peer.PID), processOf(c.pidfd, c.peer.PID)
			}
			h := *hello
			batch = append(batch, request{kind: clientHello, conn: c, other: &h})
		case bad != nil:
			// Counted as a request, so that an endless stream of bad ones
			// waits for its answers to be read like any other.
			batch = append(batch, request{kind: clientOther, conn: c, other: &refused{bad}})
		default:
			batch = append(batch, handOver(c, req))
		}
		if _, list := req.(*protocol.List); list || len(batch) >= maxQueued || frames.Buffered() == 0 {
			ok := s.submit(c, batch)
			clear(batch)
			batch = batch[:0]
			if !ok {
				return nil
			}
			if list {
				// A page is a thousand times the size of its request.
				c.throttle(0, maxUnread)
			}
		}
	}
}

// decode returns a request, or what is wrong with it: a request error, or the last frame
// of its connection.
func decode(d *protocol.RequestDecoder, body []byte) (protocol.Request, *protocol.RequestError, *protocol.Err) {
	req, err := d.Decode(body)
	if err == nil {
		return req, nil, nil
	}
	if bad, ok := errors.AsType[*protocol.RequestError](err); ok {
		return nil, bad, nil
	}
	if broken, ok := errors.AsType[*protocol.ConnError](err); ok {
		fault := broken.Reply()
		return nil, nil, &fault
	}
	return nil, nil, badFrame(err.Error())
}

// handOver copies a request, which the decoder is about to reuse.
func handOver(c *conn, req protocol.Request) request {
	in := request{kind: clientOther, conn: c}
	switch r := req.(type) {
	case *protocol.Acquire:
		in.kind, in.acquire = clientAcquire, *r
	case *protocol.Release:
		in.kind, in.release = clientRelease, *r
	case *protocol.Confirm:
		v := *r
		in.other = &v
	case *protocol.Cancel:
		v := *r
		in.other = &v
	case *protocol.Info:
		v := *r
		in.other = &v
	case *protocol.List:
		v := *r
		in.other = &v
	case *protocol.ForceRelease:
		v := *r
		in.other = &v
	case *protocol.Claim:
		v := *r
		v.Holds = slices.Clone(r.Holds)
		in.other = &v
	case *protocol.Bye:
		v := *r
		in.other = &v
	case *protocol.Ping:
		v := *r
		in.other = &v
	case *protocol.Unknown:
		v := *r
		in.other = &v
	}
	return in
}

// refused is a request in which the decoder found an error.
type refused struct{ *protocol.RequestError }

func (r *refused) RequestID() uint64 { return r.ID }

// submit hands requests to the loop once the client's earlier ones leave room.
func (s *Server) submit(c *conn, batch []request) bool {
	ok := c.throttle(maxQueued, maxUnread)
	// Even if the connection is being ended: releases that were read still count.
	c.mu.Lock()
	c.queued += len(batch)
	c.mu.Unlock()
	s.hand(c, batch...)
	return ok
}

// throttle waits until no more than queued requests and unread bytes are left of
// this connection; false: it is being ended.
func (c *conn) throttle(queued, unread int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for (c.queued > queued || c.unreadOver(unread)) && !c.last {
		c.changed.Wait()
	}
	return !c.last
}

// unreadOver reports whether the client has left more answers unread than it may. The
// caller holds mu.
func (c *conn) unreadOver(most int) bool {
	return len(c.out) > most || len(c.out) > lessUnread && c.unread.Load() > maxUnreadAll
}

// taken counts one request that the loop has dealt with.
func (c *conn) taken() {
	c.mu.Lock()
	c.queued--
	c.changed.Signal()
	c.mu.Unlock()
}

// say queues a frame. It is written by flush.
func (c *conn) say(m protocol.Reply) {
	c.mu.Lock()
	if !c.last && !c.closed {
		before := len(c.out)
		c.out = m.Append(c.out)
		c.unread.Add(int64(len(c.out) - before))
	}
	c.mu.Unlock()
}

// sayLease queues a `lease` event. It takes the place of one that was queued before
// and has not been given to the socket: whoever reads slowly gets the newest only.
func (c *conn) sayLease(m *protocol.LeaseEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.last, c.closed:
	case c.lease < 0:
		c.lease = len(c.out)
		c.out = m.Append(c.out)
		c.unread.Add(int64(len(c.out) - c.lease))
	default:
		before := len(c.out)
		defer func() { c.unread.Add(int64(len(c.out) - before)) }()
		tail := c.out[c.lease:]
		frame := m.Append(nil)
		old := 4 + int(tail[0])<<24 + int(tail[1])<<16 + int(tail[2])<<8 + int(tail[3])
		// It moves to the end: where the old one stood it would not speak of the
		// holds that were granted since.
		c.out = append(append(c.out[:c.lease], tail[old:]...), frame...)
		c.lease = len(c.out) - len(frame)
	}
}

// flush gives the socket what it takes without blocking, and leaves the rest to
// a goroutine.
func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing || c.closed || len(c.out) == 0 {
		return
	}
	c.given = 0
	err := c.raw.Write(c.give)
	n := c.given
	if err != nil {
		n = len(c.out) // the reader learns that the connection ended
	}
	if c.lease < n {
		c.lease = -1
	} else {
		c.lease -= n
	}
	c.out = c.out[:copy(c.out, c.out[n:])]
	c.unread.Add(-int64(n))
	c.changed.Signal()
	if len(c.out) > 0 {
		c.writing = true
		go c.drain()
	}
}

// giveSome writes what the socket takes. It never waits.
func (c *conn) giveSome(fd uintptr) bool {
	for c.given < len(c.out) {
		n, err := rawio.Write(fd, c.out[c.given:])
		c.given += n
		if err != nil && err != unix.EINTR {
			break
		}
	}
	return true
}

// drain writes until nothing is left.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > 0 && (c.last || !c.closed) {
		b := c.out
		c.out, c.spare, c.lease = c.spare[:0], nil, -1
		c.mu.Unlock()
		_, err := c.nc.Write(b)
		c.mu.Lock()
		c.unread.Add(-int64(len(b)))
		c.spare = b[:0]
		c.changed.Signal()
		if err != nil {
			// The client would miss frames: it must not continue as if it had read all
			// of them. The reader finds the end after what the client has sent.
			c.drop()
			rawio.Shutdown(c.raw)
			break
		}
	}
	c.drop()
	c.spare = nil
	c.writing = false
	c.changed.Broadcast()
	if c.last {
		// The end of our answers reaches the client even if it still sends: a
		// close with unread input would be a reset.
		_ = c.nc.CloseWrite()
	}
}

// drop forgets frames that are not written any more. The caller holds mu.
func (c *conn) drop() {
	c.unread.Add(-int64(len(c.out)))
	c.out, c.lease = c.out[:0], -1
}

// sayLast queues the last frame of a connection that the sidecar ends. It may
// take lastFrame to be written.
func (c *conn) sayLast(m protocol.Reply) {
	c.say(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last || c.closed {
		return
	}
	c.last = true
	c.changed.Broadcast()
	_ = c.nc.SetWriteDeadline(time.Now().Add(lastFrame))
	if !c.writing {
		c.writing = true
		go c.drain()
	}
}

// hangUp ends the reader; the last frame is written first.
func (c *conn) hangUp(m protocol.Reply) {
	c.sayLast(m)
	_ = c.nc.SetReadDeadline(time.Now())
}

// linger throws away what a client still sends after its last frame, for a
// bounded time.
func (c *conn) linger() {
	_ = c.nc.SetReadDeadline(time.Now().Add(lastFrame))
	var b [4096]byte
	for {
		if _, err := c.nc.Read(b[:]); err != nil {
			return
		}
	}
}

// end closes the connection. The last frame, if there is one, has its time; other
// answers are for nobody any more.
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last {
		c.nc.Close()
	}
	c.closed = true
	for c.writing {
		c.changed.Wait()
	}
	c.drop()
	c.nc.Close()
}
