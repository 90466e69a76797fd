package harness

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A RunProcess is a process that runs `locksidecar run` with a shell script, or a shell or another
// program that uses locksidecar.
type RunProcess struct {
	Output Output // standard output and standard error

	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{} // closed when the process has ended
}

// StartRun starts `locksidecar run` with flags, which acquires a lock and runs the script.
func StartRun(t testing.TB, d *Daemon, name, script string, flags ...string) *RunProcess {
	t.Helper()
	args := append([]string{"run"}, flags...)
	return StartProcess(t, d, Program(t), append(args, name, "--", "sh", "-c", script)...)
}

// StartProcess starts a program, which finds the socket of the daemon in its environment and
// locksidecar in its PATH.
func StartProcess(t testing.TB, d *Daemon, program string, args ...string) *RunProcess {
	t.Helper()
	r := &RunProcess{t: t, exited: make(chan struct{})}
	r.cmd = exec.Command(program, args...)
	r.cmd.Env = append(PlainEnv(), "LOCKSIDECAR_SOCKET="+d.Socket, "PATH="+filepath.Dir(Program(t))+":"+os.Getenv("PATH"))
	r.cmd.Stdout, r.cmd.Stderr = &r.Output, &r.Output
	// Processes that survive a killed run may keep the output open, and Wait with it.
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

// PID returns the process id of run.
func (r *RunProcess) PID() int { return r.cmd.Process.Pid }

// Signal sends a signal to run, not to its script.
func (r *RunProcess) Signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// AwaitOutput waits until the script has printed s and returns all output.
func (r *RunProcess) AwaitOutput(s string) string {
	r.t.Helper()
	Eventually(r.t, fmt.Sprintf("the script prints %q", s), func() bool {
		select {
		case <-r.exited:
			if !r.Output.Contains(s) {
				r.t.Fatalf("run ended with %d:\n%s", r.cmd.ProcessState.ExitCode(), r.Output.String())
			}
		default:
		}
		return r.Output.Contains(s)
	})
	return r.Output.String()
}

// Write writes to the standard input of the script.
func (r *RunProcess) Write(text string) {
	r.t.Helper()
	if _, err := io.WriteString(r.stdin, text); err != nil {
		r.t.Fatal(err)
	}
}

// CloseStdin closes the standard input of the script.
func (r *RunProcess) CloseStdin() { r.stdin.Close() }

// Wait waits until run has ended and returns its exit code; 128 + n if signal n ended it.
func (r *RunProcess) Wait() int {
	r.t.Helper()
	Eventually(r.t, "run ends", func() bool {
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

// ChildPID waits until the script has printed "ready" and returns the number that it has
// printed after "pid ".
func (r *RunProcess) ChildPID() int {
	r.t.Helper()
	r.AwaitOutput("ready")
	for line := range strings.Lines(r.Output.String()) {
		if pid, ok := strings.CutPrefix(strings.TrimSpace(line), "pid "); ok {
			n, err := strconv.Atoi(pid)
			if err != nil {
				r.t.Fatal(err)
			}
			return n
		}
	}
	r.t.Fatalf("no pid in %q", r.Output.String())
	panic("unreachable")
}
