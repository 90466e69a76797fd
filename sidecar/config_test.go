package sidecar

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// The lock table has the times of the settings.
//
// Shows docs/queue.md: Settings.
func TestTimesReachTheLockTable(t *testing.T) {
	for _, tt := range []struct {
		cfg                 Config
		lease, linger, turn time.Duration
	}{
		{Config{}, DefaultLease, DefaultLinger, 0},
		{Config{Lease: time.Minute, NoLinger: true, Alternate: true}, time.Minute, DefaultLinger, 0},
		{Config{Lease: time.Second, Linger: maxLinger, Turn: maxTurn}, time.Second, maxLinger, maxTurn},
	} {
		if err := tt.cfg.setDefaults(); err != nil {
			t.Fatal(err)
		}
		if got := tt.cfg.table(); got.Lease != tt.lease || got.Contest.Linger != tt.linger || got.Contest.Turn != tt.turn ||
			got.Contest.NoLinger != tt.cfg.NoLinger || got.Contest.Alternate != tt.cfg.Alternate {
			t.Errorf("lease %v, linger %v, turn %v; want %v, %v, %v; or not as in %+v", got.Lease, got.Contest.Linger, got.Contest.Turn, tt.lease, tt.linger, tt.turn, tt.cfg)
		}
	}
}

func TestSettingsAboutOtherHosts(t *testing.T) {
	c := Config{}
	if err := c.setHostDefaults(); err != nil || c.OtherHosts != otherhosts.Show || c.HostName == "" {
		t.Errorf("the defaults are %q and %q: %v", c.OtherHosts, c.HostName, err)
	}
	for _, c := range []Config{{OtherHosts: "all"}, {HostName: "a b"}, {HostName: "a\n"}, {HostName: someUUID}, {HostName: strings.Repeat("h", store.MaxHostName+1)}} {
		if c.setHostDefaults() == nil {
			t.Errorf("%q and %q are accepted", c.OtherHosts, c.HostName)
		}
	}
}
