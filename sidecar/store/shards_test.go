package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// startNode starts a node of a Cluster that has the slots below 10,000, and knows no other node.
func startNode(t *testing.T) *server {
	t.Helper()
	s := startRedis(t, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
	admin := s.admin()
	if err := admin.ClusterAddSlotsRange(t.Context(), 0, 9999).Err(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(admin.ClusterInfo(t.Context()).Val(), "cluster_state:ok"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the node does not serve")
		}
	}
	return s
}

func TestShardsAreTheMastersAndTheSlotsWithoutOne(t *testing.T) {
	s := startNode(t)
	r := connected(t, "redis+cluster://"+s.tcp())
	// An operator reads that these slots have no master, and not that Redis has not been reached.
	if why := r.down(); !strings.Contains(why, "no master of the Cluster") {
		t.Errorf("OnDown says %q", why)
	}
	name := ""
	for i := 0; wire.SlotOf(name) > 9999 || name == ""; i++ {
		name = fmt.Sprint("a", i)
	}
	op := takeOp(name, 1)
	op.Shard = 1
	if got := r.one(op); got.Outcome != redisop.Done {
		t.Fatalf("the Take has the result %+v", got)
	}
	shards := r.Shards()
	if len(shards) != 2 {
		t.Fatalf("the shards are %+v", shards)
	}
	if shards[0] != (ShardState{Slots: 6384}) {
		t.Errorf("the slots without a master are %+v", shards[0])
	}
	node := shards[1]
	if node.RoundTrip <= 0 || node.RoundTrip > patience {
		t.Errorf("the round trip took %v", node.RoundTrip)
	}
	if node.RoundTrip = 0; node != (ShardState{Shard: 1, Address: s.tcp(), Slots: 10000}) {
		t.Errorf("the node is %+v", node)
	}
	if n := r.TopologyChanges(); n != 1 {
		t.Errorf("the topology has changed %d times, want 1", n)
	}

	if err := s.admin().ClusterAddSlotsRange(t.Context(), 10000, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); len(r.Shards()) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the shards are %+v", r.Shards())
		}
	}
	if got := r.Shards()[0]; got.Slots != redisop.Slots || r.TopologyChanges() != 2 {
		t.Errorf("the shard is %+v, after %d changes", got, r.TopologyChanges())
	}
}

func TestSingleRedisHasNoShards(t *testing.T) {
	r := open(t, "redis://127.0.0.1:1") // refuses connections
	if shards := r.Shards(); shards != nil || r.TopologyChanges() != 0 || r.Redirects() != (pipeline.Redirects{}) {
		t.Errorf("it has the shards %+v", shards)
	}
}
