package sim

import (
	"fmt"
	"math"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// The world: hosts with one table each, their clients, one Redis, and everything that
// fails between them. A checker compares what clients know with what Redis has whenever
// either changes (check.go).

const (
	maxLocks = 8
	maxNames = maxLocks + 1
	maxHosts = 6

	semaphore = maxLocks // its name; the others are of locks

	// A table is woken at most maxLateness too late, and its wheel has ticks: what must
	// happen "at" a time on a host happens within eps after it.
	maxLateness = 20 * ms
	eps         = maxLateness + 25*ms
)

var lockNames = [maxNames]string{"lock-0", "lock-1", "lock-2", "lock-3", "lock-4", "lock-5", "lock-6", "lock-7", "permits-8"}

func nameIndex(name string) int {
	n := int(name[len(name)-1] - '0')
	if n < 0 || n >= maxNames || lockNames[n] != name {
		panic(fmt.Sprintf("a lock that no client requested: %q", name))
	}
	return n
}

// world is one run of the simulation.
type world struct {
	engine
	seed     uint64
	plan     plan
	steps    int
	redis    redisServer
	hosts    []*host
	redisson []redissonClient

	counterExpiry int64 // of token counters

	lossless bool  // the plan has no faults
	ordered  bool  // see plan.isOrdered
	slowest  int64 // longest way between a host and Redis

	ops          []operation
	freeOps      []int32
	commands     []command
	freeCommands []int32
	executing    int32 // the command that a server executes
	did          int   // operations that servers executed
	reader       server.Reader
	bytes        []byte // to be used again

	spareDeliveries []pipeline.Delivery // the same
	spareResults    [][]redisop.Result  // the same
	items           server.Items        // the same
	channel         redis.Channel       // the same
	command         redis.Command       // the same
	publishing      nodeID              // that executes an operation
	receivers       func(sidecar redis.Owner) int32

	prefixes []string         // of owner fields
	channels [maxNames]string // of locks
	slots    [maxNames]uint16 // of locks, in a Cluster

	newTable tableMaker

	arrivesByClock   bool // a mutant: a new ticket gets its place by Redis's clock alone
	lowersLateScores bool // a mutant: a ticket that is asked for again gets Redis's clock if that is earlier

	phase    phase
	deadline int64  // of the phase
	arrivals uint64 // acquires so far
	waiting  int    // acquires without an answer, on all hosts
	believed int    // holds that a client believes in and will be notified of the end of

	permits permitsWorld
	check   checker
	trace   tracer
}

// phase is a part of a run.
type phase uint8

const (
	faulty   phase = iota // faults, and new requests. Ends after plan.steps.
	draining              // no faults and no new requests; clients release. Ends when nothing waits and nothing is held.
	closing               // all sessions are closed. Ends when everything must have expired.
	finished
)

// What happens in a world.
const (
	evExec           eventKind = iota // a command reaches its server
	evReply                           // something that a server sent reaches the host
	evAdvance                         // the Machine of a connection has something due
	evNotSent                         // the store returns operations that it did not send
	evConnectionLost                  // the store detects that its connection is dead
	evFailInFlight                    // the store fails what the dead connection carried
	evConnect                         // the store tries to connect
	evConnected                       // and has done so
	evTopology                        // the host looks at its Map of the Cluster
	evAnswered                        // a node answered which nodes have the slots
	evSpread                          // a node learns the state of the Cluster
	evTaken                           // a node takes a slot that another one gave up
	evMoveKey                         // a key of a slot that migrates is moved, or the slot is
	evPromoted                        // the spare has taken over the slots of another
	evClient                          // a client acts
	evOpen                            // a client connects
	evRedisson                        // a Redisson client acts
	evFault                           // faults are drawn
	evRedisUp                         // Redis has restarted
	evRepair                          // the faults of a name in Redis end
	evStart                           // a sidecar is started again
	evExit                            // a sidecar that was stopped has finished
	evReturn                          // a client finds its sidecar gone, and tries to resume its session
	evClaim                           // a client that has resumed claims what it holds
	evAbandon                         // the sidecar stops waiting for a client
	evResume                          // a suspended host resumes
	evNothing                         // the world looks whether the phase has ended
)

// tableMaker makes the table of a host.
type tableMaker func(cfg locktable.Config, now int64) lockTable

// lockTable is what the world needs of a table. A mutant has the same methods (mutant.go).
type lockTable interface {
	Open(now int64, s locktable.SessionID, p locktable.Peer)
	Close(now int64, s locktable.SessionID)
	Suspend(now int64, s locktable.SessionID)
	Acquire(now int64, s locktable.SessionID, req protocol.Acquire)
	AcquirePermits(now int64, s locktable.SessionID, req protocol.AcquirePermits)
	AcquireReadWrite(now int64, s locktable.SessionID, mode locktable.Mode, req protocol.Acquire)
	Release(now int64, s locktable.SessionID, req protocol.Release)
	Downgrade(now int64, s locktable.SessionID, req protocol.Downgrade)
	Cancel(now int64, s locktable.SessionID, req protocol.Cancel)
	ForceRelease(now int64, s locktable.SessionID, req protocol.ForceRelease)
	Route(now int64, ranges []redisop.SlotRange)
	Up(now int64, n redisop.Shard, dataLost, isListening bool)
	Down(now int64, n redisop.Shard, why string)
	Result(now int64, r redisop.Result)
	Subscribed(now int64, n redisop.Shard, name string)
	Unsubscribed(now int64, n redisop.Shard, name string)
	Message(now int64, m redisop.Message)
	Confirm(now int64, s locktable.SessionID, req protocol.Confirm)
	Advance(now int64)
	Work(now int64)
	Next() (at int64, ok bool)
	Busy() bool
	Effects() []locktable.Effect
	RetryJournal()
	Unstored() int
	Restore(now int64, m *locktable.Snapshot)
	Record(s locktable.SessionID) locktable.SessionRecord
	Resume(s locktable.SessionID, p locktable.Peer)
	Claim(now int64, s locktable.SessionID, req *protocol.Claim) (fault string)
	DropWaiters(now int64)
	Holds(s locktable.SessionID) int
	Info(now int64, name string) (protocol.LockRow, bool)
	Text(now int64, name string) string
	List(now int64, after uint64, yield func(protocol.LockRow) bool) (next uint64)
	Audit() error
	Users(now int64) int
}

func newWorld(seed uint64, newTable tableMaker) *world {
	w := &world{seed: seed, newTable: newTable}
	w.random.Seed(seed, planStream)
	w.plan = drawPlan(seed, &w.random)
	w.plan.drawPermits(seed)
	w.lossless = w.plan.isLossless()
	w.ordered = w.plan.isOrdered()
	w.slowest = max(w.plan.latency, w.plan.slow)
	w.counterExpiry = counterExpiry
	if w.plan.shortCounters {
		w.counterExpiry = 10 * sec
	}
	w.check.init()
	w.permits.random.Seed(seed, permitsStream+1)
	w.permits.tokens = make(map[uint64]bool)
	w.initNames()
	w.initRedis()
	if w.plan.cluster {
		w.initCluster()
	}
	for n := range w.plan.names {
		w.redis.names[n].deniedChannel = w.random.oneIn(w.plan.deniedChannels)
	}
	for range w.plan.hosts {
		w.addHost()
	}
	for i := range w.plan.redissonClients {
		w.redisson = append(w.redisson, redissonClient{id: firstRedisson + redis.Owner(i), name: -1})
		w.after(w.random.below(100*ms), event{kind: evRedisson, arg: int32(i)})
	}
	if w.plan.faultEvery > 0 {
		w.after(w.random.below(2*w.plan.faultEvery), event{kind: evFault})
	}
	return w
}

// initNames makes the names that the store and the servers use.
func (w *world) initNames() {
	w.reader.Keys, w.receivers = wire.NewKeyspace(""), w.receiversOf
	for i := range maxHosts {
		w.prefixes = append(w.prefixes, uuidOf(i, w.plan.olderHost)+":")
	}
	for n, name := range lockNames {
		w.channels[n], w.slots[n] = w.reader.Keys.Channel(name), w.reader.Keys.SlotOf(name)
	}
}

// run runs the world to its end. It panics with a violation.
func (w *world) run() {
	for w.phase != finished {
		w.step()
	}
}

func (w *world) step() {
	at, ok := w.queue.next()
	if !ok {
		at = math.MaxInt64
	}
	var waking *host
	for _, h := range w.hosts {
		if !h.asleep && h.wakeAt < at {
			at, waking = h.wakeAt, h
		}
	}
	at = max(at, w.now)
	w.now = at
	w.steps++
	if waking != nil {
		w.wake(waking)
	} else if ok {
		w.handle(w.queue.pop())
	}
	if w.steps&31 == 0 {
		w.audit()
	}
	w.endPhase(at == math.MaxInt64)
}

// endPhase begins the next phase if this one has ended. idle: nothing will happen any more.
func (w *world) endPhase(idle bool) {
	switch w.phase {
	case faulty:
		if w.steps >= w.plan.steps {
			w.endFaults()
		}
	case draining:
		if w.waiting == 0 && w.believed == 0 && w.allBack() && !w.confirmsWait() {
			w.closeAll()
		} else if w.now > w.deadline || idle {
			w.reportStuck()
		}
	case closing:
		if w.now >= w.deadline {
			w.checkEmpty()
			w.phase = finished
		}
	}
}

// handle handles one event.
func (w *world) handle(e event) {
	var h *host
	switch e.kind {
	case evExec, evRedisson, evFault, evRedisUp, evPromoted, evSpread, evTaken, evMoveKey, evRepair, evNothing:
	default:
		h = w.hosts[e.host]
		if h.suspended && e.kind != evResume {
			h.deferred = append(h.deferred, e)
			return
		}
	}
	switch e.kind {
	case evExec:
		w.arrive(e.arg)
	case evReply:
		w.onReply(h, e)
	case evAdvance:
		w.onAdvance(h, e)
	case evNotSent:
		w.onNotSent(h, e)
	case evConnectionLost:
		w.onConnectionLost(h, redisop.Shard(e.shard), e.gen)
	case evFailInFlight:
		if s := redisop.Shard(e.shard); e.gen == h.conns[s].gen {
			w.handHeld(h, s)
		}
	case evConnect:
		w.connect(h, redisop.Shard(e.shard), e)
	case evConnected:
		w.onConnected(h, e)
	case evTopology:
		w.onTopology(h, e)
	case evAnswered:
		w.onAnswered(h, e)
	case evSpread:
		w.onSpread(nodeID(e.arg))
	case evTaken:
		w.onTaken(int(e.name), nodeID(e.arg))
	case evMoveKey:
		w.moveKey(int(e.name))
	case evPromoted:
		w.onPromoted(nodeID(e.arg))
	case evClient:
		s := &h.sessions[e.arg]
		if s.gen != e.gen {
			return
		}
		s.scheduled = false
		if h.isDown() || s.link != connected {
			return
		}
		w.drainDeferred(h)
		w.act(h, s)
	case evOpen:
		switch s := &h.sessions[e.arg]; {
		case h.process == abandoned || w.phase != faulty || s.open || s.link != connected:
		case h.process != serving: // the client tries until there is a sidecar again
			w.after(w.random.between(ms, 200*ms), e)
		default:
			w.drainDeferred(h)
			w.open(h, int(e.arg))
		}
	case evRedisson:
		w.redissonActs(&w.redisson[e.arg])
	case evFault:
		w.drawFaults()
	case evRedisUp:
		w.onRedisUp(nodeID(e.arg))
	case evRepair:
		w.repair(int(e.name))
	case evStart:
		w.start(h)
	case evExit:
		if h.process == stopping && uint32(h.life) == e.gen {
			w.exit(h)
		}
	case evReturn:
		w.comesBack(h, &h.sessions[e.arg], e)
	case evClaim:
		w.claimNext(h, &h.sessions[e.arg], e)
	case evAbandon:
		w.onAbandon(h, &h.sessions[e.arg], e)
	case evResume:
		w.resume(h)
	}
}

// longestLease is the longest that any sidecar of the world has configured.
func (w *world) longestLease() int64 {
	return max(int64(w.plan.table.Lease), int64(w.plan.otherLease))
}

// pollInterval is the longest time between two attempts of a table to take a lock.
const pollInterval = 6250 * ms

// endFaults ends all faults: from here on every request must be answered.
func (w *world) endFaults() {
	if w.trace.on {
		w.trace.add(w, -1, nil, "no more faults from here on")
	}
	w.phase = draining
	p := &w.plan
	p.latency = min(p.latency, 5*ms)
	p.slow = p.latency
	p.slowOps, p.busy, p.denied, p.unsent, p.unknownScript, p.lostMessages, p.unsynced = 0, 0, 0, 0, 0, 0, 0
	w.abandonAll(0)
	for n := range p.names {
		w.repair(n)
		w.endRedissonWaits(n)
		if k := &w.redis.names[n].key; k.Owner >= firstRedisson {
			w.freeKey(n)
			w.publish(n)
		}
	}
	waiters, keeps := int64(0), int64(0)
	for _, h := range w.hosts {
		if h.suspended {
			h.resumeAt = w.now
			w.resume(h)
		}
		for i := range h.sessions {
			waiters += int64(len(h.sessions[i].resend))
			for _, q := range h.sessions[i].resend {
				keeps += q.acquire.KeepMS * ms
			}
		}
		if h.isDown() {
			continue
		}
		w.drainDeferred(h)
		for i := range h.sessions {
			s := &h.sessions[i]
			if s.open && (s.detached || s.willNotReturn) {
				w.close(h, s)
			}
			waiters += int64(len(s.requests))
			for _, q := range s.requests {
				keeps += q.acquire.KeepMS * ms
			}
			if w.findHeld(h, s) >= 0 || w.findPermit(h, s) != nil {
				w.schedule(h, s, w.pause())
			}
		}
	}
	// The keys of dead holders expire. Then every waiter gets the lock, at worst because its
	// host polls.
	longest := w.longestLease()*6 + w.redis.jumpedBack + 20*sec
	w.deadline = w.now + longest + keeps + (waiters+int64(p.names))*(pollInterval+sec)
	w.after(w.deadline-w.now+1, event{kind: evNothing})
}

// closeAll closes all sessions. Soon nothing must be left of them.
func (w *world) closeAll() {
	w.phase = closing
	linger := int64(10 * sec)
	if w.plan.table.Contest.SubscriptionLinger > 0 {
		linger = int64(w.plan.table.Contest.SubscriptionLinger)
	}
	for _, h := range w.hosts {
		if h.isDown() {
			continue
		}
		w.drainDeferred(h)
		for i := range h.sessions {
			if s := &h.sessions[i]; s.open {
				w.close(h, s)
			}
		}
	}
	w.deadline = w.now + 4*w.longestLease() + linger + 2*pollInterval + w.redis.jumpedBack
	w.after(w.deadline-w.now, event{kind: evNothing})
}

// allBack reports whether every sidecar that will run runs, and every client that will
// return has done so.
func (w *world) allBack() bool {
	for _, h := range w.hosts {
		if h.process == abandoned {
			continue
		}
		if h.process != serving {
			return false
		}
		for i := range h.sessions {
			if h.sessions[i].link != connected {
				return false
			}
		}
	}
	return true
}
