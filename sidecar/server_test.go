package sidecar_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a sidecar on an in-process Redis until the test ends, and returns
// the path of its socket.
func start(t *testing.T, change func(*sidecar.Config)) string {
	t.Helper()
	return newHouse(t, change).cfg.Socket
}

// wire is a client that knows only the protocol.
type wire struct {
	*testing.T
	nc     net.Conn
	frames *protocol.Reader
	dec    protocol.ReplyDecoder
	id     uint64
	peeked protocol.Received // the next frame, if it was read; nil: it was not
}

func connect(t *testing.T, socket string) *wire {
	t.Helper()
	nc, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	c := &wire{T: t, nc: nc, frames: protocol.NewReader(nc)}
	c.awaited()
	return c
}

// awaited bounds the wait for the next frame, and not the whole test, which may be slow.
func (c *wire) awaited() { _ = c.nc.SetDeadline(time.Now().Add(time.Minute)) }

func greeted(t *testing.T, socket string) *wire {
	t.Helper()
	c := connect(t, socket)
	var m protocol.HelloOK
	c.send(protocol.Hello{ID: 1, V: protocol.Version, Client: "test"})
	c.answer(1, &m)
	if m.V != protocol.Version || m.Session == 0 || m.LeaseMS == 0 || m.Sidecar == "" {
		t.Fatalf("hello: %+v", m)
	}
	c.id = 1
	return c
}

func (c *wire) send(m protocol.Request) {
	c.Helper()
	c.awaited()
	if _, err := c.nc.Write(m.Append(nil)); err != nil {
		c.Fatal(err)
	}
}

// next is the next frame that is no lease event: a slow test may be sent any number of these.
func (c *wire) next() protocol.Received {
	c.Helper()
	if m := c.peeked; m != nil {
		c.peeked = nil
		return m
	}
	c.awaited()
	for {
		body, err := c.frames.Next()
		if err != nil {
			c.Fatal(err)
		}
		m, err := c.dec.Decode(body)
		if err != nil {
			c.Fatal(err)
		}
		if _, isLease := m.(*protocol.LeaseEvent); !isLease {
			return m
		}
	}
}

// answer expects the next frame to be the good answer to id.
func (c *wire) answer(id uint64, m protocol.OK) {
	c.Helper()
	switch a := c.next().(type) {
	case *protocol.Answer:
		if a.ID != id {
			c.Fatalf("answer to %d, want %d", a.ID, id)
		}
		if err := a.Unpack(m); err != nil {
			c.Fatal(err)
		}
	default:
		c.Fatalf("got %+v, want the answer to %d", a, id)
	}
}

// refused expects the next frame to be an error; id 0: of the connection.
func (c *wire) refused(id uint64, code protocol.Code, part string) {
	c.Helper()
	e, ok := c.next().(*protocol.Err)
	if !ok || e.ID != id || e.Code != code || !strings.Contains(e.Msg, part) {
		c.Fatalf("got %+v, want error %s %q for %d", e, code, part, id)
	}
}

func (c *wire) ended() {
	c.Helper()
	if _, err := c.frames.Next(); !errors.Is(err, io.EOF) {
		c.Fatalf("got %v, want the end of the connection", err)
	}
}

func (c *wire) acquire(name string, waitMS int64) uint64 {
	c.Helper()
	c.id++
	c.send(protocol.Acquire{ID: c.id, Name: name, WaitMS: waitMS})
	return c.id
}

// try asks for a lock without waiting for it, and again while Redis is too slow to say whether it is free. It returns the id
// of the request whose answer is the next frame.
func (c *wire) try(name string) uint64 {
	c.Helper()
	for {
		id := c.acquire(name, 0)
		c.peeked = c.next()
		if e, ok := c.peeked.(*protocol.Err); !ok || e.ID != id || e.Code != protocol.Unavailable {
			return id
		}
		c.peeked = nil
	}
}

func (c *wire) hold(name string) protocol.AcquireOK {
	c.Helper()
	var m protocol.AcquireOK
	c.answer(c.acquire(name, protocol.Forever), &m)
	return m
}

