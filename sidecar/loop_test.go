package sidecar

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// unserved returns the loop of a sidecar, which the test runs itself, and whose Redis the test plays.
// end ends it; then no operation may be in flight.
func unserved(t *testing.T) (l *loop, end func()) {
	t.Helper()
	return unservedBy(t, "redis://127.0.0.1:1") // refuses connections
}

// unservedBy is unserved with the URL of a Redis.
func unservedBy(t *testing.T, redis string) (l *loop, end func()) {
	t.Helper()
	s, end := unservedServer(t, redis)
	return &s.loop, end
}

// unservedServer returns the sidecar of a loop that the test runs itself.
func unservedServer(t *testing.T, redis string) (s *Server, end func()) {
	t.Helper()
	s, err := Listen(Config{
		Socket: filepath.Join(t.TempDir(), "s"),
		State:  StateNone,
		Redis:  redis,
		Log:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, func() {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Serve(ctx); err != nil {
			t.Error(err)
		}
	}
}

// A step that begins long after its time was kept from it, by a suspend of the host for
// instance. What Redis returned meanwhile has not been read, so Redis was not silent. A step
// that begins in time finds Redis silent.
func TestStepThatBeginsLateIsAPause(t *testing.T) {
	for _, tt := range []struct {
		name    string
		planned time.Duration // from the step on
		paused  bool
	}{
		{"it was due ten seconds ago", -10 * time.Second, true},
		{"it is not due yet", time.Hour, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, end := unserved(t)
			defer end()
			sent := protocol.Now() - int64(20*time.Second) // the host may have just been booted
			l.table.Up(sent, 0, false, true)
			l.table.Open(sent, 1, locktable.Peer{})
			l.table.Acquire(sent, 1, protocol.Acquire{ID: 7, Name: "a"}) // does not wait for the lock
			l.table.Effects()                                            // the Take has no result yet

			l.planned = protocol.Now() + int64(tt.planned)
			now := l.step()
			if silence := l.table.Silence(now); (silence == 0) != tt.paused {
				t.Errorf("Redis was silent for %v", silence)
			}
			if waits := l.table.InUse(1, 7); waits != tt.paused {
				t.Errorf("the acquire waits for the result: %v, want %v", waits, tt.paused)
			}
			l.table.Result(now, redisop.Result{Kind: redisop.Take, Name: "a", Outcome: redisop.NotSent})
		})
	}
}

// A process releases its lock and ends. The loop may notice the end of the process before it
// reads the release: the lock is released, not kept for a crash delay. The connection ends
// even if a child of the process still has it.
func TestReleaseBeforeTheEndOfItsProcessIsRead(t *testing.T) {
	l, end := unserved(t)
	defer end()
	now := protocol.Now()
	l.table.Up(now, 0, false, true)
	c, _ := connPair(t) // the client's end stays open
	defer c.end()
	l.onHello(now, c, &protocol.Hello{ID: 1, V: protocol.Version})
	l.onRequest(now, &request{kind: clientAcquire, conn: c, acquire: protocol.AcquirePermits{Acquire: protocol.Acquire{ID: 2, Name: "a", WaitMS: protocol.Forever, CrashDelayMS: 60_000}}})
	l.table.Effects()
	l.table.Result(now, redisop.Result{Kind: redisop.Take, Name: "a", Sent: now, Token: 1})
	l.table.Effects()
	row, _ := l.table.Info(now, "a")
	if row.State != protocol.StateHeld {
		t.Fatalf("the lock: %+v", row)
	}

	l.onProcessExit(now, c.session.id)
	_ = c.nc.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.nc.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("reading the connection: %v, want its end", err)
	}
	l.onRequest(now, &request{kind: clientRelease, conn: c, release: protocol.Release{ID: 3, Hold: row.Hold}})
	l.onDisconnect(now, c)
	if row, _ := l.table.Info(now, "a"); row.State == protocol.StateHeld {
		t.Errorf("the lock: %+v", row)
	}
	l.table.Effects()
	l.table.Result(now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: now})
}

