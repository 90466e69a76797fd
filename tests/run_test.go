package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// `locksidecar run` and `locksidecar ls`, as a shell would use them.

// The command's output and exit code come through, and it finds the token.
func TestRunKeepsExitCodeAndGivesTheToken(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL())
	before, err := dial(t, d).Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Unlock(); err != nil {
		t.Fatal(err)
	}
	got := d.run("run", "job", "--", "sh", "-c", `echo "$LOCKSIDECAR_TOKEN $LOCKSIDECAR_NAME"; echo trouble >&2; exit 7`)
	token, name, _ := strings.Cut(strings.TrimSpace(got.stdout), " ")
	if n, err := strconv.ParseUint(token, 10, 64); err != nil || n <= before.Token() || name != "job" {
		t.Errorf("the command saw %q, after token %d", got.stdout, before.Token())
	}
	if got.code != 7 || !strings.Contains(got.stderr, "trouble") {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
	eventually(t, "the lock is free in Redis", func() bool { return r.Exists(t.Context(), "job").Val() == 0 })

	if got := d.run("run", "job", "--", "sh", "-c", "kill -KILL $$"); got.code != 128+9 {
		t.Errorf("a command that SIGKILL ended: exit code %d, not 137", got.code)
	}
	if got := d.run("run", "job", "--", "/nowhere/command"); got.code != 127 {
		t.Errorf("a command that is not there: exit code %d, not 127", got.code)
	}
}

// A lock that somebody else holds keeps the command from running, and ls names
// the holder and the waiters.
func TestRunWaitsAndLsShowsForWhom(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	holder := startRun(t, d, "job", "echo running; read line")
	holder.printed("running")
	waiter := startRun(t, d, "job", "echo ran")

	eventually(t, "a waiter is in the queue", func() bool { return waiting(t, d, "job") == 1 })
	if got := d.run("run", "--wait", "0", "job", "--", "echo", "no"); got.code != 75 || got.stdout != "" {
		t.Errorf("run --wait 0: exit code %d, output %q", got.code, got.stdout)
	} else {
		says(t, got.stderr, "job", "held")
	}
	if got := d.run("run", "--wait", "50ms", "job", "--", "echo", "no"); got.code != 75 || got.stdout != "" {
		t.Errorf("run --wait 50ms: exit code %d, output %q", got.code, got.stdout)
	}

	got := d.run("ls", "--json")
	if got.code != 0 {
		t.Fatalf("ls --json: exit code %d\n%s", got.code, got.stderr)
	}
	row := findRow(t, got.stdout, "job")
	if row.State != "held" || row.PID != holder.pid() || row.Token == 0 || len(row.Waiters) != 1 ||
		row.Waiters[0].PID != waiter.pid() || !strings.Contains(row.Cmd, "locksidecar") {
		t.Errorf("ls --json shows %+v; the holder is %d, the waiter %d", row, holder.pid(), waiter.pid())
	}
	table := d.run("ls")
	says(t, table.stdout, "job", "held", strconv.Itoa(holder.pid()), strconv.Itoa(waiter.pid()))

	holder.stdin.Close() // ends read
	if code := holder.wait(); code != 0 && code != 1 {
		t.Errorf("the holder ended with %d", code)
	}
	if code := waiter.wait(); code != 0 || !waiter.out.contains("ran") {
		t.Errorf("the waiter ended with %d: %s", code, waiter.out.String())
	}
}

type lsRow struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Token   uint64 `json:"token"`
	PID     int    `json:"pid"`
	Cmd     string `json:"cmd"`
	Waiters []struct {
		PID int `json:"pid"`
	} `json:"waiters"`
}

// findRow reads what ls --json printed.
func findRow(t *testing.T, text, name string) lsRow {
	t.Helper()
	var rows []lsRow
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("ls --json: %v\n%s", err, text)
	}
	for _, r := range rows {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("ls --json does not show %q:\n%s", name, text)
	panic("unreachable")
}

// A running is a `locksidecar run` with a shell script.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  interface{ Close() error }
	out    output // both outputs
	exited chan struct{}
}

func startRun(t *testing.T, d *daemon, name, script string, flags ...string) *running {
	t.Helper()
	args := append([]string{"run"}, flags...)
	r := &running{t: t, exited: make(chan struct{})}
	r.cmd = exec.Command(program, append(args, name, "--", "sh", "-c", script)...)
	r.cmd.Env = append(plainEnv(), "LOCKSIDECAR_SOCKET="+d.socket)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
	// What a killed run leaves behind may hold the output open; it must not hold
	// up the test.
	r.cmd.WaitDelay = time.Second
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.stdin = stdin
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.cmd.Wait(); close(r.exited) }()
	t.Cleanup(func() { r.cmd.Process.Kill(); <-r.exited })
	return r
}

func (r *running) pid() int { return r.cmd.Process.Pid }

// printed waits until the script has printed this and returns all that it printed.
func (r *running) printed(s string) string {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("the script prints %q", s), func() bool {
		select {
		case <-r.exited:
			if !r.out.contains(s) {
				r.t.Fatalf("the run ended with %d:\n%s", r.cmd.ProcessState.ExitCode(), r.out.String())
			}
		default:
		}
		return r.out.contains(s)
	})
	return r.out.String()
}

// wait returns the exit code; 128 + n if signal n ended the run itself.
func (r *running) wait() int {
	r.t.Helper()
	eventually(r.t, "the run ends", func() bool {
		select {
		case <-r.exited:
			return true
		default:
			return false
		}
	})
	if ws := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return r.cmd.ProcessState.ExitCode()
}

// child returns the pid that the script printed behind "pid ".
func (r *running) child() int {
	r.t.Helper()
	r.printed("ready")
	for line := range strings.Lines(r.out.String()) {
		if pid, ok := strings.CutPrefix(strings.TrimSpace(line), "pid "); ok {
			n, err := strconv.Atoi(pid)
			if err != nil {
				r.t.Fatal(err)
			}
			return n
		}
	}
	r.t.Fatalf("no pid in %q", r.out.String())
	panic("unreachable")
}

// A signal to run reaches the command, which decides how it ends.
func TestRunForwardsSignals(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	r := startRun(t, d, "job", `trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
	r.printed("ready")
	r.cmd.Process.Signal(syscall.SIGTERM)
	if code := r.wait(); code != 3 || !r.out.contains("got TERM") {
		t.Errorf("exit code %d, output %q", code, r.out.String())
	}
}

// A command, and what it started, does not go on without the lock.
func TestRunEndsTheGroupWhenTheLockIsLost(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=3s")
	// Both the shell and its child ignore SIGTERM: SIGKILL must follow.
	run := startRun(t, d, "job", `trap '' TERM; (trap '' TERM; exec sleep 600) & echo "pid $!"; echo ready; wait`, "--kill-after=200ms")
	child := run.child()
	if err := r.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if code := run.wait(); code != 79 {
		t.Errorf("exit code %d, not 79: %s", code, run.out.String())
	}
	says(t, run.out.String(), "lost")
	eventually(t, "the command's child is dead", func() bool { return !alive(child) })
}

// kill -9 of run frees the lock and takes the command and its children along.
func TestKillOfRunKillsTheGroupAndFreesTheLock(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL(), longLease)
	run := startRun(t, d, "job", `sleep 600 & echo "pid $!"; echo ready; wait`)
	child := run.child()
	c := dial(t, d)
	if _, err := c.TryLock(t.Context(), "job"); err == nil {
		t.Fatal("run does not hold the lock")
	}
	run.cmd.Process.Kill()
	l, err := c.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	eventually(t, "the command's child is dead", func() bool { return !alive(child) })
}

// force-release ends a hold; its holder is told by whom it may be.
func TestForceRelease(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	w := startGoWorker(t, d)
	w.lock("stuck")
	if got := d.run("force-release", "stuck"); got.code != 0 {
		t.Fatalf("exit code %d: %s", got.code, got.stderr)
	}
	if a := w.try(command{Do: "lost", As: "stuck"}); a.Err != "lost" || a.Reason != "forced" {
		t.Errorf("the holder is told %+v", a)
	}
	if got := d.run("force-release", "stuck"); got.code == 0 {
		t.Error("a lock that nobody holds was released by force")
	}
}

// The settings come from flag, environment and file, and a bad one is refused
// by name before anything is served.
func TestServeRefusesBadSettings(t *testing.T) {
	file := filepath.Join(shortDir(t), "settings.toml")
	if err := os.WriteFile(file, []byte("lock_lease = \"3s\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(shortDir(t), "s.sock")
	for _, c := range []struct {
		args  []string
		words []string
	}{
		{[]string{"--lease", "1ms"}, []string{"lease", "1ms"}},
		{[]string{"--redis", "http://example.org"}, []string{"redis", "unix://"}},
		{[]string{"--redis", "redis://:secret@127.0.0.1"}, []string{"--redis-file", "password"}},
		{[]string{"--config", file}, []string{"lock_lease", file}},
		{[]string{"--no-such-flag"}, []string{"no-such-flag"}},
	} {
		got := runBinary(t, nil, append([]string{"serve", "--socket", socket}, c.args...)...)
		if got.code != 64 {
			t.Errorf("serve %q: exit code %d, not 64", c.args, got.code)
		}
		says(t, got.stderr, c.words...)
		if strings.Contains(got.stderr, "secret") {
			t.Errorf("serve %q prints the password: %s", c.args, got.stderr)
		}
	}
}

// Without a Redis of one's own, `serve --embedded` brings one and says which.
func TestServeEmbedded(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed")
	}
	d := &daemon{t: t, socket: filepath.Join(shortDir(t), "s.sock")}
	d.start("--embedded")
	d.awaitAnswer()
	d.awaitRedis("ok")
	says(t, d.log.String(), "redis-server")
	c := dial(t, d)
	l, err := c.TryLock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	c.Close() // while there is somebody to say bye to
	d.terminate()
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
}

// A daemon that is asked to stop does so, and its holders keep their locks to
// the deadline.
func TestStopOfTheDaemonFreesNothing(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL())
	c := dial(t, d)
	l, err := c.Lock(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	d.terminate()
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
	if _, err := os.Stat(d.socket); err == nil {
		t.Error("the stopped daemon left its socket")
	}
	if n := r.Exists(t.Context(), "kept").Val(); n != 1 {
		t.Error("the stopped daemon freed the lock")
	}
	if err := l.Err(); err != nil {
		t.Errorf("before its deadline the holder is told %v", err)
	}
	_, err = locksidecar.Dial(t.Context(), d.socket)
	mention(t, err, locksidecar.ErrUnavailable, d.socket)

	// Until its lock has ended, the client would look for somebody to say bye to.
	d.start()
	eventually(t, "the client is back", func() bool { return d.log.contains("client is back") })
	c.Close()
}
