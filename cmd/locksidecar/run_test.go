package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
)

// mainEnv makes the test binary run as locksidecar.
const mainEnv = "LOCKSIDECAR_TEST_MAIN"

// journalEnv has the path at which that locksidecar looks for the journal.
const journalEnv = "LOCKSIDECAR_TEST_JOURNAL"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" || os.Args[0] == launcher || os.Args[0] == guardName {
		os.Unsetenv(mainEnv)
		journalSocket = cmp.Or(os.Getenv(journalEnv), journalSocket)
		main()
	}
	if name := os.Getenv(signalProbeEnv); name != "" {
		os.Exit(signalProbe(name))
	}
	if os.Getenv(inheritedEnv) != "" {
		keepWhatTheRuntimeHas()
		os.Exit(0)
	}
	if signal.Ignored(syscall.SIGHUP) {
		// Under nohup: run leaves an ignored signal ignored. A caught one has its default
		// action in the programs that the tests start.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	goleak.VerifyTestMain(m)
}

// program is a running locksidecar.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

func command(f *fakeSidecar, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1", "LOCKSIDECAR_SOCKET="+f.path,
		"GORACE=atexit_sleep_ms=0")
	// Without the terminal of the person who tests, so that job control does not stop the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func start(t *testing.T, f *fakeSidecar, args ...string) *program {
	t.Helper()
	return startProgram(t, command(f, args...))
}

// startProgram starts cmd, whose stderr it keeps unless the test reads it.
func startProgram(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{t: t, cmd: cmd}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.stderr
	}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, unless the test failed
	})
	return p
}

// line returns the next line of the output.
func (p *program) line() string {
	p.t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		code := exitCodeOf(p.t, p.cmd.Wait())
		p.t.Fatalf("output ended: %v; exit code %d, stderr: %s", err, code, p.stderr.String())
	}
	return strings.TrimSpace(s)
}

// isSilent waits until the program has printed something, or has ended without.
func (p *program) isSilent() bool {
	_, err := p.out.Peek(1)
	return err == io.EOF
}

// pid reads the next line, a pid, and returns a pidfd of that process.
func (p *program) pid() (pidfd int) {
	p.t.Helper()
	line := p.line()
	pid, err := strconv.Atoi(line)
	if err != nil {
		p.t.Fatalf("%q is not a pid", line)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func (p *program) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// wait reads the output to its end and returns the exit code; −n: signal n.
func (p *program) wait() (code int, rest string) {
	p.t.Helper()
	text, err := io.ReadAll(p.out)
	if err != nil {
		p.t.Fatal(err)
	}
	return exitCodeOf(p.t, p.cmd.Wait()), string(text)
}

func exitCodeOf(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit == nil {
		return 0
	}
	if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
		return -int(status.Signal())
	}
	return exit.ExitCode()
}

// hasEnded reports whether a process ends within ms.
func hasEnded(t *testing.T, pidfd, ms int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, ms)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

// eventTimeoutMS bounds the wait for an event that must happen. It measures no speed.
const eventTimeoutMS = 30_000

func expectExit(t *testing.T, p *program, want int, message string) (output string) {
	t.Helper()
	code, rest := p.wait()
	if code != want || !strings.Contains(p.stderr.String(), message) {
		t.Errorf("exit code %d, stderr %q; want %d and %q", code, p.stderr.String(), want, message)
	}
	return rest
}

func TestRunReturnsTheExitCodeAndReleasesTheLock(t *testing.T) {
	notExecutable := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(notExecutable, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		command []string
		code    int
		stderr  string
	}{
		{"success", []string{"true"}, 0, ""},
		{"failure", []string{"sh", "-c", "exit 7"}, 7, ""},
		{"a signal", []string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startFake(t)
			p := start(t, f, append([]string{"run", "job", "--"}, tt.command...)...)
			expectExit(t, p, tt.code, tt.stderr)
			<-f.released
			if a := <-f.confirms; a.Name != "job" || p.stderr.String() != "" {
				t.Errorf("confirmed %+v, and printed %q", a, p.stderr.String())
			}
		})
	}
	for _, tt := range []struct {
		name, command string
		code          int
		stderr        string
	}{
		{"not found", "/nonexistent/command", 127, "cannot run /nonexistent/command: no such file"},
		{"not in PATH", "no-such-command-anywhere", 127, "executable file not found"},
		{"not executable", notExecutable, 126, "permission denied"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startFake(t)
			expectExit(t, start(t, f, "run", "job", "--", tt.command), tt.code, tt.stderr)
			select {
			case <-f.acquired:
				t.Error("took a lock for a command that cannot run")
			default:
			}
		})
	}
}

