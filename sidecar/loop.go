package sidecar

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/eventlog"
	"github.com/locksidecar/locksidecar/sidecar/intake"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// loop is the state of a running sidecar. The goroutine that has locked running owns
// the rest of it: one that brought an input while it was free, for one step; or else run, for what
// was left meanwhile and what is due. Before run and after it, Listen and Serve have it.
type loop struct {
	// Immutable after Listen.
	cfg       Config
	log       *slog.Logger
	startedAt int64 // CLOCK_BOOTTIME, ns
	// gatherMetrics has metrics gathered, and calls answer with a page of them in a later step; nil: there are none.
	gatherMetrics func(after uint64, answer func(protocol.MetricsOK, error))
	uuid          string   // of the sidecar, of which this process may be a later one
	key           [32]byte // of tickets
	// overflowUID is the uid of all users that have none in this user namespace; −1: all have
	// one.
	overflowUID int64
	policy      *policy.Policy // nil: there is none

	// Safe for concurrent use.
	inbox    *intake.Inbox[event, request]
	senders  sync.WaitGroup // goroutines that put something into it: the accept loop, a reader for each connection, …
	redis    atomic.Pointer[redisHealth]
	shards   shardHealths
	surveyor surveyor
	troubles troubles
	// redisIsUp has an element when a connection to Redis was made, healthChanged when Redis
	// returns another text.
	redisIsUp, healthChanged chan struct{}
	ended                    chan struct{} // closed when the loop is not run any more

	running          sync.Mutex  // the first in the order of locks: it is locked with none held
	finishing        atomic.Bool // finish has locked running, and sleeps with it
	table            *locktable.Table
	store            *store.Store
	pids             *peers.Watch
	hosts            *otherhosts.Hosts
	state            *state.File // nil: nothing is kept for a successor
	sessions         map[locktable.SessionID]*session
	ledger           policy.Ledger
	last             locktable.SessionID // newest session
	newRedis         *wire.Identity      // what a successor must know of Redis, if it changed in this step
	stopping         bool
	redisBacklogged  bool                   // requests wait, because too many operations wait to be sent: see step
	backloggedShards map[redisop.Shard]bool // the same of the requests for locks of these, in a Cluster

	events  []intake.Event[event] // emptied, for the next takeEvents
	request request               // the one that is being done

	timer   *time.Timer // wakes run
	planned int64       // when it does, or did; never later than something is due; MaxInt64: nothing is

	eventLog     *eventlog.Log
	followers    []follower // that wait for events, at most maxFollowers
	followersDue int64      // when the next of them is answered; 0: there is no event for them
	stepAt       int64      // when the step began
	losses       lossWindow
	takeover     takeover
	crash        crash
	unusable     map[redisop.Shard]redisTrouble // of shards that are in trouble, as the newest event says
	openSlots    string                         // why slots stay open, as the newest event says; "": none is

	absentUntil int64 // when the next absent client has been waited for long enough; 0: nobody is absent
	lines       *loglimit.Log
	counters    counters
	gathering   int // requests for metrics that are being answered

	// Collected in one step and carried out at its end.
	dirty   []*conn
	byes    []bye
	closing []closing
	ops     []redisop.Op

	afterEffects []protocol.EventRow // events that come after those of the effects

	// Scratch for frames, so that an answer costs no allocation.
	granted  protocol.AcquireOK
	released protocol.ReleaseOK
	failed   protocol.Err
	lost     protocol.LostEvent
	lease    protocol.LeaseEvent
	page     protocol.ListOK

	eventPage protocol.EventsOK
}

