package sidecar

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// Shard is one master of a Cluster that has slots, or the slots that have no master.
type Shard struct {
	store.ShardState

	Redis    string // "ok", or one sentence that says what is wrong
	IsUp     bool   // there is a connection
	Degraded bool   // there is one, but the master refuses what locks need

	Held, Waiting int // holds, and requests that wait, of locks of these slots
}

// trouble is the rank of a shard in a list whose first ones are those in trouble.
func (s *Shard) trouble() int {
	switch {
	case s.Address == "":
		return 0
	case !s.IsUp:
		return 1
	case s.Redis != "ok":
		return 2
	}
	return 3
}

// addShards adds the shards of a Cluster to a status.
func addShards(m *protocol.StatusRow, shards []Shard) {
	slices.SortFunc(shards, func(a, b Shard) int {
		return cmp.Or(a.trouble()-b.trouble(), cmp.Compare(a.Address, b.Address))
	})
	m.ShardCount = len(shards)
	for i := range shards[:min(len(shards), protocol.MaxShards)] {
		s := &shards[i]
		m.Shards = append(m.Shards, protocol.ShardRow{
			Address: s.Address, Slots: s.Slots, Redis: s.Redis, Degraded: s.Degraded, RoundTripNS: int64(s.RoundTrip),
			Held: s.Held, Waiting: s.Waiting, Unsent: s.Unsent,
		})
	}
}

// noShard has the slots of a Cluster that have no master.
const noShard = redisop.Shard(0)
