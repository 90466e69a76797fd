package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// What a mutex of the store guards has one way in, which locks and unlocks: a method that gives it to a function, or
// returns it. So no method has to be called with a mutex locked, and none forgets it.
func TestMutexesOfTheStoreHaveFewSites(t *testing.T) {
	const most = 10
	var sites []string
	err := filepath.WalkDir(filepath.Join(root, "sidecar", "store"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				switch s.Sel.Name {
				case "Lock", "Unlock", "RLock", "RUnlock", "TryLock":
					sites = append(sites, fset.Position(s.Pos()).String())
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(sites) > most {
		t.Errorf("%d sites lock or unlock a mutex, want at most %d:\n%s", len(sites), most, strings.Join(sites, "\n"))
	}
}
