package display_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/internal/display"
)

func TestElsewhereNamesTheHost(t *testing.T) {
	if got := display.Elsewhere("db-7", "uuid:1"); got != "held on host db-7: uuid:1" {
		t.Error(got)
	}
	if got := display.Elsewhere("", "uuid:1"); got != "held elsewhere: uuid:1" {
		t.Error(got)
	}
}
