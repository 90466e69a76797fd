package sim

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The crowd: very many hosts with a real table each, and one Redis that has one
// core. Nothing fails here but Redis as a whole; what the other simulation leaves
// out, this one counts: how long Redis is busy with what, and who waits for it.
//
// The connections behave as the store's do: renewals first, and near Redis one batch
// at a time.

const (
	storeKeys   = 128            // locks of one run of a script
	storeKeeps  = 8 * storeKeys  // renewals in a batch
	storeOthers = 512            // other operations in a batch
	storeFlight = 4 * storeKeeps // operations under way, if Redis is far
	storeNear   = 200 * µs       // a trip that is no longer is near,
	storeCalls  = 2              // and this is how much of Redis is asked then
	storeDelay  = 1250 * ms      // longest pause between two attempts to connect
	redisReads  = 16 << 10       // bytes of one connection that Redis reads before it looks at the next
	localHop    = 30 * µs        // between a client and its sidecar
	neverServed = int64(1<<63 - 1)
)

// What things cost Redis, ns of one core, over loopback, where a write to a socket pays
// for its receipt too: go test ./sidecar/store -run '^$' -bench BenchmarkRedis. Scripts
// by their instructions (98,600 are 8.8 µs), which no neighbour on the machine changes.
const (
	costArrival  = 6500   // one connection has something: poll, read, write
	costRun      = 3000   // a run of takes and drops
	costTake     = 2800   // and draws a token
	costAssert   = 3000   // take that draws none, and counts who listens
	costOther    = 3000   // take that finds somebody else's field
	costDrop     = 1500   // without those who listen
	costKeep     = 2200   // a run of renewals
	costKey      = 1600   // and each lock
	costListener = 5000   // of each that a message goes to
	costConnect  = 101000 // connection, greeting, probe
)

// crowdPlan is what a crowd is to do. Hosts either contend for one lock or hold
// locks of their own.
type crowdPlan struct {
	seed    uint64
	hosts   int
	clients int   // of each host, that want the one lock again as soon as they have given it back
	held    int   // locks of its own that each host holds
	trip    int64 // to Redis and back
	far     int64 // trip of the last host, if not that: those between are spread evenly in ratio
	work    int64 // of a client that has the lock
	blind   bool  // Redis does not say how many listen
}

const (
	crowdBatch  eventKind = iota // a batch reaches Redis
	crowdServed                  // Redis is through with what it has read
	crowdAnswer                  // the answers to a batch reach the host
	crowdSub                     // SUBSCRIBE reaches Redis
	crowdUnsub
	crowdSubAck
	crowdMessage
	crowdTimer
	crowdBegin   // a host's clients begin
	crowdRelease // a client gives its lock back, and wants it again
	crowdDial
	crowdUp
	crowdListen // the subscription is made again
)

// member is one host.
type member struct {
	table   *locktable.Table
	way     int64 // to Redis, at least
	offset  int64 // of its clock
	up      bool
	gen     uint32 // of its connections
	timerAt int64  // of the earliest crowdTimer under way
	keeps   []locktable.Op
	others  []locktable.Op
	flight  []*shipment // under way, oldest first
	lined   bool        // Redis will read its connection
	dials   bool        // and find a greeting
	lastOut int64       // when what was sent last reaches Redis
	lastIn  int64       // when what was answered last reaches the host
	wants   bool        // to listen
	heard   int64       // the last message came then: they do not overtake each other
	clients []crowdClient
	grants  int
	first   int64 // grant
	last    int   // turn that it had, of all turns
	passed  int   // turns of others in a row, at most
}

func (h *member) clock(t int64) int64 { return h.offset + t }

// shipment is one batch.
type shipment struct {
	ops     []locktable.Op
	results []locktable.Result // so far
	sent    int64
	arrived bool
}

type crowdClient struct {
	askedAt int64 // neverServed: it does not wait
	lastID  uint64
	hold    uint64
}

