package store

import (
	"context"
	"net"
	"slices"
	"strings"
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

// A master that needs no replica goes on granting locks after it was replaced.
func TestMasterThatServesWithoutItsReplicasIsNamed(t *testing.T) {
	const says = "set min-replicas-to-write 1"
	for _, tt := range []struct {
		name    string
		replica bool
		args    []string
		change  func(*Config)
		says    bool
	}{
		{"no replica", false, nil, func(*Config) {}, false},
		{"a replica", true, nil, func(*Config) {}, true},
		{"a replica that it needs", true, []string{"--min-replicas-to-write", "1"}, func(*Config) {}, false},
		{"a replica that confirms", true, nil, func(c *Config) { c.Replicas = 1 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			master := startRedis(t, append([]string{"--repl-diskless-sync-delay", "0"}, tt.args...)...)
			if tt.replica {
				startRedis(t).follow(master)
			}
			r := connected(t, master.url(), tt.change)
			if log := r.logged(); strings.Contains(log, says) != tt.says {
				t.Errorf("the log is:\n%s", log)
			}
		})
	}
}
