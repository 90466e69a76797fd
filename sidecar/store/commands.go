package store

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

const (
	// A batch is as large as Redis answers in a few milliseconds, so that what
	// comes in meanwhile does not wait long.
	batchRenewals = 8 * runMax
	batchDeletes  = 2 * runMax
	batchOthers   = 512

	// The end of a connection is noticed at once, because other hosts may reconnect to a
	// Redis that lost the locks before this one does. A connection that ends without a packet
	// is found by a ping, while it owes nothing, and was silent for so long.
	idlePing = 5 * time.Second

	backoffMin = 50 * time.Millisecond
	backoffMax = time.Second
)

// commands owns the connection. Operations come from any goroutine. The goroutine that brings
// one also writes it, if the connection is free for it: see pipeline. The goroutine run makes
// and checks the connection, has channels subscribed, and returns the operations that cannot
// be sent. Another goroutine reads while there is a connection, and one dials while there is
// none.
type commands struct {
	cfg       Config
	cluster   *cluster // that the server is a node of; nil: it is none
	shard     redisop.Shard
	namedAt   int64                  // when a node named this one last, CLOCK_BOOTTIME in ns; guarded by cluster.mu
	dial      *dialer                // what the first URL says
	server    atomic.Pointer[dialer] // the way to the server that was connected last; before: dial
	sentinels *sentinels             // who know where the server is; nil: the URL does

	wake   chan struct{} // run is to look at the queued operations, at closing and at the pipeline's next check
	dialed chan dialed   // from the dialing goroutine
	hurry  chan struct{} // the dialing goroutine is to wait no longer
	ctx    context.Context
	cancel context.CancelFunc // cuts everything short
	done   chan struct{}      // run has ended

	spareResults resultPool

	mu           sync.Mutex // guards what follows, and the pipeline's state; never held during I/O or a callback
	renewals     lanes      // Renew and Check
	deletes      lanes      // Drops that can wait
	others       fifo[redisop.Op]
	asking       fifo[redisop.Op] // whose keys are here already, although another node has their slot
	listener     listener
	queries      fifo[*query]
	pipe         *pipeline // nil while down
	closing      bool
	closed       bool
	mustAskClock bool         // slots have moved here since the last attempt to connect began: see pipeline.askClock
	failingOver  string       // where the master is that a Sentinel is about to replace; "": none is
	failoverWhy  string       // the sentence for that
	movedTo      string       // where the master is since the last attempt to connect began; "": nothing was received
	batch        []redisop.Op // emptied, for pump

	isUp      atomic.Bool  // the server can be asked
	slots     atomic.Int32 // that the server has, as far as is known; of a Cluster
	unsentOps atomic.Int64 // the length of others
	roundTrip atomic.Int64 // of the last command that Redis answered, ns; 0: there was none

	evicts atomic.Pointer[string] // what the server does to the keys of locks; nil: not known

	ignored ignoredMessages

	// Owned by the pipeline's reader: what was logged as not permitted.
	publishLogged   bool
	subscribeLogged bool

	// Owned by the dialing goroutine, of which there is one at a time.
	login        *dialer       // with the user and the password that were read last
	lost         lostAddresses // of run too, while there is no dialing goroutine
	loginFailure string        // why they could not be read, as the log has it; "": they were

	// Owned by run.
	number     uint32   // of the connection, the first one is 1
	last       Identity // of the last connection that was up, perhaps in another process
	upAt       time.Time
	delay      time.Duration // before the next attempt to connect
	why        string        // Redis cannot be asked: the last reason; "": it can
	killLogged bool          // that CLIENT KILL is not permitted was logged
	ownLogged  bool          // that the sidecar's channel is not permitted was logged
	noQueue    bool          // that the queues of locks are not permitted was logged

	isClusterLogged bool // that the server is a node of a Cluster was logged

	policyLogged  string // the last maxmemory-policy whose risk was logged; of the reader, too, while there is one
	evictedLogged bool   // that keys were evicted by that policy was logged; the same

	riskLogged int // the largest number of replicas that a logged risk was about; of the reader, too, while there is one
}

type dialed struct {
	ready *readyConn
	err   error
}

func newCommands(cfg Config, d *dialer, spare resultPool) *commands {
	c := &commands{
		cfg:      cfg,
		dial:     d,
		login:    d,
		wake:     make(chan struct{}, 1),
		dialed:   make(chan dialed),
		hurry:    make(chan struct{}, 1),
		done:     make(chan struct{}),
		listener: newListener(d.keys),

		spareResults: spare,
		why:          d.notYet(),
	}
	c.server.Store(d)
	if d.group != nil {
		c.sentinels = newSentinels(d.group, cfg.Log)
		c.sentinels.onMoved, c.sentinels.onFailover, c.sentinels.onLost = c.onMoved, c.onFailover, cfg.OnSentinels
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.last = cfg.Last
	return c
}

// do sends operations as soon as the connection is free for them. False: it is closed, and they get no result
// here.
func (c *commands) do(ops []redisop.Op) bool {
	if len(ops) == 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	for i := range ops {
		switch k := ops[i].Kind; {
		case k == redisop.Renew || k == redisop.Check:
			c.renewals.push(ops[i])
		case ops[i].Has(redisop.CanWait):
			c.deletes.push(ops[i])
		default:
			if ops[i].Has(redisop.AfterPendingDrop) {
				// Something waits for the lock now. A Take never overtakes its Drop, so the
				// Drop goes with it.
				if drop, ok := c.deletes.removeDrop(ops[i].Name); ok {
					c.others.push(drop)
				}
			}
			c.others.push(ops[i])
		}
	}
	c.unsentOps.Store(int64(c.others.len()))
	if c.pipe == nil {
		c.nudge() // run has the answer
		return true
	}
	c.pump(c.pipe)
	return true
}

func (c *commands) subscribe(name string) {
	c.mu.Lock()
	c.listener.subscribe(name)
	c.mu.Unlock()
	c.nudge() // it can wait for a moment, and then one command has several channels
}

func (c *commands) unsubscribe(name string) {
	c.mu.Lock()
	c.listener.unsubscribe(name)
	c.mu.Unlock()
	c.nudge()
}

// pump queues on the pipeline the requests about channels and the operations that it may take
// now: renewals first, because a late one costs a client its lock. The caller holds mu; Flush
// releases it for the time of a system call.
func (c *commands) pump(p *pipeline) {
	for p.canSubscribe() && !c.closing {
		r := c.listener.next()
		if r == nil {
			break
		}
		p.queueChannels(protocol.Now(), r)
	}
	for c.asking.len() > 0 && p.canSend() {
		c.batch = c.asking.pop(c.batch[:0], 1)
		p.queueAsking(protocol.Now(), c.batch)
		clear(c.batch)
	}
	for c.hasQueued() && p.canSend() {
		c.batch = c.renewals.pop(c.batch[:0], batchRenewals)
		c.batch = c.deletes.pop(c.batch, batchDeletes)
		c.batch = c.others.pop(c.batch, batchOthers)
		if n := len(c.batch); n > 0 && c.others.len() > 0 && isPair(&c.batch[n-1], c.others.front()) {
			c.batch = c.others.pop(c.batch, 1)
		}
		now := protocol.Now()
		p.queueBatch(now, c.batch)
		p.queueWait(now)
		clear(c.batch)
	}
	c.unsentOps.Store(int64(c.others.len()))
	c.pumpQueries(p)
	if at := p.lastReply + p.patience; p.liveness == waiting && at < p.nextCheck {
		p.nextCheck = at // run expected an idle connection
		c.nudge()
	}
	p.out.Flush()
}

// hasQueued reports whether operations wait to be sent. The caller holds mu.
func (c *commands) hasQueued() bool {
	return c.renewals.len()+c.deletes.len()+c.others.len()+c.asking.len() > 0
}

// sendQueued sends the operations that waited for replies, which have come. The error ends
// the pipeline.
func (c *commands) sendQueued(p *pipeline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pump(p)
	if !p.isIdle() {
		return nil
	}
	if p.drainReason != "" {
		return unavailableError(p.drainReason)
	}
	if c.closing {
		c.nudge()
	}
	return nil
}

func (c *commands) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *commands) run() {
	defer close(c.done)
	look := time.NewTimer(0)
	look.Stop()
	defer look.Stop()
	var dialing sync.WaitGroup
	if c.sentinels != nil {
		defer c.sentinels.close()
		dialing.Go(func() { c.sentinels.watch(c.ctx) })
	}
	defer dialing.Wait()
	defer c.cancel()
	connect := func() {
		delay, last := c.delay, c.last
		dialing.Go(func() { c.connect(delay, last) })
	}
	connect()
	for {
		var ended <-chan struct{}
		if c.pipe != nil {
			ended = c.pipe.ended
		}
		select {
		case <-c.wake:
		case <-look.C:
		case d := <-c.dialed:
			if d.err != nil {
				c.onDown(d.err)
			} else {
				c.onConnected(d.ready)
			}
		case <-ended:
			c.onDisconnect()
			connect()
		}
		if c.pipe == nil {
			if waits := c.drainQueued(); len(waits) > 0 {
				c.deliver(unsent(waits, c.why), nil)
			}
			fail(c.drainQueries(), c.why)
		}
		next, over := c.checkPipeline()
		if over {
			fail(c.drainQueries(), "the sidecar is stopping")
			return
		}
		look.Reset(next)
	}
}

