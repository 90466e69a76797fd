package conform

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const (
	hour    = int64(time.Hour)
	leaseMS = 30_000
	// quietTime is how long a scene looks for frames that must not come. A frame that comes
	// later is missed, so a slow client is never blamed for a fast one's frame.
	quietTime = 100 * time.Millisecond
)

// stage is what a scene acts on: the driver on one side, the sidecar's socket on the other.
type stage struct {
	ctx      context.Context
	driver   *driver
	patience time.Duration
	began    time.Time
	trace    []string

	socket   string        // its path
	listener net.Listener  // nil: no sidecar listens
	accepts  chan net.Conn // of the listener
	conns    []*conn       // all so far

	reports map[int]report    // by number, of commands whose answers were not awaited yet
	losses  map[string]report // by handle, that were reported without being asked for
	isOpen  bool              // an open has succeeded, or may succeed

	// What a sidecar knows.
	uuid     string
	session  int            // counts the sessions
	ticket   string         // of the newest answer to hello
	tickets  int            // counts the tickets
	entries  map[uint64]int // of each hold of the session that is not released
	hangs    bool           // the sidecar neither reads nor answers
	isEnding bool           // the scene is over: what comes is served
}

// failure ends a scene.
type failure struct{ expected, received string }

// fail ends the scene.
func (s *stage) fail(expected, received string, args ...any) {
	panic(failure{expected, fmt.Sprintf(received, args...)})
}

// play plays one scene with a driver.
func play(ctx context.Context, scene Scene, d *driver, socket string, patience time.Duration) (r Result) {
	r = Result{Scene: scene, Verdict: OK}
	for _, f := range scene.Needs {
		if !d.has(f) {
			r.Verdict, r.Missing = Skipped, f
			return r
		}
	}
	s := &stage{
		driver: d, patience: patience, socket: socket, ctx: ctx, began: time.Now(), uuid: "6f1c54e2-7d1c-4a3e-9a9d-2f3b1f6f0c11",
		reports: map[int]report{}, losses: map[string]report{}, entries: map[uint64]int{},
	}
	defer func() {
		switch why := recover().(type) {
		case nil:
		case failure:
			r.Verdict, r.Expected, r.Received = Failed, why.expected, why.received
		default:
			panic(why)
		}
		r.Trace = s.trace
		s.unlisten()
		for _, c := range s.conns {
			c.nc.Close()
		}
	}()
	s.listen()
	scene.play(s)
	s.end()
	return r
}

func (s *stage) note(format string, args ...any) {
	at := float64(time.Since(s.began).Microseconds()) / 1000
	s.trace = append(s.trace, fmt.Sprintf("%8.1f ms  ", at)+fmt.Sprintf(format, args...))
}

// --- The socket ---

// listen makes the socket.
func (s *stage) listen() {
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		panic(err)
	}
	accepts := make(chan net.Conn)
	s.listener, s.accepts = l, accepts
	go func() {
		defer close(accepts)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			accepts <- nc
		}
	}()
}

// unlisten removes the socket.
func (s *stage) unlisten() {
	if s.listener == nil {
		return
	}
	s.listener.Close()
	s.listener = nil
	for nc := range s.accepts {
		nc.Close()
	}
}

// connect takes the next connection and reads its hello.
func (s *stage) connect() *conn {
	for deadline := time.Now().Add(s.patience); time.Now().Before(deadline); s.takeReports() {
		select {
		case nc := <-s.accepts:
			return s.greet(nc)
		case <-time.After(5 * time.Millisecond):
		}
	}
	s.fail("the client connects", "no connection in %v", s.patience)
	return nil
}

func (s *stage) greet(nc net.Conn) *conn {
	c := &conn{stage: s, nc: nc, number: len(s.conns) + 1, frames: protocol.NewReader(nc), used: map[uint64]bool{}}
	s.conns = append(s.conns, c)
	s.note("connection %d begins", c.number)
	hello, ok := c.next().(*protocol.Hello)
	if !ok {
		s.fail("hello as the first frame of a connection", "%s", c.last)
	}
	if hello.V != protocol.Version {
		s.fail(fmt.Sprintf("a hello with v %d", protocol.Version), "%s", c.last)
	}
	c.hello = *hello
	return c
}

// connectResuming is connect for a client that has to resume its session with the newest
// ticket.
func (s *stage) connectResuming() *conn {
	c := s.connect()
	if c.hello.Resume != s.ticket {
		s.fail(fmt.Sprintf("a hello with resume %q, the newest ticket", s.ticket), "%s", c.last)
	}
	return c
}

// --- The driver ---

// send sends a command to the driver and does not await its answer.
func (s *stage) send(c command) int {
	s.driver.lastN++
	c.N = s.driver.lastN
	line, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	s.note("driver ← %s", line)
	if _, err := s.driver.stdin.Write(append(line, '\n')); err != nil {
		s.fail("the driver reads "+string(line), "%v", s.driver.endError())
	}
	return c.N
}

// await returns the driver's answer to a command.
func (s *stage) await(n int, what string) report {
	deadline := time.After(s.patience)
	for {
		if r, ok := s.reports[n]; ok {
			delete(s.reports, n)
			return r
		}
		select {
		case r, ok := <-s.driver.lines:
			if !ok {
				s.fail(what, "%v", s.driver.endError())
			}
			s.onReport(r)
		case <-time.After(2 * time.Millisecond):
			s.pump()
		case <-deadline:
			s.fail(what, "no answer to the command %d in %v", n, s.patience)
		case <-s.ctx.Done():
			s.fail(what, "%v", context.Cause(s.ctx))
		}
	}
}

// pump answers the queries that a client may make at any time, also before it reports the
// result of a command.
func (s *stage) pump() {
	if s.hangs {
		return
	}
	for _, c := range s.conns {
		c.pump()
	}
}

func (s *stage) onReport(r report) {
	s.note("driver → %s", r.line)
	switch {
	case r.N != 0:
		s.reports[r.N] = r
	case r.Lost != "":
		if _, isSecond := s.losses[r.Lost]; isSecond {
			s.fail(fmt.Sprintf("the loss of %q is reported once", r.Lost), "%s", r.line)
		}
		s.losses[r.Lost] = r
	default:
		s.fail(`reports with "n" or "lost"`, "%s", r.line)
	}
}

// awaitOK awaits the answer that a command has succeeded.
func (s *stage) awaitOK(n int, what string) report {
	r := s.await(n, what)
	if !r.OK {
		s.fail(what, "%s", r.line)
	}
	return r
}

// awaitError awaits the answer that a command has failed with one of the errors; none: with
// any.
func (s *stage) awaitError(n int, what string, errs ...string) report {
	r := s.await(n, what)
	if r.OK || r.Error == "" || len(errs) > 0 && !slices.Contains(errs, r.Error) {
		s.fail(what, "%s", r.line)
	}
	return r
}

// awaitLoss awaits the report of a loss that no command has asked for.
func (s *stage) awaitLoss(as, reason string) {
	what := fmt.Sprintf(`a report {"lost": %q, "reason": %q}`, as, reason)
	deadline := time.After(s.patience)
	for {
		if r, ok := s.losses[as]; ok {
			if r.Reason != reason {
				s.fail(what, "%s", r.line)
			}
			return
		}
		select {
		case r, ok := <-s.driver.lines:
			if !ok {
				s.fail(what, "%v", s.driver.endError())
			}
			s.onReport(r)
		case <-time.After(2 * time.Millisecond):
			s.pump()
		case <-deadline:
			s.fail(what, "none in %v", s.patience)
		}
	}
}

// check sends a check, and does not await its answer. While there is no connection it makes a
// client connect again that does so only when it is used.
func (s *stage) check(as string) int { return s.send(command{Do: "check", As: as}) }

func (s *stage) awaitHeld(n int, as, why string) {
	what := fmt.Sprintf("%q is held: %s", as, why)
	if r := s.await(n, what); r.Held == nil || !*r.Held {
		s.fail(what, "%s", r.line)
	}
}

func (s *stage) held(as, why string) { s.awaitHeld(s.check(as), as, why) }

// lost checks that a lock is not held, with one of the reasons; none: with any.
func (s *stage) lost(as, why string, reasons ...string) {
	what := fmt.Sprintf("%q is not held: %s", as, why)
	if len(reasons) > 0 {
		what += " (reason " + strings.Join(reasons, " or ") + ")"
	}
	r := s.await(s.check(as), what)
	if r.Held == nil || *r.Held || len(reasons) > 0 && !slices.Contains(reasons, r.Reason) {
		s.fail(what, "%s", r.line)
	}
}

// lostSoon is lost for a loss that the client finds when it reads the next time.
func (s *stage) lostSoon(as, why string, reasons ...string) {
	for start := time.Now(); time.Since(start) < s.patience; time.Sleep(5 * time.Millisecond) {
		n := s.check(as)
		r := s.await(n, fmt.Sprintf("the answer to the check of %q", as))
		if r.Held != nil && !*r.Held {
			break
		}
	}
	s.lost(as, why, reasons...)
}

// freeze stops the driver, as a scheduler or a debugger may.
func (s *stage) freeze() {
	s.note("the driver is stopped")
	_ = s.driver.signal(syscall.SIGSTOP)
	for start := time.Now(); !s.driver.isStopped(); time.Sleep(time.Millisecond) {
		if time.Since(start) > s.patience {
			s.fail("SIGSTOP stops the driver", "it runs")
		}
	}
}

// thaw lets the driver continue.
func (s *stage) thaw() {
	s.note("the driver continues")
	_ = s.driver.signal(syscall.SIGCONT)
}

