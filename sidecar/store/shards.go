package store

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// ShardState is one master of a Cluster, as far as the store knows it, or the slots that have none.
type ShardState struct {
	Shard     redisop.Shard
	Address   string        // host and port; "": these slots have no master that is known
	Slots     int           // that it has; more than 0
	RoundTrip time.Duration // of the last command that it answered; 0: there was none
	Unsent    int           // operations that wait to be sent to it, as Unsent has them
}

// Shards returns each master of a Cluster that has slots, and the slots that have none; nil: Redis is no
// Cluster. Its parts may be of different moments, while slots move.
func (s *Store) Shards() (shards []ShardState) {
	ms := s.masters
	if ms == nil {
		return nil
	}
	var all []cluster.Master
	ms.with(func(m *guarded) { all = m.Masters() })
	for _, m := range all {
		state := ShardState{Shard: m.Shard, Address: m.Address, Slots: m.Slots}
		if sh := ms.get(m.Shard); sh != nil {
			state.RoundTrip, state.Unsent = sh.link.Trip(), sh.link.Unsent()
		}
		shards = append(shards, state)
	}
	return shards
}

// Redirects returns how often nodes of a Cluster did not serve a command, and TopologyChanges how often
// the daemon learned that slots have other masters, the first time included.
func (s *Store) Redirects() pipeline.Redirects { return s.shared.Redirected() }

// TopologyChanges: see Redirects.
func (s *Store) TopologyChanges() (n uint64) {
	if s.masters != nil {
		s.masters.with(func(m *guarded) { n = m.Changes() })
	}
	return n
}

// OpenSlots returns the slots of a Cluster that are open for too long, the smallest first.
func (s *Store) OpenSlots() (open []cluster.OpenSlot) {
	if s.masters != nil {
		s.masters.with(func(m *guarded) { open = m.OpenSlots(protocol.Now()) })
	}
	return open
}