// drainQueued takes all operations that wait to be sent.
func (c *commands) drainQueued() []redisop.Op {
	c.mu.Lock()
	defer c.mu.Unlock()
	ops := c.renewals.pop(nil, c.renewals.len())
	ops = c.deletes.pop(ops, c.deletes.len())
	c.unsentOps.Store(0)
	ops = c.others.pop(ops, c.others.len())
	return c.asking.pop(ops, c.asking.len())
}

// checkPipeline checks the pipeline, and returns when to check again. over: every operation
// from before close has its result, and there will be no more.
func (c *commands) checkPipeline() (next time.Duration, over bool) {
	c.mu.Lock()
	p := c.pipe
	if c.closing && !c.hasQueued() && (p == nil || p.isIdle()) {
		c.closed = true
		c.mu.Unlock()
		if p != nil {
			p.close("")
			<-p.ended
		}
		return 0, true
	}
	defer c.mu.Unlock()
	if p == nil {
		return time.Hour, false // there is nothing to look at
	}
	now := protocol.Now()
	at := min(p.checkLiveness(now), p.checkProbe(now))
	c.listener.check()
	c.pump(p)
	return time.Duration(min(at, p.nextCheck) - now), false
}

// connect tries until it has a connection that is ready, and gives it to run. delay is the time
// before the first attempt.
func (c *commands) connect(delay time.Duration, last Identity) {
	for {
		if !pauseUnless(c.ctx, delay, c.hurry) {
			return
		}
		c.readLogin()
		c.mu.Lock()
		c.movedTo = ""         // the Sentinels are asked after it
		c.mustAskClock = false // it is read when the connection is made
		c.mu.Unlock()
		s, err := c.login.find(c.ctx, c.sentinels, &c.lost, last)
		select {
		case c.dialed <- dialed{s, err}:
		case <-c.ctx.Done():
			if s != nil {
				s.close()
			}
			return
		}
		if err == nil {
			return
		}
		if delay = nextDelay(delay); c.cluster != nil && c.slots.Load() == 0 {
			delay = idleDelay
		}
	}
}

// idleDelay is the time between two attempts to connect to a node of a Cluster that has no slots: a
// master that was replaced, or removed.
const idleDelay = 30 * time.Second

