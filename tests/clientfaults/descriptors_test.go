package clientfaults

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

// limitFiles sets the limit of open files of a process, and returns the old one. Files that
// are open stay open.
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

// noFiles is a limit with which a running process can open no file, because all descriptors
// below it are in use.
const noFiles = 3

// A client process that can open no file uses its present connection. When that ends, it
// holds its locks until the deadlines, fails other requests with the reason, and reconnects
// as soon as it can open a file.
//
// Shows docs/guarantees.md: Has no file descriptors left.
func TestClientWithoutDescriptorsKeepsItsLock(t *testing.T) {
	t.Parallel()
	harness.ForEachSDK(t, func(t *testing.T, sdk harness.SDK) {
		t.Parallel()
		r := harness.StartRedis(t)
		d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
		w := sdk.StartWorker(t, d)
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
			t.Errorf("another request is answered %+v", a)
		}
		harness.CheckContains(t, a.Msg, "too many open files", d.Socket)
		if a := w.Try(harness.Command{Do: "lost", As: "short"}); a.Reason != string(protocol.Expired) || a.AtNS < a.DeadlineNS {
			t.Errorf("of a lock with a lease of its own, the SDK reports %+v", a)
		}
		w.Must(harness.Command{Do: "check", As: "kept"})
		other := harness.Dial(t, d)
		if _, err := other.TryLock(t.Context(), "kept"); !errors.Is(err, locksidecar.ErrHeld) {
			t.Errorf("another client got %v, not that the lock is held", err)
		}
		if d.Log.Contains("client is back") {
			t.Fatal("the client found a descriptor: the test shows nothing")
		}

		limitFiles(t, w.PID(), was)
		harness.Eventually(t, "the client has reconnected", func() bool {
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

// A process that cannot connect, because it can open no file, gets an error that says so. It
// can connect when there is a descriptor again.
//
// Shows docs/guarantees.md: Leaves the daemon no file descriptors.
func TestDialWithoutDescriptorsReportsIt(t *testing.T) {
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
			t.Errorf("Python prints %q", out)
		}
		harness.CheckContains(t, string(out), "acquired")
	}
}

// occupy connects as many clients as the daemon accepts.
func occupy(t *testing.T, d *harness.Daemon) (clients []*harness.RawClient) {
	t.Helper()
	for range 10_000 {
		w := harness.ConnectRaw(t, d)
		body := protocol.Hello{ID: 1, V: protocol.Version, Client: "filler"}.Append(nil)
		w.Conn.Write(body) // a connection may be refused before hello
		m, err := w.Next()
		if err != nil {
			t.Fatalf("neither accepted nor refused: %v", err)
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
	t.Fatal("the daemon accepts any number of clients")
	return nil
}

// A daemon that has no more descriptors for clients serves those that are connected: it
// renews, subscribes, reconnects to Redis and watches the process of each client, with a
// reserve of descriptors. Other clients are refused with an error that says what to do, the
// log has it once, and when a client has disconnected, another one can connect.
//
// Shows docs/guarantees.md: Leaves the daemon no file descriptors.
func TestDaemonAtItsLimitOfDescriptorsServesItsClients(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	p := harness.StartProxy(t, r)
	d := harness.NewDaemon(t, p.URL())
	d.MaxFiles = 128
	d.Start("--lease=12s")
	d.AwaitSocket()
	d.AwaitRedis("ok")
	there := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL(), harness.LongLease))
	holder, dies := harness.StartGoWorker(t, d), harness.StartGoWorker(t, d)
	holder.Lock("kept")
	dies.Must(harness.Command{Do: "lock", As: "dies", Name: "dies", WaitMS: -1, Lease: 600_000})

	clients := occupy(t, d)
	open := harness.OpenFiles(t, d.PID())
	t.Logf("%d clients could connect apart from two, with %d files open of %d", len(clients), open, d.MaxFiles)
	if reserve := 48; open > d.MaxFiles-reserve { // 64, but for clients that are just refused
		t.Errorf("with %d files open of %d, fewer than %d are left to the daemon", open, d.MaxFiles, reserve)
	}
	if len(clients) < 10 {
		t.Errorf("only %d clients could connect", len(clients))
	}
	// The last client is one whose end cannot be detected by its connection.
	clients[0].Conn.Close()
	parent, child := startSharedSocket(t, d)
	for range 100 {
		occupy(t, d)
	}

	// Each kind of client reports why it was refused.
	_, err := locksidecar.Dial(t.Context(), d.Socket)
	harness.CheckError(t, err, locksidecar.ErrLimit, "LimitNOFILE")
	if got := d.Run("ls"); got.Code == 0 {
		t.Error("`locksidecar ls` was accepted")
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

	// Clients that were refused and stay connected keep the daemon neither from Redis nor
	// from its subscription.
	for range 100 {
		harness.ConnectRaw(t, d)
	}
	there.Lock("far")
	for range 3 {
		relays := p.Reset()
		if relays == 0 {
			t.Error("there was no connection to Redis to be reset")
		}
		harness.Eventually(t, "the daemon has reconnected to Redis", func() bool {
			return clients[1].Call(harness.Message{"op": "ping"})["redis"] == "ok"
		})
		awaitRenewals(t, r, "kept", 1)
	}
	granted := holder.Send(harness.Command{Do: "lock", As: "far", Name: "far", WaitMS: -1})
	harness.Eventually(t, "the daemon has subscribed", func() bool { return r.Subscribers("far") == 1 })
	there.Unlock("far")
	if a := holder.Await(granted); a.Err != "" {
		t.Errorf("the waiter got %+v", a)
	}
	holder.Must(harness.Command{Do: "check", As: "kept"})

	// The end of a process is detected, also without its connection.
	parent.Process.Kill()
	holder.Lock("forked")
	if !harness.IsAlive(child) {
		t.Error("the child is dead, too: the test shows nothing")
	}
	dies.Kill()
	holder.Lock("dies")

	for _, w := range clients {
		w.Conn.Close()
	}
	harness.Eventually(t, "another client can connect", func() bool {
		c, err := locksidecar.Dial(t.Context(), d.Socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if n := strings.Count(d.Log.String(), "clients are refused"); n != 1 {
		t.Errorf("the log has it %d times", n)
	}
}

// A daemon whose limit is lowered while it runs can open no file. It serves the clients that
// are connected. Another client waits, and is served when there are descriptors again.
//
// Shows docs/guarantees.md: Leaves the daemon no file descriptors.
func TestDaemonWithoutDescriptorsServesItsClients(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=12s")
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
		t.Errorf("the client that waited got %v (%v)", m, err)
	}
	if n := strings.Count(d.Log.String(), "raise the limit of open files"); n != 1 {
		t.Errorf("the log has it %d times", n)
	}
	w.Must(harness.Command{Do: "check", As: "kept"})
}

// A daemon that is restarted with fewer descriptors than its clients need accepts as many
// clients as it can. It keeps the locks of the others, for a successor with a higher limit.
//
// Shows docs/guarantees.md: Leaves the daemon no file descriptors.
func TestDaemonRestartedWithTooFewDescriptorsKeepsLocks(t *testing.T) {
	t.Parallel()
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
	late := harness.StartGoWorker(t, d) // the daemon will hardly accept it
	const lateLock = "lock of the late client"
	late.Lock(lateLock)
	late.Signal(syscall.SIGSTOP)
	d.Kill()
	d.MaxFiles = 128
	d.Start(harness.LongLease)
	d.AwaitSocket()
	back := func() int { return strings.Count(d.Log.String(), "client is back") }
	harness.Eventually(t, "the daemon refuses clients", func() bool { return d.Log.Contains("clients are refused") })
	harness.Eventually(t, "some clients have reconnected", func() bool { return back() >= 10 })
	d.Log.AwaitWords(t, "too few files", "LimitNOFILE")
	for i, l := range locks {
		if err := l.Err(); err != nil {
			t.Errorf("%s: the SDK of the holder reports %v", name(i), err)
		}
		if r.Exists(t.Context(), name(i)).Val() != 1 {
			t.Errorf("%s is not in Redis", name(i))
		}
	}
	for len(occupy(t, d)) > 0 { // a client that has just reconnected frees a descriptor
	}
	late.Signal(syscall.SIGCONT)
	// It may be accepted all the same. Its lock must stay in any case.
	if a := late.Try(harness.Command{Do: "lock", As: "x", Name: "x", WaitMS: 300}); a.Err != "" {
		harness.CheckContains(t, a.Msg, "LimitNOFILE")
	}
	late.Must(harness.Command{Do: "check", As: lateLock})
	t.Logf("%d of %d clients reconnected, with %d files open of %d", back(), n, harness.OpenFiles(t, d.PID()), d.MaxFiles)
	d.Kill()
	some := back()
	d.MaxFiles = 0
	d.Start(harness.LongLease)
	d.AwaitSocket()
	harness.Eventually(t, "all clients have reconnected", func() bool { return back() == some+n+1 })
	late.Unlock(lateLock)
	for i, l := range locks {
		if err := l.Unlock(); err != nil {
			t.Errorf("%s: %v", name(i), err)
		}
	}
	harness.Eventually(t, "all locks are free", func() bool { return len(r.Keys(t.Context(), "lock *").Val()) == 0 })
	for _, c := range clients {
		c.Close() // while the daemon runs
	}
	d.Kill()

	d.MaxFiles = 100
	d.Start()
	harness.Eventually(t, "a daemon with a limit that leaves no descriptors for clients does not start", d.HasEnded)
	d.Log.AwaitWords(t, "100 files", "LimitNOFILE")
}
