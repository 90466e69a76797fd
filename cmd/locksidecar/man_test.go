package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each command has a manual page that renders without a warning, and that has each flag and
// the sections of its help text.
func TestManualPagesRender(t *testing.T) {
	mandoc := reader(t, "mandoc")
	dir := t.TempDir()
	if code := dispatch([]string{"man", dir}, io.Discard, os.Stderr); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	root := newParser(&cli{}, io.Discard, io.Discard).Model.Node
	for _, node := range allNodes(root) {
		page := filepath.Join(dir, manName(node)+".1")
		lint, _ := exec.Command(mandoc, "-T", "lint", "-W", "warning", page).CombinedOutput()
		for line := range strings.Lines(string(lint)) {
			// The pages have the version in place of a date, so that a commit gives the same bytes.
			if !strings.Contains(line, "missing date") {
				t.Errorf("%s", line)
			}
		}
		out, err := exec.Command(mandoc, "-T", "utf8", "-O", "width=200", page).Output()
		if err != nil {
			t.Fatal(err)
		}
		text := regexp.MustCompile(`.\x08`).ReplaceAllString(string(out), "") // bold and underlined letters are printed twice
		for _, f := range visibleFlags(node) {
			if !strings.Contains(text, f.String()) || !strings.Contains(text, strings.Fields(f.Help)[0]) {
				t.Errorf("%s does not have %s", page, f)
			}
		}
		for _, word := range strings.Fields(node.Detail) {
			if !strings.Contains(text, word) && !strings.HasPrefix(word, "Example") && word != "Exit" && word != "codes:" {
				t.Errorf("%s does not have %q of the help text", page, word)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "locksidecar-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "ARGUMENTS", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"} {
		if !strings.Contains(string(text), "\n.SH "+section+"\n") {
			t.Errorf("locksidecar-run.1 does not have the section %s", section)
		}
	}
}

func TestManualPagesEscapeSpecialCharacters(t *testing.T) {
	for text, want := range map[string]string{
		".profile\n.x": `\&.profile` + "\n" + `\&.x`,
		"'quoted'":     `\(aqquoted\(aq`,
		`a\b --c`:      `a\eb \-\-c`,
		"A,…":          `A,\[u2026]`,
	} {
		if got := roff(text); got != want {
			t.Errorf("roff(%q) = %q; want %q", text, got, want)
		}
	}
}
