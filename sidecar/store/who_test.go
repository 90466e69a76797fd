package store

import (
	"fmt"
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

type readKeyResult struct {
	key lookup.Key
	err error
}

func (r *recorder) key(name string) readKeyResult {
	r.t.Helper()
	read := make(chan readKeyResult, 1)
	r.Key(name, func(k lookup.Key, err error) { read <- readKeyResult{k, err} })
	return recv(r.t, read, "key")
}

// What each program may leave under the key of a lock is reported as what it is.
func TestKeyIsReportedAsWhatItIs(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	a := s.admin()
	const thread = otherUUID + ":31"
	a.HSet(ctx, "program", thread, "2")
	a.PExpire(ctx, "program", time.Minute)
	a.HSet(ctx, "eternal", thread, "1")
	a.HSet(ctx, "reading", "mode", "read", thread, "1", otherUUID+":32", "3")
	a.HSet(ctx, "writing", "mode", "write", thread+":write", "1")
	a.HSet(ctx, "hash", "a", "1", "b", "2")
	a.HSet(ctx, "one", "field", "1")
	a.Set(ctx, "text", "x", 0)
	a.HSet(ctx, "crowd", "mode", "read")
	for i := range 300 {
		a.HSet(ctx, "crowd", fmt.Sprint(otherUUID, ":", i), "1")
		a.HSet(ctx, "large", fmt.Sprint(otherUUID, ":", i), "1")
	}
	for name, want := range map[string]lookup.Key{
		"free":    {State: protocol.KeyFree, TTLMS: -2},
		"eternal": {State: protocol.KeyLock, TTLMS: -1, Owners: []lookup.KeyOwner{{Field: thread, Entries: 1}}},
		"reading": {State: protocol.KeyReadWrite, What: "read", TTLMS: -1, Owners: []lookup.KeyOwner{{Field: thread, Entries: 1}, {Field: otherUUID + ":32", Entries: 3}}},
		"writing": {State: protocol.KeyReadWrite, What: "write", TTLMS: -1, Owners: []lookup.KeyOwner{{Field: thread + ":write", Entries: 1}}},
		"hash":    {State: protocol.KeyOther, What: "a hash with 2 fields", TTLMS: -1},
		"one":     {State: protocol.KeyOther, What: "a hash with 1 field", TTLMS: -1},
		"text":    {State: protocol.KeyOther, What: "a key of type string", TTLMS: -1},
		"crowd":   {State: protocol.KeyReadWrite, What: "read", TTLMS: -1},
		"large":   {State: protocol.KeyOther, What: "a hash with 300 fields", TTLMS: -1},
	} {
		got := r.key(name)
		if got.err != nil || got.key.State != want.State || got.key.What != want.What || got.key.TTLMS != want.TTLMS || !slices.Equal(got.key.Owners, want.Owners) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if got := r.key("program"); got.key.TTLMS <= 0 || got.key.TTLMS > 60_000 || got.key.Owners[0].Entries != 2 {
		t.Errorf("the lock of a program: %+v", got)
	}
}

// The queue is returned in its order, and bounded.
func TestKeyHasTheQueueInItsOrder(t *testing.T) {
	for _, name := range []string{"a", "{a}"} {
		s := startRedis(t)
		holder, _ := receiver(t, s.url(), ourUUID)
		waiter := connected(t, s.url(), func(c *Config) { c.UUID = secondUUID })
		if res := holder.one(takeOp(name, 1)); res.Outcome != redisop.Done {
			t.Fatalf("%+v", res)
		}
		wait := takeOp(name, 7)
		wait.Flags |= redisop.Enqueue
		if res := waiter.one(wait); res.Ticket != 7 {
			t.Fatalf("%+v", res)
		}
		k := wire.NewKeyspace("")
		for i := range 2 * protocol.MaxOwners {
			s.admin().ZAdd(ctx, k.Queue(name), redis.Z{Score: 1e17 + float64(i), Member: fmt.Sprint(otherUUID, ":", i)})
		}
		got := waiter.key(name)
		if got.err != nil || got.key.State != protocol.KeyLock || len(got.key.Owners) != 1 || got.key.Owners[0].Field != ourUUID+":1" {
			t.Errorf("%s: %+v", name, got)
		}
		if got.key.Queued != 2*protocol.MaxOwners+1 || len(got.key.Tickets) != protocol.MaxOwners || got.key.Tickets[0].Field != secondUUID+":7" || got.key.Tickets[1].Field != otherUUID+":0" {
			t.Errorf("%s: the queue is %+v", name, got.key)
		}
	}
}

// The permissions in the manual are enough, and a user who may not use queues sees the lock.
func TestKeyIsReadWithTheLeastPermissions(t *testing.T) {
	s := startRedis(t)
	s.admin().HSet(ctx, "a", otherUUID+":1", "1")
	for _, rules := range [][]string{leastRules, {"~a", "&*", "+@all"}, {"~*", "&*", "+@all", "-script|load"}} {
		r := connected(t, s.userURL("least", rules...))
		s.admin().ScriptFlush(ctx)
		got := r.key("a")
		if got.err != nil || got.key.State != protocol.KeyLock || got.key.NoQueues != (rules[0] == "~a") {
			t.Errorf("%v: %+v", rules, got)
		}
		r.Close(ctx)
	}
}

// However many hosts there are, and however often they published, one lock is one command, and the
// names of its hosts are one for each.
func TestKeyCostsTheSameWithManyHosts(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	r.key("a") // Redis knows the script
	cost := func() (commands int64) {
		t.Helper()
		before := s.commandsRun()
		r.key("a")
		read := make(chan []lookup.Host, 1)
		r.HostsOf([]string{otherUUID, secondUUID}, func(h []lookup.Host, _ error) { read <- h })
		recv(t, read, "hosts")
		return s.commandsRun() - before
	}
	one := cost()
	manyHosts(s, 500)
	if many := cost(); many != one {
		t.Errorf("%d commands with 500 hosts, %d with one", many, one)
	}
}

// commandsRun returns how many commands of clients Redis has run, scripts counted as one.
func (s *server) commandsRun() (n int64) {
	for line := range strings.Lines(s.admin().Info(ctx, "commandstats").Val()) {
		name, calls, ok := strings.Cut(strings.TrimSpace(line), ":calls=")
		if ok && (name == "cmdstat_evalsha" || name == "cmdstat_eval" || name == "cmdstat_hget" || name == "cmdstat_zrange" || name == "cmdstat_publish") {
			var calling int64
			fmt.Sscan(strings.SplitN(calls, ",", 2)[0], &calling)
			n += calling
		}
	}
	return n
}

func TestKeyThatCannotBeReadIsAnError(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("keys", "~ok", "&*", "+@all"))
	if got := r.key("a"); got.err == nil {
		t.Errorf("%+v", got)
	}
	s.stop()
	if got := r.key("ok"); got.err == nil {
		t.Errorf("%+v", got)
	}
}

// A script that Redis knows, and that returned an error, has run: it is not sent again. The one that frees
// an orphaned lock would not find the lock any more.
func TestScriptThatFailedIsNotRunAgain(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("nohlen", "~*", "&*", "+@all", "-hlen"))
	r.key("a") // Redis learns the script
	runs := func() string {
		stats := wire.InfoFields(s.admin().Info(ctx, "commandstats").Val())
		return stats["cmdstat_script|load"] + stats["cmdstat_eval"]
	}
	before := runs()
	if got := r.key("a"); got.err == nil {
		t.Fatalf("%+v", got)
	}
	if after := runs(); after != before {
		t.Errorf("the script is loaded and run again: %s, and before %s", after, before)
	}
}

