package locktable

import (
	"math/bits"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Stats is what the table has counted since it was made, and what it has at one moment. The
// counters are plain fields that only the owner of the table changes: to count costs an
// increment. What can be found by a look at the locks is not counted: see Survey.
type Stats struct {
	// Groups has what is counted by the name of the lock: element 0 for names that match no
	// pattern of Config.NamePatterns, element i for those that match pattern i − 1.
	Groups []GroupStats

	Handoffs [HandoffKinds]uint64
	Renewals [redisop.Outcomes]uint64 // Renews, by their Outcome

	CrashReleases uint64 // holds whose session ended without a release of them
	TakenOver     uint64 // holds that were restored from the journal

	Scripts       Histogram // round trips of operations, on ShortTimes
	RenewalMargin Histogram // what was left of the validity when a Renew was done, on LeaseTimes

	// At the moment of the copy.
	Sessions  int
	Locks     int           // held, waited for, or being released
	Holds     int           // of all sessions, and of sessions that ended
	Waiters   int           // acquires that wait
	Unstored  int           // locks of which the journal lacks something
	IsRedisUp bool          // Redis can be asked
	RoundTrip time.Duration // a short round trip to Redis, as the contest estimates it
	Usage     Usage
}

// Usage is what is used of the limits.
type Usage struct {
	Locks          int // of MaxLocks: names in cells, or waiters if these are more
	UserLocks      int // of Share(MaxLocks): the same, of the user that has the most and is not privileged
	SessionHolds   int // of MaxHolds, of the session that has the most
	SessionWaiters int // of MaxWaiters, of the session that has the most
}

// GroupStats is what the table has counted for some of the names.
type GroupStats struct {
	Acquires [AcquireResults]uint64
	Losses   [LossReasons]uint64
	Wait     Histogram // from the request to the grant, on ShortTimes
	Held     Histogram // from the grant to the end of the hold, on LongTimes
}

// AcquireResult is how an acquire ended.
type AcquireResult uint8

const (
	AcquireGranted   AcquireResult = iota
	AcquireReentered               // its owner had the lock already
	AcquireTimeout
	AcquireDeadlock
	AcquireUnavailable
	AcquireLimit
	AcquireDenied
	AcquireBadRequest
	AcquireCanceled
	AcquireAbandoned // its session ended, or the sidecar stopped: it got no answer

	AcquireResults = iota // how many there are
)

// String is the code that a client receives, or the name of a result that is no code.
func (r AcquireResult) String() string {
	return [...]string{
		"granted", "reentered", string(protocol.Timeout), string(protocol.Deadlock), string(protocol.Unavailable),
		string(protocol.Limit), string(protocol.Denied), string(protocol.BadRequest), string(protocol.Canceled), "abandoned",
	}[r]
}

// resultOf is the result of an acquire that was refused with a code.
func resultOf(code protocol.Code) AcquireResult {
	switch code {
	case protocol.Timeout:
		return AcquireTimeout
	case protocol.Deadlock:
		return AcquireDeadlock
	case protocol.Limit:
		return AcquireLimit
	case protocol.Denied:
		return AcquireDenied
	case protocol.Canceled:
		return AcquireCanceled
	case protocol.Unavailable:
		return AcquireUnavailable
	}
	return AcquireBadRequest
}

// HandoffKind is how a grant came about without a Take of its own.
type HandoffKind uint8

const (
	HandoffLocal     HandoffKind = iota // another local hold had the lock until then
	HandoffLingering                    // the lock lingered
	HandoffTransfer                     // another host passed the lock on to the ticket of this one

	HandoffKinds = iota // how many there are
)

func (k HandoffKind) String() string { return [...]string{"local", "lingering", "transfer"}[k] }

const (
	// LossReasons is how many reasons a loss can have.
	LossReasons = 7

	// LossForgotten is the index of protocol.Forgotten. Only the caller can tell it from a loss
	// of which the client was not notified yet, so the table does not count it.
	LossForgotten = 5
)

// LossReason is the reason with an index of GroupStats.Losses.
func LossReason(i int) protocol.Reason {
	return [LossReasons]protocol.Reason{
		protocol.Expired, protocol.Deleted, protocol.Stolen, protocol.ByForce, protocol.MaxHold, protocol.Forgotten, protocol.CutShort,
	}[i]
}

func lossIndex(why protocol.Reason) int {
	for i := range LossReasons {
		if LossReason(i) == why {
			return i
		}
	}
	panic("locktable: a reason of losses that is not listed: " + string(why))
}

// Histogram counts durations by buckets of a Scale.
type Histogram struct {
	Counts [maxBuckets]uint64 // Counts[i]: up to the bound i of the scale and above the one before
	Sum    time.Duration
}

const maxBuckets = 24

// Count is how many durations the histogram has.
func (h *Histogram) Count() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Observe counts a duration. One below 0 counts as 0.
func (h *Histogram) Observe(s *Scale, d time.Duration) {
	d = max(d, 0)
	i := int(s.first[bits.Len64(uint64(d))])
	for i < len(s.bounds) && d > s.bounds[i] {
		i++
	}
	h.Counts[i]++
	h.Sum += d
}

// Add adds what another histogram on the same scale has.
func (h *Histogram) Add(o *Histogram) {
	for i, n := range o.Counts {
		h.Counts[i] += n
	}
	h.Sum += o.Sum
}

// Scale is the upper bounds of the buckets of a histogram. The last bucket has none.
type Scale struct {
	bounds []time.Duration
	first  [65]uint8 // by the length of a duration in bits: the first bound that it may be within
}

// Bounds returns the bounds in increasing order.
func (s *Scale) Bounds() []time.Duration { return s.bounds }

func newScale(bounds ...time.Duration) *Scale {
	if len(bounds) >= maxBuckets || !slices.IsSorted(bounds) {
		panic("locktable: bad bounds of a histogram")
	}
	s := &Scale{bounds: bounds}
	for n := range s.first {
		least := time.Duration(0) // the shortest duration with n bits
		if n > 0 && n < 64 {
			least = 1 << (n - 1)
		}
		i, _ := slices.BinarySearch(bounds, least)
		s.first[n] = uint8(i)
	}
	return s
}

const (
	us     = time.Microsecond
	msec   = time.Millisecond
	sec    = time.Second
	minute = time.Minute
)

// The scales of the table's histograms.
var (
	// ShortTimes is for waits and round trips.
	ShortTimes = newScale(50*us, 100*us, 250*us, 500*us, msec, 5*msec/2, 5*msec, 10*msec, 25*msec, 50*msec, 100*msec, 250*msec, 500*msec,
		sec, 5*sec/2, 5*sec, 10*sec, 30*sec, minute, 5*minute, 30*minute)
	// LongTimes is for holds.
	LongTimes = newScale(100*us, 500*us, msec, 5*msec, 10*msec, 50*msec, 100*msec, 500*msec,
		sec, 5*sec, 10*sec, 30*sec, minute, 5*minute, 10*minute, 30*minute, time.Hour, 6*time.Hour, 24*time.Hour)
	// LeaseTimes is for what is left of a lease.
	LeaseTimes = newScale(0, 100*msec, 250*msec, 500*msec, sec, 5*sec/2, 5*sec, 15*sec/2, 10*sec, 25*sec/2, 15*sec, 20*sec, 30*sec,
		minute, 5*minute, 30*minute, time.Hour)
)
