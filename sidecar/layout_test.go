package sidecar

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/layout"
)

// floors are the files of the daemon's root package, from the top to the ground. A file refers to
// declarations of the files below it only: the server starts all, the loop answers what it is given, and
// no answer calls back into the loop.
var floors = []string{
	// What is asked of a server.
	"operators.go", "check.go", "server.go", "metricslistener.go",
	// What gives the loop inputs: readers of connections, the store, what looks around.
	"reader.go", "hostrequest.go", "redis.go", "look.go", "survey.go",
	// The loop: one step after the other.
	"loop.go",
	// A request in, frames out.
	"answer.go",
	// What a request is about.
	"session.go", "status.go", "metricsrequest.go", "hostanswer.go", "force.go", "peerpolicy.go", "rows.go", "followers.go", "events.go", "journal.go",
	// What leaves the loop.
	"reply.go", "conn.go", "requests.go",
	// The records, and how they refer to each other.
	"model.go",
	// Values.
	"config.go", "metricsaddress.go", "troubles.go", "shards.go", "health.go", "losses.go", "share.go",
}

// Shows docs/architecture.md: Packages.
func TestFilesReferToFilesBelow(t *testing.T) { layout.Check(t, ".", floors) }
