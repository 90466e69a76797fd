package locktable_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

func quota(what string, most int) *locktable.Quota {
	return &locktable.Quota{What: what, Rule: "team", Sharers: "user 1000", Most: most}
}

func holdsOf(q *locktable.Quota, names ...locktable.NamePattern) locktable.ByName[*locktable.Quota] {
	return locktable.ByName[*locktable.Quota]{{Names: names, Value: q}}
}

func TestQuotaBoundsTheHoldsOfAllSessionsThatShareIt(t *testing.T) {
	r := newUsersRig(t, locktable.Config{}, 1000, 1000, 2000)
	q := quota("holds", 3)
	for id := range locktable.SessionID(2) {
		r.tb.Bind(id+1, &locktable.Terms{Holds: holdsOf(q, "a*")})
	}
	if n := r.takes(1, "a"); n != 3 || q.Used() != 3 {
		t.Errorf("%d holds, and %d are counted; want 3", n, q.Used())
	}
	if n := r.takes(2, "ab"); n != 0 {
		t.Errorf("another session that shares the quota got %d holds more", n)
	}
	for _, name := range []string{"b0"} { // not of the quota
		r.acquire(1, name)
		r.collect()
		r.redis(redisop.Take, redisop.Done)
		r.collect()
	}
	r.tb.Close(r.now, 1)
	r.redisDoesAll()
	if q.Used() != 0 {
		t.Errorf("%d holds are counted after the end of their session", q.Used())
	}
	if n := r.takes(2, "ab"); n != 3 {
		t.Errorf("%d holds after the others ended, want 3", n)
	}
}

// A client that dies with a crash delay, and opens another session, has no more holds than one
// that does not.
func TestHoldCountsForItsQuotaDuringItsCrashDelay(t *testing.T) {
	r := newUsersRig(t, locktable.Config{}, 1000, 1000)
	q := quota("holds", 1)
	for id := range locktable.SessionID(2) {
		r.tb.Bind(id+1, &locktable.Terms{Holds: holdsOf(q)})
	}
	r.tb.Acquire(r.now, 1, protocol.Acquire{ID: 1, Name: "a", WaitMS: protocol.Forever, CrashDelayMS: 1000})
	r.redisDoesAll()
	r.tb.Close(r.now, 1)
	r.redisDoesAll()
	if n := r.takes(2, "b"); n != 0 || q.Used() != 1 {
		t.Errorf("%d holds more during the crash delay; %d are counted, want 1", n, q.Used())
	}
	r.now += int64(2 * time.Second)
	r.tb.Advance(r.now)
	r.redisDoesAll()
	if q.Used() != 0 {
		t.Errorf("%d holds are counted after the crash delay", q.Used())
	}
}

func TestQuotaBoundsAcquiresThatAreNotAnswered(t *testing.T) {
	r := newUsersRig(t, locktable.Config{}, 2000, 1000)
	q := quota("waiters", 2)
	r.tb.Bind(2, &locktable.Terms{Waiters: holdsOf(q)})
	r.acquire(1, "a")
	r.redisDoesAll()
	for id := range uint64(3) {
		r.tb.Acquire(r.now, 2, protocol.Acquire{ID: 10 + id, Name: "a", WaitMS: protocol.Forever})
	}
	var refused []string
	for _, e := range r.tb.Effects() {
		if e.Kind == locktable.Refusal {
			refused = append(refused, fmt.Sprint(e.ID, " ", e.Code, " ", e.Msg))
		}
	}
	if len(refused) != 1 || !strings.HasPrefix(refused[0], `12 limit rule "team" of the policy limits waiters of user 1000 to 2`) {
		t.Errorf("refused %q, want the third one, by the rule", refused)
	}
	r.tb.Cancel(r.now, 2, protocol.Cancel{Target: 10})
	if r.collect(); q.Used() != 1 {
		t.Errorf("%d waiters are counted after a cancel, want 1", q.Used())
	}
}

