package harness

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// LongLease is a lease that no test outlives: a lock that is free before it has ended was
// released.
const LongLease = "--lease=10m"

// A Daemon is a process that runs `locksidecar serve`. It stands for one host.
type Daemon struct {
	Socket   string // its path
	MaxFiles int    // limit of open files; 0: that of the test process
	Program  string // the locksidecar that Start runs; "": the one that is tested
	Log      Output // of all processes that were started

	t        testing.TB
	redisURL string
	cmd      *exec.Cmd
	exited   chan struct{} // closed when the process has ended
	ends     []func()      // of all processes that were started: kills it, and returns when it has ended
}

// StartDaemon starts a daemon and returns when it has connected to its Redis.
func StartDaemon(t testing.TB, redisURL string, args ...string) *Daemon {
	t.Helper()
	d := LaunchDaemon(t, redisURL, args...)
	d.AwaitRedis("ok")
	return d
}

// StartDaemonOf is StartDaemon with another locksidecar than the one that is tested.
func StartDaemonOf(t testing.TB, program, redisURL string, args ...string) *Daemon {
	t.Helper()
	d := NewDaemon(t, redisURL)
	d.Program = program
	d.Start(args...)
	d.AwaitSocket()
	d.AwaitRedis("ok")
	return d
}

// LaunchDaemon starts a daemon and returns when its socket accepts connections. Redis need
// not be reachable.
func LaunchDaemon(t testing.TB, redisURL string, args ...string) *Daemon {
	t.Helper()
	d := NewDaemon(t, redisURL)
	d.Start(args...)
	d.AwaitSocket()
	return d
}

// NewDaemon returns a daemon that has not been started. Its socket will be in a directory
// of its own. "": no Redis is configured.
func NewDaemon(t testing.TB, redisURL string) *Daemon {
	d := &Daemon{t: t, redisURL: redisURL, Socket: filepath.Join(ShortDir(t), "s.sock")}
	// Clients of any of its processes are closed before: see Dial.
	t.Cleanup(d.end)
	return d
}

// end kills the daemon at the end of the test, and looks for crashes in its log.
func (d *Daemon) end() {
	for _, end := range d.ends {
		end()
	}
	switch {
	case d.Log.Contains("DATA RACE"):
		d.t.Errorf("the daemon has a data race:\n%s", d.Log.String())
	case d.Log.Contains("panic:") || d.Log.Contains("fatal error:"):
		d.t.Errorf("the daemon crashed:\n%s", Tail(d.Log.String(), 200))
	case d.t.Failed() && d.cmd != nil:
		d.t.Logf("daemon %d:\n%s", d.cmd.Process.Pid, Tail(d.Log.String(), 60))
	}
}

// Start starts a process of the daemon and returns at once. It can be called again when the
// process has ended: then the new process is the successor of the old one.
func (d *Daemon) Start(args ...string) {
	d.t.Helper()
	program := d.Program
	if program == "" {
		program = Program(d.t)
	}
	args = append([]string{program, "serve", "--socket", d.Socket}, args...)
	if d.MaxFiles > 0 {
		args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, d.MaxFiles), "sh"}, args...)
	}
	d.cmd = exec.Command(args[0], args[1:]...)
	d.cmd.Env = append(PlainEnv(), "LOCKSIDECAR_REDIS="+d.redisURL, "GOTRACEBACK=all")
	d.cmd.Stdout, d.cmd.Stderr = &d.Log, &d.Log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	exited := make(chan struct{})
	d.exited = exited
	cmd := d.cmd
	go func() { cmd.Wait(); close(exited) }()
	d.ends = append(d.ends, func() {
		cmd.Process.Kill()
		<-exited
	})
}

// PID returns the process id of the last process that was started.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// AwaitSocket waits until the daemon accepts connections.
func (d *Daemon) AwaitSocket() {
	d.t.Helper()
	Eventually(d.t, "the daemon accepts connections", func() bool {
		if d.HasEnded() {
			d.t.Fatalf("the daemon ended:\n%s", d.Log.String())
		}
		conn, err := net.Dial("unix", d.Socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// AwaitRedis waits until the daemon reports "ok" as the state of its Redis, or a sentence
// that contains want, which is in lower case.
func (d *Daemon) AwaitRedis(want string) {
	d.t.Helper()
	w := DialRaw(d.t, d)
	defer w.Conn.Close()
	Eventually(d.t, "the daemon reports of Redis: "+want, func() bool {
		state, _ := w.Call(Message{"op": "ping"})["redis"].(string)
		return state == want || want != "ok" && strings.Contains(strings.ToLower(state), want)
	})
}

// HasEnded reports whether the process has ended.
func (d *Daemon) HasEnded() bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

// Signal sends a signal to the daemon.
func (d *Daemon) Signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

// ExitCode returns the exit code of a process that has ended.
func (d *Daemon) ExitCode() int { return d.cmd.ProcessState.ExitCode() }

// Kill ends the daemon with SIGKILL, as a crash would, and waits until it has ended.
func (d *Daemon) Kill() {
	d.cmd.Process.Kill()
	<-d.exited
}

// Suspend sends SIGSTOP to the daemon and returns when each of its threads has stopped.
func (d *Daemon) Suspend() {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGSTOP)
	Eventually(d.t, "the daemon's threads have stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", d.PID()))
		if err != nil {
			d.t.Fatal(err)
		}
		for _, path := range threads {
			stat, err := os.ReadFile(path)
			_, state, _ := bytes.Cut(stat, []byte(") "))
			if err != nil || !bytes.HasPrefix(state, []byte("T")) {
				return false
			}
		}
		return len(threads) > 0
	})
}

// Terminate sends SIGTERM to the daemon and waits until it has ended.
func (d *Daemon) Terminate() {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGTERM)
	Eventually(d.t, "the daemon stops", d.HasEnded)
}

// QuitAndCountGoroutines ends the daemon with SIGQUIT and returns how many goroutines the
// Go runtime lists in its log. The daemon has no other way to report them.
func (d *Daemon) QuitAndCountGoroutines() int {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGQUIT)
	Eventually(d.t, "the daemon ends on SIGQUIT", d.HasEnded)
	n := strings.Count(d.Log.String(), "\ngoroutine ")
	if n == 0 {
		d.t.Fatalf("no goroutine dump in the daemon's output:\n%s", d.Log.String())
	}
	return n
}

// Dial connects the Go SDK to a daemon, in the process of the test.
func Dial(t testing.TB, d *Daemon) *locksidecar.Client {
	t.Helper()
	c, err := locksidecar.Dial(t.Context(), d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Info returns the daemon's information about a lock, which it must know.
func Info(t testing.TB, d *Daemon, name string) locksidecar.LockInfo {
	t.Helper()
	row, ok, err := Dial(t, d).Info(t.Context(), name)
	if err != nil || !ok {
		t.Fatalf("%s: known %v, %v", name, ok, err)
	}
	return row
}

// Waiters returns how many clients of the daemon wait for a lock.
func Waiters(t testing.TB, d *Daemon, name string) int {
	t.Helper()
	w := DialRaw(t, d)
	defer w.Conn.Close()
	row, _ := w.Call(Message{"op": "info", "name": name})["lock"].(Message)
	if row == nil || row["waiting"] == nil {
		return 0
	}
	n, _ := strconv.Atoi(fmt.Sprint(row["waiting"]))
	return n
}
