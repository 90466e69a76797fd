package sidecar

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

func TestStatusHasShardsInTroubleFirst(t *testing.T) {
	at := func(address string) store.ShardState { return store.ShardState{Address: address, Slots: 1} }
	var m protocol.StatusRow
	addShards(&m, []Shard{
		{ShardState: at("b:1"), Redis: "ok", IsUp: true},
		{ShardState: at("a:1"), Redis: "ok", IsUp: true, Held: 3, Waiting: 4},
		{ShardState: at("z:1"), Redis: "it is out of memory", IsUp: true, Degraded: true},
		{ShardState: at("y:1"), Redis: "it refuses connections"},
		{ShardState: at(""), Redis: "no master"},
		{ShardState: at("x:1"), Redis: "it refuses connections"},
	})
	var order []string
	for _, r := range m.Shards {
		order = append(order, r.Address)
	}
	if got := strings.Join(order, " "); got != " x:1 y:1 z:1 a:1 b:1" || m.ShardCount != 6 {
		t.Errorf("%d shards in the order %q", m.ShardCount, got)
	}
	if got, want := m.Shards[4], (protocol.ShardRow{Address: "a:1", Slots: 1, Redis: "ok", Held: 3, Waiting: 4}); got != want {
		t.Errorf("the row is %+v, want %+v", got, want)
	}
	if r := m.Shards[3]; !r.Degraded || r.Redis != "it is out of memory" {
		t.Errorf("the row is %+v", r)
	}
}

func TestStatusCountsShardsThatItDoesNotSend(t *testing.T) {
	var shards []Shard
	for i := range 200 {
		shards = append(shards, Shard{ShardState: store.ShardState{Address: fmt.Sprintf("10.0.0.%03d:1", i), Slots: 1}, Redis: "ok", IsUp: true})
	}
	shards[150].Redis, shards[150].IsUp = "it refuses connections", false
	var m protocol.StatusRow
	addShards(&m, shards)
	if len(m.Shards) != protocol.MaxShards || m.ShardCount != 200 || m.Shards[0].Address != "10.0.0.150:1" || m.Shards[1].Address != "10.0.0.000:1" {
		t.Errorf("%d of %d shards, the first %+v", len(m.Shards), m.ShardCount, m.Shards[0])
	}
}

// ofCluster returns the loop of a sidecar whose slots are on the shards 1 and 2, which are up.
func ofCluster(t *testing.T) (l *loop, end func()) {
	t.Helper()
	l, end = unservedBy(t, "redis+cluster://127.0.0.1:1") // refuses connections
	routes := []redisop.SlotRange{{First: 0, Last: 8191, Shard: 1}, {First: 8192, Last: 16383, Shard: 2}}
	now := protocol.Now()
	l.table.Route(now, routes)
	l.shards.route(routes, l.setHealth)
	for n := range redisop.Shard(2) {
		l.table.Up(now, n+1, false, true)
		l.shards.set(n+1, func(h *redisHealth) { *h = redisHealth{status: "ok"} }, l.setHealth)
	}
	return l, end
}

// The danger: one master hangs, and the status says that all do, or that all are well.
func TestStatusNamesTheShardThatIsSilent(t *testing.T) {
	l, end := ofCluster(t)
	defer end()
	since := protocol.Now()
	l.table.Open(since, 1, locktable.Peer{})
	slotOf := l.store.SlotOf()
	name := "a"
	for slotOf(name) > 8191 { // of shard 1
		name += "a"
	}
	l.table.Acquire(since, 1, protocol.Acquire{ID: 7, Name: name, WaitMS: protocol.Forever})
	now := since + int64(10*time.Second)
	shards := []Shard{{ShardState: store.ShardState{Shard: 1, Address: "a:1"}, Redis: "ok", IsUp: true}, {ShardState: store.ShardState{Shard: 2, Address: "b:1"}, Redis: "ok", IsUp: true}}
	why, all := l.noteSilence(now, shards)
	if want := "Redis at a:1 has not answered for 10s"; why != want || all || shards[0].Redis != want || shards[1].Redis != "ok" {
		t.Errorf("the reason is %q, of all shards: %v; %+v", why, all, shards)
	}
	shards = shards[:1]
	shards[0].Redis = "ok"
	if _, all = l.noteSilence(now, shards); !all {
		t.Error("the only shard is silent, and not all are")
	}
	for _, e := range l.table.Effects() {
		if e.Kind == locktable.Redis {
			l.table.Result(now, redisop.Result{Kind: e.Op.Kind, Name: e.Op.Name, Shard: e.Op.Shard, Outcome: redisop.HeldByOther})
		}
	}
}

