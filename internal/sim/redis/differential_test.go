package redis_test

// The differential test of the scripts: random operations on random contents of Redis,
// carried out by the store in a real Redis and by the model. Both must agree on all that
// they return and leave: each result, each key with its content and its expiry, each token
// counter, and how often a release was published on each channel.
//
// A seed draws a lap: one store, whose Redis user may lack a permission, and some rounds,
// each of which changes what is in Redis and then issues one batch of operations
// (lap_test.go). A lap that fails is repeated with fewer rounds and operations, as long as
// it still fails, and the rest is printed (shrink_test.go).
//
//	go test ./internal/sim/redis -run 'TestScriptsBehaveAsTheirModel' -diff.seed=1000000 -diff.laps=100000   search for a failure
//	go test ./internal/sim/redis -run 'TestScriptsBehaveAsTheirModel/redis' -diff.seed=4711                  one lap

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

var (
	diffSeed = flag.Uint64("diff.seed", 0, "run the lap of this one seed (with -diff.laps: start a search there)")
	diffLaps = flag.Int("diff.laps", 0, "search: run this many laps with each kind of Redis")
)

// Shows docs/guarantees.md: A host dies that waits for a lock.
// Shows docs/queue.md: Transfers.
func TestScriptsBehaveAsTheirModel(t *testing.T) {
	withBackends(t, func(t *testing.T, b backend) {
		d := newDifferential(t, b)
		laps, first := 300, uint64(1)
		switch {
		case *diffLaps > 0:
			laps, first = *diffLaps, max(first, *diffSeed)
		case *diffSeed > 0:
			laps, first = 1, *diffSeed
		case testing.Short():
			laps = 100
		}
		if b.inProcess() { // its Lua is slow
			laps = (laps + 15) / 16
		}
		rounds, ops := 0, 0
		for seed := first; seed < first+uint64(laps); seed++ {
			l := drawLap(seed, b.inProcess())
			if err := d.run(l, nil); err != nil {
				t.Fatal(d.report(l, err))
			}
			rounds += len(l.rounds)
			for i := range l.rounds {
				ops += len(l.rounds[i].ops)
			}
		}
		t.Logf("%d laps, %d rounds, %d operations", laps, rounds, ops)
	})
}

// differential is one Redis, and what the test needs of it.
type differential struct {
	backend
	subscribers [3]*subscriber
	marks       int // published so far
}

// subscriber is one connection that may be subscribed. The last one is to a pattern.
type subscriber struct {
	pubsub *goredis.PubSub
	on     map[string]bool
}

const everyChannel = "redisson_lock__channel:*"

func newDifferential(t *testing.T, b backend) *differential {
	d := &differential{backend: b}
	if !b.inProcess() {
		for user := range users {
			for _, prefix := range keyPrefixes {
				args := append([]string{"reset", "resetchannels", "on", ">secret"}, aclOf(user, prefix)...)
				must(b.admin.ACLSetUser(ctx, aclUser(user, prefix), args...).Result())
			}
		}
	}
	for i := range d.subscribers {
		// A subscription of something that is never published, so that the connection stays.
		p := b.admin.Subscribe(ctx, "nothing")
		t.Cleanup(func() { p.Close() })
		must(p.Receive(ctx))
		d.subscribers[i] = &subscriber{pubsub: p, on: make(map[string]bool)}
	}
	return d
}

func (d *differential) url(l *lap) string {
	if d.inProcess() {
		return d.backend.url
	}
	return fmt.Sprintf("unix://%s:secret@%s", aclUser(l.user, l.prefix), d.socket)
}

// lapRun is one lap as it runs. The model's clock stands at 0: what is left of a time to live
// when Redis is read is when the key expires.
type lapRun struct {
	*differential
	lap
	store    *store.Store
	results  chan delivery
	floor    int64         // tokens of the connection are above it
	start    int64         // of Redis's clock: what ages of the round are before; µs
	clock    int64         // of Redis, before the batch; µs
	demoted  bool          // it is a replica
	identity wire.Identity // what the store knows of tokens
	contents contents
	since    time.Time        // no time to live in contents is from before it
	unloaded bool             // the store may have to load the script of renewals, so that they run after others
	log      *strings.Builder // nil: none is written

	origin          string // of the messages of the store
	storeSubscribes int32  // how many connections of the store are subscribed to its sidecar's channel
}

// delivery is one Event with results.
type delivery struct {
	results []redisop.Result
	raised  *wire.Identity
}

// errCrossed: a ticket got too old while a batch was carried out.
var errCrossed = errors.New("a ticket got too old while a batch was carried out")

