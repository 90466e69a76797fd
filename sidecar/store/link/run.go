package link

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Run makes the connection again and again until Close.
func (l *Link) Run() {
	defer close(l.done)
	look := time.NewTimer(0)
	look.Stop()
	defer look.Stop()
	var dialing sync.WaitGroup
	if l.sentinels != nil {
		defer l.sentinels.close()
		dialing.Go(func() { l.sentinels.watch(l.ctx) })
	}
	defer dialing.Wait()
	defer l.cancel()
	connect := func() {
		delay, last := l.delay, l.last
		dialing.Go(func() { l.connect(delay, last) })
	}
	connect()
	for {
		var ended <-chan struct{}
		if w := l.connection(); w != nil {
			ended = w.ended
		}
		select {
		case <-l.wake:
		case <-look.C:
		case d := <-l.dialed:
			if d.err != nil {
				l.onDown(d.err)
			} else {
				l.onConnected(d.ready)
			}
		case <-ended:
			l.onDisconnect()
			connect()
		}
		next, over := l.check()
		if over {
			return
		}
		look.Reset(next)
	}
}

// check does what the Machine has due, and returns when to check again. over: every operation from before close has its
// result, and there will be no more.
func (l *Link) check() (next time.Duration, over bool) {
	held := l.lock()
	w := held.wired
	if w == nil {
		held.m.Refuse(l.why)
	} else {
		held.advance(protocol.Now(), w.lastByteAt.Load())
	}
	if over = held.m.IsOver(); over { // after Refuse: without a connection nothing else has check be called again
		held.closed = true
		held.m.Refuse("the sidecar is stopping")
	}
	held.armed = held.m.Next()
	var deliveries []pipeline.Delivery
	if w == nil {
		deliveries = held.m.TakeDeliveries(nil)
		l.unsentOps.Store(0)
	} else {
		held.flush()
	}
	at := held.armed
	held.unlock()
	l.handAll(deliveries)
	if over && w != nil {
		l.handAll(l.end(w, "the sidecar is stopping"))
	}
	return time.Duration(min(at-protocol.Now(), int64(time.Hour))), over
}

// end ends a connection, whose reader has ended or will by itself. It returns what is to be handed on: with what was in
// flight. why is for people.
func (l *Link) end(w *wired, why string) []pipeline.Delivery {
	held := l.lock()
	held.cut(w, net.ErrClosed)
	held.unlock()
	w.out.Wait()
	<-w.ended
	w.readyConn.close()
	held = l.lock()
	defer held.unlock()
	held.m.Down(w.out.Sent(), why)
	held.wired = nil
	l.last = held.m.Identity() // its floor may have risen
	return held.m.TakeDeliveries(nil)
}

// connect tries until it has a connection that is ready, and gives it to run. delay is the time
// before the first attempt.
func (l *Link) connect(delay time.Duration, last wire.Identity) {
	for {
		if !pauseUnless(l.ctx, delay, l.hurry) {
			return
		}
		l.readLogin()
		held := l.lock()
		held.movedTo = "" // the Sentinels are asked after it
		held.m.Connecting()
		held.unlock()
		s, err := l.login.find(l.ctx, l.sentinels, &l.lost, last)
		select {
		case l.dialed <- dialed{s, err}:
		case <-l.ctx.Done():
			if s != nil {
				s.close()
			}
			return
		}
		if err == nil {
			return
		}
		if delay = nextDelay(delay); l.isIdle.Load() {
			delay = idleDelay
		}
	}
}

// idleDelay is the time between two attempts to connect to a node of a Cluster that has no slots: a
// master that was replaced, or removed.
const idleDelay = 30 * time.Second

// readLogin reads the user and the password of the Redis URL again.
func (l *Link) readLogin() {
	if l.cfg.Login == nil {
		return
	}
	d, err := l.cfg.Login()
	if err == nil {
		l.login, l.loginFailure = d, ""
		if l.sentinels != nil {
			l.sentinels.use(d.group)
		}
	} else if why := err.Error(); why != l.loginFailure {
		l.loginFailure = why
		l.cfg.Log.Warn("the Redis URL that was read again is not used; the earlier user and password are", "reason", why)
	}
}

