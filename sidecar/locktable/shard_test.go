package locktable_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A cluster is a table whose locks are on two shards: those with a name that begins with "a" are in
// slot 1, and all others in slot 2.
type cluster struct {
	*testing.T
	tb  *locktable.Table
	now int64

	sent   []redisop.Op // without a result
	others []locktable.Effect
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{T: t, now: int64(time.Hour)}
	c.tb = locktable.New(locktable.Config{SlotOf: func(name string) uint16 {
		if name[0] == 'a' {
			return 1
		}
		return 2
	}}, c.now)
	c.tb.Open(c.now, 1, locktable.Peer{})
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 1}, {First: 2, Last: 2, Shard: 2}})
	c.tb.Up(c.now, 1, false, true)
	c.tb.Up(c.now, 2, false, true)
	return c
}

// effects collects what the table wants done.
func (c *cluster) effects() {
	for _, e := range c.tb.Effects() {
		if e.Kind == locktable.Redis {
			c.sent = append(c.sent, e.Op)
		} else {
			c.others = append(c.others, e)
		}
	}
}

// next returns the operation that was sent next, which must be the only one.
func (c *cluster) next() redisop.Op {
	c.Helper()
	c.effects()
	if len(c.sent) != 1 {
		c.Fatalf("%d operations were sent, want one: %+v", len(c.sent), c.sent)
	}
	op := c.sent[0]
	c.sent = nil
	return op
}

// rests fails if an operation was sent.
func (c *cluster) rests() {
	c.Helper()
	if c.effects(); len(c.sent) != 0 {
		c.Fatalf("an operation was sent: %+v", c.sent[0])
	}
}

// took reports whether there was such an effect since the last call.
func (c *cluster) took(kind locktable.EffectKind) bool {
	c.effects()
	for _, e := range c.others {
		if e.Kind == kind {
			c.others = nil
			return true
		}
	}
	return false
}

func (c *cluster) acquire(id uint64, name string) {
	c.tb.Acquire(c.now, 1, protocol.Acquire{ID: id, Name: name, WaitMS: protocol.Forever})
}

func (c *cluster) answer(op redisop.Op, r redisop.Result) {
	r.Kind, r.Name, r.Shard, r.Sent = op.Kind, op.Name, op.Shard, c.now
	if r.Outcome == redisop.Done && op.Kind == redisop.Take {
		r.Token = op.HoldID + uint64(op.Reserve)
	}
	c.tb.Result(c.now, r)
}

// hold acquires a lock, whose shard grants it.
func (c *cluster) hold(id uint64, name string) {
	c.Helper()
	c.acquire(id, name)
	c.answer(c.next(), redisop.Result{})
	if !c.took(locktable.Granted) {
		c.Fatalf("%q is not granted", name)
	}
}

func TestLockIsAskedForAtItsShard(t *testing.T) {
	c := newCluster(t)
	for i, want := range []struct {
		name  string
		shard redisop.Shard
	}{{"a", 1}, {"b", 2}} {
		c.acquire(uint64(i+1), want.name)
		if op := c.next(); op.Shard != want.shard {
			t.Errorf("%q is asked for at shard %d, want %d", want.name, op.Shard, want.shard)
		}
	}
}

func TestShardThatIsDownDelaysNoOtherLock(t *testing.T) {
	c := newCluster(t)
	c.tb.Down(c.now, 1, "it is gone")
	c.acquire(1, "a1")
	c.rests()
	c.hold(2, "b")
	if c.tb.Stats().IsRedisUp {
		t.Error("Redis is said to be up although a shard is down")
	}
	c.tb.Up(c.now, 1, false, true)
	if op := c.next(); op.Name != "a1" || op.Shard != 1 {
		t.Errorf("sent %+v", op)
	}
}

func TestSilenceOfAShardIsOfItsLocks(t *testing.T) {
	c := newCluster(t)
	c.acquire(1, "a")
	c.next()
	c.now += int64(time.Second)
	c.tb.Advance(c.now)
	if !c.tb.IsSilent(c.now, 1) || c.tb.IsSilent(c.now, 2) {
		t.Errorf("silent: shard 1 %v, shard 2 %v", c.tb.IsSilent(c.now, 1), c.tb.IsSilent(c.now, 2))
	}
	if s := c.tb.Silence(c.now); s != time.Second {
		t.Errorf("silent for %v", s)
	}
	if at, ok := c.tb.SilentAt(c.now); ok {
		t.Errorf("the silence of a shard that is silent already begins at %d", at)
	}
}

