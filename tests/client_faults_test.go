package tests

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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Faults of clients, and the tests that show what becomes of them.
//
//	stopped past its lease                          TestHolderStoppedPastItsDeadlineFindsItsLockLost
//	stopped past its max_hold,
//	past either over a restart of the daemon        TestHolderStoppedPastItsEndFindsItsLockLost
//	stopped, and renewed for                        TestStoppedProcessKeepsItsRenewedLock
//	forked; the parent dies                         TestForkedChildDoesNotKeepItsParentsLocks
//	forked; the child dies                          TestDeathOfAForkedChildFreesNothing
//	forked; the daemon is restarted                 TestForkedChildHoldsNothingAfterARestart
//	never reads, as asker and as holder, while the
//	daemon serves, stops and is back                TestReaderThatNeverReads
//	connects and disconnects 10,000 times           TestTenThousandConnections
//	sends garbage, thousands of times               TestGarbageDoesNotFillTheLog
//	never finishes its hello                        TestSlowHelloKeepsNoPlace
//	has no file descriptors left                    TestClientWithoutDescriptors, TestNoDescriptorForAConnection
//	leaves the daemon no file descriptors           TestDaemonAtItsLimitOfDescriptors, TestDaemonWithoutDescriptors,
//	                                                TestDaemonRestartedWithTooFewDescriptors
//
// The other tests of the table are in crash_test.go and client_descriptors_test.go.

// forEachLanguage runs a test with clients of each SDK that there is.
func forEachLanguage(t *testing.T, test func(*testing.T, func(testing.TB, *harness.Daemon) *harness.Worker)) {
	t.Run("Go", func(t *testing.T) { test(t, harness.StartGoWorker) })
	t.Run("Python", func(t *testing.T) { test(t, harness.StartPythonWorker) })
}

// Who is stopped until its hold has ended, by its own lease or by max_hold, finds
// that out whether the daemon was restarted meanwhile or not. Somebody else has the
// lock then, with a larger token, and what the old holder says of it changes nothing.
func TestHolderStoppedPastItsEndFindsItsLockLost(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restarted), func(t *testing.T) {
			r := harness.StartRedis(t)
			here, there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
			type stopped struct {
				*harness.Worker
				name   string
				token  uint64
				reason protocol.Reason
			}
			var holders []stopped
			hold := func(lang string, start func(testing.TB, *harness.Daemon) *harness.Worker) {
				lease := harness.Command{Do: "lock", WaitMS: -1, Lease: 2000}
				maxHold := harness.Command{Do: "lock", WaitMS: -1, Hold: 2000}
				for reason, c := range map[protocol.Reason]harness.Command{protocol.Expired: lease, protocol.MaxHold: maxHold} {
					w := start(t, here)
					c.Name = fmt.Sprintf("%s %s", lang, reason)
					c.As = c.Name
					holders = append(holders, stopped{w, c.Name, w.Must(c).Token, reason})
				}
			}
			hold("Go", harness.StartGoWorker)
			if harness.HasPython() {
				hold("Python", harness.StartPythonWorker)
			}
			for _, h := range holders {
				h.Signal(syscall.SIGSTOP)
			}
			if restarted {
				here.Kill()
				here.Start(harness.LongLease)
				here.AwaitSocket()
			}
			elsewhere := harness.Dial(t, there)
			for _, h := range holders {
				l := lockSoon(t, elsewhere, h.name)
				if l.Token() <= h.token {
					t.Errorf("%s: token %d after %d", h.name, l.Token(), h.token)
				}
				before := r.Fields(h.name)
				h.Signal(syscall.SIGCONT)
				if a := h.Try(harness.Command{Do: "check", As: h.name}); a.Err != "lost" || a.Reason != string(h.reason) {
					t.Errorf("%s: the stopped holder is told %+v", h.name, a)
				}
				if a := h.Try(harness.Command{Do: "unlock", As: h.name}); a.Err == "" {
					t.Errorf("%s: the stopped holder released a lock that it had lost", h.name)
				}
				h.Lock("after " + h.name) // what it said of the lost lock has been heard
				if now := r.Fields(h.name); !maps.Equal(now, before) {
					t.Errorf("%s: the stopped holder made %v of %v", h.name, now, before)
				}
				if err := l.Err(); err != nil {
					t.Errorf("%s: the new holder's lock suffered: %v", h.name, err)
				}
			}
		})
	}
}

// The death of a child that has the connection too is nothing to the sidecar.
func TestDeathOfAForkedChildFreesNothing(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	parent, child := startSharedSocket(t, d)
	syscall.Kill(child, syscall.SIGKILL)
	harness.Eventually(t, "the child is dead", func() bool { return !harness.IsAlive(child) })
	c := harness.Dial(t, d)
	if _, err := c.TryLock(t.Context(), "forked"); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("when the child had died, another client was told %v, not that the lock is held", err)
	}
	parent.Process.Kill()
	lockSoon(t, c, "forked")
}

