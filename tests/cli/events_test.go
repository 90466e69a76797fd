package cli

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// events --follow prints what happens, and continues with the next daemon.
func TestEventsFollowsOverARestart(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	if got := d.Run("events"); got.Stdout != "no events\n" || got.Code != 0 {
		t.Errorf("events: exit code %d, %q %q", got.Code, got.Stdout, got.Stderr)
	}
	follow := harness.StartProcess(t, d, harness.Program(t), "events", "--follow")
	holder := harness.StartRun(t, d, "job", "echo running; read line")
	holder.AwaitOutput("running")
	waiter := harness.StartRun(t, d, "job", "echo ran; read line")
	harness.Eventually(t, "the second run waits", func() bool { return harness.Waiters(t, d, "job") == 1 })
	if got := d.Run("force-release", "job"); got.Code != 0 {
		t.Fatalf("force-release: %s", got.Stderr)
	}
	follow.AwaitOutput("lost        job  forced: a client ended it by force; held for ")
	follow.AwaitOutput("forced      job  by pid ")
	waiter.AwaitOutput("ran")

	d.Kill()
	d.Start()
	follow.AwaitOutput("takeover    the daemon was restarted: it took over 1 hold; 1 client with locks may come back")
	if got := d.Run("events", "--json"); got.Code != 0 {
		t.Errorf("events --json: %s", got.Stderr)
	} else {
		harness.CheckContains(t, got.Stdout, `"kind":"takeover","count":1`)
	}
}
