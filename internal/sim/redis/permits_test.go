package redis_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// The differential test of permits.lua: random operations of three sidecars on random contents of one semaphore, in a
// real Redis and in the model. Each result, message and key must be equal.
//
//	go test ./internal/sim/redis -run 'TestPermitsBehaveAsTheirModel' -diff.seed=1000000 -diff.laps=100000   search for a failure
//	go test ./internal/sim/redis -run 'TestPermitsBehaveAsTheirModel/redis' -diff.seed=4711                  one lap
func TestPermitsBehaveAsTheirModel(t *testing.T) {
	withBackends(t, func(t *testing.T, b backend) {
		d := &permitsDiff{hostsDiff: newHostsDiff(t, b)}
		d.search(t, d.lap, permitsSituations)
	})
}

// permitsSituations are what the laps must meet.
var permitsSituations = []string{
	"granted", "several at once", "kept", "given back", "waits", "waits on", "asked again", "a place is admitted", "the own place is admitted",
	"waits for itself", "yields", "its place is gone", "behind all others",
	"nothing received an admission", "a silent place", "an expired claim", "lost", "got back", "late", "renewed", "OOM", "READONLY", "recalled",
}

// permitsDiff is one Redis, with what three sidecars have of semaphores.
type permitsDiff struct {
	*hostsDiff
	semaphores []*permitsOf // of the lap
}

// permitsOf is what the model has of one semaphore.
type permitsOf struct {
	name  string
	model *redis.Semaphore
}

func (d *permitsDiff) lap(seed uint64) error {
	names := d.begin(seed, 0x7065726d)
	d.semaphores = nil
	for _, name := range names[:1+d.r.IntN(3)] {
		d.semaphores = append(d.semaphores, &permitsOf{name, &redis.Semaphore{}})
	}
	for range 1 + d.r.IntN(16) {
		if d.r.oneIn(4) {
			d.change(pick(d.r, d.semaphores...))
		}
		if err := d.run(); err != nil {
			return err
		}
	}
	return nil
}

// change puts something else into Redis and the model, and connects other sidecars.
func (d *permitsDiff) change(p *permitsOf) {
	key, wanted, wants := d.keysOf(p)
	must(d.admin.Del(ctx, key, wanted, wants).Result())
	d.clock = d.time()
	s := &redis.Semaphore{}
	ms := d.clock / 1000
	for owner := range redis.Owner(3) {
		if d.r.oneIn(2) {
			if !s.Exists {
				s.Exists, s.Claims, s.Due, s.Until = true, make(map[redis.Owner]redis.PermitClaim), math.MaxInt64, 0
			}
			c := redis.PermitClaim{Num: d.last[owner] - d.r.Uint64N(3), Units: 1 + d.r.Int64N(4), Expiry: ms + pick(d.r, int64(-60_000), 3_000_000, 6_000_000)}
			s.Claims[owner], s.Held, s.Due, s.Until = c, s.Held+c.Units, min(s.Due, c.Expiry), max(s.Until, c.Expiry)
			must(d.admin.HSet(ctx, key, uuids[owner], fmt.Sprintf("%d %d %d", c.Num, c.Units, c.Expiry)).Result())
		}
		if d.r.oneIn(2) {
			age := pick(d.r, time.Second, 2*time.Second, time.Minute, -time.Minute).Microseconds()
			p := redis.PermitPlace{
				Owner: owner, Time: d.clock - age, Num: d.last[owner] - d.r.Uint64N(3), Units: 1 + d.r.Int64N(3), Capacity: 3 + d.r.Int64N(4),
				LeaseMS: pick(d.r, int64(3_600_000), 7_200_000), Asked: (d.clock - pick(d.r, age, 0)) / 1e6,
			}
			s.Places = append(s.Places, p)
			s.PlacesExpireAt = int64(5 * time.Minute)
			must(d.admin.ZAdd(ctx, wanted, goredis.Z{Score: float64(p.Time), Member: uuids[owner]}).Result())
			must(d.admin.HSet(ctx, wants, uuids[owner], fmt.Sprintf("%d %d %d %d %d", p.Num, p.Units, p.Capacity, p.LeaseMS, p.Asked)).Result())
			must(d.admin.PExpire(ctx, wanted, 5*time.Minute).Result())
			must(d.admin.PExpire(ctx, wants, 5*time.Minute).Result())
		}
	}
	slices.SortStableFunc(s.Places, func(a, b redis.PermitPlace) int { return int(a.Time - b.Time) })
	if s.Exists {
		if d.r.oneIn(3) {
			s.Due = min(s.Due, ms-1000) // it may be earlier
		}
		s.Last = d.clock + pick[int64](d.r, -1_000_000, 7_200_000_000)
		must(d.admin.HSet(ctx, key, "mode", fmt.Sprintf("permits %d %d %d %d", s.Held, s.Due, s.Until, s.Last)).Result())
		s.ExpireAt = redis.NoExpiry
		if ttl := pick(d.r, 0, 90*time.Minute, 3*time.Hour); ttl > 0 {
			must(d.admin.PExpire(ctx, key, ttl).Result())
			s.ExpireAt = int64(ttl)
		}
	}
	p.model = s
	d.connect()
	d.note("after %s; connected %v", p, d.isOn)
}

