// Package contract is what the lock table may rely on, whatever carries its operations: S1 to S13 of docs/invariants.md.
//
// A world says what servers did and what the table is told. Each method returns the rule that is broken, in words; "" if
// none is. Three worlds do so: the simulation and the exploration of the pipeline, which run the store, and the
// exploration of the lock table, whose transport is a model.
package contract

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Op is one operation: what a server did with it, and what the table was told. It is a value, which worlds may copy.
type Op struct {
	Seq     int   // its place among what the server did on its connection; 0: it was not executed
	Time    int64 // when it was executed last, by the clock of its host
	Times   int8  // that it was executed
	Results int8  // that the table has
	Outcome redisop.Outcome
	told    redisop.Outcome // by the result
	IsLoose bool            // its result may come before replicas have confirmed it
	IsVain  bool            // it deleted nothing in Redis
}

// Of returns an operation that the table has issued.
func Of(op *redisop.Op) Op {
	return Op{IsLoose: op.Has(redisop.CanWait) || op.Kind == redisop.Check || op.Kind == redisop.Arrive}
}

// Executed notes that a server has executed the operation, with an outcome.
func (o *Op) Executed(seq int, time int64, outcome redisop.Outcome) (broken string) {
	o.Times++
	o.Seq, o.Time, o.Outcome = seq, time, outcome
	switch {
	case o.Results > 0 && o.told != redisop.Unknown:
		return fmt.Sprintf("S2: it is executed after its result, which is %v", o.told)
	case o.Times > 1:
		return "S3: it is executed twice"
	}
	return ""
}

// IsExecuted reports whether a server has executed the operation and not refused it.
func (o *Op) IsExecuted() bool {
	return o.Times > 0 && o.Outcome != redisop.Refused && o.Outcome != redisop.Retryable
}

// Asked notes that the operation is given to another server, because this one says that it has the keys.
func (o *Op) Asked() (broken string) {
	if o.IsExecuted() {
		return "S4: it was executed, and is given to another server"
	}
	o.Times, o.told = 0, redisop.Retryable
	return ""
}

// Result notes that the table is given the operation's result, which came over a connection.
func (o *Op) Result(r *redisop.Result, c *Conn) (broken string) {
	o.Results++
	o.told = r.Outcome
	isExecuted := o.IsExecuted()
	switch {
	case o.Results > 1:
		return "S1: it has two results"
	case o.Times > 0 && r.Sent > o.Time:
		return "S6: it is said to be sent after it was executed"
	}
	switch r.Outcome {
	case redisop.Unknown:
		if !c.IsDown {
			return "S7: its result is unknown, and the connection has not ended"
		}
		return ""
	case redisop.NotSent:
		if isExecuted {
			return "S2: it was not sent, and was executed"
		}
		return ""
	case redisop.Refused, redisop.Retryable:
		switch {
		case isExecuted:
			return "S4: it was refused, and was executed"
		case strings.Contains(r.Msg, "MOVED") && !c.IsMoved:
			return "S8: it was not executed because its slot moved, and no route was delivered"
		}
		return ""
	case redisop.NotSynced:
		if !isExecuted || o.Outcome != redisop.Done {
			return fmt.Sprintf("S3: it is not synced, and was executed %d times, with outcome %v", o.Times, o.Outcome)
		}
	default:
		switch {
		case !isExecuted || o.Times != 1 || o.Outcome != r.Outcome:
			return fmt.Sprintf("S3: its result is %v, and it was executed %d times, with outcome %v", r.Outcome, o.Times, o.Outcome)
		case r.Outcome == redisop.Done && c.Confirms && !o.IsLoose && o.Seq > c.Confirmed:
			return "S12: it is done, and no replica has confirmed it"
		}
	}
	return c.Tell("its result", o.Seq)
}

// Pair checks a Drop and the Take that was pipelined after it, when both have results. The Take is executed first if Redis
// had forgotten the script for the Drop and knew it again for the Take. The Drop has the lower hold number, so it deletes
// nothing then; it may pass the lock on if the lease of the Take has ended.
func Pair(drop, take *Op) (broken string) {
	if take.Results > 0 && take.told == redisop.Done && drop.told == redisop.Done && take.Seq < drop.Seq && !drop.IsVain {
		return "S9: the Take is pipelined after the Drop, was executed before it, and is gone"
	}
	return ""
}

// Conn is one connection, as the table knows it.
type Conn struct {
	ID        redisop.Conn
	IsDown    bool // the table was told so
	IsMoved   bool // it was told a route, or where a slot is
	Confirms  bool // replicas confirm what is done
	Confirmed int  // up to which of the things that the server did
	told      int  // the last of those
}

// Opened returns a connection on which nothing was told yet, of a server that did some things before.
func Opened(id redisop.Conn, seq int, confirms bool) Conn {
	return Conn{ID: id, told: seq, Confirms: confirms, Confirmed: seq}
}

// Tell notes that the table is told what the server did at a place.
func (c *Conn) Tell(what string, seq int) (broken string) {
	if seq < c.told {
		return "S5: " + what + " is delivered after what the server did later"
	}
	c.told = seq
	return ""
}

// IsBefore reports whether the table was told of what the server did later.
func (c *Conn) IsBefore(seq int) bool { return seq < c.told }

// Transfer notes that the table is told of a transfer over the connection. isOwn: the connection's server made it.
func (c *Conn) Transfer(m *redisop.Message, isOwn bool) (broken string) {
	if m.Conn != (redisop.Conn{}) && (!isOwn || m.Conn != c.ID || c.IsDown) {
		return "S11: a transfer has the connection of a server that did not make it"
	}
	return ""
}

// Drawn checks a token. before: the largest one of its lock that the table was given before it asked.
func Drawn(token, before uint64) (broken string) {
	if token <= before {
		return fmt.Sprintf("S10: the token is %d, and %d was delivered before it was asked for", token, before)
	}
	return ""
}

// Subscribed checks what the table is told of a channel.
func Subscribed(is, isWanted bool) (broken string) {
	switch {
	case !is:
		return "S13: a channel is delivered as subscribed, and is not"
	case !isWanted:
		return "S13: a channel is delivered as subscribed, and is not wanted"
	}
	return ""
}

// Settled checks an operation, when nothing more can happen.
func (o *Op) Settled() (broken string) {
	if o.Results != 1 {
		return fmt.Sprintf("S1: it has %d results", o.Results)
	}
	return ""
}
