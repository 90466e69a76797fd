//go:build linux && !race

package locksidecar

import (
	"context"
	"testing"
	"unsafe"
)

// A lock costs what it did before there were semaphores, and permits cost no more.
func TestAcquireAllocatesOneHold(t *testing.T) {
	_, c := dialFakeSidecar(t)
	ctx := context.Background()
	allocs := func(acquireAndRelease func() error) float64 {
		return testing.AllocsPerRun(200, func() {
			if err := acquireAndRelease(); err != nil {
				t.Error(err)
			}
		})
	}
	lock := allocs(func() error {
		l, err := c.Lock(ctx, "a")
		if err != nil {
			return err
		}
		return l.Unlock()
	})
	sem := c.Semaphore("s", 10)
	permits := allocs(func() error {
		p, err := sem.Acquire(ctx, 2)
		if err != nil {
			return err
		}
		return p.Release()
	})
	t.Logf("with the fake sidecar, %v allocations for a lock, %v for permits", lock, permits)
	if permits > lock {
		t.Errorf("%v allocations for permits, %v for a lock", permits, lock)
	}
	if size := unsafe.Sizeof(hold{}); size > 144 {
		t.Errorf("a hold has %d bytes, which is more than the 144 that the allocator rounds to", size)
	}
}

// Only Confirmed allocates something that waits for a confirmation.
func TestUnlockWithoutOptionsAllocatesNothing(t *testing.T) {
	c, p := listen(t).dial()
	const rounds = 100
	locks := make([]*Lock, 0, rounds+1) // AllocsPerRun does one round more
	for hold := range uint64(rounds + 1) {
		locks = append(locks, p.lock(c, "a", hold+1, inOneHour()))
	}
	next := 0
	if n := testing.AllocsPerRun(rounds, func() {
		if err := locks[next].Unlock(); err != nil {
			t.Error(err)
		}
		next++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
