// Package clientfaults shows what becomes of locks, and of other clients, when a client
// process dies, stops, forks, does not read, runs out of file descriptors, violates the
// protocol, or attacks the daemon.
//
//	fault of a client                               test
//	killed                                          TestKillOfAHolderFreesItsLock
//	stopped past its lease                          TestHolderStoppedPastItsDeadlineFindsItsLockLost
//	stopped past its lease or max_hold, while
//	the daemon is restarted or not                  TestHolderStoppedPastItsEndFindsItsLockLost
//	stopped, and its lock is renewed                TestStoppedProcessKeepsItsRenewedLock,
//	                                                TestHoldersStoppedPastTheirDeadlinesKeepLocksThatWereRenewed
//	forked; the parent dies                         TestForkedChildDoesNotKeepItsParentsLocks
//	forked; the child dies                          TestDeathOfAForkedChildFreesNothing
//	forked; the daemon is restarted                 TestForkedChildHoldsNothingAfterARestart
//	never reads, while the daemon serves, stops
//	and is back                                     TestClientThatNeverReadsHarmsNoOtherClient
//	connects and disconnects 10,000 times           TestTenThousandConnectionsLeaveNothing
//	never completes its hello                       TestSlowHelloKeepsNoPlace
//	sends anything but hello first                  TestClientWithoutHelloIsDisconnected
//	announces a frame of 4 GiB                      TestFrameOfFourGigabytesIsRefused
//	sends bytes that are not a frame                TestMisbehavingClientKeepsItsLockToTheDeadline
//	has no file descriptors left                    TestClientWithoutDescriptorsKeepsItsLock,
//	                                                TestDialWithoutDescriptorsReportsIt
//	leaves the daemon no file descriptors           TestDaemonAtItsLimitOfDescriptorsServesItsClients,
//	                                                TestDaemonWithoutDescriptorsServesItsClients,
//	                                                TestDaemonRestartedWithTooFewDescriptorsKeepsLocks
//	floods the daemon                               TestHostileProcessCostsNoOtherProcessALock
//	takes all that there is                         TestOneUserLeavesRoomForOthers
//
// What the log has of them is in tests/messages.
package clientfaults

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.Config{Roles: map[string]func() int{
		quitter:       runQuitter,
		sharedSocket:  runSharedSocket,
		unreadLists:   func() int { return runUnread(unreadLists) },
		unreadAnswers: func() int { return runUnread(unreadAnswers) },
	}})
}

// startRole starts this test binary in a role. The returned function waits for the next line
// that it prints.
func startRole(t *testing.T, d *harness.Daemon, role string) (*exec.Cmd, func() string) {
	t.Helper()
	cmd := harness.RoleCommand(t, d, role)
	return cmd, startWithLines(t, cmd)
}

// startWithLines starts a command. The returned function waits for the next line that the
// command prints.
func startWithLines(t *testing.T, cmd *exec.Cmd) func() string {
	t.Helper()
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewReader(stdout)
	return func() string {
		t.Helper()
		stdout.(*os.File).SetReadDeadline(time.Now().Add(harness.Patience))
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%v prints no line: %v", cmd.Args, err)
		}
		return strings.TrimSpace(line)
	}
}

// lockSoon acquires a lock that must become free.
func lockSoon(t *testing.T, c *locksidecar.Client, name string) *locksidecar.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	l, err := c.Lock(ctx, name)
	if err != nil {
		t.Fatalf("%s did not become free: %v", name, err)
	}
	return l
}

// awaitRenewals waits until a lock was renewed several times. There are three renewals in a
// lease.
func awaitRenewals(t *testing.T, r *harness.Redis, lock string, times int) {
	t.Helper()
	last, renewals := time.Duration(0), 0
	harness.Eventually(t, fmt.Sprintf("%d renewals of %s", times, lock), func() bool {
		ttl := r.PTTL(t.Context(), lock).Val()
		if ttl < 0 {
			t.Fatalf("%s is not locked any more after %d renewals", lock, renewals)
		}
		if ttl > last && last > 0 {
			renewals++
		}
		last = ttl
		return renewals >= times
	})
}
