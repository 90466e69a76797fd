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
	forEachLanguage(t, func(t *testing.T, start func(testing.TB, *daemon) *worker) {
		r := startRedis(t)
		d := startDaemon(t, r.unixURL(), longLease)
		w := start(t, d)
		token := w.lock("kept").Token
		before := r.fields("kept")

		was := limitFiles(t, w.pid(), noFiles)
		w.lock("more")
		w.unlock("more")
		w.must(command{Do: "lock", As: "short", Name: "short", WaitMS: -1, Lease: 3000})

		d.kill9()
		d.start(longLease)
		d.awaitAnswer()
		d.awaitRedis("ok")
		a := w.try(command{Do: "lock", As: "x", Name: "x", WaitMS: 300})
		if a.Err != "unavailable" {
			t.Errorf("who asks for a lock is told %+v", a)
		}
		says(t, a.Msg, "too many open files", d.socket)
		if a := w.try(command{Do: "lost", As: "short"}); a.Reason != string(protocol.Expired) || a.AtNS < a.DeadlineNS {
			t.Errorf("of a lock with a lease of its own the holder is told %+v", a)
		}
		w.must(command{Do: "check", As: "kept"})
		other := dial(t, d)
		if _, err := other.TryLock(t.Context(), "kept"); !errors.Is(err, locksidecar.ErrHeld) {
			t.Errorf("another client is told %v, not that the lock is held", err)
		}
		if d.log.contains("client is back") {
			t.Fatal("the client found a descriptor: this showed nothing")
		}

		limitFiles(t, w.pid(), was)
		eventually(t, "the client is back", func() bool {
			w.must(command{Do: "check", As: "kept"})
			return d.log.contains("client is back")
		})
		if now := r.fields("kept"); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("Redis has %v, before it had %v", now, before)
		}
		w.unlock("kept")
		if l := lockSoon(t, other, "kept"); l.Token() <= token {
			t.Errorf("token %d after %d", l.Token(), token)
		}
	})
}

// Who cannot even connect is told why, and can when there is a descriptor again.
func TestNoDescriptorForAConnection(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	was := limitFiles(t, os.Getpid(), noFiles)
	_, err := locksidecar.Dial(t.Context(), d.socket)
	limitFiles(t, os.Getpid(), was)
	mention(t, err, locksidecar.ErrUnavailable, d.socket, "too many open files")
	if havePython() {
		out, err := exec.Command(python(t), "-c", `
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
`, d.socket).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if n := strings.Count(strings.ToLower(string(out)), "too many open files"); n != 2 {
			t.Errorf("Python says %q", out)
		}
		says(t, string(out), "acquired")
	}
}

// occupy takes every place that the daemon has for clients.
func occupy(t *testing.T, d *daemon) (clients []*wire) {
	t.Helper()
	for range 10_000 {
		w := connectWire(t, d)
		body := protocol.Hello{ID: 1, V: protocol.Version, Client: "filler"}.Append(nil)
		w.conn.Write(body) // who is refused may be so before it has said hello
		m, err := w.next()
		if err != nil {
			t.Fatalf("neither welcome nor refused: %v", err)
		}
		e, _ := m["err"].(message)
		if e == nil {
			w.lastID = 1
			clients = append(clients, w)
			continue
		}
		if e["code"] != string(protocol.Limit) {
			t.Fatalf("refused with %v", m)
		}
		says(t, fmt.Sprint(e["msg"]), "files", "LimitNOFILE")
		w.conn.Close()
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
	r := startRedis(t)
	p := startProxy(t, r)
	d := &daemon{t: t, redisURL: p.url(), socket: shortDir(t) + "/s.sock", maxFiles: 128}
	d.start("--lease=3s")
	d.awaitAnswer()
	d.awaitRedis("ok")
	there := startGoWorker(t, startDaemon(t, r.unixURL(), longLease))
	holder, dies := startGoWorker(t, d), startGoWorker(t, d)
	holder.lock("kept")
	dies.must(command{Do: "lock", As: "dies", Name: "dies", WaitMS: -1, Lease: 600_000})

	clients := occupy(t, d)
	t.Logf("%d clients fit beside two, with %d files open of %d", len(clients), descriptors(t, d.pid()), d.maxFiles)
	if len(clients) < 10 {
		t.Errorf("only %d clients fit", len(clients))
	}
	// The last place that there is goes to one whose death its connection does
	// not show.
	clients[0].conn.Close()
	parent, child := startSharedSocket(t, d)
	for range 100 {
		occupy(t, d)
	}

	// Those who are refused hear why in their own way.
	_, err := locksidecar.Dial(t.Context(), d.socket)
	mention(t, err, locksidecar.ErrLimit, "LimitNOFILE")
	if got := d.run("ls"); got.code == 0 {
		t.Error("`locksidecar ls` was served")
	} else {
		says(t, got.stderr, "LimitNOFILE")
	}
	if havePython() {
		out, err := exec.Command(python(t), "-c", "import locksidecar, sys\n"+
			"try: locksidecar.connect(sys.argv[1]).lock('x').acquire()\n"+
			"except locksidecar.LocksidecarError as e: print(e)", d.socket).CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		says(t, string(out), "LimitNOFILE")
	}

	// Nobody may leave the daemon without Redis, or a waiter without its wake-up; nor
	// those who are refused and do not go.
	for range 100 {
		connectWire(t, d)
	}
	there.lock("far")
	for range 3 {
		relays := p.reset()
		if relays == 0 {
			t.Error("there was no connection to Redis to be reset")
		}
		eventually(t, "the daemon has reached Redis anew", func() bool {
			return clients[1].ask(message{"op": "ping"})["redis"] == "ok"
		})
		awaitRenewals(t, r, "kept", 1)
	}
	granted := holder.ask(command{Do: "lock", As: "far", Name: "far", WaitMS: -1})
	eventually(t, "the daemon listens", func() bool { return r.listeners("far") == 1 })
	there.unlock("far")
	if a := holder.await(granted); a.Err != "" {
		t.Errorf("the waiter is told %+v", a)
	}
	holder.must(command{Do: "check", As: "kept"})

	// Who dies is noticed, without its connection's help too.
	parent.Process.Kill()
	holder.lock("forked")
	if !alive(child) {
		t.Error("the child is dead too: this showed nothing")
	}
	dies.kill9()
	holder.lock("dies")

	for _, w := range clients {
		w.conn.Close()
	}
	eventually(t, "there is a place again", func() bool {
		c, err := locksidecar.Dial(t.Context(), d.socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if n := strings.Count(d.log.String(), "clients are refused"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// A daemon whose limit was lowered under it can open nothing at all. It serves those
// whom it has; who comes waits, and is served when there are descriptors again.
func TestDaemonWithoutDescriptors(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=3s")
	w := startGoWorker(t, d)
	w.lock("kept")
	was := limitFiles(t, d.pid(), noFiles)
	late := connectWire(t, d)
	late.send(message{"op": "hello", "id": 1, "v": protocol.Version})
	eventually(t, "the log says what to do", func() bool { return d.log.contains("raise the limit of open files") })
	awaitRenewals(t, r, "kept", 4)
	w.lock("more")
	w.unlock("more")
	limitFiles(t, d.pid(), was)
	if m, err := late.next(); err != nil || m["err"] != nil {
		t.Errorf("who waited was told %v (%v)", m, err)
	}
	if n := strings.Count(d.log.String(), "raise the limit of open files"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
	w.must(command{Do: "check", As: "kept"})
}

// A daemon that is restarted with fewer descriptors than its clients need takes in as
// many as it can, and keeps what the others hold for one with a higher limit.
func TestDaemonRestartedWithTooFewDescriptors(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), longLease)
	const n = 60
	locks := make([]*locksidecar.Lock, n)
	clients := make([]*locksidecar.Client, n)
	name := func(i int) string { return fmt.Sprintf("lock %d", i) }
	for i := range locks {
		clients[i] = dial(t, d)
		l, err := clients[i].Lock(t.Context(), name(i))
		if err != nil {
			t.Fatal(err)
		}
		locks[i] = l
	}
	late := startGoWorker(t, d) // it will hardly find a place
	const lateLock = "lock of who is late"
	late.lock(lateLock)
	late.signal(syscall.SIGSTOP)
	d.kill9()
	d.maxFiles = 128
	d.start(longLease)
	d.awaitAnswer()
	back := func() int { return strings.Count(d.log.String(), "client is back") }
	eventually(t, "there is no room for another client", func() bool { return d.log.contains("clients are refused") })
	eventually(t, "some clients are back", func() bool { return back() >= 10 })
	says(t, d.log.String(), "too few files", "LimitNOFILE")
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
	late.signal(syscall.SIGCONT)
	// Even then it may be lucky: what counts is that its lock stays.
	if a := late.try(command{Do: "lock", As: "x", Name: "x", WaitMS: 300}); a.Err != "" {
		says(t, a.Msg, "LimitNOFILE")
	}
	late.must(command{Do: "check", As: lateLock})
	t.Logf("%d of %d clients came back with %d files open of %d", back(), n, descriptors(t, d.pid()), d.maxFiles)
	d.kill9()
	some := back()
	d.maxFiles = 0
	d.start(longLease)
	d.awaitAnswer()
	eventually(t, "all clients are back", func() bool { return back() == some+n+1 })
	late.unlock(lateLock)
	for i, l := range locks {
		if err := l.Unlock(); err != nil {
			t.Errorf("%s: %v", name(i), err)
		}
	}
	eventually(t, "all locks are free", func() bool { return len(r.Keys(t.Context(), "lock *").Val()) == 0 })
	for _, c := range clients {
		c.Close() // while there is somebody to say bye to
	}
	d.kill9()

	d.maxFiles = 100
	d.start()
	eventually(t, "a daemon with a limit with which it is of no use does not start", d.ended)
	says(t, d.log.String(), "100 files", "LimitNOFILE")
}
