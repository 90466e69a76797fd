package pipeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// The contract is what the lock table may rely on:
//
//	S1  each operation has one result
//	S2  what was not sent was not executed, and will not be
//	S3  what is done was executed, once
//	S4  what was refused, or may be tried again, was not executed
//	S5  results, messages and confirmations of a connection come in the order of the server
//	S6  what is sent at a time was not written before it
//	S7  the end of a connection is delivered before the results that are unknown because of it
//	S8  a route is delivered before the results of what was not executed for that reason
//	S9  a Drop and the Take that is pipelined after it both have results, and a Take that is done comes after its Drop
//	S10 a token is above those of its lock that were delivered before it was asked for
//	S11 a transfer has a connection only from the server of that connection, and while that is up
//	S12 with replicas, what is done was confirmed
//	S13 a channel that is delivered as subscribed is, and is still wanted; a wanted one is subscribed in the end
type contract struct {
	b       Budget
	ops     [32]fate // by hold
	seq     int      // things that the server did
	read    int      // the last one whose reply was read
	acked   int      // what the server had done when enough replicas had confirmed it
	told    int      // the last thing of this connection that was delivered
	pushed  int      // the message of another program
	isDown  bool
	isMoved bool // a route was delivered on this connection

	conn         redisop.Conn
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
	op         redisop.Op
	isAsked    bool
	executedAt int // as seq has it; 0: it was not
	time       int64
	times      int
	results    int
	outcome    redisop.Outcome
}

func (c *contract) init(b Budget) { c.b, c.seen = b, map[string]int64{} }

func (c *contract) fail(format string, args ...any) {
	if c.violated == "" {
		c.violated = fmt.Sprintf(format, args...)
	}
}

func (c *contract) onAsked(ops []redisop.Op) {
	for i := range ops {
		c.ops[ops[i].HoldID] = fate{op: ops[i], isAsked: true}
	}
}

// isFree reports whether nothing is in flight for the locks of a batch: a lock has one operation at a time, or a Drop with
// the Take that is pipelined after it.
func (c *contract) isFree(batch []redisop.Op) bool {
	for i := range batch {
		for j := range c.ops {
			f := &c.ops[j]
			if f.isAsked && f.results == 0 && f.op.Name == batch[i].Name && !(batch[i].Has(redisop.AfterPendingDrop) && f.op.Kind == redisop.Drop) {
				return false
			}
		}
	}
	return true
}

func (c *contract) onConnected(conn redisop.Conn) {
	c.conn, c.marks = conn, nil
	c.isDown, c.isMoved = false, false
	c.told = c.seq // what the server did for earlier connections is not told on this one
}

func (c *contract) onDown() { c.isDown = true }

// onMade notes that the connection was sent so many bytes.
func (c *contract) onMade(upTo int64) {
	if n := len(c.marks); n == 0 || c.marks[n-1].upTo < upTo {
		c.marks = append(c.marks, mark{upTo, maps.Clone(c.seen)})
	}
}

// seenAt returns the tokens that were delivered when a byte of the connection was made.
func (c *contract) seenAt(from int64) map[string]int64 {
	for i := range c.marks {
		if c.marks[i].upTo > from {
			return c.marks[i].seen
		}
	}
	return nil
}

// onHanded notes that the deliveries were handed on.
func (c *contract) onHanded(w *world) {
	c.wantedLately = w.wanted
}

func (c *contract) onPushed(isMessage bool) {
	if c.seq++; isMessage {
		c.pushed = c.seq
	}
}

// tell notes that something is delivered which the server did at a time.
func (c *contract) tell(what string, at int) {
	if at < c.told {
		c.fail("S5: %s is delivered after what the server did later", what)
	}
	c.told = at
}

func (c *contract) onExecuted(op *redisop.Op, now int64) {
	c.seq++
	f := &c.ops[op.HoldID]
	f.times++
	f.executedAt, f.time = c.seq, now
	if f.times > 1 {
		c.fail("S3: operation %d is executed twice", op.HoldID)
	}
	if f.results > 0 && f.outcome != redisop.Unknown {
		c.fail("S2: operation %d is executed after its result: %v", op.HoldID, f.outcome)
	}
}

func (c *contract) onRead(r *sent) {
	c.read = r.seq
	if r.ack {
		c.acked = r.seq
	}
}

