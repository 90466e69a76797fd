package redisop_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The danger: hosts ask so often that a master is late for its locks, or so rarely that one learns late
// of a master that was promoted.
func TestHostsAskAsOftenAsTheMastersCanBear(t *testing.T) {
	for _, tt := range []struct {
		hosts, masters int
		want           time.Duration
	}{
		{0, 3, 1800 * time.Millisecond}, // not known
		{-1, 3, 1800 * time.Millisecond},
		{3, 0, 1800 * time.Millisecond},
		{3, 2, 250 * time.Millisecond},
		{100, 2, 280 * time.Millisecond},
		{1000, 29, 250 * time.Millisecond},
		{1000, 2, 1800 * time.Millisecond},
		{10_000, 29, 1800 * time.Millisecond},
		{1 << 62, 2, 1800 * time.Millisecond},
	} {
		if got := redisop.TopologyRetry(tt.hosts, tt.masters); got != tt.want {
			t.Errorf("%d hosts and %d masters: each %v, want %v", tt.hosts, tt.masters, got, tt.want)
		}
	}
}