func TestALockPassesBetweenSessions(t *testing.T) {
	socket := start(t, nil)
	a, b := greeted(t, socket), greeted(t, socket)
	first := a.hold("invoice:42")
	wait := b.acquire("invoice:42", protocol.Forever)
	a.refused(a.acquire("invoice:42", 0), protocol.Timeout, "held by pid")

	a.send(protocol.Release{ID: 90, Hold: first.Hold})
	var released protocol.ReleaseOK
	a.answer(90, &released)
	var second protocol.AcquireOK
	b.answer(wait, &second)
	if second.Token <= first.Token || second.Hold <= first.Hold {
		t.Errorf("first %+v, second %+v", first, second)
	}
	a.send(protocol.Release{ID: 91, Hold: first.Hold})
	a.refused(91, protocol.NotHeld, "released it before")
	a.send(protocol.Release{ID: 92, Hold: second.Hold})
	a.refused(92, protocol.NotHeld, "nothing was changed")

	var info protocol.InfoOK
	b.send(protocol.Info{ID: 93, Name: "invoice:42"})
	b.answer(93, &info)
	if info.Lock == nil || info.Lock.Hold != second.Hold || info.Lock.PID != int64(os.Getpid()) {
		t.Errorf("info: %+v", info.Lock)
	}
}

// Shows docs/guarantees.md: Its connection ends, and its process lives.
func TestTheEndOfAConnectionFreesItsLocks(t *testing.T) {
	socket := start(t, nil)
	a, b := greeted(t, socket), greeted(t, socket)
	a.hold("x")
	wait := b.acquire("x", protocol.Forever)
	a.nc.Close()
	b.answer(wait, new(protocol.AcquireOK))
}

// A client must not go on as if it had received every answer.
func TestConnectionThatCannotBeWrittenToIsEnded(t *testing.T) {
	socket := start(t, nil)
	a, b := greeted(t, socket), greeted(t, socket)
	a.hold("x")
	wait := b.acquire("x", protocol.Forever)
	if err := a.nc.(*net.UnixConn).CloseRead(); err != nil {
		t.Fatal(err)
	}
	a.send(protocol.Ping{ID: 9})
	b.answer(wait, new(protocol.AcquireOK))
}

func TestABrokenFrameEndsItsConnectionAndNoOther(t *testing.T) {
	socket := start(t, nil)
	other := greeted(t, socket)
	for what, bytes := range map[string][]byte{
		"4 GiB":    {0xff, 0xff, 0xff, 0xff, 0x80},
		"empty":    {0, 0, 0, 0},
		"no map":   {0, 0, 0, 1, 0x01},
		"trailing": {0, 0, 0, 2, 0x80, 0x80},
		"no op":    {0, 0, 0, 1, 0x80},
	} {
		c := greeted(t, socket)
		if _, err := c.nc.Write(bytes); err != nil {
			t.Fatal(err)
		}
		e, ok := c.next().(*protocol.Err)
		if !ok || e.ID != 0 || e.Code != protocol.BadFrame {
			t.Errorf("%s: got %+v", what, e)
		}
		c.ended()
	}
	other.hold("still served")
}

func TestAMisbehavingClientKeepsItsLocksUntilTheirDeadlines(t *testing.T) {
	socket := start(t, func(c *sidecar.Config) { c.Lease = 600 * time.Millisecond })
	bad, other := greeted(t, socket), greeted(t, socket)
	held := bad.hold("x")
	wait := other.acquire("x", protocol.Forever)
	if _, err := bad.nc.Write([]byte{0, 0, 0, 1, 0x80}); err != nil {
		t.Fatal(err)
	}
	for {
		if e, ok := bad.next().(*protocol.Err); ok { // after what events there were
			if e.Code != protocol.BadFrame {
				t.Fatalf("got %+v", e)
			}
			break
		}
	}
	bad.ended()
	bad.nc.Close()
	other.answer(wait, new(protocol.AcquireOK))
	if now := protocol.Now(); now < held.DeadlineNS {
		t.Errorf("granted %v before the deadline of a client that lives", time.Duration(held.DeadlineNS-now))
	}
}

func TestTheFirstFrameIsHelloOnce(t *testing.T) {
	socket := start(t, nil)
	c := connect(t, socket)
	c.send(protocol.Ping{ID: 1})
	c.refused(0, protocol.NoHello, "hello first")
	c.ended()
	c = greeted(t, socket)
	c.send(protocol.Hello{ID: 2, V: 1})
	c.refused(0, protocol.NoHello, "second hello")
	c.ended()
	c = connect(t, socket)
	c.send(protocol.Hello{ID: 2, V: 7})
	c.refused(2, protocol.Unsupported, "version 1 of the protocol, the client version 7; upgrade the sidecar")
	c.ended()
	c = connect(t, socket)
	c.send(protocol.Hello{ID: 3, V: 0})
	c.refused(3, protocol.Unsupported, "upgrade the client")
	c.ended()
}

func TestSessionsAreLimited(t *testing.T) {
	socket := start(t, func(c *sidecar.Config) { c.MaxSessions = 1 })
	greeted(t, socket)
	c := connect(t, socket)
	c.send(protocol.Hello{ID: 5, V: 1})
	c.refused(5, protocol.Limit, "max-sessions")
	c.ended()
}

// A lock must not be kept under the key of another lock's token counter or queue: the
// attacker's hold would end the tokens, and then the renewals, of the other lock.
//
// Shows docs/guarantees.md: Names a lock like another lock's token counter, queue or channel.
func TestReservedNamesAreRefused(t *testing.T) {
	c := greeted(t, start(t, nil))
	c.hold("victim")
	for _, name := range []string{
		"redisson_lock_token:{victim}", "redisson_lock_queue:{victim}", "redisson_lock_timeout:{victim}",
		"redisson_lock__channel:{victim}", "redisson_unlock_latch:{victim}:1", "locksidecar_queue:{victim}",
	} {
		c.refused(c.acquire(name, 0), protocol.Denied, "such keys are reserved")
	}
	for _, uuid := range []string{"6ba7b810-9dad-11d1-80b4-00c04fd430c8"} {
		c.refused(c.acquire("{locksidecar}:"+uuid, 0), protocol.Denied, "such channels are reserved")
	}
	c.hold("redisson_lock") // is only like one
}

func TestBadRequestsAreAnsweredAndTheConnectionStays(t *testing.T) {
	socket := start(t, nil)
	c := greeted(t, socket)
	c.send(protocol.Acquire{ID: 5, Name: "a\x00b", WaitMS: protocol.Forever})
	c.refused(5, protocol.BadRequest, "")
	c.send(protocol.Unknown{ID: 6, Op: "dance"})
	c.refused(6, protocol.Unsupported, "")
	c.send(protocol.Unknown{Op: "dance"}) // unanswered
	c.id = 6
	c.hold("fine")
}

// Under such a name Redis has the token counter, or the queue, of another lock.
func TestNamesOfWhatBelongsToOtherLocksAreRefused(t *testing.T) {
	c := greeted(t, start(t, nil))
	c.hold("victim")
	for _, name := range []string{"redisson_lock_token:{victim}", "redisson_lock_queue:{victim}", "redisson_unlock_latch:{victim}", "locksidecar_"} {
		c.refused(c.acquire(name, 0), protocol.Denied, "reserved")
	}
	c.hold("my redisson_lock_token:{victim}")
}

func TestAReaderThatNeverReadsIsNotReadFrom(t *testing.T) {
	t.Parallel()
	socket := start(t, nil)
	slow, other := greeted(t, socket), greeted(t, socket)
	slow.holdMany("lock-", 200)
	// Each list answers with some 30 KiB. The client writes until the sidecar no
	// longer reads, and reads nothing.
	_ = slow.nc.SetWriteDeadline(time.Now().Add(2 * time.Second))
	sent := 0
	for {
		b := protocol.List{ID: uint64(1000 + sent)}.Append(nil)
		if _, err := slow.nc.Write(b); err != nil {
			break
		}
		// The socket's buffers take some hundreds of requests, and the sidecar reads maxQueued
		// of them, and as many as have answers of 256 KiB.
		if sent++; sent > 1500 {
			t.Fatal("the sidecar reads on and on")
		}
	}
	t.Logf("%d requests were written", sent)
	other.hold("still served")
	other.refused(other.acquire("lock-7", 0), protocol.Timeout, "")
}

