package sim

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The world of the simulation: hosts with one table each, their clients, one
// Redis, and everything that goes wrong between them. One seed decides all of it.
//
// Time is in ns since the start of the world, as Redis's clock counts it. Every
// host has a clock of its own, with another zero and another rate; whatever goes
// into a table or comes out of it is on that clock.

const (
	maxNames = 8
	maxHosts = 6

	// A table is woken at most this late, and its wheel has ticks: what must
	// happen "at" a time on a host happens within eps after it.
	maxLateness = 20 * ms
	eps         = maxLateness + 25*ms
)

// lockTable is what the world needs of a table, so that a saboteur can stand in
// front of one (mutant.go).
type lockTable interface {
	Open(now int64, s locktable.SessionID, p locktable.Peer)
	Close(now int64, s locktable.SessionID)
	Detach(now int64, s locktable.SessionID)
	Acquire(now int64, s locktable.SessionID, req protocol.Acquire)
	Release(now int64, s locktable.SessionID, req protocol.Release)
	Cancel(now int64, s locktable.SessionID, req protocol.Cancel)
	ForceRelease(now int64, s locktable.SessionID, req protocol.ForceRelease)
	Up(now int64, dataLost bool)
	Down(now int64, why string)
	Result(now int64, r locktable.Result)
	Subscribed(now int64, name string)
	Unsubscribed(now int64, name string)
	Message(now int64, name string)
	Confirm(now int64, s locktable.SessionID, req protocol.Confirm)
	Advance(now int64)
	Work(now int64)
	Next() (at int64, ok bool)
	Busy() bool
	Effects() []locktable.Effect
	KeepAgain()
	Unkept() int
	Restore(now int64, m *locktable.Memory)
	Record(s locktable.SessionID) locktable.SessionRecord
	Resume(s locktable.SessionID, p locktable.Peer)
	Claim(now int64, s locktable.SessionID, req *protocol.Claim) (fault string)
	Adjourn(now int64)
	Holds(s locktable.SessionID) int
	Info(now int64, name string) (protocol.LockRow, bool)
	List(now int64, after uint64, yield func(protocol.LockRow) bool) (next uint64)
	Audit() error
	Users(now int64) int
}

// plan is what one seed makes possible. Not everything at once: a bug that needs
// two things to meet is found sooner where the other twenty are silent.
type plan struct {
	steps           int // of trouble; the quiet tail comes on top
	hosts, names    int
	sessions        int // per host
	table           locktable.Config
	latency, slow   int64 // longest way between host and Redis; and of the rare slow ones
	think           int64 // longest pause of a client between two actions
	foreigners      int
	halfDuplex      bool
	clockDrift      bool
	lateness        bool
	batches         bool
	unknownListener bool

	// What clients do.
	owners, notReentrant, fixedLease, maxHold, crashDelay  bool
	finiteWaits, cancels, forces, deaths, detaches, pauses bool
	confirms                                               bool
	pollers                                                bool // foreign clients do not subscribe

	// What goes wrong: once in so many opportunities, 0 for never.
	slowOps, busy, refused, unsent    int64 // operations
	untaught                          int64 // operations that run behind others, because Redis did not know the script
	breaks, deafness, restarts        int64 // rounds of the fault clock
	flushes, deletions, sidecarDeaths int64
	foreignForce, foreignDeaths       int64 // actions of a foreigner
	lostMessages                      int64 // messages
	muted                             int64 // channels: the ACL forbids to listen
	overwrites                        int64 // rounds: a key becomes one of another type
	brokenCounters                    int64 // rounds: no tokens can be drawn
	stalls                            int64 // rounds: a host's loop is busy for long
	deafHost                          bool  // one host may never subscribe
	scripts                           bool  // what is asked at one time is one script
	sharedCounters                    bool  // the first two names have one counter and one channel
	lateOps, killsOld                 bool  // the fate of what a broken connection carried
	faultEvery                        int64

	// Restarts of sidecars.
	crashes, stops  int64         // rounds of the fault clock
	holdOn          bool          // clients hold many locks, and for long
	longPauses      bool          // some last longer than leases
	patience        int64         // longest that a client takes to come back
	otherLease      time.Duration // configured for some of the successors; 0: none
	room            int           // locks that a Keeper has room for; 0: enough
	notResumable    bool          // some clients
	suspends, jumps int64         // rounds: of a host, of Redis's clock
	shortCounters   bool          // token counters expire soon after their last use
}

