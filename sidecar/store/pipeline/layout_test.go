package pipeline

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/layout"
)

// floors are the files of the package, from the top to the ground. A file refers to declarations of the files below it
// only: an input comes in at the top, and no part calls back into the one that called it.
var floors = []string{
	// What tests read.
	"describe.go",
	// Inputs and outputs.
	"machine.go", "reply.go",
	// One kind of call each: what is made, and what its answer changes.
	"run.go", "query.go", "subscribe.go", "probe.go", "message.go", "health.go", "durable.go", "tokens.go",
	// What all of them do.
	"deliver.go", "send.go", "durability.go",
	// The records.
	"model.go", "channels.go", "ignored.go", "liveness.go", "waiting.go", "lanes.go", "fifo.go", "risk.go", "doc.go",
}

// Shows docs/architecture.md: Packages.
func TestFilesReferToFilesBelow(t *testing.T) { layout.Check(t, ".", floors) }