const (
	// maxSleep bounds how late the loop notices what fell due during a suspend.
	maxSleep = time.Second

	// A step that begins so much later than planned was kept from it: by a suspend of the
	// host, a stopped process, or a machine with far too much to do.
	pausedAfter = 200 * time.Millisecond

	// A step does requests of clients for this long. What Redis answers, and what is
	// due, waits for the end of a step.
	requestTime = 50 * time.Microsecond

	// A page of a list is filled with so many bytes of rows, and ends after so many locks that the
	// policy hides from the client.
	pageSize  = 16 << 10
	maxHidden = 256

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

// bye is a bye that is not answered yet.
type bye struct {
	session *session
	id      uint64
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

// closeAfterFlush has a connection end with a last frame, when everything that led to it
// is in the state.
func (l *loop) closeAfterFlush(c *conn, m protocol.Reply) {
	l.closing = append(l.closing, closing{c, m})
}

type closing struct {
	conn *conn
	last protocol.Reply
}

func (l *loop) onEvent(now int64, e *event) {
	switch e.kind {
	case processEnded:
		l.onProcessExit(now, e.session)

	case redisResults:
		if e.flag {
			redis := e.redis
			l.newRedis = &redis
		}
		for i := range e.results {
			l.table.Result(now, e.results[i])
		}
		l.store.Recycle(e.results)
	case redisUp:
		redis := e.redis // e is emptied before applyEffects
		l.newRedis = &redis
		l.table.Up(now, e.shard, e.flag, e.listening)
		l.recordUsable(now, e.shard)
		if e.flag {
			l.recordDataLoss(now)
		}
	case redisDown:
		l.table.Down(now, e.shard, e.text)
		l.recordTrouble(now, e.shard, redisTrouble{protocol.EventRedisDown, e.text})
	case redisDegraded:
		if e.text == "" {
			l.recordUsable(now, e.shard)
		} else {
			l.recordTrouble(now, e.shard, redisTrouble{protocol.EventRedisDegraded, e.text})
		}
	case redisOpenSlots:
		l.recordOpenSlots(now, e.text)
	case redisRoute:
		l.table.Route(now, e.routes)
		for n := range l.unusable {
			if l.shards.slotsOf(n) == 0 { // its slots have another master
				l.recordUsable(now, n)
			}
		}
	case redisSubscribed:
		for _, name := range e.names {
			l.table.Subscribed(now, e.shard, name)
		}
	case redisUnsubscribed:
		for _, name := range e.names {
			l.table.Unsubscribed(now, e.shard, name)
		}
	case hostQuestion:
		l.answerHost(now, e.text, e.question)
	case loopPing:
		close(e.done)
	case loopQuery:
		e.query(now)
		close(e.done)
	}
}

// id is the request's; 0: it has none.
func (in *request) id() uint64 {
	switch in.kind {
	case clientAcquire:
		return in.acquire.ID
	case clientRelease:
		return in.release.ID
	}
	return in.other.RequestID()
}

// onRequest does what one request asks.
func (l *loop) onRequest(now int64, in *request) {
	c := in.conn
	switch in.kind {
	case clientDisconnected:
		l.onDisconnect(now, c)
		return
	case clientProtocolError:
		l.onProtocolError(now, c, in.fault)
		return
	case clientHello:
		c.taken()
		l.onHello(now, c, in.other.(*protocol.Hello))
		return
	}
	c.taken()
	cl := c.session
	if cl == nil || cl.phase.IsOver() || cl.phase == locktable.SessionLeaving || l.stopping && !isRelease(in) {
		return // its last frame says why, or will
	}
	id := in.id()
	if msg := l.violation(cl, in, id); msg != "" {
		l.onProtocolError(now, c, badFrame(msg))
		return
	}
	if cl.policy != nil && l.isRefusedByPolicy(now, cl, in, id) {
		return
	}
	switch in.kind {
	case clientAcquire:
		if why := wire.Reserved(l.cfg.KeyPrefix, in.acquire.Name); why != "" {
			l.table.CountRefusal(in.acquire.Name, protocol.Denied)
			l.refuse(c, in.acquire.ID, protocol.Denied, why+"; choose another name")
			return
		}
		if why := l.store.Splits(in.acquire.Name); why != "" {
			l.table.CountRefusal(in.acquire.Name, protocol.BadRequest)
			l.refuse(c, in.acquire.ID, protocol.BadRequest, why)
			return
		}
		l.table.Acquire(now, cl.id, in.acquire)
		return
	case clientRelease:
		l.table.Release(now, cl.id, in.release)
		return
	}
	switch r := in.other.(type) {
	case *protocol.Confirm:
		l.table.Confirm(now, cl.id, *r)
	case *protocol.Cancel:
		l.table.Cancel(now, cl.id, *r)
	case *protocol.Info:
		l.info(now, cl, r)
	case *protocol.List:
		l.queueReply(c, l.list(now, cl, r))
	case *protocol.Events:
		l.onEvents(cl, r)
	case *statusRequest:
		l.onStatus(now, cl, r)
	case *otherhosts.WhoRequest:
		l.who(now, cl, r)
	case *protocol.ForceRelease:
		l.forceRelease(now, cl, r)
	case *otherhosts.Answered:
		l.queueReply(c, r.Reply)
		if r.Refused != nil {
			l.noteRefusal(cl, r.Refused)
		}
		l.auditAnswered(now, cl, r)
	case *protocol.Claim:
		l.onClaim(now, cl, r)
	case *protocol.Bye:
		// When what it asked before has been answered: see step.
		cl.phase = locktable.SessionLeaving
		l.byes = append(l.byes, bye{cl, id})
	case *protocol.Metrics:
		l.onMetrics(c, cl, r)
	case *pingRequest:
		redis := l.redis.Load()
		l.queueReply(c, &protocol.PingOK{ID: id, NowNS: now, Redis: redis.status, Degraded: redis.isDegraded, RedisAddress: l.store.Address(), RedisRunID: redis.runID, RedisRisk: redis.risk, KeyPrefix: l.cfg.KeyPrefix, Trouble: r.trouble})
	case *refused:
		if r.Op == "acquire" {
			l.table.CountRefusal("", r.Code)
		}
		if id != 0 {
			l.refuse(c, id, r.Code, r.Msg)
		}
	default:
		if id != 0 {
			l.refuse(c, id, protocol.Unsupported, "this sidecar does not know this op; it speaks version 1 of the protocol")
		}
	}
}

// isRelease reports whether a request gives something back: a sidecar that stops still
// does those that it has read.
func isRelease(in *request) bool {
	_, isBye := in.other.(*protocol.Bye)
	return isBye || in.kind == clientRelease
}

// violation says how a request breaks the protocol in the state in which its session is;
// "": it does not. It comes before what is wrong with the request's own fields.
func (l *loop) violation(cl *session, in *request, id uint64) string {
	claim, isBye := false, false
	switch r := in.other.(type) {
	case *protocol.Claim:
		claim = true
	case *refused:
		claim = r.Op == "claim"
	case *protocol.Bye:
		isBye = true
	}
	switch {
	case claim && cl.phase != locktable.SessionClaiming:
		return "a claim that is not due; a session is claimed once, when it was resumed"
	case cl.phase == locktable.SessionClaiming && !claim && !isBye:
		return "claims are due; a session that was resumed is claimed before anything else"
	case id != 0 && (l.table.InUse(cl.id, id) || l.isFollowing(cl, id)):
		return "the id is in use by a request that is not answered yet; choose another"
	}
	return ""
}

// list fills one page. It is small: a client that asks for thousands of locks pays for
// each page with a turn. If the policy hides locks from the client, a page may be empty.
func (l *loop) list(now int64, cl *session, r *protocol.List) *protocol.ListOK {
	m := &l.page
	m.ID, m.Locks = r.ID, m.Locks[:0]
	size, hidden := 0, 0
	m.Next = l.table.List(now, r.After, func(row protocol.LockRow) bool {
		if cl != nil && cl.policy != nil && !cl.policy.Terms().Redact(&row) {
			hidden++
			return hidden < maxHidden
		}
		l.locate(now, &row)
		size += row.Size()
		if size > pageSize && len(m.Locks) > 0 {
			return false
		}
		m.Locks = append(m.Locks, row)
		return true
	})
	return m
}

func (l *loop) queueReply(c *conn, m protocol.Reply) {
	c.queueReply(m)
	if !c.dirty {
		c.dirty = true
		l.dirty = append(l.dirty, c)
	}
}

func (l *loop) refuse(c *conn, id uint64, code protocol.Code, msg string) {
	l.failed = protocol.Err{ID: id, Code: code, Msg: msg}
	l.queueReply(c, &l.failed)
}

// applyEffects does what the table wants done: operations first, because Redis takes
// longest, then the frames, one write for each client.
func (l *loop) applyEffects() {
	effects := l.table.Effects()
	if l.newRedis != nil && l.state != nil {
		// Behind what the table makes of it: a successor that knows the new run of
		// Redis must know which holds were in doubt.
		l.state.PutRedis(state.Redis(*l.newRedis))
	}
	l.newRedis = nil
	l.forgetClosed(effects)
	l.commitState()
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case locktable.Redis:
			l.ops = append(l.ops, e.Op)
		case locktable.Subscribe:
			l.store.Subscribe(e.Op.Shard, e.Name)
		case locktable.Unsubscribe:
			l.store.Unsubscribe(e.Op.Shard, e.Name)
		}
	}
	if len(l.ops) > 0 {
		l.store.Do(l.ops)
		clear(l.ops)
		l.ops = l.ops[:0]
	}
	var lostHolds []*session // of sessions that are not served: they may have no hold left
	for i := range effects {
		e := &effects[i]
		cl := l.sessions[e.Session]
		l.recordEffect(e, cl)
		if e.Kind == locktable.Lost && e.Reason != protocol.Forgotten || e.Kind == locktable.KeepLost || e.Kind == locktable.CutShort {
			l.logLost(e, cl)
		}
		if cl == nil {
			continue
		}
		if cl.phase.IsOver() {
			if e.Kind == locktable.Lost {
				lostHolds = append(lostHolds, cl)
			}
			continue
		}
		c := cl.conn
		if e.Kind == locktable.Lost && cl.deferLost(e) || c == nil {
			continue
		}
		switch e.Kind {
		case locktable.Granted:
			l.granted = protocol.AcquireOK{ID: e.ID, Token: e.Token, Hold: e.Hold, Count: e.Count, DeadlineNS: e.Deadline, EndNS: e.End}
			l.queueReply(c, &l.granted)
		case locktable.Released:
			l.released = protocol.ReleaseOK{ID: e.ID, Count: e.Count}
			l.queueReply(c, &l.released)
		case locktable.Refusal:
			l.refuse(c, e.ID, e.Code, e.Msg)
			if e.Code == protocol.Limit {
				l.lines.About(l.stepAt, loglimit.Warn(cl.peer.UID, "client met a limit", string(e.Code)), e.Name, "session", cl.id, "pid", cl.peer.PID, "cmd", cl.peer.Cmd, "reason", e.Msg)
			}
		case locktable.Canceled:
			l.queueReply(c, &protocol.CancelOK{ID: e.ID, Canceled: e.WasWaiting})
		case locktable.Confirmed:
			l.queueReply(c, &protocol.ConfirmOK{ID: e.ID})
		case locktable.Claimed:
			l.queueReply(c, &protocol.ClaimOK{ID: e.ID})
			if e.IsLast {
				l.onResumed(cl)
			}
		case locktable.Forced:
			l.queueReply(c, &protocol.ForceReleaseOK{ID: e.ID, Hold: e.Hold})
			l.lines.Audit(l.stepAt, loglimit.Info(cl.peer.UID, "client forced the release of a lock", ""), loglimit.Requester{PID: cl.peer.PID, Cmd: cl.peer.Cmd}, e.Name, "hold", e.Hold, "session", cl.id)
		case locktable.Lost:
			l.lost = protocol.LostEvent{Hold: e.Hold, Reason: e.Reason}
			l.queueReply(c, &l.lost)
		case locktable.Lease:
			l.lease = protocol.LeaseEvent{DeadlineNS: e.Deadline}
			c.queueLease(&l.lease)
			if !c.dirty {
				c.dirty = true
				l.dirty = append(l.dirty, c)
			}
		}
	}
	for _, row := range l.afterEffects {
		l.record(row)
	}
	l.afterEffects = l.afterEffects[:0]
	for i, c := range l.dirty {
		c.dirty = false
		c.flush()
		l.dirty[i] = nil
	}
	l.dirty = l.dirty[:0]
	for _, p := range l.closing {
		p.conn.hangUp(p.last)
	}
	clear(l.closing)
	l.closing = l.closing[:0]
	for _, cl := range lostHolds {
		l.endIfEmpty(protocol.Now(), cl)
	}
}

