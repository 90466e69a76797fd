package sim

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// The fleet is a second plan of the same engine: very many hosts with a real table each,
// and one Redis that has one core (fleet_redis.go), or a Cluster of them (fleet_cluster.go).
// It shares the clock, the event queue and the model of Redis with the world. Its network and
// its hosts are its own, because it counts what the world leaves out: how long Redis is busy
// with what, and who waits for it. What fails here is Redis as a whole (Outage), or hosts
// (Kill), or one master of a Cluster (Lose).
//
// Each host has one connection to each server, on which operations and subscriptions reach Redis in the
// order in which they were sent, and replies and messages come back in the order in which
// Redis wrote them. What waits for a connection, what one batch has and what one run of a script
// executes is what the store has: pipeline.Waiting, wire.SortForBatching and wire.BatchPrefix.

const (
	storeDelay = 1250 * ms // longest pause between two attempts to connect
	localHop   = 30 * µs   // between a client and its sidecar
	never      = int64(1<<63 - 1)
)

// batches are those of the store.
var batches = pipeline.DefaultBatches

// FleetPlan is what a fleet does. Its hosts either contend for one lock, or for the permits of
// one semaphore, or hold locks of their own.
type FleetPlan struct {
	Seed       uint64
	Hosts      int
	Clients    int           // of each host, that want the one lock again as soon as they have released it
	Of         int           // permits of the semaphore, of which each client wants one; 0: clients want a lock
	Held       int           // locks of its own that each host holds
	Trip       time.Duration // to Redis and back
	FarTrip    time.Duration // of the last host, if not Trip: those between are spread evenly in ratio
	Work       time.Duration // of a client that has the lock
	Think      time.Duration // of a client that has released it, before it wants it again
	DenyQueues bool          // the ACL of Redis permits no queue between hosts

	Masters int           // of a Cluster; 0: one Redis
	Counted int           // in a Cluster, how many hosts each of them believes there are; 0: Hosts
	Pairs   time.Duration // in a Cluster, each host takes and releases another lock so often on average; 0: none does
}

// Fleet is one run of a plan.
type Fleet struct {
	engine
	plan     FleetPlan
	hosts    []*fleetHost
	nodes    []fleetNode // by redisop.Shard
	locks    []fleetLock
	names    []string
	lostData bool // in the last outage
	fleetCluster
	fleetCount
}

// What happens in a fleet.
const (
	fleetBatch   eventKind = iota // a batch reaches Redis
	fleetDone                     // Redis has executed what it has read
	fleetReceive                  // what Redis wrote next for a host reaches it
	fleetTimer
	fleetBegin   // a host's clients begin
	fleetRelease // a client releases its lock
	fleetAcquire // and wants it again
	fleetConnect // a host connects again
	fleetUp      // it is connected
	fleetClosed  // Redis reads the end of the connection of a host that died

	// In a Cluster:
	fleetEnded    // a host notices that its connection ended
	fleetQuestion // a host asks which master has which slot
	fleetIdle     // a connection may have been idle for long
	fleetProbe    // a host probes a node
	fleetPair     // a client acquires one of the locks for pairs
	fleetPairEnd  // and releases it
)

// fleetHost is one host.
type fleetHost struct {
	hostClock
	table      *locktable.Table
	way        int64 // to Redis, at least
	dead       bool
	timerAt    int64       // of the earliest fleetTimer that is scheduled; or never
	conns      []fleetConn // by redisop.Shard
	clients    []fleetClient
	grants     int
	first      int64 // grant; or never
	stands     bool  // a ticket of it, in the queue,
	standsAt   int   // since so many turns of all hosts
	passedOver int   // turns of others while a ticket stood, at most

	touched uint64 // connections on which more may be sent now, by redisop.Shard

	router fleetRouter // in a Cluster
	pairs  *[hostPairs]fleetPairLock
}

// fleetConn is the connection of a host to one server.
type fleetConn struct {
	up         bool
	gen        uint32
	shard      redisop.Shard
	waiting    pipeline.Waiting
	inFlight   []*batch   // oldest first
	incoming   []received // what Redis has written and the host has not read, oldest first
	queued     bool       // Redis will read it
	connecting bool       // and find a greeting
	listening  bool       // Redis has it, and messages go there
	isTried    bool       // to be made; in a Cluster
	lastOut    int64      // when what was sent last reaches Redis
	lastIn     int64      // when what Redis wrote last reaches the host
	subscribes []int32    // locks whose channels the host wants there
}

// conn is the connection as the table knows it: a server never changes roles here.
func (c *fleetConn) conn() redisop.Conn { return redisop.NewConn(c.gen<<8 | uint32(c.shard)) }

// batch is what a host has sent at one time: operations, or a subscription.
type batch struct {
	ops     []redisop.Op
	results []redisop.Result // so far
	sent    int64
	arrived int64 // in Redis; 0: not yet
	runs    int   // of scripts

	subscription locktable.EffectKind // Subscribe or Unsubscribe; 0: operations
	lock         int32                // of the subscription
	isControl    bool                 // it is a ping, a probe or a question,
	cost         int64                // which costs that beside the arrival
	isQuestion   bool                 // which master has which slot
	answer       *fleetTopology       // to the question
	executed     bool                 // what has no operations is
}

// isExecuted reports whether Redis has executed all of it.
func (b *batch) isExecuted() bool {
	if b.subscription != 0 || b.isControl {
		return b.executed
	}
	return len(b.results) == len(b.ops)
}

// received is what Redis writes to a host: the reply to its oldest batch, or a message.
type received struct {
	isMessage bool
	message   redisop.Message
}

type fleetClient struct {
	askedAt int64 // never: it does not wait
	lastID  uint64
	hold    uint64
}

// fleetCount is what is counted since the last Reset.
type fleetCount struct {
	since          int64
	came           int // times that the lock came to a host: a transfer, or a take of a free lock; of a semaphore, grants
	passed         int // of these: transfers
	asked          int // takes of a host that waits already, which did not get the lock
	ran            int // scripts
	renewalScripts int // scripts
	renewed        int // locks
	messages       int // that reached a host
	served         int64
	bytes          int64
	grants         int
	lost           int
	waits          []int64
	load           []int // operations, by fleetBucket
	scripts        []int // by fleetBucket
	clusterCount
}

const fleetBucket = 10 * ms

// Reset begins to count again.
func (f *Fleet) Reset() {
	f.fleetCount = fleetCount{since: f.now, waits: f.waits[:0]}
	f.leastLease = never
	for i := range f.nodes {
		f.nodes[i].nodeCount = nodeCount{}
	}
	for _, h := range f.hosts {
		h.grants, h.first, h.standsAt, h.passedOver = 0, never, 0, 0
	}
}

// NewFleet makes a fleet, whose clients begin within 10 ms.
func NewFleet(p FleetPlan) *Fleet {
	f := &Fleet{plan: p}
	f.random.Seed(p.Seed, planStream)
	f.leastLease = never
	n, format := max(1, p.Hosts*p.Held), "lock-%07d"
	if p.Masters > 0 {
		n, format = p.Hosts*(p.Held+hostPairs), clusterName
	}
	f.locks, f.names = make([]fleetLock, n), make([]string, n)
	for i := range f.locks {
		if p.Of > 0 {
			f.locks[i].semaphore = new(redis.Semaphore)
		}
		f.locks[i].reset()
		f.names[i] = fmt.Sprintf(format, i)
	}
	f.nodes = make([]fleetNode, 1)
	cfg := locktable.Config{MaxWaiters: max(1<<14, p.Held)} // a host takes all at one time
	if p.Masters > 0 {
		f.initCluster()
		cfg.SlotOf = redisop.SlotOf
	}
	for i := range p.Hosts {
		h := &fleetHost{timerAt: never, first: never, conns: make([]fleetConn, len(f.nodes))}
		for shard := range h.conns {
			h.conns[shard].shard = redisop.Shard(shard)
		}
		h.way = int64(p.Trip) / 2
		if p.FarTrip > 0 {
			h.way = int64(float64(h.way) * math.Pow(float64(p.FarTrip)/float64(p.Trip), float64(i)/float64(p.Hosts-1)))
		}
		h.offset = f.random.below(3600 * sec)
		cfg.Seed = p.Seed<<16 + uint64(i)
		h.table = locktable.New(cfg, h.clock(f.now))
		f.hosts = append(f.hosts, h)
		if p.Masters > 0 {
			f.joinCluster(int16(i))
		} else {
			h.conns[0].up, h.conns[0].listening = true, true
			h.table.Up(h.clock(f.now), 0, false, true)
		}
		h.clients = make([]fleetClient, max(p.Clients, 1))
		for c := range h.clients {
			h.clients[c].askedAt = never
			h.table.Open(h.clock(f.now), locktable.SessionID(c+1), locktable.Peer{PID: int64(c), Cmd: "fleet"})
		}
		f.after(f.random.below(10*ms), event{kind: fleetBegin, host: int16(i)})
	}
	return f
}

