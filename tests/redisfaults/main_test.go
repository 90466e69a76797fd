// Package redisfaults shows what becomes of locks when Redis fails, or the network between
// daemons and Redis. Each test shows what is guaranteed and, where something is not, that
// too.
//
//	fault                                      test
//	restart, with or without its data          TestLocksOutliveARestartOfRedis
//	restart without its data, two hosts        TestRestartWithoutDataAndTwoHosts
//	unreachable when the daemon starts         TestWaiterIsGrantedWhenRedisStarts
//	unreachable for longer than a lease        TestLockExpiresWhileRedisIsAway
//	unreachable for good                       TestRedisIsGoneForGood
//	FLUSHALL, a deleted key                    TestFlushedLocksAreLostAtTheNextRenewal
//	a key that another program overwrites      TestOverwrittenLockIsLostAtTheNextRenewal
//	stalled for less than a lease              TestStallShorterThanALeaseLosesNothing
//	stalled for longer than a lease            TestStallLongerThanALeaseEndsHolds
//	hanging, and requests that do not wait     TestTryIsAnsweredWhileRedisHangs
//	hanging, and waits of less than 500 ms     TestShortWaitReportsThatRedisIsSilent
//	failover to a replica that lags            TestFailoverToAReplicaThatLags
//	planned failover, READONLY                 TestPlannedFailover, TestRedisBecomesAReplica
//	connections killed, reset, half-open, slow;
//	scripts flushed: under load                TestNoIncrementIsLostInFaultsUnderLoad
//	half-open connections, one at a time       TestHalfOpenConnections
//	a lost message                             TestWaiterFindsFreeLockAfterALostMessage
//	full (maxmemory)                           TestFullRedis
//
// Hosts that wait in the queue of a lock:
//
//	its daemon is killed, or its connection
//	is reset, or it is suspended for 15 s      TestLockIsNotPassedOnToAHostThatIsKnownToBeGone
//	suspended for less, lock passed on to it   TestHostThatIsSuspendedForAMomentIsPassedALock,
//	                                           TestHostThatIsSuspendedPastTheLeaseDoesNotGrantTheLockItWasPassed
//	half-open, lock passed on to it            TestHostWithAHalfOpenConnectionFindsTheLockItWasPassed
//	restarted, lock passed on to it            TestDaemonThatDiesBeforeItReadsATransferKeepsNoLock
//	the host of the holder dies                TestHostsAreGrantedTheLockOfAHostThatDied
//	the keys of the queue are deleted          TestHostsThatLostTheirPlaceAreGrantedTheLock
//	an ACL without the queue or its channels   TestHostThatMayNotQueueIsServed
//
// What users and operators can read meanwhile is in tests/messages.
package redisfaults

import (
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }

// checkUnavailable checks that a daemon refuses requests for free locks and says why: at
// once if they do not wait, and at the end of their time if they do.
func checkUnavailable(t *testing.T, d *harness.Daemon, workers []*harness.Worker, words ...string) {
	t.Helper()
	for _, w := range workers {
		a := w.Try(harness.Command{Do: "lock", As: "new", Name: "new", WaitMS: 0})
		if a.Err != "unavailable" {
			t.Errorf("a request that does not wait is answered %+v", a)
		}
		harness.CheckContains(t, a.Msg, words...)
	}
	w := harness.DialRaw(t, d)
	defer w.Conn.Close()
	harness.CheckContains(t, w.ExpectRefusal(protocol.Unavailable, harness.Message{"op": "acquire", "name": "new", "wait_ms": 300}), words...)
}
