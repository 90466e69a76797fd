package store

import (
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// slotOf returns the slot of a key in a Cluster: CRC16 of the key, or of its hash tag, which is what
// stands between its first { and the first } after that, unless it is empty.
func slotOf(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	sum := uint16(0)
	for i := range len(key) {
		sum = sum<<8 ^ crc16[byte(sum>>8)^key[i]]
	}
	return sum % redisop.Slots
}

// crc16 is the table of the CRC that Redis uses: CCITT, as in XMODEM, with the polynomial 0x1021.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		sum := uint16(i) << 8
		for range 8 {
			if sum&0x8000 != 0 {
				sum = sum<<1 ^ 0x1021
			} else {
				sum <<= 1
			}
		}
		table[i] = sum
	}
	return table
}()

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
