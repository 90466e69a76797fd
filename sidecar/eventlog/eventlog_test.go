package eventlog

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

func grantEvent(name string) protocol.EventRow {
	return protocol.EventRow{Kind: protocol.EventGranted, Name: name}
}

func lostEvent(name string) protocol.EventRow {
	return protocol.EventRow{Kind: protocol.EventLost, Name: name}
}

func names(rows []protocol.EventRow) string {
	text := ""
	for _, r := range rows {
		text += r.Name
	}
	return text
}

func TestEventsAreReadInTheirOrderOverPages(t *testing.T) {
	g := New(5_000_000)
	if g.HasAfter(0) || g.HasAfter(1<<60) {
		t.Error("an empty log has events")
	}
	for _, row := range []protocol.EventRow{grantEvent("a"), lostEvent("b"), lostEvent("c"), grantEvent("d")} {
		g.Add(row, About{})
	}
	room := g.rings[incidents].at(0).row.Size() + g.rings[contention].at(0).row.Size()
	first, next, missed := g.Page(0, room, nil, nil)
	if names(first) != "ab" || next != 5_002 || missed != 0 || !g.HasAfter(next) {
		t.Errorf("%q, next %d, missed %d", names(first), next, missed)
	}
	second, next, missed := g.Page(next, 1, nil, nil) // at least one
	if names(second) != "c" || missed != 0 {
		t.Errorf("%q, missed %d", names(second), missed)
	}
	third, next, missed := g.Page(next, room, nil, nil)
	if names(third) != "d" || next != 5_004 || missed != 0 || g.HasAfter(next) {
		t.Errorf("%q, next %d, missed %d", names(third), next, missed)
	}
	if rows, again, _ := g.Page(next, room, nil, nil); len(rows) != 0 || again != next {
		t.Errorf("after the newest: %d events, next %d", len(rows), again)
	}
}

// What one class has very many of does not displace the events of another.
//
// Shows docs/guarantees.md: Follows the events and does not read them.
func TestEventsDisplaceThoseOfTheirClassOnly(t *testing.T) {
	kinds := []protocol.EventRow{
		{Kind: protocol.EventGranted}, {Kind: protocol.EventReleased, HeldMS: 999},
		{Kind: protocol.EventReleased, HeldMS: 1000}, {Kind: protocol.EventCrashed, HeldMS: 1},
		{Kind: protocol.EventRedisDown}, {Kind: protocol.EventRedisDegraded}, {Kind: protocol.EventSlotsOpen}, {Kind: protocol.EventSlotsClosed}, {Kind: protocol.EventDeadlock}, {Kind: protocol.EventRefused},
		{Kind: protocol.EventLost}, {Kind: protocol.EventForced}, {Kind: protocol.EventTakeover},
	}
	classes := []eventClass{contention, contention, endsOfHolds, endsOfHolds, redisChanges, redisChanges, redisChanges, redisChanges, refusals, refusals, incidents, incidents, incidents}
	for i := range kinds {
		g := New(5_000_000)
		for _, row := range kinds {
			g.Add(row, About{})
		}
		for n := range maxEvents {
			row := kinds[i]
			row.Msg = fmt.Sprint(n) // equal refusals are counted
			g.Add(row, About{})
		}
		left := 0
		for class := range eventClasses {
			if class != classes[i] {
				left += len(g.rings[class].events)
			}
		}
		same := 0
		for _, class := range classes {
			if class == classes[i] {
				same++
			}
		}
		rows, _, missed := g.Page(0, 1<<30, nil, nil)
		if len(rows) != maxEvents+left || left != len(kinds)-same || missed != uint64(same) {
			t.Errorf("%s: %d events, %d of other classes, missed %d", kinds[i].Kind, len(rows), left, missed)
		}
	}
}

// A client that is refused the same again and again makes one row, for a minute.
func TestEqualRefusalsAreCountedInOneRow(t *testing.T) {
	g := New(5_000_000)
	deadlock := func(at time.Duration, name string, pid int64) {
		g.Add(protocol.EventRow{AtNS: int64(at), Kind: protocol.EventDeadlock, Name: name, PID: pid, Msg: "steps"}, About{})
	}
	for i := range 10 {
		at := time.Duration(i) * time.Second
		deadlock(at, "a", 1) // two take turns
		deadlock(at, "a", 2)
	}
	deadlock(10*time.Second, "b", 1)
	deadlock(61*time.Second, "a", 1)
	g.Add(lostEvent("a"), About{})
	g.Add(lostEvent("a"), About{}) // each loss is a row
	rows, _, missed := g.Page(0, 1<<20, nil, nil)
	var counts []uint32
	for _, row := range rows {
		counts = append(counts, row.Count)
	}
	if names(rows) != "aabaaa" || !slices.Equal(counts, []uint32{10, 10, 0, 0, 0, 0}) || missed != 0 {
		t.Errorf("%s, counts %v, missed %d", names(rows), counts, missed)
	}
}

// A user whose own losses are very many displaces none of another user's.
func TestLossesOfOneUserDisplaceNoneOfAnother(t *testing.T) {
	g := New(5_000_000)
	const early, late = maxUserEvents / 4, maxUserEvents / 4
	add := func(uid int64, n int) {
		for range n {
			g.Add(protocol.EventRow{Kind: protocol.EventLost, UID: uid}, About{})
		}
	}
	add(1, early)
	add(2, 3*maxEvents)
	add(1, late)
	add(2, 3*maxEvents)
	rows, _, missed := g.Page(0, 1<<30, nil, nil)
	of := 0
	for i, row := range rows {
		if row.UID == 1 {
			of++
		}
		if i > 0 && g.rings[incidents].at(i).number <= g.rings[incidents].at(i-1).number {
			t.Fatalf("event %d is not in order", i)
		}
	}
	if of != early+late || len(rows) != maxEvents || missed != 6*maxEvents+early+late-maxEvents {
		t.Errorf("%d of the first user's %d losses, of %d rows, are left; missed %d", of, early+late, len(rows), missed)
	}
	add(1, maxEvents)
	rows, _, _ = g.Page(0, 1<<30, nil, nil)
	of = 0
	for _, row := range rows {
		of += int(row.UID) - 1
	}
	if of != maxUserEvents || len(rows) != maxEvents {
		t.Errorf("of two users with very many, one has %d of %d", of, len(rows))
	}
}

// The newest events of all classes are found in their order, over a ring that has begun again.
func TestNewestEventsAreFoundInTheirOrder(t *testing.T) {
	g := New(5_000_000)
	all := func(*protocol.EventRow) bool { return true }
	if rows := g.Newest(3, all); len(rows) != 0 {
		t.Errorf("of an empty log: %q", names(rows))
	}
	for i := range maxEvents + 5 {
		g.Add(grantEvent(fmt.Sprint(i%10)), About{})
	}
	for _, row := range []protocol.EventRow{lostEvent("a"), grantEvent("b"), lostEvent("c")} {
		g.Add(row, About{})
	}
	isLoss := func(e *protocol.EventRow) bool { return e.Kind == protocol.EventLost }
	if got := names(g.Newest(4, all)) + " " + names(g.Newest(9, isLoss)) + " " + names(g.Newest(1, isLoss)); got != "cba8 ca c" {
		t.Errorf("got %q", got)
	}
	if n := len(g.Newest(1<<20, all)); n != maxEvents+2 {
		t.Errorf("there are %d events", n)
	}
}

// Shows docs/guarantees.md: Follows the events and does not read them.
func TestGrantsDoNotDisplaceLosses(t *testing.T) {
	g := New(5_000_000)
	g.Add(lostEvent("lost"), About{})
	for i := range 10 * maxEvents {
		g.Add(grantEvent(fmt.Sprint(i)), About{})
	}
	rows, next, missed := g.Page(0, 1<<30, nil, nil)
	if len(rows) != maxEvents+1 || rows[0].Name != "lost" || rows[1].Name != fmt.Sprint(9*maxEvents) || next != g.last || missed != 9*maxEvents {
		t.Errorf("%d events, the first %q and %q, missed %d", len(rows), rows[0].Name, rows[1].Name, missed)
	}
	// A client that reads slowly receives the number of events that it missed.
	rows, _, missed = g.Page(g.last-maxEvents-7, 1<<30, nil, nil)
	if len(rows) != maxEvents || missed != 7 {
		t.Errorf("%d events, missed %d", len(rows), missed)
	}
}

// The numbers of another daemon are before those of this one, or after the newest.
func TestNumbersOfAnotherDaemonMeanTheOldestEvent(t *testing.T) {
	g := New(5_000_000)
	g.Add(lostEvent("a"), About{})
	for _, after := range []uint64{0, 7, 4_999, 5_002, 1<<63 - 1} {
		if rows, _, missed := g.Page(after, 1<<20, nil, nil); names(rows) != "a" || missed != 0 || !g.HasAfter(after) {
			t.Errorf("after %d: %q, missed %d", after, names(rows), missed)
		}
	}
}
