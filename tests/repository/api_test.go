package repository

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

var update = flag.Bool("update", false, "write the public names of the SDKs into their lists, and the pages that are generated")

// Users compile and run against these names. A list has each of them, so a review sees what a
// commit adds. What a commit removes or changes stays in the list, behind a minus, until the next
// version: and CHANGELOG.md has to name it under Changed or Removed.
func TestPublicNamesOfTheSDKsAreInTheirLists(t *testing.T) {
	for _, sdk := range []struct {
		list  string
		names func(*testing.T) []string
	}{
		{"sdk/go/testdata/api.txt", goNames},
		{"sdk/python/tests/api.txt", pythonNames},
	} {
		t.Run(sdk.list, func(t *testing.T) {
			names := sdk.names(t)
			path := filepath.Join(root, sdk.list)
			text, err := os.ReadFile(path)
			if err != nil && !*update {
				t.Fatal(err)
			}
			old := parseNameList(string(text))
			list := old.with(names)
			if *update {
				if err := os.WriteFile(path, []byte(list.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else {
				for _, line := range names {
					if !slices.Contains(old.names, line) {
						t.Errorf("not in the list: %s", line)
					}
				}
				for _, line := range old.names {
					if !slices.Contains(names, line) {
						t.Errorf("removed or changed: %s", line)
					}
				}
				if t.Failed() {
					t.Log("go test ./tests/repository -run PublicNames -update writes the list")
				} else if list.String() != string(text) {
					t.Error("the list is not as -update writes it")
				}
			}
			broken := changedInChangelog(t)
			for _, line := range list.removed {
				name, _, _ := strings.Cut(line, " ")
				if !regexp.MustCompile(`(^|[^\w.])` + regexp.QuoteMeta(name) + `($|[^\w.])`).MatchString(broken) {
					t.Errorf("CHANGELOG.md does not name %s under Changed or Removed of %s; it was removed or changed:\n%s", name, locksidecar.Version, line)
				}
			}
		})
	}
}

// changedInChangelog returns what CHANGELOG.md has under Changed and Removed of this version.
func changedInChangelog(t *testing.T) string {
	t.Helper()
	text := read(t, filepath.Join(root, "CHANGELOG.md"))
	_, version, found := strings.Cut(text, "\n## ["+locksidecar.Version+"]")
	if !found {
		t.Fatalf("CHANGELOG.md has no section %s", locksidecar.Version)
	}
	version, _, _ = strings.Cut(version, "\n## ")
	var changed string
	for _, section := range strings.Split(version, "\n### ")[1:] {
		if strings.HasPrefix(section, "Changed\n") || strings.HasPrefix(section, "Removed\n") {
			changed += section
		}
	}
	return changed
}

// A nameList is a list of public names with their types or signatures.
type nameList struct {
	version string
	names   []string
	removed []string // since the version before
}

func parseNameList(text string) (l nameList) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if version, ok := strings.CutPrefix(line, "# version "); ok {
			l.version = version
		} else if removed, ok := strings.CutPrefix(line, "- "); ok {
			l.removed = append(l.removed, removed)
		} else if line != "" && !strings.HasPrefix(line, "#") {
			l.names = append(l.names, line)
		}
	}
	return l
}

// with returns the list with the names that there are now.
func (l nameList) with(names []string) nameList {
	next := nameList{version: locksidecar.Version, names: names}
	if l.version == locksidecar.Version {
		next.removed = l.removed
	}
	for _, line := range l.names {
		if !slices.Contains(names, line) && !slices.Contains(next.removed, line) {
			next.removed = append(next.removed, line)
		}
	}
	next.removed = slices.DeleteFunc(slices.Clone(next.removed), func(line string) bool { return slices.Contains(names, line) })
	slices.Sort(next.removed)
	return next
}

func (l nameList) String() string {
	text := "# The public names, written by: go test ./tests/repository -run PublicNames -update\n" +
		"# Behind a minus is what was removed or changed since the version before: CHANGELOG.md names it.\n" +
		"# version " + l.version + "\n\n" + strings.Join(l.names, "\n") + "\n"
	for i, line := range l.removed {
		if i == 0 {
			text += "\n"
		}
		text += "- " + line + "\n"
	}
	return text
}

// goNames returns the exported names of the Go SDK, on every system.
func goNames(t *testing.T) []string {
	t.Helper()
	var lines []string
	for _, dir := range []string{"sdk/go", "sdk/go/locksidecartest"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no Go files in %s (%v)", dir, err)
		}
		var decls []ast.Decl
		pkg := ""
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			decls = append(decls, file.Decls...)
			pkg = file.Name.Name
		}
		embedders := make(map[string][]string)
		for _, d := range decls {
			addEmbedders(embedders, d)
		}
		for _, d := range decls {
			for _, line := range namesOf(d, embedders) {
				lines = append(lines, pkg+"."+line)
			}
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// addEmbedders adds the exported structs that a declaration has, by the unexported types that they embed.
// Their methods are those of the struct, too.
func addEmbedders(embedders map[string][]string, d ast.Decl) {
	group, ok := d.(*ast.GenDecl)
	if !ok {
		return
	}
	for _, spec := range group.Specs {
		s, ok := spec.(*ast.TypeSpec)
		if !ok || !s.Name.IsExported() {
			continue
		}
		u, ok := s.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range u.Fields.List {
			if embedded, ok := f.Type.(*ast.Ident); ok && f.Names == nil && !embedded.IsExported() {
				embedders[embedded.Name] = append(embedders[embedded.Name], s.Name.Name)
			}
		}
	}
}

// namesOf returns the exported names of a declaration. embedders are as of addEmbedders.
func namesOf(d ast.Decl, embedders map[string][]string) (lines []string) {
	add := func(name, what string) {
		if ast.IsExported(name[strings.LastIndex(name, ".")+1:]) {
			lines = append(lines, strings.TrimSpace(name+" "+what))
		}
	}
	if f, ok := d.(*ast.FuncDecl); ok {
		name := f.Name.Name
		if f.Recv != nil {
			of := strings.TrimPrefix(goText(f.Recv.List[0].Type), "*")
			of, _, _ = strings.Cut(of, "[")
			for _, embedder := range embedders[of] {
				add(embedder+"."+name, goText(withoutNames(f.Type)))
			}
			if !ast.IsExported(of) {
				return lines
			}
			name = of + "." + name
		}
		add(name, goText(withoutNames(f.Type)))
		return lines
	}
	group, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	kind := "" // a constant without a type and a value has the type of the one before
	for _, spec := range group.Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			if s.Type != nil {
				kind = goText(s.Type)
			} else if s.Values != nil {
				kind = ""
			}
			for _, n := range s.Names {
				add(n.Name, strings.TrimSpace(group.Tok.String()+" "+kind))
			}
		case *ast.TypeSpec:
			if !s.Name.IsExported() {
				continue
			}
			switch u := s.Type.(type) {
			case *ast.StructType:
				add(s.Name.Name, "type struct")
				for _, f := range u.Fields.List {
					for _, n := range f.Names {
						add(s.Name.Name+"."+n.Name, goText(withoutNames(f.Type)))
					}
					if f.Names == nil {
						add(s.Name.Name+"."+strings.TrimPrefix(goText(f.Type), "*"), "embedded")
					}
				}
			case *ast.InterfaceType:
				add(s.Name.Name, "type interface")
				for _, f := range u.Methods.List {
					for _, n := range f.Names {
						add(s.Name.Name+"."+n.Name, goText(withoutNames(f.Type)))
					}
				}
			default:
				alias := ""
				if s.Assign.IsValid() {
					alias = "= "
				}
				add(s.Name.Name, "type "+alias+goText(withoutNames(s.Type)))
			}
		}
	}
	return lines
}

