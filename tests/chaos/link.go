package main

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// A link is a TCP proxy between one client of Redis and Redis, with which the
// way between them is broken in the ways in which networks break.
type link struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex // guards what follows
	moved    *sync.Cond // stalled or a connection's state has changed
	upstream string     // a Unix socket
	closed   bool
	refusing bool
	stalled  bool
	conns    map[*linked]bool
}

// linked is one connection through a link. Guarded by the link's mu.
type linked struct {
	near, far net.Conn
	mute      bool // both ends are up, and nothing gets through any more
	gone      bool
}

func newLink(upstream string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, upstream: upstream, conns: map[*linked]bool{}}
	l.moved = sync.NewCond(&l.mu)
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
		c := &linked{near: near, far: far}
		l.mu.Lock()
		if l.refusing || l.closed || l.upstream != upstream {
			l.mu.Unlock()
			reset(near)
			far.Close()
			continue
		}
		l.conns[c] = true
		l.mu.Unlock()
		l.wg.Go(func() { l.carry(c, near, far) })
		l.wg.Go(func() { l.carry(c, far, near) })
	}
}

// carry moves bytes one way until the connection ends.
func (l *link) carry(c *linked, from, to net.Conn) {
	defer l.end(c)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		for l.stalled && !c.gone {
			l.moved.Wait()
		}
		mute, gone := c.mute, c.gone
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

// end ends a connection; what was on its way is gone.
func (l *link) end(c *linked) {
	l.mu.Lock()
	c.gone = true
	delete(l.conns, c)
	l.moved.Broadcast()
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
	conns := l.all()
	l.mu.Unlock()
	for _, c := range conns {
		l.end(c)
	}
}

// all returns the connections. The caller holds mu.
func (l *link) all() []*linked {
	var all []*linked
	for c := range l.conns {
		all = append(all, c)
	}
	return all
}

// refuse has new connections reset as soon as they are made.
func (l *link) refuse(is bool) {
	l.mu.Lock()
	l.refusing = is
	l.mu.Unlock()
}

// stall holds all bytes back, of new connections too; what was held back arrives
// when it ends.
func (l *link) stall(is bool) {
	l.mu.Lock()
	l.stalled = is
	l.moved.Broadcast()
	l.mu.Unlock()
}

// halfOpen has nothing get through any more on the connections that there are,
// with both ends believing them to be up, and returns when the other side has
// given them up, or after patience has closed them for it.
func (l *link) halfOpen(patience time.Duration) {
	l.mu.Lock()
	muted := l.all()
	for _, c := range muted {
		c.mute = true
	}
	timer := time.AfterFunc(patience, func() {
		for _, c := range muted {
			l.end(c)
		}
	})
	defer timer.Stop()
	for _, c := range muted {
		for !c.gone {
			l.moved.Wait()
		}
	}
	l.mu.Unlock()
}

// lead points the link to another server, and drops what leads to the old one.
func (l *link) lead(upstream string) {
	l.mu.Lock()
	l.upstream = upstream
	l.mu.Unlock()
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
