package pipeline

import (
	"math"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// New returns a Machine without a connection.
func New(c Config) *Machine {
	m := &Machine{cfg: c, channels: newChannels(c.Keys), ownChannel: wire.OwnChannel(c.UUID), probeLock: wire.ProbeLock}
	m.next = math.MaxInt64
	return m
}

// --- Inputs. Each takes the time: CLOCK_BOOTTIME in ns. ---

// Do sends operations as soon as the connection is free for them. Each gets one result, and they may get another
// order.
func (m *Machine) Do(now int64, ops []redisop.Op) {
	for i := range ops {
		m.waiting.Add(ops[i])
	}
	m.pump(now)
}

// DoAsking sends operations of locks whose keys are here already, although another node of the Cluster has their slot.
func (m *Machine) DoAsking(now int64, ops []redisop.Op) {
	for i := range ops {
		m.asking.push(ops[i])
	}
	m.pump(now)
}

// Subscribe has the channel of a lock be subscribed. It can wait for a moment, and then one command has several
// channels: the next Advance or Rest makes it.
func (m *Machine) Subscribe(name string) { m.channels.subscribe(name) }

// Unsubscribe ends that.
func (m *Machine) Unsubscribe(name string) { m.channels.unsubscribe(name) }

// Ask sends a query when nothing else waits; why: it does not, for that reason.
func (m *Machine) Ask(now int64, q *Query) (why string) {
	switch {
	case m.isFinishing:
		return "the sidecar is stopping"
	case m.queries.len() >= maxQueries:
		return "too many questions to Redis wait at this moment"
	}
	m.queries.push(q)
	m.pump(now)
	return ""
}

// AskAtOnce sends a query if nothing waits on the connection, and reports whether it did.
func (m *Machine) AskAtOnce(now int64, q *Query) bool {
	if m.isFinishing || m.hasQueued() || m.queries.len() > 0 || !m.accepts() || m.queryCalls >= maxQueryCalls {
		return false
	}
	m.queries.push(q)
	m.pump(now)
	return true
}

// Lift has the tokens of this server be above a floor, too, µs; 0: there is none. asksClock: slots have just moved
// here, so they are to be above all tokens that were drawn before, too.
func (m *Machine) Lift(now, floor int64, asksClock bool) {
	if !m.isUp {
		m.asksClock = m.asksClock || asksClock // the clock may have been read already
		return
	}
	if floor != 0 {
		m.lift(now, floor)
	}
	if asksClock {
		m.askClock(now)
	}
}

// Connecting notes that the next greeting is about to be made: it reads the clock.
func (m *Machine) Connecting() { m.asksClock = false }

// Failover has nothing done that the server at an address answers from now on, for a reason; "": all is.
func (m *Machine) Failover(address, why string) {
	m.failingOver, m.failoverWhy = address, why
	m.probeBy(0) // its answer reports the change
}

// ProbeLock sets the lock that probes take; "": the server has no slot for one.
func (m *Machine) ProbeLock(name string) { m.probeLock = name }

// KeysGone has the numbers of evicted keys read again: keys of held locks are gone.
func (m *Machine) KeysGone(now int64) {
	if m.isUp && now >= m.evictionNext {
		m.evictionNext = now + int64(probeConfirm)
		m.askEviction(now)
	}
}

// Up takes a connection into use. The probes begin at once.
func (m *Machine) Up(now int64, g *Greeting) {
	m.conn = conn{
		Greeting: *g,
		encoder: wire.Encoder{
			Prefix: m.cfg.UUID + ":", Keys: m.cfg.Keys, Floor: g.ID.Floor, Expiry: m.cfg.TokenExpiry.Milliseconds(), Origin: g.Origin.String(),
			Declares: m.cfg.IsNode && g.HasQueues, IsSharded: g.IsSharded, Confirms: m.cfg.Replicas > 0,
		},
		minRTT: math.MaxInt64, lastReply: now, next: now,
		isLoading: make(map[*wire.Script]bool),
	}
	m.isUp = true
	m.channels.isSharded = g.IsSharded
	if g.Origin.IsKnown {
		m.id = redisop.NewConn(g.Number)
	}
	m.durability.why = m.tooFewReplicas()
	m.beginProbes()
	m.report()
	m.reportRisk()
	if m.asksClock {
		m.asksClock = false
		m.askClock(now)
	}
	m.pump(now)
}

// Rest notes that all that was received is taken in. The error ends the connection.
func (m *Machine) Rest(now int64) error {
	m.gather()
	m.pump(now)
	if m.isIdle() && m.drains != "" {
		return wire.Unavailable(m.drains)
	}
	return nil
}

// Advance does what is due at a time. lastByteAt is when Redis last sent anything; hasUnread: not all of it was taken in
// yet. isDead: Redis does not reply, and the connection is to be cut.
func (m *Machine) Advance(now, lastByteAt int64, hasUnread bool) (isDead bool) {
	if !m.isUp {
		m.next = math.MaxInt64
		return false
	}
	m.next = math.MaxInt64
	next, isDead := m.checkLiveness(now, lastByteAt, hasUnread)
	m.dueAt(next)
	m.dueAt(m.checkProbe(now))
	m.channels.check()
	m.pump(now)
	return isDead
}

// Cut notes that the connection ends: nothing more is made. Down follows.
func (m *Machine) Cut() {
	m.isCut = true
	m.liveness = dead
}

// Down ends the connection. Redis may have received the first bytes of it, up to sent, and none after. It delivers the
// results of what was in flight: where nothing of a call was sent, it certainly was not carried out. why is for people.
// What waits stays.
func (m *Machine) Down(sent int64, why string) {
	results := m.withheldUnknown(why)
	if len(results) == 0 {
		results = m.takeSpare()
	}
	for _, cl := range m.calls.head(m.calls.len()) {
		outcome := redisop.Unknown
		if cl.from >= sent {
			outcome = redisop.NotSent
		}
		for _, op := range m.flight.head(cl.ops) {
			results = append(results, redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard, Sent: cl.sent, Outcome: outcome, Msg: why})
		}
		m.flight.drop(cl.ops)
	}
	queries := m.unanswered()
	id, served := m.ID, m.served
	m.conn = conn{next: math.MaxInt64}
	m.ID, m.served = id, served // its floor may have risen
	m.isUp = false
	for _, q := range queries {
		m.deliveries = append(m.deliveries, Delivery{Kind: Answered, Query: q, Text: why})
	}
	if len(results) > 0 {
		m.deliveries = append(m.deliveries, Delivery{Kind: Results, Results: results})
	}
	if names := m.channels.onDisconnect(); len(names) > 0 {
		m.deliveries = append(m.deliveries, Delivery{Kind: Unsubscribed, Names: names})
	}
}

// Refuse delivers what waits without a connection: its operations are not sent. why is for people.
func (m *Machine) Refuse(why string) {
	ops := m.waiting.All(nil)
	if ops = m.asking.pop(ops, m.asking.len()); len(ops) > 0 {
		m.deliveries = append(m.deliveries, Delivery{Kind: Results, Results: NotSent(ops, why)})
	}
	for _, q := range m.queries.pop(nil, m.queries.len()) {
		m.deliveries = append(m.deliveries, Delivery{Kind: Answered, Query: q, Text: why})
	}
}

// Finish has no query, probe and request about channels be sent any more.
func (m *Machine) Finish() { m.isFinishing = true }

// NotSent answers ops without sending them; why is for people.
func NotSent(ops []redisop.Op, why string) []redisop.Result {
	results := make([]redisop.Result, len(ops))
	for i, op := range ops {
		results[i] = redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard, Outcome: redisop.NotSent, Msg: why}
	}
	return results
}

// pump makes the requests about channels and the runs of operations that may be made now: renewals first, because a
// late one costs a client its lock.
func (m *Machine) pump(now int64) {
	if !m.isUp {
		return
	}
	for m.accepts() && !m.isFinishing {
		r := m.channels.next()
		if r == nil {
			break
		}
		m.requestChannels(now, r)
	}
	for m.asking.len() > 0 && m.canSend() {
		m.batch = m.asking.pop(m.batch[:0], 1)
		m.runAsking(now, m.batch)
		clear(m.batch)
	}
	for m.hasQueued() && m.canSend() {
		m.batch = m.waiting.Batch(m.batch[:0], &m.cfg.Batches)
		m.runBatch(now, m.batch)
		clear(m.batch)
	}
	m.sendQueries(now)
	if m.liveness == owing {
		m.dueAt(m.lastReply + int64(m.cfg.Timeout)) // an idle connection was expected
	}
}

