package locktable_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The queue of the sidecars in Redis: tickets, transfers, turns, and what Redis publishes to
// a sidecar.

// newListeningRig returns a rig whose sidecar is subscribed to its own channel.
func newListeningRig(t *testing.T, cfg locktable.Config) *rig {
	r := &rig{T: t, now: int64(time.Hour)}
	r.tb = connect(newTable(cfg, r.now))
	r.tb.Up(r.now, 0, false, true)
	for s := range locktable.SessionID(4) {
		r.tb.Open(r.now, s+1, locktable.Peer{PID: int64(100 + s), Cmd: fmt.Sprintf("worker-%d", s+1)})
	}
	return r
}

// newHotRig is newListeningRig with a table that draws as many tokens as a daemon's.
func newHotRig(t *testing.T, cfg locktable.Config) *rig {
	cfg.Tokens = 256
	return newListeningRig(t, cfg)
}

const noTicket = -1

// listeners is what Redis returns: so many subscribe to the lock's channel, or -1: the user may not
// count them.
func listeners(n int32) redisop.Listeners {
	if n < 0 {
		return redisop.Listeners{State: redisop.Uncountable}
	}
	return redisop.CountedListeners(n)
}

// queued answers the Take in flight: another sidecar has the lock, and the ticket stands at
// this rank.
func (r *rig) queued(rank int32) redisop.Op {
	r.Helper()
	return r.refusedTake(rank, redisop.RecallReceived, 20_000)
}

// refusedTake answers the Take in flight: another host has the lock, and the ticket stands at
// this rank, or there is noTicket.
func (r *rig) refusedTake(rank int32, recall redisop.Recall, ttlMS int64) redisop.Op {
	r.Helper()
	res := redisop.Result{
		Outcome: redisop.HeldByOther, Field: cmp.Or(r.holder, "another:1"), TTLMS: ttlMS, Listeners: listeners(r.others),
		Recall: recall,
	}
	if rank != noTicket {
		res.IsQueued, res.Rank = true, uint32(rank)
		r.collect()
		if len(r.ops) != 1 || !r.ops[0].Has(redisop.Enqueue) {
			r.Fatalf("operations in flight: %+v, want one Take that enqueues", r.ops)
		}
		if res.Ticket = r.ops[0].Ticket; res.Ticket == 0 {
			res.Ticket = r.ops[0].HoldID
		}
	}
	return r.answer(redisop.Take, res)
}

// transfer is the message that the lock "a" passed to a ticket, with the tokens up to last.
func (r *rig) transfer(ticket, last uint64, more ...func(*redisop.Message)) {
	m := redisop.Message{Kind: redisop.Transferred, Name: "a", Ticket: ticket, LastToken: last, Tokens: 32, LeaseMS: 30_000}
	for _, change := range more {
		change(&m)
	}
	r.tb.Message(r.now, m)
	r.collect()
}

func waitingAfter(n uint32) func(*redisop.Message) {
	return func(m *redisop.Message) { m.Waiting = n }
}

func passedFor(ms uint32) func(*redisop.Message) {
	return func(m *redisop.Message) { m.PassedMS = ms }
}

func (r *rig) recall(name string) {
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Recalled, Name: name})
	r.collect()
}

func (r *rig) cancel(s locktable.SessionID, id uint64) {
	r.tb.Cancel(r.now, s, protocol.Cancel{Target: id})
	r.collect()
}

// answerAfter answers the operation in flight with this result, which takes some time.
func (r *rig) answerAfter(d time.Duration, res redisop.Result) (op redisop.Op) {
	r.Helper()
	if r.collect(); len(r.ops) != 1 {
		r.Fatalf("operations in flight: %+v", r.ops)
	}
	op, r.ops = r.ops[0], nil
	res.Kind, res.Name, res.Sent = op.Kind, op.Name, r.now
	r.now += int64(d)
	r.tb.Result(r.now, res)
	return op
}

// untilAsked passes time until an operation is sent, and returns how long that took.
func (r *rig) untilAsked(most time.Duration) time.Duration {
	r.Helper()
	begin := r.now
	for r.collect(); len(r.ops) == 0; r.collect() {
		if r.now-begin > int64(most) {
			r.Fatalf("no operation is sent within %v", most)
		}
		r.pass(time.Millisecond)
	}
	return time.Duration(r.now - begin)
}

// forgotten checks that the table has forgotten the lock "a".
func (r *rig) forgotten() {
	r.Helper()
	r.quiet()
	if row, ok := r.tb.Info(r.now, "a"); ok {
		r.Fatalf("the table still knows the lock: %+v", row)
	}
}

func (r *rig) deadline() time.Duration {
	r.Helper()
	row, ok := r.tb.Info(r.now, "a")
	if !ok || row.State != protocol.StateHeld {
		r.Fatalf("the lock is not held: %+v", row)
	}
	return time.Duration(row.DeadlineNS)
}

// believed is for how long a lease of 30 s may be believed in.
const believed = 29698 * time.Millisecond

// Shows docs/queue.md: Tickets.
func TestWaiterForAnotherHostHasATicketAndWaitsForItsMessage(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	if op := r.queued(1); op.HoldID != 1 || op.Ticket != 0 || !op.Has(redisop.InOrder) {
		t.Fatalf("the first take: %+v", op)
	}
	r.want() // not even a subscription
	r.pass(4990 * time.Millisecond)
	r.quiet()
	r.untilAsked(1300 * time.Millisecond)
	if op := r.queued(1); op.HoldID != 2 || op.Ticket != 1 {
		t.Fatalf("asking again: %+v", op)
	}
	r.transfer(1, 132)
	r.want("s1 granted hold=3 token=101 count=1") // 2 may yet be executed
	r.quiet()
	r.release(1, 3)
	r.want("s1 released count=0")
	if op := r.redis(redisop.Drop, redisop.Done); op.HoldID != 3 || op.Ticket != 0 {
		t.Errorf("the drop: %+v", op)
	}
	r.forgotten()
}

// The danger: a sidecar that has died, or hangs, keeps its place and is handed the lock, which
// no host then has until the lease ends. So each sidecar asks again while it waits, with its
// ticket, so that Redis knows of each ticket that its sidecar lives.
// An operation that was sent for a hold, or for a request that does not wait, makes no ticket. If it finds
// that another host has the lock, a waiter has to queue at once, as others may come before it.
//
// Shows docs/queue.md: Tickets.
func TestWaiterQueuesAtOnceWhenAnotherHostIsFound(t *testing.T) {
	queues := func(t *testing.T, r *rig) {
		t.Helper()
		r.collect()
		if len(r.ops) != 1 || r.ops[0].Kind != redisop.Take || !r.ops[0].Has(redisop.Enqueue) {
			t.Fatalf("operations in flight: %+v, want a Take that enqueues", r.ops)
		}
		r.queued(0)
		r.quiet()
	}
	t.Run("by a renewal", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.acquire(2, "a")
		r.redis(redisop.Take, redisop.Done) // that draws tokens for the waiter
		r.pass(time.Second)
		r.want("s1 granted hold=1 token=1 count=1", "subscribe a")
		r.tb.Subscribed(r.now, 0, "a")
		r.pass(renewed)
		r.redis(redisop.Renew, redisop.HeldByOther)
		r.want("s1 lost hold=1 stolen")
		queues(t, r)
	})
	t.Run("by a try", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a", wait(0))
		r.acquire(2, "a")
		r.redis(redisop.Take, redisop.HeldByOther)
		r.want("s1 refused timeout")
		queues(t, r)
	})
	t.Run("not if the sidecar receives no messages", func(t *testing.T) {
		r := newRig(t)
		r.acquire(1, "a", wait(0))
		r.acquire(2, "a")
		r.redis(redisop.Take, redisop.HeldByOther)
		r.quiet()
	})
}

