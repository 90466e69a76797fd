package cli

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// run does not start its command while another process holds the lock, and ls lists the
// holder and the waiters.
func TestRunWaitsAndLsListsHolderAndWaiters(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	holder := harness.StartRun(t, d, "job", "echo running; read line")
	holder.AwaitOutput("running")
	waiter := harness.StartRun(t, d, "job", "echo ran")

	harness.Eventually(t, "the second run waits", func() bool { return harness.Waiters(t, d, "job") == 1 })
	if got := d.Run("run", "--wait", "0", "job", "--", "echo", "no"); got.Code != 75 || got.Stdout != "" {
		t.Errorf("run --wait 0: exit code %d, output %q", got.Code, got.Stdout)
	} else {
		harness.CheckContains(t, got.Stderr, "job", "held")
	}
	if got := d.Run("run", "--wait", "2s", "job", "--", "echo", "no"); got.Code != 75 || got.Stdout != "" {
		t.Errorf("run --wait 2s: exit code %d, output %q", got.Code, got.Stdout)
	}

	var row lsRow
	harness.Eventually(t, "ls --json has one waiter", func() bool { // the request that was given up may be on its way out
		got := d.Run("ls", "--json")
		if got.Code != 0 {
			t.Fatalf("ls --json: exit code %d\n%s", got.Code, got.Stderr)
		}
		row = findRow(t, got.Stdout, "job")
		return len(row.Waiters) == 1
	})
	if row.State != "held" || row.PID != holder.PID() || row.Token == 0 || len(row.Waiters) != 1 ||
		row.Waiters[0].PID != waiter.PID() || !strings.Contains(row.Cmd, "locksidecar") {
		t.Errorf("ls --json shows %+v; the holder is %d, the waiter %d", row, holder.PID(), waiter.PID())
	}
	table := d.Run("ls")
	harness.CheckContains(t, table.Stdout, "job", "held", strconv.Itoa(holder.PID()), strconv.Itoa(waiter.PID()))

	holder.CloseStdin() // ends read
	if code := holder.Wait(); code != 0 && code != 1 {
		t.Errorf("the holder ended with %d", code)
	}
	if code := waiter.Wait(); code != 0 || !waiter.Output.Contains("ran") {
		t.Errorf("the waiter ended with %d: %s", code, waiter.Output.String())
	}
}

type lsRow struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Token   uint64 `json:"token"`
	PID     int    `json:"pid"`
	Cmd     string `json:"cmd"`
	Waiters []struct {
		PID int `json:"pid"`
	} `json:"waiters"`
}

// findRow returns the row of a lock in the output of ls --json.
func findRow(t *testing.T, text, name string) lsRow {
	t.Helper()
	var rows []lsRow
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("ls --json: %v\n%s", err, text)
	}
	for _, r := range rows {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("ls --json does not show %q:\n%s", name, text)
	panic("unreachable")
}
