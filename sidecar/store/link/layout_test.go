package link

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/layout"
)

// floors are the files of the package, from the top to the ground. A file refers to declarations of the files below it
// only.
var floors = []string{
	// A link: what makes its connections, what is asked of it, what it reads and writes.
	"trial.go", "run.go", "nodes.go", "link.go", "read.go", "drive.go", "model.go", "shared.go",
	// Where the server is.
	"sentinels.go",
	// One connection, up to its greeting.
	"greeting.go", "connection.go", "endpoint.go", "outcome.go", "dialer.go",
	// What a URL and settings say.
	"sentinelask.go", "tls.go", "errors.go", "delay.go",
}

// Shows docs/architecture.md: Packages.
func TestFilesReferToFilesBelow(t *testing.T) { layout.Check(t, ".", floors) }