// Shows docs/guarantees.md: Messages lost.
// Shows docs/queue.md: Tickets.
func TestTicketIsRefreshed(t *testing.T) {
	for _, tt := range []struct{ lease, poll, least time.Duration }{
		{30 * time.Second, 0, 5 * time.Second},
		{10 * time.Minute, 0, 5 * time.Second}, // or Redis would take it for dead after 15 s
		{3 * time.Second, 0, 500 * time.Millisecond},
		{30 * time.Second, 2 * time.Second, 2 * time.Second},
	} {
		r := newListeningRig(t, locktable.Config{Lease: tt.lease, Contest: contest.Config{Poll: tt.poll}})
		r.acquire(1, "a")
		r.queued(3)
		for range 5 {
			if d := r.untilAsked(7 * time.Second); d < tt.least || d > tt.least*5/4+5*time.Millisecond {
				t.Errorf("with a lease of %v the ticket is refreshed after %v", tt.lease, d)
			}
			if op := r.queued(3); op.Ticket != 1 || op.Kind != redisop.Take {
				t.Errorf("refreshed by %+v", op)
			}
		}
		r.want()
	}
}

// The other waiters here get the tokens that came with the transfer. No operation is needed
// before the first grants.
//
// Shows docs/queue.md: Transfers.
func TestTransferredLockIsHandedOverHere(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.acquire(2, "a")
	r.queued(0)
	r.transfer(1, 132)
	r.release(1, 1)
	r.want("s1 granted hold=1 token=101 count=1", "s1 released count=0", "s2 granted hold=2 token=102 count=1")
	r.quiet()
	r.pass(10 * time.Millisecond)
	if op := r.redis(redisop.Take, redisop.Done); op.HoldID != 2 || !op.Has(redisop.RequireExisting) {
		t.Errorf("Redis gets the number of the new hold by %+v", op)
	}
}

// The transfer happened after the last question to which Redis answered that the ticket
// stands. Its lease began later than that; how much later, this host cannot know.
//
// Shows docs/guarantees.md: A transfer that a host does not accept costs a round trip.
// Shows docs/queue.md: Transfers.
func TestDeadlineOfATransferCountsFromTheLastAnsweredQuestion(t *testing.T) {
	setUp := func(t *testing.T) (r *rig, asked time.Duration) {
		r = newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		asked = time.Duration(r.now)
		r.collect()
		r.ops = nil
		r.now += int64(2 * time.Second) // a slow answer
		r.tb.Result(r.now, redisop.Result{
			Kind: redisop.Take, Name: "a", Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 20_000,
			IsQueued: true, Ticket: 1, Recall: redisop.RecallReceived, Sent: int64(asked),
		})
		return r, asked
	}
	t.Run("the first", func(t *testing.T) {
		r, asked := setUp(t)
		r.pass(3 * time.Second)
		r.transfer(1, 32)
		if d := r.deadline(); d != asked+believed {
			t.Errorf("the deadline is %v after the question, want %v", d-asked, believed)
		}
	})
	t.Run("a later one", func(t *testing.T) {
		r, _ := setUp(t)
		r.untilAsked(7 * time.Second)
		asked := time.Duration(r.now)
		r.queued(0)
		r.pass(time.Second)
		r.transfer(1, 32)
		if d := r.deadline(); d != asked+believed {
			t.Errorf("the deadline is %v after the question, want %v", d-asked, believed)
		}
	})
	for _, outcome := range []redisop.Outcome{redisop.NotSent, redisop.Retryable, redisop.Unknown} {
		t.Run(fmt.Sprintf("a later one has the outcome %d", outcome), func(t *testing.T) {
			r, asked := setUp(t)
			r.untilAsked(7 * time.Second)
			if outcome == redisop.Unknown {
				r.tb.Down(r.now, 0, "gone")
			}
			r.redis(redisop.Take, outcome)
			r.transfer(1, 32)
			if d := r.deadline(); d != asked+believed {
				t.Errorf("the deadline is %v after the answered question, want %v", d-asked, believed)
			}
		})
	}
}

// The watchdog has to have time to renew it.
//
// Shows docs/queue.md: Transfers.
func TestTransferWithLittleLeftOfItsLeaseIsAskedFor(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.queued(1)
	for end := r.now + int64(22*time.Second); r.now < end; {
		r.untilAsked(7 * time.Second)
		r.redis(redisop.Take, redisop.Retryable)
	}
	r.transfer(1, 32)
	r.want()
	r.untilAsked(200 * time.Millisecond)
	r.redis(redisop.Take, redisop.Done)
	sent := time.Duration(r.now)
	if d := r.deadline(); d != sent+believed {
		t.Errorf("the deadline is %v after the take, want %v", d-sent, believed)
	}
}

// The sidecar that passes the lock on may have another lease configured.
//
// Shows docs/queue.md: Transfers.
func TestTransferWithAnotherLease(t *testing.T) {
	t.Run("a shorter one", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.queued(0)
		r.transfer(1, 32, func(m *redisop.Message) { m.LeaseMS = 1000 })
		r.want() // it is not worth having
		if op := r.redis(redisop.Take, redisop.Done); op.LeaseMS != 30_000 {
			t.Errorf("the take: %+v", op)
		}
		r.want("s1 granted hold=2 token=1 count=1")
	})
	t.Run("a longer one", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{Lease: 3 * time.Second})
		r.acquire(1, "a")
		r.queued(0)
		asked := time.Duration(r.now)
		r.transfer(1, 32)
		r.want("s1 granted hold=1 token=1 count=1")
		if d := r.deadline(); d > asked+3*time.Second {
			t.Errorf("the hold is believed in for %v, with a lease of 3 s", d-asked)
		}
		if op := r.redis(redisop.Renew, redisop.Done); op.LeaseMS > 3000 {
			t.Errorf("the key would outlive this sidecar: %+v", op)
		}
	})
	t.Run("a fixed one is longer", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a", fixed(10*time.Minute))
		r.queued(0)
		r.transfer(1, 32)
		r.want()
		if op := r.redis(redisop.Take, redisop.Done); op.LeaseMS != 600_000 {
			t.Errorf("the take: %+v", op)
		}
		r.want("s1 granted hold=2 token=1 count=1")
	})
}

