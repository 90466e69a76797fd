package sim

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// The Redis of the world. What operations do to keys, token counters and channels is the
// model in internal/sim/redis, which is compared with the scripts in a real Redis. Here are
// the faults of a server, its clock, and what the checker notes.

const counterExpiry = 7 * 24 * 3600 * sec

// redisServer is Redis.
type redisServer struct {
	nodes      [worldNodes]node
	owners     [maxNames]nodeID   // which node has the slot of a lock; 0: none
	bus        view               // what all nodes know in the end
	views      [worldNodes]view   // what each knows
	addresses  int                // that nodes had so far
	open       [maxNames]openSlot // slots that migrate
	runs       int                // run ids that were given
	spare      nodeID             // that has no slots; 0: it is being promoted
	former     nodeID             // from which it takes over then
	skew       int64              // of its clock
	jumpedBack int64              // by how much its clock was set back, in all
	names      [maxNames]redisName
	snapshot   [maxNames]redisName     // what a replica has
	waiting    [maxNames]redis.Channel // Redisson clients that are subscribed
	probes     server.Data             // the locks of probes
}

// redisName is what Redis has under the names of one lock.
type redisName struct {
	key            redis.Key
	counter        redis.Counter
	queue          *redis.Queue     // of sidecars
	semaphore      *redis.Semaphore // under the name of the semaphore
	readWrite      *redis.ReadWrite // and this, if it is a read/write lock
	unjumpedExpiry int64            // when the key would expire, had Redis's clock not jumped; 0: it did not

	// Faults.
	denied        bool // the ACL denies the key
	deniedChannel bool // the ACL denies the channel
	overwritten   bool // the key is of another type, and no owner's
	brokenCounter bool // the counter is of another type

	passed    [4]passed // the last ones
	passedNum int

	// For the checker.
	drawn       uint64       // largest token ever drawn, whatever Redis remembers of it
	drawnAt     int64        // when
	granted     uint64       // largest token ever granted
	restartedAt int64        // when tokens began again below, because the clock had been set back
	lostAt      int64        // when the key or the counter was last destroyed from outside
	first       redis.Ticket // of the queue,
	firstSince  int64        // and since when
	programAt   int64        // when a foreign client last took the key
	takenFromAt int64        // when the key of a sidecar was last destroyed from outside
	freedAt     int64        // when the key was last freed
	unannounced bool         // and no message was published
	ghost       bool         // the key was written by an operation that its table had given up, or was restored from a replica
	counterLost bool         // since the last draw
	cameAt      int64        // when its slot was migrated to the node that has it
}

// passed is tokens that went with a lock to another host.
type passed struct {
	last uint64
	at   int64
	by   *server.Server
}

// passedWith returns the pass of which the last one of these tokens was drawn.
func (n *redisName) passedWith(last uint64) passed {
	for _, p := range n.passed {
		if p.last == last {
			return p
		}
	}
	return passed{}
}

// isPassedBy reports whether a server made a pass of which the last one of these tokens was drawn, or none is known. A server
// with older data than the one before may pass with the same number, if it draws none.
func (n *redisName) isPassedBy(last uint64, by *server.Server) bool {
	isKnown := false
	for _, p := range n.passed {
		if p.last == last && p.by == by {
			return true
		}
		isKnown = isKnown || p.last == last
	}
	return !isKnown
}

func (w *world) initRedis() {
	w.newProcess(0)
	r := &w.redis
	r.probes = make(server.Data)
	for n := range r.names {
		r.names[n].key = redis.NoKey
		r.names[n].queue = new(redis.Queue)
		r.names[n].semaphore, r.names[n].readWrite = new(redis.Semaphore), new(redis.ReadWrite)
		r.names[n].unannounced = true
	}
	r.keepSnapshot(0)
}

// keepSnapshot has the replica of a node catch up.
func (r *redisServer) keepSnapshot(x nodeID) {
	for n := range r.snapshot {
		if r.nodeOfKey(n, lockKey) == x {
			r.keepSnapshotOf(n)
		}
	}
}

// nodeOfKey returns the node that has a key of a lock, or had it last.
func (r *redisServer) nodeOfKey(n int, key keySet) nodeID {
	if r.open[n].there&key != 0 {
		return r.open[n].to
	}
	return r.owners[n]
}

