package guarantees

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

const nightlyKeep = 10 * time.Minute

// nightly is what the crontab of each host has.
func nightly(done string) []string {
	return []string{"run", "--wait", "0", "--keep", nightlyKeep.String(), "nightly-report", "--", "sh", "-c", "echo done >>" + done}
}

// The crons of five hosts start one job, at one moment or one after the other. One host runs it,
// however short it is.
//
// Shows docs/guarantees.md: A lock with a keep stays held until so long after its grant.
func TestKeptJobOfFiveHostsRunsOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		says  string
		after bool // each host starts when the one before has ended
	}{{"at one moment", false}, {"one after the other", true}} {
		t.Run(tt.says, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			done := filepath.Join(t.TempDir(), "done")
			var runs []*harness.RunProcess
			codes := map[int]int{}
			for range 5 {
				d := harness.StartDaemon(t, r.UnixURL())
				run := harness.StartProcess(t, d, harness.Program(t), nightly(done)...)
				if tt.after {
					codes[run.Wait()]++
				} else {
					runs = append(runs, run)
				}
			}
			for _, run := range runs {
				codes[run.Wait()]++
			}
			if text, err := os.ReadFile(done); err != nil || string(text) != "done\n" || codes[0] != 1 || codes[75] != 4 {
				t.Errorf("the job wrote %q (%v); exit codes and how often: %v", text, err, codes)
			}
			keptInRedis(t, r)
		})
	}
}

// keptInRedis checks that Redis has the lock of the job for the rest of its keep, and not for much
// longer.
func keptInRedis(t *testing.T, r *harness.Redis) {
	t.Helper()
	if left := r.PTTL(t.Context(), "nightly-report").Val(); left < nightlyKeep-harness.Patience || left > nightlyKeep+nightlyKeep/50+10*time.Millisecond {
		t.Errorf("the key of the lock expires in %v, want %v and up to a fiftieth more", left, nightlyKeep)
	}
}

// isHeld checks that a client of a host is refused the lock of the job, with a message.
func isHeld(t *testing.T, d *harness.Daemon, words ...string) {
	t.Helper()
	c := harness.Dial(t, d)
	defer c.Close()
	_, err := c.TryLock(t.Context(), "nightly-report")
	harness.CheckError(t, err, locksidecar.ErrHeld, words...)
}

// Shows docs/guarantees.md: A lock with a keep stays held until so long after its grant.
func TestLockIsKeptWhateverDies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		says string
		die  func(t *testing.T, d *harness.Daemon, run *harness.RunProcess)
	}{
		{"the job's process", func(t *testing.T, d *harness.Daemon, run *harness.RunProcess) {
			run.Signal(syscall.SIGKILL)
			run.Wait()
			harness.Eventually(t, "the daemon knows that the process is gone", func() bool {
				return harness.Info(t, d, "nightly-report").Orphan
			})
			isHeld(t, d, "kept for another", "which asked to keep it")
			if ls := d.Run("ls"); !strings.Contains(ls.Stdout, "kept") {
				t.Errorf("ls prints %s", ls.Stdout)
			}
		}},
		{"the host, in the middle of the run", func(t *testing.T, d *harness.Daemon, run *harness.RunProcess) {
			d.Kill()
			run.Signal(syscall.SIGKILL)
			run.Wait()
		}},
		{"the daemon, after the run", func(t *testing.T, d *harness.Daemon, run *harness.RunProcess) {
			run.Signal(syscall.SIGTERM)
			run.Wait()
			d.Kill()
		}},
		{"the daemon, and another one starts", func(t *testing.T, d *harness.Daemon, run *harness.RunProcess) {
			run.Signal(syscall.SIGTERM)
			run.Wait()
			d.Kill()
			d.Start()
			d.AwaitSocket()
			isHeld(t, d, "kept for another")
		}},
		{"the daemon in the middle of the run, and another one starts after the job's process has died", func(t *testing.T, d *harness.Daemon, run *harness.RunProcess) {
			d.Kill()
			run.Signal(syscall.SIGKILL)
			run.Wait()
			d.Start()
			d.AwaitSocket()
			isHeld(t, d, "kept for another")
		}},
		{"nothing: the daemon is stopped after the run", func(t *testing.T, d *harness.Daemon, run *harness.RunProcess) {
			run.Signal(syscall.SIGTERM)
			run.Wait()
			d.Terminate()
		}},
	} {
		t.Run(tt.says, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			d, other := harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.UnixURL())
			run := harness.StartRun(t, d, "nightly-report", "echo ready; exec sleep 600", "--keep", nightlyKeep.String())
			run.AwaitOutput("ready")
			tt.die(t, d, run)
			keptInRedis(t, r)
			isHeld(t, other)
		})
	}
}

// A client of another host that waits gets the lock at the end of the keep, and not before.
//
// Shows docs/guarantees.md: A lock with a keep stays held until so long after its grant.
func TestKeepEnds(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	a, b := harness.Dial(t, harness.StartDaemon(t, r.UnixURL())), harness.Dial(t, harness.StartDaemon(t, r.UnixURL()))
	const keep = 500 * time.Millisecond
	begun := time.Now()
	l, err := a.Lock(t.Context(), "job", locksidecar.WithKeep(keep))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Unlock(locksidecar.Confirmed(t.Context())), a.Close()); err != nil {
		t.Fatal(err)
	}
	next, err := b.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if after := time.Since(begun); after < keep {
		t.Errorf("another host got the lock after %v, and it is kept for %v", after, keep)
	}
	if next.Token() <= l.Token() {
		t.Errorf("token %d after %d", next.Token(), l.Token())
	}
}

func TestForceReleaseEndsAKeep(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d, other := harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.UnixURL())
	if got := d.Run("run", "--keep", "1h", "nightly-report", "--", "true"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	isHeld(t, other)
	if got := d.Run("force-release", "nightly-report"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	l, err := harness.Dial(t, other).Lock(t.Context(), "nightly-report")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if !d.Log.Contains("kept lock ended") {
		t.Errorf("the log does not say that the keep has ended:\n%s", d.Log.String())
	}
}

// slotLock and slotLocker are Lock and Locker of github.com/go-co-op/gocron, and locker is the
// example of Lock.ContextUnlocker.
type slotLock interface {
	Unlock(ctx context.Context) error
}

type slotLocker interface {
	Lock(ctx context.Context, key string) (slotLock, error)
}

type locker struct{ client *locksidecar.Client }

func (l locker) Lock(ctx context.Context, key string) (slotLock, error) {
	held, err := l.client.TryLock(ctx, key, locksidecar.WithKeep(nightlyKeep))
	if err != nil {
		return nil, err
	}
	return held.ContextUnlocker(), nil
}

// The schedulers of several hosts start the same slots, at one moment or one after the other. As
// gocron does, each takes the lock of the job, runs it and unlocks, or skips the slot. force-release
// stands for the end of the keep, before the next slot.
func TestSchedulerRunsEachSlotOnce(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	var daemons []*harness.Daemon
	var lockers []slotLocker
	for range 4 {
		d := harness.StartDaemon(t, r.UnixURL())
		daemons = append(daemons, d)
		lockers = append(lockers, locker{harness.Dial(t, d)})
	}
	for slot := range 3 {
		var mu sync.Mutex
		var ran []int
		start := func(host int) {
			held, err := lockers[host].Lock(t.Context(), "report")
			if err != nil {
				harness.CheckError(t, err, locksidecar.ErrHeld)
				return
			}
			mu.Lock()
			ran = append(ran, host)
			mu.Unlock()
			if err := held.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		var together sync.WaitGroup
		for host := range 2 {
			together.Go(func() { start(host) })
		}
		together.Wait()
		start(2) // the clocks of these are behind
		start(3)
		if len(ran) != 1 {
			t.Fatalf("slot %d ran on the hosts %v", slot, ran)
		}
		if got := daemons[ran[0]].Run("force-release", "report"); got.Code != 0 {
			t.Fatalf("%+v", got)
		}
	}
}
