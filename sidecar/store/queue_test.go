package store

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// queueRules are the commands for the queue of a lock between sidecars, among leastRules.
var queueRules = []string{"+zadd", "+zcard", "+zpopmin", "+zrange", "+zrank", "+zrem"}

// Two sidecars with the permissions that deploy/README.md names pass a lock on. Without those for
// queues no sidecar queues, and locks are taken and dropped as before.
//
// Shows docs/queue.md: What Redis has.
func TestPermissionsOfQueues(t *testing.T) {
	s := startRedis(t)
	commands := slices.DeleteFunc(slices.Clone(leastRules), func(rule string) bool {
		return rule[0] == '~' || rule[0] == '&' || slices.Contains(queueRules, rule)
	})
	all := append(slices.Clone(commands), queueRules...)
	for _, tt := range []struct {
		user, prefix string
		rules        []string
		isQueued     bool
	}{
		{"all", "", append([]string{"~*", "&*"}, all...), true},
		{"prefix", "app1:", append([]string{
			"~app1:*", "~redisson_lock_token:{app1:*", "~redisson_lock_token:app1:*",
			"~locksidecar_queue:{app1:*", "~locksidecar_queue::app1:*", "~locksidecar_signs:{app1:*", "~locksidecar_signs::app1:*",
			"&redisson_lock__channel:{app1:*", "&redisson_lock__channel:app1:*", "&redisson_lock__channel:{locksidecar}:*",
		}, all...), true},
		{"tag", "{app1}:", append([]string{
			"~{app1}:*", "~redisson_lock_token:{app1}:*", "~locksidecar_queue::{app1}:*", "~locksidecar_signs::{app1}:*",
			"&redisson_lock__channel:{app1}:*", "&redisson_lock__channel:{locksidecar}:*",
		}, all...), true},
		{"nokeys", "app1:", append([]string{
			"~app1:*", "~redisson_lock_token:{app1:*", "~redisson_lock_token:app1:*", "&*",
		}, all...), false},
		{"nocommands", "", append([]string{"~*", "&*"}, commands...), false},
	} {
		t.Run(tt.user, func(t *testing.T) {
			s.admin().FlushAll(ctx)
			url := s.userURL(tt.user, tt.rules...)
			received := make(chan redisop.Message, 100)
			receive := func(e Event) {
				for _, m := range e.Messages {
					if m.Kind != redisop.Recalled {
						received <- m
					}
				}
			}
			a := connected(t, url, func(c *Config) { c.KeyPrefix = tt.prefix; c.on(Messages, receive) })
			b := connected(t, url, func(c *Config) { c.KeyPrefix, c.UUID = tt.prefix, otherUUID; c.on(Messages, receive) })
			for _, name := range []string{"lock", "{a}b"} {
				if res := a.one(takeOp(name, 1)); res.Outcome != redisop.Done {
					t.Fatalf("%+v", res)
				}
				wait := takeOp(name, 1)
				wait.Flags |= redisop.Enqueue
				first := b.one(wait)
				again := wait
				again.HoldID, again.Ticket = 2, first.Ticket
				second := b.one(again)
				for _, res := range []redisop.Result{first, second} {
					if res.Outcome != redisop.HeldByOther || (res.Rank == 0 && res.Ticket == 1 && res.Recall == redisop.RecallReceived) != tt.isQueued ||
						res.IsQueued != tt.isQueued {
						t.Errorf("%q: a Take of the other sidecar: %+v", name, res)
					}
				}
				drop := dropOp(name, 1)
				drop.LeaseMS = 30_000
				if res := a.one(drop); res.Outcome != redisop.Done || res.Passed != tt.isQueued {
					t.Errorf("%q: the Drop: %+v", name, res)
				}
				if !tt.isQueued {
					if res := b.one(again); res.Outcome != redisop.Done {
						t.Errorf("%q: a Take after the Drop: %+v", name, res)
					}
					continue
				}
				if m := recv(t, received, "message"); m.Kind != redisop.Transferred || m.Name != name || m.Ticket != 1 {
					t.Errorf("%q: the message %+v", name, m)
				}

				wait.HoldID = 2
				if res := a.one(wait); res.Ticket != 2 {
					t.Errorf("%q: a Take of the first sidecar: %+v", name, res)
				}
				drop.PassedMS = 100
				if res := b.one(drop); res.Outcome != redisop.Done || !res.Paused {
					t.Errorf("%q: a Drop after 100 ms: %+v", name, res)
				}
				if m := recv(t, received, "message"); m.Kind != redisop.Freed || m.Name != name {
					t.Errorf("%q: the message %+v", name, m)
				}
				wait.HoldID, wait.Ticket = 3, 2
				if res := a.one(wait); res.Outcome != redisop.Done || res.Waiting != 0 {
					t.Errorf("%q: a Take with a ticket: %+v", name, res)
				}
			}
		})
	}
}

