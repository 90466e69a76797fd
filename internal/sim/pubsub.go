package sim

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// Subscriptions and messages. They use the connection of the host, on which operations and
// results are, too: what Redis sends comes in the order in which Redis made it.

// message is a message on its way to a host.
type message struct {
	redisop.Message
	sentAt int64
	server int // run id of the one whose script sent it
}

// subscribe subscribes a host to the channel of a lock, as soon as it has a connection.
func (w *world) subscribe(h *host, n int, s redisop.Shard) {
	l := &h.locks[n]
	l.wantsMessages, l.subscribed, l.deafSince, l.channelAt = true, false, 0, s
	if h.conns[s].ok {
		w.sendSubscription(h, n, s, evSubscribe)
	}
}

func (w *world) unsubscribe(h *host, n int, s redisop.Shard) {
	l := &h.locks[n]
	l.wantsMessages, l.subscribed = false, false
	if h.conns[s].ok {
		w.sendSubscription(h, n, s, evUnsubscribe)
	}
}

func (w *world) sendSubscription(h *host, n int, s redisop.Shard, kind eventKind) {
	c := &h.conns[s]
	c.lastExec = max(c.lastExec, w.now+w.lag())
	w.after(c.lastExec-w.now, event{kind: kind, host: int16(h.index), name: int8(n), gen: c.gen, shard: int8(s)})
}

func (w *world) subscribeArrives(h *host, e event) {
	s, n := redisop.Shard(e.shard), int(e.name)
	c := &h.conns[s]
	if e.gen != c.gen || c.dead {
		return
	}
	if left := w.stallLeft(s); left > 0 {
		w.after(left, e)
		return
	}
	if owner := w.redis.owners[n]; owner != s {
		c.lastReply = max(c.lastReply, w.now+w.lag())
		w.after(c.lastReply-w.now, event{kind: evSubscriptionMoved, host: e.host, name: e.name, gen: e.gen, shard: e.shard, arg: int32(owner)})
		return
	}
	w.setSubscribed(h, n, s, !w.redis.names[n].deniedChannel && !h.mayNotSubscribe)
	c.lastReply = max(c.lastReply, w.now+w.lag())
	w.after(c.lastReply-w.now, event{kind: evSubscribed, host: e.host, name: e.name, gen: e.gen, shard: e.shard})
}

func (w *world) unsubscribeArrives(h *host, e event) {
	s, n := redisop.Shard(e.shard), int(e.name)
	c := &h.conns[s]
	if e.gen != c.gen || c.dead {
		return
	}
	if left := w.stallLeft(s); left > 0 {
		w.after(left, e)
		return
	}
	if h.locks[n].inRedisAt == s {
		w.setSubscribed(h, n, s, false)
	}
}

// setSubscribed notes whether a shard has a host's subscription of a lock. The connection is
// subscribed to the channel as long as there is one of a lock that shares it.
func (w *world) setSubscribed(h *host, n int, s redisop.Shard, on bool) {
	h.locks[n].inRedis, h.locks[n].inRedisAt = on && w.isAtMaster(h, s), s
	any := false
	w.sharers(n, func(n int) { any = any || h.locks[n].inRedis })
	if any {
		w.channel(n).Subscribe(int32(h.index))
	} else {
		w.channel(n).Unsubscribe(int32(h.index))
	}
}

// endSubscription ends a host's subscription of a lock in Redis.
func (w *world) endSubscription(h *host, n int) { w.setSubscribed(h, n, h.locks[n].inRedisAt, false) }

// onSubscribed handles Redis's reply to a SUBSCRIBE.
func (w *world) onSubscribed(h *host, e event) {
	l := &h.locks[e.name]
	s := redisop.Shard(e.shard)
	c := &h.conns[s]
	if e.gen != c.gen || c.dead || !l.wantsMessages || l.channelAt != s || h.isDown() {
		return
	}
	if w.redis.names[e.name].deniedChannel || h.mayNotSubscribe {
		l.deafSince = w.now
		if w.trace.on {
			w.trace.add(w, int(e.name), h, "may not subscribe")
		}
		h.table.Unsubscribed(h.clock(w.now), s, lockNames[e.name])
		w.afterInput(h)
		return
	}
	l.subscribed = true
	if w.trace.on {
		w.trace.add(w, int(e.name), h, "subscribed%s", w.shardString(s))
	}
	h.table.Subscribed(h.clock(w.now), s, lockNames[e.name])
	w.afterInput(h)
}

// publish publishes the release of a lock, at the shard that has it.
func (w *world) publish(name int) {
	for _, h := range w.hosts {
		w.sharers(name, func(n int) {
			if h.locks[n].inRedis {
				w.sendMessage(h, h.locks[n].inRedisAt, redisop.Message{Kind: redisop.Unlocked, Name: lockNames[n]})
			}
		})
	}
}

