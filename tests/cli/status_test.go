package cli

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// status names the oldest waiter, the process that it waits for, and what a restart took over.
func TestStatusShowsWaiterHolderAndRestart(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	holder := harness.StartRun(t, d, "job", "echo running; read line")
	holder.AwaitOutput("running")
	waiter := harness.StartRun(t, d, "job", "echo ran")
	harness.Eventually(t, "the second run waits", func() bool { return harness.Waiters(t, d, "job") == 1 })
	table := d.Run("top", "--interval", "100ms")
	harness.CheckContains(t, table.Stdout, "1 held, 1 waiting", "1 lock by waiters", "job", strconv.Itoa(holder.PID()))
	d.Kill()
	d.Start()
	d.AwaitSocket()
	d.AwaitRedis("ok")
	harness.Eventually(t, "both are back", func() bool { return harness.Waiters(t, d, "job") == 1 })

	var v struct {
		Redis        string
		Held         int
		OldestWaiter struct {
			PID    int
			HeldBy struct{ PID int } `json:"held_by"`
		} `json:"oldest_waiter"`
		Restart struct{ Held, Back int }
	}
	harness.Eventually(t, "the status has the waiter and its holder", func() bool {
		got := d.Run("status", "--json")
		if err := json.Unmarshal([]byte(got.Stdout), &v); err != nil || got.Code != 0 {
			t.Fatalf("status --json: exit code %d, %v\n%s%s", got.Code, err, got.Stdout, got.Stderr)
		}
		return v.OldestWaiter.PID == waiter.PID() && v.OldestWaiter.HeldBy.PID == holder.PID() && v.Restart.Back == 1 && v.Redis == "ok"
	})
	if v.Redis != "ok" || v.Held != 1 || v.Restart.Held != 1 || v.Restart.Back != 1 {
		t.Errorf("status --json: %+v", v)
	}
	harness.CheckContains(t, d.Run("status").Stdout, `has waited`, `for "job"`, `"job" is held for `, "redis     serves", "restart   took over 1 held lock of 1 client: 1 back, 0 away")
}
