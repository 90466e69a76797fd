package clientfaults

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The lock of a process that is killed is free at once, for waiters on its own host and on
// others.
//
// Shows docs/guarantees.md: A process that dies frees its locks at once.
// Shows docs/guarantees.md: Crash of a holder, kill -9.
func TestKillOfAHolderFreesItsLock(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	harness.ForEachSDK(t, func(t *testing.T, sdk harness.SDK) {
		for where, d := range map[string]*harness.Daemon{"same host": here, "other host": there} {
			t.Run("waiter on the "+where, func(t *testing.T) {
				name := t.Name()
				victim := sdk.StartWorker(t, here)
				token := victim.Lock(name).Token
				next := harness.StartGoWorker(t, d)
				granted := next.Enqueue(d, name)

				killed := protocol.Now()
				victim.Kill()
				a := next.Await(granted)
				if a.Err != "" || a.Token <= token {
					t.Fatalf("the waiter got %+v; the killed holder had token %d", a, token)
				}
				t.Logf("granted %.1f ms after the kill", float64(a.AtNS-killed)/1e6)
			})
		}
	})
}

// A process releases its lock and ends at once. The daemon executes the release, although it
// may detect the end of the process before it has read the release. So the crash delay does
// not apply.
func TestReleaseJustBeforeExitIsExecuted(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	c := harness.Dial(t, d)
	for i := range 100 {
		name := fmt.Sprint("quit ", i)
		cmd := harness.RoleCommand(t, d, quitter)
		cmd.Args = append(cmd.Args, name)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
		l, err := c.Lock(ctx, name)
		cancel()
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		l.Unlock()
	}
	if d.Log.Contains("locks held") {
		t.Errorf("according to the log, a client ended with locks held:\n%s", d.Log.String())
	}
}

const quitter = "quitter"

// runQuitter acquires and releases the lock that its argument names, and exits without bye.
func runQuitter() int {
	c, err := locksidecar.Dial(context.Background(), "")
	if err == nil {
		var l *locksidecar.Lock
		if l, err = c.Lock(context.Background(), os.Args[1], locksidecar.WithCrashDelay(time.Hour)); err == nil {
			err = l.Unlock()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
