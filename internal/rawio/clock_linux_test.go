package rawio_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/rawio"
)

func TestBootTimeIsClockBoottime(t *testing.T) {
	kernel := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			t.Fatal(err)
		}
		return ts.Nano()
	}
	before := kernel()
	now := rawio.BootTime()
	if after := kernel(); now < before || now > after {
		t.Errorf("it is %d ns; CLOCK_BOOTTIME was %d before and %d after", now, before, after)
	}
}
