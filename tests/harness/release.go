package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// lastRelease is the commit of the last release: its daemons wait for locks without a queue in
// Redis.
const lastRelease = "ca2c52cbf4d1a69668b0716b300924a33d62837a"

// LastRelease returns the path of the locksidecar of the last release. Its source is in the
// history of the repository. In a clone without that history, the test is skipped.
func LastRelease(t testing.TB) string {
	t.Helper()
	if err := exec.Command("git", "-C", root, "cat-file", "-e", lastRelease+"^{commit}").Run(); err != nil {
		t.Skipf("the history of the repository does not have the last release, commit %.12s (%v): run `git fetch --unshallow`", lastRelease, err)
	}
	path, err := buildLastRelease()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// buildLastRelease builds the binary in bin/test, unless it is there already.
var buildLastRelease = sync.OnceValues(func() (string, error) {
	path, unlock, err := lockBinary("locksidecar-" + lastRelease[:12])
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	source, err := os.MkdirTemp("", "lsc-release")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(source)
	archive := filepath.Join(source, "source.tar")
	for _, command := range [][]string{
		{"git", "-C", root, "archive", "--output", archive, lastRelease},
		{"tar", "-x", "-C", source, "-f", archive},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w\n%s", command, err, out)
		}
	}
	built := path + ".new"
	if err := compile(source, built, "-buildvcs=false"); err != nil {
		return "", err
	}
	return path, os.Rename(built, path)
})
