package display

import "github.com/locksidecar/locksidecar/protocol"

// Reason returns a clause that describes why a hold was lost, as "its deadline passed". For a reason
// that this version does not know, it returns where an operator finds more.
func Reason(why protocol.Reason) string {
	switch why {
	case protocol.Expired:
		return "its deadline passed"
	case protocol.Deleted:
		return "its key was deleted in Redis"
	case protocol.Stolen:
		return "another owner has its key in Redis"
	case protocol.ByForce:
		return "a client ended it by force"
	case protocol.MaxHold:
		return "its max_hold passed"
	case protocol.Forgotten:
		return "a client came back with a hold that no state file had"
	case protocol.CutShort:
		return "its client ended the work, because the lock was about to be lost"
	}
	return "see the log of the sidecar"
}
