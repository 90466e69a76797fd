package protocol

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Now reads CLOCK_BOOTTIME, the clock of every deadline: all processes of a host
// share it, no program sets it, and it counts while the host is suspended.
func Now() int64 {
	var ts unix.Timespec
	// It does not block. To announce it to the scheduler, as unix.ClockGettime does,
	// would wake the monitor thread of a program that is mostly idle.
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic("protocol: CLOCK_BOOTTIME cannot be read: " + errno.Error())
	}
	return ts.Nano()
}
