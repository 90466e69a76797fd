package policy_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

const now = int64(time.Hour)

var resolver = policy.Resolver{
	User:  numberIn(map[string]int64{"deploy": 1000, "batch": 1001, "root": 0}),
	Group: numberIn(map[string]int64{"team-a": 2000, "ops": 2001}),
}

func numberIn(known map[string]int64) func(string) (int64, error) {
	return func(name string) (int64, error) {
		if n, ok := known[name]; ok {
			return n, nil
		}
		return 0, errors.New("unknown")
	}
}

func compile(t *testing.T, entries ...policy.Entry) *policy.Policy {
	t.Helper()
	for i := range entries {
		if entries[i].Name == "" {
			entries[i].Name = fmt.Sprintf("r%d", i)
		}
	}
	p, err := policy.New(entries, resolver)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// open returns the session of a peer; nil: the policy says nothing about it.
func open(t *testing.T, l *policy.Ledger, p *policy.Policy, peer policy.Peer) *policy.Session {
	t.Helper()
	rules, refusal := p.For(&peer)
	if refusal != nil {
		t.Fatal(refusal.Msg)
	}
	if rules == nil {
		return nil
	}
	s, refusal := l.Open(now, rules, peer.UID, false)
	if refusal != nil {
		t.Fatal(refusal.Msg)
	}
	return s
}

func TestEntryIsAboutThePeersThatMatchEachOfItsLists(t *testing.T) {
	deny := func(e policy.Entry) policy.Entry { e.Acquire = "deny"; return e }
	deploy := policy.Peer{UID: 1000, GIDs: []int64{100, 2000}, Cgroup: "/system.slice/web.service"}
	root := policy.Peer{UID: 0, Cgroup: "/kubepods.slice/pod1/c", IsPrivileged: true}
	user := policy.Peer{UID: 1001, GIDs: []int64{1001}, Cgroup: "/user.slice/user-1001.slice/user@1001.service/app.slice/web.service"}
	for _, tt := range []struct {
		name  string
		entry policy.Entry
		want  []bool // for deploy, root, user
	}{
		{"everyone", policy.Entry{}, []bool{true, false, true}},
		{"a user", policy.Entry{Users: []string{"deploy"}}, []bool{true, false, false}},
		{"a number", policy.Entry{Users: []string{"7", "1001"}}, []bool{false, false, true}},
		{"root by name", policy.Entry{Users: []string{"root"}}, []bool{false, true, false}},
		{"a supplementary group", policy.Entry{Groups: []string{"ops", "team-a"}}, []bool{true, false, false}},
		{"a primary group", policy.Entry{Groups: []string{"1001"}}, []bool{false, false, true}},
		{"a unit, and no unit of a user with its name", policy.Entry{Units: []string{"web.service"}}, []bool{true, false, false}},
		{"units of users", policy.Entry{Units: []string{"user@*"}}, []bool{false, false, true}},
		{"a slice", policy.Entry{Cgroups: []string{"/system.slice"}}, []bool{true, false, false}},
		{"not the slice whose name begins so", policy.Entry{Cgroups: []string{"/system.sl"}}, []bool{false, false, false}},
		{"any cgroup", policy.Entry{Cgroups: []string{"/"}}, []bool{true, true, true}},
		{"containers of root", policy.Entry{Cgroups: []string{"/kubepods.slice"}}, []bool{false, true, false}},
		{"a user and a group", policy.Entry{Users: []string{"deploy"}, Groups: []string{"ops"}}, []bool{false, false, false}},
		{"a user and a unit", policy.Entry{Users: []string{"deploy"}, Units: []string{"web.service"}}, []bool{true, false, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, deny(tt.entry))
			var got []bool
			for _, peer := range []policy.Peer{deploy, root, user} {
				got = append(got, open(t, new(policy.Ledger), p, peer) != nil)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("about deploy, root and user: %v, want %v", got, tt.want)
			}
		})
	}
}

// An entry that denies must not be avoided by a process that cannot be looked at.
// systemd puts "_" before the name of a unit that could be a file of the cgroup file system. What is below
// the cgroup of a unit has names that its processes choose.
func TestUnitOfACgroup(t *testing.T) {
	for cgroup, want := range map[string]string{
		"/system.slice/web.service":                                 "web.service",
		"/system.slice/_memory.service":                             "memory.service",
		"/system.slice/system-getty.slice/getty@1.service":          "getty@1.service",
		"/system.slice/web.service/payroll.service":                 "web.service",
		"/user.slice/user-1001.slice/user@1001.service/web.service": "user@1001.service",
		"/init.scope": "init.scope",
		"/user.slice": "",
		"/":           "",
	} {
		if got := policy.Unit(cgroup); got != want {
			t.Errorf("%s is of the unit %q, want %q", cgroup, got, want)
		}
	}
}

