package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// A burst of acquires leaves garbage, and the heap stays as large as it was: Go collects garbage
// only when the heap has grown by GOGC, or every two minutes, and keeps what is free for the next
// growth. So a daemon that has been quiet for an interval collects its garbage, and returns free
// memory to the system. With 100,000 locks that are renewed, a collection takes 30 ms of processor
// time in 10 s. A daemon that allocates more than quietBytes is busy, and never does it.

const (
	quietInterval = 10 * time.Second

	// quietBytes is how much a quiet daemon allocates in an interval at most. The renewals of
	// 100,000 locks, and a reader of the metrics each second, are less.
	quietBytes = 8 << 20
)

// heapSize is the memory of the Go heap at one moment, in bytes.
type heapSize struct {
	allocated uint64 // since the start of the process
	live      uint64 // found by the last collection
	resident  uint64 // objects, dead or alive, and free memory that was not returned
}

// isWasteful reports whether to collect garbage is worth a walk through all live memory.
func (s heapSize) isWasteful() bool { return s.resident > s.live+s.live/32+1<<20 }

// returnMemory calls collect after each interval in which little was allocated, if the heap is
// wasteful then, until ctx ends.
func returnMemory(ctx context.Context, read func() heapSize, collect func()) {
	ticker := time.NewTicker(quietInterval)
	defer ticker.Stop()
	for before := read(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := read()
		if now.allocated-before.allocated <= quietBytes && now.isWasteful() {
			collect()
			now = read()
		}
		before = now
	}
}

func readHeapSize() heapSize {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	at := func(i int) uint64 { return samples[i].Value.Uint64() }
	return heapSize{allocated: at(0), live: at(1), resident: at(2) + at(3)}
}

// startReturningMemory runs returnMemory until ctx ends, unless the environment has GOGC: then
// garbage is collected as that says. It returns whether it does.
func startReturningMemory(ctx context.Context, getenv func(string) string) bool {
	if getenv("GOGC") != "" {
		return false
	}
	go returnMemory(ctx, readHeapSize, debug.FreeOSMemory)
	return true
}
