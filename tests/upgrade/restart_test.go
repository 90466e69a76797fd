package upgrade

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// become ends the daemon and starts its successor of another version.
func become(d *harness.Daemon, program string, end func(*harness.Daemon), args ...string) {
	end(d)
	d.Program = program
	d.Start(args...)
	d.AwaitSocket()
}

var ends = []struct {
	how string
	end func(*harness.Daemon)
}{{"killed", (*harness.Daemon).Kill}, {"stopped", (*harness.Daemon).Terminate}}

// Processes in both languages on three hosts increment one counter, while their daemons are
// upgraded host by host, and downgraded again. No increment is lost, tokens grow, and no call of
// an SDK fails.
func TestNoIncrementIsLostInUpgradesUnderLoad(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	all := versions(t)
	const hosts, workersPerHost = 3, 2
	rounds := harness.Pick(75, 150)
	var daemons []*harness.Daemon
	for range hosts {
		daemons = append(daemons, harness.StartDaemonOf(t, all[0].program, r.UnixURL()))
	}
	fleet := harness.StartFleet(t, workersPerHost, daemons...)
	for _, w := range fleet { // the first connection of an SDK is tried for 2 s only
		w.Lock("connected")
		w.Unlock("connected")
	}
	answers := harness.SendHammers(r, fleet, rounds)
	total, restarts := len(fleet)*rounds, 2*hosts
	for i := range restarts {
		harness.Eventually(t, "the counter rises", func() bool {
			n, err := r.Get(t.Context(), "counter").Int()
			return (err == nil || errors.Is(err, redis.Nil)) && n >= total*(i+1)/(restarts+2)
		})
		to := all[1]
		if i >= hosts {
			to = all[0]
		}
		become(daemons[i%hosts], to.program, ends[i%2].end)
	}
	harness.CheckCounter(t, r, harness.AwaitRounds(t, fleet, answers), total)
}

// A host is upgraded, or downgraded, while its processes hold locks and wait for others. Each
// lock has the same holder afterwards, and waiters are granted the locks that they wait for.
func TestDowngradedDaemonRestoresHoldsAndWaiters(t *testing.T) {
	t.Parallel()
	all := versions(t)
	for i, before := range all {
		after := all[1-i]
		for _, e := range ends {
			t.Run(fmt.Sprintf("%s, %s, then %s", before.name, e.how, after.name), func(t *testing.T) {
				t.Parallel()
				r := harness.StartRedis(t)
				here := harness.StartDaemonOf(t, before.program, r.UnixURL(), harness.LongLease)
				there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
				holder, waiter, elsewhere := harness.StartGoWorker(t, here), harness.StartNthWorker(t, here, 1), harness.StartGoWorker(t, there)
				held := harness.LockEach(r, []*harness.Worker{holder, holder}, "held")
				theirs := harness.LockEach(r, []*harness.Worker{elsewhere, elsewhere}, "theirs")
				var granted, taken []<-chan harness.Answer
				for i := range held {
					granted = append(granted, waiter.Enqueue(here, theirs[i].Name))
					taken = append(taken, elsewhere.Enqueue(there, held[i].Name))
				}
				become(here, after.program, e.end, harness.LongLease)
				here.AwaitRedis("ok")
				for i := range held {
					held[i].CheckHeld()
					held[i].AwaitInRedis(r)
					if row := harness.Info(t, here, held[i].Name); row.Token != held[i].Token || row.State != locksidecar.LockHeld {
						t.Errorf("%s: the daemon has %+v, before the restart its token was %d", held[i].Name, row, held[i].Token)
					}
					held[i].PassTo(elsewhere, taken[i])
					harness.Eventually(t, "the request waits again", func() bool { return harness.Waiters(t, here, theirs[i].Name) == 1 })
					theirs[i].PassTo(waiter, granted[i])
				}
			})
		}
	}
}