// Whatever the reason of the move, the new shard may lack what the one before had confirmed.
func TestHoldIsAssertedWhereItsSlotMoved(t *testing.T) {
	c := newCluster(t)
	c.hold(1, "a")
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	op := c.next()
	if op.Kind != redisop.Take || op.Shard != 2 || op.Has(redisop.RequireExisting) {
		t.Errorf("sent %+v, want a Take at shard 2", op)
	}
	c.answer(op, redisop.Result{})
	c.rests()
	if c.took(locktable.Lost) {
		t.Error("the hold is lost")
	}
}

func TestWaiterAsksWhereTheSlotMoved(t *testing.T) {
	c := newCluster(t)
	c.acquire(1, "a")
	ticket := c.next()
	proof := redisop.NewConn(1)
	c.answer(ticket, redisop.Result{Outcome: redisop.HeldByOther, Field: "other:1", TTLMS: 10000, IsQueued: true, Ticket: ticket.HoldID, Conn: proof})
	c.rests()
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	if op := c.next(); op.Shard != 2 || op.Ticket != ticket.HoldID {
		t.Errorf("sent %+v, want the ticket %d at shard 2", op, ticket.HoldID)
	}
}

// The result is of the shard that had the slot when the operation was executed.
func TestResultOfTheFormerShardGrantsNothing(t *testing.T) {
	c := newCluster(t)
	c.acquire(1, "a")
	take := c.next()
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	c.rests() // one operation in flight
	c.answer(take, redisop.Result{})
	if c.took(locktable.Granted) {
		t.Fatal("the lock is granted by the shard before")
	}
	again := c.next()
	if again.Shard != 2 || again.Kind != redisop.Take {
		t.Fatalf("sent %+v, want a Take at shard 2", again)
	}
	c.answer(again, redisop.Result{})
	if !c.took(locktable.Granted) {
		t.Error("the lock is not granted")
	}
}

func TestKeyThatIsMissingAfterAMoveIsAsserted(t *testing.T) {
	c := newCluster(t)
	c.hold(1, "a")
	c.now += int64(11 * time.Second)
	c.tb.Advance(c.now)
	renewal := c.next()
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	c.answer(renewal, redisop.Result{Outcome: redisop.KeyMissing})
	if c.took(locktable.Lost) {
		t.Fatal("the hold is lost")
	}
	if op := c.next(); op.Kind != redisop.Take || op.Shard != 2 {
		t.Errorf("sent %+v, want a Take at shard 2", op)
	}
}

// A Take that is pipelined after a Drop follows it on one connection.
func TestTakeIsNotPipelinedAfterADropAtTheShardBefore(t *testing.T) {
	c := newCluster(t)
	c.hold(1, "a")
	c.tb.Release(c.now, 1, protocol.Release{Hold: 1})
	drop := c.next()
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	c.acquire(2, "a")
	c.rests()
	c.answer(drop, redisop.Result{})
	if op := c.next(); op.Kind != redisop.Take || op.Shard != 2 || op.Has(redisop.AfterPendingDrop) {
		t.Errorf("sent %+v, want a Take at shard 2", op)
	}
}

func TestSubscriptionMovesWithItsSlot(t *testing.T) {
	c := newCluster(t)
	c.tb.Up(c.now, 1, false, false) // no place in queues, so the lock's channel is needed
	c.acquire(1, "a")
	c.answer(c.next(), redisop.Result{Outcome: redisop.HeldByOther, Field: "other:1", TTLMS: 10000})
	c.effects()
	c.others = nil
	c.tb.Subscribed(c.now, 1, "a")
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	c.effects()
	var from, to redisop.Shard
	for _, e := range c.others {
		switch e.Kind {
		case locktable.Unsubscribe:
			from = e.Op.Shard
		case locktable.Subscribe:
			to = e.Op.Shard
		}
	}
	if from != 1 || to != 2 {
		t.Errorf("the subscription moved from shard %d to %d, want from 1 to 2", from, to)
	}
}

