package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// limitFiles changes how many files a process may have open, and returns how many it
// was. What is open stays so.
func limitFiles(t testing.TB, pid int, n uint64) (was uint64) {
	t.Helper()
	var l unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &l); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: l.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return l.Cur
}

// noFiles is a limit with which a process that runs can open nothing more: what is
// below it is open already.
const noFiles = 3

// A process that can open no file goes on with the connection that it has. If that
// ends, it believes in what it holds until the deadlines, says what is wrong to who
// asks for more, and comes back as soon as it can.
func TestClientWithoutDescriptors(t *testing.T) {
	forEachLanguage(t, func(t *testing.T, start func(testing.TB, *harness.Daemon) *harness.Worker) {
		r := harness.StartRedis(t)
		d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
		w := start(t, d)
		token := w.Lock("kept").Token
		before := r.Fields("kept")

		was := limitFiles(t, w.PID(), noFiles)
		w.Lock("more")
		w.Unlock("more")
		w.Must(harness.Command{Do: "lock", As: "short", Name: "short", WaitMS: -1, Lease: 3000})

		d.Kill()
		d.Start(harness.LongLease)
		d.AwaitSocket()
		d.AwaitRedis("ok")
		a := w.Try(harness.Command{Do: "lock", As: "x", Name: "x", WaitMS: 300})
		if a.Err != "unavailable" {
			t.Errorf("who asks for a lock is told %+v", a)
		}
		harness.CheckContains(t, a.Msg, "too many open files", d.Socket)
		if a := w.Try(harness.Command{Do: "lost", As: "short"}); a.Reason != string(protocol.Expired) || a.AtNS < a.DeadlineNS {
			t.Errorf("of a lock with a lease of its own the holder is told %+v", a)
		}
		w.Must(harness.Command{Do: "check", As: "kept"})
		other := harness.Dial(t, d)
		if _, err := other.TryLock(t.Context(), "kept"); !errors.Is(err, locksidecar.ErrHeld) {
			t.Errorf("another client is told %v, not that the lock is held", err)
		}
		if d.Log.Contains("client is back") {
			t.Fatal("the client found a descriptor: this showed nothing")
		}

		limitFiles(t, w.PID(), was)
		harness.Eventually(t, "the client is back", func() bool {
			w.Must(harness.Command{Do: "check", As: "kept"})
			return d.Log.Contains("client is back")
		})
		if now := r.Fields("kept"); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("Redis has %v, before it had %v", now, before)
		}
		w.Unlock("kept")
		if l := lockSoon(t, other, "kept"); l.Token() <= token {
			t.Errorf("token %d after %d", l.Token(), token)
		}
	})
}

// Who cannot even connect is told why, and can when there is a descriptor again.
func TestNoDescriptorForAConnection(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	was := limitFiles(t, os.Getpid(), noFiles)
	_, err := locksidecar.Dial(t.Context(), d.Socket)
	limitFiles(t, os.Getpid(), was)
	harness.CheckError(t, err, locksidecar.ErrUnavailable, d.Socket, "too many open files")
	if harness.HasPython() {
		out, err := exec.Command(harness.Python(t), "-c", `
import os, resource, sys, locksidecar
free = os.dup(0)
os.close(free)
def limit(n):
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, 64))
for spare in 0, 1:
    limit(free + spare)
    try:
        locksidecar.connect(sys.argv[1]).lock("x").acquire()
    except (locksidecar.Unavailable, OSError) as e:
        print(e)
limit(64)
with locksidecar.connect(sys.argv[1]).lock("x"):
    print("acquired")
`, d.Socket).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if n := strings.Count(strings.ToLower(string(out)), "too many open files"); n != 2 {
			t.Errorf("Python says %q", out)
		}
		harness.CheckContains(t, string(out), "acquired")
	}
}

