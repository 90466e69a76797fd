package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

func TestKeepOfALockWithoutAnExpiryGivesItOne(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		b.admin.HSet(ctx, "a", field(ourUUID, 1), "1")
		b.admin.HSet(ctx, "b", field(otherUUID, 1), "1")
		res := r.ask(renewOp("a", 1), takeOp("b", 2))
		if res[0].Outcome != redisop.Done || must(b.admin.PTTL(ctx, "a").Result()) <= 0 {
			t.Errorf("got %+v, ttl %v", res[0], b.admin.PTTL(ctx, "a").Val())
		}
		if res[1].Outcome != redisop.HeldByOther || res[1].TTLMS != -1 {
			t.Errorf("another owner's lock that never expires: got %+v, want TTL -1", res[1])
		}
	})
}

// A batch of renewals: every lock has its own fate.
func TestKeepOfManyLocksJudgesEachAlone(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		var ops []redisop.Op
		var want []redisop.Outcome
		for i := range 1000 {
			name := fmt.Sprint("lock:", i)
			outcome := redisop.Done
			switch i % 10 {
			case 3:
				outcome = redisop.KeyMissing
			case 5:
				outcome = redisop.HeldByOther
				b.admin.HSet(ctx, name, field(otherUUID, 1), "1")
			case 7:
				outcome = redisop.HeldByOther
				b.admin.Set(ctx, name, "x", 0)
			default:
				b.admin.HSet(ctx, name, field(ourUUID, uint64(i)), "1")
			}
			op := renewOp(name, uint64(i))
			if i%3 == 0 {
				op.LeaseMS = 60_000
			}
			ops, want = append(ops, op), append(want, outcome)
		}
		for i, res := range r.ask(ops...) {
			if res.Outcome != want[i] {
				t.Errorf("%s: got %+v, want outcome %d", ops[i].Name, res, want[i])
			}
			if want[i] != redisop.Done {
				continue
			}
			lease := time.Duration(ops[i].LeaseMS) * time.Millisecond
			if ttl := b.admin.PTTL(ctx, ops[i].Name).Val(); ttl <= 0 || ttl > lease || lease == time.Minute && ttl <= 30*time.Second {
				t.Errorf("%s: TTL %v, lease %v", ops[i].Name, ttl, lease)
			}
		}
	})
}

// Only some renewals look for what other programs have put beside our field. All find a lock
// that is not ours, and a check always looks.
//
// Shows docs/guarantees.md: A program builds another structure around the field of a held lock.
func TestRenewalsLookForFieldsOfOthersIfAsked(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ours := field(ourUUID, 7)
		for _, tt := range []struct {
			says    string
			hash    map[string]string
			lease   int
			looks   string
			renewed bool
		}{
			{"a renewal of our lock", map[string]string{ours: "1"}, 30_000, "no", true},
			{"a renewal of our lock that looks", map[string]string{ours: "1"}, 30_000, "yes", true},
			{"a renewal of our field in another structure", map[string]string{ours: "1", "mode": "read"}, 30_000, "no", true},
			{"a renewal of our field in another structure, after one that looks", map[string]string{ours: "1", "mode": "read"}, 30_000, "not so far", true},
			{"a renewal of our field in another structure that looks", map[string]string{ours: "1", "mode": "read"}, 30_000, "yes", false},
			{"a renewal of our field with other entries in another structure", map[string]string{ours: "2", "mode": "read"}, 30_000, "no", false},
			{"a renewal of another owner's lock", map[string]string{field(otherUUID, 7): "1"}, 30_000, "no", false},
			{"a check of our field in another structure", map[string]string{ours: "1", "mode": "read"}, 0, "yes", false},
		} {
			b.admin.FlushAll(ctx)
			b.admin.HSet(ctx, "lock", tt.hash)
			b.admin.PExpire(ctx, "lock", time.Minute)
			b.admin.HSet(ctx, "first", ours, "1")
			keys, looks := []string{"lock"}, 1
			switch tt.looks {
			case "no":
				looks = 0
			case "not so far":
				keys = []string{"first", "lock"}
			}
			args := []any{ourUUID + ":", tt.lease, 1, looks, 7, 7}[:4+len(keys)]
			status := must(b.admin.Eval(ctx, wire.Renew.Text, keys, args...).Result())
			if list, isList := status.([]any); isList {
				status = list[len(keys)-1]
			}
			if (status == int64(len(keys))) != tt.renewed {
				t.Errorf("%s: %v", tt.says, status)
			}
			if ttl := must(b.admin.PTTL(ctx, "lock").Result()); (ttl <= 30*time.Second) != tt.renewed {
				t.Errorf("%s: TTL %v", tt.says, ttl)
			}
			if got := b.admin.HGetAll(ctx, "lock").Val(); !maps.Equal(got, tt.hash) {
				t.Errorf("%s: Redis has %v", tt.says, got)
			}
		}
	})
}