// run runs a lap, and returns the first difference.
func (d *differential) run(l lap, log *strings.Builder) (err error) {
	for err = errCrossed; errors.Is(err, errCrossed); {
		err = d.runOnce(l, log)
	}
	return err
}

// awaitNoStore waits until Redis has noticed that the connection of the store of the lap before has
// ended, which counts as a subscriber before. The test itself is subscribed to nothing now.
func (d *differential) awaitNoStore() error {
	ours := redis.SidecarChannel(ourUUID)
	look := time.NewTicker(100 * time.Microsecond)
	defer look.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-look.C {
		counts, err := d.admin.PubSubNumSub(ctx, ours).Result()
		if err != nil || counts[ours] == 0 {
			return err
		}
	}
	return errors.New("the store of the lap before is still subscribed")
}

func (d *differential) runOnce(l lap, log *strings.Builder) (err error) {
	d.admin.FlushAll(ctx)
	r := &lapRun{differential: d, lap: l, results: make(chan delivery, 1000), since: time.Now(), log: log}
	r.contents = newContents(make(map[string]*redis.Channel))
	for _, s := range d.subscribers {
		for channel := range s.on {
			if err := s.subscribe(channel, false); err != nil {
				return err
			}
		}
	}
	if err := d.awaitNoStore(); err != nil {
		return err
	}
	up := make(chan wire.Identity, 1)
	r.store, err = store.Open(store.Config{
		URL: d.url(&l), KeyPrefix: l.prefix, UUID: ourUUID, TokenExpiry: l.expiry, Timeout: patience,
		OnEvent: func(e store.Event) {
			switch e.Kind {
			case store.Results:
				r.results <- delivery{e.Results, e.ID}
			case store.Up:
				up <- *e.ID
			}
		},
	})
	if err != nil {
		return err
	}
	defer r.store.Close(ctx)
	select {
	case r.identity = <-up:
		r.floor = r.identity.Floor
	case <-time.After(patience):
		return errors.New("the store does not connect")
	}
	if r.origin = "-"; l.user != "noinfo" {
		_, id, _ := strings.Cut(must(d.admin.Info(ctx, "server").Result()), "run_id:")
		r.origin = id[:8]
	}
	ours := redis.SidecarChannel(ourUUID)
	r.storeSubscribes = int32(must(d.admin.PubSubNumSub(ctx, ours).Result())[ours])
	for i := range l.rounds {
		if err := r.round(&l.rounds[i]); err != nil {
			return fmt.Errorf("round %d: %w", i+1, err)
		}
	}
	return nil
}

func (r *lapRun) note(format string, args ...any) {
	if r.log != nil {
		fmt.Fprintf(r.log, format+"\n", args...)
	}
}

// birth returns what new counters begin above now, as far as the store knows tokens.
func (r *lapRun) birth() int64 {
	elapsed := (protocol.Now() - r.identity.FloorAt) / 1000
	return r.identity.Floor + elapsed - elapsed/100
}

// raise takes what the store has learnt of tokens. Those that are ahead of Redis's clock
// raise the floor of the connection.
func (r *lapRun) raise(raised *wire.Identity, clock int64) error {
	if raised == nil {
		return nil
	}
	if raised.Floor <= r.identity.Floor || raised.FloorAt < r.identity.FloorAt {
		return fmt.Errorf("what is known of tokens fell from %+v to %+v", r.identity, *raised)
	}
	r.identity = *raised
	if raised.Floor > clock+int64(aheadOfClock/time.Microsecond) {
		r.floor = max(r.floor, raised.Floor)
	}
	return nil
}

func (r *lapRun) round(rd *round) error {
	floor, birth := r.floor, r.birth()
	before, err := r.prepare(rd)
	if err != nil {
		return err
	}
	rd = rd.at(r.start)
	r.clock = before
	calls := r.publishCalls()
	r.note("a batch (scripts forgotten: %v, memory exhausted: %v, a replica: %v), after", rd.forget, rd.full, rd.demoted)
	for _, c := range rd.changes {
		r.note("    %s", r.contents.show(c.key))
	}
	if rd.full {
		must(r.admin.ConfigSet(ctx, "maxmemory", "1").Result())
	}
	if r.demoted = rd.demoted; rd.demoted {
		must(r.admin.Keys(ctx, "*").Result()) // deletes what has expired: a replica does not
		must(r.admin.ReplicaOf(ctx, "127.0.0.1", "1").Result())
		defer func() { must(r.admin.ReplicaOf(ctx, "no", "one").Result()) }()
	}
	sent := protocol.Now()
	r.store.Do(slices.Clone(rd.ops)) // which owns what it is given
	results, raised, err := r.collect(len(rd.ops))
	answered := protocol.Now()
	if rd.full {
		must(r.admin.ConfigSet(ctx, "maxmemory", "0").Result())
	}
	if err != nil {
		return err
	}
	since := r.since
	r.since = time.Now()
	found, after, err := r.look()
	elapsed := time.Since(since).Milliseconds() + 2
	if err != nil {
		return err
	}
	if r.contents.crosses(before, after) {
		return errCrossed
	}
	calls = r.publishCalls() - calls

	if err := r.raise(raised, after); err != nil {
		return err
	}
	birthAfter := r.birth()
	for i := range results {
		if res := &results[i]; res.Sent < sent || res.Sent > answered {
			return fmt.Errorf("%s: sent at %d, not between %d and %d", res.Name, res.Sent, sent, answered)
		}
		token := int64(results[i].Token)
		if token > birthAfter && token < before+int64(farAhead/time.Microsecond) {
			return fmt.Errorf("after token %d a new counter would begin at %d", token, birthAfter)
		}
	}
	fresh, freshAfter := max(before, birth), max(after, birthAfter)
	published, messages, err := r.compareResults(rd, results, []int64{floor, r.floor}, fresh, freshAfter-fresh)
	if err != nil {
		return err
	}
	if err := r.compareContents(found, elapsed, after-before); err != nil {
		return err
	}
	return r.compareMessages(calls, published, messages)
}

// collect waits for the results of a batch.
func (r *lapRun) collect(n int) (results []redisop.Result, raised *wire.Identity, err error) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for len(results) < n {
		select {
		case d := <-r.results:
			results = append(results, d.results...)
			if d.raised != nil {
				raised = d.raised
			}
		case <-timeout.C:
			return nil, nil, fmt.Errorf("%d of %d results", len(results), n)
		}
	}
	if len(results) > n || len(r.results) > 0 {
		return nil, nil, errors.New("more results than operations")
	}
	return results, raised, nil
}

// prepare changes what is in Redis and in the model, before the operations of the round.
// It returns the time of Redis then, µs.
func (r *lapRun) prepare(rd *round) (now int64, err error) {
	start := must(r.admin.Time(ctx).Result()).UnixMicro()
	r.start = start
	pipe := r.admin.Pipeline()
	mayExpire := false
	for i := range rd.changes {
		c := &rd.changes[i]
		pipe.Del(ctx, c.key)
		switch {
		case c.kind == "":
		case c.tickets != nil || c.asked != nil:
			c.writeQueue(pipe, start)
		case c.number != nil:
			pipe.Set(ctx, c.key, c.number.above(r.floor), 0)
		case c.kind == "string":
			pipe.Set(ctx, c.key, c.text, 0)
		case c.kind == "hash":
			pipe.HSet(ctx, c.key, c.hash)
		case c.kind == "list":
			pipe.RPush(ctx, c.key, c.text)
		case c.kind == "set":
			pipe.SAdd(ctx, c.key, c.text)
		case c.kind == "zset":
			pipe.ZAdd(ctx, c.key, goredis.Z{Score: 1, Member: c.text})
		case c.kind == "stream":
			pipe.XAdd(ctx, &goredis.XAddArgs{Stream: c.key, ID: "1-1", Values: []string{"f", c.text}})
		}
		switch {
		case c.expired:
			pipe.PExpire(ctx, c.key, time.Millisecond)
			mayExpire = true
		case c.ttl > 0:
			pipe.PExpire(ctx, c.key, c.ttl)
		}
		r.contents.set(c, r.floor, start)
	}
	if rd.forget {
		pipe.ScriptFlush(ctx)
	}
	clock := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, err
	}
	for _, change := range rd.subs {
		s := r.subscribers[change.subscriber]
		if s.on[change.channel] == change.on {
			continue
		}
		if err := s.subscribe(change.channel, change.on); err != nil {
			return 0, err
		}
		r.contents.subscribe(change)
	}
	now = clock.Val().UnixMicro()
	for start := now; mayExpire && now < start+2000; {
		now = must(r.admin.Time(ctx).Result()).UnixMicro()
	}
	return now, nil
}

