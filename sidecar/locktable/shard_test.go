package locktable_test

import (
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
	if op.Kind != redisop.Take || op.Shard != 2 || op.RequireExisting {
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
	if op := c.next(); op.Kind != redisop.Take || op.Shard != 2 || op.AfterPendingDrop {
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
			from = e.Shard
		case locktable.Subscribe:
			to = e.Shard
		}
	}
	if from != 1 || to != 2 {
		t.Errorf("the subscription moved from shard %d to %d, want from 1 to 2", from, to)
	}
}
