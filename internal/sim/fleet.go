package sim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The fleet is a second plan of the same engine: very many hosts with a real table each,
// and one Redis that has one core (fleet_redis.go). It shares the clock, the event queue
// and the model of Redis with the world. Its network and its hosts are its own, because it
// counts what the world leaves out: how long Redis is busy with what, and who waits for it.
// Nothing fails here but Redis as a whole.
//
// The connections behave as the store's do: renewals first, and near Redis few batches at a
// time.

const (
	storeKeys   = 128            // locks of one run of a script
	storeKeeps  = 8 * storeKeys  // renewals in a batch
	storeOthers = 512            // other operations in a batch
	storeFlight = 4 * storeKeeps // operations in flight, if Redis is far
	storeNear   = 200 * µs       // a round trip that is no longer is near,
	storeCalls  = 2              // and then this many batches are in flight
	storeDelay  = 1250 * ms      // longest pause between two attempts to connect
	localHop    = 30 * µs        // between a client and its sidecar
	never       = int64(1<<63 - 1)
)

// FleetPlan is what a fleet does. Its hosts either contend for one lock or hold locks of
// their own.
type FleetPlan struct {
	Seed          uint64
	Hosts         int
	Clients       int           // of each host, that want the one lock again as soon as they have released it
	Held          int           // locks of its own that each host holds
	Trip          time.Duration // to Redis and back
	FarTrip       time.Duration // of the last host, if not Trip: those between are spread evenly in ratio
	Work          time.Duration // of a client that has the lock
	HideListeners bool          // Redis does not tell how many are subscribed
}

// Fleet is one run of a plan.
type Fleet struct {
	engine
	plan      FleetPlan
	hosts     []*fleetHost
	locks     []fleetLock
	readQueue []int16 // connections that Redis will read, in that order
	busy      bool    // Redis is
	lostData  bool    // in the last outage
	fleetCount
}

// What happens in a fleet.
const (
	fleetBatch     eventKind = iota // a batch reaches Redis
	fleetDone                       // Redis has executed what it has read
	fleetReply                      // the replies to a batch reach the host
	fleetSubscribe                  // SUBSCRIBE reaches Redis
	fleetUnsubscribe
	fleetSubscribed
	fleetMessage
	fleetTimer
	fleetBegin   // a host's clients begin
	fleetRelease // a client releases its lock, and wants it again
	fleetConnect // a connection is made again
	fleetUp
	fleetResubscribe // the subscription is made again
)

// fleetHost is one host.
type fleetHost struct {
	hostClock
	table       *locktable.Table
	way         int64 // to Redis, at least
	up          bool
	gen         uint32 // of its connections
	timerAt     int64  // of the earliest fleetTimer that is scheduled; or never
	renewals    []locktable.Op
	others      []locktable.Op
	inFlight    []*batch // oldest first
	queued      bool     // Redis will read its connection
	connecting  bool     // and find a greeting
	lastOut     int64    // when what was sent last reaches Redis
	lastIn      int64    // when what was replied last reaches the host
	subscribes  bool
	lastMessage int64 // when the last message comes: messages do not overtake each other
	clients     []fleetClient
	grants      int
	first       int64 // grant; or never
	last        int   // number of the turn that it had last, of all turns
	missed      int   // turns of others in a row, at most
}

// batch is what a host has sent at one time.
type batch struct {
	ops     []locktable.Op
	results []locktable.Result // so far
	sent    int64
	arrived bool
}

type fleetClient struct {
	askedAt int64 // never: it does not wait
	lastID  uint64
	hold    uint64
}

// fleetCount is what is counted since the last Reset.
type fleetCount struct {
	since    int64
	taken    int // takes of a free lock
	failed   int // takes that found another owner
	drops    int
	ran      int // scripts
	keeps    int // scripts
	renewed  int // locks
	messages int // that reached a host
	served   int64
	bytes    int64
	grants   int
	lost     int
	waits    []int64
	retry    int   // takes that failed since the lock was free last
	retries  []int // of each time that it was taken
	load     []int // operations, by fleetBucket
	scripts  []int // by fleetBucket
}

const fleetBucket = 10 * ms

// Reset begins to count again.
func (f *Fleet) Reset() {
	f.fleetCount = fleetCount{since: f.now, waits: f.waits[:0], retries: f.retries[:0]}
	for _, h := range f.hosts {
		h.grants, h.first, h.last, h.missed = 0, never, 0, 0
	}
}