func TestOneShardThatIsDownDegradesRedis(t *testing.T) {
	l, end := ofCluster(t)
	defer end()
	if h := l.redis.Load(); h.status != "ok" || h.isDegraded {
		t.Fatalf("at the start: %+v", h)
	}
	l.shards.set(2, func(h *redisHealth) { *h = redisHealth{status: "it refuses connections"} }, l.setHealth)
	if h := l.redis.Load(); !h.isUp() || !h.isDegraded || !strings.Contains(h.status, "1 of 2 masters of the Cluster are connected; it refuses") {
		t.Errorf("one is down: %+v", h)
	}
	if up, down := l.shards.get(1), l.shards.get(2); !up.isUp() || down.isUp() {
		t.Errorf("shard 1 %+v, shard 2 %+v", up, down)
	}
	l.shards.set(1, func(h *redisHealth) { *h = redisHealth{status: "it hangs"} }, l.setHealth)
	if h := l.redis.Load(); h.isUp() {
		t.Errorf("both are down: %+v", h)
	}
}

// The danger: an operator reads of a trouble that began, and never of its end, because another master has the slots.
func TestTroubleOfAShardHasAnEndAmongTheEvents(t *testing.T) {
	l, end := ofCluster(t)
	defer end()
	var numbers uint64
	expect := func(what string, e store.Event, want ...string) {
		t.Helper()
		if e.Kind == store.Route {
			l.shards.route(e.Routes, l.setHealth)
		}
		l.onRedisEvent(protocol.Now(), &e)
		rows, next, _ := l.eventLog.Page(numbers, 1<<20, nil, nil)
		numbers = next
		var got []string
		for _, r := range rows {
			got = append(got, strings.TrimSpace(r.Kind+" "+r.Msg))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	full := store.Event{Kind: store.Degraded, Shard: 1, Text: "it is full"}
	gone := store.Event{Kind: store.Down, Shard: 2, Text: "it is gone"}
	expect("a first connection", store.Event{Kind: store.Up, Shard: 1})
	expect("a master refuses acquires", full, "redis_degraded it is full")
	expect("the same again", full)
	expect("for another reason", store.Event{Kind: store.Degraded, Shard: 1, Text: "no replica"}, "redis_degraded no replica")
	expect("the other one is gone", gone, "redis_down it is gone")
	expect("the first one is gone, too", store.Event{Kind: store.Down, Shard: 1, Text: "it is gone"}, "redis_down it is gone")
	expect("and is back", store.Event{Kind: store.Up, Shard: 1, IsLost: true}, "redis_up", "data_lost")
	expect("it refuses nothing", store.Event{Kind: store.Degraded, Shard: 1})
	expect("it has all slots", store.Event{Kind: store.Route, Routes: []redisop.SlotRange{{First: 8192, Last: 16383, Shard: 1}}}, "redis_up")
	expect("the one without slots is gone still", gone)
	if n := l.counters.redisDowns; n != 2 {
		t.Errorf("%d losses of a connection are counted, want 2", n)
	}
}

// Before a node has answered, no slot has a master.
func TestStatusOfAClusterThatIsNotReached(t *testing.T) {
	l, end := unservedBy(t, "redis+cluster://127.0.0.1:1")
	defer end()
	shards := l.shardStates(&locktable.Survey{})
	if len(shards) != 1 || shards[0].Address != "" || shards[0].Slots != redisop.Slots || shards[0].IsUp {
		t.Errorf("the shards are %+v", shards)
	}
	single, endSingle := unserved(t)
	defer endSingle()
	if shards := single.shardStates(&locktable.Survey{}); shards != nil {
		t.Errorf("a single Redis has the shards %+v", shards)
	}
}
