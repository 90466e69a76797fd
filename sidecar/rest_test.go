package sidecar_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar"
)

// While Redis says nothing, a sidecar that has thousands of locks to give back waits for
// it, and does not spin.
func TestLoopRestsWhileRedisIsSilent(t *testing.T) {
	t.Parallel()
	here, _, g := twoHouses(t, func(c *sidecar.Config) { c.Lease = time.Hour }) // none expires before
	a := greeted(t, here.cfg.Socket)
	a.holdMany("x", 500)
	g.set(true)
	defer g.set(false)
	a.nc.Close()
	before := here.stats()
	for before.Sessions > 0 { // until the end of the session is noticed
		before = here.stats()
	}
	const window = 500 * time.Millisecond // less than the patience with a silent Redis
	<-time.After(window)
	// A loop that spins makes as many steps as the machine can.
	if n := here.stats().Steps.Count() - before.Steps.Count(); n > 50 {
		t.Errorf("%d steps of the loop in %v", n, window)
	}
}
