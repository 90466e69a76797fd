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
	signsPrefix   = "locksidecar_signs:"
	hostPrefix    = "locksidecar_host:"
	hostsPrefix   = "locksidecar_hosts:"
)

// MaxKeyPrefix is how many bytes Config.KeyPrefix may have.
const MaxKeyPrefix = 128

// reservedPrefixes are those of keys that belong to other locks: their token counters and
// queues; and of keys that belong to sidecars.
var reservedPrefixes = []string{"redisson_lock_", "redisson_unlock_latch:", "locksidecar_"}

// ownTag begins what the channel of a sidecar has after channelPrefix: see ownChannel.
const ownTag = "{locksidecar}:"

// Reserved returns why no lock may have a name, or "". It decides by what the name becomes in
// Redis:
//   - A lock could have the key of another lock's token counter or queue, and break it.
//   - A lock could have the channel of a sidecar. A waiter of the lock would subscribe to it, and
//     its messages would be taken for those of the sidecar; or the sidecar would unsubscribe from
//     its own channel.
func Reserved(keyPrefix, name string) (why string) {
	for _, reserved := range reservedPrefixes {
		if hasKeyPrefix(keyPrefix, name, reserved) {
			return "the key of this lock in Redis would begin with " + reserved + ", and such keys are reserved for the token counters and queues of other locks"
		}
	}
	if isProbeLock(name) {
		return "sidecars use this lock to probe Redis"
	}
	if isChannelOfSidecars(keyPrefix, name) {
		return "the channel of this lock in Redis would begin with " + ownChannel("") + ", and such channels are reserved for sidecars"
	}
	return ""
}

// hasKeyPrefix reports whether the key of a lock begins with a text.
func hasKeyPrefix(keyPrefix, name, text string) bool {
	rest, ok := strings.CutPrefix(text, keyPrefix)
	return ok && strings.HasPrefix(name, rest) || strings.HasPrefix(keyPrefix, text)
}

// isChannelOfSidecars reports whether the channel of a lock begins like those of sidecars.
func isChannelOfSidecars(keyPrefix, name string) bool {
	if hasKeyPrefix(keyPrefix, name, ownTag) {
		return true
	}
	// Without a brace in the key, the channel gets the brace with which the tag begins.
	return hasKeyPrefix(keyPrefix, name, ownTag[1:]) && strings.IndexByte(keyPrefix, '{') < 0 && strings.IndexByte(name, '{') < 0
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
	if why := Reserved(prefix, ""); why != "" {
		return fmt.Errorf("key-prefix %q, with a lock: %s; choose another prefix", prefix, why)
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

// channel returns the channel on which the release of a lock is published. Two keys can share
// one: "a" and "{a}".
func (k *keyspace) channel(name string) string { return k.derived(channelPrefix, name) }

// maySubscribe reports whether this sidecar may subscribe to the channel of a lock. It may not:
//   - if the channel is that of another key, too. The subscription for "{a}" would count as a
//     foreign client that waits for "a", and slow "a" down, also for users who may not use "a".
//   - if the channel is a sidecar's. Reserved keeps such names from the lock table; a state file
//     of an earlier version can have one.
func (k *keyspace) maySubscribe(name string) bool {
	return !isChannelOfSidecars(k.prefix, name) && !k.sharesChannel(name)
}

// sharesChannel reports whether the key of a lock is another key in braces, which has the same
// channel and the same counter.
func (k *keyspace) sharesChannel(name string) bool {
	last := len(k.prefix) + len(name) - 1
	at := func(i int) byte {
		if i < len(k.prefix) {
			return k.prefix[i]
		}
		return name[i-len(k.prefix)]
	}
	return last > 1 && at(0) == '{' && at(last) == '}' && strings.Count(k.prefix, "{")+strings.Count(name, "{") == 1
}

// counter returns the key of a lock's fencing tokens. It is shared as the channel is.
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

// queue returns the key of a lock's queue, as scripts/queue.lua makes it.
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

// appendOurs appends ours(from, name) as an argument of a command.
func (k *keyspace) appendOurs(dst []byte, from, name string) []byte {
	return appendString(dst, k.ours(from, name))
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