// forgetClosed strikes sessions from the state of which the table has nothing left.
func (l *loop) forgetClosed(effects []locktable.Effect) {
	for i := range effects {
		if e := &effects[i]; e.Kind == locktable.Closed && l.state != nil {
			l.state.CloseSession(e.Session)
		}
	}
}

func (l *loop) logLost(e *locktable.Effect, c *session) {
	var peer locktable.Peer // of a kept lock whose session is over, it is not known any more
	switch {
	case c != nil:
		peer = c.peer
	case e.Peer != nil:
		peer = *e.Peer
	}
	what := "lock"
	if e.Kind == locktable.KeepLost {
		what = "kept lock"
	}
	kind := loglimit.Warn(peer.UID, what+" lost", string(e.Reason))
	switch e.Reason {
	case protocol.MaxHold, protocol.ByForce:
		kind.Level, kind.Line = slog.LevelInfo, what+" ended"
	case protocol.CutShort:
		kind.Line = "work ended before its lock was lost"
	}
	args := []any{"hold", e.Hold, "session", e.Session, "pid", peer.PID, "cmd", peer.Cmd, "reason", e.Reason}
	if e.Msg != "" {
		args = append(args, "found", e.Msg)
		if host := l.hosts.NameOf(e.Msg); host != "" {
			args = append(args, "host", host)
		}
	}
	if why := l.whyGone(e); why != "" {
		args = append(args, "redis", why)
	}
	l.lines.About(l.stepAt, kind, e.Name, args...)
}

// whyGone returns what Redis is known to do to keys of locks, of a loss because the key was gone; "": nothing.
func (l *loop) whyGone(e *locktable.Effect) string {
	if e.Reason != protocol.Deleted && e.Reason != protocol.Stolen {
		return ""
	}
	return l.store.OnKeysGone(e.Name)
}

var stopping = protocol.Err{Code: protocol.Unavailable, Msg: "the sidecar is stopping; locks stay held; come back with the ticket when there is a sidecar again"}

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
