package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A Base is a state of the history of this repository whose daemon runs beside that of this tree, or is
// upgraded to it. No version has been released, so a base is no tag but a commit with a name of our own.
// When 0.1.0 is released, the tag v0.1.0 takes the place of Base010Pre.
type Base struct{ Name, commit string }

var (
	// Base010Pre is base-0.1.0-pre: its daemons wait for locks without a queue in Redis, and have all
	// else that an upgrade must keep: the state file, holds, sessions.
	Base010Pre = Base{"base-0.1.0-pre", "ca2c52cbf4d1a69668b0716b300924a33d62837a"}

	// Base010PreQueue is base-0.1.0-pre-queue: its daemons queue, and do not name in messages the
	// server that sent them.
	Base010PreQueue = Base{"base-0.1.0-pre-queue", "2a7b845baf93011e95bbe725e88e5aaa61bf6919"}

	// Base010PreKeep is base-0.1.0-pre-keep: its daemons keep locks. The holds of a host survive a
	// downgrade to it, whatever they have.
	Base010PreKeep = Base{"base-0.1.0-pre-keep", "c58a2fb548efc706ec764abb6a0ce0570a6c3661"}
)

// ProgramOf returns the path of the locksidecar of a base. Its source is in the history of the
// repository. In a clone without that history, the test is skipped.
func ProgramOf(t testing.TB, base Base) string {
	t.Helper()
	if root == "" { // a package without harness.Main
		var err error
		if root, err = findRoot(); err != nil {
			t.Fatal(err)
		}
	}
	if err := exec.Command("git", "-C", root, "cat-file", "-e", base.commit+"^{commit}").Run(); err != nil {
		t.Skipf("the history of the repository does not have commit %.12s, which is %s (%v): run `git fetch --unshallow`", base.commit, base.Name, err)
	}
	path, err := buildCommit(base.commit)
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
	source, err := os.MkdirTemp("", "lsc-base")
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
	if err := compile(source, "./cmd/locksidecar", built, "-buildvcs=false"); err != nil {
		return "", err
	}
	return path, os.Rename(built, path)
}
