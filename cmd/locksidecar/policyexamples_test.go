package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// examplePeers are the processes of which the examples are asked. The number of each group is that of
// the user with its name.
var examplePeers = map[string]policy.Peer{
	"root":     {UID: 0, Cgroup: "/system.slice/cron.service", IsPrivileged: true},
	"stranger": {UID: 1, GIDs: []int64{1}, Cgroup: "/user.slice/user-1.slice/user@1.service"},
	"billing":  {UID: 2, GIDs: []int64{2}, Cgroup: "/system.slice/billing.service"},
	"team-a":   {UID: 3, GIDs: []int64{3}, Cgroup: "/system.slice/a.service"},
	"team-b":   {UID: 4, GIDs: []int64{4}, Cgroup: "/system.slice/b.service"},
	"oncall":   {UID: 5, GIDs: []int64{5}, Cgroup: "/user.slice/user-5.slice/user@5.service"},
	"invoicer": {UID: 6, GIDs: []int64{6}, Cgroup: "/system.slice/invoicer.service"},
	"sync":     {UID: 8, GIDs: []int64{8}, Cgroup: "/system.slice/sync.service"},
	"import":   {UID: 9, GIDs: []int64{9}, Cgroup: "/system.slice/import.service"},
	"batch":    {UID: 7, GIDs: []int64{7}, Cgroup: "/system.slice/batch@1.service"},
	"pod-shop": {UID: 0, Cgroup: "/kubepods.slice/kubepods-burstable.slice/pod1", IsPrivileged: true},
	"pod":      {UID: 0, Cgroup: "/kubepods.slice/pod2", IsPrivileged: true},
}

func numberOfExample(name string) (int64, error) {
	if p, ok := examplePeers[name]; ok {
		return p.UID, nil
	}
	return 0, fmt.Errorf("no such name")
}

// exampleDecisions are what each example of docs/policy.md, and then that of the settings file, decides
// about a process: "acquire NAME", "force NAME" of a hold of another user, "force-own NAME", "see NAME"
// of another user, "command NAME", "capacity NAME" of 10, "hosts", "overview" (status and events have everything), or
// a limit.
var exampleDecisions = [][]string{
	{
		"billing acquire ledger: yes", "billing acquire invoice:1: yes", "stranger acquire ledger: no", "stranger acquire other: yes", "root acquire ledger: yes",
		"stranger see ledger: no", "stranger see other: yes", "billing see ledger: no", "billing hosts: no", "stranger hosts: no", "root hosts: yes", "root overview: yes",
	},
	{"stranger requests: 1000", "root requests: 0", "stranger overview: yes", "stranger hosts: no"},
	{
		"team-a acquire team-a:1: yes", "team-a acquire shared:1: yes", "team-a acquire team-b:1: no", "team-b acquire team-b:1: yes", "team-b acquire team-a:1: no",
		"stranger acquire x: no", "team-a see team-b:1: no", "team-a see shared:1: no", "root see team-b:1: yes", "team-a overview: no",
	},
	{"batch holds a: 1000", "batch waiters a: 200", "batch requests: 500", "batch lease 30s: yes", "batch lease 2m: no", "stranger holds a: 0", "stranger hosts: yes", "batch overview: yes"},
	{
		"oncall force payroll:1: yes", "oncall force a: yes", "oncall see payroll:1: yes", "oncall command payroll:1: yes", "oncall hosts: yes", "oncall overview: yes",
		"stranger force payroll:1: no", "stranger force-own payroll:1: no", "stranger force-own a: yes", "stranger force a: no",
		"stranger see a: no", "stranger overview: no", "stranger hosts: no", "root overview: yes", "root hosts: yes",
	},
	{
		"pod-shop acquire shop:1: yes", "pod-shop acquire bank:1: no", "pod acquire shop:1: no", "pod-shop see bank:1: no", "pod command a: no", "pod hosts: no",
		"root acquire bank:1: yes", "root overview: yes", "stranger acquire shop:1: yes",
	},
	{"sync capacity partner-api: 3", "sync capacity other: 10", "sync acquire partner-api: yes", "sync overview: yes", "stranger capacity partner-api: 10"},
	{"stranger holds a: 10000", "stranger command a: no", "stranger see a: yes", "stranger overview: no", "root command a: yes", "root overview: yes"},
	{
		"oncall see invoice:1: yes", "oncall command invoice:1: yes", "oncall hosts: yes", "oncall force invoice:1: yes", "oncall overview: yes",
		"invoicer acquire invoice:1: yes", "stranger acquire invoice:1: no", "stranger see invoice:1: no", "stranger force-own invoice:1: no", "stranger hosts: no", "stranger holds a: 10000",
	},
}