// A waiter that was admitted before the quota of holds was used up is refused when the lock
// comes to it.
func TestQuotaOfHoldsIsCheckedAtTheGrant(t *testing.T) {
	r := newUsersRig(t, locktable.Config{}, 2000, 1000)
	q := quota("holds", 1)
	r.tb.Bind(2, &locktable.Terms{Holds: holdsOf(q)})
	r.acquire(1, "a")
	r.redisDoesAll()
	r.acquire(2, "a") // waits
	r.acquire(2, "b")
	r.redisDoesAll()
	r.tb.Close(r.now, 1)
	r.collect()
	r.want("s2 refused limit")
	if q.Used() != 1 {
		t.Errorf("%d holds are counted, want 1", q.Used())
	}
}

func TestRefusalHidesProcessesOfOthers(t *testing.T) {
	const cmd = "payroll --month"
	for _, tt := range []struct {
		name  string
		terms locktable.Terms
		want  string
	}{
		{"everything is shown", locktable.Terms{UID: 1000}, "pid 7 (payroll --month)"},
		{"commands are hidden", locktable.Terms{UID: 1000, Commands: locktable.ByName[bool]{{Value: false}}}, "held by pid 7 on"},
		{"processes are hidden", locktable.Terms{UID: 1000, Scope: locktable.ByName[locktable.Scope]{{Value: locktable.ScopeOwn}}}, "held by a process of another user on"},
		{"those of the own user are shown", locktable.Terms{UID: 2000, Scope: locktable.ByName[locktable.Scope]{{Value: locktable.ScopeOwn}}}, "pid 7 (payroll --month)"},
		{"only those of other names are hidden", locktable.Terms{UID: 1000, Scope: locktable.ByName[locktable.Scope]{{Names: []locktable.NamePattern{"b*"}, Value: locktable.ScopeOwn}}}, "pid 7 (payroll --month)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.tb = connect(newTable(locktable.Config{}, r.now))
			r.tb.Up(r.now, 0, false, false)
			r.tb.Open(r.now, 1, locktable.Peer{PID: 7, UID: 2000, Cmd: cmd})
			r.tb.Open(r.now, 2, locktable.Peer{PID: 8, UID: 1000})
			r.tb.Bind(2, &tt.terms)
			r.acquire(1, "a")
			r.redisDoesAll()
			r.tb.Acquire(r.now, 2, protocol.Acquire{ID: 1, Name: "a"})
			effects := r.tb.Effects()
			if len(effects) != 1 || !strings.Contains(effects[0].Msg, tt.want) {
				t.Errorf("%+v, want a refusal with %q", effects, tt.want)
			}
		})
	}
}

func TestRedactShowsAListerWhatItMayKnow(t *testing.T) {
	row := func() *protocol.LockRow {
		return &protocol.LockRow{
			Name: "a", State: protocol.StateHeld, Hold: 3, Token: 4, Owner: 5, Session: 6, PID: 7, UID: 2000, Cmd: "payroll", Waiting: 2,
			Waiters: []protocol.WaiterRow{{Session: 8, PID: 9, UID: 3000, Cmd: "other"}, {Session: 10, PID: 11, UID: 1000, Cmd: "mine"}},
		}
	}
	own := locktable.ByName[locktable.Scope]{{Value: locktable.ScopeOwn}}
	r := row()
	if isListed := (&locktable.Terms{UID: 1000, Scope: own}).Redact(r, false); !isListed || r.PID != 0 || r.Cmd != "" || r.Session != 0 || r.Hold != 0 ||
		len(r.Waiters) != 1 || r.Waiters[0].Cmd != "mine" || r.Waiting != 2 || r.State != protocol.StateHeld {
		t.Errorf("listed %v, %+v; want the own waiter only", isListed, r)
	}
	r = row()
	if isListed := (&locktable.Terms{UID: 4000, Scope: own}).Redact(r, false); isListed {
		t.Errorf("a lock of other users is listed: %+v", r)
	}
	r = row()
	if isListed := (&locktable.Terms{UID: -1, Scope: own}).Redact(r, false); isListed {
		t.Errorf("a uid that stands for many users has own locks: %+v", r)
	}
	r = row()
	if isListed := (&locktable.Terms{UID: 1000, Commands: locktable.ByName[bool]{{Value: false}}}).Redact(r, false); !isListed || r.Cmd != "" || r.PID != 7 ||
		r.Waiters[0].Cmd != "" || r.Waiters[1].Cmd != "mine" {
		t.Errorf("listed %v, %+v; want no commands of others", isListed, r)
	}
	r = row()
	if isListed := (&locktable.Terms{UID: 3000, Scope: locktable.ByName[locktable.Scope]{{Value: locktable.ScopeNone}}}).Redact(r, false); isListed || r.PID != 0 {
		t.Errorf("listed %v, %+v; want nothing", isListed, r)
	}
}

