package tests

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
)

// redissonProcess is the process in which all tests lock with Redisson: to start one
// takes longer than most of the tests. nil: none has been needed yet.
var redissonProcess *workerProcess

var startRedissonProcess = sync.OnceValue(func() error {
	jar := os.Getenv("LOCKSIDECAR_REDISSON_JAR")
	if jar == "" {
		jar = "redisson/target/redisson-worker.jar"
	}
	if _, err := os.Stat(jar); err != nil {
		return err
	}
	// A process that lives for a minute is faster without the second compiler.
	var err error
	redissonProcess, err = startWorkerProcess(exec.Command("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-jar", jar))
	return err
})

// endRedissonProcess is called after all tests.
func endRedissonProcess() {
	if redissonProcess != nil {
		redissonProcess.kill9()
	}
}

var redissonClients atomic.Int64 // numbers them

// startRedisson returns a thread of a new RedissonClient that talks to this Redis. Each
// client stands for a program on a host of its own: it has a uuid and connections of its
// own. It ends with the test.
//
// The answer to lock is "held" or "timeout" if the lock was not to be had, and has a token
// if the object is a fenced lock.
func startRedisson(t testing.TB, r *redisServer) *worker {
	t.Helper()
	return startRedissonAs(t, command{Redis: r.tcpURL()})
}

// startRedissonWithWatchdog is startRedisson with a lockWatchdogTimeout, in ms.
func startRedissonWithWatchdog(t testing.TB, r *redisServer, watchdogMS int64) *worker {
	t.Helper()
	return startRedissonAs(t, command{Redis: r.tcpURL(), Watchdog: watchdogMS})
}

// startRedissonWithPrefix is startRedisson with a NameMapper that puts a prefix before the
// name of each lock and of everything else.
func startRedissonWithPrefix(t testing.TB, r *redisServer, prefix string) *worker {
	t.Helper()
	return startRedissonAs(t, command{Redis: r.tcpURL(), Prefix: prefix})
}

func startRedissonAs(t testing.TB, connect command) *worker {
	t.Helper()
	if err := startRedissonProcess(); err != nil {
		why := fmt.Sprintf("no program that locks with Redisson (%v): run `make redisson`, or set LOCKSIDECAR_REDISSON_JAR", err)
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDISSON") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	w := &worker{
		workerProcess: redissonProcess, t: t,
		client: fmt.Sprintf("%s %d", t.Name(), redissonClients.Add(1)), thread: "main",
	}
	connect.Do = "connect"
	w.must(connect)
	t.Cleanup(func() {
		if t.Failed() && w.stderr.String() != "" {
			t.Logf("what Redisson logged in all tests so far:\n%s", tail(w.stderr.String(), 40))
		}
		if !w.ended() {
			w.must(command{Do: "disconnect"})
		}
	})
	return w
}

// onThread returns another thread of the same RedissonClient.
func (w *worker) onThread(thread string) *worker {
	v := *w
	v.thread = thread
	return &v
}

// in returns the worker for use in a subtest, which is the test that its failures end.
func (w *worker) in(t testing.TB) *worker {
	v := *w
	v.t = t
	return &v
}
