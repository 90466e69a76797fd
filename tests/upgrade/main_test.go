// Package upgrade shows what holds while daemons of base-0.1.0-pre and of this tree use one
// Redis, and when a host is upgraded or downgraded. To each other, daemons of the two versions
// are foreign clients: those of base-0.1.0-pre have no queue in Redis.
//
//	mutual exclusion, tokens                   TestDaemonsOfTwoVersionsExcludeEachOther
//	a release wakes a waiter                   TestReleaseWakesAWaiterOfTheOtherVersion
//	shares of a lock that both want            TestDaemonsOfTwoVersionsShareALock
//	restart into the other version, under load TestNoIncrementIsLostInUpgradesUnderLoad
//	downgrade: holds, waiters                  TestDowngradedDaemonRestoresHoldsAndWaiters
//	upgrade and downgrade: locks with a keep   TestKeptLockSurvivesAnUpgradeAndADowngrade
//	downgrade: a ticket in the queue           TestDowngradedDaemonIsNotPassedALock
//	downgrade: a lock that lingers             TestDowngradedDaemonReleasesALockThatLingers
//	a semaphore, also at a downgrade           permits_test.go
//
// harness.Base010Pre has the commit. Locks with a keep need harness.Base010PreKeep. Their binaries are
// built from the history of the repository. Without it, the tests are skipped.
package upgrade

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }

// versions returns the binaries of the two versions: "" is that of this tree.
func versions(t *testing.T) []version {
	t.Helper()
	return []version{{harness.Base010Pre.Name, harness.ProgramOf(t, harness.Base010Pre)}, {"this tree", ""}}
}

type version struct{ name, program string }
