package wire

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
	ChannelPrefix = "redisson_lock__channel:"
	CounterPrefix = "redisson_lock_token:"
	QueuePrefix   = "locksidecar_queue:"
	SignsPrefix   = "locksidecar_signs:"
	WantedPrefix  = "locksidecar_wanted:"
	WantsPrefix   = "locksidecar_wants:"
	ReadersPrefix = "locksidecar_readers:"
	WritersPrefix = "locksidecar_writers:"
	AskedPrefix   = "locksidecar_asked:"
	HostPrefix    = "locksidecar_host:"
	HostsPrefix   = "locksidecar_hosts:"

	// PermissionsPrefix is that of the key on which commands are tried.
	PermissionsPrefix = "locksidecar_permissions:"

	// ProbeLock is the name of the lock that probes take. Reserved keeps clients from it.
	ProbeLock = "locksidecar_probe"
)

// MaxKeyPrefix is how many bytes Config.KeyPrefix may have.
const MaxKeyPrefix = 128

// reservedPrefixes are those of keys that belong to other locks: their token counters and
// queues; and of keys that belong to sidecars.
var reservedPrefixes = []string{"redisson_lock_", "redisson_unlock_latch:", "locksidecar_"}

// timeoutSuffix is before the digits with which keys end that Redisson makes beside that of a read-write lock.
const timeoutSuffix = ":rwlock_timeout:"

const digits = "0123456789"

// ownTag begins what the channel of a sidecar has after ChannelPrefix.
const ownTag = "{locksidecar}:"

// OwnChannel returns the channel on which sidecars reach the one with this uuid. It does not
// depend on the key prefix: a sidecar computes it from an owner field alone.
func OwnChannel(uuid string) string { return ChannelPrefix + ownTag + uuid }

// Reserved returns why no lock may have a name, or "". It decides by what the name becomes in
// Redis:
//   - A lock could have the key of another lock's token counter or queue, and break it.
//   - A lock could have a key that Redisson makes beside that of a read-write lock, and deletes.
//   - A lock could have the channel of a sidecar. A waiter of the lock would subscribe to it, and
//     its messages would be taken for those of the sidecar; or the sidecar would unsubscribe from
//     its own channel.
func Reserved(keyPrefix, name string) (why string) {
	for _, reserved := range reservedPrefixes {
		if hasKeyPrefix(keyPrefix, name, reserved) {
			return "the key of this lock in Redis would begin with " + reserved + ", and such keys are reserved for the token counters and queues of other locks"
		}
	}
	if isReadWriteTimeout(keyPrefix, name) {
		return "the key of this lock in Redis would end with " + timeoutSuffix + " and digits, and such keys are reserved for Redisson's read-write locks"
	}
	if IsProbeLock(name) {
		return "sidecars use this lock to probe Redis"
	}
	if isChannelOfSidecars(keyPrefix, name) {
		return "the channel of this lock in Redis would begin with " + OwnChannel("") + ", and such channels are reserved for sidecars"
	}
	return ""
}

// isReadWriteTimeout reports whether the key of a lock ends like those that have the leases of a read-write lock.
func isReadWriteTimeout(keyPrefix, name string) bool {
	rest := strings.TrimRight(name, digits)
	if len(rest) == len(name) {
		return false
	}
	if rest == "" {
		keyPrefix = strings.TrimRight(keyPrefix, digits)
	}
	missing, isPart := strings.CutSuffix(timeoutSuffix, rest)
	return strings.HasSuffix(rest, timeoutSuffix) || isPart && strings.HasSuffix(keyPrefix, missing)
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

// IsProbeLock reports whether a lock is one that sidecars use to probe Redis.
func IsProbeLock(name string) bool {
	number, ok := strings.CutPrefix(name, ProbeLock)
	return ok && strings.Trim(number, "0123456789") == ""
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

// A Keyspace maps the name of a lock to its keys and its channel in Redis, as a Redisson
// program does whose NameMapper puts the same prefix before each name.
type Keyspace struct {
	Prefix string
	Tagged bool // the prefix has a hash tag, so that no braces are added
}

func NewKeyspace(prefix string) Keyspace {
	return Keyspace{prefix, strings.Contains(prefix, "{")}
}

// Key returns the key of a lock.
func (k *Keyspace) Key(name string) string { return k.Prefix + name }

// Channel returns the channel on which the release of a lock is published. Two keys can share
// one: "a" and "{a}".
func (k *Keyspace) Channel(name string) string { return k.derived(ChannelPrefix, name) }

// MaySubscribe reports whether this sidecar may subscribe to the channel of a lock. It may not:
//   - if the channel is that of another key, too. The subscription for "{a}" would count as a
//     foreign client that waits for "a", and slow "a" down, also for users who may not use "a".
//   - if the channel is a sidecar's. Reserved keeps such names from the lock table; a state file
//     of an earlier version can have one.
func (k *Keyspace) MaySubscribe(name string) bool {
	return !isChannelOfSidecars(k.Prefix, name) && !k.sharesChannel(name)
}

// sharesChannel reports whether the key of a lock is another key in braces, which has the same
// channel and the same counter.
func (k *Keyspace) sharesChannel(name string) bool {
	last := len(k.Prefix) + len(name) - 1
	at := func(i int) byte {
		if i < len(k.Prefix) {
			return k.Prefix[i]
		}
		return name[i-len(k.Prefix)]
	}
	return last > 1 && at(0) == '{' && at(last) == '}' && strings.Count(k.Prefix, "{")+strings.Count(name, "{") == 1
}

// Counter returns the key of a lock's fencing tokens. It is shared as the channel is.
func (k *Keyspace) Counter(name string) string { return k.derived(CounterPrefix, name) }

func (k *Keyspace) derived(from, name string) string {
	if k.IsTagged(name) {
		return from + k.Prefix + name
	}
	return from + "{" + k.Prefix + name + "}"
}

func (k *Keyspace) IsTagged(name string) bool {
	return k.Tagged || strings.IndexByte(name, '{') >= 0
}

// Queue returns the key of a lock's queue, as scripts/queue.lua makes it.
func (k *Keyspace) Queue(name string) string { return k.Ours(QueuePrefix, name) }

// Host returns the key of what the sidecar with this uuid published of itself.
func (k *Keyspace) Host(uuid string) string { return k.Ours(HostPrefix, uuid) }

// Hosts returns the key of the index of all sidecars with the same prefix.
func (k *Keyspace) Hosts() string { return k.Ours(HostsPrefix, "") }

// Ours returns a key that only sidecars use.
func (k *Keyspace) Ours(from, name string) string {
	if k.IsTagged(name) {
		return from + ":" + k.Prefix + name
	}
	return from + "{" + k.Prefix + name + "}"
}

// Life returns the key that is there while hosts share a read/write lock. It is that of Redisson for the first
// entry of a reader with the name that all sidecars have.
func (k *Keyspace) Life(name string) string {
	if k.IsTagged(name) {
		return k.Prefix + name + ":locksidecar:1:rwlock_timeout:1"
	}
	return "{" + k.Prefix + name + "}:locksidecar:0:rwlock_timeout:1"
}

// AppendOurs appends Ours(from, name) as an argument of a command.
func (k *Keyspace) AppendOurs(dst []byte, from, name string) []byte {
	return k.append(dst, from, ":", name)
}

// appendKey appends key(name) as an argument of a command.
func (k *Keyspace) appendKey(dst []byte, name string) []byte {
	dst = appendHead(dst, '$', len(k.Prefix)+len(name))
	dst = append(dst, k.Prefix...)
	dst = append(dst, name...)
	return append(dst, '\r', '\n')
}

// appendDerived appends derived(from, name) as an argument of a command.
func (k *Keyspace) appendDerived(dst []byte, from, name string) []byte {
	return k.append(dst, from, "", name)
}

// append appends a key of a lock as an argument of a command. With a tag in the name, it has tagged between from and that.
func (k *Keyspace) append(dst []byte, from, tagged, name string) []byte {
	n := len(from) + len(k.Prefix) + len(name)
	if k.IsTagged(name) {
		dst = appendHead(dst, '$', n+len(tagged))
		dst = append(append(dst, from...), tagged...)
		dst = append(append(dst, k.Prefix...), name...)
	} else {
		dst = appendHead(dst, '$', n+2)
		dst = append(append(dst, from...), '{')
		dst = append(append(append(dst, k.Prefix...), name...), '}')
	}
	return append(dst, '\r', '\n')
}

// ChannelPatterns names, for an ACL, the channels of all locks.
func (k *Keyspace) ChannelPatterns() string {
	literal := k.literalPrefix()
	switch {
	case k.Prefix == "" || k.Tagged:
		return ChannelPrefix + literal + "*"
	}
	return ChannelPrefix + "{" + literal + "* and " + ChannelPrefix + literal + "*"
}

// QueuePatterns names, for an ACL, the keys that the queues of all locks have.
func (k *Keyspace) QueuePatterns() string {
	literal := k.literalPrefix()
	switch {
	case k.Prefix == "":
		return "locksidecar_*"
	case k.Tagged:
		return "locksidecar_*::" + literal + "*"
	}
	return "locksidecar_*:{" + literal + "* and locksidecar_*::" + literal + "*"
}

// literalPrefix is the prefix as a part of a pattern.
func (k *Keyspace) literalPrefix() string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(k.Prefix)
}
