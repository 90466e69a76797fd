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
	"github.com/locksidecar/locksidecar/tests/harness"
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
	r := harness.StartRedis(t)
	way := harness.StartProxy(t, r)
	here, there := harness.StartDaemon(t, way.URL()), harness.StartDaemon(t, r.UnixURL())
	way.SetDelay(2 * time.Millisecond)
	other := harness.Dial(t, there)

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
		c := harness.Dial(t, here)
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
		w := harness.StartPythonWorker(t, here)
		compare(t, func() { w.Lock("a") }, func(confirm bool) {
			w.Must(harness.Command{Do: "unlock", As: "a", Confirm: confirm})
		})
	})
}

// cut has nothing pass between a daemon and its Redis any more, on present connections and
// on new ones, until admit lets new connections through.
func cut(t *testing.T, way *harness.Proxy) {
	t.Helper()
	way.Refuse()
	if way.Blackhole([]harness.ConnectionKind{harness.Commands}, harness.ToRedis, harness.FromRedis) == 0 {
		t.Fatal("the daemon has no connection to Redis")
	}
}

// awaitRelease waits until the daemon has read the release of the lock "a".
func awaitRelease(t *testing.T, c *locksidecar.Client) {
	t.Helper()
	harness.Eventually(t, "the daemon has read the release", func() bool {
		row, known, err := c.Info(t.Context(), "a")
		return err == nil && (!known || row.State != protocol.StateHeld)
	})
}

// sdkWorkers are the processes that use an SDK, by its language.
func sdkWorkers() map[string]func(testing.TB, *harness.Daemon) *harness.Worker {
	workers := map[string]func(testing.TB, *harness.Daemon) *harness.Worker{"go": harness.StartGoWorker}
	if harness.HasPython() {
		workers["python"] = harness.StartPythonWorker
	}
	return workers
}

// While Redis cannot be reached, a confirmed release does not return. It returns once the
// daemon has reached Redis again and has executed the release.
func TestConfirmedReleaseReturnsAfterRedisIsReachedAgain(t *testing.T) {
	for lang, start := range sdkWorkers() {
		t.Run(lang, func(t *testing.T) {
			r := harness.StartRedis(t)
			way := harness.StartProxy(t, r)
			here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
			w, admin, other := start(t, here), harness.Dial(t, here), harness.Dial(t, there)
			w.Lock("a")
			cut(t, way)
			unlocked := w.Send(harness.Command{Do: "unlock", As: "a", Confirm: true})
			awaitRelease(t, admin)
			if findsFree(t, other, "a") {
				t.Error("the other host found the lock free although Redis had not executed the release")
			}
			select {
			case a := <-unlocked:
				t.Fatalf("before Redis had executed the release, it returned %+v", a)
			default:
			}
			way.Admit()
			if a := w.Await(unlocked); a.Err != "" {
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
					r := harness.StartRedis(t)
					way := harness.StartProxy(t, r)
					here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
					w, other := start(t, here), harness.Dial(t, there)
					w.Lock("a")
					if more {
						w.Lock("more")
					}
					unlocked := killBeforeRelease(t, here, way, w, read)
					if findsFree(t, other, "a") {
						t.Fatal("Redis executed the release before the daemon was killed")
					}
					here.Start(harness.LongLease)
					if a := w.Await(unlocked); a.Err != "" {
						t.Fatalf("the release was not confirmed: %+v", a)
					}
					if !findsFree(t, other, "a") {
						t.Error("the other host found the lock taken after a confirmed release")
					}
					if more {
						w.Must(harness.Command{Do: "check", As: "more"})
					}
				})
			}
		}
	}
}

// killBeforeRelease has a worker release the lock "a" with confirmation, and kills the
// daemon before Redis has executed the release; read: after the daemon has read it. It
// returns where the worker's answer will be.
func killBeforeRelease(t *testing.T, d *harness.Daemon, way *harness.Proxy, w *harness.Worker, read bool) <-chan harness.Answer {
	t.Helper()
	admin := harness.Dial(t, d)
	if !read {
		d.Suspend()
		unlocked := w.Send(harness.Command{Do: "unlock", As: "a", Confirm: true})
		harness.Eventually(t, "the worker has released the lock", func() bool {
			return w.Try(harness.Command{Do: "check", As: "a"}).Err == "not_held"
		})
		d.Kill()
		return unlocked
	}
	cut(t, way)
	unlocked := w.Send(harness.Command{Do: "unlock", As: "a", Confirm: true})
	awaitRelease(t, admin)
	d.Kill()
	way.Admit()
	return unlocked
}

// A daemon that starts without the state of its predecessor does not know of the release,
// and an SDK does not take its word for it: the lock is free when its lease ends.
func TestReleaseIsNotConfirmedByDaemonWithoutState(t *testing.T) {
	for lang, start := range sdkWorkers() {
		t.Run(lang, func(t *testing.T) {
			r := harness.StartRedis(t)
			way := harness.StartProxy(t, r)
			here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
			w, other := start(t, here), harness.Dial(t, there)
			w.Lock("a")
			unlocked := killBeforeRelease(t, here, way, w, true)
			if err := os.Remove(here.Socket + ".state"); err != nil {
				t.Fatal(err)
			}
			here.Start(harness.LongLease)
			if a := w.Await(unlocked); a.Err != "unconfirmed" {
				t.Errorf("the release returned %+v", a)
			} else {
				harness.CheckContains(t, a.Msg, "the sidecar was restarted", "the lock is released here", "when its lease ends")
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
	r := harness.StartRedis(t)
	way := harness.StartProxy(t, r)
	here, there := harness.StartDaemon(t, way.URL()), harness.StartDaemon(t, r.UnixURL())
	way.SetDelay(100 * time.Millisecond) // longer than run takes to exit
	other := harness.Dial(t, there)
	confirmed := 0
	harness.Eventually(t, "three releases of run are confirmed", func() bool {
		got := here.Run("run", "a", "--", "true")
		if got.Code != 0 {
			t.Fatalf("exit code %d: %s", got.Code, got.Stderr)
		}
		if got.Stderr != "" { // run does not wait for longer than 2 s
			harness.CheckContains(t, got.Stderr, "warning", "no confirmation within 2s")
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
	r := harness.StartRedis(t)
	way := harness.StartProxy(t, r)
	here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	other := harness.Dial(t, there)
	run := harness.StartRun(t, here, "a", "echo ready; read line; exit 7")
	run.AwaitOutput("ready")
	cut(t, way)
	run.CloseStdin() // ends read
	if code := run.Wait(); code != 7 {
		t.Errorf("exit code %d, not 7", code)
	}
	_, warning, _ := strings.Cut(run.Output.String(), "ready\n")
	harness.CheckContains(t, warning, "warning", `the release of "a"`, "no confirmation within 2s", "the lock is released here", "when its lease ends")
	if findsFree(t, other, "a") {
		t.Error("the other host found the lock free although Redis had not executed the release")
	}
	way.Admit()
	l, err := other.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	unlockConfirmed(t, l)
}
