package store

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ourUUID    = "11111111-2222-8333-8444-555555555555" // the other one is of an older sidecar
	secondUUID = "22222222-2222-8333-8444-555555555555"
	otherUUID  = "99999999-8888-7777-6666-555555555555"

	// Long enough for any machine; nothing waits for it unless it is broken.
	patience = 30 * time.Second
)

// server is a private redis-server.
type server struct {
	t    testing.TB
	dir  string
	port string
	args []string
	cmd  *exec.Cmd
}

// startRedis starts one on a socket and a loopback port. More arguments go to
// redis-server.
func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	if testing.Short() {
		t.Skip("the short tests start no server")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed: this test needs a real one")
	}
	// Not t.TempDir: the path of a socket may have 107 bytes.
	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{t: t, dir: dir, port: freePort(t), args: args}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func freePort(t testing.TB) string {
	t.Helper()
	return strconv.Itoa(harness.FreePort(t))
}

func (s *server) start() {
	s.t.Helper()
	args := append([]string{
		"--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir, "--unixsocket", s.socket(), "--unixsocketperm", "700",
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}, s.args...)
	s.cmd = exec.Command("redis-server", args...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if acceptsOnSocket(lines.Text()) {
			go func() { // until the process ends, so that it never blocks on its log
				for lines.Scan() {
				}
			}()
			return
		}
	}
	s.t.Fatalf("redis-server did not start:\n%s", said.String())
}

// acceptsOnSocket reports whether a line of the log says that the server accepts connections on its
// Unix socket. Since version 7.2 it names the kind and not the path.
func acceptsOnSocket(line string) bool {
	return strings.Contains(line, "ready to accept connections at") || strings.Contains(line, "Ready to accept connections unix")
}

// stop kills it, as a crash would.
func (s *server) stop() {
	if s.cmd.Process != nil {
		s.cmd.Process.Signal(syscall.SIGCONT)
		s.cmd.Process.Kill()
		s.cmd.Wait()
	}
}

func (s *server) socket() string { return filepath.Join(s.dir, "redis.sock") }
func (s *server) url() string    { return "unix://" + s.socket() }
func (s *server) tcp() string    { return "127.0.0.1:" + s.port }

// becomeReplica makes the server a replica that keeps its data and its clients. Its master does not
// answer.
func (s *server) becomeReplica() {
	s.t.Helper()
	must(s.admin().ReplicaOf(ctx, "127.0.0.1", freePort(s.t)).Result())
}

// follow makes the server a replica, which keeps its clients, and returns when it has the data of
// its master.
func (s *server) follow(master *server) {
	s.t.Helper()
	a := s.admin()
	must(a.ReplicaOf(ctx, "127.0.0.1", master.port).Result())
	for end := time.Now().Add(patience); wire.InfoFields(a.Info(ctx, "replication").Val())["master_link_status"] != "up"; {
		if time.Now().After(end) {
			s.t.Fatal("the replica does not get the data of its master")
		}
		runtime.Gosched()
	}
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// suspend stops the server, and returns when it does nothing any more.
func (s *server) suspend() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	stat := fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid)
	for {
		text, err := os.ReadFile(stat)
		if err != nil {
			s.t.Fatal(err)
		}
		if _, state, _ := strings.Cut(string(text), ") "); strings.HasPrefix(state, "T") {
			return
		}
		runtime.Gosched()
	}
}

// admin is a client of the test's own, on a connection named "admin", to the server at options.
func admin(t testing.TB, options *redis.Options) *redis.Client {
	options.Protocol, options.PoolSize, options.PipelinePoolSize = 2, 1, -1
	options.ClientName, options.MaxRetries, options.DisableIdentity = "admin", -1, true
	c := redis.NewClient(options)
	t.Cleanup(func() { c.Close() })
	return c
}

func (s *server) admin() *redis.Client {
	return admin(s.t, &redis.Options{Network: "unix", Addr: s.socket()})
}

// backend is a Redis to run the same test against.
type backend struct {
	url    string
	admin  *redis.Client
	server *server // nil: it runs in process
}

