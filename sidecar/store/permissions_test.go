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
// has it. Two are not needed while another one is there; see deploy/README.md.
func TestEachPermissionThatIsMissingIsNamed(t *testing.T) {
	s := startRedis(t)
	connected(t, s.url()) // which loads the scripts
	for _, rule := range slices.Concat(leastRules, optionalRules) {
		switch rule {
		case "~*", "&*", "+ping", "+script|load", "+unsubscribe": // these have tests of their own
			continue
		}
		t.Run(rule, func(t *testing.T) {
			r := open(t, s.userURL("lacks", without(rule)...), func(c *Config) { c.ProbeInterval = time.Hour })
			names := func(said string) bool { return strings.Contains(said, rule) }
			if rule[:2] == "+z" {
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
