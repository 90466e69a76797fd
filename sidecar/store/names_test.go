package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Redisson's layout, as its programs read and write it, with and without a NameMapper.
func TestNamesAreRedissons(t *testing.T) {
	for _, tt := range []struct{ prefix, name, key, channel, counter string }{
		{"", "lock", "lock", "redisson_lock__channel:{lock}", "redisson_lock_token:{lock}"},
		{"", "{lock}", "{lock}", "redisson_lock__channel:{lock}", "redisson_lock_token:{lock}"},
		{"", "order:{42}:x", "order:{42}:x", "redisson_lock__channel:order:{42}:x", "redisson_lock_token:order:{42}:x"},
		{"", "odd{", "odd{", "redisson_lock__channel:odd{", "redisson_lock_token:odd{"},
		{"", "odd}", "odd}", "redisson_lock__channel:{odd}}", "redisson_lock_token:{odd}}"},
		{"app1:", "lock", "app1:lock", "redisson_lock__channel:{app1:lock}", "redisson_lock_token:{app1:lock}"},
		{"app1:", "{lock}", "app1:{lock}", "redisson_lock__channel:app1:{lock}", "redisson_lock_token:app1:{lock}"},
		{"{app1}:", "lock", "{app1}:lock", "redisson_lock__channel:{app1}:lock", "redisson_lock_token:{app1}:lock"},
		{"{app1}:", "{lock}", "{app1}:{lock}", "redisson_lock__channel:{app1}:{lock}", "redisson_lock_token:{app1}:{lock}"},
	} {
		k := wire.NewKeyspace(tt.prefix)
		if got := k.Key(tt.name); got != tt.key {
			t.Errorf("key of %q with prefix %q: %q, want %q", tt.name, tt.prefix, got, tt.key)
		}
		if got := k.Channel(tt.name); got != tt.channel {
			t.Errorf("channel of %q with prefix %q: %q, want %q", tt.name, tt.prefix, got, tt.channel)
		}
		if got := k.Counter(tt.name); got != tt.counter {
			t.Errorf("counter of %q with prefix %q: %q, want %q", tt.name, tt.prefix, got, tt.counter)
		}
	}
}

// What counts is the key: with a prefix, a name may be like another lock's counter, and
// must not become one together with the prefix.
func TestNameIsReservedIfItsKeyBelongsToAnotherLock(t *testing.T) {
	for _, tt := range []struct{ prefix, name, want string }{
		{"", "lock", ""},
		{"", "redisson_lock", ""},
		{"", "redisson_lock_token:{a}", "redisson_lock_"},
		{"", "redisson_unlock_latch:{a}:1", "redisson_unlock_latch:"},
		{"", "locksidecar_queue:{a}", "locksidecar_"},
		{"", "my redisson_lock_token:{a}", ""},
		{"app1:", "redisson_lock_token:{a}", ""},
		{"app1:", "redisson_lock_token:{app1:a}", ""},
		{"app1:", "locksidecar_queue:{a}", ""},
		{"redisson_", "lock_token:{redisson_a}", "redisson_lock_"},
		{"redisson_", "unlock_latch:{redisson_a}:1", "redisson_unlock_latch:"},
		{"redisson_", "locks", ""},
		{"redisson_", "redisson_lock_token:{redisson_a}", ""},
		{"l", "ocksidecar_x", "locksidecar_"},
		{"l", "locksidecar_x", ""},
	} {
		got := wire.Reserved(tt.prefix, tt.name)
		if tt.want == "" && got != "" || tt.want != "" && !strings.Contains(got, "begin with "+tt.want+", and such keys") {
			t.Errorf("name %q with prefix %q is reserved because %q, want %q", tt.name, tt.prefix, got, tt.want)
		}
	}
}

