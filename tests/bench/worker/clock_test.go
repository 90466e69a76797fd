package main

import (
	"testing"
	"time"
)

func TestTheClockIsNeverAheadOfTheKernels(t *testing.T) {
	c := newClock()
	for range 1000 {
		if ours, kernels := c.now(), monotonic(); ours > kernels {
			t.Fatalf("%d ns, and after that the kernel says %d", ours, kernels)
		}
	}
}

func TestTheClockIsAnchoredWhereItWasInterruptedLeast(t *testing.T) {
	start := time.Now()
	passed := time.Duration(0) // on both clocks, which began at 0 and at start
	anchors := 0
	mono := func() int64 {
		passed += 10
		return int64(passed)
	}
	wall := func() time.Time {
		if anchors++; anchors != 7 {
			passed += 5 * time.Millisecond // another process has the core
		}
		return start.Add(passed)
	}
	c := anchored(mono, wall)
	if behind := c.anchor.Sub(start) - time.Duration(c.at); behind != 0 {
		t.Errorf("the clock is %v behind the one it follows", behind)
	}
}