// The danger: the sidecar that passes a lock on knows of fewer tokens than the one that gets
// it, and draws tokens from a counter that Redis has lost meanwhile.
func TestTokensOfATransferAreAboveTheFloorOfItsReceiver(t *testing.T) {
	for _, tt := range []struct {
		name           string
		connectsBefore bool // the counter is made
		tokens         uint16
	}{{"a receiver from before", true, redisop.PassedTokens}, {"a receiver that knows later tokens", false, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			s := startRedis(t)
			received := make(chan redisop.Message, 100)
			connectReceiver := func() *recorder {
				return connected(t, s.url(), func(c *Config) {
					c.UUID = secondUUID
					c.on(Messages, func(e Event) {
						for _, m := range e.Messages {
							received <- m
						}
					})
				})
			}
			var receiver *recorder
			if tt.connectsBefore {
				receiver = connectReceiver()
			}
			holder := connected(t, s.url(), func(c *Config) { c.on(Messages, func(Event) {}) }) // the recall
			if res := holder.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
				t.Fatalf("%+v", res)
			}
			if !tt.connectsBefore {
				receiver = connectReceiver()
			}
			wait := takeOp("lock", 1)
			wait.Flags |= redisop.Enqueue
			receiver.one(wait)
			drop := dropOp("lock", 1)
			drop.LeaseMS = 30_000
			if res := holder.one(drop); !res.Passed {
				t.Fatalf("%+v", res)
			}
			if m := recv(t, received, "message"); m.Kind != redisop.Transferred || m.Tokens != tt.tokens {
				t.Errorf("the receiver got %+v, want %d tokens", m, tt.tokens)
			}
		})
	}
}

// With the permissions that deploy/README.md names, a host waits for permits in the queue. Without the keys of queues
// semaphores are refused, and locks are not; without their commands permits are granted and given back, without places.
//
// Shows docs/kinds.md: Permits.
func TestPermissionsOfSemaphores(t *testing.T) {
	s := startRedis(t)
	commands := slices.DeleteFunc(slices.Clone(leastRules), func(rule string) bool { return slices.Contains(queueRules, rule) })
	for name, tt := range map[string]struct {
		rules   []string
		refused bool
		places  bool
	}{
		"all":        {leastRules, false, true},
		"nokeys":     {[]string{"~api", "~lock", "~redisson_lock_token:*", "&*", "+@all"}, true, false},
		"nocommands": {commands, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s.admin().FlushAll(ctx)
			url := s.userURL(name, tt.rules...)
			ignore := func(Event) {}
			a := connected(t, url, func(c *Config) { c.on(Messages, ignore) })
			b := connected(t, url, func(c *Config) { c.UUID = otherUUID; c.on(Messages, ignore) })
			if res := a.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
				t.Fatalf("a lock: %+v", res)
			}
			res := a.one(permitsOp("api", 1, 0, 8))
			if tt.refused {
				if res.Outcome != redisop.Refused || !strings.Contains(res.Msg, `let its ACL have the key "api" and the keys locksidecar_*`) {
					t.Errorf("%+v", res)
				}
				return
			}
			if res.Outcome != redisop.Done || res.Permits != 8 {
				t.Fatalf("%+v", res)
			}
			wait := permitsOp("api", 1, 0, 8)
			wait.Flags |= redisop.Enqueue
			if res := b.one(wait); res.Outcome != redisop.HeldByOther || res.IsQueued != tt.places {
				t.Errorf("the second host: %+v", res)
			}
			if res := a.one(permitsDrop("api", 2)); res.Outcome != redisop.Done {
				t.Errorf("given back: %+v", res)
			}
			again := permitsOp("api", 2, 0, 8)
			if res := b.one(again); res.Outcome != redisop.Done || res.Permits != 8 {
				t.Errorf("asked again: %+v", res)
			}
		})
	}
}

// The danger: a program that may write keys of Redis puts a ticket with an infinite score into a queue. The script calculates
// with it, Redis answers with the smallest integer, and a daemon that does not read that leaves its connection, each time:
// with those of all other locks.
func TestInfiniteScoresDoNotEndTheConnection(t *testing.T) {
	s := startRedis(t)
	k := wire.NewKeyspace("")
	var ended atomic.Int32
	a := connected(t, s.url(), func(c *Config) { c.on(Down, func(Event) { ended.Add(1) }) })
	for _, score := range []float64{math.Inf(1), math.Inf(-1), 1e300, -5, 1 << 60} {
		for i, place := range []struct{ set, wants string }{
			{k.Queue("a"), ""},
			{k.Ours(wire.WantedPrefix, "a"), k.Ours(wire.WantsPrefix, "a")},
		} {
			s.admin().FlushAll(ctx)
			for _, host := range []string{secondUUID, otherUUID} {
				member := host
				if place.wants == "" {
					member += ":" + strings.Repeat("9", 400)
				} else {
					s.admin().HSet(ctx, place.wants, host, "10 5 12 30000 1")
				}
				s.admin().ZAdd(ctx, place.set, redis.Z{Score: score, Member: member})
			}
			ops := []redisop.Op{takeOp("a", 1), {Kind: redisop.Arrive, Name: "a", HoldID: 2}, dropOp("a", 3)}
			ops[0].Flags |= redisop.Enqueue
			if i == 1 {
				ops = []redisop.Op{permitsOp("a", 1, 0, 1), permitsOp("a", 2, 1, 2), permitsDrop("a", 3)}
			}
			for _, op := range ops {
				if res := a.one(op); res.Outcome == redisop.Retryable || res.Outcome == redisop.NotSent {
					t.Errorf("score %v in %s: %+v: %+v", score, place.set, op, res)
				}
			}
			a.key("a")
		}
	}
	if n := ended.Load(); n != 0 {
		t.Errorf("the connection ended %d times", n)
	}
}