// What an acquire and its release cost the table, with quotas and without.
func BenchmarkTerms(b *testing.B) {
	for _, terms := range []*locktable.Terms{nil, {
		Holds:   locktable.ByName[*locktable.Quota]{{Names: []locktable.NamePattern{"team-a:*", "shared:*"}, Value: quota("holds", 10)}, {Names: []locktable.NamePattern{"team-b:*"}, Value: quota("holds", 10)}, {Value: quota("holds", 10)}},
		Waiters: locktable.ByName[*locktable.Quota]{{Value: quota("waiters", 10)}},
	}} {
		b.Run(fmt.Sprint("entries=", terms != nil), func(b *testing.B) {
			now := int64(time.Hour)
			tb := newTable(locktable.Config{}, now)
			tb.Up(now, 0, false, false)
			tb.Open(now, 1, locktable.Peer{})
			tb.Bind(1, terms)
			var token uint64
			b.ReportAllocs()
			for i := range b.N {
				tb.Acquire(now, 1, protocol.Acquire{ID: uint64(i + 1), Name: "invoice:42", WaitMS: protocol.Forever})
				answer(tb, now, &token)
				tb.Release(now, 1, protocol.Release{Hold: uint64(i + 1)})
				answer(tb, now, &token)
			}
		})
	}
}

// Two processes of one user can close a wait cycle through locks of another team. Its description must
// not be a list of the names of that team.
func TestWaitCycleHasNoNamesThatThePolicyHides(t *testing.T) {
	own := locktable.ByName[locktable.Scope]{{Value: locktable.ScopeOwn}}
	for _, tt := range []struct {
		name   string
		holder int64 // of the lock in the middle
		terms  locktable.Terms
		want   string
	}{
		{
			"everything is hidden", 2000, locktable.Terms{UID: 1000, Scope: own},
			`you ask for "open", held by a process of another user, who waits for a lock that the policy hides from you, held by a process of another user, who waits for "mine", which you hold;`,
		},
		{
			"the lock in the middle is the user's own", 1000, locktable.Terms{UID: 1000, Scope: own},
			`you ask for "open", held by a process of another user, who waits for "secret", held by owner 5 of pid 102 (payroll), who waits for "mine", which you hold;`,
		},
		{
			"no name may be listed", 1000, locktable.Terms{UID: 1000, Scope: locktable.ByName[locktable.Scope]{{Value: locktable.ScopeNone}}},
			`you ask for "open", held by a process of another user, who waits for a lock that the policy hides from you, held by owner 5 of pid 102 (payroll), who waits for "mine", which you hold;`,
		},
		{
			"only commands are hidden", 2000, locktable.Terms{UID: 1000, Commands: locktable.ByName[bool]{{Value: false}}},
			`you ask for "open", held by owner 5 of pid 101, who waits for "secret", held by owner 5 of pid 102, who waits for "mine", which you hold;`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.tb = connect(newTable(locktable.Config{}, r.now))
			r.tb.Up(r.now, 0, false, false)
			r.tb.Open(r.now, 1, locktable.Peer{PID: 101, UID: 2000, Cmd: "payroll"})
			r.tb.Open(r.now, 2, locktable.Peer{PID: 102, UID: tt.holder, Cmd: "payroll"})
			r.tb.Open(r.now, 3, locktable.Peer{PID: 103, UID: 1000})
			r.tb.Bind(3, &tt.terms)
			for s, name := range []string{"open", "secret", "mine"} {
				r.acquire(locktable.SessionID(s+1), name, owner(5))
				r.redisDoesAll()
			}
			r.acquire(1, "secret", owner(5))
			r.acquire(2, "mine", owner(5))
			r.tb.Effects()
			r.tb.Acquire(r.now, 3, protocol.Acquire{ID: 99, Name: "open", Owner: 5, WaitMS: protocol.Forever})
			if effects := r.tb.Effects(); len(effects) != 1 || effects[0].Code != protocol.Deadlock || !strings.Contains(effects[0].Msg, tt.want) {
				t.Errorf("%+v, want a deadlock with %q", effects, tt.want)
			}
		})
	}
}