func drawPlan(seed uint64, r *random) plan {
	p := plan{
		steps:    int(r.magnitude(800, 12000)),
		hosts:    int(r.between(1, 3)),
		names:    int(r.between(1, 5)),
		sessions: int(r.between(1, 6)),
	}
	if r.oneIn(3) {
		p.names = 1
	}
	leases := []time.Duration{500 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second}
	p.table = locktable.Config{
		UID:                1002,
		Lease:              leases[r.below(int64(len(leases)))],
		SubscriptionLinger: time.Duration(r.magnitude(50*ms, 10*sec)),
		Seed:               seed,
	}
	if r.oneIn(3) {
		p.table.MaxWork = int(r.between(1, 3))
	}
	if r.oneIn(2) {
		p.table.HandoffBudget = int(r.between(1, 8))
		p.table.HandoffTime = time.Duration(r.magnitude(5*ms, 500*ms))
	}
	if r.oneIn(12) {
		p.table.MaxLocks = int(r.between(1, 4))
		p.table.MaxHolds = int(r.between(1, 3))
		p.table.MaxWaiters = int(r.between(1, 3))
	}
	p.latency = r.magnitude(100*µs, 50*ms)
	p.think = r.magnitude(ms, 2*sec)
	p.halfDuplex = r.oneIn(3)
	p.clockDrift = r.oneIn(2)
	p.lateness = r.oneIn(2)
	p.batches = r.oneIn(3)
	p.owners = r.usually(3)
	p.notReentrant = r.oneIn(3)
	p.fixedLease = r.oneIn(2)
	p.maxHold = r.oneIn(3)
	p.crashDelay = r.oneIn(2)
	p.finiteWaits = r.usually(3)
	p.cancels = r.oneIn(2)
	p.forces = r.oneIn(3)
	p.deaths = r.oneIn(2)
	p.detaches = r.oneIn(4)
	p.pauses = r.oneIn(3)
	p.confirms = r.oneIn(2)
	p.scripts = r.oneIn(2)
	p.sharedCounters = p.names > 1 && r.oneIn(4)
	if r.oneIn(3) {
		p.foreigners = int(r.between(1, 2))
		p.pollers = r.oneIn(2)
		if r.oneIn(4) {
			p.foreignForce = 40
		}
		if r.oneIn(3) {
			p.foreignDeaths = 6
		}
	}
	if r.oneIn(4) {
		return p // a world in which nothing fails
	}
	rarely := func(oneIn, lo, hi int64) int64 {
		if !r.oneIn(oneIn) {
			return 0
		}
		return r.magnitude(lo, hi)
	}
	p.slow = p.latency
	if p.slowOps = rarely(3, 20, 500); p.slowOps > 0 {
		p.slow = r.magnitude(p.latency, 5*sec)
	}
	p.busy = rarely(4, 10, 500)
	p.refused = rarely(6, 50, 1000)
	p.unsent = rarely(4, 20, 500)
	p.breaks = rarely(2, 1, 8)
	p.deafness = rarely(2, 1, 8)
	p.restarts = rarely(4, 4, 20)
	p.flushes = rarely(5, 4, 20)
	p.deletions = rarely(5, 2, 10)
	p.sidecarDeaths = rarely(5, 5, 20)
	p.lostMessages = rarely(4, 2, 30)
	p.lateOps = r.oneIn(2)
	p.killsOld = r.oneIn(2)
	p.unknownListener = r.oneIn(5)
	p.muted = rarely(8, 1, 4)
	p.deafHost = r.oneIn(10)
	p.overwrites = rarely(6, 2, 20)
	p.brokenCounters = rarely(6, 2, 20)
	p.stalls = rarely(5, 1, 6)
	p.faultEvery = r.magnitude(20*ms, 5*sec)
	if r.oneIn(2) {
		p.crashes = r.magnitude(2, 60)
		p.stops = rarely(2, 2, 10)
		if p.holdOn = r.oneIn(2); p.holdOn {
			p.names = int(r.between(3, maxNames))
		}
		p.longPauses = r.oneIn(3)
		p.patience = r.magnitude(5*ms, 2*int64(p.table.Lease))
		p.notResumable = r.oneIn(4)
		if r.oneIn(5) {
			p.otherLease = leases[r.below(int64(len(leases)))]
			p.killsOld = true // a late command of the process before would bring its lease back
		}
		if r.oneIn(12) {
			p.room = int(r.between(1, 3))
		}
	}
	p.suspends = rarely(6, 2, 12)
	p.jumps = rarely(6, 2, 12)
	p.shortCounters = r.oneIn(5)
	p.untaught = rarely(4, 4, 200)
	return p
}

// lossless tells whether every wake-up arrives, so that nothing ever has to be
// found by polling.
func (p *plan) lossless() bool {
	return p.slowOps|p.busy|p.refused|p.unsent|p.untaught|p.breaks|p.deafness|p.restarts|p.flushes|p.deletions|
		p.sidecarDeaths|p.lostMessages|p.muted|p.overwrites|p.brokenCounters|p.stalls|p.crashes|p.suspends|p.jumps == 0 &&
		!p.deafHost
}

const (
	evExec     eventKind = iota // an operation reaches Redis
	evAnswer                    // its answer reaches the host
	evNotSent                   // the store gives an operation back
	evDetect                    // the store notices that its connection is dead
	evSettle                    // the store gives back what the dead connection carried
	evConnect                   // the store tries to connect
	evUp                        // and has done so
	evSub                       // SUBSCRIBE reaches Redis
	evSubAck                    // its answer reaches the host
	evUnsub                     // UNSUBSCRIBE reaches Redis
	evMessage                   // a published message reaches the host
	evDeaf                      // the store notices that its subscription is dead
	evListen                    // and has made a new one
	evClient                    // a client does something
	evReopen                    // a client connects again
	evForeign                   // a Redisson client does something
	evFault                     // something goes wrong
	evServerUp                  // Redis is back from a restart
	evMended                    // what was wrong with a name in Redis is mended
	evStart                     // a sidecar is started again
	evExit                      // a sidecar that was told to stop has finished
	evReturn                    // a client finds its sidecar gone, and tries to come back
	evClaim                     // a client that is back claims what it holds
	evForsake                   // a client has been waited for in vain
	evThaw                      // a suspended host wakes up
	evQuiet                     // nothing; the tail looks at itself
)

