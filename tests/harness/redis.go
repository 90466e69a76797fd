package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Redis is a private redis-server, on a Unix socket and on a loopback port. It keeps its
// directory, its port and its arguments over restarts.
type Redis struct {
	*redis.Client // of the test; CLIENT LIST shows it as "test"
	Port          int

	t        testing.TB
	dir      string
	args     []string
	findPort func(testing.TB) int // returns a port for a server that has none
	cmd      *exec.Cmd
	log      Output
}

// StartRedis starts a redis-server with additional settings, for instance "--appendonly",
// "yes".
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	return startRedis(t, FreePort, args...)
}

// startRedis is StartRedis at a port that findPort returns.
func startRedis(t testing.TB, findPort func(testing.TB) int, args ...string) *Redis {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDIS") != "" {
			t.Fatal("redis-server is not installed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed: apt-get install redis-server")
	}
	r := &Redis{t: t, dir: ShortDir(t), args: args, findPort: findPort}
	r.Client = redis.NewClient(&redis.Options{
		Network: "unix", Addr: r.Socket(), ClientName: "test", DisableIdentity: true,
	})
	t.Cleanup(func() {
		r.Close()
		r.Stop()
		if t.Failed() {
			t.Logf("redis-server:\n%s", Tail(r.log.String(), 30))
		}
	})
	r.Start()
	return r
}

// Socket returns the path of the Unix socket.
func (r *Redis) Socket() string { return filepath.Join(r.dir, "redis.sock") }

// UnixURL returns the URL of the Unix socket, as the setting redis takes it.
func (r *Redis) UnixURL() string { return "unix://" + r.Socket() }

// TCPURL returns the URL of the loopback port.
func (r *Redis) TCPURL() string { return fmt.Sprintf("redis://127.0.0.1:%d", r.Port) }

// URLOf returns the URL of the loopback port with the name and password of a user.
func (r *Redis) URLOf(user, password string) string {
	return fmt.Sprintf("redis://%s:%s@127.0.0.1:%d", user, password, r.Port)
}

// PID returns the process id of the server.
func (r *Redis) PID() int { return r.cmd.Process.Pid }

// Start starts a server that has been stopped, and returns when it answers.
func (r *Redis) Start() {
	r.t.Helper()
	ctx := r.t.Context()
	for attempt := 0; ; attempt++ {
		if r.Port == 0 {
			r.Port = r.findPort(r.t)
		}
		r.cmd = exec.Command("redis-server", append([]string{
			"--dir", r.dir, "--unixsocket", r.Socket(),
			"--bind", "127.0.0.1", "--port", strconv.Itoa(r.Port),
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
		Eventually(r.t, "redis-server answers", func() bool {
			select {
			case <-exited:
				gone = true
				return true
			default:
			}
			// A server with a password answers NOAUTH.
			err := r.Ping(ctx).Err()
			return err == nil || strings.HasPrefix(err.Error(), "NOAUTH") || strings.HasPrefix(err.Error(), "WRONGPASS")
		})
		if !gone {
			return
		}
		// Another process may have bound the port first.
		if attempt == 5 || !r.log.Contains("in use") {
			r.t.Fatalf("redis-server ended:\n%s", r.log.String())
		}
		r.Port = 0
	}
}

// Stop ends the server with SIGTERM and waits until it has ended.
func (r *Redis) Stop() {
	if r.cmd == nil || r.cmd.Process == nil {
		return
	}
	r.cmd.Process.Signal(syscall.SIGTERM)
	r.cmd.Process.Signal(syscall.SIGCONT) // in case a test has sent SIGSTOP
	Eventually(r.t, "redis-server ends", func() bool {
		return r.cmd.Process.Signal(syscall.Signal(0)) != nil
	})
}

// Kill ends the server with SIGKILL and waits until it has ended.
func (r *Redis) Kill() {
	r.t.Helper()
	r.Signal(syscall.SIGKILL)
	Eventually(r.t, "redis-server has ended", func() bool {
		return r.cmd.Process.Signal(syscall.Signal(0)) != nil
	})
}

// MustDo executes a command that must not fail.
func (r *Redis) MustDo(args ...any) {
	r.t.Helper()
	if err := r.Do(r.t.Context(), args...).Err(); err != nil {
		r.t.Fatalf("%v: %v", args, err)
	}
}

// Fields returns the hash that is stored for a lock: owner fields with their counts.
func (r *Redis) Fields(lock string) map[string]string {
	r.t.Helper()
	fields, err := r.HGetAll(r.t.Context(), lock).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	return fields
}

// Owner returns the uuid of the sidecar that the key of a lock belongs to, and "" if there is no
// such key or it has not exactly one entry of one owner.
func (r *Redis) Owner(lock string) string {
	r.t.Helper()
	fields := r.Fields(lock)
	for field, count := range fields {
		if uuid, _, ok := strings.Cut(field, ":"); ok && len(fields) == 1 && count == "1" {
			return uuid
		}
	}
	return ""
}

// Subscribers returns how many clients have subscribed to the channel of a lock.
func (r *Redis) Subscribers(lock string) int64 {
	r.t.Helper()
	return r.subscribersOf("redisson_lock__channel:{" + lock + "}")
}

// IsReached reports whether the sidecar with this uuid receives messages, as far as Redis knows.
func (r *Redis) IsReached(uuid string) bool {
	r.t.Helper()
	return r.subscribersOf("redisson_lock__channel:{locksidecar}:"+uuid) > 0
}

func (r *Redis) subscribersOf(channel string) int64 {
	r.t.Helper()
	n, err := r.PubSubNumSub(r.t.Context(), channel).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	return n[channel]
}

// Tickets returns how many tickets of sidecars stand in the queue of a lock, whose name has no
// brace.
func (r *Redis) Tickets(lock string) int64 {
	r.t.Helper()
	n, err := r.ZCard(r.t.Context(), "locksidecar_queue:{"+lock+"}").Result()
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// A Connection is a line of CLIENT LIST.
type Connection struct{ ID, Name, Cmd, User string }

// LockConnections returns the connections of clients that lock: all but those of the test
// and of Hammer's counters, which have names.
func (r *Redis) LockConnections() []Connection {
	r.t.Helper()
	list, err := r.ClientList(r.t.Context()).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	var rows []Connection
	for line := range strings.Lines(list) {
		field := map[string]string{}
		for f := range strings.FieldsSeq(line) {
			k, v, _ := strings.Cut(f, "=")
			field[k] = v
		}
		if field["name"] != "test" && field["name"] != "counter" {
			rows = append(rows, Connection{ID: field["id"], Name: field["name"], Cmd: field["cmd"], User: field["user"]})
		}
	}
	return rows
}

// CommandCalls returns how often each command was called, by clients and by scripts.
func (r *Redis) CommandCalls(ctx context.Context) map[string]int {
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

// RefusingPort returns a loopback port that refuses connections until the test ends: it is bound, and
// nothing listens there. A port that is free may be another server's by the time it is used.
func RefusingPort(t testing.TB) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return at.(*syscall.SockaddrInet4).Port
}

// FreePort returns a loopback port that no process listens on, and keeps it for the test until its end:
// a server that is stopped finds it free. It is not among those that the system gives to connections.
func FreePort(t testing.TB) int {
	t.Helper()
	port, _ := reservePort(t)
	return port
}

// reservePort returns the port of FreePort, and what keeps it.
func reservePort(t testing.TB) (int, *net.UnixListener) {
	t.Helper()
	const first, ports = 11000, busOffset // the port of a cluster bus is no port of another server
	// The first port depends on the process, so that processes rarely try the same ones.
	for range ports {
		port := first + (os.Getpid()*101+int(portsTried.Add(1)))%ports
		reserved, err := net.ListenUnix("unix", &net.UnixAddr{Name: reservation(port), Net: "unix"})
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			reserved.Close()
			continue
		}
		l.Close()
		t.Cleanup(func() { reserved.Close() })
		t.Logf("port %d", port)
		return port, reserved
	}
	t.Fatal("no port is free")
	return 0, nil
}

var portsTried atomic.Int64

// reservation returns the name of a socket that keeps a port for a test. It ends with the process at the
// latest.
func reservation(port int) string { return fmt.Sprintf("@locksidecar-test-port-%d", port) }

// PromotedAt returns when the server became a master, as its log has it; zero: it was none before.
func (r *Redis) PromotedAt() (at time.Time) {
	r.t.Helper()
	for line := range strings.Lines(r.log.String()) {
		if words := strings.Fields(line); strings.Contains(line, "MASTER MODE enabled") && len(words) > 5 { // 4711:M 26 Nov 2026 14:11:00.202 *
			var err error
			if at, err = time.ParseInLocation("2 Jan 2006 15:04:05.000", strings.Join(words[1:5], " "), time.Local); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	return at
}

// Signal sends a signal to the server.
func (r *Redis) Signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// AddUser makes a user with these ACL rules.
func (r *Redis) AddUser(name string, rules ...string) {
	r.t.Helper()
	args := []any{"ACL", "SETUSER", name, "on"}
	for _, rule := range rules {
		args = append(args, rule)
	}
	r.MustDo(args...)
}

// StartDaemonWithoutSubscribe starts a daemon whose Redis user may publish, but not
// subscribe.
func StartDaemonWithoutSubscribe(t testing.TB, r *Redis) *Daemon {
	t.Helper()
	r.AddUser("unsubscribed", ">pw", "~*", "&*", "+@all", "-subscribe", "-psubscribe")
	return StartDaemon(t, r.URLOf("unsubscribed", "pw"))
}
