package sidecar

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

const (
	// maxGathering is how many requests for metrics are answered at one time.
	maxGathering = 4
	// A page of metrics is filled with so many bytes.
	metricsPage = protocol.MetricsRoom / 2
)

// pageOfMetrics returns the page after so many metrics.
func pageOfMetrics(metrics []string, after uint64) (protocol.MetricsOK, error) {
	var text strings.Builder
	i := min(after, uint64(len(metrics)))
	for ; i < uint64(len(metrics)) && (text.Len() == 0 || text.Len()+len(metrics[i]) <= metricsPage); i++ {
		if len(metrics[i]) > protocol.MetricsRoom {
			return protocol.MetricsOK{}, fmt.Errorf("a metric has %d bytes, and a frame has room for %d; name fewer patterns in metrics_names", len(metrics[i]), protocol.MetricsRoom)
		}
		text.WriteString(metrics[i])
	}
	m := protocol.MetricsOK{Text: text.String()}
	if i < uint64(len(metrics)) {
		m.Next = i
	}
	return m, nil
}

// onMetrics answers a request for metrics later: to gather them takes longer than a step may.
func (l *loop) onMetrics(c *conn, cl *session, r *protocol.Metrics) {
	switch {
	case l.gatherMetrics == nil:
		l.refuse(c, r.ID, protocol.Unsupported, "this sidecar has no metrics")
		return
	case l.gathering >= maxGathering:
		l.refuse(c, r.ID, protocol.Limit, "the metrics are being gathered for other clients; try again in a moment")
		return
	}
	l.gathering++
	id := r.ID
	l.gatherMetrics(r.After, func(m protocol.MetricsOK, err error) {
		l.gathering--
		if c.session != cl || cl.phase.IsOver() || cl.phase == locktable.SessionLeaving {
			return
		}
		if err != nil {
			l.refuse(c, id, protocol.Unavailable, "the metrics could not be gathered: "+err.Error())
			return
		}
		m.ID = id
		l.queueReply(c, &m)
	})
}
