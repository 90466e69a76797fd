package monitor

import (
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestVerdictIsOneSentence(t *testing.T) {
	lost := []lossRow{{Reason: "expired", Recent: 2, Hour: 2, Total: 2}, {Reason: "stolen", Hour: 4, Total: 9}, {Reason: "forced", Recent: 1, Hour: 1, Total: 1}}
	for _, tt := range []struct {
		why    string
		losses []lossRow
		late   int
		want   string
	}{
		{"", nil, 0, "Clients can lock."},
		{"", lost[1:2], 0, "Clients can lock."},
		{"", lost, 0, "Not well: clients can lock, but locks were lost in the last 10 minutes (2 expired)."},
		{"", lost[2:], 0, "Clients can lock."},
		{"", nil, 3, "Not well: clients can lock, but renewals are late (3), and their locks are lost at their deadlines without them."},
		{"Redis is away", nil, 0, "Not well: Redis is away."},
		{"Redis is away.", lost, 1, "Not well: Redis is away; locks were lost in the last 10 minutes (2 expired); renewals are late (1), and their locks are lost at their deadlines without them."},
	} {
		isWell, got := verdict(tt.why, alarms(tt.losses, tt.late))
		if got != tt.want || isWell != (tt.want == "Clients can lock.") {
			t.Errorf("%v, %q, want %q", isWell, got, tt.want)
		}
	}
}

// Events are one row if an operator would read the same twice: numbers of processes and ports differ.
// Events that differ in kind, command, user or reason are rows of their own.
func TestEventsThatDifferInNumbersAloneAreFolded(t *testing.T) {
	lost := protocol.EventRow{Kind: protocol.EventLost, Name: "a", Cmd: "job", UID: 7, PID: 10, Reason: protocol.Expired}
	differ := func(change func(*protocol.EventRow)) protocol.EventRow {
		r := lost
		change(&r)
		return r
	}
	rows := []protocol.EventRow{
		differ(func(r *protocol.EventRow) { r.AtNS, r.PID, r.Token, r.HeldMS = 9, 11, 5, 300 }),
		differ(func(r *protocol.EventRow) { r.AtNS, r.Reason = 8, protocol.Stolen }),
		{AtNS: 7, Kind: protocol.EventRedisDown, Msg: "read tcp 127.0.0.1:40112: it was reset"},
		differ(func(r *protocol.EventRow) { r.AtNS, r.UID = 6, 8 }),
		differ(func(r *protocol.EventRow) { r.AtNS, r.Name = 5, "b" }),
		{AtNS: 4, Kind: protocol.EventRedisDown, Msg: "read tcp 127.0.0.1:3955: it was reset"},
		{AtNS: 3, Kind: protocol.EventRedisDown, Msg: "the password is wrong"},
		{AtNS: 2, Kind: protocol.EventDeadlock, Cmd: "job", Count: 40, Msg: "pid 4 waits for pid 5"},
		{AtNS: 1, Kind: protocol.EventDeadlock, Cmd: "job", Msg: "pid 6 waits for pid 7"},
	}
	want := []struct {
		at, first int64
		times     uint64
		names     int
	}{{9, 5, 2, 2}, {8, 8, 1, 1}, {7, 4, 2, 1}, {6, 6, 1, 1}, {3, 3, 1, 1}, {2, 1, 41, 1}}
	got := fold(rows)
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		if f := &got[i]; f.AtNS != w.at || f.firstNS != w.first || f.times != w.times || len(f.names) != w.names {
			t.Errorf("row %d is %+v, want %+v", i, f, w)
		}
	}
	if got[5].Count != 0 {
		t.Error("the text of a row has the count of its newest event, too")
	}
	if all := each(rows); len(all) != len(rows) || all[7].Count != 40 {
		t.Errorf("%+v", all)
	}
}

// A semaphore has many holders; what they have is in the place of the state of a lock.
func TestQueueOfASemaphoreHasItsHolders(t *testing.T) {
	row := protocol.LockRow{
		Name: "api", Kind: protocol.KindPermits, State: protocol.StateHeld, PID: 7, Cmd: "sync", HeldMS: 3000, Held: 20, Permits: 21, Of: 30,
		Holders: []protocol.HolderRow{{PID: 7, UID: 4711, Cmd: "sync\n", Permits: 2, HeldMS: 3000}, {PID: 8, UID: 4711, Permits: 1, Orphan: true}, {PID: 9, UID: 4711, Permits: 1, Absent: true}},
		Waiting: 1, Waiters: []protocol.WaiterRow{{PID: 10, UID: 4711, WaitedMS: 1000}},
	}
	l := lockRows(0, []protocol.LockRow{row})[0]
	if l.State != "21 of 30" || l.Cmd != "sync and 19 more" {
		t.Errorf("%+v", l)
	}
	want := []place{
		{"has 2", "pid 7 of 4711, for 3.0s", "sync?", false},
		{"has 1", "pid 8 of 4711, for 0ms, which is gone", "", false},
		{"has 1", "pid 9 of 4711, for 0ms, which has not come back since the daemon was restarted", "", false},
		{"17 more have some", "", "", false},
		{"1", "pid 10 of 4711, waits for 1.0s", "", true},
	}
	if got := queue(&l, &row); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if got := whoHas(&l, &row); got != "A semaphore, of which processes of this host have 21 of 30." {
		t.Error(got)
	}
	row = protocol.LockRow{Name: "api", Kind: protocol.KindPermits, State: protocol.StateRemote, Of: 30, Waiting: 1}
	if l := lockRows(0, []protocol.LockRow{row})[0]; l.State != "0 of 30" || l.Cmd != "other hosts have its permits, or too many of them" || l.Left != "" {
		t.Errorf("%+v", l)
	}
}

// Shared holds of a read/write lock are all shown, an exclusive one as that of a lock.
func TestReadersOfALockAreShown(t *testing.T) {
	row := protocol.LockRow{
		Name: "catalog", Kind: protocol.KindReadWrite, State: protocol.StateHeld, Hold: 1, PID: 7, UID: 4711, Cmd: "index", HeldMS: 3000, Held: 3, Shared: 3,
		Holders: []protocol.HolderRow{{Hold: 1, Shared: true, PID: 7, UID: 4711, Cmd: "index", HeldMS: 3000}, {Hold: 2, Shared: true, PID: 8, UID: 4711}},
	}
	l := lockRows(0, []protocol.LockRow{row})[0]
	want := []place{{"reads", "pid 7 of 4711, for 3.0s", "index", false}, {"reads", "pid 8 of 4711, for 0ms", "", false}, {"1 more read", "", "", false}}
	if got := queue(&l, &row); !slices.Equal(got, want) || l.State != "read ×3" {
		t.Errorf("%s, %+v", l.State, got)
	}
	if got := whoHas(&l, &row); got != "A read/write lock, which processes of this host read." {
		t.Error(got)
	}
	row.Held, row.Shared, row.Holders = 1, 0, row.Holders[:1]
	if l = lockRows(0, []protocol.LockRow{row})[0]; l.State != protocol.StateHeld || whoHas(&l, &row) != "A process of this host holds it." {
		t.Errorf("%+v", l)
	}
}

// The picture of a queue has what has the lock, and after it the waiters in order.
func TestQueueBeginsWithWhatHasTheLock(t *testing.T) {
	waiters := []waiterRow{{"8", "app", "2.0s", "w1"}, {"9", "app", "1.0s", "w2"}}
	for _, tt := range []struct {
		lock lockRow
		want place
	}{
		{lockRow{State: protocol.StateHeld, PID: "7", User: "root", For: "3.0s", Cmd: "sh"}, place{Label: "has it", Who: "pid 7 of root, for 3.0s", Cmd: "sh"}},
		{lockRow{State: "absent", PID: "7", User: "root", For: "3.0s", Cmd: "sh"}, place{Label: "has it", Who: "pid 7 of root, for 3.0s", Cmd: "sh"}},
		{lockRow{State: protocol.StateRemote, Cmd: "held on host db-7: u:1"}, place{Label: "has it", Who: "held on host db-7: u:1"}},
		{lockRow{State: "kept", User: "root"}, place{Label: "kept"}},
		{lockRow{State: protocol.StateFree}, place{Label: "free"}},
	} {
		tt.lock.Waiters, tt.lock.Waiting = waiters, 2
		places := queue(&tt.lock, new(protocol.LockRow))
		if len(places) != 3 || places[0] != tt.want {
			t.Fatalf("%+v, want first %+v", places, tt.want)
		}
		for i, want := range []place{{"1", "pid 8 of app, waits for 2.0s", "w1", true}, {"2", "pid 9 of app, waits for 1.0s", "w2", true}} {
			if places[i+1] != want {
				t.Errorf("%+v, want %+v", places[i+1], want)
			}
		}
	}
}
