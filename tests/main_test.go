package tests

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.Config{Roles: map[string]func() int{
		sharedSocket: runSharedSocket,
		quitter:      runQuitter,
		deafToLists:  func() int { return runDeaf(deafToLists) },
		deafToPings:  func() int { return runDeaf(deafToPings) },
	}})
}