// The danger: a client gives up, and its sidecar sends the Drop of its ticket. Before that
// reaches Redis, the lock passes to the ticket; meanwhile another client here has asked. If
// the sidecar granted that transfer, the Drop would then pass the lock on to another host,
// and two would have it. So a ticket is dead when its Drop is sent, whatever becomes of that.
//
// Shows docs/guarantees.md: A transfer that a host does not accept costs a round trip.
// Shows docs/queue.md: Transfers.
func TestTransferOfATicketThatWasGivenUpIsGivenBack(t *testing.T) {
	setUp := func(t *testing.T) *rig {
		r := newListeningRig(t, locktable.Config{})
		id := r.acquire(1, "a")
		r.queued(0)
		r.cancel(1, id)
		r.want("s1 refused canceled")
		return r
	}
	dropOfTicket := func(r *rig, outcome redisop.Outcome) {
		r.Helper()
		if op := r.redis(redisop.Drop, outcome); op.HoldID < 1 || op.Ticket != 1 || op.LeaseMS != 30_000 {
			r.Fatalf("the drop of the ticket: %+v", op)
		}
	}
	t.Run("its Drop is in flight", func(t *testing.T) {
		r := setUp(t)
		r.acquire(2, "a")
		r.transfer(1, 32)
		r.want()
		dropOfTicket(r, redisop.Done)
		r.want()
		if op := r.queued(0); op.HoldID != 2 || op.Ticket != 0 {
			t.Fatalf("the take for the second client: %+v", op)
		}
		r.transfer(2, 64)
		r.want("s2 granted hold=2 token=33 count=1")
	})
	t.Run("no other client asks", func(t *testing.T) {
		r := setUp(t)
		r.transfer(1, 32)
		dropOfTicket(r, redisop.Done)
		r.want()
		r.forgotten()
	})
	for _, outcome := range []redisop.Outcome{redisop.NotSent, redisop.Retryable} {
		t.Run(fmt.Sprintf("its Drop has the outcome %d", outcome), func(t *testing.T) {
			r := setUp(t)
			dropOfTicket(r, outcome)
			r.acquire(2, "a")
			r.transfer(1, 32)
			r.want()
			r.untilAsked(200 * time.Millisecond)
			dropOfTicket(r, redisop.Done)
			r.want()
			if op := r.queued(0); op.HoldID != 2 || op.Ticket != 0 {
				t.Fatalf("the take for the second client: %+v", op)
			}
		})
	}
	t.Run("its Drop is lost with the connection", func(t *testing.T) {
		r := setUp(t)
		r.tb.Down(r.now, 0, "gone")
		r.redis(redisop.Drop, redisop.Unknown)
		r.acquire(2, "a")
		r.tb.Up(r.now, 0, false, true)
		dropOfTicket(r, redisop.Done)
		r.want()
		if op := r.queued(0); op.HoldID != 2 || op.Ticket != 0 {
			t.Fatalf("the take for the second client: %+v", op)
		}
	})
}

// The clients may have gone while Redis could not be asked, so that the ticket is not given up
// yet. It is then dropped as the lock that it has become.
//
// Shows docs/guarantees.md: A transfer that a host does not accept costs a round trip.
// Shows docs/queue.md: Transfers.
func TestTransferThatNoClientWaitsForIsDropped(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.queued(1)
	r.untilAsked(7 * time.Second)
	r.redis(redisop.Take, redisop.Retryable)
	r.cancel(1, id)
	r.transfer(1, 32)
	r.want("s1 refused canceled")
	r.untilAsked(200 * time.Millisecond)
	if op := r.redis(redisop.Drop, redisop.Done); op.HoldID < 1 {
		t.Errorf("the drop: %+v", op)
	}
	r.forgotten()
}

func TestTransferDuringATakeIsConfirmedByItsResult(t *testing.T) {
	setUp := func(t *testing.T) *rig {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.queued(1)
		r.untilAsked(7 * time.Second)
		r.transfer(1, 32, passedFor(40))
		r.want() // the Take was executed after it, and may have changed the field
		return r
	}
	t.Run("it has the lock", func(t *testing.T) {
		r := setUp(t)
		r.tokens = 100
		r.redis(redisop.Take, redisop.Done)
		r.want("s1 granted hold=2 token=101 count=1")
		r.release(1, 2)
		if op := r.redis(redisop.Drop, redisop.Done); op.PassedMS != 40 {
			t.Errorf("the drop says that the lock was passed on for %d ms, want 40", op.PassedMS)
		}
	})
	t.Run("it finds another host", func(t *testing.T) {
		r := setUp(t)
		r.refusedTake(2, redisop.NotRecalled, 20_000)
		r.want()
		r.quiet()
		r.transfer(1, 64)
		r.want("s1 granted hold=3 token=33 count=1")
	})
	t.Run("its result is lost", func(t *testing.T) {
		r := setUp(t)
		r.tb.Down(r.now, 0, "gone")
		r.redis(redisop.Take, redisop.Unknown)
		r.tb.Up(r.now, 0, false, true)
		r.tokens = 200
		r.redis(redisop.Take, redisop.Done)
		r.want("s1 granted hold=3 token=201 count=1")
	})
	t.Run("the client has gone", func(t *testing.T) {
		r := setUp(t)
		r.cancel(1, 1)
		r.refusedTake(2, redisop.NotRecalled, 20_000)
		if op := r.redis(redisop.Drop, redisop.Done); op.Ticket != 1 {
			t.Errorf("the drop: %+v", op)
		}
		r.want("s1 refused canceled")
		r.forgotten()
	})
}

// An operation of a connection that is gone, or of a predecessor of this process, made the
// ticket.
//
// Shows docs/queue.md: Transfers.
func TestTransferOfALockThatIsNotKnownIsGivenBack(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "b")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.redis(redisop.Drop, redisop.Done)
	r.log = nil
	r.transfer(1, 32)
	if op := r.redis(redisop.Drop, redisop.Done); op.Name != "a" || op.HoldID < 1 || op.LeaseMS != 30_000 {
		t.Errorf("the drop: %+v", op)
	}
	r.want()
	r.forgotten()
}

func TestTransferOfALockThatIsNotKnownIsTakenByAClientThatAsks(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.tb.Down(r.now, 0, "gone")
	r.transfer(1, 32)
	r.acquire(1, "a")
	r.tb.Up(r.now, 0, false, true)
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
}

// Another program deleted the key, and a ticket that was left behind got the lock.
func TestTransferUnderAHoldHasTheKeySetAgain(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.queued(0)
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Requeue, Name: "a"})
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=2 token=1 count=1")
	r.transfer(1, 32)
	r.want()
	if op := r.redis(redisop.Renew, redisop.Done); op.HoldID != 2 || op.Count != 1 {
		t.Errorf("the key is set by %+v", op)
	}
	r.quiet()
}

// The danger: a ticket that has left the queue is put there again under the same number. A
// message about it that was stuck on its way could then be taken for a newer transfer, and
// the lease of that would be counted from a question that came after it.
//
// Shows docs/queue.md: Tickets.
func TestTicketThatLeftTheQueueIsNotUsedAgain(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.queued(0)
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Requeue, Name: "a"})
	if op := r.queued(3); op.HoldID != 2 || op.Ticket != 0 {
		t.Fatalf("asking again: %+v", op)
	}
	r.transfer(1, 32) // it was stuck on its way
	r.want()
	if op := r.redis(redisop.Take, redisop.HeldByOther); op.HoldID != 3 || op.Ticket != 2 {
		t.Fatalf("is it this host's? %+v", op)
	}
	r.want("subscribe a")

	// Its answer was that no ticket stands: the next one is new, too.
	r.tb.Message(r.now, redisop.Message{Name: "a"})
	r.untilAsked(7 * time.Second)
	if op := r.queued(3); op.HoldID != 4 || op.Ticket != 0 {
		t.Fatalf("asking again: %+v", op)
	}
}

func TestRequeueDuringATakeChangesNothing(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.queued(1)
	r.untilAsked(7 * time.Second)
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Requeue, Name: "a"})
	r.quietBut(1)
	r.answer(redisop.Take, redisop.Result{Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 20_000, IsQueued: true, Ticket: 2, Rank: 2})
	r.transfer(2, 32)
	r.want("s1 granted hold=2 token=1 count=1")
}

// quietBut checks that so many operations are in flight.
func (r *rig) quietBut(n int) {
	r.Helper()
	if r.collect(); len(r.ops) != n {
		r.Fatalf("operations in flight: %+v, want %d", r.ops, n)
	}
}

