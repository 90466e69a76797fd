package redis_test

// The differential test of the scripts: random operations on random contents of Redis,
// carried out by the store in a real Redis, and by the model of this package. All
// that the two say and leave behind must be the same: each result, each key with its
// content and its expiry, each token counter, and how often a release was published on
// each channel.
//
// A seed makes a lap: one store, whose Redis user may lack a permission, and some rounds,
// each of which changes what is in Redis and then asks for one batch of operations. A lap
// that fails is played again with fewer rounds and operations, as long as it still fails,
// and what is left is printed.
//
//	go test ./internal/sim/redis -run 'TestScriptsBehaveAsTheirModel' -diff.seed=1000000 -diff.laps=100000   a hunt
//	go test ./internal/sim/redis -run 'TestScriptsBehaveAsTheirModel/redis' -diff.seed=4711                  one lap

import (
	"context"
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
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

var (
	diffSeed = flag.Uint64("diff.seed", 0, "play the lap of this one seed (with -diff.laps: start a hunt there)")
	diffLaps = flag.Int("diff.laps", 0, "hunt: play so many laps of each kind of Redis")
)

func TestScriptsBehaveAsTheirModel(t *testing.T) {
	withBackends(t, func(t *testing.T, b backend) {
		d := newDifferential(t, b)
		laps, first := 600, uint64(1)
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
			if err := d.play(l, nil); err != nil {
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

// ---- the two sides

// differential is one Redis, and what the test needs of it.
type differential struct {
	backend
	t           *testing.T
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
	d := &differential{backend: b, t: t}
	if !b.inProcess() {
		for user := range diffUsers {
			for _, prefix := range diffPrefixes {
				args := append([]string{"reset", "resetchannels", "on", ">secret"}, userRules(user, prefix)...)
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

func (d *differential) url(user string) string {
	if d.inProcess() {
		return d.backend.url
	}
	return fmt.Sprintf("unix://%s:secret@%s", user, d.socket)
}

// playing is one lap as it is played.
type playing struct {
	*differential
	lap     lap
	store   *store.Store
	results chan answer
	floor   int64          // tokens of the connection are above it
	known   store.Identity // what the store knows of tokens
	redis   redis.Redis
	sidecar redis.Sidecar
	since   time.Time        // no time to live in redis is from before it
	reset   map[string]bool  // locks whose entries may have become 1 before they were refused
	unknown bool             // Redis may have to be taught the script of renewals, which puts them behind others
	story   *strings.Builder // nil: none is told
}

// answer is one call of OnResults.
type answer struct {
	results []locktable.Result
	raised  *store.Identity
}

// play plays a lap, and returns the first difference.
func (d *differential) play(l lap, story *strings.Builder) (err error) {
	d.admin.FlushAll(ctx)
	p := &playing{differential: d, lap: l, results: make(chan answer, 1000), since: time.Now(), story: story}
	p.redis.Keys, p.redis.Subscribers = make(map[string]redis.Value), make(map[string]int)
	for _, e := range d.subscribers {
		for channel := range e.on {
			if err := e.subscribe(channel, false); err != nil {
				return err
			}
		}
	}
	p.sidecar = redis.Sidecar{Prefix: ourUUID + ":", Expiry: l.expiry.Milliseconds()}
	diffUsers[l.user](&p.sidecar, l.prefix+forbidden)
	up := make(chan store.Identity, 1)
	p.store, err = store.Open(store.Config{
		URL: d.url(aclUser(l.user, l.prefix)), KeyPrefix: l.prefix, UUID: ourUUID, TokenExpiry: l.expiry, Timeout: patience,
		OnResults: func(rs []locktable.Result, raised *store.Identity) { p.results <- answer{rs, raised} },
		OnUp:      func(_ bool, id store.Identity) { up <- id },
	})
	if err != nil {
		return err
	}
	defer p.store.Close(ctx)
	select {
	case p.known = <-up:
		p.floor = p.known.Floor
	case <-time.After(patience):
		return errors.New("the store does not connect")
	}
	for i := range l.rounds {
		if err := p.round(&l.rounds[i]); err != nil {
			return fmt.Errorf("round %d: %w", i+1, err)
		}
	}
	return nil
}

func (p *playing) note(format string, args ...any) {
	if p.story != nil {
		fmt.Fprintf(p.story, format+"\n", args...)
	}
}

// floors are the floor of the connection and what new counters begin above, now.
func (p *playing) floors() (floor, birth int64) {
	elapsed := (protocol.Now() - p.known.FloorAt) / 1000
	return p.floor, p.known.Floor + elapsed - elapsed/100
}

// raise notes what the store has learnt of tokens. Those that are ahead of Redis's clock
// raise the floor of the connection.
func (p *playing) raise(known *store.Identity, clock int64) error {
	if known == nil {
		return nil
	}
	if known.Floor <= p.known.Floor || known.FloorAt < p.known.FloorAt {
		return fmt.Errorf("what is known of tokens fell from %+v to %+v", p.known, *known)
	}
	p.known = *known
	if known.Floor > clock+int64(aheadOfClock/time.Microsecond) {
		p.floor = max(p.floor, known.Floor)
	}
	return nil
}

func (p *playing) round(rd *round) error {
	floor, birth := p.floors()
	before, err := p.prepare(rd, floor)
	if err != nil {
		return err
	}
	calls := p.publishCalls()
	p.note("a batch (scripts forgotten: %v, memory exhausted: %v), after", rd.forget, rd.full)
	for _, c := range rd.changes {
		p.note("    %s", showKey(p.redis.Keys, c.key))
	}
	if rd.full {
		must(p.admin.ConfigSet(ctx, "maxmemory", "1").Result())
	}
	sent := protocol.Now()
	// The store owns what it is given.
	p.store.Do(slices.Clone(rd.ops))
	results, raised, err := p.collect(len(rd.ops))
	answered := protocol.Now()
	if rd.full {
		must(p.admin.ConfigSet(ctx, "maxmemory", "0").Result())
	}
	if err != nil {
		return err
	}
	since := p.since
	p.since = time.Now()
	found, after, err := p.look()
	elapsed := time.Since(since).Milliseconds() + 2
	if err != nil {
		return err
	}
	calls = p.publishCalls() - calls

	if err := p.raise(raised, after); err != nil {
		return err
	}
	floorAfter, birthAfter := p.floors()
	p.sidecar.Floor = redis.Span{Lo: floor, Hi: floorAfter}
	p.sidecar.Fresh = redis.Span{Lo: max(before, birth), Hi: max(after, birthAfter)}
	for i := range results {
		if res := &results[i]; res.Sent < sent || res.Sent > answered {
			return fmt.Errorf("%s: sent at %d, not between %d and %d", res.Name, res.Sent, sent, answered)
		}
		token := int64(results[i].Token)
		if token > birthAfter && token < before+int64(farAhead/time.Microsecond) {
			return fmt.Errorf("after token %d a new counter would begin at %d", token, birthAfter)
		}
	}
	p.redis.Published = make(map[string]int)
	if err := p.compareResults(rd, results); err != nil {
		return err
	}
	if err := p.compareKeys(found, elapsed); err != nil {
		return err
	}
	return p.compareMessages(calls)
}

// collect waits for the results of a batch.
func (p *playing) collect(n int) (results []locktable.Result, raised *store.Identity, err error) {
	patient := time.NewTimer(patience)
	defer patient.Stop()
	for len(results) < n {
		select {
		case a := <-p.results:
			results = append(results, a.results...)
			if a.raised != nil {
				raised = a.raised
			}
		case <-patient.C:
			return nil, nil, fmt.Errorf("%d of %d results", len(results), n)
		}
	}
	if len(results) > n || len(p.results) > 0 {
		return nil, nil, errors.New("more results than operations")
	}
	return results, raised, nil
}

// inOrder checks that renewals were carried out first, and checks before the rest. What
// Redis refused as a whole was asked for again later.
func inOrder(results []locktable.Result) error {
	if slices.ContainsFunc(results, func(res locktable.Result) bool { return res.Outcome == locktable.Refused }) {
		return nil
	}
	last := 0
	for i := range results {
		rank := 2
		switch results[i].Kind {
		case locktable.Keep:
			rank = 0
		case locktable.Check:
			rank = 1
		}
		if rank < last {
			return fmt.Errorf("the Keep or Check of %s was carried out after something that can wait", results[i].Name)
		}
		last = rank
	}
	return nil
}

// prepare brings Redis and the model to what the round begins with. It returns the time
// of Redis then, µs.
func (p *playing) prepare(rd *round, floor int64) (now int64, err error) {
	pipe := p.admin.Pipeline()
	mayExpire := false
	for i := range rd.changes {
		c := &rd.changes[i]
		v := c.value(floor)
		delete(p.redis.Keys, c.key)
		pipe.Del(ctx, c.key)
		if c.kind == "" {
			continue
		}
		switch {
		case v.Number != nil:
			pipe.Set(ctx, c.key, v.Number.Lo, 0)
		case c.kind == "string":
			pipe.Set(ctx, c.key, c.text, 0)
		case c.hash != nil:
			pipe.HSet(ctx, c.key, c.hash)
		case c.kind == "hash":
			pipe.HSet(ctx, c.key, "f", c.text)
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
			p.redis.Keys[c.key] = v
		default:
			p.redis.Keys[c.key] = v
		}
	}
	if rd.forget {
		pipe.ScriptFlush(ctx)
	}
	clock := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, err
	}
	for _, change := range rd.subs {
		e := p.subscribers[change.who]
		if e.on[change.channel] == change.on {
			continue
		}
		if err := e.subscribe(change.channel, change.on); err != nil {
			return 0, err
		}
		by := 1
		if !change.on {
			by = -1
		}
		if change.channel == "" {
			p.redis.Patterns += by
		} else {
			p.redis.Subscribers[change.channel] += by
		}
	}
	now = clock.Val().UnixMicro()
	for start := now; mayExpire && now < start+2000; {
		now = must(p.admin.Time(ctx).Result()).UnixMicro()
	}
	return now, nil
}

// value is what the model has of a change.
func (c *change) value(floor int64) redis.Value {
	v := redis.Value{Type: c.kind, Hash: c.hash, Content: c.text, TTL: []int64{redis.NoExpiry}}
	if c.kind == "hash" && v.Hash == nil {
		v.Hash, v.Content = map[string]string{"f": c.text}, ""
	}
	if c.number != nil {
		n := c.number.n
		if c.number.floor {
			n += floor
		}
		v.Number = &redis.Span{Lo: n, Hi: n}
	}
	if c.ttl > 0 {
		v.TTL = []int64{c.ttl.Milliseconds()}
	}
	return v
}

// look reads everything that Redis has, and its clock.
func (p *playing) look() (found map[string]redis.Value, now int64, err error) {
	pipe := p.admin.Pipeline()
	all := pipe.Eval(ctx, lookText, nil)
	clock := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, 0, err
	}
	found = make(map[string]redis.Value)
	for _, entry := range all.Val().([]any) {
		e := entry.([]any)
		v := redis.Value{Type: e[1].(string)}
		ttl, err := strconv.ParseInt(e[2].(string), 10, 64)
		if err != nil {
			return nil, 0, err
		}
		v.TTL = []int64{ttl}
		switch content := e[3].([]any); v.Type {
		case "hash":
			v.Hash = make(map[string]string)
			for i := 0; i < len(content); i += 2 {
				v.Hash[content[i].(string)] = content[i+1].(string)
			}
		default:
			for _, c := range content {
				v.Content += c.(string)
			}
			if n, err := strconv.ParseInt(v.Content, 10, 64); err == nil && v.Type == "string" && strconv.FormatInt(n, 10) == v.Content {
				v.Number, v.Content = &redis.Span{Lo: n, Hi: n}, ""
			}
		}
		found[e[0].(string)] = v
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
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1)
  elseif kind == 'stream' then content = {redis.call('XRANGE', key, '-', '+')[1][2][2]} end
  found[i] = {key, kind, tostring(redis.call('PTTL', key)), content}
end
return found`

// publishCalls is how often anything was published, if Redis counts it.
func (p *playing) publishCalls() int {
	if p.inProcess() {
		return 0
	}
	_, stats, _ := strings.Cut(must(p.admin.Info(ctx, "commandstats").Result()), "cmdstat_publish:calls=")
	stats, _, _ = strings.Cut(stats, ",")
	n, _ := strconv.Atoi(stats)
	return n
}

// ---- the comparison

// compareResults carries the operations out in the model, in the order in which Redis
// did, and compares what they return.
func (p *playing) compareResults(rd *round, results []locktable.Result) error {
	ops := make([]*locktable.Op, len(results))
	for i := range results {
		for j := range rd.ops {
			if rd.ops[j].Kind == results[i].Kind && rd.ops[j].Name == results[i].Name {
				ops[i] = &rd.ops[j]
			}
		}
		if ops[i] == nil {
			return fmt.Errorf("a result for no operation: %s %s", results[i].Name, showResult(&results[i]))
		}
		p.note("  %s\n    %s", showOp(ops[i]), showResult(&results[i]))
	}
	p.unknown = p.unknown || rd.forget
	if !p.unknown {
		if err := inOrder(results); err != nil {
			return err
		}
	}
	for i := range results {
		if renews(results[i].Kind) && results[i].Outcome != locktable.Refused {
			p.unknown = false
		}
	}

	// To the model, the prefix is a part of the name.
	keyed := make([]*locktable.Op, len(ops))
	for i, op := range ops {
		keyed[i] = new(*op)
		keyed[i].Name = p.lap.prefix + op.Name
	}
	p.reset = make(map[string]bool)
	ours := false // a Take of the batch finds that the lock is ours
	for _, op := range keyed {
		standing := p.redis.Standing(&p.sidecar, op)
		ours = ours || op.Kind == locktable.Take && (standing == redis.Same || standing == redis.OtherCount || standing == redis.Earlier)
	}
	for i, op := range keyed {
		// A script that has written gets memory even if Redis has none: after a Take that
		// renewed a lock of ours, and for what is taken again after a Drop.
		full := rd.full
		if results[i].Outcome != locktable.Busy && (ours || takenAgain(ops, i)) {
			full = false
		}
		want := p.redis.Run(&p.sidecar, op, full)
		if want.Outcome == locktable.Refused && takenAgain(ops, i) {
			p.reset[op.Name] = true
		}
		if err := compareResult(ops[i], op.Name, &want, &results[i]); err != nil {
			return err
		}
		if token := int64(results[i].Token); token != 0 {
			v := p.redis.Keys[redis.Counter(op.Name)]
			v.Number = &redis.Span{Lo: token, Hi: token}
			p.redis.Keys[redis.Counter(op.Name)] = v
		}
	}
	return nil
}

// renews reports whether operations of a kind are carried out by the script of renewals.
func renews(k locktable.OpKind) bool { return k == locktable.Keep || k == locktable.Check }

// takenAgain reports whether an operation is a Take that was carried out right after the
// Drop of the same lock.
func takenAgain(ops []*locktable.Op, i int) bool {
	return i > 0 && ops[i].Behind && ops[i-1].Kind == locktable.Drop && ops[i-1].Name == ops[i].Name
}

// compareResult compares what one operation returned with what it must return. key is that
// of the lock.
func compareResult(op *locktable.Op, key string, want *redis.Result, got *locktable.Result) error {
	wrong := func(what string, args ...any) error {
		return fmt.Errorf("%s\nreturned %s\nthe model returns %+v: %s", showOp(op), showResult(got), *want, fmt.Sprintf(what, args...))
	}
	switch {
	case got.Outcome != want.Outcome:
		return wrong("outcome %d, want %d", got.Outcome, want.Outcome)
	case (want.Outcome == locktable.Done || want.Outcome == locktable.Other) && got.Listeners != want.Listeners:
		return wrong("%d listeners, want %d", got.Listeners, want.Listeners)
	case (got.Token == 0) != (want.Token == redis.Span{}):
		return wrong("a token, or none")
	case got.Token != 0 && !want.Token.Has(int64(got.Token)):
		return wrong("token %d", got.Token)
	case got.Made != want.Made:
		return wrong("it made its counter: %v", got.Made)
	case got.Field != readable(want.Field):
		return wrong("field %q", got.Field)
	}
	if want.Outcome == locktable.Other && !slices.ContainsFunc(want.TTL, func(ttl int64) bool {
		return got.TTLMS == ttl || ttl >= 0 && got.TTLMS >= 0 && got.TTLMS < ttl && ttl-got.TTLMS < int64(patience/time.Millisecond)
	}) {
		return wrong("TTL %d", got.TTLMS)
	}
	helps := []string{"Redis at "}
	switch {
	case want.Outcome == locktable.NotALock:
		helps = append(helps, strconv.Quote(key), strconv.Quote(op.Name), want.Field, "choose another name")
	case want.Code == "NOPERM":
		helps = append(helps, strconv.Quote(op.Name), "ACL")
	case want.Code == "OOM":
		helps = append(helps, "maxmemory")
	case want.Code == "WRONGTYPE":
		helps = append(helps, strconv.Quote(redis.Counter(key)), strconv.Quote(op.Name), "not a counter")
	case want.Code == "ERR":
		helps = append(helps, strconv.Quote(op.Name))
	default:
		helps = nil
	}
	for _, text := range helps {
		if !strings.Contains(got.Msg, text) {
			return wrong("the message does not say %q", text)
		}
	}
	return nil
}

// compareKeys compares what Redis has with what the model has, and goes on from the
// former: it is exact.
func (p *playing) compareKeys(found map[string]redis.Value, elapsed int64) error {
	keys := maps.Clone(found)
	maps.Copy(keys, p.redis.Keys)
	for key := range keys {
		got, has := found[key]
		want, ok := p.redis.Keys[key]
		if ok && !has && want.Number != nil && *want.Number == redis.Exactly(0) {
			continue // a counter of 0 is as good as none
		}
		if field := slices.Collect(maps.Keys(want.Hash)); p.reset[key] && len(field) == 1 && got.Hash[field[0]] == "1" {
			want.Hash = got.Hash
		}
		same := has == ok && got.Type == want.Type && maps.Equal(got.Hash, want.Hash) && got.Content == want.Content &&
			(got.Number == nil) == (want.Number == nil) && (got.Number == nil || want.Number.Has(got.Number.Lo))
		if !same || !slices.ContainsFunc(want.TTL, func(ttl int64) bool {
			left := got.TTL[0]
			return left == ttl || ttl >= 0 && left >= 0 && left <= ttl && left >= ttl-elapsed
		}) {
			return fmt.Errorf("after that batch\nRedis has     %s\nthe model has %s (%d ms later)", showKey(found, key), showKey(p.redis.Keys, key), elapsed)
		}
	}
	p.redis.Keys = found
	return nil
}

// subscribe subscribes to a channel, or unsubscribes from it.
func (u *subscriber) subscribe(channel string, on bool) (err error) {
	switch {
	case channel == "" && on:
		err = u.pubsub.PSubscribe(ctx, everyChannel)
	case channel == "":
		err = u.pubsub.PUnsubscribe(ctx, everyChannel)
	case on:
		err = u.pubsub.Subscribe(ctx, channel)
	default:
		err = u.pubsub.Unsubscribe(ctx, channel)
	}
	if err != nil {
		return err
	}
	if on {
		u.on[channel] = true
	} else {
		delete(u.on, channel)
	}
	for {
		m, err := u.receive()
		if _, confirmed := m.(*goredis.Subscription); err != nil || confirmed {
			return err
		}
	}
}

// receive returns the next thing that Redis sends to the subscriber.
func (u *subscriber) receive() (any, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return u.pubsub.Receive(ctx)
}

// compareMessages compares what was published with what the model published. calls is
// how often Redis says that something was published.
func (p *playing) compareMessages(calls int) error {
	total := 0
	for _, n := range p.redis.Published {
		total += n
	}
	if !p.inProcess() && calls != total {
		return fmt.Errorf("Redis published %d times, the model %v", calls, p.redis.Published)
	}
	for _, e := range p.subscribers {
		if len(e.on) == 0 {
			continue
		}
		received := make(map[string]int)
		ends := slices.Collect(maps.Keys(e.on))
		if e.on[""] {
			ends = []string{everyChannel}
		}
		for _, channel := range ends {
			p.marks++
			if err := e.until(p.admin, channel, fmt.Sprint("mark ", p.marks), received); err != nil {
				return err
			}
		}
		want := maps.Clone(p.redis.Published)
		if !e.on[""] {
			maps.DeleteFunc(want, func(channel string, _ int) bool { return !e.on[channel] })
		}
		if !maps.Equal(received, want) {
			return fmt.Errorf("a subscriber of %q received %v, the model published %v", ends, received, want)
		}
	}
	return nil
}

// until publishes a mark, and counts what a subscriber receives before it.
func (u *subscriber) until(admin *goredis.Client, channel, mark string, received map[string]int) error {
	must(admin.Publish(ctx, channel, mark).Result())
	for {
		m, err := u.receive()
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
