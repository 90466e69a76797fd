package eventlog

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// About is what decides how much of the message of an event a client may read that the policy
// hides something from. Events of a predecessor have none of it.
type About struct {
	WaitedFor *locktable.Peer // of a grant: for whose hold the new holder had waited; nil: not known
	Rules     *policy.Rules   // of the client of the event; nil: the policy says nothing about it
}

// redact takes out of an event what the policy hides from a client, and reports whether the client
// may see the event. Precondition: the policy hides something from it.
func redact(viewer *policy.Session, e *event, row *protocol.EventRow) (isShown bool) {
	terms := viewer.Terms()
	if !terms.RedactEvent(row) {
		return false
	}
	switch row.Kind {
	case protocol.EventGranted:
		if row.Msg = ""; e.about.WaitedFor != nil {
			row.Msg = terms.DescribePeer(row.Name, *e.about.WaitedFor)
		}
	case protocol.EventDeadlock:
		// The steps name other locks and processes, as far as the refused client may know them.
		if isOwn := row.Session != 0 && row.UID == terms.UID; !isOwn || e.about.Rules != viewer.Rules() {
			row.Msg = "the policy hides the steps from you"
		}
	}
	return true
}