type crowdLock struct {
	key     redis.Key
	counter redis.Counter
	channel redis.Channel // subscribers: hosts
}

type crowd struct {
	plan     crowdPlan
	random   random
	now      int64
	seq      uint32
	agenda   agenda
	hosts    []*member
	locks    []crowdLock
	line     []int16 // connections that Redis will read, in the order in which it will
	busy     bool
	lostData bool // in the last outage
	crowdCount
}

// crowdCount is what is counted; reset begins anew.
type crowdCount struct {
	since    int64
	taken    int // takes of a free lock
	failed   int // takes that found somebody else's field
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
	herd     int // takes that failed since the lock was free last
	herds    []int
	load     []int // locks asked about, by 10 ms
	scripts  []int // scripts, by 10 ms
}

const crowdBucket = 10 * ms

func (w *crowd) reset() {
	w.crowdCount = crowdCount{since: w.now, waits: w.waits[:0], herds: w.herds[:0]}
	for _, h := range w.hosts {
		h.grants, h.first, h.last, h.passed = 0, neverServed, 0, 0
	}
}

func newCrowd(p crowdPlan) *crowd {
	w := &crowd{plan: p}
	w.random.Seed(p.seed, planStream)
	w.locks = make([]crowdLock, max(1, p.hosts*p.held))
	for i := range w.locks {
		w.locks[i].key = redis.NoKey
	}
	for i := range p.hosts {
		h := &member{up: true, timerAt: neverServed, first: neverServed}
		h.way = p.trip / 2
		if p.far > 0 {
			h.way = int64(float64(h.way) * math.Pow(float64(p.far)/float64(p.trip), float64(i)/float64(p.hosts-1)))
		}
		h.offset = w.random.upto(3600 * sec)
		h.table = locktable.New(locktable.Config{Seed: p.seed<<16 + uint64(i)}, h.clock(w.now))
		h.table.Up(h.clock(w.now), false)
		h.clients = make([]crowdClient, max(p.clients, 1))
		for c := range h.clients {
			h.clients[c].askedAt = neverServed
			h.table.Open(h.clock(w.now), locktable.SessionID(c+1), locktable.Peer{PID: int64(c), Cmd: "crowd"})
		}
		w.hosts = append(w.hosts, h)
		w.after(w.random.upto(10*ms), event{kind: crowdBegin, host: int16(i)})
	}
	return w
}

func (w *crowd) after(d int64, e event) {
	e.at = w.now + d
	w.seq++
	e.seq = w.seq
	w.agenda.push(e)
}

// lag is one way between a host and Redis: up to a fifth longer than the shortest.
func (w *crowd) lag(h *member) int64 { return h.way + w.random.upto(h.way/5+1) }

// until plays until a time, or until done says so.
func (w *crowd) until(end int64, done func() bool) {
	for len(w.agenda.events) > 0 && w.agenda.events[0].at <= end {
		if done != nil && done() {
			return
		}
		e := w.agenda.pop()
		w.now = e.at
		w.play(e)
	}
	w.now = max(w.now, end)
}

func crowdName(i int) string { return fmt.Sprintf("lock-%07d", i) }

func crowdIndex(name string) int {
	i, err := strconv.Atoi(name[len("lock-"):])
	if err != nil {
		panic("a lock that nobody asked for: " + name)
	}
	return i
}

