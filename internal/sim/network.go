package sim

import (
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// The connections of a host, one to each shard. The store's own Machine makes the commands and takes in the replies; a
// model of a server executes them. Here is what is between the two: how long it takes, what is lost, what arrives late,
// and when a connection ends and the next one is made.

// operation is one Op on its way to Redis and back.
type operation struct {
	op       redisop.Op
	res      redisop.Result
	host     int16
	name     int8
	floor    int64 // of the run that executes it
	birth    int64 // a new counter begins above it
	known    int64 // of its connection
	clockAt  int64 // the same
	movedAt  int64 // when the table was told last that another shard has its lock
	at       int64 // when Redis executed it
	issuedAt int64 // when the table issued it
	sentAt   int64 // the same, by the clock of the host
	commands int   // on their way to Redis that execute it
	fate     contract.Op
	settled  bool // the table has its result

	via        redisop.Shard // the shard that it was sent to: that of the Op, or one that was named by ASK
	node       nodeID        // to which that leads
	isAsking   bool          // it is behind ASKING
	isRefused  bool          // the shard answered that it does not have the lock, or not all of its keys
	wasFree    bool          // there was no key when Redis executed it
	isOutdated bool          // the table was told since that another shard has its lock
}

const noOp = int32(-1) // the index of no operation

var castagnoli = crc32.MakeTable(crc32.Castagnoli) // which processors compute

// command is a command on its way to a server.
type command struct {
	server.Command
	conn     *server.Conn
	records  []int32 // the operations of a run
	end      int64   // where in the stream of the connection it ends, bytes
	at       int64   // it reaches the server no earlier
	isLost   bool
	isAsking bool // behind ASKING
}

// reply is a reply or a push on its way to a host.
type reply struct {
	wire.Reply
	at       int64
	clock    int64 // that TIME returned, µs
	clockAt  int64 // when; 0: it is another reply
	confirms int   // what the server had done when enough replicas confirmed that; 0: it is another reply
}

type connection struct {
	gen       uint32
	address   string            // that it leads to, in a Cluster,
	node      nodeID            // and the node that has that now, or had it last
	attempt   int32             // to connect, of which only the last one counts
	m         *pipeline.Machine // of the process
	peer      *server.Conn      // what the server has; nil: there was none yet
	ok        bool              // the store believes that it works
	inRedis   bool              // Redis has it
	dead      bool              // nothing comes through any more, whether the store has detected it or not
	late      bool              // what a dead connection carried comes through much later, at lateAt
	lateAt    int64
	lastExec  int64 // when what was sent last reaches Redis
	lastReply int64 // when what was replied last reaches the host
	blocked   int64 // until then the server executes nothing of it, because of a WAIT
	run       int   // run id seen last
	nextRun   int   // run id of the server that the connection leads to

	told       contract.Conn
	slotsLeft  uint32              // names whose subscriptions the server has ended, and the table is not told: bits
	ops        []redisop.Op        // that the table has issued, and the Machine does not have
	made       int64               // bytes of commands
	reaches    int64               // where the last command ends that reaches the server
	isAsking   bool                // the last command was ASKING
	sent       []int32             // commands that the server has not executed, oldest first
	toHost     []reply             // oldest first
	armedAt    int64               // when the Machine is advanced, at the latest
	armedFor   int64               // host clock: the same, as far as the Machine wants it
	lastByte   int64               // host clock: when something came last
	held       []pipeline.Delivery // of the connection before, that are not handed on yet
	isRefusing bool                // what waits is to be refused

	known   int64      // the floor of the host when the connection was up, or at the last route; or the clock as it was last read
	clock   tokenFloor // Redis's, when it was last read
	clockAt int64      // when that was
	aheadTo int64      // the largest token that was ahead of it

	isListening   bool  // Redis has its subscription of the host's own channel
	isConnecting  bool  // the server has it already, or will soon
	isIdle        bool  // the node has no slots
	receivesUntil int64 // until then Redis counts a connection of this host that is gone as a receiver

	up          bool  // as the table was told
	upKnown     bool  // it was told whether the shard can be reached
	unanswered  int   // operations whose results the table does not have
	silentSince int64 // host clock: when the table got a result last, or issued the first of them
	troubleAt   int64 // when something last failed between the host and the shard
}

// silence returns how long the shard has replied nothing to a host that waits for a reply.
func (c *connection) silence(now int64) int64 {
	if c.unanswered == 0 {
		return 0
	}
	return now - c.silentSince
}

// isAhead reports whether a token is ahead of Redis's clock, as it was when it was last read.
func (c *connection) isAhead(now, token int64) bool {
	return token > c.clock.token+(now-c.clock.at)/µs+1_000_000
}

// tokenFloor is what a host knows of tokens: the largest one that Redis gave it, and when
// that was. It grows with the clock of the host, a hundredth more slowly.
type tokenFloor struct {
	token int64
	at    int64 // host clock; 0: none is known
}

func (f tokenFloor) now(clock int64) int64 {
	if f.at == 0 {
		return 0
	}
	elapsed := (clock - f.at) / µs
	return f.token + elapsed - elapsed/100 - min(elapsed, 1)
}

func (f *tokenFloor) raise(clock, token int64) {
	if token > f.now(clock) {
		*f = tokenFloor{token, clock}
	}
}

// lag is how long something takes between a host and Redis.
func (w *world) lag() int64 {
	if w.random.oneIn(w.plan.slowOps) {
		return w.random.magnitude(w.plan.latency, w.plan.slow)
	}
	return w.random.between(w.plan.latency>>4, w.plan.latency)
}

func (w *world) newOp() int32 {
	if n := len(w.freeOps); n > 0 {
		i := w.freeOps[n-1]
		w.freeOps = w.freeOps[:n-1]
		w.ops[i] = operation{}
		return i
	}
	w.ops = append(w.ops, operation{})
	return int32(len(w.ops) - 1)
}

// freeOp frees an operation to which nothing refers any more.
func (w *world) freeOp(i int32) {
	if o := &w.ops[i]; o.commands == 0 && o.settled {
		w.freeOps = append(w.freeOps, i)
	}
}

// issue notes an operation, which giveOps gives to the store.
func (w *world) issue(h *host, op redisop.Op) {
	n := nameIndex(op.Name)
	i := w.newOp()
	o := &w.ops[i]
	o.op, o.via, o.host, o.name, o.issuedAt = op, op.Shard, int16(h.index), int8(n), w.now
	o.sentAt, o.fate = h.clock(w.now), contract.Of(&op)
	if op.Kind == redisop.Arrive {
		h.locks[n].arriving = i
	} else {
		h.locks[n].inFlight = i
	}
	c := &h.conns[op.Shard]
	if c.unanswered == 0 {
		c.silentSince = h.clock(w.now)
	}
	c.unanswered++
	c.ops = append(c.ops, op)
}

// recordOf returns the operation of a lock that is in flight, by its kind; noOp: there is none.
func (w *world) recordOf(h *host, n int, kind redisop.OpKind) int32 {
	l := &h.locks[n]
	i := l.inFlight
	switch {
	case kind == redisop.Arrive:
		i = l.arriving
	case kind == redisop.Drop && l.dropPending != noOp:
		i = l.dropPending
	}
	if i == noOp || w.ops[i].op.Kind != kind {
		return noOp
	}
	return i
}

// giveOps gives the store what the table has issued in one step of the loop.
func (w *world) giveOps(h *host) {
	for s := range h.shards {
		c := &h.conns[s]
		if len(c.ops) == 0 {
			continue
		}
		if c.ok && w.random.oneIn(w.plan.unsent) {
			w.breakConnection(h, s, false)
		}
		c.m.Do(h.clock(w.now), c.ops)
		c.ops = c.ops[:0]
		w.send(h, s)
	}
}

// send sends what the Machine of a connection has made, and has it advanced when it is due. Without a connection, what
// waits is refused.
func (w *world) send(h *host, s redisop.Shard) {
	c := &h.conns[s]
	if c.m.HasBytes() {
		w.bytes = c.m.TakeBytes(w.bytes)
		for rest := w.bytes; len(rest) > 0; {
			rest = w.sendFirst(h, s, rest)
		}
	}
	if !c.ok {
		if !c.isRefusing {
			c.isRefusing = true
			w.after(w.random.below(ms), event{kind: evNotSent, host: int16(h.index), gen: c.gen, shard: int8(s)})
		}
		return
	}
	if at := c.m.Next(); at < c.armedFor {
		c.armedFor = at
		w.advanceAt(h, s, h.worldTime(at))
	}
}

// advanceAt has the Machine of a connection be advanced at a time, at the latest.
func (w *world) advanceAt(h *host, s redisop.Shard, at int64) {
	c := &h.conns[s]
	if at = max(at, w.now); at < c.armedAt {
		c.armedAt = at
		w.after(at-w.now, event{kind: evAdvance, host: int16(h.index), gen: c.gen, shard: int8(s)})
	}
}

// sendFirst sends the first command of some bytes, and returns the bytes after it. What one host sends arrives in order.
func (w *world) sendFirst(h *host, s redisop.Shard, bytes []byte) (rest []byte) {
	c := &h.conns[s]
	i := w.newCommand()
	cmd := &w.commands[i]
	rest, err := w.reader.Read(bytes, &cmd.Command)
	if err != nil {
		w.violation(invariant.Contract, -1, "the store sends what is no command: %v: %.300q", err, bytes)
	}
	made := bytes[:len(bytes)-len(rest)]
	c.made += int64(len(made))
	w.check.digest = w.check.digest.Add(uint64(crc32.Checksum(made, castagnoli)))
	cmd.conn, cmd.end, cmd.isAsking = c.peer, c.made, c.isAsking
	c.isAsking = cmd.Words[0] == "asking"
	for j := range cmd.Run.Ops {
		op := &cmd.Run.Ops[j]
		if wire.IsProbeLock(op.Name) {
			continue
		}
		n := nameIndex(op.Name)
		record := w.recordOf(h, n, op.Kind)
		if record == noOp {
			w.violation(invariant.Contract, n, "the store of host %d sends an operation that the table has not issued: %s", h.index, opString(*op))
		}
		o := &w.ops[record]
		o.via, o.node, o.isAsking, o.isRefused = s, c.node, cmd.isAsking, false
		o.floor, o.birth, o.known, o.clockAt, o.movedAt = cmd.Run.Floor, cmd.Run.Birth, c.known, c.clockAt, h.locks[n].movedAt
		if o.floor >= redis.MaxToken {
			o.clockAt = w.now
		}
		o.commands++
		cmd.records = append(cmd.records, record)
	}
	if c.dead && !c.late {
		w.freeCommand(i)
		return rest
	}
	if c.dead {
		c.lastExec = max(c.lastExec, c.lateAt)
	}
	c.lastExec = max(c.lastExec, w.now+w.lag())
	c.reaches = c.made
	cmd.at = c.lastExec
	c.sent = append(c.sent, i)
	w.after(cmd.at-w.now, event{kind: evExec, arg: i})
	return rest
}

func (w *world) newCommand() int32 {
	if n := len(w.freeCommands); n > 0 {
		i := w.freeCommands[n-1]
		w.freeCommands = w.freeCommands[:n-1]
		return i
	}
	w.commands = append(w.commands, command{})
	return int32(len(w.commands) - 1)
}

// freeCommand frees a command, which no event refers to.
func (w *world) freeCommand(i int32) {
	cmd := &w.commands[i]
	for _, record := range cmd.records {
		w.ops[record].commands--
		w.freeOp(record)
	}
	cmd.conn, cmd.records, cmd.isLost = nil, cmd.records[:0], false
	w.freeCommands = append(w.freeCommands, i)
}

// hostOf returns whose a connection of a server is, and to which shard.
func (w *world) hostOf(c *server.Conn) (*host, redisop.Shard) {
	return w.hosts[c.ID/maxConns], redisop.Shard(c.ID % maxConns)
}

// arrive handles a command that reaches its server.
func (w *world) arrive(i int32) {
	cmd := &w.commands[i]
	h, s := w.hostOf(cmd.conn)
	c := &h.conns[s]
	wait := cmd.at
	if c.peer == cmd.conn {
		wait = max(wait, c.blocked)
	}
	wait = max(wait, w.redis.nodes[w.nodeOf(cmd.conn.Server)].stalledUntil) // before what is sent during the stall
	if wait > w.now && !cmd.isLost {
		w.after(wait-w.now, event{kind: evExec, arg: i})
		return
	}
	if c.peer == cmd.conn && len(c.sent) > 0 && c.sent[0] == i {
		c.sent = append(c.sent[:0], c.sent[1:]...)
	}
	if cmd.isLost {
		w.freeCommand(i)
		return
	}
	to, isFlushed := cmd.conn.Server, false
	if cmd.Script != nil {
		if isFlushed = w.random.oneIn(w.plan.unknownScript); isFlushed {
			to.FlushScripts()
		}
		to.IsBusy = w.random.oneIn(w.plan.busy)
	}
	w.executing = i
	to.Do(cmd.conn, &cmd.Command)
	if to.IsBusy = false; isFlushed && w.random.usually(4) {
		to.Learn() // by another client, so a later run is executed before this one
	}
	w.freeCommand(i)
}

// Send has a server send a reply or a push over a connection. It is lost if the connection is.
func (w *world) Send(peer *server.Conn, r wire.Reply) {
	h, s := w.hostOf(peer)
	c := &h.conns[s]
	cmd := &w.commands[w.executing]
	isReply := r.Kind != '>'
	isTransfer := !isReply && strings.HasPrefix(r.List[2].Text, "transfer")
	if r.Kind == '-' {
		w.noteRefusal(cmd, r.Text)
	}
	isLost := !isReply && (r.List[0].Text == "message" || r.List[0].Text == "smessage") && w.random.oneIn(w.plan.lostMessages)
	if c.peer != peer || c.dead || !c.inRedis || isLost {
		w.check.meetIf(TransferLost, isTransfer)
		return
	}
	next := reply{Reply: r}
	if isReply && cmd.Words[0] == "time" && cmd.conn == peer {
		next.clock, next.clockAt = w.time(w.nodeOf(peer.Server)), w.now
	}
	if n := int64(peer.Server.Replicas); isReply && cmd.Words[0] == "wait" && r.Kind == ':' && r.Num >= n {
		next.confirms = w.did
	}
	c.lastReply = max(c.lastReply, w.now+w.lag(), c.blocked)
	next.at = c.lastReply
	if n := len(c.toHost); n == 0 || c.toHost[n-1].at != next.at {
		w.after(next.at-w.now, event{kind: evReply, host: int16(h.index), gen: c.gen, shard: int8(s)})
	}
	c.toHost = append(c.toHost, next)
}

// noteRefusal notes an error of a shard.
func (w *world) noteRefusal(cmd *command, text string) {
	code := wire.Code(text)
	isMoved := code == "MOVED" || code == "CLUSTERDOWN"
	w.check.meetIf(OperationMoved, isMoved && len(cmd.records) > 0)
	w.check.meetIf(OperationAsked, code == "ASK")
	w.check.meetIf(TriedAgain, code == "TRYAGAIN")
	for _, record := range cmd.records {
		o := &w.ops[record]
		o.isRefused = isMoved || code == "ASK" || code == "TRYAGAIN"
		if w.trace.on {
			w.trace.add(w, int(o.name), w.hosts[o.host], "Redis%s answers %s to %s", w.nodeString(o.node), text, opString(o.op))
		}
	}
}

// onReply handles that something reaches a host: all that has come by now, as a reader takes it in.
func (w *world) onReply(h *host, e event) {
	s := redisop.Shard(e.shard)
	c := &h.conns[s]
	if e.gen != c.gen || c.dead || !c.ok || h.isDown() {
		return
	}
	now := h.clock(w.now)
	due := 0
	for due < len(c.toHost) && c.toHost[due].at <= w.now {
		due++
	}
	if due > 1 && w.random.oneIn(8) { // the rest has not come out of the socket
		due = int(w.random.between(1, int64(due-1)))
		w.after(w.random.below(ms), e)
	}
	var err error
	taken := 0
	for ; taken < due && err == nil; taken++ {
		r := &c.toHost[taken]
		if r.clockAt != 0 {
			w.noteClock(h, s, r)
		}
		c.told.Confirmed = max(c.told.Confirmed, r.confirms)
		err = c.m.Reply(now, &r.Reply)
		w.items.Free(&r.Reply)
	}
	if taken == 0 {
		return
	}
	if err != nil {
		w.violation(invariant.Contract, -1, "the store of host %d refuses a reply: %v", h.index, err)
	}
	c.toHost = append(c.toHost[:0], c.toHost[taken:]...)
	c.lastByte = now
	err = c.m.Rest(now)
	if n := len(w.spareResults); n > 0 && c.m.WantsSpare() {
		c.m.Spare(w.spareResults[n-1])
		w.spareResults = w.spareResults[:n-1]
	}
	w.send(h, s)
	w.hand(h, s, w.takeDeliveries(c))
	if c := &h.conns[s]; err != nil && e.gen == c.gen { // the store ends the connection
		w.breakConnection(h, s, false)
	}
}

// noteClock notes that a shard has told its clock.
func (w *world) noteClock(h *host, s redisop.Shard, r *reply) {
	c, now := &h.conns[s], h.clock(w.now)
	c.clock, c.clockAt = tokenFloor{r.clock, now}, r.clockAt
	h.floor.raise(now, r.clock)
	c.known = max(c.known, r.clock) // what a node told since the route is not of this one
	w.check.meet(ClockReported)
}

// onAdvance does what the Machine of a connection has due.
func (w *world) onAdvance(h *host, e event) {
	s := redisop.Shard(e.shard)
	c := &h.conns[s]
	if e.gen != c.gen || w.now < c.armedAt || !c.ok || h.isDown() {
		return
	}
	c.armedAt, c.armedFor = math.MaxInt64, math.MaxInt64
	hasUnread := len(c.toHost) > 0 && c.toHost[0].at <= w.now
	if c.m.Advance(h.clock(w.now), c.lastByte, hasUnread) {
		w.check.meet(FoundDead)
		c.m.Cut()
		w.breakConnection(h, s, false)
	}
	w.send(h, s)
}

// takeDeliveries returns what the Machine of a connection delivers.
func (w *world) takeDeliveries(c *connection) []pipeline.Delivery {
	spare := w.spareDeliveries
	w.spareDeliveries = nil
	return c.m.TakeDeliveries(spare)
}

// hand gives the table what the Machine of a connection delivered, in its order.
func (w *world) hand(h *host, s redisop.Shard, deliveries []pipeline.Delivery) {
	life := h.life
	for i := range deliveries {
		if h.isDown() || h.life != life {
			break
		}
		w.handOne(h, s, &deliveries[i])
	}
	clear(deliveries)
	w.spareDeliveries = deliveries
}

func (w *world) handOne(h *host, s redisop.Shard, d *pipeline.Delivery) {
	switch d.Kind {
	case pipeline.Results:
		if d.Raised != nil {
			w.noteRaised(h, d.Raised)
		}
		for i := range d.Results {
			w.deliver(h, s, &d.Results[i])
		}
		w.spareResults = append(w.spareResults, d.Results[:0])
		w.afterInput(h)
	case pipeline.Messages:
		for i := range d.Messages {
			w.onMessage(h, s, d.Messages[i])
		}
	case pipeline.Subscribed:
		for _, name := range d.Names {
			w.onSubscribed(h, nameIndex(name), s)
		}
	case pipeline.Unsubscribed, pipeline.SlotLeft:
		w.check.meetIf(SubscriptionEnded, d.Kind == pipeline.SlotLeft)
		slices.Sort(d.Names) // their order is that of a map
		for _, name := range d.Names {
			w.onUnsubscribed(h, nameIndex(name), s)
			h.conns[s].slotsLeft &^= 1 << nameIndex(name)
		}
		if d.Kind == pipeline.SlotLeft {
			if h.conns[s].ok {
				w.advanceAt(h, s, w.now+w.lag()) // the store subscribes again
			}
			w.update(h, func(m *cluster.Map, now int64) { m.SlotLeft(now) })
		}
	case pipeline.Moved:
		w.update(h, func(m *cluster.Map, now int64) { m.Moved(now, w.redirect(d.Redirect)) })
		h.conns[s].told.IsMoved = true
	case pipeline.TryAgain:
		w.update(h, func(m *cluster.Map, now int64) { m.Blocked(now, w.redirect(d.Redirect).Slot) })
	case pipeline.Asked:
		w.askThere(h, d)
	}
}

// deliver gives the table the one result of an operation.
func (w *world) deliver(h *host, s redisop.Shard, r *redisop.Result) {
	n := nameIndex(r.Name)
	i := w.recordOf(h, n, r.Kind)
	if i == noOp {
		w.violation(invariant.Contract, n, "the store of host %d gives the table a result of no operation: %s", h.index, resultString(*r))
	}
	if r.Kind == redisop.Drop {
		w.drainDeferred(h) // a Take may have been pipelined after it
	}
	o := &w.ops[i]
	w.checkFate(h, o, r)
	o.settled = true
	o.res = *r
	c := &h.conns[o.op.Shard]
	c.unanswered--
	c.silentSince = h.clock(w.now)
	w.check.meetIf(ExecutedUnknown, o.fate.Times > 0 && r.Outcome == redisop.Unknown)
	if r.Outcome == redisop.NotSynced {
		w.check.meetIf(TakeNotSynced, r.Kind == redisop.Take)
		w.check.meetIf(RenewNotSynced, r.Kind == redisop.Renew)
		w.check.meetIf(DropNotSynced, r.Kind == redisop.Drop)
		h.conns[o.via].troubleAt = w.now
	}
	w.checkResult(h, o)
	if w.trace.on {
		w.trace.add(w, n, h, "result of %s: %s", opString(o.op), resultString(*r))
	}
	l := &h.locks[n]
	if l.arriving == i {
		l.arriving = noOp
	} else if l.dropPending == i {
		l.dropPending = noOp
		w.check.meetIf(DropRepliedAfterTake, l.inFlight == noOp)
	} else {
		l.inFlight = noOp
	}
	if r.Outcome == redisop.Done {
		l.unconfirmed = false
	}
	via := o.via
	w.freeOp(i)
	c = &h.conns[via]
	token, now := int64(r.Token), h.clock(w.now)
	if n == semaphore && !w.plan.readWrite {
		token = 0 // what it draws raises no floor
	}
	h.floor.raise(now, token)
	if c.isAhead(now, token) && token > c.aheadTo {
		w.check.meet(FloorRaised)
		c.aheadTo = token
	}
	if w.plan.cluster && token != 0 && h.topology.m.Owner(w.slotOf(r.Name)) != r.Shard {
		w.update(h, func(m *cluster.Map, now int64) { m.Drew(now, r.Shard, r.Name, r.Token) })
	}
	h.table.Result(now, *r)
	if r.Kind == redisop.Arrive && l.inFlight != noOp {
		w.drain(h) // the other result of the lock may be in the same batch
	}
}

// noteRaised notes the floor of tokens of a connection, which is up, or whose floor a token raised.
func (w *world) noteRaised(h *host, id *wire.Identity) {
	now := h.clock(w.now)
	if w.plan.cluster {
		all := h.topology.m.Raised(now, id)
		h.raised = tokenFloor{all.Floor, all.FloorAt}
		return
	}
	h.raised.raise(now, id.Above(now))
}

// onNotSent refuses what waits for a connection that there is not.
func (w *world) onNotSent(h *host, e event) {
	s := redisop.Shard(e.shard)
	c := &h.conns[s]
	if e.gen != c.gen || h.isDown() {
		return
	}
	c.isRefusing = false
	if c.ok {
		return
	}
	c.m.Refuse("not connected")
	w.hand(h, s, w.takeDeliveries(c))
}

// breakConnection breaks the connection. Of what is on its way a first part arrives. The
// rest is lost; or, if only the host has given up the connection, it may arrive much later.
func (w *world) breakConnection(h *host, s redisop.Shard, serverDied bool) {
	c := &h.conns[s]
	if !c.ok || c.dead { // broken already
		return
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "the connection%s breaks", w.nodeString(c.node))
	}
	if !serverDied && c.isListening && w.isAtMaster(h, s) && w.random.oneIn(2) {
		// Redis does not know that the connection is gone.
		c.receivesUntil = w.now + w.random.magnitude(ms, 60*sec)
	}
	c.dead, c.inRedis = true, false
	c.peer.Disconnect()
	c.toHost = c.toHost[:0]
	c.late = w.plan.lateOps && !serverDied && w.random.oneIn(2)
	c.lateAt = w.now + w.random.magnitude(ms, 10*sec)
	c.troubleAt = w.now
	arrive := w.random.below(int64(len(c.sent) + 1))
	c.reaches = c.made
	if len(c.sent) > 0 && !c.late {
		c.reaches = w.commands[c.sent[0]].end - 1 // of the first one that is lost; there may be none
	}
	for _, i := range c.sent {
		cmd := &w.commands[i]
		if arrive--; arrive >= 0 && !serverDied {
			c.reaches = max(c.reaches, cmd.end)
			continue
		}
		if c.late {
			cmd.at = max(cmd.at, c.lateAt)
		} else {
			cmd.isLost = true
		}
	}
	w.after(w.random.magnitude(10*µs, 2*sec), event{kind: evConnectionLost, host: int16(h.index), gen: c.gen, shard: int8(s)})
}

// onConnectionLost handles that the store has detected a dead connection.
func (w *world) onConnectionLost(h *host, s redisop.Shard, gen uint32) {
	c := &h.conns[s]
	if h.isDown() || gen != c.gen || !c.ok {
		return
	}
	w.drainDeferred(h)
	c = &h.conns[s]
	c.ok = false
	c.troubleAt = w.now
	back := w.random.magnitude(5*ms, 5*sec)
	if w.phase != faulty {
		back = w.random.magnitude(5*ms, 100*ms)
	}
	c.m.Cut()
	_ = c.m.Rest(h.clock(w.now))
	sent := c.made
	if w.random.oneIn(2) { // the socket has not taken all
		sent = min(sent, w.random.between(min(c.reaches, c.made), c.made))
	}
	c.m.Down(sent, "the connection is lost")
	c.m.Refuse("not connected")
	c.held = c.m.TakeDeliveries(nil)
	w.reportDown(h, s)
	if w.random.oneIn(2) {
		w.handHeld(h, s)
	} else {
		w.after(w.random.below(w.failsWithin(back)), event{kind: evFailInFlight, host: int16(h.index), gen: gen, shard: int8(s)})
	}
	w.connectIn(h, s, back+2*ms)
}

// failsWithin is when the operations that a dead connection carried have their results at the latest,
// if the store connects again in so long. In a Cluster, slots move while it is not connected, so it does
// not wait for that.
func (w *world) failsWithin(back int64) int64 {
	if w.plan.cluster {
		return min(back, 20*ms)
	}
	return back
}

// handHeld gives the table the results of what the dead connection carried.
func (w *world) handHeld(h *host, s redisop.Shard) {
	c := &h.conns[s]
	held := c.held
	c.held = nil
	if len(held) > 0 && !h.isDown() {
		w.drainDeferred(h)
		w.hand(h, s, held)
	}
}

func (w *world) reportDown(h *host, s redisop.Shard) {
	if w.trace.on {
		w.trace.add(w, -1, h, "down%s", w.nodeString(h.conns[s].node))
	}
	h.conns[s].up, h.conns[s].upKnown, h.conns[s].told.IsDown = false, true, true
	if w.plan.cluster {
		life := h.life
		if w.update(h, func(m *cluster.Map, now int64) { m.Down(now, s) }); h.isDown() || h.life != life {
			return
		}
	}
	h.table.Down(h.clock(w.now), s, "Redis cannot be reached")
	w.drain(h)
}

// newMachine makes the Machine of a host's process for a shard.
func (w *world) newMachine(h *host) *pipeline.Machine {
	cfg := pipeline.Config{
		UUID: w.prefixes[h.index][:36], Keys: w.reader.Keys, IsNode: w.plan.cluster, TokenExpiry: time.Duration(w.counterExpiry),
		Timeout: w.plan.timeout, ProbeInterval: w.plan.probes, Batches: w.plan.batches,
	}
	if w.plan.durable {
		cfg.Replicas = 1
	}
	return pipeline.New(cfg)
}

// connectIn tries to connect to a shard after a time.
func (w *world) connectIn(h *host, s redisop.Shard, d int64) {
	c := &h.conns[s]
	c.attempt++
	w.after(d, event{kind: evConnect, host: int16(h.index), gen: c.gen, arg: c.attempt, shard: int8(s)})
}

// connectAgain does so after an attempt that failed: to a node without slots, much later.
func (w *world) connectAgain(h *host, s redisop.Shard) {
	d := w.random.between(10*ms, 300*ms)
	if h.conns[s].isIdle {
		d = 30 * sec
	}
	w.connectIn(h, s, d)
}

// connect tries to connect to a shard.
func (w *world) connect(h *host, s redisop.Shard, e event) {
	c := &h.conns[s]
	if h.isDown() || e.gen != c.gen || e.arg != c.attempt || c.ok {
		return
	}
	if w.plan.cluster {
		c.node = w.nodeAt(c.address)
	}
	node := &w.redis.nodes[c.node]
	if node.down || w.plan.cluster && c.node == 0 {
		if !c.upKnown {
			w.reportDown(h, s)
		}
		if c.gen == e.gen && !h.isDown() {
			w.connectAgain(h, s)
		}
		return
	}
	id := int32(h.index)*maxConns + int32(s)
	if w.plan.killsOld {
		for i := range w.commands {
			if cmd := &w.commands[i]; cmd.conn != nil && cmd.conn.ID == id {
				cmd.isLost = true
			}
		}
	}
	w.handHeld(h, s) // if it has not been done yet
	if h.isDown() || e.gen != c.gen {
		return
	}
	c.gen++
	c.isConnecting = true
	c.m.Connecting()
	now := h.clock(w.now)
	c.clock, c.clockAt, c.aheadTo = tokenFloor{w.time(c.node), now}, w.now, 0
	c.nextRun = node.run
	c.peer = node.server.Connect(id, redis.Owner(h.index), h.user)
	if w.plan.loads {
		node.server.Learn()
	}
	c.dead, c.late, c.inRedis, c.isListening, c.isRefusing = false, false, true, !h.mayNotSubscribe, false
	if c.isListening {
		c.peer.SubscribeOwn(node.server.OwnChannel(redis.Owner(h.index)))
	}
	c.lastExec, c.lastReply, c.blocked, c.armedAt, c.armedFor = w.now, w.now, 0, math.MaxInt64, math.MaxInt64
	c.made, c.reaches, c.isAsking = 0, 0, false
	c.sent, c.toHost, c.slotsLeft = c.sent[:0], c.toHost[:0], 0
	w.after(w.lag()+w.stallLeft(c.node), event{kind: evConnected, host: int16(h.index), gen: c.gen, shard: int8(s)})
}

// liftIdentity has the floor of a connection be above what the host knows.
func (w *world) liftIdentity(h *host, id *wire.Identity) {
	now := h.clock(w.now)
	floor := h.raised.now(now)
	if w.plan.cluster {
		floor = h.topology.m.FloorAt(now)
	}
	if floor > id.Above(now) {
		id.Floor, id.FloorAt = floor, now
	}
}

// onConnected handles that the store has connected.
func (w *world) onConnected(h *host, e event) {
	s := redisop.Shard(e.shard)
	c := &h.conns[s]
	if h.isDown() || e.gen != c.gen {
		return
	}
	c.isConnecting = false
	if node := &w.redis.nodes[c.node]; node.down || c.nextRun < node.oldest || c.dead {
		c.dead, c.inRedis, c.isListening = true, false, false
		c.peer.Disconnect()
		w.send(h, s) // what waits is refused
		w.connectAgain(h, s)
		return
	}
	w.drainDeferred(h)
	dataLost := c.run != 0 && c.run != c.nextRun
	c.run = c.nextRun // the journal has it when the table's holds are known to be in doubt
	c.ok = true
	c.up, c.upKnown = true, true
	c.troubleAt = w.now
	if w.trace.on {
		w.trace.add(w, -1, h, "up%s, dataLost=%v", w.nodeString(c.node), dataLost)
	}
	if dataLost {
		for n := range h.locks {
			if l := &h.locks[n]; h.routes[n] == s {
				h.revokeTokens(n, false)
				l.dataLostAt = w.now
			}
		}
	}
	now := h.clock(w.now)
	h.floor.raise(now, c.clock.token) // the host knows of a shard's clock, as it was read, when that is up
	c.known = h.floor.now(now)
	g := pipeline.Greeting{
		Server: wire.Server{Address: c.peer.Server.Address, Keys: w.reader.Keys, IsNode: w.plan.cluster}, At: c.peer.Server.Address,
		ID: wire.Identity{RunID: runID(c.nextRun), Floor: c.clock.token, FloorAt: c.clock.at}, Number: c.gen*maxConns + uint32(s),
		Clock: c.clock.token, ClockAt: c.clock.at, HasQueues: !w.plan.deniedQueues, IsSharded: w.plan.cluster, Loads: w.plan.loads,
	}
	if !w.plan.namelessServers {
		g.Origin = wire.OriginOf(g.ID.RunID, "master")
	}
	if w.plan.durable {
		g.Replication = pipeline.Replication{Replicas: 1, Tells: true}
	}
	if id := c.m.Identity(); id.Known() && id.Above(now) > g.ID.Above(now) {
		g.ID.Floor, g.ID.FloorAt = id.Above(now), now
	}
	w.liftIdentity(h, &g.ID)
	if w.plan.cluster {
		if w.update(h, func(m *cluster.Map, now int64) { m.Up(now, s, &g.ID) }); h.isDown() || e.gen != c.gen {
			return
		}
	}
	w.noteRaised(h, &g.ID)
	h.conns[s].told = contract.Opened(redisop.NewConn(g.Number), w.did, w.plan.durable)
	h.table.Up(now, s, dataLost, c.isListening)
	w.drain(h)
	if c = &h.conns[s]; h.isDown() || e.gen != c.gen {
		return
	}
	c.lastByte = now
	w.liftIdentity(h, &g.ID) // the floor may have risen
	c.m.Up(now, &g)
	w.send(h, s)
	if len(c.toHost) > 0 {
		w.after(0, event{kind: evReply, host: int16(h.index), gen: c.gen, shard: int8(s)})
	}
	w.checkBack(h, s)
	if dataLost && w.phase == faulty && w.plan.crashes > 0 && w.random.oneIn(4) {
		w.check.meet(KilledInDoubt)
		w.crash(h)
	}
}
