package clientfaults

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A process of another user, which opens sessions and acquires locks until the daemon refuses
// more, gets what the policy of the host allows it. Root is not bound by an entry for everyone.
func TestPolicyBoundsWhatAnotherUserGets(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have a process of another user")
	}
	settings := filepath.Join(t.TempDir(), "s.toml")
	if err := os.WriteFile(settings, []byte(`
[[policy]]
name = "guests"
sessions = 3
holds = 5
`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := harness.StartRedis(t)
	d := harness.StartDaemonForAllUsers(t, r, "--config="+settings)
	_, got := harness.StartAttack(t, d, harness.AttackCrowd)
	if want := []int64{3, 5}; !slices.Equal(got, want) {
		t.Errorf("the other user got %v sessions and locks, want %v", got, want)
	}
	d.Log.AwaitWords(t, "client met a limit", `rule \"guests\" of the policy limits holds of user`)
	for i := range 6 {
		c := harness.Dial(t, d)
		if _, err := c.TryLock(t.Context(), fmt.Sprint("mine:", i)); err != nil {
			t.Error(err)
		}
	}
	if got := d.Run("force-release", "crowd:4"); got.Code != 0 {
		t.Errorf("force-release: exit code %d, %s", got.Code, got.Stderr)
	}
	if got := d.Run("ls"); got.Code != 0 || !strings.Contains(got.Stdout, "crowd:1") {
		t.Errorf("ls: exit code %d, %s %s", got.Code, got.Stdout, got.Stderr)
	}
}

// A member of one team asks with every command for the locks of another one. Nothing that the member
// reads has a name, a command or a pid of them; its own history is there, also as it happens.
func TestPolicyShowsAMemberItsOwnHistoryAndNoOther(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have a process of another user")
	}
	settings := filepath.Join(t.TempDir(), "s.toml")
	if err := os.WriteFile(settings, []byte(`
[[policy]]
name = "ops"
groups = ["54321"]
force_release = "all"

[[policy]]
name = "rest"
list = "own"
commands = false
`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := harness.StartRedis(t)
	d := harness.StartDaemonForAllUsers(t, r, "--config="+settings)

	follow := d.AsNobody("events", "--follow")
	out, err := follow.StdoutPipe()
	if err == nil {
		err = follow.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer endProcess(follow)

	// Root's losses, long waits and crashes, of a lock with a telling name.
	c, waiter := harness.Dial(t, d), harness.Dial(t, d)
	for i := range 3 {
		name := fmt.Sprint("secret:", i)
		l, err := c.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan error, 1)
		go func() {
			_, err := waiter.Lock(t.Context(), name)
			granted <- err
		}()
		for waits := false; !waits; {
			row, _, err := c.Info(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			waits = row.Waiting == 1 && len(row.Waiters) == 1 && row.Waiters[0].Waited.Milliseconds() > 20
		}
		if i == 0 {
			d.Run("force-release", name)
		} else if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
	}
	d.Run("force-release", "secret:1")
	if got := d.Run("events"); !strings.Contains(got.Stdout, "secret:0") || !strings.Contains(got.Stdout, "forced") {
		t.Fatalf("root sees %s", got.Stdout)
	}

	mine := d.AsNobody("run", "mine", "--", "sleep", "600")
	if err := mine.Start(); err != nil {
		t.Fatal(err)
	}
	defer endProcess(mine)
	for {
		if row, ok, err := c.Info(t.Context(), "mine"); err != nil {
			t.Fatal(err)
		} else if ok && row.UID != 0 {
			break
		}
	}
	d.Run("force-release", "mine")
	lines := bufio.NewScanner(out)
	seen := ""
	for lines.Scan() {
		if seen += lines.Text() + "\n"; strings.Contains(lines.Text(), "mine  forced") { // on a busy host, a long wait for it comes before
			break
		}
	}
	if !strings.Contains(seen, "mine  forced") {
		t.Errorf("events --follow printed %q, want the loss of its own lock", seen)
	}

	all := seen
	for _, args := range [][]string{
		{"events"}, {"events", "--json"}, {"status"}, {"status", "--json"}, {"ls"}, {"ls", "--json"}, {"ls", "--all"}, {"top", "--plain", "--interval=100ms"}, {"metrics"},
		{"who", "mine"}, {"ping"}, {"ls", "secr*"}, {"events", "secr*"},
	} {
		cmd := d.AsNobody(args...)
		text, err := cmd.CombinedOutput()
		all += string(text)
		switch args[0] {
		case "events":
			if err != nil || len(args) < 2 && !strings.Contains(string(text), "mine  forced") || !strings.Contains(string(text), `rule "rest" of the policy hides other users' locks from user`) {
				t.Errorf("%v: %v, %s", args, err, text)
			}
		case "status", "top":
			if err != nil || !strings.Contains(string(text), `rule `) || !strings.Contains(string(text), `hides other users' locks`) {
				t.Errorf("%v: %v, %s", args, err, text)
			}
		}
	}
	for _, args := range [][]string{{"who", "secret:0"}, {"run", "--wait=0", "secret:0", "--", "true"}, {"force-release", "secret:0"}} {
		text, _ := d.AsNobody(args...).CombinedOutput()
		for line := range strings.Lines(string(text)) { // it may be told the name that it asked for
			all += strings.ReplaceAll(line, "secret:0", "…")
		}
	}
	for _, hidden := range []string{"secret", fmt.Sprintf("pid %d", os.Getpid()), "clientfaults"} {
		if strings.Contains(all, hidden) {
			t.Errorf("the member reads %q:\n%s", hidden, all)
		}
	}
}

func endProcess(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