// The master that a slot has left ends the subscription there, which may be known late.
func TestEndOfTheSubscriptionAtTheShardBeforeChangesNothing(t *testing.T) {
	for _, n := range []redisop.Shard{1, 2} {
		c := newCluster(t)
		c.tb.Up(c.now, 1, false, false)
		c.tb.Up(c.now, 2, false, false)
		held := redisop.Result{Outcome: redisop.HeldByOther, Field: "other:1", TTLMS: 60_000}
		c.acquire(1, "a")
		c.answer(c.next(), held)
		c.tb.Subscribed(c.now, 1, "a")
		c.answer(c.next(), held)
		c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
		c.answer(c.next(), held)
		c.tb.Subscribed(c.now, 2, "a")
		c.answer(c.next(), held)
		c.tb.Unsubscribed(c.now, n, "a")
		c.now += int64(1 * time.Second)
		c.tb.Advance(c.now)
		c.effects()
		if asks := len(c.sent) > 0; asks != (n == 2) {
			t.Errorf("the subscription at shard %d ended, and the table polls: %v", n, asks)
		}
	}
}

// One run of a script has locks of one slot, so these are renewed together.
func TestLocksOfOneSlotAreRenewedTogether(t *testing.T) {
	c := newCluster(t)
	names := []string{"a1", "b1", "a2", "b2", "a3", "b3"}
	for i, name := range names {
		c.hold(uint64(i+1), name)
		c.now += int64(300 * time.Millisecond)
	}
	// Locks move to the offset of their group by a cell in each period.
	for end := c.now + int64(10*time.Minute); c.now < end; {
		at, _ := c.tb.Next()
		c.now = max(c.now, at)
		c.tb.Advance(c.now)
		c.effects()
		for _, op := range c.sent {
			if op.Kind == redisop.Renew {
				c.answer(op, redisop.Result{})
			}
		}
		c.sent = nil
	}
	at := make(map[byte]int64)
	for due := 0; due < len(names); {
		next, _ := c.tb.Next()
		c.now = max(c.now, next)
		c.tb.Advance(c.now)
		c.effects()
		for _, op := range c.sent {
			if was, ok := at[op.Name[0]]; ok && was != c.now {
				t.Errorf("%q is renewed %v after another lock of its slot", op.Name, time.Duration(c.now-was))
			}
			at[op.Name[0]] = c.now
			due++
			c.answer(op, redisop.Result{})
		}
		c.sent = nil
	}
}

// The holds of a session share one deadline. A hold whose shard is down does not end those of the
// other shards.
func TestHoldOfAShardThatIsDownEndsNoHoldOfAnother(t *testing.T) {
	for kind, hold := range map[string]func(*cluster){
		"a lock": func(c *cluster) { c.hold(1, "a") },
		"permits": func(c *cluster) {
			c.tb.AcquirePermits(c.now, 1, protocol.AcquirePermits{Acquire: protocol.Acquire{ID: 1, Name: "a", WaitMS: protocol.Forever}, Permits: 1, Of: 1})
			c.answer(c.next(), redisop.Result{Permits: 1})
			if !c.took(locktable.Granted) {
				c.Fatal("the permit is not granted")
			}
		},
	} {
		t.Run(kind, func(t *testing.T) {
			c := newCluster(t)
			hold(c)
			c.hold(2, "b")
			c.tb.Down(c.now, 1, "it is gone")
			lost := make(map[string]time.Duration) // names, and when their holds were lost
			begin := c.now
			for c.now < begin+int64(2*time.Minute) {
				c.now += int64(100 * time.Millisecond)
				c.tb.Advance(c.now)
				c.effects()
				for _, e := range c.others {
					if e.Kind == locktable.Lost {
						lost[e.Name] = time.Duration(c.now - begin)
					}
				}
				c.others = nil
				for _, op := range c.sent {
					c.answer(op, redisop.Result{})
				}
				c.sent = nil
			}
			if len(lost) != 1 || lost["a"] < 25*time.Second || lost["a"] > 27*time.Second {
				t.Errorf("lost: %v; want that of a shortly before its deadline, and not b", lost)
			}
		})
	}
}