func TestRunWarnsIfTheReleaseIsNotConfirmed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		onConfirm protocol.Code
		stderr    string
	}{
		{protocol.Denied, "Redis refused the release"},
		{protocol.Unsupported, "upgrade it"},
		{noAnswer, "no confirmation within 2s"},
	} {
		f := startFake(t, func(f *fakeSidecar) { f.onConfirm = tt.onConfirm })
		p := start(t, f, "run", "job", "--", "sh", "-c", "exit 7")
		expectExit(t, p, 7, tt.stderr)
		if text := p.stderr.String(); !strings.HasPrefix(text, `locksidecar: warning: cannot confirm the release of "job": `) ||
			!strings.Contains(text, "the lock is released here") || strings.Count(text, "\n") != 1 {
			t.Errorf("printed %q", text)
		}
		<-f.released
		<-f.confirms
	}
}

func TestSignalEndsTheWaitForTheConfirmation(t *testing.T) {
	f := startFake(t, func(f *fakeSidecar) { f.onConfirm = noAnswer })
	p := start(t, f, "run", "job", "--", "true")
	<-f.confirms
	p.signal(syscall.SIGUSR1) // would be forwarded to the command, which has ended
	p.signal(syscall.SIGTERM)
	expectExit(t, p, 0, "the wait was ended by signal 15 (terminated)")
}

func TestRunPassesNameAndTokenToTheCommand(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "job", "sh", "-c", `echo "$LOCKSIDECAR_NAME $LOCKSIDECAR_TOKEN $*"`, "sh", "--wait", "x")
	if got := expectExit(t, p, 0, ""); got != "job 4242 --wait x\n" {
		t.Errorf("the command printed %q", got)
	}
}

func TestRunTakesPermits(t *testing.T) {
	f := startFake(t)
	for _, tt := range []struct {
		args    []string
		permits uint16
		printed string
	}{
		{[]string{"--of", "10", "api"}, 1, "api 4242 permits 1"},
		{[]string{"--permits", "10", "--of=10", "--lease", "90s", "api", "--max-hold=2m", "--crash-delay", "3s", "--wait", "0"}, 10, "api 4242 permits 10"},
	} {
		p := startProgram(t, withEnv(command(f, append(append([]string{"run"}, tt.args...), "--", "sh", "-c", printsPermits)...), permitsEnv+"=7"))
		if got := expectExit(t, p, 0, ""); got != tt.printed+"\n" {
			t.Errorf("%q: the command printed %q", tt.args, got)
		}
		a := <-f.acquired
		if a.Name != "api" || a.Permits != tt.permits || a.Of != 10 {
			t.Errorf("%q: acquired with %+v", tt.args, a)
		}
		if tt.permits == 10 && (a.WaitMS != 0 || a.LeaseMS != 90_000 || a.MaxHoldMS != 120_000 || a.CrashDelayMS != 3_000) {
			t.Errorf("%q: acquired with %+v", tt.args, a)
		}
		if c := <-f.confirms; c.Name != "api" {
			t.Errorf("confirmed %+v", c)
		}
	}
	// A lock inside of permits has none.
	p := startProgram(t, withEnv(command(f, "run", "job", "--", "sh", "-c", printsPermits), permitsEnv+"=7"))
	if got := expectExit(t, p, 0, ""); got != "job 4242 permits \n" {
		t.Errorf("the command printed %q", got)
	}
}

