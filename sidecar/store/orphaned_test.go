package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// deadUUID is that of a sidecar that is gone.
const deadUUID = "dddddddd-2222-8333-8444-555555555555"

type dropOrphanedResult struct {
	lookup.Dropped
	err error
}

func (r *recorder) dropOrphaned(name, field string) dropOrphanedResult {
	r.t.Helper()
	return r.dropOrphanedUntil(name, field, 0)
}

func (r *recorder) dropOrphanedUntil(name, field string, latest int64) dropOrphanedResult {
	r.t.Helper()
	id, hold, ok := lookup.ParseOwner(field)
	if !ok {
		r.t.Fatalf("%s is the field of no sidecar", field)
	}
	return r.drop(lookup.Orphan{Name: name, Sidecar: id, Hold: hold}, latest)
}

func (r *recorder) drop(o lookup.Orphan, latest int64) dropOrphanedResult {
	r.t.Helper()
	done := make(chan dropOrphanedResult, 1)
	r.DropOrphaned(o, 20*time.Second, latest, func(d lookup.Dropped, err error) { done <- dropOrphanedResult{d, err} })
	return recv(r.t, done, "outcome")
}

// outcome is the result of a drop that has nothing more to say.
func outcome(o lookup.OrphanOutcome) dropOrphanedResult {
	return dropOrphanedResult{Dropped: lookup.Dropped{Outcome: o}}
}

// A lock that no sidecar waits for becomes free, and clients that are subscribed are woken.
func TestOrphanedLockIsFreed(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		for _, prefix := range []string{"", "app1:", "{app1}:"} {
			r := connected(t, b.url, func(c *Config) { c.KeyPrefix = prefix })
			k := wire.NewKeyspace(prefix)
			for _, name := range []string{"lock", "{a}b"} {
				b.admin.HSet(ctx, k.Key(name), field(deadUUID, 7), "3")
				b.admin.PExpire(ctx, k.Key(name), time.Hour)
				woken := b.admin.Subscribe(ctx, k.Channel(name))
				must(woken.Receive(ctx))
				if got := r.dropOrphaned(name, field(deadUUID, 7)); got != outcome(lookup.OrphanDropped) {
					t.Errorf("%q %q: %+v", prefix, name, got)
				}
				if m := must(woken.ReceiveMessage(ctx)); m.Payload != "0" {
					t.Errorf("%q %q: published %q", prefix, name, m.Payload)
				}
				woken.Close()
				if n := b.admin.Exists(ctx, k.Key(name)).Val(); n != 0 {
					t.Errorf("%q %q: the key is still there", prefix, name)
				}
				if res := r.one(takeOp(name, 1)); res.Outcome != redisop.Done {
					t.Errorf("%q %q: the next Take: %+v", prefix, name, res)
				}
			}
		}
	})
}

// A lock that sidecars wait for passes to the first one that is alive, with a lease and with tokens
// that are above all others. The tickets of the sidecar that is gone are removed.
func TestOrphanedLockPassesToTheFirstOfItsQueue(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	transfers := make(chan redisop.Message, 10)
	waiter := connected(t, s.url(), func(c *Config) {
		c.UUID = secondUUID
		c.on(Messages, func(e Event) {
			for _, m := range e.Messages {
				transfers <- m
			}
		})
	})
	const counter = 9_000_000_000_000_000 // above Redis's clock, µs, and below 2^53
	a.Set(ctx, counterOf("lock"), counter, 0)
	a.HSet(ctx, "lock", field(deadUUID, 7), "1")
	a.PExpire(ctx, "lock", time.Hour)
	a.ZAdd(ctx, "locksidecar_queue:{lock}", zMember(1, field(deadUUID, 6)), zMember(2, field(deadUUID, 9)))
	wait := takeOp("lock", 4)
	wait.Flags |= redisop.Enqueue
	if res := waiter.one(wait); res.Ticket != 4 {
		t.Fatalf("%+v", res)
	}
	if got := r.dropOrphaned("lock", field(deadUUID, 7)); got != (dropOrphanedResult{Dropped: lookup.Dropped{Outcome: lookup.OrphanDropped, Passed: true}}) {
		t.Errorf("%+v", got)
	}
	m := recv(t, transfers, "transfer")
	if m.Kind != redisop.Transferred || m.Name != "lock" || m.Ticket != 4 || m.LeaseMS != 20_000 || m.LastToken != counter+128 || m.Conn == (redisop.Conn{}) {
		t.Errorf("%+v", m)
	}
	if got := a.HGetAll(ctx, "lock").Val(); len(got) != 1 || got[field(secondUUID, 4)] != "1" {
		t.Errorf("the key is %v", got)
	}
	if ttl := a.PTTL(ctx, "lock").Val(); ttl <= 0 || ttl > 20*time.Second {
		t.Errorf("it expires in %v", ttl)
	}
	if got := a.ZRange(ctx, "locksidecar_queue:{lock}", 0, -1).Val(); len(got) != 0 {
		t.Errorf("the queue is %q", got)
	}
}

