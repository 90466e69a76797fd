package sim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The fleet is a second plan of the same engine: very many hosts with a real table each,
// and one Redis that has one core (fleet_redis.go). It shares the clock, the event queue
// and the model of Redis with the world. Its network and its hosts are its own, because it
// counts what the world leaves out: how long Redis is busy with what, and who waits for it.
// What fails here is Redis as a whole (Outage), or hosts (Kill).
//
// Each host has one connection, on which operations and subscriptions reach Redis in the
// order in which they were sent, and replies and messages come back in the order in which
// Redis wrote them. The connections behave as the store's do: renewals first, and near Redis
// few batches at a time.

const (
	storeKeys     = 128               // locks of one run of a script
	storeRenewals = 8 * storeKeys     // renewals in a batch
	storeOthers   = 512               // other operations in a batch
	storeFlight   = 4 * storeRenewals // operations in flight, if Redis is far
	storeNear     = 200 * µs          // a round trip that is no longer is near,
	storeCalls    = 2                 // and then this many batches are in flight
	storeDelay    = 1250 * ms         // longest pause between two attempts to connect
	localHop      = 30 * µs           // between a client and its sidecar
	never         = int64(1<<63 - 1)
)

// FleetPlan is what a fleet does. Its hosts either contend for one lock or hold locks of
// their own.
type FleetPlan struct {
	Seed       uint64
	Hosts      int
	Clients    int           // of each host, that want the one lock again as soon as they have released it
	Held       int           // locks of its own that each host holds
	Trip       time.Duration // to Redis and back
	FarTrip    time.Duration // of the last host, if not Trip: those between are spread evenly in ratio
	Work       time.Duration // of a client that has the lock
	Think      time.Duration // of a client that has released it, before it wants it again
	DenyQueues bool          // the ACL of Redis permits no queue between hosts
}

// Fleet is one run of a plan.
type Fleet struct {
	engine
	plan      FleetPlan
	hosts     []*fleetHost
	locks     []fleetLock
	names     []string
	readQueue []int16 // connections that Redis will read, in that order
	busy      bool    // Redis is
	lostData  bool    // in the last outage
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
)

// fleetHost is one host.
type fleetHost struct {
	hostClock
	table      *locktable.Table
	way        int64 // to Redis, at least
	up         bool
	dead       bool
	gen        uint32 // of its connections
	timerAt    int64  // of the earliest fleetTimer that is scheduled; or never
	renewals   []redisop.Op
	others     []redisop.Op
	inFlight   []*batch   // oldest first
	incoming   []received // what Redis has written and the host has not read, oldest first
	queued     bool       // Redis will read its connection
	connecting bool       // and find a greeting
	listening  bool       // Redis has its connection, to which messages go
	lastOut    int64      // when what was sent last reaches Redis
	lastIn     int64      // when what Redis wrote last reaches the host
	subscribes []int32    // locks whose channels it wants
	clients    []fleetClient
	grants     int
	first      int64 // grant; or never
	stands     bool  // a ticket of it, in the queue,
	standsAt   int   // since so many turns of all hosts
	passedOver int   // turns of others while a ticket stood, at most
}

// conn is the connection of a host as its table knows it: Redis never changes roles here.
func (h *fleetHost) conn() redisop.Conn { return redisop.NewConn(h.gen) }

// batch is what a host has sent at one time: operations, or a subscription.
type batch struct {
	ops     []redisop.Op
	results []redisop.Result // so far
	sent    int64
	arrived bool

	subscription locktable.EffectKind // Subscribe or Unsubscribe; 0: operations
	lock         int32                // of the subscription
	executed     bool                 // it is
}

