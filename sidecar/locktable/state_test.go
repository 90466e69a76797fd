package locktable

import (
	"reflect"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Clone and Describe name every field. The compiler does not notice one that they lack; this
// test does.
func TestCloneAndDescribeKnowEveryField(t *testing.T) {
	for _, known := range []struct {
		of     reflect.Type
		fields int
	}{
		{reflect.TypeFor[Table](), 34},
		{reflect.TypeFor[Config](), 20},
		{reflect.TypeFor[shard](), 7},
		{reflect.TypeFor[session](), 14},
		{reflect.TypeFor[leaseEvents](), 7},
		{reflect.TypeFor[user](), 5},
		{reflect.TypeFor[lock](), 12},
		{reflect.TypeFor[many](), 20},
		{reflect.TypeFor[permitsOf](), 5},
		{reflect.TypeFor[hold](), 24},
		{reflect.TypeFor[queue](), 12},
		{reflect.TypeFor[waiter](), 3},
		{reflect.TypeFor[request](), 22},
		{reflect.TypeFor[confirm](), 3},
		{reflect.TypeFor[dirtySet](), 9},
	} {
		if n := known.of.NumField(); n != known.fields {
			t.Errorf("%v has %d fields, and had %d when Clone and Describe were written: look whether they need the others, and correct the number", known.of, n, known.fields)
		}
	}
}

// The grants of a lock are counted as long as it is known, whatever Redis has.
func TestGrantsAreCountedWhileTheLockIsKnown(t *testing.T) {
	tb := New(Config{}, 0)
	l := tb.lockFor("a")
	const grants = 1<<16 + 5
	for id := range uint64(grants) {
		l.claim.Transfer(0, 0, 0, &redisop.Message{Ticket: 2*id + 1, LastToken: id, Tokens: 1})
		l.claim.Grant(2*id+2, false)
		l.claim.Forget(claim.Absent)
	}
	if n := tb.row(0, l).Grants; n != grants {
		t.Errorf("%d grants, want %d", n, grants)
	}
	tb.forget(l)
	if n := tb.row(0, tb.lockFor("a")).Grants; n != 0 {
		t.Errorf("%d grants of a lock that was forgotten", n)
	}
}

// Most locks are in the table for one hold only. The memory of one that is forgotten serves the next, but not
// before the journal has nothing of the first.
func TestMemoryOfAForgottenLockIsUsedAgain(t *testing.T) {
	tb := New(Config{}, 0)
	a := tb.lockFor("a")
	tb.forget(a)
	b := tb.lockFor("b")
	if b != a || b.isForgotten() || tb.byName["a"] != nil || tb.byName["b"] != b {
		t.Error("the memory of a lock that was forgotten is not that of the next")
	}

	tb = New(Config{Journal: deletions{}}, 0)
	a = tb.lockFor("a")
	a.slot = 7
	tb.forget(a)
	if tb.lockFor("b") == a || a.slot != 7 {
		t.Error("the memory of a lock is used again while its record is in the journal")
	}
	tb.Effects()
	if a.slot != 0 {
		t.Error("the record of a lock that was forgotten is not deleted")
	}
	if tb.lockFor("c") != a {
		t.Error("the memory of a lock whose record is deleted is not used again")
	}
	if err := tb.Audit(); err != nil {
		t.Error(err)
	}
}

// deletions is a journal that takes deletions only.
type deletions struct{ Journal }

func (deletions) DeleteLock(uint32) {}
