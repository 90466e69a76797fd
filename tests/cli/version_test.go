package cli

import (
	"encoding/json"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The daemon has the version of the Go SDK, and prints from which commit it was built.
func TestVersionIsThatOfTheSDK(t *testing.T) {
	t.Parallel()
	got := harness.RunProgram(t, nil, "version", "--json")
	var printed struct{ Version, Build string }
	if err := json.Unmarshal([]byte(got.Stdout), &printed); err != nil || printed.Version != locksidecar.Version || printed.Build == "" {
		t.Errorf("the binary prints %s (%v); want version %q and a build", got.Stdout, err, locksidecar.Version)
	}
}
