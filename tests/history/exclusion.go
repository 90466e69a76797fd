package history

import (
	"cmp"
	"slices"
	"time"
)

// checkExclusion checks that no two clients believe in the same lock at the same time, and that all
// together believe in no more permits of a semaphore than a request has named, unless Redis lost them,
// or an operator released them, within the lease of the older hold.
func (r *timeline) checkExclusion(report *Report) {
	for lock, holds := range r.holds {
		inTime := slices.DeleteFunc(slices.Clone(holds), func(h *hold) bool { return !h.isCertain() })
		slices.SortFunc(inTime, func(a, b *hold) int { return cmp.Compare(a.granted, b.granted) })
		of := 0
		for _, h := range inTime {
			of = max(of, h.of)
		}
		var believing []*hold
		for _, h := range inTime {
			believing = slices.DeleteFunc(believing, func(b *hold) bool { return b.believedUntil <= h.granted })
			all, inExcess := h.permits, h.permits
			against := []*hold{h} // whose overlap with h no fault excuses
			both := span{h.granted, h.granted}
			for _, other := range believing {
				all += other.permits
				if s := (span{h.granted, min(h.believedUntil, other.believedUntil)}); !r.excused(lock, s, other, h) {
					inExcess += other.permits
					against = append(against, other)
					both.to = max(both.to, s.to)
				}
			}
			believing = append(believing, h)
			switch {
			case inExcess > of:
				report.violated("exclusion", lock, both.from, append(holdEvents(against...), r.faultsNear(both)...),
					"%v all believed in it, within %v: %d at a time, of %d", against, time.Duration(both.to-both.from), inExcess, of)
			case all > of:
				report.Overlaps++
			}
		}
	}
}

// excused reports whether faults excuse every moment of a span in which two clients believed in a
// lock. A fault excuses from its beginning until the latest deadline of the older hold: an
// operation that was sent to Redis before the end of the fault confirmed it for one lease.
// A sidecar may hand the permits that Redis has lost on to its clients for as long.
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
				if (h.invoked <= t.to || h.of > 1) && end > from {
					from, again = end, true
				}
			}
		}
	}
	return from >= both.to
}
