// Package moment has what the rooms of the lock table know of time: an alarm, and conversions.
// Times are int64 nanoseconds of CLOCK_BOOTTIME.
package moment

import (
	"math"
	"time"
)

// Never is a time that does not come.
const Never = math.MaxInt64

// Alarm collects the next time at which a rule applies. A rule compares a time with now by
// Due alone, so that the condition of an action and the time of the next look at it are one
// expression.
type Alarm struct {
	Now, Next int64
}

// At returns an alarm that has collected no time yet.
func At(now int64) Alarm { return Alarm{now, Never} }

// Due reports whether the time has come. If it has not, the alarm is no later than it.
func (a *Alarm) Due(at int64) bool {
	if a.Now >= at {
		return true
	}
	a.Next = min(a.Next, at)
	return false
}

// MS returns a duration in ms as one in ns.
func MS[T uint32 | int64](v T) int64 { return int64(v) * int64(time.Millisecond) }

// ShortMillis is a time or a duration in ms, for differences of less than a month.
func ShortMillis(ns int64) uint32 { return uint32(ns / int64(time.Millisecond)) }

// ShortMoment is a time or a duration in units of 2^16 ns, for differences of less than three days.
func ShortMoment(ns int64) uint32 { return uint32(ns >> 16) }
