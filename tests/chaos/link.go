package main

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// A link is a TCP proxy between a client of Redis and Redis, which simulates faults of a network.
type link struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex // guards what follows
	changed  *sync.Cond // stalled, or the state of a connection, has changed
	upstream string     // a Unix socket
	closed   bool
	refusing bool
	stalled  bool
	conns    map[*linkConn]bool
}

// linkConn is one connection through a link. Guarded by the link's mu.
type linkConn struct {
	near, far net.Conn
	discards  bool // both connections stay open, and all bytes are discarded
	closed    bool
}

func newLink(upstream string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, upstream: upstream, conns: map[*linkConn]bool{}}
	l.changed = sync.NewCond(&l.mu)
	l.wg.Go(l.accept)
	return l, nil
}

func (l *link) port() int { return l.listener.Addr().(*net.TCPAddr).Port }

func (l *link) url() string { return fmt.Sprintf("redis://127.0.0.1:%d", l.port()) }

func (l *link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		refusing, upstream := l.refusing || l.closed, l.upstream
		l.mu.Unlock()
		if refusing {
			reset(near)
			continue
		}
		far, err := net.Dial("unix", upstream)
		if err != nil {
			reset(near)
			continue
		}
		c := &linkConn{near: near, far: far}
		l.mu.Lock()
		if l.refusing || l.closed || l.upstream != upstream {
			l.mu.Unlock()
			reset(near)
			far.Close()
			continue
		}
		l.conns[c] = true
		l.mu.Unlock()
		l.wg.Go(func() { l.copyBytes(c, near, far) })
		l.wg.Go(func() { l.copyBytes(c, far, near) })
	}
}

// copyBytes copies bytes in one direction until the connection ends.
func (l *link) copyBytes(c *linkConn, from, to net.Conn) {
	defer l.closeConn(c)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		for l.stalled && !c.closed {
			l.changed.Wait()
		}
		mute, gone := c.discards, c.closed
		l.mu.Unlock()
		switch {
		case gone:
			return
		case mute:
		default:
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

// closeConn resets a connection; bytes in flight are lost.
func (l *link) closeConn(c *linkConn) {
	l.mu.Lock()
	c.closed = true
	delete(l.conns, c)
	l.changed.Broadcast()
	l.mu.Unlock()
	reset(c.near)
	c.far.Close()
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// drop resets every connection.
func (l *link) drop() {
	l.mu.Lock()
	conns := l.allConns()
	l.mu.Unlock()
	for _, c := range conns {
		l.closeConn(c)
	}
}

// allConns returns the connections. The caller holds mu.
func (l *link) allConns() []*linkConn {
	var all []*linkConn
	for c := range l.conns {
		all = append(all, c)
	}
	return all
}

// refuse has the link reset new connections at once.
func (l *link) refuse(is bool) {
	l.mu.Lock()
	l.refusing = is
	l.mu.Unlock()
}

// stall delays all bytes, also of new connections, until it ends.
func (l *link) stall(is bool) {
	l.mu.Lock()
	l.stalled = is
	l.changed.Broadcast()
	l.mu.Unlock()
}

// halfOpen discards all bytes of the present connections, which stay open at both ends. It returns
// when the client has closed them, or after a timeout, with which it closes them.
func (l *link) halfOpen(timeout time.Duration) {
	l.mu.Lock()
	muted := l.allConns()
	for _, c := range muted {
		c.discards = true
	}
	timer := time.AfterFunc(timeout, func() {
		for _, c := range muted {
			l.closeConn(c)
		}
	})
	defer timer.Stop()
	for _, c := range muted {
		for !c.closed {
			l.changed.Wait()
		}
	}
	l.mu.Unlock()
}

// leadTo has the link lead new connections to another server. The present ones stay.
func (l *link) leadTo(upstream string) {
	l.mu.Lock()
	l.upstream = upstream
	l.mu.Unlock()
}

// redirect has the link connect to another server, and drops the connections to the old one.
func (l *link) redirect(upstream string) {
	l.leadTo(upstream)
	l.drop()
}

func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.listener.Close()
	l.drop()
	l.wg.Wait()
}
