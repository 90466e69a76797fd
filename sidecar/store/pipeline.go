package store

import (
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

const (
	// maxFlight bounds the operations without an answer, and with them what is in
	// doubt when a connection ends.
	maxFlight = 4 * batchRenewals

	// When the best round trip seen is below localRTT, at most localInFlight commands are in
	// flight: Redis executes one while the next waits. Operations that arrive meanwhile join
	// the next batch, and one large script is cheaper for Redis than two small ones. On a
	// distant Redis this would only add latency.
	localRTT      = int64(200 * time.Microsecond)
	localInFlight = 2
)

// A pipeline is a connection in use. Commands are written as they come, answers and messages are
// read as they come, by a goroutine of its own: full duplex. The goroutine that queues a
// command mostly writes it, too. Results and messages are delivered in the order in which Redis
// sent them.
type pipeline struct {
	// Immutable.
	*readyConn
	commands *commands
	encoder  wire.Encoder
	ended    chan struct{} // closed when the reader has ended; out.Err says why
	patience int64         // ns
	conn     redisop.Conn

	// Guarded by commands.mu.
	calls         fifo[call]       // without an answer, oldest first
	flight        fifo[redisop.Op] // those that the calls carry out
	out           *rawio.Writer    // of commands
	drainReason   string           // why no further command is to be sent here, although it can be; "": it may
	minRTT        int64            // the shortest time that an answer took
	liveness      liveness
	lastReply     int64                 // when Redis last sent anything, as of the last check or, if later, when liveness became waiting
	nextCheck     int64                 // when run checks liveness next, at the latest
	served        bool                  // Redis answered a command
	mustAskAgain  bool                  // slots have moved here since askClock
	raised        bool                  // a token has raised the floor of the connection's id since the last OnResults
	scriptLoading map[*wire.Script]bool // that it is being taught a script is among the calls
	queryCalls    int                   // how many of the calls are commands of queries
	probe         probe
	reported      string // why Redis is degraded, as it was reported last; "": it is not
	risk          string // as it was reported last; "": there is none
	evictionNext  int64  // when the numbers of evicted keys may be read again because locks were lost

	durability durability

	busy     busyLocks             // of a Cluster
	dropping map[string]redisop.Op // quiet Drops in flight, by name, and the Takes that wait for them: see holdBack

	lastInput atomic.Int64 // when Redis last sent anything: replies and messages show that it is alive

	// Of the reader, with the replies of readyConn.
	now      int64             // when it last read something
	results  []redisop.Result  // of what was answered, not delivered yet
	messages []redisop.Message // not delivered yet; all came after the results
	silent   string            // a lock whose release could not be published

	redirects []redirect // of MOVED, not followed yet
	asks      []askedOps // of ASK, the same
}

// liveness is whether Redis replies to what it is sent.
//
//	      a command is sent            no reply for the timeout
//	idle ───────────────────► waiting ──────────────────────────► overdue
//	  ▲                        │   ▲                               │   │
//	  └────────────────────────┘   └───────────────────────────────┘   │ the same at
//	    the last one is answered                a reply                │ the next check
//	                                                                   ▼
//	                    the connection is cut, in every state ───────► dead
type liveness uint8

const (
	// idle: every command is answered. After idlePing, Redis is asked for its role.
	idle liveness = iota

	// waiting: a command has no answer yet.
	waiting

	// overdue: no reply came in time, as far as this process knows. It may have been this
	// host that slept, or a long step of the loop that kept the reader. So a second check,
	// with no reply left unread, must find the same.
	overdue

	// dead: the connection was cut. No command is sent any more. It has no end.
	dead
)

// A call is one command under way: a run of a script, or what keeps the connection in
// shape.
type call struct {
	form     form
	script   *wire.Script     // nil: a ping, subscribing, querying, probing, permitted, syncing, reading or informing
	ops      int              // how many operations it carries out
	sent     int64            // CLOCK_BOOTTIME in ns, read before it was written
	from     int64            // where in the stream of the connection it begins, bytes
	isAsking bool             // another node of the Cluster has its slot
	again    bool             // Redis was taught the script after it did not know it for these operations
	isOwed   bool             // a WAIT follows: its results are withheld until the answer to that
	channels *channelsRequest // subscribing
	query    *query           // querying
}

type form uint8

const (
	byDigest    form = iota // EVALSHA: a script that Redis knows
	byText                  // EVAL: the script is taught
	loading                 // SCRIPT LOAD: teach it
	alive                   // ROLE, or PING if that is not permitted
	subscribing             // SUBSCRIBE or UNSUBSCRIBE
	querying                // a command of a query
	probing                 // EVALSHA: a probe
	permitted               // EVALSHA: which commands are, see probe.lacks
	syncing                 // WAIT
	permitting              // ASKING: the next command may be of a slot that another node has
	timing                  // TIME: see pipeline.askClock
	reading                 // CONFIG GET: see pipeline.onReplicas
	informing               // INFO: see pipeline.askEviction
)

func newPipe(c *commands, s *readyConn) *pipeline {
	p := &pipeline{
		readyConn: s,
		commands:  c,
		encoder: wire.Encoder{
			Prefix: c.cfg.UUID + ":", Keys: s.dial.Keys, Floor: s.id.Floor, Expiry: c.cfg.TokenExpiry.Milliseconds(), Origin: s.origin.String(),
			Declares: s.dial.IsNode && s.noQueue == "", IsSharded: s.isSharded, Confirms: s.dial.replicas > 0,
		},
		ended:         make(chan struct{}),
		patience:      int64(s.dial.timeout),
		minRTT:        math.MaxInt64,
		lastReply:     protocol.Now(),
		scriptLoading: make(map[*wire.Script]bool),
		busy:          make(busyLocks),
		dropping:      make(map[string]redisop.Op),
	}
	p.durability.replicas = s.dial.replicas
	p.durability.why = s.tooFewReplicas()
	p.reported = p.durability.why
	p.risk = s.riskNow()
	p.noteEviction()
	p.beginProbes()
	if s.origin.IsKnown {
		p.conn = redisop.NewConn(c.number)
	}
	s.wire.release()
	if s.wire.secure {
		p.in.Reader = deliveringReader{p, s.wire}
		p.out = rawio.NewWriter(&c.mu, s.wire, nil)
	} else {
		p.in.Reader = deliveringReader{p, rawio.NewReader(s.wire.raw)}
		p.out = rawio.NewWriter(&c.mu, s.wire, s.wire.raw)
	}
	p.out.OnClose = func(error) {
		p.liveness = dead
		p.wire.Close()
	}
	return p
}

// canSend reports whether a command may be sent now. The caller holds mu.
func (p *pipeline) canSend() bool {
	near := p.minRTT <= localRTT
	inFlight := p.calls.len() - p.commands.listener.inFlight - p.queryCalls // these keep no operation waiting
	return p.drainReason == "" && p.out.Accepts() && p.flight.len() < maxFlight && !(near && inFlight >= localInFlight) && !p.durability.inFlight
}

// canSubscribe reports whether channels may be requested now. The caller holds mu.
func (p *pipeline) canSubscribe() bool { return p.drainReason == "" && p.out.Accepts() }

// queueChannels queues a request about channels. The caller holds mu.
func (p *pipeline) queueChannels(now int64, r *channelsRequest) {
	p.register(now, call{form: subscribing, channels: r})
	p.out.Queued = appendChannelsRequest(p.out.Queued, r)
}

// isIdle reports whether every command is answered. The caller holds mu.
func (p *pipeline) isIdle() bool { return p.calls.len() == 0 }

// queueBatch queues ops, which are one batch, in an order of its own. The caller holds mu.
func (p *pipeline) queueBatch(now int64, ops []redisop.Op) {
	ops = p.holdBack(now, ops)
	slot := p.slots()
	wire.SortForBatching(now, ops, slot)
	for len(ops) > 0 {
		s, n := wire.BatchPrefix(ops, slot)
		if n == 1 {
			if quiet := p.quietScript(now, &ops[0]); quiet != nil {
				s = quiet
			}
			if s == wire.QuietDrop {
				p.dropping[ops[0].Name] = redisop.Op{}
			}
		}
		p.queueCommand(now, call{script: s}, ops[:n])
		ops = ops[n:]
	}
}

// slots returns the slot of a name, if the server is a node of a Cluster: one run of a script has keys of
// one slot there. nil: it is none.
func (p *pipeline) slots() func(name string) uint16 {
	if !p.dial.IsNode {
		return nil
	}
	return p.encoder.Keys.SlotOf
}

// queueAsking queues one operation of a slot that another node has. The caller holds mu.
func (p *pipeline) queueAsking(now int64, ops []redisop.Op) {
	p.queuePermission(now)
	p.queueCommand(now, call{script: wire.ScriptOf(ops[0].Kind), isAsking: true}, ops)
	p.queueWait(now)
}

// queuePermission has the next command be of a slot that another node has. The caller holds mu.
func (p *pipeline) queuePermission(now int64) {
	p.register(now, call{form: permitting})
	p.out.Queued = wire.AppendString(wire.AppendArray(p.out.Queued, 1), "asking")
}

// queueCommand queues the command that runs a script for ops, and arranges them. The caller holds mu.
func (p *pipeline) queueCommand(now int64, cl call, ops []redisop.Op) {
	cl.ops = len(ops)
	if p.durability.replicas > 0 {
		cl.isOwed = p.durability.note(ops)
	}
	p.register(now, cl)
	lifts := p.encoder.Lifts
	p.encoder.Lifts = lifts || cl.isAsking // a counter has come here before its slot: see askClock
	p.out.Queued = p.encoder.AppendRun(p.out.Queued, wire.Run{Script: cl.script, ByText: cl.form == byText}, now, p.id.Above(now), ops)
	p.encoder.Lifts = lifts
	for i := range ops {
		p.flight.push(ops[i])
	}
}

// register notes that a command is about to be queued. The caller holds mu.
func (p *pipeline) register(now int64, cl call) {
	if p.isIdle() {
		p.lastReply = now
		p.setLiveness(waiting)
	}
	cl.sent, cl.from = now, p.out.End()
	p.calls.push(cl)
}

// ping queues a command that any Redis answers at once: ROLE, because a master that is demoted may
// keep its clients; PING, if this user may not ask for the role. The caller holds mu.
func (p *pipeline) ping(now int64) {
	p.register(now, call{form: alive})
	if p.noRole {
		p.out.Queued = wire.AppendPing(p.out.Queued)
	} else {
		p.out.Queued = wire.AppendRole(p.out.Queued)
	}
}

// askClock asks for Redis's clock after slots have moved to this master. The counters of their locks may
// have lost their last values on the way, and other hosts may have drawn these; the clock was last read when
// this connection was made. Until the answer comes, each counter that is used is lifted to the clock. Then the
// clock is the floor. The caller holds mu.
func (p *pipeline) askClock(now int64) {
	if p.encoder.Lifts {
		p.mustAskAgain = true
		return
	}
	p.encoder.Lifts = true
	p.register(now, call{form: timing})
	p.out.Queued = wire.AppendTime(p.out.Queued)
}

// onClock takes the answer of askClock. The caller holds mu.
func (p *pipeline) onClock(answer wire.Reply) {
	clock, ok := parseTime(answer)
	if !ok {
		return // each counter is lifted, for as long as the connection lasts
	}
	p.clock, p.clockAt = clock, p.now
	p.lift(p.now, clock)
	p.raised = true
	if p.encoder.Lifts = false; p.mustAskAgain {
		p.mustAskAgain = false
		p.askClock(p.now)
	}
}

// parseTime returns what TIME answers, µs.
func parseTime(answer wire.Reply) (int64, bool) {
	if answer.Kind != '*' || len(answer.List) != 2 {
		return 0, false
	}
	seconds, err := strconv.ParseInt(answer.List[0].Text, 10, 64)
	micros, err2 := strconv.ParseInt(answer.List[1].Text, 10, 64)
	return seconds*1_000_000 + micros, err == nil && err2 == nil
}

// onPong takes the answer of ping: any reply shows that Redis is alive. A replica is left. The caller
// holds mu.
func (p *pipeline) onPong(answer wire.Reply) {
	switch {
	case answer.Kind == '-' && wire.OutcomeOf(wire.Code(answer.Text)) == redisop.Refused: // NOPERM, or it is not known
		p.noRole = true
	case answer.Kind == '*' && len(answer.List) > 0 && isReplica(answer.List[0].Text) && p.drainReason == "":
		p.drainReason = p.dial.Demoted("")
	case answer.Kind == '*' && len(answer.List) == 3 && answer.List[2].Kind == '*': // of a master
		p.onReplicas(len(answer.List[2].List))
	}
}

// cut ends the connection. The reader finds that out, and reports it. The caller holds mu.
func (p *pipeline) cut(why error) { p.out.Close(why) }

// setLiveness leaves a dead connection dead. The caller holds mu.
func (p *pipeline) setLiveness(l liveness) {
	if p.liveness != dead {
		p.liveness = l
	}
}

// checkLiveness cuts a connection that is overdue at the second check, and sends a ping
// on one that has been idle for long. It returns when to check again, at the latest. pump
// makes that earlier when it sends a command on an idle connection. The caller holds mu,
// and flushes.
func (p *pipeline) checkLiveness(now int64) (next int64) {
	if at := p.lastInput.Load(); at > p.lastReply {
		p.lastReply = at
		if p.liveness == overdue {
			p.liveness = waiting
		}
	}
	if p.liveness == idle && now >= p.lastReply+int64(idlePing) {
		p.ping(now)
	}
	quiet := now - p.lastReply
	switch {
	case p.liveness == dead:
		next = now + int64(time.Hour)
	case p.liveness == idle && quiet >= p.patience:
		next = p.lastReply + int64(idlePing)
	case p.liveness == idle: // a command may be sent at any time
		next = p.lastReply + min(p.patience, int64(idlePing))
	case quiet < p.patience:
		next = p.lastReply + p.patience
	case p.liveness == waiting, rawio.HasUnread(p.wire.raw):
		p.liveness = overdue
		next = now + p.patience/8
	default:
		p.cut(os.ErrDeadlineExceeded)
		next = now + int64(time.Hour)
	}
	p.nextCheck = next
	return next
}

// read takes in what Redis sends until the connection ends. It is the pipe's goroutine.
func (p *pipeline) read() {
	defer close(p.ended)
	var err error
	for err == nil {
		var answer wire.Reply
		switch answer, err = p.replies.Next(); {
		case err != nil:
		case answer.Kind == '>':
			err = p.onPush(answer)
		default:
			err = p.onReply(answer)
		}
	}
	mu := &p.commands.mu
	mu.Lock()
	p.cut(err)
	mu.Unlock()
	_ = p.deliverResults()
}

// deliveringReader reads replies. Before it waits for more bytes, it delivers the results
// that are complete: the rest of a reply that has begun may take its time.
type deliveringReader struct {
	*pipeline
	from io.Reader
}

func (h deliveringReader) Read(b []byte) (int, error) {
	if err := h.deliverResults(); err != nil {
		return 0, err
	}
	n, err := h.from.Read(b)
	h.now = protocol.Now()
	if n > 0 {
		h.lastInput.Store(h.now)
	}
	return n, err
}

// deliverResults sends the operations that waited for the replies which have come, and
// delivers their results, and messages. The error ends the pipeline.
func (p *pipeline) deliverResults() error {
	// Redis gets the operations that waited before the loop gets the results.
	err := p.commands.sendQueued(p)
	p.deliver()
	if p.silent != "" && !p.commands.publishLogged {
		p.commands.publishLogged = true
		p.commands.cfg.Log.Warn("this user may not publish: those who wait for a lock elsewhere learn late that it is free; let its ACL have +"+p.sharded("publish")+" and the channels "+p.dial.Keys.ChannelPatterns(),
			"lock", p.silent)
	}
	return err
}

// deliver delivers the results that were read, and the messages that came after them. It is
// called before a result is noted that came after a message.
func (p *pipeline) deliver() {
	p.follow()
	if p.durability.withholds {
		if len(p.messages) > 0 {
			p.setAside(delivery{})
		}
		return
	}
	p.durability.unawaited = p.durability.unawaited[:0]
	if len(p.results) > 0 {
		p.commands.deliver(p.results, p.takeRaised())
		p.results = p.commands.spareResults.get()
	}
	if len(p.messages) > 0 {
		if report := p.commands.cfg.OnMessages; report != nil {
			report(p.messages)
		}
		p.messages = nil
	}
}

// askedOps is operations that a node answered with ASK.
type askedOps struct {
	redirect
	ops []redisop.Op
}

// follow sends operations where the answers MOVED and ASK say. The lock table gets the route of a slot that
// moved before the results of the operations that were not executed.
func (p *pipeline) follow() {
	redirects, asks := p.redirects, p.asks
	p.redirects, p.asks = p.redirects[:0], nil
	for _, r := range redirects {
		p.commands.cluster.onMoved(r)
	}
	for _, a := range asks {
		p.commands.cluster.askThere(a.redirect, a.ops)
	}
}

// sharded returns the command for the channels of locks: that for sharded ones, if they are.
func (p *pipeline) sharded(command string) string {
	if p.isSharded {
		return "s" + command
	}
	return command
}

// onPush takes in what Redis sends without having been asked, and confirmations of
// subscriptions. The error is that of a connection that cannot be used further.
func (p *pipeline) onPush(push wire.Reply) error {
	parts := push.List
	if len(parts) != 3 || parts[0].Kind != '$' || parts[1].Kind != '$' {
		return nil // no message, and no confirmation
	}
	switch kind, channel := parts[0].Text, parts[1].Text; kind {
	case "message", "smessage":
		p.onMessage(channel, parts[2])
	case "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe":
		return p.onConfirmation(push, kind == "unsubscribe" || kind == "sunsubscribe", channel)
	}
	return nil
}

// onMessage notes a message. What it says matters on the sidecar's channel only.
func (p *pipeline) onMessage(channel string, text wire.Reply) {
	if channel == p.dial.channel {
		if from, body, isAnswer, ok := question(text.Text); ok {
			if cl := p.commands.cluster; cl != nil && !cl.has(p.commands.shard, channel) {
				return // a copy: see publish
			}
			if report := p.commands.cfg.OnQuestion; !isAnswer && report != nil {
				report(from, []byte(body))
			}
			if report := p.commands.cfg.OnAnswer; isAnswer && report != nil {
				report([]byte(body))
			}
			return
		}
		m, from, ok := p.encoder.Keys.Message(text.Text)
		if !ok || text.Kind != '$' {
			p.onIgnored()
			return
		}
		if p.commands.cluster != nil && from.IsKnown && p.origin.IsKnown && !from.IsSame(p.origin) {
			return // a copy: a Cluster brings each message to all its nodes, and this one did not send it
		}
		if from.IsSame(p.origin) && !p.isWithholding() { // otherwise a Take confirms it
			m.Conn = p.conn
		}
		p.checkTokens(&m)
		p.messages = append(p.messages, m)
		return
	}
	mu := &p.commands.mu
	mu.Lock()
	name, wanted := p.commands.listener.want[channel]
	mu.Unlock()
	if wanted {
		p.messages = append(p.messages, redisop.Message{Kind: redisop.Unlocked, Name: name})
	}
}

// checkTokens takes the tokens out of a transfer that this sidecar must not grant unseen. It
// draws its own then. These are tokens that are not above the floor of this connection: another
// sidecar drew them, whose floor may be lower. And those that are ahead of Redis's clock: a
// message can be forged, and must not raise the floors of other locks. The result of a draw may.
func (p *pipeline) checkTokens(m *redisop.Message) {
	if m.Kind != redisop.Transferred {
		return
	}
	mu := &p.commands.mu
	mu.Lock()
	defer mu.Unlock()
	if int64(m.LastToken)-int64(m.Tokens) < p.encoder.TokensAbove() || p.isAhead(p.now, int64(m.LastToken)) || m.Conn == (redisop.Conn{}) {
		m.Tokens = 0
	} else {
		p.raiseFloor(p.now, m.LastToken)
	}
}

// isAhead reports whether a token is ahead of Redis's clock. Then the clock was set back since the
// counter was made. The caller holds mu.
func (p *pipeline) isAhead(now, token int64) bool {
	return token > p.redisClock(now)+int64(time.Second/time.Microsecond)
}

// redisClock is Redis's clock, as far as its time at the greeting shows it, µs.
func (p *pipeline) redisClock(now int64) int64 { return p.clock + (now-p.clockAt)/1000 }

// onConfirmation takes in the confirmation of one channel. When a whole SUBSCRIBE is
// confirmed, OnSubscribed is called for those of its channels that are still wanted.
func (p *pipeline) onConfirmation(push wire.Reply, unsubscribed bool, channel string) error {
	mu := &p.commands.mu
	mu.Lock()
	var r *channelsRequest
	if !p.isIdle() {
		r = p.calls.front().channels
	}
	if r == nil || r.unsubscribe != unsubscribed || !slices.Contains(r.channels, channel) {
		mu.Unlock()
		if channel == p.dial.channel && unsubscribed {
			return wire.Unavailablef("Redis at %s ended the subscription to the channel on which other sidecars reach this one; the connection is made again", p.dial.Address)
		}
		if push.List[0].Text == "sunsubscribe" && p.commands.cluster != nil {
			p.onSlotLeft(channel)
			return nil
		}
		return &wire.UnexpectedReply{Reply: push}
	}
	if r.endsWithPing() {
		mu.Unlock()
		return nil
	}
	names, answered := p.commands.listener.onConfirmation(r, channel)
	if answered {
		p.onAnswered()
	}
	mu.Unlock()
	if len(names) > 0 {
		p.reportSubscribed(delivery{subscribed: names})
	}
	return nil
}

// onSlotLeft takes in that a node of a Cluster has ended a subscription, because the slot has left it.
func (p *pipeline) onSlotLeft(channel string) {
	mu := &p.commands.mu
	mu.Lock()
	names := p.commands.listener.onEnded(channel)
	mu.Unlock()
	if len(names) > 0 {
		p.reportSubscribed(delivery{unsubscribed: names})
	}
	p.commands.cluster.refresh()
}

// onRefusal takes in the answer to a request about channels that is no confirmation. denied are
// the names of a channel that is not permitted. The caller holds mu.
func (p *pipeline) onRefusal(r *channelsRequest, answer wire.Reply) (denied []string, err error) {
	if r.endsWithPing() {
		if answer.Kind == '-' && !strings.Contains(strings.ToLower(answer.Text), "'ping'") {
			p.noteRedirect(answer.Text) // of the SUNSUBSCRIBE; that of the PING follows
			return nil, nil
		}
		p.commands.listener.onPinged(r)
		p.onAnswered()
		return nil, nil
	}
	if answer.Kind != '-' {
		return nil, &wire.UnexpectedReply{Reply: answer}
	}
	word := wire.Code(answer.Text)
	moved := p.noteRedirect(answer.Text)
	if wire.EndsSession(word) && p.drainReason == "" {
		p.drainReason = fmt.Sprintf("Redis at %s does not accept subscriptions any more (%s)", p.dial.Address, wire.Clip(answer.Text))
	}
	halves, denied := p.commands.listener.onRefusal(r, moved || wire.OutcomeOf(word) == redisop.Retryable)
	p.onAnswered()
	for _, half := range halves {
		p.queueChannels(p.now, half)
	}
	return denied, nil
}

// reportDenied reports names whose channel is not permitted, and logs the first of all.
func (p *pipeline) reportDenied(names []string, why string) {
	c := p.commands
	if !c.subscribeLogged {
		c.subscribeLogged = true
		c.cfg.Log.Warn("this user may not subscribe to the channels of locks: the daemon asks again and again for a lock that another host holds; let its ACL have +"+p.sharded("subscribe")+" and the channels "+p.dial.Keys.ChannelPatterns(),
			"lock", names[0], "reason", wire.Clip(why))
	}
	p.reportSubscribed(delivery{unsubscribed: names})
}

// reportSubscribed reports which names are subscribed, or not, after what was read before.
func (p *pipeline) reportSubscribed(names delivery) {
	if p.durability.withholds {
		p.setAside(names)
		return
	}
	p.deliver()
	p.commands.hand(&names)
}

// onAnswered removes the oldest call, which carries out no operations. The caller holds mu.
func (p *pipeline) onAnswered() {
	p.served = true
	p.calls.drop(1)
	if p.isIdle() {
		p.setLiveness(idle)
	}
}

// farAhead is how far Redis's clock may once have been ahead of what it is now.
const farAhead = 366 * 24 * time.Hour

// raiseFloor notes a token that Redis gave out. One that is ahead of Redis's clock shows
// that the clock was set back since the counter was made: other counters may be below
// earlier tokens, and are lifted, as after a reconnect. A counter that is absurdly far
// ahead, because another program set it, must not lift those of all other locks. The
// caller holds mu.
func (p *pipeline) raiseFloor(now int64, last uint64) {
	token := int64(last)
	if token <= p.id.Above(now) || token >= p.redisClock(now)+int64(farAhead/time.Microsecond) {
		return
	}
	p.id.Floor, p.id.FloorAt = token, now
	p.raised = true
	if p.isAhead(now, token) {
		p.encoder.Floor = max(p.encoder.Floor, token)
	}
}

// takeRaised returns the identity if its floor was raised since the last call.
func (p *pipeline) takeRaised() *wire.Identity {
	mu := &p.commands.mu
	mu.Lock()
	defer mu.Unlock()
	if !p.raised {
		return nil
	}
	p.raised = false
	id := p.id
	return &id
}

// onReply takes one reply in. The error is that of a connection that cannot be used further.
func (p *pipeline) onReply(answer wire.Reply) error {
	if cl := p.commands.cluster; cl != nil && answer.Kind == '-' {
		cl.counts.onError(wire.Code(answer.Text))
	}
	if len(p.messages) > 0 {
		p.deliver()
	}
	mu := &p.commands.mu
	mu.Lock()
	if p.isIdle() {
		mu.Unlock()
		return &wire.UnexpectedReply{Reply: answer}
	}
	if r := p.calls.front().channels; r != nil {
		denied, err := p.onRefusal(r, answer)
		mu.Unlock()
		if len(denied) > 0 {
			p.reportDenied(denied, answer.Text)
		}
		return err
	}
	if p.calls.front().query != nil {
		q := p.onQueryReply(answer)
		mu.Unlock()
		if q != nil {
			q.done(q.replies, nil)
		}
		return nil
	}
	if p.calls.front().form == permitted {
		optional := p.onPermissions(answer)
		mu.Unlock()
		if len(optional) > 0 {
			p.commands.reportOptional(optional)
		}
		return nil
	}
	if p.calls.front().form == probing {
		p.onProbeReply(answer)
		why, changed := p.degradedChange()
		mu.Unlock()
		if changed {
			p.commands.reportDegraded(why)
		}
		return nil
	}
	if p.calls.front().form == syncing {
		deliverable, err := p.onWaitReply(answer)
		why, changed := p.degradedChange()
		mu.Unlock()
		if err != nil {
			return err
		}
		if changed {
			p.commands.reportDegraded(why)
		}
		err = p.commands.sendQueued(p) // Redis gets the next batch before the loop gets the results
		p.handAll(deliverable)
		p.deliver()
		return err
	}
	of := p.calls.front().form
	err := p.onResults(answer)
	risk, changed := "", false
	if of == reading || of == informing || of == alive && (p.replication.replicas == 0 || p.replication.isDenied) {
		risk, changed = p.riskChange()
	}
	var report riskReport
	if changed {
		report = p.riskReport(risk)
	}
	mu.Unlock()
	if changed {
		p.commands.reportRisk(report)
	}
	return err
}

// onResults notes the results of what a reply answers. The caller holds mu.
func (p *pipeline) onResults(answer wire.Reply) error {
	cl := *p.calls.front()
	held := p.takeHeld(&cl)
	if len(held) > 0 && !cl.isBusy(answer) {
		defer func() {
			p.queueCommand(p.now, call{script: wire.AcquireRelease}, held)
			p.queueWait(p.now)
		}()
	}
	switch cl.form {
	case alive:
		p.onPong(answer)
	case timing:
		p.onClock(answer)
	case reading:
		p.onMinimum(answer)
	case informing:
		p.onInfo(answer)
	}
	p.served = true
	if cl.ops > 0 { // something on the way may answer a ping
		p.minRTT = min(p.minRTT, p.now-cl.sent)
	}
	p.commands.roundTrip.Store(p.now - cl.sent)
	if cl.form == loading || cl.form == byText {
		delete(p.scriptLoading, cl.script)
	}
	if cl.form == loading && answer.Kind == '-' {
		p.loads = false // by text, from now on
	}
	if cl.ops > 0 && answer.Kind == '-' {
		switch word := wire.Code(answer.Text); {
		case word == "NOSCRIPT" && (!cl.again || !p.loads && cl.form == byDigest) && p.drainReason == "":
			p.loadScript(p.now, cl)
			return nil
		case word == "ASK" && cl.ops > 1 && p.drainReason == "":
			p.split(p.now, cl) // Redis 6.2 also says it if only some of the keys are gone
			return nil
		case word == "ASK" && !cl.isAsking && p.commands.cluster != nil:
			if r, ok := parseRedirect(answer.Text, p.dial.Address); ok {
				p.commands.cluster.noteOpen(r.slot, r.address, false)
				p.asks = append(p.asks, askedOps{r, p.takeBack(cl)})
				return nil
			}
		case p.noteRedirect(answer.Text):
		case cl.ops > 1 && (wire.OutcomeOf(word) == redisop.Refused || word == "TRYAGAIN") && p.drainReason == "":
			p.split(p.now, cl)
			return nil
		}
	}
	if cl.isBusy(answer) {
		p.onBusy(p.now, cl, held)
		return nil
	}
	at := len(p.results)
	for _, op := range p.flight.head(cl.ops) {
		p.results = append(p.results, redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard, Sent: cl.sent, Conn: p.conn})
	}
	if err := p.decode(&cl, answer, p.results[at:]); err != nil {
		p.results = p.results[:at] // they are still under way
		return err
	}
	for i := range p.results[at:] {
		if token := p.results[at+i].Token; token != 0 {
			p.raiseFloor(p.now, token)
		}
		p.onResult(&p.results[at+i])
	}
	if why := p.failover(); why != "" {
		notSynced(p.results[at:], nil, why)
	}
	if p.durability.replicas > 0 {
		p.durability.withhold(p.flight.head(cl.ops), at, cl.isOwed)
	}
	p.calls.drop(1)
	p.flight.drop(cl.ops)
	if p.isIdle() {
		p.setLiveness(idle)
	}
	return nil
}

// noteRedirect notes an answer of a node that does not serve a slot, and reports whether it is one. The
// caller holds mu.
func (p *pipeline) noteRedirect(text string) bool {
	if p.commands.cluster == nil || wire.Code(text) != "MOVED" {
		return false
	}
	r, ok := parseRedirect(text, p.dial.Address)
	if ok {
		p.redirects = append(p.redirects, r)
	}
	return ok
}

// loadScript runs the oldest call again, once, after loading its script: it certainly did not
// run. The caller holds mu.
func (p *pipeline) loadScript(now int64, cl call) {
	ops := p.takeBack(cl)
	form := byDigest
	if !p.scriptLoading[cl.script] {
		p.scriptLoading[cl.script] = true
		if p.loads {
			p.register(now, call{form: loading, script: cl.script})
			p.out.Queued = wire.AppendLoad(p.out.Queued, cl.script)
		} else {
			form = byText
		}
	}
	if cl.isAsking {
		p.queuePermission(now)
	}
	p.queueCommand(now, call{form: form, script: cl.script, again: true, isAsking: cl.isAsking}, ops)
	p.queueWait(now)
}

// split runs the oldest call again, by halves, after Redis refused it as a whole: one
// lock that an ACL denies must not cost the others their renewal. The caller holds mu.
func (p *pipeline) split(now int64, cl call) {
	ops := p.takeBack(cl)
	half := len(ops) / 2
	p.queueCommand(now, call{script: cl.script, again: cl.again}, ops[:half])
	p.queueCommand(now, call{script: cl.script, again: cl.again}, ops[half:])
	p.queueWait(now)
}

// takeBack takes the oldest call and its operations from those under way. The caller
// holds mu.
func (p *pipeline) takeBack(cl call) []redisop.Op {
	p.calls.drop(1)
	return p.flight.pop(nil, cl.ops)
}

// decode takes the reply of a call apart, one result for each of its operations. The
// caller holds mu.
func (p *pipeline) decode(cl *call, answer wire.Reply, results []redisop.Result) error {
	refuse := func(r *redisop.Result, text string) {
		text = wire.Reason(text)
		word, _, _ := strings.Cut(text, " ")
		r.Outcome = wire.OutcomeOf(word)
		if r.Outcome == redisop.Refused && len(results) > 1 && answer.Kind == '-' {
			r.Outcome = redisop.Retryable // it may be one of the others that was refused
		}
		if p.commands.cluster != nil && (word == "MOVED" || word == "ASK") {
			r.Outcome = redisop.Retryable
		}
		if p.commands.cluster != nil && word == "TRYAGAIN" && len(results) == 1 {
			p.commands.cluster.noteOpen(p.dial.Keys.SlotOf(r.Name), "", true)
		}
		r.Msg = p.dial.Answered(r.Name, text)
		if wire.EndsSession(word) && p.drainReason == "" {
			p.drainReason = r.Msg
		}
	}
	switch {
	case len(results) == 0: // any reply shows that Redis is alive
	case answer.Kind == '-':
		for i := range results {
			refuse(&results[i], answer.Text)
		}
	case cl.script == wire.Renew && answer.Kind == ':' && answer.Num == int64(len(results)):
		for i := range results {
			results[i].Outcome = redisop.Done
		}
	case cl.script == wire.QuietTake, cl.script == wire.QuietDrop:
		return p.decodeStatus(answer, &results[0], refuse)
	case answer.Kind != '*', len(answer.List) != len(results):
		return &wire.UnexpectedReply{Script: cl.script, Reply: answer}
	default:
		for i, status := range answer.List {
			if err := p.decodeStatus(status, &results[i], refuse); err != nil {
				return err
			}
		}
	}
	return nil
}