func (d *permitsDiff) keysOf(p *permitsOf) (key, wanted, wants string) {
	return d.keys.Key(p.name), d.keys.Ours(wire.WantedPrefix, p.name), d.keys.Ours(wire.WantsPrefix, p.name)
}

func (p *permitsOf) String() string { return fmt.Sprintf("%q: %+v", p.name, *p.model) }

func (d *permitsDiff) drawOp(owner redis.Owner, p *permitsOf) redisop.Op {
	r := d.r
	has := uint32(p.model.Claims[owner].Units)
	op := redisop.Op{Of: redisop.KindPermits, Kind: redisop.Take, Name: p.name, LeaseMS: pick[uint32](r, 3_600_000, 7_200_000, 2_000_000_000)}
	op.HoldID = d.last[owner] + 1
	if r.oneIn(12) {
		op.HoldID = d.last[owner] - r.Uint64N(3)
	}
	d.last[owner] = max(d.last[owner], op.HoldID)
	op.Count = pick(r, has, has, has, max(has, 1)-1, has+1, uint32(r.IntN(5)))
	switch x := r.IntN(10); {
	case x == 0:
		op.Kind = redisop.Renew
	case x == 1:
		op.Kind, op.LeaseMS = redisop.Check, 0
	case x < 4:
		op.Kind = redisop.Drop
	}
	if op.Kind == redisop.Renew || op.Kind == redisop.Check {
		op.HoldID = pick(r, op.HoldID, p.model.Claims[owner].Num)
	}
	op.Capacity = uint16(3 + r.IntN(5))
	if op.Kind == redisop.Take {
		op.Want, op.Times, op.Reserve = uint16(r.IntN(4)), 1, 1 // as usual
		if r.oneIn(2) {
			op.Times, op.Reserve = uint8(1+r.IntN(3)), pick[uint16](r, 0, 1, 5)
		}
		op.Set(redisop.Enqueue, !r.oneIn(3))
		op.Set(redisop.RequireExisting, r.oneIn(2))
		if op.Set(redisop.Yields, r.oneIn(2)); r.oneIn(2) {
			op.Ticket = op.HoldID - 1
		}
		if r.oneIn(5) {
			op.Arrived = pick(r, uint64(d.clock-1_500_000), uint64(d.clock-30_000_000), uint64(d.clock+1_000_000_000), redisop.ArrivesNow)
		}
	}
	return op
}

