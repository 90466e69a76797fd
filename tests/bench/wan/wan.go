// Package wan makes the way to a server longer. Its proxy gives every byte to the
// other side a fixed time after it came, and does nothing else to it: no limit of
// throughput, no loss, no reordering. Half-closes and resets come as late as bytes.
//
// A benchmark runs it on the same processors as what it measures, so one thread
// does all of it: no goroutine is woken for a connection, and because the delay is
// the same for everybody, what is on its way is one queue in the order of arrival,
// whose head says when to wake. That thread sleeps in epoll_pwait2, which takes
// nanoseconds; timers of the Go runtime are rounded up to a millisecond there.
//
// What is not modelled: the handshake of TCP, which is answered by the proxy's
// kernel and takes no time.
package wan

import (
	"fmt"
	"net"
	"os"
	"time"
)

// inFlight is how many bytes of one direction of one connection may be on their
// way. Then no more is read until some have arrived, and the kernel makes the
// sender wait. At 1 ms it is reached at 64 GB/s, or by a receiver that does not
// read.
const inFlight = 64 << 20

// A Proxy listens on a loopback port.
type Proxy struct {
	addr  string
	wake  *os.File // an eventfd: what is written to it ends the loop
	ended chan struct{}
	err   error // why the loop ended by itself; set before ended is closed
}

// Listen starts a proxy to target, the host:port of a TCP server on IPv4. It
// delays both directions by oneWay, never by less. The caller must close it.
func Listen(target string, oneWay time.Duration) (*Proxy, error) {
	return listen(target, oneWay, inFlight)
}

func listen(target string, oneWay time.Duration, limit int) (*Proxy, error) {
	if oneWay < 0 {
		return nil, fmt.Errorf("wan: a delay of %v: must not be negative", oneWay)
	}
	addr, err := net.ResolveTCPAddr("tcp4", target)
	if err != nil {
		return nil, fmt.Errorf("wan: target: %w", err)
	}
	if addr.IP == nil || addr.Port == 0 {
		return nil, fmt.Errorf("wan: target %q: must be a host and a port", target)
	}
	l := &loop{oneWay: int64(oneWay), limit: limit, sides: map[int32]*side{}, began: time.Now()}
	l.target.Port = addr.Port
	copy(l.target.Addr[:], addr.IP.To4())
	if err := l.open(); err != nil {
		l.free()
		l.wake.Close() // of none it does nothing
		return nil, fmt.Errorf("wan: %w", err)
	}
	p := &Proxy{addr: l.addr, wake: l.wake, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		if err := l.run(); err != nil {
			p.err = fmt.Errorf("wan: %w", err)
		}
		l.free()
	}()
	return p, nil
}

// Addr is the host:port to connect to.
func (p *Proxy) Addr() string { return p.addr }

// Wait returns when the proxy has ended: with nil after Close, else with the reason.
func (p *Proxy) Wait() error {
	<-p.ended
	return p.err
}

// Close resets every connection, drops what is on its way, and returns once all
// is gone, with what Wait returns. It may be called more than once.
func (p *Proxy) Close() error {
	// What a second call writes goes to a closed file, and nobody waits for it.
	_, _ = p.wake.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	err := p.Wait()
	p.wake.Close()
	return err
}
