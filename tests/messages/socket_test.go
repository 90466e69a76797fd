package messages

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMissingSocketIsReported(t *testing.T) {
	t.Parallel()
	path := filepath.Join(harness.ShortDir(t), "nowhere.sock")
	_, err := locksidecar.Dial(t.Context(), path)
	harness.CheckError(t, err, locksidecar.ErrUnavailable, path)
	r := harness.RunProgram(t, []string{"LOCKSIDECAR_SOCKET=" + path}, "ls")
	if r.Code != 69 {
		t.Errorf("`locksidecar ls` ends with %d, not 69", r.Code)
	}
	harness.CheckContains(t, r.Stderr, path)
	if harness.HasPython() {
		out, err := exec.Command(harness.Python(t), "-c", "import locksidecar, sys\n"+
			"try: locksidecar.connect(sys.argv[1]).lock('x').acquire()\n"+
			"except locksidecar.Unavailable as e: print(e)", path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		harness.CheckContains(t, string(out), path)
	}
}

func TestForbiddenSocketIsReported(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--socket-mode=0600")
	for dir := filepath.Dir(d.Socket); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(harness.Program(t), "ls")
	cmd.Env = append(harness.PlainEnv(), "LOCKSIDECAR_SOCKET="+d.Socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 77 {
		t.Errorf("`locksidecar ls` by another user: %v, not exit code 77", err)
	}
	harness.CheckContains(t, string(out), d.Socket, "permi")
}

// A second daemon on a socket names the process of the first one, which is not disturbed.
func TestSecondDaemonOnASocketIsRefused(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	second := harness.RunProgram(t, []string{"LOCKSIDECAR_REDIS=" + r.UnixURL()}, "serve", "--socket", d.Socket)
	if second.Code == 0 {
		t.Error("a second daemon on the same socket ended with exit code 0")
	}
	harness.CheckContains(t, second.Stderr, d.Socket, "already", fmt.Sprint(d.PID()))
	if _, err := harness.Dial(t, d).TryLock(t.Context(), "x"); err != nil {
		t.Errorf("the first daemon does not grant a lock any more: %v", err)
	}
}