func TestPeerWithoutCgroupIsRefusedIfAnEntryDependsOnIt(t *testing.T) {
	p := compile(t, policy.Entry{Name: "backup", Users: []string{"deploy"}, Units: []string{"backup.service"}, Acquire: "deny"})
	if _, refusal := p.For(&policy.Peer{UID: 1000}); refusal == nil || refusal.Code != protocol.Denied || !strings.Contains(refusal.Msg, `rule "backup"`) {
		t.Errorf("%+v, want denied by the rule", refusal)
	}
	if rules, refusal := p.For(&policy.Peer{UID: 1001}); rules != nil || refusal != nil {
		t.Errorf("%+v, %+v for a user that the entry does not name", rules, refusal)
	}
}

func TestFirstEntryThatDecidesWins(t *testing.T) {
	p := compile(t,
		policy.Entry{Name: "team-a", Groups: []string{"team-a"}, Names: []string{"a:*", "shared"}, Acquire: "allow"},
		policy.Entry{Name: "rest", Acquire: "deny", LongestHold: "1m", LongestLease: "30s"},
		policy.Entry{Name: "late", Acquire: "allow"},
	)
	var l policy.Ledger
	member := open(t, &l, p, policy.Peer{UID: 1000, GIDs: []int64{2000}})
	other := open(t, &l, p, policy.Peer{UID: 1001})
	for _, tt := range []struct {
		s    *policy.Session
		req  protocol.Acquire
		code protocol.Code
		rule string
		hold int64
	}{
		{s: member, req: protocol.Acquire{Name: "a:1"}, hold: 60_000},
		{s: member, req: protocol.Acquire{Name: "shared", MaxHoldMS: 500, LeaseMS: 30_000}, hold: 500},
		{s: member, req: protocol.Acquire{Name: "shared2"}, code: protocol.Denied, rule: "rest"},
		{s: other, req: protocol.Acquire{Name: "a:1"}, code: protocol.Denied, rule: "rest"},
		{s: member, req: protocol.Acquire{Name: "a:1", LeaseMS: 30_001}, code: protocol.Limit, rule: "rest"},
		{s: member, req: protocol.Acquire{Name: "a:1", MaxHoldMS: 60_001}, code: protocol.Limit, rule: "rest"},
		{s: member, req: protocol.Acquire{Name: "a:1", KeepMS: 60_001}, code: protocol.Limit, rule: "rest"},
		{s: member, req: protocol.Acquire{Name: "shared", KeepMS: 60_000}, hold: 60_000},
	} {
		req := protocol.AcquirePermits{Acquire: tt.req}
		why := tt.s.Acquire(redisop.KindLock, &req)
		switch {
		case tt.code == "" && (why != nil || req.MaxHoldMS != tt.hold):
			t.Errorf("%+v: %+v; want a max_hold of %d ms", tt.req, why, tt.hold)
		case tt.code != "" && (why == nil || why.Code != tt.code || why.Rule != tt.rule || !strings.Contains(why.Msg, `rule "`+tt.rule+`"`)):
			t.Errorf("%+v: %+v; want %s by %s", tt.req, why, tt.code, tt.rule)
		}
	}
}

