//go:build linux

package locksidecar

import (
	"path/filepath"
	"strings"
	"testing"
)

// Shows docs/guarantees.md: The process changes its user.
func TestRelativePathOfTheSocketOutlivesAChangeOfTheDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	long := strings.Repeat("x", 107)
	for path, want := range map[string]string{
		"s":         filepath.Join(dir, "s"),
		"run/s":     filepath.Join(dir, "run/s"),
		"/run/s":    "/run/s",
		"@abstract": "@abstract",
		long:        long, // with its directory it is too long for a socket
	} {
		if got := absolute(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	s := startFakeSidecar(filepath.Join(dir, "s"))
	defer s.stop()
	t.Chdir(filepath.Dir(s.path))
	c, err := Dial(t.Context(), filepath.Base(s.path))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.current.Load().dialer.path; got != s.path {
		t.Errorf("the client of a relative path connects to %s again", got)
	}
}
