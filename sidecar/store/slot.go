package store

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// slotOf returns the slot of a key in a Cluster.
func slotOf(key string) uint16 { return redisop.SlotOf(key) }

// slotOf returns the slot of a lock: that of its key.
func (k *keyspace) slotOf(name string) uint16 { return slotOf(k.prefix + name) }

// splits returns why the keys of a lock would be in two slots of a Cluster; "": they are in one.
// Redisson accepts such a name, and fails in Redis.
func (k *keyspace) splits(name string) string {
	if slotOf(k.key(name)) == slotOf(k.counter(name)) {
		return ""
	}
	return "the name has a brace that is part of no hash tag, so its keys would be in two slots of the Cluster; leave the braces out, or use a tag as {app}: does"
}
