package examples

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// compileC compiles the example in C, with every warning an error, and returns its path.
// Without a compiler the test is skipped, or fails if LOCKSIDECAR_REQUIRE_CC is set.
func compileC(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		cc, err = exec.LookPath("gcc")
	}
	if err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_CC") != "" {
			t.Fatal("no C compiler: apt-get install gcc libc6-dev")
		}
		t.Skip("no C compiler: apt-get install gcc libc6-dev")
	}
	program := filepath.Join(t.TempDir(), "example")
	build := exec.Command(cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wconversion", "-O1", "-g",
		"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", program, "example.c", "locksidecar.c", "msgpack.c")
	build.Dir = filepath.Join(harness.Root(), "examples", "c")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func TestClientInC(t *testing.T) {
	program := compileC(t)
	t.Run("WaitsForItsTurn", func(t *testing.T) { testTurns(t, program) })
	t.Run("ReportsTheLossOfItsLock", func(t *testing.T) { testLoss(t, program) })
	t.Run("DiesAndItsLockIsFree", func(t *testing.T) { testDeath(t, program) })
	t.Run("ReportsWhyItCannotConnect", func(t *testing.T) { testNoSidecar(t, program) })
	t.Run("RefusesABadHello", func(t *testing.T) { testHello(t, program) })
	t.Run("ReliesOnTheLatestDeadline", func(t *testing.T) { testDeadlines(t, program) })
	t.Run("PassesTheVectors", func(t *testing.T) { testVectors(t, program) })
}

// expectExit waits for the end of a process and checks its exit code and its output.
func expectExit(t *testing.T, p *harness.RunProcess, code int, words ...string) {
	t.Helper()
	if got := p.Wait(); got != code {
		t.Errorf("exit code %d, not %d: %s", got, code, p.Output.String())
	}
	harness.CheckContains(t, p.Output.String(), words...)
}

// token returns the token that a process has printed.
func token(t *testing.T, p *harness.RunProcess) (token uint64) {
	t.Helper()
	if _, err := fmt.Sscanf(p.AwaitOutput("\n"), "token %d", &token); err != nil {
		t.Fatalf("%q: %v", p.Output.String(), err)
	}
	return token
}

func testTurns(t *testing.T, program string) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	first := harness.StartProcess(t, d, program, "job")
	before := token(t, first)
	if row := harness.Info(t, d, "job"); row.Token != before {
		t.Errorf("printed the token %d; it is %d", before, row.Token)
	}
	expectExit(t, harness.StartProcess(t, d, program, "job", "0"), 75, "not acquired: held by pid", "(timeout)")
	expectExit(t, harness.StartProcess(t, d, program, "a\x01b"), 1, "control character", "(bad_request)")
	second := harness.StartProcess(t, d, program, "job", "600000")
	harness.Eventually(t, "the second process waits", func() bool { return harness.Waiters(t, d, "job") == 1 })
	first.Write("\n")
	expectExit(t, first, 0, "released")
	if after := token(t, second); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
	second.CloseStdin()
	expectExit(t, second, 0, "released")
	fixed := harness.StartProcess(t, d, program, "job", "0", "60000")
	token(t, fixed)
	if row := harness.Info(t, d, "job"); row.Lease != time.Minute {
		t.Errorf("the lease is %v", row.Lease)
	}
}

func testLoss(t *testing.T, program string) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	p := harness.StartProcess(t, d, program, "job")
	token(t, p)
	if got := d.Run("force-release", "job"); got.Code != 0 {
		t.Fatal(got.Stderr)
	}
	expectExit(t, p, 79, "lost: forced\n")
	// Its deadline, with no sidecar to report it.
	p = harness.StartProcess(t, d, program, "job", "0", "300")
	token(t, p)
	d.Kill()
	expectExit(t, p, 79, "lost: expired\n")
}

func testDeath(t *testing.T, program string) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	p := harness.StartProcess(t, d, program, "job")
	token(t, p)
	p.Signal(syscall.SIGKILL)
	l, err := harness.Dial(t, d).Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

func testNoSidecar(t *testing.T, program string) {
	d := &harness.Daemon{Socket: filepath.Join(harness.ShortDir(t), "none.sock")}
	expectExit(t, harness.StartProcess(t, d, program, "job"), 1, "cannot connect", d.Socket, "No such file", "(unavailable)")
}

