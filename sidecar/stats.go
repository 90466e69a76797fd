package sidecar

import (
	"context"
	"sync"
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

const (
	// surveyPart is how many locks a survey looks at in one step of the loop.
	surveyPart = 256

	// A survey of a large table is not repeated before surveyShare times the time has passed that
	// it took of the loop: so the surveys take a twentieth of the loop's time at most, however
	// often they are asked for.
	surveyShare = 20
)

// surveyor makes surveys, one at a time.
type surveyor struct {
	mu   sync.Mutex // locked during a survey
	last locktable.Survey
	at   int64         // of last, CLOCK_BOOTTIME; 0: there is none
	cost time.Duration // of last: the time that it took of the loop
}

// query has the loop call f between two inputs, and returns when it has. f must be short.
func (s *Server) query(ctx context.Context, f func(now int64)) error {
	done := make(chan struct{})
	s.submitEvent(event{kind: loopQuery, query: f, done: done})
	return s.awaitLoop(ctx, done)
}

// Stats returns what the sidecar has counted.
func (s *Server) Stats(ctx context.Context) (*Stats, error) {
	survey, at, err := s.survey(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	answered := make(chan Stats, 1)
	err = s.query(ctx, func(now int64) {
		st := Stats{Stats: s.table.Stats(), Now: now, LoopDelay: time.Since(begin), Resumed: s.counters.resumed, RedisDowns: s.counters.redisDowns, DataLosses: s.counters.dataLosses, Steps: s.counters.steps}
		st.Groups[0].Losses[locktable.LossForgotten] += s.counters.forgotten
		st.Policy, st.PolicyUse = s.ledger.Refused(len(s.cfg.Policy)), s.ledger.Usage(s.cfg.Policy)
		answered <- st
	})
	if err != nil {
		return nil, err
	}
	st := <-answered
	redis := s.redis.Load()
	st.Survey, st.SurveyedAt, st.StartedAt = survey, at, s.startedAt
	st.Redis, st.RedisUp, st.Degraded, st.RedisRunID = redis.status, redis.isUp(), redis.isDegraded, redis.runID
	st.Shards, st.TopologyChanges, st.Redirects = s.shardStates(&survey), s.store.TopologyChanges(), s.store.Redirects()
	st.Sentinels, st.OpenSlots = s.store.Sentinels(), s.store.OpenSlots()
	st.Troubles, _ = s.Troubles()
	st.Ignored, st.Database = s.store.IgnoredMessages(), s.store.Database()
	return &st, nil
}

// Rows returns the rows of the locks that have one of these names and are known.
func (s *Server) Rows(ctx context.Context, names []string) ([]protocol.LockRow, error) {
	answered := make(chan []protocol.LockRow, 1)
	err := s.query(ctx, func(now int64) {
		var rows []protocol.LockRow
		for _, name := range names {
			if row, ok := s.table.Info(now, name); ok {
				s.locate(now, &row)
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

// survey walks over all locks, in parts between which the loop does everything else.
func (s *Server) survey(ctx context.Context) (locktable.Survey, int64, error) {
	y := &s.surveyor
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.at != 0 && protocol.Now()-y.at < surveyShare*int64(y.cost) {
		return y.last, y.at, nil
	}
	type part struct {
		survey locktable.Survey
		at     int64
		cost   time.Duration
		more   bool
	}
	p := part{more: true}
	for p.more {
		answered := make(chan part, 1) // a query that was not waited for changes nothing here
		err := s.query(ctx, func(now int64) {
			begin := time.Now()
			next := p
			next.more = s.table.Survey(now, &next.survey, surveyPart)
			next.at, next.cost = now, p.cost+time.Since(begin)
			answered <- next
		})
		if err != nil {
			return locktable.Survey{}, 0, err
		}
		p = <-answered
	}
	y.last, y.at, y.cost = p.survey, p.at, p.cost
	return y.last, y.at, nil
}
