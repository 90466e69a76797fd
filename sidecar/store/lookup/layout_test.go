package lookup

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/layout"
)

// floors are the files of the package, from the top to the ground. A file refers to declarations of the files below it
// only.
var floors = []string{
	// One kind of question each.
	"key.go", "host.go", "orphaned.go",
	// What all have.
	"request.go", "owner.go",
}

// Shows docs/architecture.md: Packages.
func TestFilesReferToFilesBelow(t *testing.T) { layout.Check(t, ".", floors) }
