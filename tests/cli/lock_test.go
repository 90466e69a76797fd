package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// shells are what examples/shell/lock.sh is for. On Debian sh is dash.
var shells = []string{"sh", "bash"}

// startScript starts a script that has sourced examples/shell/lock.sh.
func startScript(t *testing.T, d *harness.Daemon, shell, script string) *harness.RunProcess {
	t.Helper()
	source := ". " + filepath.Join(harness.Root(), "examples", "shell", "lock.sh") + "\n"
	return harness.StartProcess(t, d, shell, "-c", source+script)
}

// When lock has ended because its input did, no other host finds the lock taken.
func TestLockHasReleasedTheLockWhenItEnds(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	l := harness.StartProcess(t, d, harness.Program(t), "lock", "job")
	token := strings.TrimSpace(l.AwaitOutput("\n"))
	if n, err := strconv.ParseUint(token, 10, 64); err != nil || n != harness.Info(t, d, "job").Token {
		t.Errorf("printed %q; the token is %d", token, harness.Info(t, d, "job").Token)
	}
	if r.Exists(t.Context(), "job").Val() != 1 {
		t.Error("the lock is not in Redis")
	}
	l.CloseStdin()
	if code := l.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, l.Output.String())
	}
	if r.Exists(t.Context(), "job").Val() != 0 {
		t.Error("the lock is still in Redis")
	}
}

func TestScriptsExcludeEachOther(t *testing.T) {
	const rounds = 4
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "count"), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`
		set -eu
		cd %q
		for i in 1 2 3 4; do
			lock job
			mkdir critical
			read -r n <count
			echo "token $LOCK_TOKEN"
			echo $((n + 1)) >count
			rmdir critical
			unlock
		done`, dir)
	var scripts []*harness.RunProcess
	for _, shell := range shells {
		scripts = append(scripts, startScript(t, d, shell, script))
	}
	for i, s := range scripts {
		if code := s.Wait(); code != 0 {
			t.Errorf("%s ended with %d: %s", shells[i], code, s.Output.String())
		}
		last := uint64(0)
		for _, line := range strings.Fields(strings.ReplaceAll(s.Output.String(), "token ", "")) {
			token, err := strconv.ParseUint(line, 10, 64)
			if err != nil || token <= last {
				t.Errorf("%s printed the token %q after %d", shells[i], line, last)
			}
			last = token
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "count")); err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(rounds*len(shells)) {
		t.Errorf("counted to %q (%v), not to %d", text, err, rounds*len(shells))
	}
}

func TestScriptFindsWhyItHasNoLock(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	held, err := harness.Dial(t, d).Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Unlock()
	for _, shell := range shells {
		s := startScript(t, d, shell, `lock --wait 0 job; echo "status $?"; lock --lease 5m other && echo "token $LOCK_TOKEN"; unlock`)
		if code := s.Wait(); code != 0 {
			t.Errorf("%s ended with %d", shell, code)
		}
		harness.CheckContains(t, s.Output.String(), `the lock "job" is held`, "status 75\n", "token ")
	}
}

// The kernel closes the descriptors of a killed script, so its lock is free, or its place in
// the queue.
func TestKillOfAScriptFreesItsLock(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	c := harness.Dial(t, d)
	for _, shell := range shells {
		s := startScript(t, d, shell, `lock job; echo ready; read -r _`)
		s.AwaitOutput("ready")
		if _, err := c.TryLock(t.Context(), "job"); err == nil {
			t.Fatal("the script does not hold the lock")
		}
		s.Signal(syscall.SIGKILL)
		l, err := c.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		// A script that is killed while it waits does not get the lock later.
		waiting := startScript(t, d, shell, `echo $$; lock job; echo "got it"`)
		harness.Eventually(t, "the script waits", func() bool { return harness.Waiters(t, d, "job") == 1 })
		waiting.Signal(syscall.SIGKILL)
		harness.Eventually(t, "no script waits", func() bool { return harness.Waiters(t, d, "job") == 0 })
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
}

// A child of a killed script that is still at work keeps the lock.
func TestChildOfAKilledScriptKeepsItsLock(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	c := harness.Dial(t, d)
	fifo := filepath.Join(t.TempDir(), "work")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	work, err := os.OpenFile(fifo, os.O_RDWR, 0) // does not wait for a reader
	if err != nil {
		t.Fatal(err)
	}
	defer work.Close()
	s := startScript(t, d, "sh", fmt.Sprintf(`lock job; (exec <%q; echo ready; exec cat); echo never`, fifo)) // ready: the child has opened it
	s.AwaitOutput("ready")
	s.Signal(syscall.SIGKILL)
	if code := s.Wait(); code != 128+9 {
		t.Errorf("the script ended with %d", code)
	}
	if _, err := c.TryLock(t.Context(), "job"); err == nil {
		t.Error("the lock is free while cat runs")
	}
	work.Close() // ends cat
	l, err := c.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestLossOfItsLockEndsAScript(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	for _, shell := range shells {
		for _, tt := range []struct {
			trap, output string
			code         int
		}{
			{"", "", 128 + 15},
			{`trap 'unlock || echo "status $?"; exit 3' TERM`, "status 79\n", 3},
		} {
			s := startScript(t, d, shell, tt.trap+"\nset -e\nlock job; echo ready; while :; do sleep 0.05; done")
			s.AwaitOutput("ready")
			if got := d.Run("force-release", "job"); got.Code != 0 {
				t.Fatal(got.Stderr)
			}
			if code := s.Wait(); code != tt.code {
				t.Errorf("%s ended with %d, not %d: %s", shell, code, tt.code, s.Output.String())
			}
			harness.CheckContains(t, s.Output.String(), `"job"`, "lost", tt.output)
		}
	}
}
