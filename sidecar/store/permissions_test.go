package store

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// optionalRules is what deploy/README.md has beside the least, but for what a Cluster and durability need.
var optionalRules = []string{"+info", "+role", "+script|exists", "+client|setname", "+pexpireat", "+type", "+persist"}

// without is the rules of a user who lacks one permission.
func without(rule string) []string {
	return slices.DeleteFunc(slices.Concat(leastRules, optionalRules), func(r string) bool { return r == rule })
}

// A permission that this user lacks is named when the daemon connects: Redis is down, or degraded, or the log
// has it. +ping, +script|load and +unsubscribe are not needed at first; those of a Cluster have tests of their own.
func TestEachPermissionThatIsMissingIsNamed(t *testing.T) {
	s := startRedis(t)
	connected(t, s.url()) // which loads the scripts
	for _, rule := range slices.Concat(leastRules, optionalRules) {
		switch rule {
		case "+ping", "+script|load", "+unsubscribe": // these have tests of their own
			continue
		}
		t.Run(rule, func(t *testing.T) {
			r := open(t, s.userURL("lacks", without(rule)...), func(c *Config) { c.ProbeInterval = time.Hour })
			names := func(said string) bool { return strings.Contains(said, rule) }
			switch {
			case rule == "&*":
				names = func(said string) bool { return strings.Contains(said, "permissions=&redisson_lock__channel:*") }
			case rule[:2] == "+z":
				names = func(said string) bool {
					return strings.Contains(said, "+zadd") && strings.Contains(said, "'"+rule[1:]+"'")
				}
			}
			for end := time.Now().Add(patience); !names(r.logged()); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the log does not name it:\n%s", r.logged())
				}
			}
		})
	}
}

// The danger: an ACL loses a permission while locks are held, each is lost at the end of its lease, and all
// tools say that Redis serves.
func TestRenewalThatIsRefusedIsProbed(t *testing.T) {
	for _, rule := range []string{"+hget", "+pexpire"} {
		t.Run(rule, func(t *testing.T) {
			s := startRedis(t)
			a := s.admin()
			r := connected(t, s.userURL("app", leastRules...), func(c *Config) { c.ProbeInterval = time.Hour })
			if res := r.one(takeOp("a", 1)); res.Outcome != redisop.Done {
				t.Fatalf("%+v", res)
			}
			must(a.ACLSetUser(ctx, "app", "-"+rule[1:]).Result())
			if res := r.one(renewOp("a", 1)); res.Outcome != redisop.Refused {
				t.Fatalf("%+v", res)
			}
			r.awaitDegraded("does not permit this user "+rule[1:], "let its ACL have "+rule)
			must(a.ACLSetUser(ctx, "app", rule).Result())
			if res := r.one(takeOp("a", 2)); res.Outcome != redisop.Done {
				t.Fatalf("%+v", res)
			}
			r.awaitDegraded()
		})
	}
}

// The danger: an ACL loses the keys of locks while some are held. A Take was served since the last probe, as with an
// ACL that permits the names of some locks, so the denied key of the probe decides nothing by itself.
func TestRenewalWhoseKeyIsRefusedIsProbed(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("app", leastRules...), func(c *Config) { c.ProbeInterval = time.Hour })
	if res := r.one(takeOp("a", 1)); res.Outcome != redisop.Done {
		t.Fatalf("%+v", res)
	}
	must(s.admin().ACLSetUser(ctx, "app", "resetkeys").Result())
	if res := r.one(renewOp("a", 1)); res.Outcome != redisop.Refused {
		t.Fatalf("%+v", res)
	}
	r.awaitDegraded("does not permit this user the keys of locks", "let its ACL have the keys ~*")
	must(s.admin().ACLSetUser(ctx, "app", "~*").Result())
	if res := r.one(takeOp("a", 2)); res.Outcome != redisop.Done {
		t.Fatalf("%+v", res)
	}
	r.awaitDegraded()
}

