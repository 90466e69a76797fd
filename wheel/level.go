package wheel

import "math/bits"

// A place is where a timer can wait: the slots of the wheel, the buckets of
// the coarse levels after them, and before them the ones named here. Places
// are numbered in groups of 64, a word of bits each, and no level begins
// within a group.
type place uint32

const (
	nowhere place = 0 // not pending
	due     place = 1 // about to be fired
	backlog place = 2 // fired, and deferred

	firstSlot place = 64
)

const (
	coarseBuckets = 64 // of each level but the slots: one word of bits
	coarseRatio   = 4  // bits: a bucket covers 16 of the level below
)

// A level covers the time from the current tick on with places of 2^shift
// ticks each, in a ring.
type level struct {
	first place
	shift uint8
	mask  uint32 // the number of places, less one
}

// layOut makes level 0, the slots, and as many coarse levels above it as it
// takes to reach from tick 0 to last.
//
// Two things must hold between a level and the one above it. A place of the
// upper is no longer than what the lower reaches over, so that when the
// current tick enters it all its timers find room below. And what the lower
// does not reach lies in a later place of the upper than the current tick, so
// that a timer never waits in a place that has been entered already.
func layOut(slots int, last uint64) []level {
	levels := []level{{first: firstSlot, mask: uint32(slots - 1)}}
	shift := uint8(max(bits.Len(uint(slots-1))-coarseRatio, 1))
	for l := levels[0]; !l.reaches(0, last); shift += coarseRatio {
		l = level{first: l.end(), shift: shift, mask: coarseBuckets - 1}
		levels = append(levels, l)
	}
	return levels
}

// end is the first place after the level's and the rest of its group.
func (l *level) end() place { return l.first + place(l.mask|63) + 1 }

func (l *level) at(tick uint64) place {
	return l.first + place(uint32(tick>>l.shift)&l.mask)
}

// reaches reports whether the level has a place for tick, which is not before
// current.
func (l *level) reaches(current, tick uint64) bool {
	return tick>>l.shift-current>>l.shift <= uint64(l.mask)
}

// firstTaken is the first tick of the first taken place from the one of
// current on. For the place that current lies in, which only the slots have
// anything in, that is current.
func (l *level) firstTaken(taken []uint64, current uint64) (tick uint64, ok bool) {
	from := current >> l.shift
	start := uint32(from) & l.mask
	group := taken[l.first/64 : l.end()/64]
	word, bit := start/64, start%64

	if set := group[word] >> bit; set != 0 {
		return (from + uint64(bits.TrailingZeros64(set))) << l.shift, true
	}
	// The other words, and at last the first one again: what is in it now is
	// behind the start, so a whole round ahead.
	for range group {
		word++
		if int(word) == len(group) {
			word = 0
		}
		if set := group[word]; set != 0 {
			found := word*64 + uint32(bits.TrailingZeros64(set))
			return (from + uint64((found-start)&l.mask)) << l.shift, true
		}
	}
	return 0, false
}
