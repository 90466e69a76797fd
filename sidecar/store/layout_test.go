package store

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/layout"
)

// floors are the files of the package, from the top to the ground. A file refers to declarations of the files below it
// only: a server hands what it delivers to the daemon, and tells the map of the Cluster, which never calls it back.
var floors = []string{
	// What is asked of a Store.
	"lookups.go", "query.go", "shards.go", "store.go", "try.go",
	// What servers deliver, and the masters of a Cluster.
	"hand.go", "masters.go",
	// The records.
	"model.go", "config.go",
}

// Shows docs/architecture.md: Packages.
func TestFilesReferToFilesBelow(t *testing.T) { layout.Check(t, ".", floors) }