// The holds at a shard that serves are renewed one after the other, so some are confirmed for less time than
// others. None of them is the one that keeps the shared deadline down.
func TestHoldThatIsRenewedBeforeOthersIsNotGivenUpForThem(t *testing.T) {
	c := newCluster(t)
	for i := range 10 {
		c.hold(uint64(i+1), "b"+strconv.Itoa(i))
		for range 10 {
			c.now += int64(100 * time.Millisecond)
			c.tb.Advance(c.now)
			c.effects()
			for _, op := range c.sent {
				c.answer(op, redisop.Result{})
			}
			c.sent = nil
		}
	}
	c.hold(11, "a")
	c.tb.Down(c.now, 1, "it is gone")
	var lost []uint64
	for end := c.now + int64(time.Minute); c.now < end; c.now += int64(100 * time.Millisecond) {
		c.tb.Advance(c.now)
		c.effects()
		for _, e := range c.others {
			if e.Kind == locktable.Lost {
				lost = append(lost, e.Hold)
			}
		}
		c.others = nil
		for _, op := range c.sent {
			c.answer(op, redisop.Result{})
		}
		c.sent = nil
	}
	if len(lost) != 1 {
		t.Errorf("lost: %v, want the hold of the shard that is down", lost)
	}
}

// The daemon stood still until shortly before the deadline. The first shard that answers again must not
// end the holds of the second one, whose renewals are on the way.
func TestHoldWhoseRenewalWasJustSentIsNotGivenUpForOthers(t *testing.T) {
	c := newCluster(t)
	c.hold(1, "a")
	c.hold(2, "b")
	c.now += int64(27 * time.Second)
	c.tb.Advance(c.now)
	c.effects()
	renewals := c.sent
	if len(renewals) != 2 {
		t.Fatalf("sent: %+v, want two renewals", renewals)
	}
	c.answer(renewals[0], redisop.Result{})
	c.now += int64(100 * time.Millisecond)
	c.acquire(3, renewals[1].Name) // the table looks at the lock
	c.answer(renewals[1], redisop.Result{})
	if c.took(locktable.Lost) {
		t.Error("a hold is lost although its shard renews it")
	}
}

// The danger: the hold that waits for its renewal ends the others with the deadline that they share.
func TestHoldWhoseRenewalHasNoResultIsGivenUpBeforeTheSharedDeadline(t *testing.T) {
	c := newCluster(t)
	c.hold(1, "a")
	c.hold(2, "b")
	deadline := c.now + int64(30*time.Second)
	c.now += int64(27 * time.Second)
	c.tb.Advance(c.now)
	c.effects()
	for _, op := range c.sent {
		if op.Name == "a" {
			c.answer(op, redisop.Result{})
		}
	}
	for !c.took(locktable.Lost) {
		if c.now += int64(10 * time.Millisecond); c.now > deadline-int64(30*time.Second)/16 {
			t.Fatal("no hold is lost, and clients may believe that all of them are")
		}
		c.tb.Advance(c.now)
	}
}

// While no shard renews, no hold keeps the deadline of others down.
func TestHoldsOfShardsThatAreAllDownLastUntilTheirDeadline(t *testing.T) {
	c := newCluster(t)
	c.hold(1, "a")
	c.hold(2, "b")
	c.tb.Down(c.now, 1, "it is gone")
	c.tb.Down(c.now, 2, "it is gone")
	c.now += int64(29 * time.Second)
	c.tb.Advance(c.now)
	if c.took(locktable.Lost) {
		t.Error("a hold is lost early")
	}
}

func TestSurveyCountsTheLocksOfEachShard(t *testing.T) {
	c := newCluster(t)
	for i, name := range []string{"a1", "a2", "b"} {
		c.hold(uint64(10+i), name)
	}
	c.acquire(20, "a2")
	var v locktable.Survey
	for c.tb.Survey(c.now, &v, 2) {
	}
	for n, want := range []locktable.ShardSurvey{{}, {Holds: 2, Waiters: 1}, {Holds: 1}, {}} {
		if got := v.OfShard(redisop.Shard(n)); got != want {
			t.Errorf("shard %d has %+v, want %+v", n, got, want)
		}
	}
}

func TestRowHasTheSlotOfALockInAClusterOnly(t *testing.T) {
	c := newCluster(t)
	c.hold(10, "b")
	if row, _ := c.tb.Info(c.now, "b"); !row.InCluster || row.Slot != 2 {
		t.Errorf("in a Cluster: %+v", row)
	}
	r := newRig(t)
	r.acquire(1, "b")
	r.answerAll()
	if row, _ := r.tb.Info(r.now, "b"); row.State != protocol.StateHeld || row.InCluster || row.Slot != 0 {
		t.Errorf("with a single Redis: %+v", row)
	}
}

