package rawio

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BootTime reads CLOCK_BOOTTIME, in nanoseconds: the time since the host was booted,
// with the time for which it was suspended. All processes of a time namespace share it,
// and no program can set it.
func BootTime() int64 {
	var ts unix.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic("rawio: CLOCK_BOOTTIME cannot be read: " + errno.Error())
	}
	return ts.Nano()
}
