package redis_test

import (
	"errors"
	"fmt"
	"maps"
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

// The differential test of rw.lua: random operations of three sidecars on random contents of read/write locks, in a real
// Redis and in the model. Each result, message and key must be equal.
//
//	go test ./internal/sim/redis -run 'TestReadWriteLocksBehaveAsTheirModel' -diff.seed=1000000 -diff.laps=100000   search for a failure
//	go test ./internal/sim/redis -run 'TestReadWriteLocksBehaveAsTheirModel/redis' -diff.seed=4711                  one lap
func TestReadWriteLocksBehaveAsTheirModel(t *testing.T) {
	withBackends(t, func(t *testing.T, b backend) {
		d := &rwDiff{hostsDiff: newHostsDiff(t, b), redisson: b.admin.Subscribe(ctx, "nothing")}
		t.Cleanup(func() { d.redisson.Close() })
		must(d.redisson.Receive(ctx))
		d.search(t, d.lap, rwSituations)
	})
}

// rwSituations are what the laps must meet.
var rwSituations = []string{
	"shared", "shared with others", "exclusive", "downgraded", "given up to write", "given back", "waits to read", "waits to write", "waits for both",
	"no share while a writer waits", "readers are admitted", "a writer is admitted", "the own readers are admitted", "the own writer is admitted",
	"nothing received an admission", "a silent place", "an expired share", "joins a phase", "yields",
	"programs read on", "a program writes", "the key was deleted", "it was deleted while hosts shared it", "lost", "got back", "late", "renewed", "stolen", "OOM", "READONLY", "recalled",
}

// rwDiff is one Redis, with what three sidecars have of read/write locks.
type rwDiff struct {
	*hostsDiff
	redisson *goredis.PubSub // subscribed to the channels of locks
	locks    []*rwOf         // of the lap
}

// rwOf is what the model has of one lock.
type rwOf struct {
	name    string
	model   *redis.ReadWrite
	counter *redis.Counter
}

func (l *rwOf) String() string {
	return fmt.Sprintf("%q: %+v, counter %d", l.name, *l.model, l.counter.Value)
}

func (d *rwDiff) lap(seed uint64) error {
	names := d.begin(seed, 0x7277)
	d.locks = nil
	counters := make(map[string]*redis.Counter) // some locks share one
	for _, name := range names[:1+d.r.IntN(3)] {
		key := d.keys.Counter(name)
		if counters[key] == nil {
			counters[key] = &redis.Counter{}
			if d.r.oneIn(2) {
				*counters[key] = redis.Counter{Exists: true, Value: 5000 + d.r.Int64N(100), ExpireAt: redis.NoExpiry}
				lives := pick(d.r, 0, 3*24*time.Hour, week-time.Hour)
				if must(d.admin.Set(ctx, key, counters[key].Value, lives).Result()); lives > 0 {
					counters[key].ExpireAt = int64(lives)
				}
			}
		}
		l := &rwOf{name, &redis.ReadWrite{}, counters[key]}
		if err := d.redisson.Subscribe(ctx, d.channel(l)); err != nil {
			return err
		}
		must(d.redisson.ReceiveTimeout(ctx, patience))
		d.locks = append(d.locks, l)
	}
	defer func() {
		for _, l := range d.locks {
			d.redisson.Unsubscribe(ctx, d.channel(l))
			must(d.redisson.ReceiveTimeout(ctx, patience))
		}
	}()
	for range 1 + d.r.IntN(16) {
		if d.r.oneIn(4) {
			d.change(pick(d.r, d.locks...))
		}
		if err := d.run(); err != nil {
			return err
		}
	}
	return nil
}

// channel is that on which Redisson's programs wait.
func (d *rwDiff) channel(l *rwOf) string {
	return "redisson_rwlock:" + strings.TrimPrefix(d.keys.Counter(l.name), wire.CounterPrefix)
}

// queues are the keys of readers and writers, and of what they asked.
func (d *rwDiff) queues(l *rwOf) (queues [2]string, asked string) {
	return [...]string{d.keys.Ours(wire.ReadersPrefix, l.name), d.keys.Ours(wire.WritersPrefix, l.name)}, d.keys.Ours(wire.AskedPrefix, l.name)
}

// reader is the field by which Redisson takes all sidecars for one reader.
func (d *rwDiff) reader(l *rwOf) string {
	if strings.Contains(d.keys.Key(l.name), "{") {
		return "locksidecar:1"
	}
	return "locksidecar:0"
}

const (
	programReads  = "c0ffee00-1111-4222-8333-444444444444:20"
	programWrites = "c0ffee00-1111-4222-8333-444444444444:21:write"
)

var modeNames = [...]string{"", "read", "write"}

// change puts something else into Redis and the model, and connects other sidecars.
func (d *rwDiff) change(l *rwOf) {
	key, life := d.keys.Key(l.name), d.keys.Life(l.name)
	queues, asked := d.queues(l)
	must(d.admin.Del(ctx, key, life, queues[0], queues[1], asked).Result())
	d.clock = d.time()
	m := &redis.ReadWrite{Mode: redisop.Mode(d.r.IntN(3))}
	ms := d.clock / 1000
	owners := d.r.Perm(3)
	switch m.Mode {
	case redisop.ExclusiveMode:
		if m.ExpireAt = int64(90 * time.Minute); d.r.oneIn(3) {
			m.Programs = map[string]string{programWrites: "1"}
			break
		}
		m.Claims = map[redis.Owner]redis.ShareClaim{redis.Owner(owners[0]): {Num: d.last[owners[0]] - d.r.Uint64N(3), Mode: redisop.ExclusiveMode}}
	case redisop.SharedMode:
		m.Due = math.MaxInt64
		m.Claims = make(map[redis.Owner]redis.ShareClaim)
		for _, owner := range owners[:d.r.IntN(4)] {
			c := redis.ShareClaim{Num: d.last[owner] - d.r.Uint64N(3), Mode: redisop.SharedMode, Expiry: ms + pick(d.r, int64(-60_000), 3_000_000, 6_000_000)}
			m.Claims[redis.Owner(owner)], m.Count, m.Due = c, m.Count+1, min(m.Due, c.Expiry)
		}
		if m.Count == 0 {
			m.Due = 0
		} else {
			for _, c := range m.Claims {
				m.Until = max(m.Until, c.Expiry)
			}
			m.Until += pick(d.r, int64(0), 2_000_000)
			m.Begin = pick(d.r, 0, d.clock-5_000_000)
			if d.r.oneIn(3) {
				m.Due = min(m.Due, ms-1000)
			}
		}
		if m.Count == 0 || d.r.oneIn(3) {
			m.Programs = map[string]string{programReads: "2"}
		}
		if m.ExpireAt = redis.NoExpiry; d.r.oneIn(2) { // a reader of Redisson may have shortened it
			m.ExpireAt = pick(d.r, int64(30*time.Minute), int64(3*time.Hour))
		}
	}
	mayBeDeleted := m.ExpireAt != redis.NoExpiry && m.ExpireAt > (m.Until-ms+1000)*1e6 // otherwise the next share sets both
	if m.Count > 0 && !(mayBeDeleted && d.r.oneIn(4)) || m.Mode == redisop.NoMode && d.r.oneIn(3) {
		m.LifeUntil = m.Until
		if m.Count == 0 {
			m.LifeUntil = ms + pick(d.r, int64(4_000_000), 30_000_000)
		}
		m.LifeAt = max((m.LifeUntil-ms)*1e6, int64(time.Minute))
		must(d.admin.Set(ctx, life, m.LifeUntil, time.Duration(m.LifeAt)).Result())
	}
	if m.Mode != redisop.NoMode {
		hash := maps.Clone(m.Programs)
		if hash == nil {
			hash = make(map[string]string)
		}
		hash["mode"] = modeNames[m.Mode]
		for owner, c := range m.Claims {
			hash[uuids[owner]] = fmt.Sprintf("%d %c %d", c.Num, " rw"[c.Mode], c.Expiry)
		}
		if m.Count > 0 {
			hash[d.reader(l)], hash["locksidecar"] = "1", fmt.Sprintf("%d %d %d %d", m.Count, m.Due, m.Until, m.Begin)
		}
		must(d.admin.HSet(ctx, key, hash).Result())
		if m.ExpireAt != redis.NoExpiry {
			must(d.admin.PExpire(ctx, key, time.Duration(m.ExpireAt)).Result())
		}
	}
	for i, queue := range queues {
		for owner := range redis.Owner(3) {
			if d.r.oneIn(2) {
				continue
			}
			age := pick(d.r, time.Second, 2*time.Second, 7*time.Second, time.Minute, -time.Minute).Microseconds()
			p := redis.SharePlace{
				Owner: owner, Time: d.clock - age, Num: d.last[owner] - d.r.Uint64N(3), LeaseMS: pick(d.r, int64(3_600_000), 7_200_000, 100_000_000),
				Asked: (d.clock - pick(d.r, age, 0)) / 1e6,
			}
			m.Places[i] = append(m.Places[i], p)
			must(d.admin.ZAdd(ctx, queue, goredis.Z{Score: float64(p.Time), Member: uuids[owner]}).Result())
			must(d.admin.HSet(ctx, asked, fmt.Sprintf("%s:%c", uuids[owner], "rw"[i]), fmt.Sprintf("%d %d %d", p.Num, p.LeaseMS, p.Asked)).Result())
			m.PlacesExpireAt[i], m.AskedExpireAt = int64(5*time.Minute), int64(5*time.Minute)
			must(d.admin.PExpire(ctx, queue, 5*time.Minute).Result())
			must(d.admin.PExpire(ctx, asked, 5*time.Minute).Result())
		}
		slices.SortStableFunc(m.Places[i], func(a, b redis.SharePlace) int { return int(a.Time - b.Time) })
	}
	l.model = m
	d.connect()
	d.note("after %s; connected %v", l, d.isOn)
}

func (d *rwDiff) drawOp(owner redis.Owner, l *rwOf) redisop.Op {
	r := d.r
	has := l.model.Claims[owner]
	op := redisop.Op{Of: redisop.KindReadWrite, Kind: redisop.Take, Name: l.name, LeaseMS: pick[uint32](r, 3_600_000, 7_200_000, 100_000_000)}
	op.HoldID = d.last[owner] + 1
	if r.oneIn(12) {
		op.HoldID = d.last[owner] - r.Uint64N(3)
	}
	d.last[owner] = max(d.last[owner], op.HoldID)
	switch x := r.IntN(10); {
	case x == 0:
		op.Kind = redisop.Renew
	case x == 1:
		op.Kind, op.LeaseMS = redisop.Check, 0
	case x < 4:
		op.Kind = redisop.Drop
	}
	op.Count = uint32(pick(r, has.Mode, has.Mode, redisop.NoMode, redisop.Mode(r.IntN(3))))
	switch op.Kind {
	case redisop.Take:
		if op.Want = uint16(r.IntN(3)); op.Count == 0 && op.Want == 0 {
			op.Want = uint16(redisop.SharedMode)
		}
		if op.Count == uint32(redisop.ExclusiveMode) {
			op.Want = 0
		}
		op.Times = uint8(r.IntN(4))
		if op.Want == 0 && op.Count != uint32(redisop.ExclusiveMode) {
			op.Times = 0
		}
		op.Reserve = pick[uint16](r, 0, 1, 1, 5)
		op.Set(redisop.RequireExisting, r.oneIn(2))
		op.Set(redisop.Yields, r.oneIn(3))
		if r.oneIn(5) {
			op.Arrived = pick(r, uint64(d.clock-1_500_000), uint64(d.clock-30_000_000), uint64(d.clock+1_000_000_000))
		}
	case redisop.Renew, redisop.Check:
		op.Count = uint32(pick(r, max(has.Mode, redisop.SharedMode), redisop.SharedMode, redisop.ExclusiveMode))
		op.HoldID = pick(r, op.HoldID, max(has.Num, 1))
	}
	return op
}

// run has a sidecar execute some operations in one run.
func (d *rwDiff) run() error {
	owner := redis.Owner(d.r.IntN(3))
	in := slices.Clone(d.locks)
	d.r.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
	if in = in[:1+d.r.IntN(len(in))]; d.r.oneIn(3) {
		in = in[:1]
	}
	var ops []redisop.Op
	for _, l := range in {
		ops = append(ops, d.drawOp(owner, l))
	}
	full := d.r.oneIn(15) && !d.inProcess()
	demoted := !full && d.r.oneIn(25) && !d.inProcess()
	if full || demoted {
		ops, in = ops[:1], in[:1]
	}
	e := wire.Encoder{
		Prefix: prefixes[owner], Keys: d.keys, Origin: pick(d.r, "-", "0123abcd"), Declares: d.r.oneIn(2), Confirms: d.r.oneIn(3),
		Floor: pick[int64](d.r, 0, 1000), Expiry: pick(d.r, 0, week.Milliseconds()),
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
	statuses, err := d.execute(wire.ReadWrite, &e, ops)
	if err != nil {
		return err
	}
	elapsed := d.time() - d.clock + 1000
	var sent []redis.Sent
	unlocks := make(map[string]string)
	for i := range ops {
		op, l := &ops[i], in[i]
		c := redis.Command{
			Op: new(*op), Owner: owner, Prefixes: prefixes, Clock: d.clock, Floor: e.Floor, Fresh: max(d.clock, d.birth), Confirms: e.Confirms, Expiry: e.Expiry * 1e6,
			NoMemory: full, ReadOnly: demoted, Receivers: func(to redis.Owner) int32 { return int32(btoi(d.isOn[to])) },
		}
		before := l.model.Clone()
		want, unlocked := c.RunReadWrite(l.model, l.counter)
		sent = append(sent, want.Sent...)
		if unlocked != "" {
			unlocks[d.channel(l)] += string(unlocked)
		}
		got := redisop.Result{Kind: op.Kind, Name: op.Name}
		refusal, err := wire.DecodeReadWrite(statuses[i], op, &got)
		if err != nil {
			return fmt.Errorf("%+v: %w", statuses[i], err)
		}
		if refusal != "" {
			got.Outcome = wire.OutcomeOf(wire.Code(refusal))
		}
		d.note("sidecar %d, full %v, a replica %v: %+v\n    Redis %+v %q\n    model %+v %s\n    has   %s", owner, full, demoted, *op, got, refusal, want, unlocked, l)
		if err := compareReadWrite(&want, &got, refusal, elapsed); err != nil {
			return err
		}
		if want.Outcome == redisop.Done || want.Outcome == redisop.HeldByOther {
			isShared := want.Outcome == redisop.Done && op.Kind != redisop.Check && l.model.Claims[owner].Mode == redisop.SharedMode
			if before.Count > 0 && before.LifeAt == 0 && op.Kind != redisop.Renew {
				isShared = false // it was deleted by hand, and a renewal makes it again
			}
			isChange := op.Kind == redisop.Take || op.Kind == redisop.Drop
			if err := checkReadWrite(l.model, owner, d.clock, isShared, isChange && !full); err != nil {
				return fmt.Errorf("%w: %s", err, l)
			}
		}
		d.observe(op, before, l.model, &want, owner)
	}
	if err := d.compareSent(sent, elapsed); err != nil {
		return err
	}
	if err := d.compareUnlocks(unlocks); err != nil {
		return err
	}
	for _, l := range in {
		if err := d.compareKeys(l, elapsed); err != nil {
			return err
		}
	}
	return nil
}

// checkReadWrite checks what is true of a lock after each operation of an owner. isShared: after those that give it a share, or
// renew it. passesOn: after those that can pass the lock on.
func checkReadWrite(l *redis.ReadWrite, owner redis.Owner, clock int64, isShared, passesOn bool) error {
	if isShared {
		for _, c := range l.Claims {
			if left := (c.Expiry - clock/1000) * 1e6; left > 0 && (l.ExpireAt < left || l.LifeAt < left || l.Until < c.Expiry) {
				return errors.New("the keys end before a share (K2)")
			}
		}
	}
	if !passesOn {
		return nil
	}
	readers, writers := len(l.Places[0]), len(l.Places[1])
	isSilent := func(p redis.SharePlace) bool {
		return p.Owner != owner && clock-max(p.Time, p.Asked*1e6) > redisop.MaxSilence.Microseconds()
	}
	switch {
	case l.Mode == redisop.SharedMode && readers > 0 && writers > 0 && isSilent(l.Places[1][0]):
		return errors.New("a reader waits for a writer that is dead (K7)")
	case l.Mode == redisop.ExclusiveMode && len(l.Claims)+len(l.Programs) != 1:
		return errors.New("a writer is not alone (K1)")
	case l.Mode == redisop.NoMode && (readers > 0 || writers > 0 && l.LifeAt == 0):
		return errors.New("hosts wait for a free lock")
	case l.Mode == redisop.SharedMode && writers == 0 && readers > 0:
		return errors.New("readers wait for nothing (K7)")
	case l.Mode == redisop.SharedMode && readers > 0 && l.Places[0][0].Time <= l.Begin:
		return errors.New("a reader that came before this phase does not join it (K9)")
	}
	return nil
}

func compareReadWrite(want *redis.Reply, got *redisop.Result, refusal string, elapsed int64) error {
	near := func(got, want int64) bool { return got >= want && got <= want+elapsed }
	isSingle := got.Kind == redisop.Renew || got.Kind == redisop.Check
	switch {
	case got.Outcome != want.Outcome || want.Code != "" && !strings.HasPrefix(refusal, want.Code):
		return fmt.Errorf("outcome %v, want %v %s", got.Outcome, want.Outcome, want.Code)
	case want.Outcome != redisop.Done && want.Outcome != redisop.HeldByOther:
		return nil
	case got.Permits != want.Permits:
		return fmt.Errorf("mode or shares %d, want %d", got.Permits, want.Permits)
	case (got.Token == 0) != (want.Token == 0), !near(int64(got.Token), int64(want.Token)), got.Made != want.Made:
		return fmt.Errorf("token %d, want %d; made %v", got.Token, want.Token, got.Made)
	case got.Waiting != want.Waiting && !isSingle, got.Queues != want.Queues:
		return fmt.Errorf("%d wait, want %d; queues %d", got.Waiting, want.Waiting, got.Queues)
	case want.Outcome != redisop.HeldByOther:
		return nil
	case got.IsQueued != want.IsQueued, got.Rank != want.Rank, got.Ticket != want.Ticket, got.Recall != want.Recall, got.LeftFree != want.LeftFree:
		return fmt.Errorf("%+v, want %+v", got, want)
	case !near(int64(got.Arrived), int64(want.Arrived)):
		return fmt.Errorf("arrived at %d, want %d", got.Arrived, want.Arrived)
	case want.TTLMS < 0 && got.TTLMS != want.TTLMS, want.TTLMS >= 0 && (got.TTLMS > want.TTLMS+1 || got.TTLMS < want.TTLMS-120_000):
		return fmt.Errorf("%d ms until a claim may end, want %d", got.TTLMS, want.TTLMS)
	}
	return nil
}

// compareUnlocks compares what Redisson's programs received with the model.
func (d *rwDiff) compareUnlocks(want map[string]string) error {
	d.marks++
	mark := fmt.Sprint("mark ", d.marks)
	for _, l := range d.locks[:1] {
		must(d.admin.Publish(ctx, d.channel(l), mark).Result())
	}
	got := make(map[string]string)
	for {
		m, isMessage := must(d.redisson.ReceiveTimeout(ctx, patience)).(*goredis.Message)
		if !isMessage || m.Payload == mark {
			break
		}
		got[m.Channel] += m.Payload
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("Redisson received %v, the model publishes %v", got, want)
	}
	return nil
}

// observe counts what a lap has met.
func (d *rwDiff) observe(op *redisop.Op, before, after *redis.ReadWrite, r *redis.Reply, owner redis.Owner) {
	had, has := before.Claims[owner], after.Claims[owner]
	keep, want := redisop.Mode(op.Count), redisop.Mode(op.Want)
	isTake, isDone := op.Kind == redisop.Take, r.Outcome == redisop.Done
	stood := func(l *redis.ReadWrite, m redisop.Mode) bool { return l.PlaceOf(owner, m) >= 0 }
	sent := func(m redisop.Mode, reached bool) bool {
		return slices.ContainsFunc(r.Sent, func(s redis.Sent) bool {
			return s.Kind == redisop.Admitted && s.Units == uint16(m) && s.Reached > 0 == reached
		})
	}
	waits := isTake && r.Outcome == redisop.HeldByOther
	meets := map[string]bool{
		"shared":                               isDone && has.Mode == redisop.SharedMode && had.Mode == redisop.NoMode,
		"shared with others":                   isDone && has.Mode == redisop.SharedMode && had.Mode == redisop.NoMode && before.Count > 0 && after.Count > before.Count,
		"exclusive":                            isDone && has.Mode == redisop.ExclusiveMode && had.Mode == redisop.NoMode && before.Mode == redisop.NoMode,
		"downgraded":                           isDone && had.Mode == redisop.ExclusiveMode && has.Mode == redisop.SharedMode,
		"given up to write":                    isTake && had.Mode == redisop.SharedMode && keep == redisop.NoMode && want == redisop.ExclusiveMode && has.Mode == redisop.ExclusiveMode,
		"given back":                           isDone && had.Mode != redisop.NoMode && has.Mode == redisop.NoMode,
		"waits to read":                        waits && want == redisop.SharedMode && stood(after, redisop.SharedMode),
		"waits to write":                       waits && want == redisop.ExclusiveMode && stood(after, redisop.ExclusiveMode),
		"waits for both":                       waits && r.Queues == redisop.ReadersQueue|redisop.WritersQueue,
		"no share while a writer waits":        waits && want == redisop.SharedMode && after.Mode == redisop.SharedMode && len(after.Places[1]) > 0,
		"readers are admitted":                 sent(redisop.SharedMode, true),
		"a writer is admitted":                 sent(redisop.ExclusiveMode, true),
		"the own readers are admitted":         isDone && had.Mode != has.Mode && has.Mode == redisop.SharedMode && stood(before, redisop.SharedMode) && want == redisop.ExclusiveMode,
		"the own writer is admitted":           isDone && has.Mode == redisop.ExclusiveMode && len(before.Places[1]) > 1 && stood(before, redisop.ExclusiveMode),
		"nothing received an admission":        sent(redisop.SharedMode, false) || sent(redisop.ExclusiveMode, false),
		"a silent place":                       slices.ContainsFunc(r.Sent, func(s redis.Sent) bool { return s.Kind == redisop.Requeue }),
		"an expired share":                     before.Count > 1 && after.Count < before.Count && has.Mode == had.Mode && after.Count > 0,
		"joins a phase":                        sent(redisop.SharedMode, true) && before.Mode == redisop.SharedMode && after.Mode == redisop.SharedMode && len(after.Places[1]) > 0,
		"yields":                               isTake && op.Has(redisop.Yields) && had.Mode == redisop.ExclusiveMode && has.Mode != redisop.ExclusiveMode && want == redisop.ExclusiveMode,
		"programs read on":                     had.Mode == redisop.SharedMode && after.Mode == redisop.SharedMode && after.Count == 0,
		"a program writes":                     waits && len(after.Programs) > 0 && after.Mode == redisop.ExclusiveMode,
		"the key was deleted":                  waits && want == redisop.ExclusiveMode && after.Mode == redisop.NoMode && after.LifeAt != 0,
		"it was deleted while hosts shared it": after.Claims[redis.NoOwner].Mode == redisop.SharedMode && before.Mode == redisop.NoMode,
		"lost":                                 r.Outcome == redisop.KeyMissing && isTake,
		"got back":                             isDone && isTake && keep != redisop.NoMode && had.Mode == redisop.NoMode && has.Mode == keep,
		"late":                                 r.Outcome == redisop.Differs,
		"renewed":                              isDone && op.Kind == redisop.Renew,
		"stolen":                               r.Outcome == redisop.HeldByOther && op.Kind == redisop.Renew,
		"OOM":                                  r.Code == "OOM",
		"READONLY":                             r.Code == "READONLY",
		"recalled":                             r.Recall == redisop.RecallReceived,
	}
	for what, is := range meets {
		d.seen[what] += btoi(is)
	}
}

// compareKeys compares what Redis has with the model, which has that afterwards.
func (d *rwDiff) compareKeys(l *rwOf, elapsed int64) error {
	key := d.keys.Key(l.name)
	queues, askedKey := d.queues(l)
	hash := must(d.admin.HGetAll(ctx, key).Result())
	found := &redis.ReadWrite{Mode: redisop.Mode(max(slices.Index(modeNames[:], hash["mode"]), 0))}
	number := func(text string) int64 { return must(strconv.ParseInt(text, 10, 64)) }
	ttl := func(key string) int64 {
		switch left := must(d.admin.PTTL(ctx, key).Result()); {
		case left == -1:
			return redis.NoExpiry
		case left < 0:
			return 0
		default:
			return int64(left)
		}
	}
	if found.Mode != redisop.NoMode {
		found.ExpireAt = ttl(key)
	}
	for field, text := range hash {
		words := strings.Fields(text)
		switch owner := slices.Index(uuids, field); {
		case field == "mode" || field == d.reader(l) && text == "1":
		case owner >= 0:
			if found.Claims == nil {
				found.Claims = make(map[redis.Owner]redis.ShareClaim)
			}
			found.Claims[redis.Owner(owner)] = redis.ShareClaim{
				Num: uint64(number(words[0])), Mode: redisop.Mode(strings.Index(" rw", words[1])), Expiry: number(words[2]),
			}
		case field == "00000000-0000-0000-0000-000000000000":
			if found.Claims == nil {
				found.Claims = make(map[redis.Owner]redis.ShareClaim)
			}
			found.Claims[redis.NoOwner] = redis.ShareClaim{Mode: redisop.SharedMode, Expiry: number(words[2])}
		case field == "locksidecar":
			found.Count, found.Due, found.Until, found.Begin = number(words[0]), number(words[1]), number(words[2]), number(words[3])
		default:
			if found.Programs == nil {
				found.Programs = make(map[string]string)
			}
			found.Programs[field] = text
		}
	}
	if _, is := hash[d.reader(l)]; is != (found.Count > 0) {
		return fmt.Errorf("%d hosts share it, and the reader of all of them is there: %v", found.Count, is)
	}
	if found.LifeAt = ttl(d.keys.Life(l.name)); found.LifeAt != 0 {
		found.LifeUntil = number(must(d.admin.Get(ctx, d.keys.Life(l.name)).Result()))
	}
	asked := must(d.admin.HGetAll(ctx, askedKey).Result())
	for i, queue := range queues {
		for _, z := range must(d.admin.ZRangeWithScores(ctx, queue, 0, -1).Result()) {
			uuid := z.Member.(string)
			words := strings.Fields(asked[fmt.Sprintf("%s:%c", uuid, "rw"[i])])
			found.Places[i] = append(found.Places[i], redis.SharePlace{
				Owner: redis.Owner(slices.Index(uuids, uuid)), Time: int64(z.Score), Num: uint64(number(words[0])), LeaseMS: number(words[1]), Asked: number(words[2]),
			})
		}
		if len(found.Places[i]) > 0 {
			found.PlacesExpireAt[i] = ttl(queue)
		}
	}
	if len(asked) != len(found.Places[0])+len(found.Places[1]) {
		return fmt.Errorf("%d and %d places, and %d texts", len(found.Places[0]), len(found.Places[1]), len(asked))
	}
	if len(asked) > 0 {
		found.AskedExpireAt = ttl(askedKey)
	}
	counter := redis.Counter{ExpireAt: redis.NoExpiry}
	if text, err := d.admin.Get(ctx, d.keys.Counter(l.name)).Result(); err == nil {
		counter.Exists, counter.Value, counter.ExpireAt = true, number(text), ttl(d.keys.Counter(l.name))
	}
	want := l.model
	near := func(got, want, unit int64) bool {
		return got == want || want != 0 && got >= want && got <= want+(elapsed+unit-1)/unit+1
	}
	lives := func(got, want int64) bool {
		return got == want || want != redis.NoExpiry && got != 0 && got <= want && got >= want-int64(2*time.Minute)
	}
	same := found.Mode == want.Mode && found.Count == want.Count && lives(found.ExpireAt, want.ExpireAt) && lives(found.LifeAt, want.LifeAt) &&
		(found.LifeAt == 0 || near(found.LifeUntil, want.LifeUntil, 1000)) &&
		len(found.Claims) == len(want.Claims) && maps.Equal(found.Programs, want.Programs) &&
		near(found.Due, want.Due, 1000) && near(found.Until, want.Until, 1000) && near(found.Begin, want.Begin, 1) &&
		counter.Exists == l.counter.Exists && near(counter.Value, l.counter.Value, 1) && (!counter.Exists || lives(counter.ExpireAt, l.counter.ExpireAt))
	for owner, c := range found.Claims {
		w := want.Claims[owner]
		same = same && c.Num == w.Num && c.Mode == w.Mode && near(c.Expiry, w.Expiry, 1000)
	}
	for i := range queues {
		same = same && len(found.Places[i]) == len(want.Places[i])
		for j := range found.Places[i] {
			if !same {
				break
			}
			f, w := found.Places[i][j], want.Places[i][j]
			same = f.Owner == w.Owner && f.Num == w.Num && f.LeaseMS == w.LeaseMS && near(f.Time, w.Time, 1) && near(f.Asked, w.Asked, 1e6)
		}
		if same && len(found.Places[i]) > 0 {
			same = lives(found.PlacesExpireAt[i], want.PlacesExpireAt[i]) && lives(found.AskedExpireAt, want.AskedExpireAt)
		}
	}
	if !same {
		return fmt.Errorf("%s: Redis has %+v, counter %d", l, *found, counter.Value)
	}
	l.model, *l.counter = found, counter
	return nil
}
