package store

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Permits: what is random is in internal/sim/redis (TestPermitsBehaveAsTheirModel). Here is what its model does not have.

func wantedOf(name string) string { return wire.WantedPrefix + "{" + name + "}" }

func wantsOf(name string) string { return wire.WantsPrefix + "{" + name + "}" }

// waitsOp waits for permits that are not free.
func waitsOp(name string, num uint64, keep uint32, want uint16) redisop.Op {
	op := permitsOp(name, num, keep, want)
	op.Flags |= redisop.Enqueue
	return op
}

// Whatever another program writes into the keys of a semaphore, no host has permits beyond the capacity, no script fails
// for another operation, and what cannot be read is gone with the next claim that has to be made room for.
func TestPermitsSurviveWhatIsWrittenByHand(t *testing.T) {
	later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		for says, c := range map[string]struct {
			mode   string // with # for a time that is far ahead
			claims map[string]string
			want   uint16 // of ten, the permits that are asked for
			of     uint16 // if these are not free, these are
		}{
			"held is too small":           {"permits 0 1 # 1", map[string]string{secondUUID: "7 8 #"}, 3, 2},
			"held is too large":           {"permits 90 1 # 1", map[string]string{secondUUID: "7 8 #"}, 2, 0},
			"held is below zero":          {"permits -9 1 # 1", map[string]string{secondUUID: "7 8 #"}, 2, 0},
			"held is missing":             {"permits", map[string]string{secondUUID: "7 8 #"}, 2, 0},
			"a number is missing":         {"permits 8 1 #", map[string]string{secondUUID: "7 8 #"}, 2, 0},
			"a number is none":            {"permits 8 soon # 1", map[string]string{secondUUID: "7 8 #"}, 2, 0},
			"our claim is beyond held":    {"permits 1 # # 1", map[string]string{ourUUID: "7 3 #", secondUUID: "7 7 #"}, 4, 3},
			"due is far ahead":            {"permits 10 #0 # 1", map[string]string{secondUUID: "7 10 1"}, 10, 10},
			"a claim is no claim":         {"permits 9 1 # 1", map[string]string{"x": "1", secondUUID: "many"}, 10, 0},
			"a claim has no expiry":       {"permits 9 1 # 1", map[string]string{secondUUID: "7 9"}, 10, 0},
			"a claim is below zero":       {"permits 0 1 # 1", map[string]string{secondUUID: "7 -9 #"}, 10, 0},
			"our claim is no claim":       {"permits 9 1 # 1", map[string]string{ourUUID: "x"}, 10, 0},
			"our claim has a huge expiry": {"permits 1 1 # 1", map[string]string{ourUUID: "1 1 99999999999999999999"}, 10, 0},
			"held is huge":                {"permits 99999999999999999999 # # 1", map[string]string{secondUUID: "7 8 #"}, 2, 0},
			"the last token is huge":      {"permits 8 # # 99999999999999999999", map[string]string{secondUUID: "7 8 #"}, 2, 0},
			"the last token is 2^53":      {"permits 8 # # 9007199254740992", map[string]string{secondUUID: "7 8 #"}, 2, 0},
			"a claim is huge":             {"permits 8 1 # 1", map[string]string{secondUUID: "7 99999999999999999999 #"}, 10, 0},
			"our claim is huge":           {"permits 8 # # 1", map[string]string{ourUUID: "7 99999999999999999999 #", secondUUID: "7 8 #"}, 2, 0},
			"a huge token":                {"permits 1 1 # 9007199254740990", map[string]string{ourUUID: "1 1 #"}, 10, 0},
		} {
			b.admin.FlushAll(ctx)
			must(b.admin.HSet(ctx, "api", "mode", strings.ReplaceAll(c.mode, "#", later)).Result())
			for host, claim := range c.claims {
				must(b.admin.HSet(ctx, "api", host, strings.ReplaceAll(claim, "#", later)).Result())
			}
			res := r.one(permitsOp("api", 9, 0, c.want))
			if c.of != 0 {
				if says == "due is far ahead" { // by the clock of the claims it is not due, so nothing is counted
					if res.Outcome != redisop.HeldByOther {
						t.Errorf("%s: %+v", says, res)
					}
					continue
				}
				if res.Outcome != redisop.HeldByOther {
					t.Errorf("%s: %d more than there are: %+v", says, c.want, res)
				}
				res = r.one(permitsOp("api", 10, 0, c.of))
			}
			if res.Outcome != redisop.Done {
				t.Errorf("%s: %+v", says, res)
			}
		}
	})
}

// Places that cannot be read keep no host waiting.
func TestPlacesSurviveWhatIsWrittenByHand(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		for says, write := range map[string]func(){
			"a place without a text": func() { b.admin.ZAdd(ctx, wantedOf("api"), redis.Z{Score: 1, Member: secondUUID}) },
			"a place of no sidecar": func() {
				b.admin.ZAdd(ctx, wantedOf("api"), redis.Z{Score: 1, Member: "x"})
				b.admin.HSet(ctx, wantsOf("api"), "x", "1 1 10 30000 1")
			},
			"a text that is no place": func() {
				b.admin.ZAdd(ctx, wantedOf("api"), redis.Z{Score: 1, Member: secondUUID})
				b.admin.HSet(ctx, wantsOf("api"), secondUUID, "later")
			},
			"a place that never fits": func() {
				b.admin.ZAdd(ctx, wantedOf("api"), redis.Z{Score: 1, Member: secondUUID})
				b.admin.HSet(ctx, wantsOf("api"), secondUUID, fmt.Sprint("1 11 10 30000 ", time.Now().Unix()))
			},
			"a list for the places": func() { b.admin.RPush(ctx, wantedOf("api"), "x") },
			"a list for their texts": func() {
				b.admin.ZAdd(ctx, wantedOf("api"), redis.Z{Score: 1, Member: secondUUID})
				b.admin.RPush(ctx, wantsOf("api"), "x")
			},
		} {
			b.admin.FlushAll(ctx)
			write()
			var res redisop.Result
			for try := range uint64(2) { // the first one may have stood behind the place
				res = r.one(waitsOp("api", 1+try, 0, 10))
			}
			if res.Outcome != redisop.Done || res.Permits != 10 {
				t.Errorf("%s: %+v", says, res)
			}
			if left := must(b.admin.Keys(ctx, "*").Result()); says != "a list for the places" && says != "a list for their texts" && len(left) != 1 {
				t.Errorf("%s: %q are left", says, left)
			}
		}
	})
}

// Locks of two kinds under one name exclude each other, and each waits for the other (K14).
func TestSemaphoreExcludesALock(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		if res := r.one(permitsOp("api", 1, 0, 3)); res.Outcome != redisop.Done || res.Permits != 3 || res.Token == 0 {
			t.Fatalf("%+v", res)
		}
		before := must(b.admin.HGetAll(ctx, "api").Result())
		if res := r.one(waitOp("api", 2, 0)); res.Outcome != redisop.HeldByOther || res.Field != "a semaphore" || !res.IsQueued {
			t.Errorf("a Take of a lock: %+v", res)
		}
		if res := r.one(renewOp("api", 1)); res.Outcome != redisop.HeldByOther {
			t.Errorf("a renewal of a lock: %+v", res)
		}
		if res := r.one(dropOp("api", 2)); res.Outcome != redisop.Done {
			t.Errorf("a Drop of a lock: %+v", res)
		}
		if after := must(b.admin.HGetAll(ctx, "api").Result()); !maps.Equal(after, before) {
			t.Errorf("the semaphore became %v", after)
		}
		if res := r.one(permitsDrop("api", 3)); res.Outcome != redisop.Done {
			t.Fatalf("%+v", res)
		}
		if res := r.one(takeOp("api", 4)); res.Outcome != redisop.Done {
			t.Fatalf("%+v", res)
		}
		renewal := permitsOp("api", 5, 1, 0)
		renewal.Kind = redisop.Renew
		for _, op := range []redisop.Op{waitsOp("api", 5, 0, 1), renewal} {
			if res := r.one(op); res.Outcome != redisop.HeldByOther || res.Field != field(ourUUID, 4) {
				t.Errorf("%v of a semaphore: %+v", op.Kind, res)
			}
		}
		if res := r.one(permitsDrop("api", 6)); res.Outcome != redisop.Done {
			t.Errorf("a Drop of a semaphore: %+v", res)
		}
		if got := must(b.admin.HGetAll(ctx, "api").Result()); !maps.Equal(got, map[string]string{field(ourUUID, 4): "1"}) {
			t.Errorf("the lock became %v", got)
		}
		b.admin.ZAdd(ctx, wantedOf("api"), redis.Z{Score: 1, Member: ourUUID})
		b.admin.HSet(ctx, wantsOf("api"), ourUUID, "9 1 10 30000 1")
		for _, num := range []uint64{8, 9} {
			r.one(permitsDrop("api", num))
			if got := must(b.admin.ZCard(ctx, wantedOf("api")).Result()); (got == 1) != (num == 8) { // a late one leaves a later place
				t.Errorf("after Drop %d there are %d places", num, got)
			}
		}
		b.admin.Set(ctx, "text", "x", 0)
		if res := r.one(permitsOp("text", 7, 0, 1)); res.Outcome != redisop.NotALock || !strings.Contains(res.Msg, "choose another name") {
			t.Errorf("a string: %+v", res)
		}
	})
}

