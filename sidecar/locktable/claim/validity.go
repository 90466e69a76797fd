package claim

import (
	"math/bits"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
)

// Validity is how long a lease may be believed in, counted from the moment at
// which the operation was sent: the lease less what two clocks may differ by.
func Validity(leaseMS uint32) int64 {
	return moment.MS(leaseMS) - moment.MS(leaseMS)/100 - int64(2*time.Millisecond)
}

// LeaseCovering is the shortest lease whose validity is so long.
func LeaseCovering(d int64) uint32 {
	const ms = int64(time.Millisecond)
	leaseMS := uint32((max(d, 0) + 2*ms) / ms * 100 / 99)
	for Validity(leaseMS) < d {
		leaseMS++
	}
	return leaseMS
}

// LeaseKeeping is a lease whose validity is so long at least. It has eight significant bits, so
// that a script renews many locks whose keeps end at different times.
func LeaseKeeping(d int64) uint32 {
	lease := LeaseCovering(d)
	step := uint32(1) << max(0, bits.Len32(lease)-8)
	return (lease + step - 1) &^ (step - 1)
}
