package daemon

import (
	"os/exec"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// `serve --embedded` starts a Redis of its own, and its log names it.
func TestEmbeddedRedisIsStartedAndNamed(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed")
	}
	d := harness.NewDaemon(t, "")
	d.Start("--embedded")
	d.AwaitSocket()
	d.AwaitRedis("ok")
	harness.CheckContains(t, d.Log.String(), "redis-server")
	c := harness.Dial(t, d)
	l, err := c.TryLock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	c.Close() // while the daemon runs
	d.Terminate()
	if code := d.ExitCode(); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
}