// In a Redis that is full, hosts renew, keep and give back what they have, also when all claims are counted.
func TestPermitsInAFullRedis(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	now := time.Now().UnixMilli()
	renewal := permitsOp("api", 7, 3, 0)
	renewal.Kind = redisop.Renew
	for _, op := range []redisop.Op{renewal, permitsOp("api", 8, 3, 0), permitsOp("api", 8, 1, 0), permitsDrop("api", 8)} {
		must(s.admin().FlushAll(ctx).Result())
		must(s.admin().HSet(ctx, "api", "mode", fmt.Sprintf("permits 6 %d %d 1", now-1, now+60_000), ourUUID, fmt.Sprintf("7 3 %d", now+60_000), secondUUID, fmt.Sprintf("7 3 %d", now+60_000)).Result())
		must(s.admin().ConfigSet(ctx, "maxmemory", "1").Result())
		if res := r.one(op); res.Outcome != redisop.Done || res.Permits != op.Count {
			t.Errorf("%v of %d: %+v", op.Kind, op.Count, res)
		}
		must(s.admin().ConfigSet(ctx, "maxmemory", "0").Result())
	}
}

// A Drop that Redis refuses has given back nothing.
func TestPermitsAreNotGivenBackIfThatIsRefused(t *testing.T) {
	s := startRedis(t)
	connected(t, s.url()).one(permitsOp("api", 1, 0, 3))
	r := connected(t, s.userURL("nohget", "~*", "&*", "+@all", "-hget", "-hmget"))
	if res := r.one(permitsDrop("api", 2)); res.Outcome != redisop.Refused {
		t.Errorf("%+v", res)
	}
}

// HMGET is faster, and no user needs it.
func TestPermitsWithoutHMGET(t *testing.T) {
	s := startRedis(t)
	connected(t, s.url(), func(c *Config) { c.UUID = secondUUID }).one(permitsOp("api", 1, 0, 3))
	r := connected(t, s.userURL("nohmget", "~*", "&*", "+@all", "-hmget"))
	renewal := permitsOp("api", 1, 2, 0)
	renewal.Kind = redisop.Renew
	for _, op := range []redisop.Op{permitsOp("api", 1, 0, 2), renewal, permitsOp("api", 2, 2, 5), permitsDrop("api", 3)} {
		if res := r.one(op); res.Outcome != redisop.Done || res.Permits != uint32(op.Want)+op.Count {
			t.Errorf("%v: %+v", op.Kind, res)
		}
	}
}

// Each key is one of KEYS, so a user who may not use one of them gets the error before anything runs.
func TestPermitsWithoutAPermission(t *testing.T) {
	s := startRedis(t)
	for says, rules := range map[string][]string{
		"the places":  {"~api", "~locksidecar_permissions:*", "~locksidecar_wants:*", "~locksidecar_probe", "~redisson_lock_token:{locksidecar_probe}", "&*", "+@all"},
		"their texts": {"~api", "~locksidecar_permissions:*", "~locksidecar_wanted:*", "~locksidecar_probe", "~redisson_lock_token:{locksidecar_probe}", "&*", "+@all"},
		"ZRANK":       {"~*", "&*", "+@all", "-zrank", "-exists"},
		"PEXPIRE":     {"~*", "&*", "+@all", "-pexpire"},
	} {
		r := connected(t, s.userURL("p"+strings.ReplaceAll(says, " ", ""), rules...))
		if res := r.one(permitsOp("api", 1, 0, 1)); res.Outcome != redisop.Refused || !strings.Contains(res.Msg, "ACL") {
			t.Errorf("without %s: %+v", says, res)
		}
		if left := must(s.admin().Exists(ctx, "api", wantedOf("api"), wantsOf("api")).Result()); left != 0 {
			t.Errorf("without %s: a key is left", says)
		}
	}
}
