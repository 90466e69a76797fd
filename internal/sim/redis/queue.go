package redis

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The queue of a lock between sidecars.

const queueExpiry = int64(redisop.QueueExpiry)

// maxAge is how old a ticket may be whose sidecar has not asked since, µs.
const maxAge = int64(redisop.MaxSilence / time.Microsecond)

// For how long a lock passes from owner to owner before it is left free for a moment, ms: if
// anything subscribes to its channel, and in any case.
var maxPassedMS, maxPassedAloneMS = redisop.MS(redisop.FreeAfterSubscribed), redisop.MS(redisop.FreeAfter)

// Ticket is a place in a queue.
type Ticket struct {
	Owner Owner
	Num   uint64
	Time  int64 // µs: Redis's clock when it came
}

// Queue is the queue of a lock, with its signs. The zero value does not exist.
type Queue struct {
	Tickets  []Ticket // in their order
	ExpireAt int64    // ns; or NoExpiry
	Broken   bool     // the key is of another type

	Signs         map[Owner]int64 // s: Redis's clock when a sidecar last asked again
	SignsExpireAt int64           // ns; or NoExpiry
	SignsBroken   bool            // the key is of another type
}

// Clone returns a copy.
func (q *Queue) Clone() *Queue {
	c := *q
	c.Tickets, c.Signs = slices.Clone(q.Tickets), maps.Clone(q.Signs)
	return &c
}

// Add adds a ticket, which may be in the queue already. Tickets that came at one time are in
// the order of their fields: owners are numbered in the order of their uuids.
func (q *Queue) Add(t Ticket) {
	q.remove(t.Owner, t.Num)
	i, _ := slices.BinarySearchFunc(q.Tickets, t, func(a, b Ticket) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Owner, b.Owner),
			strings.Compare(strconv.FormatUint(a.Num, 10), strconv.FormatUint(b.Num, 10)))
	})
	q.Tickets = slices.Insert(q.Tickets, i, t)
}

// Rank returns the place of a ticket; -1: it is not in the queue.
func (q *Queue) Rank(owner Owner, num uint64) int {
	return slices.IndexFunc(q.Tickets, func(t Ticket) bool { return t.Owner == owner && t.Num == num })
}

func (q *Queue) remove(owner Owner, num uint64) {
	switch i := q.Rank(owner, num); {
	case i == 0:
		q.Tickets = q.Tickets[1:] // nearly always, and there may be thousands behind it
	case i > 0:
		q.Tickets = slices.Delete(q.Tickets, i, i+1)
	}
}

// expire deletes what has expired.
func (q *Queue) expire(now int64) {
	if len(q.Tickets) > 0 && now >= q.ExpireAt {
		q.Tickets = nil
	}
	if len(q.Signs) > 0 && now >= q.SignsExpireAt {
		q.Signs = nil
	}
}

// isOld reports whether the sidecar of a ticket has not asked for so long that the lock must
// not pass to it.
func (q *Queue) isOld(t Ticket, clock int64, denied bool) bool {
	seen := t.Time
	if !q.SignsBroken && !denied {
		seen = max(seen, q.Signs[t.Owner]*1e6)
	}
	return clock-seen > maxAge
}

// Sent is a message that was published to a sidecar, whether anything received it or not.
type Sent struct {
	To Owner
	redisop.Message
	Reached int32 // connections that received it
}

// queue returns the queue of the lock if the sidecar can use it, or nil.
func (c *Command) queue() *Queue {
	if c.Queue == nil || c.Queue.Broken || c.Denied.Queue {
		return nil
	}
	return c.Queue
}

// hasTickets reports whether the sidecar finds tickets in the queue.
func (c *Command) hasTickets() bool {
	q := c.queue()
	return q != nil && len(q.Tickets) > 0
}

// arrivalAt is when a request arrives that comes with this operation, µs: by Redis's clock, but later
// than each ticket of another sidecar, because the clock may have been set back. An Arrive does not
// know whose tickets they are.
func (c *Command) arrivalAt() int64 {
	if !c.hasTickets() || c.ArrivesByClock {
		return c.Clock
	}
	last := c.Queue.Tickets[len(c.Queue.Tickets)-1]
	if last.Owner == c.Owner && c.Op.Kind != redisop.Arrive {
		return max(c.Clock, last.Time)
	}
	return max(c.Clock, last.Time+1)
}

// send publishes a message to a sidecar, and reports how many connections received it.
func (c *Command) send(to Owner, m redisop.Message, reply *Reply) int32 {
	if to == NoOwner || c.Denied.Publish || c.Denied.Sidecars {
		return 0
	}
	reached := int32(0)
	if c.Receivers != nil {
		reached = c.Receivers(to)
	}
	m.Name = c.Op.Name
	reply.Sent = append(reply.Sent, Sent{To: to, Message: m, Reached: reached})
	return reached
}

// enqueue puts the ticket num of a Take into the queue, unless the given one is there. Ticket 0:
// none stands.
func (c *Command) enqueue(take *redisop.Op, given uint64) (rank int, ticket uint64) {
	q := c.queue()
	if q == nil {
		return 0, 0
	}
	lives := func(at *int64, existed bool) {
		if !c.Denied.PExpire {
			*at = c.Now + queueExpiry
		} else if !existed {
			*at = NoExpiry
		}
	}
	sign := func() {
		existed := len(q.Signs) > 0
		if q.SignsBroken || c.Denied.Signs || c.Migrates && !existed {
			return
		}
		if !existed {
			q.Signs = make(map[Owner]int64)
		}
		q.Signs[c.Owner] = c.Clock / 1e6
		lives(&q.SignsExpireAt, existed)
	}
	arrived := c.arrivalAt()
	if take.Arrived != 0 {
		arrived = min(arrived, int64(take.Arrived))
	}
	if rank := q.Rank(c.Owner, given); given != 0 && rank >= 0 {
		lives(&q.ExpireAt, true)
		if c.NoMemory && c.Denied.PExpire { // the expiry permits the run to use memory
			return rank, given
		}
		sign()
		if take.Arrived != 0 && !c.Denied.ZAdd || c.LowersLateScores && q.Tickets[rank].Time > c.Clock {
			q.Add(Ticket{Owner: c.Owner, Num: given, Time: arrived})
		}
		return q.Rank(c.Owner, given), given
	}
	if c.NoMemory || c.Denied.ZAdd || c.Migrates && len(q.Tickets) == 0 {
		return 0, 0
	}
	lives(&q.ExpireAt, len(q.Tickets) > 0)
	q.Add(Ticket{Owner: c.Owner, Num: take.HoldID, Time: arrived})
	if take.Arrived == 0 {
		return len(q.Tickets) - 1, take.HoldID
	}
	sign()
	return q.Rank(c.Owner, take.HoldID), take.HoldID
}

// offer offers the lock to the tickets in their order, until one accepts. The tickets before
// it are removed, and the one that accepts, unless it stays. Tickets of this sidecar up to
// that number were given up, but for mine; 0: all of them.
func (c *Command) offer(reply *Reply, mine, upTo uint64, stays bool, accept func(t Ticket) bool) (accepted Ticket, ok bool) {
	q := c.Queue
	for range redisop.MaxOffers {
		if len(q.Tickets) == 0 {
			break
		}
		t := q.Tickets[0]
		if c.ReadOnly {
			isDead := q.isOld(t, c.Clock, c.Denied.Signs)
			if t.Owner == c.Owner {
				isDead = t.Num <= upTo
			}
			if !isDead && accept(t) {
				return t, true
			}
			break // it cannot be removed
		}
		if !stays {
			q.remove(t.Owner, t.Num)
		}
		switch own := t.Owner == c.Owner; {
		case own && t.Num != mine && t.Num <= upTo:
		case !own && q.isOld(t, c.Clock, c.Denied.Signs):
			if !q.SignsBroken && !c.Denied.Signs {
				delete(q.Signs, t.Owner)
			}
			c.send(t.Owner, redisop.Message{Kind: redisop.Requeue, Ticket: t.Num, NamesTicket: true}, reply)
		case accept(t):
			return t, true
		}
		q.remove(t.Owner, t.Num)
	}
	return Ticket{}, false
}