// decodeStatus reads the status of one operation.
func (p *pipeline) decodeStatus(status wire.Reply, r *redisop.Result, refuse func(r *redisop.Result, text string)) error {
	refusal, silent, err := wire.Decode(status, r)
	if err != nil {
		return err
	}
	if refusal != "" {
		refuse(r, refusal)
	}
	if r.Outcome == redisop.NotALock {
		r.Msg = p.dial.NotALock(r.Name, r.Field)
	}
	if silent {
		p.silent = r.Name
	}
	return nil
}

// close ends the connection, and returns the results of what was under way: where
// nothing of a command was written, it certainly was not carried out; and the queries. The reader has
// ended, or will by itself.
func (p *pipeline) close(why string) ([]redisop.Result, []*query) {
	mu := &p.commands.mu
	mu.Lock()
	p.cut(net.ErrClosed)
	mu.Unlock()
	p.out.Wait()
	p.readyConn.close()
	withheld := p.endWithheld(why)
	mu.Lock()
	defer mu.Unlock()
	results := append(make([]redisop.Result, 0, len(withheld)+p.flight.len()), withheld...)
	for _, cl := range p.calls.head(p.calls.len()) {
		outcome := redisop.Unknown
		if cl.from >= p.out.Sent() {
			outcome = redisop.NotSent
		}
		for _, op := range p.flight.head(cl.ops) {
			results = append(results, redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard, Sent: cl.sent, Outcome: outcome, Msg: why})
		}
		p.flight.drop(cl.ops)
	}
	for _, take := range p.dropping {
		if take.Kind != redisop.NoOp {
			results = append(results, redisop.Result{Kind: take.Kind, Name: take.Name, Shard: take.Shard, Outcome: redisop.NotSent, Msg: why})
		}
	}
	queries := p.unansweredQueries()
	p.calls = fifo[call]{}
	return results, queries
}