func (c *contract) onDelivered(d *pipeline.Delivery, w *world) {
	switch d.Kind {
	case pipeline.Results:
		for i := range d.Results {
			c.onResult(&d.Results[i])
		}
	case pipeline.Asked:
		for i := range d.Ops { // another server executes them
			f := &c.ops[d.Ops[i].HoldID]
			if f.results++; f.times > 0 {
				c.fail("S4: operation %d was executed, and is given to another server", d.Ops[i].HoldID)
			}
			f.outcome = redisop.Retryable
		}
	case pipeline.Messages:
		for i := range d.Messages {
			c.onMessage(&d.Messages[i])
		}
	case pipeline.Moved:
		c.isMoved = true
	case pipeline.Subscribed:
		for _, name := range d.Names {
			if !w.isUp || !w.subscribed[name] && !w.hasUnsubscribed(name) {
				c.fail("S13: the channel of %s is delivered as subscribed, and is not", name)
			}
			if i := slices.Index(channelNames[:], name); i < 0 || !c.wantedLately[i] {
				c.fail("S13: the channel of %s is delivered as subscribed, and is not wanted", name)
			}
		}
	}
}

func (c *contract) onMessage(m *redisop.Message) {
	if m.Kind != redisop.Transferred {
		c.tell("a message", c.pushed)
		return
	}
	if len(c.gifts) == 0 {
		c.fail("S11: a transfer is delivered that none has sent")
		return
	}
	if isOurs := c.gifts[0]; m.Conn != (redisop.Conn{}) && (!isOurs || m.Conn != c.conn || c.isDown) {
		c.fail("S11: a transfer has the connection of a server that did not make it")
	}
	c.gifts = c.gifts[1:]
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

func (c *contract) onResult(r *redisop.Result) {
	f := c.of(r)
	if f == nil {
		c.fail("S1: there is a result of %s that nothing waits for", r.Name)
		return
	}
	f.results++
	f.outcome = r.Outcome
	id := f.op.HoldID
	if f.times > 0 && r.Sent >= f.time {
		c.fail("S6: operation %d is said to be sent after it was executed", id)
	}
	switch r.Outcome {
	case redisop.Done:
		c.seen[r.Name] = max(c.seen[r.Name], int64(r.Token))
		if f.times != 1 {
			c.fail("S3: operation %d is done, and was executed %d times", id, f.times)
		}
		if c.b.Replicas > 0 && !f.op.Has(redisop.CanWait) && f.executedAt > c.acked {
			c.fail("S12: operation %d is done, and no replica has confirmed it", id)
		}
		c.tell(fmt.Sprint("operation ", id), f.executedAt)
	case redisop.NotSynced:
		if f.times != 1 {
			c.fail("S3: operation %d is not synced, and was executed %d times", id, f.times)
		}
		c.tell(fmt.Sprint("operation ", id), f.executedAt)
	case redisop.NotSent:
		if f.times > 0 {
			c.fail("S2: operation %d was not sent, and was executed", id)
		}
	case redisop.Refused, redisop.Retryable:
		if f.times > 0 {
			c.fail("S4: operation %d was refused, and was executed", id)
		}
		if !c.isMoved && strings.Contains(r.Msg, "MOVED") {
			c.fail("S8: operation %d was not executed because its slot moved, and no route was delivered", id)
		}
	case redisop.Unknown:
		if !c.isDown {
			c.fail("S7: operation %d is unknown, and the connection has not ended", id)
		}
	}
}

// of finds the operation that a result is of: results have no hold. The oldest one of the name and kind that has none.
func (c *contract) of(r *redisop.Result) *fate {
	for i := range c.ops {
		if f := &c.ops[i]; f.isAsked && f.results == 0 && f.op.Name == r.Name && f.op.Kind == r.Kind {
			return f
		}
	}
	return nil
}

// settled checks a world in which nothing more happens.
func (c *contract) settled(w *world) {
	for i := range c.ops {
		if f := &c.ops[i]; f.isAsked && f.results != 1 {
			c.fail("S1: operation %d has %d results", f.op.HoldID, f.results)
		}
	}
	for _, ids := range [][2]int{{5, 6}, {9, 11}} {
		drop, take := &c.ops[ids[0]], &c.ops[ids[1]]
		if take.isAsked && take.outcome == redisop.Done && drop.outcome == redisop.Done && take.executedAt < drop.executedAt {
			c.fail("S9: Take %d is pipelined after Drop %d, was executed before it, and both are done", ids[1], ids[0])
		}
	}
	for i, name := range channelNames[:c.b.Channels] {
		if isDenied := c.b.IsDenied && i == c.b.Channels-1; w.isUp && w.wanted[i] && !isDenied && !w.subscribed[name] {
			c.fail("S13: the channel of %s is wanted, and is not subscribed", name)
		}
	}
}

func (c *contract) describe(dst []byte) []byte {
	for i := range c.ops {
		if f := &c.ops[i]; f.isAsked {
			dst = fmt.Appendf(dst, " %d:%d:%d:%t%t", i, f.times, f.results, f.executedAt > c.acked, f.executedAt < c.told)
			if f.results > 0 {
				dst = fmt.Appendf(dst, "%d", f.outcome)
			}
		}
	}
	return fmt.Append(dst, c.isDown, c.isMoved, c.pushed < c.told, c.gifts, c.wantedLately)
}
