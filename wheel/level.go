package wheel

import "math/bits"

// A place is a list in which timers wait: one of the three below, a slot of the wheel, or a
// bucket of a coarse level, in this order. The bitmap has a word for each group of 64 places;
// no level begins within a group.
type place uint32

const (
	nowhere place = 0 // not pending
	due     place = 1 // about to be fired
	backlog place = 2 // deferred

	firstSlot place = 64
)

const (
	coarseBuckets = 64 // of each level but the slots: one word of the bitmap
	coarseRatio   = 4  // in bits: a bucket covers 16 places of the level below
)

// A level is a ring of places of 2^shift ticks each, which begins at the current tick.
type level struct {
	first place
	shift uint8
	mask  uint32 // the number of places, less one
}

// newLevels makes level 0, the slots, and as many coarse levels above it as are needed to reach
// from tick 0 to last.
//
// Invariants between a level and the one above it: a place of the upper level is no longer
// than the range of the lower level, so that all its timers fit into the lower level when the
// current tick enters it; and a tick that the lower level does not reach lies in a later place
// of the upper level than the current tick, so that a timer never waits in a place that was
// entered already.
func newLevels(slots int, last uint64) []level {
	levels := []level{{first: firstSlot, mask: uint32(slots - 1)}}
	shift := uint8(max(bits.Len(uint(slots-1))-coarseRatio, 1))
	for l := levels[0]; !l.reaches(0, last); shift += coarseRatio {
		l = level{first: l.end(), shift: shift, mask: coarseBuckets - 1}
		levels = append(levels, l)
	}
	return levels
}

// end returns the first place after the group in which the level ends.
func (l *level) end() place { return l.first + place(l.mask|63) + 1 }

func (l *level) at(tick uint64) place {
	return l.first + place(uint32(tick>>l.shift)&l.mask)
}

// reaches reports whether the level has a place for tick. Precondition: tick is not before
// current.
func (l *level) reaches(current, tick uint64) bool {
	return tick>>l.shift-current>>l.shift <= uint64(l.mask)
}

// firstOccupied is the first tick of the first taken place from the one of
// current on. For the place that current lies in, which only the slots have
// anything in, that is current.
func (l *level) firstOccupied(occupied []uint64, current uint64) (tick uint64, ok bool) {
	from := current >> l.shift
	start := uint32(from) & l.mask
	group := occupied[l.first/64 : l.end()/64]
	word, bit := start/64, start%64

	if set := group[word] >> bit; set != 0 {
		return (from + uint64(bits.TrailingZeros64(set))) << l.shift, true
	}
	// Then the other words, and finally the first one again, whose other bits are before the
	// start: those places are almost a whole round ahead.
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
