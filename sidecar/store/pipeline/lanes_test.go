package pipeline

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestLane(t *testing.T) {
	var l fifo[redisop.Op]
	random := harness.Random(t)
	var in, out uint64
	for range 2000 {
		for range random.IntN(300) {
			l.push(redisop.Op{HoldID: in})
			in++
		}
		for _, op := range l.pop(nil, random.IntN(300)) {
			if op.HoldID != out {
				t.Fatalf("got %d, want %d", op.HoldID, out)
			}
			out++
		}
	}
	for _, op := range l.pop(nil, 1<<30) {
		if op.HoldID != out {
			t.Fatalf("got %d, want %d", op.HoldID, out)
		}
		out++
	}
	if in != out {
		t.Errorf("%d in, %d out", in, out)
	}
}

// However Drops are pushed, popped and removed, those that are left are popped, each once, and those
// of one user in order.
func TestLanesLoseNothing(t *testing.T) {
	random := harness.Random(t)
	var s lanes
	left := make(map[string]redisop.Op)
	var next uint64
	popped := make(map[int64]uint64) // the last hold of each user
	for step := range harness.Pick(40_000, 200_000) {
		switch random.IntN(5) {
		case 0, 1:
			next++
			op := redisop.Op{Kind: redisop.Drop, Name: fmt.Sprint(next), HoldID: next, User: int64(random.IntN(4))}
			left[op.Name] = op
			s.push(op)
		case 2, 3:
			name := fmt.Sprint(next - min(next, uint64(random.IntN(8))))
			op, ok := s.removeDrop(name)
			if want, isLeft := left[name]; ok != isLeft || op != want {
				t.Fatalf("step %d: removed %+v, want %+v", step, op, want)
			}
			delete(left, name)
		case 4:
			n := random.IntN(6)
			ops := s.pop(nil, n)
			if len(ops) != min(n, len(left)) {
				t.Fatalf("step %d: popped %d operations, want %d of %d", step, len(ops), n, len(left))
			}
			for _, op := range ops {
				if left[op.Name] != op || op.HoldID <= popped[op.User] {
					t.Fatalf("step %d: popped %+v", step, op)
				}
				popped[op.User] = op.HoldID
				delete(left, op.Name)
			}
		}
		if s.len() != len(left) || len(s.drops) != len(left) {
			t.Fatalf("step %d: %d operations and %d places, want %d", step, s.len(), len(s.drops), len(left))
		}
		for _, l := range s.byUser {
			if n := l.ops.len(); n > 0 && l.ops.newest().Kind == redisop.NoOp {
				t.Fatalf("step %d: a lane ends with one that was removed", step)
			}
		}
	}
}

// Operations of one user keep their order, and n users that have enough get an equal part of
// what is popped, but for a turn.
//
// Shows docs/guarantees.md: Holds more than Redis can renew.
func TestLanes(t *testing.T) {
	var l lanes
	random := harness.Random(t)
	in, out := make(map[int64]uint64), make(map[int64]uint64)
	total := 0
	for range 2000 {
		for range random.IntN(300) {
			user := random.Int64N(5) - 1
			l.push(redisop.Op{Kind: redisop.Renew, User: user, HoldID: in[user]})
			in[user]++
			total++
		}
		queued := make(map[int64]int)
		for user := range in {
			queued[user] = int(in[user] - out[user])
		}
		n := random.IntN(300)
		got := l.pop(nil, n)
		if len(got) != min(n, total) {
			t.Fatalf("%d operations of %d, not %d", len(got), total, n)
		}
		total -= len(got)
		popped := make(map[int64]int)
		for _, op := range got {
			if op.HoldID != out[op.User] {
				t.Fatalf("operation %d of user %d came after %d", op.HoldID, op.User, out[op.User])
			}
			out[op.User]++
			popped[op.User]++
		}
		for a := range queued {
			for b := range queued {
				if popped[a] < queued[a] && popped[b] > popped[a]+2*laneTurn {
					t.Fatalf("user %d has sent %d of %d, and user %d has sent %d", a, popped[a], queued[a], b, popped[b])
				}
			}
		}
		if l.len() != total {
			t.Fatalf("%d are left, not %d", l.len(), total)
		}
	}
}
