package pipeline

import (
	"fmt"
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// monitor gives the contract what the server did, and what the Machine delivers.
type monitor struct {
	b      Budget
	conn   contract.Conn
	ops    [32]fate // by hold
	seq    int      // things that the server did
	pushed int      // the message of another program

	gifts        []bool                  // transfers that were pushed and not delivered: of this server
	wantedLately [len(channelNames)]bool // since the last deliveries
	seen         map[string]int64        // by lock: the last token that was delivered
	marks        []mark                  // of the connection

	violated string // "": nothing is
}

// mark is what was known when a part of what the connection was sent was made.
type mark struct {
	upTo int64 // of the stream
	seen map[string]int64
}

// fate is what happened to an operation.
type fate struct {
	contract.Op
	op      redisop.Op
	isAsked bool
	outcome redisop.Outcome // of its result
}

func (c *monitor) init(b Budget) { c.b, c.seen = b, map[string]int64{} }

// fail notes that a rule is broken, and by what. broken: "" if none is.
func (c *monitor) fail(what, broken string) {
	if broken != "" && c.violated == "" {
		c.violated = what + ": " + broken
	}
}

// failOp does so for an operation.
func (c *monitor) failOp(op *redisop.Op, broken string) {
	if broken != "" {
		c.fail(fmt.Sprintf("%v %d of %s", op.Kind, op.HoldID, op.Name), broken)
	}
}

func (c *monitor) onAsked(ops []redisop.Op) {
	for i := range ops {
		c.ops[ops[i].HoldID] = fate{op: ops[i], isAsked: true, Op: contract.Of(&ops[i])}
	}
}

// isFree reports whether nothing is in flight for the locks of a batch: a lock has one operation at a time, or a Drop with
// the Take that is pipelined after it.
func (c *monitor) isFree(batch []redisop.Op) bool {
	for i := range batch {
		for j := range c.ops {
			f := &c.ops[j]
			if f.isAsked && f.Results == 0 && f.op.Name == batch[i].Name && !(batch[i].Has(redisop.AfterPendingDrop) && f.op.Kind == redisop.Drop) {
				return false
			}
		}
	}
	return true
}

// onConnected notes that a connection is made. What the server did for earlier ones is not told on it.
func (c *monitor) onConnected(id redisop.Conn) {
	c.conn, c.marks = contract.Opened(id, c.seq, c.b.Replicas > 0), nil
}

// onMade notes that the connection was sent so many bytes.
func (c *monitor) onMade(upTo int64) {
	if n := len(c.marks); n == 0 || c.marks[n-1].upTo < upTo {
		c.marks = append(c.marks, mark{upTo, maps.Clone(c.seen)})
	}
}

// seenAt returns the tokens that were delivered when a byte of the connection was made.
func (c *monitor) seenAt(from int64) map[string]int64 {
	for i := range c.marks {
		if c.marks[i].upTo > from {
			return c.marks[i].seen
		}
	}
	return nil
}

func (c *monitor) onPushed(isMessage bool) {
	if c.seq++; isMessage {
		c.pushed = c.seq
	}
}

func (c *monitor) onExecuted(op *redisop.Op, now int64) {
	c.seq++
	c.failOp(op, c.ops[op.HoldID].Executed(c.seq, now-1, redisop.Done)) // what is sent now was sent later
}

func (c *monitor) onRead(r *sent) {
	if r.ack {
		c.conn.Confirmed = r.seq
	}
}

func (c *monitor) onDelivered(d *pipeline.Delivery, w *world) {
	switch d.Kind {
	case pipeline.Results:
		for i := range d.Results {
			c.onResult(&d.Results[i])
		}
	case pipeline.Asked:
		for i := range d.Ops { // another server executes them
			f := &c.ops[d.Ops[i].HoldID]
			c.failOp(&f.op, f.Asked())
			f.Results, f.outcome = f.Results+1, redisop.Retryable
		}
	case pipeline.Messages:
		for i := range d.Messages {
			c.onMessage(&d.Messages[i])
		}
	case pipeline.Moved:
		c.conn.IsMoved = true
	case pipeline.Subscribed:
		for _, name := range d.Names {
			i := slices.Index(channelNames[:], name)
			is := w.isUp && (w.subscribed[name] || w.hasUnsubscribed(name))
			c.fail(name, contract.Subscribed(is, i >= 0 && c.wantedLately[i]))
		}
	}
}

func (c *monitor) onMessage(m *redisop.Message) {
	switch {
	case m.Kind != redisop.Transferred:
		c.fail(m.Name, c.conn.Tell("a message", c.pushed))
	case len(c.gifts) == 0:
		c.fail(m.Name, "S11: a transfer is delivered that no server has sent")
	default:
		c.fail(m.Name, c.conn.Transfer(m, c.gifts[0]))
		c.gifts = c.gifts[1:]
	}
}

// hasUnsubscribed reports whether the end of the subscription is on its way.
func (w *world) hasUnsubscribed(name string) bool {
	for _, r := range w.replies {
		if r.reply.Kind == '>' && r.reply.List[0].Text == "unsubscribe" && r.reply.List[1].Text == w.channel(name) {
			return true
		}
	}
	return false
}

func (c *monitor) onResult(r *redisop.Result) {
	f := c.of(r)
	if f == nil {
		c.fail(r.Name, "S1: there is a result that nothing waits for")
		return
	}
	f.outcome = r.Outcome
	if r.Outcome == redisop.Done {
		c.seen[r.Name] = max(c.seen[r.Name], int64(r.Token))
	}
	c.failOp(&f.op, f.Result(r, &c.conn))
}

// of finds the operation that a result is of: results have no hold. The oldest one of the name and kind that has none.
func (c *monitor) of(r *redisop.Result) *fate {
	for i := range c.ops {
		if f := &c.ops[i]; f.isAsked && f.Results == 0 && f.op.Name == r.Name && f.op.Kind == r.Kind {
			return f
		}
	}
	return nil
}

// settled checks a world in which nothing more happens.
func (c *monitor) settled(w *world) {
	for i := range c.ops {
		if f := &c.ops[i]; f.isAsked {
			c.failOp(&f.op, f.Settled())
		}
	}
	for _, ids := range [][2]int{{5, 6}, {9, 11}} {
		if take := &c.ops[ids[1]]; take.isAsked {
			c.failOp(&take.op, contract.Pair(&c.ops[ids[0]].Op, &take.Op))
		}
	}
	for i, name := range channelNames[:c.b.Channels] {
		if isDenied := c.b.IsDenied && i == c.b.Channels-1; w.isUp && w.wanted[i] && !isDenied && !w.subscribed[name] {
			c.fail(name, "S13: its channel is wanted, and is not subscribed")
		}
	}
}

func (c *monitor) describe(dst []byte) []byte {
	for i := range c.ops {
		if f := &c.ops[i]; f.isAsked {
			dst = fmt.Appendf(dst, " %d:%d:%d:%t%t", i, f.Times, f.Results, f.Seq > c.conn.Confirmed, c.conn.IsBefore(f.Seq))
			if f.Results > 0 {
				dst = fmt.Appendf(dst, "%d", f.outcome)
			}
		}
	}
	return fmt.Append(dst, c.conn.IsDown, c.conn.IsMoved, c.conn.IsBefore(c.pushed), c.gifts, c.wantedLately)
}
