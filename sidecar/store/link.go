package store

import (
	"context"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

const (
	backoffMin = 50 * time.Millisecond
	backoffMax = time.Second
)

// A link is the way to one server: a Machine, and the connection that it drives. Operations come from any goroutine.
// The goroutine that brings one also writes it, if the connection is free for it. The goroutine run makes and checks
// the connection, and hands on what the Machine delivers while there is none. Another goroutine, of the wired, reads and
// hands on while there is one, and one dials while there is none.
type link struct {
	cfg       linkConfig
	dial      *dialer                // what the first URL says
	server    atomic.Pointer[dialer] // the way to the server that was connected last; before: dial
	sentinels *sentinels             // who know where the server is; nil: the URL does

	wake   chan struct{} // run is to look at what waits, at closing and at when the Machine is due
	dialed chan dialed   // from the dialing goroutine
	hurry  chan struct{} // the dialing goroutine is to wait no longer
	ctx    context.Context
	cancel context.CancelFunc // cuts everything short
	done   chan struct{}      // run has ended

	mu      sync.Mutex // guards what follows; never held during I/O or a callback
	m       *pipeline.Machine
	wired   *wired // nil while down
	closed  bool
	armed   int64  // when run looks at the Machine again, at the latest
	movedTo string // where the master is since the last attempt to connect began; "": nothing was received

	isIdle    atomic.Bool  // a node of a Cluster without slots
	unsentOps atomic.Int64 // as Machine.Unsent has it
	roundTrip atomic.Int64 // as Machine.RoundTrip has it

	// Owned by the dialing goroutine, of which there is one at a time.
	login        *dialer       // with the user and the password that were read last
	lost         lostAddresses // of run too, while there is no dialing goroutine
	loginFailure string        // why they could not be read, as the log has it; "": they were

	// Owned by run.
	last       wire.Identity // of the last connection that was up, perhaps in another process
	upAt       time.Time
	delay      time.Duration // before the next attempt to connect
	why        string        // Redis cannot be asked: the last reason; "": it can
	killLogged bool          // that CLIENT KILL is not permitted was logged
	ownLogged  bool          // that the sidecar's channel is not permitted was logged
	noQueue    bool          // that the queues of locks are not permitted was logged

	isClusterLogged bool // that the server is a node of a Cluster was logged
}

type dialed struct {
	ready *readyConn
	err   error
}

// wired is a connection in use.
type wired struct {
	*readyConn
	link  *link
	out   *rawio.Writer // guarded by link.mu
	from  io.Reader
	ended chan struct{} // closed when the reader has ended; out.Err says why

	lastByteAt atomic.Int64 // when Redis last sent anything
	now        int64        // when the reader last read something
	deliveries []pipeline.Delivery
}

// linkConfig is what stays for as long as a link.
type linkConfig struct {
	UUID          string
	Last          wire.Identity // as of store.Config
	TokenExpiry   time.Duration
	Replicas      int
	ProbeInterval time.Duration
	Log           *slog.Logger
	Shared        *shared

	// Login returns the way to the server with the user and the password of the URL, which is read again.
	Login func() (*dialer, error)

	// Floor is the largest floor of tokens of all nodes of a Cluster at a time, µs. nil: Redis is no Cluster.
	Floor func(now int64) int64

	// The callbacks come from the goroutines of the link, one after the other. Hand brings what the Machine delivers, in
	// its order. OnUp and OnDown: as of store.Config; so is OnSentinels, which comes from any goroutine.
	Hand        func(d *pipeline.Delivery)
	OnUp        func(dataLost, listening bool, id wire.Identity)
	OnDown      func(err error)
	OnSentinels func(why string)
}

// shared is what all links of a Store share.
type shared struct {
	spare        resultPool
	conns        atomic.Uint32 // connections made so far: no two connections of a host have one number
	askingLogged atomic.Bool   // that ASKING is refused was logged
	redirects    redirectCounts
}

func newLink(cfg linkConfig, d *dialer) *link {
	l := &link{
		cfg:    cfg,
		dial:   d,
		login:  d,
		wake:   make(chan struct{}, 1),
		dialed: make(chan dialed),
		hurry:  make(chan struct{}, 1),
		done:   make(chan struct{}),
		armed:  math.MaxInt64,
		why:    d.notYet(),
	}
	l.m = pipeline.New(pipeline.Config{
		UUID: cfg.UUID, Keys: d.Keys, IsNode: d.IsNode, Replicas: cfg.Replicas,
		TokenExpiry: cfg.TokenExpiry, Timeout: d.timeout, ProbeInterval: cfg.ProbeInterval,
		Batches: pipeline.DefaultBatches,
	})
	if l.isIdle.Store(d.IsNode); d.IsNode {
		l.m.ProbeLock("")
	}
	l.server.Store(d)
	if d.group != nil {
		l.sentinels = newSentinels(d.group, cfg.Log)
		l.sentinels.onMoved, l.sentinels.onFailover, l.sentinels.onLost = l.onMoved, l.onFailover, cfg.OnSentinels
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.last = cfg.Last
	return l
}

// do sends operations as soon as the connection is free for them. False: it is closed, and they get no result
// here.
func (l *link) do(ops []redisop.Op) bool {
	if len(ops) == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.m.Do(protocol.Now(), ops)
	l.flush()
	return true
}

// doAsking sends operations of locks whose keys are here already, although another node of the Cluster
// has their slot. False: it is closed, and they get no result here.
func (l *link) doAsking(ops []redisop.Op) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.m.DoAsking(protocol.Now(), ops)
	l.flush()
	return true
}

func (l *link) subscribe(name string) {
	l.mu.Lock()
	l.m.Subscribe(name)
	l.mu.Unlock()
	l.nudge()
}

func (l *link) unsubscribe(name string) {
	l.mu.Lock()
	l.m.Unsubscribe(name)
	l.mu.Unlock()
	l.nudge()
}

// ask sends a query. Its Done is called once, from a goroutine of the store, and must not block; err
// is a sentence for people.
func (l *link) ask(q *pipeline.Query) {
	l.mu.Lock()
	why := "the sidecar is stopping"
	if !l.closed {
		why = l.m.Ask(protocol.Now(), q)
		l.flush()
	}
	l.mu.Unlock()
	if why != "" {
		go q.Done(nil, wire.Unavailable(why)) // the caller may hold a mutex that Done locks
	}
}

// askAtOnce sends a query if nothing waits on the connection, and reports whether it did. Otherwise Done is
// not called.
func (l *link) askAtOnce(q *pipeline.Query) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || !l.m.AskAtOnce(protocol.Now(), q) {
		return false
	}
	l.flush()
	return true
}