// A script for many locks computes their expiry, if it may. Each lock has the lease either way.
//
// Shows docs/renewals.md: Scripts and commands.
func TestRenewalsOfManyLocksGiveTheLease(t *testing.T) {
	renewAll := func(t *testing.T, r *recorder, a *redis.Client, locks int) {
		t.Helper()
		a.FlushAll(ctx)
		var ops []redisop.Op
		for i := range locks {
			name := fmt.Sprint("lock:", i)
			a.HSet(ctx, name, field(ourUUID, 1), "1")
			a.PExpire(ctx, name, time.Hour)
			ops = append(ops, renewOp(name, 1))
		}
		a.HSet(ctx, "lock:1", field(otherUUID, 1), "1", field(ourUUID, 1), "2") // not as this sidecar left it
		before := must(a.Time(ctx).Result())
		for _, res := range r.ask(ops...) {
			if ok := res.Outcome == redisop.Done; ok == (res.Name == "lock:1") {
				t.Errorf("%d locks: %+v", locks, res)
			}
		}
		for _, op := range ops {
			left := a.PTTL(ctx, op.Name).Val()
			elapsed := must(a.Time(ctx).Result()).Sub(before)
			lease := time.Duration(op.LeaseMS) * time.Millisecond
			if renewed := left <= lease && left > lease/2-elapsed; renewed == (op.Name == "lock:1") {
				t.Errorf("%d locks: %s has %v left, %v after its renewal", locks, op.Name, left, elapsed)
			}
		}
	}
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		for _, locks := range []int{15, 16, 128} {
			renewAll(t, r, b.admin, locks)
		}
	})
	t.Run("no permission for PEXPIREAT", func(t *testing.T) {
		s := startRedis(t)
		renewAll(t, connected(t, s.userURL("old", leastRules...)), s.admin(), 128)
		tried := int64(0)
		for _, e := range must(s.admin().ACLLog(ctx, 100).Result()) {
			if e.Object == "pexpireat" {
				tried += e.Count
			}
		}
		if tried != 1 {
			t.Errorf("PEXPIREAT was tried %d times, want once", tried)
		}
	})
	t.Run("which command", func(t *testing.T) {
		s := startRedis(t)
		r := connected(t, s.url())
		for locks, want := range map[int]string{15: "calls=0", 128: "calls=127"} {
			s.admin().ConfigResetStat(ctx)
			renewAll(t, r, s.admin(), locks)
			got, _, _ := strings.Cut(wire.InfoFields(s.admin().Info(ctx, "commandstats").Val())["cmdstat_pexpireat"], ",")
			if cmp.Or(got, "calls=0") != want {
				t.Errorf("%d locks: PEXPIREAT has %s, want %s", locks, got, want)
			}
		}
	})
}

// However far apart the renewals of a lock are, up to the latest, one within eight windows looks;
// and of many renewal groups, one in eight is looked at.
//
// Shows docs/guarantees.md: A program builds another structure around the field of a held lock.
// Shows docs/renewals.md: Scripts and commands.
func TestEachLockIsLookedAtWithinEightWindows(t *testing.T) {
	for _, lease := range []uint32{100, 30_000, 4_000_000_000} {
		op := renewOp("lock", 1_000_003)
		op.LeaseMS = lease
		leaseNS := int64(lease) * 1e6
		// A third of the lease, up to a twentieth later, and half a sixtieth if very many are due.
		for _, apart := range []int64{leaseNS / 3, leaseNS/3 + leaseNS/40, leaseNS/3 + leaseNS/20 + leaseNS/120} {
			var now, looked int64
			for now < 200*leaseNS {
				if wire.LooksForOthers(now, &op) {
					looked = now
				}
				now += apart
				if unseen := now - looked; unseen > leaseNS/5*2*wire.LookEvery+apart {
					t.Fatalf("lease %d: renewed every %d ns, the lock is not looked at for %d ns", lease, apart, unseen)
				}
			}
		}
		looks := 0
		for id := range uint64(80 * redisop.RenewalGroupSize) {
			op.HoldID = id
			if wire.LooksForOthers(int64(lease)*7e6, &op) {
				looks++
			}
		}
		if looks != 80/wire.LookEvery*redisop.RenewalGroupSize {
			t.Errorf("lease %d: the locks of %.1f groups of 80 are looked at", lease, float64(looks)/redisop.RenewalGroupSize)
		}
	}
	if check := checkOp("lock", 1); !wire.LooksForOthers(0, &check) || !wire.LooksForOthers(1e18, &check) {
		t.Error("a check does not look")
	}
}

// The script looks at the first of its keys only.
//
// Shows docs/renewals.md: Scripts and commands.
func TestRenewalsThatLookComeFirst(t *testing.T) {
	const group = redisop.RenewalGroupSize
	ids := []uint64{3, 9 * group, 8*group + 7, 1, 8*group + 5, 2}
	var ops []redisop.Op
	for _, id := range ids {
		ops = append(ops, renewOp(fmt.Sprint("lock:", id), id))
	}
	window := int64(ops[0].LeaseMS) * 1e6 / 5 * 2
	wire.SortForBatching(7*window, ops, nil)
	var got []uint64
	for _, op := range ops {
		got = append(got, op.HoldID)
	}
	// In the seventh window, the groups 1, 9, 17 … look; in each part, neighbours are together.
	if want := []uint64{9 * group, 1, 2, 3, 8*group + 5, 8*group + 7}; !slices.Equal(got, want) {
		t.Errorf("the renewals are of the holds %d, want %d", got, want)
	}
	if _, n := wire.BatchPrefix(ops, nil); n != len(ops) {
		t.Errorf("one script executes %d of them", n)
	}
}

// A run of one script compares every lock with the same entries.
func TestChecksOfDifferentEntriesRunApart(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		b.admin.HSet(ctx, "once", field(ourUUID, 1), "1")
		b.admin.HSet(ctx, "twice", field(ourUUID, 2), "2")
		once, twice := checkOp("once", 1), checkOp("twice", 2)
		twice.Count = 2
		for _, ops := range [][]redisop.Op{{once, twice}, {twice, once}} {
			for _, res := range r.ask(ops...) {
				if res.Outcome != redisop.Done {
					t.Errorf("got %+v; nothing differs", res)
				}
			}
		}
	})
}