// The danger: Redis has a field of this sidecar that the table knows nothing of, made by a
// late command or announced by a message that was lost. Every other host waits until its lease
// ends. The recall of the first that wants the lock ends that.
//
// Shows docs/queue.md: Recalls.
func TestRecallOfALockThatIsNotKnownHasItDropped(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "b")
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
	r.recall("a")
	if op := r.redis(redisop.Drop, redisop.Done); op.Name != "a" || op.HoldID != 1 || op.LeaseMS != 30_000 {
		t.Errorf("the drop: %+v", op)
	}
	r.want()
	r.forgotten()
}

func TestRecallOfALockThatAClientWaitsForHasItAskedFor(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.queued(1)
	r.recall("a")
	if op := r.redis(redisop.Take, redisop.Done); op.Ticket != 1 {
		t.Errorf("the take: %+v", op)
	}
	r.want("s1 granted hold=2 token=1 count=1")
}

func TestRecallDuringAReleaseAsksForNothingMore(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	r.recall("a")
	r.redis(redisop.Drop, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0")
	r.forgotten()
}

// It was published before the Take was executed, and to this sidecar: the key is its own.
func TestRecallDuringATakeChangesNothing(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.recall("a")
	r.quietBut(1)
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
	r.quiet()
}

// takeTurn has session 1 hold the lock "a", and session 2 wait for it, while another sidecar
// waits.
func takeTurn(r *rig) {
	r.Helper()
	r.acquire(1, "a")
	r.acquire(2, "a")
	r.queued(0)
	r.transfer(1, 32, waitingAfter(1))
	r.want("s1 granted hold=1 token=1 count=1")
}

// handOver has the holder of the lock "a" release it, and ask for it again.
func (r *rig) handOver(hold uint64) {
	s := locktable.SessionID(2 - hold%2)
	r.release(s, hold)
	r.acquire(s, "a")
}

// The host that has had its turn passes the lock on, and stands behind all others: in one
// step, so that its ticket comes before those of later hosts.
//
// Shows docs/guarantees.md: Fairness between hosts.
// Shows docs/queue.md: Turns.
func TestTurnThatIsOverPassesTheLockOn(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(2 * time.Millisecond)}})
	takeTurn(r)
	r.handOver(1)
	r.handOver(2)
	r.want("s1 released count=0", "s2 granted hold=2 token=2 count=1", "s2 released count=0", "s1 granted hold=3 token=3 count=1")
	r.quiet()
	r.pass(2 * time.Millisecond)
	r.quiet()
	r.handOver(3)
	r.want("s1 released count=0")
	drop, take := r.two()
	if drop.HoldID != 3 || drop.Ticket != 0 || drop.LeaseMS != 30_000 {
		t.Errorf("the drop: %+v", drop)
	}
	if take.HoldID != 4 || !take.Has(redisop.AfterPendingDrop) || !take.Has(redisop.Enqueue) || take.Ticket != 0 {
		t.Errorf("the take behind it: %+v", take)
	}
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now, Passed: true, Waiting: 2})
	r.ops = []redisop.Op{take}
	r.refusedTake(1, redisop.NotRecalled, 30_000)
	r.want()
	r.quiet()
	r.transfer(4, 64, waitingAfter(1))
	r.want("s2 granted hold=4 token=33 count=1")
}

// Shows docs/guarantees.md: Fairness between hosts.
// Shows docs/queue.md: Turns.
func TestTurnEndsByItsTime(t *testing.T) {
	for _, turn := range []time.Duration{1, 8 * time.Millisecond} {
		r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(turn)}})
		takeTurn(r)
		begin := r.now
		for hold := uint64(1); len(r.ops) == 0; hold++ {
			r.pass(time.Millisecond)
			r.handOver(hold)
			if r.collect(); len(r.ops) == 1 && r.ops[0].Kind == redisop.Take && r.ops[0].Has(redisop.RequireExisting) {
				r.redis(redisop.Take, redisop.Done) // Redis gets the number of the new hold
				r.recall("a")                       // and says that the other one waits
			}
			if hold > 100 {
				t.Fatal("the turn does not end")
			}
		}
		drop, take := r.two()
		if d := time.Duration(r.now - begin); d < turn || d > turn+2*time.Millisecond {
			t.Errorf("a turn of %v took %v", turn, d)
		}
		if !take.Has(redisop.Enqueue) || drop.PassedMS != uint32(time.Duration(r.now-begin)/time.Millisecond) {
			t.Errorf("%+v, %+v", drop, take)
		}
	}
}

// A turn is two round trips to Redis long, within bounds.
//
// Shows docs/queue.md: Turns.
func TestTurnIsAsLongAsRedisIsFar(t *testing.T) {
	for _, tt := range []struct{ trip, least, most time.Duration }{
		{0, 200 * time.Microsecond, 200 * time.Microsecond},
		{time.Millisecond, 2 * time.Millisecond, 2 * time.Millisecond},
		{15 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond},
	} {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.acquire(2, "a")
		asked := r.now
		r.collect()
		r.ops = nil
		r.now += int64(tt.trip)
		r.tb.Result(r.now, redisop.Result{
			Kind: redisop.Take, Name: "a", Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 20_000,
			IsQueued: true, Ticket: 1, Recall: redisop.RecallReceived, Sent: asked,
		})
		r.transfer(1, 32, waitingAfter(1))
		r.now += int64(tt.least) - int64(100*time.Microsecond)
		r.handOver(1)
		r.want("s1 granted hold=1 token=1 count=1", "s1 released count=0", "s2 granted hold=2 token=2 count=1")
		r.now += int64(100 * time.Microsecond)
		r.handOver(2)
		r.want("s2 released count=0")
	}
}

// The danger: the host that has the lock does not get, or forgets, that another one waits, and
// keeps it. What a handoff or a renewal answers must not erase what a recall said before.
//
// Shows docs/queue.md: Recalls.
func TestRecallLimitsTheTurnOfTheHostThatHasTheLock(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(3 * time.Millisecond)}})
	r.acquire(1, "a", owner(1))
	r.acquire(2, "a")
	r.answerAll()
	r.recall("a")
	r.acquire(1, "a", owner(1))
	r.redis(redisop.Renew, redisop.Done) // two entries
	r.release(1, 1)
	r.redis(redisop.Renew, redisop.Done)
	r.log = nil
	hold := uint64(1)
	for ; len(r.ops) == 0; hold++ {
		r.handOver(hold)
		if r.collect(); hold > 10 {
			t.Fatal("the turn does not end")
		}
		r.now += int64(time.Millisecond)
	}
	r.two()
	if hold != 5 {
		t.Errorf("%d holds, one each millisecond, in a turn of 3 ms", hold-1)
	}
}

// No other host wants it: there are no turns.
//
// Shows docs/queue.md: Turns.
func TestTurnDoesNotEndWhileNoOtherHostWaits(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(0)}})
	r.acquire(1, "a")
	r.acquire(2, "a")
	r.answerAll()
	r.pass(time.Millisecond)
	for hold := uint64(1); hold < 10; hold++ {
		r.handOver(hold)
		for r.collect(); len(r.ops) > 0; r.collect() {
			if op := r.ops[0]; op.Kind != redisop.Take || !op.Has(redisop.RequireExisting) {
				t.Fatalf("%+v", op)
			}
			r.redis(redisop.Take, redisop.Done)
		}
	}
}

