package tests

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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

// A process that is killed while it holds a lock frees it at once, for waiters
// on its own host and on others.
func TestKillOfAHolderFreesItsLock(t *testing.T) {
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	for _, holder := range []struct {
		lang  string
		start func(testing.TB, *harness.Daemon) *harness.Worker
	}{{"Go", harness.StartGoWorker}, {"Python", harness.StartPythonWorker}} {
		for _, waiter := range []struct {
			where string
			d     *harness.Daemon
		}{{"same host", here}, {"other host", there}} {
			t.Run(holder.lang+" holder, waiter on the "+waiter.where, func(t *testing.T) {
				name := t.Name()
				victim := holder.start(t, here)
				token := victim.Lock(name).Token
				next := harness.StartGoWorker(t, waiter.d)
				granted := next.Send(harness.Command{Do: "lock", As: name, Name: name, WaitMS: -1})
				harness.Eventually(t, "the waiter waits", func() bool { return harness.Waiters(t, waiter.d, name) == 1 })

				killed := protocol.Now()
				victim.Kill()
				a := next.Await(granted)
				if a.Err != "" || a.Token <= token {
					t.Fatalf("the waiter got %+v; the killed holder had token %d", a, token)
				}
				t.Logf("granted %.1f ms after the kill", float64(a.AtNS-killed)/1e6)
			})
		}
	}
}

// Who gives a lock back and ends did not crash with it, though its end may be seen
// before what it said last is read: the crash delay is for others.
func TestAnUnlockJustBeforeTheEndIsHeard(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	c := harness.Dial(t, d)
	for i := range 100 {
		name := fmt.Sprint("quit ", i)
		cmd := harness.RoleCommand(t, d, quitter)
		cmd.Args = append(cmd.Args, name)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
		l, err := c.Lock(ctx, name)
		cancel()
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		l.Unlock()
	}
	if d.Log.Contains("locks held") {
		t.Errorf("a client is said to have ended with locks held:\n%s", d.Log.String())
	}
}

const quitter = "quitter"

func runQuitter() int {
	c, err := locksidecar.Dial(context.Background(), "")
	if err == nil {
		var l *locksidecar.Lock
		if l, err = c.Lock(context.Background(), os.Args[1], locksidecar.WithCrashDelay(time.Hour)); err == nil {
			err = l.Unlock()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0 // without a word
}

// A child that was forked while the connection was open, and keeps it open,
// does not keep its dead parent's locks.
func TestForkedChildDoesNotKeepItsParentsLocks(t *testing.T) {
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
	// Here the SDK closes the child's copy itself.
	t.Run("forked by Python", func(t *testing.T) {
		parent := harness.StartPythonWorker(t, d)
		parent.Lock("forked too")
		child := parent.Must(harness.Command{Do: "fork"}).PID
		checkForkedChild(t, d, "forked too", child, parent.Kill)
	})
}

// checkForkedChild kills the parent that holds the lock and expects the lock to
// be free while the child lives.
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
		t.Fatalf("the parent's death did not free the lock: %v", err)
	}
	defer l.Unlock()
	if !harness.IsAlive(child) {
		t.Fatal("the child is dead too: this showed nothing")
	}
}

const sharedSocket = "shared-socket"

// runSharedSocket is a process that holds the lock "forked" and has a child
// that keeps the connection open. It prints the child's pid and waits.
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
	// Two answers: the hello, and the lock.
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
	time.Sleep(10 * time.Minute) // its child's end is not its own
	return 0
}