// run has a sidecar execute some operations in one run.
func (d *permitsDiff) run() error {
	owner := redis.Owner(d.r.IntN(3))
	in := slices.Clone(d.semaphores)
	d.r.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
	if in = in[:1+d.r.IntN(len(in))]; d.r.oneIn(3) {
		in = in[:1]
	}
	var ops []redisop.Op
	for _, p := range in {
		ops = append(ops, d.drawOp(owner, p))
	}
	full := d.r.oneIn(15) && !d.inProcess()
	demoted := !full && d.r.oneIn(25) && !d.inProcess()
	if full || demoted {
		ops = ops[:1]
	}
	e := wire.Encoder{
		Prefix: prefixes[owner], Keys: d.keys, Origin: pick(d.r, "-", "0123abcd"), Declares: d.r.oneIn(2), Confirms: d.r.oneIn(3),
	}
	switch {
	case full:
		must(d.admin.ConfigSet(ctx, "maxmemory", "1").Result())
		defer func() { must(d.admin.ConfigSet(ctx, "maxmemory", "0").Result()) }()
	case demoted:
		must(d.admin.ReplicaOf(ctx, "127.0.0.1", "1").Result())
		defer func() { must(d.admin.ReplicaOf(ctx, "no", "one").Result()) }()
	}
	d.clock = d.time()
	statuses, err := d.execute(wire.Permits, &e, ops)
	if err != nil {
		return err
	}
	elapsed := d.time() - d.clock + 1000
	var sent []redis.Sent
	for i := range ops {
		op, p := &ops[i], in[i]
		c := redis.Command{
			Op: new(*op), Owner: owner, Prefixes: prefixes, Clock: d.clock, Fresh: d.birth, Confirms: e.Confirms,
			NoMemory: full, ReadOnly: demoted, Receivers: func(to redis.Owner) int32 { return int32(btoi(d.isOn[to])) },
		}
		before := p.model.Clone()
		want := c.RunPermits(p.model)
		sent = append(sent, want.Sent...)
		got := redisop.Result{Kind: op.Kind, Name: op.Name}
		refusal, err := wire.DecodePermits(statuses[i], op, &got)
		if err != nil {
			return fmt.Errorf("%+v: %w", statuses[i], err)
		}
		if refusal != "" {
			got.Outcome = wire.OutcomeOf(wire.Code(refusal))
		}
		d.note("sidecar %d, full %v, a replica %v: %+v\n    Redis %+v %q\n    model %+v\n    has   %s", owner, full, demoted, *op, got, refusal, want, p)
		if err := comparePermits(&want, &got, refusal, elapsed); err != nil {
			return err
		}
		d.observe(op, before, p.model, &want, owner)
	}
	if err := d.compareSent(sent, elapsed); err != nil {
		return err
	}
	for _, p := range in {
		if err := d.compareKeys(p, elapsed); err != nil {
			return err
		}
	}
	return nil
}

// Tokens do not run ahead of Redis's clock, however many permits hosts pass on: a semaphore that was free remembers none.
func TestTokensOfPermitsAreThoseOfTheClock(t *testing.T) {
	withBackends(t, func(t *testing.T, b backend) {
		d := &permitsDiff{hostsDiff: newHostsDiff(t, b)}
		d.keys = wire.NewKeyspace("")
		var hosts [2]wire.Encoder
		for i := range hosts {
			hosts[i] = wire.Encoder{Prefix: prefixes[i], Keys: d.keys, Origin: wire.NoOrigin}
			if err := d.own[i].Subscribe(ctx, redis.SidecarChannel(uuids[i])); err != nil {
				t.Fatal(err)
			}
			must(d.own[i].ReceiveTimeout(ctx, patience))
		}
		do := func(host int, kind redisop.OpKind, num uint64) {
			op := redisop.Op{Kind: kind, Of: redisop.KindPermits, Name: "api", HoldID: num, LeaseMS: 30_000}
			if kind == redisop.Take {
				op.Asked = redisop.Asked{Want: 40_000, Capacity: 65_535, Times: 1, Reserve: 1, Flags: redisop.Enqueue}
			}
			if _, err := d.execute(wire.Permits, &hosts[host], []redisop.Op{op}); err != nil {
				t.Fatal(err)
			}
		}
		do(0, redisop.Take, 1)
		for num := uint64(2); num < 60; num += 2 { // each waits while the other one has them, and is admitted
			host := int(num / 2 % 2)
			do(host, redisop.Take, num)
			do(1-host, redisop.Drop, num)
		}
		words := strings.Fields(must(d.admin.HGet(ctx, "api", "mode").Result()))
		if last, clock := must(strconv.ParseInt(words[4], 10, 64)), d.time(); last > clock+60 {
			t.Errorf("at %d, the last token is %d: %d later", clock, last, last-clock)
		}
	})
}

func comparePermits(want *redis.Reply, got *redisop.Result, refusal string, elapsed int64) error {
	near := func(got, want int64) bool { return got >= want && got <= want+elapsed }
	switch {
	case got.Outcome != want.Outcome || want.Code != "" && !strings.HasPrefix(refusal, want.Code):
		return fmt.Errorf("outcome %v, want %v %s", got.Outcome, want.Outcome, want.Code)
	case got.Permits != want.Permits:
		return fmt.Errorf("%d permits, want %d", got.Permits, want.Permits)
	case (got.Token == 0) != (want.Token == 0), !near(int64(got.Token), int64(want.Token)):
		return fmt.Errorf("token %d, want %d", got.Token, want.Token)
	case got.Waiting != want.Waiting && got.Kind != redisop.Renew && got.Kind != redisop.Check:
		return fmt.Errorf("%d wait, want %d", got.Waiting, want.Waiting)
	case want.Outcome != redisop.HeldByOther:
		return nil
	case got.IsQueued != want.IsQueued, got.Rank != want.Rank, got.Ticket != want.Ticket, got.Recall != want.Recall:
		return fmt.Errorf("%+v, want %+v", got, want)
	case !near(int64(got.Arrived), int64(want.Arrived)):
		return fmt.Errorf("arrived at %d, want %d", got.Arrived, want.Arrived)
	case want.TTLMS < 0 && got.TTLMS != want.TTLMS, want.TTLMS >= 0 && !near(want.TTLMS*1000, got.TTLMS*1000):
		return fmt.Errorf("%d ms until a claim may expire, want %d", got.TTLMS, want.TTLMS)
	}
	return nil
}

// observe counts what a lap has met.
func (d *permitsDiff) observe(op *redisop.Op, before, after *redis.Semaphore, r *redis.Reply, owner redis.Owner) {
	had, has := before.Claims[owner].Units, after.Claims[owner].Units
	stood := before.PlaceOf(owner) >= 0
	meets := map[string]bool{
		"granted":                       r.Outcome == redisop.Done && op.Want > 0,
		"several at once":               r.Outcome == redisop.Done && op.Want > 0 && has >= int64(op.Count)+2*int64(op.Want),
		"kept":                          r.Outcome == redisop.Done && op.Kind == redisop.Take && op.Want == 0 && has > 0,
		"given back":                    r.Outcome == redisop.Done && has < had,
		"waits":                         r.IsQueued,
		"waits on":                      r.IsQueued && r.Rank > 0,
		"asked again":                   r.IsQueued && stood,
		"the own place is admitted":     r.Outcome == redisop.Done && op.Want > 0 && stood && len(before.Places) > 1 && before.PlaceOf(owner) > 0,
		"waits for itself":              r.Outcome == redisop.HeldByOther && op.Has(redisop.Enqueue) && op.Want <= op.Capacity && !r.IsQueued && r.Code == "",
		"yields":                        op.Kind == redisop.Take && op.Has(redisop.Yields) && op.Want > 0 && had >= int64(op.Count)+int64(op.Want) && has < had,
		"its place is gone":             op.Has(redisop.Yields) && op.Ticket != 0 && !stood && r.Outcome == redisop.Done && len(before.Places) > 0 && op.Want > 0,
		"behind all others":             op.Arrived == redisop.ArrivesNow && r.IsQueued && stood && before.PlaceOf(owner) < after.PlaceOf(owner),
		"an expired claim":              len(after.Claims) < len(before.Claims) && has > 0,
		"lost":                          r.Outcome == redisop.KeyMissing && op.Kind == redisop.Take,
		"got back":                      r.Outcome == redisop.Done && op.Kind == redisop.Take && had < int64(op.Count),
		"late":                          r.Outcome == redisop.Differs,
		"renewed":                       r.Outcome == redisop.Done && op.Kind == redisop.Renew,
		"OOM":                           r.Code == "OOM",
		"READONLY":                      r.Code == "READONLY",
		"recalled":                      r.Recall == redisop.RecallReceived,
		"a place is admitted":           slices.ContainsFunc(r.Sent, func(s redis.Sent) bool { return s.Kind == redisop.Admitted && s.Reached > 0 }),
		"nothing received an admission": slices.ContainsFunc(r.Sent, func(s redis.Sent) bool { return s.Kind == redisop.Admitted && s.Reached == 0 }),
		"a silent place":                slices.ContainsFunc(r.Sent, func(s redis.Sent) bool { return s.Kind == redisop.Requeue }),
	}
	for what, is := range meets {
		d.seen[what] += btoi(is)
	}
}