// What a recall said is of that time. When the lock comes to this host again, Redis says how
// many wait.
func TestNumberOfWaitingSidecarsIsThatOfTheLastTake(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(0)}})
	r.acquire(1, "a")
	r.acquire(2, "a")
	r.recall("a") // while the Take is in flight, which then finds that no ticket is left
	r.answerAll()
	for hold := uint64(1); hold < 5; hold++ {
		r.handOver(hold)
		if r.collect(); slices.ContainsFunc(r.ops, func(op redisop.Op) bool { return op.Kind == redisop.Drop }) {
			t.Fatalf("the turn ends after %d holds: %+v", hold, r.ops)
		}
		r.answerAll()
	}
}

// The danger: foreign clients get the lock only in a moment in which it is free.
// If the time without one began again with each host, such a program would wait as long as
// the sidecars pass the lock on.
//
// Shows docs/guarantees.md: Fairness between hosts.
// Shows docs/queue.md: Free moments.
func TestTimeWithoutAFreeMomentAddsUpOverHosts(t *testing.T) {
	setUp := func(t *testing.T, passed uint32) *rig {
		r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(time.Millisecond), Linger: moment.SpanOf(0)}})
		r.acquire(1, "a")
		r.acquire(2, "a")
		r.queued(0)
		r.transfer(1, 32, waitingAfter(1), passedFor(passed))
		r.want("s1 granted hold=1 token=1 count=1")
		r.pass(9 * time.Millisecond)
		return r
	}
	t.Run("not for long yet", func(t *testing.T) {
		r := setUp(t, 90)
		r.handOver(1)
		if drop, _ := r.two(); drop.PassedMS != 99 {
			t.Errorf("passed on for %d ms, want 99", drop.PassedMS)
		}
	})
	// A Take behind the Drop would find the lock free that is to be left free.
	t.Run("long enough to be left free", func(t *testing.T) {
		// As long as the pause that Redis sends to the first of the queue. Both depend on the listeners.
		for listening, pause := range map[int32]time.Duration{0: 4 * time.Millisecond, 1: 10 * time.Millisecond} {
			r := setUp(t, 91)
			r.release(1, 1)
			r.log = nil
			drop := r.answer(redisop.Drop, redisop.Result{Paused: true, Listeners: listeners(listening)})
			if drop.PassedMS != 100 {
				t.Errorf("passed on for %d ms, want 100", drop.PassedMS)
			}
			if d := r.untilAsked(time.Second); d < pause || d > pause+3*time.Millisecond {
				t.Errorf("with %d listeners it is asked for after %v, want %v", listening, d, pause)
			}
			if op := r.queued(0); op.Ticket != 0 {
				t.Errorf("after the pause: %+v", op)
			}
		}
	})
	t.Run("long enough, and passed on all the same", func(t *testing.T) {
		r := setUp(t, 110)
		r.release(1, 1)
		r.answer(redisop.Drop, redisop.Result{Passed: true, Waiting: 1})
		r.queued(1) // at once
	})
	// With short turns a lock is on its way for most of the time.
	t.Run("the way between the hosts counts", func(t *testing.T) {
		for _, way := range []int64{3, 30} {
			r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(time.Millisecond), Linger: moment.SpanOf(0)}})
			r.acquire(1, "a")
			r.acquire(2, "a")
			r.answerAfter(time.Duration(way)*time.Millisecond, redisop.Result{
				Outcome: redisop.HeldByOther, Field: "another:1", TTLMS: 20_000, IsQueued: true, Ticket: 1, Recall: redisop.RecallReceived,
			})
			r.transfer(1, 32, waitingAfter(1), passedFor(60))
			r.pass(6 * time.Millisecond)
			r.handOver(1)
			if drop, _ := r.two(); int64(drop.PassedMS) != 60+way+6 {
				t.Errorf("passed on for %d ms, want 60, %d for the way and 6 for the turn", drop.PassedMS, way)
			}
		}
	})
	t.Run("no client here waits any more", func(t *testing.T) {
		r := setUp(t, 40)
		r.cancel(2, 2)
		r.release(1, 1)
		if op := r.redis(redisop.Drop, redisop.Done); op.PassedMS != 49 {
			t.Errorf("passed on for %d ms, want 49", op.PassedMS)
		}
		r.forgotten()
		// It was free, and comes by a Take: the time begins again.
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.pass(5 * time.Millisecond)
		r.release(1, 2)
		if op := r.redis(redisop.Drop, redisop.Done); op.PassedMS != 5 {
			t.Errorf("passed on for %d ms, want 5", op.PassedMS)
		}
	})
}

// The danger: turns are often shorter than a millisecond. If each of them counted as none, a lock
// that passes between such hosts would never be left free.
func TestTurnsOfLessThanAMillisecondAddUp(t *testing.T) {
	const turn, turns = 310 * time.Microsecond, 1000
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Linger: moment.SpanOf(0)}})
	sum := time.Duration(0)
	for range turns {
		r.acquire(1, "a")
		r.transfer(r.queued(0).HoldID, 32, passedFor(30))
		r.pass(turn)
		r.release(1, r.lastHold())
		drop := r.answer(redisop.Drop, redisop.Result{Passed: true, Waiting: 1})
		sum += time.Duration(drop.PassedMS-30) * time.Millisecond
	}
	if sum < turns*turn*9/10 || sum > turns*turn*11/10 {
		t.Errorf("%d turns of %v count as %v", turns, turn, sum)
	}
}

// The danger: a transfer gives the key the lease that came with the Drop. With none, Redis
// would delete what it has just passed on.
func TestEveryDropHasALease(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	drops := func(says string) {
		t.Helper()
		if op := r.redis(redisop.Drop, redisop.Done); op.LeaseMS != 30_000 || op.Count != 1 {
			t.Errorf("%s: %+v", says, op)
		}
	}
	r.acquire(1, "a", fixed(time.Second))
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 1)
	drops("a fixed lease")
	r.acquire(1, "a")
	r.queued(0)
	r.cancel(1, 2+1)
	drops("a ticket")
	r.recall("b")
	drops("a recalled lock")
	r.transfer(2, 32)
	drops("a transfer")
}

// The danger: a lock is left free so that a foreign client gets it, and the sidecars
// that are subscribed to its channel take it first.
func TestReleaseThatIsPublishedLeavesAPauseToPrograms(t *testing.T) {
	published := redisop.Message{Kind: redisop.Unlocked, Name: "a"}
	const sidecar, program = redisop.RecallReceived, redisop.RecallMissed
	for _, c := range []struct {
		what    string
		rank    int32
		holder  redisop.Recall
		within  time.Duration // it asks, at the latest
		atLeast time.Duration
	}{
		{"the first, and a sidecar had the lock", 0, sidecar, 12 * time.Millisecond, 10 * time.Millisecond},
		{"the second, and a sidecar had the lock", 1, sidecar, 12 * time.Millisecond, 10 * time.Millisecond},
		{"the first, and a program had the lock", 0, program, 0, 0},
		{"the second, and a program had the lock", 1, program, 0, 0},
		{"the third", 2, redisop.NotRecalled, 7 * time.Second, 4 * time.Second},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newListeningRig(t, locktable.Config{})
			r.acquire(1, "a")
			r.refusedTake(c.rank, c.holder, 20_000)
			r.tb.Message(r.now, published)
			if took := r.untilAsked(7 * time.Second); took < c.atLeast || took > c.within {
				t.Errorf("it asks after %v, want %v to %v", took, c.atLeast, c.within)
			}
		})
	}
	t.Run("a host without a place", func(t *testing.T) {
		r := newRig(t)
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.HeldByOther)
		r.tb.Message(r.now, published)
		if took := r.untilAsked(7 * time.Second); took != 0 {
			t.Errorf("it asks after %v", took)
		}
	})
}