// A host has a lock of a job that runs with a keep, and one of a job that has ended. Both stay held when the
// host is upgraded and downgraded again, with the same token, and until the same time.
//
// Shows docs/guarantees.md: A downgrade by one version.
func TestKeptLockSurvivesAnUpgradeAndADowngrade(t *testing.T) {
	t.Parallel()
	before := harness.ProgramOf(t, harness.Base010PreKeep)
	const keep = time.Hour
	for _, e := range ends {
		t.Run(e.how, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			here, there := harness.StartDaemonOf(t, before, r.UnixURL()), harness.StartDaemon(t, r.UnixURL())
			if got := here.Run("run", "--keep", keep.String(), "ended", "--", "true"); got.Code != 0 {
				t.Fatalf("%+v", got)
			}
			job := harness.StartRun(t, here, "running", "echo ready; exec sleep 600", "--keep", keep.String())
			job.AwaitOutput("ready")
			other := harness.Dial(t, there)
			tokens, owners := map[string]uint64{}, map[string]string{}
			check := func(version string) {
				for _, name := range []string{"ended", "running"} {
					row, owner := harness.Info(t, here, name), r.Owner(name)
					if tokens[name] == 0 {
						tokens[name], owners[name] = row.Token, owner
					}
					if row.State != locksidecar.LockHeld || row.Token != tokens[name] || owner == "" || owner != owners[name] {
						t.Errorf("%s: %s: the daemon has %+v and Redis %q, before it was token %d of %q", version, name, row, owner, tokens[name], owners[name])
					}
					if left := r.PTTL(t.Context(), name).Val(); left < keep-2*harness.Patience {
						t.Errorf("%s: %s: Redis has the lock for %v", version, name, left)
					}
					_, err := other.TryLock(t.Context(), name)
					harness.CheckError(t, err, locksidecar.ErrHeld)
				}
			}
			check("before")
			for _, to := range []version{{"upgraded", ""}, {"downgraded", before}} {
				become(here, to.program, e.end)
				here.AwaitRedis("ok")
				check(to.name)
			}
			job.Signal(syscall.SIGTERM)
			job.Wait()
			check("after the job")
		})
	}
}

// A host waits in the queue of a lock when it is downgraded. Its daemon does not receive a lock
// that is passed on to that ticket, so the lock goes to the next host, or is free.
func TestDowngradedDaemonIsNotPassedALock(t *testing.T) {
	t.Parallel()
	all := versions(t)
	for _, e := range ends {
		t.Run(e.how, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			here, there, third := harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
			holder := harness.StartGoWorker(t, there)
			gone, next := harness.StartGoWorker(t, here), harness.StartGoWorker(t, third)
			h := harness.LockEach(r, []*harness.Worker{holder}, "passed on")[0]
			gone.Enqueue(here, h.Name)
			harness.Eventually(t, "the host is in the queue", func() bool { return r.Tickets(h.Name) == 1 })
			granted := next.Enqueue(third, h.Name)
			harness.Eventually(t, "both hosts are in the queue", func() bool { return r.Tickets(h.Name) == 2 })
			e.end(here)
			t.Logf("%d tickets are left", r.Tickets(h.Name))
			gone.Kill() // so that no request of the downgraded host wants the lock
			here.Program = all[0].program
			here.Start(harness.LongLease)
			here.AwaitSocket()
			here.AwaitRedis("ok")
			h.PassTo(next, granted)
			next.Unlock(h.Name)
			harness.Eventually(t, "the lock is free, and no ticket stands", func() bool { return len(r.Fields(h.Name)) == 0 && r.Tickets(h.Name) == 0 })
		})
	}
}

// A daemon is killed while it keeps a lock for a moment after its release. Its successor of the
// base frees that lock. The moment is short, so the test may have to kill several times.
func TestDowngradedDaemonReleasesALockThatLingers(t *testing.T) {
	t.Parallel()
	const name = "lingering"
	all := versions(t)
	r := harness.StartRedis(t)
	for range 20 {
		here := harness.StartDaemon(t, r.UnixURL(), harness.LongLease, "--linger=20ms")
		w := harness.StartGoWorker(t, here)
		w.Must(harness.Command{Do: "poll", Name: name, WaitMS: -1, Count: 50, ForMS: harness.Patience.Milliseconds()})
		here.Kill()
		lingered := len(r.Fields(name)) > 0
		here.Program = all[0].program
		here.Start(harness.LongLease)
		here.AwaitSocket()
		here.AwaitRedis("ok")
		harness.Eventually(t, "the lock is free", func() bool { return len(r.Fields(name)) == 0 })
		w.Lock(name)
		w.Unlock(name)
		if lingered {
			return
		}
	}
	t.Fatal("the daemon was never killed while the lock lingered")
}
