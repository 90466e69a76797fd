// Package redis is a model of what the scripts of the store do in Redis, in plain Go:
// which operation changes which key, what it returns, and what it publishes. It is
// written from the comments of the scripts and of [redisop.Op], not from the Lua code.
//
// There is one model. The simulation runs its tables against it, the scale study counts
// with it, and the differential test of this package compares it with the scripts in a
// real Redis. Nothing that ships imports it.
//
// The model is exact and has no clock: a [Command] says when it runs, and everything else
// that Redis or the run of the script decides.
package redis

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Owner identifies whose a lock is: a sidecar, or another program. Its user numbers them.
type Owner int16

// NoOwner is the owner of a key that does not exist.
const NoOwner Owner = -1

// NoExpiry is the time at which a key expires that has no expiry.
const NoExpiry int64 = math.MaxInt64

// Key is what Redis has under the name of a lock. Nearly always that is nothing, or a hash
// with one field, which has a readable owner, hold number and count.
type Key struct {
	Owner    Owner
	Count    uint32
	Num      uint64
	ExpireAt int64    // ns; or NoExpiry
	Other    *Content // what it is instead of such a hash; nil otherwise
}

// NoKey is a key that does not exist.
var NoKey = Key{Owner: NoOwner}

// Exists reports whether there is a key.
func (k *Key) Exists() bool { return k.Owner != NoOwner || k.Other != nil }

// Expire deletes the key if its time has come by now.
func (k *Key) Expire(now int64) {
	if k.Exists() && now >= k.ExpireAt {
		*k = NoKey
	}
}

// TTL returns what PTTL returns: ms, or -1 without an expiry.
func (k *Key) TTL(now int64) int64 {
	if k.ExpireAt == NoExpiry {
		return -1
	}
	return (k.ExpireAt - now) / 1e6
}

// Content is what stands under a key that is neither a lock with one owner nor a counter.
type Content struct {
	Type string            // as TYPE returns it
	Hash map[string]string // of a hash
	Text string            // of anything else. No operation reads or changes it.
}

// Equal reports whether both are the same.
func (c *Content) Equal(d *Content) bool {
	if c == nil || d == nil {
		return c == d
	}
	return c.Type == d.Type && c.Text == d.Text && maps.Equal(c.Hash, d.Hash)
}

// NewKey returns the key that has this content. prefixes are those of the owners' fields,
// in the order of their numbers.
func NewKey(content Content, expireAt int64, prefixes []string) Key {
	if len(content.Hash) == 1 {
		for field, text := range content.Hash {
			count, err := strconv.ParseUint(text, 10, 32)
			if err != nil || count == 0 || strconv.FormatUint(count, 10) != text {
				break
			}
			for owner, prefix := range prefixes {
				if num, ok := number(prefix, field); ok && field == fieldOf(prefix, num) {
					return Key{Owner: Owner(owner), Num: num, Count: uint32(count), ExpireAt: expireAt}
				}
			}
		}
	}
	return Key{Owner: NoOwner, Other: &content, ExpireAt: expireAt}
}

func fieldOf(prefix string, num uint64) string { return prefix + strconv.FormatUint(num, 10) }

// number returns the hold number of an owner field with this prefix.
func number(prefix, field string) (uint64, bool) {
	digits, ours := strings.CutPrefix(field, prefix)
	if !ours || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	num, err := strconv.ParseUint(digits, 10, 64)
	return num, err == nil
}

// Counter is a token counter. The zero value does not exist.
type Counter struct {
	Exists   bool
	Value    int64
	ExpireAt int64    // ns; or NoExpiry: another program made it, or counters do not expire
	Other    *Content // what it is instead of a decimal integer; nil otherwise
}

// HasExpired reports whether the counter is gone by now.
func (c *Counter) HasExpired(now int64) bool { return c.Exists && now >= c.ExpireAt }

// Channel has the connections that are subscribed to the channel of a lock, in the order in
// which they subscribed. Their numbers are its user's.
type Channel struct {
	Subscribers []int32
	Patterns    int // connections that are subscribed to a pattern that matches it
}

// Subscribe subscribes a connection, which may be subscribed already.
func (c *Channel) Subscribe(id int32) {
	if !slices.Contains(c.Subscribers, id) {
		c.Subscribers = append(c.Subscribers, id)
	}
}

// Unsubscribe ends the subscription of a connection, if there is one.
func (c *Channel) Unsubscribe(id int32) {
	if i := slices.Index(c.Subscribers, id); i >= 0 {
		c.Subscribers = slices.Delete(c.Subscribers, i, i+1)
	}
}

// Names as Redisson makes them: a name without braces gets some, so that a lock, its
// counter and its channel are in one slot of a Cluster.

// ChannelName is the channel on which the release of a lock is published.
func ChannelName(name string) string { return "redisson_lock__channel:" + slotted(name) }

// CounterName is the key of the token counter of a lock.
func CounterName(name string) string { return "redisson_lock_token:" + slotted(name) }

// SidecarChannel is the channel on which messages to a sidecar are published.
func SidecarChannel(uuid string) string { return "redisson_lock__channel:{locksidecar}:" + uuid }

// QueueName is the key of the queue of a lock.
func QueueName(name string) string { return "locksidecar_queue:" + tagged(name) }

// SignsName is the key of the signs of a lock's queue.
func SignsName(name string) string { return "locksidecar_signs:" + tagged(name) }

// tagged differs for any two names, unlike slotted: two locks have two queues.
func tagged(name string) string {
	if strings.Contains(name, "{") {
		return ":" + name
	}
	return "{" + name + "}"
}

func slotted(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}
