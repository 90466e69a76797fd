package cluster

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/layout"
)

// floors are the files of the package, from the top to the ground. A file refers to declarations of the files below it
// only.
var floors = []string{
	// Inputs, and when nodes are asked.
	"map.go", "schedule.go",
	// What is known.
	"shards.go", "openslot.go", "model.go", "topology.go",
}

// Shows docs/architecture.md: Packages.
func TestFilesReferToFilesBelow(t *testing.T) { layout.Check(t, ".", floors) }
