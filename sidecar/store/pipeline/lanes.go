package pipeline

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// laneTurn is how many operations of one user are sent before those of the next.
const laneTurn = 32

// lanes is a queue that users share: each user has a lane, and the lanes are served in turn (round
// robin, as in the fair queueing of packets). It is for operations of which one user can have a
// hundred thousand at one moment. However many these are, an operation of another user waits
// for laneTurn of each user at most. Operations of one user keep their order.
type lanes struct {
	byUser map[int64]*lane      // by uid
	turns  fifo[*lane]          // the same, in the order of their turns
	drops  map[string]lanePlace // where the Drop of a lock is, by name
	size   int                  // operations in all lanes
	most   int                  // of size, since it was 0
	spare  *lane                // an empty one
}

type lane struct {
	user   int64
	ops    fifo[redisop.Op] // NoOp: it was removed
	popped uint64           // operations that it had before these
}

// lanePlace is the place of an operation.
type lanePlace struct {
	lane *lane
	at   uint64 // so many operations of the lane were before it
}

func (s *lanes) len() int { return s.size }

func (s *lanes) push(op redisop.Op) {
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
	if op.Kind == redisop.Drop {
		if s.drops == nil {
			s.drops = make(map[string]lanePlace)
		}
		s.drops[op.Name] = lanePlace{l, l.popped + uint64(l.ops.len())}
	}
	l.ops.push(op)
	s.size++
	s.most = max(s.most, s.size)
}

// pop moves up to n operations to the end of dst.
func (s *lanes) pop(dst []redisop.Op, n int) []redisop.Op {
	for n > 0 && s.size > 0 {
		l := *s.turns.front()
		first := len(dst)
		dst = l.ops.pop(dst, min(n, laneTurn))
		l.popped += uint64(len(dst) - first)
		kept := dst[:first]
		for _, op := range dst[first:] {
			switch op.Kind {
			case redisop.NoOp:
				continue
			case redisop.Drop:
				delete(s.drops, op.Name)
			}
			kept = append(kept, op)
		}
		dst = kept
		n -= len(dst) - first
		s.size -= len(dst) - first
		s.turns.drop(1)
		if l.ops.len() > 0 {
			s.turns.push(l)
			continue
		}
		delete(s.byUser, l.user)
		s.spare = l
	}
	if s.size == 0 {
		if s.most > maxIdleLane {
			s.drops = nil // a burst's memory is not kept
		}
		s.most = 0
	}
	return dst
}

// removeDrop removes the Drop of a lock, if there is one.
func (s *lanes) removeDrop(name string) (drop redisop.Op, ok bool) {
	p, ok := s.drops[name]
	if !ok {
		return drop, false
	}
	delete(s.drops, name)
	l, i := p.lane, int(p.at-p.lane.popped)
	slot := &l.ops.head(l.ops.len())[i]
	drop, *slot = *slot, redisop.Op{}
	s.size--
	for l.ops.len() > 0 && l.ops.newest().Kind == redisop.NoOp {
		l.ops.dropNewest()
	}
	return drop, true
}
