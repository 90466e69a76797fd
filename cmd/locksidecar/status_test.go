package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// statuses are situations that an operator has to tell apart.
func statuses() map[string]*statusView {
	now := time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)
	users := display.UserNames{0: "root", 1000: "app", 1001: "batch"}
	busy := locksidecar.Status{
		Started: now.Add(-275_000 * time.Second), Version: "0.1.0",
		Redis: "ok", RedisAddress: "10.0.0.5:6379/0", RedisRunID: "4f0c", KeyPrefix: "app1:", RoundTrip: 213_400,
		Sessions: 12, Held: 37, Waiting: 3,
		OldestWaiter: &locksidecar.Oldest{Name: "invoice:42", Session: 6, PID: 4712, UID: 1000, Cmd: "python3 worker.py", Age: ms(61_000)},
		OldestHold:   &locksidecar.Oldest{Name: "nightly", Session: 9, PID: 977, UID: 1001, Cmd: "/usr/bin/report\x1b[2J", Age: ms(7_500_000)},
		Restart:      &locksidecar.RestartInfo{Held: 30, Sessions: 11, Back: 10, Away: 1, Ended: 2},
	}
	busyView := viewStatus(&busy, now, users)
	busyView.OldestWaiter.HeldBy = viewHolder(&locksidecar.LockInfo{Name: "invoice:42", State: locksidecar.LockHeld, PID: 4711, UID: 1000, Cmd: "python3 worker.py", Held: ms(61_200)}, users)

	ill := busy
	ill.Redis, ill.RoundTrip, ill.KeyPrefix = "Redis has not answered for 12.3s", 12_300_000_000, ""
	ill.Trouble = "the state file was removed; restart the sidecar while no lock is held"
	ill.RedisRisk = "Redis at 10.0.0.5:6379 has 2 replicas, and grants locks with 1 of them (min-replicas-to-write)"
	ill.RenewalsLate, ill.Lost = 4, []locksidecar.LossCount{{Reason: locksidecar.ReasonExpired, Count: 3}, {Reason: locksidecar.ReasonStolen, Count: 1}}
	ill.Restart = &locksidecar.RestartInfo{Reason: "it is of another boot of this host"}
	illView := viewStatus(&ill, now, users)
	illView.OldestWaiter.HeldBy = viewHolder(&locksidecar.LockInfo{Name: "invoice:42", State: locksidecar.LockRemote, RemoteField: "285475da-9152-4c83-822a-67ee2f116a79:52"}, users)

	// A process from which a policy hides the locks of other users.
	member := busy
	member.OldestHold = nil
	member.Hidden = `rule "rest" of the policy hides other users' locks from user 1003 (list = "own"); to show them, add list = "all" to the entry "operators", which comes before it`
	memberView := viewStatus(&member, now, users)
	memberView.OldestWaiter.HeldBy = viewHolder(&locksidecar.LockInfo{Name: "invoice:42", State: locksidecar.LockHeld, Held: ms(61_200)}, users)

	// A run has ended, and its --keep keeps the lock.
	kept := idleStatus(now)
	kept.Held, kept.Waiting, kept.OldestWaiter = 1, 1, busy.OldestWaiter
	keptView := viewStatus(&kept, now, users)
	keptView.OldestWaiter.HeldBy = viewHolder(&locksidecar.LockInfo{Name: "invoice:42", State: locksidecar.LockHeld, PID: 4711, UID: 1000, Cmd: "locksidecar run", Held: ms(61_200), Orphan: true, KeepLeft: ms(12_000)}, users)

	cluster := busy
	cluster.Redis, cluster.Degraded, cluster.RedisAddress = "2 of 3 masters of the Cluster are connected; Redis at 10.0.0.8:6379 refuses connections", true, "10.0.0.7:6379,10.0.0.8:6379"
	cluster.RedisRunID = ""
	cluster.Shards, cluster.ShardCount = []locksidecar.ShardStatus{
		{Slots: 12, Redis: "no master of the Cluster has the slot of this lock"},
		{Address: "10.0.0.8:6379", Slots: 5449, Redis: "Redis at 10.0.0.8:6379 refuses connections\x1b[2J", Held: 12, Waiting: 3, Unsent: 1},
		{Address: "10.0.0.9:6379", Slots: 5461, Redis: "Redis at 10.0.0.9:6379 is out of memory", Degraded: true, RoundTrip: 213_400, Held: 12},
		{Address: "10.0.0.7:6379", Slots: 5462, Redis: "ok", RoundTrip: 198_000, Held: 13},
	}, 4

	// More masters than are printed and sent. All serve but one.
	large := idleStatus(now)
	large.Shards = append(large.Shards, locksidecar.ShardStatus{Address: "10.0.1.9:6379", Slots: 82, Redis: "Redis at 10.0.1.9:6379 refuses connections"})
	for i := range 63 {
		large.Shards = append(large.Shards, locksidecar.ShardStatus{Address: fmt.Sprintf("10.0.0.%d:6379", i+1), Slots: 82, Redis: "ok", RoundTrip: 198_000})
	}
	large.ShardCount = 200

	// The oldest waiter waits for permits.
	permits := idleStatus(now)
	permits.Held, permits.Waiting, permits.OldestWaiter = 18, 1, busy.OldestWaiter
	permitsView := viewStatus(&permits, now, users)
	permitsView.OldestWaiter.HeldBy = viewHolder(&locksidecar.LockInfo{
		Name: "invoice:42", Kind: locksidecar.KindPermits, State: locksidecar.LockHeld, PID: 902, UID: 1000, Cmd: "sync", Held: ms(192_000), Holds: 18, Permits: 20, Of: 25,
	}, users)

	wanted := permits
	wanted.Held = 0
	wantedView := viewStatus(&wanted, now, users)
	wantedView.OldestWaiter.HeldBy = viewHolder(&locksidecar.LockInfo{Name: "invoice:42", Kind: locksidecar.KindPermits, State: locksidecar.LockRemote, Of: 25}, users)

	idle := idleStatus(now)
	return map[string]*statusView{"busy": busyView, "ill": illView, "member": memberView, "kept": keptView, "permits": permitsView, "wanted": wantedView, "idle": viewStatus(&idle, now, users), "cluster": viewStatus(&cluster, now, users), "large": viewStatus(&large, now, users)}
}

