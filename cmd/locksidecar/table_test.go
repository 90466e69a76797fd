package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
)

var update = flag.Bool("update", false, "write the golden files")

// someLocks has every kind of row.
func someLocks() []lockView {
	const now = 1_000_000_000_000
	at := func(ms int64) int64 { return now + ms*1_000_000 }
	users := display.UserNames{0: "root", 1000: "app", 1001: "batch"}
	rows := []protocol.LockRow{
		{
			Name: "invoice:42", State: protocol.StateHeld, Hold: 17, Token: 1763695812000017, Count: 1, Owner: 3,
			Session: 5, PID: 4711, UID: 1000, Cmd: "python3 -m app.worker --queue invoices", HeldMS: 3_210, DeadlineNS: at(28_400),
			Waiting: 18, Waiters: []protocol.WaiterRow{
				{Session: 6, PID: 4712, UID: 1000, Cmd: "python3 -m app.worker --queue invoices", Owner: 1, WaitedMS: 1_150},
				{Session: 9, PID: 812, UID: 0, Cmd: "locksidecar run invoice:42 -- sh", WaitedMS: 90},
			},
		},
		{
			Name: "nightly", State: protocol.StateHeld, Hold: 18, Token: 9, Count: 2, Owner: 1,
			Session: 7, PID: 977, UID: 1001, Cmd: "/usr/bin/report\x1b[2J", HeldMS: 7_500_000, DeadlineNS: at(90_500), LeaseMS: 600_000,
		},
		{
			Name: "orphaned", State: protocol.StateHeld, Hold: 19, Token: 10, Count: 1,
			Session: 8, PID: 978, UID: 1001, Cmd: "gone", HeldMS: 200_000_000, DeadlineNS: at(-5), Orphan: true,
		},
		{
			Name: "restarted", State: protocol.StateHeld, Hold: 20, Token: 11, Count: 1,
			Session: 8, PID: 979, UID: 1001, Cmd: "busy", HeldMS: 4_000, DeadlineNS: at(20_000), Absent: true,
		},
		{
			Name: "elsewhere", State: protocol.StateRemote, RemoteField: "285475da-9152-4c83-822a-67ee2f116a79:52", RemoteTTLMS: 12_000,
			Waiting: 1, Waiters: []protocol.WaiterRow{{Session: 6, PID: 4712, UID: 1000, Cmd: "python3", WaitedMS: 61_000}},
		},
		{Name: "eternal", State: protocol.StateRemote, RemoteField: "foreign", RemoteTTLMS: -1},
		{Name: "asking", State: protocol.StateBusy},
		{Name: "kept", State: protocol.StateLingering},
		{Name: "a-lock-with-quite-a-long-name:that-tells-everything:" + "0123456789", State: protocol.StateHeld, Token: 1, Count: 1, UID: 4242, HeldMS: 1, DeadlineNS: at(1)},
	}
	users[4242] = "4242"
	var views []lockView
	for _, r := range rows {
		views = append(views, viewLock(r, now, users))
	}
	return views
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