// Only the lock that was examined is released, and only without a sign of life of its sidecar.
//
// Shows docs/guarantees.md: A lock of a dead host is freed early only on request.
func TestOrphanedLockIsLeftAloneInDoubt(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		a := b.admin
		const examined = deadUUID + ":7"
		alive := func(t *testing.T) {
			sub := a.Subscribe(ctx, sidecarChannel(deadUUID))
			must(sub.Receive(ctx))
			t.Cleanup(func() { sub.Close() })
		}
		for _, tt := range []struct {
			says   string
			fields []any
			before func(t *testing.T)
			want   lookup.OrphanOutcome
		}{
			{"a later hold of the same sidecar", []any{deadUUID + ":8", "1"}, nil, lookup.OrphanChanged},
			{"an earlier hold of the same sidecar", []any{deadUUID + ":6", "1"}, nil, lookup.OrphanChanged},
			{"another sidecar", []any{secondUUID + ":7", "1"}, nil, lookup.OrphanChanged},
			{"a foreign client", []any{otherUUID + ":7", "1"}, nil, lookup.OrphanChanged},
			{"a second field", []any{examined, "1", "mode", "read"}, nil, lookup.OrphanChanged},
			{"a host that was published", []any{examined, "1"}, func(*testing.T) { a.HSet(ctx, "locksidecar_host:{"+deadUUID+"}", "about", "{}") }, lookup.OrphanPublished},
			{"a daemon that is subscribed", []any{examined, "1"}, alive, lookup.OrphanAlive},
		} {
			t.Run(tt.says, func(t *testing.T) {
				a.FlushAll(ctx)
				a.HSet(ctx, "lock", tt.fields...)
				a.PExpire(ctx, "lock", time.Hour)
				a.ZAdd(ctx, "locksidecar_queue:{lock}", zMember(1, field(ourUUID, 99)))
				if tt.before != nil {
					tt.before(t)
				}
				before := a.HGetAll(ctx, "lock").Val()
				if got := r.dropOrphaned("lock", examined); got != outcome(tt.want) {
					t.Errorf("%+v", got)
				}
				after := a.HGetAll(ctx, "lock").Val()
				if len(after) != len(before) || after[tt.fields[0].(string)] != "1" || a.ZCard(ctx, "locksidecar_queue:{lock}").Val() != 1 || a.PTTL(ctx, "lock").Val() < 59*time.Minute {
					t.Errorf("the key is %v", after)
				}
			})
		}
		t.Run("a client that waits no longer", func(t *testing.T) {
			a.FlushAll(ctx)
			a.HSet(ctx, "lock", examined, "1")
			if got := r.dropOrphanedUntil("lock", examined, protocol.Now()-1); got.err == nil || !strings.Contains(got.err.Error(), "not sent to Redis in time") {
				t.Errorf("%+v", got)
			}
			if a.HGet(ctx, "lock", examined).Val() != "1" {
				t.Error("the lock is freed")
			}
		})
		t.Run("no key", func(t *testing.T) {
			a.FlushAll(ctx)
			if got := r.dropOrphaned("lock", examined); got != outcome(lookup.OrphanChanged) {
				t.Errorf("%+v", got)
			}
		})
		t.Run("a key of another type", func(t *testing.T) {
			a.FlushAll(ctx)
			a.Set(ctx, "lock", examined, 0)
			if got := r.dropOrphaned("lock", examined); got != outcome(lookup.OrphanChanged) {
				t.Errorf("%+v", got)
			}
		})
	})
}