// Redisson writes and deletes such keys beside that of a read-write lock.
func TestNameIsReservedIfItsKeyIsATimeoutOfAReadWriteLock(t *testing.T) {
	for _, tt := range []struct {
		prefix, name string
		want         bool
	}{
		{"", "{a}:6f1c:1:rwlock_timeout:1", true},
		{"", ":rwlock_timeout:20", true},
		{"app1:", "a:rwlock_timeout:1", true},
		{"app1:rwlock_", "timeout:1", true},
		{"app1:rwlock_timeout:", "1", true},
		{"app1:rwlock_timeout:1", "2", true},
		{"", "a:rwlock_timeout:", false},
		{"", "a:rwlock_timeout:1a", false},
		{"", "rwlock_timeout:1", false},
		{"app1:", "rwlock_timeout:1", true},
		{"app1", "rwlock_timeout:1", false},
		{"", "1", false},
		{"app1:", "invoice:42", false},
	} {
		got := wire.Reserved(tt.prefix, tt.name)
		if (got != "") != tt.want || tt.want && !strings.Contains(got, "end with :rwlock_timeout: and digits") {
			t.Errorf("name %q with prefix %q is reserved because %q, want %v", tt.name, tt.prefix, got, tt.want)
		}
	}
}

// What counts is the channel: a name must not get one of a sidecar together with the prefix.
//
// Shows docs/guarantees.md: Names a lock like another lock's token counter, queue or channel.
func TestNameIsReservedIfItsChannelIsThatOfASidecar(t *testing.T) {
	for _, tt := range []struct {
		prefix, name string
		want         bool
	}{
		{"", "{locksidecar}:" + ourUUID, true},
		{"", "{locksidecar}:" + otherUUID, true},
		{"", "{locksidecar}:", true},
		{"", "locksidecar}:" + ourUUID, true},
		{"", "locksidecar}:{a", false},
		{"", "{locksidecar}", false},
		{"", "locksidecar", false},
		{"", "locksidecar:" + ourUUID, false},
		{"", "a{locksidecar}:" + ourUUID, false},
		{"{locksidecar}", ":" + ourUUID, true},
		{"{locksidecar}", "a:" + ourUUID, false},
		{"lock", "sidecar}:" + ourUUID, true},
		{"lock", "{locksidecar}:" + ourUUID, false},
		{"app1:", "{locksidecar}:" + ourUUID, false},
		{"{app1}:", "{locksidecar}:" + ourUUID, false},
		{"locksidecar}:{app1}", "a", false}, // the key has a tag, and the channel gets no brace
	} {
		got := wire.Reserved(tt.prefix, tt.name)
		if got != "" != tt.want || tt.want && !strings.Contains(got, "the channel of this lock in Redis would begin with redisson_lock__channel:{locksidecar}:") {
			t.Errorf("name %q with prefix %q is reserved because %q, want %v", tt.name, tt.prefix, got, tt.want)
		}
		k := wire.NewKeyspace(tt.prefix)
		if k.MaySubscribe(tt.name) && tt.want {
			t.Errorf("name %q with prefix %q: the sidecar would subscribe", tt.name, tt.prefix)
		}
	}
}

// A name in braces is subscribed if the text in the braces has another channel, or is no name.
func TestNameInBracesThatSharesNoChannelIsSubscribed(t *testing.T) {
	k := wire.NewKeyspace("")
	for name, want := range map[string]bool{"{a}": false, "{a}{b}": true, "{}": true} {
		if k.MaySubscribe(name) != want {
			t.Errorf("%q: the sidecar subscribes: %v, want %v", name, !want, want)
		}
	}
}