func TestLoopThatDoesNotAnswerIsAnError(t *testing.T) {
	s, end := unservedServer(t, "redis://127.0.0.1:1")
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for name, err := range map[string]error{
		"Stats": func() error { _, err := s.Stats(ctx); return err }(),
		"Ping":  s.Ping(ctx),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "the loop did not answer") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A client releases its only lock and breaks the protocol, and one step does both. The release is
// answered before the last frame.
func TestAnswersComeBeforeTheFaultThatEndsTheConnection(t *testing.T) {
	l, end := unserved(t)
	defer end()
	now := protocol.Now()
	l.table.Up(now, 0, false, true)
	c, client := connPair(t)
	defer c.end()
	l.onHello(now, c, &protocol.Hello{ID: 1, V: protocol.Version})
	l.onRequest(now, &request{kind: clientAcquire, conn: c, acquire: protocol.AcquirePermits{Acquire: protocol.Acquire{ID: 2, Name: "a", WaitMS: protocol.Forever}}})
	l.table.Effects()
	l.table.Result(now, redisop.Result{Kind: redisop.Take, Name: "a", Sent: now, Token: 1})
	l.applyEffects()
	row, _ := l.table.Info(now, "a")

	l.onRequest(now, &request{kind: clientRelease, conn: c, release: protocol.Release{ID: 3, Hold: row.Hold}})
	l.onRequest(now, &request{kind: clientProtocolError, conn: c, fault: badFrame("it is broken")})
	l.applyEffects()
	_ = client.SetReadDeadline(time.Now().Add(time.Minute))
	frames := protocol.NewReader(client)
	var got []string
	for {
		body, err := frames.Next()
		if err != nil {
			break
		}
		var dec protocol.ReplyDecoder
		switch m, err := dec.Decode(body); m := m.(type) {
		case *protocol.Answer:
			got = append(got, fmt.Sprint("answer ", m.ID))
		case *protocol.Err:
			got = append(got, string(m.Code))
		default:
			t.Fatalf("%+v, %v", m, err)
		}
	}
	if want := []string{"answer 1", "answer 2", "answer 3", "bad_frame"}; !slices.Equal(got, want) {
		t.Errorf("the client was sent %q, want %q", got, want)
	}
}

// While many operations wait to be sent to Redis, what the table has left over waits for an
// answer of Redis, and does not occupy the loop.
func TestWorkThatIsLeftWaitsForRedis(t *testing.T) {
	const locks = 200
	l, end := unserved(t)
	defer end()
	now := protocol.Now()
	answer := func() (answered int) {
		for _, e := range slices.Clone(l.table.Effects()) {
			if e.Kind == locktable.Redis {
				l.table.Result(now, redisop.Result{Kind: e.Op.Kind, Name: e.Op.Name, Sent: now, Token: 1})
				answered++
			}
		}
		return answered
	}
	l.table.Up(now, 0, false, true)
	l.table.Open(now, 1, locktable.Peer{})
	for i := range locks {
		l.table.Acquire(now, 1, protocol.Acquire{ID: uint64(i + 1), Name: fmt.Sprint("lock ", i)})
	}
	answer()
	l.table.Close(now, 1)
	if !l.table.Busy() {
		t.Fatal("nothing is left of the session")
	}
	if at, ok := l.next(now); !ok || at != now {
		t.Errorf("it is done in %v, %v, want at once", time.Duration(at-now), ok)
	}
	l.redisBacklogged = true
	if at, ok := l.next(now); !ok || at <= now {
		t.Errorf("while operations wait, it is done in %v, %v", time.Duration(at-now), ok)
	}
	for l.redisBacklogged = false; answer() > 0 || l.table.Busy(); {
		l.table.Work(now)
	}
}

// slowReply takes the loop longer than a step has for requests.
type slowReply struct{ protocol.Reply }

func (r slowReply) Append(dst []byte) []byte {
	time.Sleep(requestTime)
	return r.Reply.Append(dst)
}

// The last request of a step counts, also if it is the only one: otherwise a process whose requests
// take long would have as many turns as the others.
func TestRequestThatEndsAStepIsCharged(t *testing.T) {
	l, end := unserved(t)
	defer end()
	now := protocol.Now()
	c, _ := connPair(t)
	defer c.end()
	c.sender = l.inbox.AddConn(0, 0)
	l.onHello(now, c, &protocol.Hello{ID: 1, V: protocol.Version})
	slow := request{kind: clientOther, conn: c, other: &otherhosts.Answered{Request: &protocol.Hosts{ID: 2}, Reply: slowReply{&protocol.PingOK{ID: 2}}}}
	l.inbox.AddRequests(c.sender, []request{slow, slow})
	other := &conn{sender: l.inbox.AddConn(0, 0)}
	l.inbox.AddRequests(other.sender, []request{{conn: other}})
	l.takeRequests(now)
	var next request
	if !l.inbox.NextRequest(nil, 0, &next, nil) || next.conn != other {
		t.Errorf("after a request of %v, its process still has its turn", requestTime)
	}
}

// A loop that has no time to look at all its locks refuses to say how they are.
func TestStatusOfAnOverloadedSidecarIsRefused(t *testing.T) {
	l, end := unserved(t)
	defer end()
	now := protocol.Now()
	c, client := connPair(t)
	defer c.end()
	l.onHello(now, c, &protocol.Hello{ID: 1, V: protocol.Version})
	l.onRequest(now, &request{kind: clientOther, conn: c, other: &statusRequest{Status: &protocol.Status{ID: 2}}})
	l.applyEffects()
	frames := protocol.NewReader(client)
	var d protocol.ReplyDecoder
	for {
		body, err := frames.Next()
		if err != nil {
			t.Fatal(err)
		}
		m, err := d.Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := m.(*protocol.Err); ok {
			if e.ID != 2 || e.Code != protocol.Unavailable {
				t.Errorf("got %+v", e)
			}
			return
		}
	}
}