func TestRunTakesAReadWriteLock(t *testing.T) {
	f := startFake(t)
	for flag, shared := range map[string]bool{"--rw": false, "--shared": true} {
		for _, wait := range []int64{protocol.Forever, 0} {
			args := []string{"run", flag, "--fair", "catalog"}
			if wait == 0 {
				args = append(args, "--wait=0")
			}
			p := start(t, f, append(args, "--", "sh", "-c", `echo "$LOCKSIDECAR_NAME $LOCKSIDECAR_TOKEN"`)...)
			if got := expectExit(t, p, 0, ""); got != "catalog 4242\n" {
				t.Errorf("%s: the command printed %q", flag, got)
			}
			if a := <-f.readWrites; a.Name != "catalog" || a.Shared != shared || !a.Fair || a.WaitMS != wait {
				t.Errorf("%s: acquired with %+v", flag, a)
			}
		}
	}
}

const printsPermits = `echo "$LOCKSIDECAR_NAME $LOCKSIDECAR_TOKEN permits $LOCKSIDECAR_PERMITS"`

func withEnv(cmd *exec.Cmd, variables ...string) *exec.Cmd {
	cmd.Env = append(cmd.Env, variables...)
	return cmd
}

func TestLossOfPermitsEndsTheCommand(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "--permits=2", "--of=3", "api", "--", "sh", "-c", "echo ready; sleep 600")
	p.line()
	f.event(t, protocol.LostEvent{Hold: fakeHold, Reason: protocol.ByForce})
	expectExit(t, p, exitLost, `the hold of 2 of the permits of "api" is lost: an operator ended it; other clients may have them; ending the command`)

	f = startFake(t, func(f *fakeSidecar) { f.lease = 12 * time.Second })
	p = start(t, f, "run", "--of=3", "api", "--", "sleep", "600")
	expectExit(t, p, exitLost, `the hold of "api" ends in `)
}

func TestRunSendsItsOptionsWithTheAcquire(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "--lease", "90s", "--fair", "job", "--max-hold=2m", "--crash-delay", "3s", "--keep", "50s", "--", "true")
	expectExit(t, p, 0, "")
	a := <-f.acquired
	if a.Name != "job" || a.LeaseMS != 90_000 || a.MaxHoldMS != 120_000 || a.CrashDelayMS != 3_000 || a.KeepMS != 50_000 || !a.Fair || a.WaitMS != protocol.Forever {
		t.Errorf("acquired with %+v", a)
	}
	p = start(t, f, "run", "--wait", "0", "job", "--", "true")
	expectExit(t, p, 0, "")
	if a := <-f.acquired; a.WaitMS != 0 {
		t.Errorf("--wait 0 acquired with %+v", a)
	}
}

func TestRunReportsWhyTheLockWasNotAcquired(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"--wait", "0", nameHeld}, 75, "is held by another process or host"},
		{[]string{"--wait", "1m", nameHeld}, 75, "was not free within 1m0s"},
		{[]string{nameDenied}, 77, "does not permit"},
		{[]string{nameNoRedis}, 69, "cannot be reached"},
		{[]string{"--wait=-1s", "job"}, 64, "must not be negative"},
		{[]string{"--lease=-1s", "job"}, 64, "--lease must not be negative"},
		{[]string{"--wiat", "1s", "job"}, 64, "--wiat"},
		{[]string{"--lease", "1ms", "job"}, 64, "--lease 1ms: choose 50ms to 720h0m0s"},
		{[]string{"--lease", "1000h", "job"}, 64, "choose 50ms to 720h0m0s"},
		{[]string{"--max-hold", "1000h", "job"}, 64, "--max-hold 1000h0m0s: choose"},
		{[]string{"--crash-delay", "2h", "job"}, 64, "--crash-delay 2h0m0s: choose 0s to 1h0m0s"},
		{[]string{"--keep", "25h", "job"}, 64, "--keep 25h0m0s: choose 0s to 24h0m0s"},
		{[]string{"--permits", "2", "--of", "10", "--wait", "0", nameHeld}, 75, `cannot get 2 of the 10 permits of "held by another host" now; locksidecar who 'held by another host' shows who has them`},
		{[]string{"--of", "10", "--wait", "1m", nameHeld}, 75, `cannot get 1 of the 10 permits of "held by another host" within 1m0s; locksidecar who`},
		{[]string{"--of", "10", nameDenied}, 77, "does not permit"},
		{[]string{"--of", "10", nameNoRedis}, 69, "cannot be reached"},
		{[]string{"--permits", "2", "api"}, 64, "--permits is for a semaphore: add --of"},
		{[]string{"--rw", "--shared", "api"}, 64, "--rw takes the lock to write, and --shared to read: leave one out"},
		{[]string{"--rw", "--of", "2", "api"}, 64, "a name is one of them"},
		{[]string{"--shared", "--permits", "2", "api"}, 64, "a name is one of them"},
		{[]string{"--shared", "--keep", "2s", "api"}, 64, "--keep is for exclusive locks"},
		{[]string{"--of", "0", "api"}, 64, "--of 0: choose 1 to 65535"},
		{[]string{"--of", "65536", "api"}, 64, "--of 65536: choose 1 to 65535"},
		{[]string{"--permits", "0", "--of", "10", "api"}, 64, "--permits 0: choose 1 to 10, which is --of"},
		{[]string{"--permits", "11", "--of", "10", "api"}, 64, "--permits 11: choose 1 to 10, which is --of"},
		{[]string{"--of", "10", "--keep", "50s", "api"}, 64, "--keep is for locks, and permits end with their hold; leave it or --of out"},
		{[]string{"--of", "10", "--fair", "api"}, 64, "--fair is for locks, and permits are always granted in the order of their requests; leave it out"},
		{[]string{strings.Repeat("x", 513)}, 64, "at most 512"},
		{[]string{""}, 64, "is empty"},
	} {
		f := startFake(t)
		p := start(t, f, append(append([]string{"run"}, tt.args...), "--", "echo", "must not run")...)
		if got := expectExit(t, p, tt.code, tt.stderr); got != "" {
			t.Errorf("%q ran without the lock", tt.args)
		}
	}
}

func TestRunNamesTheSocketIfNoSidecarListens(t *testing.T) {
	t.Parallel()
	f := &fakeSidecar{path: filepath.Join(t.TempDir(), "none.sock")}
	expectExit(t, start(t, f, "run", "job", "--", "true"), 69, f.path)
}

func TestRunReportsWhyItWaits(t *testing.T) {
	t.Parallel()
	const away = "Redis at nowhere refuses connections"
	ours := protocol.HolderRow{PID: int64(os.Getpid()), Cmd: "the test", Permits: 2}
	other := protocol.HolderRow{PID: 1 << 22, Cmd: "other", Permits: 1}
	reader, parent := protocol.HolderRow{PID: 1 << 22, Shared: true}, protocol.HolderRow{PID: int64(os.Getpid()), Cmd: "the test", Shared: true}
	for _, tt := range []struct {
		redis   string
		isHeld  bool
		holders []protocol.HolderRow
		permits int // 0: a lock
		want    string
	}{
		{"ok", true, []protocol.HolderRow{reader, parent}, 0, "(the test) reads under it and has started this command"},
		{away, false, nil, 0, `waiting for the lock "waits forever": ` + away},
		{"ok", true, nil, 0, "(the test) holds it and has started this command"}, // as a run inside of a run
		{away, true, nil, 0, "(the test) holds it and has started this command"}, // its Redis is not what it waits for
		{away, false, nil, 1, `waiting for 1 of the 3 permits of "waits forever": ` + away},
		{"ok", true, []protocol.HolderRow{other, ours}, 2, "(the test) has 2 of them and has started this command"},
		{away, true, []protocol.HolderRow{other, ours}, 1, away}, // the other holder may release
	} {
		f := startFake(t, func(f *fakeSidecar) {
			f.isFree, f.holders, f.redis = !tt.isHeld, tt.holders, func() string { return tt.redis }
		})
		args := []string{"run", nameWait, "--", "echo", "must not run"}
		if tt.permits != 0 {
			args = slices.Insert(args, 1, "--of=3", fmt.Sprint("--permits=", tt.permits))
		}
		if len(tt.holders) > 0 && tt.permits == 0 {
			args = slices.Insert(args, 1, "--rw")
		}
		p := &program{t: t, cmd: command(f, args...)}
		stderr, err := p.cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(stderr).ReadString('\n')
		if err != nil || !strings.Contains(line, tt.want) {
			t.Errorf("printed %q, %v; want %q", line, err, tt.want)
		}
		p.signal(syscall.SIGTERM)
		_ = p.cmd.Wait() // ended by the signal
	}
}

