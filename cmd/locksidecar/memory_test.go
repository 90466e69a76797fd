package main

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsReturnedAfterAQuietInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mib = 1 << 20
		var mu sync.Mutex // guards heap and collected
		heap := heapSize{allocated: 100 * mib, live: 40 * mib, resident: 40 * mib}
		collected := 0
		read := func() heapSize {
			mu.Lock()
			defer mu.Unlock()
			return heap
		}
		collect := func() {
			mu.Lock()
			defer mu.Unlock()
			collected++
			heap.resident = heap.live
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			returnMemory(ctx, read, collect)
		}()
		for _, interval := range []struct {
			says      string
			allocates uint64
			garbage   uint64
			collected int
		}{
			{"a burst", 20 * mib, 20 * mib, 0},
			{"an interval after it in which little is allocated", mib, mib, 1},
			{"a quiet interval with little garbage", mib, mib, 1},
			{"an interval in which 100,000 locks are renewed", 3 * mib, 3 * mib, 2},
			{"a busy interval with much garbage", 30 * mib, 10 * mib, 2},
			{"the quiet interval after it", 0, 0, 3},
		} {
			synctest.Wait()
			mu.Lock()
			heap.allocated += interval.allocates
			heap.resident += interval.garbage
			mu.Unlock()
			time.Sleep(quietInterval)
			synctest.Wait()
			mu.Lock()
			if collected != interval.collected {
				t.Errorf("after %s, garbage was collected %d times; want %d", interval.says, collected, interval.collected)
			}
			mu.Unlock()
		}
		cancel()
		<-done
	})
}

// The names of the metrics are texts: one that does not exist has no value.
func TestHeapSizeIsRead(t *testing.T) {
	if s := readHeapSize(); s.allocated == 0 || s.resident == 0 {
		t.Errorf("the heap is %+v", s)
	}
}

func TestGOGCOfTheEnvironmentDecidesWhenGarbageIsCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		for gogc, want := range map[string]bool{"": true, "100": false} {
			if started := startReturningMemory(ctx, func(string) string { return gogc }); started != want {
				t.Errorf("with GOGC=%q, memory is returned: %v", gogc, started)
			}
		}
		cancel()
		synctest.Wait()
	})
}