func (r *redisServer) keepSnapshotOf(n int) {
	r.snapshot[n] = r.names[n]
	r.snapshot[n].queue, r.snapshot[n].semaphore = r.names[n].queue.Clone(), r.names[n].semaphore.Clone()
	r.snapshot[n].readWrite = r.names[n].readWrite.Clone()
}

// loseQueue deletes the queue of a lock.
func (w *world) loseQueue(n int) {
	w.check.meetIf(QueueLost, len(w.redis.names[n].queue.Tickets) > 0)
	w.redis.names[n].queue = new(redis.Queue)
}

// time is what TIME returns at a node, in µs.
func (w *world) time(x nodeID) int64 {
	return 1_700_000_000_000_000 + (w.now+w.redis.skew+w.redis.nodes[x].skew)/µs
}

// jumpClock sets Redis's clock, which is the wall clock of its machine: keys and counters
// live shorter or longer than they were to.
//
// A key that expires early by that is as good as deleted by an operator. Tokens rise as long
// as the counters are there. A counter that is lost while the clock is behind begins again
// below them, and no higher token is promised then.
func (w *world) jumpClock(d int64) {
	if w.trace.on {
		w.trace.add(w, -1, nil, "Redis's clock jumps by %s", time.Duration(d))
	}
	r := &w.redis
	w.jumpPermits(d)
	r.skew += d
	r.jumpedBack += max(-d, 0)
	for n := range w.plan.names {
		w.expire(n)
		name := &r.names[n]
		if k := &name.key; k.Owner != redis.NoOwner && k.ExpireAt != redis.NoExpiry {
			if d > 0 && k.Owner < firstRedisson {
				name.unjumpedExpiry = max(name.unjumpedExpiry, k.ExpireAt)
				l := &w.hosts[k.Owner].locks[n]
				l.excusedUntil = max(l.excusedUntil, k.ExpireAt)
				name.lostAt = w.now
			}
			k.ExpireAt = max(k.ExpireAt-d, w.now)
		}
		name.counter.ExpireAt = jumped(name.counter.ExpireAt, d)
		if k := &r.snapshot[n].key; k.Owner != redis.NoOwner {
			k.ExpireAt = jumped(k.ExpireAt, d)
		}
		r.snapshot[n].counter.ExpireAt = jumped(r.snapshot[n].counter.ExpireAt, d)
	}
}

// jumped returns an expiry after Redis's clock has jumped by d.
func jumped(expireAt, d int64) int64 {
	if expireAt == redis.NoExpiry {
		return expireAt
	}
	return expireAt - d
}

// counterOf returns the name whose counter and channel a lock has: "a" and "{a}" share
// theirs.
func (w *world) counterOf(name int) int {
	if w.plan.sharedCounters && name == 1 || name == semaphore { // whose slot is that of the first lock
		return 0
	}
	return name
}

// keyNames yields the names of all locks, and of the semaphore if there is one.
func (w *world) keyNames() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for n := range w.plan.names {
			if !yield(n) {
				return
			}
		}
		if w.plan.permits > 0 {
			yield(semaphore)
		}
	}
}

// sharers calls f with every name that shares a counter and a channel with one.
func (w *world) sharers(name int, f func(n int)) {
	for n := range w.keyNames() {
		if w.counterOf(n) == w.counterOf(name) {
			f(n)
		}
	}
}

// repair ends the faults of a name.
func (w *world) repair(n int) {
	name := &w.redis.names[n]
	name.denied, name.brokenCounter = false, false
	if name.overwritten {
		name.overwritten = false
		name.freedAt, name.unannounced = w.now, true
		if w.trace.on {
			w.trace.add(w, n, nil, "the string is deleted")
		}
	}
}

// loseCounter replaces the counter of a lock by one that is older, or none.
func (w *world) loseCounter(name int, c redis.Counter) {
	if w.counterOf(name) != name {
		return // it is lost together with the other name's
	}
	lost := w.redis.names[name].counter != c
	w.redis.names[name].counter = c
	w.sharers(name, func(n int) {
		w.redis.names[n].counterLost = w.redis.names[n].counterLost || lost
	})
}

// increment increments the counter as Redisson's fenced lock does.
func (w *world) increment(name int) {
	c := &w.redis.names[w.counterOf(name)].counter
	if !c.Exists {
		*c = redis.Counter{Exists: true, ExpireAt: redis.NoExpiry}
	}
	c.Value++
}

// expire deletes a key whose time has come.
func (w *world) expire(name int) {
	n := &w.redis.names[name]
	if n.key.Owner != redis.NoOwner && w.now >= n.key.ExpireAt {
		expireAt := n.key.ExpireAt
		if n.unjumpedExpiry > expireAt {
			n.lostAt = max(n.lostAt, expireAt) // a replica's key may have ended before the jump
			w.check.meet(KeyExpiredEarly)
		}
		w.deleteKey(name)
		n.freedAt, n.unannounced = expireAt, true
	}
}

// freeKey deletes a key and notes that its release is published.
func (w *world) freeKey(name int) {
	w.deleteKey(name)
	n := &w.redis.names[name]
	n.freedAt, n.unannounced = w.now, false
}

func (w *world) deleteKey(name int) {
	n := &w.redis.names[name]
	n.key, n.unjumpedExpiry, n.ghost = redis.NoKey, 0, false
}

// destroy deletes a key from outside: an operator's DEL, a FLUSHALL, a restart without data,
// a Redisson client's force. Its holder may believe in it for as long as the key would have
// lived.
func (w *world) destroy(name int, why string) {
	w.expire(name)
	n := &w.redis.names[name]
	n.lostAt = w.now
	if k := &n.key; k.Owner != redis.NoOwner && k.Owner < firstRedisson {
		n.takenFromAt = w.now
	}
	if w.trace.on {
		w.trace.add(w, name, nil, "the key is %s", why)
	}
	if k := &n.key; k.Owner != redis.NoOwner {
		if int(k.Owner) < len(w.hosts) {
			l := &w.hosts[k.Owner].locks[name]
			l.excusedUntil = max(l.excusedUntil, k.ExpireAt)
			w.noteDeleted(w.hosts[k.Owner], name)
		}
		w.freeKey(name)
		n.unannounced = true
	}
}

// restartRedis restarts a node with its data, without, or with the data of a replica that
// was behind.
func (w *world) restartRedis(x nodeID) {
	w.stopServer(x)
	mode := w.random.below(3)
	if w.trace.on {
		w.trace.add(w, -1, nil, "Redis%s restarts, its data is %s", w.nodeString(x), []string{"kept", "lost", "that of a replica that was behind"}[mode])
	}
	w.changeData(x, dataMode(mode))
	w.after(w.random.magnitude(ms, 3*sec), event{kind: evRedisUp, arg: int32(x)})
}

// stopServer ends the server of a node, with its connections.
func (w *world) stopServer(x nodeID) {
	n := &w.redis.nodes[x]
	n.down = true
	w.abandonAll(x)
	for i := range w.commands {
		if cmd := &w.commands[i]; cmd.conn != nil && (cmd.conn.Server == n.server || slices.Contains(n.former, cmd.conn.Server)) {
			cmd.isLost = true
		}
	}
	for _, h := range w.hosts {
		if !h.isDown() {
			for c, s := range h.connsTo(x) {
				c.late = false
				w.breakConnection(h, s, true)
			}
		}
	}
}

// dataMode is what becomes of the data of a node whose server changes.
type dataMode uint8

const (
	dataKept dataMode = iota
	dataLost
	dataOlder // that of a replica which was behind
)

// changeData changes the data of a node whose server changes.
func (w *world) changeData(x nodeID, mode dataMode) {
	r := &w.redis
	if r.owners[semaphore] == x {
		w.changePermits(mode)
	}
	for n := range w.plan.names {
		if r.owners[n] != x {
			continue
		}
		name := &r.names[n]
		w.endRedissonWaits(n)
		switch mode {
		case dataLost:
			w.destroy(n, "lost")
			w.loseCounter(n, redis.Counter{})
			w.loseQueue(n)
		case dataOlder:
			old := &r.snapshot[n]
			if w.plan.durable {
				w.failOver(n, old)
			} else if name.key != old.key || name.unjumpedExpiry != old.unjumpedExpiry {
				w.destroy(n, "replaced by an older one")
				name.key, name.unjumpedExpiry, name.ghost = old.key, old.unjumpedExpiry, true
				w.expire(n)
				w.keyChanged(n)
			}
			if !w.plan.durable {
				name.lostAt = w.now
			}
			w.loseCounter(n, old.counter)
			name.queue = old.queue
		}
	}
	r.keepSnapshot(x)
}

// failOver gives a lock of a durable world the key that the replica has. Whatever a client was sent was
// confirmed by the replica, so there is no excuse.
func (w *world) failOver(n int, old *redisName) {
	name := &w.redis.names[n]
	w.expire(n)
	if name.key == old.key && name.unjumpedExpiry == old.unjumpedExpiry {
		return
	}
	for _, h := range w.hosts {
		w.check.meetIf(FailedOver, h.locks[n].isProtected(h.clock(w.now)))
	}
	if w.trace.on {
		w.trace.add(w, n, nil, "the key is replaced by that of the replica: %s", keyString(old.key))
	}
	name.key, name.unjumpedExpiry, name.ghost = old.key, old.unjumpedExpiry, true
	name.freedAt, name.unannounced = w.now, true // if it is free
	w.expire(n)
	w.keyChanged(n)
}

// Confirmed is whether the replica of a durable world has confirmed what a connection wrote. If it has, it has everything
// up to now.
func (w *world) Confirmed(peer *server.Conn, replicas int) int {
	h, s := w.hostOf(peer)
	c := &h.conns[s]
	if !peer.HasWritten {
		return replicas
	}
	if w.random.oneIn(w.plan.unsynced) {
		if c.peer == peer {
			c.blocked = w.now + w.random.below(min(h.lease/10, 400*ms))
			c.troubleAt = w.now
		}
		return 0
	}
	peer.HasWritten = false
	w.redis.keepSnapshot(w.nodeOf(peer.Server))
	return replicas
}

func (w *world) onRedisUp(x nodeID) {
	w.newProcess(x)
	if w.trace.on {
		w.trace.add(w, -1, nil, "Redis%s is up", w.nodeString(x))
	}
}

// changeRoles makes another server the master, which has all data. The connections of some hosts
// end. Those of the others stay, to a server that is a replica now.
func (w *world) changeRoles() {
	if w.trace.on {
		w.trace.add(w, -1, nil, "another server becomes the master")
	}
	for _, h := range w.hosts {
		h.conns[0].troubleAt = w.now
		h.conns[0].receivesUntil = 0
	}
	node := &w.redis.nodes[0]
	node.server.IsReplica = true
	node.former = append(node.former, node.server)
	w.newServer(0)
	w.check.meet(RolesChanged)
	for _, h := range w.hosts {
		if !h.isDown() && w.random.oneIn(3) {
			w.breakConnection(h, 0, false)
		}
	}
}

// isAtMaster reports whether the server of a host's connection to a node is the master.
func (w *world) isAtMaster(h *host, s redisop.Shard) bool {
	c := &h.conns[s]
	return c.nextRun == w.redis.nodes[c.node].run
}

// executeAtReplica executes an operation at a server that was the master before.
func (w *world) executeAtReplica(h *host, o *operation, c *redis.Command) redis.Reply {
	n := int(o.name)
	w.expire(n)
	name := &w.redis.names[n]
	w.check.meet(ExecutedAtReplica)
	c.Denied = w.denied(n)
	c.Queue, c.ReadOnly = name.queue.Clone(), true
	key, counter := name.key, w.redis.names[w.counterOf(n)].counter
	if name.overwritten {
		key = overwrittenKey
	}
	reply := c.Run(&key, &counter, new(redis.Channel))
	if w.trace.on {
		w.trace.add(w, n, h, "a replica executes %s: outcome %d %s", opString(o.op), reply.Outcome, reply.Code)
	}
	return reply
}

// denied is what the ACL denies of a lock. An operation on a key that is denied does not come so far.
func (w *world) denied(n int) redis.Denied {
	name := &w.redis.names[n]
	return redis.Denied{Key: name.denied, Channel: name.deniedChannel, Queue: w.plan.deniedQueues}
}

// overwrittenField describes a key that is overwritten.
const overwrittenField = "a string"

// readersField describes a read/write lock that hosts share.
const readersField = "a read-write lock in mode read"

// What the model finds under an overwritten name and a broken counter.
var (
	overwrittenKey = redis.Key{Owner: redis.NoOwner, ExpireAt: redis.NoExpiry, Other: &redis.Content{Type: "string", Text: "x"}}
	brokenCounter  = redis.Counter{Exists: true, ExpireAt: redis.NoExpiry, Other: &redis.Content{Type: "list", Text: "x"}}
)

// Execute executes an operation of a run.
func (w *world) Execute(conn *server.Conn, r *server.Run, i int) (reply redis.Reply, field string) {
	op := &r.Ops[i]
	if wire.IsProbeLock(op.Name) {
		now, clock := w.Now(conn.Server)
		return w.redis.probes.Execute(conn, r, i, now, clock)
	}
	h, _ := w.hostOf(conn)
	x := w.nodeOf(conn.Server)
	record := w.commands[w.executing].records[i]
	o := &w.ops[record]
	o.at = w.now
	w.check.meetIf(ExecutedLate, o.settled)
	w.command = r.Command(i, redis.Owner(h.index), w.now, w.time(x))
	if op.Of.HasMany() {
		reply = w.executePermits(h, o, conn, r, &w.command)
		if op.Of == redisop.KindReadWrite && reply.Outcome == redisop.HeldByOther {
			field = readersField
			if writer := w.redis.names[semaphore].readWrite.Writer(); writer != redis.NoOwner {
				field = ownerField(writer)
			} else if reply.Arrived != 0 {
				field = ""
			}
		}
		w.noteExecuted(h, &w.ops[record], &reply)
		return reply, field
	} else if conn.Server.IsReplica {
		reply = w.executeAtReplica(h, o, &w.command)
	} else {
		reply = w.execute(h, x, o, conn, r, &w.command)
	}
	w.noteExecuted(h, &w.ops[record], &reply)
	return reply, w.fieldOf(&reply, &w.redis.names[w.ops[record].name])
}

// receiversOf is how many connections a node counts that receive what is published to a sidecar: the one that executes
// an operation.
func (w *world) receiversOf(sidecar redis.Owner) int32 {
	return int32(btoi(int(sidecar) < len(w.hosts) && w.reaches(w.hosts[sidecar], w.publishing)))
}

// Now is the time, and what TIME returns at a server.
func (w *world) Now(s *server.Server) (now, clock int64) { return w.now, w.time(w.nodeOf(s)) }

// execute executes an operation at the master of a node.
func (w *world) execute(h *host, x nodeID, o *operation, conn *server.Conn, r *server.Run, c *redis.Command) redis.Reply {
	n := int(o.name)
	w.expire(n)
	name := &w.redis.names[n]
	before, keysBefore := name.key, w.keysOf(n)
	o.wasFree = !before.Exists()
	channel := w.channelAt(conn.Server, n)
	if w.redis.owners[n] != x {
		w.check.meet(ExecutedAsking)
		w.check.meetIf(PassedAsking, o.op.Kind != redisop.Renew && o.op.Kind != redisop.Check && o.op.Kind != redisop.Arrive)
	}
	c.Denied, c.Queue = w.denied(n), name.queue
	c.ArrivesByClock, c.LowersLateScores = w.arrivesByClock, w.lowersLateScores
	w.publishing, c.Receivers = x, w.receivers
	shared := &w.redis.names[w.counterOf(n)]
	if shared.counter.HasExpired(w.now) { // also if what draws from it is a lock that passes on
		w.loseCounter(w.counterOf(n), redis.Counter{})
		w.check.meet(CounterExpired)
	}
	counter := &shared.counter
	c.Migrates = w.isOpen(n) && w.redis.owners[n] == x
	if w.isOpen(n) && !r.Declares { // the script finds what is here
		_, here := w.Slot(conn.Server, c.Op.Name)
		if here&counterKey == 0 {
			counter = new(redis.Counter)
		}
		if here&queueKey == 0 {
			c.Queue = new(redis.Queue)
		}
	}
	drawnBefore := shared.counter.Value
	draws := redis.Judge(c.Op, c.Standing(&name.key)).Draws
	var reply redis.Reply
	switch {
	case name.overwritten:
		key := overwrittenKey
		reply = c.Run(&key, counter, channel)
	case shared.brokenCounter && draws:
		broken := brokenCounter
		reply = c.Run(&name.key, &broken, channel)
		name.key = before // without the longer lease, of which the table does not know
	case shared.brokenCounter && c.Next != nil:
		broken := brokenCounter
		reply = c.Run(&name.key, &broken, channel)
	default:
		reply = c.Run(&name.key, counter, channel)
	}
	if w.isOpen(n) {
		w.setKeysThere(n, w.keysOf(n)&^keysBefore, w.redis.open[n].to == x)
	}
	switch reply.Change {
	case redis.Remove:
		w.freeKey(n)
	case redis.Pass:
		if before.Owner == redis.NoOwner {
			w.checkWakeUp(n)
		}
		w.onPass(n, &reply, o, conn.Server)
	case redis.Write:
		name.unjumpedExpiry = 0
		if before.Owner == redis.NoOwner {
			w.checkWakeUp(n)
		}
		// If the table does not know of the key, a successor does if the journal does.
		name.ghost = o.settled && (!h.isDown() || h.journal.find(n) == nil)
	}
	w.noteFirst(n)
	w.check.meetIf(FirstNotified, o.op.Kind == redisop.Drop && reply.Publication == redis.NotPublished && !reply.Passed && len(reply.Sent) > 0)
	if reply.Publication != redis.NotPublished {
		name.unannounced = w.redis.owners[n] != x
		w.sharers(n, func(other int) {
			if other != n {
				conn.Server.PublishLock(lockNames[other], w.plan.cluster)
			}
		})
	}
	if reply.Token != 0 {
		w.check.meetIf(CounterLifted, w.hasClocks() && !reply.Made && drawnBefore < c.Floor && drawnBefore > 0)
		w.check.meetIf(CounterBeganAboveClock, reply.Made && o.birth > w.time(x))
		w.checkDraw(n, reply.Token-uint64(o.op.Reserve)+1, reply.Token, o, reply.Made)
	}
	if reply.Counted && w.plan.numsubFails && w.random.oneIn(3) {
		reply.Listeners = redisop.Listeners{State: redisop.Uncountable}
	}
	w.checkNewTicket(h, n, o, &reply)
	w.noteArrival(h, n, o, &reply)
	w.check.meetIf(PassedToItself, reply.Change == redis.Pass && int16(name.key.Owner) == o.host && o.op.Kind == redisop.Drop)
	if w.trace.on {
		late := ""
		if o.settled {
			late = ", late"
		}
		w.trace.add(w, n, h, "Redis executes %s%s: outcome %d %s; the key is now %s", opString(o.op), late, reply.Outcome, reply.Code, keyString(name.key))
	}
	if reply.Change != redis.Nothing {
		w.keyChanged(n)
	}
	return reply
}

// onPass notes that an operation passed the key on to a ticket.
func (w *world) onPass(n int, reply *redis.Reply, o *operation, by *server.Server) {
	name := &w.redis.names[n]
	name.unjumpedExpiry = 0
	name.ghost = true // until its host is told
	w.check.meet(LockTransferred)
	for i := range reply.Sent {
		m := &reply.Sent[i]
		if m.Kind == redisop.Transferred {
			w.check.meetIf(DeadTicketSkipped, m.Reached == 0)
			if m.Reached == 0 {
				continue // the tokens are for the next one
			}
			w.checkDraw(n, m.LastToken-uint64(m.Tokens)+1, m.LastToken, o, false)
			name.passed[name.passedNum%len(name.passed)] = passed{m.LastToken, w.now, by}
			name.passedNum++
		} else if m.Kind == redisop.Requeue {
			w.check.meet(OldTicketSkipped)
		}
	}
}

// noteFirst notes which ticket is the first of a queue.
func (w *world) noteFirst(n int) {
	name := &w.redis.names[n]
	var first redis.Ticket
	if len(name.queue.Tickets) > 0 {
		first = name.queue.Tickets[0]
	}
	if first != name.first {
		name.first, name.firstSince = first, w.now
	}
}

// fieldOf is the owner field of the key of a lock, or what else is there.
func (w *world) fieldOf(reply *redis.Reply, name *redisName) string {
	switch {
	case reply.Outcome == redisop.NotALock, reply.Outcome == redisop.HeldByOther && name.overwritten:
		return overwrittenField
	case reply.Outcome == redisop.HeldByOther && name.key.Owner != redis.NoOwner:
		return ownerField(name.key.Owner)
	}
	return ""
}