// idleStatus is that of a sidecar that was just started.
func idleStatus(now time.Time) locksidecar.Status {
	return locksidecar.Status{Started: now.Add(-2 * time.Second), Version: "0.1.0", Redis: "ok", RedisAddress: "127.0.0.1:6379/0", Sessions: 1}
}

func TestStatusPrintsALineForEachThing(t *testing.T) {
	for name, v := range statuses() {
		golden(t, "status-"+name+".txt", v.text())
	}
}

func TestStatusJSONHasStableFields(t *testing.T) {
	for name, v := range statuses() {
		text, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "status-"+name+".json", string(text)+"\n")
	}
}

func TestStatusNamesTheHolderThatTheOldestWaiterWaitsFor(t *testing.T) {
	f := startFake(t)
	out := expectExit(t, start(t, f, "status"), 0, "")
	if want := "\"" + nameWait + "\" is held for "; !strings.Contains(out, want) || !strings.Contains(out, "(the test) of ") || !strings.Contains(out, "sidecar   0.0.0-fake, for 2") {
		t.Errorf("printed\n%s", out)
	}
	var v statusView
	out = expectExit(t, start(t, f, "status", "--json"), 0, "")
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.OldestWaiter == nil || v.OldestWaiter.HeldBy == nil || v.OldestWaiter.HeldBy.Cmd != "the test" {
		t.Errorf("printed\n%s", out)
	}
}

// A policy hides the oldest hold of a semaphore from this process, and shows a later one.
func TestStatusShowsTheOldestPermitsThatThisProcessMaySee(t *testing.T) {
	f := startFake(t, func(f *fakeSidecar) {
		f.hidden = "much"
		f.locks = []protocol.LockRow{
			{Name: "api", Kind: protocol.KindPermits, State: protocol.StateHeld, HeldMS: 90_000, Held: 3, Permits: 3, Of: 4, Holders: []protocol.HolderRow{{Session: 1, PID: 1, Cmd: "mine", Permits: 1, HeldMS: 8_000}}},
			{Name: "old", State: protocol.StateHeld, Session: 1, PID: 1, Cmd: "mine", HeldMS: 7_000},
		}
	})
	if out := expectExit(t, start(t, f, "status"), 0, ""); !strings.Contains(out, `the oldest that you may see, "api", has been held for 8.0s by pid 1 (mine) of root`) {
		t.Errorf("printed\n%s", out)
	}
}

// A policy hides the oldest hold and waiter from this process. The oldest of those that it may see are
// shown, and that they are not those of all.
func TestStatusShowsTheOldestThatThisProcessMaySee(t *testing.T) {
	f := startFake(t, func(f *fakeSidecar) { f.hidden = `rule "rest" of the policy hides much` })
	out := expectExit(t, start(t, f, "status"), 0, "")
	for _, want := range []string{
		`HIDDEN    rule "rest" of the policy hides much; the numbers count those of all users`,
		`held      3; the oldest that you may see, "old", has been held for 7.0s by pid 1 (mine) of root`,
		`waiting   2; the oldest that you may see, pid 1 (mine) of root, has waited 9.0s for "theirs"`,
		`"theirs" is held for 1m30s by a process of another user, which the policy hides`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("printed\n%s, want %q", out, want)
		}
	}
	var v statusView
	out = expectExit(t, start(t, f, "status", "--json"), 0, "")
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Hidden == "" || v.OldestHold == nil || v.OldestHold.Name != "old" || v.OldestWaiter.HeldBy.User != "" {
		t.Errorf("printed\n%s", out)
	}
	for _, args := range [][]string{{"ls"}, {"top", "--plain", "--interval=100ms"}} {
		out := expectExit(t, start(t, f, args...), 0, "")
		if !strings.Contains(out, "?") || strings.Count(out, hiddenHolder) != 1 || args[0] == "top" && !strings.Contains(out, "hides much") {
			t.Errorf("%v printed\n%s", args, out)
		}
	}
	p := start(t, f, "events")
	expectExit(t, p, 0, "hides much")
	sidecar, err := locksidecar.Dial(t.Context(), f.path)
	if err != nil {
		t.Fatal(err)
	}
	defer sidecar.Close()
	if s := lookAtLock(t.Context(), sidecar, "a", 0); s.eventsErr != nil || len(s.events) != 1 || s.after != 2 || s.hidden != f.hidden {
		t.Errorf("top looked at a lock, and found %+v", s)
	}
}
