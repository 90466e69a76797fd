// Package commands shows which commands Redis executes for a lock, and keeps the traces in
// docs/redis-commands.md true: it has real daemons do each thing that the document describes, and
// compares what MONITOR reports with the document.
//
//	go test ./tests/commands           compares
//	go test ./tests/commands -update   writes the traces into the document
//
// The sentences below a trace are written by hand, one for each line. The test counts them.
package commands

import (
	"flag"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

var update = flag.Bool("update", false, "write the traces into docs/redis-commands.md")

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }
