package sidecar

import (
	"context"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

func (l *loop) redisResults(results []redisop.Result, raised *wire.Identity) {
	e := event{kind: redisResults, results: results}
	if raised != nil {
		e.redis, e.flag = *raised, true
	}
	l.submitEvent(e)
}

func (l *loop) redisUp(n redisop.Shard, dataLost, listening bool, id wire.Identity) {
	l.shards.set(n, func(h *redisHealth) { *h = redisHealth{status: "ok", runID: id.RunID} }, l.setHealth)
	signal(l.redisIsUp)
	l.submitEvent(event{kind: redisUp, shard: n, flag: dataLost, listening: listening, redis: id})
}

// redisDegraded has why Redis refuses what locks need; "": it does not.
func (l *loop) redisDegraded(n redisop.Shard, why string) {
	l.shards.set(n, func(h *redisHealth) {
		if h.status, h.isDegraded = "ok", why != ""; why != "" {
			h.status = why
		}
	}, l.setHealth)
	l.submitEvent(event{kind: redisDegraded, shard: n, text: why})
}

// redisRisk has why two owners of one lock are possible; "": nothing is known.
func (l *loop) redisRisk(n redisop.Shard, risk string) {
	l.shards.set(n, func(h *redisHealth) { h.risk = risk }, l.setHealth)
}

// redisOpenSlots has why slots stay open; "": none is.
func (l *loop) redisOpenSlots(why string, isBlocking bool) {
	l.shards.setOpen(why, isBlocking, l.setHealth)
	l.submitEvent(event{kind: redisOpenSlots, text: why})
}

func (l *loop) redisRoute(ranges []redisop.SlotRange) {
	l.shards.route(ranges, l.setHealth)
	l.submitEvent(event{kind: redisRoute, routes: ranges})
}

func (l *loop) redisDown(n redisop.Shard, err error) {
	why := err.Error()
	l.shards.set(n, func(h *redisHealth) { *h = redisHealth{status: why} }, l.setHealth)
	l.submitEvent(event{kind: redisDown, shard: n, text: why})
}

// setHealth publishes the health of Redis.
func (l *loop) setHealth(h *redisHealth) {
	l.redis.Store(h)
	signal(l.healthChanged)
}

// signal puts an element into a channel that has room for one.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// onQuestion hands a question of another sidecar to the loop.
func (l *loop) onQuestion(from string, body []byte) {
	switch q := l.hosts.Take(protocol.Now(), body).(type) {
	case nil:
	case *protocol.Status:
		l.senders.Go(func() { l.answerStatus(from, q) }) // because a survey takes several steps of the loop
	default:
		l.submitEvent(event{kind: hostQuestion, text: from, question: q})
	}
}

// answerStatus answers another sidecar that asks for the status of this one.
func (l *loop) answerStatus(from string, m *protocol.Status) {
	defer l.hosts.Done()
	r := l.prepareStatus(m)
	if r.survey == nil {
		return // this sidecar is overloaded
	}
	_ = l.query(context.Background(), func(now int64) { // an error: the sidecar has stopped
		l.hosts.Reply(now, from, &protocol.StatusOK{ID: r.ID, StatusRow: l.statusRow(now, r)})
	})
}