// startSharedSocket starts a process that holds the lock "forked", and has a child
// that keeps the connection open.
func startSharedSocket(t *testing.T, d *harness.Daemon) (parent *exec.Cmd, child int) {
	t.Helper()
	parent, says := startRole(t, d, sharedSocket)
	child, err := strconv.Atoi(says())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(child, syscall.SIGKILL) })
	return parent, child
}

// startRole starts this binary as something else. The function returns what it
// prints next.
func startRole(t *testing.T, d *harness.Daemon, role string) (*exec.Cmd, func() string) {
	t.Helper()
	cmd := harness.RoleCommand(t, d, role)
	return cmd, startSaying(t, cmd)
}

func startSaying(t *testing.T, cmd *exec.Cmd) func() string {
	t.Helper()
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewReader(stdout)
	return func() string {
		t.Helper()
		stdout.(*os.File).SetReadDeadline(time.Now().Add(harness.Patience))
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%v says no more: %v", cmd.Args, err)
		}
		return strings.TrimSpace(line)
	}
}

// A forked child holds nothing of its parent's, and does not come back in its place
// when the daemon has been restarted. Whatever the child does, the parent's lock
// stays the parent's.
func TestForkedChildHoldsNothingAfterARestart(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	cmd := exec.Command(harness.Python(t), "-u", "client_fork.py")
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+d.Socket)
	says := startSaying(t, cmd)
	type report struct {
		Child   int
		PID     int
		Err     string
		Own     uint64
		Entered bool
	}
	hear := func() (got report) {
		t.Helper()
		if line := says(); json.Unmarshal([]byte(line), &got) != nil {
			t.Fatalf("not understood: %s", line)
		}
		return got
	}
	ask := func(pid int) report {
		t.Helper()
		syscall.Kill(pid, syscall.SIGUSR1)
		return hear()
	}
	parent, child := cmd.Process.Pid, hear().Child
	t.Cleanup(func() { syscall.Kill(child, syscall.SIGKILL) })
	before := r.Fields("family")
	token := harness.Info(t, d, "family").Token

	unchanged := func(when string) {
		t.Helper()
		if now := r.Fields("family"); !maps.Equal(now, before) {
			t.Errorf("%s, Redis has %v of the parent's lock; it had %v", when, now, before)
		}
		if row := harness.Info(t, d, "family"); row.PID != int64(parent) || row.Token != token {
			t.Errorf("%s, the lock is %+v", when, row)
		}
	}
	childHasNothing := func(when string) {
		t.Helper()
		if a := ask(child); a.PID != child || a.Err != "NotHeld" || a.Own == 0 || a.Entered {
			t.Errorf("%s, the child says %+v", when, a)
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
		t.Errorf("after the restart the parent says %+v", a)
	}
	childHasNothing("when the parent is back")
	syscall.Kill(child, syscall.SIGKILL)
	harness.Eventually(t, "the child is dead", func() bool { return !harness.IsAlive(child) })
	if a := ask(parent); a.Err != "" {
		t.Errorf("when the child has died, the parent says %+v", a)
	}
	unchanged("when the child has died")
	cmd.Process.Kill()
	lockSoon(t, harness.Dial(t, d), "family")
}

// lockSoon waits for a lock that must become free.
func lockSoon(t *testing.T, c *locksidecar.Client, name string) *locksidecar.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	l, err := c.Lock(ctx, name)
	if err != nil {
		t.Fatalf("%s did not become free: %v", name, err)
	}
	return l
}

// ---- a reader that never reads --------------------------------------------------

