package harness

import (
	"os/exec"
	"strings"
	"testing"
)

// The danger: a base is a commit that never landed, so each test that needs it is skipped for good.
func TestBasesAreInTheHistory(t *testing.T) {
	dir, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	if isShallow, err := git("rev-parse", "--is-shallow-repository"); err != nil || isShallow != "false" {
		t.Skipf("without the whole history: %q, %v", isShallow, err)
	}
	for _, base := range []Base{Base010Pre, Base010PreQueue, Base010PreKeep} {
		if _, err := git("merge-base", "--is-ancestor", base.commit, "HEAD"); err != nil {
			t.Errorf("%s: commit %s is not in the history of this one: %v", base.Name, base.commit, err)
		}
	}
}
