package embedded

import (
	"testing"

	"golang.org/x/sys/unix"
)

func openPidfd(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// awaitPidfd returns when the process has ended.
func awaitPidfd(t *testing.T, fd int) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000)
		switch {
		case err == unix.EINTR:
		case err != nil:
			t.Fatal(err)
		case n == 0:
			t.Fatal("it outlived its owner by 30 s")
		default:
			return
		}
	}
}