// compareKeys compares what Redis has with the model, which has that afterwards.
func (d *permitsDiff) compareKeys(p *permitsOf, elapsed int64) error {
	key, wanted, wants := d.keysOf(p)
	hash := must(d.admin.HGetAll(ctx, key).Result())
	found := &redis.Semaphore{Exists: len(hash) > 0}
	number := func(text string) int64 { return must(strconv.ParseInt(text, 10, 64)) }
	numbers := func(text string, n int) []int64 {
		var all []int64
		for word := range strings.SplitSeq(text, " ") {
			all = append(all, number(word))
		}
		if len(all) != n {
			panic(fmt.Sprintf("%q has not %d numbers", text, n))
		}
		return all
	}
	ttl := func(key string) int64 {
		left := must(d.admin.PTTL(ctx, key).Result())
		if left < 0 {
			return redis.NoExpiry
		}
		return int64(left)
	}
	if found.Exists {
		mode, isOurs := strings.CutPrefix(hash["mode"], "permits ")
		if !isOurs {
			return fmt.Errorf("mode %q", hash["mode"])
		}
		n := numbers(mode, 4)
		found.Claims, found.ExpireAt = make(map[redis.Owner]redis.PermitClaim), ttl(key)
		found.Held, found.Due, found.Until, found.Last = n[0], n[1], n[2], n[3]
	}
	for field, text := range hash {
		if owner := slices.Index(uuids, field); owner >= 0 {
			n := numbers(text, 3)
			found.Claims[redis.Owner(owner)] = redis.PermitClaim{Num: uint64(n[0]), Units: n[1], Expiry: n[2]}
		}
	}
	asked := must(d.admin.HGetAll(ctx, wants).Result())
	places := must(d.admin.ZRangeWithScores(ctx, wanted, 0, -1).Result())
	for _, z := range places {
		uuid := z.Member.(string)
		n := numbers(asked[uuid], 5)
		found.Places = append(found.Places, redis.PermitPlace{
			Owner: redis.Owner(slices.Index(uuids, uuid)), Time: int64(z.Score), Num: uint64(n[0]), Units: n[1], Capacity: n[2], LeaseMS: n[3], Asked: n[4],
		})
	}
	if len(asked) != len(places) {
		return fmt.Errorf("%d places and %d texts", len(places), len(asked))
	}
	if len(places) > 0 {
		if found.PlacesExpireAt = ttl(wanted); ttl(wants) > found.PlacesExpireAt+1e9 || ttl(wants) < found.PlacesExpireAt-1e9 {
			return fmt.Errorf("the keys of places live for %d and %d", ttl(wanted), ttl(wants))
		}
	}
	want := p.model
	near := func(got, want, unit int64) bool { return got >= want && got <= want+(elapsed+unit-1)/unit+1 }
	lives := func(got, want int64) bool {
		return got == want || want != redis.NoExpiry && got <= want && got >= want-int64(2*time.Minute)
	}
	same := found.Exists == want.Exists && found.Held == want.Held && len(found.Claims) == len(want.Claims) && len(found.Places) == len(want.Places)
	if same && found.Exists {
		same = near(found.Due, want.Due, 1000) && near(found.Until, want.Until, 1000) && near(found.Last, want.Last, 1) && lives(found.ExpireAt, want.ExpireAt)
	}
	for owner, c := range found.Claims {
		w := want.Claims[owner]
		same = same && c.Num == w.Num && c.Units == w.Units && near(c.Expiry, w.Expiry, 1000)
	}
	for i := range found.Places {
		if !same {
			break
		}
		f, w := found.Places[i], want.Places[i]
		same = f.Owner == w.Owner && f.Num == w.Num && f.Units == w.Units && f.Capacity == w.Capacity && f.LeaseMS == w.LeaseMS &&
			near(f.Time, w.Time, 1) && near(f.Asked, w.Asked, 1e6)
	}
	if same && len(places) > 0 {
		same = lives(found.PlacesExpireAt, want.PlacesExpireAt)
	}
	if !same {
		return fmt.Errorf("%s: Redis has %+v", p, *found)
	}
	p.model = found
	return nil
}
