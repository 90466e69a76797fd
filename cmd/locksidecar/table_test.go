package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

var update = flag.Bool("update", false, "write the golden files")

// someLocks has every kind of row.
func someLocks() []lockView {
	now := time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)
	at := func(n int64) time.Time { return now.Add(ms(n)) }
	users := display.UserNames{0: "root", 1000: "app", 1001: "batch"}
	rows := []locksidecar.LockInfo{
		{
			Name: "invoice:42", State: locksidecar.LockHeld, Hold: 17, Token: 1763695812000017, Count: 1, Owner: 3,
			Session: 5, PID: 4711, UID: 1000, Cmd: "python3 -m app.worker --queue invoices", Held: ms(3_210), Deadline: at(28_400),
			Waiting: 18, Waiters: []locksidecar.WaiterInfo{
				{Session: 6, PID: 4712, UID: 1000, Cmd: "python3 -m app.worker --queue invoices", Owner: 1, Waited: ms(1_150)},
				{Session: 9, PID: 812, UID: 0, Cmd: "locksidecar run invoice:42 -- sh", Waited: ms(90)},
			},
		},
		{
			Name: "nightly", State: locksidecar.LockHeld, Hold: 18, Token: 9, Count: 2, Owner: 1,
			Session: 7, PID: 977, UID: 1001, Cmd: "/usr/bin/report\x1b[2J", Held: ms(7_500_000), Deadline: at(90_500), Lease: ms(600_000),
		},
		{
			Name: "orphaned", State: locksidecar.LockHeld, Hold: 19, Token: 10, Count: 1,
			Session: 8, PID: 978, UID: 1001, Cmd: "gone", Held: ms(200_000_000), Deadline: at(-5), Orphan: true,
		},
		{
			Name: "restarted", State: locksidecar.LockHeld, Hold: 20, Token: 11, Count: 1,
			Session: 8, PID: 979, UID: 1001, Cmd: "busy", Held: ms(4_000), Deadline: at(20_000), Absent: true, AbsentFor: ms(720_000), AbsentLeft: ms(2_880_000),
		},
		{
			Name: "elsewhere", State: locksidecar.LockRemote, RemoteField: "285475da-9152-4c83-822a-67ee2f116a79:52", RemoteTTL: ms(12_000),
			Waiting: 1, Waiters: []locksidecar.WaiterInfo{{Session: 6, PID: 4712, UID: 1000, Cmd: "python3", Waited: ms(61_000)}},
		},
		{Name: "eternal", State: locksidecar.LockRemote, RemoteField: "foreign", RemotePersistent: true},
		{Name: "asking", State: locksidecar.LockBusy},
		{Name: "lingers", State: locksidecar.LockLingering},
		{
			Name: "report", State: locksidecar.LockHeld, Hold: 21, Token: 12, Count: 1,
			Session: 8, PID: 980, UID: 1001, Cmd: "locksidecar run report", Held: ms(4_000), Deadline: at(46_000), Orphan: true, KeepLeft: ms(46_000),
		},
		{
			Name: "partner-api", Kind: locksidecar.KindPermits, State: locksidecar.LockHeld, Hold: 30, Token: 40, Count: 1,
			Session: 6, PID: 902, UID: 1000, Cmd: "sync", Held: ms(192_000), Deadline: at(24_000), Holds: 18, Permits: 20, Of: 25, Holders: someHolders(16),
			Waiting: 2, Waiters: []locksidecar.WaiterInfo{{Session: 9, PID: 812, UID: 0, Cmd: "backup", Permits: 7, Waited: ms(1_150)}, {Session: 6, PID: 902, UID: 1000, Cmd: "sync", Permits: 1, Waited: ms(90)}},
		},
		{Name: "slots", Kind: locksidecar.KindPermits, State: locksidecar.LockRemote, RemoteTTL: ms(9_000), Of: 4, Waiting: 1, Waiters: []locksidecar.WaiterInfo{{Session: 6, PID: 902, UID: 1000, Cmd: "sync", Permits: 2, Waited: ms(60)}}},
		{Name: "slots-of-a-lock", Kind: locksidecar.KindPermits, State: locksidecar.LockRemote, RemoteField: "foreign", RemoteTTL: ms(9_000), Of: 4},
		{ // The policy hides the oldest holder.
			Name: "hidden", Kind: locksidecar.KindPermits, State: locksidecar.LockHeld, Count: 1, Held: ms(9_000), Deadline: at(24_000), Holds: 3, Permits: 4,
			Holders: []locksidecar.HolderInfo{{Hold: 60, Token: 61, Permits: 2, Session: 6, PID: 902, UID: 1000, Cmd: "sync", Held: ms(1_000)}},
		},
		{Name: "restarted-api", Kind: locksidecar.KindPermits, State: locksidecar.LockHeld, Hold: 62, Token: 63, Count: 1, Session: 8, PID: 979, UID: 1001, Cmd: "busy", Held: ms(4_000), Deadline: at(20_000), Absent: true, Holds: 1, Permits: 1, Of: 4,
			Holders: []locksidecar.HolderInfo{{Hold: 62, Token: 63, Permits: 1, Session: 8, PID: 979, UID: 1001, Cmd: "busy", Held: ms(4_000), Absent: true}}},
		{
			Name: "catalog", Kind: locksidecar.KindReadWrite, State: locksidecar.LockHeld, Hold: 70, Token: 71, Count: 1, Owner: 2,
			Session: 6, PID: 902, UID: 1000, Cmd: "indexer", Held: ms(4_100), Deadline: at(24_000), Absent: true, Holds: 12, Shared: 12,
			Holders: []locksidecar.HolderInfo{{Hold: 70, Token: 71, Shared: true, Session: 6, PID: 902, UID: 1000, Cmd: "indexer", Held: ms(4_100), Absent: true}, {Hold: 72, Token: 71, Shared: true, Session: 7, PID: 903, UID: 1000, Cmd: "web", Held: ms(90)}},
			Waiting: 2, Waiters: []locksidecar.WaiterInfo{{Session: 9, PID: 812, UID: 0, Cmd: "import", Waited: ms(1_150)}, {Session: 6, PID: 905, UID: 1000, Cmd: "web", Shared: true, Waited: ms(90)}},
		},
		{
			Name: "catalog-written", Kind: locksidecar.KindReadWrite, State: locksidecar.LockHeld, Hold: 73, Token: 74, Count: 2, Owner: 2,
			Session: 6, PID: 902, UID: 1000, Cmd: "import", Held: ms(4_100), Deadline: at(24_000), Holds: 1,
			Holders: []locksidecar.HolderInfo{{Hold: 73, Token: 74, Session: 6, PID: 902, UID: 1000, Cmd: "import", Held: ms(4_100)}},
		},
		{Name: "later", Kind: "barrier", State: locksidecar.LockHeld, Hold: 64, Token: 65, Count: 1, Session: 8, PID: 981, UID: 1001, Cmd: "new", Held: ms(4_000), Deadline: at(20_000)},
		{Name: "a-lock-with-quite-a-long-name:that-tells-everything:" + "0123456789", State: locksidecar.LockHeld, Token: 1, Count: 1, UID: 4242, Held: ms(1), Deadline: at(1)},
	}
	users[4242] = "4242"
	var views []lockView
	for _, r := range rows {
		views = append(views, viewLock(&r, now, users))
	}
	return views
}

