package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// The Cluster of a fleet: masters, each of which is a Redis with a core of its own, and hosts
// that learn which master has which slot as sidecar/store/cluster.go does. A master can fail, and
// a replica with all its data takes over (Lose, TakeOver). Slots can move with all their data
// (Move). The other masters know of both at once.
//
// Left out are what nodes send each other, and messages between hosts: hosts have locks of their
// own here, and none waits for another.

// What things cost a master of a Cluster, ns of its core. docs/performance.md#cluster has the
// script of a quiet lock. The others are medians of three runs of BenchmarkRedisClusterCost and
// BenchmarkRedisTopology (sidecar/store, redis-server 7.0.15, 2026-11-24), in which a renewal at
// one Redis cost 11.0 µs alone and 1.6 in a script of 128: as the constants in fleet_redis.go add
// up to. What a connection with data costs is costArrival here, too.
const (
	costHead      = 7000  // one lock is taken or dropped by the head of the script
	costSlotRun   = 6700  // a run of other takes and drops of one slot: an assertion is 9.7 µs
	costSlotRenew = 3500  // a run of renewals of one slot, and costKey for each lock: 5.1 µs, and 37 µs alone for 16
	costProbe     = 11200 // a script that takes and drops: a run, costAssert and costDrop

	costQuestion       = 46000  // CLUSTER NODES of 60 nodes, and costArrival: 56 µs in the benchmark, 10 of them for any command
	costClusterConnect = 163000 // connection, greeting, own channel: 0.64 of the 255 µs with all scripts (2026-11-25)
)

// The times of the store (sidecar/store/cluster.go, commands.go).
const (
	topologyInterval = 60 * sec
	topologyPause    = 100 * ms
	topologyNodes    = 60
	storeIdlePing    = int64(pipeline.IdlePing)
	storeProbe       = 60 * sec // sidecar: probeInterval

	greetingTrips = 5 // to connect and greet: TCP, two exchanges of go-redis and two of the store
)

const (
	// clusterName is how the locks of a Cluster are named.
	clusterName = "order/%d"

	// hostPairs is how many locks a host has that it takes and releases.
	hostPairs = 16

	pairSession = locktable.SessionID(1 << 20)

	maxNodes = 64
	isMoved  = "MOVED" // the result of an operation that was not executed
)

// fleetCluster is the Cluster of a fleet.
type fleetCluster struct {
	topology *fleetTopology // as all nodes know it
	slots    []uint16       // of locks
	changed  []uint16       // slots that are disturbed: they moved, or their master failed
	disturbs [redisop.Slots]bool
	affected int   // held locks in them
	change   int64 // when the topology last changed
}

// fleetTopology says which node has which slot. It does not change, unless one host owns it.
type fleetTopology struct {
	owners [redisop.Slots]uint8
	slots  [maxNodes]int32 // how many a node has
}

func (t *fleetTopology) set(slot uint16, n redisop.Shard) {
	t.slots[t.owners[slot]]--
	t.owners[slot] = uint8(n)
	t.slots[n]++
}

// ranges returns what has changed since another topology, or all if that is nil.
func (t *fleetTopology) ranges(since *fleetTopology) (ranges []redisop.SlotRange) {
	for slot, owner := range t.owners {
		if since != nil && since.owners[slot] == owner {
			continue
		}
		if last := len(ranges) - 1; last >= 0 && int(ranges[last].Last)+1 == slot && ranges[last].Shard == redisop.Shard(owner) {
			ranges[last].Last = uint16(slot)
			continue
		}
		ranges = append(ranges, redisop.SlotRange{First: uint16(slot), Last: uint16(slot), Shard: redisop.Shard(owner)})
	}
	return ranges
}

// fleetRouter is what a host knows of the Cluster: the store's cluster and its goroutine run.
type fleetRouter struct {
	view       *fleetTopology
	ownsView   bool // no other host has it
	isInformed bool // it knows of the last change

	phase    routerPhase
	seq      uint32 // of the fleetQuestion that is scheduled last
	begun    int64  // the last question
	dueAt    int64  // the next one
	wake     bool   // a question is wanted at once,
	later    bool   // and within redisop.TopologyRetry
	isSooner bool   // the wait was cut short for that
	tried    int    // nodes that did not answer
}

type routerPhase uint8

const (
	routerWaits routerPhase = iota
	routerPauses
	routerAsks
)

// clusterCount is what is counted of a Cluster since the last Reset.
type clusterCount struct {
	asks           int     // which master has which slot
	moved          int     // operations that were not executed
	pairWaits      []int64 // of acquires, until they were granted
	disturbedWaits []int64 // the same, of slots that moved or whose master failed
	leastLease     int64   // that a lock had left when it was renewed; or never
	lostOthers     int     // holds of slots that are not disturbed
	asserted       int     // held locks
	lastAsserted   int64
	informed       int // hosts that know of the last change
	lastInformed   int64
}

// fleetPairLock is one of the locks that a host takes and releases.
type fleetPairLock struct {
	isUsed      bool
	isDisturbed bool
	asked       int64
	hold        uint64
}

// initCluster divides the slots evenly. The last node is a replica, until it takes over.
func (f *Fleet) initCluster() {
	f.nodes = make([]fleetNode, f.plan.Masters+2)
	f.nodes[f.spare()].down = true
	f.topology = new(fleetTopology)
	for slot := range f.topology.owners {
		f.topology.owners[slot] = uint8(1 + slot*f.plan.Masters/redisop.Slots)
		f.topology.slots[f.topology.owners[slot]]++
	}
	f.slots = make([]uint16, len(f.names))
	for i, name := range f.names {
		f.slots[i] = redisop.SlotOf(name)
	}
}

// spare is the node that takes over.
func (f *Fleet) spare() redisop.Shard { return redisop.Shard(f.plan.Masters + 1) }

// joinCluster has a host be connected to all masters, for some time already.
func (f *Fleet) joinCluster(host int16) {
	h := f.hosts[host]
	now := h.clock(f.now)
	h.router = fleetRouter{view: f.topology}
	h.table.Route(now, f.topology.ranges(nil))
	for shard := range h.conns {
		if c := &h.conns[shard]; f.topology.slots[shard] > 0 {
			c.up, c.listening, c.isTried = true, true, true
			h.table.Up(now, c.shard, false, true)
			f.after(f.random.below(storeIdlePing), event{kind: fleetIdle, host: host, shard: int8(shard)})
			f.after(f.random.below(storeProbe), event{kind: fleetProbe, host: host, shard: int8(shard)})
		}
	}
	f.schedule(host, f.random.below(topologyInterval))
	h.table.Open(now, pairSession, locktable.Peer{PID: -1, Cmd: "pairs"})
	if f.plan.Pairs > 0 {
		h.pairs = new([hostPairs]fleetPairLock)
		f.after(f.random.below(int64(f.plan.Pairs)), event{kind: fleetPair, host: host})
	}
}

// isWanted reports whether a host is to be connected to a server.
func (f *Fleet) isWanted(h *fleetHost, shard redisop.Shard) bool {
	return f.plan.Masters == 0 || h.router.view.slots[shard] > 0
}

// watch begins to look after a connection that was just made.
func (f *Fleet) watch(host int16, c *fleetConn) {
	if f.plan.Masters > 0 {
		f.after(storeIdlePing, event{kind: fleetIdle, host: host, gen: c.gen, shard: int8(c.shard)})
		f.after(0, event{kind: fleetProbe, host: host, gen: c.gen, shard: int8(c.shard)})
	}
}

// handleCluster handles what happens in Clusters only.
func (f *Fleet) handleCluster(e event, h *fleetHost) {
	c := &h.conns[e.shard]
	switch e.kind {
	case fleetQuestion:
		if e.gen == h.router.seq {
			f.ask(e.host)
		}
	case fleetIdle:
		if e.gen != c.gen || !c.up {
			return
		}
		next := c.lastIn + storeIdlePing
		if next <= f.now {
			if next = f.now + storeIdlePing; len(c.inFlight) == 0 {
				f.write(e.host, c, &batch{isControl: true}) // which costs no more than its arrival
			}
		}
		f.after(next-f.now, e)
	case fleetProbe:
		if e.gen != c.gen || !c.up {
			return
		}
		if h.router.view.slots[e.shard] > 0 {
			f.write(e.host, c, &batch{isControl: true, cost: costProbe})
		}
		f.after(storeProbe, e)
	case fleetPair:
		f.acquirePair(e.host)
		f.after(int64(f.plan.Pairs)/2+f.random.below(int64(f.plan.Pairs)), e)
	case fleetPairEnd:
		p := &h.pairs[e.arg]
		h.table.Release(h.clock(f.now), pairSession, protocol.Release{Hold: p.hold})
		p.isUsed = false
		f.drain(e.host)
	}
}

// pairLock is one of the locks that a host takes and releases.
func (f *Fleet) pairLock(host int16, i int) int {
	return f.plan.Hosts*f.plan.Held + int(host)*hostPairs + i
}

// acquirePair has a host take one of its locks for pairs, unless a request for it waits already.
func (f *Fleet) acquirePair(host int16) {
	h := f.hosts[host]
	i := int(f.random.below(hostPairs))
	p := &h.pairs[i]
	if p.isUsed {
		return
	}
	lock := f.pairLock(host, i)
	k := &h.clients[0]
	k.lastID = (k.lastID/hostPairs+1)*hostPairs + uint64(i)
	*p = fleetPairLock{isUsed: true, asked: f.now, isDisturbed: f.disturbs[f.slots[lock]]}
	h.table.Acquire(h.clock(f.now), pairSession, protocol.Acquire{ID: k.lastID, Name: f.names[lock], WaitMS: protocol.Forever})
	f.drain(host)
}

func (f *Fleet) onPairGranted(host int16, e *locktable.Effect) {
	i := int(e.ID % hostPairs)
	p := &f.hosts[host].pairs[i]
	p.hold = e.Hold
	lock := f.pairLock(host, i)
	if p.isDisturbed || f.disturbs[f.slots[lock]] {
		f.disturbedWaits = append(f.disturbedWaits, f.now-p.asked)
	} else {
		f.pairWaits = append(f.pairWaits, f.now-p.asked)
	}
	f.after(2*localHop, event{kind: fleetPairEnd, host: host, arg: int32(i)})
}

// onLost notes a hold that was lost.
func (f *Fleet) onLost(name string) {
	if f.plan.Masters > 0 && !f.disturbs[redisop.SlotOf(name)] {
		f.lostOthers++
	}
}

// ---- which master has which slot

// schedule has a host ask after a time, and not at the time that was scheduled before.
func (f *Fleet) schedule(host int16, d int64) {
	r := &f.hosts[host].router
	r.seq++
	r.dueAt = f.now + d
	f.after(d, event{kind: fleetQuestion, host: host, gen: r.seq})
}

// refresh has a host ask a node at once.
func (f *Fleet) refresh(host int16) {
	r := &f.hosts[host].router
	if r.phase != routerWaits {
		r.wake = true
		return
	}
	r.phase = routerPauses
	d := max(topologyPause-(f.now-r.begun), topologyPause/4)
	f.schedule(host, d*3/4+f.random.below(d/2))
}

// topologyRetry is how often a host asks while a slot has no master that is connected.
func (f *Fleet) topologyRetry(host int16) int64 {
	return int64(redisop.TopologyRetry(cmp.Or(f.plan.Counted, len(f.hosts)), len(f.askable(host)), topologyNodes))
}

// refreshLater has a host ask a node within redisop.TopologyRetry.
func (f *Fleet) refreshLater(host int16) {
	r := &f.hosts[host].router
	if r.phase != routerWaits || r.isSooner {
		r.later = true
		return
	}
	r.isSooner = true
	retry := f.topologyRetry(host)
	f.schedule(host, min(r.dueAt-f.now, retry/2+f.random.below(retry/2)))
}

// ask has a host ask a node.
func (f *Fleet) ask(host int16) {
	r := &f.hosts[host].router
	r.phase, r.begun, r.tried = routerAsks, f.now, 0
	f.askNode(host)
}

// askable returns the connections of a host to masters.
func (f *Fleet) askable(host int16) (connected []*fleetConn) {
	h := f.hosts[host]
	for shard := range h.conns {
		if c := &h.conns[shard]; c.up && h.router.view.slots[shard] > 0 {
			connected = append(connected, c)
		}
	}
	return connected
}

// askNode has a host ask one of the nodes to which it is connected.
func (f *Fleet) askNode(host int16) {
	h := f.hosts[host]
	connected := f.askable(host)
	if h.router.tried >= len(connected) {
		f.settle(host, false)
		return
	}
	c := connected[f.random.below(int64(len(connected)))]
	f.write(host, c, &batch{isControl: true, isQuestion: true, cost: costQuestion})
}

// onAnswer takes in what a node knows.
func (f *Fleet) onAnswer(host int16, answer *fleetTopology) {
	h := f.hosts[host]
	r := &h.router
	ranges := answer.ranges(r.view)
	r.view, r.ownsView = answer, false
	f.route(host, ranges)
	isSettled := true // each slot has a master that is connected
	for shard := range h.conns {
		isSettled = isSettled && (r.view.slots[shard] == 0 || h.conns[shard].up)
	}
	f.settle(host, isSettled)
}

// settle schedules the next question.
func (f *Fleet) settle(host int16, isSettled bool) {
	r := &f.hosts[host].router
	r.phase, r.isSooner = routerWaits, false
	retry := f.topologyRetry(host)
	wait := retry*9/10 + f.random.below(retry/5)
	if isSettled {
		wait = topologyInterval*3/4 + f.random.below(topologyInterval/2)
	}
	f.schedule(host, wait)
	switch {
	case r.wake:
		r.wake = false
		f.refresh(host)
	case r.later:
		r.later = false
		f.refreshLater(host)
	}
}

// route tells the table of a host which nodes have slots, and has the host connect to them.
func (f *Fleet) route(host int16, ranges []redisop.SlotRange) {
	h := f.hosts[host]
	if len(ranges) > 0 {
		h.table.Route(h.clock(f.now), ranges)
		f.drain(host)
	}
	for _, r := range ranges {
		if c := &h.conns[r.Shard]; !c.isTried {
			c.isTried = true
			f.after(greetingTrips*2*h.way, event{kind: fleetConnect, host: host, gen: c.gen, shard: int8(r.Shard)})
		}
	}
	if f.change == 0 || h.router.isInformed {
		return
	}
	for _, slot := range f.changed {
		if h.router.view.owners[slot] != f.topology.owners[slot] {
			return
		}
	}
	h.router.isInformed = true
	f.informed++
	f.lastInformed = f.now
}

// follow has a host learn from the results of a batch which slots have moved, before its table has them.
func (f *Fleet) follow(host int16, b *batch) {
	h := f.hosts[host]
	r := &h.router
	if b.answer != nil {
		f.onAnswer(host, b.answer)
	}
	for i := range b.results {
		res := &b.results[i]
		if res.Msg != isMoved {
			continue
		}
		slot := redisop.SlotOf(res.Name)
		owner := redisop.Shard(f.topology.owners[slot])
		if redisop.Shard(r.view.owners[slot]) != owner {
			if !r.ownsView {
				view := *r.view
				r.view, r.ownsView = &view, true
			}
			r.view.set(slot, owner)
			f.route(host, []redisop.SlotRange{{First: slot, Last: slot, Shard: owner}})
		}
		if h.conns[owner].up {
			f.refreshLater(host)
		} else {
			f.refresh(host)
		}
	}
}

// ---- what fails and moves

// disturb notes slots that are disturbed until the next change.
func (f *Fleet) disturb(slots []uint16) {
	f.changed, f.disturbs = slots, [redisop.Slots]bool{}
	for _, slot := range slots {
		f.disturbs[slot] = true
	}
	f.affected = 0
	for _, slot := range f.slots[:f.plan.Hosts*f.plan.Held] {
		f.affected += btoi(f.disturbs[slot])
	}
}

// slotsOf returns the slots of a node.
func (f *Fleet) slotsOf(n redisop.Shard) (slots []uint16) {
	for slot, owner := range f.topology.owners {
		if redisop.Shard(owner) == n {
			slots = append(slots, uint16(slot))
		}
	}
	return slots
}

// Lose has a master fail. Its connections end, and all hosts notice that at once.
func (f *Fleet) Lose(n redisop.Shard) {
	f.disturb(f.slotsOf(n))
	node := &f.nodes[n]
	node.down = true
	node.readQueue = nil
	for i, h := range f.hosts {
		if c := &h.conns[n]; c.up {
			f.after(f.lag(h), event{kind: fleetEnded, host: int16(i), gen: c.gen, shard: int8(n)})
		}
	}
}

// TakeOver has the replica take over the slots of a master that failed.
func (f *Fleet) TakeOver(n redisop.Shard) {
	f.nodes[f.spare()].down = false
	f.reassign(f.slotsOf(n), f.spare())
}

// Move moves some slots of a node to another one, at once.
func (f *Fleet) Move(from, to redisop.Shard, slots int) { f.reassign(f.slotsOf(from)[:slots], to) }

// reassign gives slots to a node.
func (f *Fleet) reassign(slots []uint16, n redisop.Shard) {
	f.disturb(slots)
	topology := *f.topology
	for _, slot := range slots {
		topology.set(slot, n)
	}
	f.topology, f.change, f.informed = &topology, f.now, 0
	for _, h := range f.hosts {
		h.router.isInformed = false
	}
}

// ---- what a master executes

// executeSlot is execute at a master of a Cluster.
func (f *Fleet) executeSlot(host int16, c *fleetConn, b *batch, at *int64) int {
	ops := b.ops[len(b.results):]
	script, n := wire.BatchPrefix(ops, redisop.SlotOf)
	ops = ops[:n]
	first, slot := &ops[0], redisop.SlotOf(ops[0].Name)
	f.ran++
	if redisop.Shard(f.topology.owners[slot]) != c.shard {
		*at += costHead // it reads as much as for a script that is executed
		f.moved += n
		for i := range ops {
			b.results = append(b.results, redisop.Result{Kind: ops[i].Kind, Name: ops[i].Name, Shard: c.shard, Outcome: redisop.Retryable, Sent: b.sent, Msg: isMoved})
		}
		return 133 + 33*n
	}
	if script == wire.Renew {
		*at += costSlotRenew + int64(n)*costKey
		f.renewalScripts++
		f.renewed += n
		f.nodes[c.shard].renewed += n
		for i := range ops {
			l := &f.locks[fleetIndex(ops[i].Name)]
			if !f.disturbs[slot] && l.key.Exists() {
				f.leastLease = min(f.leastLease, l.key.ExpireAt-*at)
			}
			reply := f.run(host, &ops[i], nil, &redis.Reply{}, *at)
			b.addResult(&ops[i], &reply)
		}
		return 133 + 33*n
	}
	isHead := n == 1 && first.Ticket == 0 && (first.Kind == redisop.Drop ||
		first.Kind == redisop.Take && first.Count == 1 && first.Reserve == 1 && !first.Has(redisop.RequireExisting) && !first.Has(redisop.CountListeners))
	if !isHead {
		*at += costSlotRun
	}
	for i := range ops {
		op := &ops[i]
		reply := f.run(host, op, nil, &redis.Reply{}, *at)
		switch {
		case isHead && reply.Outcome == redisop.Done:
			*at += costHead
		case isHead: // the rest of the script follows
			*at += costSlotRun + f.cost(op, &reply)
		default:
			*at += f.cost(op, &reply)
		}
		if lock := fleetIndex(op.Name); op.Kind == redisop.Take && op.Reserve == 0 && reply.Outcome == redisop.Done && lock < f.plan.Hosts*f.plan.Held {
			f.asserted++
			f.lastAsserted = *at
		}
		b.addResult(op, &reply)
	}
	return 353 * n
}

// ---- what was counted

// ClusterLoad is what was counted of a Cluster since the last Reset.
type ClusterLoad struct {
	Span             float64       // s
	Mean, Busiest    float64       // core of a master that has slots
	Questions        float64       // of a core that has most of them: for hosts that ask which master has which slot
	MeanQuestions    float64       // the same, of a master that has slots
	QuestionsASec    float64       // at all masters together
	Connects         float64       // of a core that has most of them
	Renewals         float64       // per second, at all masters together
	Keys             float64       // of a script of renewals
	LongestAt        time.Duration // that a batch was in a Redis
	Pairs            int           // of undisturbed slots
	PairMedian       time.Duration // from an acquire to its grant
	PairLongest      time.Duration
	Disturbed        int // pairs of slots that moved, or whose master failed
	DisturbedLongest time.Duration
	LeastLease       time.Duration // that a lock of an undisturbed slot had left when it was renewed
	Lost, LostOther  int           // holds; of undisturbed slots
	Moved            int           // operations that were answered with MOVED
	Affected         int           // held locks of slots that moved, or whose master failed
	Asserted         int           // of these
	AssertedAfter    time.Duration // the last one, after the change of the topology
	Informed         int           // hosts that know of the change
	InformedAfter    time.Duration // the last one
}