// An operator lowers a semaphore for all who name more, and bounds how much one acquire takes of it.
func TestPermitsAreBounded(t *testing.T) {
	p := compile(t,
		policy.Entry{Name: "api", Names: []string{"api"}, Kinds: []string{"permits"}, Permits: 3, Capacity: 5},
		policy.Entry{Name: "tiny", Names: []string{"tiny"}, Kinds: []string{"lock", "permits"}, Capacity: 2},
		policy.Entry{Name: "locks", Kinds: []string{"lock"}},
	)
	s := open(t, new(policy.Ledger), p, policy.Peer{UID: 1000})
	for _, tt := range []struct {
		name        string
		permits, of uint16 // of 0: a lock
		granted     uint16 // of
		code        protocol.Code
		msg         string
	}{
		{name: "api", permits: 1, of: 10, granted: 5},
		{name: "api", permits: 3, of: 4, granted: 4},
		{name: "api", permits: 4, of: 10, code: protocol.Limit, msg: `rule "api" of the policy limits permits of one acquire to 3, and 4 were asked for; ask for fewer, or raise permits of that rule`},
		{name: "api", code: protocol.Denied, msg: `rule "api" of the policy does not let user 1000 use this name as a lock; choose another name, or add "lock" to kinds of that rule`},
		{name: "tiny", permits: 2, of: 10, granted: 2},
		{name: "tiny", permits: 3, of: 10, code: protocol.Limit, msg: `rule "tiny" of the policy limits the semaphore to 2 permits, and 3 were asked for at once; ask for fewer, or raise capacity of that rule`},
		{name: "tiny"},
		{name: "y", permits: 1, of: 1, code: protocol.Denied, msg: `rule "locks" of the policy does not let user 1000 use this name as a semaphore; choose another name, or add "permits" to kinds of that rule`},
		{name: "x"},
	} {
		checkPermits(t, s, tt.name, tt.permits, tt.of, tt.granted, tt.code, tt.msg)
	}
}

// Each kind of lock is permitted by its own word.
func TestReadWriteLocksArePermittedByKind(t *testing.T) {
	p := compile(t, policy.Entry{Name: "catalog", Names: []string{"catalog"}, Kinds: []string{"rw"}}, policy.Entry{Name: "locks", Kinds: []string{"lock"}})
	s := open(t, new(policy.Ledger), p, policy.Peer{UID: 1000})
	for name, kinds := range map[string]map[redisop.LockKind]string{
		"catalog": {
			redisop.KindReadWrite: "",
			redisop.KindLock:      `rule "catalog" of the policy does not let user 1000 use this name as a lock; choose another name, or add "lock" to kinds of that rule`,
		},
		"invoice": {
			redisop.KindLock:      "",
			redisop.KindReadWrite: `rule "locks" of the policy does not let user 1000 use this name as a read/write lock; choose another name, or add "rw" to kinds of that rule`,
		},
	} {
		for kind, want := range kinds {
			why := s.Acquire(kind, &protocol.AcquirePermits{Acquire: protocol.Acquire{Name: name}})
			if want == "" && why != nil || want != "" && (why == nil || why.Code != protocol.Denied || why.Msg != want) {
				t.Errorf("%s as %s: %+v, want %q", name, kind.Noun(), why, want)
			}
		}
	}
}

func checkPermits(t *testing.T, s *policy.Session, name string, permits, of, granted uint16, code protocol.Code, msg string) {
	t.Helper()
	req := protocol.AcquirePermits{Acquire: protocol.Acquire{Name: name}, Permits: permits, Of: of}
	kind := redisop.KindPermits
	if of == 0 {
		kind = redisop.KindLock
	}
	why := s.Acquire(kind, &req)
	switch {
	case code == "" && (why != nil || req.Of != granted):
		t.Errorf("%d of %d permits of %s: of %d, %+v; want of %d", permits, of, name, req.Of, why, granted)
	case code != "" && (why == nil || why.Code != code || why.Msg != msg):
		t.Errorf("%d of %d permits of %s: %+v; want %s: %s", permits, of, name, why, code, msg)
	}
}

func TestForceReleaseIsDecidedByUserOfTheHolder(t *testing.T) {
	p := compile(t,
		policy.Entry{Name: "ops", Groups: []string{"ops"}, ForceRelease: "all"},
		policy.Entry{Name: "payroll", Names: []string{"payroll:*"}, ForceRelease: "none"},
		policy.Entry{Name: "own", Users: []string{"deploy"}, ForceRelease: "own"},
	)
	l := policy.Ledger{SharedUID: 1000}
	ops := open(t, &l, p, policy.Peer{UID: 5, GIDs: []int64{2001}})
	shared := open(t, &l, p, policy.Peer{UID: 1000})
	l.SharedUID = -1
	deploy := open(t, &l, p, policy.Peer{UID: 1000})
	other := open(t, &l, p, policy.Peer{UID: 6})
	for _, tt := range []struct {
		who     *policy.Session
		name    string
		holder  int64
		decides bool
		rule    string // that refuses
	}{
		{ops, "payroll:1", 7, true, ""},
		{deploy, "payroll:1", 1000, true, "payroll"},
		{deploy, "x", 1000, true, ""},
		{deploy, "x", 7, true, "own"},
		{shared, "x", 1000, true, "own"},
		{other, "x", 6, false, ""},
	} {
		why, decides := tt.who.ForceRelease(tt.name, true, tt.holder)
		if decides != tt.decides || (why != nil) != (tt.rule != "") || why != nil && (why.Rule != tt.rule || why.Code != protocol.Denied) {
			t.Errorf("%q of user %d: %+v, decides %v; want %+v", tt.name, tt.holder, why, decides, tt)
		}
	}
}