func TestAnOrderlyStopFreesNothingThatIsHeld(t *testing.T) {
	h := newHouse(t, nil)
	socket := h.cfg.Socket
	c := greeted(t, socket)
	c.hold("kept")
	freed := c.hold("freed")
	c.send(protocol.Release{Hold: freed.Hold})
	silent := connect(t, socket)
	waiter := greeted(t, socket) // accepted after it
	waiter.acquire("kept", protocol.Forever)
	waiter.send(protocol.Ping{ID: 900}) // answered after the acquire has been queued
	waiter.answer(900, new(protocol.PingOK))
	c.send(protocol.Ping{ID: 900})
	c.answer(900, new(protocol.PingOK))
	began := time.Now()
	h.stop()
	if d := time.Since(began); d >= protocol.HelloTimeout {
		t.Errorf("the stop took %v: it waited for a client that says nothing", d)
	}
	silent.refused(0, protocol.Unavailable, "stopping")
	c.refused(0, protocol.Unavailable, "stopping")
	c.ended()
	waiter.refused(0, protocol.Unavailable, "stopping")
	waiter.ended()
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}

	h.start()
	c = greeted(t, socket)
	c.refused(c.acquire("kept", 0), protocol.Timeout, "held by pid")
	c.hold("freed")
}

// A reader waits while its client has too many unread answers. So what this client sends last is certainly
// unread when the sidecar stops.
//
// Shows docs/guarantees.md: A release that the daemon had not read.
func TestStopExecutesReleasesThatHaveArrived(t *testing.T) {
	t.Parallel() // the stop waits for the client to read, for a second
	h := newHouse(t, nil)
	c, m := h.hello(true, "")
	kept, released := c.hold("kept"), c.hold("released")
	var frames []byte
	for id := range uint64(3_000) { // each answer is ten times as long
		frames = protocol.Ping{ID: 1_000 + id}.Append(frames)
	}
	frames = protocol.Release{Hold: released.Hold}.Append(frames)
	if _, err := c.nc.Write(frames); err != nil {
		t.Fatal(err)
	}
	h.restart()
	other := greeted(t, h.cfg.Socket)
	other.ask(protocol.Acquire{ID: 2, Name: "released", WaitMS: 5000}, new(protocol.AcquireOK))
	other.id = 2
	other.refused(other.acquire("kept", 0), protocol.Timeout, "held by pid")
	c = h.resumed(m.Ticket)
	if lost := c.claim(protocol.ClaimedHold{Hold: kept.Hold, Entries: 1}); len(lost) > 0 {
		t.Errorf("lost %v", lost)
	}
}

// Shows docs/guarantees.md: A release that the daemon had not read.
func TestReleaseThatAStoppedSidecarCannotReadFails(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	held := c.hold("x")
	h.stop()
	if _, err := c.nc.Write(protocol.Release{Hold: held.Hold}.Append(nil)); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the client receives %v", err)
	}
}

// Some of these ends are certainly not read when the sidecar stops.
//
// Shows docs/guarantees.md: A release that the daemon had not read.
func TestStopEndsTheSessionsOfClientsThatHaveClosedTheirConnections(t *testing.T) {
	const n = 200
	h := newHouse(t, nil)
	clients := make([]*wire, n)
	for i := range clients {
		clients[i], _ = h.hello(true, "")
		clients[i].hold(fmt.Sprint("lock-", i))
	}
	for _, c := range clients {
		c.nc.Close()
	}
	h.restart()
	c := greeted(t, h.cfg.Socket)
	for i := range clients {
		c.id++
		c.ask(protocol.Acquire{ID: c.id, Name: fmt.Sprint("lock-", i), WaitMS: 5000}, new(protocol.AcquireOK))
	}
}

