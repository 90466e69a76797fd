package sidecar

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
)

// The lock table has the times of the settings.
//
// Shows docs/queue.md: Settings.
func TestTimesReachTheLockTable(t *testing.T) {
	for _, tt := range []struct {
		cfg          Config
		lease        time.Duration
		linger, turn moment.Span
	}{
		{Config{}, DefaultLease, moment.SpanOf(DefaultLinger), moment.Span{}},
		{Config{Lease: time.Minute, Linger: moment.SpanOf(0), Turn: moment.SpanOf(0)}, time.Minute, moment.SpanOf(0), moment.SpanOf(0)},
		{Config{Lease: time.Second, Linger: moment.SpanOf(maxLinger), Turn: moment.SpanOf(maxTurn)}, time.Second, moment.SpanOf(maxLinger), moment.SpanOf(maxTurn)},
	} {
		if err := tt.cfg.setDefaults(); err != nil {
			t.Fatal(err)
		}
		if got := tt.cfg.table(); got.Lease != tt.lease || got.Contest.Linger != tt.linger || got.Contest.Turn != tt.turn {
			t.Errorf("lease %v, linger %v, turn %v; want %v, %v, %v", got.Lease, got.Contest.Linger, got.Contest.Turn, tt.lease, tt.linger, tt.turn)
		}
	}
}

func TestSettingsAboutOtherHosts(t *testing.T) {
	c := Config{}
	if err := c.setHostDefaults(); err != nil || c.OtherHosts != otherhosts.Show || c.HostName == "" {
		t.Errorf("the defaults are %q and %q: %v", c.OtherHosts, c.HostName, err)
	}
	for _, c := range []Config{{OtherHosts: "all"}, {HostName: "a b"}, {HostName: "a\n"}, {HostName: someUUID}, {HostName: strings.Repeat("h", lookup.MaxHostName+1)}} {
		if c.setHostDefaults() == nil {
			t.Errorf("%q and %q are accepted", c.OtherHosts, c.HostName)
		}
	}
}