// A process that was stopped past the end of its lease finds its lock lost,
// and somebody else has it with a larger token.
func TestHolderStoppedPastItsDeadlineFindsItsLockLost(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	for _, holder := range []struct {
		lang  string
		start func(testing.TB, *harness.Daemon) *harness.Worker
	}{{"Go", harness.StartGoWorker}, {"Python", harness.StartPythonWorker}} {
		t.Run(holder.lang, func(t *testing.T) {
			name := "stopped " + holder.lang
			w := holder.start(t, d)
			token := w.Must(harness.Command{Do: "lock", As: name, Name: name, WaitMS: -1, Lease: 2000}).Token
			w.Signal(syscall.SIGSTOP)
			l, err := harness.Dial(t, d).Lock(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Unlock()
			if l.Token() <= token {
				t.Errorf("token %d after %d", l.Token(), token)
			}
			w.Signal(syscall.SIGCONT)
			if a := w.Try(harness.Command{Do: "check", As: name}); a.Err != "lost" || a.Reason != string(protocol.Expired) {
				t.Errorf("the stopped holder is told %+v, not that its lock expired", a)
			}
			if a := w.Try(harness.Command{Do: "unlock", As: name}); a.Err == "" {
				t.Error("the stopped holder released a lock that it had lost")
			}
			if err := l.Err(); err != nil {
				t.Errorf("the new holder's lock suffered: %v", err)
			}
		})
	}
}

// A process that stands still keeps what the sidecar renews for it: only its
// death, or its deadline, frees a lock. (What it believes when it goes on:
// TestHoldersStoppedPastTheirDeadlinesKeepLocksThatWereRenewed.)
func TestStoppedProcessKeepsItsRenewedLock(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=2s")
	w := harness.StartGoWorker(t, d)
	w.Lock("slow")
	w.Signal(syscall.SIGSTOP)
	renewals := 0
	last := time.Duration(0)
	harness.Eventually(t, "more renewals than one lease needs", func() bool {
		ttl := r.PTTL(t.Context(), "slow").Val()
		if ttl > last {
			renewals++
		}
		last = ttl
		return renewals > 6
	})
	if _, err := harness.Dial(t, d).TryLock(t.Context(), "slow"); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("another client was told %v, not that the lock is held", err)
	}
}

// A client that connects and says nothing is told what was expected, and let go.
func TestClientThatNeverSaysHello(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	silent, rude := harness.ConnectRaw(t, d), harness.ConnectRaw(t, d)
	rude.Send(harness.Message{"op": "ping", "id": 1})
	harness.CheckContains(t, rude.ExpectErrorThenEOF(protocol.NoHello), "hello")
	harness.CheckContains(t, silent.ExpectErrorThenEOF(protocol.NoHello), "hello")
}

// A frame that announces 4 GiB costs its sender the connection and the daemon
// nothing.
func TestFrameOfFourGigabytes(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	good := harness.DialRaw(t, d)
	before := harness.ResidentMemory(t, d.PID())
	for range 20 {
		w := harness.DialRaw(t, d)
		w.Write(binary.BigEndian.AppendUint32(nil, 1<<32-1))
		harness.CheckContains(t, w.ExpectErrorThenEOF(protocol.BadFrame), "65536")
	}
	if grown := harness.ResidentMemory(t, d.PID()) - before; grown > 64<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	if a := good.Call(harness.Message{"op": "ping"}); a["redis"] != "ok" {
		t.Errorf("another client's ping is answered %v", a)
	}
}

// A client that breaks the protocol while it holds a lock loses its connection;
// but it lives, so its lock is not given away before the deadline.
func TestMisbehavingClientKeepsItsLockToTheDeadline(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--lease=2s")
	w := harness.DialRaw(t, d)
	granted := w.Call(harness.Message{"op": "acquire", "name": "x"})
	if granted["err"] != nil {
		t.Fatal(granted)
	}
	w.Write([]byte{0, 0, 0, 1, 0xc1})
	w.ExpectErrorThenEOF(protocol.BadFrame)
	l, err := harness.Dial(t, d).Lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if deadline := toInt(t, granted["deadline_ns"]); protocol.Now() < deadline {
		t.Errorf("the lock was given away %d ms before the deadline", (deadline-protocol.Now())/1e6)
	}
}

func toInt(t *testing.T, v any) int64 {
	t.Helper()
	var n int64
	if _, err := fmt.Sscan(fmt.Sprint(v), &n); err != nil {
		t.Fatalf("%v is no number", v)
	}
	return n
}
