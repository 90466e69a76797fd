// Package otherhosts asks the sidecars of other hosts for clients of this one, reads what they have
// published in Redis, and bounds what they ask in turn.
//
// A sidecar asks another one by a message on its channel in Redis. A question is the body of an
// info, list, status or force_release request of the protocol, and an answer is the body of the answer to
// it, with one difference: deadline_ns is relative to the moment of the answer, because each host
// has its own clock.
package otherhosts

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/store"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
)

// Setting is what a sidecar shows to the sidecars of other hosts, and does for them.
type Setting string

const (
	// None: it publishes nothing of itself, and neither asks nor answers other sidecars.
	None Setting = "none"

	// Show: it publishes the name of its host, and shows its locks, holders and waiters.
	Show Setting = "show"

	// ForceRelease: it also ends holds when another sidecar requests it.
	ForceRelease Setting = "force-release"
)

// DefaultAskWithin is how long a client waits for another host.
const DefaultAskWithin = 500 * time.Millisecond

// Config says who asks other hosts.
type Config struct {
	Setting   Setting
	UUID      string        // of this sidecar
	HostName  string        // of this host
	KeyPrefix string        // of names in Redis
	Lease     time.Duration // of holds that named none
	AskWithin time.Duration // how long a client waits for another host
}

// Hosts are the other hosts, as this sidecar knows them.
type Hosts struct {
	// Store is set before the first question, and not changed.
	Store *store.Store

	cfg       Config
	asker     asker
	questions questions
	names     names
}

// New makes Hosts, without their Store: the store hands it answers and questions from its beginning.
func New(cfg Config) *Hosts {
	h := &Hosts{cfg: cfg}
	h.names.lookUp = func(uuid string, done func(lookup.Host, bool, error)) { h.Store.Host(uuid, done) }
	return h
}

// Client is a client of this host that asks about others.
type Client struct {
	PID, UID int64
	Cmd      string
	Rules    *policy.Rules   // what the policy says about it; nil: nothing
	Refusal  *policy.Refusal // why that is not known; nil: it is
	Denial   *protocol.Err   // why it is not known what the policy depends on; nil: it is
}