// someHolders returns holders of a semaphore, the oldest first: the first has 2 permits, and the others 1. One
// process has them all but the second, which is of an orphan.
func someHolders(n int) []locksidecar.HolderInfo {
	holders := make([]locksidecar.HolderInfo, n)
	for i := range holders {
		holders[i] = locksidecar.HolderInfo{Hold: uint64(30 + i), Token: uint64(40 + i), Permits: 1, Session: 6, PID: 902, UID: 1000, Cmd: "sync", Held: ms(192_000 - int64(i)*1_000)}
	}
	holders[0].Permits = 2
	if n > 1 {
		holders[1].Session, holders[1].PID, holders[1].UID, holders[1].Cmd, holders[1].Orphan = 8, 903, 1001, "gone\x1b[2J", true
	}
	return holders
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it):\n%s\nwant\n%s", path, got, want)
	}
}

func TestLsPrintsATable(t *testing.T) {
	golden(t, "ls.txt", lockTable(someLocks(), 0))
}

func TestLsFitsANarrowTerminal(t *testing.T) {
	golden(t, "ls-100.txt", lockTable(someLocks(), 100))
}

func TestLsJSONHasStableFields(t *testing.T) {
	text, err := json.MarshalIndent(someLocks(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "ls.json", string(text)+"\n")
}
