package clientfaults

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// The ticket of a session is good for one user. A process that has become another one cannot resume its
// sessions. The one whose ticket it shows ends with its lease: its client knows that it is not renewed. The
// other one may rely on its lock until the daemon was asked in vain.
//
// Shows docs/guarantees.md: The process changes its user.
func TestLockIsNotRenewedAfterItsProcessHasBecomeAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	t.Parallel()
	r := harness.StartRedis(t)
	const lease = "--lease=10s"
	d := harness.StartDaemonForAllUsers(t, r, lease)
	cmd := exec.Command(harness.Python(t), "-u", "setuid.py")
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+d.Socket)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	next := startWithLines(t, cmd)
	if line := next(); line != "held" {
		t.Fatal(line)
	}
	d.Kill()
	d.Start(lease, "--socket-mode=0666")
	d.AwaitSocket()
	fmt.Fprintln(stdin)
	if line := next(); !strings.Contains(line, "cannot renew the 1 locks held; the user changed: uid 0 opened the session, and this process has uid 65534") {
		t.Errorf("the client logs %q", line)
	}
	if got := d.Run("run", "--wait", "30s", "shown", "--", "true"); got.Code != 0 {
		t.Errorf("the lock of the session whose ticket was shown: %+v", got)
	}
	if got := d.Run("run", "--wait", "0", "kept", "--", "true"); got.Code == 0 {
		t.Error("the lock of a session that did not come back is free")
	}
	if !d.Log.Contains("the user changed") {
		t.Error("the log of the daemon has no reason")
	}
}
