package history

import (
	"cmp"
	"slices"
	"time"
)

// checkExclusion checks that no two clients believe in the same lock at the same time, unless
// Redis lost it, or an operator released it, within the lease of the older hold.
func (r *timeline) checkExclusion(report *Report) {
	for lock, holds := range r.holds {
		inTime := slices.DeleteFunc(slices.Clone(holds), func(h *hold) bool { return !h.isCertain() })
		slices.SortFunc(inTime, func(a, b *hold) int { return cmp.Compare(a.granted, b.granted) })
		var believing []*hold
		for _, h := range inTime {
			believing = slices.DeleteFunc(believing, func(b *hold) bool { return b.believedUntil <= h.granted })
			for _, other := range believing {
				both := span{h.granted, min(h.believedUntil, other.believedUntil)}
				if r.excused(lock, both, other, h) {
					report.Overlaps++
					continue
				}
				report.violated("exclusion", lock, both.from, append(holdEvents(other, h), r.faultsNear(both)...),
					"%v and %v both believed in it for %v", other, h, time.Duration(both.to-both.from))
			}
			believing = append(believing, h)
		}
	}
}

// excused reports whether faults excuse every moment of a span in which two clients believed in a
// lock. A fault excuses from its beginning until the latest deadline of the older hold: an
// operation that was sent to Redis before the end of the fault confirmed it for one lease.
func (r *timeline) excused(lock string, both span, holds ...*hold) bool {
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
					end += r.longestLease(h.entries[0])
				}
				if h.invoked <= t.to && end > from {
					from, again = end, true
				}
			}
		}
	}
	return from >= both.to
}
