package sidecar

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/state"
)

const anyDescriptor = 1 << 20

// A pid proves nothing by itself: the process that has it now is the client only if it
// has what the client had, and no other process can have.
func TestPidThatIsUsedAgainIsNotTheClient(t *testing.T) {
	type p = state.Process
	for _, c := range []struct {
		what     string
		was, now p
		want     found
	}{
		{"the same pidfd", p{Pidfd: 7, Start: 1}, p{Pidfd: 7, Start: 1}, watched},
		{"the same pidfd, no /proc", p{Pidfd: 7}, p{Pidfd: 7}, watched},
		{"the same pidfd, no /proc now", p{Pidfd: 7, Start: 1}, p{Pidfd: 7}, watched},
		{"another pidfd", p{Pidfd: 7, Start: 1}, p{Pidfd: 8, Start: 1}, ended},
		{"another pidfd, no /proc", p{Pidfd: 7}, p{Pidfd: 8}, ended},
		{"the same start, Linux before 6.9", p{Start: 1}, p{Start: 1}, watched},
		{"another start, Linux before 6.9", p{Start: 1}, p{Start: 2}, ended},
		{"no /proc now", p{Start: 1}, p{}, unproven},
		{"no /proc before", p{}, p{Start: 1}, unproven},
		{"no /proc before, and the pidfd only now", p{}, p{Pidfd: 7, Start: 1}, unproven},
		{"the pidfd only before", p{Pidfd: 7}, p{Start: 1}, unproven},
		{"nothing", p{}, p{}, unproven},
	} {
		if got := compare(c.was, c.now); got != c.want {
			t.Errorf("%s: %v then and %v now is %d, want %d", c.what, c.was, c.now, got, c.want)
		}
	}
}

// aProcess is one that lives until the test ends it.
func aProcess(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("cat")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

func mustFind(t *testing.T, what string, pid int64, was state.Process, below uint64, want found) {
	t.Helper()
	fd, got := reopen(pid, was, below)
	if got != want || (fd >= 0) != (want == watched) {
		t.Errorf("%s: %d and descriptor %d, want %d", what, got, fd, want)
	}
	closePidfd(&fd)
}

func TestProcessIsFoundAgainUntilItEnds(t *testing.T) {
	cmd := aProcess(t)
	pid := int64(cmd.Process.Pid)
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	was := processOf(fd, pid)
	if was.Start == 0 {
		t.Fatalf("what is known of a process: %+v", was)
	}
	start := state.Process{Start: was.Start}
	mustFind(t, "the same", pid, was, anyDescriptor, watched)
	mustFind(t, "the same, without its pidfd", pid, start, anyDescriptor, watched)
	mustFind(t, "too few descriptors", pid, was, 0, unwatched)
	mustFind(t, "another one", pid, state.Process{Start: was.Start + 1}, anyDescriptor, ended)
	mustFind(t, "nothing known", pid, state.Process{}, anyDescriptor, unproven)
	if was.Pidfd == 0 {
		t.Log("this kernel has one inode for all pidfds")
	} else {
		mustFind(t, "another pidfd", pid, state.Process{Pidfd: was.Pidfd + 1, Start: was.Start}, anyDescriptor, ended)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil {
		t.Fatal(err)
	}
	mustFind(t, "a zombie", pid, was, anyDescriptor, ended)
	mustFind(t, "a zombie of which nothing is known", pid, state.Process{}, anyDescriptor, ended)
	if p := processOf(fd, pid); p.Start != 0 || p.Pidfd != was.Pidfd {
		t.Errorf("of a process that has ended this is known: %+v, and before %+v", p, was)
	}
	cmd.Wait()
	mustFind(t, "gone", pid, was, anyDescriptor, ended)
}

const hiddenEnv = "LOCKSIDECAR_TEST_HIDDEN"

// Where /proc hides the processes of other users, the pidfd still shows which process
// has a pid. Where it does not, the pid proves nothing.
func TestHiddenProcessIsFoundByItsPidfd(t *testing.T) {
	if os.Getenv(hiddenEnv) != "" {
		lookAtHiddenProcess()
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can mount /proc, and be another user then")
	}
	cmd := aProcess(t)
	child := exec.Command(os.Args[0], "-test.run=^TestHiddenProcessIsFoundByItsPidfd$")
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%d", hiddenEnv, cmd.Process.Pid))
	child.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := child.CombinedOutput()
	if strings.Contains(string(out), "not permitted") || err != nil && strings.Contains(err.Error(), "not permitted") {
		t.Skipf("no private /proc here: %v\n%s", err, out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var before, hidden state.Process
	var same, bare found
	if _, err := fmt.Sscanf(string(out), "%d %d %d %d %d %d", &before.Pidfd, &before.Start, &hidden.Pidfd, &hidden.Start, &same, &bare); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if before.Start == 0 || hidden.Start != 0 || hidden.Pidfd != before.Pidfd {
		t.Errorf("known before: %+v; known when it is hidden: %+v", before, hidden)
	}
	if want := map[bool]found{true: watched, false: unproven}[before.Pidfd != 0]; same != want {
		t.Errorf("a hidden process is found as %d, want %d", same, want)
	}
	if bare != unproven {
		t.Errorf("a hidden process of which only the start was known is found as %d, want %d", bare, unproven)
	}
}

// lookAtHiddenProcess is the child of the test above.
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
	before := processOf(fd, pid)
	if err := unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"); err != nil {
		fail(err)
	}
	for _, err := range []error{syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)} {
		if err != nil {
			fail(err)
		}
	}
	hidden := processOf(fd, pid)
	_, same := reopen(pid, before, anyDescriptor)
	_, bare := reopen(pid, state.Process{Start: before.Start}, anyDescriptor)
	fmt.Println(before.Pidfd, before.Start, hidden.Pidfd, hidden.Start, same, bare)
}
