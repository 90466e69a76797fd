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
func (w *world) subscribe(h *host, n int) {
	l := &h.locks[n]
	l.wantsMessages, l.subscribed, l.deafSince = true, false, 0
	if h.conn.ok {
		w.sendSubscription(h, n, evSubscribe)
	}
}

func (w *world) unsubscribe(h *host, n int) {
	l := &h.locks[n]
	l.wantsMessages, l.subscribed = false, false
	if h.conn.ok {
		w.sendSubscription(h, n, evUnsubscribe)
	}
}

func (w *world) sendSubscription(h *host, n int, kind eventKind) {
	c := &h.conn
	c.lastExec = max(c.lastExec, w.now+w.lag())
	w.after(c.lastExec-w.now, event{kind: kind, host: int16(h.index), name: int8(n), gen: c.gen})
}

func (w *world) subscribeArrives(h *host, e event) {
	c := &h.conn
	if e.gen != c.gen || c.dead {
		return
	}
	w.setSubscribed(h, int(e.name), !w.redis.names[e.name].deniedChannel && !h.mayNotSubscribe)
	c.lastReply = max(c.lastReply, w.now+w.lag())
	w.after(c.lastReply-w.now, event{kind: evSubscribed, host: e.host, name: e.name, gen: e.gen})
}

func (w *world) unsubscribeArrives(h *host, e event) {
	if e.gen == h.conn.gen && !h.conn.dead {
		w.setSubscribed(h, int(e.name), false)
	}
}

// setSubscribed notes whether Redis has a host's subscription of a lock. The connection is
// subscribed to the channel as long as there is one of a lock that shares it.
func (w *world) setSubscribed(h *host, n int, on bool) {
	h.locks[n].inRedis = on && w.isAtMaster(h)
	any := false
	w.sharers(n, func(n int) { any = any || h.locks[n].inRedis })
	if any {
		w.channel(n).Subscribe(int32(h.index))
	} else {
		w.channel(n).Unsubscribe(int32(h.index))
	}
}

// onSubscribed handles Redis's reply to a SUBSCRIBE.
func (w *world) onSubscribed(h *host, e event) {
	l := &h.locks[e.name]
	if e.gen != h.conn.gen || h.conn.dead || !l.wantsMessages || h.isDown() {
		return
	}
	if w.redis.names[e.name].deniedChannel || h.mayNotSubscribe {
		l.deafSince = w.now
		if w.trace.on {
			w.trace.add(w, int(e.name), h, "may not subscribe")
		}
		h.table.Unsubscribed(h.clock(w.now), 0, lockNames[e.name])
		w.afterInput(h)
		return
	}
	l.subscribed = true
	if w.trace.on {
		w.trace.add(w, int(e.name), h, "subscribed")
	}
	h.table.Subscribed(h.clock(w.now), 0, lockNames[e.name])
	w.afterInput(h)
}

// publish publishes the release of a lock.
func (w *world) publish(name int) {
	for _, h := range w.hosts {
		w.sharers(name, func(n int) {
			if h.locks[n].inRedis {
				w.sendMessage(h, redisop.Message{Kind: redisop.Unlocked, Name: lockNames[n]})
			}
		})
	}
}

// reaches reports whether Redis counts a host as a receiver of what is published to it: its
// connection, or one that Redis does not know to be gone.
func (w *world) reaches(h *host) bool {
	return !h.mayNotSubscribe && (h.conn.isListening && !h.conn.dead && w.isAtMaster(h) || w.now < h.receivesUntil)
}

// replicateMessage has a replica, which was the master before, send to a host what the master
// publishes. The master counts no receiver there.
func (w *world) replicateMessage(h *host, m redisop.Message) {
	if !w.isAtReplica(h) || !h.conn.isListening {
		return
	}
	w.check.meetIf(TransferReplicated, m.Kind == redisop.Transferred)
	w.push(h, m, w.now+w.lag())
}

// sendMessage has Redis send a message to a host. It is lost if the connection is.
func (w *world) sendMessage(h *host, m redisop.Message) {
	c := &h.conn
	if c.dead || !c.inRedis || !w.isAtMaster(h) || w.random.oneIn(w.plan.lostMessages) {
		w.check.meetIf(TransferLost, m.Kind == redisop.Transferred)
		return
	}
	w.push(h, m, w.now)
}

// push sends a message over the connection of a host, after what was sent there before and not before
// a time.
func (w *world) push(h *host, m redisop.Message, from int64) {
	c := &h.conn
	i := w.newMessage()
	w.messages[i] = message{Message: m, sentAt: w.now, server: w.redis.run}
	c.lastReply = max(c.lastReply, from+w.lag())
	w.after(c.lastReply-w.now, event{kind: evMessage, host: int16(h.index), arg: i, gen: c.gen})
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
	if w.withoutOrigin || w.messages[e.arg].server == h.conn.nextRun && !isOlder {
		m.Conn = w.connOf(h)
	}
	if w.plan.durable && !w.grantsTransfers { // a Take, which the replica confirms, comes first
		m.Conn, m.Tokens = redisop.Conn{}, 0
	}
	w.freeMessages = append(w.freeMessages, e.arg)
	if e.gen != h.conn.gen || !h.conn.ok || h.conn.dead || h.isDown() {
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
		w.noteMessage(h, n, &m, sentAt)
	}
	if w.trace.on {
		w.trace.add(w, n, h, "message: %s", messageString(&m))
	}
	h.table.Message(h.clock(w.now), m)
	w.afterInput(h)
}

// endSubscriptions is part of the end of a connection: what is on its way is lost, and so is
// what is published until the host has another one.
func (w *world) endSubscriptions(h *host) {
	for n := range w.plan.names {
		w.setSubscribed(h, n, false)
	}
}

// reportUnsubscribed tells the table that its subscriptions are gone.
func (w *world) reportUnsubscribed(h *host) {
	for n := range w.plan.names {
		l := &h.locks[n]
		if !l.subscribed {
			continue
		}
		l.subscribed, l.deafSince = false, w.now
		if w.trace.on {
			w.trace.add(w, n, h, "unsubscribed")
		}
		h.table.Unsubscribed(h.clock(w.now), 0, lockNames[n])
		w.drain(h)
	}
}

// resubscribe subscribes a host on its new connection.
func (w *world) resubscribe(h *host) {
	for n := range w.plan.names {
		if h.locks[n].wantsMessages {
			w.sendSubscription(h, n, evSubscribe)
		}
	}
}