// A command that redis.conf renames is named, too.
func TestRenamedCommandIsNamed(t *testing.T) {
	s := startRedis(t, "--rename-command", "HDEL", "gone", "--rename-command", "PTTL", "gone2")
	r := connected(t, s.url(), often)
	r.awaitDegraded("does not know hdel, pttl", "remove its rename-command")
}

// Redis forgets scripts: with SCRIPT FLUSH, and when it restarts.
func TestPermissionsAreFoundAfterRedisForgotTheScript(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.userURL("app", leastRules...), often)
	must(a.ScriptFlush(ctx).Result())
	must(a.ACLSetUser(ctx, "app", "-pttl").Result())
	r.awaitDegraded("does not permit this user pttl")
}

// The lock of another program stays as it is, and so does the memory of Redis.
func TestPermissionsLeaveNothing(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	ask := func() []any {
		t.Helper()
		answer, err := a.Eval(ctx, wire.Permissions.Text, []string{"probed"}, "a channel", "0").Slice()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if got, keys := ask(), must(a.Keys(ctx, "*").Result()); len(got) != 0 || len(keys) != 0 {
		t.Errorf("a user who may do all lacks %v, and leaves the keys %v", got, keys)
	}
	a.HSet(ctx, "probed", otherUUID+":1", "1")
	before := must(a.Dump(ctx, "probed").Result())
	if got, after := ask(), must(a.Dump(ctx, "probed").Result()); len(got) != 0 || before != after || a.PTTL(ctx, "probed").Val() != -1 {
		t.Errorf("a lock that is held: %v, and it is changed: %v", got, before != after)
	}
}

// A command that a script is given, and that is not tried, is one whose absence nobody finds.
func TestPermissionsHaveTheCommandsOfAllScripts(t *testing.T) {
	command := regexp.MustCompile(`\b(?:call|pcall|ask|write|try)\('([A-Z]+)'|\b(?:expire|publish)\b[a-z, ]* = '([A-Z]+)'|publish, numsub = '([A-Z]+)'|and '([A-Z]+)' or '([A-Z]+)'`)
	of := func(texts ...string) map[string]bool {
		found := make(map[string]bool)
		for _, text := range texts {
			for _, m := range command.FindAllStringSubmatch(text, -1) {
				for _, name := range m[1:] {
					found[name] = true
				}
			}
		}
		delete(found, "")
		return found
	}
	needed, tried := of(wire.AcquireRelease.Text, wire.Renew.Text, wire.Arrive.Text), of(wire.Permissions.Text)
	maps.DeleteFunc(needed, func(name string, _ bool) bool { return name[0] == 'Z' || name == "TIME" }) // of the greeting
	delete(tried, "NUMSUB")                                                                             // of PUBSUB
	delete(tried, "SHARDNUMSUB")
	if missing, more := fmt.Sprint(slices.Sorted(maps.Keys(needed))), fmt.Sprint(slices.Sorted(maps.Keys(tried))); missing != more {
		t.Errorf("the scripts need\n%s, and these are tried:\n%s", missing, more)
	}
}

// userURL makes a user who may do what rules say and nothing else.
func (s *server) userURL(name string, rules ...string) string {
	s.t.Helper()
	args := append([]string{"reset", "resetchannels", "on", ">secret"}, rules...)
	must(s.admin().ACLSetUser(ctx, name, args...).Result())
	return fmt.Sprintf("unix://%s:secret@%s", name, s.socket())
}

// What the documentation tells an operator to permit, and no more.
var leastRules = []string{"~*", "&*", "+evalsha", "+script|load", "+time",

	"+exists", "+hlen", "+hkeys", "+hget", "+hset", "+hdel", "+del", "+pttl", "+pexpire", "+incrby", "+set", "+pubsub", "+publish", "+subscribe", "+unsubscribe", "+ping",
	"+zadd", "+zcard", "+zrank", "+zrange", "+zrem", "+zpopmin"}

// To load scripts that Redis knows is half of what a connection costs it, and ten thousand hosts connect to
// a new master at one moment.
func TestKnownScriptsAreNotLoadedAgain(t *testing.T) {
	s := startRedis(t)
	loads := func() string {
		stats := wire.InfoFields(s.admin().Info(ctx, "commandstats").Val())
		calls, _, _ := strings.Cut(stats["cmdstat_script|load"], ",")
		return calls
	}
	first := connected(t, s.url())
	before := loads()
	second := connected(t, s.url())
	if after := loads(); before != fmt.Sprint("calls=", len(wire.Scripts)) || after != before {
		t.Errorf("scripts are loaded with %q, and by the second connection up to %q", before, after)
	}
	must(s.admin().ScriptFlush(ctx).Result())
	connected(t, s.url())
	if after := loads(); after != fmt.Sprint("calls=", 2*len(wire.Scripts)) {
		t.Errorf("after SCRIPT FLUSH: %q", after)
	}
	for _, r := range []*recorder{first, second} {
		if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
			t.Errorf("%+v", res)
		}
	}
}

