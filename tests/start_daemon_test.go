package tests

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// A daemon is a running `locksidecar serve`: one host's stand-in.
type daemon struct {
	t        testing.TB
	redisURL string
	socket   string
	maxFiles int // it may have open; 0: as many as the test
	cmd      *exec.Cmd
	log      output
	exited   chan struct{} // closed when the process has ended
}

// startDaemon starts a daemon and returns when it has reached its Redis.
func startDaemon(t testing.TB, redisURL string, args ...string) *daemon {
	t.Helper()
	d := launchDaemon(t, redisURL, args...)
	d.awaitRedis("ok")
	return d
}

// launchDaemon starts a daemon and returns when it answers, with or without Redis.
func launchDaemon(t testing.TB, redisURL string, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, redisURL: redisURL, socket: filepath.Join(shortDir(t), "s.sock")}
	d.start(args...)
	d.awaitAnswer()
	return d
}

// start runs `serve` and returns at once.
func (d *daemon) start(args ...string) {
	d.t.Helper()
	args = append([]string{program, "serve", "--socket", d.socket}, args...)
	if d.maxFiles > 0 {
		args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, d.maxFiles), "sh"}, args...)
	}
	d.cmd = exec.Command(args[0], args[1:]...)
	d.cmd.Env = append(plainEnv(), "LOCKSIDECAR_REDIS="+d.redisURL, "GOTRACEBACK=all")
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	exited := make(chan struct{})
	d.exited = exited
	cmd := d.cmd
	go func() { cmd.Wait(); close(exited) }()
	d.t.Cleanup(func() {
		cmd.Process.Kill()
		<-exited
		if d.log.contains("DATA RACE") {
			d.t.Errorf("the daemon has a data race:\n%s", d.log.String())
		} else if d.log.contains("panic:") || d.log.contains("fatal error:") {
			d.t.Errorf("the daemon crashed:\n%s", tail(d.log.String(), 200))
		} else if d.t.Failed() {
			d.t.Logf("daemon %d:\n%s", cmd.Process.Pid, tail(d.log.String(), 60))
		}
	})
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

func (d *daemon) awaitAnswer() {
	d.t.Helper()
	eventually(d.t, "the daemon answers on its socket", func() bool {
		if d.ended() {
			d.t.Fatalf("the daemon ended:\n%s", d.log.String())
		}
		conn, err := net.Dial("unix", d.socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// awaitRedis waits until the daemon says "ok" of its Redis, or a sentence with
// want (in lower case) in it.
func (d *daemon) awaitRedis(want string) {
	d.t.Helper()
	w := dialWire(d.t, d)
	defer w.conn.Close()
	eventually(d.t, "the daemon says of Redis: "+want, func() bool {
		said, _ := w.ask(message{"op": "ping"})["redis"].(string)
		return said == want || want != "ok" && strings.Contains(strings.ToLower(said), want)
	})
}

func (d *daemon) ended() bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

// kill9 ends the daemon as a crash would.
func (d *daemon) kill9() {
	d.cmd.Process.Kill()
	<-d.exited
}

// suspend sends SIGSTOP to the daemon, and returns when each of its threads has stopped.
func (d *daemon) suspend() {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGSTOP)
	eventually(d.t, "the daemon's threads have stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", d.pid()))
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

// terminate asks the daemon to stop and waits until it has.
func (d *daemon) terminate() {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGTERM)
	eventually(d.t, "the daemon stops", d.ended)
}

// goroutines ends the daemon with SIGQUIT and counts the goroutines in the
// dump that the Go runtime writes then: the daemon has no port to ask.
func (d *daemon) goroutines() int {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGQUIT)
	eventually(d.t, "the daemon ends on SIGQUIT", d.ended)
	n := strings.Count(d.log.String(), "\ngoroutine ")
	if n == 0 {
		d.t.Fatalf("no goroutine dump in the daemon's output:\n%s", d.log.String())
	}
	return n
}

// dial connects the Go SDK, in the test's own process.
func dial(t testing.TB, d *daemon) *locksidecar.Client {
	t.Helper()
	c, err := locksidecar.Dial(t.Context(), d.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// run runs the binary to its end, with the daemon's socket in the environment.
type runResult struct {
	code           int
	stdout, stderr string
}

func (d *daemon) run(args ...string) runResult {
	d.t.Helper()
	return runBinary(d.t, []string{"LOCKSIDECAR_SOCKET=" + d.socket}, args...)
}

func runBinary(t testing.TB, env []string, args ...string) runResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(plainEnv(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("locksidecar %s did not end within %v\n%s%s", strings.Join(args, " "), patience, stdout.Bytes(), stderr.Bytes())
	}
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return runResult{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

// plainEnv is the environment without settings of ours that a developer may have.
func plainEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LOCKSIDECAR_") })
}

// alive tells whether there is a process, zombies not counted.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z'
}