// connectNow ends the pause before the next attempt to connect.
func (c *commands) connectNow() {
	select {
	case c.hurry <- struct{}{}:
	default:
	}
}

// readLogin reads the user and the password of the Redis URL again.
func (c *commands) readLogin() {
	if c.cfg.ReadURL == nil {
		return
	}
	cfg := c.cfg
	var d *dialer
	var err error
	if cfg.URL, err = cfg.ReadURL(); err == nil {
		d, err = parse(cfg)
	}
	if err == nil && c.cluster != nil {
		d, err = c.cluster.relogin(d, c.dial.address)
	} else if err == nil && (d.options.Network != c.dial.options.Network || d.place() != c.dial.place() || !d.hasSentinelsOf(c.dial) || (d.options.TLSConfig == nil) != (c.dial.options.TLSConfig == nil)) {
		err = unavailablef("it names another Redis, at %s; reload the daemon to use it", d.place())
	}
	if err == nil {
		c.login, c.loginFailure = d, ""
		if c.sentinels != nil {
			c.sentinels.use(d.group)
		}
	} else if why := err.Error(); why != c.loginFailure {
		c.loginFailure = why
		c.cfg.Log.Warn("the Redis URL that was read again is not used; the earlier user and password are", "reason", why)
	}
}

// nextDelay doubles a delay within its bounds.
func nextDelay(delay time.Duration) time.Duration {
	return min(max(2*delay, backoffMin), backoffMax)
}

// pause sleeps for delay, give or take a quarter, so that the sidecars of many
// hosts do not come back to a fresh Redis in step. False: ctx ended.
func pause(ctx context.Context, delay time.Duration) bool { return pauseUnless(ctx, delay, nil) }

