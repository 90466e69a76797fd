package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The exploration needs a copy of a lock table, and its description. The daemon does not: what these
// files declare is not in its binary.
func TestBinaryHasNoCodeOfTheExploration(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "locksidecar")
	build := exec.Command("go", "build", "-o", binary, "./cmd/locksidecar")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	symbols, err := exec.Command("go", "tool", "nm", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sidecar/locktable/state.go", "sidecar/locktable/claim/describe.go", "sidecar/locktable/contest/describe.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			symbol := module + "/" + filepath.ToSlash(filepath.Dir(name)) + "." + receiver(f) + f.Name.Name
			if strings.Contains(string(symbols), " "+symbol+"\n") {
				t.Errorf("the binary has %s of %s: make a method a function, or move what the daemon calls", symbol, name)
			}
		}
	}
}

// receiver is how the linker writes the receiver of a method.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	switch of := f.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		return "(*" + of.X.(*ast.Ident).Name + ")."
	case *ast.Ident:
		return of.Name + "."
	}
	return ""
}
