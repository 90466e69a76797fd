package tests

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// A proxy stands between daemons and a Redis, or between a replica and its
// master, and does to their connections what networks and load balancers do. It
// listens on a loopback port that stays the same.
type proxy struct {
	t        testing.TB
	listener net.Listener
	serving  sync.WaitGroup

	mu       sync.Mutex // guards what follows
	upstream string     // a Unix socket
	refusing bool       // new connections end at once
	delay    time.Duration
	relays   map[*relay]struct{}
	closed   bool
}

// relay is one connection through a proxy. The proxy's mu guards its flags.
type relay struct {
	proxy    *proxy
	down, up net.Conn // to the daemon, to Redis

	listens bool    // it has subscribed to something
	lost    [2]bool // by direction: what comes is not passed on
}

// direction is a way through a relay.
type direction int

const (
	toRedis direction = iota
	fromRedis
)

// kind tells the two connections of a daemon apart.
type kind int

const (
	commands kind = iota
	subscription
)

// startProxy makes a proxy that leads to r. It ends with the test.
func startProxy(t testing.TB, r *redisServer) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, listener: l, upstream: r.socket(), relays: map[*relay]struct{}{}}
	p.serving.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.closed = true
		for c := range p.relays {
			c.close()
		}
		p.mu.Unlock()
		p.serving.Wait()
	})
	return p
}

func (p *proxy) port() int   { return p.listener.Addr().(*net.TCPAddr).Port }
func (p *proxy) url() string { return fmt.Sprintf("redis://127.0.0.1:%d", p.port()) }

// lead makes the proxy lead to r: present connections are reset.
func (p *proxy) lead(r *redisServer) {
	p.mu.Lock()
	p.upstream = r.socket()
	p.mu.Unlock()
	p.reset()
}

// reset ends every connection with a RST, and returns how many.
func (p *proxy) reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.relays)
	for c := range p.relays {
		c.close()
	}
	return n
}

// swallow makes the present connections of these kinds half-open in one
// direction or both: they stay, and nothing passes any more, not even their end.
// It returns how many.
func (p *proxy) swallow(kinds []kind, ways ...direction) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for c := range p.relays {
		for _, k := range kinds {
			if c.listens == (k == subscription) {
				n++
				for _, way := range ways {
					c.lost[way] = true
				}
			}
		}
	}
	return n
}

// refuse ends new connections as soon as they are made, until admit. Present
// ones go on.
func (p *proxy) refuse() { p.set(func() { p.refusing = true }) }
func (p *proxy) admit()  { p.set(func() { p.refusing = false }) }

// slow makes everything take this much longer on the way, in each direction.
func (p *proxy) slow(by time.Duration) { p.set(func() { p.delay = by }) }

func (p *proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *proxy) accept() {
	for {
		down, err := p.listener.Accept()
		if err != nil {
			return
		}
		c := &relay{proxy: p, down: down}
		if !p.enter(c) {
			abort(down)
			continue
		}
		p.serving.Go(func() { c.pass(toRedis) })
		p.serving.Go(func() { c.pass(fromRedis) })
	}
}

// enter connects a relay and notes it, unless it is not wanted.
func (p *proxy) enter(c *relay) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusing || p.closed {
		return false
	}
	up, err := net.Dial("unix", p.upstream)
	if err != nil {
		return false
	}
	c.up = up
	p.relays[c] = struct{}{}
	return true
}

// close ends both sides; a Unix socket has no RST. The proxy's mu is held.
func (c *relay) close() {
	abort(c.down)
	c.up.Close()
	delete(c.proxy.relays, c)
}

// abort ends a connection with a RST.
func abort(c net.Conn) {
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// pass carries bytes in one direction until the connection ends.
func (c *relay) pass(way direction) {
	p := c.proxy
	from, to := c.down, c.up
	if way == fromRedis {
		from, to = c.up, c.down
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		if way == toRedis && bytes.Contains(bytes.ToLower(buf[:n]), []byte("\r\nsubscribe\r\n")) {
			c.listens = true
		}
		lost, delay := c.lost[way], p.delay
		p.mu.Unlock()
		if n > 0 && !lost {
			time.Sleep(delay)
			_, werr := to.Write(buf[:n])
			if err == nil {
				err = werr
			}
		}
		if err != nil {
			p.mu.Lock()
			// Of a connection that is half-open the other side learns nothing.
			if !c.lost[way] || p.closed {
				c.close()
			}
			p.mu.Unlock()
			return
		}
	}
}