// isExecuted reports whether Redis has executed all of it.
func (b *batch) isExecuted() bool {
	if b.subscription != 0 {
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
	came           int // times that the lock came to a host: a transfer, or a take of a free lock
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
}

const fleetBucket = 10 * ms

// Reset begins to count again.
func (f *Fleet) Reset() {
	f.fleetCount = fleetCount{since: f.now, waits: f.waits[:0]}
	for _, h := range f.hosts {
		h.grants, h.first, h.standsAt, h.passedOver = 0, never, 0, 0
	}
}

// NewFleet makes a fleet, whose clients begin within 10 ms.
func NewFleet(p FleetPlan) *Fleet {
	f := &Fleet{plan: p}
	f.random.Seed(p.Seed, planStream)
	f.locks = make([]fleetLock, max(1, p.Hosts*p.Held))
	f.names = make([]string, len(f.locks))
	for i := range f.locks {
		f.locks[i].reset()
		f.names[i] = fmt.Sprintf("lock-%07d", i)
	}
	for i := range p.Hosts {
		h := &fleetHost{up: true, listening: true, timerAt: never, first: never}
		h.way = int64(p.Trip) / 2
		if p.FarTrip > 0 {
			h.way = int64(float64(h.way) * math.Pow(float64(p.FarTrip)/float64(p.Trip), float64(i)/float64(p.Hosts-1)))
		}
		h.offset = f.random.below(3600 * sec)
		h.table = locktable.New(locktable.Config{Seed: p.Seed<<16 + uint64(i)}, h.clock(f.now))
		h.table.Up(h.clock(f.now), 0, false, true)
		h.clients = make([]fleetClient, max(p.Clients, 1))
		for c := range h.clients {
			h.clients[c].askedAt = never
			h.table.Open(h.clock(f.now), locktable.SessionID(c+1), locktable.Peer{PID: int64(c), Cmd: "fleet"})
		}
		f.hosts = append(f.hosts, h)
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
	i, err := strconv.Atoi(name[len("lock-"):])
	if err != nil {
		panic("a lock that no client requested: " + name)
	}
	return i
}

func (f *Fleet) handle(e event) {
	if e.kind == fleetDone {
		f.busy = false
		f.serve()
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
	if e.gen != h.gen {
		return
	}
	switch e.kind {
	case fleetBatch:
		i := slices.IndexFunc(h.inFlight, func(b *batch) bool { return !b.arrived })
		h.inFlight[i].arrived = true
		f.count(h.inFlight[i])
		f.enqueue(e.host)
	case fleetReceive:
		r := h.incoming[0]
		h.incoming = h.incoming[1:]
		if r.isMessage {
			f.messages++
			r.message.Conn = h.conn()
			h.table.Message(now, r.message)
		} else {
			f.onReply(h, now)
		}
		f.drain(e.host)
	case fleetConnect:
		h.connecting = true
		f.enqueue(e.host)
	case fleetUp:
		h.up = true
		h.table.Up(now, 0, f.lostData, true)
		f.drain(e.host)
		for _, lock := range h.subscribes {
			f.sendSubscription(e.host, locktable.Subscribe, lock)
		}
	case fleetClosed:
		f.disconnect(e.host)
	}
}

// onReply handles the reply to the oldest batch of a host.
func (f *Fleet) onReply(h *fleetHost, now int64) {
	b := h.inFlight[0]
	h.inFlight = h.inFlight[1:]
	if b.subscription == locktable.Subscribe && slices.Contains(h.subscribes, b.lock) {
		h.table.Subscribed(now, 0, f.names[b.lock])
	}
	for i := range b.results {
		b.results[i].Conn = h.conn()
		h.table.Result(now, b.results[i])
	}
}

func (f *Fleet) acquire(host int16, c, lock int) {
	h := f.hosts[host]
	k := &h.clients[c]
	k.lastID++
	k.askedAt = min(k.askedAt, f.now)
	h.table.Acquire(h.clock(f.now), locktable.SessionID(c+1), protocol.Acquire{ID: k.lastID, Name: f.names[lock], WaitMS: protocol.Forever})
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
		case locktable.Refusal:
			panic("refused: " + e.Msg)
		case locktable.Subscribe, locktable.Unsubscribe:
			lock := int32(fleetIndex(e.Name))
			h.subscribes = slices.DeleteFunc(h.subscribes, func(other int32) bool { return other == lock })
			if e.Kind == locktable.Subscribe {
				h.subscribes = append(h.subscribes, lock)
			}
			if h.up {
				f.sendSubscription(host, e.Kind, lock)
			}
		case locktable.Redis:
			if e.Op.Kind == redisop.Renew {
				h.renewals = append(h.renewals, e.Op)
			} else {
				h.others = append(h.others, e.Op)
			}
		}
	}
	f.send(host)
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
	if f.plan.Held > 0 {
		return
	}
	k := &h.clients[e.Session-1]
	f.waits = append(f.waits, f.now-max(k.askedAt, f.since))
	k.askedAt, k.hold = never, e.Hold
	f.after(2*localHop+int64(f.plan.Work), event{kind: fleetRelease, host: host, arg: int32(e.Session - 1)})
}

// send sends what may be sent.
func (f *Fleet) send(host int16) {
	h := f.hosts[host]
	for h.up && len(h.renewals)+len(h.others) > 0 {
		ops, batches := 0, 0
		for _, b := range h.inFlight {
			ops += len(b.ops)
			batches += btoi(b.subscription == 0)
		}
		if int64(f.plan.Trip) <= storeNear && batches >= storeCalls || ops >= storeFlight {
			return
		}
		b := &batch{sent: h.clock(f.now)}
		b.move(&h.renewals, storeRenewals)
		b.move(&h.others, storeOthers)
		f.write(host, b)
	}
}

// sendSubscription begins or ends the subscription to the channel of a lock.
func (f *Fleet) sendSubscription(host int16, kind locktable.EffectKind, lock int32) {
	f.write(host, &batch{subscription: kind, lock: lock})
}

// write writes a batch to the connection of a host.
func (f *Fleet) write(host int16, b *batch) {
	h := f.hosts[host]
	h.inFlight = append(h.inFlight, b)
	h.lastOut = max(h.lastOut, f.now+f.lag(h))
	f.after(h.lastOut-f.now, event{kind: fleetBatch, host: host, gen: h.gen})
}

// move moves the first operations to the batch.
func (b *batch) move(from *[]redisop.Op, most int) {
	n := min(most, len(*from))
	b.ops = append(b.ops, (*from)[:n]...)
	*from = append((*from)[:0], (*from)[n:]...)
}

// Outage has Redis be away for so long, and come back with its data or without. Every host
// finds it when its next attempt to connect is due.
func (f *Fleet) Outage(d time.Duration, lost bool) {
	f.readQueue = nil
	for i := range f.locks {
		f.locks[i].restart(lost)
	}
	f.lostData = lost
	for i, h := range f.hosts {
		host := int16(i)
		f.disconnect(host)
		if h.dead {
			continue
		}
		now := h.clock(f.now)
		h.up = false
		inFlight := h.inFlight
		h.inFlight, h.incoming = nil, nil
		unsent := append(h.renewals, h.others...)
		h.renewals, h.others = nil, nil
		h.table.Down(now, 0, "Redis cannot be reached")
		for _, b := range inFlight {
			for _, op := range b.ops {
				h.table.Result(now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.Unknown, Sent: b.sent})
			}
		}
		for _, op := range unsent {
			h.table.Result(now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.NotSent})
		}
		for _, lock := range h.subscribes {
			h.table.Unsubscribed(now, 0, f.names[lock])
		}
		f.drain(host)
		f.after(int64(d)+f.random.below(storeDelay), event{kind: fleetConnect, host: host, gen: h.gen})
	}
}

// Kill ends a host, with its clients. Redis reads the end of its connection after what the
// host sent before. With silently the host lost its power or its network: Redis never learns
// that the connection is gone.
func (f *Fleet) Kill(host int, silently bool) {
	h := f.hosts[host]
	h.dead = true
	if !silently {
		h.lastOut = max(h.lastOut, f.now+f.lag(h))
		f.after(h.lastOut-f.now, event{kind: fleetClosed, host: int16(host), gen: h.gen})
	}
}