// sleepUntil waits until CLOCK_BOOTTIME has passed a time.
func (s *stage) sleepUntil(at int64) {
	for {
		left := at - protocol.Now()
		if left < 0 {
			return
		}
		select {
		case <-time.After(time.Duration(left) + time.Millisecond):
		case <-s.ctx.Done():
			return
		}
	}
}

// --- Usual beginnings and ends ---

// open lets the client connect, and begins its session.
func (s *stage) open() *conn {
	n := s.sendOpen()
	c := s.connect()
	c.welcome(false)
	s.awaitOpen(c, n)
	return c
}

func (s *stage) sendOpen() int {
	s.isOpen = true
	return s.send(command{Do: "open", Socket: s.socket})
}

// openFails awaits the error of an open.
func (s *stage) openFails(n int, what string, errs ...string) {
	s.awaitError(n, what, errs...)
	s.isOpen = false
}

// awaitOpen awaits the answer to open, and answers what a client may send first.
func (s *stage) awaitOpen(c *conn, n int) {
	const what = "open succeeds once hello is answered"
	for {
		if r, ok := s.reports[n]; ok {
			if !r.OK {
				s.fail(what, "%s", r.line)
			}
			delete(s.reports, n)
			return
		}
		c.serveFor(5 * time.Millisecond)
		s.takeReports()
	}
}

// takeReports handles the lines that the driver has printed.
func (s *stage) takeReports() {
	for {
		select {
		case r, ok := <-s.driver.lines:
			if !ok {
				s.fail("the driver runs until its standard input ends", "%v", s.driver.endError())
			}
			s.onReport(r)
		case <-s.ctx.Done():
			s.fail("the scene is played to its end", "%v", context.Cause(s.ctx))
		default:
			return
		}
	}
}

// acquire acquires a lock for the client and grants it. The handle has the name of the lock.
func (s *stage) acquire(c *conn, name string, hold uint64, deadline int64) {
	s.acquireAs(c, command{As: name, Name: name}, protocol.AcquireOK{Hold: hold, DeadlineNS: deadline})
}

// acquireAs lets the client send an acquire, of a lock or of permits, and grants it.
func (s *stage) acquireAs(c *conn, cmd command, grant protocol.AcquireOK) *protocol.Acquire {
	n, a := s.request(c, cmd)
	c.grant(a, grant)
	s.awaitOK(n, "the acquire succeeds, because it was granted")
	return a
}

// request sends an acquire by the driver and returns the frame; it is not answered.
func (s *stage) request(c *conn, cmd command) (int, *protocol.Acquire) {
	cmd.Do = "acquire"
	n := s.send(cmd)
	return n, c.requested(cmd)
}

// release lets the client release a handle whose release is sent at once.
func (s *stage) release(c *conn, as string, hold uint64) {
	n := s.send(command{Do: "release", As: as})
	c.release(hold)
	s.awaitOK(n, "the release succeeds")
}

// fence shows that the client sends nothing but an acquire that is requested now.
func (s *stage) fence(c *conn, why string) {
	n := s.send(command{Do: "acquire", As: "fence", Name: "fence", WaitMS: ms(0)})
	a, ok := c.next().(*protocol.Acquire)
	if !ok || a.Name != "fence" {
		s.fail("nothing is sent: "+why, "%s", c.last)
	}
	c.refuse(a.ID, protocol.Timeout, "the fence is taken")
	s.awaitError(n, "the acquire of the fence ends with the error timeout", "timeout")
}

// end closes the client, and serves it until it has closed its connections.
func (s *stage) end() {
	s.isEnding = true
	if !s.isOpen {
		return
	}
	if s.listener == nil {
		s.listen()
	}
	s.serveUntilClosed(s.send(command{Do: "close"}))
	// What the client still has to send, it may send in the background.
	s.serveAll(0)
}

// serveUntilClosed serves the client until it has answered the command n, which is close.
func (s *stage) serveUntilClosed(n int) {
	s.isEnding = true
	for start := time.Now(); ; {
		if _, ok := s.reports[n]; ok {
			delete(s.reports, n)
			return
		}
		if time.Since(start) > s.patience {
			s.fail("the answer to close", "none in %v", s.patience)
		}
		s.serveAll(5 * time.Millisecond)
		s.takeReports()
	}
}

// serveAll answers what the client sends over any connection.
func (s *stage) serveAll(wait time.Duration) {
	select {
	case nc, ok := <-s.accepts:
		if ok {
			s.greet(nc).welcome(false)
		}
	default:
	}
	open := slices.DeleteFunc(slices.Clone(s.conns), func(c *conn) bool { return c.hasEnded })
	for _, c := range open {
		c.serveFor(wait)
	}
	if len(open) == 0 {
		time.Sleep(wait)
	}
}

func ms(n int64) *int64 { return &n }
