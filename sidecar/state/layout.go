package state

import "github.com/locksidecar/locksidecar/sidecar/redisop"

const (
	pageSize  = 4096
	pageWords = pageSize / 8
	cellSize  = 128
	cellWords = cellSize / 8

	firstCell = pageSize / cellSize // the header takes the place of the cells before it

	minSize = 64 << 10 // of the file
	maxStep = 1 << 20  // by which it grows
	maxSize = 1 << 30

	// format is the number of this layout. A change of the meaning of any word is a new one: then a downgrade ends all
	// holds. What a later version adds needs none, if it is a record of a kind of its own: see kindRequired.
	format = 4
	magic  = 'l' | 'o'<<8 | 'c'<<16 | 'k'<<24 | 's'<<32 | 'i'<<40 | 'd'<<48 | 'e'<<56
)

// Words of the header.
const (
	hMagic  = 0 // stored last: the words up to hSum, and the key prefix, are whole
	hFormat = 1
	hBoot   = 2 // 2 words
	hDev    = 4
	hInode  = 5
	hHandle = 6
	hBorn   = 7
	hTimeNS = 8
	hUUID   = 9  // 2 words
	hKey    = 11 // 4 words
	hSum    = 15

	hPIDNS         = 16
	hPID           = 17 // of the process that has the file, for people
	hLastHoldID    = 18
	hLastSessionID = 19
	hRedis         = 20 // which of the two counts: 0 (none), 1 or 2
	hIncomplete    = 21 // not 0: something found no room and is not stored
	hSequence      = 22 // the number of the last round of changes

	hRedis1 = 32
	hRedis2 = 64

	hPrefix     = 96 // bytes of the key prefix; 0: none
	hPrefixText = 97
	hPrefixEnd  = hPrefixText + MaxKeyPrefix/8
)

// MaxKeyPrefix is how many bytes Sidecar.KeyPrefix may have.
const MaxKeyPrefix = 128

// Words of what is known of Redis.
const (
	maxID = 64 // bytes of an id

	rClientID = 0
	rFloor    = 1
	rFloorAt  = 2
	rLens     = 3 // of the two ids, a byte each
	rRunID    = 4
	rReplID   = rRunID + maxID/8
	rWords    = rReplID + maxID/8
)

// cell is one record, or a part of its text.
type cell [cellWords]uint64

// The first word of a cell: kind (8 bits), number of the part (8), bytes of the whole text
// (16), cell of the next part (32; 0: none). 0: the cell is free. If it is in the free list,
// its second word has the next free cell.
const (
	kindLock = 1 + iota
	kindSession
	kindPart
	kindHold
)

// kindRequired is the first of the kinds without which a file is not true. The kinds from kindHold+1 to it are optional.
// The package comment has what this version does with those of a later one.
const kindRequired = 1 << 7

// A lock of another kind than redisop.KindLock has a required record: an earlier version cannot continue while there
// is one.
const (
	kindReadWrite = kindRequired + iota
	kindPermits
	kindUnknown // the first of those that this version does not have
)

// lockKindOf returns the kind of lock that a cell of a kind has; false: it has none.
func lockKindOf(kind int) (of redisop.LockKind, ok bool) {
	switch {
	case kind == kindLock:
		return redisop.KindLock, true
	case kind >= kindRequired && kind < kindUnknown:
		return redisop.KindLock + 1 + redisop.LockKind(kind-kindRequired), true
	}
	return 0, false
}

// kindOfLock is the kind of the cell of a lock.
func kindOfLock(of redisop.LockKind) int {
	if of == redisop.KindLock {
		return kindLock
	}
	return kindRequired + int(of-redisop.KindLock-1)
}

// hasLock reports whether a cell has a lock.
func (c *cell) hasLock() bool {
	_, ok := lockKindOf(kindOf(c[0]))
	return ok
}

func head(kind, part, text int, next uint32) uint64 {
	return uint64(kind) | uint64(part)<<8 | uint64(text)<<16 | uint64(next)<<32
}

func kindOf(head uint64) int    { return int(uint8(head)) }
func partOf(head uint64) int    { return int(uint8(head >> 8)) }
func textLen(head uint64) int   { return int(uint16(head >> 16)) }
func nextOf(head uint64) uint32 { return uint32(head >> 32) }

func withKind(head uint64, kind int) uint64 { return head&^0xff | uint64(kind) }

func withNext(head uint64, next uint32) uint64 { return head&0xffffffff | uint64(next)<<32 }

