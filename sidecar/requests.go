package sidecar

import "github.com/locksidecar/locksidecar/protocol"

// pingRequest is a ping with what is not the loop's.
type pingRequest struct {
	protocol.Ping
	trouble string
}

// refused is a request in which the decoder found an error.
type refused struct{ *protocol.RequestError }

func (r *refused) RequestID() uint64 { return r.ID }