// --- Outputs ---

// TakeBytes returns the bytes that are to be written, and takes a buffer for the next ones.
func (m *Machine) TakeBytes(spare []byte) []byte {
	out := m.out
	m.out = spare[:0]
	return out
}

// HasBytes reports whether there are bytes to be written.
func (m *Machine) HasBytes() bool { return len(m.out) > 0 }

// TakeDeliveries returns what is to be handed on, in the order in which Redis made it, and takes a slice for the next
// deliveries.
func (m *Machine) TakeDeliveries(spare []Delivery) []Delivery {
	all := m.deliveries
	m.deliveries = spare[:0]
	return all
}

// WantsSpare reports whether Spare is of use.
func (m *Machine) WantsSpare() bool { return m.spare == nil }

// Spare gives an empty slice for results.
func (m *Machine) Spare(results []redisop.Result) { m.spare = results }

// TakeExpired returns the queries that were not sent in time.
func (m *Machine) TakeExpired() []*Query {
	expired := m.expired
	m.expired = nil
	return expired
}

// TakeRedirects returns how many answers of a node that did not serve a command came since the last call.
func (m *Machine) TakeRedirects() Redirects {
	counts := m.counts
	m.counts = Redirects{}
	return counts
}

// Next is when Advance is due.
func (m *Machine) Next() int64 { return m.next }

// IsOverdue reports whether the connection is to be cut at the next Advance, unless a reply has come.
func (m *Machine) IsOverdue() bool { return m.isUp && m.liveness == overdue }

// IsOver reports whether each operation has its result, after Finish.
func (m *Machine) IsOver() bool { return m.isFinishing && !m.hasQueued() && (!m.isUp || m.isIdle()) }

// IsUp reports whether there is a connection.
func (m *Machine) IsUp() bool { return m.isUp }

// Unsent is how many operations wait to be sent. Renewals, checks and Drops that can wait do not count.
func (m *Machine) Unsent() int { return m.waiting.others.len() }

// RoundTrip is how long the last command took that Redis answered, ns; 0: there was none.
func (m *Machine) RoundTrip() int64 { return m.trip }

// Identity is what was connected last; its floor rises with the tokens.
func (m *Machine) Identity() wire.Identity { return m.ID }

// Served reports whether Redis answered a command on the last connection.
func (m *Machine) Served() bool { return m.served }

// Evicts is what the server does to the keys of locks, in words; "": nothing that is known.
func (m *Machine) Evicts() string { return m.Eviction.evicts() }

// Ignored is how many messages on the channel of this sidecar said nothing to it, and how many of them in the present
// second.
func (m *Machine) Ignored() (total, inWindow uint64) { return m.ignored.total, m.ignored.inWindow }

// AsksClock reports whether each counter is lifted to Redis's clock, because slots have moved here.
func (m *Machine) AsksClock() bool { return m.encoder.Lifts }

// InFlight is how many operations have no answer.
func (m *Machine) InFlight() int { return m.flight.len() }
