package redis

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Command is one operation as one run of a script carries it out.
type Command struct {
	Op       *redisop.Op
	Owner    Owner    // the sidecar
	Prefixes []string // of owner fields, by owner. Only used where there is a Content.
	Now      int64    // ns: when it runs

	Floor  int64 // of the connection: a counter below it is lifted
	Fresh  int64 // what a counter continues above that is made or lifted: Redis's time in µs, or what the sidecar knows of tokens if that is later
	Expiry int64 // ns: how long token counters outlive their last use; 0: they do not expire

	Denied Denied

	// ReadOnly: the server is a replica. It executes what only reads, and refuses an operation as soon
	// as it would write.
	ReadOnly bool

	Migrates bool // the slot is on its way to another node: no command finds or makes a key that does not exist here

	Confirms bool // replicas confirm operations, so that each writes something

	SkipsLook bool // a Renew does not look for fields of others beside ours, as most do not

	LowersLateScores bool // a mutant: a ticket that is asked for again, and whose score is later than Redis's clock, gets the clock
	ArrivesByClock   bool // a mutant: a request arrives when Redis's clock says, also if that was set back

	Queue     *Queue                    // of the lock; nil: it has none, and no operation uses one
	Clock     int64                     // µs: what Redis's TIME returns
	Receivers func(sidecar Owner) int32 // how many connections receive what is published to a sidecar; nil: none
	Patterns  func(sidecar Owner) int32 // how many of them subscribe to a pattern, and are foreign clients; nil: none

	// What the rest of the run decides.

	NoMemory bool        // Redis grants no more memory, and the run has written nothing
	PassedOn bool        // the Drop before this Take in the same run passed the lock on
	LeftFree bool        // the same Drop left it free for a moment, and the Take must
	Next     *redisop.Op // the Take that follows this Drop in the same run; nil: none does
}

// Denied is what the ACL of Redis denies the user of the sidecar. Nothing is done of a
// command whose Key or Counter is denied.
type Denied struct {
	Key, Counter, Channel, Queue, Signs           bool // of this lock
	Sidecars                                      bool // the channels of sidecars
	Publish, PubSub, Type, Persist, PExpire, ZAdd bool // commands
}

// Publication is what became of the message of a release.
type Publication uint8

const (
	NotPublished  Publication = iota // nothing was released
	Published                        // to all subscribers
	PublishDenied                    // something was released, and the ACL denies to publish it
)

// Reply is what a command returns.
type Reply struct {
	Outcome     redisop.Outcome
	Code        string // of the error, if Outcome is Refused or Busy
	Token       uint64 // the last one drawn; 0: none
	Made        bool   // there was no token counter before
	Listeners   redisop.Listeners
	Counted     bool   // Listeners is what PUBSUB NUMSUB returned
	TTLMS       int64  // of the key, if Outcome is Other
	Change      Change // of the key
	Publication Publication

	// The queue: as in [redisop.Result].
	IsQueued     bool
	Rank         uint32
	Ticket       uint64
	Arrived      uint64
	FirstArrived uint64
	Recall       redisop.Recall
	Waiting      uint32
	Passed       bool
	Paused       bool
	LeftFree     bool
	Sent         []Sent // to sidecars, in this order

	Permits uint32 // as in [redisop.Result]
	Queues  uint8  // the same
}

// Run carries out a command on the key, the token counter and the channel of its lock.
func (c *Command) Run(key *Key, counter *Counter, channel *Channel) Reply {
	run := *c // to note what it has done
	return run.execute(key, counter, channel)
}

func (c *Command) execute(key *Key, counter *Counter, channel *Channel) Reply {
	op := c.Op
	if c.Denied.Key || op.Kind == redisop.Take && c.Denied.Counter {
		return refusal("NOPERM")
	}
	key.Expire(c.Now)
	if c.Queue != nil {
		c.Queue.expire(c.Now)
	}
	if op.Kind == redisop.Arrive {
		reply := Reply{Outcome: redisop.Done, Arrived: uint64(c.arrivalAt())}
		if c.hasTickets() {
			reply.FirstArrived = uint64(c.queue().Tickets[0].Time)
		}
		return reply
	}
	var sent []Sent
	standing := c.Standing(key)
	if c.ReadOnly && c.writes(standing) {
		reply := refusal("READONLY")
		if op.Kind == redisop.Drop && op.Ticket == 0 && c.hasTickets() && standing != Free && !standing.Ours() {
			c.notifyFirst(key, op.HoldID, &reply)
		}
		return reply
	}
	switch {
	case op.Kind == redisop.Take && c.LeftFree:
		reply := Reply{Outcome: redisop.HeldByOther, TTLMS: -1, LeftFree: true}
		c.refuse(key, channel, op.Ticket, &reply)
		return reply
	case op.Kind == redisop.Take && c.Migrates && standing == Free: // since the Drop before it
		return refusal("TRYAGAIN")
	case op.Kind == redisop.Drop && (c.hasTickets() || c.hasNextArrived()):
		notifies := op.Ticket == 0
		if c.hasTickets() {
			notifies = notifies || c.Queue.Rank(c.Owner, op.Ticket) == 0
			c.Queue.remove(c.Owner, op.Ticket)
		}
		if standing == Free || standing.Ours() {
			if reply, done := c.dropToQueue(key, counter, channel, standing != Free); done {
				return reply
			}
		} else if notifies && c.hasTickets() {
			var reply Reply
			c.notifyFirst(key, op.HoldID, &reply)
			sent = reply.Sent
		}
	case op.Kind == redisop.Take && op.Has(redisop.InOrder) && !op.Has(redisop.RequireExisting) && standing == Free && c.hasTickets():
		reply, done := c.takeInOrder(key, counter, channel)
		if done {
			return reply
		}
		sent = reply.Sent
	}
	if op.Kind == redisop.Renew && (standing == Shared || standing == SharedStructure) && c.SkipsLook && c.hasCount(key.Other) && !c.Denied.PExpire {
		key.ExpireAt = c.Now + int64(op.LeaseMS)*1e6
		return Reply{Outcome: redisop.Done}
	}
	verdict := Judge(op, standing)
	reply := Reply{Outcome: verdict.Outcome, Change: verdict.Change, Sent: sent}
	if verdict.Counts {
		reply.Listeners, reply.Counted = c.count(channel)
	}
	if verdict.Outcome == redisop.HeldByOther {
		reply.TTLMS = key.TTL(c.Now)
		if op.Kind == redisop.Take {
			c.refuse(key, channel, op.Ticket, &reply)
		}
	}
	expireAt := c.Now + int64(op.LeaseMS)*1e6
	if op.Kind == redisop.Take && standing == Earlier && op.Ticket != 0 && !op.Has(redisop.RequireExisting) && c.hasNumber(key, op.Ticket) {
		reply.Ticket = op.Ticket // to which the lock has passed: it keeps that number, and its lease is not shortened
		if key.ExpireAt != NoExpiry {
			expireAt = max(expireAt, key.ExpireAt)
		}
	}
	if verdict.Change == Write {
		if c.NoMemory && !standing.Ours() {
			return refusal("OOM")
		}
		if c.Denied.PExpire && standing.Ours() {
			return refusal("NOPERM")
		}
		if standing.Ours() {
			// The lease is extended before anything else. That needs no memory, and permits
			// the run to use some: what is ours can be renewed and handed over in a Redis
			// that is full.
			key.ExpireAt = expireAt
		}
	}
	if verdict.Draws {
		last, made, code := counter.draw(c, int64(op.Reserve))
		if code != "" {
			return refusal(code)
		}
		reply.Token, reply.Made = uint64(last), made
	}
	switch verdict.Change {
	case Write:
		if c.Denied.PExpire {
			return refusal("NOPERM") // a lock without an expiry must not stay
		}
		*key = Key{Owner: c.Owner, Num: cmp.Or(reply.Ticket, op.HoldID), Count: op.Count, ExpireAt: expireAt}
	case Remove:
		c.remove(key)
	}
	if verdict.Publishes {
		c.publish(channel, &reply)
	}
	if op.Kind == redisop.Take && reply.Outcome == redisop.Done && c.hasTickets() {
		c.Queue.remove(c.Owner, op.Ticket)
		reply.Waiting = uint32(len(c.Queue.Tickets))
	}
	return reply
}

// hasNumber reports whether our field, which is the only one, has a number.
func (c *Command) hasNumber(k *Key, num uint64) bool {
	if k.Other == nil {
		return k.Num == num
	}
	_, has := k.Other.Hash[fieldOf(c.Prefixes[c.Owner], num)]
	return has
}

// writes reports whether an operation runs a command that writes.
func (c *Command) writes(s Standing) bool {
	switch op := c.Op; op.Kind {
	case redisop.Drop:
		return true
	case redisop.Renew:
		return s.Ours()
	case redisop.Take:
		if s == Free {
			return !op.Has(redisop.RequireExisting)
		}
		return s.Ours() || op.Has(redisop.Enqueue) && (s == Foreign || s == Shared)
	}
	return false
}

// hasCount reports whether our field has the entries of the operation.
func (c *Command) hasCount(content *Content) bool {
	return content.Hash[fieldOf(c.Prefixes[c.Owner], c.Op.HoldID)] == strconv.FormatUint(uint64(c.Op.Count), 10)
}

func refusal(code string) Reply {
	reply := Reply{Outcome: redisop.Refused, Code: code}
	if code == "OOM" || code == "READONLY" || code == "TRYAGAIN" {
		reply.Outcome = redisop.Retryable
	}
	return reply
}

// remove deletes the owner's field.
func (c *Command) remove(key *Key) {
	if key.Other == nil || len(key.Other.Hash) == 1 {
		*key = NoKey
		return
	}
	rest := maps.Clone(key.Other.Hash)
	delete(rest, fieldOf(c.Prefixes[c.Owner], c.Op.HoldID))
	*key = NewKey(Content{Type: key.Other.Type, Hash: rest}, key.ExpireAt, c.Prefixes)
}

// count returns how many connections are subscribed to the channel, as far as the sidecar
// may ask. A subscriber of a pattern does not wait for the lock.
func (c *Command) count(channel *Channel) (listeners redisop.Listeners, counted bool) {
	if c.Denied.PubSub {
		return redisop.Listeners{State: redisop.Uncountable}, false
	}
	return redisop.CountedListeners(int32(len(channel.Subscribers))), true
}

// publish publishes a release, and counts the subscribers. That it reached none needs no
// permission to count.
func (c *Command) publish(channel *Channel, reply *Reply) {
	if c.Denied.Publish || c.Denied.Channel {
		reply.Publication, reply.Listeners = PublishDenied, redisop.Listeners{State: redisop.Unpublished}
		return
	}
	reply.Publication, reply.Listeners = Published, redisop.CountedListeners(0)
	if len(channel.Subscribers)+channel.Patterns > 0 {
		reply.Listeners, reply.Counted = c.count(channel)
	}
}

// Describe returns the owner field of a lock, or a description of what is there instead of
// a lock. The Redis of a user who may not ask for a type does not tell which one it is.
func Describe(k *Key, prefixes []string, denied Denied) string {
	if k.Other == nil {
		return fieldOf(prefixes[k.Owner], k.Num)
	}
	hash := k.Other.Hash
	if k.Other.Type != "hash" {
		kind := k.Other.Type
		if denied.Type {
			kind = "unknown"
		}
		return "a key of type " + kind + ", which is not a lock"
	}
	if field, isOwned := soleOwner(hash); isOwned {
		return field[:min(len(field), 256)]
	}
	if isSemaphore(hash) {
		return "a semaphore"
	}
	if isOtherKind(hash) {
		return "a read-write lock in mode " + hash["mode"]
	}
	fields := "fields"
	if len(hash) == 1 {
		fields = "field"
	}
	return fmt.Sprintf("a hash with %d %s, which is not a lock", len(hash), fields)
}
