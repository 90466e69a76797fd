package repository

import (
	"fmt"
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

// floors are the files of packages, from the top to the ground. A file refers to declarations of the files below it only, so
// an input comes in at the top, and what it changes is below: no part calls back into the one that called it.
var floors = []struct {
	dir   string
	files []string
}{
	{"sidecar/locktable", []string{
		// What tests and operators read.
		"state.go", "audit.go", "survey.go", "list.go",
		// Inputs. Each ends in reconcile.
		"table.go", "restore.go", "acquire.go", "release.go", "result.go", "message.go", "connection.go", "resume.go", "session.go", "flush.go",
		// What an input changes: the one file that sees all rooms, and what clients get.
		"reconcile.go", "grant.go", "explain.go", "journal.go", "deadlock.go", "hold.go", "waiters.go", "renewal.go", "lease.go", "visit.go", "invariant.go",
		// What is known of one lock, of Redis and of one user.
		"locks.go", "holders.go", "reach.go", "user.go", "quota.go", "count.go", "output.go",
		// The records, and how they refer to each other.
		"model.go",
		// Values.
		"config.go", "stats.go", "terms.go", "effect.go", "record.go", "kind.go", "shard.go", "phases.go", "names.go", "links.go", "doc.go",
	}},
	{"sidecar/locktable/claim", []string{"describe.go", "want.go", "send.go", "claim.go", "window.go", "model.go", "validity.go", "doc.go"}},
	{"sidecar/locktable/contest", []string{
		"describe.go", "decide.go", "turns.go", "linger.go", "asking.go", "place.go", "order.go", "subscription.go", "foreign.go", "backoff.go", "model.go", "view.go", "config.go", "doc.go",
	}},
	{"sidecar/store/pipeline", []string{
		// What tests read.
		"describe.go",
		// Inputs and outputs.
		"machine.go", "reply.go",
		// One kind of call each: what is made, and what its answer changes.
		"run.go", "query.go", "subscribe.go", "probe.go", "message.go", "health.go", "durable.go", "tokens.go",
		// What all of them do.
		"deliver.go", "send.go", "durability.go",
		// The records.
		"model.go", "channels.go", "ignored.go", "liveness.go", "lanes.go", "fifo.go", "risk.go", "doc.go",
	}},
}

// upwards are the references to a file above, with the reason of each.
var upwards = map[string]string{}

// Shows docs/architecture.md: The lock table.
func TestFilesReferToFilesBelow(t *testing.T) {
	used := map[string]bool{}
	for _, house := range floors {
		arrows, files := arrowsOf(t, house.dir)
		for _, f := range files {
			if !slices.Contains(house.files, f) {
				t.Errorf("%s is on no floor", filepath.Join(house.dir, f))
			}
		}
		for _, a := range arrows {
			if slices.Index(house.files, a.from) <= slices.Index(house.files, a.to) {
				continue
			}
			key := fmt.Sprintf("%s/%s → %s: %s", house.dir, a.from, a.to, a.name)
			if upwards[key] == "" {
				t.Errorf("%s refers to a file above it; move the declaration down, or the caller up", key)
			}
			used[key] = true
		}
	}
	for key := range upwards {
		if !used[key] {
			t.Errorf("%s: there is no such reference any more", key)
		}
	}
}

// compiled returns a function that opens what the compiler exports of a package, for those that the package in dir
// imports. The files are in the build cache.
func compiled(t *testing.T, dir string) importer.Lookup {
	t.Helper()
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./"+dir)
	list.Dir = root
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
	paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
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