// lag is one way between a host and Redis: up to a fifth longer than the shortest.
func (f *Fleet) lag(h *fleetHost) int64 { return h.way + f.random.below(h.way/5+1) }

// RunFor runs the fleet for so long, or until done.
func (f *Fleet) RunFor(d time.Duration, done func() bool) {
	end := f.now + int64(d)
	for {
		at, ok := f.queue.next()
		if !ok || at > end {
			break
		}
		if done != nil && done() {
			return
		}
		e := f.queue.pop()
		f.now = e.at
		f.handle(e)
	}
	f.now = max(f.now, end)
}

func fleetIndex(name string) int {
	_, number, isOrder := strings.Cut(name, "/")
	if !isOrder {
		number = name[len("lock-"):]
	}
	i, err := strconv.Atoi(number)
	if err != nil {
		panic("a lock that no client requested: " + name)
	}
	return i
}

func (f *Fleet) handle(e event) {
	if e.kind == fleetDone {
		f.nodes[e.shard].busy = false
		f.serve(redisop.Shard(e.shard))
		return
	}
	h := f.hosts[e.host]
	if h.dead && e.kind != fleetBatch && e.kind != fleetClosed {
		return
	}
	now := h.clock(f.now)
	switch e.kind {
	case fleetTimer:
		if h.timerAt == e.at {
			h.timerAt = never
		}
		if next, ok := h.table.Next(); h.table.Busy() || ok && next <= now {
			h.table.Advance(now)
			h.table.Work(now)
		}
		f.drain(e.host)
		return
	case fleetBegin:
		if f.plan.Held == 0 {
			for c := range h.clients {
				f.acquire(e.host, c, 0)
			}
			return
		}
		for i := range f.plan.Held {
			f.acquire(e.host, 0, int(e.host)*f.plan.Held+i)
		}
		return
	case fleetRelease:
		h.table.Release(now, locktable.SessionID(e.arg+1), protocol.Release{Hold: h.clients[e.arg].hold})
		f.drain(e.host)
		if f.plan.Think > 0 {
			f.after(int64(f.plan.Think), event{kind: fleetAcquire, host: e.host, arg: e.arg})
			return
		}
		f.acquire(e.host, int(e.arg), 0)
		return
	case fleetAcquire:
		f.acquire(e.host, int(e.arg), 0)
		return
	}
	if e.kind >= fleetQuestion {
		f.handleCluster(e, h)
		return
	}
	shard := redisop.Shard(e.shard)
	c := &h.conns[shard]
	if e.gen != c.gen {
		return
	}
	switch e.kind {
	case fleetBatch:
		if f.nodes[shard].down {
			return // the host will notice
		}
		i := slices.IndexFunc(c.inFlight, func(b *batch) bool { return b.arrived == 0 })
		c.inFlight[i].arrived = f.now
		f.count(c.inFlight[i])
		f.enqueue(e.host, shard)
	case fleetReceive:
		r := c.incoming[0]
		c.incoming = c.incoming[1:]
		if r.isMessage {
			f.messages++
			r.message.Conn = c.conn()
			h.table.Message(now, r.message)
		} else {
			f.onReply(e.host, c, now)
		}
		f.drain(e.host)
	case fleetConnect:
		if f.nodes[shard].down {
			f.after(storeDelay, e)
			return
		}
		c.connecting = true
		f.enqueue(e.host, shard)
	case fleetUp:
		c.up = true
		h.touched |= 1 << shard
		h.table.Up(now, shard, f.lostData, true)
		f.drain(e.host)
		for _, lock := range c.subscribes {
			f.sendSubscription(e.host, shard, locktable.Subscribe, lock)
		}
		f.watch(e.host, c)
	case fleetEnded:
		f.onEnded(e.host, shard)
		f.refreshLater(e.host)
	case fleetClosed:
		f.disconnect(e.host, shard)
	}
}