// Two locks have nothing in common in Redis, and none has anything in common with what sidecars
// have for themselves. The exception is Redisson's: "a" and "{a}" have one counter and one
// channel. The sidecars that this compares have two prefixes.
//
// Shows docs/guarantees.md: Names a lock like another lock's token counter, queue or channel.
func TestLocksShareNothingInRedis(t *testing.T) {
	parts := []string{
		"{", "{", "}", "}", ":", "a", "b", "lock", "sidecar", "locksidecar", "{locksidecar}:", "locksidecar}:", "redisson_", ourUUID, otherUUID,
		wire.CounterPrefix, wire.ChannelPrefix, wire.QueuePrefix, wire.SignsPrefix, wire.HostPrefix, wire.HostsPrefix, "redisson_unlock_latch:",
	}
	rng := harness.Random(t)
	text := func(most int) (s string) {
		for range rng.IntN(most + 1) {
			s += parts[rng.IntN(len(parts))]
		}
		return s
	}
	type place struct{ what, of string }
	const seeds = 20_000
	pairs, subscribed := 0, 0
	for range seeds {
		var keyspaces []wire.Keyspace
		for len(keyspaces) < 2 {
			if prefix := text(2); wire.CheckKeyPrefix(prefix) == nil {
				keyspaces = append(keyspaces, wire.NewKeyspace(prefix))
			}
		}
		places := make(map[string]place)
		of := make(map[string]*wire.Keyspace) // by key
		names := make(map[string]string)      // by key
		for i := range keyspaces {
			k := &keyspaces[i]
			for _, id := range []string{ourUUID, otherUUID} {
				places[wire.OwnChannel(id)] = place{what: "channel of a sidecar"}
				places[k.Host(id)] = place{what: "host"}
			}
			places[k.Hosts()] = place{what: "hosts"}
		}
		base := text(4)
		for _, name := range []string{base, "{" + base + "}", base + "}", "{" + base, text(4)} {
			for i := range keyspaces {
				k := &keyspaces[i]
				key := k.Key(name)
				if protocol.CheckName(name) != nil || wire.Reserved(k.Prefix, name) != "" || of[key] != nil {
					continue
				}
				of[key], names[key] = k, name
				for what, object := range map[string]string{
					"lock": key, "counter": k.Counter(name), "channel": k.Channel(name), "queue": k.Queue(name), "signs": signsOf(k.Queue(name)),
				} {
					other, taken := places[object]
					if !taken {
						places[object] = place{what, key}
						continue
					}
					isPair := key == "{"+other.of+"}" || other.of == "{"+key+"}"
					if other.what != what || what != "counter" && what != "channel" || !isPair {
						t.Fatalf("%q, the %s of %q, is the %s of %q", object, what, key, other.what, other.of)
					}
					if what == "channel" {
						pairs++
						if of[other.of].MaySubscribe(names[other.of]) && k.MaySubscribe(name) {
							t.Fatalf("sidecars subscribe to %q for %q and for %q", object, key, other.of)
						}
					}
				}
				if k.MaySubscribe(name) {
					subscribed++
				} else if !strings.HasPrefix(key, "{") || !strings.HasSuffix(key, "}") {
					t.Fatalf("the sidecar does not subscribe for %q", key)
				}
			}
		}
	}
	if pairs < seeds/100 || subscribed < seeds {
		t.Errorf("%d pairs share a channel, and %d names are subscribed: these names do not show much", pairs, subscribed)
	}
}

// signsOf is what scripts/queue.lua has.
func signsOf(queue string) string {
	return wire.SignsPrefix + strings.TrimPrefix(queue, wire.QueuePrefix)
}

func TestKeyPrefixesThatAreRefused(t *testing.T) {
	for _, prefix := range []string{
		"", "app1:", "größe 1 ", "a/b*?[x]\\", "{app}:", "a{app}{", "a}{app}", "redisson_", "locksidecar:", "{locksidecar}",
		strings.Repeat("x", wire.MaxKeyPrefix),
	} {
		if err := wire.CheckKeyPrefix(prefix); err != nil {
			t.Error(err)
		}
	}
	for prefix, want := range map[string]string{
		strings.Repeat("x", wire.MaxKeyPrefix+1): "has 129 bytes; choose one of at most 128",
		"app\xff":                                "is not UTF-8",
		"app1:\n":                                "U+000A",
		"app\u2028":                              "U+2028",
		"app\u202e":                              "U+202E",
		"app{":                                   "outside of a hash tag",
		"app}":                                   "outside of a hash tag",
		"{}:":                                    "outside of a hash tag",
		"}app{":                                  "outside of a hash tag",
		"redisson_lock_":                         "begin with redisson_lock_, and such keys are reserved",
		"redisson_lock_token:":                   "begin with redisson_lock_, and such keys are reserved",
		"redisson_unlock_latch:{a}":              "begin with redisson_unlock_latch:, and such keys are reserved",
		"locksidecar_app1:":                      "begin with locksidecar_, and such keys are reserved",
		"{locksidecar}:":                         "begin with redisson_lock__channel:{locksidecar}:, and such channels are reserved",
		"{locksidecar}:app1:":                    "such channels are reserved for sidecars",
	} {
		if err := wire.CheckKeyPrefix(prefix); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "key-prefix ") {
			t.Errorf("%q: %v, want %q", prefix, err, want)
		}
		if s, err := Open(Config{URL: "redis://127.0.0.1", UUID: ourUUID, KeyPrefix: prefix}); err == nil {
			s.Close(ctx)
			t.Errorf("%q: a store was opened with it", prefix)
		}
	}
}

// Redis has the keys of the prefix and the channels of its locks, apart from those of the
// sidecars; and what the store returns are names without it.
func TestRedisHasOnlyKeysAndChannelsWithThePrefix(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url, func(c *Config) { c.KeyPrefix = "app1:" })
		plain := connected(t, b.url, func(c *Config) { c.UUID = otherUUID })
		expect := func(what string, got []string, err error, want ...string) {
			t.Helper()
			slices.Sort(got)
			slices.Sort(want)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %q, %v; want %q", what, got, err, want)
			}
		}
		for name, derived := range map[string]string{"lock": "{app1:lock}", "{a}b": "app1:{a}b"} {
			b.admin.FlushAll(ctx)
			key, counter, channel := "app1:"+name, "redisson_lock_token:"+derived, "redisson_lock__channel:"+derived
			more := takeOp(name, 2) // of which the subscribers are counted by the script
			more.Flags |= redisop.RequireExisting | redisop.CountListeners
			r.Subscribe(0, name)
			if got := recv(t, r.subscribed, "subscription"); got != name {
				t.Errorf("the subscription of %q is confirmed for %q", name, got)
			}
			channels, err := b.admin.PubSubChannels(ctx, "*").Result()
			expect("channels", channels, err, channel, wire.OwnChannel(ourUUID), wire.OwnChannel(otherUUID))
			for _, op := range []redisop.Op{takeOp(name, 1), more, renewOp(name, 2), checkOp(name, 2)} {
				res := r.one(op) // finds the result by its name
				if res.Outcome != redisop.Done || op.Has(redisop.CountListeners) && res.Listeners != redisop.CountedListeners(1) {
					t.Errorf("%+v is answered %+v", op, res)
				}
				keys, err := b.admin.Keys(ctx, "*").Result()
				expect("keys", keys, err, key, counter)
			}

			// A store without a prefix has another lock under the name, and the same one under
			// the key.
			if res := plain.one(takeOp(name, 1)); res.Outcome != redisop.Done {
				t.Errorf("without a prefix, %q is answered %+v", name, res)
			}
			if res := plain.one(takeOp(key, 2)); res.Outcome != redisop.HeldByOther || res.Field != field(ourUUID, 2) {
				t.Errorf("without a prefix, %q is answered %+v", key, res)
			}
			plain.one(dropOp(name, 1))

			// Four releases after which the lock is taken again, and one after which it is free.
			for hold := uint64(2); hold <= 6; hold++ {
				ops := []redisop.Op{dropOp(name, hold)}
				if hold < 6 {
					again := takeOp(name, hold+1)
					again.Flags |= redisop.AfterPendingDrop
					ops = append(ops, again)
				}
				if res := r.ask(ops...)[0]; res.Outcome != redisop.Done || res.Listeners != redisop.CountedListeners(1) {
					t.Errorf("the drop of hold %d is answered %+v", hold, res)
				}
			}
			for range 5 {
				if got := recv(t, r.messages, "message"); got != name {
					t.Errorf("a message for %q, want %q", got, name)
				}
			}
			keys, err := b.admin.Keys(ctx, "app1:*").Result()
			expect("keys that are left", keys, err)
			r.Unsubscribe(0, name)
			listeners(t, b.admin, key, 0)
		}
	})
}