func TestListAndInfoAreHiddenByName(t *testing.T) {
	p := compile(t,
		policy.Entry{Name: "a", Users: []string{"deploy"}, Names: []string{"a:*"}, List: "all", Acquire: "allow"},
		policy.Entry{Name: "none", List: "none"},
		policy.Entry{Name: "closed", Names: []string{"closed"}, Acquire: "deny"},
	)
	var l policy.Ledger
	deploy, other := open(t, &l, p, policy.Peer{UID: 1000}), open(t, &l, p, policy.Peer{UID: 5})
	if why := deploy.List(); why != nil {
		t.Errorf("a client that may list some locks: %+v", why)
	}
	if why := other.List(); why == nil || why.Rule != "none" || why.Code != protocol.Denied {
		t.Errorf("a client that may list none: %+v", why)
	}
	if why := other.Info("open"); why != nil {
		t.Errorf("info about a name that may be acquired: %+v", why)
	}
	if why := other.Info("closed"); why == nil || why.Rule != "closed" {
		t.Errorf("info about a name that may not be acquired or listed: %+v", why)
	}
	for name, want := range map[string]bool{"a:1": true, "b": false} {
		if got := deploy.Terms().Redact(&protocol.LockRow{Name: name}, false); got != want {
			t.Errorf("%q is listed: %v", name, got)
		}
	}
}

func TestSessionsAreCountedForEachUserOrForTheEntry(t *testing.T) {
	for per, want := range map[string]string{"user": "user 5 to 2", "entry": "all its processes together to 2"} {
		p := compile(t, policy.Entry{Name: "few", Per: per, Sessions: 2})
		var l policy.Ledger
		peer := policy.Peer{UID: 5}
		first := open(t, &l, p, peer)
		open(t, &l, p, peer)
		rules, _ := p.For(&peer)
		if _, why := l.Open(now, rules, 5, false); why == nil || why.Code != protocol.Limit || !strings.Contains(why.Msg, `rule "few" of the policy limits sessions of `+want) {
			t.Errorf("per %s: the third session: %+v", per, why)
		}
		if _, why := l.Open(now, rules, 6, false); (why != nil) != (per == "entry") {
			t.Errorf("per %s: a session of another user: %+v", per, why)
		}
		if _, why := l.Open(now, rules, 5, true); why != nil {
			t.Errorf("per %s: a session that is resumed: %+v", per, why)
		} else {
			first.Close()
		}
	}
}

// Otherwise a user that has had its number of sessions would be refused until a restart.
func TestSessionThatEndedIsNotCounted(t *testing.T) {
	p := compile(t, policy.Entry{Name: "few", Sessions: 2})
	var l policy.Ledger
	peer := policy.Peer{UID: 5}
	rules, _ := p.For(&peer)
	open(t, &l, p, peer)
	for range 10 {
		open(t, &l, p, peer).Close()
	}
	open(t, &l, p, peer)
	if s, why := l.Open(now, rules, 5, false); why == nil {
		t.Errorf("a third session is open: %v", s)
	}
}

func TestQuotaIsSharedBySessionsOfOneUser(t *testing.T) {
	p := compile(t, policy.Entry{Names: []string{"a*"}, Holds: 3, Waiters: 4}, policy.Entry{Holds: 7})
	var l policy.Ledger
	one, two, other := open(t, &l, p, policy.Peer{UID: 5}), open(t, &l, p, policy.Peer{UID: 5}), open(t, &l, p, policy.Peer{UID: 6})
	of := func(s *policy.Session, name string) *locktable.Quota {
		q, _ := s.Terms().Holds.Of(name)
		return q
	}
	if of(one, "a") != of(two, "a") || of(one, "a") == of(other, "a") || of(one, "a") == of(one, "b") || of(one, "a").Most != 3 || of(one, "b").Most != 7 {
		t.Error("a quota is not that of one user and one entry")
	}
	if _, ok := one.Terms().Waiters.Of("b"); ok {
		t.Error("the waiters of a name are limited by an entry about others")
	}
}

// A user that reconnects all the time does not get another allowance.
func TestRequestsPerSecondAreSharedAndOutlastASession(t *testing.T) {
	p := compile(t, policy.Entry{Name: "slow", RequestsPerSecond: 10})
	var l policy.Ledger
	count := func(at int64, n int) (allowed int) {
		s := open(t, &l, p, policy.Peer{UID: 5})
		defer s.Close()
		for range n {
			if why := s.CountRequest(at); why == nil {
				allowed++
			} else if why.Code != protocol.Limit || why.Rule != "slow" {
				t.Fatalf("%+v", why)
			}
		}
		return allowed
	}
	if a, b := count(now, 6), count(now, 6); a != 6 || b != 4 {
		t.Errorf("%d and %d of 12 requests are allowed at once, want 10 in all", a, b)
	}
	if n := count(now+int64(300*time.Millisecond), 10); n != 3 {
		t.Errorf("%d requests are allowed after 300 ms, want 3", n)
	}
	if n := count(now+int64(time.Hour), 100); n != 10 {
		t.Errorf("%d requests are allowed at once after an hour, want 10", n)
	}
}

// Users that come and go leave nothing.
func TestLedgerForgetsWhoHasNothing(t *testing.T) {
	p := compile(t, policy.Entry{Sessions: 5, Holds: 5, RequestsPerSecond: 1000})
	var l policy.Ledger
	for uid := range int64(10_000) {
		open(t, &l, p, policy.Peer{UID: uid}).Close()
	}
	if n := l.Accounts(); n > 200 {
		t.Errorf("%d accounts are left of users that have no session", n)
	}
}

// What outlasts the sessions of a user, holds in their crash delay and the rate of its requests, counts
// also if other users come and go meanwhile.
func TestLedgerKeepsWhatOutlastsASession(t *testing.T) {
	p := compile(t, policy.Entry{Holds: 5, Waiters: 5, RequestsPerSecond: 1})
	holdsOf := func(s *policy.Session) *locktable.Quota { q, _ := s.Terms().Holds.Of("a"); return q }
	waitersOf := func(s *policy.Session) *locktable.Quota { q, _ := s.Terms().Waiters.Of("a"); return q }
	for what, tt := range map[string]struct {
		leave  func(s *policy.Session)
		isBack func(s *policy.Session) bool
	}{
		"a hold":               {func(s *policy.Session) { holdsOf(s).Add(1) }, func(s *policy.Session) bool { return holdsOf(s).Used() == 1 }},
		"a request that waits": {func(s *policy.Session) { waitersOf(s).Add(1) }, func(s *policy.Session) bool { return waitersOf(s).Used() == 1 }},
		"a request":            {func(s *policy.Session) { s.CountRequest(now) }, func(s *policy.Session) bool { return s.CountRequest(now) != nil }},
	} {
		var l policy.Ledger
		first := open(t, &l, p, policy.Peer{UID: 5})
		tt.leave(first)
		first.Close()
		for uid := range int64(10_000) {
			open(t, &l, p, policy.Peer{UID: 1000 + uid}).Close()
		}
		if !tt.isBack(open(t, &l, p, policy.Peer{UID: 5})) {
			t.Errorf("%s of a session that ended is forgotten", what)
		}
	}
}

func TestBadEntriesAreNamedWithKeyAndReason(t *testing.T) {
	for _, tt := range []struct {
		entry     policy.Entry
		key, want string
	}{
		{policy.Entry{Acquire: "deny"}, "", "it has no name"},
		{policy.Entry{Name: "a b", Acquire: "deny"}, "name", "letters"},
		{policy.Entry{Name: "x"}, "", "decides nothing"},
		{policy.Entry{Name: "x", Acquire: "no"}, "acquire", `"allow" or "deny"`},
		{policy.Entry{Name: "x", List: "some"}, "list", `"own"`},
		{policy.Entry{Name: "x", ForceRelease: "yes"}, "force_release", `"own"`},
		{policy.Entry{Name: "x", Per: "group", Holds: 1}, "per", `"entry"`},
		{policy.Entry{Name: "x", Users: []string{"noone"}, Holds: 1}, "users", "no such name"},
		{policy.Entry{Name: "x", Groups: []string{"-1"}, Holds: 1}, "groups", "no such name"},
		{policy.Entry{Name: "x", Units: []string{"*.service"}, Holds: 1}, "units", "at the end only"},
		{policy.Entry{Name: "x", Units: []string{"web"}, Holds: 1}, "units", "web.service"},
		{policy.Entry{Name: "x", Units: []string{"a.slice"}, Holds: 1}, "units", "cgroups"},
		{policy.Entry{Name: "x", Units: []string{""}, Holds: 1}, "units", "name of a unit"},
		{policy.Entry{Name: "x", Cgroups: []string{"system.slice"}, Holds: 1}, "cgroups", "begins with"},
		{policy.Entry{Name: "x", Names: []string{"a*b"}, Holds: 1}, "names", "at the end only"},
		{policy.Entry{Name: "x", Names: []string{""}, Holds: 1}, "names", "printable"},
		{policy.Entry{Name: "x", Holds: -1}, "holds", "1 or more"},
		{policy.Entry{Name: "x", Names: []string{"a"}, Sessions: 1}, "sessions", "without names"},
		{policy.Entry{Name: "x", Names: []string{"a"}, RequestsPerSecond: 1}, "requests_per_second", "without names"},
		{policy.Entry{Name: "x", LongestLease: "30"}, "longest_lease", "with its unit"},
		{policy.Entry{Name: "x", LongestHold: "1ms"}, "longest_hold", "50ms"},
		{policy.Entry{Name: "x", Kinds: []string{"lock", "latch"}}, "kinds", `"latch": write "lock", "rw" or "permits"`},
		{policy.Entry{Name: "x", Permits: 65_536}, "permits", "65535"},
		{policy.Entry{Name: "x", Capacity: -1}, "capacity", "choose 1"},
		{policy.Entry{Name: "good", Holds: 1}, "name", "same name"},
	} {
		_, err := policy.New([]policy.Entry{{Name: "good", Holds: 1}, tt.entry}, resolver)
		var e *policy.EntryError
		if !errors.As(err, &e) || e.Index != 1 || e.Key != tt.key || !strings.Contains(e.Reason, tt.want) {
			t.Errorf("%+v: got %v, want key %q and %q", tt.entry, err, tt.key, tt.want)
		}
	}
	if _, err := policy.New(make([]policy.Entry, policy.MaxEntries+1), resolver); err == nil || !strings.Contains(err.Error(), "there can be 64 entries") {
		t.Errorf("too many entries: %v", err)
	}
	if p, err := policy.New(nil, resolver); p != nil || err != nil {
		t.Errorf("no entries: %v, %v", p, err)
	}
}

// BenchmarkDecisions is all that three entries add to one acquire and its release: two requests,
// of which the release is not decided, and what the lock table counts for them.
func BenchmarkDecisions(b *testing.B) {
	p, err := policy.New([]policy.Entry{
		{Name: "team-a", Names: []string{"team-a:*", "shared:*"}, Acquire: "allow", Holds: 100},
		{Name: "team-b", Names: []string{"invoice:*"}, Acquire: "allow", Holds: 100},
		{Name: "rest", Acquire: "deny", Waiters: 100, RequestsPerSecond: 1 << 30, LongestHold: "1h"},
	}, resolver)
	if err != nil {
		b.Fatal(err)
	}
	rules, _ := p.For(&policy.Peer{UID: 1000})
	var l policy.Ledger
	s, _ := l.Open(now, rules, 1000, false)
	t := s.Terms()
	b.ReportAllocs()
	for i := range b.N {
		req := protocol.AcquirePermits{Acquire: protocol.Acquire{Name: "invoice:42"}}
		if s.CountRequest(now+int64(i)) != nil || s.Acquire(redisop.KindLock, &req) != nil {
			b.Fatal("refused")
		}
		for range 2 { // before it waits, and at the grant
			if q, _ := t.Holds.Of(req.Name); q.Refuse() != "" {
				b.Fatal("refused")
			}
		}
		q, _ := t.Waiters.Of(req.Name)
		_ = q.Refuse()
		for _, n := range []int{1, -1} {
			q, _ := t.Waiters.Of(req.Name)
			q.Add(n)
			q, _ = t.Holds.Of(req.Name)
			q.Add(n)
		}
	}
}