// onReply handles the reply to the oldest batch of a connection.
func (f *Fleet) onReply(host int16, c *fleetConn, now int64) {
	h := f.hosts[host]
	b := c.inFlight[0]
	c.inFlight = c.inFlight[1:]
	h.touched |= 1 << c.shard
	if b.subscription == locktable.Subscribe && slices.Contains(c.subscribes, b.lock) {
		h.table.Subscribed(now, c.shard, f.names[b.lock])
	}
	if f.plan.Masters > 0 {
		f.follow(host, b)
	}
	for i := range b.results {
		b.results[i].Conn = c.conn()
		h.table.Result(now, b.results[i])
	}
}

func (f *Fleet) acquire(host int16, c, lock int) {
	h := f.hosts[host]
	k := &h.clients[c]
	k.lastID++
	k.askedAt = min(k.askedAt, f.now)
	req := protocol.Acquire{ID: k.lastID, Name: f.names[lock], WaitMS: protocol.Forever}
	if f.plan.Of > 0 {
		h.table.AcquirePermits(h.clock(f.now), locktable.SessionID(c+1), protocol.AcquirePermits{Acquire: req, Permits: 1, Of: uint16(f.plan.Of)})
	} else {
		h.table.Acquire(h.clock(f.now), locktable.SessionID(c+1), req)
	}
	f.drain(host)
}

// drain carries out the effects of a table, and schedules its next timer.
func (f *Fleet) drain(host int16) {
	h := f.hosts[host]
	effects := h.table.Effects()
	for i := range effects {
		switch e := &effects[i]; e.Kind {
		case locktable.Granted:
			f.onGranted(host, e)
		case locktable.Lost:
			f.lost++
			f.onLost(e.Name)
		case locktable.Refusal:
			panic("refused: " + e.Msg)
		case locktable.Subscribe, locktable.Unsubscribe:
			lock, c := int32(fleetIndex(e.Name)), &h.conns[e.Op.Shard]
			c.subscribes = slices.DeleteFunc(c.subscribes, func(other int32) bool { return other == lock })
			if e.Kind == locktable.Subscribe {
				c.subscribes = append(c.subscribes, lock)
			}
			if c.up {
				f.sendSubscription(host, c.shard, e.Kind, lock)
			}
		case locktable.Redis:
			h.touched |= 1 << e.Op.Shard
			h.conns[e.Op.Shard].waiting.Add(e.Op)
		}
	}
	for h.touched != 0 {
		f.send(host, &h.conns[bits.TrailingZeros64(h.touched)])
		h.touched &= h.touched - 1
	}
	next, ok := h.table.Next()
	if h.table.Busy() {
		next, ok = h.clock(f.now), true
	}
	if ok {
		if next = max(next-h.offset, f.now); next < h.timerAt {
			h.timerAt = next
			f.after(next-f.now, event{kind: fleetTimer, host: host})
		}
	}
}

func (f *Fleet) onGranted(host int16, e *locktable.Effect) {
	h := f.hosts[host]
	f.grants++
	h.grants++
	h.first = min(h.first, f.now-f.since)
	if e.Session == pairSession {
		f.onPairGranted(host, e)
		return
	}
	if f.plan.Held > 0 {
		return
	}
	if f.plan.Of > 0 {
		f.came++
	}
	k := &h.clients[e.Session-1]
	f.waits = append(f.waits, f.now-max(k.askedAt, f.since))
	k.askedAt, k.hold = never, e.Hold
	f.after(2*localHop+int64(f.plan.Work), event{kind: fleetRelease, host: host, arg: int32(e.Session - 1)})
}

