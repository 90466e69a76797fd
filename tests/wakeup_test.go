package tests

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
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
	d       *daemon
	workers []held
	runs    []*running
}

func startSleepers(t *testing.T, r *redisServer) *sleepers {
	t.Helper()
	s := &sleepers{t: t, d: startDaemon(t, r.unixURL(), "--lease="+wakeLease.String())}
	for i := range wakeups {
		w := startGoWorker(t, s.d)
		s.workers = append(s.workers, held{worker: w, name: fmt.Sprint("worker ", i), token: w.lock(fmt.Sprint("worker ", i)).Token})
		s.runs = append(s.runs, startRun(t, s.d, fmt.Sprint("run ", i), "echo running; cat"))
	}
	for _, run := range s.runs {
		run.printed("running")
	}
	return s
}

func (s *sleepers) signal(sig syscall.Signal) {
	s.t.Helper()
	for i := range s.workers {
		s.workers[i].signal(sig)
		if err := s.runs[i].cmd.Process.Signal(sig); err != nil {
			s.t.Fatal(err)
		}
	}
	if sig != syscall.SIGSTOP {
		return
	}
	for _, run := range s.runs {
		eventually(s.t, "run is stopped", func() bool {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", run.pid()))
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
	eventually(s.t, "the deadlines that the holders have read have passed", func() bool {
		return time.Since(stopped) > wakeLease
	})
}

func TestHoldersStoppedPastTheirDeadlinesKeepLocksThatWereRenewed(t *testing.T) {
	s := startSleepers(t, startRedis(t))
	s.sleep()
	s.signal(syscall.SIGCONT)
	kept := 0
	for i, run := range s.runs {
		s.workers[i].check()
		s.workers[i].unlock(s.workers[i].name)
		run.stdin.Close() // ends cat
		if code := run.wait(); code != 0 || strings.TrimSpace(run.out.String()) != "running" {
			t.Errorf("run %d: exit code %d, output %q", i, code, run.out.String())
			continue
		}
		kept++
	}
	t.Logf("%d of %d runs kept their lock", kept, wakeups)
}

func TestHoldersStoppedWithTheirDaemonLoseTheirLocksOnce(t *testing.T) {
	r := startRedis(t)
	s := startSleepers(t, r)
	s.d.suspend()
	s.sleep()
	eventually(t, "the leases have ended in Redis", func() bool {
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
			if a := w.try(command{Do: "check", As: w.name}); a.Err != "lost" || a.Reason != string(protocol.Expired) {
				t.Errorf("worker %d is told %+v, not that its lock expired", i, a)
			}
		}
		w.lost(protocol.Expired)
		if code := run.wait(); code != 79 || !run.out.contains("ending the command") {
			t.Errorf("run %d: exit code %d, output %q", i, code, run.out.String())
		}
	}
	s.d.cmd.Process.Signal(syscall.SIGCONT)
}
