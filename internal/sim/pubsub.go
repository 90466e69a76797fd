package sim

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Subscriptions and messages. They use the connection of the host, on which operations and
// results are, too: what Redis sends comes in the order in which Redis made it.

// uuidOf is the uuid of a host. Messages to a host with the uuid of an older sidecar have no origin.
func uuidOf(index int, isOlder bool) string {
	version := 8
	if isOlder && index == 0 {
		version = 7
	}
	return fmt.Sprintf("%08d-0000-%d000-8000-000000000000", index, version)
}

// runID is the run id of a server.
func runID(run int) string { return fmt.Sprintf("%08x%032x", run, 0) }

// subscribe subscribes a host to the channel of a lock, as soon as it has a connection.
func (w *world) subscribe(h *host, n int, s redisop.Shard) {
	l := &h.locks[n]
	l.wantsMessages, l.subscribed, l.deafSince, l.channelAt = true, false, 0, s
	if m := h.conns[s].m; m != nil { // nil: no shard has it
		m.Subscribe(lockNames[n])
		w.nudge(h, s)
	}
}

func (w *world) unsubscribe(h *host, n int, s redisop.Shard) {
	l := &h.locks[n]
	l.wantsMessages, l.subscribed = false, false
	if m := h.conns[s].m; m != nil {
		m.Unsubscribe(lockNames[n])
		w.nudge(h, s)
	}
}

// nudge has the Machine of a connection be advanced soon.
func (w *world) nudge(h *host, s redisop.Shard) {
	if h.conns[s].ok {
		w.advanceAt(h, s, w.now)
	}
}

// onSubscribed handles that Redis has confirmed a subscription.
func (w *world) onSubscribed(h *host, n int, s redisop.Shard) {
	l := &h.locks[n]
	if !l.wantsMessages || l.channelAt != s {
		return // since a result that was delivered before
	}
	w.checkSubscribed(h, n, s)
	l.subscribed = true
	if w.trace.on {
		w.trace.add(w, n, h, "subscribed%s", w.nodeString(h.conns[s].node))
	}
	h.table.Subscribed(h.clock(w.now), s, lockNames[n])
	w.afterInput(h)
}

// onUnsubscribed handles that a subscription is gone, or not permitted.
func (w *world) onUnsubscribed(h *host, n int, s redisop.Shard) {
	l := &h.locks[n]
	if !l.wantsMessages || l.channelAt != s {
		return
	}
	l.subscribed, l.deafSince = false, w.now
	if w.trace.on {
		w.trace.add(w, n, h, "unsubscribed%s", w.nodeString(h.conns[s].node))
	}
	h.table.Unsubscribed(h.clock(w.now), s, lockNames[n])
	w.drain(h)
}

// channelAt is the channel on which the release of a lock is published, as a server has it. Subscribers are hosts by
// their index, and Redisson clients. It is good until the next call.
func (w *world) channelAt(s *server.Server, n int) *redis.Channel {
	c := &w.channel
	c.Subscribers = c.Subscribers[:0]
	for _, conn := range s.Conns() {
		isSubscribed := false
		w.sharers(n, func(n int) { isSubscribed = isSubscribed || conn.IsSubscribed(w.channels[n]) })
		if isSubscribed {
			c.Subscribers = append(c.Subscribers, conn.ID/maxConns)
		}
	}
	if s == w.redis.nodes[w.redis.owners[n]].server {
		c.Subscribers = append(c.Subscribers, w.redis.waiting[w.counterOf(n)].Subscribers...)
	}
	return c
}

// publish publishes the release of a lock, at the node that has it.
func (w *world) publish(name int) {
	s := w.redis.nodes[w.redis.owners[name]].server
	w.sharers(name, func(n int) { s.PublishLock(lockNames[n], w.plan.cluster) })
}

// reaches reports whether a node counts a host as a receiver of what is published to it: its
// connection, or one that Redis does not know to be gone.
func (w *world) reaches(h *host, x nodeID) bool {
	for s := range h.shards {
		c := &h.conns[s]
		if c.node == x && !h.mayNotSubscribe && (c.isListening && !c.dead && w.isAtMaster(h, s) || w.now < c.receivesUntil) {
			return true
		}
	}
	return false
}

// Publish brings what a server published on the channel of a sidecar to those servers that are its replicas now, and to
// the other nodes of a Cluster. None of them counts as a receiver.
func (w *world) Publish(from *server.Server, channel, text string) {
	isTransfer := strings.HasPrefix(text, "transfer")
	for i := range w.redis.nodes {
		node := &w.redis.nodes[i]
		for _, s := range node.former {
			if node.server == from && s.Receivers(channel) > 0 {
				w.check.meetIf(TransferReplicated, isTransfer)
				s.PublishOwn(channel, text)
			}
		}
		if s := node.server; w.plan.cluster && s != nil && s != from && !node.down && s.Receivers(channel) > 0 {
			w.check.meetIf(TransferPassedOn, isTransfer)
			s.PublishOwn(channel, text)
		}
	}
}

// onMessage handles a message that reaches a host.
func (w *world) onMessage(h *host, s redisop.Shard, m redisop.Message) {
	n := nameIndex(m.Name)
	if m.Kind == redisop.Unlocked {
		w.noteUnlocked(h, n)
	} else {
		w.drainDeferred(h) // what the table did before it knew
		w.checkTransfer(h, n, s, &m)
		w.noteMessage(h, n, s, &m)
	}
	if w.trace.on {
		w.trace.add(w, n, h, "message: %s", messageString(&m))
	}
	h.table.Message(h.clock(w.now), m)
	w.afterInput(h)
}
