package clientfaults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A child that was forked while the connection was open, and keeps it open, does not keep the
// locks of its dead parent.
//
// Shows docs/guarantees.md: A process that dies frees its locks at once.
// Shows docs/guarantees.md: Forks.
func TestForkedChildDoesNotKeepItsParentsLocks(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	t.Run("inherited by a Go child", func(t *testing.T) {
		parent := harness.RoleCommand(t, d, sharedSocket)
		parent.Stderr = os.Stderr
		stdout, err := parent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { parent.Process.Kill(); parent.Wait() })
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		child, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		checkForkedChild(t, d, "forked", child, func() { parent.Process.Kill() })
	})
	// The SDK closes the connection in the child.
	t.Run("forked by Python", func(t *testing.T) {
		parent := harness.StartPythonWorker(t, d)
		parent.Lock("forked too")
		child := parent.Must(harness.Command{Do: "fork"}).PID
		checkForkedChild(t, d, "forked too", child, parent.Kill)
	})
}

// checkForkedChild kills the parent, which holds a lock, and checks that the lock becomes
// free while the child is alive.
func checkForkedChild(t *testing.T, d *harness.Daemon, name string, child int, killParent func()) {
	t.Helper()
	t.Cleanup(func() { syscall.Kill(child, syscall.SIGKILL) })
	c := harness.Dial(t, d)
	if _, err := c.TryLock(t.Context(), name); err == nil {
		t.Fatal("the parent does not hold the lock")
	}
	killParent()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	l, err := c.Lock(ctx, name)
	if err != nil {
		t.Fatalf("the death of the parent did not free the lock: %v", err)
	}
	defer l.Unlock()
	if !harness.IsAlive(child) {
		t.Fatal("the child is dead, too: the test shows nothing")
	}
}

const sharedSocket = "shared-socket"

// runSharedSocket acquires the lock "forked" and starts a child that keeps the connection
// open. It prints the pid of the child, and waits.
func runSharedSocket() int {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: os.Getenv("LOCKSIDECAR_SOCKET")})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	frames := protocol.Hello{ID: 1, V: protocol.Version}.Append(nil)
	frames = protocol.Acquire{ID: 2, Name: "forked", WaitMS: protocol.Forever}.Append(frames)
	if _, err := conn.Write(frames); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// The answers to hello and to acquire.
	in := protocol.NewReader(conn)
	for range 2 {
		if _, err := in.Next(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	file, err := conn.File()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	child := exec.Command("sleep", "600")
	child.ExtraFiles = []*os.File{file}
	if err := child.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(child.Process.Pid)
	child.Wait()
	time.Sleep(10 * time.Minute) // it goes on when the child has ended
	return 0
}

// The death of a child that has a copy of the connection does not free the locks of its
// parent.
func TestDeathOfAForkedChildFreesNothing(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	parent, child := startSharedSocket(t, d)
	syscall.Kill(child, syscall.SIGKILL)
	harness.Eventually(t, "the child is dead", func() bool { return !harness.IsAlive(child) })
	c := harness.Dial(t, d)
	if _, err := c.TryLock(t.Context(), "forked"); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("after the death of the child, another client got %v, not that the lock is held", err)
	}
	parent.Process.Kill()
	lockSoon(t, c, "forked")
}

// startSharedSocket starts a process that holds the lock "forked", and that has a child which
// keeps the connection open.
func startSharedSocket(t *testing.T, d *harness.Daemon) (parent *exec.Cmd, child int) {
	t.Helper()
	parent, line := startRole(t, d, sharedSocket)
	child, err := strconv.Atoi(line())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(child, syscall.SIGKILL) })
	return parent, child
}

// A forked child does not hold the locks of its parent, and does not resume its session when
// the daemon has been restarted. Whatever the child does, its parent keeps the lock.
func TestForkedChildHoldsNothingAfterARestart(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	cmd := exec.Command(harness.Python(t), "-u", "fork.py")
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+d.Socket)
	next := startWithLines(t, cmd)
	type report struct {
		Child   int
		PID     int
		Err     string
		Own     uint64
		Entered bool
	}
	read := func() (got report) {
		t.Helper()
		if line := next(); json.Unmarshal([]byte(line), &got) != nil {
			t.Fatalf("not a report: %s", line)
		}
		return got
	}
	ask := func(pid int) report {
		t.Helper()
		syscall.Kill(pid, syscall.SIGUSR1)
		return read()
	}
	parent, child := cmd.Process.Pid, read().Child
	t.Cleanup(func() { syscall.Kill(child, syscall.SIGKILL) })
	before := r.Fields("family")
	token := harness.Info(t, d, "family").Token

	unchanged := func(when string) {
		t.Helper()
		if now := r.Fields("family"); !maps.Equal(now, before) {
			t.Errorf("%s, Redis has %v of the lock of the parent; it had %v", when, now, before)
		}
		if row := harness.Info(t, d, "family"); row.PID != parent || row.Token != token {
			t.Errorf("%s, the lock is %+v", when, row)
		}
	}
	childHasNothing := func(when string) {
		t.Helper()
		if a := ask(child); a.PID != child || a.Err != "NotHeld" || a.Own == 0 || a.Entered {
			t.Errorf("%s, the child reports %+v", when, a)
		}
		unchanged(when)
	}
	childHasNothing("before the restart")
	d.Kill()
	d.Start(harness.LongLease)
	d.AwaitSocket()
	d.AwaitRedis("ok")
	childHasNothing("after the restart")
	if a := ask(parent); a.PID != parent || a.Err != "" || a.Own == 0 {
		t.Errorf("after the restart, the parent reports %+v", a)
	}
	childHasNothing("when the parent has resumed its session")
	syscall.Kill(child, syscall.SIGKILL)
	harness.Eventually(t, "the child is dead", func() bool { return !harness.IsAlive(child) })
	if a := ask(parent); a.Err != "" {
		t.Errorf("after the death of the child, the parent reports %+v", a)
	}
	unchanged("after the death of the child")
	cmd.Process.Kill()
	lockSoon(t, harness.Dial(t, d), "family")
}
