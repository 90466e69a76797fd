package locktable

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// Mode says which other holds of a lock a hold excludes. The journal has it, so another meaning of a
// number needs another format of the state file.
type Mode uint8

const (
	Exclusive Mode = iota // it excludes every other hold
	Shared                // it excludes those that are exclusive
	Units                 // of a semaphore: it excludes none, and has a number of its permits
)

// admits reports whether a hold admits one of another mode beside it.
func (m Mode) admits(next Mode) bool { return m != Exclusive && next != Exclusive }

// inRedis is how a host has a read/write lock of which a client has a hold.
func (m Mode) inRedis() redisop.Mode {
	if m == Shared {
		return redisop.SharedMode
	}
	return redisop.ExclusiveMode
}

// covers reports whether the owner of a hold may do all that one of another mode permits.
func (m Mode) covers(other Mode) bool { return m == Exclusive || m == other }
