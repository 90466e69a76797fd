package contest

import (
	"math/rand/v2"
	"testing"
	"time"
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
