package peers

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A client needs two descriptors: its connection and a pidfd. The last descriptors are reserved:
// while clients are refused, the sidecar can still connect to Redis and resolve its name, read
// /proc, and send clients the reason.
//
// Descriptors are not counted. The kernel assigns the lowest free number, so the reserve is
// free as long as no descriptor of a client has one of the highest numbers.
const reservedFDs = 64

// ClientFDLimit returns the lowest number that a client's descriptor must not have. Another
// process may change the limit at any time (prlimit).
func ClientFDLimit() uint64 {
	n := FDLimit()
	return n - min(n, reservedFDs)
}

// FDLimit returns how many files this process may open.
func FDLimit() uint64 {
	var l unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l) // it cannot fail
	return l.Cur
}

// CheckFDLimit returns an error if the limit allows hardly any client.
func CheckFDLimit() error {
	if n := FDLimit(); n < 2*reservedFDs {
		return fmt.Errorf("at most %d files may be open: a sidecar needs %d, and two for each client; raise the limit (LimitNOFILE= of the unit, ulimit -n)", n, 2*reservedFDs)
	}
	return nil
}

// IsResourceExhausted reports whether an error is a lack of descriptors or memory.
func IsResourceExhausted(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