// pass passes the lock on to the first ticket whose sidecar receives that, or to mine, which
// is of this sidecar; 0: there is none. If no ticket gets it, the lock is free. The code is
// that of an error, after which it is not passed on.
func (c *Command) pass(key *Key, counter *Counter, reply *Reply, tokens int64, mine uint64) (to Ticket, ok bool, code string) {
	op := c.Op
	if c.Denied.PExpire {
		return to, false, "NOPERM"
	}
	expireAt := c.Now + int64(op.LeaseMS)*1e6
	key.ExpireAt = expireAt
	if c.Denied.Counter {
		return to, false, "NOPERM"
	}
	last, made, code := counter.draw(c, tokens)
	if code != "" {
		return to, false, code
	}
	reply.Token, reply.Made = uint64(last), made
	passedMS := uint32(0)
	more := uint32(0)
	if op.Kind == redisop.Drop {
		passedMS = op.PassedMS
		if c.Next != nil {
			if !c.hasNextArrived() {
				passedMS = min(passedMS, maxPassedAloneMS-1)
				more = uint32(btoi(c.Next.Has(redisop.Enqueue)))
			}
		}
	}
	to, ok = c.offer(reply, mine, op.HoldID, false, func(t Ticket) bool {
		*key = Key{Owner: t.Owner, Num: t.Num, Count: 1, ExpireAt: expireAt}
		reply.Waiting = uint32(len(c.Queue.Tickets)) + more
		if t.Owner == c.Owner && t.Num == mine {
			return true
		}
		return c.send(t.Owner, redisop.Message{
			Kind: redisop.Transferred, Ticket: t.Num, LastToken: uint64(last), Tokens: redisop.PassedTokens,
			LeaseMS: op.LeaseMS, Waiting: reply.Waiting, PassedMS: passedMS,
		}, reply) > 0
	})
	if ok {
		reply.Change = Pass
	} else {
		*key = NoKey
		reply.Waiting, reply.Token, reply.Made = 0, 0, false
	}
	return to, ok, ""
}

// takeInOrder carries out a Take of a free lock whose queue has tickets. done is false if
// no sidecar received it.
func (c *Command) takeInOrder(key *Key, counter *Counter, channel *Channel) (reply Reply, done bool) {
	op := c.Op
	_, ticket := c.enqueue(op, op.Ticket)
	to, ok, code := c.pass(key, counter, &reply, max(int64(op.Reserve), redisop.PassedTokens), ticket)
	if !ok && ticket == op.HoldID {
		c.Queue.remove(c.Owner, ticket)
	}
	c.NoMemory = false // the run has written
	switch {
	case code != "":
		reply = refusal(code)
		*key = NoKey
		return reply, true
	case !ok:
		return reply, false
	case to.Owner == c.Owner && to.Num == ticket:
		reply.Outcome, reply.Ticket, reply.Change = redisop.Done, to.Num, Write
		if op.Reserve == 0 {
			reply.Token, reply.Made = 0, false
		}
		if op.Has(redisop.CountListeners) {
			reply.Listeners, reply.Counted = c.count(channel)
		}
		return reply, true
	}
	reply.Outcome, reply.Waiting, reply.Token, reply.Made = redisop.HeldByOther, 0, 0, false
	reply.TTLMS = key.TTL(c.Now)
	c.PassedOn = true
	if ticket == 0 {
		ticket = op.Ticket
	}
	c.refuse(key, channel, ticket, &reply)
	return reply, true
}