// What the ACL denies, or a replica, is an error, and the lock stays.
func TestOrphanedLockWithoutPermission(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	hold := func() {
		a.HSet(ctx, "lock", field(deadUUID, 7), "1")
		a.PExpire(ctx, "lock", time.Hour)
	}
	for user, change := range map[string]func(rule string) bool{
		"nohosts":   func(rule string) bool { return rule == "~*" },
		"nopublish": func(rule string) bool { return rule == "+publish" },
	} {
		rules := slices.DeleteFunc(slices.Clone(leastRules), change)
		if user == "nohosts" {
			rules = append(rules, "~lock", "~"+counterOf("lock"))
		}
		r := connected(t, s.userURL(user, rules...))
		hold()
		if got := r.dropOrphaned("lock", field(deadUUID, 7)); got.err == nil || !strings.Contains(got.err.Error(), "let its ACL have +hkeys +exists +publish and the keys locksidecar_*") {
			t.Errorf("%s: %+v", user, got)
		}
		if a.HLen(ctx, "lock").Val() != 1 {
			t.Errorf("%s: the lock was released", user)
		}
	}
	least := connected(t, s.userURL("least", leastRules...))
	if got := least.dropOrphaned("lock", field(deadUUID, 7)); got != outcome(lookup.OrphanDropped) {
		t.Errorf("with the least permissions: %+v", got)
	}
	r := connected(t, s.url())
	hold()
	s.becomeReplica()
	if got := r.dropOrphaned("lock", field(deadUUID, 7)); got.err == nil || !strings.Contains(got.err.Error(), "read-only replica") {
		t.Errorf("at a replica: %+v", got)
	}
	if a.HLen(ctx, "lock").Val() != 1 {
		t.Error("a replica released the lock")
	}
}

// So are permits.
func TestOrphanedPermitsWithoutPermission(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	hold := func() {
		a.HSet(ctx, "api", "mode", "permits 3 "+later+" "+later+" 1", deadUUID, "7 3 "+later)
	}
	o := lookup.Orphan{Name: "api", Of: redisop.KindPermits, Sidecar: deadUUID}
	r := connected(t, s.userURL("nohget", slices.DeleteFunc(slices.Clone(leastRules), func(rule string) bool { return rule == "+hget" })...))
	hold()
	if got := r.drop(o, 0); got.err == nil || !strings.Contains(got.err.Error(), "let its ACL have +hget +time +exists +publish and the keys locksidecar_*") {
		t.Errorf("without HGET: %+v", got)
	}
	least := connected(t, s.userURL("least", leastRules...))
	if got := least.drop(o, 0); got.err != nil || got.Outcome != lookup.OrphanDropped {
		t.Errorf("with the least permissions: %+v", got)
	}
	whole := connected(t, s.url())
	hold()
	s.becomeReplica()
	if got := whole.drop(o, 0); got.err == nil || !strings.Contains(got.err.Error(), "read-only replica") {
		t.Errorf("at a replica: %+v", got)
	}
	if a.HLen(ctx, "api").Val() != 2 {
		t.Error("a replica freed the permits")
	}
}

// The permits of a sidecar that is gone are free for the hosts that wait, in their order. What others have stays.
func TestOrphanedPermitsAreFreed(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		for _, prefix := range []string{"", "app1:"} {
			r := connected(t, b.url, func(c *Config) {
				c.KeyPrefix = prefix
				c.on(Messages, func(Event) {}) // it is asked for what it does not use
			})
			admitted := make(chan redisop.Message, 10)
			waiter := connected(t, b.url, func(c *Config) {
				c.UUID, c.KeyPrefix = secondUUID, prefix
				c.on(Messages, func(e Event) {
					for _, m := range e.Messages {
						admitted <- m
					}
				})
			})
			k := wire.NewKeyspace(prefix)
			gone := connected(t, b.url, func(c *Config) {
				c.UUID, c.KeyPrefix = deadUUID, prefix
				c.on(Messages, func(Event) {})
			})
			gone.one(permitsOp("api", 5, 0, 7))
			r.one(permitsOp("api", 1, 0, 2))
			if res := gone.one(waitsOp("api", 8, 7, 9)); !res.IsQueued { // so it waits in front of the other one
				t.Fatalf("%+v", res)
			}
			if res := waiter.one(waitsOp("api", 3, 0, 4)); !res.IsQueued {
				t.Fatalf("%+v", res)
			}
			if err := gone.Close(ctx); err != nil {
				t.Fatal(err)
			}
			receivers(t, b.admin, sidecarChannel(deadUUID), 0)
			got := r.drop(lookup.Orphan{Name: "api", Of: redisop.KindPermits, Sidecar: deadUUID}, 0)
			if got.err != nil || got.Outcome != lookup.OrphanDropped || got.Number != 8 || got.Permits != 7 || got.LeftMS <= 0 || got.LeftMS > 30_000 {
				t.Errorf("%q: %+v", prefix, got)
			}
			if m := recv(t, admitted, "admission"); m.Kind != redisop.Admitted || m.Name != "api" || m.Ticket != 3 || m.Units != 4 {
				t.Errorf("%q: %+v", prefix, m)
			}
			fields := b.admin.HGetAll(ctx, k.Key("api")).Val()
			if len(fields) != 3 || !strings.HasPrefix(fields["mode"], "permits 6 ") || !strings.HasPrefix(fields[ourUUID], "1 2 ") || !strings.HasPrefix(fields[secondUUID], "3 4 ") {
				t.Errorf("%q: Redis has %v", prefix, fields)
			}
			for _, from := range []string{wire.WantedPrefix, wire.WantsPrefix} {
				if n := b.admin.Exists(ctx, k.Ours(from, "api")).Val(); n != 0 {
					t.Errorf("%q: hosts still wait", prefix)
				}
			}
		}
	})
}

// Only the claim of the sidecar that is named is taken away, and only without a sign of life of it.
func TestOrphanedPermitsAreLeftAloneInDoubt(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		a := b.admin
		later, before := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli())
		whole := []any{"mode", "permits 3 " + later + " " + later + " 1", deadUUID, "7 3 " + later}
		for says, c := range map[string]struct {
			fields []any
			before func(t *testing.T)
			want   lookup.OrphanOutcome
		}{
			"another sidecar":           {[]any{"mode", "permits 3 " + later + " " + later + " 1", secondUUID, "7 3 " + later}, nil, lookup.OrphanChanged},
			"what has expired":          {[]any{"mode", "permits 3 " + before + " " + later + " 1", deadUUID, "7 3 " + before}, nil, lookup.OrphanChanged},
			"a claim that is none":      {[]any{"mode", "permits 3 " + later + " " + later + " 1", deadUUID, "many"}, nil, lookup.OrphanChanged},
			"a hash that is none":       {[]any{deadUUID, "7 3 " + later}, nil, lookup.OrphanChanged},
			"a lock":                    {[]any{deadUUID + ":7", "1"}, nil, lookup.OrphanChanged},
			"a host that was published": {whole, func(*testing.T) { a.HSet(ctx, "locksidecar_host:{"+deadUUID+"}", "about", "{}") }, lookup.OrphanPublished},
			"a daemon that is connected": {whole, func(t *testing.T) {
				sub := a.Subscribe(ctx, sidecarChannel(deadUUID))
				must(sub.Receive(ctx))
				t.Cleanup(func() { sub.Close() })
			}, lookup.OrphanAlive},
		} {
			t.Run(says, func(t *testing.T) {
				a.FlushAll(ctx)
				a.HSet(ctx, "api", c.fields...)
				if c.before != nil {
					c.before(t)
				}
				was := a.HGetAll(ctx, "api").Val()
				if got := r.drop(lookup.Orphan{Name: "api", Of: redisop.KindPermits, Sidecar: deadUUID}, 0); got != outcome(c.want) {
					t.Errorf("%+v", got)
				}
				if now := a.HGetAll(ctx, "api").Val(); !maps.Equal(now, was) {
					t.Errorf("Redis has %v, and had %v", now, was)
				}
			})
		}
		a.FlushAll(ctx)
		a.Set(ctx, "api", "x", 0)
		if got := r.drop(lookup.Orphan{Name: "api", Of: redisop.KindPermits, Sidecar: deadUUID}, 0); got != outcome(lookup.OrphanChanged) {
			t.Errorf("a string: %+v", got)
		}
	})
}

func zMember(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }
