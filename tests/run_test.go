package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// `locksidecar run` and `locksidecar ls`, as a shell would use them.

// The command's output and exit code come through, and it finds the token.
func TestRunKeepsExitCodeAndGivesTheToken(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	before, err := harness.Dial(t, d).Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Unlock(); err != nil {
		t.Fatal(err)
	}
	got := d.Run("run", "job", "--", "sh", "-c", `echo "$LOCKSIDECAR_TOKEN $LOCKSIDECAR_NAME"; echo trouble >&2; exit 7`)
	token, name, _ := strings.Cut(strings.TrimSpace(got.Stdout), " ")
	if n, err := strconv.ParseUint(token, 10, 64); err != nil || n <= before.Token() || name != "job" {
		t.Errorf("the command saw %q, after token %d", got.Stdout, before.Token())
	}
	if got.Code != 7 || !strings.Contains(got.Stderr, "trouble") {
		t.Errorf("exit code %d, stderr %q", got.Code, got.Stderr)
	}
	harness.Eventually(t, "the lock is free in Redis", func() bool { return r.Exists(t.Context(), "job").Val() == 0 })

	if got := d.Run("run", "job", "--", "sh", "-c", "kill -KILL $$"); got.Code != 128+9 {
		t.Errorf("a command that SIGKILL ended: exit code %d, not 137", got.Code)
	}
	if got := d.Run("run", "job", "--", "/nowhere/command"); got.Code != 127 {
		t.Errorf("a command that is not there: exit code %d, not 127", got.Code)
	}
}

// A lock that somebody else holds keeps the command from running, and ls names
// the holder and the waiters.
func TestRunWaitsAndLsShowsForWhom(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	holder := harness.StartRun(t, d, "job", "echo running; read line")
	holder.AwaitOutput("running")
	waiter := harness.StartRun(t, d, "job", "echo ran")

	harness.Eventually(t, "a waiter is in the queue", func() bool { return harness.Waiters(t, d, "job") == 1 })
	if got := d.Run("run", "--wait", "0", "job", "--", "echo", "no"); got.Code != 75 || got.Stdout != "" {
		t.Errorf("run --wait 0: exit code %d, output %q", got.Code, got.Stdout)
	} else {
		harness.CheckContains(t, got.Stderr, "job", "held")
	}
	if got := d.Run("run", "--wait", "50ms", "job", "--", "echo", "no"); got.Code != 75 || got.Stdout != "" {
		t.Errorf("run --wait 50ms: exit code %d, output %q", got.Code, got.Stdout)
	}

	got := d.Run("ls", "--json")
	if got.Code != 0 {
		t.Fatalf("ls --json: exit code %d\n%s", got.Code, got.Stderr)
	}
	row := findRow(t, got.Stdout, "job")
	if row.State != "held" || row.PID != holder.PID() || row.Token == 0 || len(row.Waiters) != 1 ||
		row.Waiters[0].PID != waiter.PID() || !strings.Contains(row.Cmd, "locksidecar") {
		t.Errorf("ls --json shows %+v; the holder is %d, the waiter %d", row, holder.PID(), waiter.PID())
	}
	table := d.Run("ls")
	harness.CheckContains(t, table.Stdout, "job", "held", strconv.Itoa(holder.PID()), strconv.Itoa(waiter.PID()))

	holder.CloseStdin() // ends read
	if code := holder.Wait(); code != 0 && code != 1 {
		t.Errorf("the holder ended with %d", code)
	}
	if code := waiter.Wait(); code != 0 || !waiter.Output.Contains("ran") {
		t.Errorf("the waiter ended with %d: %s", code, waiter.Output.String())
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

// A signal to run reaches the command, which decides how it ends.
func TestRunForwardsSignals(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	r := harness.StartRun(t, d, "job", `trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
	r.AwaitOutput("ready")
	r.Signal(syscall.SIGTERM)
	if code := r.Wait(); code != 3 || !r.Output.Contains("got TERM") {
		t.Errorf("exit code %d, output %q", code, r.Output.String())
	}
}

// A command, and what it started, does not go on without the lock.
func TestRunEndsTheGroupWhenTheLockIsLost(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=3s")
	// Both the shell and its child ignore SIGTERM: SIGKILL must follow.
	run := harness.StartRun(t, d, "job", `trap '' TERM; (trap '' TERM; exec sleep 600) & echo "pid $!"; echo ready; wait`, "--kill-after=200ms")
	child := run.ChildPID()
	if err := r.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if code := run.Wait(); code != 79 {
		t.Errorf("exit code %d, not 79: %s", code, run.Output.String())
	}
	harness.CheckContains(t, run.Output.String(), "lost")
	harness.Eventually(t, "the command's child is dead", func() bool { return !harness.IsAlive(child) })
}

// kill -9 of run frees the lock and takes the command and its children along.
func TestKillOfRunKillsTheGroupAndFreesTheLock(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	run := harness.StartRun(t, d, "job", `sleep 600 & echo "pid $!"; echo ready; wait`)
	child := run.ChildPID()
	c := harness.Dial(t, d)
	if _, err := c.TryLock(t.Context(), "job"); err == nil {
		t.Fatal("run does not hold the lock")
	}
	run.Signal(syscall.SIGKILL)
	l, err := c.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	harness.Eventually(t, "the command's child is dead", func() bool { return !harness.IsAlive(child) })
}

// force-release ends a hold; its holder is told by whom it may be.
func TestForceRelease(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	w := harness.StartGoWorker(t, d)
	w.Lock("stuck")
	if got := d.Run("force-release", "stuck"); got.Code != 0 {
		t.Fatalf("exit code %d: %s", got.Code, got.Stderr)
	}
	if a := w.Try(harness.Command{Do: "lost", As: "stuck"}); a.Err != "lost" || a.Reason != "forced" {
		t.Errorf("the holder is told %+v", a)
	}
	if got := d.Run("force-release", "stuck"); got.Code == 0 {
		t.Error("a lock that nobody holds was released by force")
	}
}

// Without a Redis of one's own, `serve --embedded` brings one and says which.
func TestServeEmbedded(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed")
	}
	d := harness.NewDaemon(t, "")
	d.Start("--embedded")
	d.AwaitSocket()
	d.AwaitRedis("ok")
	harness.CheckContains(t, d.Log.String(), "redis-server")
	c := harness.Dial(t, d)
	l, err := c.TryLock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	c.Close() // while there is somebody to say bye to
	d.Terminate()
	if code := d.ExitCode(); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
}

// A daemon that is asked to stop does so, and its holders keep their locks to
// the deadline.
func TestStopOfTheDaemonFreesNothing(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	c := harness.Dial(t, d)
	l, err := c.Lock(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	d.Terminate()
	if code := d.ExitCode(); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
	if _, err := os.Stat(d.Socket); err == nil {
		t.Error("the stopped daemon left its socket")
	}
	if n := r.Exists(t.Context(), "kept").Val(); n != 1 {
		t.Error("the stopped daemon freed the lock")
	}
	if err := l.Err(); err != nil {
		t.Errorf("before its deadline the holder is told %v", err)
	}
	_, err = locksidecar.Dial(t.Context(), d.Socket)
	harness.CheckError(t, err, locksidecar.ErrUnavailable, d.Socket)

	// Until its lock has ended, the client would look for somebody to say bye to.
	d.Start()
	harness.Eventually(t, "the client is back", func() bool { return d.Log.Contains("client is back") })
	c.Close()
}

// The daemon has the version of the Go SDK, and prints from which commit it was built.
func TestVersionIsThatOfTheSDK(t *testing.T) {
	got := harness.RunProgram(t, nil, "version", "--json")
	var printed struct{ Version, Build string }
	if err := json.Unmarshal([]byte(got.Stdout), &printed); err != nil || printed.Version != locksidecar.Version || printed.Build == "" {
		t.Errorf("the binary prints %s (%v); want version %q and a build", got.Stdout, err, locksidecar.Version)
	}
}
