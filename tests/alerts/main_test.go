// Package alerts tries the alert rules of deploy/locksidecar-alerts.yml on outages that were
// recorded: what Prometheus would have read each 5 s from a real daemon while something broke.
package alerts

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }
