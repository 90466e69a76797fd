package explore

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

const (
	ms = int64(time.Millisecond)

	// tick is the unit of time: what happens within it happens at one moment. It is a multiple
	// of what the table rounds times to, so that states that were reached at different times
	// become equal.
	tick  = 32 * ms
	lease = 16 * tick

	lingerFor = 2 * tick

	lockName   = "a"
	hostCount  = 2
	clientsOf  = 2 // a host
	startOfRun = 1000 * lease

	// Redis's clock, by which it finds that a ticket is old, goes 2 s in a tick: 15 s are half a
	// lease, as they are of the default lease. These are whole seconds, as the signs are.
	clockPerTick = 2_000_000 // µs

	// By how much Redis's clock is set back or forward, µs: a ticket that stands for longer than 15 s
	// without a sign of life is too old. Half a tick, so that no time comes back to which it was
	// set.
	back, forward = 19_000_000, 18_000_000

	freshToken = 1 << 30 // the counter begins above it
)

// tableConfig is the configuration of the tables. The times stand in the same order as the
// defaults, in few ticks. Grants and tokens are few, so that their limits are reached.
func tableConfig() locktable.Config {
	return locktable.Config{
		Lease:  time.Duration(lease),
		Tokens: 2,
		Contest: contest.Config{
			Turn:               moment.SpanOf(time.Duration(tick)),
			HandoffTime:        time.Duration(2 * tick),
			Backoff:            time.Duration(tick),
			QuietTime:          time.Duration(3 * tick),
			PollerTime:         time.Duration(3 * tick), // what the table knows of foreign clients is no part of a state
			QuietPause:         time.Duration(tick),
			ForeignMemory:      time.Duration(4 * tick),
			Poll:               time.Duration(8 * tick), // with a ticket: a sixth of the lease
			PollDeaf:           time.Duration(tick),
			WatchAfter:         time.Duration(4 * tick),
			Linger:             moment.SpanOf(time.Duration(lingerFor)),
			SubscriptionLinger: time.Duration(4 * tick),
		},
		RetryAfter:       time.Duration(tick),
		TryWithin:        time.Duration(4 * tick),
		MaxLocks:         16,
		Chance:           least{},
		NoRenewalOffsets: true,
	}
}

// least is a source of chance from which package rand always makes the least number. (With 0 it
// would draw again and again.)
type least struct{}

func (least) Uint64() uint64 { return 1 }

// world is one state: two hosts with their clients, Redis, and what is on the way between
// them. It is a value: a step makes another one, which shares what the step does not change.
type world struct {
	plan *Plan

	// now is what hosts read. What happens within a tick happens at one moment, but a request comes
	// a nanosecond later than what happened before: the table compares the two. Redis's time,
	// and the times in a digest, are without these nanoseconds.
	now int64

	scripts    int64  // that Redis has run since the last tick
	shift      int64  // by which Redis's clock was set, µs
	wasSetBack bool   // Redis's clock was
	granted    uint64 // the largest token

	// Steps so far of the kinds that a plan limits.
	clients, faults, ticks, jumps int8

	wasLate   bool // time has passed while something was on its way
	hasLapsed bool // the lease of a key has ended, or a ticket was removed because its host had not asked for long

	hosts [hostCount]*host

	// Redis.
	data
	subscribers redis.Channel // connections that are subscribed to the lock's channel; see wire
	cluster

	violation string // of a rule, by the last step
}

// data is what Redis has under the names of the lock. A queue and a semaphore are not changed, but replaced.
type data struct {
	key       redis.Key
	counter   redis.Counter
	queue     *redis.Queue
	semaphore *redis.Semaphore
}

// host is a host: its sidecar, which may be dead, its connections to Redis and its clients.
type host struct {
	index   int
	process *process // nil: it is dead
	journal *journal // what the successor of a dead process finds

	conns    [sideCount]connection // of the process; see side
	connects uint32                // connections so far

	// Connections that the host has given up, or whose process is dead, and of which Redis does
	// not know that yet. What was sent on one may be executed late, and what is published to the
	// host seems to be received.
	olds [sideCount]*connection

	told      uint64   // the largest token that the table was given
	ghosts    []uint64 // numbers of keys and tickets of which the table does not know; see isGhost
	inherited uint64   // the last number of the processes before this one

	hostInCluster

	clients  [clientsOf]client
	sessions uint64 // opened so far
	requests uint64 // sent so far

	stalled bool // its timers do not fire
	doom    doom
}

// doom says that the process dies in the next input: what the table stored in the journal is
// there, but not all effects are carried out.
type doom uint8

const (
	noDoom      doom = iota
	doomBefore       // it dies before any effect is carried out
	doomBetween      // it dies when it has sent its operations, and no frame to a client
)

// process is a sidecar: its table and its journal.
type process struct {
	table     *locktable.Table
	listens   bool // the table wants to be subscribed to the lock's channel,
	listensAt side // there
	*journal
}

// connection is a connection to Redis. Each direction is a FIFO stream.
type connection struct {
	isOpen     bool // the host believes that it works
	isServed   bool // Redis has it
	number     uint32
	batch      uint32
	requests   []request // on the way to Redis, or not executed yet
	frames     []frame   // on the way to the host
	unanswered []request // operations without a result
	subscribed bool      // to the lock's channel, as the table knows
	floor      int64     // a counter below it is lifted
	asked      uint32    // requests about the lock's channel so far
	seq        int       // frames so far
	told       contract.Conn
	dropped    contract.Op // the last Drop that has a result
}

// request is what a host sends to Redis.
type request struct {
	kind  locktable.EffectKind // Redis, Subscribe or Unsubscribe
	op    redisop.Op
	sent  int64
	batch uint32 // requests of one batch are executed together
	asked uint32 // of Subscribe: its number; see connection

	told uint64      // the largest token that its table had been given
	fate contract.Op // if it has no result
}

// frame is what Redis sends to a host.
type frame struct {
	kind    frameKind
	result  redisop.Result
	message redisop.Message
	isCopy  bool   // the message was published at the other shard
	seq     int    // its place among what the connection carries
	asked   uint32 // of a confirmation: the number of the request
}

type frameKind uint8

const (
	resultFrame frameKind = iota
	messageFrame
	subscribedFrame
	unsubscribedFrame // the shard has ended the subscription: the slot has left it
	movedFrame        // the answer to a subscription: the other shard has the channel
)

// client is a process that locks, with its session. A client that dies is followed by another
// one.
type client struct {
	phase   clientPhase
	session locktable.SessionID
	request uint64 // the acquire, of a client that waits
	since   int64  // when it was sent

	// When the acquire of a client that waits has reached Redis, by Redis's clock, and when for the
	// first time; 0: it has not. See noteArrival.
	reached, reachedFirst uint64
	isArrivalKnown        bool // the table will know it

	permits int64 // of the request or the hold; of a lock 0

	hold     uint64 // of a client that believes
	token    uint64
	deadline int64
	excused  bool // see endExcuses
	isLost   bool // the journal has its loss, and the process died before it was notified
	away     bool // its sidecar was restarted, and it has not claimed its hold
	dead     bool // and its sidecar does not know: it was restarted, or is down
}

type clientPhase uint8

const (
	idle     clientPhase = iota
	waiting              // until it is granted the lock
	trying               // it does not wait for another owner
	believes             // it was granted the lock, and was not notified of a loss
)

// wire numbers connections for the channel of the lock.
func wire(h int, s side, old bool) int32 {
	id := int32(h) + 2*hostCount*int32(s)
	if old {
		id += hostCount
	}
	return id
}

func newWorld(p *Plan) *world {
	w := &world{plan: p, now: startOfRun, data: data{key: redis.NoKey, queue: new(redis.Queue), semaphore: new(redis.Semaphore)}}
	w.initCluster()
	for i := range w.hosts {
		h := &host{index: i, journal: &journal{}}
		w.hosts[i] = h
		h.process = &process{journal: h.journal}
		h.process.table = locktable.New(w.config(h), w.now)
		for c := range h.clients {
			w.openSession(h, c)
		}
		if p.Cluster {
			w.learn(h)
		}
		for s := range w.sides() {
			w.connect(h, s)
		}
		w.copyProcess(h)
	}
	return w
}

