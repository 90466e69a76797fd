package monitor_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/monitor"
	"github.com/locksidecar/locksidecar/sidecar/store"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// gatherTopology returns the metrics of Sentinels and of a Cluster.
func gatherTopology(t *testing.T, s *sidecar.Stats) map[string]*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(monitor.Topology{Stats: s})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

// values returns the values of a metric with one label, by that label.
func values(f *dto.MetricFamily) map[string]float64 {
	got := make(map[string]float64)
	for _, m := range f.GetMetric() {
		label := ""
		if len(m.Label) > 0 {
			label = m.Label[0].GetValue()
		}
		got[label] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return got
}

func shard(address string, slots int, isUp bool) sidecar.Shard {
	return sidecar.Shard{ShardState: store.ShardState{Address: address, Slots: slots}, IsUp: isUp}
}

func TestMetricsHaveAShardForEachMaster(t *testing.T) {
	got := gatherTopology(t, &sidecar.Stats{
		Shards:          []sidecar.Shard{shard("", 12, false), shard("a:1", 8000, true), shard("b:1", 8372, false), shard("c\xff:1", 0, true)},
		TopologyChanges: 3, Redirects: pipeline.Redirects{Moved: 4, Ask: 5, TryAgain: 6},
	})
	for _, want := range []struct {
		name   string
		values map[string]float64
	}{
		{"redis_shard_up", map[string]float64{"none": 0, "a:1": 1, "b:1": 0, "c?:1": 1}},
		{"redis_slots", map[string]float64{"none": 12, "a:1": 8000, "b:1": 8372, "c?:1": 0}},
		{"topology_changes_total", map[string]float64{"": 3}},
		{"redirects_total", map[string]float64{"moved": 4, "ask": 5, "tryagain": 6}},
	} {
		if values := values(got["locksidecar_"+want.name]); fmt.Sprint(values) != fmt.Sprint(want.values) {
			t.Errorf("%s is %v, want %v", want.name, values, want.values)
		}
	}
	if single := gatherTopology(t, &sidecar.Stats{}); len(single) != 0 {
		t.Errorf("a single Redis has %v", single)
	}
}

// The danger: a Cluster with hundreds of masters makes hundreds of series at each host; or one of its
// masters is down, and no series says so.
func TestMetricsHaveFewShards(t *testing.T) {
	var s sidecar.Stats
	for i := range 100 {
		s.Shards = append(s.Shards, shard(fmt.Sprintf("a:%d", i), 100, true))
	}
	up, slots := values(gatherTopology(t, &s)["locksidecar_redis_shard_up"]), values(gatherTopology(t, &s)["locksidecar_redis_slots"])
	if len(up) != 65 || len(slots) != 65 || up["a:63"] != 1 || up["other"] != 1 || slots["a:0"] != 100 || slots["other"] != 3600 {
		t.Errorf("%d shards, the rest up: %v, with %v slots", len(up), up["other"], slots["other"])
	}
	for _, i := range []int{64, 99} {
		s.Shards[i].IsUp = false
		if up := values(gatherTopology(t, &s)["locksidecar_redis_shard_up"]); up["other"] != 0 {
			t.Errorf("shard %d is down, and the rest is up", i)
		}
		s.Shards[i].IsUp = true
	}
}
