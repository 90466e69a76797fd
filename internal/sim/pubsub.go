package sim

// The pub/sub connection of a host.

type subscription struct {
	gen       uint32
	ok        bool  // the store believes that it works
	lastSent  int64 // when what was sent last reaches Redis
	lastReply int64 // when what Redis sent last reaches the host
}

// subscribe subscribes a host to the channel of a lock, as soon as it has a connection.
func (w *world) subscribe(h *host, n int) {
	l := &h.locks[n]
	l.wantsMessages, l.subscribed, l.deafSince = true, false, 0
	if h.sub.ok {
		w.sendSubscription(h, n, evSubscribe)
	}
}

func (w *world) unsubscribe(h *host, n int) {
	l := &h.locks[n]
	l.wantsMessages, l.subscribed = false, false
	if h.sub.ok {
		w.sendSubscription(h, n, evUnsubscribe)
	}
}

func (w *world) sendSubscription(h *host, n int, kind eventKind) {
	s := &h.sub
	s.lastSent = max(s.lastSent, w.now+w.lag())
	w.after(s.lastSent-w.now, event{kind: kind, host: int16(h.index), name: int8(n), gen: s.gen})
}

func (w *world) subscribeArrives(h *host, e event) {
	if e.gen != h.sub.gen {
		return
	}
	w.setSubscribed(h, int(e.name), !w.redis.names[e.name].deniedChannel && !h.mayNotSubscribe)
	h.sub.lastReply = max(h.sub.lastReply, w.now+w.lag())
	w.after(h.sub.lastReply-w.now, event{kind: evSubscribed, host: e.host, name: e.name, gen: e.gen})
}

func (w *world) unsubscribeArrives(h *host, e event) {
	if e.gen == h.sub.gen {
		w.setSubscribed(h, int(e.name), false)
	}
}

// setSubscribed notes whether Redis has a host's subscription of a lock. The connection is
// subscribed to the channel as long as there is one of a lock that shares it.
func (w *world) setSubscribed(h *host, n int, on bool) {
	h.locks[n].inRedis = on
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
	if e.gen != h.sub.gen || !l.wantsMessages || h.isDown() {
		return
	}
	if w.redis.names[e.name].deniedChannel || h.mayNotSubscribe {
		l.deafSince = w.now
		if w.trace.on {
			w.trace.add(w, int(e.name), h, "may not subscribe")
		}
		h.table.Unsubscribed(h.clock(w.now), lockNames[e.name])
		w.afterInput(h)
		return
	}
	l.subscribed = true
	if w.trace.on {
		w.trace.add(w, int(e.name), h, "subscribed")
	}
	h.table.Subscribed(h.clock(w.now), lockNames[e.name])
	w.afterInput(h)
}

// publish publishes the release of a lock.
func (w *world) publish(name int) {
	for _, h := range w.hosts {
		lost := w.random.oneIn(w.plan.lostMessages)
		w.sharers(name, func(n int) {
			if !h.locks[n].inRedis || lost {
				return
			}
			h.sub.lastReply = max(h.sub.lastReply, w.now+w.lag())
			w.after(h.sub.lastReply-w.now, event{kind: evMessage, host: int16(h.index), name: int8(n), gen: h.sub.gen})
		})
	}
}

func (w *world) onMessage(h *host, e event) {
	if e.gen != h.sub.gen || h.isDown() {
		return
	}
	if !h.locks[e.name].wantsMessages && w.random.oneIn(2) {
		return
	}
	if w.trace.on {
		w.trace.add(w, int(e.name), h, "message")
	}
	w.noteMessage(h, int(e.name))
	h.table.Message(h.clock(w.now), lockNames[e.name])
	w.afterInput(h)
}

// breakSubscription breaks the connection: what is on its way is lost, and so is what is
// published until the store has detected it and has subscribed again.
func (w *world) breakSubscription(h *host) {
	s := &h.sub
	if !s.ok {
		return
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "the subscription breaks")
	}
	s.gen++
	for n := range w.plan.names {
		w.setSubscribed(h, n, false)
	}
	w.after(w.random.magnitude(10*µs, 2*sec), event{kind: evSubscriptionLost, host: int16(h.index), gen: s.gen})
}

func (w *world) onSubscriptionLost(h *host, gen uint32) {
	s := &h.sub
	if h.isDown() || gen != s.gen || !s.ok {
		return
	}
	s.ok = false
	for n := range w.plan.names {
		l := &h.locks[n]
		if !l.wantsMessages {
			continue
		}
		l.subscribed, l.deafSince = false, w.now
		if w.trace.on {
			w.trace.add(w, n, h, "unsubscribed")
		}
		h.table.Unsubscribed(h.clock(w.now), lockNames[n])
		w.afterInput(h)
	}
	w.after(w.random.magnitude(5*ms, 3*sec), event{kind: evResubscribe, host: int16(h.index), gen: gen})
}

func (w *world) resubscribe(h *host, gen uint32) {
	s := &h.sub
	if h.isDown() || gen != s.gen || s.ok {
		return
	}
	if w.redis.down {
		w.after(w.random.between(10*ms, 300*ms), event{kind: evResubscribe, host: int16(h.index), gen: gen})
		return
	}
	s.ok = true
	s.gen++
	s.lastSent, s.lastReply = w.now, w.now
	for n := range w.plan.names {
		if h.locks[n].wantsMessages {
			w.sendSubscription(h, n, evSubscribe)
		}
	}
}
