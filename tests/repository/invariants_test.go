package repository

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/invariants.md has each invariant that code names, and where it is checked, and no other.
func TestDocumentHasTheInvariantsThatCodeChecks(t *testing.T) {
	const document = "docs/invariants.md"
	columns := []string{"table", "simulation", "exploration"}

	// In the code: the name → the columns in which it is used.
	inCode := map[string]map[string]bool{}
	note := func(name, column string) {
		if inCode[name] == nil {
			inCode[name] = map[string]bool{}
		}
		inCode[name][column] = true
	}
	asserted := regexp.MustCompile(`(?i)\bviolated\("([^"]+)"`)
	for _, text := range sources(t, "sidecar/locktable") {
		for _, m := range asserted.FindAllStringSubmatch(text, -1) {
			note(m[1], "table")
		}
	}
	names := map[string]string{} // of the constant → its text
	constant := regexp.MustCompile(`(?m)^\t(\w+)\s+Name = "([^"]+)"$`)
	for _, text := range sources(t, "internal/sim/invariant") {
		for _, m := range constant.FindAllStringSubmatch(text, -1) {
			names[m[1]] = m[2]
		}
	}
	used := regexp.MustCompile(`\binvariant\.([A-Z]\w*)`)
	for path, text := range sources(t, "internal/sim") {
		column := "simulation"
		if strings.Contains(path, "/explore/") {
			column = "exploration"
		}
		for _, m := range used.FindAllStringSubmatch(text, -1) {
			if name := names[m[1]]; name != "" {
				note(name, column)
			} else if m[1] != "Name" {
				t.Errorf("%s uses invariant.%s, whose text this test does not find", path, m[1])
			}
		}
	}
	for id, name := range names {
		if len(inCode[name]) == 0 {
			t.Errorf("internal/sim/invariant has %s (%q), and no check uses it", id, name)
		}
	}
	for _, column := range columns {
		found := false
		for _, in := range inCode {
			found = found || in[column]
		}
		if !found {
			t.Errorf("no invariant is checked by the %s: this test compares nothing there", column)
		}
	}

	// In the document: rows with the letter of each place.
	row := regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| (T?)(S?)(E?) \|$`)
	inDocument := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(read(t, filepath.Join(root, document)), -1) {
		name := m[1]
		if inDocument[name] {
			t.Errorf("%s has %q twice", document, name)
		}
		inDocument[name] = true
		if inCode[name] == nil {
			t.Errorf("%s has the invariant %q, and no code names it", document, name)
			continue
		}
		for i, column := range columns {
			if isMarked := m[2+i] != ""; isMarked != inCode[name][column] {
				t.Errorf("%s: %q: marked for the %s: %v; checked there: %v", document, name, column, isMarked, inCode[name][column])
			}
		}
	}
	for name := range inCode {
		if !inDocument[name] {
			t.Errorf("code checks the invariant %q, and %s does not have it", name, document)
		}
	}
}

// sources returns the Go files below a directory that are not tests, by their paths.
func sources(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			files[filepath.ToSlash(path)] = read(t, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%d Go files below %s (%v)", len(files), dir, err)
	}
	return files
}
