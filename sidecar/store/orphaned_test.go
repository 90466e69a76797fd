package store

import (
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
	outcome lookup.OrphanOutcome
	passed  bool
	err     error
}

func (r *recorder) dropOrphaned(name, field string) dropOrphanedResult {
	r.t.Helper()
	return r.dropOrphanedUntil(name, field, 0)
}

func (r *recorder) dropOrphanedUntil(name, field string, latest int64) dropOrphanedResult {
	r.t.Helper()
	done := make(chan dropOrphanedResult, 1)
	r.DropOrphaned(name, field, 20*time.Second, latest, func(outcome lookup.OrphanOutcome, passed bool, err error) {
		done <- dropOrphanedResult{outcome, passed, err}
	})
	return recv(r.t, done, "outcome")
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
				if got := r.dropOrphaned(name, field(deadUUID, 7)); got != (dropOrphanedResult{outcome: lookup.OrphanDropped}) {
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
	if got := r.dropOrphaned("lock", field(deadUUID, 7)); got != (dropOrphanedResult{outcome: lookup.OrphanDropped, passed: true}) {
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
				if got := r.dropOrphaned("lock", examined); got != (dropOrphanedResult{outcome: tt.want}) {
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
			if got := r.dropOrphaned("lock", examined); got != (dropOrphanedResult{outcome: lookup.OrphanChanged}) {
				t.Errorf("%+v", got)
			}
		})
		t.Run("a key of another type", func(t *testing.T) {
			a.FlushAll(ctx)
			a.Set(ctx, "lock", examined, 0)
			if got := r.dropOrphaned("lock", examined); got != (dropOrphanedResult{outcome: lookup.OrphanChanged}) {
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
	if got := least.dropOrphaned("lock", field(deadUUID, 7)); got != (dropOrphanedResult{outcome: lookup.OrphanDropped}) {
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

func zMember(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }
