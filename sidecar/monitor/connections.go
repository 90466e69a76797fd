package monitor

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxConns is how many connections are open. A new one is always served: if there are
	// maxConns, it takes the place of a connection whose reader is slow.
	maxConns = 32
	// headStart is what a connection has to send its request, and what its reader has to read on,
	// before another connection may take its place.
	headStart = 50 * time.Millisecond
)

// turn is what a connection waits for.
type turn uint8

const (
	readerSends  turn = iota // a request, or the rest of one
	readerReads              // the kernel has no room for more of the answer
	sidecarMakes             // the answer
)

// limitedListener bounds how many connections are open. Connections that send nothing or read
// nothing keep no other reader out.
type limitedListener struct {
	net.Listener
	closing context.Context // ends when the listener is closed
	stop    context.CancelFunc

	mu      sync.Mutex
	open    map[*limitedConn]struct{}
	changed chan struct{} // has an element if a connection was closed, or changed its turn
}

func newLimitedListener(l net.Listener) *limitedListener {
	ctx, stop := context.WithCancel(context.Background())
	return &limitedListener{Listener: l, closing: ctx, stop: stop, open: make(map[*limitedConn]struct{}), changed: make(chan struct{}, 1)}
}

// Accept returns the next connection, which has a place among maxConns.
func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &limitedConn{Conn: c, listener: l, party: partyOf(c)}
	for {
		wait, isIn := l.admit(conn, time.Now())
		if isIn {
			return conn, nil
		}
		select {
		case <-l.changed:
		case <-time.After(wait):
		case <-l.closing.Done():
			_ = c.Close()
			return nil, net.ErrClosed
		}
	}
}

func (l *limitedListener) Close() error {
	l.stop()
	return l.Listener.Close()
}

// admit gives a connection a place, for which it closes another one if necessary. If it can close
// none yet, isIn is false: it may after wait, or when a connection changes its turn.
func (l *limitedListener) admit(c *limitedConn, now time.Time) (wait time.Duration, isIn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= maxConns {
		victim, wait := l.slowest(now)
		if victim == nil {
			return wait, false
		}
		delete(l.open, victim)
		victim.evict()
	}
	c.since = now
	l.open[c] = struct{}{}
	return 0, true
}

// slowest returns the connection whose reader has let the sidecar wait longest, of the party that
// has most connections. If each has a head start, or waits for the sidecar, it returns nil, and
// when the first head start ends.
func (l *limitedListener) slowest(now time.Time) (slowest *limitedConn, wait time.Duration) {
	of := make(map[string]int)
	for c := range l.open {
		of[c.party]++
	}
	wait = headStart
	for c := range l.open {
		if !c.waitsForReader() {
			continue
		}
		if left := headStart - now.Sub(c.since); left > 0 {
			wait = min(wait, left)
			continue
		}
		if slowest == nil || of[c.party] > of[slowest.party] || of[c.party] == of[slowest.party] && c.since.Before(slowest.since) {
			slowest = c
		}
	}
	return slowest, wait
}

// forget vacates the place of a connection.
func (l *limitedListener) forget(c *limitedConn) {
	l.mu.Lock()
	delete(l.open, c)
	l.mu.Unlock()
	l.notify()
}

func (l *limitedListener) isFull() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open) >= maxConns
}

func (l *limitedListener) notify() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// limitedConn is a connection that has a place.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	party    string

	// Under the mutex of the listener.
	turn    turn
	since   time.Time // of the turn
	hasRead bool      // that something of the first request was read
}

// waitsForReader reports whether it is the reader that a connection waits for. The caller has the
// mutex of the listener.
func (c *limitedConn) waitsForReader() bool {
	switch c.turn {
	case readerSends: // on a busy host, a request may be there and not be read
		return c.hasRead || !c.queues(unix.TIOCINQ)
	case readerReads: // the answer may be on its way
		return c.queues(unix.TIOCOUTQ)
	case sidecarMakes:
	}
	return false
}

// queues reports whether the kernel has bytes of a connection in its queue of input, or of output.
func (c *limitedConn) queues(queue uint) (has bool) {
	socket, ok := c.Conn.(syscall.Conn)
	if !ok {
		return queue == unix.TIOCOUTQ
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		n, err := unix.IoctlGetInt(int(fd), queue)
		has = err == nil && n > 0
	})
	return has
}

func (c *limitedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.listener.mu.Lock()
	if n > 0 && !c.hasRead {
		c.hasRead, c.since = true, time.Now()
	}
	c.listener.mu.Unlock()
	return n, err
}

// take begins a turn, and returns the one before.
func (c *limitedConn) take(t turn) (before turn) {
	c.listener.mu.Lock()
	before, c.turn, c.since = c.turn, t, time.Now()
	c.listener.mu.Unlock()
	c.listener.notify()
	return before
}

// Write makes a reader that does not read count as slow.
func (c *limitedConn) Write(b []byte) (int, error) {
	defer c.take(c.take(readerReads))
	return c.Conn.Write(b)
}

func (c *limitedConn) Close() error {
	c.listener.forget(c)
	return c.Conn.Close()
}

// evict closes a connection that has no place any more. The caller has the mutex of the listener.
func (c *limitedConn) evict() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok && c.turn == readerReads {
		_ = tcp.SetLinger(0) // the kernel keeps nothing for a reader that does not read
	}
	_ = c.Conn.Close()
}

// connKey is the key of the connection in the context of its requests.
type connKey struct{}

// withConn is http.Server.ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// onState is http.Server.ConnState.
func onState(c net.Conn, s http.ConnState) {
	if s == http.StateIdle { // the whole answer is written
		c.(*limitedConn).take(readerSends)
	}
}

// beginAnswer notes that a reader waits for its answer. A request with a body is never complete:
// nothing here reads bodies, and the server waits for them. If there is no other place for a
// further connection, this one ends with the answer.
func beginAnswer(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*limitedConn)
	if r.ContentLength == 0 {
		c.take(sidecarMakes)
	}
	if c.listener.isFull() {
		w.Header().Set("Connection", "close")
	}
}

// partyOf returns the party of a connection: the user of a Unix socket, or the address. A
// process of this host can choose among all loopback addresses, so these are one; and another
// host among those of its IPv6 network.
func partyOf(c net.Conn) string {
	switch c := c.(type) {
	case *net.UnixConn:
		return userOf(c)
	case *net.TCPConn:
		return partyOfAddress(c.RemoteAddr().String())
	}
	return ""
}

func partyOfAddress(address string) string {
	at, err := netip.ParseAddrPort(address)
	addr := at.Addr().Unmap().WithZone("")
	switch {
	case err != nil || addr.IsLoopback():
		return "loopback"
	case addr.Is6():
		network, _ := addr.Prefix(64) // it cannot fail
		return network.String()
	}
	return addr.String()
}

func userOf(c *net.UnixConn) string {
	raw, err := c.SyscallConn()
	if err != nil {
		return ""
	}
	user := ""
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			user = strconv.FormatUint(uint64(cred.Uid), 10)
		}
	})
	return user
}