// A user who may not load scripts, and whose connection found that Redis knew them.
func TestForgottenScriptsAreRunByTextIfTheyCannotBeLoaded(t *testing.T) {
	s := startRedis(t)
	connected(t, s.url())
	r := connected(t, s.userURL("noload", "~*", "&*", "+@all", "-script|load"))
	for range 2 {
		must(s.admin().ScriptFlush(ctx).Result())
		for _, op := range []redisop.Op{takeOp("a", 1), renewOp("a", 1), dropOp("a", 1)} {
			if res := r.one(op); res.Outcome != redisop.Done {
				t.Errorf("%+v: %+v", op, res)
			}
		}
	}
}

// Shows docs/queue.md: What Redis has.
func TestLeastPermissions(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("least", leastRules...))
	var ops []redisop.Op
	for i := range 10 {
		ops = append(ops, takeOp(fmt.Sprint(i), 1), renewOp(fmt.Sprint(i), 1), dropOp(fmt.Sprint(i), 1))
	}
	for _, op := range ops {
		if res := r.one(op); res.Outcome != redisop.Done {
			t.Errorf("%+v: %+v", op, res)
		}
	}
	r.Subscribe(0, "a")
	recv(t, r.subscribed, "subscription")
	// Without INFO it is not known whether it is the same data.
	s.admin().ClientKillByFilter(ctx, "TYPE", "pubsub")
	r.one(takeOp("a", 1))
	if !r.up().lost {
		t.Error("data that cannot be known to be the same is said to be")
	}
	if log := r.logged(); !strings.Contains(log, "INFO is not permitted") {
		t.Errorf("the log is silent about it: %s", log)
	}
}

