package daemon

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// An operator restores a copy of the state file that was made while another client held
// the lock. With that copy, the daemon would grant it to a second client under the hold
// number of the first.
//
// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
func TestStaleCopyOfTheStateFileGrantsNoLockTwice(t *testing.T) {
	t.Parallel()
	for _, cp := range [][]string{{"cp"}, {"cp", "-p"}, {"cp", "-p", "--remove-destination"}} {
		t.Run(cp[len(cp)-1], func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			const lease = "--lease=3s"
			d := harness.StartDaemon(t, r.UnixURL(), lease)
			before, holder, other := harness.StartGoWorker(t, d), harness.StartGoWorker(t, d), harness.StartGoWorker(t, d)
			copyFile := func(from, to string) {
				t.Helper()
				if out, err := exec.Command(cp[0], append(cp[1:len(cp):len(cp)], from, to)...).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			state := d.Socket + ".state"
			before.Lock("x")
			copyFile(state, state+".backup")
			before.Unlock("x")
			holder.Lock("x")
			holder.Signal(syscall.SIGSTOP) // its hold lasts until the deadline
			d.Kill()
			copyFile(state+".backup", state)
			d.Start(lease)
			d.AwaitSocket()
			d.AwaitRedis("ok")

			granted := other.Try(harness.Command{Do: "lock", As: "x", Name: "x", WaitMS: -1})
			if granted.Err != "" {
				t.Fatalf("the next client got %+v", granted)
			}
			holder.Signal(syscall.SIGCONT)
			if lost := holder.Try(harness.Command{Do: "lost", As: "x"}); lost.Err != "lost" || granted.AtNS < lost.DeadlineNS {
				t.Errorf("the lock was granted to a second client %d ms before the deadline of the first one, which reports %+v", (lost.DeadlineNS-granted.AtNS)/1e6, lost)
			}
			d.Log.AwaitWords(t, "cop") // it says that the state file is a copy
		})
	}
}
