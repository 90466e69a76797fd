package messages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// The log says of each process that was killed while it held a lock that its process ended, although
// the kernel closes its connection first; and of one that lives, that its connection ended.
func TestReasonOfACrashIsTheEndOfTheProcess(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	for i := range 4 {
		name := fmt.Sprint("killed ", i)
		w := harness.StartGoWorker(t, d)
		w.Lock(name)
		w.Kill()
	}
	harness.Eventually(t, "all locks are free", func() bool { return d.Run("ls", "--json").Stdout == "[]\n" })
	raw := harness.DialRaw(t, d)
	raw.Call(harness.Message{"op": "acquire", "name": "closed"})
	raw.Conn.Close()
	d.Log.AwaitWords(t, `reason="its process ended"`, "locks=closed")
	if n := strings.Count(d.Log.String(), "its connection ended"); n != 1 { // that of raw; no line comes before those of the others
		t.Errorf("the log has %d ends of connections", n)
	}
}