// look reads everything that Redis has, and its clock.
func (r *lapRun) look() (found contents, now int64, err error) {
	pipe := r.admin.Pipeline()
	all := pipe.Eval(ctx, lookText, nil)
	clock := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return found, 0, err
	}
	found = newContents(r.contents.channels)
	for _, entry := range all.Val().([]any) {
		e := entry.([]any)
		content := redis.Content{Type: e[1].(string)}
		ttl, err := strconv.ParseInt(e[2].(string), 10, 64)
		if err != nil {
			return found, 0, err
		}
		expireAt := expiry(time.Duration(ttl) * time.Millisecond)
		parts := e[3].([]any)
		if _, signs, ok := queueOf(e[0].(string)); ok {
			if content.Type != map[bool]string{false: "zset", true: "hash"}[signs] {
				parts = nil
			}
			if err := found.readQueue(e[0].(string), parts, expireAt); err != nil {
				return found, 0, err
			}
			continue
		}
		switch content.Type {
		case "hash":
			content.Hash = make(map[string]string)
			for i := 0; i < len(parts); i += 2 {
				content.Hash[parts[i].(string)] = parts[i+1].(string)
			}
		default:
			for _, part := range parts {
				content.Text += part.(string)
			}
		}
		found.put(e[0].(string), content, expireAt)
	}
	return found, clock.Val().UnixMicro(), nil
}

const lookText = `
local found = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local content = {}
  if kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'string' then content = {redis.call('GET', key)}
  elseif kind == 'list' then content = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then content = redis.call('SMEMBERS', key)
  elseif kind == 'zset' and string.find(key, 'locksidecar_queue:', 1, true) == 1 then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1)
  elseif kind == 'stream' then content = {redis.call('XRANGE', key, '-', '+')[1][2][2]} end
  found[i] = {key, kind, tostring(redis.call('PTTL', key)), content}
end
return found`

// publishCalls returns how often anything was published, if Redis counts it.
func (r *lapRun) publishCalls() int {
	if r.inProcess() {
		return 0
	}
	_, stats, _ := strings.Cut(must(r.admin.Info(ctx, "commandstats").Result()), "cmdstat_publish:calls=")
	stats, _, _ = strings.Cut(stats, ",")
	n, _ := strconv.Atoi(stats)
	return n
}

// ---- the model's side

// contents is what Redis may have under each key, as the model has it: more than one thing
// where that depends on what the test cannot see. What is not there does not exist.
type contents struct {
	keys     map[string][]redis.Key
	counters map[string][]counter
	queues   map[string][]*redis.Queue // by lock
	channels map[string]*redis.Channel
}

func newContents(channels map[string]*redis.Channel) contents {
	return contents{make(map[string][]redis.Key), make(map[string][]counter), make(map[string][]*redis.Queue), channels}
}

// counter is a token counter whose value is that of the model, or larger by up to slack.
type counter struct {
	redis.Counter
	slack int64
}

// expiry is when something expires that lives so long; a ttl that is not positive means
// that it does not expire.
func expiry(ttl time.Duration) int64 {
	if ttl <= 0 {
		return redis.NoExpiry
	}
	return int64(ttl)
}

// put puts something under a key.
func (s *contents) put(key string, content redis.Content, expireAt int64) {
	if !strings.HasPrefix(key, "redisson_lock_token:") {
		s.keys[key] = []redis.Key{redis.NewKey(content, expireAt, prefixes)}
		return
	}
	c := redis.Counter{Exists: true, ExpireAt: expireAt}
	if n, err := strconv.ParseInt(content.Text, 10, 64); err == nil && content.Type == "string" && strconv.FormatInt(n, 10) == content.Text {
		c.Value = n
	} else {
		c.Other = &content
	}
	s.counters[key] = []counter{{Counter: c}}
}

// set is what a change of a round does.
func (s *contents) set(c *change, floor, now int64) {
	if _, _, ok := queueOf(c.key); ok {
		s.setQueue(c, now)
		return
	}
	delete(s.keys, c.key)
	delete(s.counters, c.key)
	if c.kind == "" || c.expired {
		return
	}
	content := redis.Content{Type: c.kind, Hash: c.hash, Text: c.text}
	if c.number != nil {
		content.Text = strconv.FormatInt(c.number.above(floor), 10)
	}
	s.put(c.key, content, expiry(c.ttl))
}

func (s *contents) channel(name string) *redis.Channel {
	c := s.channels[name]
	if c == nil {
		c = &redis.Channel{Patterns: s.patterns()}
		s.channels[name] = c
	}
	return c
}

// patterns returns how many are subscribed to every channel.
func (s *contents) patterns() int {
	if c := s.channels[everyChannel]; c != nil {
		return len(c.Subscribers)
	}
	return 0
}

func (s *contents) subscribe(change subscription) {
	name := change.channel
	if name == "" {
		name = everyChannel
	}
	if c := s.channel(name); change.on {
		c.Subscribe(int32(change.subscriber))
	} else {
		c.Unsubscribe(int32(change.subscriber))
	}
	for _, c := range s.channels {
		c.Patterns = s.patterns()
	}
}

// find returns what may be under the three names of a lock.
func (s *contents) find(lock string) ([]redis.Key, []counter, *redis.Channel) {
	keys, counters := s.keys[lock], s.counters[redis.CounterName(lock)]
	if keys == nil {
		keys = []redis.Key{redis.NoKey}
	}
	if counters == nil {
		counters = []counter{{}}
	}
	return keys, counters, s.channel(redis.ChannelName(lock))
}

// ---- the comparison

// compareResults carries the operations out in the model, in the order in which Redis did,
// and compares what they return. The store's connection had one of these floors, and new
// counters begin above fresh, or up to slack later. It returns how often a release was
// published on each channel, and what was sent to sidecars.
func (r *lapRun) compareResults(rd *round, results []redisop.Result, floors []int64, fresh, slack int64) (published map[string]int, sent []expectation, err error) {
	ops := make([]*redisop.Op, len(results))
	for i := range results {
		for j := range rd.ops {
			if rd.ops[j].Kind == results[i].Kind && rd.ops[j].Name == results[i].Name {
				ops[i] = &rd.ops[j]
			}
		}
		if ops[i] == nil {
			return nil, nil, fmt.Errorf("a result for no operation: %s %s", results[i].Name, showResult(&results[i]))
		}
		r.note("  %s\n    %s", showOp(ops[i]), showResult(&results[i]))
	}
	// To the model, the prefix is a part of the name.
	keyed := make([]*redisop.Op, len(ops))
	for i, op := range ops {
		keyed[i] = new(*op)
		keyed[i].Name = r.prefix + op.Name
	}
	r.unloaded = r.unloaded || rd.forget
	if !r.unloaded {
		if err := checkOrder(results); err != nil {
			return nil, nil, err
		}
	}
	for i := range results {
		if isRenewal(results[i].Kind) && results[i].Outcome != redisop.Refused {
			r.unloaded = false
		}
	}

	published = make(map[string]int)
	writes := slices.ContainsFunc(keyed, r.writesWithoutMemory)
	var previous redis.Reply
	for i, op := range keyed {
		c := r.command(op)
		// A run that has written gets memory even if Redis has none: after a Take that
		// renewed a lock of ours, or that asked again with its ticket, and for what is taken
		// again after a Drop.
		again := takenAgain(ops, i)
		circumstances := r.circumstances(rd, ops, i)
		c.NoMemory = rd.full && (results[i].Outcome == redisop.Retryable || !writes && !again)
		if again {
			c.PassedOn = previous.Passed
			c.LeftFree = previous.Paused && op.Has(redisop.Enqueue) && op.Arrived != 0
		}
		if i+1 < len(ops) && takenAgain(ops, i+1) {
			c.Next = keyed[i+1]
		}
		if rd.full && writes && !again {
			circumstances = append(circumstances, func(c *redis.Command) { c.NoMemory = !c.NoMemory })
		}
		reply, messages, err := r.explain(&c, circumstances, &results[i], floors, fresh, slack)
		if err != nil {
			return nil, nil, err
		}
		sent = append(sent, messages...)
		previous = reply
		if reply.Publication == redis.Published {
			published[redis.ChannelName(op.Name)]++
		}
	}
	return published, sent, nil
}

// circumstances returns what the test cannot see of how an operation was carried out.
func (r *lapRun) circumstances(rd *round, ops []*redisop.Op, i int) []func(*redis.Command) {
	as := []func(*redis.Command){func(*redis.Command) {}}
	if ops[i].Kind == redisop.Renew {
		as = append(as, func(c *redis.Command) { c.SkipsLook = true })
	}
	// A Drop and the Take that follows it are in one run, unless the batch may have had to be
	// divided between them.
	leases := make(map[uint32]bool)
	for _, op := range ops {
		if op.Kind == redisop.Take {
			leases[op.LeaseMS] = true
		}
	}
	if len(leases) > 1 || len(ops) > runMax || users[r.user].key != nil {
		as = append(as, func(c *redis.Command) { c.Next, c.PassedOn, c.LeftFree = nil, false, false },
			func(c *redis.Command) {
				c.Next, c.PassedOn, c.LeftFree, c.NoMemory = nil, false, false, rd.full
			})
	}
	return as
}

// command is an operation as the lap's sidecar issues it. The name is that of the key.
func (r *lapRun) command(op *redisop.Op) redis.Command {
	return redis.Command{
		Op: op, Prefixes: prefixes, Expiry: int64(r.expiry), Denied: deniedOf(r.user, r.prefix, op.Name),
		Clock: r.clock, Receivers: r.receivers, Patterns: r.patterns, ReadOnly: r.demoted,
	}
}

// writesWithoutMemory reports whether an operation is a Take that may write although Redis is
// out of memory.
func (r *lapRun) writesWithoutMemory(op *redisop.Op) bool {
	keys, _, _ := r.contents.find(op.Name)
	c := r.command(op)
	q := r.contents.queue(op.Name)
	return op.Kind == redisop.Take &&
		(c.Standing(&keys[0]).Ours() || op.Has(redisop.Enqueue) && q.Rank(0, op.Ticket) >= 0 || op.Has(redisop.InOrder) && len(q.Tickets) > 0)
}

// explain runs a command in the model, under all circumstances that are possible and on
// all contents that are, and keeps what the contents are afterwards if it returns what
// Redis did. There must be at least one such case. It returns the reply of one of them.
func (r *lapRun) explain(c *redis.Command, circumstances []func(*redis.Command), got *redisop.Result, floors []int64, fresh, slack int64) (reply redis.Reply, sent []expectation, err error) {
	keys, counters, channel := r.contents.find(c.Op.Name)
	r.contents.queue(c.Op.Name)
	var keysAfter []redis.Key
	var countersAfter []counter
	var queuesAfter []*redis.Queue
	var difference error
	run := func(c redis.Command, key redis.Key, cn counter, queue *redis.Queue) {
		k, n := key, cn
		c.Queue = queue.Clone()
		if cn.Other == nil && cn.Value < c.Floor { // it is lifted if it is drawn from
			n.slack = slack
		}
		want := c.Run(&k, &n.Counter, channel)
		if n.Counter == cn.Counter {
			n.slack = cn.slack // it was not
		}
		if token := int64(got.Token); want.Token != 0 && token >= n.Value && token <= n.Value+n.slack {
			n.Value, n.slack, want.Token = token, 0, got.Token
		}
		if difference = compareResult(&c, &k, &want, got); difference != nil {
			return
		}
		messages := make([]expectation, len(want.Sent))
		for i := range want.Sent {
			messages[i] = newExpectation(&want.Sent[i], n.slack, r.origin)
		}
		if keysAfter == nil {
			sent = messages
		} else if mergeErr := merge(sent, messages); mergeErr != nil {
			err = mergeErr
		}
		reply = want
		keysAfter, countersAfter, queuesAfter = add(keysAfter, k), add(countersAfter, n), append(queuesAfter, c.Queue)
	}
	for _, key := range keys {
		for _, cn := range counters {
			for _, queue := range r.contents.queues[c.Op.Name] {
				for _, floor := range floors {
					for _, circumstance := range circumstances {
						c := *c
						c.Floor, c.Fresh = floor, fresh
						circumstance(&c)
						run(c, key, cn, queue)
					}
				}
			}
		}
	}
	if keysAfter == nil || err != nil {
		return reply, nil, cmp.Or(err, difference)
	}
	name := c.Op.Name
	r.contents.keys[name], r.contents.counters[redis.CounterName(name)], r.contents.queues[name] = keysAfter, countersAfter, queuesAfter
	return reply, sent, nil
}

