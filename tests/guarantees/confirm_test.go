package guarantees

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// findsFree reports whether a client of another host is granted the lock at its first try. If
// so, it has released the lock when findsFree returns, in Redis too.
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

// A program releases a lock and then signals a program on another host, which tries to acquire
// the lock. With a confirmed release each try succeeds, although commands of the first host
// need 2 ms to reach Redis and those of the other host do not.
//
// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
func TestConfirmedReleaseIsExecutedBeforeAnotherHostIsSignalled(t *testing.T) {
	t.Parallel()
	rounds := harness.Pick(25, 100)
	r := harness.StartRedis(t)
	way := harness.StartProxy(t, r)
	here, there := harness.StartDaemon(t, way.URL()), harness.StartDaemon(t, r.UnixURL())
	way.SetDelay(2 * time.Millisecond)
	other := harness.Dial(t, there)

	// compare counts the tries that succeed. How many succeed without a confirmation depends
	// on the machine, so that number is only logged.
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

// disconnect separates a daemon from its Redis: present connections become half-open, and new
// ones are closed until Admit.
func disconnect(t *testing.T, way *harness.Proxy) {
	t.Helper()
	way.Refuse()
	if way.Blackhole(harness.ToRedis, harness.FromRedis) == 0 {
		t.Fatal("the daemon has no connection to Redis")
	}
}

// awaitRelease waits until the daemon has read the release of the lock "a".
func awaitRelease(t *testing.T, c *locksidecar.Client) {
	t.Helper()
	harness.Eventually(t, "the daemon has read the release", func() bool {
		row, known, err := c.Info(t.Context(), "a")
		return err == nil && (!known || row.State != locksidecar.LockHeld)
	})
}

// While Redis cannot be reached, a confirmed release does not return. It returns when the
// daemon has reconnected to Redis and Redis has executed the release.
//
// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
func TestConfirmedReleaseReturnsAfterRedisIsReachedAgain(t *testing.T) {
	t.Parallel()
	harness.ForEachSDK(t, func(t *testing.T, sdk harness.SDK) {
		t.Parallel()
		r := harness.StartRedis(t)
		way := harness.StartProxy(t, r)
		here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
		w, admin, other := sdk.StartWorker(t, here), harness.Dial(t, here), harness.Dial(t, there)
		w.Lock("a")
		disconnect(t, way)
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

// The daemon is killed before Redis has executed a release, and started again. The program
// that waits for the confirmation gets it from the successor. After that, another host finds
// the lock free.
//
// Shows docs/guarantees.md: A confirmed release that the dead daemon had not executed.
func TestConfirmationOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	harness.ForEachSDK(t, func(t *testing.T, sdk harness.SDK) {
		for _, read := range []bool{true, false} { // whether the daemon that is killed has read the release
			for _, more := range []bool{true, false} { // whether other locks are held: then the successor resumes the session
				t.Run(fmt.Sprintf("release read %v, more held %v", read, more), func(t *testing.T) {
					t.Parallel()
					r := harness.StartRedis(t)
					way := harness.StartProxy(t, r)
					here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
					w, other := sdk.StartWorker(t, here), harness.Dial(t, there)
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
	})
}

// killBeforeRelease has a worker release the lock "a" with confirmation. It kills the daemon
// before Redis has executed the release, and, if read, after the daemon has read it. The
// returned channel receives the answer of the worker.
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
	disconnect(t, way)
	unlocked := w.Send(harness.Command{Do: "unlock", As: "a", Confirm: true})
	awaitRelease(t, admin)
	d.Kill()
	way.Admit()
	return unlocked
}

// A daemon that starts without the state of its predecessor does not know the release. An SDK
// does not accept its confirmation. The lock is free when its lease ends.
//
// Shows docs/guarantees.md: A confirmed release that the dead daemon had not executed.
func TestReleaseIsNotConfirmedByDaemonWithoutState(t *testing.T) {
	t.Parallel()
	harness.ForEachSDK(t, func(t *testing.T, sdk harness.SDK) {
		t.Parallel()
		r := harness.StartRedis(t)
		way := harness.StartProxy(t, r)
		here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
		w, other := sdk.StartWorker(t, here), harness.Dial(t, there)
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

// If `locksidecar run` has ended without a warning, another host finds the lock free.
//
// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
func TestRunEndsAfterItsReleaseIsConfirmed(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	way := harness.StartProxy(t, r)
	here, there := harness.StartDaemon(t, way.URL()), harness.StartDaemon(t, r.UnixURL())
	way.SetDelay(100 * time.Millisecond) // longer than the exit of run takes
	other := harness.Dial(t, there)
	confirmed := 0
	harness.Eventually(t, "three releases of run are confirmed", func() bool {
		got := here.Run("run", "a", "--", "true")
		if got.Code != 0 {
			t.Fatalf("exit code %d: %s", got.Code, got.Stderr)
		}
		if got.Stderr != "" { // run waits for 2 s at most
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

// If run gets no confirmation of its release, it ends with a warning and with the exit code of
// its command.
//
// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
func TestRunWarnsThatItsReleaseIsNotConfirmed(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	way := harness.StartProxy(t, r)
	here, there := harness.StartDaemon(t, way.URL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	other := harness.Dial(t, there)
	run := harness.StartRun(t, here, "a", "echo ready; read line; exit 7")
	run.AwaitOutput("ready")
	disconnect(t, way)
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