// A client that reads nothing costs the daemon a bounded amount of memory, and
// nobody else anything. It lives, so its locks stay held and renewed, even over a
// stop and a start of the daemon, which it does not delay. When it dies they are free.
func TestReaderThatNeverReads(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=3s")
	good := harness.StartGoWorker(t, d)
	before := harness.ResidentMemory(t, d.PID())
	deaf := make([]*exec.Cmd, 3)
	for i := range deaf {
		var says func() string
		role := []string{deafToLists, deafToPings}[i%2]
		deaf[i], says = startRole(t, d, role)
		t.Logf("the sidecar read no more from who is %s after %s requests", role, says())
	}
	name := func(i int) string { return fmt.Sprintf("deaf %d:0", deaf[i].Process.Pid) }
	fixed := func(i int) string { return fmt.Sprintf("deaf %d:fixed", deaf[i].Process.Pid) }
	awaitRenewals(t, r, name(0), 4)
	grown := harness.ResidentMemory(t, d.PID()) - before
	t.Logf("the daemon grew by %d KiB for %d clients with %d locks each", grown>>10, len(deaf), deafLocks)
	if grown > 96<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	good.Lock("good")
	good.Unlock("good")
	if a := good.Try(harness.Command{Do: "lock", As: "x", Name: name(0)}); a.Err != "held" {
		t.Errorf("of a deaf client's lock another is told %+v", a)
	}

	killed := func(i int) {
		deaf[i].Process.Kill()
		// Its lease is ten minutes: it is free because its holder is dead.
		good.Lock(fixed(i))
		good.Lock(name(i))
		good.Unlock(fixed(i))
		good.Unlock(name(i))
	}
	killed(0)

	asked := time.Now()
	d.Terminate()
	t.Logf("the stop took %v", time.Since(asked))
	if code := d.ExitCode(); code != 0 {
		t.Errorf("with clients that do not read, the daemon ended with %d", code)
	}
	if n := r.Exists(t.Context(), name(1), fixed(1), name(2), fixed(2)).Val(); n != 4 {
		t.Errorf("the stop left %d of 4 locks", n)
	}
	d.Start("--lease=3s")
	d.AwaitSocket()
	d.AwaitRedis("ok")
	awaitRenewals(t, r, name(1), 4)
	if a := good.Try(harness.Command{Do: "lock", As: "x", Name: fixed(1)}); a.Err != "held" {
		t.Errorf("after the restart another is told %+v of a deaf client's lock", a)
	}
	killed(1)
	d.Kill()
	deaf[2].Process.Kill() // while there is no daemon
	d.Start("--lease=3s")
	d.AwaitSocket()
	killed(2)
}

// awaitRenewals waits until a lock was renewed so often. A lease is three renewals.
func awaitRenewals(t *testing.T, r *harness.Redis, lock string, times int) {
	t.Helper()
	last, renewals := time.Duration(0), 0
	harness.Eventually(t, fmt.Sprintf("%d renewals of %s", times, lock), func() bool {
		ttl := r.PTTL(t.Context(), lock).Val()
		if ttl < 0 {
			t.Fatalf("%s is not locked any more after %d renewals", lock, renewals)
		}
		if ttl > last && last > 0 {
			renewals++
		}
		last = ttl
		return renewals >= times
	})
}

// deafLocks is how many renewed locks a deaf process holds.
const deafLocks = 300

// The roles of a deaf process: a page of a list is a thousand times as long as its
// request, the answer to a ping is not much longer.
const (
	deafToLists = "deaf to lists"
	deafToPings = "deaf to pings"
)