func (w *crowd) play(e event) {
	if e.kind == crowdServed {
		w.busy = false
		w.serve()
		return
	}
	h := w.hosts[e.host]
	switch e.kind {
	case crowdTimer:
		if h.timerAt == e.at {
			h.timerAt = neverServed
		}
		if next, ok := h.table.Next(); h.table.Busy() || ok && next <= h.clock(w.now) {
			h.table.Advance(h.clock(w.now))
			h.table.Work(h.clock(w.now))
		}
		w.drain(e.host)
		return
	case crowdBegin:
		if w.plan.held == 0 {
			for c := range h.clients {
				w.acquire(e.host, c, 0)
			}
			return
		}
		for i := range w.plan.held {
			w.acquire(e.host, 0, int(e.host)*w.plan.held+i)
		}
		return
	case crowdRelease:
		h.table.Release(h.clock(w.now), locktable.SessionID(e.arg+1), protocol.Release{Hold: h.clients[e.arg].hold})
		w.drain(e.host)
		w.acquire(e.host, int(e.arg), 0)
		return
	}
	if e.gen != h.gen {
		return
	}
	switch e.kind {
	case crowdBatch:
		i := slices.IndexFunc(h.flight, func(s *shipment) bool { return !s.arrived })
		h.flight[i].arrived = true
		w.count(h.flight[i])
		w.enter(e.host)
	case crowdAnswer:
		s := h.flight[0]
		h.flight = h.flight[1:]
		for i := range s.results {
			h.table.Result(h.clock(w.now), s.results[i])
		}
		w.drain(e.host)
	case crowdSub:
		w.locks[e.arg].channel.Subscribe(int32(e.host))
		e.kind = crowdSubAck
		w.after(w.lag(h), e)
	case crowdUnsub:
		w.locks[e.arg].channel.Unsubscribe(int32(e.host))
	case crowdSubAck:
		if h.wants {
			h.table.Subscribed(h.clock(w.now), crowdName(int(e.arg)))
			w.drain(e.host)
		}
	case crowdMessage:
		w.messages++
		h.table.Message(h.clock(w.now), crowdName(0))
		w.drain(e.host)
	case crowdDial:
		h.dials = true
		w.enter(e.host)
	case crowdUp:
		h.up = true
		h.table.Up(h.clock(w.now), w.lostData)
		w.drain(e.host)
	case crowdListen:
		if h.wants {
			w.after(w.lag(h), event{kind: crowdSub, host: e.host, gen: h.gen})
		}
	}
}

func (w *crowd) acquire(host int16, c, lock int) {
	h := w.hosts[host]
	k := &h.clients[c]
	k.lastID++
	k.askedAt = min(k.askedAt, w.now)
	h.table.Acquire(h.clock(w.now), locktable.SessionID(c+1), protocol.Acquire{ID: k.lastID, Name: crowdName(lock), WaitMS: protocol.Forever})
	w.drain(host)
}

// drain carries out what the table wants done.
func (w *crowd) drain(host int16) {
	h := w.hosts[host]
	effects := h.table.Effects()
	for i := range effects {
		switch e := &effects[i]; e.Kind {
		case locktable.Granted:
			w.grants++
			h.grants++
			h.first = min(h.first, w.now-w.since)
			k := &h.clients[e.Session-1]
			if w.plan.held > 0 {
				break
			}
			w.waits = append(w.waits, w.now-max(k.askedAt, w.since))
			k.askedAt, k.hold = neverServed, e.Hold
			w.after(2*localHop+w.plan.work, event{kind: crowdRelease, host: host, arg: int32(e.Session - 1)})
		case locktable.Lost:
			w.lost++
		case locktable.Refusal:
			panic("refused: " + e.Msg)
		case locktable.Subscribe, locktable.Unsubscribe:
			kind := crowdSub
			if h.wants = e.Kind == locktable.Subscribe; !h.wants {
				kind = crowdUnsub
			}
			if h.up {
				w.after(w.lag(h), event{kind: kind, host: host, arg: int32(crowdIndex(e.Name)), gen: h.gen})
			}
		case locktable.Redis:
			if e.Op.Kind == locktable.Keep {
				h.keeps = append(h.keeps, e.Op)
			} else {
				h.others = append(h.others, e.Op)
			}
		}
	}
	w.send(host)
	next, ok := h.table.Next()
	if h.table.Busy() {
		next, ok = h.clock(w.now), true
	}
	if ok {
		if next = max(next-h.offset, w.now); next < h.timerAt {
			h.timerAt = next
			w.after(next-w.now, event{kind: crowdTimer, host: host})
		}
	}
}

// ---- Redis

// send writes what may be written.
func (w *crowd) send(host int16) {
	h := w.hosts[host]
	for h.up && len(h.keeps)+len(h.others) > 0 {
		flying := 0
		for _, s := range h.flight {
			flying += len(s.ops)
		}
		if w.plan.trip <= storeNear && len(h.flight) >= storeCalls || flying >= storeFlight {
			return
		}
		s := &shipment{sent: h.clock(w.now)}
		move := func(from *[]locktable.Op, most int) {
			n := min(most, len(*from))
			s.ops = append(s.ops, (*from)[:n]...)
			*from = append((*from)[:0], (*from)[n:]...)
		}
		move(&h.keeps, storeKeeps)
		move(&h.others, storeOthers)
		h.flight = append(h.flight, s)
		h.lastOut = max(h.lastOut, w.now+w.lag(h))
		w.after(h.lastOut-w.now, event{kind: crowdBatch, host: host, gen: h.gen})
	}
}

// count notes what a batch asks of Redis.
func (w *crowd) count(s *shipment) {
	at := int((w.now - w.since) / crowdBucket)
	for len(w.load) <= at {
		w.load, w.scripts = append(w.load, 0), append(w.scripts, 0)
	}
	w.load[at] += len(s.ops)
	keeps := 0
	for i := range s.ops {
		if s.ops[i].Kind == locktable.Keep {
			keeps++
		}
	}
	runs := func(n int) int { return (n + storeKeys - 1) / storeKeys }
	w.keeps += runs(keeps)
	w.renewed += keeps
	w.scripts[at] += runs(keeps) + runs(len(s.ops)-keeps)
}

func (w *crowd) enter(host int16) {
	if h := w.hosts[host]; !h.lined {
		h.lined = true
		w.line = append(w.line, host)
	}
	w.serve()
}

// unanswered is what a host has sent and Redis has not finished; nil: nothing.
func (h *member) unanswered() *shipment {
	for _, s := range h.flight {
		if s.arrived && len(s.results) < len(s.ops) {
			return s
		}
	}
	return nil
}

// serve has Redis read what one connection has for it, and carry it out. The
// answers leave when that is done.
func (w *crowd) serve() {
	if w.busy || len(w.line) == 0 {
		return
	}
	host := w.line[0]
	w.line = w.line[1:]
	h := w.hosts[host]
	at := w.now + costArrival
	if h.dials {
		h.dials = false
		at += costConnect
		w.after(at-w.now+w.lag(h), event{kind: crowdUp, host: host, gen: h.gen})
	}
	finished := 0
	s := h.unanswered()
	for read := 0; read < redisReads && s != nil; {
		read += w.execute(host, s, &at)
		if len(s.results) == len(s.ops) {
			finished++
			s = h.unanswered()
		}
	}
	for range finished {
		h.lastIn = max(h.lastIn, at+w.lag(h))
		w.after(h.lastIn-w.now, event{kind: crowdAnswer, host: host, gen: h.gen})
	}
	if h.lined = s != nil; h.lined {
		w.line = append(w.line, host)
	}
	w.served += at - w.now
	w.busy = true
	w.after(at-w.now, event{kind: crowdServed})
}

// execute runs the next script of a batch at a time, which it moves on by what that
// costs, and returns the length of the command.
func (w *crowd) execute(host int16, s *shipment, at *int64) int {
	op := &s.ops[len(s.results)]
	w.ran++
	if op.Kind == locktable.Keep {
		*at += costKeep
		n := 0
		for n < storeKeys && len(s.results) < len(s.ops) && s.ops[len(s.results)].Kind == locktable.Keep {
			*at += costKey
			s.answer(w.run(host, &s.ops[len(s.results)], *at))
			n++
		}
		w.bytes += int64(130 + 37*n)
		return 126 + 33*n
	}
	*at += costRun
	n := 0
	for n < storeKeys && len(s.results) < len(s.ops) && s.ops[len(s.results)].Kind != locktable.Keep {
		op := &s.ops[len(s.results)]
		res := w.run(host, op, *at)
		switch {
		case op.Kind == locktable.Drop:
			*at += costDrop
			if l := &w.locks[crowdIndex(op.Name)]; l.key.Owner < 0 {
				*at = w.publish(l, *at)
			}
		case res.Outcome != locktable.Done:
			*at += costOther
			w.bytes += 53
		case op.Reserve == 0:
			*at += costAssert
		default:
			*at += costTake
		}
		s.answer(res)
		n++
	}
	w.bytes += int64(154 + 83*n)
	return 150 + 71*n
}

