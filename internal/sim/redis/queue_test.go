package redis_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The queues of the differential test, and the messages to sidecars.

// uuids are those of the sidecars, by owner and in order.
var uuids = []string{ourUUID, otherUUID, thirdUUID}

var prefixes = []string{ourUUID + ":", otherUUID + ":", thirdUUID + ":"}

// queueOf returns the lock that a key is the queue of, or the signs of.
func queueOf(key string) (lock string, signs, ok bool) {
	rest, ok := strings.CutPrefix(key, "locksidecar_queue:")
	if !ok {
		rest, ok = strings.CutPrefix(key, "locksidecar_signs:")
		signs = ok
	}
	if lock, tagged := strings.CutPrefix(rest, ":"); tagged {
		return lock, signs, ok
	}
	return strings.TrimSuffix(strings.TrimPrefix(rest, "{"), "}"), signs, ok
}

// queue returns the queue of a lock, which is known exactly.
func (s *contents) queue(lock string) *redis.Queue {
	if s.queues[lock] == nil {
		s.queues[lock] = []*redis.Queue{{}}
	}
	return s.queues[lock][0]
}

// setQueue is what a change of a queue or its signs does, at a time of Redis, µs.
func (s *contents) setQueue(c *change, now int64) {
	lock, signs, _ := queueOf(c.key)
	q := s.queue(lock)
	exists := c.kind != "" && !c.expired
	if signs {
		q.SignsBroken, q.Signs, q.SignsExpireAt = exists && c.text != "", nil, expiry(c.ttl)
		if exists && !q.SignsBroken {
			q.Signs = c.signsAt(now)
		}
		return
	}
	q.Broken, q.Tickets, q.ExpireAt = exists && c.text != "", nil, expiry(c.ttl)
	if exists && !q.Broken {
		for _, t := range c.ticketsAt(now) {
			q.Add(t)
		}
	}
}

func (c *change) ticketsAt(now int64) (tickets []redis.Ticket) {
	for _, t := range c.tickets {
		tickets = append(tickets, redis.Ticket{Owner: t.owner, Num: t.num, Time: now - t.age.Microseconds()})
	}
	return tickets
}

func (c *change) signsAt(now int64) map[redis.Owner]int64 {
	signs := make(map[redis.Owner]int64)
	for _, s := range c.asked {
		signs[s.owner] = (now - s.age.Microseconds()) / 1e6
	}
	return signs
}

// write puts a queue or its signs into Redis.
func (c *change) writeQueue(pipe goredis.Pipeliner, now int64) {
	for _, t := range c.ticketsAt(now) {
		pipe.ZAdd(ctx, c.key, goredis.Z{Score: float64(t.Time), Member: field(uuids[t.Owner], t.Num)})
	}
	for owner, at := range c.signsAt(now) {
		pipe.HSet(ctx, c.key, uuids[owner], at)
	}
}

// readQueue is what Redis has under the key of a queue or of its signs: members and scores,
// or fields and values; nil: it is of another type.
func (s *contents) readQueue(key string, parts []any, expireAt int64) error {
	lock, signs, _ := queueOf(key)
	q := s.queue(lock)
	switch {
	case parts == nil && signs:
		q.SignsBroken, q.SignsExpireAt = true, expireAt
		return nil
	case parts == nil:
		q.Broken, q.ExpireAt = true, expireAt
		return nil
	case signs:
		q.Signs, q.SignsExpireAt = make(map[redis.Owner]int64), expireAt
	default:
		q.ExpireAt = expireAt
	}
	for i := 0; i < len(parts); i += 2 {
		member := parts[i].(string)
		n, err := strconv.ParseFloat(parts[i+1].(string), 64)
		uuid, digits, _ := strings.Cut(member, ":")
		owner := redis.Owner(slices.Index(uuids, uuid))
		if err != nil || owner == redis.NoOwner {
			return fmt.Errorf("under %q there is %q: %v", key, member, parts[i+1])
		}
		if signs {
			q.Signs[owner] = int64(n)
			continue
		}
		num, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			return fmt.Errorf("under %q there is a ticket %q", key, member)
		}
		q.Tickets = append(q.Tickets, redis.Ticket{Owner: owner, Num: num, Time: int64(n)})
	}
	return nil
}

// crosses reports whether a ticket or a sign of the queues gets too old between two times of
// Redis, µs: what the script did depends on when it ran.
func (s *contents) crosses(from, to int64) bool {
	for _, queues := range s.queues {
		q := queues[0]
		ages := make([]int64, 0, len(q.Tickets)+len(q.Signs))
		for _, t := range q.Tickets {
			ages = append(ages, t.Time)
		}
		for _, at := range q.Signs {
			ages = append(ages, at*1e6)
		}
		if slices.ContainsFunc(ages, func(at int64) bool { return from-at <= 15e6 && to-at > 15e6 }) {
			return true
		}
	}
	return false
}

// maxSteps is more than the tickets that one batch puts into a queue, each 1 µs after the one before it.
const maxSteps = 64

