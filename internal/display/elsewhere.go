package display

// Elsewhere describes the holder of a lock that this host does not have, by the name of its host and
// its owner field in Redis. host is empty if it is not known, or if a foreign client has the lock.
func Elsewhere(host, field string) string {
	if host == "" {
		return "held elsewhere: " + field
	}
	return "held on host " + host + ": " + field
}

// TooFewPermits describes a semaphore that processes of this host wait for, and have no permits of.
const TooFewPermits = "other hosts have its permits, or too many of them"
