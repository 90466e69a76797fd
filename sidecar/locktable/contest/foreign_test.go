package contest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The danger: a foreign client that polls has the lock for less than half a millisecond, and is never met.
func TestFreeMomentIsLookedAtEachHalfMillisecond(t *testing.T) {
	s := NewShared(Config{}, 30*time.Second, rand.New(rand.NewPCG(1, 2)))
	s.trip = int64(50 * time.Microsecond)
	now := int64(time.Hour)
	c := Contest{memory: &Memory{}}
	for range 1000 {
		c.backoffUntil = now + int64(4*time.Millisecond)
		c.lookForPoller(&s, now)
		if d := time.Duration(c.nextTry - now); d < 0 || d > 500*time.Microsecond {
			t.Fatalf("the next look is after %v", d)
		}
	}
}

// Of a thousand hosts that ask at one time, each waits once for all others. That says nothing of the time in which the lock
// comes, much later.
func TestOldAnswerDoesNotSayHowLongALockIsOnItsWay(t *testing.T) {
	s := NewShared(Config{}, 30*time.Second, rand.New(rand.NewPCG(1, 2)))
	const trip = int64(time.Millisecond)
	now := int64(time.Second)
	s.NoteAnswer(now, trip)
	for range 100 {
		s.NoteAnswer(now, 30*trip)
	}
	if way := s.Way(now + int64(redisop.FreeAfter)); way < 5*trip/2 {
		t.Errorf("a lock comes soon after slow answers: its way counts %v", time.Duration(way))
	}
	if way := s.Way(now + int64(redisop.FreeAfter) + 1); way > 3*trip/2 {
		t.Errorf("a lock comes long after slow answers: its way counts %v", time.Duration(way))
	}
}
