package upgrade

import (
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// An older daemon knows no semaphores: it says so to clients that ask it for permits, and grants no lock of a name of which
// another host has some.
func TestOlderDaemonGrantsNoLockOfASemaphore(t *testing.T) {
	t.Parallel()
	old := harness.ProgramOf(t, harness.Base010PreKeep)
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL()), harness.StartDaemonOf(t, old, r.UnixURL())
	_, err := harness.Dial(t, there).Semaphore("api", 2).Acquire(t.Context(), 1)
	harness.CheckError(t, err, locksidecar.ErrUnsupported)
	harness.CheckContains(t, err.Error(), "which has no semaphores; upgrade it")

	p, err := harness.Dial(t, here).Semaphore("api", 2).Acquire(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	older := harness.Dial(t, there)
	_, err = older.TryLock(t.Context(), "api")
	harness.CheckError(t, err, locksidecar.ErrDenied) // for it, the hash is no lock
	if err := p.Release(locksidecar.Confirmed(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := older.TryLock(t.Context(), "api"); err != nil {
		t.Error(err)
	}
	_, err = harness.Dial(t, here).Semaphore("api", 2).TryAcquire(t.Context(), 1)
	harness.CheckError(t, err, locksidecar.ErrHeld)
}

// A downgrade loses no lock, if no semaphore is in use. Otherwise the older daemon starts without its state, and says why.
//
// Shows docs/guarantees.md: A downgrade by one version.
func TestDowngradeWithASemaphore(t *testing.T) {
	t.Parallel()
	old := harness.ProgramOf(t, harness.Base010PreKeep)
	for _, e := range ends {
		t.Run(e.how, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
			c := harness.Dial(t, d)
			held := harness.LockEach(r, []*harness.Worker{harness.StartGoWorker(t, d)}, "held")[0]
			p, err := c.Semaphore("api", 2).Acquire(t.Context(), 2)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Release(locksidecar.Confirmed(t.Context())); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the semaphore is forgotten", func() bool {
				_, known, err := c.Info(t.Context(), "api")
				return err == nil && !known
			})
			become(d, old, e.end, harness.LongLease)
			d.AwaitRedis("ok")
			held.CheckHeld()
			become(d, "", e.end, harness.LongLease)
			d.AwaitRedis("ok")
			held.CheckHeld()

			if p, err = c.Semaphore("api", 2).Acquire(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			become(d, old, e.end, harness.LongLease)
			d.AwaitRedis("ok")
			status := d.Run("status")
			harness.CheckContains(t, status.Stdout, "need a later version of the sidecar")
			if p.Err() != nil {
				t.Errorf("before its deadline: %v", p.Err())
			}
		})
	}
}
