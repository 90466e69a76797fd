package store

import "github.com/locksidecar/locksidecar/sidecar/locktable"

// laneTurn is how many operations of one user are sent before those of the next.
const laneTurn = 32

// lanes is a queue of operations that users share, for those of which one user can have a hundred
// thousand at one moment: each user has a lane, and the lanes are served in turn. However many operations one user has queued, those of another wait for laneTurn of
// each user at most. Operations of one user keep their order. (This is round robin as in
// fair queueing of packets.)
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

// pop moves up to n operations to the end of dst.
func (s *lanes) pop(dst []locktable.Op, n int) []locktable.Op {
	for n > 0 && s.size > 0 {
		l := *s.turns.front()
		before := len(dst)
		dst = l.ops.pop(dst, min(n, laneTurn))
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