// pauseUnless is pause, which also ends when something is received.
func pauseUnless(ctx context.Context, delay time.Duration, hurry <-chan struct{}) bool {
	if delay == 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(delay*3/4 + rand.N(delay/2))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-hurry:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave ends a connection to another server than the master at an address. The caller holds mu.
func (c *commands) leave(p *pipeline, master string) {
	if p.dial.options.Addr != master {
		p.cut(unavailablef("Redis at %s is no longer the master %q: its Sentinels name %s", p.dial.address, c.dial.address, master))
	}
}

// onMoved ends the connection to a server that is no longer the master, and has the master connected at
// once.
func (c *commands) onMoved(address string) {
	c.mu.Lock()
	c.movedTo = address
	if c.pipe != nil {
		c.leave(c.pipe, address)
	}
	c.mu.Unlock()
	c.connectNow()
}

// onConnected takes a new connection into use.
func (c *commands) onConnected(s *readyConn) {
	lost := c.last.known() && !s.id.sameData(&c.last)
	if c.cluster != nil {
		// Counters may have come from another node, and have lost their last values on the way.
		if now := protocol.Now(); c.cluster.floorAt(now) > s.id.floor(now) {
			s.id.Floor, s.id.FloorAt = c.cluster.floorAt(now), now
		}
	}
	if s.killed != nil && code(s.killed.Error()) == "NOPERM" && !c.killLogged {
		c.killLogged = true
		c.cfg.Log.Info("this user may not end the connection before: what was under way on it may still run late, which is harmless; +client|kill permits it")
	}
	if s.id.RunID == "" && c.upAt.IsZero() {
		c.cfg.Log.Info("Redis does not tell its run id (INFO is not permitted or not known): after each reconnect every lock is asserted again, and each lock that another host passes on costs a round trip more; +info permits it")
	}
	listening := s.refused == ""
	if !listening && !c.ownLogged {
		c.ownLogged = true
		c.cfg.Log.Warn("this user may not subscribe to the channel on which other sidecars reach this one; let its ACL have +subscribe and the channels "+ownChannel("*"),
			"reason", clip(s.refused))
	}
	if s.isClusterNode && !c.isClusterLogged {
		c.isClusterLogged = true
		c.cfg.Log.Warn("this Redis is a node of a Cluster: only the locks of its own slots can be used; write redis+cluster:// instead of redis://", "address", s.dial.address)
	}
	if s.noAsking != "" && !c.cluster.askingLogged.Swap(true) {
		advice := ""
		if code(s.noAsking) == "NOPERM" {
			advice = "; let the ACL of this user have +asking"
		}
		c.cfg.Log.Warn("Redis refuses ASKING: while a slot moves key by key, its held locks cannot be renewed"+advice,
			"address", s.dial.address, "reason", clip(s.noAsking))
	}
	if s.noQueue != "" && !c.noQueue {
		c.noQueue = true
		c.cfg.Log.Warn("this user may not use the queues of locks: this host waits for a lock without a place in its queue; let its ACL have +zadd +zcard +zrank +zrange +zrem +zpopmin and the keys "+c.dial.keys.queuePatterns(),
			"reason", clip(s.noQueue))
	}
	log := c.cfg.Log
	if c.sentinels != nil {
		log = log.With("address", s.dial.address)
	}
	log.Info("redis is up", "version", s.version, "database", c.dial.options.DB, "run_id", s.id.RunID, "data_lost", c.dataLost(s), "own_channel", listening)
	c.last, c.upAt = s.id, time.Now()
	c.server.Store(s.dial)
	c.why = ""
	c.isUp.Store(true)
	if c.cfg.OnUp != nil {
		c.cfg.OnUp(c.shard, lost, listening, s.id)
	}
	if c.number++; c.cluster != nil {
		c.number = c.cluster.conns.Add(1) // no two connections of a host have one number
	}
	p := newPipe(c, s)
	if p.reported != "" {
		c.reportDegraded(p.reported)
	}
	if p.risk != "" {
		c.reportRisk(p.riskReport(p.risk))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	go p.read() // it may send what waits as soon as mu is unlocked: the floor is lifted before
	c.listener.isSharded = s.isSharded
	c.pipe = p
	if c.cluster != nil {
		if now := protocol.Now(); c.cluster.floorAt(now) > p.id.floor(now) { // liftFloor looked before
			p.lift(now, c.cluster.floorAt(now))
		}
		if c.mustAskClock {
			c.mustAskClock = false
			p.askClock(protocol.Now())
		}
	}
	if c.ctx.Err() != nil {
		p.cut(net.ErrClosed) // close looked before
	}
	if c.movedTo != "" {
		c.leave(p, c.movedTo) // onMoved looked before
	}
	c.pump(p)
}

// dataLost is, for the log, whether Redis lost its data since the connection before s.
func (c *commands) dataLost(s *readyConn) string {
	switch {
	case !c.last.known(), s.id.sameData(&c.last):
		return "no"
	case s.id.RunID == "" || c.last.RunID == "":
		return "unknown" // INFO is not permitted
	}
	return "possibly"
}

// onDown notes that Redis cannot be used. It logs and reports each change of the reason: the
// attempt to connect again knows more than the end of the connection did.
func (c *commands) onDown(err error) {
	if c.why == err.Error() {
		return
	}
	c.why = err.Error()
	c.isUp.Store(false)
	c.cfg.Log.Warn("redis is down", "reason", c.why)
	if c.cfg.OnDown != nil {
		c.cfg.OnDown(c.shard, err)
	}
}

// onDisconnect ends the pipe, whose reader has ended. The caller must connect.
func (c *commands) onDisconnect() {
	c.mu.Lock()
	p := c.pipe
	c.pipe = nil
	err, served := p.out.Err(), p.served
	c.last = p.id // its floor may have risen
	unsubscribed := c.listener.onDisconnect()
	c.mu.Unlock()
	c.lost.note(p.wire)
	why := p.dial.broken(err)
	if told, ok := err.(unavailableError); ok {
		why = string(told)
	}
	// A connection that served for a while is made again at once; one that breaks
	// as soon as it is used must not make us spin.
	switch {
	case time.Since(c.upAt) >= backoffMax:
		c.delay = 0
	case served:
		c.delay = backoffMin
	default:
		c.delay = nextDelay(c.delay)
	}
	results, queries := p.close(why)
	c.onDown(unavailableError(why))
	fail(queries, why)
	if len(results) > 0 {
		c.deliver(results, nil)
	}
	if len(unsubscribed) > 0 && c.cfg.OnUnsubscribed != nil {
		c.cfg.OnUnsubscribed(c.shard, unsubscribed)
	}
}

// doAsking sends operations of locks whose keys are here already, although another node of the Cluster
// has their slot. False: it is closed, and they get no result here.
func (c *commands) doAsking(ops []redisop.Op) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	for i := range ops {
		c.asking.push(ops[i])
	}
	if c.pipe == nil {
		c.nudge()
		return true
	}
	c.pump(c.pipe)
	return true
}

// liftFloor has the tokens of this node be above a floor, too.
func (c *commands) liftFloor(floor *Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pipe; p != nil && floor.known() {
		now := protocol.Now()
		p.lift(now, floor.floor(now))
	}
}

// onSlotsCame has the tokens of locks whose slots have just moved to this node be above a floor, and above
// all tokens that were drawn before.
func (c *commands) onSlotsCame(floor *Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pipe
	if p == nil {
		c.mustAskClock = true // the clock may have been read already
		return
	}
	now := protocol.Now()
	if floor.known() {
		p.lift(now, floor.floor(now))
	}
	p.askClock(now)
	p.out.Flush()
}

// lift has the tokens of this connection be above a floor, too. The caller holds mu.
func (p *pipeline) lift(now, floor int64) {
	if floor > p.id.floor(now) {
		p.id.Floor, p.id.FloorAt = floor, now
	}
	p.encoder.floor = max(p.encoder.floor, p.id.floor(now))
}

// A resultPool has slices for results that were given back.
type resultPool chan []redisop.Result

// maxSpareResults bounds a slice that is kept: 480 KiB.
const maxSpareResults = 1 << 12

// get returns an empty slice.
func (p resultPool) get() []redisop.Result {
	select {
	case results := <-p:
		return results
	default:
		return nil
	}
}

func (p resultPool) put(results []redisop.Result) {
	if cap(results) == 0 || cap(results) > maxSpareResults {
		return
	}
	clear(results)
	select {
	case p <- results[:0]:
	default:
	}
}

// hand hands over what one callback brings.
func (c *commands) hand(d *delivery) {
	if len(d.messages) > 0 && c.cfg.OnMessages != nil {
		c.cfg.OnMessages(d.messages)
	}
	if len(d.subscribed) > 0 && c.cfg.OnSubscribed != nil {
		c.cfg.OnSubscribed(c.shard, d.subscribed)
	}
	if len(d.unsubscribed) > 0 && c.cfg.OnUnsubscribed != nil {
		c.cfg.OnUnsubscribed(c.shard, d.unsubscribed)
	}
}

func (c *commands) deliver(results []redisop.Result, raised *Identity) {
	if c.cfg.OnResults != nil {
		c.cfg.OnResults(results, raised)
	}
}

// unsent answers ops without sending them; why is for people.
func unsent(ops []redisop.Op, why string) []redisop.Result {
	results := make([]redisop.Result, len(ops))
	for i, op := range ops {
		results[i] = redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard, Outcome: redisop.NotSent, Msg: why}
	}
	return results
}

// close lets run send what is queued. When ctx ends first, run is cut short.
func (c *commands) close(ctx context.Context) error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.nudge()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	c.cancel()
	c.mu.Lock()
	if c.pipe != nil {
		c.pipe.cut(net.ErrClosed)
	}
	c.mu.Unlock()
	<-c.done
	return ctx.Err()
}