func (w *world) config(h *host) locktable.Config {
	cfg := tableConfig()
	cfg.Journal = h.journal
	if w.plan.Cluster {
		cfg.SlotOf = func(string) uint16 { return lockSlot }
	}
	if w.plan.Fair == allFair {
		cfg.Fair = []locktable.NamePattern{lockName}
	}
	return cfg
}

// clone returns a copy that shares the hosts.
func (w *world) clone() *world {
	c := *w
	return &c
}

// change replaces a host by a copy, which shares its table.
func (w *world) change(i int) *host {
	h := *w.hosts[i]
	w.hosts[i] = &h
	return &h
}

// changeTable replaces a host by a copy with a copy of its table, before an input of that.
func (w *world) changeTable(i int) *host {
	h := w.change(i)
	if h.process != nil {
		w.copyProcess(h)
	}
	return h
}

func (w *world) copyProcess(h *host) {
	if w.plan.noCopies {
		return
	}
	j := h.process.journal.clone()
	p := *h.process
	p.table, p.journal = locktable.Clone(p.table, j), j
	h.process = &p
	h.journal = j
}

func (w *world) violated(broken invariant.Name, format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf("invariant %q is violated: %s", broken, fmt.Sprintf(format, args...))
	}
}

// sessionOf is the number of a session: the client is in its last bit.
func (h *host) newSession(c int) locktable.SessionID {
	h.sessions++
	return locktable.SessionID(h.sessions<<1 | uint64(c))
}

func clientOf(id locktable.SessionID) int { return int(id & 1) }

func (w *world) openSession(h *host, c int) {
	h.clients[c] = client{session: h.newSession(c)}
	peer := locktable.Peer{PID: int64(c) + 1, UID: 1}
	h.process.open(h.clients[c].session, peer)
	h.process.table.Open(w.now, h.clients[c].session, peer)
}

// ---- what clients do ---------------------------------------------------------

func (w *world) acquire(i, c int, wait int64, fair bool) {
	w.now++
	h := w.changeTable(i)
	cl := &h.clients[c]
	h.requests++
	cl.phase, cl.request, cl.since = waiting, h.requests, w.now
	cl.reached, cl.reachedFirst, cl.isArrivalKnown = 0, 0, false
	if wait == 0 {
		cl.phase = trying
	}
	req := protocol.Acquire{ID: cl.request, Name: lockName, WaitMS: wait, Fair: fair && !w.plan.Permits}
	if w.plan.Permits {
		if cl.permits = 1; fair {
			cl.permits = 2
		}
		h.process.table.AcquirePermits(w.now, cl.session, protocol.AcquirePermits{Acquire: req, Permits: uint16(cl.permits), Of: capacity})
	} else {
		h.process.table.Acquire(w.now, cl.session, req)
	}
	w.drain(h)
}

func (w *world) cancel(i, c int) {
	h := w.changeTable(i)
	cl := &h.clients[c]
	target := cl.request
	h.process.table.Cancel(w.now, cl.session, protocol.Cancel{Target: target})
	w.drain(h)
}

func (w *world) release(i, c int) {
	h := w.changeTable(i)
	cl := &h.clients[c]
	hold := cl.hold
	cl.phase = idle
	h.process.table.Release(w.now, cl.session, protocol.Release{Hold: hold})
	w.drain(h)
}

// die kills a client, whose sidecar notices that at once, if there is one. Another client
// takes its place.
func (w *world) die(i, c int) {
	h := w.changeTable(i)
	cl := &h.clients[c]
	if h.process == nil {
		*cl = client{session: cl.session, dead: true}
		return
	}
	session := cl.session
	w.openSession(h, c)
	h.process.table.Close(w.now, session)
	w.drain(h)
}

// claim resumes the session of a client after a restart of its sidecar.
func (w *world) claim(i, c int) {
	h := w.changeTable(i)
	cl := &h.clients[c]
	h.requests++
	req := protocol.Claim{ID: h.requests}
	if cl.phase == believes && w.now < cl.deadline {
		req.Holds = []protocol.ClaimedHold{{Hold: cl.hold, Entries: 1}}
	} else {
		cl.phase = idle
	}
	cl.away = false
	h.process.table.Resume(cl.session, locktable.Peer{PID: int64(c) + 1, UID: 1})
	if fault := h.process.table.Claim(w.now, cl.session, &req); fault != "" {
		w.violated(invariant.ResumedSession, "the claim of a client breaks the protocol: %s", fault)
	}
	w.drain(h)
}

// ---- effects -----------------------------------------------------------------

// drain carries out the effects of the last input.
func (w *world) drain(h *host) {
	t := h.process.table
	for h.process != nil {
		for t.Busy() {
			t.Work(w.now)
		}
		effects := t.Effects()
		if len(effects) == 0 {
			break
		}
		for s := range h.conns {
			h.conns[s].batch++
		}
		for i := range effects {
			w.apply(h, &effects[i])
		}
	}
	if h.doom != noDoom {
		h.doom = noDoom
		w.end(h)
	}
}

func (w *world) apply(h *host, e *locktable.Effect) {
	switch e.Kind {
	case locktable.Redis, locktable.Subscribe, locktable.Unsubscribe:
		if h.doom != doomBefore {
			w.send(h, e)
		}
		return
	case locktable.Closed:
		if h.doom == noDoom {
			h.process.closed(e.Session)
		}
		return
	}
	c := clientOf(e.Session)
	cl := &h.clients[c]
	if cl.session != e.Session {
		return // nothing receives it
	}
	if h.doom != noDoom { // the same, and the journal has it
		cl.isLost = cl.isLost || e.Kind == locktable.Lost && cl.phase == believes && cl.hold == e.Hold && cl.excused
		return
	}
	switch e.Kind {
	case locktable.Granted:
		w.onGranted(h, cl, e)
	case locktable.Refusal:
		if cl.phase != waiting && cl.phase != trying || e.ID != cl.request {
			w.violated(invariant.Answers, "client %d of host %d is refused what it did not ask for", c, h.index)
		}
		cl.phase = idle
	case locktable.Lost:
		if cl.phase == believes && cl.hold == e.Hold {
			w.checkLoss(h, cl, e)
			cl.phase = idle
		}
	case locktable.Lease:
		if cl.phase == believes {
			cl.deadline = max(cl.deadline, e.Deadline)
		}
	}
}

// send gives an operation, or a command of the lock's channel, to the connection.
func (w *world) send(h *host, e *locktable.Effect) {
	s := w.sideOf(e.Op.Shard)
	if w.plan.mutant.hides(h) {
		s = w.sideOf(h.route)
	}
	c := &h.conns[s]
	r := request{kind: e.Kind, op: e.Op, sent: w.now, batch: c.batch, told: h.told, fate: contract.Of(&e.Op)}
	w.plan.mutant.operation(&r.op)
	switch e.Kind {
	case locktable.Redis:
		if !c.isOpen {
			w.violated(invariant.RedisDown, "host %d sends an operation although Redis is down", h.index)
			return
		}
		w.checkOneShard(h, s, &r.op)
		c.unanswered = push(c.unanswered, r)
	case locktable.Subscribe:
		h.process.listens, h.process.listensAt = true, s
	case locktable.Unsubscribe:
		if h.process.listensAt == s {
			h.process.listens = false
		}
		c.subscribed = false
	}
	c.request(r)
}

// request sends a request to Redis.
func (c *connection) request(r request) {
	if r.kind != locktable.Redis {
		c.asked++
		r.asked = c.asked
	}
	if c.isServed {
		c.requests = push(c.requests, r)
	}
}

// push appends to a slice that other worlds may share.
func push[T any](s []T, v T) []T { return append(s[:len(s):len(s)], v) }