// What the shard before says of a ticket proves nothing any more.
func TestTransferOfTheFormerShardIsNotGranted(t *testing.T) {
	c := newCluster(t)
	c.acquire(1, "a")
	ticket := c.next()
	proof := redisop.NewConn(1)
	c.answer(ticket, redisop.Result{Outcome: redisop.HeldByOther, Field: "other:1", TTLMS: 10000, IsQueued: true, Ticket: ticket.HoldID, Conn: proof})
	c.tb.Down(c.now, 2, "it is gone")
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	c.rests()
	c.tb.Message(c.now, redisop.Message{Kind: redisop.Transferred, Name: "a", Conn: proof, Ticket: ticket.HoldID, LastToken: 1 << 40, Tokens: 1, LeaseMS: 30000})
	if c.took(locktable.Granted) {
		t.Error("a transfer of the shard before is granted")
	}
}

// The shard before executed the release. The present one may lack that.
func TestReleaseIsRepeatedWhereTheSlotMoved(t *testing.T) {
	c := newCluster(t)
	c.hold(1, "a")
	c.tb.Release(c.now, 1, protocol.Release{Hold: 1})
	drop := c.next()
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	c.tb.Confirm(c.now, 1, protocol.Confirm{ID: 9, Name: "a"})
	c.answer(drop, redisop.Result{})
	if c.took(locktable.Confirmed) {
		t.Error("the release is confirmed by the shard before")
	}
	again := c.next()
	if again.Kind != redisop.Drop || again.Shard != 2 {
		t.Fatalf("sent %+v, want a Drop at shard 2", again)
	}
	c.answer(again, redisop.Result{})
	if !c.took(locktable.Confirmed) {
		t.Error("the release is not confirmed")
	}
}

// A failover lost that the ticket was given up. The Drop in flight is at the shard before, and cannot give back
// what the present one has transferred.
func TestTransferOfAnotherShardThanTheDropIsGivenBack(t *testing.T) {
	c := newCluster(t)
	c.acquire(1, "a")
	ticket := c.next()
	c.answer(ticket, redisop.Result{Outcome: redisop.HeldByOther, Field: "other:1", TTLMS: 10000, IsQueued: true, Ticket: ticket.HoldID, Conn: redisop.NewConn(1)})
	c.tb.Cancel(c.now, 1, protocol.Cancel{ID: 2, Target: 1})
	drop := c.next()
	if drop.Kind != redisop.Drop {
		t.Fatalf("sent %+v, want a Drop", drop)
	}
	c.tb.Message(c.now, redisop.Message{Kind: redisop.Transferred, Name: "a", Conn: redisop.NewConn(2), Ticket: ticket.HoldID, LeaseMS: 30000})
	c.answer(drop, redisop.Result{})
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	for {
		again := c.next()
		if again.Kind != redisop.Drop {
			t.Fatalf("sent %+v, want a Drop", again)
		}
		if again.Shard == 2 {
			break
		}
		c.answer(again, redisop.Result{Outcome: redisop.Retryable, Msg: "MOVED"})
	}
}

// The danger: the Take that asserts the hold counts as the arrival of the waiters here, and other hosts wait
// that arrived before.
func TestAssertionOfAHoldIsNoArrivalOfWaiters(t *testing.T) {
	c := newCluster(t)
	c.hold(1, "a")
	c.tb.Acquire(c.now, 1, protocol.Acquire{ID: 2, Name: "a", WaitMS: protocol.Forever, Fair: true})
	draw := c.next()
	c.tb.Route(c.now, []redisop.SlotRange{{First: 1, Last: 1, Shard: 2}})
	c.now++
	c.answer(draw, redisop.Result{Outcome: redisop.Retryable, Msg: "MOVED"})
	assertion := c.next()
	if assertion.Kind != redisop.Take || assertion.Shard != 2 {
		t.Fatalf("sent %+v, want a Take at shard 2", assertion)
	}
	c.answer(assertion, redisop.Result{Waiting: 1})
	arrive := c.next()
	if arrive.Kind != redisop.Arrive {
		t.Fatalf("sent %+v, want an Arrive", arrive)
	}
	c.answer(arrive, redisop.Result{Arrived: 400, FirstArrived: 200})
	c.others = nil
	c.tb.Release(c.now, 1, protocol.Release{Hold: 1})
	if c.took(locktable.Granted) {
		t.Error("the lock is granted here, and the other host arrived before")
	}
}
