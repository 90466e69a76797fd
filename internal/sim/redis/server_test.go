package redis_test

import (
	"bufio"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/sidecar/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// patience is how long a test waits for an answer before it fails: long enough for any
// machine.
const patience = 30 * time.Second

// backend is a Redis that the scripts run in.
type backend struct {
	url    string          // for the sidecar's default user
	socket string          // of a real server; "": miniredis, which has no users
	admin  *goredis.Client // the test's own connection
}

// inProcess reports whether the backend is miniredis, whose Lua is slow and which has
// neither users nor a memory limit.
func (b backend) inProcess() bool { return b.socket == "" }

// withBackends runs f against a real redis-server, and against miniredis, which the
// daemon has for demonstrations.
func withBackends(t *testing.T, f func(t *testing.T, b backend)) {
	t.Run("redis", func(t *testing.T) {
		socket := startRedis(t)
		f(t, backend{"unix://" + socket, socket, newAdmin(t, &goredis.Options{Network: "unix", Addr: socket})})
	})
	t.Run("miniredis", func(t *testing.T) {
		r, err := embedded.Start(ctx, slog.New(slog.DiscardHandler), embedded.InProcess())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		at := must(goredis.ParseURL(r.URL()))
		f(t, backend{r.URL(), "", newAdmin(t, at)})
	})
}

// newAdmin returns a client of the server at options.
func newAdmin(t *testing.T, options *goredis.Options) *goredis.Client {
	options.Protocol, options.PoolSize, options.PipelinePoolSize = 2, 1, -1
	options.MaxRetries, options.DisableIdentity = -1, true
	c := goredis.NewClient(options)
	t.Cleanup(func() { c.Close() })
	return c
}

// startRedis starts a redis-server that ends with the test, and returns its socket.
func startRedis(t *testing.T) (socket string) {
	t.Helper()
	if testing.Short() {
		t.Skip("the short tests start no server")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDIS") != "" {
			t.Fatal("redis-server is not installed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed: apt-get install redis-server")
	}
	// Not t.TempDir: the path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "redis.sock")
	cmd := exec.Command("redis-server", "--port", "0", "--dir", dir, "--unixsocket", socket, "--unixsocketperm", "700",
		"--save", "", "--appendonly", "no", "--daemonize", "no")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	drained := make(chan struct{})
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-drained
		cmd.Wait()
	})
	ready := make(chan bool, 1)
	go func() { // to the end of the log, so that the server never blocks on it
		defer close(drained)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text() // since version 7.2 it names the kind of the socket and not its path
			if strings.Contains(line, "ready to accept connections at") || strings.Contains(line, "Ready to accept connections unix") {
				ready <- true
			}
		}
		close(ready)
	}()
	if !<-ready {
		t.Fatal("redis-server did not start")
	}
	return socket
}

// must returns v.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