// Shows docs/queue.md: Free moments.
func TestFreedLockIsAskedForAfterItsPause(t *testing.T) {
	freed := redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 10}
	t.Run("a client waits", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.queued(0)
		r.tb.Message(r.now, freed)
		r.pass(9 * time.Millisecond)
		r.quiet()
		r.acquire(2, "a")
		r.quiet()
		r.pass(3 * time.Millisecond)
		if op := r.redis(redisop.Take, redisop.Done); op.Ticket != 1 {
			t.Errorf("after the pause: %+v", op)
		}
		r.want("s1 granted hold=2 token=1 count=1")
	})
	t.Run("without a pause", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.queued(0)
		r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a"})
		r.redis(redisop.Take, redisop.Done)
		r.want("s1 granted hold=2 token=1 count=1")
	})
	t.Run("no client waits any more", func(t *testing.T) {
		r := newListeningRig(t, locktable.Config{})
		id := r.acquire(1, "a")
		r.queued(0)
		r.cancel(1, id)
		r.tb.Message(r.now, freed)
		r.redis(redisop.Drop, redisop.Done)
		r.forgotten()
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done) // at once
		r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "not known"})
	})
}

// However its clients leave, the ticket leaves the queue.
//
// Shows docs/queue.md: Tickets.
func TestTicketLeavesTheQueueWithTheLastWaiter(t *testing.T) {
	for says, leave := range map[string]func(r *rig, id uint64){
		"canceled":            func(r *rig, id uint64) { r.cancel(1, id) },
		"waited long enough":  func(r *rig, _ uint64) { r.pass(1010 * time.Millisecond) },
		"its process ended":   func(r *rig, _ uint64) { r.tb.Close(r.now, 1) },
		"broke the protocol":  func(r *rig, _ uint64) { r.tb.Suspend(r.now, 1) },
		"the sidecar stops":   func(r *rig, _ uint64) { r.tb.DropWaiters(r.now) },
		"Redis denies it now": func(r *rig, _ uint64) { r.pass(6300 * time.Millisecond) },
	} {
		t.Run(says, func(t *testing.T) {
			r := newListeningRig(t, locktable.Config{})
			opts := []opt{wait(time.Second)}
			if says == "Redis denies it now" {
				opts = nil
			}
			id := r.acquire(1, "a", opts...)
			r.queued(1)
			leave(r, id)
			r.tb.Work(r.now)
			if says == "Redis denies it now" {
				r.redis(redisop.Take, redisop.Refused)
			}
			if op := r.redis(redisop.Drop, redisop.Done); op.Ticket != 1 || op.HoldID < 1 {
				t.Errorf("the drop: %+v", op)
			}
			r.forgotten()
		})
	}
}

// Its ticket has its place for the others here.
//
// Shows docs/queue.md: Order and fairness.
func TestTicketStaysWhileAnotherWaiterIsLeft(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.acquire(2, "a")
	r.queued(0)
	r.cancel(1, id)
	r.quiet()
	r.transfer(1, 32)
	r.want("s1 refused canceled", "s2 granted hold=1 token=1 count=1")
}

// When a holder lets its lease end, the first in the queue takes the lock. The others ask
// later, so that it has the time.
//
// Shows docs/queue.md: A holder that is a foreign client.
func TestHostsAskInTheirOrderWhenALeaseEnds(t *testing.T) {
	for rank := range int32(5) {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.refusedTake(rank, redisop.RecallReceived, 300)
		want := 301*time.Millisecond + time.Duration(rank)*5*time.Millisecond
		if d := r.untilAsked(time.Second); d < want || d > want+3*time.Millisecond {
			t.Errorf("rank %d asks after %v, want %v", rank, d, want)
		}
	}
}

// A holder that is a sidecar passes the lock on, or sends a message to the first of the queue.
// One that is not publishes only on the lock's channel: it is enough if two hosts receive that.
//
// Shows docs/queue.md: A holder that is a foreign client.
func TestHostSubscribesOnlyIfTheHolderIsAForeignClient(t *testing.T) {
	const sidecar, older = "11111111-2222-8333-8444-555555555555:1", "11111111-2222-7333-8444-555555555555:1"
	for _, tt := range []struct {
		rank   int32
		recall redisop.Recall
		holder string
		after  time.Duration // -1: it does not
	}{
		{0, redisop.RecallMissed, older, 0},
		{1, redisop.RecallMissed, older, 0},
		{0, redisop.RecallMissed, sidecar, 100 * time.Millisecond}, // it has no connection
		{1, redisop.RecallMissed, sidecar, -1},
		{2, redisop.NotRecalled, older, -1},
		{noTicket, redisop.NotRecalled, sidecar, 0},
		{0, redisop.RecallReceived, older, 100 * time.Millisecond}, // so that it notices if a program deletes the key
		{1, redisop.RecallReceived, older, -1},
		{1, redisop.NotRecalled, older, -1}, // the lock had just passed to it
	} {
		r := newListeningRig(t, locktable.Config{})
		r.holder = tt.holder
		r.acquire(1, "a")
		r.refusedTake(tt.rank, tt.recall, 20_000)
		says := fmt.Sprintf("rank %d, recall %d of %s", tt.rank, tt.recall, tt.holder)
		got := time.Duration(-1)
		for d := time.Duration(0); d <= 300*time.Millisecond && got < 0; d += 10 * time.Millisecond {
			if r.collect(); len(r.log) > 0 {
				got = d
			}
			if len(r.ops) > 0 { // it polls, until it is subscribed
				r.refusedTake(tt.rank, tt.recall, 20_000)
			}
			r.pass(10 * time.Millisecond)
		}
		if got != tt.after {
			t.Errorf("%s: it subscribes after %v, want %v", says, got, tt.after)
		}
	}
}

// What Redis answers decides: a subscription that is not needed costs as much as a script.
func TestHostDoesNotSubscribeWhileItsTicketIsOnItsWay(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.queued(1)
	r.cancel(1, id)
	r.acquire(1, "a")
	r.want("s1 refused canceled") // its Drop is in flight
	r.redis(redisop.Drop, redisop.Done)
	r.queued(1)
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Requeue, Name: "a"})
	r.want() // and now a Take
	r.queued(1)
	r.want()
}

// A host without a place in the queue, because Redis does not permit it one, stays subscribed
// while it asks again.
func TestHostWithoutAPlaceStaysSubscribed(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{SubscriptionLinger: time.Millisecond}})
	r.acquire(1, "a")
	r.refusedTake(noTicket, redisop.NotRecalled, 20_000)
	r.want("subscribe a")
	r.tb.Subscribed(r.now, 0, "a")
	r.pass(10 * time.Millisecond)
	r.refusedTake(noTicket, redisop.NotRecalled, 20_000)
	for range 3 {
		r.untilAsked(6 * time.Second)
		r.pass(10 * time.Millisecond)
		r.refusedTake(noTicket, redisop.NotRecalled, 20_000)
	}
	r.want()
}

func TestHostThatMayNotSubscribePollsAHolderThatIsNoSidecar(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.refusedTake(0, redisop.RecallMissed, 20_000)
	r.tb.Unsubscribed(r.now, 0, "a") // the ACL denies it
	for range 10 {
		if d := r.untilAsked(50 * time.Millisecond); d < 12*time.Millisecond || d > 40*time.Millisecond {
			t.Errorf("it asks again after %v", d)
		}
		if op := r.refusedTake(0, redisop.RecallMissed, 20_000); op.Ticket != 1 {
			t.Errorf("it asks by %+v", op)
		}
	}
	// With a subscription it only refreshes its ticket.
	r.tb.Subscribed(r.now, 0, "a")
	r.refusedTake(0, redisop.RecallMissed, 20_000)
	if d := r.untilAsked(7 * time.Second); d < 5*time.Second {
		t.Errorf("subscribed, it asks again after %v", d)
	}
	r.refusedTake(0, redisop.RecallMissed, 20_000)
	r.message("a")
	r.redis(redisop.Take, redisop.Done) // at once
	r.want("subscribe a", "s1 granted hold="+itoa(r.lastHold())+" token=1 count=1")
}

