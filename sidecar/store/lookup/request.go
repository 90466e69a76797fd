// Package lookup is what people ask: who has a lock, which hosts there are, and what a sidecar that is gone for good left
// behind. A question is a value, and for each there is a function that reads the answer. The store sends it to the server
// that has its key.
package lookup

import (
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Commands have one key or channel each, as their first argument. In a Cluster, that decides to which node each one goes.
type Commands [][]string

// Run is one run of a script for a lock.
type Run struct {
	Name   string // of the lock
	Script *wire.Script
	Args   func(p *wire.Params) []string // after the script's name, made when it is sent
	Latest int64                         // it is not sent after this time (protocol.Now), and fails; 0: no limit
}

// AskSidecar sends a question to the sidecar with this uuid, and AskAnswered an answer to the one that asked.
func AskSidecar(id, from string, body []byte) Commands {
	return Commands{{"publish", wire.OwnChannel(id), "ask " + from + " " + string(body)}}
}

// AskAnswered: see AskSidecar.
func AskAnswered(id string, body []byte) Commands {
	return Commands{{"publish", wire.OwnChannel(id), "answer " + string(body)}}
}

// ReadReached reads the reply to AskSidecar: whether that sidecar is connected to Redis. In a Cluster, each sidecar is
// connected to each node, which counts its own connections only, and a message comes over all of them. The one to the node
// that has the slot of the channel counts.
func ReadReached(replies []wire.Reply) (reached bool, err error) {
	err = Refusal(replies)
	return err == nil && replies[0].Num > 0, err
}

// slotIsMoving says that no node of a Cluster has all that a question is about.
const slotIsMoving = "its slot moves to another node of the Cluster at this moment; try again when that has ended (CLUSTER NODES shows the slot in brackets)"

// isMoving reports whether a node refused a command because the slot of its keys is on its way.
func isMoving(text string) bool {
	word := wire.Code(text)
	return word == "ASK" || word == "TRYAGAIN"
}

// Refusal returns the first error among replies, or nil.
func Refusal(replies []wire.Reply) error {
	for _, r := range replies {
		if r.Kind == '-' && isMoving(r.Text) {
			return wire.Unavailable(slotIsMoving)
		}
		if r.Kind == '-' {
			return wire.Unavailable("Redis refused it: " + wire.Clip(r.Text))
		}
	}
	return nil
}
