package sidecar

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A client takes two descriptors: its connection, and a pidfd. It may not take the
// last ones. While clients are refused, the sidecar can still reconnect to Redis and look up
// its name, read /proc, and tell a client why it is refused.
//
// They are not counted. The kernel gives out the lowest number that is free: as long as no
// descriptor of a client has one of the reserve's numbers, they are there for others.
const (
	reserve = 64

	// so many refused clients get time to read why.
	maxRefusing = 16
)

// clientFDLimit is the first number that a client's descriptor must not have. The limit
// may be changed at any time, from outside too.
func clientFDLimit() uint64 {
	n := maxFiles()
	return n - min(n, reserve)
}

func maxFiles() uint64 {
	var l unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l) // it cannot fail
	return l.Cur
}

// checkMaxFiles refuses a limit with which hardly any client could be served.
func checkMaxFiles() error {
	if n := maxFiles(); n < 2*reserve {
		return fmt.Errorf("at most %d files may be open: a sidecar needs %d, and two for each client; raise the limit (LimitNOFILE= of the unit, ulimit -n)", n, 2*reserve)
	}
	return nil
}

// isResourceExhausted tells whether an error is for want of descriptors, or of memory for them.
func isResourceExhausted(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
