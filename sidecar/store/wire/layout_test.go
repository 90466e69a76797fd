package wire

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/layout"
)

// floors are the files of the package, from the top to the ground. A file refers to declarations of the files below it
// only.
var floors = []string{
	// What is sent, and what is answered.
	"batch.go", "permits.go", "rw.go", "encode.go", "decode.go", "message.go", "redirect.go", "info.go",
	// Sentences for people.
	"sentences.go",
	// What they are made of.
	"script.go", "script_text.go", "slot.go", "names.go", "origin.go", "identity.go", "resp.go", "codes.go",
}

// Shows docs/architecture.md: Packages.
func TestFilesReferToFilesBelow(t *testing.T) { layout.Check(t, ".", floors) }
