package pipeline

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Budget is how often each thing happens in a world, at most.
type Budget struct {
	Batches int // of operations, of the first ones of batches
	Cuts    int // connections that end
	Flushes int // times that the server forgets its scripts
	Moves   int // steps of the slot on its way to another node, and back
	Wants   int // changes of which channels are wanted
	Lags    int // answers to WAIT with too few replicas
	Late    int // times that the server is silent for the timeout
	Losses  int // times that the server loses its token counters
	Gifts   int // transfers, from this server and from another one

	Replicas int  // that must confirm
	Channels int  // that may be wanted; 0: 1
	IsDenied bool // the last of them is not permitted
	IsNode   bool // of a Cluster
	NoLoad   bool // SCRIPT LOAD is not permitted
}

// batches are what the lock table asks for, one after the other.
var batches = [][]redisop.Op{
	{op(redisop.Take, "a", 1), op(redisop.Renew, "r", 2)},
	{op(redisop.Take, "b", 3), op(redisop.Take, "c", 4)},
	{op(redisop.Drop, "a", 5), after(op(redisop.Take, "a", 6))},
	{op(redisop.Renew, "r", 7), op(redisop.Renew, "s", 8)},
	{waits(op(redisop.Drop, "b", 9)), op(redisop.Take, "d", 10)},
	{after(op(redisop.Take, "b", 11))},
}

func op(k redisop.OpKind, name string, id uint64) redisop.Op {
	o := redisop.Op{Kind: k, Name: name, HoldID: id, LeaseMS: 30_000}
	if k != redisop.Drop {
		o.Count = 1
	}
	if k == redisop.Take {
		o.Reserve = 1
	}
	return o
}

func after(o redisop.Op) redisop.Op { o.Flags |= redisop.AfterPendingDrop; return o }
func waits(o redisop.Op) redisop.Op { o.Flags |= redisop.CanWait; return o }

// channelNames are the locks whose channels are wanted, or not.
var channelNames = [...]string{"w", "x", "y"}

// origins are this server and another one, as messages name them.
var origins = [...]wire.Origin{wire.OriginOf("0123abcd", "master"), wire.OriginOf("4567cdef", "master")}

// action is one step of the world.
type action struct {
	kind actionKind
	n    int // of cut: how many commands the socket has taken whole; of lose: that are executed late
	half bool
}

type actionKind uint8

const (
	ask     actionKind = iota // the next batch comes
	want                      // a channel is wanted, or not any more
	check                     // the connection is checked: it sends what waited
	execute                   // the server executes the next command
	lag                       // it executes a WAIT, and too few replicas have confirmed
	publish                   // another program publishes on the first channel
	give                      // a script of this server transfers a lock to this sidecar
	forge                     // the same, of a server that was the master before, or was not yet
	read                      // a reply is read
	rest                      // all that came was read
	cut                       // the connection ends, when the socket has taken n commands, and perhaps half of the next one
	late                      // the server executes a command of a connection that has ended
	lose                      // it does not execute the rest of those
	connect                   // a connection is made
	flush                     // the server forgets its scripts
	forget                    // it loses its token counters
	move                      // the slot goes, or comes back
	wait                      // the timeout passes, and the server has sent nothing
)

var actionNames = [...]string{"ask", "want", "check", "execute", "lag", "publish", "give", "forge", "read", "rest", "cut", "late", "lose", "connect", "flush", "forget", "move", "wait"}

func (a action) String() string {
	if a.kind == cut {
		return fmt.Sprintf("cut after %d commands (half: %t)", a.n, a.half)
	}
	return actionNames[a.kind]
}

// slotState is where the slot of all locks is.
type slotState uint8

const (
	served slotState = iota
	torn             // some of the keys of each lock have gone ahead: TRYAGAIN
	asking           // all have: ASK
	gone             // another node has it: MOVED
	slotStates
)

// sent is a reply, or a push, that was not read yet.
type sent struct {
	reply wire.Reply
	seq   int  // of the last operation that the server executed
	ack   bool // it answers a WAIT with enough replicas
	more  bool // it is no answer, or not all of it
}

// issued is a run that the server has received, with what its arguments say of tokens: see main.lua.
type issued struct {
	pipeline.Command
	floor, birth int64
	seen         map[string]int64 // by lock: the last token that was delivered when it was made
}

// world is one state.
type world struct {
	b       Budget
	m       *pipeline.Machine
	monitor monitor

	asked, cuts, flushes, moves, wants, lags, publishes, waits, losses, gifts int

	now       int64 // each action takes one nanosecond
	isUp      bool
	isDead    bool // the Machine has found that the server does not reply
	wanted    [len(channelNames)]bool
	unchecked bool // what is wanted has changed since the last check
	unsettled bool // replies were read, and nothing was handed on
	buffered  int  // replies that came with them, and are read before that

	// The server.
	knows      map[string]bool // scripts, by digest
	slot       slotState
	replies    []sent           // of the connection, that were not read yet
	repliedAt  int64            // when it sent the last one
	subscribed map[string]bool  // channels of the connection
	isAsking   bool             // ASKING came before
	counters   map[string]int64 // of tokens, by lock
	stream     []byte           // what the connection was sent, if counters may be lost
	spare      []byte           // emptied
	connects   uint32
	old        []issued // of connections that have ended, which may be executed late
}

const (
	ourUUID = "11111111-2222-8333-8444-555555555555"
	timeout = 2 * time.Second
	clock   = int64(1 << 50) // the server's, µs. It stands still
)

var keyspace = wire.NewKeyspace("")

func newWorld(b Budget) *world {
	b.Channels = max(b.Channels, 1)
	w := &world{b: b, now: int64(time.Hour), knows: map[string]bool{}, counters: map[string]int64{}}
	for _, s := range wire.Scripts {
		w.knows[s.SHA] = true // the greeting has loaded them
	}
	w.m = pipeline.New(pipeline.Config{
		UUID: ourUUID, Keys: keyspace, IsNode: b.IsNode, Replicas: b.Replicas, Timeout: timeout, Batches: pipeline.DefaultBatches,
	})
	w.monitor.init(b)
	return w
}

// commands are those of the connection that the server has not executed.
func (w *world) commands() []pipeline.Command {
	all := w.m.Commands()
	// Those that are answered are gone from the front: what is in flight ends with what is not executed yet.
	unread := 0
	for _, r := range w.replies {
		if !r.more {
			unread++
		}
	}
	return all[min(unread, len(all)):]
}

// actions are what can happen next.
func (w *world) actions() (list []action) {
	add := func(kind actionKind, ok bool) {
		if ok {
			list = append(list, action{kind: kind})
		}
	}
	if w.unsettled { // what comes meanwhile is in the next buffer
		add(read, w.buffered > 0)
		add(rest, w.buffered == 0)
	} else {
		add(read, w.isUp && len(w.replies) > 0)
	}
	add(ask, w.asked < min(w.b.Batches, len(batches)) && w.monitor.isFree(batches[w.asked]))
	add(want, w.wants < w.b.Wants)
	add(check, w.unchecked)
	add(flush, w.flushes < w.b.Flushes && len(w.knows) > 0)
	add(forget, w.losses < w.b.Losses && len(w.counters) > 0)
	add(move, w.moves < w.b.Moves)
	if w.isUp {
		unexecuted := w.commands()
		if len(unexecuted) > 0 {
			add(execute, true)
			add(lag, unexecuted[0].Name == "wait" && w.lags < w.b.Lags)
		}
		add(publish, w.subscribed[channelNames[0]] && w.publishes < 1)
		add(give, w.gifts < w.b.Gifts)
		add(forge, w.gifts < w.b.Gifts)
		add(wait, w.waits < w.b.Late && !w.isDead && len(w.m.Commands()) > 0)
		if w.cuts < w.b.Cuts || w.isDead {
			for n := range len(unexecuted) + 1 {
				list = append(list, action{kind: cut, n: n})
				if n < len(unexecuted) {
					list = append(list, action{kind: cut, n: n, half: true})
				}
			}
		}
	} else {
		add(connect, true)
	}
	add(late, len(w.old) > 0)
	add(lose, len(w.old) > 0)
	return list
}

