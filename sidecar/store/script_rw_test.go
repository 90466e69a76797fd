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

// Read/write locks: what is random is in internal/sim/redis (TestReadWriteLocksBehaveAsTheirModel). Here is what its model
// does not have.

func readersOf(name string) string { return wire.ReadersPrefix + "{" + name + "}" }

func askedOf(name string) string { return wire.AskedPrefix + "{" + name + "}" }

// rwOp keeps a read/write lock in a mode, and asks for another one.
func rwOp(name string, num uint64, keep, want redisop.Mode) redisop.Op {
	return redisop.Op{
		Kind: redisop.Take, Of: redisop.KindReadWrite, Name: name, HoldID: num, Count: uint32(keep), LeaseMS: 30_000,
		Asked: redisop.Asked{Reserve: 1, Want: uint16(want)},
	}
}

func rwDrop(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Drop, Of: redisop.KindReadWrite, Name: name, HoldID: num}
}

func rwRenewal(name string, num uint64, mode redisop.Mode) redisop.Op {
	op := rwOp(name, num, mode, redisop.NoMode)
	op.Kind = redisop.Renew
	return op
}

// Whatever another program writes into the hash of a read/write lock, no host writes while another one has a share that has not
// expired, and what cannot be read keeps no writer waiting.
func TestReadWriteLocksSurviveWhatIsWrittenByHand(t *testing.T) {
	later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		num := uint64(10)
		for says, c := range map[string]struct {
			hash     map[string]string // beside the mode; with # for a time that is far ahead
			isShared bool              // another host has a share
		}{
			"the numbers are missing":     {map[string]string{"locksidecar:0": "1", secondUUID: "7 r #"}, true},
			"a number is missing":         {map[string]string{"locksidecar:0": "1", "locksidecar": "1 # 0", secondUUID: "7 r #"}, true},
			"a number is none":            {map[string]string{"locksidecar:0": "1", "locksidecar": "one # 0 0", secondUUID: "7 r #"}, true},
			"a number is huge":            {map[string]string{"locksidecar:0": "1", "locksidecar": "1 # 99999999999999999999 0", secondUUID: "7 r #"}, true},
			"there are too few shares":    {map[string]string{"locksidecar:0": "1", "locksidecar": "0 # 0 0", secondUUID: "7 r #"}, true},
			"our share is not counted":    {map[string]string{"locksidecar:0": "1", "locksidecar": "0 # 0 0", ourUUID: "7 r #", secondUUID: "7 r #"}, true},
			"the reader is missing":       {map[string]string{"locksidecar": "1 # 0 0", secondUUID: "7 r #"}, true},
			"a share cannot be read":      {map[string]string{"locksidecar:0": "1", "locksidecar": "1 1 0 0", secondUUID: "seven"}, false},
			"a share has no expiry":       {map[string]string{"locksidecar:0": "1", "locksidecar": "1 1 0 0", secondUUID: "7 r"}, false},
			"a share has expired":         {map[string]string{"locksidecar:0": "1", "locksidecar": "1 1 0 0", secondUUID: "7 r 1"}, false},
			"a writer among readers":      {map[string]string{"locksidecar:0": "1", "locksidecar": "1 1 0 0", secondUUID: "7 w 0"}, false},
			"there are too many shares":   {map[string]string{"locksidecar:0": "1", "locksidecar": "9 1 0 0", secondUUID: "7 r 1"}, false},
			"no host has a share":         {map[string]string{"locksidecar:0": "1", "locksidecar": "1 1 0 0"}, false},
			"our share cannot be read":    {map[string]string{"locksidecar:0": "1", "locksidecar": "1 1 0 0", ourUUID: "x"}, false},
			"our share has a huge expiry": {map[string]string{"locksidecar:0": "1", "locksidecar": "1 1 0 0", ourUUID: "7 r 99999999999999999999"}, false},
		} {
			b.admin.FlushAll(ctx)
			must(b.admin.HSet(ctx, "a", "mode", "read").Result())
			for field, value := range c.hash {
				must(b.admin.HSet(ctx, "a", field, strings.ReplaceAll(value, "#", later)).Result())
			}
			num++
			res := r.one(rwOp("a", num, redisop.NoMode, redisop.ExclusiveMode))
			if c.isShared != (res.Outcome == redisop.HeldByOther) || !c.isShared && res.Outcome != redisop.Done {
				t.Errorf("%s: a writer: %+v", says, res)
			}
			num++
			if res := r.one(rwOp("a", num, redisop.NoMode, redisop.SharedMode)); res.Outcome != redisop.Done {
				t.Errorf("%s: a reader: %+v", says, res)
			}
			num++
			if res := r.one(rwDrop("a", num)); res.Outcome != redisop.Done {
				t.Errorf("%s: a Drop: %+v", says, res)
			}
			if got := must(b.admin.HGetAll(ctx, "a").Result()); c.isShared != (got[secondUUID] != "") || !c.isShared && len(got) != 0 {
				t.Errorf("%s: %v is left", says, got)
			}
			if life := must(b.admin.Exists(ctx, new(wire.Keyspace).Life("a")).Result()); c.isShared != (life == 1) || c.isShared && !strings.HasPrefix(must(b.admin.HGet(ctx, "a", "locksidecar").Result()), "1 ") {
				t.Errorf("%s: the share that is left is not counted: %v", says, b.admin.HGetAll(ctx, "a"))
			}
		}
	})
}

// Locks of two kinds under one name exclude each other, and each waits for the other (K14).
func TestReadWriteLockExcludesALockAndASemaphore(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		other := map[redisop.LockKind][]redisop.Op{
			redisop.KindLock:    {takeOp("a", 1), renewOp("a", 1), dropOp("a", 1)},
			redisop.KindPermits: {permitsOp("a", 1, 0, 1), permitsOp("a", 1, 1, 0), permitsDrop("a", 1)},
		}
		for kind, ops := range other {
			b.admin.FlushAll(ctx)
			if res := r.one(ops[0]); res.Outcome != redisop.Done {
				t.Fatalf("%v: %+v", kind, res)
			}
			before := must(b.admin.HGetAll(ctx, "a").Result())
			for _, op := range []redisop.Op{rwOp("a", 2, 0, redisop.SharedMode), rwOp("a", 3, 0, redisop.ExclusiveMode), rwRenewal("a", 3, redisop.SharedMode)} {
				if res := r.one(op); res.Outcome != redisop.HeldByOther || res.Field == "" {
					t.Errorf("%v, beside %v: %+v", op.Kind, kind, res)
				}
			}
			if res := r.one(rwDrop("a", 4)); res.Outcome != redisop.Done {
				t.Errorf("a Drop beside %v: %+v", kind, res)
			}
			if got := must(b.admin.HGetAll(ctx, "a").Result()); !maps.Equal(got, before) {
				t.Errorf("%v became %v", before, got)
			}
			for _, mode := range []redisop.Mode{redisop.SharedMode, redisop.ExclusiveMode} {
				b.admin.FlushAll(ctx)
				if res := r.one(rwOp("a", 5, 0, mode)); res.Outcome != redisop.Done || res.Token == 0 {
					t.Fatalf("%+v", res)
				}
				before := must(b.admin.HGetAll(ctx, "a").Result())
				if res := r.one(ops[0]); res.Outcome != redisop.HeldByOther || !strings.HasPrefix(res.Field, "a read-write lock in mode ") {
					t.Errorf("%v beside mode %d: %+v", kind, mode, res)
				}
				r.one(ops[2])
				if got := must(b.admin.HGetAll(ctx, "a").Result()); !maps.Equal(got, before) {
					t.Errorf("%v became %v", before, got)
				}
			}
		}
		b.admin.Set(ctx, "text", "x", 0)
		if res := r.one(rwOp("text", 7, 0, redisop.SharedMode)); res.Outcome != redisop.NotALock || !strings.Contains(res.Msg, "choose another name") {
			t.Errorf("a string: %+v", res)
		}
	})
}

