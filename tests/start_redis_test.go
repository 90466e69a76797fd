package tests

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A redisServer is a private redis-server, on a Unix socket and on a loopback
// port. It keeps its directory, its port and its arguments over restarts.
type redisServer struct {
	*redis.Client // of the test, named "test"

	t    testing.TB
	dir  string
	port int
	args []string
	cmd  *exec.Cmd
	log  output
}

// startRedis starts a redis-server with more arguments in the form of its
// configuration file: "--appendonly", "yes". It ends with the test.
func startRedis(t testing.TB, args ...string) *redisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDIS") != "" {
			t.Fatal("redis-server is not installed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed: apt-get install redis-server")
	}
	r := &redisServer{t: t, dir: shortDir(t), args: args}
	r.Client = redis.NewClient(&redis.Options{
		Network: "unix", Addr: r.socket(), ClientName: "test", DisableIdentity: true,
	})
	t.Cleanup(func() {
		r.Close()
		r.stop()
		if t.Failed() {
			t.Logf("redis-server:\n%s", tail(r.log.String(), 30))
		}
	})
	r.start()
	return r
}

func (r *redisServer) socket() string  { return filepath.Join(r.dir, "redis.sock") }
func (r *redisServer) unixURL() string { return "unix://" + r.socket() }
func (r *redisServer) tcpURL() string  { return fmt.Sprintf("redis://127.0.0.1:%d", r.port) }
func (r *redisServer) pid() int        { return r.cmd.Process.Pid }

// start starts the server (again) and returns when it answers.
func (r *redisServer) start() {
	r.t.Helper()
	ctx := r.t.Context()
	for attempt := 0; ; attempt++ {
		if r.port == 0 {
			r.port = freePort(r.t)
		}
		r.cmd = exec.Command("redis-server", append([]string{
			"--dir", r.dir, "--unixsocket", r.socket(),
			"--bind", "127.0.0.1", "--port", strconv.Itoa(r.port),
			"--save", "", "--daemonize", "no",
		}, r.args...)...)
		r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := r.cmd.Start(); err != nil {
			r.t.Fatal(err)
		}
		exited := make(chan struct{})
		go func() { r.cmd.Wait(); close(exited) }()

		gone := false
		eventually(r.t, "redis-server answers", func() bool {
			select {
			case <-exited:
				gone = true
				return true
			default:
			}
			// NOAUTH is an answer too.
			err := r.Ping(ctx).Err()
			return err == nil || strings.HasPrefix(err.Error(), "NOAUTH") || strings.HasPrefix(err.Error(), "WRONGPASS")
		})
		if !gone {
			return
		}
		// Somebody was faster to take the port.
		if attempt == 5 || !r.log.contains("in use") {
			r.t.Fatalf("redis-server ended:\n%s", r.log.String())
		}
		r.port = 0
	}
}

// stop ends the server as `systemctl stop` would.
func (r *redisServer) stop() {
	if r.cmd == nil || r.cmd.Process == nil {
		return
	}
	r.cmd.Process.Signal(syscall.SIGTERM)
	r.cmd.Process.Signal(syscall.SIGCONT) // a test may have stopped it
	eventually(r.t, "redis-server ends", func() bool {
		return r.cmd.Process.Signal(syscall.Signal(0)) != nil
	})
}

// kill9 ends the server as a crash would.
func (r *redisServer) kill9() {
	r.t.Helper()
	r.signal(syscall.SIGKILL)
	eventually(r.t, "redis-server is dead", func() bool {
		return r.cmd.Process.Signal(syscall.Signal(0)) != nil
	})
}

// do runs a command that must not fail.
func (r *redisServer) do(args ...any) {
	r.t.Helper()
	if err := r.Do(r.t.Context(), args...).Err(); err != nil {
		r.t.Fatalf("%v: %v", args, err)
	}
}

// fields returns what is stored of a lock: owner fields and their entries.
func (r *redisServer) fields(lock string) map[string]string {
	r.t.Helper()
	fields, err := r.HGetAll(r.t.Context(), lock).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	return fields
}

// listeners returns how many daemons listen for the release of a lock.
func (r *redisServer) listeners(lock string) int64 {
	r.t.Helper()
	channel := "redisson_lock__channel:{" + lock + "}"
	n, err := r.PubSubNumSub(r.t.Context(), channel).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	return n[channel]
}

// A clientRow is a line of CLIENT LIST.
type clientRow struct{ id, name, cmd string }

// lockClients returns the connections that are there for locking: all but those
// of the test and of its workers' counters, who give their names.
func (r *redisServer) lockClients() []clientRow {
	r.t.Helper()
	list, err := r.ClientList(r.t.Context()).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	var rows []clientRow
	for line := range strings.Lines(list) {
		field := map[string]string{}
		for f := range strings.FieldsSeq(line) {
			k, v, _ := strings.Cut(f, "=")
			field[k] = v
		}
		if field["name"] != "test" && field["name"] != "counter" {
			rows = append(rows, clientRow{id: field["id"], name: field["name"], cmd: field["cmd"]})
		}
	}
	return rows
}

// calls returns how often each command was called, scripts' inner calls included.
func (r *redisServer) calls(ctx context.Context) map[string]int {
	r.t.Helper()
	info, err := r.Info(ctx, "commandstats").Result()
	if err != nil {
		r.t.Fatal(err)
	}
	calls := map[string]int{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		n, _, _ := strings.Cut(rest, ",")
		calls[name], _ = strconv.Atoi(n)
	}
	return calls
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

func (r *redisServer) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}