// host is one sidecar: its table, its two connections, its clients, and what the
// checker knows about it.
type host struct {
	index    int
	uuid     string
	gone     bool // nobody runs the table
	left     bool // and never will: its state is lost
	stopping bool // it was told to, and reads no more
	dying    bool // its last inputs; whether anybody sees an effect of them is open
	life     int  // processes before this one
	keeper   *keeper
	lease    int64 // configured
	longest  int64 // lease that was ever configured
	closing  int   // sessions that were closed, and have something left in the table
	deaf     bool  // it may not subscribe
	frozen   bool  // suspended
	thawAt   int64
	deferred []event // until then
	table    lockTable
	hostClock
	up         bool // as the table was told
	heard      bool // it was told either way
	wakeAt     int64
	nextAt     int64
	asleep     bool
	spins      int
	undrained  bool
	conn       connection
	sub        subscription
	sessions   []session
	names      [maxNames]hostName
	used       map[uint64]bool // hold numbers
	tries      int             // unanswered acquires with wait 0
	owed       int             // operations whose results the table has not been given
	owedSince  int64           // host clock: when it was given one last, or asked for the first of them
	dataLostAt int64           // when it was told last that Redis may have lost data
	trouble    int64           // when something last went wrong between it and Redis
	floor      tokenFloor      // of tokens, as its store knows it
}

type requestKind uint8

const (
	reqAcquire requestKind = iota
	reqRelease
	reqCancel
	reqForce
	reqConfirm
)

// pending is a request that has not been answered.
type pending struct {
	id      uint64
	kind    requestKind
	name    int8
	acquire protocol.Acquire
	order   uint64 // of arrival, in the whole world
	arrived int64  // host clock
	target  uint64 // release: hold. cancel: request

	canceled     bool // cancel: its target has been answered with canceled
	mayDeadlock  bool
	mustDeadlock bool
	ahead        bool          // acquire: somebody held the lock or stood before this one when it came
	want         protocol.Code // release, force: the error that is due; "" for success
	either       bool          // release, force: the hold is just running out, both answers are right
	count        uint32        // release: entries that are left
}

// session is one client.
type session struct {
	id       locktable.SessionID
	gen      uint32
	open     bool
	detached bool
	clientSide
	pend    []pending
	lastID  uint64
	stale   [4]uint64 // holds that are over
	staleAt int
	planned bool  // an evClient is under way
	endedAt int64 // when it last lost or released a hold
}

func (s *session) retire(hold uint64) {
	s.stale[s.staleAt&3] = hold
	s.staleAt++
}

type phase uint8

const (
	stormy   phase = iota // faults, new requests
	settling              // no faults, no new requests; everybody releases
	closing               // all sessions are closed
	over
)

type world struct {
	engine
	seed   uint64
	plan   plan
	steps  int
	order  uint64
	redis  redisServer
	hosts  []*host
	people []foreigner

	counterExpiry int64 // of token counters

	lossless bool  // nothing fails in this world, from its first day on
	slowest  int64 // longest way between host and Redis

	ops   []operation
	free  []int32
	spoil spoiler

	floorless bool // sabotage: tokens do not care when their connection was made

	phase    phase
	deadline int64 // of the phase
	pendings int   // unanswered acquires, all hosts
	lives    int   // holds that a living session believes in

	check checker
	trace tracer
}

var lockNames = [maxNames]string{"lock-0", "lock-1", "lock-2", "lock-3", "lock-4", "lock-5", "lock-6", "lock-7"}

func nameIndex(name string) int {
	n := int(name[len(name)-1] - '0')
	if n < 0 || n >= maxNames || lockNames[n] != name {
		panic(fmt.Sprintf("a lock that nobody asked for: %q", name))
	}
	return n
}

// spoiler makes a table that breaks a rule.
type spoiler func(cfg locktable.Config, now int64) lockTable

func newWorld(seed uint64, spoil spoiler) *world {
	w := &world{seed: seed, spoil: spoil}
	w.random.Seed(seed, planStream)
	w.plan = drawPlan(seed, &w.random)
	w.lossless = w.plan.lossless()
	w.slowest = max(w.plan.latency, w.plan.slow)
	w.counterExpiry = counterExpiry
	if w.plan.shortCounters {
		w.counterExpiry = 10 * sec
	}
	w.check.refused, w.check.lost = make(map[protocol.Code]int), make(map[protocol.Reason]int)
	w.redis.init()
	for n := range w.plan.names {
		w.redis.names[n].muted = w.random.oneIn(w.plan.muted)
	}
	for range w.plan.hosts {
		w.addHost()
	}
	for i := range w.plan.foreigners {
		w.people = append(w.people, foreigner{id: redis.Owner(foreignID + i), name: -1})
		w.after(w.random.below(100*ms), event{kind: evForeign, arg: int32(i)})
	}
	if w.plan.faultEvery > 0 {
		w.after(w.random.below(2*w.plan.faultEvery), event{kind: evFault})
	}
	return w
}

func (w *world) addHost() *host {
	h := &host{index: len(w.hosts)}
	h.offset = w.random.between(0, 1<<50)
	h.uuid = fmt.Sprintf("uuid-%d", h.index)
	if w.plan.clockDrift {
		h.rate = w.random.between(-4, 4)
	}
	h.deaf = w.plan.deafHost && h.index == 0
	h.lease = int64(w.plan.table.Lease)
	h.longest = h.lease
	h.used = make(map[uint64]bool)
	h.keeper = newKeeper(w, h)
	w.hosts = append(w.hosts, h)
	w.boot(h)
	h.sessions = make([]session, w.plan.sessions)
	for i := range h.sessions {
		w.after(w.random.below(10*ms), event{kind: evReopen, host: int16(h.index), arg: int32(i)})
	}
	return h
}

// boot starts a sidecar.
func (w *world) boot(h *host) {
	cfg := w.plan.table
	cfg.Lease = time.Duration(h.lease)
	cfg.Seed += uint64(h.index) + uint64(h.life)<<8
	cfg.Keeper = h.keeper
	if w.spoil != nil {
		h.table = w.spoil(cfg, h.clock(w.now))
	} else {
		h.table = locktable.New(cfg, h.clock(w.now))
	}
	for n := range h.names {
		h.names[n].inflight, h.names[n].ahead, h.names[n].unconfirmed = -1, -1, true
	}
	h.asleep = true
	h.up, h.heard = false, false
	h.conn.gen++
	h.sub.gen++
	w.after(w.random.below(10*ms), event{kind: evConnect, host: int16(h.index), gen: h.conn.gen})
	w.after(w.random.below(10*ms), event{kind: evListen, host: int16(h.index), gen: h.sub.gen})
}

// run plays the world to its end. It panics with a violation.
func (w *world) run() {
	for w.phase != over {
		w.step()
	}
}

func (w *world) step() {
	at := int64(1<<63 - 1)
	if next, ok := w.queue.next(); ok {
		at = next
	}
	var waking *host
	for _, h := range w.hosts {
		if !h.asleep && h.wakeAt < at {
			at, waking = h.wakeAt, h
		}
	}
	if at < w.now {
		at = w.now
	}
	if at > w.now {
		w.now = at
	}
	w.steps++
	if waking != nil {
		w.wake(waking)
	} else if len(w.queue.events) > 0 {
		w.play(w.queue.pop())
	}
	if w.steps&31 == 0 {
		w.audit()
	}
	w.turn(at)
}

// turn moves the world from its stormy days to its end.
func (w *world) turn(at int64) {
	switch w.phase {
	case stormy:
		if w.steps >= w.plan.steps {
			w.calm()
		}
	case settling:
		if w.pendings == 0 && w.lives == 0 && w.allBack() && !w.anyConfirms() {
			w.closeAll()
		} else if w.now > w.deadline || at == 1<<63-1 {
			w.stuck()
		}
	case closing:
		if w.now >= w.deadline {
			w.checkEmpty()
			w.phase = over
		}
	}
}

func (w *world) wake(h *host) {
	now := h.clock(w.now)
	if w.trace.on {
		w.trace.add(w, -1, h, "advance")
	}
	if h.wakeAt == w.check.lastWake && w.check.lastWakeHost == h.index {
		if h.spins++; h.spins > 1000 {
			w.violation(-1, "the table of host %d wants to be advanced again and again at the same time", h.index)
		}
	} else {
		h.spins = 0
	}
	w.check.lastWake, w.check.lastWakeHost = h.wakeAt, h.index
	h.table.Advance(now)
	h.table.Work(now)
	h.nextAt = -1
	w.input(h)
}

// input follows every input to a table that is not a client's: its effects are
// carried out now, or, as a loop that reads many inputs at once does, after the next.
func (w *world) input(h *host) {
	if w.plan.batches && !h.undrained && w.random.oneIn(4) {
		h.undrained = true
		h.asleep = false
		h.wakeAt = w.now
		h.nextAt = -1
		return
	}
	w.drain(h)
}

// settle carries out effects that input has left lying.
func (w *world) settle(h *host) {
	if h.undrained {
		w.drain(h)
	}
}

func (w *world) drain(h *host) {
	h.undrained = h.dying
	if h.dying {
		return
	}
	h.keeper.growRoom(h.table)
	effects := h.table.Effects()
	h.keeper.checkRoom(h.table)
	h.keeper.run, h.keeper.floor = h.conn.run, h.floor
	h.conn.batch++
	for i := range effects {
		w.apply(h, &effects[i])
	}
	if w.check.knows[h.index] != 0 {
		w.told(h)
	}
	w.endRuns(h)
	if h.tries > 0 {
		w.checkTries(h)
	}
	next, ok := h.table.Next()
	if h.table.Busy() {
		next, ok = h.clock(w.now)-ms, true // now, however a clock rounds
	}
	if !ok {
		h.asleep = true
		return
	}
	if !h.asleep && next == h.nextAt {
		return
	}
	h.asleep = false
	h.nextAt = next
	h.wakeAt = max(h.worldTime(next), w.now, h.thawAt)
	if w.plan.lateness && w.phase == stormy && h.wakeAt > w.now && w.random.oneIn(4) {
		h.wakeAt += w.random.below(maxLateness)
	}
}

