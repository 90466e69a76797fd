package link

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffMin = 50 * time.Millisecond
	backoffMax = time.Second
)

// nextDelay doubles a delay within its bounds.
func nextDelay(delay time.Duration) time.Duration {
	return min(max(2*delay, backoffMin), backoffMax)
}

// Pause sleeps for delay, give or take a quarter, so that the sidecars of many
// hosts do not come back to a fresh Redis in step. False: ctx ended.
func Pause(ctx context.Context, delay time.Duration) bool { return pauseUnless(ctx, delay, nil) }

// pauseUnless is pause, which also ends when something is received.
func pauseUnless(ctx context.Context, delay time.Duration, hurry <-chan struct{}) bool {
	if delay == 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(delay*3/4 + rand.N(delay/2))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-hurry:
		return true
	case <-ctx.Done():
		return false
	}
}