// onConnected takes a new connection into use.
func (l *Link) onConnected(s *readyConn) {
	lost := l.last.Known() && !s.id.SameData(&l.last)
	l.liftIdentity(&s.id, protocol.Now())
	if s.killed != nil && wire.Code(s.killed.Error()) == "NOPERM" && !l.killLogged {
		l.killLogged = true
		l.cfg.Log.Info("this user may not end the connection before: what was under way on it may still run late, which is harmless; +client|kill permits it")
	}
	if s.id.RunID == "" && l.upAt.IsZero() {
		l.cfg.Log.Info("Redis does not tell its run id (INFO is not permitted or not known): after each reconnect every lock is asserted again, and each lock that another host passes on costs a round trip more; +info permits it")
	}
	listening := s.refused == ""
	if !listening && !l.ownLogged {
		l.ownLogged = true
		l.cfg.Log.Warn("this user may not subscribe to the channel on which other sidecars reach this one; let its ACL have +subscribe and the channels "+wire.OwnChannel("*"),
			"reason", wire.Clip(s.refused))
	}
	if s.isClusterNode && !l.isClusterLogged {
		l.isClusterLogged = true
		l.cfg.Log.Warn("this Redis is a node of a Cluster: only the locks of its own slots can be used; write redis+cluster:// instead of redis://", "address", s.dial.Address)
	}
	if s.noAsking != "" && !l.cfg.Shared.askingLogged.Swap(true) {
		advice := ""
		if wire.Code(s.noAsking) == "NOPERM" {
			advice = "; let the ACL of this user have +asking"
		}
		l.cfg.Log.Warn("Redis refuses ASKING: while a slot moves key by key, its held locks cannot be renewed"+advice,
			"address", s.dial.Address, "reason", wire.Clip(s.noAsking))
	}
	if s.noQueue != "" && !l.noQueue {
		l.noQueue = true
		l.cfg.Log.Warn("this user may not use the queues of locks: this host waits for a lock without a place in its queue; let its ACL have +zadd +zcard +zrank +zrange +zrem +zpopmin and the keys "+l.dial.Keys.QueuePatterns(),
			"reason", wire.Clip(s.noQueue))
	}
	log := l.cfg.Log
	if l.sentinels != nil {
		log = log.With("address", s.dial.Address)
	}
	log.Info("redis is up", "version", s.version, "database", l.dial.options.DB, "run_id", s.id.RunID, "data_lost", l.dataLost(s), "own_channel", listening)
	l.last, l.upAt = s.id, time.Now()
	l.server.Store(s.dial)
	l.why = ""
	l.cfg.OnUp(lost, listening, s.id)
	w := newWired(l, s)
	held := l.lock()
	defer held.unlock()
	g, now := s.greeting(l.cfg.Shared.conns.Add(1)), protocol.Now()
	l.liftIdentity(&g.ID, now) // a floor that was lifted since OnUp is not in it yet
	held.wired = w
	held.m.Up(now, g)
	if l.ctx.Err() != nil {
		held.cut(w, net.ErrClosed) // close looked before
	}
	if held.movedTo != "" {
		held.leave(w, held.movedTo) // onMoved looked before
	}
	held.flush()
	go w.read()
}

// liftIdentity has the floor of a connection be above that of all nodes of a Cluster: counters may have come from another
// node, and have lost their last values on the way.
func (l *Link) liftIdentity(id *wire.Identity, now int64) {
	if l.cfg.Floor == nil {
		return
	}
	if floor := l.cfg.Floor(now); floor > id.Above(now) {
		id.Floor, id.FloorAt = floor, now
	}
}

// dataLost is, for the log, whether Redis lost its data since the connection before s.
func (l *Link) dataLost(s *readyConn) string {
	switch {
	case !l.last.Known(), s.id.SameData(&l.last):
		return "no"
	case s.id.RunID == "" || l.last.RunID == "":
		return "unknown" // INFO is not permitted
	}
	return "possibly"
}

// onDown notes that Redis cannot be used. It logs and reports each change of the reason: the
// attempt to connect again knows more than the end of the connection did.
func (l *Link) onDown(err error) {
	if l.why == err.Error() {
		return
	}
	l.why = err.Error()
	l.cfg.Log.Warn("redis is down", "reason", l.why)
	l.cfg.OnDown(err)
}

// onDisconnect ends the connection, whose reader has ended. The caller must connect.
func (l *Link) onDisconnect() {
	w := l.connection()
	held := l.lock()
	err := w.out.Err()
	held.unlock()
	l.lost.note(w.wire)
	why := w.dial.broken(err)
	if told, ok := err.(wire.Unavailable); ok {
		why = string(told)
	}
	deliveries := l.end(w, why)
	held = l.lock()
	served := held.m.Served()
	held.unlock()
	// A connection that served for a while is made again at once; one that breaks
	// as soon as it is used must not make us spin.
	switch {
	case time.Since(l.upAt) >= backoffMax:
		l.delay = 0
	case served:
		l.delay = backoffMin
	default:
		l.delay = nextDelay(l.delay)
	}
	l.onDown(wire.Unavailable(why)) // before the results: nothing is sent again to a Redis that is gone
	l.handAll(deliveries)
}

// Close lets run send what waits. When ctx ends first, run is cut short.
func (l *Link) Close(ctx context.Context) error {
	held := l.lock()
	held.m.Finish()
	held.unlock()
	l.nudge()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
	}
	l.cancel()
	held = l.lock()
	if held.wired != nil {
		held.cut(held.wired, net.ErrClosed)
	}
	held.unlock()
	<-l.done
	return ctx.Err()
}
