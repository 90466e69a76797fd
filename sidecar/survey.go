package sidecar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

const (
	// surveyPart is how many locks a survey looks at in one step of the loop.
	surveyPart = 256

	// A survey of a large table is not repeated before surveyShare times the time has passed that
	// it took of the loop: so the surveys take a twentieth of the loop's time at most, however
	// often they are asked for.
	surveyShare = 20
)

// query has the loop call f between two inputs, and returns when it has. f must be short.
func (l *loop) query(ctx context.Context, f func(now int64)) error {
	done := make(chan struct{})
	l.submitEvent(event{kind: loopQuery, query: f, done: done})
	return l.awaitLoop(ctx, done)
}

// awaitLoop waits until the loop has closed done.
func (l *loop) awaitLoop(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-l.ended:
		return errors.New("the sidecar has stopped")
	case <-ctx.Done():
		return fmt.Errorf("the loop did not answer: %w", ctx.Err())
	}
}

// inLoop has the loop call f between two inputs, and returns when it has; false: the sidecar stops.
func (l *loop) inLoop(stop <-chan struct{}, f func(now int64)) bool {
	done := make(chan struct{})
	l.submitEvent(event{kind: loopQuery, query: f, done: done})
	select {
	case <-done:
		return true
	case <-stop:
		return false
	}
}

// survey walks over all locks, in parts between which the loop does everything else.
func (l *loop) survey(ctx context.Context) (locktable.Survey, int64, error) {
	y := &l.surveyor
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
		err := l.query(ctx, func(now int64) {
			begin := time.Now()
			next := p
			next.more = l.table.Survey(now, &next.survey, surveyPart)
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

// prepareStatus has the locks surveyed for a status request. It runs on the reader of the
// connection, because a survey takes several steps of the loop: until it is made, no further
// requests of this client are read.
func (l *loop) prepareStatus(m *protocol.Status) *statusRequest {
	ctx, cancel := context.WithTimeout(context.Background(), surveyTimeout)
	defer cancel()
	v := *m
	r := &statusRequest{Status: &v}
	if survey, _, err := l.survey(ctx); err == nil {
		r.survey, r.shards = &survey, l.shardStates(&survey)
	}
	r.trouble, _ = l.troubles.first()
	return r
}

// shardStates returns each shard that has slots, with what a survey found of its locks; nil: Redis is no
// Cluster. It may be called from any goroutine.
func (l *loop) shardStates(survey *locktable.Survey) []Shard {
	known := l.store.Shards()
	if known == nil {
		return nil
	}
	shards := make([]Shard, 0, len(known))
	for _, k := range known {
		h, locks := l.shards.get(k.Shard), survey.OfShard(k.Shard)
		shards = append(shards, Shard{
			ShardState: k, Redis: h.status, IsUp: h.isUp(), Degraded: h.isDegraded, Held: locks.Holds, Waiting: locks.Waiters,
		})
	}
	return shards
}
