package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// A clock tells CLOCK_MONOTONIC in ns, which means the same in all processes of a
// host, at the price of time.Now.
type clock struct {
	anchor time.Time
	at     int64 // CLOCK_MONOTONIC just before anchor was read
}

func newClock() clock { return anchored(monotonic, time.Now) }

// anchored reads both clocks beside each other, and again and again: a process
// that starts beside many others may be interrupted between the two readings, by
// more than a lock is held.
func anchored(mono func() int64, wall func() time.Time) clock {
	var best clock
	narrowest := int64(-1)
	for range 32 {
		before := mono()
		c := clock{anchor: wall(), at: before}
		if width := mono() - before; narrowest < 0 || width < narrowest {
			best, narrowest = c, width
		}
	}
	return best
}

func (c clock) now() int64 { return c.at + int64(time.Since(c.anchor)) }

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no Linux is without it
	}
	return ts.Nano()
}
