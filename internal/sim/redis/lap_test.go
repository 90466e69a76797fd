package redis_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What a seed of the differential test draws.

// lap is one connection of one user, and what happens to it. It is data, so that parts of
// it can be left out.
type lap struct {
	seed   uint64
	user   string
	prefix string        // of keys
	expiry time.Duration // of token counters
	rounds []round
}

// round is what changes in Redis, and the batch of operations that is issued then.
type round struct {
	changes []change
	subs    []subscription
	forget  bool // SCRIPT FLUSH
	full    bool // maxmemory is exhausted
	demoted bool // Redis is a replica. The session ends with this round
	ops     []redisop.Op
}

// change is what stands under a key from now on.
type change struct {
	key     string
	tickets []place // of a queue
	asked   []place // of the signs of a queue
	kind    string  // of content; "": the key is deleted
	hash    map[string]string
	text    string        // of a list, a set, …: the one element
	number  *tokenValue   // of a string; nil: text
	ttl     time.Duration // 0: none
	expired bool          // it was there, and its time to live has just ended
}

// place is a ticket of a queue, or the sign of a sidecar.
type place struct {
	owner redis.Owner
	num   uint64
	age   time.Duration // how long before the change the ticket came, or the sidecar asked
}

// tokenValue is a value of a token counter: relative to the floor of the connection, or
// absolute.
type tokenValue struct {
	relative bool
	n        int64
}

func (v *tokenValue) above(floor int64) int64 {
	if v.relative {
		return floor + v.n
	}
	return v.n
}

// subscription begins or ends.
type subscription struct {
	subscriber int
	channel    string // "": the pattern that matches all
	on         bool
}

// forbidden is a name that some users may not use.
const forbidden = "forbidden"

// lockNames has names that share a counter and a channel with another one.
var lockNames = []string{
	"a", "{a}", "b", "order:{42}:x", "odd{", "odd}", "{odd}}", "größe 1", "*?[^x]\\", forbidden,
	strings.Repeat("long", 128),
}

// keyPrefixes are prefixes of keys. The last one has a hash tag, so that names get no
// braces.
var keyPrefixes = []string{"", "app 1:", "*[{app}]:"}

func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("many:", i)
	}
	return names
}

// user is what the ACL denies one user of Redis. forbidden is the key of the lock that is
// forbidden to some.
type user struct {
	key     func(forbidden string) string // one key; nil: none
	channel func(forbidden string) string // one channel; nil: none
	denied  redis.Denied
}

var users = map[string]user{
	"all":         {},
	"nokey":       {key: func(forbidden string) string { return forbidden }},
	"nocounter":   {key: redis.CounterName},
	"nochannel":   {channel: redis.ChannelName},
	"nopublish":   {denied: redis.Denied{Publish: true}},
	"nopubsub":    {denied: redis.Denied{PubSub: true}},
	"notype":      {denied: redis.Denied{Type: true}},
	"nopersist":   {denied: redis.Denied{Persist: true}},
	"nopexpire":   {denied: redis.Denied{PExpire: true}},
	"nopexpireat": {},
	"noload":      {},
	"noqueue":     {key: redis.QueueName},
	"nosigns":     {key: redis.SignsName},
	"nosidecar":   {denied: redis.Denied{Sidecars: true}},
	"nozadd":      {denied: redis.Denied{ZAdd: true}},
	"noexists":    {},
	"noinfo":      {},
}

// deniedOf returns what the ACL denies a user of the lock with this key.
func deniedOf(name, prefix, key string) redis.Denied {
	u := users[name]
	denied := u.denied
	if u.key != nil {
		denied.Key = u.key(prefix+forbidden) == key
		denied.Counter = u.key(prefix+forbidden) == redis.CounterName(key)
		denied.Queue = u.key(prefix+forbidden) == redis.QueueName(key)
		denied.Signs = u.key(prefix+forbidden) == redis.SignsName(key)
	}
	if u.channel != nil {
		denied.Channel = u.channel(prefix+forbidden) == redis.ChannelName(key)
	}
	return denied
}

// aclUser is the name of a user in Redis. One user may use different keys with each prefix.
func aclUser(user, prefix string) string {
	return fmt.Sprint(user, slices.Index(keyPrefixes, prefix))
}

// aclOf returns the ACL rules of a user.
func aclOf(user, prefix string) []string {
	literal := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "^", `\^`, " ", "?")
	// A derived key or a channel of a lock of the many.
	many := func(derived func(string) string) string {
		return strings.TrimSuffix(literal.Replace(derived(prefix+"many:")), "}") + "*"
	}
	except := func(key string) (rules []string) {
		for _, name := range lockNames {
			for _, k := range []string{prefix + name, redis.CounterName(prefix + name), redis.QueueName(prefix + name), redis.SignsName(prefix + name)} {
				if k != key {
					rules = append(rules, "~"+literal.Replace(k))
				}
			}
		}
		return append(rules, "~"+literal.Replace(prefix)+"many:*", "~"+many(redis.CounterName), "~"+many(redis.QueueName), "~"+many(redis.SignsName), "&*", "+@all")
	}
	switch user {
	case "nokey", "nocounter", "noqueue", "nosigns":
		return except(users[user].key(prefix + forbidden))
	case "nochannel", "nosidecar":
		rules := []string{"~*", "+@all", "&" + many(redis.ChannelName)}
		if user == "nochannel" {
			rules = append(rules, "&"+redis.SidecarChannel("*"))
		}
		for _, name := range lockNames {
			if name != forbidden || user == "nosidecar" {
				rules = append(rules, "&"+literal.Replace(redis.ChannelName(prefix+name)))
			}
		}
		return rules
	case "nopexpire":
		return []string{"~*", "&*", "+@all", "-pexpire", "-pexpireat"}
	case "noload":
		return []string{"~*", "&*", "+@all", "-script"}
	case "all":
		return []string{"~*", "&*", "+@all"}
	}
	return []string{"~*", "&*", "+@all", "-" + strings.TrimPrefix(user, "no")}
}

// dice is everything that the seed decides.
type dice struct{ *rand.Rand }

func (r dice) oneIn(n int) bool { return r.IntN(n) == 0 }

func pick[T any](r dice, from ...T) T { return from[r.IntN(len(from))] }

const (
	ourUUID   = "11111111-2222-8333-8444-555555555555"
	otherUUID = "99999999-8888-8777-8666-555555555555"
	thirdUUID = "aaaaaaaa-8888-7777-6666-555555555555" // of an older sidecar

	runMax   = 128                  // operations that one run of a script carries out, at most
	farAhead = 366 * 24 * time.Hour // a counter further ahead of Redis's clock raises no floor

	// A token of a counter that was made by now is less than this ahead of Redis's clock; a
	// counter of a lap that is ahead is ahead by more.
	aheadOfClock = 30 * time.Second
)

func field(uuid string, num uint64) string { return fmt.Sprintf("%s:%d", uuid, num) }

const week = 7 * 24 * time.Hour

func drawLap(seed uint64, inProcess bool) lap {
	r := dice{rand.New(rand.NewPCG(seed, 0x64696666))}
	l := lap{seed: seed, user: "all", expiry: pick(r, 0, week)}
	if !r.oneIn(3) {
		names := slices.Sorted(maps.Keys(users))
		l.user = names[r.IntN(len(names))]
	}
	if inProcess {
		l.user = "all" // it has no users
	}
	// Hold numbers: few, so that they meet; decimals of different lengths; or the largest.
	base := pick[uint64](r, 1, 8, 998, 1<<53-8)
	l.prefix = pick(r, keyPrefixes...)
	for range 1 + r.IntN(12) {
		l.rounds = append(l.rounds, drawRound(r, l.user, l.prefix, base, inProcess))
	}
	if last := &l.rounds[len(l.rounds)-1]; l.user == "all" && !inProcess && len(last.ops) < runMax {
		last.demoted = r.oneIn(3) && !slices.ContainsFunc(l.rounds, func(rd round) bool { return rd.forget })
		last.full = last.full && !last.demoted
	}
	return l
}

