package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(workerEnv); config != "" {
		if err := runWorker(config); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	harness.Main(m, harness.Config{})
}

// smallRun returns the settings of a short run. .ci/nightly has long ones, by harness.Long and by make chaos.
func smallRun(t *testing.T) settings {
	t.Helper()
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDIS") != "" {
			t.Fatal("redis-server is not installed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed: apt-get install redis-server")
	}
	set := settings{
		seed: 1, lease: 4 * time.Second, hosts: 2, goWorkers: 1, pyWorkers: 1, actors: 4, think: 60, hot: 4, cool: 20,
		of: 10, python: findPython(),
	}
	if set.python == "" {
		msg := "no Python that can import locksidecar: run `make venv`, or set LOCKSIDECAR_PYTHON"
		if os.Getenv("LOCKSIDECAR_REQUIRE_PYTHON") != "" {
			t.Fatal(msg)
		}
		t.Log(msg)
	}
	var err error
	// Not t.TempDir: the path of a socket in it may have 107 bytes, and the logs of a failed
	// run are kept.
	if set.dir, err = os.MkdirTemp("/tmp", "chaos"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs are kept in %s", set.dir)
			return
		}
		os.RemoveAll(set.dir)
	})
	set.program = harness.Program(t)
	return set
}

// run executes a run and expects no violation.
func run(t *testing.T, set settings) *outcome {
	t.Helper()
	o, err := conduct(t.Context(), set, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	o.print(&text)
	t.Log("\n" + text.String())
	if o.failed() {
		t.Error("see above")
	}
	if o.report.Grants == 0 || set.hot > 0 && o.report.Writes == 0 {
		t.Error("no grants or no writes: this run proves nothing")
	}
	return o
}

// Shows docs/guarantees.md: Tokens grow.
// Shows docs/guarantees.md: Nothing is freed early.
// Shows docs/guarantees.md: Exclusion.
// Shows docs/guarantees.md: kill -9, crash, SIGTERM, upgrade.
// Shows docs/guarantees.md: The same, of a daemon that died.
// Shows docs/guarantees.md: Failover to a replica that lags.
func TestStormOfFaultsBreaksNoRule(t *testing.T) {
	set := smallRun(t)
	set.length, set.seed = 7500*time.Millisecond, 36517 // draws many kinds of faults in a short time
	if harness.Long() {
		set.length, set.seed = 12*time.Second, 17
	}
	o := run(t, set)
	if len(o.faults) < 10 {
		t.Errorf("only %d kinds of faults: this run proves little", len(o.faults))
	}
}

// Daemons that live for 150 ms, and clients that are killed and stopped, of which some cannot
// resume their sessions: no two clients rely on a lock at one time.
//
// Shows docs/guarantees.md: Nothing is freed early.
func TestBarrageOfKillsBreaksNoRule(t *testing.T) {
	set := smallRun(t)
	set.length, set.lease = harness.Pick[time.Duration](3, 6)*time.Second, time.Second
	set.killEvery, set.plain = 150*time.Millisecond, 1
	set.hot, set.cool = 12, 60
	o := run(t, set)
	if o.faults[daemonKill] == 0 || o.faults[workerKill] == 0 || o.faults[workerStop] == 0 || o.report.Crossings == 0 {
		t.Errorf("%v, %d holds on another host than the one before: this run proves little", o.faults, o.report.Crossings)
	}
}

// The roles of master and replica are exchanged again and again, and no connection ends for that. Of
// two hosts with daemons of a version whose messages name no server, each follows the master. No
// fault excuses two owners of a lock, or a token that is granted twice.
//
// Shows docs/guarantees.md: Exclusion.
func TestExchangesOfRolesUnderTwoVersionsBreakNoRule(t *testing.T) {
	set := smallRun(t)
	set.older = harness.ProgramOf(t, harness.Base010PreQueue)
	set.of = 0 // an older daemon has no permits
	set.length, set.exchangeEvery = harness.Pick[time.Duration](4, 8)*time.Second, 500*time.Millisecond
	set.hosts, set.hot, set.cool, set.think = 4, 3, 12, 5
	o := run(t, set)
	if o.faults[exchange] < 4 || o.report.Crossings == 0 {
		t.Errorf("%v, %d holds on another host than the one before: this run proves little", o.faults, o.report.Crossings)
	}
	if o.report.Overlaps+o.report.Regressions > 0 {
		t.Errorf("%d overlaps and %d smaller tokens are excused, although nothing loses data", o.report.Overlaps, o.report.Regressions)
	}
}

// Clients keep their locks over kill -9 of the daemon, and the next daemon serves the waiters.
//
// Shows docs/guarantees.md: kill -9, crash, SIGTERM, upgrade.
func TestKilledDaemonsLoseNoLock(t *testing.T) {
	set := smallRun(t)
	set.kills = harness.Pick(3, 5)
	set.lease = 10 * time.Second // a daemon on a busy machine may need seconds to start
	o := run(t, set)
	if o.kills.kills != set.kills || o.kills.compared == 0 || o.report.Outlived == 0 {
		t.Errorf("%d kills, %d tokens compared, %d holds outlived one: this run proves little", o.kills.kills, o.kills.compared, o.report.Outlived)
	}
}

// Workers on two hosts use permits, and are killed while they hold some or wait, also while their daemon is away. No permit
// is lost, and never are more held than there are.
//
// Shows docs/kinds.md: Permits.
// Shows docs/guarantees.md: kill -9, crash, SIGTERM, upgrade.
func TestKilledHoldersAndDaemonsLoseNoPermit(t *testing.T) {
	set := smallRun(t)
	set.permitKills = harness.Pick(30, 200)
	set.usePermits(permitLease)
	o := run(t, set)
	if o.faults[daemonKill] == 0 || o.faults[workerKill] != set.permitKills || o.report.Killed < set.permitKills/4 || o.report.Crossings == 0 {
		t.Errorf("%v, %d holds of killed workers, %d on another host than the one before: this run proves little", o.faults, o.report.Killed, o.report.Crossings)
	}
}

// The permits of a host that dies are free when its lease ends, and not one is lost.
//
// Shows docs/kinds.md: Permits.
func TestPermitsOfADeadHostAreFreeWithItsLease(t *testing.T) {
	set := smallRun(t)
	set.hostKills = harness.Pick(1, 5)
	set.usePermits(hostLease)
	o := run(t, set)
	if o.faults[hostDeath] != set.hostKills || o.report.Killed == 0 {
		t.Errorf("%v, %d holds of killed workers: this run proves little", o.faults, o.report.Killed)
	}
}