// runDeaf is a process that takes deafLocks locks, and one more with a long lease of
// its own. Then it asks for lists or pings, until nobody reads what it asks, reads
// nothing itself, says how often it asked, and waits.
func runDeaf(role string) int {
	err := func() error {
		nc, err := net.Dial("unix", os.Getenv("LOCKSIDECAR_SOCKET"))
		if err != nil {
			return err
		}
		frames := protocol.Hello{ID: 1, V: protocol.Version, Resumable: true}.Append(nil)
		for i := range deafLocks {
			frames = protocol.Acquire{ID: uint64(i + 2), Name: fmt.Sprintf("deaf %d:%d", os.Getpid(), i), WaitMS: protocol.Forever}.Append(frames)
		}
		const last = deafLocks + 2
		frames = protocol.Acquire{ID: last, Name: fmt.Sprintf("deaf %d:fixed", os.Getpid()), WaitMS: protocol.Forever, LeaseMS: 600_000}.Append(frames)
		if _, err := nc.Write(frames); err != nil {
			return err
		}
		in, decoder := protocol.NewReader(nc), protocol.ReplyDecoder{}
		for id := uint64(0); id != last; {
			body, err := in.Next()
			if err != nil {
				return err
			}
			m, err := decoder.Decode(body)
			if err != nil {
				return err
			}
			switch m := m.(type) {
			case *protocol.Answer:
				id = m.ID
			case *protocol.Err:
				return errors.New(m.Msg)
			}
		}
		sent := 0
		for {
			// Half a second without room for one more byte: nobody reads.
			nc.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			id := uint64(last + 1 + sent)
			ask := protocol.List{ID: id}.Append(nil)
			if role == deafToPings {
				ask = protocol.Ping{ID: id}.Append(nil)
			}
			if _, err := nc.Write(ask); err != nil {
				break
			}
			sent++
		}
		fmt.Println(sent)
		time.Sleep(10 * time.Minute) // it is killed before
		return nil
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// ---- many connections -----------------------------------------------------------

// Ten thousand connections that came and went, in whatever state, leave nothing:
// neither descriptors nor goroutines, memory, state, locks or sessions.
func TestTenThousandConnections(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	stay := harness.StartGoWorker(t, d)
	stay.Lock("stays")
	storm := func(n int) {
		const atOnce = 8
		var wg sync.WaitGroup
		for g := range atOnce {
			wg.Go(func() {
				for i := range n / atOnce {
					if err := comeAndGo(d.Socket, i%4, fmt.Sprintf("storm:%d:%d", g, i)); err != nil {
						t.Errorf("connection %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	settled := func() int {
		// A lock that is free again is free because its session was ended; here
		// of each session the last thing that anybody does.
		harness.Eventually(t, "all locks but one are free", func() bool { return len(r.Keys(t.Context(), "storm:*").Val()) == 0 })
		return harness.OpenFiles(t, d.PID())
	}
	storm(1_000) // buffers, tables and the file find their sizes
	fds, memory, file := settled(), harness.ResidentMemory(t, d.PID()), stateSize(t, d)
	storm(9_000)
	settled()
	harness.Eventually(t, fmt.Sprintf("the daemon is back to %d descriptors", fds), func() bool { return harness.OpenFiles(t, d.PID()) <= fds })
	grown := harness.ResidentMemory(t, d.PID()) - memory
	t.Logf("after 1,000 connections %d descriptors and %d KiB; 9,000 later %d and %d KiB more; the state file has %d KiB",
		fds, memory>>10, harness.OpenFiles(t, d.PID()), grown>>10, stateSize(t, d)>>10)
	if grown > 48<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	if now := stateSize(t, d); now != file {
		t.Errorf("the state file grew from %d to %d bytes", file, now)
	}
	if n := d.QuitAndCountGoroutines(); n > 40 {
		t.Errorf("%d goroutines are left", n)
	}
	// That was the end of the daemon, of a hard kind. Its successor finds one
	// session and one lock.
	d.Start(harness.LongLease)
	d.AwaitSocket()
	harness.Eventually(t, "the daemon takes over", func() bool { return d.Log.Contains("took over") })
	if !d.Log.Contains("locks=1 clients=1 ended=0") {
		t.Errorf("the successor found other things:\n%s", harness.Tail(d.Log.String(), 5))
	}
	stay.Must(harness.Command{Do: "check", As: "stays"})
}

// comeAndGo makes one connection that ends in one of four states.
func comeAndGo(socket string, state int, lock string) error {
	nc, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer nc.Close()
	hello := protocol.Hello{ID: 1, V: protocol.Version, Resumable: true}.Append(nil)
	switch state {
	case 0: // says nothing
		return nil
	case 1:
		hello = hello[:len(hello)/2]
	case 3:
		hello = protocol.Acquire{ID: 2, Name: lock, WaitMS: protocol.Forever}.Append(hello)
	}
	if _, err := nc.Write(hello); err != nil {
		return err
	}
	if state != 3 {
		return nil
	}
	frames := protocol.NewReader(nc)
	for range 2 { // the answers to hello and to acquire
		if _, err := frames.Next(); err != nil {
			return err
		}
	}
	return nil
}

func stateSize(t testing.TB, d *harness.Daemon) int64 {
	t.Helper()
	s, err := os.Stat(d.Socket + ".state")
	if err != nil {
		t.Fatal(err)
	}
	return s.Size()
}

// ---- garbage and half a hello -----------------------------------------------------

// Half a hello, a byte a second, or nothing at all: after five seconds the place is
// somebody else's.
func TestSlowHelloKeepsNoPlace(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--max-sessions=1")
	const places = 1 + 256
	hello := protocol.Hello{ID: 1, V: protocol.Version, Client: strings.Repeat("slow", 32)}.Append(nil)
	slow := make([]*harness.RawClient, places)
	var trickling sync.WaitGroup
	stop := make(chan struct{})
	defer trickling.Wait()
	defer close(stop)
	for i := range slow {
		slow[i] = harness.ConnectRaw(t, d)
		if i%2 == 0 {
			continue
		}
		slow[i].Write(hello[:1])
		if i < 32 {
			trickling.Go(func() {
				for _, b := range hello[1:] {
					select {
					case <-time.After(time.Second):
					case <-stop:
						return
					}
					if _, err := slow[i].Conn.Write([]byte{b}); err != nil {
						return
					}
				}
			})
		}
	}
	harness.CheckContains(t, harness.ConnectRaw(t, d).ExpectErrorThenEOF(protocol.Limit), "connections", "max-sessions")
	harness.Eventually(t, "there is a place for others", func() bool {
		c, err := locksidecar.Dial(t.Context(), d.Socket)
		if err != nil {
			harness.CheckError(t, err, locksidecar.ErrLimit, "max-sessions")
			return false
		}
		defer c.Close()
		if _, err := c.TryLock(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		return true
	})
	for _, w := range slow {
		harness.CheckContains(t, w.ExpectErrorThenEOF(protocol.NoHello), "hello")
	}
}
