package explore

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The connections of this world are a model of the store's. It keeps the contract with the lock table that the store
// keeps. What the contract has of a connection is no part of a state: it follows from what is on the way, but for the
// tokens that a table was given.

// checkContract checks that a rule of the contract is not broken.
func (w *world) checkContract(h *host, broken, what string) {
	if broken != "" {
		w.violated(invariant.Contract, "%s of host %d: %s", what, h.index, broken)
	}
}

// push sends a frame to the host.
func (c *connection) push(f frame) {
	c.seq++
	f.seq = c.seq
	c.frames = push(c.frames, f)
}

// isUnsubscribed reports whether the end of the subscription is on its way.
func (c *connection) isUnsubscribed() bool {
	return slices.ContainsFunc(c.frames, func(f frame) bool { return f.kind == unsubscribedFrame })
}

// noteExecuted notes that Redis has executed an operation of a connection, whose result is the last frame.
func (w *world) noteExecuted(h *host, c *connection, outcome redisop.Outcome) {
	at := -1
	for i := range c.frames {
		if c.frames[i].kind == resultFrame {
			at++
		}
	}
	c.unanswered = slices.Clone(c.unanswered)
	r := &c.unanswered[at]
	w.checkContract(h, r.fate.Executed(c.seq, w.now, outcome), r.op.Kind.String())
}

// checkResult checks what the table is told of an operation.
func (w *world) checkResult(h *host, c *contract.Conn, of *request, r *redisop.Result) {
	w.checkContract(h, of.fate.Result(r, c), r.Kind.String())
	if r.Outcome != redisop.Done {
		return
	}
	if r.Token != 0 && of.op.Of != redisop.KindPermits { // these need no floor
		w.checkContract(h, contract.Drawn(r.Token-uint64(of.op.Reserve)+1, of.told), r.Kind.String())
		h.told = max(h.told, r.Token)
	}
	conn := &h.conns[w.sideOf(r.Shard)]
	switch {
	case r.Kind == redisop.Drop:
		conn.dropped = of.fate
	case of.op.Has(redisop.AfterPendingDrop):
		w.checkContract(h, contract.Pair(&conn.dropped, &of.fate), r.Kind.String())
	}
}

// checkMessage checks a message of which the table is told.
func (w *world) checkMessage(h *host, c *connection, f *frame) {
	m := &f.message
	w.checkContract(h, c.told.Tell("a message", f.seq), "a message")
	if m.Kind != redisop.Transferred {
		return
	}
	w.checkContract(h, c.told.Transfer(m, !f.isCopy), "a message")
	if m.Conn != (redisop.Conn{}) {
		h.told = max(h.told, m.LastToken)
	}
}
