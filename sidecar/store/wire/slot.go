package wire

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// SlotOf returns the slot of a key in a Cluster.
func SlotOf(key string) uint16 { return redisop.SlotOf(key) }

// SlotOf returns the slot of a lock: that of its key.
func (k *Keyspace) SlotOf(name string) uint16 { return SlotOf(k.Prefix + name) }

// Splits returns why the keys of a lock would be in two slots of a Cluster; "": they are in one.
// Redisson accepts such a name, and fails in Redis.
func (k *Keyspace) Splits(name string) string {
	if SlotOf(k.Key(name)) == SlotOf(k.Counter(name)) {
		return ""
	}
	return "the name has a brace that is part of no hash tag, so its keys would be in two slots of the Cluster; leave the braces out, or use a tag as {app}: does"
}