// A scripted sidecar serves one client at a time, as a test decides.
type scripted struct {
	t        *testing.T
	program  string
	listener net.Listener
	daemon   *harness.Daemon // only its socket

	client *harness.RunProcess
	conn   net.Conn
	frames *protocol.Reader
}

func startScripted(t *testing.T, program string) *scripted {
	t.Helper()
	path := filepath.Join(harness.ShortDir(t), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &scripted{t: t, program: program, listener: l, daemon: &harness.Daemon{Socket: path}}
}

// start starts a client, and reads its hello.
func (s *scripted) start(args ...string) {
	s.t.Helper()
	s.client = harness.StartProcess(s.t, s.daemon, s.program, append([]string{"job"}, args...)...)
	var err error
	if s.conn, err = s.listener.Accept(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.conn.Close() })
	s.conn.SetDeadline(time.Now().Add(harness.Patience))
	s.frames = protocol.NewReader(s.conn)
	if h, ok := s.next().(*protocol.Hello); !ok || h.ID != 1 || h.V != 1 || h.Resumable {
		s.t.Fatalf("the first request is %+v", h)
	}
}

func (s *scripted) next() protocol.Request {
	s.t.Helper()
	body, err := s.frames.Next()
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := new(protocol.RequestDecoder).Decode(body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// welcome is a valid answer to hello.
func welcome() protocol.HelloOK {
	return protocol.HelloOK{ID: 1, V: 1, Sidecar: "s", Version: "1", Session: 1, LeaseMS: 30_000, NowNS: protocol.Now()}
}

// send sends frames in one write, so that a client that has read the first one finds the others.
func (s *scripted) send(replies ...protocol.Reply) {
	s.t.Helper()
	var b []byte
	for _, r := range replies {
		b = r.Append(b)
	}
	if _, err := s.conn.Write(b); err != nil {
		s.t.Fatal(err)
	}
}

// acquire answers hello and reads the acquire.
func (s *scripted) acquire() {
	s.t.Helper()
	s.send(welcome())
	if a, ok := s.next().(*protocol.Acquire); !ok || a.ID != 2 || a.Name != "job" {
		s.t.Fatalf("after hello came %+v", a)
	}
}

// expectEOF checks that the client closes its connection.
func (s *scripted) expectEOF() {
	s.t.Helper()
	if body, err := s.frames.Next(); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		s.t.Errorf("the client sent %x (%v)", body, err)
	}
}

func testHello(t *testing.T, program string) {
	s := startScripted(t, program)
	for _, tt := range []struct {
		change func(*protocol.HelloOK)
		want   string
	}{
		{func(h *protocol.HelloOK) { h.V = 2 }, "another version"},
		{func(h *protocol.HelloOK) { h.NowNS += int64(time.Hour) }, "time namespace"},
		{func(h *protocol.HelloOK) { h.NowNS = 1 }, "time namespace"},
	} {
		s.start()
		h := welcome()
		tt.change(&h)
		s.send(h)
		s.expectEOF()
		expectExit(t, s.client, 1, "cannot connect", tt.want)
	}
	s.start()
	s.send(protocol.Err{ID: 1, Code: protocol.Limit, Msg: "too many sessions"})
	s.expectEOF()
	expectExit(t, s.client, 1, "cannot connect: too many sessions (limit)")
}

func testDeadlines(t *testing.T, program string) {
	s := startScripted(t, program)
	past, future := protocol.Now()-int64(time.Second), protocol.Now()+int64(time.Hour)
	grant := protocol.AcquireOK{ID: 2, Token: 5, Hold: 7, Count: 1, DeadlineNS: past}
	maxHold := grant
	maxHold.DeadlineNS, maxHold.EndNS = future, past
	lease, late := protocol.LeaseEvent{DeadlineNS: future}, protocol.LeaseEvent{DeadlineNS: past - 1}
	for _, tt := range []struct {
		name    string
		args    []string
		replies []protocol.Reply
		lost    string // "": it is held until it is released
	}{
		{"an event that waited", nil, []protocol.Reply{grant, lease}, ""},
		{"an earlier deadline", nil, []protocol.Reply{grant, lease, late}, ""},
		{"other events", nil, []protocol.Reply{grant, protocol.LostEvent{Hold: 8, Reason: protocol.Stolen}, protocol.ReleaseOK{ID: 99}, lease}, ""},
		{"no event", nil, []protocol.Reply{grant}, "expired"},
		{"a fixed lease", []string{"0", "5000"}, []protocol.Reply{grant, lease}, "expired"},
		{"max_hold", nil, []protocol.Reply{maxHold, lease}, "max_hold"},
		{"an event before the grant", nil, []protocol.Reply{lease, grant}, "expired"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			s.start(tt.args...)
			s.acquire()
			s.send(tt.replies...)
			if tt.lost == "" {
				token(t, s.client)
				s.client.CloseStdin()
			}
			if r, ok := s.next().(*protocol.Release); !ok || r.ID != 0 || r.Hold != 7 {
				t.Errorf("released with %+v", r)
			}
			s.expectEOF()
			if tt.lost == "" {
				expectExit(t, s.client, 0, "released")
			} else {
				expectExit(t, s.client, 79, "lost: "+tt.lost)
			}
		})
	}
	s.t = t
	s.start()
	s.acquire()
	s.send(grant, protocol.LostEvent{Hold: 7, Reason: protocol.Deleted})
	s.expectEOF() // without a release
	expectExit(t, s.client, 79, "lost: deleted\n")
}