func TestRedactEventShowsAClientWhatItMayKnow(t *testing.T) {
	scope := func(s locktable.Scope) locktable.ByName[locktable.Scope] {
		return locktable.ByName[locktable.Scope]{{Value: s}}
	}
	mine := protocol.EventRow{Kind: protocol.EventLost, Name: "a", Session: 3, UID: 1000, Cmd: "mine"}
	theirs := protocol.EventRow{Kind: protocol.EventLost, Name: "a", Session: 4, UID: 2000, Cmd: "theirs"}
	elsewhere := protocol.EventRow{Kind: protocol.EventForced, Name: "a", UID: 1000, Cmd: "of another host", RemoteHost: "db-7"}
	unknown := protocol.EventRow{Kind: "of a later daemon", Name: "a"}
	for _, tt := range []struct {
		name  string
		terms locktable.Terms
		row   protocol.EventRow
		shown bool
		cmd   string
	}{
		{"own", locktable.Terms{UID: 1000, Scope: scope(locktable.ScopeOwn)}, mine, true, "mine"},
		{"of another user", locktable.Terms{UID: 1000, Scope: scope(locktable.ScopeOwn)}, theirs, false, ""},
		{"of a process of another host with the same uid", locktable.Terms{UID: 1000, Scope: scope(locktable.ScopeOwn)}, elsewhere, false, ""},
		{"of root, whose uid is what an unknown process has", locktable.Terms{UID: 0, Scope: scope(locktable.ScopeOwn)}, unknown, false, ""},
		{"of a uid that stands for many users", locktable.Terms{UID: -1, Scope: scope(locktable.ScopeOwn)}, mine, false, ""},
		{"none", locktable.Terms{UID: 1000, Scope: scope(locktable.ScopeNone)}, mine, false, ""},
		{"all, without commands", locktable.Terms{UID: 1000, Commands: locktable.ByName[bool]{{Value: false}}}, theirs, true, ""},
		{"all, without commands, of another host", locktable.Terms{UID: 1000, Commands: locktable.ByName[bool]{{Value: false}}}, elsewhere, true, ""},
		{"own, without the commands of others", locktable.Terms{UID: 1000, Commands: locktable.ByName[bool]{{Value: false}}}, mine, true, "mine"},
		{"of Redis", locktable.Terms{UID: 1000, Scope: scope(locktable.ScopeNone)}, protocol.EventRow{Kind: protocol.EventRedisDown}, true, ""},
		{"of slots", locktable.Terms{UID: 1000, Scope: scope(locktable.ScopeNone)}, protocol.EventRow{Kind: protocol.EventSlotsOpen}, true, ""},
	} {
		row := tt.row
		if shown := tt.terms.RedactEvent(&row); shown != tt.shown || shown && row.Cmd != tt.cmd {
			t.Errorf("%s: shown %v, %+v", tt.name, shown, row)
		}
	}
}
