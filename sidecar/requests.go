package sidecar

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// isLast reports whether no request of the connection follows.
func (k requestKind) isLast() bool { return k == clientDisconnected || k == clientProtocolError }

// id is the request's; 0: it has none.
func (in *request) id() uint64 {
	switch in.kind {
	case clientAcquire:
		return in.acquire.ID
	case clientRelease:
		return in.release.ID
	}
	return in.other.RequestID()
}

// isRelease reports whether a request gives something back: a sidecar that stops still
// does those that it has read.
func isRelease(in *request) bool {
	_, isBye := in.other.(*protocol.Bye)
	return isBye || in.kind == clientRelease
}

// isNeededAfterwards reports whether a request of a client that has gone is handed over.
func (in *request) isNeededAfterwards() bool {
	switch in.kind {
	case clientHello, clientRelease:
		return true
	}
	switch in.other.(type) {
	case *protocol.Confirm, *protocol.Cancel, *protocol.Claim, *protocol.Bye:
		return true
	}
	return false
}

// pingRequest is a ping with what is not the loop's.
type pingRequest struct {
	protocol.Ping
	trouble string
}

// refused is a request in which the decoder found an error.
type refused struct{ *protocol.RequestError }

func (r *refused) RequestID() uint64 { return r.ID }

// statusRequest is a status request with what is not the loop's.
type statusRequest struct {
	*protocol.Status
	survey  *locktable.Survey // nil: the loop did not make one in time
	shards  []Shard           // of a Cluster; nil: Redis is none
	trouble string
}

// badFrame is the last frame to a client that broke the protocol.
func badFrame(msg string) *protocol.Err { return &protocol.Err{Code: protocol.BadFrame, Msg: msg} }
