// Package page tests the status page in a browser: that it shows what "locksidecar ls --json"
// prints, loads nothing else, and can be read without a mouse. The tests need Chromium, and are
// skipped without it: make test-page.
package page

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }
