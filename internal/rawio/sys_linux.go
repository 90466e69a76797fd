package rawio

import (
	"syscall"
	"unsafe"
)

// Read is read(2) on a descriptor that does not block. It does not repeat a call that a
// signal interrupted. It reads at most 32 KiB, whatever the size of b.
func Read(fd uintptr, b []byte) (int, error) {
	b = b[:min(len(b), maxInline)]
	if len(b) == 0 || raceEnabled {
		return schedAwareRead(fd, b)
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// schedAwareRead is Read announced to the scheduler, and without a bound.
func schedAwareRead(fd uintptr, b []byte) (int, error) {
	n, err := syscall.Read(int(fd), b)
	return max(n, 0), err // -1 with an error
}

// Write is write(2) on a descriptor that does not block. It does not repeat a call that
// a signal interrupted.
func Write(fd uintptr, b []byte) (int, error) {
	if len(b) == 0 || len(b) > maxInline || raceEnabled {
		n, err := syscall.Write(int(fd), b)
		return max(n, 0), err // -1 with an error
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// HasUnread reports whether the socket has data that was not read.
func HasUnread(conn syscall.RawConn) bool {
	n := 0
	var one [1]byte
	_ = conn.Control(func(fd uintptr) {
		n, _, _ = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return n > 0
}

// ShutdownRead ends what the socket receives: from then on the peer's writes fail with EPIPE. What
// it had written before can still be read, and then comes io.EOF.
func ShutdownRead(conn syscall.RawConn) {
	_ = conn.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RD) })
}

// Shutdown ends the connection in both directions, whatever other descriptors and
// processes have the socket. What it had received before can still be read.
func Shutdown(conn syscall.RawConn) {
	_ = conn.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
}