func add[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

// checkOrder checks that renewals were carried out first, and checks before the rest. What
// Redis refused as a whole was issued again later.
func checkOrder(results []redisop.Result) error {
	if slices.ContainsFunc(results, func(res redisop.Result) bool { return res.Outcome == redisop.Refused }) {
		return nil
	}
	last := 0
	for i := range results {
		rank := 2
		switch results[i].Kind {
		case redisop.Renew:
			rank = 0
		case redisop.Check:
			rank = 1
		case redisop.Arrive: // whenever Redis knows its script
			continue
		}
		if rank < last {
			return fmt.Errorf("the Renew or Check of %s was carried out after something that can wait", results[i].Name)
		}
		last = rank
	}
	return nil
}

// at returns the round whose requests arrived before start, µs, by the ages that Arrived has.
func (rd *round) at(start int64) *round {
	resolved := *rd
	resolved.ops = slices.Clone(rd.ops)
	for i := range resolved.ops {
		if op := &resolved.ops[i]; op.Arrived != 0 {
			op.Arrived = uint64(start - int64(op.Arrived))
		}
	}
	return &resolved
}

// isRenewal reports whether operations of a kind are carried out by the script of renewals.
func isRenewal(k redisop.OpKind) bool { return k == redisop.Renew || k == redisop.Check }

// takenAgain reports whether an operation is a Take that was carried out right after the
// Drop of the same lock.
func takenAgain(ops []*redisop.Op, i int) bool {
	return i > 0 && ops[i].Has(redisop.AfterPendingDrop) && ops[i-1].Kind == redisop.Drop && ops[i-1].Name == ops[i].Name
}

// compareResult compares what one operation returned with what the model returns, which has
// left this key.
func compareResult(c *redis.Command, key *redis.Key, want *redis.Reply, got *redisop.Result) error {
	field := ""
	if (want.Outcome == redisop.HeldByOther || want.Outcome == redisop.NotALock) && key.Exists() {
		field = redis.Describe(key, prefixes, c.Denied)
	}
	wrong := func(what string, args ...any) error {
		return fmt.Errorf("%s\nreturned %s\nthe model returns %+v, field %q: %s", showOp(c.Op), showResult(got), *want, field, fmt.Sprintf(what, args...))
	}
	ttl := want.TTLMS
	switch {
	case got.Outcome != want.Outcome:
		return wrong("outcome %d, want %d", got.Outcome, want.Outcome)
	case (want.Outcome == redisop.Done || want.Outcome == redisop.HeldByOther) && got.Listeners != want.Listeners:
		return wrong("listeners %+v, want %+v", got.Listeners, want.Listeners)
	case got.Token != want.Token:
		return wrong("token %d", got.Token)
	case got.Made != want.Made:
		return wrong("it made its counter: %v", got.Made)
	case got.IsQueued != want.IsQueued || got.Rank != want.Rank || got.Ticket != want.Ticket:
		return wrong("rank %d, ticket %d", got.Rank, got.Ticket)
	case (want.Arrived == 0) != (got.Arrived == 0) || got.Arrived < want.Arrived || got.Arrived > want.Arrived+uint64(patience.Microseconds()):
		return wrong("arrived at %d", got.Arrived)
	case got.FirstArrived != want.FirstArrived:
		return wrong("the first arrived at %d", got.FirstArrived)
	case got.Recall != want.Recall:
		return wrong("recall %d", got.Recall)
	case got.LeftFree != want.LeftFree:
		return wrong("left free: %v", got.LeftFree)
	case got.Waiting != want.Waiting:
		return wrong("%d wait", got.Waiting)
	case got.Passed != want.Passed || got.Paused != want.Paused:
		return wrong("passed on: %v, paused: %v", got.Passed, got.Paused)
	case got.Field != readable(field):
		return wrong("field %q", got.Field)
	case want.Outcome == redisop.HeldByOther && got.TTLMS != ttl &&
		(ttl < 0 || got.TTLMS < 0 || got.TTLMS > ttl || ttl-got.TTLMS > patience.Milliseconds()):
		return wrong("TTL %d", got.TTLMS)
	}
	return compareMessage(c.Op.Name, got, field, want, wrong)
}

// compareMessage looks for what the sentence for an operator must say.
func compareMessage(key string, got *redisop.Result, field string, want *redis.Reply, wrong func(string, ...any) error) error {
	name := strconv.Quote(got.Name)
	var texts []string
	switch {
	case want.Outcome == redisop.NotALock:
		texts = []string{"Redis at ", strconv.Quote(key), name, field, "choose another name"}
	case want.Code == "NOPERM":
		texts = []string{"Redis at ", name, "ACL"}
	case want.Code == "OOM":
		texts = []string{"Redis at ", "maxmemory"}
	case want.Code == "READONLY":
		texts = []string{"Redis at ", "read-only replica"}
	case want.Code == "WRONGTYPE":
		texts = []string{"Redis at ", strconv.Quote(redis.CounterName(key)), name, "not a counter"}
	case want.Code == "ERR":
		texts = []string{"Redis at ", name}
	}
	for _, text := range texts {
		if !strings.Contains(got.Msg, text) {
			return wrong("the message does not say %q", text)
		}
	}
	return nil
}

// compareContents compares what Redis has with what the model may have, and continues with
// the former: it is exact.
func (r *lapRun) compareContents(found contents, elapsed, clockElapsed int64) error {
	names := slices.Collect(maps.Keys(found.keys))
	names = slices.AppendSeq(names, maps.Keys(r.contents.keys))
	names = slices.AppendSeq(names, maps.Keys(found.counters))
	names = slices.AppendSeq(names, maps.Keys(r.contents.counters))
	names = slices.AppendSeq(names, maps.Keys(found.queues))
	names = slices.AppendSeq(names, maps.Keys(r.contents.queues))
	near := func(got, want int64) bool {
		return got == want || want != redis.NoExpiry && got <= want && got >= want-elapsed*1e6
	}
	for _, name := range names {
		same := func(want, got *redis.Key) bool {
			return want.Owner == got.Owner && want.Num == got.Num && want.Count == got.Count && want.Other.Equal(got.Other) &&
				(!got.Exists() || near(got.ExpireAt, want.ExpireAt))
		}
		sameCounter := func(want *counter, got *redis.Counter) bool {
			if !got.Exists {
				return !want.Exists || want.Other == nil && want.Value == 0 // which is as good as none
			}
			return want.Exists && want.Other.Equal(got.Other) && got.Value >= want.Value && got.Value <= want.Value+want.slack &&
				near(got.ExpireAt, want.ExpireAt)
		}
		gotKey, gotCounter := redis.NoKey, redis.Counter{}
		if keys := found.keys[name]; keys != nil {
			gotKey = keys[0]
		}
		if counters := found.counters[name]; counters != nil {
			gotCounter = counters[0].Counter
		}
		wantKeys, wantCounters := r.contents.keys[name], r.contents.counters[name]
		if wantKeys == nil {
			wantKeys = []redis.Key{redis.NoKey}
		}
		if wantCounters == nil {
			wantCounters = []counter{{}}
		}
		r.contents.queue(name)
		gotQueue, wantQueues := found.queue(name), r.contents.queues[name]
		if !slices.ContainsFunc(wantKeys, func(want redis.Key) bool { return same(&want, &gotKey) }) ||
			!slices.ContainsFunc(wantCounters, func(want counter) bool { return sameCounter(&want, &gotCounter) }) ||
			!slices.ContainsFunc(wantQueues, func(want *redis.Queue) bool { return sameQueue(want, gotQueue, r.clock, clockElapsed, near) }) {
			return fmt.Errorf("after that batch\nRedis has     %s\nthe model has %s (%d ms later)", found.show(name), r.contents.show(name), elapsed)
		}
	}
	r.contents = found
	return nil
}

// subscribe subscribes to a channel, or unsubscribes from it.
func (s *subscriber) subscribe(channel string, on bool) (err error) {
	switch {
	case channel == "" && on:
		err = s.pubsub.PSubscribe(ctx, everyChannel)
	case channel == "":
		err = s.pubsub.PUnsubscribe(ctx, everyChannel)
	case on:
		err = s.pubsub.Subscribe(ctx, channel)
	default:
		err = s.pubsub.Unsubscribe(ctx, channel)
	}
	if err != nil {
		return err
	}
	if on {
		s.on[channel] = true
	} else {
		delete(s.on, channel)
	}
	for {
		m, err := s.receive()
		if _, confirmed := m.(*goredis.Subscription); err != nil || confirmed {
			return err
		}
	}
}

// receive returns the next thing that Redis sends to the subscriber.
func (s *subscriber) receive() (any, error) { return s.pubsub.ReceiveTimeout(ctx, patience) }

// compareMessages compares what was published with what the model published. calls is
// how often Redis says that something was published.
func (r *lapRun) compareMessages(calls int, published map[string]int, sent []expectation) error {
	total := len(sent)
	for _, n := range published {
		total += n
	}
	if !r.inProcess() && calls != total {
		return fmt.Errorf("Redis published %d times, the model %v and %+v", calls, published, sent)
	}
	for _, s := range r.subscribers {
		if len(s.on) == 0 {
			continue
		}
		received, toSidecars := make(map[string]int), make(map[string][]string)
		channels := slices.Collect(maps.Keys(s.on))
		if s.on[""] {
			channels = []string{everyChannel}
		}
		for _, channel := range channels {
			r.marks++
			if err := s.until(r.admin, channel, fmt.Sprint("mark ", r.marks), received, toSidecars); err != nil {
				return err
			}
		}
		want := maps.Clone(published)
		if !s.on[""] {
			maps.DeleteFunc(want, func(channel string, _ int) bool { return !s.on[channel] })
		}
		if !maps.Equal(received, want) {
			return fmt.Errorf("a subscriber of %q received %v, the model published %v", channels, received, want)
		}
		if err := compareToSidecars(toSidecars, sent, func(channel string) bool { return s.on[""] || s.on[channel] }); err != nil {
			return err
		}
	}
	return nil
}

// until publishes a mark, and counts what a subscriber receives before it.
func (s *subscriber) until(admin *goredis.Client, channel, mark string, received map[string]int, toSidecars map[string][]string) error {
	must(admin.Publish(ctx, channel, mark).Result())
	for {
		m, err := s.receive()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *goredis.Message:
			switch {
			case m.Payload == unlocked:
				received[m.Channel]++
			case m.Payload == mark:
				return nil
			case strings.HasPrefix(m.Payload, "mark "): // of another subscriber
			case strings.HasPrefix(m.Channel, redis.SidecarChannel("")):
				toSidecars[m.Channel] = append(toSidecars[m.Channel], m.Payload)
			default:
				return fmt.Errorf("a message %q on %q", m.Payload, m.Channel)
			}
		default:
			return fmt.Errorf("a subscriber received %T", m)
		}
	}
}

// unlocked is the only payload that Redisson takes for a release.
const unlocked = "0"

// readable is text of another program as the store passes it on: valid UTF-8 without
// control characters.
func readable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}
