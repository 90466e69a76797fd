package store

import "strings"

// Names as Redisson makes them, so that its programs and sidecars exclude and
// wake each other. Braces put a lock, its counter and its channel into one
// Cluster slot; a name that brings its own brace keeps it.

const (
	channelPrefix = "redisson_lock__channel:"
	counterPrefix = "redisson_lock_token:"
)

// Reserved returns the prefix for which a name is not allowed, or "". A lock of such a
// name would be kept under the key of another lock's token counter or queue, and break
// it.
func Reserved(name string) string {
	for _, prefix := range []string{"redisson_lock_", "redisson_unlock_latch:", "locksidecar_"} {
		if strings.HasPrefix(name, prefix) {
			return prefix
		}
	}
	return ""
}

// channelOf returns the channel on which the release of a lock is published.
// Two names can share one: "a" and "{a}".
func channelOf(name string) string { return prefixed(channelPrefix, name) }

// counterOf returns the key of a lock's fencing tokens.
func counterOf(name string) string { return prefixed(counterPrefix, name) }

func prefixed(prefix, name string) string {
	if strings.IndexByte(name, '{') >= 0 {
		return prefix + name
	}
	return prefix + "{" + name + "}"
}

// appendPrefixed appends prefixed(prefix, name) as an argument of a command.
func appendPrefixed(dst []byte, prefix, name string) []byte {
	if strings.IndexByte(name, '{') >= 0 {
		dst = appendHead(dst, '$', len(prefix)+len(name))
		dst = append(dst, prefix...)
		dst = append(dst, name...)
	} else {
		dst = appendHead(dst, '$', len(prefix)+len(name)+2)
		dst = append(dst, prefix...)
		dst = append(dst, '{')
		dst = append(dst, name...)
		dst = append(dst, '}')
	}
	return append(dst, '\r', '\n')
}
