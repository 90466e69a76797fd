package sidecar

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
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
	var g eventLog
	g.begin(5_000_000)
	if g.hasAfter(0) || g.hasAfter(1<<60) {
		t.Error("an empty log has events")
	}
	for _, row := range []protocol.EventRow{grantEvent("a"), lostEvent("b"), lostEvent("c"), grantEvent("d")} {
		g.add(row, eventAbout{})
	}
	room := g.rings[incidents].at(0).row.Size() + g.rings[contention].at(0).row.Size()
	first, next, missed := g.page(0, room, nil, nil)
	if names(first) != "ab" || next != 5_002 || missed != 0 || !g.hasAfter(next) {
		t.Errorf("%q, next %d, missed %d", names(first), next, missed)
	}
	second, next, missed := g.page(next, 1, nil, nil) // at least one
	if names(second) != "c" || missed != 0 {
		t.Errorf("%q, missed %d", names(second), missed)
	}
	third, next, missed := g.page(next, room, nil, nil)
	if names(third) != "d" || next != 5_004 || missed != 0 || g.hasAfter(next) {
		t.Errorf("%q, next %d, missed %d", names(third), next, missed)
	}
	if rows, again, _ := g.page(next, room, nil, nil); len(rows) != 0 || again != next {
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
		var g eventLog
		g.begin(5_000_000)
		for _, row := range kinds {
			g.add(row, eventAbout{})
		}
		for n := range maxEvents {
			row := kinds[i]
			row.Msg = fmt.Sprint(n) // equal refusals are counted
			g.add(row, eventAbout{})
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
		rows, _, missed := g.page(0, 1<<30, nil, nil)
		if len(rows) != maxEvents+left || left != len(kinds)-same || missed != uint64(same) {
			t.Errorf("%s: %d events, %d of other classes, missed %d", kinds[i].Kind, len(rows), left, missed)
		}
	}
}

// A client that is refused the same again and again makes one row, for a minute.
func TestEqualRefusalsAreCountedInOneRow(t *testing.T) {
	var g eventLog
	g.begin(5_000_000)
	deadlock := func(at time.Duration, name string, pid int64) {
		g.add(protocol.EventRow{AtNS: int64(at), Kind: protocol.EventDeadlock, Name: name, PID: pid, Msg: "steps"}, eventAbout{})
	}
	for i := range 10 {
		at := time.Duration(i) * time.Second
		deadlock(at, "a", 1) // two take turns
		deadlock(at, "a", 2)
	}
	deadlock(10*time.Second, "b", 1)
	deadlock(61*time.Second, "a", 1)
	g.add(lostEvent("a"), eventAbout{})
	g.add(lostEvent("a"), eventAbout{}) // each loss is a row
	rows, _, missed := g.page(0, 1<<20, nil, nil)
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
	var g eventLog
	g.begin(5_000_000)
	const early, late = maxUserEvents / 4, maxUserEvents / 4
	add := func(uid int64, n int) {
		for range n {
			g.add(protocol.EventRow{Kind: protocol.EventLost, UID: uid}, eventAbout{})
		}
	}
	add(1, early)
	add(2, 3*maxEvents)
	add(1, late)
	add(2, 3*maxEvents)
	rows, _, missed := g.page(0, 1<<30, nil, nil)
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
	rows, _, _ = g.page(0, 1<<30, nil, nil)
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
	var g eventLog
	g.begin(5_000_000)
	all := func(*protocol.EventRow) bool { return true }
	if rows := g.newest(3, all); len(rows) != 0 {
		t.Errorf("of an empty log: %q", names(rows))
	}
	for i := range maxEvents + 5 {
		g.add(grantEvent(fmt.Sprint(i%10)), eventAbout{})
	}
	for _, row := range []protocol.EventRow{lostEvent("a"), grantEvent("b"), lostEvent("c")} {
		g.add(row, eventAbout{})
	}
	isLoss := func(e *protocol.EventRow) bool { return e.Kind == protocol.EventLost }
	if got := names(g.newest(4, all)) + " " + names(g.newest(9, isLoss)) + " " + names(g.newest(1, isLoss)); got != "cba8 ca c" {
		t.Errorf("got %q", got)
	}
	if n := len(g.newest(1<<20, all)); n != maxEvents+2 {
		t.Errorf("there are %d events", n)
	}
}

