// Package layout keeps the files of a package in an order: a file refers to declarations of the files
// below it only, so that no part calls back into the one that called it.
package layout

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Check reports what is wrong in the package in dir, whose files are given from the top to the ground.
func Check(t *testing.T, dir string, floors []string) {
	t.Helper()
	arrows, files := arrowsOf(t, dir)
	for _, f := range files {
		if !slices.Contains(floors, f) {
			t.Errorf("%s is on no floor", filepath.Join(dir, f))
		}
	}
	for _, f := range floors {
		if !slices.Contains(files, f) {
			t.Errorf("%s has a floor, and does not exist", filepath.Join(dir, f))
		}
	}
	for _, a := range arrows {
		if slices.Index(floors, a.from) > slices.Index(floors, a.to) {
			t.Errorf("%s refers to %s of %s, which is above it; move the declaration down, or the caller up", filepath.Join(dir, a.from), a.name, a.to)
		}
	}
}

// compiled returns a function that opens what the compiler exports of a package, for those that the package in dir
// imports. The files are in the build cache.
func compiled(t *testing.T, dir string) importer.Lookup {
	t.Helper()
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./"+dir)
	var stderr strings.Builder
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
}

// arrow is a reference of a file to a declaration in another file of its package.
type arrow struct{ from, to, name string }

func arrowsOf(t *testing.T, dir string) (arrows []arrow, files []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, p, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed, files = append(parsed, f), append(files, filepath.Base(p))
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", compiled(t, dir))}
	pkg, err := config.Check(dir, fset, parsed, info)
	if err != nil {
		t.Fatal(err)
	}
	fileOf := func(pos token.Pos) string { return filepath.Base(fset.Position(pos).Filename) }
	seen := map[arrow]bool{}
	for id, o := range info.Uses {
		if f, ok := o.(*types.Func); ok {
			o = f.Origin()
		}
		_, isFunc := o.(*types.Func)
		if o.Pkg() != pkg || !isFunc && o.Parent() != pkg.Scope() { // a field, or something local
			continue
		}
		a := arrow{fileOf(id.Pos()), fileOf(o.Pos()), o.Name()}
		if a.from != a.to && !seen[a] {
			seen[a] = true
			arrows = append(arrows, a)
		}
	}
	return arrows, files
}
