package examples

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// The workers of examples/compose, as processes of this host. packaging/ checks the file of Compose.
func TestWorkersOfComposeWriteEachNumberOnce(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	script := filepath.Join(harness.Root(), "examples", "compose", "worker.py")
	var workers []*harness.RunProcess
	for range 2 {
		workers = append(workers, harness.StartProcess(t, d, "env", "REDIS_URL="+r.TCPURL(), harness.Python(t), "-u", script))
	}
	lines := func(w *harness.RunProcess) []string { return strings.Split(w.AwaitOutput("token "), "\n") }
	harness.Eventually(t, "both workers have written three numbers", func() bool {
		return len(lines(workers[0])) > 3 && len(lines(workers[1])) > 3
	})
	writers := make(map[string]int) // of each number
	for i, w := range workers {
		for _, line := range lines(w) {
			_, number, whole := strings.Cut(line, ": wrote ")
			if other, written := writers[number]; whole && written {
				t.Errorf("the workers %d and %d both wrote %s", other, i, number)
			}
			writers[number] = i
		}
	}
}