// withoutNames returns a type without the names of parameters and results, which callers do not use.
func withoutNames(e ast.Expr) ast.Expr {
	f, ok := e.(*ast.FuncType)
	if !ok {
		return e
	}
	strip := func(list *ast.FieldList) *ast.FieldList {
		if list == nil {
			return nil
		}
		types := &ast.FieldList{Opening: list.Opening, Closing: list.Closing}
		for _, field := range list.List {
			for range max(1, len(field.Names)) {
				types.List = append(types.List, &ast.Field{Type: withoutNames(field.Type)})
			}
		}
		return types
	}
	return &ast.FuncType{TypeParams: f.TypeParams, Params: strip(f.Params), Results: strip(f.Results)}
}

func goText(n ast.Node) string {
	var text bytes.Buffer
	if err := printer.Fprint(&text, token.NewFileSet(), n); err != nil {
		panic(err)
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// pythonNames returns the public names of the Python package.
func pythonNames(t *testing.T) []string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_PYTHON") != "" {
			t.Fatal("python3 is not installed: apt-get install python3")
		}
		t.Skip("python3 is not installed: apt-get install python3")
	}
	cmd := exec.Command(python, "python_api.py", filepath.Join(root, "sdk", "python", "src"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python_api.py: %v\n%s", err, stderr.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	return slices.Compact(lines)
}
