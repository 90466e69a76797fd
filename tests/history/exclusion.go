package history

import (
	"cmp"
	"slices"
	"time"
)

// checkExclusion: no two clients believe in the same lock at the same moment,
// unless Redis lost it, or an operator took it, within the older one's lease.
func (r *run) checkExclusion(report *Report) {
	for lock, holds := range r.holds {
		inTime := slices.DeleteFunc(slices.Clone(holds), func(h *hold) bool { return !h.certain() })
		slices.SortFunc(inTime, func(a, b *hold) int { return cmp.Compare(a.granted, b.granted) })
		var believing []*hold
		for _, h := range inTime {
			believing = slices.DeleteFunc(believing, func(b *hold) bool { return b.ends <= h.granted })
			for _, other := range believing {
				both := span{h.granted, min(h.ends, other.ends)}
				if r.excused(lock, both, other, h) {
					report.Overlaps++
					continue
				}
				report.violated("exclusion", lock, both.from, append(excerpt(other, h), r.near(both)...),
					"%v and %v both believed in it for %v", other, h, time.Duration(both.to-both.from))
			}
			believing = append(believing, h)
		}
	}
}

// excused tells whether faults excuse every moment of a span in which two
// believed. A fault excuses from its beginning until the deadline that the older
// hold can have been told: what was asked of Redis before the fault was over was
// confirmed for one lease at most.
func (r *run) excused(lock string, both span, holds ...*hold) bool {
	from := both.from
	for again := true; again && from < both.to; {
		again = false
		for _, t := range r.faults {
			if !t.concerns(lock) || !t.has(LosesData) && !t.has(Forces) || t.from > from {
				continue
			}
			for _, h := range holds {
				end := t.to
				if end != never {
					end += r.longest(h.entries[0])
				}
				if h.invoked <= t.to && end > from {
					from, again = end, true
				}
			}
		}
	}
	return from >= both.to
}
