package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

var yes, no = true, false

func TestWhatIsHiddenIsSaidWithTheKeyThatShowsIt(t *testing.T) {
	ops := policy.Entry{Name: "ops", Groups: []string{"ops"}, ForceRelease: "all"}
	for _, tt := range []struct {
		name    string
		entries []policy.Entry
		want    string // "": nothing is hidden
	}{
		{"nothing", []policy.Entry{ops, {Name: "rest", Holds: 3}}, ""},
		{"locks", []policy.Entry{ops, {Name: "rest", List: "own"}}, `rule "rest" of the policy hides other users' locks from user 1000 (list = "own"); to show them, add list = "all" to the entry "ops", which comes before it`},
		{"all locks of some names", []policy.Entry{ops, {Name: "rest", List: "none", Names: []string{"a*"}}}, `hides all locks from user 1000 (list = "none", for some names); to show them, add list = "all" to the entry "ops"`},
		{"commands", []policy.Entry{ops, {Name: "rest", Commands: &no}}, `hides the commands of other users' processes from user 1000 (commands = false); to show them, add commands = true to the entry "ops"`},
		{"no entry of its own", []policy.Entry{{Name: "rest", List: "own"}, ops}, `add an entry about the process, with list = "all", before it`},
		{"an entry for everyone is not to be changed", []policy.Entry{{Name: "open", Acquire: "allow"}, {Name: "rest", List: "own"}}, `add an entry about the process, with list = "all", before it`},
		{"an entry decided before", []policy.Entry{{Name: "ops", Groups: []string{"ops"}, List: "all", Commands: &yes}, {Name: "rest", List: "own", Commands: &no}}, ""},
		{"an entry decided before about locks only", []policy.Entry{{Name: "ops", Groups: []string{"ops"}, List: "all"}, {Name: "rest", List: "own", Commands: &no}}, `(commands = false); to show them, add commands = true to the entry "ops"`},
		{"an entry decided before for some names", []policy.Entry{{Name: "ops", Groups: []string{"ops"}, List: "all", Names: []string{"a*"}}, {Name: "rest", List: "own"}}, `(list = "own")`},
	} {
		s := open(t, new(policy.Ledger), compile(t, tt.entries...), policy.Peer{UID: 1000, GIDs: []int64{2001}})
		got := s.Hidden()
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) || s.HidesAny() != (got != "") {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestOtherHostsAreShownToThoseWhoMayAskThem(t *testing.T) {
	peer := policy.Peer{UID: 1000, GIDs: []int64{2001}}
	for _, tt := range []struct {
		name    string
		entries []policy.Entry
		want    string // "": it may ask
	}{
		{"an entry without the key", []policy.Entry{{Name: "few", Holds: 3}}, `rule "few" of the policy is about your process, and no entry lets it ask other hosts; add an entry about the process, with hosts = true`},
		{"an entry that could have the key", []policy.Entry{{Name: "few", Holds: 3}, {Name: "ops", Groups: []string{"ops"}, List: "all"}}, `add hosts = true to the entry "ops"`},
		{"allowed", []policy.Entry{{Name: "ops", Groups: []string{"ops"}, Hosts: &yes}, {Name: "rest", Hosts: &no}}, ""},
		{"denied", []policy.Entry{{Name: "ops", Groups: []string{"ops"}, List: "all"}, {Name: "rest", Hosts: &no}}, `rule "rest" of the policy denies requests about other hosts; add hosts = true to the entry "ops", which comes before it`},
	} {
		rules, _ := compile(t, tt.entries...).For(&peer)
		got := ""
		if why := rules.Hosts(); why != nil {
			got = why.Msg
		}
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	_, err := policy.New([]policy.Entry{{Name: "x", Names: []string{"a"}, Hosts: &yes}}, resolver)
	if err == nil || !strings.Contains(err.Error(), "hosts: it is about the locks of all names; put it in an entry without names") {
		t.Errorf("hosts with names: %v", err)
	}
}

// What list and commands hide of this host, they hide of other ones: a process there is never the
// user's own, though it may have the same uid.
func TestPolicyHoldsForWhatOtherHostsAnswer(t *testing.T) {
	rules, _ := compile(t,
		policy.Entry{Name: "ops", Groups: []string{"ops"}, Hosts: &yes},
		policy.Entry{Name: "payroll", Names: []string{"payroll:*"}, List: "own"},
		policy.Entry{Name: "rest", Commands: &no},
	).For(&policy.Peer{UID: 1000, GIDs: []int64{2001}})
	if why := rules.HostLock("payroll:1"); why == nil || why.Rule != "payroll" || !strings.Contains(why.Msg, `add list = "all" to the entry "ops"`) {
		t.Errorf("a hidden name: %+v", why)
	}
	if why := rules.HostLock("a"); why != nil {
		t.Errorf("a name that is not hidden: %+v", why)
	}
	if why := rules.ForceHost(); why.Code != protocol.Denied {
		t.Errorf("a hold of another host: %+v", why)
	}
	for _, uid := range []int64{1000, 0} {
		row := protocol.LockRow{Name: "payroll:1", State: protocol.StateHeld, Session: 1, UID: uid, PID: 7, Cmd: "secret"}
		if rules.HostTerms().Redact(&row, false) || row.PID != 0 || row.Cmd != "" {
			t.Errorf("the uid %d on another host: %+v", uid, row)
		}
		row = protocol.LockRow{Name: "a", State: protocol.StateHeld, Session: 1, UID: uid, PID: 7, Cmd: "secret"}
		if !rules.HostTerms().Redact(&row, false) || row.PID != 7 || row.Cmd != "" {
			t.Errorf("commands of the uid %d are hidden: %+v", uid, row)
		}
	}
}

// Whether a lock is held is not to be found out by force_release, if info may not say it.
func TestForceReleaseSaysNothingOfLocksThatAreHidden(t *testing.T) {
	s := open(t, new(policy.Ledger), compile(t, policy.Entry{Acquire: "deny", List: "none", ForceRelease: "own"}), policy.Peer{UID: 1000})
	held, _ := s.ForceRelease("a", true, 2000)
	free, _ := s.ForceRelease("a", false, 0)
	if held == nil || free == nil || held.Msg != free.Msg {
		t.Errorf("held: %+v, free: %+v", held, free)
	}
	if own, _ := s.ForceRelease("a", true, 1000); own != nil {
		t.Errorf("its own hold: %+v", own)
	}
}

func TestRefusalsAreCountedByEntry(t *testing.T) {
	l := new(policy.Ledger)
	p := compile(t, policy.Entry{Acquire: "deny", Names: []string{"closed"}}, policy.Entry{Holds: 1, Sessions: 1, RequestsPerSecond: 1})
	s := open(t, l, p, policy.Peer{UID: 1000})
	l.Count(s.Acquire(redisop.KindLock, &protocol.AcquirePermits{Acquire: protocol.Acquire{Name: "closed"}}))
	s.CountRequest(now)
	l.Count(s.CountRequest(now))
	rules, _ := p.For(&policy.Peer{UID: 1000})
	if _, why := l.Open(now, rules, 1000, false); why == nil || why.Rule != "r1" || why.Code != protocol.Limit {
		t.Fatalf("a second session: %+v", why)
	} else {
		l.Count(why) // the quota has counted it
	}
	q, _ := s.Terms().Holds.Of("a")
	q.Add(1)
	q.Refuse()
	q.Add(-1)
	if got, want := l.Refused(2), []policy.Refused{{Denied: 1}, {Limit: 3}}; !slices.Equal(got, want) {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	var uncounted locktable.Quota
	uncounted.Refuse() // does not panic
}