// send sends on a connection what may be sent.
func (f *Fleet) send(host int16, c *fleetConn) {
	for c.up && c.waiting.Len() > 0 {
		ops, calls := 0, 0
		for _, b := range c.inFlight {
			ops += len(b.ops)
			calls += b.runs
		}
		if int64(f.plan.Trip) <= batches.NearRTT && calls >= batches.NearCalls || ops >= batches.InFlight {
			return
		}
		b := &batch{sent: f.hosts[host].clock(f.now)}
		b.ops = c.waiting.Batch(nil, &batches)
		wire.SortForBatching(b.sent, b.ops, f.slotOf())
		for left := b.ops; len(left) > 0; b.runs++ {
			_, n := wire.BatchPrefix(left, f.slotOf())
			left = left[n:]
		}
		f.write(host, c, b)
	}
}

// slotOf returns the slot of a name; nil: Redis is no Cluster.
func (f *Fleet) slotOf() func(name string) uint16 {
	if f.plan.Masters == 0 {
		return nil
	}
	return redisop.SlotOf
}

// sendSubscription begins or ends the subscription to the channel of a lock.
func (f *Fleet) sendSubscription(host int16, shard redisop.Shard, kind locktable.EffectKind, lock int32) {
	f.write(host, &f.hosts[host].conns[shard], &batch{subscription: kind, lock: lock})
}

// write writes a batch to a connection of a host.
func (f *Fleet) write(host int16, c *fleetConn, b *batch) {
	c.inFlight = append(c.inFlight, b)
	c.lastOut = max(c.lastOut, f.now+f.lag(f.hosts[host]))
	f.after(c.lastOut-f.now, event{kind: fleetBatch, host: host, gen: c.gen, shard: int8(c.shard)})
}

// Outage has Redis be away for so long, and come back with its data or without. Every host
// finds it when its next attempt to connect is due. Precondition: it is no Cluster.
func (f *Fleet) Outage(d time.Duration, lost bool) {
	f.nodes[0].readQueue = nil
	for i := range f.locks {
		f.locks[i].restart(lost)
	}
	f.lostData = lost
	for i, h := range f.hosts {
		host := int16(i)
		if h.dead {
			f.disconnect(host, 0)
			continue
		}
		f.onEnded(host, 0)
		f.after(int64(d)+f.random.below(storeDelay), event{kind: fleetConnect, host: host, gen: h.conns[0].gen})
	}
}

// onEnded is when a host notices that a connection has ended.
func (f *Fleet) onEnded(host int16, shard redisop.Shard) {
	h := f.hosts[host]
	c := &h.conns[shard]
	f.disconnect(host, shard)
	now := h.clock(f.now)
	c.up = false
	inFlight := c.inFlight
	c.inFlight, c.incoming = nil, nil
	for _, b := range inFlight {
		if b.isQuestion {
			f.hosts[host].router.tried++
			defer f.askNode(host)
		}
	}
	unsent := c.waiting.All(nil)
	h.table.Down(now, shard, "Redis cannot be reached")
	for _, b := range inFlight {
		for _, op := range b.ops {
			h.table.Result(now, redisop.Result{Kind: op.Kind, Name: op.Name, Shard: shard, Outcome: redisop.Unknown, Sent: b.sent})
		}
	}
	for _, op := range unsent {
		h.table.Result(now, redisop.Result{Kind: op.Kind, Name: op.Name, Shard: shard, Outcome: redisop.NotSent})
	}
	for _, lock := range c.subscribes {
		h.table.Unsubscribed(now, shard, f.names[lock])
	}
	f.drain(host)
}

// Kill ends a host, with its clients. Redis reads the end of its connection after what the
// host sent before. With silently the host lost its power or its network: Redis never learns
// that the connection is gone.
func (f *Fleet) Kill(host int, silently bool) {
	h := f.hosts[host]
	h.dead = true
	if silently {
		return
	}
	for shard := range h.conns {
		c := &h.conns[shard]
		c.lastOut = max(c.lastOut, f.now+f.lag(h))
		f.after(c.lastOut-f.now, event{kind: fleetClosed, host: int16(host), gen: c.gen, shard: int8(shard)})
	}
}
