package locktable

import (
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
)

// Config sets the table's times and limits. The zero value of a field stands for
// its default; negative values are not allowed.
type Config struct {
	Lease time.Duration // watchdog lease; renewed every third of it. Default 30 s

	MaxLocks   int // names known at one time, in cells (see Cells), and waiters in all. Default 1,048,576
	MaxHolds   int // holds of one session. Default 262,144
	MaxWaiters int // acquires and confirms of one session that wait. Default 16,384

	NewNames int // that one user may lock in a second, on average over ten minutes. Default 1,000

	UID int64 // of the sidecar's process: this user and root are not bounded by a user's share

	// Contest sets the times of the contest with other hosts. The daemon sets its Turn, Linger
	// and HostName.
	Contest contest.Config

	// Fair are the locks for which every acquire that waits wants strict order: see contest/order.go.
	Fair []NamePattern

	// Tokens is how many fencing tokens are drawn at one time for a lock that others wait for, or that
	// lingers between its holds. A draw of many costs Redis no more than a draw of one, and tokens are
	// granted at more than a microsecond each: so counters still grow more slowly than the time.
	// Default 256. Only tests, and the exploration, change it.
	Tokens int

	// Durable: replicas of Redis confirm operations, but for a Drop with CanWait. See
	// redisop.NotSynced.
	Durable bool

	// SlotOf is the slot of a name in a Cluster, below redisop.Slots. nil: Redis is no Cluster.
	SlotOf func(name string) uint16

	RetryAfter time.Duration // pause after an error that Redis may get over. Default 100 ms

	// An acquire that will not wait, or not for longer, is answered no later than TryWithin
	// after it came: with Unavailable if Redis has not answered by then. While Redis has
	// answered nothing for TryWithin it is answered at once. Default 500 ms.
	TryWithin time.Duration

	// One client can have hundreds of thousands of locks end at one moment. They are
	// worked off in steps of at most MaxWork locks and waiters, between which the caller
	// sees to everything else. Renewals are not held up by them. Default 64.
	MaxWork int

	Seed   uint64      // of the random delays of renewals and of further Takes
	Chance rand.Source // of the same, for tests; nil: a generator with that Seed

	// NoRenewalOffsets has a key renewed after a third of its lease, at whatever time that is: for
	// the exploration, in whose states there is no time. See renewalAfter.
	NoRenewalOffsets bool

	// NamePatterns are groups of names that are counted apart: see Stats. A name counts for the
	// first pattern that it matches. At most MaxNamePatterns.
	NamePatterns []NamePattern

	// Expected are for how long holds usually last: see Survey.Overdue. A name counts for the first pattern that it
	// matches.
	Expected []ExpectedHold

	Journal Journal // nil: nothing is stored for a successor
}

// ExpectedHold says for how long holds of some names usually last.
type ExpectedHold struct {
	Names NamePattern
	Most  time.Duration
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *Config) setDefaults() {
	def(&c.Lease, 30*time.Second)
	def(&c.MaxLocks, 1<<20)
	def(&c.MaxHolds, 1<<18)
	def(&c.MaxWaiters, 1<<14)
	def(&c.NewNames, 1000)
	def(&c.Tokens, 256)
	def(&c.RetryAfter, 100*time.Millisecond)
	def(&c.TryWithin, 500*time.Millisecond)
	def(&c.MaxWork, 64)
}
