package sidecar

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// privileged tells whether a user of the host may do here what the administrator may:
// root, and the user whose process the sidecar is.
func privileged(uid int64) bool { return uid == 0 || uid == int64(unix.Geteuid()) }

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