// refuse is what a Take does that finds another owner's field.
func (c *Command) refuse(key *Key, channel *Channel, ticket uint64, reply *Reply) {
	wasFirst := c.Op.Has(redisop.Enqueue) && c.hasTickets() && c.Queue.Rank(c.Owner, ticket) == 0
	if c.Op.Has(redisop.Enqueue) {
		arrives := c.arrivalAt()
		rank, stands := c.enqueue(c.Op, ticket)
		if reply.Rank, reply.Ticket, reply.IsQueued = uint32(rank), stands, stands != 0; reply.IsQueued {
			reply.Arrived = uint64(arrives)
		}
	}
	if !c.PassedOn && !c.LeftFree && reply.IsQueued && reply.Rank < 2 {
		reply.Recall = redisop.RecallMissed
		if c.send(c.holder(key), redisop.Message{Kind: redisop.Recalled}, reply) > 0 {
			reply.Recall = redisop.RecallReceived
		}
	}
	if !c.PassedOn && !c.LeftFree && wasFirst && reply.Rank > 0 {
		c.notifyFirst(key, 0, reply)
	}
	if reply.Rank < 2 {
		reply.Listeners, reply.Counted = c.count(channel)
	}
}

// holder returns the sidecar that has the key, or NoOwner.
func (c *Command) holder(key *Key) Owner {
	if key.Other == nil {
		return key.Owner
	}
	for field := range key.Other.Hash {
		for owner, prefix := range c.Prefixes {
			digits, has := strings.CutPrefix(field, prefix)
			if has && len(key.Other.Hash) == 1 && digits != "" && strings.Trim(digits, "0123456789") == "" {
				return Owner(owner)
			}
		}
	}
	return NoOwner
}

// hasNextArrived reports whether a Take follows in the same run whose request arrived at a given
// time.
func (c *Command) hasNextArrived() bool {
	return c.Next != nil && c.Next.Has(redisop.Enqueue) && c.Next.Arrived != 0
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// notifyFirst has the first ticket ask again if a foreign client has the lock. upTo:
// see offer.
func (c *Command) notifyFirst(key *Key, upTo uint64, reply *Reply) {
	if holder := c.holder(key); holder != NoOwner && !c.Denied.PubSub && c.Receivers != nil {
		subscribed := c.Receivers(holder)
		if c.Patterns != nil {
			subscribed -= c.Patterns(holder)
		}
		if subscribed > 0 {
			return
		}
	}
	c.freed(0, upTo, reply)
}

// freed has the first ticket ask after a pause, ms. upTo: see offer.
func (c *Command) freed(pause uint32, upTo uint64, reply *Reply) {
	c.offer(reply, 0, upTo, true, func(t Ticket) bool {
		return c.send(t.Owner, redisop.Message{Kind: redisop.Freed, PauseMS: pause}, reply) > 0
	})
}

// dropToQueue carries out a Drop of a lock that is ours or free, and has a queue, or gets one.
// done is false if it does not after all.
func (c *Command) dropToQueue(key *Key, counter *Counter, channel *Channel, existed bool) (reply Reply, done bool) {
	op := c.Op
	reply = Reply{Outcome: redisop.Done}
	pauses := false
	if (c.Next == nil || c.hasNextArrived()) && op.PassedMS >= maxPassedMS {
		listeners, _ := c.count(channel)
		pauses = listeners.N > 0 || op.PassedMS >= maxPassedAloneMS
	}
	if !c.hasTickets() && !(c.hasNextArrived() && pauses) {
		return reply, false
	}
	mine := uint64(0)
	if c.hasNextArrived() {
		_, mine = c.enqueue(c.Next, 0)
	}
	refused := op.LeaseMS == 0
	if !pauses && !refused {
		_, ok, code := c.pass(key, counter, &reply, redisop.PassedTokens, mine)
		if ok {
			reply.Passed, reply.Token, reply.Made = true, 0, false
			return reply, true
		}
		refused = code != ""
	}
	*key = NoKey
	if existed {
		reply.Change = Remove
	}
	c.publish(channel, &reply)
	if pauses || refused {
		pause := uint32(0)
		if pauses {
			reply.Paused = true
			if pause = redisop.MS(redisop.FreeFor); !reply.Listeners.MayExist() {
				pause = redisop.MS(redisop.FreeForAlone)
			}
		}
		if c.hasTickets() {
			c.freed(pause, op.HoldID, &reply)
		}
	}
	return reply, true
}
