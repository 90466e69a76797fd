package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A node is found in whatever file its declaration is, and however it is written. A text that is no node, or is there
// twice, is not found.
func TestNodesAreFound(t *testing.T) {
	root := t.TempDir()
	source := `package p

const limit = 3 * second

func (l *link[T]) close(now int64) {
	if now > 0 && // it has begun
		l.isOpen {
		l.end(now, 1)
		l.end(now, 2)
	}
	l.first()
	l.second()
}
`
	if err := os.Mkdir(filepath.Join(root, "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "p", "file.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ in, find, put, want string }{
		{"p limit", "3*second", "4", "const limit = 4\n"},
		{"p (*link).close", "now > 0 && l.isOpen", "true", "if true {"},
		{"p (*link).close", "if now > 0 && l.isOpen {", "for {", "for {\n"},
		{"p (*link).close", "l.first()\n\tl.second()", "", "\t}\n\t\n}"},
		{"p (*link).close", "l.end(now, 2)", "", "l.end(now, 1)\n\t\t\n"},
		{"p (*link).close", "now", "", ""},    // more than one
		{"p (*link).close", "0 && l", "", ""}, // no node
		{"p (*link).close", "l.third()", "", ""},
		{"p link.close", "l.first()", "", ""},
		{"p limits", "3*second", "4", ""},
	} {
		path, text, err := (&mutant{in: place(tc.in), find: tc.find, put: tc.put}).apply(root)
		switch {
		case tc.want == "" && err == nil:
			t.Errorf("%q is found in %s:\n%s", tc.find, tc.in, text)
		case tc.want != "" && (err != nil || path != "p/file.go" || !strings.Contains(text, tc.want)):
			t.Errorf("%q in %s: %s, %v:\n%s", tc.find, tc.in, path, err, text)
		}
	}
}