// sameQueue compares what Redis has with what the model may have. Tickets and signs that the
// model made at a time may have been made up to slack later, µs.
func sameQueue(want, got *redis.Queue, at, slack int64, near func(got, want int64) bool) bool {
	// The model may have put a ticket before one that Redis put it after.
	sameTickets := slices.EqualFunc(want.Tickets, got.Tickets, func(w, g redis.Ticket) bool {
		return w.Owner == g.Owner && w.Num == g.Num && (w.Time == g.Time || at <= w.Time && w.Time < at+maxSteps && w.Time <= g.Time && g.Time <= w.Time+slack)
	})
	sameSigns := maps.EqualFunc(want.Signs, got.Signs, func(w, g int64) bool {
		return w == g || w == at/1e6 && g >= w && g <= (at+slack)/1e6
	})
	return sameTickets && sameSigns && want.Broken == got.Broken && want.SignsBroken == got.SignsBroken &&
		(len(got.Tickets) == 0 && !got.Broken || near(got.ExpireAt, want.ExpireAt)) &&
		(len(got.Signs) == 0 && !got.SignsBroken || near(got.SignsExpireAt, want.SignsExpireAt))
}

// receivers returns how many connections receive what is published to a sidecar.
func (r *lapRun) receivers(to redis.Owner) int32 {
	c := r.contents.channel(redis.SidecarChannel(uuids[to]))
	n := int32(len(c.Subscribers) + c.Patterns)
	if to == 0 {
		n += r.storeSubscribes
	}
	return n
}

// patterns returns how many of them subscribe to a pattern.
func (r *lapRun) patterns(to redis.Owner) int32 {
	return int32(r.contents.channel(redis.SidecarChannel(uuids[to])).Patterns)
}

// expectation is one message to a sidecar, or more than one where that depends on what the
// test cannot see.
type expectation struct {
	channel string
	texts   []pattern
}

// pattern is the text of a message, with a number in it that may be from least to most; 0:
// there is none.
type pattern struct {
	before, after string
	least, most   uint64
}

// newExpectation is the message that a server with this origin publishes. Older sidecars get no
// origin.
func newExpectation(sent *redis.Sent, slack int64, origin string) expectation {
	var p pattern
	isOlder := uuids[sent.To][14] != '8'
	word := func(word string) string {
		if isOlder {
			return word + " "
		}
		return word + ":" + origin + " "
	}
	switch m := &sent.Message; m.Kind {
	case redisop.Transferred:
		p.before = fmt.Sprintf("%s%d ", word("transfer"), m.Ticket)
		tokens := m.Tokens
		if isOlder {
			tokens = min(tokens, redisop.PassedTokensOld)
		}
		p.after = fmt.Sprintf(" %d %d %d %d %s", tokens, m.LeaseMS, m.Waiting, m.PassedMS, m.Name)
		p.least, p.most = m.LastToken, m.LastToken+uint64(slack)
	case redisop.Recalled:
		p.before = word("recall") + m.Name
	case redisop.Freed:
		p.before = fmt.Sprintf("%s%d %s", word("free"), m.PauseMS, m.Name)
	case redisop.Requeue:
		p.before = word("requeue")
		if !isOlder {
			p.before += fmt.Sprintf("%d ", m.Ticket)
		}
		p.before += m.Name
	default:
		panic("a message that no script publishes")
	}
	return expectation{redis.SidecarChannel(uuids[sent.To]), []pattern{p}}
}

func (p *pattern) matches(payload string) bool {
	if p.least == 0 {
		return payload == p.before
	}
	rest, begins := strings.CutPrefix(payload, p.before)
	digits, ends := strings.CutSuffix(rest, p.after)
	n, err := strconv.ParseUint(digits, 10, 64)
	return begins && ends && err == nil && strconv.FormatUint(n, 10) == digits && n >= p.least && n <= p.most
}

func (e *expectation) matches(payload string) bool {
	return slices.ContainsFunc(e.texts, func(p pattern) bool { return p.matches(payload) })
}

// merge adds to what is expected what else may be.
func merge(expected, more []expectation) error {
	same := func(a, b expectation) bool { return a.channel == b.channel }
	if !slices.EqualFunc(expected, more, same) {
		return fmt.Errorf("the model publishes %+v or %+v", expected, more)
	}
	for i := range expected {
		expected[i].texts = add(expected[i].texts, more[i].texts[0])
	}
	return nil
}

// compareToSidecars compares the messages to sidecars that a subscriber of some channels has
// received with those that the model published. all: it is subscribed to all of them.
func compareToSidecars(received map[string][]string, published []expectation, on func(channel string) bool) error {
	for i := range published {
		e := &published[i]
		if !on(e.channel) {
			continue
		}
		got := received[e.channel]
		if len(got) == 0 || !e.matches(got[0]) {
			return fmt.Errorf("on %s a subscriber received %q, the model published %+v", e.channel, got, *e)
		}
		received[e.channel] = got[1:]
	}
	for channel, rest := range received {
		if len(rest) > 0 {
			return fmt.Errorf("on %s a subscriber received %q more than the model published", channel, rest)
		}
	}
	return nil
}
