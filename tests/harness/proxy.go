package harness

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// A Proxy forwards connections of daemons, or of a replica, to a Redis, and injects the
// faults of networks and load balancers. It listens on a loopback port that stays the same.
type Proxy struct {
	t        testing.TB
	listener net.Listener
	serving  sync.WaitGroup

	mu       sync.Mutex // guards what follows
	upstream string     // a Unix socket
	refusing bool       // new connections are closed at once
	delay    time.Duration
	relays   map[*relay]struct{}
	closed   bool
}

// relay is one connection through a proxy. The mutex of the proxy guards its flags.
type relay struct {
	proxy    *Proxy
	down, up net.Conn // to the daemon, to Redis

	lost [2]bool // by direction: nothing is forwarded
}

// Direction is one of the two directions of a connection.
type Direction int

const (
	ToRedis Direction = iota
	FromRedis
)

// StartProxy starts a proxy that forwards to r.
func StartProxy(t testing.TB, r *Redis) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, listener: l, upstream: r.Socket(), relays: map[*relay]struct{}{}}
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

// Port returns the port that the proxy listens on.
func (p *Proxy) Port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// URL returns the URL of the proxy, as the setting redis takes it.
func (p *Proxy) URL() string { return fmt.Sprintf("redis://127.0.0.1:%d", p.Port()) }

// ForwardTo makes the proxy forward to r from now on. It resets present connections.
func (p *Proxy) ForwardTo(r *Redis) {
	p.mu.Lock()
	p.upstream = r.Socket()
	p.mu.Unlock()
	p.Reset()
}

// Reset ends every connection with a RST and returns how many there were.
func (p *Proxy) Reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.relays)
	for c := range p.relays {
		c.close()
	}
	return n
}

// Blackhole makes the present connections half-open, in one direction or in both: they stay
// open, and nothing is forwarded any more, not even a FIN. It returns how many connections
// there were.
func (p *Proxy) Blackhole(ways ...Direction) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.relays {
		for _, way := range ways {
			c.lost[way] = true
		}
	}
	return len(p.relays)
}

// Refuse makes the proxy close new connections at once. Present connections stay.
func (p *Proxy) Refuse() { p.set(func() { p.refusing = true }) }

// Admit ends the effect of Refuse.
func (p *Proxy) Admit() { p.set(func() { p.refusing = false }) }

// SetDelay delays everything that is forwarded, in each direction.
func (p *Proxy) SetDelay(by time.Duration) { p.set(func() { p.delay = by }) }

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) accept() {
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
		p.serving.Go(func() { c.pass(ToRedis) })
		p.serving.Go(func() { c.pass(FromRedis) })
	}
}

// enter connects a relay to Redis and adds it to the relays of the proxy. It returns false
// if the proxy refuses connections or Redis cannot be reached.
func (p *Proxy) enter(c *relay) bool {
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

// close ends both sides; a Unix socket has no RST. The caller holds the mutex of the proxy.
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

// pass forwards bytes in one direction until the connection ends.
func (c *relay) pass(way Direction) {
	p := c.proxy
	from, to := c.down, c.up
	if way == FromRedis {
		from, to = c.up, c.down
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
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
			// The end of a half-open connection is not forwarded.
			if !c.lost[way] || p.closed {
				c.close()
			}
			p.mu.Unlock()
			return
		}
	}
}