// reaches reports whether a shard counts a host as a receiver of what is published to it: its
// connection, or one that Redis does not know to be gone.
func (w *world) reaches(h *host, s redisop.Shard) bool {
	c := &h.conns[s]
	return !h.mayNotSubscribe && (c.isListening && !c.dead && w.isAtMaster(h, s) || w.now < c.receivesUntil)
}

// replicateMessage has a replica, which was the master before, send to a host what the master
// publishes. The master counts no receiver there.
func (w *world) replicateMessage(h *host, s redisop.Shard, m redisop.Message) {
	if !w.isAtReplica(h, s) || !h.conns[s].isListening {
		return
	}
	w.check.meetIf(TransferReplicated, m.Kind == redisop.Transferred)
	w.push(h, s, m, w.redis.shards[s].run, w.now+w.lag())
}

// sendMessage has a shard send a message to a host. It is lost if the connection is.
func (w *world) sendMessage(h *host, s redisop.Shard, m redisop.Message) {
	c := &h.conns[s]
	if c.dead || !c.inRedis || !w.isAtMaster(h, s) || w.random.oneIn(w.plan.lostMessages) {
		w.check.meetIf(TransferLost, m.Kind == redisop.Transferred)
		return
	}
	w.push(h, s, m, w.redis.shards[s].run, w.now)
}

// push sends a message over a connection of a host, after what was sent there before and not before
// a time. server is the run id of the one whose script made it.
func (w *world) push(h *host, s redisop.Shard, m redisop.Message, server int, from int64) {
	c := &h.conns[s]
	i := w.newMessage()
	w.messages[i] = message{Message: m, sentAt: w.now, server: server}
	c.lastReply = max(c.lastReply, from+w.lag())
	w.after(c.lastReply-w.now, event{kind: evMessage, host: int16(h.index), arg: i, gen: c.gen, shard: int8(s)})
}

func (w *world) newMessage() int32 {
	if n := len(w.freeMessages); n > 0 {
		i := w.freeMessages[n-1]
		w.freeMessages = w.freeMessages[:n-1]
		return i
	}
	w.messages = append(w.messages, message{})
	return int32(len(w.messages) - 1)
}

func (w *world) onMessage(h *host, e event) {
	m, sentAt := w.messages[e.arg].Message, w.messages[e.arg].sentAt
	isOlder := w.plan.olderHost && h.index == 0
	if isOlder {
		m.NamesTicket = false
	}
	s := redisop.Shard(e.shard)
	c := &h.conns[s]
	if w.withoutOrigin || w.acceptsCopies && w.plan.cluster || w.messages[e.arg].server == c.nextRun && !isOlder {
		m.Conn = w.connOf(c, s)
	}
	if w.plan.durable && !w.grantsTransfers { // a Take, which the replica confirms, comes first
		m.Conn, m.Tokens = redisop.Conn{}, 0
	}
	if c.lifts {
		m.Tokens = 0 // the store's floor is above them
	}
	isCopy := w.plan.cluster && w.messages[e.arg].server != c.nextRun
	w.freeMessages = append(w.freeMessages, e.arg)
	if e.gen != c.gen || !c.ok || c.dead || h.isDown() {
		w.check.meetIf(TransferLost, m.Kind == redisop.Transferred)
		return
	}
	n := nameIndex(m.Name)
	if m.Kind == redisop.Unlocked {
		if !h.locks[n].wantsMessages && w.random.oneIn(2) {
			return
		}
		w.noteUnlocked(h, n)
	} else {
		w.drainDeferred(h) // what the table did before it knew
		w.noteMessage(h, n, s, &m, sentAt, isCopy)
	}
	if w.trace.on {
		w.trace.add(w, n, h, "message: %s", messageString(&m))
	}
	h.table.Message(h.clock(w.now), m)
	w.afterInput(h)
}

// endSubscriptions is part of the end of a connection: what is on its way is lost, and so is
// what is published until the host has another one.
func (w *world) endSubscriptions(h *host, s redisop.Shard) {
	for n := range w.plan.names {
		if h.locks[n].inRedisAt == s {
			w.endSubscription(h, n)
		}
	}
}

// reportUnsubscribed tells the table that its subscriptions at a shard are gone.
func (w *world) reportUnsubscribed(h *host, s redisop.Shard) {
	for n := range w.plan.names {
		l := &h.locks[n]
		if !l.subscribed || l.channelAt != s {
			continue
		}
		l.subscribed, l.deafSince = false, w.now
		if w.trace.on {
			w.trace.add(w, n, h, "unsubscribed%s", w.shardString(s))
		}
		h.table.Unsubscribed(h.clock(w.now), s, lockNames[n])
		w.drain(h)
	}
}

// resubscribe subscribes a host on its new connection.
func (w *world) resubscribe(h *host, s redisop.Shard) {
	for n := range w.plan.names {
		if l := &h.locks[n]; l.wantsMessages && l.channelAt == s {
			w.sendSubscription(h, n, s, evSubscribe)
		}
	}
}