func TestTwoSidecarsDoNotShareASocketAndADeadOnesIsReplaced(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // as a sidecar that was killed leaves it
	start(t, func(c *sidecar.Config) { c.Socket = socket })
	greeted(t, socket)

	_, err = sidecar.Listen(sidecar.Config{Socket: socket, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d) serves", os.Getpid())) {
		t.Errorf("second sidecar: %v", err)
	}
	greeted(t, socket) // the first one's socket was left alone

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = sidecar.Listen(sidecar.Config{Socket: file, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the socket's place: %v", err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for want, cfg := range map[string]sidecar.Config{
		"lease":                                {Lease: time.Millisecond},
		"max-holds -1":                         {MaxHolds: -1},
		"at most 107":                          {Socket: "/" + strings.Repeat("x", 200)},
		"no such group":                        {Socket: filepath.Join(t.TempDir(), "s"), SocketGroup: "no-such-group-here"},
		"redis":                                {Redis: "http://example"},
		"linger 21ms: choose up to 20ms, or 0": {Linger: moment.SpanOf(21 * time.Millisecond)},
		"linger -1ms: choose up to 20ms, or 0": {Linger: moment.SpanOf(-time.Millisecond)},
		"turn 1.001s: choose auto, up to 1s":   {Turn: moment.SpanOf(time.Second + time.Millisecond)},
		"turn -1ms: choose auto, up to 1s":     {Turn: moment.SpanOf(-time.Millisecond)},
	} {
		cfg.Log = slog.New(slog.DiscardHandler)
		if cfg.Socket == "" {
			cfg.Socket = filepath.Join(t.TempDir(), "s")
		}
		_, err := sidecar.Listen(cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want something about %q", err, want)
		}
	}
}

// FuzzServer writes arbitrary bytes to a sidecar, which must go on serving.
func FuzzServer(f *testing.F) {
	f.Add(protocol.Acquire{ID: 2, Name: "x", WaitMS: 5}.Append(nil))
	f.Add([]byte{0, 0, 0, 1, 0x80})
	redis, err := embedded.Start(f.Context(), slog.New(slog.DiscardHandler), embedded.InProcess())
	if err != nil {
		f.Fatal(err)
	}
	defer redis.Close()
	socket := filepath.Join(f.TempDir(), "s")
	srv, err := sidecar.Listen(sidecar.Config{Socket: socket, Redis: redis.URL(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- srv.Serve(ctx) }()
	defer func() { cancel(); <-done }()
	f.Fuzz(func(t *testing.T, b []byte) {
		c := greeted(t, socket)
		_, _ = c.nc.Write(b)
		c.nc.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := srv.Ping(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// BenchmarkPair is one acquire and one release over the socket, the sidecar and
// an in-process Redis; an echo of frames of the same size bounds it.
func BenchmarkPair(b *testing.B) { benchmarkPair(b, sidecar.Config{}) }

// BenchmarkPairWithPolicy is BenchmarkPair with three entries of a policy that are about the
// client: see also BenchmarkDecisions of package policy.
func BenchmarkPairWithPolicy(b *testing.B) {
	benchmarkPair(b, sidecar.Config{Policy: []policy.Entry{
		{Name: "team-a", Users: me(), Names: []string{"team-a:*", "shared:*"}, Acquire: "allow", Holds: 100},
		{Name: "team-b", Users: me(), Names: []string{"invoice:*"}, Acquire: "allow", Holds: 100},
		{Name: "rest", Users: me(), Acquire: "deny", Waiters: 100, RequestsPerSecond: 1 << 30, LongestHold: "1h"},
	}})
}

func benchmarkPair(b *testing.B, cfg sidecar.Config) {
	redis, err := embedded.Start(b.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer redis.Close()
	socket := filepath.Join(b.TempDir(), "s")
	cfg.Socket, cfg.Redis, cfg.Log = socket, redis.URL(), slog.New(slog.DiscardHandler)
	srv, err := sidecar.Listen(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- srv.Serve(ctx) }()
	defer func() { cancel(); <-done }()
	nc, err := net.Dial("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	frames := protocol.NewReader(nc)
	var decoder protocol.ReplyDecoder
	read := func() protocol.Received {
		body, err := frames.Next()
		if err != nil {
			b.Fatal(err)
		}
		m, err := decoder.Decode(body)
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	if _, err := nc.Write(protocol.Hello{ID: 1, V: 1}.Append(nil)); err != nil {
		b.Fatal(err)
	}
	read()
	var buf []byte
	var granted protocol.AcquireOK
	b.ReportAllocs()
	for i := range b.N {
		buf = protocol.Acquire{ID: uint64(i + 2), Name: "invoice:42", WaitMS: protocol.Forever}.Append(buf[:0])
		if _, err := nc.Write(buf); err != nil {
			b.Fatal(err)
		}
		granted.Hold = 0
		for granted.Hold == 0 { // a lease event may come first
			if a, ok := read().(*protocol.Answer); ok {
				if err := a.Unpack(&granted); err != nil {
					b.Fatal(err)
				}
			}
		}
		buf = protocol.Release{Hold: granted.Hold}.Append(buf[:0])
		if _, err := nc.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
}
