package locktable

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/layout"
)

// floors are the files of the lock table and of its rooms, from the top to the ground. A file refers
// to declarations of the files below it only, so an input comes in at the top, and what it changes is
// below: no part calls back into the one that called it.
var floors = []struct {
	dir   string
	files []string
}{
	{".", []string{
		// What tests and operators read.
		"state.go", "audit.go", "survey.go", "list.go", "text.go",
		// Inputs. Each ends in reconcile.
		"table.go", "restore.go", "acquire.go", "release.go", "downgrade.go", "result.go", "message.go", "connection.go", "resume.go", "session.go", "flush.go",
		// What an input changes: the one file that sees all rooms, and what clients get.
		"reconcile.go", "extent.go", "permits.go", "readwrite.go", "grant.go", "explain.go", "journal.go", "deadlock.go", "hold.go", "waiters.go", "renewal.go", "lease.go", "visit.go", "invariant.go",
		// What is known of one lock, of Redis and of one user.
		"locks.go", "holders.go", "reach.go", "user.go", "quota.go", "count.go", "output.go",
		// The records, and how they refer to each other.
		"model.go",
		// Values.
		"config.go", "stats.go", "terms.go", "effect.go", "record.go", "kind.go", "shard.go", "phases.go", "names.go", "links.go", "tally.go", "doc.go",
	}},
	{"claim", []string{"describe.go", "text.go", "want.go", "send.go", "claim.go", "window.go", "model.go", "validity.go", "doc.go"}},
	{"contest", []string{
		"describe.go", "text.go", "decide.go", "permits.go", "readwrite.go", "extent.go", "turns.go", "linger.go", "asking.go", "place.go", "order.go", "subscription.go", "foreign.go", "backoff.go", "model.go", "view.go", "config.go", "doc.go",
	}},
}

// Shows docs/architecture.md: The lock table.
func TestFilesReferToFilesBelow(t *testing.T) {
	for _, house := range floors {
		layout.Check(t, house.dir, house.files)
	}
}
