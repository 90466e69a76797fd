package tests

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Clients that are stopped past the deadline which they have read, SPEC.md §5.2: they read
// what has arrived before the deadline counts.

const (
	wakeups   = 20
	wakeLease = 2 * time.Second
)

// sleepers are holders of a lock each: programs of the Go SDK and `locksidecar run`.
type sleepers struct {
	t       *testing.T
	d       *harness.Daemon
	workers []harness.Hold
	runs    []*harness.RunProcess
}

func startSleepers(t *testing.T, r *harness.Redis) *sleepers {
	t.Helper()
	s := &sleepers{t: t, d: harness.StartDaemon(t, r.UnixURL(), "--lease="+wakeLease.String())}
	for i := range wakeups {
		w := harness.StartGoWorker(t, s.d)
		s.workers = append(s.workers, harness.Hold{Worker: w, Name: fmt.Sprint("worker ", i), Token: w.Lock(fmt.Sprint("worker ", i)).Token})
		s.runs = append(s.runs, harness.StartRun(t, s.d, fmt.Sprint("run ", i), "echo running; cat"))
	}
	for _, run := range s.runs {
		run.AwaitOutput("running")
	}
	return s
}

func (s *sleepers) signal(sig syscall.Signal) {
	s.t.Helper()
	for i := range s.workers {
		s.workers[i].Signal(sig)
		s.runs[i].Signal(sig)
	}
	if sig != syscall.SIGSTOP {
		return
	}
	for _, run := range s.runs {
		harness.Eventually(s.t, "run is stopped", func() bool {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", run.PID()))
			_, state, _ := strings.Cut(string(stat), ") ")
			return strings.HasPrefix(state, "T")
		})
	}
}

// sleep has the holders stopped for longer than a lease.
func (s *sleepers) sleep() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	stopped := time.Now()
	harness.Eventually(s.t, "the deadlines that the holders have read have passed", func() bool {
		return time.Since(stopped) > wakeLease
	})
}

func TestHoldersStoppedPastTheirDeadlinesKeepLocksThatWereRenewed(t *testing.T) {
	s := startSleepers(t, harness.StartRedis(t))
	s.sleep()
	s.signal(syscall.SIGCONT)
	kept := 0
	for i, run := range s.runs {
		s.workers[i].CheckHeld()
		s.workers[i].Unlock(s.workers[i].Name)
		run.CloseStdin() // ends cat
		if code := run.Wait(); code != 0 || strings.TrimSpace(run.Output.String()) != "running" {
			t.Errorf("run %d: exit code %d, output %q", i, code, run.Output.String())
			continue
		}
		kept++
	}
	t.Logf("%d of %d runs kept their lock", kept, wakeups)
}

func TestHoldersStoppedWithTheirDaemonLoseTheirLocksOnce(t *testing.T) {
	r := harness.StartRedis(t)
	s := startSleepers(t, r)
	s.d.Suspend()
	s.sleep()
	harness.Eventually(t, "the leases have ended in Redis", func() bool {
		for i := range wakeups {
			if r.Exists(t.Context(), fmt.Sprint("worker ", i), fmt.Sprint("run ", i)).Val() > 0 {
				return false
			}
		}
		return true
	})
	s.signal(syscall.SIGCONT)
	for i, run := range s.runs {
		w := &s.workers[i]
		for range 3 {
			if a := w.Try(harness.Command{Do: "check", As: w.Name}); a.Err != "lost" || a.Reason != string(protocol.Expired) {
				t.Errorf("worker %d is told %+v, not that its lock expired", i, a)
			}
		}
		w.ExpectLost(protocol.Expired)
		if code := run.Wait(); code != 79 || !run.Output.Contains("ending the command") {
			t.Errorf("run %d: exit code %d, output %q", i, code, run.Output.String())
		}
	}
	s.d.Signal(syscall.SIGCONT)
}
