package locktable

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// There may be a hundred thousand locks and holds. These are size classes of the allocator:
// one byte more takes 16 more.
func TestSizesOfLocksAndHolds(t *testing.T) {
	if size := unsafe.Sizeof(lock{}); size > 208 {
		t.Errorf("a lock has %d bytes", size)
	}
	if size := unsafe.Sizeof(hold{}); size > 128 {
		t.Errorf("a hold has %d bytes", size)
	}
	if size := unsafe.Sizeof(redisop.Op{}); size > 72 {
		t.Errorf("an operation has %d bytes", size)
	}
	if size := unsafe.Sizeof(redisop.Result{}); size > 136 { // they are in slices only
		t.Errorf("a result has %d bytes", size)
	}
}

// A lock has a window of its own only while an operation is in flight, or a failed one waits to be
// sent again.
func TestLocksAtRestShareAWindow(t *testing.T) {
	now := int64(time.Hour)
	tb := New(Config{}, now)
	tb.Up(now, 0, false, false)
	tb.Open(now, 1, Peer{})
	answer := func(outcome redisop.Outcome) {
		t.Helper()
		for _, e := range append([]Effect(nil), tb.Effects()...) {
			if e.Kind != Redis {
				continue
			}
			if claim.IsAtRest(&tb.byName[e.Op.Name].claim) {
				t.Errorf("operation %d of %q is in flight, and the lock has no window of its own", e.Op.Kind, e.Op.Name)
			}
			tb.Result(now, redisop.Result{Kind: e.Op.Kind, Name: e.Op.Name, Outcome: outcome, Sent: now, Token: e.Op.HoldID})
		}
	}
	areAtRest := func(want bool) {
		t.Helper()
		for _, l := range tb.locks {
			if is := claim.IsAtRest(&l.claim); is != want {
				t.Errorf("%q is at rest: %v", l.name, is)
			}
		}
	}
	for id := range uint64(4) {
		tb.Acquire(now, 1, protocol.Acquire{ID: id + 1, Name: fmt.Sprint("lock ", id), WaitMS: protocol.Forever})
	}
	answer(redisop.Done)
	areAtRest(true)
	tb.Up(now, 0, true, false) // it has no operation in flight that could meet the new data
	answer(redisop.Done)
	areAtRest(true)
	now += int64(15 * time.Second)
	tb.Advance(now)
	answer(redisop.Retryable)
	areAtRest(false)
	tb.Up(now, 0, false, false)
	answer(redisop.Done)
	areAtRest(true)
}
