package store

import (
	"context"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

const (
	// A batch is as large as Redis answers in a few milliseconds, so that what
	// comes in meanwhile does not wait long.
	batchKeeps  = 8 * keepMax
	batchOthers = 512

	// A connection that was idle for a moment is watched, so that its end is noticed
	// at once: others may come back to a Redis that forgot our locks before we do.
	// What ends without a word is found by a ping.
	idleCalm = 100 * time.Millisecond
	idlePing = 5 * time.Second

	backoffMin = 50 * time.Millisecond
	backoffMax = time.Second
)

// commands owns the command connection. Operations come in from anywhere; one
// goroutine, run, takes all that wait, sends them as one batch, and hands out the
// results: half duplex, so that the end of a connection leaves one batch in doubt
// and no more. A second goroutine exists only while a connection is being made.
type commands struct {
	cfg   Config
	dial  *dialer
	moved func() // the data may be elsewhere now: the listener should look too

	wake   chan struct{} // something was queued, or closing was set
	dialed chan dialed   // from the dialing goroutine
	ctx    context.Context
	cancel context.CancelFunc // cuts everything short
	done   chan struct{}      // run has ended

	mu      sync.Mutex // guards what follows
	keeps   lane
	others  lane
	closing bool
	closed  bool
	live    *session // to cut, from close

	// Owned by run.
	session *session // nil while down
	last    Identity // of the last session that was up, perhaps in another process
	upAt    time.Time
	served  bool          // the session answered something
	delay   time.Duration // before the next attempt to connect
	down    bool          // OnDown was called for this outage
	why     string        // Redis cannot be asked
	encoder encoder
	batch   []locktable.Op
	calls   []call
	cmds    []redis.Cmder

	killTold    bool // that CLIENT KILL is not permitted was logged
	publishTold bool // that PUBLISH is not permitted was logged
}

type dialed struct {
	session *session
	err     error
}

func newCommands(cfg Config, d *dialer, moved func()) *commands {
	c := &commands{
		cfg:    cfg,
		dial:   d,
		moved:  moved,
		wake:   make(chan struct{}, 1),
		dialed: make(chan dialed),
		done:   make(chan struct{}),
		why:    "Redis at " + d.address + " is not connected yet",
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.encoder.prefix = cfg.UUID + ":"
	c.last = cfg.Last
	return c
}

// A lane is a queue of operations.
type lane struct {
	ops  []locktable.Op
	head int
}

func (l *lane) push(op locktable.Op) { l.ops = append(l.ops, op) }

// pop appends up to n operations to dst.
func (l *lane) pop(dst []locktable.Op, n int) []locktable.Op {
	n = min(n, len(l.ops)-l.head)
	dst = append(dst, l.ops[l.head:l.head+n]...)
	l.head += n
	switch {
	case l.head == len(l.ops):
		// A burst must not keep its memory for ever.
		if cap(l.ops) > 4*batchKeeps {
			l.ops = nil
		}
		l.ops, l.head = l.ops[:0], 0
	case l.head > len(l.ops)/2:
		l.ops, l.head = l.ops[:copy(l.ops, l.ops[l.head:])], 0
	}
	return dst
}

func (c *commands) do(ops []locktable.Op) {
	if len(ops) == 0 {
		return
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	for i := range ops {
		if ops[i].Kind == locktable.Keep {
			c.keeps.push(ops[i])
		} else {
			c.others.push(ops[i])
		}
	}
	c.mu.Unlock()
	c.nudge()
}

func (c *commands) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next takes the next batch from the lanes: renewals first, because a late one
// costs somebody the lock. It reports false when there is nothing to do and
// nothing will come.
func (c *commands) next() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batch = c.keeps.pop(c.batch[:0], batchKeeps)
	c.batch = c.others.pop(c.batch, batchOthers)
	if len(c.batch) == 0 && c.closing {
		c.closed = true
	}
	return !c.closed
}

func (c *commands) run() {
	defer close(c.done)
	idle := time.NewTimer(idlePing)
	defer idle.Stop()
	var dialing sync.WaitGroup
	defer dialing.Wait()
	defer c.cancel()
	connect := func() {
		delay, last := c.delay, c.last
		dialing.Go(func() { c.connect(delay, last) })
	}
	connect()
	for {
		var stirred <-chan bool
		if c.session != nil {
			stirred = c.session.watched
		}
		select {
		case <-c.wake:
		case d := <-c.dialed:
			if d.err != nil {
				c.failed(d.err)
			} else {
				c.up(d.session)
				idle.Reset(idleCalm)
			}
		case ended := <-stirred:
			if c.check(ended); c.session == nil {
				connect()
			}
			idle.Reset(idleCalm)
		case <-idle.C:
			switch {
			case c.session == nil: // the next one sets the timer
			case c.session.watched == nil:
				c.session.watch()
				idle.Reset(idlePing)
			default:
				if c.check(false); c.session == nil {
					connect()
				}
				idle.Reset(idleCalm)
			}
		}
		for {
			if !c.next() {
				if c.session != nil {
					c.session.close()
				}
				return
			}
			if len(c.batch) == 0 {
				break
			}
			if c.session == nil {
				c.deliver(c.unsent())
				continue
			}
			c.exchange()
			if c.session == nil {
				connect()
			}
			idle.Reset(idleCalm)
		}
	}
}

// connect tries until it has a session, and gives it to run. delay is the time
// before the first attempt.
func (c *commands) connect(delay time.Duration, last Identity) {
	for {
		if !pause(c.ctx, delay) {
			return
		}
		s, err := c.dial.connect(c.ctx, last)
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
		delay = nextDelay(delay)
	}
}

// nextDelay doubles a delay within its bounds.
func nextDelay(delay time.Duration) time.Duration {
	return min(max(2*delay, backoffMin), backoffMax)
}

// pause sleeps for delay, give or take a quarter, so that the sidecars of many
// hosts do not come back to a fresh Redis in step. False: ctx ended.
func pause(ctx context.Context, delay time.Duration) bool {
	if delay == 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(delay*3/4 + rand.N(delay/2))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// up takes a new session into use.
func (c *commands) up(s *session) {
	lost := c.last.known() && !s.id.sameData(&c.last)
	if s.killed != nil && code(s.killed) == "NOPERM" && !c.killTold {
		c.killTold = true
		c.cfg.Log.Info("this user may not end the connection before: what was under way on it may still run late, which is harmless; +client|kill permits it")
	}
	if s.id.RunID == "" && c.upAt.IsZero() {
		c.cfg.Log.Info("Redis does not tell its run id (INFO is not permitted or not known): after each reconnect every lock is asserted again")
	}
	c.session, c.last, c.upAt = s, s.id, time.Now()
	c.encoder.floor = s.id.Floor
	c.down, c.why, c.served = false, "", false
	c.setLive(s)
	c.cfg.Log.Info("redis is up", "version", s.version, "data_lost", lost)
	if lost {
		c.moved()
	}
	if c.cfg.OnUp != nil {
		c.cfg.OnUp(lost, s.id)
	}
}

// failed notes that Redis cannot be used, once per outage for the table, and in
// the log whenever the reason is another one.
func (c *commands) failed(err error) {
	if c.why != err.Error() {
		c.why = err.Error()
		c.cfg.Log.Warn("redis is down", "reason", c.why)
	}
	if !c.down {
		c.down = true
		if c.cfg.OnDown != nil {
			c.cfg.OnDown(err)
		}
	}
}

// check gives an idle session up if it has ended, of which a ping tells unless it
// is known.
func (c *commands) check(ended bool) {
	err := io.EOF
	if !ended {
		_, err = c.session.exec(redis.NewStatusCmd(context.Background(), "ping"))
	}
	if err != nil {
		c.lost(c.dial.broken(err))
	}
}

// lost ends the session. The caller must connect.
func (c *commands) lost(why string) {
	c.setLive(nil)
	c.session.close()
	c.session = nil
	// A connection that served for a while is made again at once; one that breaks
	// as soon as it is used must not make us spin.
	switch {
	case time.Since(c.upAt) >= backoffMax:
		c.delay = 0
	case c.served:
		c.delay = backoffMin
	default:
		c.delay = nextDelay(c.delay)
	}
	c.failed(outage(why))
}

// setLive tells close which session to cut. It may have looked before s was made.
func (c *commands) setLive(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live = s
	if s != nil && c.ctx.Err() != nil {
		s.wire.Close()
	}
}

func (c *commands) deliver(results []locktable.Result) {
	if c.cfg.OnResults != nil {
		c.cfg.OnResults(results)
	}
}

// unsent answers the batch without sending it.
func (c *commands) unsent() []locktable.Result {
	results := make([]locktable.Result, len(c.batch))
	for i, op := range c.batch {
		results[i] = locktable.Result{Kind: op.Kind, Name: op.Name, Outcome: locktable.Unsent, Msg: c.why}
	}
	return results
}

// exchange sends the batch and delivers one result for each of its operations.
// It leaves no session if the connection did not survive.
func (c *commands) exchange() {
	c.calls = c.encoder.calls(c.calls[:0], c.batch)
	stamp := protocol.Now()
	sent, err := c.send(nil, c.calls)
	if err == nil {
		err = c.teach()
	}
	if err == nil {
		err = c.split()
	}
	results := make([]locktable.Result, 0, len(c.batch))
	ends := ""
	for i := range c.calls {
		at := len(results)
		for _, op := range c.calls[i].ops {
			results = append(results, locktable.Result{Kind: op.Kind, Name: op.Name, Sent: stamp})
		}
		if e := c.read(&c.calls[i], results[at:], &ends); e != nil {
			err = e
			outcome := locktable.Unknown
			if !sent {
				outcome = locktable.Unsent
			}
			why := c.dial.broken(e)
			for j := at; j < len(results); j++ {
				r := &results[j]
				*r = locktable.Result{Kind: r.Kind, Name: r.Name, Sent: stamp, Outcome: outcome, Msg: why}
			}
		}
	}
	clear(c.calls) // their replies need not live on
	c.served = c.served || err == nil
	switch {
	case err != nil:
		c.lost(c.dial.broken(err))
	case ends != "":
		c.lost(ends)
	}
	c.deliver(results)
}

// send runs first and then the commands of calls in one exchange.
func (c *commands) send(first []redis.Cmder, calls []call) (sent bool, err error) {
	c.cmds = append(c.cmds[:0], first...)
	for i := range calls {
		c.cmds = append(c.cmds, calls[i].cmd)
	}
	sent, err = c.session.exec(c.cmds...)
	clear(c.cmds)
	return sent, err
}

// teach runs again, once, the calls whose script Redis did not know: those
// certainly did not run.
func (c *commands) teach() error {
	var ignorant []int
	for i := range c.calls {
		if err := c.calls[i].cmd.Err(); err != nil && code(err) == "NOSCRIPT" {
			ignorant = append(ignorant, i)
		}
	}
	if len(ignorant) == 0 {
		return nil
	}
	var loads []redis.Cmder
	again := make([]call, 0, len(ignorant))
	taught := make(map[*script]bool)
	for _, i := range ignorant {
		cl := &c.calls[i]
		unknown := !taught[cl.script]
		taught[cl.script] = true
		if unknown && c.session.loads {
			loads = append(loads, cl.script.load())
		}
		cl.cmd = c.encoder.command(cl.script, cl.ops, unknown && !c.session.loads)
		again = append(again, *cl)
	}
	_, err := c.send(loads, again)
	return err
}

// split runs again, lock by lock, the calls that Redis refused as a whole: one
// lock that an ACL denies must not cost the others their renewal.
func (c *commands) split() error {
	whole := len(c.calls)
	for i := range whole {
		cl := &c.calls[i]
		if len(cl.ops) < 2 || cl.cmd.Err() == nil || outcomeOf(code(cl.cmd.Err())) != locktable.Refused {
			continue
		}
		for j := range cl.ops {
			one := cl.ops[j : j+1]
			c.calls = append(c.calls, call{script: cl.script, ops: one, cmd: c.encoder.command(cl.script, one, false)})
		}
		c.calls[i].ops = nil
	}
	if len(c.calls) == whole {
		return nil
	}
	_, err := c.send(nil, c.calls[whole:])
	return err
}

// read takes the reply of a call apart, one result for each of its operations.
// The error is that of a connection that cannot be used further. ends becomes the
// reason to end a connection that works but leads to the wrong place.
func (c *commands) read(cl *call, results []locktable.Result, ends *string) error {
	if len(results) == 0 {
		return nil // was split
	}
	refuse := func(r *locktable.Result, text string) {
		text = reason(text)
		word, _, _ := strings.Cut(text, " ")
		r.Outcome = outcomeOf(word)
		r.Msg = c.dial.answered(r.Name, text)
		if endsSession(word) {
			*ends = r.Msg
		}
	}
	if err := cl.cmd.Err(); err != nil {
		if err == redis.Nil {
			return &strangeReply{cl.script, nil}
		}
		if !isReply(err) {
			return err
		}
		for i := range results {
			refuse(&results[i], err.Error())
		}
		return nil
	}
	switch reply := cl.cmd.Val(); cl.script {
	case take:
		return decodeTake(reply, &results[0])
	case keep:
		statuses, _ := reply.([]any)
		if len(statuses) != len(results) {
			return &strangeReply{keep, reply}
		}
		for i, status := range statuses {
			refusal, err := decodeKeep(status, &results[i])
			if err != nil {
				return err
			}
			if refusal != "" {
				refuse(&results[i], refusal)
			}
		}
	case drop:
		n, ok := reply.(int64)
		if !ok {
			return &strangeReply{drop, reply}
		}
		if n == 2 && !c.publishTold {
			c.publishTold = true
			c.cfg.Log.Warn("this user may not publish: those who wait for a lock elsewhere learn late that it is free; let its ACL have +publish and the channels redisson_lock__channel:*",
				"lock", results[0].Name)
		}
	}
	return nil
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
	if c.live != nil {
		c.live.wire.Close()
	}
	c.mu.Unlock()
	<-c.done
	return ctx.Err()
}
