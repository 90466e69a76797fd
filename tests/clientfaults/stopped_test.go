package clientfaults

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Clients that are stopped past the last deadline that they have read. When they go on, they
// read the frames that have arrived before they consider a deadline passed: SPEC.md §5.2.

const shortLease = 6 * time.Second

var eachKind = harness.Pick(8, 20)

// A holderGroup is processes that hold a lock each, with the Go SDK or with `locksidecar run`.
type holderGroup struct {
	t       *testing.T
	d       *harness.Daemon
	workers []harness.Hold
	runs    []*harness.RunProcess
}

func startHolders(t *testing.T, r *harness.Redis) *holderGroup {
	t.Helper()
	s := &holderGroup{t: t, d: harness.StartDaemon(t, r.UnixURL(), "--lease="+shortLease.String())}
	for i := range eachKind {
		w := harness.StartGoWorker(t, s.d)
		s.workers = append(s.workers, harness.Hold{Worker: w, Name: fmt.Sprint("worker ", i), Token: w.Lock(fmt.Sprint("worker ", i)).Token})
		s.runs = append(s.runs, harness.StartRun(t, s.d, fmt.Sprint("run ", i), "echo running; cat"))
	}
	for _, run := range s.runs {
		run.AwaitOutput("running")
	}
	return s
}

func (s *holderGroup) signal(sig syscall.Signal) {
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

// stopPastDeadlines stops the holders for longer than a lease.
func (s *holderGroup) stopPastDeadlines() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	stopped := time.Now()
	harness.Eventually(s.t, "the deadlines that the holders have read have passed", func() bool {
		return time.Since(stopped) > shortLease
	})
}

// Shows docs/guarantees.md: Stopped past its deadline.
func TestHoldersStoppedPastTheirDeadlinesKeepLocksThatWereRenewed(t *testing.T) {
	t.Parallel()
	s := startHolders(t, harness.StartRedis(t))
	s.stopPastDeadlines()
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
	t.Logf("%d of %d runs kept their lock", kept, eachKind)
}

func TestHoldersStoppedWithTheirDaemonLoseTheirLocksOnce(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	s := startHolders(t, r)
	s.d.Suspend()
	s.stopPastDeadlines()
	harness.Eventually(t, "the leases have ended in Redis", func() bool {
		for i := range eachKind {
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
				t.Errorf("the SDK of worker %d reports %+v, not that the lock expired", i, a)
			}
		}
		w.ExpectLost(protocol.Expired)
		if code := run.Wait(); code != 79 || !run.Output.Contains("ending the command") {
			t.Errorf("run %d: exit code %d, output %q", i, code, run.Output.String())
		}
	}
	s.d.Signal(syscall.SIGCONT)
}

// The SDK of a process that was stopped past the end of its lease reports the lock as lost.
// Another client has been granted it, with a larger token.
//
// Shows docs/guarantees.md: No holder relies on a lock for too long.
// Shows docs/guarantees.md: Stopped past its deadline.
func TestHolderStoppedPastItsDeadlineFindsItsLockLost(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	harness.ForEachSDK(t, func(t *testing.T, sdk harness.SDK) {
		name := "stopped " + sdk.Name
		w := sdk.StartWorker(t, d)
		token := w.Must(harness.Command{Do: "lock", As: name, Name: name, WaitMS: -1, Lease: 2000}).Token
		w.Signal(syscall.SIGSTOP)
		l, err := harness.Dial(t, d).Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Unlock()
		if l.Token() <= token {
			t.Errorf("token %d after %d", l.Token(), token)
		}
		w.Signal(syscall.SIGCONT)
		if a := w.Try(harness.Command{Do: "check", As: name}); a.Err != "lost" || a.Reason != string(protocol.Expired) {
			t.Errorf("the SDK of the stopped holder reports %+v, not that the lock expired", a)
		}
		if a := w.Try(harness.Command{Do: "unlock", As: name}); a.Err == "" {
			t.Error("the stopped holder released a lock that it had lost")
		}
		if err := l.Err(); err != nil {
			t.Errorf("the new holder lost the lock: %v", err)
		}
	})
}

// The daemon renews the lock of a stopped process. Only the end of the process, or a deadline
// of its own, frees the lock.
//
// Shows docs/guarantees.md: Nothing is freed early.
// Shows docs/guarantees.md: Stopped past its deadline.
func TestStoppedProcessKeepsItsRenewedLock(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=8s")
	w := harness.StartGoWorker(t, d)
	w.Lock("slow")
	w.Signal(syscall.SIGSTOP)
	renewals := 0
	last := time.Duration(0)
	harness.Eventually(t, "more renewals than one lease needs", func() bool {
		ttl := r.PTTL(t.Context(), "slow").Val()
		if ttl > last {
			renewals++
		}
		last = ttl
		return renewals > 6
	})
	if _, err := harness.Dial(t, d).TryLock(t.Context(), "slow"); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("another client got %v, not that the lock is held", err)
	}
}

// A process is stopped until its hold has ended, because of its own lease or of max_hold. Its
// SDK reports that when the process goes on, whether the daemon was restarted meanwhile or
// not. Another client has the lock then, with a larger token, and a release by the old holder
// has no effect.
func TestHolderStoppedPastItsEndFindsItsLockLost(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restarted), func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			here, there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
			type stopped struct {
				*harness.Worker
				name   string
				token  uint64
				reason protocol.Reason
			}
			var holders []stopped
			for _, sdk := range harness.SDKs() {
				lease := harness.Command{Do: "lock", WaitMS: -1, Lease: 2000}
				maxHold := harness.Command{Do: "lock", WaitMS: -1, Hold: 2000}
				for reason, c := range map[protocol.Reason]harness.Command{protocol.Expired: lease, protocol.MaxHold: maxHold} {
					w := sdk.StartWorker(t, here)
					c.Name = fmt.Sprintf("%s %s", sdk.Name, reason)
					c.As = c.Name
					holders = append(holders, stopped{w, c.Name, w.Must(c).Token, reason})
				}
			}
			for _, h := range holders {
				h.Signal(syscall.SIGSTOP)
			}
			if restarted {
				here.Kill()
				here.Start(harness.LongLease)
				here.AwaitSocket()
			}
			elsewhere := harness.Dial(t, there)
			for _, h := range holders {
				l := lockSoon(t, elsewhere, h.name)
				if l.Token() <= h.token {
					t.Errorf("%s: token %d after %d", h.name, l.Token(), h.token)
				}
				before := r.Fields(h.name)
				h.Signal(syscall.SIGCONT)
				if a := h.Try(harness.Command{Do: "check", As: h.name}); a.Err != "lost" || a.Reason != string(h.reason) {
					t.Errorf("%s: the SDK of the stopped holder reports %+v", h.name, a)
				}
				if a := h.Try(harness.Command{Do: "unlock", As: h.name}); a.Err == "" {
					t.Errorf("%s: the stopped holder released a lock that it had lost", h.name)
				}
				h.Lock("after " + h.name) // after that, the daemon has read the release
				if now := r.Fields(h.name); !maps.Equal(now, before) {
					t.Errorf("%s: after the release of the stopped holder, Redis has %v; it had %v", h.name, now, before)
				}
				if err := l.Err(); err != nil {
					t.Errorf("%s: the new holder lost the lock: %v", h.name, err)
				}
			}
		})
	}
}
