package sidecar

import (
	"context"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/intake"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

const (
	// maxSleep bounds how late the loop notices what fell due during a suspend.
	maxSleep = time.Second

	// A step that begins so much later than planned was kept from it: by a suspend of the
	// host, a stopped process, or a machine with far too much to do.
	pausedAfter = 200 * time.Millisecond

	// A step does requests of clients for this long. What Redis answers, and what is
	// due, waits for the end of a step.
	requestTime = 50 * time.Microsecond

	// While so many operations wait to be sent to Redis, no requests are done: they would
	// make more, and a client that asks for little would wait for those of one that asks
	// for much. While Redis is silent nothing is sent anyway: then requests are done, so that
	// those that do not wait are answered.
	maxUnsent = 64
)

// submitEvent gives the loop an event.
func (l *loop) submitEvent(e event) {
	l.inbox.AddEvent(e)
	l.runIfIdle()
}

// hand gives the loop requests of a connection.
func (l *loop) hand(c *conn, requests ...request) {
	l.inbox.AddRequests(c.sender, requests)
	l.runIfIdle()
}

// runIfIdle is called by a goroutine that has put an input into the inbox. If no other
// goroutine runs the loop, the caller does the step itself: to hand an input to another
// goroutine, and its answer to a third one, takes longer than the step. It does one step
// and no more: the goroutine that reads Redis's answers must not be kept by clients that
// send requests all the time.
//
// If another goroutine runs the loop, it may already have drained the inbox; it looks at
// the inbox again after it has unlocked running.
func (l *loop) runIfIdle() {
	if !l.running.TryLock() {
		if l.finishing.Load() {
			l.inbox.Wake() // finish keeps it locked while it sleeps
		}
		return
	}
	l.armTimer(l.step())
	l.running.Unlock()
	if l.inbox.HasInput() {
		l.inbox.Wake()
	}
}

// run serves until stop is closed: it sleeps until something is left in the inbox or
// a timer is due. It is unlocked for that time.
func (l *loop) run(stop <-chan struct{}) {
	l.timer = time.NewTimer(0)
	defer l.timer.Stop()
	l.running.Unlock()
	defer l.running.Lock()
	for {
		select {
		case <-stop:
			return
		case <-l.inbox.Ready():
		case <-l.timer.C:
		}
		l.running.Lock()
		l.armTimer(l.step())
		l.running.Unlock()
		if l.inbox.HasInput() {
			l.inbox.Wake()
		}
	}
}

// armTimer sets the timer to the next time at which something is due. Most steps move
// that to later: then the timer stays, and what it wakes looks again.
func (l *loop) armTimer(now int64) {
	at, ok := l.next(now)
	for _, due := range []int64{l.absentUntil, l.lines.WindowEnd(), l.stateDue(), l.followersDue} {
		if due != 0 && (!ok || due < at) {
			at, ok = due, true
		}
	}
	switch {
	case !ok:
		l.planned = math.MaxInt64
		return
	case now < l.planned && l.planned <= at:
		return
	}
	// Timers stand still while the host is suspended, deadlines do not.
	l.planned = min(at, now+int64(maxSleep))
	l.timer.Reset(time.Duration(l.planned - now))
}

// next is when the table has something to do. What it has left over from earlier steps
// waits, like requests, while many operations wait to be sent: until an answer of Redis,
// which is an event and begins a step, or until Redis is known to be silent.
func (l *loop) next(now int64) (at int64, ok bool) {
	if l.table.Busy() && !l.redisBacklogged {
		return now, true
	}
	at, ok = l.table.Next()
	if silent, owed := l.table.SilentAt(now); (l.redisBacklogged || len(l.backloggedShards) > 0) && owed && (!ok || silent < at) {
		at, ok = silent, true
	}
	return at, ok
}

// step handles the inputs in the inbox and applies the effects of the table. It reads the clock
// once: a time that is a little old makes deadlines earlier, never later.
func (l *loop) step() (now int64) {
	begin := time.Now()
	now = protocol.Now()
	if now-l.planned > int64(pausedAfter) {
		l.table.Paused(now)
	}
	l.stepAt = now
	l.table.Advance(now)
	l.endAbsence(now)
	l.retryState(now)
	if end := l.lines.WindowEnd(); end != 0 && now >= end {
		l.lines.Flush()
	}
	l.takeEvents(now)
	l.findBacklogs(now)
	l.inbox.SetRedisBacklogged(l.redisBacklogged)
	if !l.redisBacklogged {
		l.table.Work(now)
		l.takeRequests(now)
	}
	l.answerFollowers(now)
	l.applyEffects()
	if len(l.byes) > 0 {
		l.finishByes(now)
	}
	l.counters.steps.Observe(locktable.ShortTimes, time.Since(begin))
	return now
}

// findBacklogs finds out for which locks requests are to wait, until Redis has answered something, or is
// known to be silent. In a Cluster, a shard that is slow keeps back the processes that want locks of it,
// and no others.
func (l *loop) findBacklogs(now int64) {
	l.redisBacklogged = false
	if len(l.backloggedShards) > 0 {
		clear(l.backloggedShards)
		l.inbox.ResumeHeld()
	}
	l.store.Unsent(func(n redisop.Shard, unsent int) {
		switch {
		case unsent <= maxUnsent || l.table.IsSilent(now, n):
		case n == 0:
			l.redisBacklogged = true
		default:
			if l.backloggedShards == nil {
				l.backloggedShards = make(map[redisop.Shard]bool)
			}
			l.backloggedShards[n] = true
		}
	})
}

// isHeld reports whether a request is for a lock of a shard that is slow.
func (l *loop) isHeld(r *request) bool {
	switch r.kind {
	case clientAcquire:
		return l.backloggedShards[l.table.ShardOf(r.acquire.Name)]
	case clientRelease:
		n, ok := l.table.ShardOfHold(r.release.Hold)
		return ok && l.backloggedShards[n]
	}
	return false
}

func (l *loop) takeEvents(now int64) {
	events := l.inbox.SwapEvents(l.events)
	for i := range events {
		e := &events[i]
		if !e.IsMessages {
			l.onEvent(now, &e.Other)
		}
		for j := range e.Messages {
			l.table.Message(now, e.Messages[j])
		}
	}
	clear(events)
	if cap(events) > 1<<10 {
		events = nil // a burst's memory is not kept
	}
	l.events = events
}

// takeRequests does requests of clients, in the order of the inbox, for requestTime.
func (l *loop) takeRequests(now int64) {
	var from *intake.Process[request]
	begin := time.Now()
	last := time.Duration(0)
	cost := int64(0)
	var isHeld func(*request) bool
	if len(l.backloggedShards) > 0 {
		isHeld = l.isHeld
	}
	for last < requestTime && l.inbox.NextRequest(from, cost, &l.request, isHeld) {
		from = l.request.conn.sender
		l.onRequest(now, &l.request)
		if l.request.kind.isLast() {
			l.inbox.RemoveConn(from)
		}
		spent := time.Since(begin)
		cost, last = int64(spent-last), spent
	}
	l.request = request{}
	if last >= requestTime {
		l.inbox.Charge(from, cost)
	}
}

// finishByes ends the sessions of the clients that said bye in this step. They have the
// answers to what they asked before, and bye is answered when a successor would not know
// their sessions.
func (l *loop) finishByes(now int64) {
	for _, b := range l.byes {
		if c := b.session.conn; c != nil && l.sessions[b.session.id] == b.session {
			l.close(now, b.session, "it said bye")
			l.closeAfterFlush(c, &protocol.ByeOK{ID: b.id})
		}
	}
	clear(l.byes)
	l.byes = l.byes[:0]
	l.applyEffects()
}

func (l *loop) onEvent(now int64, e *event) {
	switch e.kind {
	case processEnded:
		l.onProcessExit(now, e.session)

	case ofRedis:
		l.onRedisEvent(now, &e.redis)
	case hostQuestion:
		l.answerHost(now, e.from, e.question)
	case loopQuery:
		e.query(now)
		close(e.done)
	}
}

// onRedisEvent gives the table what the store told.
func (l *loop) onRedisEvent(now int64, e *store.Event) {
	switch e.Kind {
	case store.Results:
		if e.ID != nil {
			l.newRedis = e.ID
		}
		for i := range e.Results {
			l.table.Result(now, e.Results[i])
		}
		l.store.Recycle(e.Results)
	case store.Up:
		l.newRedis = e.ID
		l.table.Up(now, e.Shard, e.IsLost, e.IsListening)
		l.recordUsable(now, e.Shard)
		if e.IsLost {
			l.recordDataLoss(now)
		}
	case store.Down:
		l.table.Down(now, e.Shard, e.Text)
		l.recordTrouble(now, e.Shard, redisTrouble{protocol.EventRedisDown, e.Text})
	case store.Degraded:
		if e.Text == "" {
			l.recordUsable(now, e.Shard)
		} else {
			l.recordTrouble(now, e.Shard, redisTrouble{protocol.EventRedisDegraded, e.Text})
		}
	case store.OpenSlots:
		l.recordOpenSlots(now, e.Text)
	case store.Route:
		l.table.Route(now, e.Routes)
		for n := range l.unusable {
			if l.shards.slotsOf(n) == 0 { // its slots have another master
				l.recordUsable(now, n)
			}
		}
	case store.Subscribed:
		for _, name := range e.Names {
			l.table.Subscribed(now, e.Shard, name)
		}
	case store.Unsubscribed:
		for _, name := range e.Names {
			l.table.Unsubscribed(now, e.Shard, name)
		}
	}
}

// finish runs the loop until the readers have handed over their last requests and Redis has
// executed every release, or until bound ends.
func (l *loop) finish(bound context.Context) {
	quiet := make(chan struct{})
	go func() {
		l.senders.Wait()
		close(quiet)
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	l.finishing.Store(true)
	l.planned = math.MaxInt64 // no timer of run's is waited for
	for reading := (<-chan struct{})(quiet); ; {
		now := l.step()
		if l.inbox.HasInput() && bound.Err() == nil {
			continue
		}
		if reading == nil && l.table.PendingReleases() == 0 {
			return
		}
		if at, ok := l.next(now); ok {
			timer.Reset(time.Duration(at - now)) // something is to be asked again
		}
		select {
		case <-reading:
			reading = nil
		case <-l.inbox.Ready():
		case <-timer.C:
		case <-bound.Done():
			if n := l.table.PendingReleases(); n > 0 {
				l.log.Warn("some releases did not reach Redis in time; those locks end with their leases", "locks", n)
			}
			return
		}
	}
}
