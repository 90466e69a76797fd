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

// privileged tells whether a user of the host may do here what the administrator may:
// root, and the user whose process the sidecar is.
func privileged(uid int64) bool { return uid == 0 || uid == int64(unix.Geteuid()) }

// manyUsers is the uid that the kernel gives all users that this process's user namespace
// does not have; −1: it has all of the host, and a uid is one user.
func manyUsers() int64 {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return -1
	}
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		overflow = []byte("65534") // /proc/sys is hidden; this is what no host changes
	}
	return strangersOf(string(ids), string(overflow))
}

// strangersOf is manyUsers for the contents of the two files.
func strangersOf(uidMap, overflow string) int64 {
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

// mayForce tells whether a user may end a hold of another one's process. A uid that stands
// for many users proves nothing.
func (l *loop) mayForce(caller, holder int64) bool {
	return privileged(caller) || caller == holder && caller != l.strangers
}

// crowded says why a user may not have one more of what there may be limit of, if it may
// not: all users together have all, and this one has own of them. The last places are
// for those who are privileged.
func crowded(what string, uid int64, all, own, limit int) *protocol.Err {
	most, share := limit, limit
	if !privileged(uid) {
		most, share = locktable.Unreserved(limit), locktable.Share(limit)
	}
	switch {
	case all >= most:
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("there are %d %s; close some, or raise max-sessions of the sidecar", all, what)}
	case own >= share:
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("user %d has %d %s, and one user may have %d of %d; close some, or raise max-sessions of the sidecar", uid, own, what, share, limit)}
	}
	return nil
}
