package store

import (
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
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
	cl := s.cluster
	if cl == nil {
		return nil
	}
	known := *cl.shards.Load()
	slots := make([]int, len(known))
	for i := range cl.owners {
		if n := int(cl.owners[i].Load()); n < len(slots) {
			slots[n]++
		} else {
			slots[0]++ // the shard was added after known was loaded
		}
	}
	for n, c := range known {
		switch {
		case slots[n] == 0:
		case c == nil:
			shards = append(shards, ShardState{Slots: slots[n]})
		default:
			shards = append(shards, ShardState{
				Shard: redisop.Shard(n), Address: c.dial.Address, Slots: slots[n],
				RoundTrip: time.Duration(c.roundTrip.Load()), Unsent: int(c.unsentOps.Load()),
			})
		}
	}
	return shards
}

// Redirects counts the answers of nodes of a Cluster that did not serve a command.
type Redirects struct {
	Moved    uint64 // another node has the slot
	Ask      uint64 // another node has these keys already, and is to get the slot
	TryAgain uint64 // another node has some of these keys
}

// Redirects returns how often nodes of a Cluster did not serve a command, and TopologyChanges how often
// the daemon learned that slots have other masters, the first time included.
func (s *Store) Redirects() Redirects {
	if s.cluster == nil {
		return Redirects{}
	}
	c := &s.cluster.counts
	return Redirects{Moved: c.moved.Load(), Ask: c.ask.Load(), TryAgain: c.tryAgain.Load()}
}

// TopologyChanges: see Redirects.
func (s *Store) TopologyChanges() uint64 {
	if s.cluster == nil {
		return 0
	}
	return s.cluster.counts.changes.Load()
}

// clusterCounts are counted since the start, of all connections together.
type clusterCounts struct {
	changes, moved, ask, tryAgain atomic.Uint64
}

// add adds what a link counted.
func (c *clusterCounts) add(n pipeline.Redirects) {
	if n == (pipeline.Redirects{}) {
		return
	}
	c.moved.Add(n.Moved)
	c.ask.Add(n.Ask)
	c.tryAgain.Add(n.TryAgain)
}
