package sim

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// plan is what one seed makes possible in a world. Not everything at once: a bug that needs
// two faults to meet is found sooner in a world without the other twenty.
type plan struct {
	steps             int // with faults; the steps without faults at the end are not counted
	hosts, names      int
	sessions          int // per host
	table             locktable.Config
	latency, slow     int64 // longest way between a host and Redis; and of the rare slow ones
	thinkTime         int64 // longest pause of a client between two actions
	redissonClients   int
	halfDuplex        bool // a batch is sent when the one before it is answered
	batches           pipeline.Batches
	timeout           time.Duration // of the store: of silence while an answer is owed
	probes            time.Duration // of the store: between two of them; 0: none
	loads             bool          // SCRIPT LOAD is permitted
	pushesLast        bool          // what a script publishes to its own connection comes after its reply
	clockDrift        bool
	lateWakeups       bool
	batchedInputs     bool // a loop may read several inputs before it carries out their effects
	numsubFails       bool // Redis may not tell how many are subscribed
	oneScriptPerBatch bool
	sharedCounters    bool // the first two names have one counter and one channel
	durable           bool // a replica confirms operations, and no failover excuses anything
	cluster           bool // each lock is in one of two nodes
	oneNodeFails      bool // in a Cluster: all faults are in node 1, and no slot moves

	clocks [worldNodes - 1]int64 // of the nodes of a Cluster: how far they are ahead of the world's

	// What clients do.
	owners, notReentrant, fixedLease, maxHold, crashDelay  bool
	keep                                                   int64 // one acquire in so many has a keep; 0: none
	finiteWaits, cancels, forces, deaths, detaches, pauses bool
	confirms                                               bool
	fair                                                   int64 // one acquire in so many wants strict order; 0: none
	polling                                                bool  // Redisson clients do not subscribe

	// Faults: once in so many opportunities; 0: never.
	slowOps, busy                                                int64 // of commands
	denied                                                       int64 // of locks
	unsent                                                       int64 // of the times at which a host sends operations: its connection ends before
	unknownScript                                                int64 // of runs of scripts: the server has forgotten them
	commandBreaks, redisRestarts                                 int64 // of the times at which faults are drawn
	roleChanges                                                  int64 // of the times at which faults are drawn: another server becomes the master, and connections stay
	flushes, deletions, stateLosses                              int64
	redissonForces, redissonDeaths                               int64 // of the actions of a Redisson client
	lostMessages                                                 int64 // of messages
	deniedChannels                                               int64 // of channels: the ACL denies to subscribe
	overwrites, brokenCounters, stalls, crashes, stops, suspends int64 // of the times at which faults are drawn
	clockJumps                                                   int64 // of Redis's clock
	faultEvery                                                   int64
	deafHost                                                     bool  // the first host may not subscribe
	deniedQueues                                                 bool  // the ACL denies the queues of sidecars
	namelessServers                                              bool  // servers do not tell their run ids
	olderHost                                                    bool  // the first host has the uuid of an older sidecar: messages to it have no origin
	unsynced                                                     int64 // of the WAITs in a durable world: the replica does not confirm
	lateOps                                                      bool  // what a broken connection carried may still reach Redis
	killsOld                                                     bool  // a host that connects ends its former connection
	disagreements, newAddresses, lateAnswers                     int64 // in a Cluster: of the moves of slots, the servers that start, and the answers of nodes
	asksUnsubscribe                                              bool  // in a Cluster: see server.Server
	openings                                                     int64 // in a Cluster, the same: a slot begins to migrate key by key
	migrations, promotions, nodeStalls                           int64 // in a Cluster, of the times at which faults are drawn: a slot is migrated; the spare takes over a node; a node stalls

	// Restarts of sidecars.
	longHolds     bool          // clients hold many locks, and for long
	longDowntimes bool          // some last longer than leases
	returnTime    int64         // longest that a client takes to come back
	otherLease    time.Duration // configured for some of the successors; 0: none
	journalRoom   int           // locks that a journal has room for; 0: enough
	notResumable  bool          // some clients
	shortCounters bool          // token counters expire soon after their last use

	permits      int  // of the semaphore; 0: there is none
	readWrite    bool // it is a read/write lock instead
	mixedPermits bool // some requests name a larger capacity
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
		UID:     1002,
		Lease:   leases[r.below(int64(len(leases)))],
		Contest: contest.Config{SubscriptionLinger: time.Duration(r.magnitude(50*ms, 10*sec))},
		Seed:    seed,
	}
	if r.oneIn(3) {
		p.table.MaxWork = int(r.between(1, 3))
	}
	if r.oneIn(2) {
		p.table.Tokens = int(r.between(1, 8))
		p.table.Contest.HandoffTime = time.Duration(r.magnitude(5*ms, 500*ms))
	}
	switch r.below(4) {
	case 0:
		p.table.Contest.Turn = moment.SpanOf(0)
	case 1:
		p.table.Contest.Turn = moment.SpanOf(time.Duration(r.magnitude(100*µs, 20*ms)))
	}
	switch r.below(4) {
	case 0:
		p.table.Contest.Linger = moment.SpanOf(0)
	case 1:
		p.table.Contest.Linger = moment.SpanOf(time.Duration(r.magnitude(ms, 20*ms)))
	}
	if r.oneIn(12) {
		p.table.MaxLocks = int(r.between(1, 4))
		p.table.MaxHolds = int(r.between(1, 3))
		p.table.MaxWaiters = int(r.between(1, 3))
	}
	p.latency = r.magnitude(100*µs, 50*ms)
	p.thinkTime = r.magnitude(ms, 2*sec)
	p.halfDuplex = r.oneIn(3)
	p.clockDrift = r.oneIn(2)
	p.lateWakeups = r.oneIn(2)
	p.batchedInputs = r.oneIn(3)
	p.owners = r.usually(3)
	p.notReentrant = r.oneIn(3)
	p.fixedLease = r.oneIn(2)
	p.maxHold = r.oneIn(3)
	p.crashDelay = r.oneIn(2)
	p.drawKeeps(seed)
	p.finiteWaits = r.usually(3)
	p.cancels = r.oneIn(2)
	p.forces = r.oneIn(3)
	p.deaths = r.oneIn(2)
	p.detaches = r.oneIn(4)
	p.pauses = r.oneIn(3)
	p.confirms = r.oneIn(2)
	switch r.below(4) {
	case 0:
		p.fair = 1
	case 1:
		p.fair = r.between(2, 5)
	}
	p.oneScriptPerBatch = r.oneIn(2)
	p.sharedCounters = p.names > 1 && r.oneIn(4)
	if r.oneIn(3) {
		p.redissonClients = int(r.between(1, 2))
		p.polling = r.oneIn(2)
		if r.oneIn(4) {
			p.redissonForces = 40
		}
		if r.oneIn(3) {
			p.redissonDeaths = 6
		}
	}
	if r.oneIn(4) {
		if p.redissonClients > 0 && r.oneIn(2) {
			// Tickets leave a queue in which more of them wait for a program than listen to its
			// release.
			p.hosts, p.names, p.sharedCounters, p.finiteWaits, p.cancels = 3, 1, false, true, true
			p.redissonClients, p.polling, p.redissonForces = 1, true, 0
			p.latency, p.thinkTime = r.magnitude(100*µs, ms), r.magnitude(100*ms, sec)
			p.table.Contest.SubscriptionLinger = 50 * time.Millisecond
		}
		p.drawCluster(seed)
		p.drawClocks(seed)
		p.drawOpenings(seed)
		p.drawNodes(seed)
		p.drawStore(seed)
		return p // a world without faults
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
	p.denied = rarely(6, 50, 1000)
	p.unsent = rarely(4, 20, 500)
	p.commandBreaks = rarely(2, 1, 8)
	p.redisRestarts = rarely(4, 4, 20)
	p.flushes = rarely(5, 4, 20)
	p.deletions = rarely(5, 2, 10)
	p.stateLosses = rarely(5, 5, 20)
	p.lostMessages = rarely(4, 2, 30)
	p.lateOps = r.oneIn(2)
	p.killsOld = r.oneIn(2)
	p.numsubFails = r.oneIn(5)
	p.deniedChannels = rarely(8, 1, 4)
	p.deafHost = r.oneIn(10)
	p.deniedQueues = r.oneIn(12)
	p.overwrites = rarely(6, 2, 20)
	p.brokenCounters = rarely(6, 2, 20)
	p.stalls = rarely(5, 1, 6)
	p.faultEvery = r.magnitude(20*ms, 5*sec)
	if r.oneIn(2) {
		p.crashes = r.magnitude(2, 60)
		p.stops = rarely(2, 2, 10)
		if p.longHolds = r.oneIn(2); p.longHolds {
			p.names = int(r.between(3, maxLocks))
		}
		p.longDowntimes = r.oneIn(3)
		p.returnTime = r.magnitude(5*ms, 2*int64(p.table.Lease))
		p.notResumable = r.oneIn(4)
		if r.oneIn(5) {
			p.otherLease = leases[r.below(int64(len(leases)))]
			p.killsOld = true // a late command of the process before would bring its lease back
		}
		if r.oneIn(12) {
			p.journalRoom = int(r.between(1, 3))
		}
	}
	p.suspends = rarely(6, 2, 12)
	p.clockJumps = rarely(6, 2, 12)
	p.shortCounters = r.oneIn(5)
	p.unknownScript = rarely(3, 2, 100)
	p.drawRoleChanges(seed)
	p.drawDurability(seed)
	p.drawCluster(seed)
	p.drawClocks(seed)
	p.drawOpenings(seed)
	p.drawNodes(seed)
	p.drawStore(seed)
	return p
}

const storeStream = 0x73746f72

// drawStore draws the limits of the store. It has random numbers of its own, like drawRoleChanges.
func (p *plan) drawStore(seed uint64) {
	var r random
	r.Seed(seed, storeStream)
	p.batches = pipeline.DefaultBatches
	p.batches.NearRTT = 0
	if !p.oneScriptPerBatch {
		p.batches.Renewals, p.batches.Deletes, p.batches.Others = 1, 1, 1
	} else if r.oneIn(3) {
		p.batches.Renewals, p.batches.Deletes, p.batches.Others = int(r.between(1, 3)), int(r.between(1, 3)), int(r.between(1, 3))
	}
	switch {
	case p.halfDuplex:
		p.batches.InFlight = 1
	case r.oneIn(3):
		p.batches.NearRTT, p.batches.NearCalls = math.MaxInt64-1, int(r.between(1, 3))
	case r.oneIn(3):
		p.batches.InFlight = int(r.between(1, 4))
	}
	p.timeout = time.Hour
	p.loads, p.pushesLast = r.usually(4), r.oneIn(2)
	if p.isLossless() {
		return
	}
	if r.oneIn(3) {
		p.timeout = time.Duration(r.magnitude(sec, 10*sec))
	}
	if r.oneIn(4) {
		p.probes = time.Duration(r.magnitude(sec, 30*sec))
	}
}

const permitsStream = 0x7065726d

// drawPermits has random numbers of its own, like drawRoleChanges. The other worlds are as they were.
func (p *plan) drawPermits(seed uint64) {
	var r random
	r.Seed(seed, permitsStream)
	if r.oneIn(6) || p.clocks != [worldNodes - 1]int64{} || p.olderHost || p.table.MaxLocks > 0 || p.journalRoom > 0 {
		return
	}
	p.permits, p.mixedPermits = int(r.magnitude(1, 12)), r.oneIn(4)
	r.Seed(seed, readWriteStream)
	p.readWrite = !p.cluster && r.oneIn(3)
}

const readWriteStream = 0x72656164

const keepStream = 0x6b656570

// drawKeeps has random numbers of its own, like drawRoleChanges.
func (p *plan) drawKeeps(seed uint64) {
	var r random
	r.Seed(seed, keepStream)
	if r.oneIn(4) {
		p.keep = r.between(1, 4)
	}
}

const durableStream = 0x64757261

// drawDurability has random numbers of its own, like drawRoleChanges.
func (p *plan) drawDurability(seed uint64) {
	var r random
	r.Seed(seed, durableStream)
	if !r.oneIn(4) {
		return
	}
	p.durable, p.table.Durable = true, true
	p.redisRestarts = r.magnitude(1, 10)
	if r.usually(3) {
		p.unsynced = r.magnitude(1, 50)
	}
	if r.oneIn(2) { // between an operation and its WAIT, too
		p.commandBreaks = r.magnitude(1, 4)
	}
}

const clusterStream = 0x636c7573

// drawCluster has random numbers of its own, like drawRoleChanges.
func (p *plan) drawCluster(seed uint64) {
	var r random
	r.Seed(seed, clusterStream)
	if !r.oneIn(4) {
		return
	}
	wasOrdered := p.isOrdered() // and is, at the node that does not fail
	p.cluster = true
	p.roleChanges, p.namelessServers, p.olderHost = 0, false, false
	if p.faultEvery == 0 {
		p.faultEvery = r.magnitude(20*ms, 5*sec)
		if r.oneIn(2) || wasOrdered {
			p.oneNodeFails = true
			p.commandBreaks, p.redisRestarts, p.nodeStalls = r.magnitude(1, 8), r.magnitude(1, 20), r.magnitude(1, 20)
			return
		}
	}
	if r.usually(4) {
		p.migrations = r.magnitude(1, 8)
	}
	if r.oneIn(3) {
		p.promotions = r.magnitude(2, 20)
	}
	if r.oneIn(4) {
		p.nodeStalls = r.magnitude(2, 20)
	}
	if p.names == 1 && r.oneIn(2) {
		p.names = 2
	}
}

const clocksStream = 0x636c6fff // the pinned seeds have one clock

const openingsStream = 0x61736b75 // in the pinned seeds, no slot migrates key by key

// drawOpenings has random numbers of its own, like drawRoleChanges.
func (p *plan) drawOpenings(seed uint64) {
	var r random
	r.Seed(seed, openingsStream)
	if r.oneIn(2) || !p.cluster || p.oneNodeFails {
		return
	}
	p.openings = r.magnitude(1, 8)
}

const nodesStream = 0x6e6f6465

// drawNodes has random numbers of its own, like drawRoleChanges.
func (p *plan) drawNodes(seed uint64) {
	var r random
	r.Seed(seed, nodesStream)
	if !p.cluster || p.oneNodeFails {
		return
	}
	draw := func() int64 {
		if r.oneIn(2) {
			return 0
		}
		return r.magnitude(1, 8)
	}
	p.disagreements, p.newAddresses, p.lateAnswers = draw(), draw(), draw()
	p.asksUnsubscribe = r.oneIn(2)
}

// drawClocks has random numbers of its own, like drawRoleChanges.
func (p *plan) drawClocks(seed uint64) {
	var r random
	r.Seed(seed, clocksStream)
	if !p.cluster || r.oneIn(2) {
		return
	}
	for i := range p.clocks {
		p.clocks[i] = r.magnitude(ms, 3600*sec)
		if r.oneIn(2) {
			p.clocks[i] = -p.clocks[i]
		}
	}
}

const roleStream = 0x726f6c65

// drawRoleChanges has random numbers of its own: what a seed does without role changes stays as it
// was.
func (p *plan) drawRoleChanges(seed uint64) {
	var r random
	r.Seed(seed, roleStream)
	if !r.oneIn(6) {
		return
	}
	p.roleChanges = r.magnitude(1, 6)
	p.namelessServers = r.oneIn(8)
	p.olderHost = r.oneIn(6)
	if r.oneIn(2) {
		// Hosts pass one lock between them all the time.
		p.hosts, p.names, p.sharedCounters, p.deafHost, p.deniedQueues, p.deniedChannels = 3, 1, false, false, false, 0
		p.thinkTime = min(p.thinkTime, 20*ms)
	}
}

// isLossless reports whether every message arrives, so that no host ever has to find by
// polling that a lock is free. With oneNodeFails, that is so for the locks of the other node.
func (p *plan) isLossless() bool {
	if p.oneNodeFails {
		return true
	}
	return p.openings|p.migrations|p.promotions|p.nodeStalls|p.slowOps|p.busy|p.denied|p.unsent|p.unknownScript|p.commandBreaks|p.redisRestarts|p.roleChanges|p.flushes|p.deletions|p.unsynced|
		p.stateLosses|p.lostMessages|p.deniedChannels|p.overwrites|p.brokenCounters|p.stalls|p.crashes|p.suspends|p.clockJumps == 0 &&
		!p.deafHost && !p.deniedQueues
}