func (s *shipment) answer(res locktable.Result) {
	res.Sent = s.sent
	s.results = append(s.results, res)
}

// run is what the script does to one lock.
func (w *crowd) run(host int16, op *locktable.Op, at int64) locktable.Result {
	l := &w.locks[crowdIndex(op.Name)]
	l.key.Expire(at)
	before := l.key.Owner
	c := redis.Command{
		Op: op, Owner: redis.Owner(host), Now: at,
		Floor: 1, Fresh: 1, Expiry: counterExpiry, KeepsCounterExpiry: op.Behind,
		Denied: redis.Denied{PubSub: w.plan.blind},
	}
	reply := c.Run(&l.key, &l.counter, &l.channel)
	res := locktable.Result{
		Kind: op.Kind, Name: op.Name, Outcome: reply.Outcome,
		Token: reply.Token, Listeners: reply.Listeners, TTLMS: reply.TTLMS,
	}
	switch {
	case op.Kind == locktable.Drop:
		w.drops++
		if reply.Change == redis.Remove {
			w.herds = append(w.herds, w.herd)
			w.herd = 0
		}
	case res.Outcome == locktable.Other:
		w.failed++
		w.herd++
		res.Field = "another host"
	case op.Kind == locktable.Take && res.Outcome == locktable.Done && before == redis.NoOwner:
		w.taken++
		h := w.hosts[host]
		h.passed, h.last = max(h.passed, w.taken-h.last-1), w.taken
	}
	return res
}

// publish writes to one connection after the other; who subscribed last comes first,
// as in Redis 7.
func (w *crowd) publish(l *crowdLock, at int64) int64 {
	for _, id := range slices.Backward(l.channel.Subscribers) {
		at += costListener
		h := w.hosts[id]
		h.heard = max(h.heard, at+w.lag(h))
		w.after(h.heard-w.now, event{kind: crowdMessage, host: int16(id), gen: h.gen})
	}
	return at
}

// outage takes Redis away for so long, and has it come back with its data or
// without. Every host finds it when its next attempt to connect is due.
func (w *crowd) outage(d int64, lost bool) {
	w.line = nil
	for i := range w.locks {
		l := &w.locks[i]
		l.channel = redis.Channel{}
		if lost {
			l.key, l.counter = redis.NoKey, redis.Counter{}
		}
	}
	w.lostData = lost
	for i, h := range w.hosts {
		h.gen++
		h.up = false
		h.lined = false
		flight := h.flight
		h.flight = nil
		unsent := append(h.keeps, h.others...)
		h.keeps, h.others = nil, nil
		h.table.Down(h.clock(w.now), "Redis cannot be reached")
		for _, s := range flight {
			for _, op := range s.ops {
				h.table.Result(h.clock(w.now), locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Unknown, Sent: s.sent})
			}
		}
		for _, op := range unsent {
			h.table.Result(h.clock(w.now), locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Unsent})
		}
		if h.wants {
			h.table.Unsubscribed(h.clock(w.now), crowdName(0))
		}
		w.drain(int16(i))
		w.after(d+w.random.upto(storeDelay), event{kind: crowdDial, host: int16(i), gen: h.gen})
		w.after(d+w.random.upto(storeDelay), event{kind: crowdListen, host: int16(i), gen: h.gen})
	}
}
