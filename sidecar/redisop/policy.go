package redisop

import "time"

// The numbers of the policy between hosts, each once: for the lock table, for the scripts, into
// whose text they are put, and for their model.
const (
	// A lock that has passed from owner to owner for so long is left free for a moment: if clients
	// subscribe to its channel, and in any case.
	FreeAfterSubscribed = 50 * time.Millisecond
	FreeAfter           = 100 * time.Millisecond

	// For so long sidecars leave it free then: if clients subscribe to its channel, and otherwise.
	FreeFor      = 10 * time.Millisecond
	FreeForAlone = 4 * time.Millisecond

	// PassedTokens is how many tokens are drawn for a lock that passes on: for the handoffs of a turn of
	// two round trips. Two near hosts pass a lock on 4,000 times a second, and a counter must grow more
	// slowly than one in a microsecond. A sidecar without an origin in its messages takes fewer.
	PassedTokens    = 128
	PassedTokensOld = 32

	// MaxSilence is how long a sidecar may not have asked with its ticket before the lock does not
	// pass to it.
	MaxSilence = 15 * time.Second

	// MaxOffers is how many tickets one operation looks at.
	MaxOffers = 128

	// MaxReaders is how many hosts one operation gives a share of a read/write lock.
	MaxReaders = 64

	// MaxRecalls is how many hosts one operation asks to give back what they have of a read/write lock.
	MaxRecalls = 256

	// QueueExpiry is how long a queue outlives its last use.
	QueueExpiry = 10 * time.Minute
)

// TopologyRetry is how often a host asks a node of a Cluster which master has which slot, while it knows no
// master of some: as often as all hosts together can do that for 1 % of each master that can be asked,
// but at most each 250 ms, and often enough that each host learns of a new master within 2 s. hosts is
// how many there are; 0: it is not known.
//
// An answer about 60 nodes costs a node 56 µs, 10 of them for any command (BenchmarkRedisTopology in
// sidecar/store).
func TopologyRetry(hosts, masters, nodes int) time.Duration {
	const (
		perAnswer = 10 * time.Microsecond
		perNode   = 46 * time.Microsecond / 60
		share     = 100

		shortest = 250 * time.Millisecond
		longest  = 1800 * time.Millisecond
	)
	if hosts <= 0 || masters <= 0 {
		return longest
	}
	cost := perAnswer + time.Duration(min(nodes, 1<<12))*perNode
	return min(max(time.Duration(min(hosts, 1<<20))*cost*share/time.Duration(masters), shortest), longest)
}

// MS is a duration in whole milliseconds, as operations and messages have it.
func MS(d time.Duration) uint32 { return uint32(d / time.Millisecond) }