func (w *world) play(e event) {
	var h *host
	if e.kind != evExec && e.kind != evForeign && e.kind != evFault && e.kind != evServerUp && e.kind != evMended && e.kind != evQuiet {
		h = w.hosts[e.host]
		if h.frozen && e.kind != evThaw && e.kind != evSub && e.kind != evUnsub {
			h.deferred = append(h.deferred, e)
			return
		}
	}
	switch e.kind {
	case evExec:
		w.arrive(e.arg)
	case evAnswer:
		w.answered(h, e)
	case evNotSent:
		w.notSent(h, e)
	case evDetect:
		w.detect(h, e.gen)
	case evSettle:
		if e.gen == h.conn.gen {
			w.settleLost(h)
		}
	case evConnect:
		w.connect(h, e.gen)
	case evUp:
		w.connected(h, e)
	case evSub:
		w.subscribeArrives(h, e)
	case evSubAck:
		w.subscribed(h, e)
	case evUnsub:
		w.unsubscribeArrives(h, e)
	case evMessage:
		w.message(h, e)
	case evDeaf:
		w.deaf(h, e.gen)
	case evListen:
		w.listen(h, e.gen)
	case evClient:
		s := &h.sessions[e.arg]
		if s.gen != e.gen {
			return
		}
		s.planned = false
		if h.gone || s.link != attached {
			return
		}
		w.settle(h)
		w.act(h, s)
	case evReopen:
		switch s := &h.sessions[e.arg]; {
		case h.left || w.phase != stormy || s.open || s.link != attached:
		case h.gone || h.stopping: // it tries until there is a sidecar again
			w.after(w.random.between(ms, 200*ms), e)
		default:
			w.settle(h)
			w.open(h, int(e.arg))
		}
	case evForeign:
		w.foreignActs(&w.people[e.arg])
	case evFault:
		w.fault()
	case evServerUp:
		w.serverUp()
	case evStart:
		w.start(h)
	case evExit:
		if h.stopping && uint32(h.life) == e.gen {
			w.exit(h)
		}
	case evReturn:
		w.comesBack(h, &h.sessions[e.arg], e)
	case evClaim:
		w.claims(h, &h.sessions[e.arg], e)
	case evForsake:
		w.forsaken(h, &h.sessions[e.arg], e)
	case evThaw:
		w.thaw(h)
	case evMended:
		w.mend(int(e.name))
	}
}

// ---- clients

func (w *world) open(h *host, slot int) {
	s := &h.sessions[slot]
	s.gen++
	s.id = locktable.SessionID(uint64(s.gen)<<8 | uint64(slot))
	s.open, s.detached = true, false
	s.clientSide = clientSide{resumable: !w.plan.notResumable || w.random.oneIn(2)}
	s.pend = s.pend[:0]
	s.lastID = 0
	s.planned = false
	if w.trace.on {
		w.trace.add(w, -1, h, "open s%d", s.id)
	}
	h.table.Open(h.clock(w.now), s.id, peer(slot))
	h.keeper.open(h.table.Record(s.id), peer(slot))
	w.drain(h)
	w.schedule(h, s, w.pause())
}

func peer(slot int) locktable.Peer {
	return locktable.Peer{PID: int64(slot) + 1, UID: 1000 + int64(slot)%3, Cmd: "sim"}
}

// schedule lets s act after d, unless it is about to act anyway.
func (w *world) schedule(h *host, s *session, d int64) {
	if s.planned {
		return
	}
	s.planned = true
	w.after(d, event{kind: evClient, host: int16(h.index), arg: int32(s.id & 0xff), gen: s.gen})
}

func (w *world) pause() int64 {
	if w.phase != stormy {
		return w.random.between(ms, 10*ms)
	}
	return w.random.magnitude(w.plan.think>>6, w.plan.think)
}

// held finds a hold that s believes in, starting anywhere; -1: none.
func (w *world) held(h *host, s *session) int {
	n := w.plan.names
	at := int(w.random.below(int64(n)))
	for range n {
		if c := &h.names[at].hold; c.state == live && c.session == s.id {
			return at
		}
		if at++; at == n {
			at = 0
		}
	}
	return -1
}

func (w *world) waiting(s *session) int {
	for i := range s.pend {
		if s.pend[i].kind == reqAcquire {
			return i
		}
	}
	return -1
}

func (w *world) act(h *host, s *session) {
	if !s.open || h.stopping {
		return
	}
	p := &w.plan
	if s.detached {
		w.close(h, s)
		w.after(w.pause(), event{kind: evReopen, host: int16(h.index), arg: int32(s.id & 0xff)})
		return
	}
	if w.phase != stormy {
		if n := w.held(h, s); n >= 0 {
			w.release(h, s, n)
			if w.held(h, s) >= 0 {
				w.schedule(h, s, w.pause())
			}
		}
		return
	}
	pause := w.pause()
	switch x := w.random.below(1000); {
	case x < 420:
		if n := w.held(h, s); n >= 0 {
			if !p.holdOn || w.random.oneIn(6) {
				w.release(h, s, n)
				if p.confirms && w.random.oneIn(4) {
					w.confirm(h, s, n)
				}
			}
			break
		}
		fallthrough
	case x < 850:
		w.acquire(h, s)
	case x < 870:
		w.releaseStale(h, s)
	case x < 930 && p.cancels:
		w.cancel(h, s)
	case x < 945 && p.forces:
		w.forceRelease(h, s)
	case x < 960:
		w.look(h)
	case x < 975 && p.deaths:
		w.close(h, s)
		w.after(pause, event{kind: evReopen, host: int16(h.index), arg: int32(s.id & 0xff)})
		return
	case x < 980 && p.detaches:
		w.detach(h, s)
		pause = w.random.magnitude(ms, 2*h.lease)
	case x < 990 && p.pauses:
		pause = w.random.magnitude(ms, int64(3*p.table.Lease))
	}
	w.schedule(h, s, pause)
}

func (w *world) acquire(h *host, s *session) {
	p := &w.plan
	r := &w.random
	if len(s.pend) > 3 {
		return
	}
	n := int(r.below(int64(p.names)))
	req := protocol.Acquire{Name: lockNames[n], WaitMS: protocol.Forever}
	if p.finiteWaits {
		switch r.below(4) {
		case 0:
			req.WaitMS = 0
		case 1:
			req.WaitMS = r.magnitude(1, 2*p.think/ms+50)
		}
	}
	if p.owners && !r.oneIn(4) {
		req.Owner = uint64(r.between(1, 2))
		req.NotReentrant = p.notReentrant && r.oneIn(3)
	}
	if p.fixedLease && r.oneIn(3) {
		req.LeaseMS = r.magnitude(protocol.MinLeaseMS, int64(2*p.table.Lease)/ms)
	}
	if p.maxHold && r.oneIn(4) {
		req.MaxHoldMS = r.magnitude(1, int64(p.table.Lease)/ms)
	}
	if p.crashDelay && r.oneIn(2) {
		req.CrashDelayMS = r.magnitude(1, int64(p.table.Lease)/ms*3/2)
	}
	w.send(h, s, n, req)
}

// send sends an acquire.
func (w *world) send(h *host, s *session, n int, req protocol.Acquire) {
	s.lastID++
	req.ID = s.lastID
	now := h.clock(w.now)
	w.order++
	q := pending{id: req.ID, kind: reqAcquire, name: int8(n), acquire: req, order: w.order, arrived: now}
	w.checkArrival(h, s, &q)
	q.mayDeadlock = q.mayDeadlock || h.dying // there are grants that nobody has seen yet
	s.pend = append(s.pend, q)
	w.pendings++
	if req.WaitMS == 0 {
		h.tries++
	}
	if w.trace.on {
		w.trace.add(w, n, h, "s%d acquire id=%d owner=%d wait=%d lease=%d max_hold=%d crash_delay=%d reentrant=%v",
			s.id, req.ID, req.Owner, req.WaitMS, req.LeaseMS, req.MaxHoldMS, req.CrashDelayMS, !req.NotReentrant)
	}
	h.table.Acquire(now, s.id, req)
	w.drain(h)
	if !h.dying {
		w.checkDeadlock(h, s, req.ID)
	}
}

func (w *world) release(h *host, s *session, n int) {
	c := &h.names[n].hold
	req := protocol.Release{Hold: c.num}
	now := h.clock(w.now)
	q := pending{kind: reqRelease, name: int8(n), target: c.num, count: c.count - 1}
	q.either = now >= c.told || c.maxEnd > 0 && now >= c.maxEnd
	if w.random.oneIn(2) || q.either {
		s.lastID++
		req.ID = s.lastID
		q.id = req.ID
		s.pend = append(s.pend, q)
	}
	if w.trace.on {
		w.trace.add(w, n, h, "s%d release id=%d hold=%d", s.id, req.ID, req.Hold)
	}
	if !q.either {
		// The client believes no longer from here on, whatever is answered.
		if c.count--; c.count == 0 {
			w.endHold(h, n)
		}
	}
	h.table.Release(now, s.id, req)
	w.drain(h)
}

// confirm asks when Redis has executed the releases of a lock.
func (w *world) confirm(h *host, s *session, n int) {
	if h.dying || !s.open || len(s.pend) > 5 {
		return
	}
	s.lastID++
	s.pend = append(s.pend, pending{id: s.lastID, kind: reqConfirm, name: int8(n)})
	if w.trace.on {
		w.trace.add(w, n, h, "s%d confirm id=%d", s.id, s.lastID)
	}
	h.table.Confirm(h.clock(w.now), s.id, protocol.Confirm{ID: s.lastID, Name: lockNames[n]})
	w.drain(h)
}

// anyConfirms tells whether a confirm is not answered.
func (w *world) anyConfirms() bool {
	for _, h := range w.hosts {
		for i := range h.sessions {
			for j := range h.sessions[i].pend {
				if h.sessions[i].pend[j].kind == reqConfirm {
					return true
				}
			}
		}
	}
	return false
}

// releaseStale releases what is over, or somebody else's: nothing may change.
func (w *world) releaseStale(h *host, s *session) {
	num := s.stale[w.random.below(4)]
	if w.random.oneIn(3) {
		if c := &h.names[w.random.below(int64(w.plan.names))].hold; c.state != none && c.session != s.id {
			num = c.num
		}
	}
	for n := range w.plan.names { // its end may have died with the sidecar
		if c := &h.names[n].hold; c.num == num && c.session == s.id && c.state != none && c.state != orphan {
			return
		}
	}
	if num == 0 {
		return
	}
	s.lastID++
	s.pend = append(s.pend, pending{id: s.lastID, kind: reqRelease, name: -1, target: num, want: protocol.NotHeld})
	if w.trace.on {
		w.trace.add(w, -1, h, "s%d release id=%d hold=%d (not its own)", s.id, s.lastID, num)
	}
	h.table.Release(h.clock(w.now), s.id, protocol.Release{ID: s.lastID, Hold: num})
	w.drain(h)
}

func (w *world) cancel(h *host, s *session) {
	target := s.lastID
	name := int8(-1)
	if i := w.waiting(s); i >= 0 && !w.random.oneIn(4) {
		target, name = s.pend[i].id, s.pend[i].name
	}
	if target == 0 {
		return
	}
	s.lastID++
	s.pend = append(s.pend, pending{id: s.lastID, kind: reqCancel, name: name, target: target})
	if w.trace.on {
		w.trace.add(w, int(name), h, "s%d cancel id=%d target=%d", s.id, s.lastID, target)
	}
	h.table.Cancel(h.clock(w.now), s.id, protocol.Cancel{ID: s.lastID, Target: target})
	w.drain(h)
}

func (w *world) forceRelease(h *host, s *session) {
	n := int(w.random.below(int64(w.plan.names)))
	c := &h.names[n].hold
	now := h.clock(w.now)
	s.lastID++
	q := pending{id: s.lastID, kind: reqForce, name: int8(n), target: c.num}
	if c.state == none {
		q.want = protocol.NotHeld
	} else {
		q.either = !h.names[n].protected(now) || c.maxEnd > 0 && now >= c.maxEnd
		w.check.forcing = c.num
	}
	if c.state == away || c.state == stale { // its host knows it longer than its client
		q.either = true
	}
	s.pend = append(s.pend, q)
	if w.trace.on {
		w.trace.add(w, n, h, "s%d force_release id=%d", s.id, s.lastID)
	}
	h.table.ForceRelease(now, s.id, protocol.ForceRelease{ID: s.lastID, Name: lockNames[n]})
	w.drain(h)
	if !h.dying {
		w.check.forcing = 0
	}
}

// look asks for rows, which must change nothing and say the truth.
func (w *world) look(h *host) {
	now := h.clock(w.now)
	n := int(w.random.below(int64(w.plan.names)))
	row, ok := h.table.Info(now, lockNames[n])
	w.checkRow(h, n, row, ok)
	h.table.List(now, 0, func(protocol.LockRow) bool { return true })
	w.drain(h)
}

func (w *world) close(h *host, s *session) {
	if w.trace.on {
		w.trace.add(w, -1, h, "close s%d", s.id)
	}
	w.forgetRequests(h, s)
	w.forgetClient(s)
	s.open = false
	w.closeTable(h, s.id)
	w.drain(h)
}

// closeTable closes a session in the table of its host, whose client is dead.
func (w *world) closeTable(h *host, id locktable.SessionID) {
	now := h.clock(w.now)
	for n := range w.plan.names {
		c := &h.names[n].hold
		if c.session != id || c.state == none || c.state == orphan {
			continue
		}
		crash := c.crash
		w.endHold(h, n)
		if crash > 0 {
			c.state = orphan
			c.keepUntil = now + crash
		}
	}
	h.closing++
	h.table.Close(now, id)
}

func (w *world) detach(h *host, s *session) {
	if w.trace.on {
		w.trace.add(w, -1, h, "detach s%d", s.id)
	}
	w.detached(h, s)
	h.table.Detach(h.clock(w.now), s.id)
	w.drain(h)
}

// detached has a session be one that is not served any more.
func (w *world) detached(h *host, s *session) {
	w.forgetRequests(h, s)
	w.forgetClient(s)
	s.detached = true
	now := h.clock(w.now)
	for n := range w.plan.names {
		c := &h.names[n].hold
		if c.session != s.id || !c.believed() && c.state != stale {
			continue
		}
		c.detachedAt = now
		if c.believed() {
			w.lives--
			c.state = unattended
		}
	}
}

func (w *world) forgetRequests(h *host, s *session) {
	for i := range s.pend {
		if s.pend[i].kind == reqAcquire {
			w.pendings--
			if s.pend[i].acquire.WaitMS == 0 {
				h.tries--
			}
		}
	}
	s.pend = s.pend[:0]
}

// ---- the foreign client

const foreignID = 100

// foreigner is a Redisson client: it takes, renews, releases and forces locks on
// its own account, and tells nobody.
type foreigner struct {
	id   redis.Owner
	name int8 // it holds, or waits for; -1: none
	num  uint64
}

func (w *world) foreignActs(f *foreigner) {
	again := event{kind: evForeign, arg: int32(f.id - foreignID)}
	if w.phase != stormy {
		return
	}
	if w.redis.down {
		w.after(100*ms, again)
		return
	}
	if f.name < 0 {
		f.name = int8(w.random.below(int64(w.plan.names)))
		f.num++
	}
	k := &w.redis.names[f.name].key
	w.expire(int(f.name))
	switch {
	case w.redis.names[f.name].overwritten:
		f.name = -1
	case w.random.oneIn(w.plan.foreignForce) && k.Owner >= 0:
		w.destroy(int(f.name), "forced by a foreign client")
		w.publish(int(f.name))
		f.name = -1
	case k.Owner == f.id:
		switch w.random.below(3) {
		case 0:
			k.ExpireAt = w.now + 30*sec
		default:
			if w.random.oneIn(w.plan.foreignDeaths) {
				f.name = -1
				break
			}
			w.setFree(int(f.name))
			w.publish(int(f.name))
			if w.trace.on {
				w.trace.add(w, int(f.name), nil, "foreign %d releases", f.id)
			}
			w.channel(int(f.name)).Unsubscribe(foreignSubscriber(f, int(f.name)))
			f.name = -1
		}
	case k.Owner < 0:
		k.Owner, k.Num, k.Count = f.id, f.num, 1
		k.ExpireAt = w.now + w.random.magnitude(10*ms, 5*sec)
		if w.random.oneIn(10) {
			k.ExpireAt = redis.NoExpiry
		}
		if w.random.oneIn(3) {
			w.incr(int(f.name))
		}
		w.channel(int(f.name)).Unsubscribe(foreignSubscriber(f, int(f.name)))
		if w.trace.on {
			w.trace.add(w, int(f.name), nil, "foreign %d takes until %s", f.id, clockString(k.ExpireAt))
		}
		w.changed(int(f.name))
	case w.plan.pollers:
		if w.random.oneIn(200) {
			f.name = -1
		}
		w.after(w.random.between(200*µs, 3*ms), again)
		return
	default:
		w.channel(int(f.name)).Subscribe(foreignSubscriber(f, int(f.name)))
		if w.random.oneIn(8) {
			w.channel(int(f.name)).Unsubscribe(foreignSubscriber(f, int(f.name)))
			f.name = -1
		}
	}
	w.after(w.random.magnitude(w.plan.think>>5, 2*w.plan.think), again)
}

