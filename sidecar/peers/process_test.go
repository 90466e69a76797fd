package peers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const anyDescriptor = 1 << 20

// A pid alone does not identify a process: the pidfd inode or the start time has to be the same,
// too.
func TestReusedPIDIsNotTheClient(t *testing.T) {
	type p = state.Process
	for _, c := range []struct {
		what     string
		was, now p
		want     State
	}{
		{"the same pidfd", p{Pidfd: 7, Start: 1}, p{Pidfd: 7, Start: 1}, Watched},
		{"the same pidfd, no /proc", p{Pidfd: 7}, p{Pidfd: 7}, Watched},
		{"the same pidfd, no /proc now", p{Pidfd: 7, Start: 1}, p{Pidfd: 7}, Watched},
		{"another pidfd", p{Pidfd: 7, Start: 1}, p{Pidfd: 8, Start: 1}, Ended},
		{"another pidfd, no /proc", p{Pidfd: 7}, p{Pidfd: 8}, Ended},
		{"the same start, Linux before 6.9", p{Start: 1}, p{Start: 1}, Watched},
		{"another start, Linux before 6.9", p{Start: 1}, p{Start: 2}, Ended},
		{"no /proc now", p{Start: 1}, p{}, Unproven},
		{"no /proc before", p{}, p{Start: 1}, Unproven},
		{"no /proc before, and the pidfd only now", p{}, p{Pidfd: 7, Start: 1}, Unproven},
		{"the pidfd only before", p{Pidfd: 7}, p{Start: 1}, Unproven},
		{"nothing", p{}, p{}, Unproven},
	} {
		if got := Compare(c.was, c.now); got != c.want {
			t.Errorf("%s: %v then and %v now is %d, want %d", c.what, c.was, c.now, got, c.want)
		}
	}
}

// A process with the same pid and start time may have executed another program, and then no part of it
// knows the locks of the former one. Whatever is not known says nothing.
//
// Shows docs/guarantees.md: The process executes another program.
func TestExecIsFoundByWhatOnlyExecChanges(t *testing.T) {
	type program = state.Program
	p := func(o state.Origin, text, stack uint16) program { return program{Origin: o, Text: text, Stack: stack} }
	for _, c := range []struct {
		what     string
		was, now program
		want     bool
	}{
		{"the same", p(state.Executed, 3, 5), p(state.Executed, 3, 5), false},
		{"a forked process", p(state.Forked, 3, 5), p(state.Forked, 3, 5), false},
		{"a forked process executes the same program", p(state.Forked, 3, 0), p(state.Executed, 3, 0), true},
		{"other text", p(state.Executed, 3, 0), p(state.Executed, 4, 0), true},
		{"other addresses", p(state.Executed, 3, 5), p(state.Executed, 3, 6), true},
		{"addresses are not shown any more", p(state.Executed, 3, 5), p(state.Executed, 3, 0), false},
		{"addresses were not shown", p(state.Executed, 3, 0), p(state.Executed, 3, 5), false},
		{"no /proc now", p(state.Forked, 3, 5), program{}, false},
		{"no /proc before", program{}, p(state.Executed, 3, 5), false},
	} {
		if got := isAnother(c.was, c.now); got != c.want {
			t.Errorf("%s: %v then and %v now has executed another program: %v", c.what, c.was, c.now, got)
		}
	}
}

// Shows docs/guarantees.md: The process executes another program.
func TestProcessThatExecutesAnotherProgramIsRecognized(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo runs; read line; exec cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	pid := int64(cmd.Process.Pid)
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// The kernel has named a new program before it has its memory: it runs when it writes.
	awaitOutput := func(text string) {
		t.Helper()
		if _, err := io.ReadFull(out, make([]byte, len(text))); err != nil {
			t.Fatal(err)
		}
	}
	awaitOutput("runs\n")
	was := ProcessOf(fd, pid)
	if was.Program.Origin != state.Executed || was.Program.Text == 0 {
		t.Fatalf("what is known of its program: %+v", was.Program)
	}
	mustFind(t, "before", pid, was, anyDescriptor, Watched)
	fmt.Fprint(in, "go\nx")
	awaitOutput("x")
	mustFind(t, "after", pid, was, anyDescriptor, Executed)
	was.Program.Stack = 0 // as for a daemon of another user
	mustFind(t, "after, by its text", pid, was, anyDescriptor, Executed)
	was.Program.Text, was.Program.Origin = 0, state.Forked
	mustFind(t, "after, by its flags", pid, was, anyDescriptor, Executed)
	was.Program = state.Program{}
	mustFind(t, "after, with nothing known", pid, was, anyDescriptor, Watched)
}