// do takes the world through an action.
func (w *world) do(a action) {
	w.now++
	w.act(a)
	if w.b.Losses == 0 {
		w.spare = w.m.TakeBytes(w.spare[:0])
		return
	}
	w.stream = append(w.stream, w.m.TakeBytes(nil)...)
	w.monitor.onMade(int64(len(w.stream)))
}

func (w *world) act(a action) {
	switch a.kind {
	case ask:
		ops := slices.Clone(batches[w.asked])
		w.asked++
		w.monitor.onAsked(ops)
		w.m.Do(w.now, ops)
		if !w.isUp {
			w.refuse()
		}
	case want:
		i := w.wants % w.b.Channels
		w.wants++
		if w.wanted[i] = !w.wanted[i]; w.wanted[i] {
			w.m.Subscribe(channelNames[i])
		} else {
			w.m.Unsubscribe(channelNames[i])
		}
		w.monitor.wantedLately[i] = true
		w.unchecked = true
	case check:
		w.unchecked = false
		w.advance()
	case wait:
		w.waits++
		w.now += int64(2 * timeout)
		w.advance()
		w.now += int64(timeout)
		w.advance()
	case execute, lag:
		if a.kind == lag {
			w.lags++
		}
		c := w.commands()[0]
		w.answer(&c, a.kind == lag)
	case publish:
		w.publishes++
		w.push("message", w.channel(channelNames[0]), wire.Reply{Kind: '$', Text: "0"})
	case give, forge:
		w.gifts++
		from := origins[a.kind-give]
		w.monitor.gifts = append(w.monitor.gifts, a.kind == give)
		w.push("message", wire.OwnChannel(ourUUID), wire.Reply{Kind: '$', Text: fmt.Sprintf("transfer:%v 1 %d 1 30000 0 0 t", from, clock+1)})
	case read:
		if !w.unsettled {
			w.unsettled, w.buffered = true, len(w.replies)
		}
		r := w.replies[0]
		w.replies = w.replies[1:]
		w.buffered--
		w.monitor.onRead(&r)
		if err := w.m.Reply(w.now, &r.reply); err != nil {
			w.monitor.fail("the Machine refuses a reply of the server", err.Error())
		}
	case rest:
		w.unsettled = false
		err := w.m.Rest(w.now)
		w.hand()
		if err != nil {
			w.end(len(w.commands()), false)
		}
	case cut:
		w.cuts++
		w.end(a.n, a.half)
	case late:
		c := w.old[0]
		w.old = w.old[1:]
		w.executeOps(c)
	case lose:
		w.old = nil
	case connect:
		w.connect()
	case flush:
		w.flushes++
		clear(w.knows)
	case forget:
		w.losses++
		clear(w.counters)
	case move:
		w.moves++
		w.slot = (w.slot + 1) % slotStates
	}
}

// advance has the Machine do what is due.
func (w *world) advance() { w.isDead = w.m.Advance(w.now, w.repliedAt, len(w.replies) > 0) || w.isDead }

func (w *world) refuse() {
	w.m.Refuse("down")
	w.hand()
}

func (w *world) connect() {
	w.isUp, w.isDead = true, false
	w.replies, w.isAsking, w.unsettled, w.buffered = nil, false, false, 0
	w.subscribed = map[string]bool{}
	w.stream = w.stream[:0]
	w.connects++
	w.repliedAt = w.now
	id := w.m.Identity() // as the owner reads it: the floor is above what was drawn before
	w.monitor.onConnected(redisop.NewConn(w.connects))
	w.m.Up(w.now, &pipeline.Greeting{
		Server: wire.Server{Address: "10.0.0.1:7000", Keys: keyspace, IsNode: w.b.IsNode}, HasQueues: true, Loads: !w.b.NoLoad,
		ID: wire.Identity{Floor: max(clock, id.Above(w.now)), FloorAt: w.now}, Clock: clock, ClockAt: w.now,
		Origin: origins[0], Number: w.connects, Replication: tellsReplicas(w.b.Replicas),
	})
}

func tellsReplicas(n int) pipeline.Replication { return pipeline.Replication{Replicas: n, Tells: true} }

// end ends the connection, of which the socket has taken n commands that the server has not executed.
func (w *world) end(n int, half bool) {
	commands := w.commands()
	w.m.Cut()
	_ = w.m.Rest(w.now)
	w.hand()
	sentTo := w.m.Made()
	if n < len(commands) {
		sentTo = commands[n].From
		if half {
			sentTo++
		}
	}
	w.isUp, w.isDead = false, false
	w.replies = nil
	w.monitor.gifts = nil
	w.unsettled, w.buffered = false, 0
	for i := range commands[:n] {
		if commands[i].Name == "run" {
			w.old = append(w.old, w.issue(&commands[i]))
		}
	}
	w.m.Down(sentTo, "down")
	w.monitor.conn.IsDown = true
	w.hand()
	w.refuse()
}

// hand takes what the Machine delivers.
func (w *world) hand() {
	for _, d := range w.m.TakeDeliveries(nil) {
		w.monitor.onDelivered(&d, w)
	}
	w.monitor.wantedLately = w.wanted
}

// answer executes a command of the connection.
func (w *world) answer(c *pipeline.Command, lags bool) {
	wasAsking := w.isAsking
	w.isAsking = false
	ok := func() { w.reply(wire.Reply{Kind: '$', Text: "OK"}) }
	switch c.Name {
	case "run":
		switch {
		case w.slot == gone && w.b.IsNode:
			w.reply(wire.Reply{Kind: '-', Text: "MOVED 1 10.0.0.2:7000"})
			return
		case w.slot == torn && w.b.IsNode && !wasAsking:
			w.reply(wire.Reply{Kind: '-', Text: "TRYAGAIN Multiple keys request during rehashing of slot"})
			return
		case w.slot == asking && w.b.IsNode && !wasAsking:
			w.reply(wire.Reply{Kind: '-', Text: "ASK 1 10.0.0.2:7000"})
			return
		case !c.ByText && !w.knows[c.Script]:
			w.reply(wire.Reply{Kind: '-', Text: "NOSCRIPT No matching script"})
			return
		}
		if c.ByText {
			w.knows[c.Script] = true
		}
		w.reply(w.executeOps(w.issue(c)))
	case "load":
		if w.b.NoLoad {
			w.reply(wire.Reply{Kind: '-', Text: "NOPERM no permission to run the 'script|load' command"})
			return
		}
		w.knows[c.Script] = true
		ok()
	case "wait":
		n := int64(w.b.Replicas)
		if lags {
			n--
		}
		w.replies = append(w.replies, sent{reply: wire.Reply{Kind: ':', Num: n}, seq: w.monitor.seq, ack: !lags})
	case "asking":
		w.isAsking = true
		ok()
	case "subscribe":
		denied := w.channel(channelNames[w.b.Channels-1])
		if w.b.IsDenied && slices.Contains(c.Channels, denied) {
			w.reply(wire.Reply{Kind: '-', Text: "NOPERM No permissions to access a channel"})
			return
		}
		w.confirm(c, true)
	case "unsubscribe":
		w.confirm(c, false)
	default:
		ok()
	}
}

// executeOps executes the operations of a run, and returns the reply.
func (w *world) executeOps(c issued) wire.Reply {
	answer := wire.Reply{Kind: '*'}
	for i := range c.Ops {
		w.monitor.onExecuted(&c.Ops[i], w.now)
		status := wire.Reply{Kind: ':'}
		if c.Ops[i].Kind == redisop.Take {
			status.Num = w.draw(&c, c.Ops[i].Name)
		}
		answer.List = append(answer.List, status)
	}
	switch {
	case c.Script == wire.Renew.SHA:
		return wire.Reply{Kind: ':', Num: int64(len(c.Ops))}
	case c.Script == wire.AcquireRelease.SHA && len(c.Ops) == 1:
		return answer.List[0]
	}
	return answer
}

// draw returns the next token of a lock, as tokens.lua does.
func (w *world) draw(c *issued, name string) int64 {
	n := w.counters[name] + 1
	if w.b.Losses == 0 {
		n = max(n, clock+1)
	}
	if n-1 < c.floor {
		n = max(n, max(clock, c.birth)+1)
	}
	w.counters[name] = n
	w.monitor.fail(name, contract.Drawn(uint64(n), uint64(c.seen[name])))
	return n
}

// issue reads the bytes of a run of the connection.
func (w *world) issue(c *pipeline.Command) issued {
	run := issued{Command: *c, seen: w.monitor.seenAt(c.From)}
	if w.b.Losses == 0 || c.Script != wire.AcquireRelease.SHA {
		return run
	}
	command, err := wire.NewReplies(bytes.NewReader(w.stream[c.From:])).Next()
	if err != nil || len(command.List) < 5 {
		w.monitor.fail("the bytes of a run are not a command", fmt.Sprint(err))
		return run
	}
	keys, _ := strconv.Atoi(command.List[2].Text)
	terms := command.List[3+keys+1].Text
	for i := range 7 {
		run.floor += int64(terms[6+i]) << (8 * i)
	}
	run.birth, _ = strconv.ParseInt(strings.Fields(terms[13:])[1], 10, 64)
	return run
}

// confirm pushes that each channel of a request is subscribed, or is not any more.
func (w *world) confirm(c *pipeline.Command, is bool) {
	for i, ch := range c.Channels {
		w.subscribed[w.nameOf(ch)] = is
		w.push(c.Name, ch, wire.Reply{Kind: ':', Num: int64(i)})
		w.replies[len(w.replies)-1].more = i < len(c.Channels)-1
	}
}

func (w *world) channel(name string) string { return keyspace.Channel(name) }

// nameOf is the reverse of channel.
func (w *world) nameOf(channel string) string {
	for _, name := range channelNames {
		if w.channel(name) == channel {
			return name
		}
	}
	return ""
}

func (w *world) reply(r wire.Reply) {
	w.repliedAt = w.now
	w.replies = append(w.replies, sent{reply: r, seq: w.monitor.seq})
}

func (w *world) push(kind, channel string, last wire.Reply) {
	w.monitor.onPushed(kind == "message" && channel != wire.OwnChannel(ourUUID))
	w.reply(wire.Reply{Kind: '>', List: []wire.Reply{{Kind: '$', Text: kind}, {Kind: '$', Text: channel}, last}})
	w.replies[len(w.replies)-1].more = true
}

// describe is equal for worlds that go on in the same way.
func (w *world) describe(dst []byte) []byte {
	dst = fmt.Append(dst, w.buffered, w.asked, w.cuts, w.flushes, w.moves, w.wants, w.lags, w.publishes, w.waits, w.losses, w.gifts,
		w.isUp, w.isDead, w.wanted, w.unchecked, w.unsettled, w.isAsking, w.slot, w.repliedAt > w.now-int64(timeout))
	for _, name := range channelNames {
		dst = fmt.Append(dst, w.subscribed[name])
	}
	if w.b.Losses > 0 {
		dst = fmt.Append(dst, w.m.Identity().Floor, w.counters)
	}
	for _, s := range wire.Scripts {
		dst = fmt.Appendf(dst, "%t", w.knows[s.SHA])
	}
	for _, r := range w.replies {
		dst = fmt.Appendf(dst, " %c%d%s%d%t", r.reply.Kind, r.reply.Num, r.reply.Text, len(r.reply.List), r.ack)
		if r.reply.Kind == '>' {
			for _, part := range r.reply.List {
				dst = append(dst, part.Text...)
			}
		}
	}
	for _, c := range w.old {
		for i := range c.Ops {
			dst = fmt.Appendf(dst, " old%d", c.Ops[i].HoldID)
		}
	}
	dst = w.m.Describe(dst)
	return w.monitor.describe(dst)
}
