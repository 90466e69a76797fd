package sidecar

import (
	"context"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// onRedis takes what the store tells. What the table is to know waits for the loop.
func (l *loop) onRedis(e store.Event) {
	why := e.Text
	switch e.Kind {
	case store.Messages:
		l.inbox.AddMessages(e.Messages)
		l.runIfIdle()
		return
	case store.Up:
		runID := e.ID.RunID
		l.shards.set(e.Shard, func(h *redisHealth) { *h = redisHealth{status: "ok", runID: runID} }, l.setHealth)
		signal(l.redisIsUp)
	case store.Down:
		l.shards.set(e.Shard, func(h *redisHealth) { *h = redisHealth{status: why} }, l.setHealth)
	case store.Degraded:
		l.shards.set(e.Shard, func(h *redisHealth) {
			if h.status, h.isDegraded = "ok", why != ""; why != "" {
				h.status = why
			}
		}, l.setHealth)
	case store.Risk:
		l.shards.set(e.Shard, func(h *redisHealth) { h.risk = why }, l.setHealth)
		return
	case store.OpenSlots:
		l.shards.setOpen(why, e.IsBlocking, l.setHealth)
	case store.Sentinels:
		l.shards.setSentinels(why, l.setHealth)
		return
	case store.Route:
		l.shards.route(e.Routes, l.setHealth)
	case store.Question:
		l.onQuestion(e.From, []byte(why))
		return
	case store.Answer:
		l.hosts.OnAnswer([]byte(why))
		return
	}
	l.submitEvent(event{kind: ofRedis, redis: e})
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
		l.submitEvent(event{kind: hostQuestion, from: from, question: q})
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
