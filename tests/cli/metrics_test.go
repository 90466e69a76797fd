package cli

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// metrics prints what the daemon counts, although it has no listener.
func TestMetricsAreThoseOfTheDaemon(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c := harness.Dial(t, d)
	if _, err := c.Lock(t.Context(), "invoice:42"); err != nil {
		t.Fatal(err)
	}
	out := d.Run("metrics")
	for _, line := range []string{
		"# TYPE locksidecar_acquires_total counter", `locksidecar_acquires_total{result="granted"} 1`,
		"locksidecar_holds 1", "locksidecar_redis_up 1", "process_start_time_seconds", "go_goroutines",
	} {
		if !strings.Contains(out.Stdout, "\n"+line) {
			t.Errorf("there is no line %q", line)
		}
	}
	if out.Code != 0 || strings.Contains(out.Stdout, "invoice") {
		t.Errorf("it exits with %d, or prints the name of a lock:\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
}
