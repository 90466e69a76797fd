package store

import (
	"context"
	"net"
	"slices"
	"testing"
)

func TestLostAddressesAreTriedLast(t *testing.T) {
	lost := &lostAddresses{}
	hosts := func() []string {
		hosts := []string{"a", "b", "c"}
		lost.sort(hosts)
		return hosts
	}
	for _, tt := range []struct {
		lost string
		want []string
	}{
		{"", []string{"a", "b", "c"}},
		{"a", []string{"b", "c", "a"}},
		{"b", []string{"c", "a", "b"}},
		{"a", []string{"c", "b", "a"}},
		{"c", []string{"b", "a", "c"}},
	} {
		if tt.lost != "" {
			lost.add(tt.lost)
		}
		if got := hosts(); !slices.Equal(got, tt.want) {
			t.Errorf("after %q was lost: %v", tt.lost, got)
		}
	}
	for range 3 * maxLost {
		lost.add(net.IPv4(10, 0, 0, byte(len(lost.hosts))).String() + "x")
	}
	if len(lost.hosts) > maxLost {
		t.Errorf("%d addresses are kept", len(lost.hosts))
	}
}

// The name of an endpoint that fails over leads to a replica first. The master is at another of its
// addresses.
func TestEndpointWithAReplicaAmongItsAddresses(t *testing.T) {
	replica := startRedis(t)
	replica.becomeReplica()
	master := startRedis(t, "--bind", "127.0.0.2", "--port", replica.port, "--protected-mode", "no")
	_ = master
	was := lookupHost
	lookupHost = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1", "127.0.0.2"}, nil }
	t.Cleanup(func() { lookupHost = was })
	r := connected(t, "redis://localhost:"+replica.port)
	if res := r.one(takeOp("lock", 1)); res.Msg != "" {
		t.Errorf("%+v", res)
	}
}
