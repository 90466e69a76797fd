package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// lastRelease is the commit of the last release: its daemons wait for locks without a queue in
// Redis.
const lastRelease = "ca2c52cbf4d1a69668b0716b300924a33d62837a"

// lastWithoutOrigins is the last commit whose daemons queue, and do not name in messages the server
// that sent them.
const lastWithoutOrigins = "2a7b845baf93011e95bbe725e88e5aaa61bf6919"

// LastRelease returns the path of the locksidecar of the last release. Its source is in the
// history of the repository. In a clone without that history, the test is skipped.
func LastRelease(t testing.TB) string {
	t.Helper()
	return programOf(t, lastRelease)
}

// LastWithoutOrigins returns the path of the last locksidecar that queues in Redis and whose messages
// name no server.
func LastWithoutOrigins(t testing.TB) string {
	t.Helper()
	return programOf(t, lastWithoutOrigins)
}

// programOf returns the path of the locksidecar of a commit.
func programOf(t testing.TB, commit string) string {
	t.Helper()
	if err := exec.Command("git", "-C", root, "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
		t.Skipf("the history of the repository does not have commit %.12s (%v): run `git fetch --unshallow`", commit, err)
	}
	path, err := buildCommit(commit)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// buildCommit builds the binary in bin/test, unless it is there already.
func buildCommit(commit string) (string, error) {
	path, unlock, err := lockBinary("locksidecar-" + commit[:12])
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
		{"git", "-C", root, "archive", "--output", archive, commit},
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
}