func drawRound(r dice, user, prefix string, base uint64, inProcess bool) round {
	var rd round
	names := slices.Clone(lockNames)
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:1+r.IntN(pick(r, 2, 4, len(names)))]
	if r.oneIn(40) {
		many := 2*runMax + r.IntN(runMax)
		if inProcess { // it visits every key at each command
			many /= 16
		}
		names = append(names, manyNames(many)...)
	}
	for _, name := range names {
		if !r.oneIn(3) {
			rd.changes = append(rd.changes, drawKey(r, prefix+name, base, inProcess))
		}
		if r.oneIn(2) {
			rd.changes = append(rd.changes, drawCounter(r, redis.CounterName(prefix+name)))
		}
		if r.oneIn(2) {
			rd.changes = append(rd.changes, drawQueue(r, redis.QueueName(prefix+name), base))
		}
		if r.oneIn(3) {
			rd.changes = append(rd.changes, drawSigns(r, redis.SignsName(prefix+name)))
		}
	}
	for _, name := range names[:min(len(names), 11)] {
		if r.oneIn(4) {
			rd.subs = append(rd.subs, subscription{r.IntN(2), redis.ChannelName(prefix + name), r.oneIn(2)})
		}
	}
	if r.oneIn(12) {
		rd.subs = append(rd.subs, subscription{2, "", r.oneIn(2)})
	}
	for _, uuid := range uuids {
		if r.oneIn(2) {
			rd.subs = append(rd.subs, subscription{r.IntN(2), redis.SidecarChannel(uuid), !r.oneIn(3)})
		}
	}
	rd.forget = r.oneIn(12)
	rd.full = !inProcess && r.oneIn(8)

	leases := []uint32{uint32(pick(r, 3_600_000, 7_200_000, 4_000_000_000))}
	if r.oneIn(4) {
		leases = append(leases, 5_400_000)
	}
	num := func() uint64 { return base + r.Uint64N(6) }
	ticket := func() uint64 { return pick(r, 0, num(), num()) }
	dropLease := pick(r, 0, leases[0], leases[0], leases[0], 5_400_000)
	// of a Drop
	drop := func(op *redisop.Op) {
		op.LeaseMS = dropLease
		if r.oneIn(2) {
			op.Ticket = ticket()
		}
		op.PassedMS = pick[uint32](r, 0, 0, 0, 49, 50, 99, 100, 1<<31)
	}
	// of a Take
	wait := func(op *redisop.Op) {
		if op.Set(redisop.Enqueue, !r.oneIn(3)); op.Has(redisop.Enqueue) {
			op.Set(redisop.InOrder, r.oneIn(3))
			op.Ticket = pick(r, 0, ticket())
			if r.oneIn(3) { // an age, see round.at
				op.Flags, op.Arrived = op.Flags|redisop.InOrder, uint64(drawAge(r)/time.Microsecond)
			}
		}
	}
	for _, name := range names {
		op := redisop.Op{Name: name, HoldID: num(), Count: 1, LeaseMS: pick(r, leases...)}
		if r.oneIn(4) {
			op.Count = pick[uint32](r, 2, 3, 1<<31)
		}
		switch x := r.IntN(100); {
		case x < 40:
			op.Kind, op.Reserve = redisop.Take, 1
			if r.oneIn(3) {
				op.Reserve = pick[uint16](r, 0, 2, 64)
			}
			op.Set(redisop.RequireExisting, r.oneIn(4))
			op.Set(redisop.CountListeners, r.oneIn(3))
			op.Set(redisop.AfterPendingDrop, r.oneIn(16)) // its Drop was asked for in an earlier batch
			wait(&op)
		case x < 60:
			op.Kind = redisop.Renew
		case x < 68:
			op.Kind, op.LeaseMS = redisop.Check, 0
		case x < 72:
			op = redisop.Op{Kind: redisop.Arrive, Name: name}
		case x < 84:
			op.Kind, op.Count = redisop.Drop, 1
			drop(&op)
		default:
			first := redisop.Op{Kind: redisop.Drop, Name: name, HoldID: op.HoldID, Count: 1}
			drop(&first)
			op.Kind, op.HoldID, op.Count, op.Reserve, op.Flags = redisop.Take, op.HoldID+1+r.Uint64N(2), 1, 1, redisop.AfterPendingDrop
			if r.oneIn(4) {
				op.Reserve = pick[uint16](r, 2, 64)
			}
			op.Set(redisop.CountListeners, r.oneIn(4))
			if wait(&op); len(names) > runMax || len(leases) > 1 || users[user].key != nil || rd.full {
				// The test cannot see whether one run had both, and memory; other messages are sent
				// then.
				op.Arrived = 0
			}
			rd.ops = append(rd.ops, first)
		}
		rd.ops = append(rd.ops, op)
	}
	// Operations on different locks come in any order.
	for range r.IntN(2) * len(rd.ops) {
		i, j := r.IntN(len(rd.ops)), r.IntN(len(rd.ops))
		if rd.ops[i].Kind != redisop.Drop && rd.ops[j].Kind != redisop.Drop && !rd.ops[i].Has(redisop.AfterPendingDrop) && !rd.ops[j].Has(redisop.AfterPendingDrop) {
			rd.ops[i], rd.ops[j] = rd.ops[j], rd.ops[i]
		}
	}
	return rd
}

