package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// someOwnerships has every kind of answer, and each with its own name.
func someOwnerships(now time.Time) (names []string, all []locksidecar.Ownership) {
	const there, here, program = "1f0c9d5e-0000-8000-8000-000000000001", "1f0c9d5e-0000-8000-8000-000000000002", "285475da-9152-4c83-822a-67ee2f116a79:52"
	add := func(name string, o locksidecar.Ownership) {
		if o.Redis == "" {
			o.Redis = "ok"
		}
		names, all = append(names, name), append(all, o)
	}
	hold := locksidecar.LockInfo{
		Name: "x", State: locksidecar.LockHeld, Hold: 17, Token: 1763695812000017, Count: 1, Session: 5, PID: 4711, UID: 1000, Cmd: "worker.py --queue invoices",
		Held: 192 * time.Second, Deadline: now.Add(24 * time.Second), Waiting: 3,
	}
	waits := locksidecar.LockInfo{
		Name: "x", State: locksidecar.LockRemote, RemoteField: there + ":17", RemoteHost: "db-7", RemoteTTL: 24 * time.Second, Waiting: 18,
		Waiters: []locksidecar.WaiterInfo{{PID: 812, UID: 0, Cmd: "run -- backup", Waited: 1200 * time.Millisecond}, {PID: 813, UID: 1000, Cmd: "x\x1b[2J", Waited: time.Second}},
	}
	owner := func(o locksidecar.LockOwner) []locksidecar.LockOwner { return []locksidecar.LockOwner{o} }
	db7 := owner(locksidecar.LockOwner{Field: there + ":17", Sidecar: there, Host: "db-7", Entries: 1})
	queue := []locksidecar.LockOwner{{Field: here + ":3", Sidecar: here, Host: "db-8", Waited: 1200 * time.Millisecond}, {Field: program, Sidecar: program[:36], Waited: time.Second}}
	add("held elsewhere", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &hold, Lock: &waits, Queue: queue, Queued: 34})
	fixed := hold
	fixed.Lease, fixed.Held, fixed.Waiters, fixed.Orphan = time.Hour, 30*time.Hour, waits.Waiters[:1], true
	add("held here", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &fixed, Lock: &fixed})
	kept := hold
	kept.Orphan, kept.KeepLeft, kept.Waiting = true, 24*time.Second, 0
	absent := hold
	absent.Absent, absent.AbsentFor, absent.AbsentLeft, absent.Waiting = true, 12*time.Minute, 48*time.Minute, 0
	add("absent here", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &absent, Lock: &absent})
	givenUp := absent
	givenUp.AbsentLeft = 0
	add("-absent", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &givenUp})
	add("kept", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &kept})
	add("silent", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Trouble: "the daemon of host db-7 did not answer within 800ms: it hangs"})
	lingering := locksidecar.LockInfo{State: locksidecar.LockLingering}
	add("lingering", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &lingering})
	busy := locksidecar.LockInfo{State: locksidecar.LockBusy}
	add("on its way", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &busy})
	add("foreign", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: owner(locksidecar.LockOwner{Field: program, Entries: 1})})
	add("eternal", locksidecar.Ownership{Key: locksidecar.KeyReadWrite, Message: "read", Persistent: true, Owners: owner(locksidecar.LockOwner{Field: program, Entries: 1})})
	add("other", locksidecar.Ownership{Key: locksidecar.KeyOther, Message: "a key of type string", Persistent: true})
	add("free", locksidecar.Ownership{Key: locksidecar.KeyFree})
	add("deleted", locksidecar.Ownership{Key: locksidecar.KeyFree, Lock: &hold})
	add("no Redis", locksidecar.Ownership{Redis: "Redis refuses connections", Lock: &waits})
	add("no Redis, held", locksidecar.Ownership{Redis: "Redis refuses connections", Lock: &hold})
	add("no Redis, not known", locksidecar.Ownership{Redis: "Redis refuses connections"})
	placed, unplaced := hold, waits
	placed.InCluster, placed.Slot, placed.Shard = true, 7629, "10.0.0.7:6379"
	unplaced.InCluster = true
	add("in a Cluster", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &placed})
	add("no master has the slot", locksidecar.Ownership{Redis: "no master of the Cluster has it", Lock: &unplaced})

	const db8, db9 = "1f0c9d5e-0000-8000-8000-000000000008", "1f0c9d5e-0000-8000-8000-000000000009"
	semaphore := locksidecar.LockInfo{
		Name: "x", Kind: locksidecar.KindPermits, State: locksidecar.LockHeld, Hold: 30, Token: 40, Count: 1, Session: 6, PID: 902, UID: 1000, Cmd: "sync", Held: 192 * time.Second, Deadline: now.Add(24 * time.Second),
		Holds: 7, Permits: 8, Of: 25, Holders: someHolders(5),
		Waiting: 18, Waiters: []locksidecar.WaiterInfo{{PID: 812, UID: 0, Cmd: "run -- backup", Permits: 3, Waited: 1200 * time.Millisecond}},
	}
	theirs := someHolders(4)
	for i := range theirs { // another host counts its holds itself
		theirs[i].Token += 1000
	}
	theirs[2].Absent = true
	shares := []locksidecar.LockOwner{
		{Field: there + ":9", Sidecar: there, Host: "db-7", Permits: 8, Holds: 7, Holders: semaphore.Holders[:4]},
		{Field: db8 + ":9", Sidecar: db8, Host: "db-8", Permits: 7, Holds: 6, Holders: theirs},
		{Field: db9 + ":9", Sidecar: db9, Host: "db-9", Permits: 1},
		{Field: here + ":9", Sidecar: here, Permits: 2, Holds: 2},
	}
	wanting := []locksidecar.LockOwner{{Field: here + ":3", Sidecar: here, Host: "db-10", Permits: 2, Waited: 1200 * time.Millisecond}, {Field: db9 + ":4", Sidecar: db9, Permits: 1, Waited: time.Second}}
	add("permits", locksidecar.Ownership{
		Key: locksidecar.KeyPermits, TTL: 24 * time.Second, Permits: 20, Of: 25, Owners: shares, Lock: &semaphore, Queue: wanting, Queued: 2,
		Trouble: "the daemon of host db-9 did not answer within 800ms: it hangs",
	})
	add("more permits than there are", locksidecar.Ownership{Key: locksidecar.KeyPermits, TTL: 24 * time.Second, Permits: 7, Of: 5, Owners: shares[1:2]})
	add("permits of an unknown number", locksidecar.Ownership{Key: locksidecar.KeyPermits, TTL: 24 * time.Second, Permits: 1, Owners: shares[2:3]})
	add("permits that are not told apart", locksidecar.Ownership{Key: locksidecar.KeyPermits, TTL: 24 * time.Second, Permits: 8, Of: 25, Owners: []locksidecar.LockOwner{{Field: there + ":9", Sidecar: there, Host: "db-7", Permits: 8, Holds: 7}}, Lock: &semaphore})
	add("permits of too many hosts", locksidecar.Ownership{Key: locksidecar.KeyPermits, TTL: 24 * time.Second, Permits: 300, Of: 400})
	add("deleted permits", locksidecar.Ownership{Key: locksidecar.KeyFree, Lock: &semaphore})
	lost := semaphore
	lost.Absent, lost.Waiting, lost.Waiters, lost.Holds, lost.Permits, lost.Of = true, 0, nil, 1, 2, 0
	lost.Holders = someHolders(1)
	lost.Holders[0].Absent = true
	add("no Redis, permits", locksidecar.Ownership{Redis: "Redis refuses connections", Lock: &lost})
	wanted := locksidecar.LockInfo{Name: "x", Kind: locksidecar.KindPermits, State: locksidecar.LockRemote, Of: 25, Waiting: 1, Waiters: semaphore.Waiters}
	add("no Redis, too few permits", locksidecar.Ownership{Redis: "Redis refuses connections", Lock: &wanted})
	add("permits of what is a lock", locksidecar.Ownership{Key: locksidecar.KeyLock, TTL: 24 * time.Second, Owners: db7, Holder: &hold, Lock: &wanted})
	catalog := locksidecar.LockInfo{
		Name: "x", Kind: locksidecar.KindReadWrite, State: locksidecar.LockHeld, Hold: 70, Token: 71, Count: 1, Session: 6, PID: 902, UID: 1000, Cmd: "indexer", Held: 192 * time.Second, Deadline: now.Add(24 * time.Second),
		Holds: 12, Shared: 12, Holders: []locksidecar.HolderInfo{{Hold: 70, Token: 71, Shared: true, PID: 902, UID: 1000, Cmd: "indexer", Held: 192 * time.Second}},
		Waiting: 2, Waiters: []locksidecar.WaiterInfo{{PID: 812, UID: 0, Cmd: "import", Waited: 1200 * time.Millisecond}, {PID: 813, UID: 1000, Cmd: "web", Shared: true, Waited: time.Second}},
	}
	add("read/write", locksidecar.Ownership{Key: locksidecar.KeyReadWrite, Message: "read", TTL: 24 * time.Second, Owners: db7, Lock: &catalog})
	add("free permits", locksidecar.Ownership{Key: locksidecar.KeyFree, Queue: wanting[:1], Queued: 1})
	return names, all
}