// NewFleet makes a fleet, whose clients begin within 10 ms.
func NewFleet(p FleetPlan) *Fleet {
	f := &Fleet{plan: p}
	f.random.Seed(p.Seed, planStream)
	f.locks = make([]fleetLock, max(1, p.Hosts*p.Held))
	for i := range f.locks {
		f.locks[i].reset()
	}
	for i := range p.Hosts {
		h := &fleetHost{up: true, timerAt: never, first: never}
		h.way = int64(p.Trip) / 2
		if p.FarTrip > 0 {
			h.way = int64(float64(h.way) * math.Pow(float64(p.FarTrip)/float64(p.Trip), float64(i)/float64(p.Hosts-1)))
		}
		h.offset = f.random.below(3600 * sec)
		h.table = locktable.New(locktable.Config{Seed: p.Seed<<16 + uint64(i)}, h.clock(f.now))
		h.table.Up(h.clock(f.now), false, true)
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

func fleetName(i int) string { return fmt.Sprintf("lock-%07d", i) }

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
	case fleetReply:
		b := h.inFlight[0]
		h.inFlight = h.inFlight[1:]
		for i := range b.results {
			h.table.Result(now, b.results[i])
		}
		f.drain(e.host)
	case fleetSubscribe:
		f.locks[e.arg].channel.Subscribe(int32(e.host))
		e.kind = fleetSubscribed
		f.after(f.lag(h), e)
	case fleetUnsubscribe:
		f.locks[e.arg].channel.Unsubscribe(int32(e.host))
	case fleetSubscribed:
		if h.subscribes {
			h.table.Subscribed(now, fleetName(int(e.arg)))
			f.drain(e.host)
		}
	case fleetMessage:
		f.messages++
		h.table.Message(now, locktable.Message{Name: fleetName(0)})
		f.drain(e.host)
	case fleetConnect:
		h.connecting = true
		f.enqueue(e.host)
	case fleetUp:
		h.up = true
		h.table.Up(now, f.lostData, true)
		f.drain(e.host)
	case fleetResubscribe:
		if h.subscribes {
			f.after(f.lag(h), event{kind: fleetSubscribe, host: e.host, gen: h.gen})
		}
	}
}

func (f *Fleet) acquire(host int16, c, lock int) {
	h := f.hosts[host]
	k := &h.clients[c]
	k.lastID++
	k.askedAt = min(k.askedAt, f.now)
	h.table.Acquire(h.clock(f.now), locktable.SessionID(c+1), protocol.Acquire{ID: k.lastID, Name: fleetName(lock), WaitMS: protocol.Forever})
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
			kind := fleetSubscribe
			if h.subscribes = e.Kind == locktable.Subscribe; !h.subscribes {
				kind = fleetUnsubscribe
			}
			if h.up {
				f.after(f.lag(h), event{kind: kind, host: host, arg: int32(fleetIndex(e.Name)), gen: h.gen})
			}
		case locktable.Redis:
			if e.Op.Kind == locktable.Renew {
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
		flying := 0
		for _, b := range h.inFlight {
			flying += len(b.ops)
		}
		if int64(f.plan.Trip) <= storeNear && len(h.inFlight) >= storeCalls || flying >= storeFlight {
			return
		}
		b := &batch{sent: h.clock(f.now)}
		b.move(&h.renewals, storeKeeps)
		b.move(&h.others, storeOthers)
		h.inFlight = append(h.inFlight, b)
		h.lastOut = max(h.lastOut, f.now+f.lag(h))
		f.after(h.lastOut-f.now, event{kind: fleetBatch, host: host, gen: h.gen})
	}
}

// move moves the first operations to the batch.
func (b *batch) move(from *[]locktable.Op, most int) {
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
		now := h.clock(f.now)
		h.gen++
		h.up, h.queued = false, false
		inFlight := h.inFlight
		h.inFlight = nil
		unsent := append(h.renewals, h.others...)
		h.renewals, h.others = nil, nil
		h.table.Down(now, "Redis cannot be reached")
		for _, b := range inFlight {
			for _, op := range b.ops {
				h.table.Result(now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Unknown, Sent: b.sent})
			}
		}
		for _, op := range unsent {
			h.table.Result(now, locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.NotSent})
		}
		if h.subscribes {
			h.table.Unsubscribed(now, fleetName(0))
		}
		f.drain(int16(i))
		f.after(int64(d)+f.random.below(storeDelay), event{kind: fleetConnect, host: int16(i), gen: h.gen})
		f.after(int64(d)+f.random.below(storeDelay), event{kind: fleetResubscribe, host: int16(i), gen: h.gen})
	}
}