// lastHold is the number of the hold of the lock "a".
func (r *rig) lastHold() uint64 {
	row, _ := r.tb.Info(r.now, "a")
	return row.Hold
}

// Shows docs/queue.md: Tickets.
func TestAcquireThatDoesNotWaitDoesNotEnqueue(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a", wait(0))
	if op := r.redis(redisop.Take, redisop.HeldByOther); op.Has(redisop.Enqueue) || op.Ticket != 0 {
		t.Errorf("a try: %+v", op)
	}
	r.want("s1 refused timeout")
	r.forgotten()
}

// Without its own channel a sidecar would not get the message of a transfer.
func TestSidecarWithoutItsChannelDoesNotEnqueue(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	if op := r.redis(redisop.Take, redisop.HeldByOther); op.Has(redisop.Enqueue) {
		t.Errorf("the take: %+v", op)
	}
	r.want("subscribe a")
}

// What was published while it had no connection is lost, so each ticket asks.
//
// Shows docs/guarantees.md: Messages lost.
func TestTicketsAskAgainAfterAnOutage(t *testing.T) {
	for _, isListening := range []bool{true, false} {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.queued(3)
		r.tb.Down(r.now, 0, "gone")
		r.pass(time.Minute)
		r.quiet()
		r.tb.Up(r.now, 0, false, isListening)
		op := r.redis(redisop.Take, redisop.HeldByOther)
		if want := uint64(btoi(isListening)); op.Ticket != want || op.Has(redisop.Enqueue) != isListening {
			t.Errorf("listening %v: %+v", isListening, op)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A Take was sent with a ticket, and its sidecar has its channel no more when the result
// comes.
func TestTakeThatEnqueuedMayEndAfterTheChannelIsGone(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.tb.Down(r.now, 0, "gone")
	r.tb.Up(r.now, 0, false, false)
	r.cancel(1, id)
	r.redis(redisop.Take, redisop.Unknown)
	r.want("s1 refused canceled")
	r.redis(redisop.Drop, redisop.Done)
	r.forgotten()
}

// The journal has what a successor must know: that Redis may pass the lock on to a ticket of
// this sidecar. The successor drops both; its clients ask again.
//
// Shows docs/queue.md: Faults.
func TestTicketIsInTheJournal(t *testing.T) {
	l := newRestartHarness(t)
	l.tb.Up(l.now, 0, false, true)
	l.acquire(1, "a")
	l.queued(0)
	if m := l.journal.snapshot(); len(m.Locks) != 1 || m.Locks[0].MaxHoldID != 1 {
		t.Fatalf("stored while the ticket stands: %+v", m.Locks)
	}
	l.killed(time.Second)
	l.tb.Up(l.now, 0, false, true)
	l.collect()
	l.transfer(1, 32) // the predecessor's
	l.want()
	if op := l.redis(redisop.Drop, redisop.Done); op.Name != "a" || op.HoldID < 1 {
		t.Errorf("the drop: %+v", op)
	}
	l.forgotten()
	if m := l.journal.snapshot(); len(m.Locks) != 0 {
		t.Errorf("still stored: %+v", m.Locks)
	}
}

// The journal has it until Redis has executed its Drop. If a client here asked for the lock
// before that, and the table forgot the ticket for the new one, Redis could pass the lock on to
// a dead process whose successor does not know.
//
// Shows docs/queue.md: Transfers.
func TestTicketThatWasGivenUpIsDroppedBeforeTheNextOne(t *testing.T) {
	l := newRestartHarness(t)
	l.tb.Up(l.now, 0, false, true)
	id := l.acquire(1, "a")
	l.queued(1)
	l.cancel(1, id)
	l.tb.Down(l.now, 0, "gone")
	l.redis(redisop.Drop, redisop.Unknown)
	l.acquire(2, "a")
	l.tb.Up(l.now, 0, false, true)
	l.collect()
	if m := l.journal.snapshot(); len(m.Locks) != 1 {
		t.Fatalf("stored while the drop is in flight: %+v", m.Locks)
	}
	if op := l.redis(redisop.Drop, redisop.Done); op.Ticket != 1 {
		t.Errorf("the drop: %+v", op)
	}
	if op := l.queued(1); op.HoldID != 2 || op.Ticket != 0 {
		t.Errorf("the take: %+v", op)
	}
	l.want("s1 refused canceled")
}

// Messages about locks that the table does not know make it know them. There may be so many
// of those beyond MaxLocks.
func TestLocksThatMessagesAreAboutAreBounded(t *testing.T) {
	const maxLocks, strays = 8, 4096
	r := newListeningRig(t, locktable.Config{MaxLocks: maxLocks})
	for i := range maxLocks + strays + 100 {
		r.recall(fmt.Sprint("stray ", i))
	}
	if len(r.ops) != maxLocks+strays {
		t.Fatalf("%d locks are dropped, want %d", len(r.ops), maxLocks+strays)
	}
	r.acquire(1, "new")
	r.want("s1 refused limit")
	for _, op := range r.ops {
		r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: r.now})
	}
	r.ops = nil
	r.collect()
	if err := r.tb.Audit(); err != nil {
		t.Error(err)
	}
	r.acquire(1, "new")
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 granted hold=1 token=1 count=1")
}

// Redis may have the ticket of a Take that has no result.
func TestTicketOfATakeWithoutAResultMayStand(t *testing.T) {
	setUp := func(t *testing.T) (r *rig, id uint64) {
		r = newListeningRig(t, locktable.Config{})
		id = r.acquire(1, "a")
		r.tb.Down(r.now, 0, "gone")
		r.redis(redisop.Take, redisop.Unknown)
		return r, id
	}
	t.Run("its client still waits", func(t *testing.T) {
		r, _ := setUp(t)
		r.tb.Up(r.now, 0, false, true)
		if op := r.queued(1); op.Ticket != 1 || op.HoldID != 2 {
			t.Errorf("asking again: %+v", op)
		}
		r.transfer(1, 32)
		r.want("s1 granted hold=3 token=1 count=1")
	})
	t.Run("its client has gone", func(t *testing.T) {
		r, id := setUp(t)
		r.cancel(1, id)
		r.tb.Up(r.now, 0, false, true)
		if op := r.redis(redisop.Drop, redisop.Done); op.Ticket != 1 || op.HoldID != 1 {
			t.Errorf("the drop: %+v", op)
		}
		r.want("s1 refused canceled")
		r.forgotten()
	})
}

// yieldTo has this host end its turn with a Drop and a Take behind it, which are in flight.
func yieldTo(r *rig) (drop, take redisop.Op) {
	r.Helper()
	takeTurn(r)
	r.release(1, 1)
	r.log = nil
	return r.two()
}

// The other host has left the queue meanwhile: the Take gets the lock that the Drop freed.
func TestHostThatYieldsToNoOneGoesOn(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(0)}})
	_, take := yieldTo(r)
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now})
	r.want()
	r.ops = []redisop.Op{take}
	r.redis(redisop.Take, redisop.Done)
	r.want("s2 granted hold=2 token=1 count=1")
	r.quiet()
}

