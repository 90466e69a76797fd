package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What the table is told is compared with what servers did: the contract of the store, S1 to S13. Tokens (S10) are checked
// where they are drawn, over all hosts; that each operation has its result (S1), and each wanted channel its subscription
// (S13), where requests must be answered in time.

// checkContract checks that a rule of the contract is not broken. n: the name, or -1.
func (w *world) checkContract(h *host, broken string, n int, what string) {
	if broken != "" {
		w.violation(invariant.Contract, n, "host %d, %s: %s", h.index, what, broken)
	}
}

// noteExecuted notes that a server has executed an operation.
func (w *world) noteExecuted(h *host, o *operation, reply *redis.Reply) {
	w.did++
	o.fate.IsVain = reply.Change == redis.Nothing || reply.Change == redis.Pass && o.wasFree
	if broken := o.fate.Executed(w.did, h.clock(w.now), reply.Outcome); broken != "" {
		w.checkContract(h, broken, int(o.name), opString(o.op))
	}
}

// checkFate checks the result of an operation.
func (w *world) checkFate(h *host, o *operation, r *redisop.Result) {
	if broken := o.fate.Result(r, &h.conns[o.via].told); broken != "" {
		w.checkContract(h, broken, int(o.name), opString(o.op)+", "+resultString(*r))
	}
	l := &h.locks[o.name]
	broken := ""
	switch {
	case r.Kind == redisop.Drop:
		if l.dropped = o.fate; l.taken.Results > 0 {
			broken = contract.Pair(&o.fate, &l.taken)
			l.taken = contract.Op{}
		}
	case !o.op.Has(redisop.AfterPendingDrop):
	case l.dropPending != noOp:
		l.taken = o.fate
	default:
		broken = contract.Pair(&l.dropped, &o.fate)
	}
	w.checkContract(h, broken, int(o.name), "a Drop and the Take after it")
}

// checkTransfer checks that a transfer which has a connection is of the server of that.
func (w *world) checkTransfer(h *host, n int, s redisop.Shard, m *redisop.Message) {
	if m.Kind != redisop.Transferred {
		return
	}
	c := &h.conns[s]
	isOwn := c.peer != nil && w.redis.names[n].isPassedBy(m.LastToken, c.peer.Server)
	w.checkContract(h, c.told.Transfer(m, isOwn), n, messageString(m))
}

// checkSubscribed checks that a channel is subscribed, or that the table is to be told that its slot left.
func (w *world) checkSubscribed(h *host, n int, s redisop.Shard) {
	c := &h.conns[s]
	is := c.dead || c.slotsLeft&(1<<n) != 0 || c.peer.IsSubscribed(w.channels[n]) || slices.ContainsFunc(c.toHost, func(r reply) bool {
		return r.Kind == '>' && r.List[1].Text == w.channels[n]
	})
	w.checkContract(h, contract.Subscribed(is, true), n, "its channel")
}

// noteSlotLeft notes that a server ends the subscriptions to the channel of a lock, whose slot leaves it.
func (w *world) noteSlotLeft(server *server.Server, n int) {
	for _, peer := range server.Conns() {
		if h, s := w.hostOf(peer); h.conns[s].peer == peer && peer.IsSubscribed(w.channels[n]) {
			h.conns[s].slotsLeft |= 1 << n
		}
	}
}
