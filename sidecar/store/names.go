package store

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Names as Redisson makes them, so that its programs and sidecars exclude and
// wake each other. Braces put a lock, its counter and its channel into one
// Cluster slot; a name that brings its own brace keeps it.

const (
	channelPrefix = "redisson_lock__channel:"
	counterPrefix = "redisson_lock_token:"
	queuePrefix   = "locksidecar_queue:"
	hostPrefix    = "locksidecar_host:"
	hostsPrefix   = "locksidecar_hosts:"
)

// MaxKeyPrefix is how many bytes Config.KeyPrefix may have.
const MaxKeyPrefix = 128

// reservedPrefixes are those of keys that belong to other locks: their token counters and
// queues.
var reservedPrefixes = []string{"redisson_lock_", "redisson_unlock_latch:", "locksidecar_"}

// Reserved returns the reserved prefix with which the key of a lock begins, or "". A lock
// with such a key would be kept under the key of another lock's token counter or queue, and
// break it.
func Reserved(keyPrefix, name string) string {
	for _, reserved := range reservedPrefixes {
		if rest, ok := strings.CutPrefix(reserved, keyPrefix); ok && strings.HasPrefix(name, rest) || strings.HasPrefix(keyPrefix, reserved) {
			return reserved
		}
	}
	return ""
}

// CheckKeyPrefix returns why Open would refuse a KeyPrefix, or nil.
func CheckKeyPrefix(prefix string) error {
	if len(prefix) > MaxKeyPrefix {
		return fmt.Errorf("key-prefix %.32q… has %d bytes; choose one of at most %d", prefix, len(prefix), MaxKeyPrefix)
	}
	if !utf8.ValidString(prefix) {
		return fmt.Errorf("key-prefix %q is not UTF-8", prefix)
	}
	for _, r := range prefix {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("key-prefix %q has the character %U, which is not printable; leave it out", prefix, r)
		}
	}
	if reserved := Reserved(prefix, ""); reserved != "" {
		return fmt.Errorf("key-prefix %q: keys that begin with %s are reserved for the token counters and queues of locks; choose another prefix", prefix, reserved)
	}
	if !strings.ContainsAny(prefix, "{}") {
		return nil
	}
	// The names of locks decide nothing then: their keys, counters and channels have this
	// tag. With a brace that is part of no tag, the counter of a lock could be in another
	// Cluster slot than the lock.
	_, rest, _ := strings.Cut(prefix, "{")
	if tag, _, ok := strings.Cut(rest, "}"); !ok || tag == "" {
		return fmt.Errorf("key-prefix %q has a brace outside of a hash tag; leave the braces out, or begin with a tag as {app}: does", prefix)
	}
	return nil
}

// A keyspace maps the name of a lock to its keys and its channel in Redis, as a Redisson
// program does whose NameMapper puts the same prefix before each name.
type keyspace struct {
	prefix string
	tagged bool // the prefix has a hash tag, so that no braces are added
}

func newKeyspace(prefix string) keyspace {
	return keyspace{prefix, strings.Contains(prefix, "{")}
}

// key returns the key of a lock.
func (k *keyspace) key(name string) string { return k.prefix + name }

// channel returns the channel on which the release of a lock is published. Without a
// prefix, two names can share one: "a" and "{a}".
func (k *keyspace) channel(name string) string { return k.derived(channelPrefix, name) }

// counter returns the key of a lock's fencing tokens.
func (k *keyspace) counter(name string) string { return k.derived(counterPrefix, name) }

func (k *keyspace) derived(from, name string) string {
	if k.isTagged(name) {
		return from + k.prefix + name
	}
	return from + "{" + k.prefix + name + "}"
}

func (k *keyspace) isTagged(name string) bool {
	return k.tagged || strings.IndexByte(name, '{') >= 0
}

// queue returns the key of a lock's queue, as scripts/acquire_release.lua makes it.
func (k *keyspace) queue(name string) string { return k.ours(queuePrefix, name) }

// host returns the key of what the sidecar with this uuid published of itself.
func (k *keyspace) host(uuid string) string { return k.ours(hostPrefix, uuid) }

// hosts returns the key of the index of all sidecars with the same prefix.
func (k *keyspace) hosts() string { return k.ours(hostsPrefix, "") }

// ours returns a key that only sidecars use.
func (k *keyspace) ours(from, name string) string {
	if k.isTagged(name) {
		return from + ":" + k.prefix + name
	}
	return from + "{" + k.prefix + name + "}"
}

// appendKey appends key(name) as an argument of a command.
func (k *keyspace) appendKey(dst []byte, name string) []byte {
	dst = appendHead(dst, '$', len(k.prefix)+len(name))
	dst = append(dst, k.prefix...)
	dst = append(dst, name...)
	return append(dst, '\r', '\n')
}

// appendDerived appends derived(from, name) as an argument of a command.
func (k *keyspace) appendDerived(dst []byte, from, name string) []byte {
	if k.isTagged(name) {
		dst = appendHead(dst, '$', len(from)+len(k.prefix)+len(name))
		dst = append(dst, from...)
		dst = append(dst, k.prefix...)
		dst = append(dst, name...)
	} else {
		dst = appendHead(dst, '$', len(from)+len(k.prefix)+len(name)+2)
		dst = append(dst, from...)
		dst = append(dst, '{')
		dst = append(dst, k.prefix...)
		dst = append(dst, name...)
		dst = append(dst, '}')
	}
	return append(dst, '\r', '\n')
}

// channelPatterns names, for an ACL, the channels of all locks.
func (k *keyspace) channelPatterns() string {
	literal := k.literalPrefix()
	switch {
	case k.prefix == "" || k.tagged:
		return channelPrefix + literal + "*"
	}
	return channelPrefix + "{" + literal + "* and " + channelPrefix + literal + "*"
}

// queuePatterns names, for an ACL, the keys that the queues of all locks have.
func (k *keyspace) queuePatterns() string {
	literal := k.literalPrefix()
	switch {
	case k.prefix == "":
		return "locksidecar_*"
	case k.tagged:
		return "locksidecar_*::" + literal + "*"
	}
	return "locksidecar_*:{" + literal + "* and locksidecar_*::" + literal + "*"
}

// literalPrefix is the prefix as a part of a pattern.
func (k *keyspace) literalPrefix() string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(k.prefix)
}
