package clientfaults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A process of another user, which opens sessions and acquires locks until the daemon refuses
// more, gets what the policy of the host allows it. Root is not bound by an entry for everyone.
func TestPolicyBoundsWhatAnotherUserGets(t *testing.T) {
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
