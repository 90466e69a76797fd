package monitor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/locksidecar/locksidecar/sidecar"
)

// A Cluster is a prometheus.Collector of the metrics that there are in a Redis Cluster only.
type Cluster struct{ *sidecar.Stats }

func (c Cluster) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{redisShardUp, redisSlots, topologyChanges, redirects} {
		ch <- d
	}
}

func (c Cluster) Collect(ch chan<- prometheus.Metric) { collectCluster(ch, c.Stats) }
