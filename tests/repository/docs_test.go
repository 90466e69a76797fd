package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository, as seen from this package.
const root = "../.."

func TestDocumentsNameMakeTargetsThatExist(t *testing.T) {
	makefile := read(t, filepath.Join(root, "Makefile"))
	target := regexp.MustCompile("make ([a-z-]+)")
	for _, doc := range documents(t) {
		for _, m := range target.FindAllStringSubmatch(read(t, doc), -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names `make %s`, which does not exist", doc, m[1])
			}
		}
	}
}

// A call of go test in a document, or in the Makefile, names packages that exist and
// selects at least one of their tests, benchmarks or fuzz targets.
func TestGoTestCommandsSelectTestsThatExist(t *testing.T) {
	call := regexp.MustCompile("go (?:-C (\\S+) )?test ([^`\n]*)")
	selector := regexp.MustCompile(`-(run|bench|fuzz)[ =]('[^']*'|\S+)`)
	prefix := map[string]string{"run": "Test", "bench": "Benchmark", "fuzz": "Fuzz"}
	calls := 0
	for _, doc := range append(documents(t), filepath.Join(root, "Makefile"), filepath.Join(root, "tests", "redisson", "README.md")) {
		for _, c := range call.FindAllStringSubmatch(read(t, doc), -1) {
			module := c[1]
			args, _, _ := strings.Cut(c[2], " # ")
			if strings.Contains(args, "./...") || strings.Contains(args, "$(GO_CORE)") || strings.Contains(args, "$$") {
				continue // all packages, or names that a shell fills in
			}
			var names []string
			for _, arg := range strings.Fields(args) {
				if dir, ok := strings.CutPrefix(strings.Trim(arg, "'`"), "./"); ok {
					dir = filepath.Join(root, module, dir)
					if tree, ok := strings.CutSuffix(dir, "/..."); ok {
						names = append(names, declared(t, tree)...)
					} else {
						names = append(names, declaredIn(t, dir)...)
					}
				}
			}
			calls++
			if len(names) == 0 {
				t.Errorf("%s: `%s` names no package with tests", doc, c[0])
			}
			for _, s := range selector.FindAllStringSubmatch(args, -1) {
				pattern, _, _ := strings.Cut(strings.Trim(s[2], "'"), "/")
				if pattern == "…" || pattern == "^$" || pattern == "TestName" {
					continue
				}
				ofKind := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, prefix[s[1]]) })
				if !matchesOne(t, pattern, ofKind) {
					t.Errorf("%s: `%s` selects no test", doc, c[0])
				}
			}
		}
	}
	if calls == 0 {
		t.Error("no document has a call of go test")
	}
}

func TestDocumentsLinkToFilesThatExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)\s]*)?\)`)
	links := 0
	for _, doc := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, doc), -1) {
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
	glossary := strings.ReplaceAll(read(t, filepath.Join(root, "docs", "glossary.md")), "-", " ")
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
	var sources []string
	for _, room := range []string{".", "claim", "contest"} {
		found, err := filepath.Glob(filepath.Join(root, "sidecar", "locktable", room, "*.go"))
		if err != nil || len(found) == 0 {
			t.Fatalf("no sources in %s (%v)", room, err)
		}
		sources = append(sources, found...)
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
				if regexp.MustCompile(`Phase$|State$|^State$|^phase$`).MatchString(enum) {
					enums[enum] = append(enums[enum], constant.Names[0].Name)
				}
			}
		}
	}
	for _, enum := range []string{"SessionPhase", "HoldPhase", "State", "placePhase", "phase", "subscriptionState"} {
		if len(enums[enum]) < 2 {
			t.Errorf("the lock table has %d constants of type %s", len(enums[enum]), enum)
		}
	}
	return enums
}

// The documents name the actor: a host, a client, a goroutine, a user.
func TestDocumentsNameTheActor(t *testing.T) {
	vague := regexp.MustCompile(`(?i)\b(who(ever|m)|(some|no)body|ane[w]|for\s+ever|hear[sd]?)\b`)
	for _, doc := range documents(t) {
		for i, line := range strings.Split(read(t, doc), "\n") {
			if word := vague.FindString(line); word != "" {
				t.Errorf("%s:%d has %q; name the actor, or take the word of docs/glossary.md", doc, i+1, word)
			}
		}
	}
}

// A document that names a file or a folder below tests/ names one that exists.
func TestDocumentsNamePathsOfTestsThatExist(t *testing.T) {
	path := regexp.MustCompile("`(tests/[\\w./-]+)`")
	paths := 0
	for _, doc := range append(documents(t), filepath.Join(root, "tests", "redisson", "README.md")) {
		for _, m := range path.FindAllStringSubmatch(read(t, doc), -1) {
			paths++
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s: %v", doc, m[1], err)
			}
		}
	}
	if paths == 0 {
		t.Error("no document names a path of the tests")
	}
}

// documents returns the files of the documentation.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "deploy/*.md", "protocol/*.md", "sdk/python/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no file matches %s (%v)", pattern, err)
		}
		all = append(all, found...)
	}
	return all
}

// declared returns the names of all tests, benchmarks and fuzz targets in Go below a
// directory.
func declared(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != dir && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		names = append(names, declaredIn(t, path)...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var declaration = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`)

// declaredIn is declared for one directory.
func declaredIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		for _, m := range declaration.FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

func matchesOne(t *testing.T, pattern string, names []string) bool {
	t.Helper()
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		t.Errorf("%q: %v", pattern, err)
		return false
	}
	return slices.ContainsFunc(names, wanted.MatchString)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