// Of a semaphore, claims that have expired are free, and places have what they are for.
func TestKeyHasTheClaimsOfASemaphore(t *testing.T) {
	for _, name := range []string{"api", "{api}"} {
		s := startRedis(t)
		r, a, k := connected(t, s.url()), s.admin(), wire.NewKeyspace("")
		soon := time.Now().Add(time.Minute).UnixMilli()
		a.HSet(ctx, name, "mode", fmt.Sprintf("permits 9 %d %d 77", soon, soon),
			ourUUID, fmt.Sprintf("7 3 %d", soon), secondUUID, fmt.Sprintf("8 4 %d", soon), otherUUID, "9 2 1000", "text", "x")
		a.PExpire(ctx, name, time.Minute)
		a.ZAdd(ctx, k.Ours(wire.WantedPrefix, name), redis.Z{Score: 1e15, Member: secondUUID}, redis.Z{Score: 1e15 + 1, Member: otherUUID})
		a.HSet(ctx, k.Ours(wire.WantsPrefix, name), secondUUID, "10 5 12 30000 1", otherUUID, "no place")
		got := r.key(name)
		slices.SortFunc(got.key.Owners, func(x, y lookup.KeyOwner) int { return strings.Compare(x.Field, y.Field) })
		owners := []lookup.KeyOwner{{Field: ourUUID + ":7", Entries: 3}, {Field: secondUUID + ":8", Entries: 4}}
		slices.SortFunc(owners, func(x, y lookup.KeyOwner) int { return strings.Compare(x.Field, y.Field) })
		if got.err != nil || got.key.State != protocol.KeyPermits || got.key.Permits != 7 || got.key.Of != 12 || !slices.Equal(got.key.Owners, owners) {
			t.Errorf("%s: %+v", name, got)
		}
		if q := got.key.Tickets; got.key.Queued != 2 || len(q) != 2 || q[0].Field != secondUUID+":10" || q[0].Permits != 5 || q[1].Field != otherUUID || q[1].Permits != 0 {
			t.Errorf("%s: the queue is %+v", name, q)
		}
		for i := range 300 {
			a.HSet(ctx, name, fmt.Sprint("host", i), fmt.Sprintf("1 1 %d", soon))
		}
		if got := r.key(name); got.err != nil || got.key.Permits != 9 || len(got.key.Owners) != 0 {
			t.Errorf("%s with many hosts: %+v", name, got)
		}
		a.Del(ctx, name)
		a.HSet(ctx, name, "mode", fmt.Sprintf("permits 9 %d %d 77", soon, soon), ourUUID, fmt.Sprintf("7 %s %d", strings.Repeat("1", 70_000), soon))
		if got := r.key(name); got.err != nil || got.key.State != protocol.KeyPermits || len(got.key.Owners) != 1 {
			t.Errorf("%s with a number of 70,000 digits: %+v", name, got)
		}
		a.Del(ctx, name)
		if got := r.key(name); got.err != nil || got.key.State != protocol.KeyFree || got.key.Queued != 2 {
			t.Errorf("%s, of which no host has permits: %+v", name, got)
		}
		a.Del(ctx, k.Ours(wire.WantedPrefix, name))
		a.Set(ctx, k.Ours(wire.WantedPrefix, name), "text", 0)
		if got := r.key(name); got.err != nil || got.key.State != protocol.KeyFree || got.key.Queued != 0 {
			t.Errorf("%s, whose set of places is no set: %+v", name, got)
		}
	}
}
