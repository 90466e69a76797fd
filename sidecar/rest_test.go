package sidecar_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// While Redis says nothing, a sidecar that has thousands of locks to give back waits for
// it, and does not spin.
func TestLoopRestsWhileRedisIsSilent(t *testing.T) {
	used := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	here, _, g := twoHouses(t, nil)
	a := greeted(t, here.cfg.Socket)
	for i := range 500 {
		a.answer(a.acquire(fmt.Sprint("x", i), protocol.Forever), new(protocol.AcquireOK))
	}
	g.set(true)
	defer g.set(false)
	a.nc.Close()
	const window = time.Second // less than the patience with a silent Redis
	<-time.After(window / 4)   // the end of the session is noticed
	before := used()
	<-time.After(window)
	cpu := used() - before
	if cpu > window/10 {
		t.Errorf("%v of processor time in %v", cpu, window)
	}
}