func TestPermissions(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	t.Run("a key that is denied is Refused, and its batch mates are not", func(t *testing.T) {
		r := connected(t, s.userURL("keys", "~ok:*", "~redisson_lock_token:{ok:*", "&*", "+@all"))
		var ops []redisop.Op
		for i := range 300 {
			name := fmt.Sprint("ok:", i)
			if i%100 == 50 {
				name = fmt.Sprint("no:", i)
			}
			a.HSet(ctx, name, field(ourUUID, 1), "1")
			ops = append(ops, renewOp(name, 1))
		}
		ops = append(ops, takeOp("ok:x", 1), takeOp("no:x", 1), dropOp("no:y", 1))
		for i, res := range r.ask(ops...) {
			if strings.HasPrefix(ops[i].Name, "ok:") {
				if res.Outcome != redisop.Done {
					t.Errorf("%+v", res)
				}
			} else if res.Outcome != redisop.Refused || !strings.Contains(res.Msg, "ACL") {
				t.Errorf("%+v", res)
			}
		}
	})
	t.Run("without PUBSUB the number of listeners is not known", func(t *testing.T) {
		r := connected(t, s.userURL("nonumsub", "~*", "&*", "+@all", "-pubsub"))
		op := takeOp("a", 1)
		op.Flags |= redisop.CountListeners
		if res := r.one(op); res.Outcome != redisop.Done || res.Listeners != (redisop.Listeners{State: redisop.Uncountable}) {
			t.Errorf("%+v", res)
		}
		if res := r.one(dropOp("a", 1)); res.Outcome != redisop.Done || res.Listeners != redisop.CountedListeners(0) {
			t.Errorf("it reaches no subscriber: %+v", res)
		}
		r.Subscribe(0, "a")
		recv(t, r.subscribed, "subscription")
		if res := r.one(dropOp("a", 1)); res.Outcome != redisop.Done || res.Listeners != (redisop.Listeners{State: redisop.Uncountable}) {
			t.Errorf("it reaches a subscriber: %+v", res)
		}
	})
	t.Run("without PUBLISH a lock is still released, and the log tells once", func(t *testing.T) {
		r := connected(t, s.userURL("nopublish", "~*", "+@all"))
		for i := range 3 {
			name := fmt.Sprint("quiet:", i)
			r.one(takeOp(name, 1))
			if res := r.one(dropOp(name, 1)); res.Outcome != redisop.Done || a.Exists(ctx, name).Val() != 0 {
				t.Errorf("%+v", res)
			}
		}
		if n := strings.Count(r.logged(), "may not publish"); n != 1 {
			t.Errorf("said %d times: %s", n, r.logged())
		}
	})
	t.Run("without PEXPIRE no lock stays for ever", func(t *testing.T) {
		r := connected(t, s.userURL("nopexpire", "~*", "&*", "+@all", "-pexpire"))
		res := r.one(takeOp("forever", 1))
		if res.Outcome != redisop.Refused || a.Exists(ctx, "forever").Val() != 0 {
			t.Errorf("%+v, key exists: %d", res, a.Exists(ctx, "forever").Val())
		}
		if !strings.Contains(res.Msg, `does not permit this user a command that the lock "forever" needs`) {
			t.Errorf("the message does not help: %s", res.Msg)
		}
	})
	t.Run("a command that shows whose lock it is, and is denied, is Refused", func(t *testing.T) {
		theirs := map[string]string{otherUUID + ":1": "1"}
		for _, tt := range []struct {
			denied string
			hash   map[string]string
			ops    []redisop.Op
		}{
			{"hlen", theirs, []redisop.Op{takeOp("a", 1), dropOp("a", 1), renewOp("a", 1)}},
			{"hdel", theirs, []redisop.Op{dropOp("a", 1)}},
			{"hkeys", theirs, []redisop.Op{takeOp("a", 1), dropOp("a", 1), renewOp("a", 1)}},
			{"hget", theirs, []redisop.Op{renewOp("a", 1)}},
		} {
			a.FlushAll(ctx)
			if tt.hash != nil {
				a.HSet(ctx, "a", tt.hash)
			}
			r := connected(t, s.userURL("no"+tt.denied, "~*", "&*", "+@all", "-"+tt.denied))
			for _, op := range tt.ops {
				if res := r.one(op); res.Outcome != redisop.Refused || !strings.Contains(res.Msg, "does not permit this user a command") {
					t.Errorf("without %s: %+v", tt.denied, res)
				}
			}
			if got := a.HGetAll(ctx, "a").Val(); !maps.Equal(got, tt.hash) {
				t.Errorf("without %s: the lock is %v now", tt.denied, got)
			}
		}
	})
	t.Run("without SCRIPT, EVAL teaches", func(t *testing.T) {
		r := connected(t, s.userURL("noload", "~*", "&*", "+@all", "-script"))
		for range 2 {
			a.ScriptFlush(ctx)
			for _, res := range r.ask(takeOp("b", 1), takeOp("c", 1), renewOp("d", 1), dropOp("e", 1), dropOp("f", 1)) {
				if res.Outcome != redisop.Done && res.Kind != redisop.Renew {
					t.Errorf("%+v", res)
				}
			}
		}
	})
	t.Run("a right that is taken away is Refused", func(t *testing.T) {
		r := connected(t, s.userURL("fallen", "~*", "&*", "+@all"))
		must(a.ACLSetUser(ctx, "fallen", "-evalsha").Result())
		if res := r.one(takeOp("b", 1)); res.Outcome != redisop.Refused {
			t.Errorf("%+v", res)
		}
	})
}
