package redisop

import "strings"

// SlotOf returns the slot of a key in a Cluster: CRC16 of the key, or of its hash tag, which is what
// stands between its first { and the first } after that, unless it is empty.
func SlotOf(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	sum := uint16(0)
	for i := range len(key) {
		sum = sum<<8 ^ crc16[byte(sum>>8)^key[i]]
	}
	return sum % Slots
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
