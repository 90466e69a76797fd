package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// shells are what examples/shell/lock.sh is for. On Debian sh is dash. zsh is one if it is installed.
var shells = func() []string {
	all := []string{"sh", "bash"}
	if _, err := exec.LookPath("zsh"); err == nil {
		all = append(all, "zsh")
	}
	return all
}()

// startScript starts a script that has sourced examples/shell/lock.sh.
func startScript(t *testing.T, d *harness.Daemon, shell, script string) *harness.RunProcess {
	t.Helper()
	source := ". " + filepath.Join(harness.Root(), "examples", "shell", "lock.sh") + "\n"
	return harness.StartProcess(t, d, shell, "-c", source+script)
}

// A script has descriptors of its own, which it opens before or after it locks.
func TestLockTakesNoDescriptorOfItsScript(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c := harness.Dial(t, d)
	for _, shell := range shells {
		for _, tt := range []struct{ what, script string }{
			{"8 and 9 opened before", `exec 8>eight 9<nine; lock job`},
			{"8 and 9 opened after", `lock job; exec 8>eight 9<nine`},
			{"all but one opened before", `exec 3<nine 5<nine 6<nine 7<nine 8>eight 9<nine; lock job`},
		} {
			dir := t.TempDir()
			for file, text := range map[string]string{"eight": "", "nine": "from 9\n"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s := startScript(t, d, shell, fmt.Sprintf("set -eu; cd %q\n%s\n", dir, tt.script)+`
				echo held; read -r _ || :
				unlock
				echo "to 8" >&8
				read -r line <&9
				echo "read $line"
				lock job; unlock
				echo "again to 8" >&8`)
			s.AwaitOutput("held")
			if l, err := c.TryLock(t.Context(), "job"); err == nil {
				t.Errorf("%s, %s: the script does not hold the lock", shell, tt.what)
				_ = l.Unlock()
			}
			s.CloseStdin()
			if code := s.Wait(); code != 0 {
				t.Errorf("%s, %s: ended with %d: %s", shell, tt.what, code, s.Output.String())
			}
			harness.CheckContains(t, s.Output.String(), "read from 9\n")
			if text, err := os.ReadFile(filepath.Join(dir, "eight")); err != nil || string(text) != "to 8\nagain to 8\n" {
				t.Errorf("%s, %s: descriptor 8 received %q (%v)", shell, tt.what, text, err)
			}
		}
	}
}

// dash has ten descriptors. A script that has opened all of them gets no lock, and loses none of
// them.
func TestLockWithoutAFreeDescriptorIsRefused(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	if _, err := exec.LookPath("dash"); err != nil {
		t.Skip("there is no dash")
	}
	s := startScript(t, d, "dash", `
		for i in 3 4 5 6 7 8 9; do eval "exec $i>&1"; done
		lock job || echo "status $?"
		for i in 3 4 5 6 7 8 9; do eval "echo open $i >&$i"; done`)
	if code := s.Wait(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	harness.CheckContains(t, s.Output.String(), "the descriptors 3 to 9 are open", "status 69\n", "open 3\n", "open 7\n", "open 9\n")
}

// When lock has ended because its input did, no other host finds the lock taken.
func TestLockHasReleasedTheLockWhenItEnds(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