// drawKey is what stands under the key of a lock.
func drawKey(r dice, key string, base uint64, inProcess bool) change {
	c := change{key: key, kind: "hash", ttl: pick(r, 0, 90*time.Minute, 300*time.Hour), expired: r.oneIn(10)}
	ours := func() string { return field(ourUUID, base+r.Uint64N(7)) }
	count := func() string { return pick(r, "1", "1", "1", "2", "3", "2147483648", "x", "") }
	switch x := r.IntN(20); {
	case x < 3:
		return change{key: key}
	case x < 11:
		c.hash = map[string]string{ours(): count()}
	case x < 13:
		c.hash = map[string]string{field(otherUUID, base+r.Uint64N(7)): count()}
	case x == 13: // nearly ours
		c.hash = map[string]string{pick(r, ours()+":write", "x"+ours(), ourUUID+":", ourUUID+":x", ourUUID,
			ourUUID+":0"+strconv.FormatUint(base, 10), "", "mode", "f:7x", "f:-7", "f:7:x", otherUUID+":x"): pick(r, "1", "read")}
		if !inProcess && r.oneIn(4) { // whose Lua reads no such number
			c.hash = map[string]string{ourUUID + ":18446744073709551617": "1"}
		}
	case x < 17: // several fields
		c.hash = map[string]string{ours(): count()}
		more := pick(r, field(otherUUID, 7), "mode", "mode", "z", ours())
		c.hash[more] = pick(r, "read", "write", "permits 1 2 3 4", "1", strings.Repeat("m", 40))
		if r.oneIn(3) {
			c.hash = map[string]string{more: "read", "y": "2", "z": "3"}
		}
	case x == 17:
		c.hash = map[string]string{pick(r, strings.Repeat("f", 300), "\x1b[2J\xff\r\n:1", strings.Repeat("ü", 200)): "1"}
	default:
		c.kind, c.text = pick(r, "string", "list", "set", "zset", "stream"), "x"
	}
	return c
}

// drawQueue is what stands under the key of a queue.
func drawQueue(r dice, key string, base uint64) change {
	c := change{key: key, kind: "zset", ttl: pick(r, 0, 5*time.Minute, 20*time.Minute), expired: r.oneIn(12)}
	if r.oneIn(5) {
		return change{key: key}
	}
	if r.oneIn(12) {
		c.kind, c.text = pick(r, "string", "list", "set", "stream"), "x"
		return c
	}
	n := uint64(1 + r.IntN(5))
	if r.oneIn(30) { // about as many as one operation looks at
		n = 125 + r.Uint64N(8)
		for i := range n {
			c.tickets = append(c.tickets, place{2, base + 10 + i, time.Hour + time.Duration(n-i)*time.Second})
		}
		n = 2
	}
	for range n {
		c.tickets = append(c.tickets, place{redis.Owner(r.IntN(3)), base + r.Uint64N(7), drawAge(r)})
	}
	return c
}

// drawSigns is what stands under the key of a queue's signs.
func drawSigns(r dice, key string) change {
	c := change{key: key, kind: "hash", ttl: pick(r, 0, 5*time.Minute, 20*time.Minute), expired: r.oneIn(12)}
	if r.oneIn(12) {
		c.kind, c.text = pick(r, "string", "list", "set", "zset", "stream"), "x"
		return c
	}
	for range 1 + r.IntN(3) {
		c.asked = append(c.asked, place{owner: redis.Owner(r.IntN(3)), age: drawAge(r)})
	}
	return c
}

// drawAge is how long ago a sidecar came or asked. It may be in the future of a clock that was
// set back.
func drawAge(r dice) time.Duration {
	return pick(r, 100*time.Millisecond, 9*time.Second, 17*time.Second, 17*time.Second, time.Hour, -time.Hour) + time.Duration(r.IntN(3))*time.Microsecond
}

// drawCounter is what stands under the name of a token counter.
func drawCounter(r dice, key string) change {
	c := change{key: key, kind: "string", ttl: pick(r, 0, 0, 3*time.Hour, 6*24*time.Hour, week-2*time.Hour, 20*week), expired: r.oneIn(12)}
	switch r.IntN(12) {
	case 0, 1, 2:
		return change{key: key}
	case 3, 4:
		c.number = &tokenValue{n: pick[int64](r, 1, 17, -5, 0, 1_000_000)}
	case 5, 6:
		c.number = &tokenValue{relative: true, n: pick[int64](r, -1, 1) * int64(pick(r, time.Minute, time.Hour, 24*time.Hour)/time.Microsecond)}
	case 7, 8: // absurdly far ahead
		c.number = &tokenValue{relative: true, n: 2 * int64(farAhead/time.Microsecond)}
	case 9:
		c.number = &tokenValue{n: pick[int64](r, 1<<52, 1<<53-1, 1<<53+1000, 1<<62)}
	case 10:
		c.text = pick(r, "seventeen", "1.5", "", " 1", "9223372036854775808")
	default:
		if c.kind = pick(r, "hash", "list", "set", "zset", "stream"); c.kind == "hash" {
			c.hash = map[string]string{"f": "x"}
		} else {
			c.text = "x"
		}
	}
	return c
}
