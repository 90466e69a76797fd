package messages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// Settings come from flags, the environment and a file. The daemon names one that is invalid
// and does not start.
func TestServeRefusesBadSettings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(harness.ShortDir(t), "settings.toml")
	if err := os.WriteFile(file, []byte("lock_lease = \"3s\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(harness.ShortDir(t), "s.sock")
	for _, c := range []struct {
		args  []string
		words []string
	}{
		{[]string{"--lease", "1ms"}, []string{"lease", "1ms"}},
		{[]string{"--linger", "1s"}, []string{"linger 1s", "20ms", "0"}},
		{[]string{"--turn", "2s"}, []string{"turn 2s", "auto", "1s"}},
		{[]string{"--turn", "5"}, []string{"--turn", "\"auto\"", "\"5ms\""}},
		{[]string{"--redis", "http://example.org"}, []string{"redis", "unix://"}},
		{[]string{"--redis", "redis://:secret@127.0.0.1"}, []string{"--redis-file", "password"}},
		{[]string{"--config", file}, []string{"lock_lease", file}},
		{[]string{"--no-such-flag"}, []string{"no-such-flag"}},
	} {
		got := harness.RunProgram(t, nil, append([]string{"serve", "--socket", socket}, c.args...)...)
		if got.Code != 64 {
			t.Errorf("serve %q: exit code %d, not 64", c.args, got.Code)
		}
		harness.CheckContains(t, got.Stderr, c.words...)
		if strings.Contains(got.Stderr, "secret") {
			t.Errorf("serve %q prints the password: %s", c.args, got.Stderr)
		}
	}
}
