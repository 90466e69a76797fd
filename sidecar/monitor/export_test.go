package monitor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/locksidecar/locksidecar/sidecar"
)

// A Topology is a prometheus.Collector of the metrics that there are behind Sentinels, or in a Redis Cluster, only.
type Topology struct{ *sidecar.Stats }

func (c Topology) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{redisShardUp, redisSlots, topologyChanges, redirects, openSlot, sentinelsKnown, sentinelsAnswer} {
		ch <- d
	}
}

func (c Topology) Collect(ch chan<- prometheus.Metric) { collectTopology(ch, c.Stats) }
