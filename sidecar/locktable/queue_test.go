package locktable_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The queue of the sidecars in Redis: tickets, transfers, turns, and what Redis publishes to
// a sidecar.

// newListeningRig returns a rig whose sidecar is subscribed to its own channel.
func newListeningRig(t *testing.T, cfg locktable.Config) *rig {
	r := &rig{T: t, now: int64(time.Hour)}
	r.tb = locktable.New(cfg, r.now)
	r.tb.Up(r.now, false, true)
	for s := range locktable.SessionID(4) {
		r.tb.Open(r.now, s+1, locktable.Peer{PID: int64(100 + s), Cmd: fmt.Sprintf("worker-%d", s+1)})
	}
	return r
}

// queued answers the Take in flight: another sidecar has the lock, and the ticket stands at
// this rank.
func (r *rig) queued(rank int32) locktable.Op {
	r.Helper()
	return r.refusedTake(rank, 1, 20_000)
}

// refusedTake answers the Take in flight: another host has the lock, and the ticket stands at
// this rank. reached is how many connections received the recall.
func (r *rig) refusedTake(rank, reached int32, ttlMS int64) locktable.Op {
	r.Helper()
	res := locktable.Result{
		Outcome: locktable.HeldByOther, Field: "another:1", TTLMS: ttlMS, Listeners: r.others,
		Rank: rank, HolderReached: reached,
	}
	if rank != locktable.NotQueued {
		r.collect()
		if len(r.ops) != 1 || !r.ops[0].Enqueue {
			r.Fatalf("operations in flight: %+v, want one Take that enqueues", r.ops)
		}
		if res.Ticket = r.ops[0].Ticket; res.Ticket == 0 {
			res.Ticket = r.ops[0].HoldID
		}
	}
	return r.answer(locktable.Take, res)
}

func (r *rig) cancel(s locktable.SessionID, id uint64) {
	r.tb.Cancel(r.now, s, protocol.Cancel{Target: id})
	r.collect()
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

// quietBut checks that so many operations are in flight.
func (r *rig) quietBut(n int) {
	r.Helper()
	if r.collect(); len(r.ops) != n {
		r.Fatalf("operations in flight: %+v, want %d", r.ops, n)
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
	r.redis(locktable.Drop, locktable.Done)
	r.queued(1)
	r.tb.Message(r.now, locktable.Message{Kind: locktable.Requeue, Name: "a"})
	r.want() // and now a Take
	r.queued(1)
	r.want()
}

// A host without a place in the queue, because Redis does not permit it one, stays subscribed
// while it asks again.
func TestHostWithoutAPlaceStaysSubscribed(t *testing.T) {
	r := newListeningRig(t, locktable.Config{SubscriptionLinger: time.Millisecond})
	r.acquire(1, "a")
	r.refusedTake(locktable.NotQueued, locktable.HolderNotTold, 20_000)
	r.want("subscribe a")
	r.tb.Subscribed(r.now, "a")
	r.pass(10 * time.Millisecond)
	r.refusedTake(locktable.NotQueued, locktable.HolderNotTold, 20_000)
	for range 3 {
		r.untilAsked(6 * time.Second)
		r.pass(10 * time.Millisecond)
		r.refusedTake(locktable.NotQueued, locktable.HolderNotTold, 20_000)
	}
	r.want()
}

// lastHold is the number of the hold of the lock "a".
func (r *rig) lastHold() uint64 {
	row, _ := r.tb.Info(r.now, "a")
	return row.Hold
}

// A Take was sent with a ticket, and its sidecar has its channel no more when the result
// comes.
func TestTakeThatEnqueuedMayEndAfterTheChannelIsGone(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.tb.Down(r.now, "gone")
	r.tb.Up(r.now, false, false)
	r.cancel(1, id)
	r.redis(locktable.Take, locktable.Unknown)
	r.want("s1 refused canceled")
	r.redis(locktable.Drop, locktable.Done)
	r.forgotten()
}

// The journal has it until Redis has executed its Drop. If a client here asked for the lock
// before that, and the table forgot the ticket for the new one, Redis could pass the lock on to
// a dead process whose successor does not know.
func TestTicketThatWasGivenUpIsDroppedBeforeTheNextOne(t *testing.T) {
	l := newRestartHarness(t)
	l.tb.Up(l.now, false, true)
	id := l.acquire(1, "a")
	l.queued(1)
	l.cancel(1, id)
	l.tb.Down(l.now, "gone")
	l.redis(locktable.Drop, locktable.Unknown)
	l.acquire(2, "a")
	l.tb.Up(l.now, false, true)
	l.collect()
	if m := l.journal.snapshot(); len(m.Locks) != 1 {
		t.Fatalf("stored while the drop is in flight: %+v", m.Locks)
	}
	if op := l.redis(locktable.Drop, locktable.Done); op.Ticket != 1 {
		t.Errorf("the drop: %+v", op)
	}
	if op := l.queued(1); op.HoldID != 2 || op.Ticket != 0 {
		t.Errorf("the take: %+v", op)
	}
	l.want("s1 refused canceled")
}
