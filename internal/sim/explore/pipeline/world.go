package pipeline

import (
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Budget is how often each thing happens in a world, at most.
type Budget struct {
	Batches int // of operations, of the first ones of batches
	Cuts    int // connections that end
	Flushes int // times that the server forgets its scripts
	Moves   int // times that the slot goes to another node, or comes back
	Wants   int // changes of whether a channel is wanted
	Lags    int // answers to WAIT with too few replicas

	Replicas int  // that must confirm
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

// channelName is the lock whose channel is wanted, or not.
const channelName = "w"

// action is one step of the world.
type action struct {
	kind actionKind
	n    int // of cut: how many commands the socket has taken whole; of lose: that are executed late
	half bool
}

type actionKind uint8

const (
	ask     actionKind = iota // the next batch comes
	want                      // the channel is wanted, or not any more
	execute                   // the server executes the next command
	lag                       // it executes a WAIT, and too few replicas have confirmed
	publish                   // another program publishes on the channel
	read                      // a reply is read
	rest                      // all that came was read
	cut                       // the connection ends, when the socket has taken n commands, and perhaps half of the next one
	late                      // the server executes a command of a connection that has ended
	lose                      // it does not execute the rest of those
	connect                   // a connection is made
	flush                     // the server forgets its scripts
	move                      // the slot goes, or comes back
)

var actionNames = [...]string{"ask", "want", "execute", "lag", "publish", "read", "rest", "cut", "late", "lose", "connect", "flush", "move"}

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
	asking           // its keys have gone ahead: ASK
	gone             // another node has it: MOVED
)

// sent is a reply, or a push, that was not read yet.
type sent struct {
	reply wire.Reply
	seq   int  // of the last operation that the server executed
	ack   bool // it answers a WAIT with enough replicas
}

// world is one state.
type world struct {
	b        Budget
	m        *pipeline.Machine
	contract contract

	asked, cuts, flushes, moves, wants, lags, publishes int

	isUp      bool
	isWanted  bool
	unsettled bool // replies were read, and nothing was handed on
	buffered  int  // replies that came with them, and are read before that

	// The server.
	knows      map[string]bool // scripts, by digest
	slot       slotState
	replies    []sent             // of the connection, that were not read yet
	subscribed bool               // the connection is
	isAsking   bool               // ASKING came before
	old        []pipeline.Command // of connections that have ended, which may be executed late
}

const now = int64(time.Hour)

func newWorld(b Budget) *world {
	keys := wire.NewKeyspace("")
	w := &world{b: b, knows: map[string]bool{}}
	for _, s := range wire.Scripts {
		w.knows[s.SHA] = true // the greeting has loaded them
	}
	w.m = pipeline.New(pipeline.Config{
		UUID: "11111111-2222-8333-8444-555555555555", Keys: keys, IsNode: b.IsNode, Replicas: b.Replicas,
		Timeout: 2 * time.Second, Batches: pipeline.DefaultBatches,
	})
	w.contract.init(b)
	return w
}

// commands are those of the connection that the server has not executed.
func (w *world) commands() []pipeline.Command {
	all := w.m.Commands()
	// Those that are answered are gone from the front: what is in flight ends with what is not executed yet.
	unread := 0
	for _, r := range w.replies {
		if r.reply.Kind != '>' || isConfirmation(&r.reply) {
			unread++
		}
	}
	return all[min(unread, len(all)):]
}

func isConfirmation(r *wire.Reply) bool { return r.List[0].Text != "message" }

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
	add(ask, w.asked < min(w.b.Batches, len(batches)) && w.contract.isFree(batches[w.asked]))
	add(want, w.wants < w.b.Wants)
	add(flush, w.flushes < w.b.Flushes && len(w.knows) > 0)
	add(move, w.moves < w.b.Moves)
	if w.isUp {
		unexecuted := w.commands()
		if len(unexecuted) > 0 {
			add(execute, true)
			add(lag, unexecuted[0].Name == "wait" && w.lags < w.b.Lags)
		}
		add(publish, w.subscribed && w.publishes < 1)
		if w.cuts < w.b.Cuts {
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
	switch a.kind {
	case ask:
		ops := slices.Clone(batches[w.asked])
		w.asked++
		w.contract.onAsked(ops)
		w.m.Do(now, ops)
		if !w.isUp {
			w.refuse()
		}
	case want:
		w.wants++
		if w.isWanted = !w.isWanted; w.isWanted {
			w.m.Subscribe(channelName)
		} else {
			w.m.Unsubscribe(channelName)
		}
		w.contract.isWanted = w.isWanted
		w.m.Advance(now, now, false)
	case execute, lag:
		if a.kind == lag {
			w.lags++
		}
		c := w.commands()[0]
		w.answer(&c, a.kind == lag)
	case publish:
		w.publishes++
		w.push("message", wire.Reply{Kind: '$', Text: "0"})
	case read:
		if !w.unsettled {
			w.unsettled, w.buffered = true, len(w.replies)
		}
		r := w.replies[0]
		w.replies = w.replies[1:]
		w.buffered--
		w.contract.onRead(&r)
		if err := w.m.Reply(now, &r.reply); err != nil {
			w.contract.fail("the Machine refuses a reply of the server: %v", err)
		}
	case rest:
		w.unsettled = false
		err := w.m.Rest(now)
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
		w.executeOps(&c)
	case lose:
		w.old = nil
	case connect:
		w.connect()
	case flush:
		w.flushes++
		clear(w.knows)
	case move:
		w.moves++
		w.slot = (w.slot + 1) % 3
	}
}

func (w *world) refuse() {
	w.m.Refuse("down")
	w.hand()
}

func (w *world) connect() {
	w.isUp = true
	w.replies, w.subscribed, w.isAsking, w.unsettled, w.buffered = nil, false, false, false, 0
	w.contract.onConnected()
	w.m.Up(now, &pipeline.Greeting{
		Server: wire.Server{Address: "10.0.0.1:7000", Keys: wire.NewKeyspace(""), IsNode: w.b.IsNode}, HasQueues: true, Loads: !w.b.NoLoad,
		ID: wire.Identity{Floor: 1 << 50, FloorAt: now}, Clock: 1 << 50, ClockAt: now,
		Replication: tellsReplicas(w.b.Replicas),
	})
}

func tellsReplicas(n int) pipeline.Replication { return pipeline.Replication{Replicas: n, Tells: true} }

// end ends the connection, of which the socket has taken n commands that the server has not executed.
func (w *world) end(n int, half bool) {
	commands := w.commands()
	w.m.Cut()
	_ = w.m.Rest(now)
	w.hand()
	sentTo := w.m.Made()
	if n < len(commands) {
		sentTo = commands[n].From
		if half {
			sentTo++
		}
	}
	w.isUp = false
	w.replies = nil
	w.unsettled, w.buffered = false, 0
	for _, c := range commands[:n] {
		if c.Name == "run" {
			w.old = append(w.old, c)
		}
	}
	w.m.Down(sentTo, "down")
	w.contract.onDown()
	w.hand()
	w.refuse()
}

// hand takes what the Machine delivers.
func (w *world) hand() {
	for _, d := range w.m.TakeDeliveries(nil) {
		w.contract.onDelivered(&d, w)
	}
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
		w.reply(w.executeOps(c))
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
		w.replies = append(w.replies, sent{reply: wire.Reply{Kind: ':', Num: n}, seq: w.contract.seq, ack: !lags})
	case "asking":
		w.isAsking = true
		ok()
	case "subscribe", "unsubscribe":
		w.subscribed = c.Name == "subscribe"
		w.push(c.Name, wire.Reply{Kind: ':', Num: 1})
	default:
		ok()
	}
}

// executeOps executes the operations of a run, and returns the reply.
func (w *world) executeOps(c *pipeline.Command) wire.Reply {
	answer := wire.Reply{Kind: '*'}
	for i := range c.Ops {
		w.contract.onExecuted(&c.Ops[i])
		status := wire.Reply{Kind: ':'}
		if c.Ops[i].Kind == redisop.Take {
			status.Num = int64(1<<50) + int64(c.Ops[i].HoldID)
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

func (w *world) reply(r wire.Reply) {
	w.replies = append(w.replies, sent{reply: r, seq: w.contract.seq})
}

func (w *world) push(kind string, last wire.Reply) {
	keys := wire.NewKeyspace("")
	w.contract.onPushed(kind == "message")
	w.reply(wire.Reply{Kind: '>', List: []wire.Reply{{Kind: '$', Text: kind}, {Kind: '$', Text: keys.Channel(channelName)}, last}})
}

// describe is equal for worlds that go on in the same way.
func (w *world) describe(dst []byte) []byte {
	dst = fmt.Appendf(dst, "%d %d %d %d %d %d %d %d %t%t%t%t%t %d %d", w.buffered, w.asked, w.cuts, w.flushes, w.moves, w.wants, w.lags, w.publishes,
		w.isUp, w.isWanted, w.unsettled, w.subscribed, w.isAsking, w.slot, len(w.knows))
	for _, s := range wire.Scripts {
		dst = fmt.Appendf(dst, "%t", w.knows[s.SHA])
	}
	for _, r := range w.replies {
		dst = fmt.Appendf(dst, " %c%d%s%d%t", r.reply.Kind, r.reply.Num, r.reply.Text, len(r.reply.List), r.ack)
		if r.reply.Kind == '>' {
			dst = append(dst, r.reply.List[0].Text...)
		}
	}
	for _, c := range w.old {
		for i := range c.Ops {
			dst = fmt.Appendf(dst, " old%d", c.Ops[i].HoldID)
		}
	}
	dst = w.m.Describe(dst)
	return w.contract.describe(dst)
}