// The ACL that the documentation gives for a prefix is enough, and says where it ends.
//
// Shows docs/queue.md: What Redis has.
func TestPermissionsOfAPrefix(t *testing.T) {
	s := startRedis(t)
	least := slices.DeleteFunc(slices.Clone(leastRules), func(rule string) bool { return rule == "~*" || rule == "&*" })
	for prefix, rules := range map[string][]string{
		"app1:": {"~app1:*", "~redisson_lock_token:{app1:*", "~redisson_lock_token:app1:*", "~locksidecar_*:{app1:*", "~locksidecar_*::app1:*",
			"&redisson_lock__channel:{app1:*", "&redisson_lock__channel:app1:*", "&redisson_lock__channel:{locksidecar}:*"},
		"{app1}:": {"~{app1}:*", "~redisson_lock_token:{app1}:*", "~locksidecar_*::{app1}:*", "&redisson_lock__channel:{app1}:*", "&redisson_lock__channel:{locksidecar}:*"},
	} {
		url := s.userURL(fmt.Sprint("prefix", len(prefix)), append(rules, least...)...)
		r := connected(t, url, func(c *Config) { c.KeyPrefix = prefix })
		for _, name := range []string{"lock", "{a}b"} {
			r.Subscribe(0, name)
			recv(t, r.subscribed, "subscription")
			for _, op := range []redisop.Op{takeOp(name, 1), renewOp(name, 1), dropOp(name, 1)} {
				if res := r.one(op); res.Outcome != redisop.Done {
					t.Errorf("prefix %q: %+v: %+v", prefix, op, res)
				}
			}
			recv(t, r.messages, "message")
		}
		if log := r.logged(); strings.Contains(log, "its ACL") {
			t.Errorf("prefix %q: the log says that something is not permitted: %s", prefix, log)
		}

		other := connected(t, url, func(c *Config) { c.KeyPrefix = "app2:" })
		if res := other.one(takeOp("lock", 1)); res.Outcome != redisop.Refused ||
			!strings.Contains(res.Msg, `the lock "lock"`) || !strings.Contains(res.Msg, `the keys "app2:lock" and "redisson_lock_token:{app2:lock}"`) {
			t.Errorf("a prefix that is not permitted: %+v", res)
		}
		other.Subscribe(0, "lock")
		recv(t, other.unsubscribed, "denial")
		if log := other.logged(); !strings.Contains(log, "redisson_lock__channel:{app2:* and redisson_lock__channel:app2:*") {
			t.Errorf("the log does not say which channels: %s", log)
		}
	}
}

// Patterns match what a prefix is, not what it looks like.
func TestChannelPatternsOfAPrefix(t *testing.T) {
	for prefix, want := range map[string]string{
		"":        `redisson_lock__channel:*`,
		"app1:":   `redisson_lock__channel:{app1:* and redisson_lock__channel:app1:*`,
		"{app1}:": `redisson_lock__channel:{app1}:*`,
		`*?[a]\:`: `redisson_lock__channel:{\*\?\[a]\\:* and redisson_lock__channel:\*\?\[a]\\:*`,
	} {
		k := wire.NewKeyspace(prefix)
		if got := k.ChannelPatterns(); got != want {
			t.Errorf("%q: %q, want %q", prefix, got, want)
		}
	}
}