func checkExamples(t *testing.T, examples []string) {
	t.Helper()
	if len(examples) != len(exampleDecisions) {
		t.Fatalf("there are %d examples, and decisions of %d", len(examples), len(exampleDecisions))
	}
	for i, text := range examples {
		c, err := parseServe(t, "--config", writeFile(t, "s.toml", text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.New(c.resolver.policy, policy.Resolver{User: numberOfExample, Group: numberOfExample})
		if err != nil {
			t.Fatal(err)
		}
		for _, decision := range exampleDecisions[i] {
			at := strings.LastIndex(decision, ": ")
			question, want := decision[:at], decision[at+2:]
			if got := decide(t, p, strings.Fields(question)); got != want {
				t.Errorf("%s: got %s, want %s, from\n%s", question, got, want, text)
			}
		}
	}
}

// decide answers one question of exampleDecisions.
func decide(t *testing.T, p *policy.Policy, question []string) string {
	t.Helper()
	peer, ok := examplePeers[question[0]]
	if !ok {
		t.Fatalf("no process %q", question[0])
	}
	rules, refused := p.For(&peer)
	if refused != nil {
		t.Fatal(refused.Msg)
	}
	say := func(is bool) string { return map[bool]string{true: "yes", false: "no"}[is] }
	name := strings.Join(question[2:], " ")
	if rules == nil { // as without a policy
		switch question[1] {
		case "requests", "holds", "waiters":
			return "0"
		case "capacity":
			return "10"
		}
		return "yes"
	}
	const now = int64(1 << 40)
	s, refused := new(policy.Ledger).Open(now, rules, peer.UID, false)
	if refused != nil {
		t.Fatal(refused.Msg)
	}
	quota := func(b locktable.ByName[*locktable.Quota]) string {
		q, ok := b.Of(name)
		if !ok {
			return "0"
		}
		return fmt.Sprint(q.Most)
	}
	row := protocol.LockRow{Name: name, Session: 1, UID: 4711, Cmd: "of another user"}
	switch question[1] {
	case "acquire":
		return say(s.Acquire(redisop.KindLock, &protocol.AcquirePermits{Acquire: protocol.Acquire{Name: name}}) == nil)
	case "lease":
		req := protocol.AcquirePermits{Acquire: protocol.Acquire{Name: "a", LeaseMS: map[string]int64{"30s": 30_000, "2m": 120_000}[name]}}
		return say(s.Acquire(redisop.KindLock, &req) == nil)
	case "capacity":
		req := protocol.AcquirePermits{Acquire: protocol.Acquire{Name: name}, Permits: 1, Of: 10}
		if s.Acquire(redisop.KindPermits, &req) != nil {
			return "0"
		}
		return fmt.Sprint(req.Of)
	case "force":
		why, decides := s.ForceRelease(name, true, 4711)
		return say(decides && why == nil)
	case "force-own":
		why, _ := s.ForceRelease(name, true, peer.UID)
		return say(why == nil)
	case "see":
		return say(s.Terms().Redact(&row, false))
	case "command":
		return say(s.Terms().Redact(&row, false) && row.Cmd != "")
	case "hosts":
		return say(rules.Hosts() == nil)
	case "overview":
		return say(!s.HidesAny())
	case "requests":
		n, _ := rules.Requests(peer.UID)
		return fmt.Sprint(n)
	case "holds":
		return quota(s.Terms().Holds)
	case "waiters":
		return quota(s.Terms().Waiters)
	}
	t.Fatalf("no question %q", question)
	return ""
}
