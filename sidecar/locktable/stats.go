package locktable

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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
	RoundTrip time.Duration // a short round trip to Redis, as the arbiter estimates it
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

// Stats returns a copy of what was counted, with what there is now.
func (t *Table) Stats() Stats {
	s := t.stats
	s.Groups = slices.Clone(s.Groups)
	s.Sessions, s.Locks, s.Holds, s.Waiters = len(t.sessions), len(t.locks), len(t.byHold), t.waiting
	s.Unstored, s.IsRedisUp, s.RoundTrip = t.Unstored(), t.redis.isUp(), time.Duration(t.policy.trip)
	return s
}

// groupOf is the group in which a name counts.
func (t *Table) groupOf(name string) uint8 {
	for i, p := range t.cfg.NamePatterns {
		if p.Matches(name) {
			return uint8(i + 1)
		}
	}
	return 0
}

// NamePattern is a name, or the beginning of names if it ends with "*".
type NamePattern string

// Matches reports whether a name matches the pattern.
func (p NamePattern) Matches(name string) bool {
	last := len(p) - 1
	if last < 0 || p[last] != '*' {
		return string(p) == name
	}
	return len(name) >= last && name[:last] == string(p[:last])
}

// Fault says what is wrong with a pattern of at most so many bytes; "": nothing.
func (p NamePattern) Fault(most int) string {
	switch s := string(p); {
	case s == "" || len(s) > most || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Sprintf("choose 1 to %d printable bytes", most)
	case strings.Contains(s[:len(s)-1], "*"):
		return "\"*\" can stand at the end only"
	}
	return ""
}

// MaxNamePatterns bounds Config.NamePatterns.
const MaxNamePatterns = 16

// groupStats is where the lock counts.
func (t *Table) groupStats(l *lock) *GroupStats { return &t.stats.Groups[l.group] }

// CountRefusal counts an acquire that the caller refused before the table received it.
func (t *Table) CountRefusal(name string, code protocol.Code) {
	t.stats.Groups[t.groupOf(name)].Acquires[resultOf(code)]++
}

// Survey is what a walk over all locks finds. The walk is done in parts: see Table.Survey.
type Survey struct {
	Groups []GroupSurvey // as Stats.Groups

	// RenewalsLate is how many holds under the watchdog have less than half of their lease left
	// in Redis: their renewal was due a sixth of the lease ago or earlier.
	RenewalsLate int

	MostWaited  []Ranked // the locks with the most waiters, most first; Rank is their number
	LongestHeld []Ranked // the locks with the oldest holds, oldest first; Rank is the age, ns

	next uint64
}

// Ranked is a lock in a list of a Survey.
type Ranked struct {
	Name string
	Rank int64
}

// maxRanked is how many locks such a list has at most.
const maxRanked = 50

// rank adds a lock to a list, if it is one of the highest. A lock that is met twice is in it once.
func rank(list []Ranked, l *lock, by int64) []Ranked {
	if len(list) == maxRanked {
		if by <= list[maxRanked-1].Rank {
			return list
		}
	}
	if i := slices.IndexFunc(list, func(r Ranked) bool { return r.Name == l.name }); i >= 0 {
		list = slices.Delete(list, i, i+1)
	} else if len(list) == maxRanked {
		list = list[:maxRanked-1]
	}
	i, _ := slices.BinarySearchFunc(list, by, func(r Ranked, by int64) int { return cmp.Compare(by, r.Rank) })
	return slices.Insert(list, i, Ranked{l.name, by})
}

// GroupSurvey is what there is of some of the names.
type GroupSurvey struct {
	Holds, Waiters int
	OldestWaiter   Oldest
	OldestHold     Oldest
}

// Add adds what there is of other names.
func (g *GroupSurvey) Add(o *GroupSurvey) {
	g.Holds += o.Holds
	g.Waiters += o.Waiters
	g.OldestWaiter.add(&o.OldestWaiter)
	g.OldestHold.add(&o.OldestHold)
}

// Oldest is the acquire that has waited for the longest time, or the hold that has lasted for
// the longest time.
type Oldest struct {
	Since   int64 // CLOCK_BOOTTIME, ns; 0: there is none
	Name    string
	Session SessionID
	Peer    Peer
}

func (o *Oldest) add(other *Oldest) {
	if other.Since != 0 && (o.Since == 0 || other.Since < o.Since) {
		*o = *other
	}
}

func (o *Oldest) take(since int64, l *lock, s *session) {
	if o.Since == 0 || since < o.Since {
		*o = Oldest{Since: since, Name: l.name, Session: s.id, Peer: s.peer}
	}
}

// Survey looks at up to so many locks more, and reports whether there are others left. Inputs
// may come between the parts. A lock that is there during the whole walk is met, perhaps twice.
func (t *Table) Survey(now int64, v *Survey, most int) (more bool) {
	if v.Groups == nil {
		v.Groups = make([]GroupSurvey, len(t.stats.Groups))
		v.next = uint64(len(t.locks))
	}
	i := min(v.next, uint64(len(t.locks)))
	for ; i > 0 && most > 0; i, most = i-1, most-1 {
		l := t.locks[i-1]
		g := &v.Groups[l.group]
		for h := l.holds; h != nil; h = h.next {
			g.Holds++
			g.OldestHold.take(h.granted, l, h.session)
			v.LongestHeld = rank(v.LongestHeld, l, now-h.granted)
			if h.isRenewed() && l.claim.validUntil-now < int64(t.cfg.Lease)/2 {
				v.RenewalsLate++
			}
		}
		if q := l.queue; q != nil && q.waiters.head != nil {
			g.Waiters += q.waiters.len
			v.MostWaited = rank(v.MostWaited, l, int64(q.waiters.len))
			g.OldestWaiter.take(q.waiters.head.request.since, l, q.waiters.head.request.session)
		}
	}
	v.next = i
	return i > 0
}