// A daemon whose user may not use the queues takes and drops locks, and logs once what to permit.
func TestQueuesThatAreNotPermitted(t *testing.T) {
	for prefix, want := range map[string]string{
		"":        "the keys locksidecar_*\"",
		"app1:":   "the keys locksidecar_*:{app1:* and locksidecar_*::app1:*\"",
		"{app1}:": "the keys locksidecar_*::{app1}:*\"",
	} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			s := startRedis(t)
			url := s.userURL("queueless", "~"+prefix+"a", "~redisson_*", "&*", "+@all")
			r := connected(t, url, func(c *Config) { c.KeyPrefix = prefix; c.on(Messages, func(Event) {}) })
			other := connected(t, s.url(), func(c *Config) { c.KeyPrefix, c.UUID = prefix, otherUUID })
			waiting := takeOp("a", 1)
			waiting.Flags |= redisop.Enqueue
			r.one(takeOp("a", 1))
			if res := other.one(waiting); res.Outcome != redisop.HeldByOther || res.Ticket != 1 {
				t.Errorf("a user who may use the queues gets %+v", res)
			}
			r.one(dropOp("a", 1)) // to this user, there is no queue
			if res := other.one(waiting); res.Outcome != redisop.Done {
				t.Errorf("after the drop: %+v", res)
			}
			waiting.HoldID = 2
			if res := r.one(waiting); res.Outcome != redisop.HeldByOther || res.IsQueued {
				t.Errorf("a user who may not use the queues gets %+v", res)
			}
			s.admin().ClientKillByFilter(ctx, "TYPE", "pubsub")
			r.down()
			r.up()
			if log := r.logged(); strings.Count(log, "may not use the queues of locks") != 1 || !strings.Contains(log, want) {
				t.Errorf("the log does not say once what to permit: %s", log)
			}
			if log := other.logged(); strings.Contains(log, "queues of locks") {
				t.Errorf("the log of a user who may use the queues: %s", log)
			}
		})
	}
}

// A message for an operator names the key as it stands in Redis.
func TestMessagesNameTheKeysInRedis(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url, func(c *Config) { c.KeyPrefix = "app1:" })
		b.admin.Set(ctx, "app1:string", "x", 0)
		b.admin.HSet(ctx, "redisson_lock_token:{app1:countless}", "f", "1")
		b.admin.Set(ctx, "redisson_lock_token:{app1:absurd}", uint64(1)<<53, 0)
		for name, want := range map[string]string{
			"string":    `the key "app1:string" of the lock "string" is a key of type string`,
			"countless": `the token counter "redisson_lock_token:{app1:countless}" of the lock "countless"`,
			"absurd":    `refuses the lock "absurd": ERR token counter redisson_lock_token:{app1:absurd} is above 2^53: delete it`,
		} {
			if res := r.one(takeOp(name, 1)); !strings.Contains(res.Msg, want) {
				t.Errorf("%+v, want %s", res, want)
			}
		}
	})
}

// Neither names with a prefix nor those without cost an allocation.
func TestNamesOfOperationsAreNotCopied(t *testing.T) {
	ops := []redisop.Op{takeOp("a", 1), takeOp("{b}", 1), dropOp(strings.Repeat("c", 500), 1)}
	renewals := []redisop.Op{renewOp("a", 1), renewOp(strings.Repeat("b", 500), 1)}
	for _, prefix := range []string{"", "app1:", "{app1}:"} {
		e := wire.Encoder{Prefix: ourUUID + ":", Keys: wire.NewKeyspace(prefix)}
		out := make([]byte, 0, 1<<14)
		if n := testing.AllocsPerRun(100, func() {
			e.AppendRun(out, wire.Run{Script: wire.AcquireRelease}, 0, 7, ops)
			e.AppendRun(out, wire.Run{Script: wire.Renew}, 0, 7, renewals)
			wire.Reserved(prefix, ops[2].Name)
		}); n != 0 {
			t.Errorf("with prefix %q, to encode some operations takes %v allocations", prefix, n)
		}
	}
}
