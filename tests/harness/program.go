package harness

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Result is what a command of locksidecar left when it had ended.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a command of locksidecar as a client of the daemon and waits until it has ended. On a busy
// machine Redis may answer too late for a command that changes something. Then it is run again.
func (d *Daemon) Run(args ...string) (r Result) {
	d.t.Helper()
	Eventually(d.t, "Redis answers in time", func() bool {
		r = RunProgram(d.t, []string{"LOCKSIDECAR_SOCKET=" + d.Socket}, args...)
		return !strings.Contains(r.Stderr, "nothing was changed: Redis has not answered")
	})
	return r
}

// AsNobody returns a command of locksidecar as a client of the daemon, by a user who is neither root nor
// that of the daemon. Precondition: the test runs as root.
func (d *Daemon) AsNobody(args ...string) *exec.Cmd {
	d.t.Helper()
	// Other users cannot enter the directory of the program.
	dir := ShortDir(d.t)
	if err := os.Chmod(dir, 0o755); err != nil {
		d.t.Fatal(err)
	}
	program := filepath.Join(dir, "locksidecar")
	if err := linkFile(Program(d.t), program); err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.CommandContext(d.t.Context(), program, args...)
	cmd.Env = append(PlainEnv(), "LOCKSIDECAR_SOCKET="+d.Socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUID, Gid: nobodyUID}, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// RunProgram runs a command of locksidecar with variables added to the environment, and
// waits until it has ended.
func RunProgram(t testing.TB, env []string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, Program(t), args...)
	cmd.Env = append(PlainEnv(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("locksidecar %s did not end within %v\n%s%s", strings.Join(args, " "), Patience, stdout.Bytes(), stderr.Bytes())
	}
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return Result{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// PlainEnv returns the environment without settings of locksidecar that a developer may
// have made.
func PlainEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LOCKSIDECAR_") })
}