// backends runs f against a real Redis and against the one that runs in process.
func backends(t *testing.T, f func(t *testing.T, b backend)) {
	t.Run("redis", func(t *testing.T) {
		s := startRedis(t)
		f(t, backend{s.url(), s.admin(), s})
	})
	t.Run("miniredis", func(t *testing.T) {
		m, err := embedded.Start(ctx, slog.New(slog.DiscardHandler), embedded.InProcess())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		f(t, backend{m.URL(), admin(t, must(redis.ParseURL(m.URL()))), nil})
	})
}

// recorder is what the table would be: it takes all callbacks.
type recorder struct {
	ahead time.Duration // of the clock, for the Machine: see later
	t     testing.TB
	*Store
	id           wire.Identity // of the first connection, from connected
	results      chan []redisop.Result
	ups          chan upped
	downs        chan string
	degraded     chan string
	subscribed   chan string
	unsubscribed chan string
	messages     chan string
	awaited      redisop.Message // of this sidecar's own channel

	mu  sync.Mutex // guards log
	log strings.Builder
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

// isAwaited reports whether a message of this sidecar's own channel is that which is awaited.
func (r *recorder) isAwaited(m redisop.Message) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return m == r.awaited
}

func (r *recorder) await(m redisop.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaited = m
}

func (r *recorder) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// upped is what OnUp was given.
type upped struct {
	lost, listening bool
	id              wire.Identity
}

// open makes a Store whose callbacks are recorded. It does not wait for Redis.
func open(t testing.TB, url string, change ...func(*Config)) *recorder {
	t.Helper()
	r := &recorder{
		t:       t,
		results: make(chan []redisop.Result, 1<<16),
		ups:     make(chan upped, 100), downs: make(chan string, 100), degraded: make(chan string, 100),
		subscribed: make(chan string, 10000), unsubscribed: make(chan string, 10000), messages: make(chan string, 10000),
	}
	cfg := Config{
		URL: url, UUID: ourUUID, Timeout: patience, // a Redis that is only slow is not given up
		Log:     slog.New(slog.NewTextHandler(r, nil)),
		OnEvent: r.onEvent,
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Store = s
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

func (r *recorder) onEvent(e Event) {
	switch e.Kind {
	case Results:
		r.results <- e.Results
	case Up:
		r.ups <- upped{e.IsLost, e.IsListening, *e.ID}
	case Down:
		r.downs <- e.Text
	case Degraded:
		r.degraded <- e.Text
	case Subscribed, Unsubscribed:
		to := r.subscribed
		if e.Kind == Unsubscribed {
			to = r.unsubscribed
		}
		for _, n := range e.Names {
			to <- n
		}
	case Messages:
		for _, m := range e.Messages {
			m.Conn = redisop.Conn{}
			if m != (redisop.Message{Kind: redisop.Unlocked, Name: m.Name}) && !r.isAwaited(m) {
				r.t.Errorf("message %+v", m)
			}
			r.messages <- m.Name
		}
	}
}

// on has f called with the events of a kind, instead of what is called with others.
func (c *Config) on(kind EventKind, f func(e Event)) {
	others := c.OnEvent
	c.OnEvent = func(e Event) {
		switch {
		case e.Kind == kind:
			f(e)
		case others != nil:
			others(e)
		}
	}
}

// connected is open, and waits until Redis can be asked.
func connected(t testing.TB, url string, change ...func(*Config)) *recorder {
	t.Helper()
	r := open(t, url, change...)
	up := r.up()
	if up.lost {
		t.Error("the first OnUp says that data was lost")
	}
	r.id = up.id
	return r
}

// recv waits for one value.
func recv[T any](t testing.TB, from chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("not reached")
	}
}

// awaitWired returns when the connection is in use. OnUp comes a moment before.
func (r *recorder) awaitWired() {
	for isUp := false; !isUp; {
		r.single.link.With(func(m *pipeline.Machine) { isUp = m.IsUp() })
	}
}

// later has the present connection look at what is due after a time, as if that had passed without a word of Redis
// since the last call.
func (r *recorder) later(d time.Duration) {
	r.awaitWired()
	r.ahead += d
	r.single.link.Advance(protocol.Now()+int64(r.ahead), 0)
}

// ageIdle has the present connection be idle for so long that a PING is due.
func (r *recorder) ageIdle() { r.later(idlePing) }

// impatient gives the present connection up as if Redis had been silent for long.
func (r *recorder) impatient() {
	for range 2 {
		r.later(time.Hour)
	}
}

// idlePing is longer than a connection is idle before it is pinged.
const idlePing = 6 * time.Second

func (r *recorder) up() upped { r.t.Helper(); return recv(r.t, r.ups, "OnUp") }

func (r *recorder) down() string { r.t.Helper(); return recv(r.t, r.downs, "OnDown") }

// untilDone carries out op again until it is done. Replicas have a part of a second to confirm it, which a slow
// machine may need for itself.
func (r *recorder) untilDone(op redisop.Op) redisop.Result {
	r.t.Helper()
	for end := time.Now().Add(patience); ; {
		res := r.one(op)
		if res.Outcome == redisop.Done {
			return res
		}
		if res.Outcome != redisop.NotSynced || time.Now().After(end) {
			r.t.Fatalf("%+v, want Done", res)
		}
	}
}

// wantTry expects Try to fail with a reason. It has more time each time: a slow machine does not learn the reason
// in the first one.
func wantTry(t *testing.T, cfg Config, reason string, late bool) {
	t.Helper()
	var err error
	for within := 250 * time.Millisecond; within < patience; within *= 4 {
		ends, cancel := context.WithTimeout(ctx, within)
		if late {
			ends = lateContext{ends, time.Now().Add(within / 2)}
		}
		_, err = Try(ends, cfg, neverEnough)
		cancel()
		if err != nil && strings.Contains(err.Error(), reason) {
			return
		}
	}
	t.Errorf("got %v, want %q", err, reason)
}

// ask carries out ops and returns their results in the order of ops.
func (r *recorder) ask(ops ...redisop.Op) []redisop.Result {
	r.t.Helper()
	r.Do(ops)
	var got []redisop.Result
	for len(got) < len(ops) {
		got = append(got, recv(r.t, r.results, "result")...)
	}
	if len(got) > len(ops) {
		r.t.Fatalf("%d operations got %d results: %+v", len(ops), len(got), got)
	}
	sorted := make([]redisop.Result, len(ops))
	for i, op := range ops {
		j := slices.IndexFunc(got, func(res redisop.Result) bool { return res.Name == op.Name && res.Kind == op.Kind })
		if j < 0 {
			r.t.Fatalf("no result for %+v in %+v", op, got)
		}
		sorted[i] = got[j]
	}
	return sorted
}

func (r *recorder) one(op redisop.Op) redisop.Result { r.t.Helper(); return r.ask(op)[0] }

func takeOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Take, Name: name, HoldID: num, Count: 1, LeaseMS: 30_000, Asked: redisop.Asked{Reserve: 1}}
}

func renewOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Renew, Name: name, HoldID: num, Count: 1, LeaseMS: 30_000}
}

func checkOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Check, Name: name, HoldID: num, Count: 1}
}

func dropOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Drop, Name: name, HoldID: num}
}

// permitsOp keeps permits of a semaphore of ten, and asks for more.
func permitsOp(name string, num uint64, keep uint32, want uint16) redisop.Op {
	return redisop.Op{
		Kind: redisop.Take, Of: redisop.KindPermits, Name: name, HoldID: num, Count: keep, LeaseMS: 30_000,
		Asked: redisop.Asked{Reserve: 1, Want: want, Times: 1, Capacity: 10},
	}
}

func permitsDrop(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Drop, Of: redisop.KindPermits, Name: name, HoldID: num}
}

func field(uuid string, num uint64) string { return fmt.Sprintf("%s:%d", uuid, num) }

// must returns v.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// channelOf and counterOf are the names that a store without a prefix uses.

func channelOf(name string) string { return new(wire.Keyspace).Channel(name) }
func counterOf(name string) string { return new(wire.Keyspace).Counter(name) }

// oneLifted is one, for an operation that is sent while the clock is asked for.
func (r *recorder) oneLifted(op redisop.Op) redisop.Result {
	r.t.Helper()
	r.awaitWired()
	r.single.link.With(func(m *pipeline.Machine) {
		m.Lift(protocol.Now(), 0, true)
		m.Do(protocol.Now(), []redisop.Op{op})
	})
	return recv(r.t, r.results, "result")[0]
}
