package redis_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// hostsDiff is one Redis, with three sidecars whose operations on locks of one kind are compared with a model.
type hostsDiff struct {
	backend
	own   [3]*goredis.PubSub // subscribed to the channel of a sidecar, if isOn
	isOn  [3]bool
	marks int
	seen  map[string]int

	// Of the lap.
	r     dice
	log   []string
	keys  wire.Keyspace
	birth int64     // µs: tokens are above it
	clock int64     // µs
	last  [3]uint64 // numbers used
}

func newHostsDiff(t *testing.T, b backend) *hostsDiff {
	d := &hostsDiff{backend: b, seen: make(map[string]int)}
	for i := range d.own {
		d.own[i] = b.admin.Subscribe(ctx, "nothing")
		t.Cleanup(func() { d.own[i].Close() })
		must(d.own[i].Receive(ctx))
	}
	return d
}

// search runs laps, which must meet these situations.
func (d *hostsDiff) search(t *testing.T, lap func(seed uint64) error, situations []string) {
	laps, first := 600, uint64(1)
	switch {
	case *diffLaps > 0:
		laps, first = *diffLaps, max(first, *diffSeed)
	case *diffSeed > 0:
		laps, first = 1, *diffSeed
	}
	if d.inProcess() {
		laps = (laps + 15) / 16
	}
	for seed := first; seed < first+uint64(laps); seed++ {
		if err := lap(seed); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(d.log, "\n"))
		}
	}
	t.Logf("%d laps: %v", laps, d.seen)
	for _, what := range situations {
		if d.seen[what] == 0 && laps >= 600 && !d.inProcess() {
			t.Errorf("no lap has: %s", what)
		}
	}
}

func (d *hostsDiff) note(format string, args ...any) {
	d.log = append(d.log, fmt.Sprintf(format, args...))
}

func (d *hostsDiff) time() int64 { return must(d.admin.Time(ctx).Result()).UnixMicro() }

// begin begins a lap, and returns names in any order.
func (d *hostsDiff) begin(seed, stream uint64) (names []string) {
	d.r = dice{rand.New(rand.NewPCG(seed, stream))}
	d.log = nil
	must(d.admin.FlushAll(ctx).Result())
	d.keys = wire.NewKeyspace(pick(d.r, keyPrefixes...))
	d.clock = d.time()
	d.birth = d.clock + pick(d.r, -int64(time.Hour/time.Microsecond), int64(time.Hour/time.Microsecond))
	for i := range d.last {
		d.last[i] = 10
	}
	names = slices.Clone(lockNames)
	d.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

// connect connects other sidecars than before.
func (d *hostsDiff) connect() {
	for i, p := range d.own {
		if on := d.r.oneIn(2); on != d.isOn[i] {
			change := p.Subscribe
			if !on {
				change = p.Unsubscribe
			}
			if err := change(ctx, redis.SidecarChannel(uuids[i])); err != nil {
				panic(err)
			}
			must(p.ReceiveTimeout(ctx, patience))
			d.isOn[i] = on
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// execute sends the command of a run, as the store makes it.
func (d *hostsDiff) execute(script *wire.Script, e *wire.Encoder, ops []redisop.Op) ([]wire.Reply, error) {
	made := e.AppendRun(nil, wire.Run{Script: script, ByText: true}, 0, d.birth, ops)
	command, err := wire.NewReplies(strings.NewReader(string(made))).Next()
	if err != nil {
		return nil, err
	}
	words := make([]any, len(command.List))
	for i, word := range command.List {
		words[i] = word.Text
	}
	answer, err := d.admin.Do(ctx, words...).Result()
	if err != nil {
		return nil, err
	}
	return replyOf(answer).List, nil
}

// replyOf is what go-redis returned, as the store has it.
func replyOf(answer any) wire.Reply {
	switch v := answer.(type) {
	case int64:
		return wire.Reply{Kind: ':', Num: v}
	case string:
		return wire.Reply{Kind: '$', Text: v}
	case []any:
		r := wire.Reply{Kind: '*'}
		for _, item := range v {
			r.List = append(r.List, replyOf(item))
		}
		return r
	}
	return wire.Reply{}
}

// compareSent compares the messages that sidecars received with those of the model.
func (d *hostsDiff) compareSent(sent []redis.Sent, elapsed int64) error {
	for i, p := range d.own {
		if !d.isOn[i] {
			continue
		}
		channel := redis.SidecarChannel(uuids[i])
		d.marks++
		mark := fmt.Sprint("mark ", d.marks)
		must(d.admin.Publish(ctx, channel, mark).Result())
		var got, want []redisop.Message
		for {
			m, isMessage := must(p.ReceiveTimeout(ctx, patience)).(*goredis.Message)
			if !isMessage || m.Payload == mark {
				break
			}
			text, origin, ok := d.keys.Message(m.Payload)
			if !ok || origin.IsKnown && uuids[i][14] != '8' {
				return fmt.Errorf("sidecar %d received %q", i, m.Payload)
			}
			got = append(got, text)
		}
		for _, s := range sent {
			if int(s.To) == i {
				m := s.Message
				if m.Kind == redisop.Requeue && uuids[i][14] != '8' {
					m.Ticket, m.NamesTicket = 0, false
				}
				want = append(want, m)
			}
		}
		for i := range min(len(got), len(want)) {
			if drawn := got[i].LastToken - want[i].LastToken; drawn <= uint64(elapsed) {
				want[i].LastToken += drawn // it is that of a later moment
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("sidecar %d received %+v, the model sends %+v", i, got, want)
		}
	}
	return nil
}
