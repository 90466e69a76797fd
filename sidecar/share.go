package sidecar

import (
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/peers"
)

// checkShare returns an error if a user may not have one more connection or session (what):
// there may be limit of them, all users have all, and this user has own.
func checkShare(what string, uid int64, all, own, limit int) *protocol.Err {
	unreserved, share := peers.Shares(uid, limit)
	switch {
	case all >= unreserved:
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("there are %d %s; close some, or raise max-sessions of the sidecar", all, what)}
	case own >= share:
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("user %d has %d %s, and one user may have %d of %d; close some, or raise max-sessions of the sidecar", uid, own, what, share, limit)}
	}
	return nil
}