// occupy takes every place that the daemon has for clients.
func occupy(t *testing.T, d *harness.Daemon) (clients []*harness.RawClient) {
	t.Helper()
	for range 10_000 {
		w := harness.ConnectRaw(t, d)
		body := protocol.Hello{ID: 1, V: protocol.Version, Client: "filler"}.Append(nil)
		w.Conn.Write(body) // who is refused may be so before it has said hello
		m, err := w.Next()
		if err != nil {
			t.Fatalf("neither welcome nor refused: %v", err)
		}
		e, _ := m["err"].(harness.Message)
		if e == nil {
			w.LastID = 1
			clients = append(clients, w)
			continue
		}
		if e["code"] != string(protocol.Limit) {
			t.Fatalf("refused with %v", m)
		}
		harness.CheckContains(t, fmt.Sprint(e["msg"]), "files", "LimitNOFILE")
		w.Conn.Close()
		return clients
	}
	t.Fatal("the daemon takes in whoever comes")
	return nil
}

// A daemon that can open no more files for clients goes on serving those it has: it
// renews, listens, connects to Redis anew and watches every client's process, from a
// reserve that clients cannot touch. New ones are told what to do, the log says it
// once, and when somebody leaves there is a place again.
func TestDaemonAtItsLimitOfDescriptors(t *testing.T) {
	r := harness.StartRedis(t)
	p := harness.StartProxy(t, r)
	d := harness.NewDaemon(t, p.URL())
	d.MaxFiles = 128
	d.Start("--lease=3s")
	d.AwaitSocket()
	d.AwaitRedis("ok")
	there := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL(), harness.LongLease))
	holder, dies := harness.StartGoWorker(t, d), harness.StartGoWorker(t, d)
	holder.Lock("kept")
	dies.Must(harness.Command{Do: "lock", As: "dies", Name: "dies", WaitMS: -1, Lease: 600_000})

	clients := occupy(t, d)
	t.Logf("%d clients fit beside two, with %d files open of %d", len(clients), harness.OpenFiles(t, d.PID()), d.MaxFiles)
	if len(clients) < 10 {
		t.Errorf("only %d clients fit", len(clients))
	}
	// The last place that there is goes to one whose death its connection does
	// not show.
	clients[0].Conn.Close()
	parent, child := startSharedSocket(t, d)
	for range 100 {
		occupy(t, d)
	}

	// Those who are refused hear why in their own way.
	_, err := locksidecar.Dial(t.Context(), d.Socket)
	harness.CheckError(t, err, locksidecar.ErrLimit, "LimitNOFILE")
	if got := d.Run("ls"); got.Code == 0 {
		t.Error("`locksidecar ls` was served")
	} else {
		harness.CheckContains(t, got.Stderr, "LimitNOFILE")
	}
	if harness.HasPython() {
		out, err := exec.Command(harness.Python(t), "-c", "import locksidecar, sys\n"+
			"try: locksidecar.connect(sys.argv[1]).lock('x').acquire()\n"+
			"except locksidecar.LocksidecarError as e: print(e)", d.Socket).CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		harness.CheckContains(t, string(out), "LimitNOFILE")
	}

	// Nobody may leave the daemon without Redis, or a waiter without its wake-up; nor
	// those who are refused and do not go.
	for range 100 {
		harness.ConnectRaw(t, d)
	}
	there.Lock("far")
	for range 3 {
		relays := p.Reset()
		if relays == 0 {
			t.Error("there was no connection to Redis to be reset")
		}
		harness.Eventually(t, "the daemon has reached Redis anew", func() bool {
			return clients[1].Call(harness.Message{"op": "ping"})["redis"] == "ok"
		})
		awaitRenewals(t, r, "kept", 1)
	}
	granted := holder.Send(harness.Command{Do: "lock", As: "far", Name: "far", WaitMS: -1})
	harness.Eventually(t, "the daemon listens", func() bool { return r.Subscribers("far") == 1 })
	there.Unlock("far")
	if a := holder.Await(granted); a.Err != "" {
		t.Errorf("the waiter is told %+v", a)
	}
	holder.Must(harness.Command{Do: "check", As: "kept"})

	// Who dies is noticed, without its connection's help too.
	parent.Process.Kill()
	holder.Lock("forked")
	if !harness.IsAlive(child) {
		t.Error("the child is dead too: this showed nothing")
	}
	dies.Kill()
	holder.Lock("dies")

	for _, w := range clients {
		w.Conn.Close()
	}
	harness.Eventually(t, "there is a place again", func() bool {
		c, err := locksidecar.Dial(t.Context(), d.Socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if n := strings.Count(d.Log.String(), "clients are refused"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// A daemon whose limit was lowered under it can open nothing at all. It serves those
// whom it has; who comes waits, and is served when there are descriptors again.
func TestDaemonWithoutDescriptors(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=3s")
	w := harness.StartGoWorker(t, d)
	w.Lock("kept")
	was := limitFiles(t, d.PID(), noFiles)
	late := harness.ConnectRaw(t, d)
	late.Send(harness.Message{"op": "hello", "id": 1, "v": protocol.Version})
	harness.Eventually(t, "the log says what to do", func() bool { return d.Log.Contains("raise the limit of open files") })
	awaitRenewals(t, r, "kept", 4)
	w.Lock("more")
	w.Unlock("more")
	limitFiles(t, d.PID(), was)
	if m, err := late.Next(); err != nil || m["err"] != nil {
		t.Errorf("who waited was told %v (%v)", m, err)
	}
	if n := strings.Count(d.Log.String(), "raise the limit of open files"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
	w.Must(harness.Command{Do: "check", As: "kept"})
}

// A daemon that is restarted with fewer descriptors than its clients need takes in as
// many as it can, and keeps what the others hold for one with a higher limit.
func TestDaemonRestartedWithTooFewDescriptors(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	const n = 60
	locks := make([]*locksidecar.Lock, n)
	clients := make([]*locksidecar.Client, n)
	name := func(i int) string { return fmt.Sprintf("lock %d", i) }
	for i := range locks {
		clients[i] = harness.Dial(t, d)
		l, err := clients[i].Lock(t.Context(), name(i))
		if err != nil {
			t.Fatal(err)
		}
		locks[i] = l
	}
	late := harness.StartGoWorker(t, d) // it will hardly find a place
	const lateLock = "lock of who is late"
	late.Lock(lateLock)
	late.Signal(syscall.SIGSTOP)
	d.Kill()
	d.MaxFiles = 128
	d.Start(harness.LongLease)
	d.AwaitSocket()
	back := func() int { return strings.Count(d.Log.String(), "client is back") }
	harness.Eventually(t, "there is no room for another client", func() bool { return d.Log.Contains("clients are refused") })
	harness.Eventually(t, "some clients are back", func() bool { return back() >= 10 })
	harness.CheckContains(t, d.Log.String(), "too few files", "LimitNOFILE")
	for i, l := range locks {
		if err := l.Err(); err != nil {
			t.Errorf("%s: its holder is told %v", name(i), err)
		}
		if r.Exists(t.Context(), name(i)).Val() != 1 {
			t.Errorf("%s is not in Redis", name(i))
		}
	}
	for len(occupy(t, d)) > 0 { // who has just come back leaves room for others
	}
	late.Signal(syscall.SIGCONT)
	// Even then it may be lucky: what counts is that its lock stays.
	if a := late.Try(harness.Command{Do: "lock", As: "x", Name: "x", WaitMS: 300}); a.Err != "" {
		harness.CheckContains(t, a.Msg, "LimitNOFILE")
	}
	late.Must(harness.Command{Do: "check", As: lateLock})
	t.Logf("%d of %d clients came back with %d files open of %d", back(), n, harness.OpenFiles(t, d.PID()), d.MaxFiles)
	d.Kill()
	some := back()
	d.MaxFiles = 0
	d.Start(harness.LongLease)
	d.AwaitSocket()
	harness.Eventually(t, "all clients are back", func() bool { return back() == some+n+1 })
	late.Unlock(lateLock)
	for i, l := range locks {
		if err := l.Unlock(); err != nil {
			t.Errorf("%s: %v", name(i), err)
		}
	}
	harness.Eventually(t, "all locks are free", func() bool { return len(r.Keys(t.Context(), "lock *").Val()) == 0 })
	for _, c := range clients {
		c.Close() // while there is somebody to say bye to
	}
	d.Kill()

	d.MaxFiles = 100
	d.Start()
	harness.Eventually(t, "a daemon with a limit with which it is of no use does not start", d.HasEnded)
	harness.CheckContains(t, d.Log.String(), "100 files", "LimitNOFILE")
}
