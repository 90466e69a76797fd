package locktable_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// transferOver is the message that the lock "a" passed to a ticket, over a connection.
func (r *rig) transferOver(conn redisop.Conn, ticket, last uint64) {
	r.tb.Table.Message(r.now, redisop.Message{
		Kind: redisop.Transferred, Name: "a", Conn: conn, Ticket: ticket, LastToken: last, Tokens: 32, LeaseMS: 30_000,
	})
	r.collect()
}

// The danger: a former master passes on the message of its new one, whose script saw no receiver
// and gave the lock to the next ticket.
//
// Shows docs/queue.md: Origins.
func TestTransferThatIsNotProvedIsAskedFor(t *testing.T) {
	for _, tt := range []struct {
		name string
		conn func(r *rig) redisop.Conn
	}{
		{"of a server that is not known", func(*rig) redisop.Conn { return redisop.Conn{} }},
		{"over another connection than the answer", func(r *rig) redisop.Conn {
			r.tb.conn = redisop.NewConn(2)
			return r.tb.conn
		}},
		{"over the connection before", func(*rig) redisop.Conn { return redisop.NewConn(0) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newListeningRig(t, locktable.Config{})
			r.acquire(1, "a")
			r.queued(0)
			r.transferOver(tt.conn(r), 1, 32)
			r.want()
			if op := r.redis(redisop.Take, redisop.Done); op.Ticket != 1 || op.HoldID != 2 || !op.Has(redisop.Enqueue) || op.Reserve != 1 {
				t.Errorf("it is asked for by %+v", op)
			}
			r.want("s1 granted hold=2 token=1 count=1")
			r.quiet()
		})
		t.Run(tt.name+", and another host has the lock", func(t *testing.T) {
			r := newListeningRig(t, locktable.Config{})
			r.acquire(1, "a")
			r.queued(0)
			r.transferOver(tt.conn(r), 1, 32)
			r.queued(0)
			r.want()
			r.transfer(1, 64)
			r.want("s1 granted hold=3 token=33 count=1")
		})
	}
}

// The answer of a server that is not known proves nothing, and so does a message.
//
// Shows docs/queue.md: Origins.
func TestTransferOfAServerThatIsNotKnownIsAskedFor(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.tb.conn = redisop.Conn{}
	r.acquire(1, "a")
	r.queued(0)
	r.transferOver(redisop.Conn{}, 1, 32)
	r.want()
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=2 token=1 count=1")
}

// A lock that passed to a ticket is the ticket's in strict order, also if a Take has found that
// out for the next waiter.
func TestTransferThatIsNotProvedIsOfTheWaiterOfTheTicket(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Fair: []locktable.NamePattern{"*"}})
	first := r.acquire(1, "a")
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 20_000, IsQueued: true, Ticket: 1, Rank: 0, Arrived: 100, Recall: redisop.RecallReceived})
	r.acquire(2, "a")
	r.collect()
	r.answer(redisop.Arrive, redisop.Result{Outcome: redisop.Done, Arrived: 300, FirstArrived: 100})
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 10})
	r.transferOver(redisop.Conn{}, 1, 32)
	r.cancel(1, first)
	r.pass(12 * time.Millisecond) // the Take after the pause is for session 2
	r.collect()
	r.log = nil
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.Done, Token: 40, Waiting: 1})
	r.want() // another host may have asked between the two
}

// Shows docs/queue.md: Messages.
func TestRequeueOfAnotherTicketChangesNothing(t *testing.T) {
	for _, tt := range []struct {
		name    string
		message redisop.Message
		asks    bool
	}{
		{"of the live ticket", redisop.Message{Ticket: 1, NamesTicket: true}, true},
		{"of another ticket", redisop.Message{Ticket: 7, NamesTicket: true}, false},
		{"of an older sidecar, which names none", redisop.Message{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newListeningRig(t, locktable.Config{})
			r.acquire(1, "a")
			r.queued(0)
			tt.message.Kind, tt.message.Name = redisop.Requeue, "a"
			r.tb.Message(r.now, tt.message)
			if !tt.asks {
				r.quiet()
				r.transfer(1, 32)
				r.want("s1 granted hold=1 token=1 count=1")
				return
			}
			if op := r.queued(0); op.HoldID != 2 || op.Ticket != 0 {
				t.Errorf("asking again: %+v", op)
			}
		})
	}
}