// More readers wait than one operation admits: a writer's release says that some are left, and is sent again.
func TestAPhaseIsJoinedByAllThatWaited(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		const readers = redisop.MaxReaders + 6
		r := connected(t, b.url)
		if res := r.one(rwOp("a", 1, 0, redisop.ExclusiveMode)); res.Outcome != redisop.Done {
			t.Fatalf("%+v", res)
		}
		listener := b.admin.Subscribe(ctx, "nothing")
		defer listener.Close()
		must(listener.Receive(ctx))
		wait := func(host int, queue string, age time.Duration) {
			uuid := fmt.Sprintf("%08d-2222-8333-8444-555555555555", host)
			letter := map[string]string{readersOf("a"): "r", wire.WritersPrefix + "{a}": "w"}[queue]
			b.admin.ZAdd(ctx, queue, redis.Z{Score: float64(time.Now().Add(-age).UnixMicro()), Member: uuid})
			b.admin.HSet(ctx, askedOf("a"), uuid+":"+letter, fmt.Sprint("1 30000 ", time.Now().Unix()))
			if err := listener.Subscribe(ctx, wire.OwnChannel(uuid)); err != nil {
				t.Fatal(err)
			}
			must(listener.Receive(ctx))
		}
		for host := range readers {
			wait(host, readersOf("a"), time.Second)
		}
		wait(readers, wire.WritersPrefix+"{a}", time.Second)
		late := readers + 1
		for i, want := range []int{6, 0} {
			res := r.one(rwDrop("a", uint64(2+i)))
			if i == 0 {
				wait(late, readersOf("a"), 0) // it came after the phase had begun
			}
			if left := must(b.admin.ZCard(ctx, readersOf("a")).Result()); res.Outcome != redisop.Done || (res.Queues == redisop.ReadersQueue) != (want > 0) || left != int64(want+1) {
				t.Errorf("Drop %d: %+v; %d readers wait, want %d", i+1, res, left, want+1)
			}
		}
		if got := must(b.admin.HLen(ctx, "a").Result()); got != readers+3 {
			t.Errorf("%d fields: %v", got, b.admin.HGetAll(ctx, "a"))
		}
	})
}

// The same without a writer that waits, when a writer reads on.
func TestADowngradeIsJoinedByAllThatWaited(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		const readers = redisop.MaxReaders + 6
		r := connected(t, b.url)
		r.one(rwOp("a", 1, 0, redisop.ExclusiveMode))
		listener := b.admin.Subscribe(ctx, "nothing")
		defer listener.Close()
		must(listener.Receive(ctx))
		for host := range readers {
			uuid := fmt.Sprintf("%08d-2222-8333-8444-555555555555", host)
			b.admin.ZAdd(ctx, readersOf("a"), redis.Z{Score: float64(time.Now().UnixMicro()), Member: uuid})
			b.admin.HSet(ctx, askedOf("a"), uuid+":r", fmt.Sprint("1 30000 ", time.Now().Unix()))
			if err := listener.Subscribe(ctx, wire.OwnChannel(uuid)); err != nil {
				t.Fatal(err)
			}
			must(listener.Receive(ctx))
		}
		for i, want := range []int64{6, 0} {
			res := r.one(rwOp("a", uint64(2+i), redisop.SharedMode, 0))
			if left := must(b.admin.ZCard(ctx, readersOf("a")).Result()); res.Outcome != redisop.Done || (res.Queues == redisop.ReadersQueue) != (want > 0) || left != want {
				t.Errorf("%+v; %d readers wait, want %d", res, left, want)
			}
		}
	})
}

// Who waits for a writer learns which hold of which sidecar that is.
func TestWriterIsNamed(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		connected(t, b.url, func(c *Config) { c.UUID = secondUUID }).one(rwOp("a", 7, 0, redisop.ExclusiveMode))
		r := connected(t, b.url)
		if res := r.one(rwOp("a", 1, 0, redisop.SharedMode)); res.Outcome != redisop.HeldByOther || res.Field != field(secondUUID, 7) {
			t.Errorf("%+v", res)
		}
	})
}

