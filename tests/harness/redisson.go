package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// redissonProcess is the process in which all tests of a package lock with Redisson, because
// to start a JVM takes longer than most tests. nil: no test has needed it yet.
var redissonProcess *workerProcess

var startRedissonProcess = sync.OnceValue(func() error {
	jar := os.Getenv("LOCKSIDECAR_REDISSON_JAR")
	if jar == "" {
		jar = filepath.Join(root, "tests/redisson/target/redisson-worker.jar")
	}
	if _, err := os.Stat(jar); err != nil {
		return err
	}
	// The second compiler costs more than it saves in a process that lives for a minute.
	var err error
	redissonProcess, err = startWorkerProcess(exec.Command("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-jar", jar))
	return err
})

// endRedissonProcess ends the process after all tests.
func endRedissonProcess() {
	if redissonProcess != nil {
		redissonProcess.Kill()
	}
}

var redissonClients atomic.Int64 // numbers them

// StartRedisson returns a thread of a new RedissonClient of this Redis. Each client stands
// for a program on another host: it has a uuid and connections of its own.
//
// The answer to lock is "held" or "timeout" if the lock was not granted, and has a token if
// the object is a fenced lock.
func StartRedisson(t testing.TB, r *Redis) *Worker {
	t.Helper()
	return startRedisson(t, Command{Redis: r.TCPURL()})
}

// StartRedissonAt is StartRedisson with a URL, which may be that of Sentinels or of a Cluster.
func StartRedissonAt(t testing.TB, url string) *Worker {
	t.Helper()
	return startRedisson(t, Command{Redis: url})
}

// StartRedissonWithWatchdog is StartRedisson with a lockWatchdogTimeout, in ms.
func StartRedissonWithWatchdog(t testing.TB, r *Redis, watchdogMS int64) *Worker {
	t.Helper()
	return startRedisson(t, Command{Redis: r.TCPURL(), Watchdog: watchdogMS})
}

// StartRedissonWithPrefix is StartRedisson with a NameMapper that puts a prefix before the
// name of each lock and of everything else.
func StartRedissonWithPrefix(t testing.TB, r *Redis, prefix string) *Worker {
	t.Helper()
	return startRedisson(t, Command{Redis: r.TCPURL(), Prefix: prefix})
}

func startRedisson(t testing.TB, connect Command) *Worker {
	t.Helper()
	if err := startRedissonProcess(); err != nil {
		why := fmt.Sprintf("no program that locks with Redisson (%v): run `make redisson`, or set LOCKSIDECAR_REDISSON_JAR", err)
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDISSON") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	w := &Worker{
		workerProcess: redissonProcess, t: t,
		client: fmt.Sprintf("%s %d", t.Name(), redissonClients.Add(1)), thread: "main",
	}
	connect.Do = "connect"
	w.version = w.Must(connect).Msg
	w.disconnect = sync.OnceFunc(func() { w.Must(Command{Do: "disconnect"}) })
	t.Cleanup(func() {
		if t.Failed() && w.Stderr.String() != "" {
			t.Logf("the log of Redisson, of all tests so far:\n%s", Tail(w.Stderr.String(), 40))
		}
		if !w.HasEnded() {
			w.disconnect()
		}
	})
	return w
}

// Disconnect closes the RedissonClient before the test ends. Locks that its threads hold are
// free at the ends of their leases.
func (w *Worker) Disconnect() { w.disconnect() }

// Locks returns those of these kinds of locks that this version of Redisson has.
func (w *Worker) Locks(objects ...string) []string {
	if strings.HasPrefix(w.version, "3.") {
		return slices.DeleteFunc(objects, func(o string) bool { return o == "nonreentrant" })
	}
	return objects
}

// OnThread returns another thread of the same RedissonClient.
func (w *Worker) OnThread(thread string) *Worker {
	v := *w
	v.thread = thread
	return &v
}

// In returns the worker for use in a subtest: its failures end the subtest.
func (w *Worker) In(t testing.TB) *Worker {
	v := *w
	v.t = t
	return &v
}
