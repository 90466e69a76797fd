package sidecar

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/store"
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

	Sentinels store.SentinelCount // zero: the URL has none
	Troubles  [3]Trouble          // of the daemon

	Shards          []Shard          // of a Cluster; nil: Redis is none
	OpenSlots       []store.OpenSlot // of a Cluster, which stay open
	TopologyChanges uint64           // how often slots had other masters than before, of a Cluster
	Redirects       store.Redirects  // of a Cluster
}

// counters is what the loop counts beside the table.
type counters struct {
	resumed    uint64
	redisDowns uint64 // outages of Redis
	dataLosses uint64 // connections to a Redis that may have lost data
	forgotten  uint64 // holds that clients claimed and no sidecar knew
	steps      locktable.Histogram
}

// Stats returns what the sidecar has counted.
func (s *Server) Stats(ctx context.Context) (*Stats, error) {
	survey, at, err := s.loop.survey(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	answered := make(chan Stats, 1)
	err = s.loop.query(ctx, func(now int64) {
		st := Stats{Stats: s.loop.table.Stats(), Now: now, LoopDelay: time.Since(begin), Resumed: s.loop.counters.resumed, RedisDowns: s.loop.counters.redisDowns, DataLosses: s.loop.counters.dataLosses, Steps: s.loop.counters.steps}
		st.Groups[0].Losses[locktable.LossForgotten] += s.loop.counters.forgotten
		st.Policy, st.PolicyUse = s.loop.ledger.Refused(len(s.loop.cfg.Policy)), s.loop.ledger.Usage(s.loop.cfg.Policy)
		answered <- st
	})
	if err != nil {
		return nil, err
	}
	st := <-answered
	redis := s.loop.redis.Load()
	st.Survey, st.SurveyedAt, st.StartedAt = survey, at, s.loop.startedAt
	st.Redis, st.RedisUp, st.Degraded, st.RedisRunID = redis.status, redis.isUp(), redis.isDegraded, redis.runID
	st.Shards, st.TopologyChanges, st.Redirects = s.loop.shardStates(&survey), s.loop.store.TopologyChanges(), s.loop.store.Redirects()
	st.Sentinels, st.OpenSlots = s.loop.store.Sentinels(), s.loop.store.OpenSlots()
	st.Troubles, _ = s.loop.troubles.all()
	st.Ignored, st.Database = s.loop.store.IgnoredMessages(), s.loop.store.Database()
	return &st, nil
}

// Rows returns the rows of the locks that have one of these names and are known.
func (s *Server) Rows(ctx context.Context, names []string) ([]protocol.LockRow, error) {
	answered := make(chan []protocol.LockRow, 1)
	err := s.loop.query(ctx, func(now int64) {
		var rows []protocol.LockRow
		for _, name := range names {
			if row, ok := s.loop.table.Info(now, name); ok {
				s.loop.locate(now, &row)
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
	type newest struct {
		rows []protocol.EventRow
		at   int64
	}
	answered := make(chan newest, 1)
	err := s.loop.query(ctx, func(now int64) {
		rows := s.loop.eventLog.Newest(n, isWanted)
		s.loop.nameHosts(rows)
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