// In a Redis that is full, hosts renew, keep, lower and give back what they have.
func TestReadWriteLocksInAFullRedis(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	for says, ops := range map[string][2]redisop.Op{
		"renew a share":  {rwOp("a", 1, 0, redisop.SharedMode), rwRenewal("a", 1, redisop.SharedMode)},
		"keep a share":   {rwOp("a", 1, 0, redisop.SharedMode), rwOp("a", 2, redisop.SharedMode, 0)},
		"drop a share":   {rwOp("a", 1, 0, redisop.SharedMode), rwDrop("a", 2)},
		"renew a writer": {rwOp("a", 1, 0, redisop.ExclusiveMode), rwRenewal("a", 1, redisop.ExclusiveMode)},
		"keep a writer":  {rwOp("a", 1, 0, redisop.ExclusiveMode), rwOp("a", 2, redisop.ExclusiveMode, 0)},
		"downgrade":      {rwOp("a", 1, 0, redisop.ExclusiveMode), rwOp("a", 2, redisop.SharedMode, 0)},
		"drop a writer":  {rwOp("a", 1, 0, redisop.ExclusiveMode), rwDrop("a", 2)},
	} {
		must(s.admin().FlushAll(ctx).Result())
		if res := r.one(ops[0]); res.Outcome != redisop.Done {
			t.Fatalf("%s: %+v", says, res)
		}
		must(s.admin().ConfigSet(ctx, "maxmemory", "1").Result())
		if res := r.one(ops[1]); res.Outcome != redisop.Done || res.Permits != ops[1].Count {
			t.Errorf("%s: %+v", says, res)
		}
		must(s.admin().ConfigSet(ctx, "maxmemory", "0").Result())
	}
}

// HMGET is faster, and no user needs it.
func TestReadWriteLocksWithoutHMGET(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("nohmget", "~*", "&*", "+@all", "-hmget"))
	for _, op := range []redisop.Op{rwOp("a", 1, 0, redisop.ExclusiveMode), rwOp("a", 2, redisop.SharedMode, 0), rwRenewal("a", 2, redisop.SharedMode), rwDrop("a", 3)} {
		if res := r.one(op); res.Outcome != redisop.Done {
			t.Errorf("%v: %+v", op.Kind, res)
		}
	}
}

// Each key is one of KEYS, so a user who may not use one of them gets the error before anything runs.
func TestReadWriteLocksWithoutAPermission(t *testing.T) {
	s := startRedis(t)
	all := []string{"a", "{a}:locksidecar:0:rwlock_timeout:1", "redisson_lock_token:{a}", "locksidecar_readers:{a}", "locksidecar_writers:{a}", "locksidecar_asked:{a}"}
	for i, missing := range all[1:] {
		rules := []string{"&*", "+@all", "~locksidecar_permissions:*", "~locksidecar_probe", "~redisson_lock_token:{locksidecar_probe}"}
		for _, key := range all {
			if key != missing {
				rules = append(rules, "~"+key)
			}
		}
		r := connected(t, s.userURL(fmt.Sprint("without", i), rules...))
		if res := r.one(rwOp("a", 1, 0, redisop.SharedMode)); res.Outcome != redisop.Refused || !strings.Contains(res.Msg, "ACL") {
			t.Errorf("without %s: %+v", missing, res)
		}
	}
	for command, needs := range map[string][]redisop.Mode{ // which modes need it
		"pexpire": {redisop.SharedMode, redisop.ExclusiveMode},
		"hset":    {redisop.SharedMode, redisop.ExclusiveMode},
		"set":     {redisop.SharedMode},
	} {
		r := connected(t, s.userURL("no"+command, "~*", "&*", "+@all", "-"+command))
		for _, mode := range needs {
			res := r.one(rwOp("a", 1, 0, mode))
			left := must(s.admin().Exists(ctx, "a", new(wire.Keyspace).Life("a")).Result())
			if res.Outcome != redisop.Refused || left != 0 {
				t.Errorf("without %s, mode %d: %+v; %d keys are left", command, mode, res, left)
			}
			must(s.admin().FlushAll(ctx).Result())
		}
	}
}
