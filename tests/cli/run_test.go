package cli

import (
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// run forwards the output of its command and ends with its exit code. The command finds the
// fencing token and the name of the lock in its environment.
func TestRunReturnsExitCodeAndExportsToken(t *testing.T) {
	t.Parallel()
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
		t.Errorf("the command printed %q; the token before was %d", got.Stdout, before.Token())
	}
	if got.Code != 7 || !strings.Contains(got.Stderr, "trouble") {
		t.Errorf("exit code %d, stderr %q", got.Code, got.Stderr)
	}
	harness.Eventually(t, "the lock is free in Redis", func() bool { return r.Exists(t.Context(), "job").Val() == 0 })

	if got := d.Run("run", "job", "--", "sh", "-c", "kill -KILL $$"); got.Code != 128+9 {
		t.Errorf("a command that was ended by SIGKILL: exit code %d, not 137", got.Code)
	}
	if got := d.Run("run", "job", "--", "/nowhere/command"); got.Code != 127 {
		t.Errorf("a command that does not exist: exit code %d, not 127", got.Code)
	}
}

// run forwards a signal to its command, which decides how it ends.
func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	r := harness.StartRun(t, d, "job", `trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
	r.AwaitOutput("ready")
	r.Signal(syscall.SIGTERM)
	if code := r.Wait(); code != 3 || !r.Output.Contains("got TERM") {
		t.Errorf("exit code %d, output %q", code, r.Output.String())
	}
}

// When the lock is lost, run ends its command and the processes that the command started.
func TestRunEndsTheGroupWhenTheLockIsLost(t *testing.T) {
	t.Parallel()
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

// When run is killed, the lock is free, and the command and its children are killed.
func TestKillOfRunKillsTheGroupAndFreesTheLock(t *testing.T) {
	t.Parallel()
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

// As PID 1 of a container, run is the parent of the processes that have none: while the command runs, too.
func TestRunReapsOrphansWhileItsCommandRuns(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	// The inner shell has ended when orphan is set. A process that is not reaped still accepts signal 0.
	got := d.Run("run", "job", "--", "sh", "-c", `orphan=$(sh -c 'sleep 0.01 >/dev/null & echo $!'); while kill -0 $orphan 2>/dev/null; do sleep 0.01; done; echo reaped; exit 7`)
	if got.Stdout != "reaped\n" || got.Code != 7 {
		t.Errorf("%+v", got)
	}
}