// Shows docs/guarantees.md: Follows the events and does not read them.
func TestGrantsDoNotDisplaceLosses(t *testing.T) {
	var g eventLog
	g.begin(5_000_000)
	g.add(lostEvent("lost"), eventAbout{})
	for i := range 10 * maxEvents {
		g.add(grantEvent(fmt.Sprint(i)), eventAbout{})
	}
	rows, next, missed := g.page(0, 1<<30, nil, nil)
	if len(rows) != maxEvents+1 || rows[0].Name != "lost" || rows[1].Name != fmt.Sprint(9*maxEvents) || next != g.last || missed != 9*maxEvents {
		t.Errorf("%d events, the first %q and %q, missed %d", len(rows), rows[0].Name, rows[1].Name, missed)
	}
	// A client that reads slowly receives the number of events that it missed.
	rows, _, missed = g.page(g.last-maxEvents-7, 1<<30, nil, nil)
	if len(rows) != maxEvents || missed != 7 {
		t.Errorf("%d events, missed %d", len(rows), missed)
	}
}

// The numbers of another daemon are before those of this one, or after the newest.
func TestNumbersOfAnotherDaemonMeanTheOldestEvent(t *testing.T) {
	var g eventLog
	g.begin(5_000_000)
	g.add(lostEvent("a"), eventAbout{})
	for _, after := range []uint64{0, 7, 4_999, 5_002, 1<<63 - 1} {
		if rows, _, missed := g.page(after, 1<<20, nil, nil); names(rows) != "a" || missed != 0 || !g.hasAfter(after) {
			t.Errorf("after %d: %q, missed %d", after, names(rows), missed)
		}
	}
}

// The last requests that may wait for events are for root and the user of the sidecar.
func TestUserHasAShareOfTheRequestsThatWaitForEvents(t *testing.T) {
	s, end := unserved(t)
	defer func() {
		s.followers = nil // their connections cannot be written to, and that Redis is away is an event
		end()
	}()
	const user, other = 1 << 20, 1<<20 + 1
	follow := func(uid int64) {
		cl := &session{peer: locktable.Peer{UID: uid}}
		s.followers = append(s.followers, follower{session: cl, conn: &conn{session: cl}})
	}
	for n, uid := range []int64{user, user, user, user, user, user, user, user, user, user, user, user, other, other, other} {
		if why := s.checkFollowers(uid); why != "" {
			t.Errorf("after %d: %s", n, why)
		}
		follow(uid)
		if n == 11 && s.checkFollowers(user) == "" {
			t.Error("one user may have all")
		}
	}
	if s.checkFollowers(other) == "" || s.checkFollowers(0) != "" {
		t.Error("the last one is not for root")
	}
	follow(0)
	if s.checkFollowers(0) == "" {
		t.Error("there is no limit")
	}
}

func TestLossesCountForAnHour(t *testing.T) {
	var w lossWindow
	const minute = int64(time.Minute)
	begin := 1000 * minute
	w.add(begin, protocol.Expired, 1)
	w.add(begin+minute-1, protocol.Expired, 1)
	w.add(begin+30*minute, protocol.Stolen, 1)
	w.add(begin+59*minute, protocol.Expired, 1)
	for _, tt := range []struct {
		at   int64
		want string
	}{
		{begin + 59*minute, "[{expired 3} {stolen 1}]"},
		{begin + 60*minute, "[{expired 1} {stolen 1}]"},
		{begin + 90*minute, "[{expired 1}]"},
		{begin + 119*minute, "[]"},
	} {
		if got := fmt.Sprint(w.rows(tt.at)); got != tt.want {
			t.Errorf("after %v: %s, want %s", time.Duration(tt.at-begin), got, tt.want)
		}
	}
	w.add(begin+60*minute, protocol.Expired, 1) // in the place of the first minute
	if got := fmt.Sprint(w.rows(begin + 60*minute)); got != "[{expired 2} {stolen 1}]" {
		t.Errorf("after an hour and a loss: %s", got)
	}
}

// A loop that has no time to look at all its locks refuses to say how they are.
func TestStatusOfAnOverloadedSidecarIsRefused(t *testing.T) {
	s, end := unserved(t)
	defer end()
	now := protocol.Now()
	c, client := connPair(t)
	defer c.end()
	s.onHello(now, c, &protocol.Hello{ID: 1, V: protocol.Version})
	s.onRequest(now, &request{kind: clientOther, conn: c, other: &statusRequest{Status: &protocol.Status{ID: 2}}})
	s.applyEffects()
	frames := protocol.NewReader(client)
	var d protocol.ReplyDecoder
	for {
		body, err := frames.Next()
		if err != nil {
			t.Fatal(err)
		}
		m, err := d.Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := m.(*protocol.Err); ok {
			if e.ID != 2 || e.Code != protocol.Unavailable {
				t.Errorf("got %+v", e)
			}
			return
		}
	}
}
