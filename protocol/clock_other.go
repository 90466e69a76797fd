//go:build !linux

package protocol

// Now panics: the sidecar runs on Linux, and no other system has the clock of its deadlines.
func Now() int64 {
	panic("protocol: CLOCK_BOOTTIME, the clock of every deadline, exists on Linux only")
}
