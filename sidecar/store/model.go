package store

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// shard is one server: that of a single Redis, or a master of a Cluster.
type shard struct {
	n       redisop.Shard
	cfg     *Config
	masters *masters     // of which it is one; nil: Redis is no Cluster
	dial    *link.Dialer // the way to it, as it was found first
	link    *link.Link
	log     *slog.Logger

	// Owned by the goroutine that hands on what is delivered.
	publishLogged   bool
	subscribeLogged bool
	unsubLogged     bool
	keysLogged      bool
	policyLogged    string // the last maxmemory-policy whose risk was logged
	evictedLogged   bool   // that keys were evicted by that policy was logged
	riskLogged      int    // the largest number of replicas that a logged risk was about
}

// masters has a link to each master of a Cluster. A Map says which there are, and which has which slot: it gets what
// nodes answer, and masters carries out its effects.
type masters struct {
	cfg    Config
	keys   wire.Keyspace
	shards atomic.Pointer[[]*shard] // by redisop.Shard; nil: it is none, as the first one
	shared *link.Shared

	// connect makes the link to a shard. What that delivers is handed on by what is above masters.
	connect func(s *shard, d *link.Dialer, last wire.Identity, all *link.Shared)

	wake chan struct{} // run is to look at the Map, which has a question earlier
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	delivering sync.Mutex // held while effects are carried out, so that they come in their order; locked before mu and those of links

	owner func(slot uint16) redisop.Shard // of the Map; it may be called at any time

	mu       sync.Mutex // guards what with gives; never held during I/O, a callback or the call of a link
	behindMu guarded
}

// guarded is what the mutex of masters guards: only with leads to it.
type guarded struct {
	*cluster.Map
	armed int64        // when run looks at the Map again
	login *link.Dialer // what the URL says, with the user and the password that were read last
}

// with gives f what the mutex guards. f does nothing of which the Map makes an effect: that is for update.
func (ms *masters) with(f func(m *guarded)) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	f(&ms.behindMu)
}
