package sidecar

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// isPrivileged reports whether a user has the rights of an administrator here: root, and the
// user of this process.
func isPrivileged(uid int64) bool { return uid == 0 || uid == int64(unix.Geteuid()) }

// overflowUID returns the uid that the kernel shows for every user without a uid in the user
// namespace of this process; −1: all users of the host have one, and a uid is one user.
func overflowUID() int64 {
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

// overflowUIDOf is overflowUID for these contents of the two files.
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

// mayForceRelease reports whether a user may end a hold of a process of the user holder. The
// overflow uid proves nothing: it stands for many users.
func (l *loop) mayForceRelease(caller, holder int64) bool {
	return isPrivileged(caller) || caller == holder && caller != l.overflowUID
}

// checkShare returns an error if a user may not have one more connection or session (what):
// there may be limit of them, all users have all, and this user has own. The last ones are
// reserved for privileged users.
func checkShare(what string, uid int64, all, own, limit int) *protocol.Err {
	unreserved, share := limit, limit
	if !isPrivileged(uid) {
		unreserved, share = locktable.Unreserved(limit), locktable.Share(limit)
	}
	switch {
	case all >= unreserved:
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("there are %d %s; close some, or raise max-sessions of the sidecar", all, what)}
	case own >= share:
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("user %d has %d %s, and one user may have %d of %d; close some, or raise max-sessions of the sidecar", uid, own, what, share, limit)}
	}
	return nil
}
