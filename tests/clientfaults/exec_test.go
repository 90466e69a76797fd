package clientfaults

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A holder executes another program, which keeps the pid, the start time and the pidfd of the process.
// The client does not connect in between: exec has closed its connection, or the end of the daemon has.
//
// Shows docs/guarantees.md: The process executes another program.
func TestLockOfAProcessThatHasExecutedAnotherProgramIsFree(t *testing.T) {
	t.Parallel()
	for when, execute := range map[string]func(d *harness.Daemon, exec func()){
		"while the daemon runs":    func(_ *harness.Daemon, exec func()) { exec() },
		"while no daemon runs":     func(d *harness.Daemon, exec func()) { d.Kill(); exec(); d.Start(harness.LongLease) },
		"after the daemon's death": func(d *harness.Daemon, exec func()) { d.Kill(); d.Start(harness.LongLease); d.AwaitSocket(); exec() },
	} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
			cmd := exec.Command(harness.Python(t), "exec.py")
			cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+d.Socket)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			next := startWithLines(t, cmd)
			if line := next(); line != "held" {
				t.Fatal(line)
			}
			execute(d, func() {
				fmt.Fprintln(stdin)
				harness.Eventually(t, "the process executes another program", func() bool {
					text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
					return err == nil && strings.TrimSpace(string(text)) == "cat"
				})
			})
			d.AwaitSocket()
			if got := d.Run("run", "--wait", "30s", "x", "--", "true"); got.Code != 0 {
				t.Errorf("the lock: %+v\n%s", got, d.Run("ls").Stdout)
			}
		})
	}
}
