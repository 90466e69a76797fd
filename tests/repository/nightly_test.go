package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A step of .ci/nightly that fails, or takes too long, keeps none of the later ones from running. The
// last screen has each step, and the status is 1. The test has a make of its own in the PATH.
func TestNightlyRunsEachStepAndReportsThoseThatFailed(t *testing.T) {
	dir := t.TempDir()
	run := func(makefile string, args ...string) (out string, status int) {
		t.Helper()
		fake := "#!/bin/sh\necho \"make $*\" >>" + filepath.Join(dir, "calls") + "\n" + makefile
		if err := os.WriteFile(filepath.Join(dir, "make"), []byte(fake), 0o755); err != nil {
			t.Fatal(err)
		}
		os.Remove(filepath.Join(dir, "calls"))
		cmd := exec.Command("bash", append([]string{filepath.Join(root, ".ci", "nightly")}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "NIGHTLY_LOGS="+filepath.Join(dir, "logs"))
		text, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(text), cmd.ProcessState.ExitCode()
	}
	steps := []string{"sim", "orders", "diff", "long", "mutants", "chaos", "chaos-kills", "chaos-roles", "chaos-permits", "chaos-hosts", "fuzz", "storm", "conform", "fence", "redisson", "topology", "failovers", "types", "release", "bench", "page", "systemd", "fresh"}

	out, status := run("case $1 in diff) echo a difference; exit 3;; fuzz) exit 124;; esac\n")
	_, screen, _ := strings.Cut(out, "\nnightly of ")
	lines := strings.Split(strings.TrimSpace(screen), "\n")
	if status != 1 || len(lines) > 40 {
		t.Errorf("status %d, and a summary of %d lines:\n%s", status, len(lines), out)
	}
	for i, step := range steps {
		want := "ok"
		switch step {
		case "diff":
			want = "failed, status 3"
		case "fuzz":
			want = "failed, took longer than 40m"
		}
		if row := lines[2+i]; strings.Fields(row)[0] != step || !strings.Contains(row, want) {
			t.Errorf("row %d of the summary is %q; want %s: %s", i, row, step, want)
		}
	}
	if !strings.Contains(out, "a difference") {
		t.Errorf("the end of the output of a failed step is not shown:\n%s", out)
	}
	// A step with a seed is run again with it.
	fields := strings.Fields(lines[2+slices.Index(steps, "diff")])
	if again := "DIFF_FROM=" + fields[len(fields)-1]; !strings.Contains(lines[len(lines)-2], again) {
		t.Errorf("the command that runs a failed step again lacks %s:\n%s", again, screen)
	}
	calls := read(t, filepath.Join(dir, "calls"))
	for _, target := range []string{"sim", "orders", "diff", "mutants", "chaos", "fuzz", "storm", "conform", "test-fence", "test-old-redisson", "topology", "failovers", "test-systemd", "test-long", "verify-types", "release-check", "bench-smoke", "test-page", "test-fresh"} {
		if !strings.Contains(calls, "make "+target) {
			t.Errorf("make %s was not called:\n%s", target, calls)
		}
	}
	if !strings.Contains(calls, "CHAOS_KILL_EVERY=150ms") {
		t.Errorf("no chaos with short lives:\n%s", calls)
	}
	if !strings.Contains(calls, "CHAOS_EXCHANGE_EVERY=1s") {
		t.Errorf("no chaos that exchanges the roles of master and replica:\n%s", calls)
	}

	if out, status := run("exit 0\n", "storm", "conform"); status != 0 || strings.Count(read(t, filepath.Join(dir, "calls")), "\n") != 2 {
		t.Errorf("two steps: status %d\n%s", status, out)
	}
	if out, status := run("exit 0\n", "strom"); status != 2 || !strings.Contains(out, "there is no step strom") {
		t.Errorf("a step that does not exist: status %d\n%s", status, out)
	}
}
