package cli

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A daemon that hangs is no lock that another process holds: a script that takes the two for one would skip its job
// without a word.
func TestHungDaemonIsNotALockThatIsHeld(t *testing.T) {
	t.Parallel()
	redis := harness.StartRedis(t)
	d := harness.StartDaemon(t, redis.TCPURL())
	holder := harness.StartRun(t, d, "job", "echo running; read line")
	holder.AwaitOutput("running")
	if got := d.Run("run", "--wait", "5s", "job", "true"); got.Code != 75 {
		t.Errorf("beside a holder it ends with %d: %s", got.Code, got.Stderr)
	}
	waiter := harness.StartRun(t, d, "job", "true", "--wait", "20s")
	harness.Eventually(t, "it waits", func() bool { return harness.Waiters(t, d, "job") == 1 })
	d.Suspend()
	if code := waiter.Wait(); code != 69 {
		t.Errorf("the daemon hung after the request, and the command ended with %d", code)
	}
	for _, wait := range []string{"0", "1s", "3s"} {
		got := harness.RunProgram(t, []string{"LOCKSIDECAR_SOCKET=" + d.Socket}, "run", "--wait", wait, "other", "true")
		if got.Code != 69 {
			t.Errorf("--wait %s ends with %d", wait, got.Code)
		}
		harness.CheckContains(t, got.Stderr, "did not answer within", "is it stopped, or overloaded?")
	}
	d.Kill()
	holder.CloseStdin()
}