// Another program deleted the key, and a ticket from before got the lock: the Drop that is in
// flight gives it back.
func TestTransferOfADeadTicketAtTheEndOfATurn(t *testing.T) {
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Turn: moment.SpanOf(0)}})
	_, take := yieldTo(r)
	r.transfer(1, 64)
	r.tb.Result(r.now, redisop.Result{Kind: redisop.Drop, Name: "a", Sent: r.now, Passed: true, Waiting: 1})
	r.want()
	r.ops = []redisop.Op{take}
	r.refusedTake(0, redisop.NotRecalled, 30_000)
	r.want()
	r.quiet()
}

// Redis leaves the lock free for foreign clients, although there is a queue. So
// does the host that released it, also for clients that asked after the release.
func TestLockThatRedisLeavesFreeIsNotTakenAtOnce(t *testing.T) {
	setUp := func(t *testing.T) *rig {
		r := newListeningRig(t, locktable.Config{})
		r.acquire(1, "a")
		r.redis(redisop.Take, redisop.Done)
		r.pass(150 * time.Millisecond)
		r.release(1, 1)
		r.log = nil
		return r
	}
	paused := func(r *rig, listening int32) {
		r.Helper()
		if op := r.answer(redisop.Drop, redisop.Result{Paused: true, Listeners: listeners(listening)}); op.PassedMS != 150 {
			r.Errorf("the drop: %+v", op)
		}
	}
	for listening, pause := range map[int32]time.Duration{0: 4 * time.Millisecond, 1: 10 * time.Millisecond} {
		r := setUp(t)
		r.acquire(2, "a")
		paused(r, listening)
		if d := r.untilAsked(time.Second); d < pause || d > pause+3*time.Millisecond {
			t.Errorf("with %d listeners it is asked for after %v, want %v", listening, d, pause)
		}
	}
	t.Run("an acquire that does not wait", func(t *testing.T) {
		r := setUp(t)
		r.acquire(2, "a", wait(0))
		paused(r, 0)
		r.redis(redisop.Take, redisop.Done)
		r.want("s2 granted hold=2 token=2 count=1")
	})
}

// The ticket of clients that have gone was the first. The message about it is no reason to
// refuse a client that does not wait.
func TestFreedLockIsNotKeptFromAnAcquireThatDoesNotWait(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.queued(0)
	r.cancel(1, id)
	r.acquire(2, "a", wait(0))
	r.tb.Message(r.now, redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 10})
	r.redis(redisop.Drop, redisop.Done)
	r.redis(redisop.Take, redisop.Done)
	r.want("s1 refused canceled", "s2 granted hold=2 token=1 count=1")
}

func TestHostThatLostItsSubscriptionPolls(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.refusedTake(0, redisop.RecallMissed, 20_000)
	r.want("subscribe a")
	r.tb.Subscribed(r.now, 0, "a")
	r.refusedTake(0, redisop.RecallMissed, 20_000)
	r.tb.Unsubscribed(r.now, 0, "a")
	for range 3 {
		if d := r.untilAsked(time.Second); d > 40*time.Millisecond {
			t.Errorf("it asks after %v", d)
		}
		r.refusedTake(0, redisop.RecallMissed, 20_000)
	}
	r.want()
}

// The release of a hold publishes a message on the lock's channel, which its own host gets too. It has
// the key looked at once: that costs less than to know whose message it is.
func TestMessageOfAnOwnReleaseHasTheKeyLookedAtOnce(t *testing.T) {
	r := newRig(t)
	r.others = 1
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.HeldByOther)
	r.tb.Subscribed(r.now, 0, "a")
	r.redis(redisop.Take, redisop.Done)
	r.release(1, 2)
	r.redis(redisop.Drop, redisop.Done)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(20 * time.Millisecond)
	r.message("a")
	r.redis(redisop.Renew, redisop.Done)
	r.quiet()
}

// A round trip is as long as Redis is far, by the shortest answers. One slow answer is of a busy
// Redis, and a network that has become slower is noticed.
func TestRoundTripIsThatOfTheShortAnswers(t *testing.T) {
	const near, far = time.Millisecond, 15 * time.Millisecond
	r := newListeningRig(t, locktable.Config{Contest: contest.Config{Linger: moment.SpanOf(0)}})
	answer := func(kind redisop.OpKind, trip time.Duration) time.Duration {
		sent := r.now
		r.now += int64(trip)
		r.collect()
		r.tokens++
		r.tb.Result(r.now, redisop.Result{Kind: kind, Name: "a", Sent: sent, Token: r.tokens})
		r.ops = nil
		return r.tb.Stats().RoundTrip
	}
	use := func(trip time.Duration) time.Duration {
		r.acquire(1, "a")
		answer(redisop.Take, trip)
		r.release(1, r.lastHold())
		return answer(redisop.Drop, trip)
	}
	if d := use(near); d != near {
		t.Errorf("it is %v, and every answer took %v", d, near)
	}
	if d := use(far); d > near+near/100 {
		t.Errorf("it is %v after two slow answers", d)
	}
	for range 5000 {
		use(far)
	}
	if d := r.tb.Stats().RoundTrip; d < far*9/10 || d > far {
		t.Errorf("it is %v after 10,000 answers that took %v each", d, far)
	}
}

// Redis refuses the Drop that gives a ticket up, or finds no lock. It would do so again: nothing of
// the lock stays here.
func TestTicketIsForgottenIfItsDropIsRefused(t *testing.T) {
	for _, outcome := range []redisop.Outcome{redisop.Refused, redisop.NotALock} {
		r := newListeningRig(t, locktable.Config{})
		id := r.acquire(1, "a")
		r.queued(0)
		r.cancel(1, id)
		r.redis(redisop.Drop, outcome)
		r.forgotten()
	}
}

// While a ticket is given up, the lock passes to one that its Drop does not meet.
func TestTransferThatADropDoesNotMeetIsGivenBack(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.queued(0)
	r.cancel(1, id)
	r.acquire(2, "b") // a larger number
	r.ops = r.ops[:1]
	r.transfer(2, 900)
	r.redis(redisop.Drop, redisop.Done)
	if drop := r.redis(redisop.Drop, redisop.Done); drop.HoldID < 2 {
		t.Errorf("the second drop: %+v", drop)
	}
	r.forgotten()
}

// A transfer came without tokens, and Redis takes longer than a turn to draw one. The turn is not
// over before a client here has had the lock.
func TestTurnHasAGrant(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	r.acquire(2, "a")
	r.queued(0)
	r.transfer(1, 900, waitingAfter(1), func(m *redisop.Message) { m.Tokens = 0 })
	r.pass(100 * time.Millisecond)
	r.answer(redisop.Take, redisop.Result{Token: 1000, Waiting: 1})
	if r.collect(); len(r.log) != 1 {
		t.Errorf("%q", r.log)
	}
}

// This host is the one subscriber of the lock's channel. No turn ends for a program that there is
// not.
func TestOwnSubscriptionIsOfNoOtherProgram(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.others = 1
	r.acquire(1, "a")
	r.refusedTake(0, redisop.RecallMissed, 20_000)
	r.tb.Subscribed(r.now, 0, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(2, "a")
	r.redis(redisop.Take, redisop.Done) // which draws tokens
	r.pass(60 * time.Millisecond)       // more than HandoffTime
	r.collect()
	r.log = nil
	r.release(1, r.lastHold())
	if r.collect(); len(r.log) != 2 {
		t.Errorf("%q", r.log)
	}
}