// ---- faults

func (w *world) fault() {
	if w.phase != stormy {
		return
	}
	p := &w.plan
	r := &w.random
	w.after(r.magnitude(p.faultEvery>>4, 2*p.faultEvery), event{kind: evFault})
	h := w.hosts[r.below(int64(len(w.hosts)))]
	if r.oneIn(p.breaks) && !h.gone {
		w.breakConnection(h, false)
	}
	if r.oneIn(p.deafness) && !h.gone {
		w.breakSubscription(h)
	}
	if r.oneIn(p.restarts) && !w.redis.down {
		w.restart()
	}
	if r.oneIn(p.flushes) && !w.redis.down {
		for n := range p.names {
			w.destroy(n, "FLUSHALL")
			w.loseCounter(n, redis.Counter{})
		}
	}
	if r.oneIn(p.deletions) && !w.redis.down {
		n := int(r.below(int64(p.names)))
		w.destroy(n, "deleted by an operator")
		if r.oneIn(4) {
			w.loseCounter(n, redis.Counter{})
		}
	}
	if p.refused > 0 && r.oneIn(20) {
		n := r.below(int64(p.names))
		w.redis.names[n].refused = true
		w.after(r.magnitude(ms, 5*sec), event{kind: evMended, name: int8(n)})
	}
	if r.oneIn(p.overwrites) && !w.redis.down {
		n := r.below(int64(p.names))
		w.destroy(int(n), "overwritten with a string")
		w.redis.names[n].overwritten = true
		w.after(r.magnitude(ms, 5*sec), event{kind: evMended, name: int8(n)})
	}
	if r.oneIn(p.brokenCounters) {
		n := r.below(int64(p.names))
		w.redis.names[n].broken = true
		w.after(r.magnitude(ms, 2*h.longest), event{kind: evMended, name: int8(n)})
	}
	if r.oneIn(p.crashes) && !h.gone && !h.frozen {
		w.crash(h)
	}
	if r.oneIn(p.sidecarDeaths) && !h.gone && !h.frozen && len(w.hosts) < maxHosts {
		h.keeper.whole, h.keeper.full = false, false
		w.crash(h)
	}
	if r.oneIn(p.stops) && !h.gone && !h.frozen && !h.stopping {
		w.stop(h)
	}
	if r.oneIn(p.stalls) && !h.frozen && !h.left {
		w.freeze(h, r.magnitude(ms, h.lease/3))
	}
	if r.oneIn(p.suspends) && !h.frozen && !h.left {
		w.freeze(h, r.magnitude(maxLateness, 4*h.longest))
	}
	if r.oneIn(p.jumps) && !w.redis.down {
		d := r.magnitude(ms, 2*h.longest)
		if r.oneIn(2) {
			d = -d
		}
		w.jump(d)
	}
	if p.restarts > 0 && !w.redis.down && r.oneIn(3) {
		w.redis.snapshot = w.redis.names // the replica has caught up
	}
}

// calm ends all trouble: from here on every request must come to its end.
func (w *world) calm() {
	if w.trace.on {
		w.trace.add(w, -1, nil, "no more faults from here on")
	}
	w.phase = settling
	w.plan.latency = min(w.plan.latency, 5*ms)
	w.plan.slow = w.plan.latency
	w.plan.slowOps, w.plan.busy, w.plan.refused, w.plan.unsent, w.plan.untaught, w.plan.lostMessages = 0, 0, 0, 0, 0, 0
	for n := range w.plan.names {
		w.mend(n)
		w.endForeignWaits(n)
		if k := &w.redis.names[n].key; k.Owner >= foreignID {
			w.setFree(n)
			w.publish(n)
		}
	}
	waiters := int64(0)
	for _, h := range w.hosts {
		if h.frozen {
			h.thawAt = w.now
			w.thaw(h)
		}
		for i := range h.sessions {
			waiters += int64(len(h.sessions[i].resend))
		}
		if h.gone {
			continue
		}
		w.settle(h)
		for i := range h.sessions {
			s := &h.sessions[i]
			if s.open && (s.detached || s.forsaken) {
				w.close(h, s)
			}
			waiters += int64(len(s.pend))
			if w.held(h, s) >= 0 {
				w.schedule(h, s, w.pause())
			}
		}
	}
	// Dead holders' keys run out, then everybody has a turn, at worst found by polling.
	longest := w.longestLease()*6 + w.redis.jumped + 20*sec
	w.deadline = w.now + longest + (waiters+int64(w.plan.names))*(w.poll()+sec)
	w.after(w.deadline-w.now+1, event{kind: evQuiet})
}

func (w *world) longestLease() int64 {
	return max(int64(w.plan.table.Lease), int64(w.plan.otherLease))
}

func (w *world) poll() int64 { return 5 * sec }

func (w *world) closeAll() {
	w.phase = closing
	linger := int64(10 * sec)
	if w.plan.table.SubscriptionLinger > 0 {
		linger = int64(w.plan.table.SubscriptionLinger)
	}
	for _, h := range w.hosts {
		if h.gone {
			continue
		}
		w.settle(h)
		for i := range h.sessions {
			if s := &h.sessions[i]; s.open {
				w.close(h, s)
			}
		}
	}
	w.deadline = w.now + 4*w.longestLease() + linger + 2*w.poll() + w.redis.jumped
	w.after(w.deadline-w.now, event{kind: evQuiet})
}
