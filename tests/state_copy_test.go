package tests

import (
	"os/exec"
	"syscall"
	"testing"
)

// An operator restores a copy of the state file that was made while another client held
// the lock. With that copy, the daemon would grant it to a second client under the hold
// number of the first.
func TestStaleCopyOfTheStateFileGrantsNoLockTwice(t *testing.T) {
	for _, cp := range [][]string{{"cp"}, {"cp", "-p"}, {"cp", "-p", "--remove-destination"}} {
		t.Run(cp[len(cp)-1], func(t *testing.T) {
			r := startRedis(t)
			const lease = "--lease=3s"
			d := startDaemon(t, r.unixURL(), lease)
			before, holder, other := startGoWorker(t, d), startGoWorker(t, d), startGoWorker(t, d)
			copyFile := func(from, to string) {
				t.Helper()
				if out, err := exec.Command(cp[0], append(cp[1:len(cp):len(cp)], from, to)...).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			state := d.socket + ".state"
			before.lock("x")
			copyFile(state, state+".backup")
			before.unlock("x")
			holder.lock("x")
			holder.signal(syscall.SIGSTOP) // it believes in its lock until its deadline
			d.kill9()
			copyFile(state+".backup", state)
			d.start(lease)
			d.awaitAnswer()
			d.awaitRedis("ok")

			granted := other.try(command{Do: "lock", As: "x", Name: "x", WaitMS: -1})
			if granted.Err != "" {
				t.Fatalf("the next client got %+v", granted)
			}
			holder.signal(syscall.SIGCONT)
			if lost := holder.try(command{Do: "lost", As: "x"}); lost.Err != "lost" || granted.AtNS < lost.DeadlineNS {
				t.Errorf("the lock was granted to a second client %d ms before the deadline of the first one, which reports %+v", (lost.DeadlineNS-granted.AtNS)/1e6, lost)
			}
			if !d.log.contains("cop") {
				t.Error("the log does not say that the state file is a copy")
			}
		})
	}
}
