package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TypeScript returns the path of node, and the folder of the TypeScript client's compiled files.
// Without them the test is skipped, or fails if LOCKSIDECAR_REQUIRE_NODE is set.
func TypeScript(t testing.TB) (node, dist string) {
	t.Helper()
	dist = filepath.Join(root, "examples", "typescript", "dist")
	node, err := exec.LookPath("node")
	if err == nil {
		err = checkCompiled(dist)
	}
	if err != nil {
		why := fmt.Sprintf("the TypeScript client cannot be run (%v): run `make typescript`", err)
		if os.Getenv("LOCKSIDECAR_REQUIRE_NODE") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return node, dist
}

// checkCompiled returns an error if a source is newer than what was compiled from it.
func checkCompiled(dist string) error {
	sources, err := filepath.Glob(filepath.Join(dist, "..", "src", "*.ts"))
	if err != nil {
		return err
	}
	for _, source := range sources {
		compiled := filepath.Join(dist, filepath.Base(source[:len(source)-len(".ts")])+".js")
		s, err := os.Stat(source)
		if err != nil {
			return err
		}
		c, err := os.Stat(compiled)
		if err != nil {
			return err
		}
		if c.ModTime().Before(s.ModTime()) {
			return fmt.Errorf("%s is newer than %s", source, compiled)
		}
	}
	return nil
}
