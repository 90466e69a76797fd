package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// force-release --orphaned frees a lock of a host that died, and no other: not while its daemon runs,
// is stopped, or has just ended. The next waiter gets the lock at once, and the daemon that comes back
// notifies the process that had it.
//
// Shows docs/guarantees.md: A lock of a dead host is freed early only on request.
func TestForceReleaseOfAnOrphanedLock(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d7 := harness.StartDaemon(t, r.UnixURL(), "--host-name=db-7", "--lease=10m")
	d1 := harness.StartDaemon(t, r.UnixURL(), "--host-name=web-1")
	w := harness.StartGoWorker(t, d7)
	w.Lock("job")
	awaitHosts(t, d1, 2)
	sidecar, hold := r.Owner("job"), ""
	for field := range r.Fields("job") {
		hold = strings.TrimPrefix(field, sidecar+":")
	}
	waiter := harness.StartRun(t, d1, "job", "echo running; read line")
	harness.Eventually(t, "the run on web-1 waits", func() bool { return harness.Waiters(t, d1, "job") == 1 && r.Tickets("job") == 1 })

	refused := func(when string, parts ...string) {
		t.Helper()
		got := d1.Run("force-release", "--orphaned", "job")
		if got.Code != 77 {
			t.Errorf("%s: exit code %d: %s%s", when, got.Code, got.Stdout, got.Stderr)
		}
		harness.CheckContains(t, got.Stderr, parts...)
		if r.Owner("job") != sidecar {
			t.Fatalf("%s: the lock was freed", when)
		}
	}
	refused("while its daemon runs", "on host db-7 runs", "force-release --host db-7")
	d7.Suspend()
	refused("while its daemon is stopped", "on host db-7 is connected to Redis and does not answer, so it may be alive")
	d7.Kill()
	harness.Eventually(t, "Redis has noticed the end", func() bool { return !r.IsReached(sidecar) })
	refused("when its daemon has just ended", "on host db-7 was connected to Redis less than 3m0s ago", "try again in ")
	d1.Log.AwaitWords(t, "a client was not permitted to force the release", "lock=job", "orphaned=true", "reason=", "db-7")
	r.MustDo("del", "locksidecar_host:{"+sidecar+"}") // as after three minutes

	got := d1.Run("force-release", "--orphaned", "job")
	if got.Code != 0 {
		t.Fatalf("exit code %d: %s", got.Code, got.Stderr)
	}
	harness.CheckContains(t, got.Stdout, `freed the orphaned lock "job": deleted hold `+hold+" of sidecar "+sidecar, "the first host that waited has the lock", "only cut off from Redis", "from now)")
	waiter.AwaitOutput("running")
	d1.Log.AwaitWords(t, "client freed an orphaned lock", "lock=job", "hold="+hold, "sidecar="+sidecar, "cmd=\"locksidecar force-release --orphaned job\"")
	harness.CheckContains(t, d1.Run("events", "job").Stdout, "forced      job  by pid ", "as an orphaned lock of sidecar "+sidecar, "refused to pid ")

	d7.Start("--host-name=db-7", "--lease=10m")
	if a := w.Try(harness.Command{Do: "lost", As: "job"}); a.Err != "lost" || a.Reason != "stolen" {
		t.Errorf("the SDK of the former holder reports %+v", a)
	}
	if got := d1.Run("force-release", "--orphaned", "nothing"); got.Code != 1 {
		t.Errorf("of a free lock: exit code %d: %s", got.Code, got.Stderr)
	}
}

// force-release --orphaned frees all permits of a host that died; --sidecar says which, if several have some.
func TestForceReleaseOfOrphanedPermits(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	const one, two = "285475da-9152-8c83-822a-67ee2f116a79", "6a8f1f3e-4f7f-8c2e-9a3c-2f6b8a1d0e5f"
	until := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	r.MustDo("hset", "api", "mode", "permits 10 "+until+" "+until+" 1", one, "7 6 "+until, two, "9 4 "+until)
	waiter := harness.StartRun(t, d, "api", "echo running; read line", "--permits=5", "--of=10")
	harness.Eventually(t, "the run waits", func() bool { return harness.Waiters(t, d, "api") == 1 })
	got := d.Run("force-release", "--orphaned", "api")
	if got.Code != 1 {
		t.Errorf("without --sidecar: exit code %d: %s", got.Code, got.Stderr)
	}
	harness.CheckContains(t, got.Stderr, "several other hosts have permits", one+" (6)", two+" (4)", "--sidecar")
	got = d.Run("force-release", "--orphaned", "--sidecar", one, "api")
	harness.CheckContains(t, got.Stdout, `freed orphaned permits of "api": 6 of sidecar `+one, "hosts that wait get what is free", "processes there may still use the permits, at most until ")
	waiter.AwaitOutput("running")
	if got := d.Run("who", "api").Stdout; strings.Contains(got, one) || !strings.Contains(got, two) {
		t.Errorf("who says %s", got)
	}
	d.Log.AwaitWords(t, "client freed orphaned permits", "lock=api", "permits=6", "sidecar="+one)
	harness.CheckContains(t, d.Run("events", "api").Stdout, "as orphaned permits of sidecar "+one)
	if got := d.Run("force-release", "--sidecar", one, "api"); got.Code != 64 || !strings.Contains(got.Stderr, "--sidecar is for --orphaned") {
		t.Errorf("without --orphaned: exit code %d: %s", got.Code, got.Stderr)
	}
}

// Another user of the host frees no orphaned lock, and the attempt is in the log.
func TestOrphanedLockIsForAdministrators(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("root can become another user")
	}
	r := harness.StartRedis(t)
	d := harness.StartDaemonForAllUsers(t, r)
	const sidecar = "285475da-9152-8c83-822a-67ee2f116a79"
	r.MustDo("hset", "job", sidecar+":7", 1)
	cmd := exec.Command(harness.Program(t), "force-release", "--orphaned", "job")
	cmd.Env = append(harness.PlainEnv(), "LOCKSIDECAR_SOCKET="+d.Socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 77 {
		t.Errorf("another user: %v, not exit code 77", err)
	}
	harness.CheckContains(t, string(out), "only root and the sidecar's user may free orphaned locks")
	if r.Owner("job") != sidecar {
		t.Error("the lock was freed")
	}
	d.Log.AwaitWords(t, "a client was not permitted to force the release", "lock=job", "orphaned=true", "uid=65534")
}