// A sidecar that listens and does not answer is stopped or overloaded: run waits for it as for
// the lock.
func TestRunWaitsForASidecarThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path) // it never accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &program{t: t, cmd: command(&fakeSidecar{path: path}, "run", "job", "--", "true")}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || !strings.Contains(line, "; waiting for it") {
		t.Errorf("printed %q, %v", line, err)
	}
	p.signal(syscall.SIGTERM)
	if code := exitCodeOf(t, p.cmd.Wait()); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
}

func TestSignalEndsTheWaitForTheLock(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		f := startFake(t)
		p := start(t, f, "run", nameWait, "--", "echo", "must not run")
		<-f.acquired
		p.signal(sig)
		if got := expectExit(t, p, 128+int(sig), ""); got != "" {
			t.Error("ran without the lock")
		}
		<-f.closed
	}
}

func TestSignalsReachTheWholeGroup(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "job", "--", "env", signalProbeEnv+"=parent", os.Args[0])
	both := func(word string) {
		t.Helper()
		got := []string{p.line(), p.line()}
		slices.Sort(got)
		if !slices.Equal(got, []string{"child " + word, "parent " + word}) {
			t.Errorf("got %q, want %q of both", got, word)
		}
	}
	both("up")
	p.signal(syscall.SIGUSR1)
	both("USR1")
	p.signal(syscall.SIGHUP)
	both("HUP")
	p.signal(syscall.SIGTERM)
	both("TERM")
	expectExit(t, p, 3, "")
	<-f.released
}

// ignoresSIGTERM starts a process that ignores SIGTERM, prints its pid and waits.
const ignoresSIGTERM = `sh -c 'trap "" TERM; echo $$; exec sleep 1000' & trap '' TERM; wait`

func TestLostLockEndsTheWholeGroup(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "--kill-after", "20ms", "job", "--", "sh", "-c", ignoresSIGTERM)
	pidfd := p.pid()
	f.event(t, protocol.LostEvent{Hold: fakeHold, Reason: protocol.Stolen})
	expectExit(t, p, 79, "name is in its key in Redis")
	if !hasEnded(t, pidfd, eventTimeoutMS) {
		t.Error("a process of the group goes on without the lock")
	}
}

func TestLostLockGivesTheCommandTimeToEnd(t *testing.T) {
	for reason, want := range map[protocol.Reason]string{
		protocol.ByForce: "an operator ended it",
		protocol.Expired: "without a renewal", // given up an hour before the deadline: Redis refuses to renew it
	} {
		f := startFake(t)
		p := start(t, f, "run", "--kill-after", "1h", "job", "--", "env", signalProbeEnv+"=it", os.Args[0])
		p.line()
		f.event(t, protocol.LostEvent{Hold: fakeHold, Reason: reason})
		if rest := expectExit(t, p, 79, want); !strings.HasSuffix(rest, "it TERM\n") {
			t.Errorf("%s: printed %q", reason, rest)
		}
	}
}

func TestLockThatIsNotRenewedEndsTheCommandBeforeItsDeadline(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"watchdog": {"run", "job", "--", "sh", "-c", ignoresSIGTERM},
		"lease":    {"run", "--lease", "300ms", "job", "--", "sh", "-c", ignoresSIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			var f *fakeSidecar
			var p *program
			for lease := 8 * time.Second; ; lease *= 2 { // on a busy host, the command may start later than that
				f = startFake(t, func(f *fakeSidecar) { f.lease = lease })
				if p = start(t, f, args...); !p.isSilent() {
					break
				}
			}
			pidfd := p.pid()
			f.drop() // the sidecar is gone, too
			expectExit(t, p, 79, "is not renewed; ending the command")
			if !hasEnded(t, pidfd, eventTimeoutMS) {
				t.Error("a process of the group goes on without the lock")
			}
		})
	}
}

func TestCommandThatWasEndedBeforeTheLossIsReported(t *testing.T) {
	t.Parallel()
	f := startFake(t, func(f *fakeSidecar) { f.lease = 12 * time.Second })
	p := start(t, f, "run", "job", "--", "sleep", "600")
	expectExit(t, p, 79, "is not renewed; ending the command")
	if r := <-f.released; r.Hold != fakeHold || !r.CutShort {
		t.Errorf("released: %+v", r)
	}
}

func TestMaxHoldEndsTheCommandInTime(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "--max-hold", "200ms", "job", "--", "sh", "-c", ignoresSIGTERM)
	expectExit(t, p, 79, "ending the command")
	if r := <-f.released; r.CutShort {
		t.Error("the end of max_hold was reported as a loss")
	}
}

func TestKillOfRunKillsTheWholeGroup(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "job", "--", "sh", "-c", ignoresSIGTERM)
	pidfd := p.pid()
	p.signal(syscall.SIGKILL)
	if !hasEnded(t, pidfd, eventTimeoutMS) {
		t.Error("what the command has started outlives run, and with it the lock")
	}
	<-f.closed
	_ = p.cmd.Wait() // killed
}

// Recipes with flock use descriptor 200, or 9; sudo and daemons close all descriptors above 2.
func TestKillOfRunKillsACommandThatReusesDescriptors(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "job", "--", "bash", "-c",
		`for fd in $(seq 3 300); do eval "exec $fd>/dev/null"; done; trap "" TERM; (trap "" TERM; echo $BASHPID; exec sleep 1000) & wait`)
	pidfd := p.pid()
	p.signal(syscall.SIGKILL)
	if !hasEnded(t, pidfd, eventTimeoutMS) {
		t.Error("what the command has started outlives run, and with it the lock")
	}
	<-f.closed
	_ = p.cmd.Wait() // killed
}

func TestCommandInheritsOnlyTheDescriptorsOfTheUser(t *testing.T) {
	f := startFake(t)
	file, err := os.Open(writeFile(t, "of-the-user", "text of the user"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const list = `cat <&3; ls -m /proc/$$/fd`
	plain := exec.Command("sh", "-c", list)
	under := command(f, "run", "job", "--", "sh", "-c", list)
	var out [2]string
	for i, cmd := range []*exec.Cmd{plain, under} {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = []*os.File{file}
		text, err := cmd.Output()
		if code := exitCodeOf(t, err); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		out[i] = string(text)
	}
	if out[0] != out[1] || !strings.HasPrefix(out[0], "text of the user") {
		t.Errorf("under run, the command printed\n%s\nand without\n%s", out[1], out[0])
	}
}

// printGuard prints the pid of the guard of the run that started the shell.
const printGuard = `ps -o pid=,args= --ppid $PPID | sed -n 's/^ *\([0-9]*\) locksidecar-guard$/\1/p'`

func TestGuardEndsWithRun(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "job", "--", "sh", "-c", printGuard)
	guard := p.line()
	expectExit(t, p, 0, "")
	if _, err := os.Stat("/proc/" + guard); err == nil {
		t.Errorf("the guard %s is there", guard)
	}
}

// inheritedEnv makes the test binary run keepWhatTheRuntimeHas.
const inheritedEnv = "LOCKSIDECAR_TEST_INHERITED"

// keepWhatTheRuntimeHas does what a guard does, in a process in which the runtime has descriptors
// of its own: timers make it open them. The second timer crashes the process if they are closed.
func keepWhatTheRuntimeHas() {
	<-time.After(time.Millisecond)
	closeInherited(3)
	<-time.After(time.Millisecond)
	os.Stdout.WriteString("closed\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// A guard closes the files of the user, and runs on.
func TestGuardClosesOnlyWhatItInherited(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := command(&fakeSidecar{})
	cmd.Env = append(os.Environ(), inheritedEnv+"=1")
	cmd.ExtraFiles = []*os.File{w}
	p := startProgram(t, cmd)
	w.Close()
	if line := p.line(); line != "closed" {
		t.Errorf("printed %q", line)
	}
	if n, err := r.Read(make([]byte, 1)); err != io.EOF { // blocks while the process has the other end
		t.Errorf("read %d bytes, %v", n, err)
	}
	p.stdin.Close()
	expectExit(t, p, 0, "")
}

// Without a guard, the kernel would not kill the group of a run that is killed.
func TestRunStartsAnotherGuardWhenItsGuardDies(t *testing.T) {
	f := startFake(t)
	cmd := command(f, "run", "job", "--", "sh", "-c", printGuard+"; "+ignoresSIGTERM)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stderr.(*os.File).SetReadDeadline(time.Now().Add(eventTimeoutMS * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, cmd)
	guard := p.pid()
	pidfd := p.pid()
	if err := unix.PidfdSendSignal(guard, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stderr).ReadString('\n'); err != nil || !strings.Contains(line, "started another one") {
		t.Errorf("printed %q, %v", line, err)
	}
	p.signal(syscall.SIGKILL)
	if !hasEnded(t, pidfd, eventTimeoutMS) {
		t.Error("a process of the group outlives run, and with it the lock")
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	}
	<-f.closed
	_ = p.cmd.Wait() // killed
}

func TestProcessesLeftInTheGroupEndBeforeTheRelease(t *testing.T) {
	left := make(chan int, 1)
	alive := make(chan bool, 1)
	f := startFake(t, func(f *fakeSidecar) {
		f.onRelease = func() { alive <- !hasEnded(t, <-left, 0) }
	})
	p := start(t, f, "run", "--kill-after", "20ms", "job", "--", "sh", "-c",
		`sh -c 'trap "" TERM; echo $$; exec sleep 1000' & read go; exit 5`)
	left <- p.pid()
	p.stdin.Close()
	expectExit(t, p, 5, "")
	if <-alive {
		t.Error("the lock was released while a process of the group was running")
	}
}

func TestProcessInAnotherSessionGoesOn(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("no setsid on this host")
	}
	f := startFake(t)
	p := start(t, f, "run", "job", "--", "sh", "-c",
		`setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' & read go; exit 0`)
	daemon := p.pid()
	p.stdin.Close()
	expectExit(t, p, 0, "")
	if hasEnded(t, daemon, 0) {
		t.Error("it was ended with the command's group")
	}
	if err := unix.PidfdSendSignal(daemon, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
}

func TestStoppedCommandIsContinuedWithRun(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "run", "job", "--", "sh", "-c", `echo $$; kill -STOP $$; echo on; exit 4`)
	pid, err := strconv.Atoi(p.line())
	if err != nil {
		t.Fatal(err)
	}
	awaitStopped(t, pid)
	// Run may not have noticed the stop yet, and only run continues the command.
	p.signal(syscall.SIGCONT)
	if got := p.line(); got != "on" {
		t.Errorf("printed %q", got)
	}
	expectExit(t, p, 4, "")
}

// awaitStopped returns when the process is in state T.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	for t.Context().Err() == nil {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "T") {
			return
		}
	}
}
