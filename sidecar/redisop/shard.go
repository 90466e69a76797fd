package redisop

// Shard is one Redis that has some of the locks: the master of some slots of a Cluster. It is a number
// that the store gave it, which stays the same while the process runs. The words are those of Redis: a
// shard is a master and its replicas.
//
// A Redis that is no Cluster is shard 0, and has all locks. In a Cluster, shard 0 is none: it has the
// slots of which no master is known, and cannot be asked.
type Shard uint16

// Slots is how many slots a Cluster has.
const Slots = 16384

// SlotRange says which shard has the slots from First to Last.
type SlotRange struct {
	First, Last uint16
	Shard       Shard
}