// startProcess starts a process that runs until the test ends it. It waits for an answer of its
// program: Start returns during exec, while the addresses of code and stack still change.
func startProcess(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := in.Write([]byte{'x'}); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func mustFind(t *testing.T, what string, pid int64, was state.Process, below uint64, want State) {
	t.Helper()
	fd, got := Find(pid, was, below)
	if got != want || (fd >= 0) != (want == Watched) {
		t.Errorf("%s: %d and descriptor %d, want %d", what, got, fd, want)
	}
	ClosePidfd(&fd)
}

func TestProcessIsFoundAgainUntilItEnds(t *testing.T) {
	cmd := startProcess(t)
	pid := int64(cmd.Process.Pid)
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	was := ProcessOf(fd, pid)
	if was.Start == 0 {
		t.Fatalf("what is known of a process: %+v", was)
	}
	start := state.Process{Start: was.Start}
	mustFind(t, "the same", pid, was, anyDescriptor, Watched)
	mustFind(t, "the same, without its pidfd", pid, start, anyDescriptor, Watched)
	mustFind(t, "too few descriptors", pid, was, 0, Unwatched)
	mustFind(t, "another one", pid, state.Process{Start: was.Start + 1}, anyDescriptor, Ended)
	mustFind(t, "nothing known", pid, state.Process{}, anyDescriptor, Unproven)
	if was.Pidfd == 0 {
		t.Log("this kernel has one inode for all pidfds")
	} else {
		mustFind(t, "another pidfd", pid, state.Process{Pidfd: was.Pidfd + 1, Start: was.Start}, anyDescriptor, Ended)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil {
		t.Fatal(err)
	}
	mustFind(t, "a zombie", pid, was, anyDescriptor, Ended)
	mustFind(t, "a zombie of which nothing is known", pid, state.Process{}, anyDescriptor, Ended)
	if p := ProcessOf(fd, pid); p.Start != 0 || p.Pidfd != was.Pidfd {
		t.Errorf("of a process that has ended this is known: %+v, and before %+v", p, was)
	}
	cmd.Wait()
	mustFind(t, "gone", pid, was, anyDescriptor, Ended)
}

// A process that is not watched costs no descriptor: after a restart there may be very many.
func TestProcessThatIsNotWatchedHasNoDescriptor(t *testing.T) {
	pid := int64(startProcess(t).Process.Pid)
	for range 3 {
		mustFind(t, "too few descriptors", pid, ProcessOf(-1, pid), 0, Unwatched)
		mustFind(t, "nothing known", pid, state.Process{}, anyDescriptor, Unproven)
	}
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil || len(infos) == 0 {
		t.Fatal(infos, err)
	}
	n := 0
	for _, info := range infos {
		text, _ := os.ReadFile(info) // it may be closed by now
		if strings.Contains(string(text), fmt.Sprintf("\nPid:\t%d\n", pid)) {
			n++
		}
	}
	if n > 1 { // os/exec has one
		t.Errorf("%d descriptors of the process are open", n)
	}
}

const (
	hiddenEnv         = "LOCKSIDECAR_TEST_HIDDEN"
	exitNoPrivateProc = 77
)

// Where /proc hides the processes of other users, the inode of the pidfd still identifies a
// process. On a kernel without these inodes, the process remains unproven.
//
// Shows docs/guarantees.md: A client died in the meantime, and another process has its pid.
func TestHiddenProcessIsFoundByItsPidfd(t *testing.T) {
	if os.Getenv(hiddenEnv) != "" {
		lookAtHiddenProcess()
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can mount /proc, and be another user then")
	}
	cmd := startProcess(t)
	child := exec.Command(os.Args[0], "-test.run=^TestHiddenProcessIsFoundByItsPidfd$")
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%d", hiddenEnv, cmd.Process.Pid))
	child.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := child.CombinedOutput()
	var noNamespace syscall.Errno
	if errors.As(err, &noNamespace) { // of clone; in a chroot, whose / is no mount point, it cannot be made private
		t.Skip("no mount namespace can be made here: ", err)
	}
	if exit, isExit := errors.AsType[*exec.ExitError](err); isExit && exit.ExitCode() == exitNoPrivateProc {
		t.Skipf("no private /proc can be mounted here: %s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var before, hidden state.Process
	var same, bare State
	if _, err := fmt.Sscanf(string(out), "%d %d %d %d %d %d", &before.Pidfd, &before.Start, &hidden.Pidfd, &hidden.Start, &same, &bare); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if before.Start == 0 || hidden.Start != 0 || hidden.Pidfd != before.Pidfd {
		t.Errorf("known before: %+v; known when it is hidden: %+v", before, hidden)
	}
	if want := map[bool]State{true: Watched, false: Unproven}[before.Pidfd != 0]; same != want {
		t.Errorf("a hidden process is found as %d, want %d", same, want)
	}
	if bare != Unproven {
		t.Errorf("a hidden process of which only the start was known is found as %d, want %d", bare, Unproven)
	}
}

// lookAtHiddenProcess is the main function of the test's child.
func lookAtHiddenProcess() {
	fail := func(err error) {
		fmt.Println(err)
		os.Exit(1)
	}
	var pid int64
	fmt.Sscan(os.Getenv(hiddenEnv), &pid)
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		fail(err)
	}
	before := ProcessOf(fd, pid)
	if err := unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"); err != nil {
		fmt.Println(err)
		os.Exit(exitNoPrivateProc)
	}
	for _, err := range []error{syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)} {
		if err != nil {
			fail(err)
		}
	}
	hidden := ProcessOf(fd, pid)
	_, same := Find(pid, before, anyDescriptor)
	_, bare := Find(pid, state.Process{Start: before.Start}, anyDescriptor)
	fmt.Println(before.Pidfd, before.Start, hidden.Pidfd, hidden.Start, same, bare)
}

// The kernel closes the connections of a process before its pidfd reports the end. The end is found
// nevertheless, and a process that lives is not taken for one that ends.
func TestEndOfAProcessIsFoundBeforeItIsReported(t *testing.T) {
	cmd := startProcess(t)
	pid := int64(cmd.Process.Pid)
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if IsEnding(pidfd, pid) {
		t.Error("a process that lives is taken for one that ends")
	}
	if fields := statFields(pid); len(fields) < 20 || isExiting(fields) {
		t.Errorf("the fields of a process that lives are %q", fields)
	}
	cmd.Process.Kill()
	for n := 0; n == 0 || err == unix.EINTR; { // until it is a zombie: its parent has not waited for it
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
	}
	if !isExiting(statFields(pid)) {
		t.Errorf("the kernel does not show that a process ends: %q", statFields(pid))
	}
	if !IsEnding(pidfd, pid) {
		t.Error("the end of a zombie is not found")
	}
	cmd.Wait()
	if !IsEnding(pidfd, pid) {
		t.Error("the end of a process that is gone is not found")
	}
	if IsEnding(-1, int64(os.Getpid())) || IsEnding(-1, pid) {
		t.Error("a process that is not watched is known to end")
	}
	for text, want := range map[string]bool{
		"7 (a) S 1 7 7 0 -1 4194304 1 2":        false, // of a process that lives
		"7 (a) S 1 7 7 0 -1 4194308 1 2":        true,
		"7 (a) 4 4 4 4 4 4) S 1 7 7 0 -1 0 1 2": false, // the name of a program is its own choice
		"7 (a) S 1 7 7 0 -1":                    false,
		"":                                      false,
	} {
		if got := isExiting(statFieldsIn([]byte(text))); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
