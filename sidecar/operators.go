package sidecar

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
)

// Stats is what a sidecar has counted since it started, and what there is at one moment.
type Stats struct {
	locktable.Stats
	Survey locktable.Survey // of SurveyedAt

	Now        int64 // CLOCK_BOOTTIME, ns
	StartedAt  int64 // the same, of Listen
	SurveyedAt int64 // the same; a little before Now if there are very many locks: see surveyShare

	Redis      string              // "ok", or one sentence that says what is wrong
	RedisUp    bool                // there is a connection
	Degraded   bool                // there is one, but Redis refuses what locks need
	Resumed    uint64              // sessions that clients resumed
	RedisDowns uint64              // outages of Redis
	DataLosses uint64              // connections to a Redis that may have lost data
	Ignored    uint64              // messages on the channel of this sidecar that say nothing to it
	Steps      locktable.Histogram // how long a step of the loop took, on locktable.ShortTimes
	LoopDelay  time.Duration       // how long the loop took to answer this query
	Policy     []policy.Refused    // what each entry of the policy has refused, as Config.Policy
	PolicyUse  []policy.Use        // what is used of the limits of its entries
	RedisRunID string              // of the server; "": there is no connection, or the server does not report it
	Database   int                 // the number of the database in Redis

	Sentinels sentinel.Count // zero: the URL has none
	Troubles  [3]Trouble     // of the daemon

	Shards          []Shard            // of a Cluster; nil: Redis is none
	OpenSlots       []cluster.OpenSlot // of a Cluster, which stay open
	TopologyChanges uint64             // how often slots had other masters than before, of a Cluster
	Redirects       pipeline.Redirects // of a Cluster
}

// Stats returns what the sidecar has counted.
func (s *Server) Stats(ctx context.Context) (*Stats, error) {
	l := &s.loop
	survey, at, err := l.survey(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	answered := make(chan Stats, 1)
	err = l.query(ctx, func(now int64) {
		st := Stats{Stats: l.table.Stats(), Now: now, LoopDelay: time.Since(begin), Resumed: l.counters.resumed, RedisDowns: l.counters.redisDowns, DataLosses: l.counters.dataLosses, Steps: l.counters.steps}
		st.Groups[0].Losses[locktable.LossForgotten] += l.counters.forgotten
		st.Policy, st.PolicyUse = l.ledger.Refused(len(l.cfg.Policy)), l.ledger.Usage(l.cfg.Policy)
		answered <- st
	})
	if err != nil {
		return nil, err
	}
	st := <-answered
	redis := l.redis.Load()
	st.Survey, st.SurveyedAt, st.StartedAt = survey, at, l.startedAt
	st.Redis, st.RedisUp, st.Degraded, st.RedisRunID = redis.status, redis.isUp(), redis.isDegraded, redis.runID
	st.Shards, st.TopologyChanges, st.Redirects = l.shardStates(&survey), l.store.TopologyChanges(), l.store.Redirects()
	st.Sentinels, st.OpenSlots = l.store.Sentinels(), l.store.OpenSlots()
	st.Troubles, _ = l.troubles.all()
	st.Ignored, st.Database = l.store.IgnoredMessages(), l.store.Database()
	return &st, nil
}

// Rows returns the rows of the locks that have one of these names and are known.
func (s *Server) Rows(ctx context.Context, names []string) ([]protocol.LockRow, error) {
	l := &s.loop
	answered := make(chan []protocol.LockRow, 1)
	err := l.query(ctx, func(now int64) {
		var rows []protocol.LockRow
		for _, name := range names {
			if row, ok := l.table.Info(now, name); ok {
				l.locate(now, &row)
				rows = append(rows, row)
			}
		}
		answered <- rows
	})
	if err != nil {
		return nil, err
	}
	return <-answered, nil
}

// Events returns at most n of the events that are wanted, newest first, and the time of the answer
// (CLOCK_BOOTTIME, ns). isWanted must be short: the loop waits for it.
func (s *Server) Events(ctx context.Context, n int, isWanted func(*protocol.EventRow) bool) ([]protocol.EventRow, int64, error) {
	l := &s.loop
	type newest struct {
		rows []protocol.EventRow
		at   int64
	}
	answered := make(chan newest, 1)
	err := l.query(ctx, func(now int64) {
		rows := l.eventLog.Newest(n, isWanted)
		l.nameHosts(rows)
		answered <- newest{rows, now}
	})
	if err != nil {
		return nil, 0, err
	}
	a := <-answered
	return a.rows, a.at, nil
}

// Troubles returns all kinds of trouble. restart: a restart by systemd helps.
func (s *Server) Troubles() (all [3]Trouble, restart bool) { return s.loop.troubles.all() }

// Trouble returns the sentence for the first trouble; "": there is none. restart: a restart by systemd helps.
func (s *Server) Trouble() (why string, restart bool) { return s.loop.troubles.first() }

// Addr is the path of the socket.
func (s *Server) Addr() string { return s.endpoint.Listener().Addr().String() }

// Config returns the settings, with their defaults.
func (s *Server) Config() Config { return s.loop.cfg }

// Redis is "ok", or says in one sentence what is wrong.
func (s *Server) Redis() string { return s.loop.redis.Load().status }

// RedisChanged has an element when Redis may return another text than before. One goroutine
// receives from it.
func (s *Server) RedisChanged() <-chan struct{} { return s.loop.healthChanged }

// RedisServer names what hosts that share locks have in common: the address of Redis with
// the number of the database, the run id of the server if it is known, and the key prefix
// if there is one.
func (s *Server) RedisServer() string {
	l := &s.loop
	text := l.store.Address()
	if id := l.redis.Load().runID; id != "" {
		text += ", run id " + id
	}
	if l.cfg.KeyPrefix != "" {
		text += fmt.Sprintf(", key prefix %q", l.cfg.KeyPrefix)
	}
	return text
}

// Ping returns when the loop has handled an event.
func (s *Server) Ping(ctx context.Context) error { return s.loop.query(ctx, func(int64) {}) }

// SetMetrics has requests for metrics answered with what gather returns: each metric in the text
// format of Prometheus, in the same order each time. gather is called on a goroutine of its own,
// and may call Stats. SetMetrics is called before Serve.
func (s *Server) SetMetrics(gather func() ([]string, error)) {
	l := &s.loop
	l.gatherMetrics = func(after uint64, answer func(protocol.MetricsOK, error)) {
		l.senders.Go(func() {
			var page protocol.MetricsOK
			metrics, err := gather()
			if err == nil {
				page, err = pageOfMetrics(metrics, after)
			}
			l.submitEvent(event{kind: loopQuery, done: make(chan struct{}), query: func(int64) { answer(page, err) }})
		})
	}
}

// MetricsListener returns the listener of the setting Metrics as soon as it is open; nil: there
// is no such setting, or ctx ended before. While another program listens there, it tries again
// every five seconds. The caller serves the listener, and closes it. It is called once.
func (s *Server) MetricsListener(ctx context.Context) net.Listener {
	if s.loop.cfg.Metrics == "" || s.metrics != nil {
		return s.metrics
	}
	tick := time.NewTicker(metricsRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		l, err := listenMetrics(&s.loop.cfg)
		if err == nil {
			return l
		}
		s.loop.log.Debug("the metrics are not served yet", "error", err)
	}
}