// ClusterLoad returns what was counted.
func (f *Fleet) ClusterLoad() ClusterLoad {
	span := f.now - f.since
	l := ClusterLoad{
		Span: seconds(span), Lost: f.lost, LostOther: f.lostOthers, Moved: f.moved,
		QuestionsASec: float64(f.asks) / seconds(span),
		Renewals:      float64(f.renewed) / seconds(span), Keys: float64(f.renewed) / float64(max(1, f.renewalScripts)),
		Affected: f.affected, Asserted: f.asserted, Informed: f.informed,
		Pairs: len(f.pairWaits), Disturbed: len(f.disturbedWaits),
	}
	if f.asserted > 0 {
		l.AssertedAfter = time.Duration(f.lastAsserted - f.change)
	}
	if f.informed > 0 {
		l.InformedAfter = time.Duration(f.lastInformed - f.change)
	}
	if waits := f.pairWaits; len(waits) > 0 {
		slices.Sort(waits)
		l.PairMedian, l.PairLongest = time.Duration(waits[len(waits)/2]), time.Duration(waits[len(waits)-1])
	}
	for host, h := range f.hosts {
		for i := range hostPairs {
			if h.pairs == nil || !h.pairs[i].isUsed || h.pairs[i].hold != 0 {
				continue
			}
			wait := time.Duration(f.now - h.pairs[i].asked) // so far
			if f.disturbs[f.slots[f.pairLock(int16(host), i)]] {
				l.DisturbedLongest = max(l.DisturbedLongest, wait)
			} else {
				l.PairLongest = max(l.PairLongest, wait)
			}
		}
	}
	if waits := f.disturbedWaits; len(waits) > 0 {
		l.DisturbedLongest = max(l.DisturbedLongest, time.Duration(slices.Max(waits)))
	}
	masters := 0
	if f.leastLease < never {
		l.LeastLease = time.Duration(f.leastLease)
	}
	for n := range f.nodes {
		c := &f.nodes[n].nodeCount
		l.MeanQuestions += float64(c.questions) / float64(span)
		l.Questions = max(l.Questions, float64(c.questions)/float64(span))
		l.Connects = max(l.Connects, float64(c.connects)/float64(span))
		l.LongestAt = max(l.LongestAt, time.Duration(c.longest))
		if f.topology.slots[n] > 0 {
			masters++
			l.Mean += float64(c.served) / float64(span)
			l.Busiest = max(l.Busiest, float64(c.served)/float64(span))
		}
	}
	l.Mean /= float64(masters)
	l.MeanQuestions /= float64(masters)
	return l
}

func (l ClusterLoad) String() string {
	text := fmt.Sprintf("%.1fs: core=%.2f%% busiest=%.2f%% | renewals/s=%.0f in a script=%.2f least left of a lease=%.1fs | questions/s=%.0f of a core at most=%.3f%% | pairs=%d wait p50=%.2fms max=%.2fms | lost=%d, of other masters %d",
		l.Span, 100*l.Mean, 100*l.Busiest, l.Renewals, l.Keys, l.LeastLease.Seconds(), l.QuestionsASec, 100*l.Questions,
		l.Pairs, ms3(l.PairMedian), ms3(l.PairLongest), l.Lost, l.LostOther)
	if l.Affected > 0 {
		text += fmt.Sprintf(" | of the slots that moved: held=%d asserted=%d, the last after %.2fs, pairs=%d wait max=%.2fms MOVED=%d | informed=%d hosts, the last after %.2fs | longest in a Redis=%.2fms connects=%.2f%% of a core",
			l.Affected, l.Asserted, l.AssertedAfter.Seconds(), l.Disturbed, ms3(l.DisturbedLongest), l.Moved,
			l.Informed, l.InformedAfter.Seconds(), ms3(l.LongestAt), 100*l.Connects)
	}
	return text
}

func ms3(d time.Duration) float64 { return d.Seconds() * 1e3 }

// IsInformed reports whether all hosts know of the last change of the topology.
func (f *Fleet) IsInformed() bool { return f.informed == len(f.hosts) }
