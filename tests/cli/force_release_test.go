package cli

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// force-release ends a hold. The SDK of the holder reports the reason.
//
// Shows docs/guarantees.md: A lost lock is reported once, with the reason.
func TestForceReleaseEndsAHold(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	w := harness.StartGoWorker(t, d)
	w.Lock("stuck")
	if got := d.Run("force-release", "stuck"); got.Code != 0 {
		t.Fatalf("exit code %d: %s", got.Code, got.Stderr)
	}
	if a := w.Try(harness.Command{Do: "lost", As: "stuck"}); a.Err != "lost" || a.Reason != "forced" {
		t.Errorf("the SDK of the holder reports %+v", a)
	}
	if got := d.Run("force-release", "stuck"); got.Code == 0 {
		t.Error("force-release of a free lock ends with exit code 0")
	}
}
