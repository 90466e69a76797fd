package redisop_test

import (
	"math"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The danger: hosts ask so often that a master is late for its locks, or so rarely that one learns late
// of a master that was promoted.
//
// Shows docs/topologies.md: Which master has which slot.
func TestHostsAskAsOftenAsTheMastersCanBear(t *testing.T) {
	for _, tt := range []struct {
		hosts, masters, nodes int
		want                  time.Duration
	}{
		{0, 3, 6, 1800 * time.Millisecond}, // not known
		{-1, 3, 6, 1800 * time.Millisecond},
		{3, 0, 6, 1800 * time.Millisecond},
		{3, 2, 6, 250 * time.Millisecond},
		{100, 2, 60, 280 * time.Millisecond},
		{1000, 29, 60, 250 * time.Millisecond},
		{1000, 2, 6, 730 * time.Millisecond},
		{1000, 2, 60, 1800 * time.Millisecond},
		{10_000, 29, 60, 1800 * time.Millisecond},
		{10_000, 499, 1000, 1555 * time.Millisecond}, // a long answer costs more
		{math.MaxInt, 2, math.MaxInt, 1800 * time.Millisecond},
	} {
		if got := redisop.TopologyRetry(tt.hosts, tt.masters, tt.nodes).Round(time.Millisecond); got != tt.want {
			t.Errorf("%d hosts, %d masters of %d nodes: each %v, want %v", tt.hosts, tt.masters, tt.nodes, got, tt.want)
		}
	}
}
