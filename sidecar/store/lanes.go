package store

import "github.com/locksidecar/locksidecar/sidecar/locktable"

// laneTurn is how many operations of one user are sent before those of the next.
const laneTurn = 32

// lanes is a queue that users share: each user has a lane, and the lanes are served in turn (round
// robin, as in the fair queueing of packets). It is for operations of which one user can have a
// hundred thousand at one moment. However many these are, an operation of another user waits
// for laneTurn of each user at most. Operations of one user keep their order.
type lanes struct {
	byUser map[int64]*lane // those that are not empty, by uid
	turns  fifo[*lane]     // the same, in the order of their turns
	size   int             // operations in all lanes
	spare  *lane           // an empty one
}

type lane struct {
	user int64
	ops  fifo[locktable.Op]
}

func (s *lanes) len() int { return s.size }

func (s *lanes) push(op locktable.Op) {
	l := s.byUser[op.User]
	if l == nil {
		if l = s.spare; l == nil {
			l = new(lane)
		}
		s.spare, l.user = nil, op.User
		if s.byUser == nil {
			s.byUser = make(map[int64]*lane)
		}
		s.byUser[op.User] = l
		s.turns.push(l)
	}
	l.ops.push(op)
	s.size++
}

// pop moves up to n operations to the end of dst, and with a Drop also the Take that is pipelined
// after it, if that comes next: up to one more for each turn.
func (s *lanes) pop(dst []locktable.Op, n int) []locktable.Op {
	for n > 0 && s.size > 0 {
		l := *s.turns.front()
		before := len(dst)
		dst = popWithPair(&l.ops, dst, min(n, laneTurn))
		popped := len(dst) - before
		n -= popped
		s.size -= popped
		s.turns.drop(1)
		if l.ops.len() > 0 {
			s.turns.push(l)
			continue
		}
		delete(s.byUser, l.user)
		s.spare = l
	}
	return dst
}

// popWithPair moves up to n of the oldest operations to the end of dst, and one more if that makes
// the last two a pair.
func popWithPair(ops *fifo[locktable.Op], dst []locktable.Op, n int) []locktable.Op {
	before := len(dst)
	dst = ops.pop(dst, n)
	if len(dst) > before && ops.len() > 0 && isPair(&dst[len(dst)-1], ops.front()) {
		dst = ops.pop(dst, 1)
	}
	return dst
}
