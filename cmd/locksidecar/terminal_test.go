package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminalSession is a session on a pseudo-terminal to which the test types.
type terminalSession struct {
	t    *testing.T
	cmd  *exec.Cmd
	ptm  *os.File
	seen strings.Builder // all output so far
	from int             // where the next await begins to search
}

// onTerminal runs cmd as the leader of a session on a terminal of its own.
func onTerminal(t *testing.T, cmd *exec.Cmd) *terminalSession {
	t.Helper()
	ptm, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	// Not by Fd, after which reads would ignore their deadline.
	var n int
	raw, err := ptm.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	pts, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pts.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pts, pts, pts
	cmd.SysProcAttr.Setctty = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, unless the test failed
		ptm.Close()
	})
	return &terminalSession{t: t, cmd: cmd, ptm: ptm}
}

// interactiveShell starts a shell with job control, in which $run is locksidecar run.
func interactiveShell(t *testing.T, f *fakeSidecar) *terminalSession {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash on this host")
	}
	cmd := command(f)
	cmd.Path, cmd.Args = bash, []string{"bash", "--norc", "--noprofile", "-i"}
	cmd.Env = append(cmd.Env, "PS1=$ ", "TERM=dumb", "run="+os.Args[0]+" run", "HISTFILE=")
	return onTerminal(t, cmd)
}

func (s *terminalSession) typeKeys(keys string) {
	s.t.Helper()
	if _, err := s.ptm.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// await reads until the terminal shows text, after the text of the previous await.
func (s *terminalSession) await(text string) {
	s.t.Helper()
	if err := s.ptm.SetReadDeadline(time.Now().Add(eventTimeoutMS * time.Millisecond)); err != nil {
		s.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		if i := strings.Index(s.seen.String()[s.from:], text); i >= 0 {
			s.from += i + len(text)
			return
		}
		n, err := s.ptm.Read(buf)
		s.seen.Write(buf[:n])
		if err != nil && n == 0 {
			s.t.Fatalf("%v before %q was shown; the terminal shows\n%s", err, text, s.seen.String())
		}
	}
}

// foreground continues the stopped job with fg. The shell prints its command line.
func (s *terminalSession) foreground() {
	s.t.Helper()
	s.await("job -- ") // after "Stopped"
	s.typeKeys("fg\n")
	s.await("job -- ")
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// echoLine reads a line and prints it. Its output differs from the input that the terminal
// echoes.
const echoLine = `sh -c 'echo u""p; read x; echo "got:$x"'`

func TestCommandReadsFromTheTerminal(t *testing.T) {
	f := startFake(t)
	s := onTerminal(t, command(f, "run", "job", "--", "sh", "-c", `echo up; read x; echo "got:$x"`))
	s.await("up")
	s.typeKeys("hello\n")
	s.await("got:hello")
	if code := exitCodeOf(t, s.cmd.Wait()); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestCtrlCEndsCommandAndRunBySIGINT(t *testing.T) {
	f := startFake(t)
	s := onTerminal(t, command(f, "run", "job", "--", "sh", "-c", `echo up; read x`))
	s.await("up")
	s.typeKeys(ctrlC)
	if code := exitCodeOf(t, s.cmd.Wait()); code != -int(unix.SIGINT) {
		t.Errorf("ended with %d, want signal SIGINT, as shells expect it of a loop's command", code)
	}
	<-f.released
}

func TestCtrlZWithoutAShellContinuesTheCommand(t *testing.T) {
	f := startFake(t)
	s := onTerminal(t, command(f, "run", "job", "--", "sh", "-c", `echo up; read x; echo "got:$x"`))
	s.await("up")
	s.typeKeys(ctrlZ)
	s.typeKeys("hello\n")
	s.await("got:hello")
	if code := exitCodeOf(t, s.cmd.Wait()); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestCtrlZAndFgInAShell(t *testing.T) {
	f := startFake(t)
	s := interactiveShell(t, f)
	s.typeKeys("$run job -- env " + signalProbeEnv + "=it ${run% run}\n")
	s.await("up")
	for range 3 {
		s.typeKeys(ctrlZ)
		s.await("Stopped")
		s.foreground()
		s.await("it CONT") // now it has the terminal again
	}
	s.typeKeys("hello\n")
	s.await("it got:hello")
	s.typeKeys("exit 0\n")
	if code := exitCodeOf(t, s.cmd.Wait()); code != 0 {
		t.Errorf("the shell's exit code is %d", code)
	}
}

func TestBackgroundJobStopsWhenItReads(t *testing.T) {
	f := startFake(t)
	s := interactiveShell(t, f)
	s.typeKeys("set -o notify\n") // report stopped jobs at once
	s.typeKeys("$run job -- " + echoLine + " &\n")
	s.await("Stopped")
	s.foreground()
	s.typeKeys("hello\n")
	s.await("got:hello")
}

func TestCommandInAPipelineGetsTheTerminalWhenItReads(t *testing.T) {
	f := startFake(t)
	s := interactiveShell(t, f)
	s.typeKeys("$run job -- " + echoLine + " | sed 's/^/piped:/'\n")
	s.await("\npiped:up")
	s.typeKeys("hello\n")
	s.await("piped:got:hello")
}

func TestCtrlCEndsTheScriptThatRunIsPartOf(t *testing.T) {
	f := startFake(t)
	s := interactiveShell(t, f)
	s.typeKeys(`bash -c '$run job -- sh -c "echo u\"\"p; exec sleep 1000"; echo went"" on'; echo co""de $?` + "\n")
	s.await("up")
	s.typeKeys(ctrlC)
	s.typeKeys("echo en\"\"d\n")
	s.await("end")
	if strings.Contains(s.seen.String(), "went on") {
		t.Errorf("the script went on:\n%s", s.seen.String())
	}
}