// liftFloor has the tokens of this node be above a floor, too. asksClock: slots have just moved to this node, so they
// are to be above all tokens that were drawn before, too.
func (l *link) liftFloor(floor *wire.Identity, asksClock bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, above := protocol.Now(), int64(0)
	if floor.Known() {
		above = floor.Above(now)
	}
	l.m.Lift(now, above, asksClock)
	l.flush()
}

// onFailover has nothing done that the server at an address answers from now on; "": all is.
func (l *link) onFailover(address, why string) {
	if why != "" {
		l.cfg.Log.Warn("a Sentinel fails over the master: what it grants until it is replaced does not count", "reason", why)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m.Failover(address, why)
	l.flush()
}

// flush writes what the Machine has made, and has run look at the Machine when it is due. The caller holds mu, which the
// Writer unlocks for the time of a system call.
func (l *link) flush() {
	for _, q := range l.m.TakeExpired() {
		go q.Done(nil, wire.Unavailable("it was not sent to Redis in time")) // the caller holds mu
	}
	l.unsentOps.Store(int64(l.m.Unsent()))
	w := l.wired
	if w == nil {
		l.nudge() // run has the answer
		return
	}
	if l.m.HasBytes() && w.out.Accepts() {
		if len(w.out.Queued) == 0 {
			w.out.Queued = l.m.TakeBytes(w.out.Queued)
		} else {
			bytes := l.m.TakeBytes(nil)
			w.out.Queued = append(w.out.Queued, bytes...)
			_ = l.m.TakeBytes(bytes)
		}
	}
	if l.m.Next() < l.armed {
		l.nudge()
	}
	w.out.Flush()
}

func (l *link) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// cut ends the connection. The reader finds that out, and reports it. The caller holds mu.
func (w *wired) cut(why error) { w.out.Close(why) }

func (l *link) run() {
	defer close(l.done)
	look := time.NewTimer(0)
	look.Stop()
	defer look.Stop()
	var dialing sync.WaitGroup
	if l.sentinels != nil {
		defer l.sentinels.close()
		dialing.Go(func() { l.sentinels.watch(l.ctx) })
	}
	defer dialing.Wait()
	defer l.cancel()
	connect := func() {
		delay, last := l.delay, l.last
		dialing.Go(func() { l.connect(delay, last) })
	}
	connect()
	for {
		var ended <-chan struct{}
		if l.wired != nil {
			ended = l.wired.ended
		}
		select {
		case <-l.wake:
		case <-look.C:
		case d := <-l.dialed:
			if d.err != nil {
				l.onDown(d.err)
			} else {
				l.onConnected(d.ready)
			}
		case <-ended:
			l.onDisconnect()
			connect()
		}
		next, over := l.check()
		if over {
			return
		}
		look.Reset(next)
	}
}

// check does what the Machine has due, and returns when to check again. over: every operation from before close has its
// result, and there will be no more.
func (l *link) check() (next time.Duration, over bool) {
	l.mu.Lock()
	w := l.wired
	over = l.m.IsOver()
	switch {
	case over:
		l.closed = true
		l.m.Refuse("the sidecar is stopping")
	case w == nil:
		l.m.Refuse(l.why)
	default:
		if l.m.Advance(protocol.Now(), w.lastByteAt.Load(), rawio.HasUnread(w.wire.raw)) {
			w.cut(os.ErrDeadlineExceeded)
		}
	}
	l.armed = l.m.Next()
	var deliveries []pipeline.Delivery
	if w == nil {
		deliveries = l.m.TakeDeliveries(nil)
		l.unsentOps.Store(0)
	} else {
		l.flush()
	}
	at := l.armed
	l.mu.Unlock()
	l.handAll(deliveries)
	if over && w != nil {
		l.handAll(l.end(w, "the sidecar is stopping"))
	}
	return time.Duration(min(at-protocol.Now(), int64(time.Hour))), over
}

// end ends a connection, whose reader has ended or will by itself. It returns what is to be handed on: with what was in
// flight. why is for people.
func (l *link) end(w *wired, why string) []pipeline.Delivery {
	l.mu.Lock()
	w.cut(net.ErrClosed)
	l.mu.Unlock()
	w.out.Wait()
	<-w.ended
	w.readyConn.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m.Down(w.out.Sent(), why)
	l.wired = nil
	l.last = l.m.Identity() // its floor may have risen
	return l.m.TakeDeliveries(nil)
}

// connect tries until it has a connection that is ready, and gives it to run. delay is the time
// before the first attempt.
func (l *link) connect(delay time.Duration, last wire.Identity) {
	for {
		if !pauseUnless(l.ctx, delay, l.hurry) {
			return
		}
		l.readLogin()
		l.mu.Lock()
		l.movedTo = "" // the Sentinels are asked after it
		l.m.Connecting()
		l.mu.Unlock()
		s, err := l.login.find(l.ctx, l.sentinels, &l.lost, last)
		select {
		case l.dialed <- dialed{s, err}:
		case <-l.ctx.Done():
			if s != nil {
				s.close()
			}
			return
		}
		if err == nil {
			return
		}
		if delay = nextDelay(delay); l.isIdle.Load() {
			delay = idleDelay
		}
	}
}

// idleDelay is the time between two attempts to connect to a node of a Cluster that has no slots: a
// master that was replaced, or removed.
const idleDelay = 30 * time.Second

// setIdle notes whether the server has slots. When it gets the first ones, it is connected at once.
func (l *link) setIdle(isIdle bool) {
	if l.isIdle.Store(isIdle); !isIdle {
		l.connectNow()
	}
}

// setProbeLock sets the lock that probes take; "": the server has no slot for one.
func (l *link) setProbeLock(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m.ProbeLock(name)
}

// connectNow ends the pause before the next attempt to connect.
func (l *link) connectNow() {
	select {
	case l.hurry <- struct{}{}:
	default:
	}
}

// readLogin reads the user and the password of the Redis URL again.
func (l *link) readLogin() {
	if l.cfg.Login == nil {
		return
	}
	d, err := l.cfg.Login()
	if err == nil {
		l.login, l.loginFailure = d, ""
		if l.sentinels != nil {
			l.sentinels.use(d.group)
		}
	} else if why := err.Error(); why != l.loginFailure {
		l.loginFailure = why
		l.cfg.Log.Warn("the Redis URL that was read again is not used; the earlier user and password are", "reason", why)
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
func (l *link) leave(w *wired, master string) {
	if w.dial.options.Addr != master {
		w.cut(wire.Unavailablef("Redis at %s is no longer the master %q: its Sentinels name %s", w.dial.Address, l.dial.Address, master))
	}
}

// onMoved ends the connection to a server that is no longer the master, and has the master connected at
// once.
func (l *link) onMoved(address string) {
	l.mu.Lock()
	l.movedTo = address
	if l.wired != nil {
		l.leave(l.wired, address)
	}
	l.mu.Unlock()
	l.connectNow()
}

// onConnected takes a new connection into use.
func (l *link) onConnected(s *readyConn) {
	lost := l.last.Known() && !s.id.SameData(&l.last)
	l.liftIdentity(&s.id, protocol.Now())
	if s.killed != nil && wire.Code(s.killed.Error()) == "NOPERM" && !l.killLogged {
		l.killLogged = true
		l.cfg.Log.Info("this user may not end the connection before: what was under way on it may still run late, which is harmless; +client|kill permits it")
	}
	if s.id.RunID == "" && l.upAt.IsZero() {
		l.cfg.Log.Info("Redis does not tell its run id (INFO is not permitted or not known): after each reconnect every lock is asserted again, and each lock that another host passes on costs a round trip more; +info permits it")
	}
	listening := s.refused == ""
	if !listening && !l.ownLogged {
		l.ownLogged = true
		l.cfg.Log.Warn("this user may not subscribe to the channel on which other sidecars reach this one; let its ACL have +subscribe and the channels "+wire.OwnChannel("*"),
			"reason", wire.Clip(s.refused))
	}
	if s.isClusterNode && !l.isClusterLogged {
		l.isClusterLogged = true
		l.cfg.Log.Warn("this Redis is a node of a Cluster: only the locks of its own slots can be used; write redis+cluster:// instead of redis://", "address", s.dial.Address)
	}
	if s.noAsking != "" && !l.cfg.Shared.askingLogged.Swap(true) {
		advice := ""
		if wire.Code(s.noAsking) == "NOPERM" {
			advice = "; let the ACL of this user have +asking"
		}
		l.cfg.Log.Warn("Redis refuses ASKING: while a slot moves key by key, its held locks cannot be renewed"+advice,
			"address", s.dial.Address, "reason", wire.Clip(s.noAsking))
	}
	if s.noQueue != "" && !l.noQueue {
		l.noQueue = true
		l.cfg.Log.Warn("this user may not use the queues of locks: this host waits for a lock without a place in its queue; let its ACL have +zadd +zcard +zrank +zrange +zrem +zpopmin and the keys "+l.dial.Keys.QueuePatterns(),
			"reason", wire.Clip(s.noQueue))
	}
	log := l.cfg.Log
	if l.sentinels != nil {
		log = log.With("address", s.dial.Address)
	}
	log.Info("redis is up", "version", s.version, "database", l.dial.options.DB, "run_id", s.id.RunID, "data_lost", l.dataLost(s), "own_channel", listening)
	l.last, l.upAt = s.id, time.Now()
	l.server.Store(s.dial)
	l.why = ""
	l.cfg.OnUp(lost, listening, s.id)
	w := newWired(l, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	g, now := s.greeting(l.cfg.Shared.conns.Add(1)), protocol.Now()
	l.liftIdentity(&g.ID, now) // liftFloor looked before
	l.wired = w
	l.m.Up(now, g)
	if l.ctx.Err() != nil {
		w.cut(net.ErrClosed) // close looked before
	}
	if l.movedTo != "" {
		l.leave(w, l.movedTo) // onMoved looked before
	}
	l.flush()
	go w.read()
}

// liftIdentity has the floor of a connection be above that of all nodes of a Cluster: counters may have come from another
// node, and have lost their last values on the way.
func (l *link) liftIdentity(id *wire.Identity, now int64) {
	if l.cfg.Floor == nil {
		return
	}
	if floor := l.cfg.Floor(now); floor > id.Above(now) {
		id.Floor, id.FloorAt = floor, now
	}
}

// dataLost is, for the log, whether Redis lost its data since the connection before s.
func (l *link) dataLost(s *readyConn) string {
	switch {
	case !l.last.Known(), s.id.SameData(&l.last):
		return "no"
	case s.id.RunID == "" || l.last.RunID == "":
		return "unknown" // INFO is not permitted
	}
	return "possibly"
}

// onDown notes that Redis cannot be used. It logs and reports each change of the reason: the
// attempt to connect again knows more than the end of the connection did.
func (l *link) onDown(err error) {
	if l.why == err.Error() {
		return
	}
	l.why = err.Error()
	l.cfg.Log.Warn("redis is down", "reason", l.why)
	l.cfg.OnDown(err)
}

// onDisconnect ends the connection, whose reader has ended. The caller must connect.
func (l *link) onDisconnect() {
	w := l.wired
	l.mu.Lock()
	err := w.out.Err()
	l.mu.Unlock()
	l.lost.note(w.wire)
	why := w.dial.broken(err)
	if told, ok := err.(wire.Unavailable); ok {
		why = string(told)
	}
	deliveries := l.end(w, why)
	// A connection that served for a while is made again at once; one that breaks
	// as soon as it is used must not make us spin.
	switch {
	case time.Since(l.upAt) >= backoffMax:
		l.delay = 0
	case l.m.Served():
		l.delay = backoffMin
	default:
		l.delay = nextDelay(l.delay)
	}
	l.onDown(wire.Unavailable(why)) // before the results: nothing is sent again to a Redis that is gone
	l.handAll(deliveries)
}

// close lets run send what waits. When ctx ends first, run is cut short.
func (l *link) close(ctx context.Context) error {
	l.mu.Lock()
	l.m.Finish()
	l.mu.Unlock()
	l.nudge()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
	}
	l.cancel()
	l.mu.Lock()
	if l.wired != nil {
		l.wired.cut(net.ErrClosed)
	}
	l.mu.Unlock()
	<-l.done
	return ctx.Err()
}

// handAll hands on what a Machine delivered, in its order.
func (l *link) handAll(deliveries []pipeline.Delivery) {
	for i := range deliveries {
		l.cfg.Hand(&deliveries[i])
	}
}

// unsent is how many operations wait to be sent: see Store.Unsent.
func (l *link) unsent() int { return int(l.unsentOps.Load()) }

// trip is how long the last command took that Redis answered; 0: there was none.
func (l *link) trip() time.Duration { return time.Duration(l.roundTrip.Load()) }

// isSharded reports whether the channels of locks are sharded at the server that is connected.
func (l *link) isSharded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wired != nil && l.wired.isSharded
}

// ignored is how many messages on the channel of this sidecar said nothing to it, and how many of them in the present
// second.
func (l *link) ignored() (total, inWindow uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.m.Ignored()
}

// keysGone has the numbers of evicted keys read soon: keys of held locks are gone. It returns what the server is known to
// do to keys of locks; "": nothing.
func (l *link) keysGone() (evicts string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if evicts = l.m.Evicts(); evicts != "" {
		l.m.KeysGone(protocol.Now())
		l.flush()
	}
	return evicts
}

// newWired takes over a connection from its greeting.
func newWired(l *link, s *readyConn) *wired {
	w := &wired{readyConn: s, link: l, ended: make(chan struct{})}
	s.wire.release()
	if s.wire.secure {
		w.from = s.wire
		w.out = rawio.NewWriter(&l.mu, s.wire, nil)
	} else {
		w.from = rawio.NewReader(s.wire.raw)
		w.out = rawio.NewWriter(&l.mu, s.wire, s.wire.raw)
	}
	s.in.Reader = w
	w.out.OnClose = func(error) {
		l.m.Cut()
		w.wire.Close()
	}
	w.lastByteAt.Store(protocol.Now())
	return w
}

// read takes in what Redis sends until the connection ends. It is a goroutine of its own.
func (w *wired) read() {
	defer close(w.ended)
	l := w.link
	var err error
	for err == nil {
		var answer wire.Reply
		if answer, err = w.replies.Next(); err == nil {
			l.mu.Lock()
			err = l.m.Reply(w.now, &answer)
			l.mu.Unlock()
		}
	}
	l.mu.Lock()
	w.cut(err)
	l.mu.Unlock()
	_ = w.rest()
}

// Read reads what Redis sends. Before it waits for more bytes, what was taken in is handed on: the rest of a reply that
// has begun may take its time.
func (w *wired) Read(b []byte) (int, error) {
	if err := w.rest(); err != nil {
		return 0, err
	}
	n, err := w.from.Read(b)
	w.now = protocol.Now()
	if n > 0 {
		w.lastByteAt.Store(w.now)
	}
	return n, err
}

// rest sends the operations that waited for the replies which have come, and hands on what these brought: Redis gets
// those before the loop gets the results. The error ends the connection.
func (w *wired) rest() error {
	l := w.link
	l.mu.Lock()
	err := l.m.Rest(protocol.Now())
	l.flush()
	if l.m.IsOver() {
		l.nudge()
	}
	deliveries := l.m.TakeDeliveries(w.deliveries)
	if l.m.WantsSpare() {
		l.m.Spare(l.cfg.Shared.spare.get())
	}
	l.roundTrip.Store(l.m.RoundTrip())
	counts := l.m.TakeRedirects()
	l.mu.Unlock()
	l.cfg.Shared.redirects.add(counts)
	l.handAll(deliveries)
	clear(deliveries)
	w.deliveries = deliveries
	return err
}

// greeting is what the Machine is to know of a connection.
func (s *readyConn) greeting(number uint32) *pipeline.Greeting {
	return &pipeline.Greeting{
		Server: s.dial.Server, At: s.dial.options.Addr, ID: s.id, Origin: s.origin, Number: number, Clock: s.clock, ClockAt: s.clockAt,
		HasQueues: s.noQueue == "", IsSharded: s.isSharded, Loads: s.loads, NoRole: s.noRole, Lacks: s.lacks,
		Replication: s.replication, Eviction: s.eviction,
	}
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

// redirectCounts are counted since the start, of all connections together.
type redirectCounts struct{ moved, ask, tryAgain atomic.Uint64 }

// add adds what a link counted.
func (c *redirectCounts) add(n pipeline.Redirects) {
	if n == (pipeline.Redirects{}) {
		return
	}
	c.moved.Add(n.Moved)
	c.ask.Add(n.Ask)
	c.tryAgain.Add(n.TryAgain)
}
