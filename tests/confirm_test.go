package tests

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// findsFree reports whether a client of another host gets the lock at its first try. If so,
// it has released the lock again, in Redis too, when this returns.
func findsFree(t *testing.T, other *locksidecar.Client, name string) bool {
	t.Helper()
	l, err := other.TryLock(t.Context(), name)
	if err != nil {
		if !errors.Is(err, locksidecar.ErrHeld) {
			t.Fatal(err)
		}
		return false
	}
	unlockConfirmed(t, l)
	return true
}

func unlockConfirmed(t *testing.T, l *locksidecar.Lock) {
	t.Helper()
	if err := l.Unlock(locksidecar.Confirmed(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// A program releases a lock and at once signals another host, whose program tries to take
// the lock. With a confirmed release each try succeeds, although the first host's commands
// need 2 ms to reach Redis and the other host's need none.
func TestConfirmedReleaseIsExecutedBeforeAnotherHostIsSignalled(t *testing.T) {
	const rounds = 100
	r := startRedis(t)
	way := startProxy(t, r)
	here, there := startDaemon(t, way.url()), startDaemon(t, r.unixURL())
	way.slow(2 * time.Millisecond)
	other := dial(t, there)

	// compare counts the tries that succeed. How many do without the confirmation depends
	// on the machine, and proves nothing: it is only reported.
	compare := func(t *testing.T, lock func(), unlock func(confirm bool)) {
		free := map[bool]int{}
		for _, confirm := range []bool{true, false} {
			for range rounds {
				lock()
				unlock(confirm)
				if findsFree(t, other, "a") {
					free[confirm]++
				} else if l, err := other.Lock(t.Context(), "a"); err != nil {
					t.Fatal(err)
				} else {
					unlockConfirmed(t, l) // the next round begins with a free lock
				}
			}
		}
		t.Logf("the other host found the lock free %d times of %d after a confirmed release, and %d times of %d after one without confirmation",
			free[true], rounds, free[false], rounds)
		if free[true] != rounds {
			t.Errorf("the other host found the lock taken %d times of %d after a confirmed release", rounds-free[true], rounds)
		}
	}
	t.Run("go", func(t *testing.T) {
		c := dial(t, here)
		var l *locksidecar.Lock
		compare(t, func() {
			var err error
			if l, err = c.Lock(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}, func(confirm bool) {
			var options []locksidecar.UnlockOption
			if confirm {
				options = append(options, locksidecar.Confirmed(t.Context()))
			}
			if err := l.Unlock(options...); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("python", func(t *testing.T) {
		w := startPythonWorker(t, here)
		compare(t, func() { w.lock("a") }, func(confirm bool) {
			w.must(command{Do: "unlock", As: "a", Confirm: confirm})
		})
	})
}

// cut has nothing pass between a daemon and its Redis any more, on present connections and
// on new ones, until admit lets new connections through.
func cut(t *testing.T, way *proxy) {
	t.Helper()
	way.refuse()
	if way.swallow([]kind{commands}, toRedis, fromRedis) == 0 {
		t.Fatal("the daemon has no connection to Redis")
	}
}

// awaitRelease waits until the daemon has read the release of the lock "a".
func awaitRelease(t *testing.T, c *locksidecar.Client) {
	t.Helper()
	eventually(t, "the daemon has read the release", func() bool {
		row, known, err := c.Info(t.Context(), "a")
		return err == nil && (!known || row.State != protocol.StateHeld)
	})
}

// sdkWorkers are the processes that use an SDK, by its language.
func sdkWorkers() map[string]func(testing.TB, *daemon) *worker {
	workers := map[string]func(testing.TB, *daemon) *worker{"go": startGoWorker}
	if havePython() {
		workers["python"] = startPythonWorker
	}
	return workers
}

// While Redis cannot be reached, a confirmed release does not return. It returns once the
// daemon has reached Redis again and has executed the release.
func TestConfirmedReleaseReturnsAfterRedisIsReachedAgain(t *testing.T) {
	for lang, start := range sdkWorkers() {
		t.Run(lang, func(t *testing.T) {
			r := startRedis(t)
			way := startProxy(t, r)
			here, there := startDaemon(t, way.url(), longLease), startDaemon(t, r.unixURL(), longLease)
			w, admin, other := start(t, here), dial(t, here), dial(t, there)
			w.lock("a")
			cut(t, way)
			unlocked := w.ask(command{Do: "unlock", As: "a", Confirm: true})
			awaitRelease(t, admin)
			if findsFree(t, other, "a") {
				t.Error("the other host found the lock free although Redis had not executed the release")
			}
			select {
			case a := <-unlocked:
				t.Fatalf("before Redis had executed the release, it returned %+v", a)
			default:
			}
			way.admit()
			if a := w.await(unlocked); a.Err != "" {
				t.Fatalf("the release was not confirmed: %+v", a)
			}
			if !findsFree(t, other, "a") {
				t.Error("the other host found the lock taken after a confirmed release")
			}
		})
	}
}

// The daemon is killed before Redis has executed a release, and started again. The program
// that waits for the confirmation gets it from the successor, and then another host finds
// the lock free.
func TestConfirmationOutlivesTheDaemon(t *testing.T) {
	for lang, start := range sdkWorkers() {
		for _, read := range []bool{true, false} { // the release, by the daemon that is killed
			for _, more := range []bool{true, false} { // locks are held: then the successor resumes the session
				t.Run(fmt.Sprintf("%s, release read %v, more held %v", lang, read, more), func(t *testing.T) {
					r := startRedis(t)
					way := startProxy(t, r)
					here, there := startDaemon(t, way.url(), longLease), startDaemon(t, r.unixURL(), longLease)
					w, other := start(t, here), dial(t, there)
					w.lock("a")
					if more {
						w.lock("more")
					}
					unlocked := killBeforeRelease(t, here, way, w, read)
					if findsFree(t, other, "a") {
						t.Fatal("Redis executed the release before the daemon was killed")
					}
					here.start(longLease)
					if a := w.await(unlocked); a.Err != "" {
						t.Fatalf("the release was not confirmed: %+v", a)
					}
					if !findsFree(t, other, "a") {
						t.Error("the other host found the lock taken after a confirmed release")
					}
					if more {
						w.must(command{Do: "check", As: "more"})
					}
				})
			}
		}
	}
}

// killBeforeRelease has a worker release the lock "a" with confirmation, and kills the
// daemon before Redis has executed the release; read: after the daemon has read it. It
// returns where the worker's answer will be.
func killBeforeRelease(t *testing.T, d *daemon, way *proxy, w *worker, read bool) <-chan answer {
	t.Helper()
	admin := dial(t, d)
	if !read {
		d.suspend()
		unlocked := w.ask(command{Do: "unlock", As: "a", Confirm: true})
		eventually(t, "the worker has released the lock", func() bool {
			return w.try(command{Do: "check", As: "a"}).Err == "not_held"
		})
		d.kill9()
		return unlocked
	}
	cut(t, way)
	unlocked := w.ask(command{Do: "unlock", As: "a", Confirm: true})
	awaitRelease(t, admin)
	d.kill9()
	way.admit()
	return unlocked
}

// A daemon that starts without the state of its predecessor does not know of the release,
// and an SDK does not take its word for it: the lock is free when its lease ends.
func TestReleaseIsNotConfirmedByDaemonWithoutState(t *testing.T) {
	for lang, start := range sdkWorkers() {
		t.Run(lang, func(t *testing.T) {
			r := startRedis(t)
			way := startProxy(t, r)
			here, there := startDaemon(t, way.url(), longLease), startDaemon(t, r.unixURL(), longLease)
			w, other := start(t, here), dial(t, there)
			w.lock("a")
			unlocked := killBeforeRelease(t, here, way, w, true)
			if err := os.Remove(here.socket + ".state"); err != nil {
				t.Fatal(err)
			}
			here.start(longLease)
			if a := w.await(unlocked); a.Err != "unconfirmed" {
				t.Errorf("the release returned %+v", a)
			} else {
				says(t, a.Msg, "the sidecar was restarted", "the lock is released here", "when its lease ends")
			}
			if findsFree(t, other, "a") {
				t.Error("the lock is free, so the release could have been confirmed")
			}
			if left := r.PTTL(t.Context(), "a").Val(); left <= 0 || left > 10*time.Minute {
				t.Errorf("the lock's lease in Redis ends in %v", left)
			}
		})
	}
}

// A command runs under `locksidecar run` on one host, then one on another host: the second one finds the lock free if
// the first one has ended without a warning.
func TestRunEndsAfterItsReleaseIsConfirmed(t *testing.T) {
	r := startRedis(t)
	way := startProxy(t, r)
	here, there := startDaemon(t, way.url()), startDaemon(t, r.unixURL())
	way.slow(100 * time.Millisecond) // longer than run takes to exit
	other := dial(t, there)
	confirmed := 0
	eventually(t, "three releases of run are confirmed", func() bool {
		got := here.run("run", "a", "--", "true")
		if got.code != 0 {
			t.Fatalf("exit code %d: %s", got.code, got.stderr)
		}
		if got.stderr != "" { // run does not wait for longer than 2 s
			says(t, got.stderr, "warning", "no confirmation within 2s")
			return false
		}
		if !findsFree(t, other, "a") {
			t.Fatal("run ended without a warning, and the other host found the lock taken")
		}
		confirmed++
		return confirmed == 3
	})
}

// If run cannot learn that Redis has executed its release, it ends with the command's exit
// code and with a warning.
func TestRunWarnsThatItsReleaseIsNotConfirmed(t *testing.T) {
	r := startRedis(t)
	way := startProxy(t, r)
	here, there := startDaemon(t, way.url(), longLease), startDaemon(t, r.unixURL(), longLease)
	other := dial(t, there)
	run := startRun(t, here, "a", "echo ready; read line; exit 7")
	run.printed("ready")
	cut(t, way)
	run.stdin.Close() // ends read
	if code := run.wait(); code != 7 {
		t.Errorf("exit code %d, not 7", code)
	}
	_, warning, _ := strings.Cut(run.out.String(), "ready\n")
	says(t, warning, "warning", `the release of "a"`, "no confirmation within 2s", "the lock is released here", "when its lease ends")
	if findsFree(t, other, "a") {
		t.Error("the other host found the lock free although Redis had not executed the release")
	}
	way.admit()
	l, err := other.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	unlockConfirmed(t, l)
}