func TestWhoPrintsWhatAnOperatorAsks(t *testing.T) {
	now := time.Date(2026, 3, 7, 2, 14, 7, 0, time.UTC)
	users := display.UserNames{0: "root", 1000: "app"}
	var text, lines strings.Builder
	names, all := someOwnerships(now)
	for i := range all {
		v := viewOwnership(names[i], &all[i], now, users)
		if i > 0 {
			text.WriteByte('\n')
		}
		text.WriteString(v.text(now, time.UTC))
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(b, '\n'))
	}
	golden(t, "who.txt", text.String())
	golden(t, "who.jsonl", lines.String())
}

// The holder is a process of this host only if both hosts name the same hold, or the same lock that
// lingers. Two hosts that ask Redis for a lock at one time are two hosts.
func TestHolderIsHereIfThisHostHasItsHold(t *testing.T) {
	owners := []locksidecar.LockOwner{{Field: "uuid-7:17", Sidecar: "uuid-7", Host: "db-7"}}
	held := func(hold uint64) *locksidecar.LockInfo {
		return &locksidecar.LockInfo{State: locksidecar.LockHeld, Hold: hold}
	}
	state := func(s locksidecar.LockState) *locksidecar.LockInfo { return &locksidecar.LockInfo{State: s} }
	for what, tt := range map[string]struct {
		holder, here *locksidecar.LockInfo
		want         bool
	}{
		"the same hold":          {held(17), held(17), true},
		"another hold":           {held(17), held(18), false},
		"no process here":        {held(17), nil, false},
		"it waits here":          {held(17), state(locksidecar.LockRemote), false},
		"it lingers":             {state(locksidecar.LockLingering), state(locksidecar.LockLingering), true},
		"both ask Redis":         {state(locksidecar.LockBusy), state(locksidecar.LockBusy), false},
		"both see another owner": {state(locksidecar.LockRemote), state(locksidecar.LockRemote), false},
	} {
		v := viewOwnership("a", &locksidecar.Ownership{Redis: "ok", Key: locksidecar.KeyLock, Owners: owners, Holder: tt.holder, Lock: tt.here}, time.Now(), nil)
		if v.isHere != tt.want || strings.Contains(v.state(), "this host") != tt.want {
			t.Errorf("%s: here: %v; %s", what, v.isHere, v.state())
		}
	}
}