// Words of a hold, in a cell of its own or in that of its lock: the same.
const (
	holdID = 2 + iota // 0: the cell of the lock has no hold, and the following words mean nothing
	holdToken
	holdOwner
	holdSession
	holdGranted
	holdDeadline
	holdEnd
	holdLease   // LeaseSeq, LeaseMS << 32
	holdEntries // Entries, CrashDelayMS << 32
	holdFlags   // see below, 32 bits; in the cell of a lock also the sum of its name << 32
)

// Words of a lock besides those of the hold in its cell. The text is its name.
const (
	lockMaxHoldID = 1
	lockForced    = holdToken // of another kind than redisop.KindLock, which has no hold in its cell: Forced, if it has flagForced
	lockName      = holdFlags + 1
)

// Words of a hold in a cell of its own.
const (
	holdLock     = 1             // which lock it is of: the slot of the lock, the sum of the lock's name << 32
	holdKeep     = holdFlags + 1 // KeepUntil, if it has flagKeep
	holdCapacity = holdKeep + 1  // Capacity
)

// Of holdFlags.
const (
	flagPhase   = 0xf // HoldPhase
	flagInDoubt = 1 << 4
	flagFixed   = 1 << 5 // LeaseKind
	flagMode    = 8      // from this bit, 8 bits
	flagPermits = 16     // from this bit, 16 bits
	flagKeep    = 1 << 6 // it has a keep, and therefore a cell of its own
	flagForced  = 1 << 7 // of the cell of a lock without a hold: it has lockForced
)

// Words of a session. The text is Cmd and Client.
const (
	sessionID = 1 + iota
	sessionLeaseSent
	sessionLease // LeaseSeq, phase << 32, resumable
	sessionPID
	sessionUID
	sessionPidfd
	sessionStart // and the program: see Process
	sessionCmd   // bytes of Cmd, sum of the text << 32
	sessionText
)

// Of sessionLease.
const (
	flagSessionPhase = 32 // from this bit, 8 bits
	flagResumable    = 1 << 40
)

const (
	partText  = 1 // word of a part where its text begins
	partBytes = (cellWords - partText) * 8
	maxParts  = 4 // of one text: as many as the name of a lock of protocol.MaxName bytes needs
)

// isOptional reports whether a cell has an optional record of a later version, and it is whole.
func (c *cell) isOptional() bool {
	kind := kindOf(c[0])
	return kind > kindHold && kind < kindRequired && c[cellWords-1] == c.sum()
}

// sum is what the last word of a record of a later version has.
func (c *cell) sum() uint64 { return mix(sumOf(c[1:cellWords-1]), withNext(c[0], 0)) }

// parts is how many parts a text needs besides the cell where it begins at word from.
func parts(text, from int) int {
	return (max(0, text-(cellWords-from)*8) + partBytes - 1) / partBytes
}

// sumOfName is the sum of the name of the lock in a cell.
func sumOfName(c *cell) uint32 { return uint32(c[holdFlags] >> 32) }

func pack(low, high uint32) uint64 { return uint64(low) | uint64(high)<<32 }

// load is the word that the first eight bytes of a text make, or all it has.
func load(s string) uint64 {
	if len(s) >= 8 {
		return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	}
	var w uint64
	for i := range len(s) {
		w |= uint64(s[i]) << (8 * i)
	}
	return w
}

// mix adds a word to a sum that tells damage from what was written.
func mix(sum, w uint64) uint64 {
	sum = (sum ^ w) * 0x9e3779b97f4a7c15
	return sum ^ sum>>32
}

// fold makes half a word of a sum.
func fold(sum uint64) uint32 { return uint32(sum>>32 ^ sum) }

func sumOf(words []uint64) uint64 {
	var sum uint64
	for _, w := range words {
		sum = mix(sum, w)
	}
	return sum
}

// image is the file in memory.
type image []uint64

// headerSum is the sum of the words of the header that never change.
func (im image) headerSum() uint64 {
	return mix(sumOf(im[hFormat:hSum]), sumOf(im[hPrefix:hPrefixEnd]))
}

// unused are the words of the header that this version does not have.
func (im image) unused() [][]uint64 {
	return [][]uint64{im[hSequence+1 : hRedis1], im[hRedis1+rWords : hRedis2], im[hRedis2+rWords : hPrefix], im[hPrefixEnd:pageWords]}
}

func (im image) cell(i uint32) *cell { return (*cell)(im[int(i)*cellWords:]) }

// cells is the number of the cell after the last one.
func (im image) cells() uint32 { return uint32(len(im) / cellWords) }
