package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the documents name as a proof must exist: a test that was renamed would leave
// a promise without one.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	var names []string
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	walk := func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range declared.FindAllSubmatch(text, -1) {
				names = append(names, string(m[1]))
			}
		}
		return nil
	}
	if err := filepath.WalkDir("..", walk); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(names, "\n")

	target, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	made := regexp.MustCompile("make ([a-z-]+)")
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range named.FindAllString(string(text), -1) {
			if name != "TestName" && !regexp.MustCompile("(?m)^"+name+"$").MatchString(all) {
				t.Errorf("%s names %s, which there is not", doc, name)
			}
		}
		for _, m := range made.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(string(target), "\n"+m[1]+":") {
				t.Errorf("%s names `make %s`, which there is not", doc, m[1])
			}
		}
	}
	// The README's table names parts of tests, as -run takes them.
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(readme), "-run …")
	table, _, _ = strings.Cut(table, "\n## ")
	patterns := regexp.MustCompile("`([A-Z]\\w+)`").FindAllStringSubmatch(table, -1)
	if len(patterns) == 0 {
		t.Error("the README's guarantees name no tests")
	}
	for _, p := range patterns {
		if !regexp.MustCompile("(?m)^Test.*" + p[1]).MatchString(all) {
			t.Errorf("the README names %s, and no test's name has that in it", p[1])
		}
	}
}

// A link to a file of the repository leads to one.
func TestDocumentsLinkToFilesThatExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)\s]*)?\)`)
	links := 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
	if links == 0 {
		t.Error("no document has a link")
	}
}

// The glossary has every phase and state of the lock table, in the words of the code.
func TestGlossaryHasEveryPhaseOfTheLockTable(t *testing.T) {
	text, err := os.ReadFile("../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	glossary := strings.ReplaceAll(string(text), "-", " ")
	inner := regexp.MustCompile(`([a-z])([A-Z])`)
	for enum, names := range lockTableEnums(t) {
		kind := strings.ToLower(regexp.MustCompile(`(Phase|State)$`).ReplaceAllString(enum, ""))
		for _, name := range names {
			words := strings.TrimSpace(strings.TrimPrefix(strings.ToLower(inner.ReplaceAllString(name, "$1 $2")), kind+" "))
			if !strings.Contains(glossary, "**"+words+"**") {
				t.Errorf("docs/glossary.md does not have %q, which is %s of %s", words, name, enum)
			}
		}
	}
}

// lockTableEnums returns the constants of each type of the lock table that names phases
// or states.
func lockTableEnums(t *testing.T) map[string][]string {
	enums := make(map[string][]string)
	sources, err := filepath.Glob("../sidecar/locktable/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			group, ok := d.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			enum := "" // a constant without a type has that of the one before
			for _, spec := range group.Specs {
				constant := spec.(*ast.ValueSpec)
				if kind, ok := constant.Type.(*ast.Ident); ok {
					enum = kind.Name
				} else if constant.Values != nil {
					enum = ""
				}
				if regexp.MustCompile(`Phase$|State$|^contention$|^subscription$`).MatchString(enum) {
					enums[enum] = append(enums[enum], constant.Names[0].Name)
				}
			}
		}
	}
	for _, enum := range []string{"SessionPhase", "holdPhase", "claimState", "contention", "subscription"} {
		if len(enums[enum]) < 3 {
			t.Errorf("the lock table has %d constants of type %s", len(enums[enum]), enum)
		}
	}
	return enums
}

// The documents name the actor: a host, a client, a goroutine, a user.
func TestDocumentsNameTheActor(t *testing.T) {
	vague := regexp.MustCompile(`(?i)\b(who(ever|m)|(some|no)body|ane[w]|for\s+ever|hear[sd]?)\b`)
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if word := vague.FindString(line); word != "" {
				t.Errorf("%s:%d has %q; name the actor, or take the word of docs/glossary.md", doc, i+1, word)
			}
		}
	}
}

// documents returns the files of the documentation.
func documents(t *testing.T) []string {
	var all []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/decisions/*.md", "../deploy/*.md", "../protocol/*.md", "../sdk/python/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no file matches %s (%v)", pattern, err)
		}
		all = append(all, found...)
	}
	return all
}