// A script sees in the exit code whether the answer is certain.
func TestWhoEndsWith69IfRedisWasNotRead(t *testing.T) {
	if out := expectExit(t, start(t, startFake(t), "who", "a"), 0, ""); out != "LOCK    a\nSTATE   free\n" {
		t.Errorf("printed %q", out)
	}
	f := startFake(t, func(f *fakeSidecar) { f.redis = func() string { return "Redis refuses connections" } })
	if out := expectExit(t, start(t, f, "who", "a"), exitUnavailable, ""); !strings.Contains(out, "Redis was not read, so this may be out of date: Redis refuses connections") {
		t.Errorf("printed %q", out)
	}
	expectExit(t, start(t, f, "who", "--json", "a"), exitUnavailable, "")
}

// A message that names a command names one that answers: it can be copied as it is.
func TestMessagesNameTheCommandThatAnswers(t *testing.T) {
	f := startFake(t)
	expectExit(t, start(t, f, "run", "--wait", "0", nameHeld, "--", "true"), exitNotAcquired, "locksidecar who 'held by another host' shows by which")
	expectExit(t, start(t, f, "run", "--wait", "2s", nameWait, "--", "true"), exitNotAcquired, "locksidecar who 'waits forever' shows who holds it")
	expectExit(t, start(t, f, "force-release", "free"), 1, "locksidecar who free shows who holds it")
	expectExit(t, start(t, f, "force-release", "--orphaned", "changed"), 1, "it changed its owner; locksidecar who changed shows who holds it")
	expectExit(t, start(t, f, "force-release", "--orphaned", "unknown"), exitUnavailable, "Redis has not answered; when Redis answers, locksidecar who unknown shows who holds it")
}

func TestNamesAreQuotedForAShell(t *testing.T) {
	for name, want := range map[string]string{
		"invoice:77": "locksidecar who invoice:77", "a b": "locksidecar who 'a b'", "it's": `locksidecar who 'it'\''s'`, "f*": "locksidecar who 'f*'",
		"$(x)": "locksidecar who '$(x)'", "-x": "locksidecar who -- -x", "größe": "locksidecar who 'größe'",
	} {
		if got := whoCommand(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

func TestPatternsSelectLocks(t *testing.T) {
	for _, tt := range []struct {
		pattern namePattern
		name    string
		want    bool
	}{
		{"", "a", true}, {"f:1", "f:1", true}, {"f:1", "f:10", false}, {"f:*", "f:10", true}, {"f:*", "g", false}, {"*", "g", true}, {"f*x", "f1x", false}, {"f*", "f*", true},
	} {
		if got := tt.pattern.matches(tt.name); got != tt.want {
			t.Errorf("%q matches %q: %v", tt.pattern, tt.name, got)
		}
	}
}
