package peers

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// IsPrivileged reports whether a user has the rights of an administrator here: root, and the
// user of this process.
func IsPrivileged(uid int64) bool { return uid == 0 || uid == int64(unix.Geteuid()) }

// OverflowUID returns the uid that the kernel shows for every user without a uid in the user
// namespace of this process; −1: all users of the host have one, and a uid is one user.
func OverflowUID() int64 {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return -1
	}
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		overflow = []byte("65534") // /proc/sys is hidden; no host changes this value
	}
	return overflowUIDOf(string(ids), string(overflow))
}

// overflowUIDOf is OverflowUID for these contents of the two files.
func overflowUIDOf(uidMap, overflow string) int64 {
	const all = 1<<32 - 1 // of the initial user namespace: −1 is no uid
	mapped := int64(0)
	for line := range strings.Lines(uidMap) {
		if f := strings.Fields(line); len(f) == 3 {
			n, _ := strconv.ParseInt(f[2], 10, 64)
			mapped += n
		}
	}
	uid, err := strconv.ParseInt(strings.TrimSpace(overflow), 10, 64)
	if mapped >= all || err != nil {
		return -1
	}
	return uid
}

// Shares returns how many of something all users may have, of which there may be limit, and how many
// this one: the last ones are reserved for privileged users.
func Shares(uid int64, limit int) (all, own int) {
	if IsPrivileged(uid) {
		return limit, limit
	}
	return locktable.Unreserved(limit), locktable.Share(limit)
}