// vector is one entry of the vectors of the protocol; SPEC.md §10 describes it.
type vector struct {
	Name, Kind, Hex, Answers, To string
	Pad                          int
	Message                      struct {
		ID, Token uint64
		Ev        string
		Err       *struct{ Code, Msg string }
	}
}

// The client ends the connection at each bad frame for a client, and understands all others. It
// knows the answers to hello and acquire, and ignores those to other requests. The answers with
// rows, which may nest deeper, it never receives: it does not send those requests.
func testVectors(t *testing.T, program string) {
	text, err := os.ReadFile(filepath.Join(harness.Root(), "protocol", "testdata", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	s := startScripted(t, program)
	hasRows := map[string]bool{"info": true, "list": true, "status": true, "events": true, "hosts": true}
	bad, good := 0, 0
	grant := protocol.AcquireOK{ID: 2, Token: 5, Hold: 9, Count: 1, DeadlineNS: math.MaxInt64}
	for _, v := range all {
		frame, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		frame = append(frame, make([]byte, v.Pad)...)
		isKnown := v.Answers == "" || v.Answers == "hello" || v.Answers == "acquire"
		switch {
		case v.Kind == "bad" && v.To == "client" && isKnown:
			t.Run(v.Name, func(t *testing.T) {
				s.t = t
				s.start()
				if v.Answers != "hello" {
					s.acquire()
				}
				s.conn.Write(frame) // the client may have closed the connection after a part of it
				s.expectEOF()
				expectExit(t, s.client, 1, "the connection to the sidecar has ended")
			})
			bad++
		case v.Kind == "reply" && v.Answers != "hello" && !hasRows[v.Answers]:
			t.Run(v.Name, func(t *testing.T) {
				s.t = t
				s.start()
				s.acquire()
				s.conn.Write(frame)
				switch {
				case strings.HasPrefix(v.Answers, "acquire") && v.Message.ID == 2 && v.Message.Err == nil:
					if got := token(t, s.client); got != v.Message.Token {
						t.Errorf("printed the token %d", got)
					}
				case v.Message.Err != nil && (v.Message.ID == 0 || v.Message.ID == 2):
					expectExit(t, s.client, map[bool]int{true: 75, false: 1}[v.Message.Err.Code == "timeout"], v.Message.Err.Code)
				default: // an event, or an answer to a request that the client has not sent
					s.send(grant)
					if got := token(t, s.client); got != grant.Token {
						t.Errorf("printed the token %d", got)
					}
				}
				s.conn.Close()
				s.client.CloseStdin()
				s.client.Wait()
			})
			good++
		}
	}
	if bad == 0 || good == 0 {
		t.Errorf("%d bad frames and %d good ones", bad, good)
	}
}
