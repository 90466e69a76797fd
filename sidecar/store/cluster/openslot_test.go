package cluster

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// A node says in its own line which of its slots it moves away, and which come; others do not say it of it.
func TestTopologyHasTheSlotsThatItsNodeMovesAway(t *testing.T) {
	text := "a1 10.0.0.1:1@11 myself,master - 0 0 1 connected 0-8191 [42->-b2] [43->-c3] [9000-<-b2] [70000->-b2] [x->-b2]\n" +
		"b2 10.0.0.2:2@12 master - 0 0 2 connected 8192-16383\n"
	got, err := ParseTopology(text, "10.0.0.1:1", 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[uint16]string{42: "10.0.0.2:2", 43: ""}; !maps.Equal(got.moving, want) {
		t.Errorf("%v, want %v", got.moving, want)
	}
	if got.Covered != 16384 || got.owners[42] != "10.0.0.1:1" {
		t.Errorf("%d slots have a master, %s has slot 42", got.Covered, got.owners[42])
	}
}

// The danger: a slot that was left open is never reported, or one that moves as it should is, or the report has no end.
func TestSlotThatStaysOpenIsReportedUntilItIsClosed(t *testing.T) {
	var o openSlots
	now := int64(time.Hour)
	expect := func(what string, after time.Duration, changed, isBlocking bool, says ...string) {
		t.Helper()
		why, blocks, did := o.change(now + int64(after))
		if did != changed || blocks != isBlocking || (why == "") != (len(says) == 0) {
			t.Errorf("%s: %q, blocking %v, changed %v", what, why, blocks, did)
		}
		for _, s := range says {
			if !strings.Contains(why, s) {
				t.Errorf("%s: %q does not say %q", what, why, s)
			}
		}
	}
	long := openAfter + time.Second
	if o.note(now, 42, "", "b:2", true) {
		t.Error("a slot without a master is open")
	}
	if !o.note(now, 42, "a:1", "", true) || o.note(now, 42, "a:1", "b:2", false) {
		t.Error("the first sign of a slot is not the first one")
	}
	expect("at once", 0, false, false)
	expect("after long", long, true, false, "slot 42 has been migrating from a:1 to b:2 for more than 10s", "docs/runbooks/slot-open.md")
	expect("a little later", long+time.Second, false, false, "slot 42")
	o.slots[42].blockedAt = now + int64(long)
	expect("a lock waits", long+time.Second, true, true, "slot 42")
	expect("it does not any more", long+blockedWithin, true, false, "slot 42")
	o.confirm(now, "b:2", nil)
	o.confirm(now, "a:1", map[uint16]string{42: "", 7: "c:3"})
	o.slots[7].since = now + int64(long)
	expect("its master says so, too, and of another one", long+blockedWithin, false, false, "slot 42 has been migrating from a:1 to b:2")
	o.slots[7].since = now
	expect("the other one, after long", long+blockedWithin, true, false, "slot 7 and 1 more have been migrating from a:1 to c:3")
	o.confirm(now, "a:1", map[uint16]string{42: "b:2"})
	expect("the other one is closed", long+blockedWithin, true, false, "slot 42 has")
	if masters := o.masters(func(uint16) string { return "a:1" }); len(masters) != 1 || masters[0] != "a:1" {
		t.Errorf("%v are asked", masters)
	}
	if masters := o.masters(func(uint16) string { return "b:2" }); len(masters) != 0 {
		t.Errorf("%v are asked, and another master has the slot", masters)
	}
	expect("it has moved", long+blockedWithin, true, false)
	expect("nothing is open", long+blockedWithin, false, false)
	for slot := range uint16(1000) {
		o.note(now, slot, "a:1", "", false)
	}
	if len(o.slots) != maxOpen {
		t.Errorf("%d open slots are known", len(o.slots))
	}
}
