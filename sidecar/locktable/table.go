// Package locktable is the state of one sidecar: which client holds which lock, which
// requests wait, and what Redis has for this host. It is a pure state machine: inputs come
// in with the time at which they happened, effects come out as values. It has no clock, no
// goroutine and no I/O, so that the same inputs give the same effects and a simulation can
// drive it through any interleaving.
//
// # The parts of a lock
//
// A lock is one name. Each of its parts has a type, a file and a named phase:
//
//   - The remote claim (claim.go) is what Redis has for this host under the name, and the
//     operations in flight.
//   - Requests (request.go) are acquires that have no answer yet. A waiter is the place of a
//     request in the queue of a lock.
//   - Holds (hold.go) are granted requests, until they are released or lost.
//   - The arbiter (arbiter.go) decides between this host and others: when this host asks
//     Redis for the lock, how long it hands the lock over locally, when it yields.
//
// Sessions (session.go) are the clients, each with its requests and holds. Lease events
// (lease.go) tell a client that its holds were renewed. The journal (journal.go) is what a
// successor of this process finds.
//
// # Reconciliation
//
// Every input ends with reconcile (lock.go) for the locks that it changed: it compares what
// Redis should have (want) with what it has (remoteClaim), and sends the operation that
// closes the difference (step). At most one operation of a lock is in flight, or a Release
// and the Acquire that is pipelined after it. When its result comes (result.go), the
// comparison is made again. However many times a lock is handed over between local owners
// during one round trip, one operation tells Redis.
//
// Times are int64 nanoseconds of CLOCK_BOOTTIME.
package locktable

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/wheel"
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

	// HostName returns the name of the host of the sidecar that has this owner field in Redis;
	// "": it is not known yet, or the field is of another program. It must not block. nil: no
	// name is known.
	HostName func(field string) string

	// While another sidecar waits for a lock, it passes between local owners at most
	// HandoffBudget times in a row and for Turn; then it passes to the first in the queue.
	// The Turn 0 stands for two round trips to Redis, within 200 µs and 20 ms. With a Turn
	// of 1 ns the hosts alternate. Default of HandoffBudget: 64.
	HandoffBudget int
	Turn          time.Duration

	// Fair are the locks for which every acquire that waits wants strict order: see order.go.
	Fair []NamePattern

	// While a program that is no sidecar is known to want a lock, or is likely to, a turn
	// ends after HandoffTime, too. Then the lock is released in Redis, and this sidecar
	// backs off for Backoff. Defaults 50 ms, 10 ms.
	HandoffTime time.Duration
	Backoff     time.Duration

	// A program that polls, and does not subscribe, is not known to wait. So a lock that
	// passes between owners without a free moment is released after QuietTime, and
	// stays free for QuietPause. If another program took it in that time, or had it for
	// another reason, this sidecar behaves for RivalMemory as if it were known to wait, and
	// QuietTime is as short as PollerTime, however many other locks it has in between.
	// Defaults 100 ms, 4 ms, 1 min, 30 ms.
	QuietTime   time.Duration
	QuietPause  time.Duration
	RivalMemory time.Duration
	PollerTime  time.Duration

	// A lock that another host has is asked for again at the latest after Poll, whatever
	// messages came; with a ticket in the queue, after a sixth of the lease if that is less,
	// and up to a quarter later. Without a ticket and without a subscription it is after
	// PollDeaf, or longer if there are so many such locks that PollDeafLeast between two of
	// them takes longer. Defaults 5 s, 25 ms and 2 ms.
	Poll          time.Duration
	PollDeaf      time.Duration
	PollDeafLeast time.Duration

	// A waiter that has waited for this long for a local holder has its sidecar subscribe
	// to the lock's channel, so that a deletion of the key by another program is noticed
	// at once. Default 100 ms.
	WatchAfter time.Duration

	// A lock that was acquired here soon after its last release here stays this host's in
	// Redis for so long, at most, after a release that no other host waits for: the next acquire
	// needs no round trip. See lingerTime. NoLinger: never. Default 5 ms.
	Linger time.Duration

	// How long a subscription outlives its last use, but no longer than until a few releases
	// were published that no local client waited for. Default 10 s.
	SubscriptionLinger time.Duration
	RetryAfter         time.Duration // pause after an error that Redis may get over. Default 100 ms

	// An acquire that will not wait, or not for longer, is answered no later than TryWithin
	// after it came: with Unavailable if Redis has not answered by then. While Redis has
	// answered nothing for TryWithin it is answered at once. Default 500 ms.
	TryWithin time.Duration

	// One client can have hundreds of thousands of locks end at one moment. They are
	// worked off in steps of at most MaxWork locks and waiters, between which the caller
	// sees to everything else. Renewals are not held up by them. Default 64.
	MaxWork int

	Seed   uint64      // of what is left to chance: when locks are renewed and asked for again
	Chance rand.Source // of the same, for tests; nil: a generator with that Seed

	// NoRenewalOffsets has a key renewed after a third of its lease, at whatever time that is: for
	// the exploration, in whose states there is no time. See renewalAfter.
	NoRenewalOffsets bool

	// NamePatterns are groups of names that are counted apart: see Stats. A name counts for the
	// first pattern that it matches. At most MaxNamePatterns.
	NamePatterns []NamePattern

	Journal Journal // nil: nothing is stored for a successor
}

// NoLinger is a Config.Linger with which no lock lingers.
const NoLinger = time.Duration(1)

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
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
	def(&c.HandoffBudget, 64)
	def(&c.HandoffTime, 50*time.Millisecond)
	def(&c.Backoff, 10*time.Millisecond)
	def(&c.QuietTime, 100*time.Millisecond)
	def(&c.QuietPause, 4*time.Millisecond)
	def(&c.RivalMemory, time.Minute)
	def(&c.PollerTime, 30*time.Millisecond)
	c.PollerTime = min(c.PollerTime, c.QuietTime)
	def(&c.Poll, 5*time.Second)
	def(&c.PollDeaf, 25*time.Millisecond)
	def(&c.PollDeafLeast, 2*time.Millisecond)
	def(&c.WatchAfter, 100*time.Millisecond)
	def(&c.Linger, 5*time.Millisecond)
	def(&c.SubscriptionLinger, 10*time.Second)
	def(&c.RetryAfter, 100*time.Millisecond)
	def(&c.TryWithin, 500*time.Millisecond)
	def(&c.MaxWork, 64)
}

// Table is the lock table of one sidecar. One goroutine owns it.
type Table struct {
	cfg     Config
	leaseMS uint32
	policy  policy
	wheel   *wheel.Wheel[timed]
	out     []Effect

	sessions map[SessionID]*session
	users    map[int64]*user // by uid
	byName   map[string]*lock
	byHold   map[uint64]*hold

	grantCarries map[string]uint32 // by the name of a lock: see countGrant
	keeps        map[uint64]int64  // until when holds with a keep exclude others, by hold number: few have one

	locks   []*lock // every lock, in no order; lock.index is its index
	cells   int     // that the locks take of MaxLocks: see Cells
	waiting int     // waiters in all

	sweeping []*session // that are over, and have requests or holds left; see Work
	deferred []*lock    // that have more requests to answer than one step may; see Work
	requests pool[request]
	queues   pool[queue]
	holds    pool[hold]
	windows  pool[window]

	hotUntil   recentTimes // until when locks that were released here are hot
	pollers    recentTimes // of locks that a program had which is no sidecar, and is not subscribed
	isStopping bool        // no lock lingers any more

	searches uint64 // for wait cycles, so far
	path     []step // emptied, for the next search

	lastNum     uint64 // last hold id used
	renewalSeed uint64 // of the offsets of renewal groups
	renewals    renewalPace
	dirty       dirtySet // what is not in the journal yet
	redis       reachability
	leaseQueue  []*session // that may need a lease event
	now         int64      // of the last change
	stats       Stats      // without what there is at one moment
}

// timed is what a timer of the wheel belongs to: a lock or a request.
type timed interface {
	due(t *Table, now int64)
}

const (
	wheelTick  = 2 * time.Millisecond
	wheelSlots = 4096
)

// New makes an empty table. Until the first Up or Down it sends no operation, and requests
// that do not wait for the lock wait for that.
func New(cfg Config, now int64) *Table {
	cfg.setDefaults()
	t := &Table{
		cfg:      cfg,
		leaseMS:  uint32(cfg.Lease / time.Millisecond),
		wheel:    wheel.New[timed](wheelTick, wheelSlots, now),
		sessions: make(map[SessionID]*session),
		users:    make(map[int64]*user),
		byName:   make(map[string]*lock),
		byHold:   make(map[uint64]*hold),

		grantCarries: make(map[string]uint32),
		keeps:        make(map[uint64]int64),
		windows:      pool[window]{max: maxFreeWindows},
	}
	chance := cfg.Chance
	if chance == nil {
		chance = rand.NewPCG(cfg.Seed, 0x10c4)
	}
	t.stats.Groups = make([]GroupStats, 1+len(cfg.NamePatterns))
	t.policy = policy{cfg: &t.cfg, rng: rand.New(chance), trip: int64(20 * time.Millisecond)}
	t.renewalSeed = t.policy.rng.Uint64()
	t.wheel.MaxPending = 2*cfg.MaxLocks + strayCells // one per lock, one per waiter
	return t
}

// Effects returns what the inputs since the last call want done, in order. It is
// valid until the next input. Everything that led to it is in the journal.
func (t *Table) Effects() []Effect {
	t.flushLeaseEvents()
	t.writeJournal()
	out := t.out
	if t.out = t.out[:0]; cap(out) > maxIdleEffects {
		t.out = nil // after a burst: many timers were late, for instance
	}
	return out
}

// maxIdleEffects is how many effects there is room for between bursts. A host that renews a hundred
// thousand locks has some thousands at a time.
const maxIdleEffects = 1 << 13

func (t *Table) emit(e Effect) { t.out = append(t.out, e) }

// refuse answers a request with an error. What is left of a session that is over has no
// client that could read it.
func (t *Table) refuse(s *session, id uint64, code protocol.Code, format string, args ...any) {
	if s.phase.IsOver() {
		return
	}
	msg := format
	if len(args) > 0 {
		msg = fmt.Sprintf(format, args...)
	}
	t.emit(Effect{Kind: Refusal, Session: s.id, ID: id, Code: code, Msg: msg})
}

// Advance fires timers that are due. If there are very many, renewals come first, and
// the rest are left for Work and for the next Advance.
func (t *Table) Advance(now int64) {
	n := 0
	t.wheel.AdvanceSome(now, 8*t.cfg.MaxWork, func(tm *wheel.Timer[timed]) {
		if l, ok := tm.Value.(*lock); ok {
			t.paceRenewal(now, l)
		}
		if n++; n > t.cfg.MaxWork && !t.mustNotWait(now, tm.Value) {
			t.wheel.Defer(tm)
			return
		}
		tm.Value.due(t, now)
	})
}

// mustNotWait reports whether a timer must not wait after thousands of others that are due.
func (t *Table) mustNotWait(now int64, v timed) bool {
	l, ok := v.(*lock)
	return ok && t.isUrgent(now, l)
}

// Work does a part of what can wait: timers that Advance left, requests and holds of
// sessions that ended, and requests for one lock that are answered together. Busy reports
// whether there is more. It is called after Advance, as often as the caller has time.
func (t *Table) Work(now int64) {
	left := t.cfg.MaxWork
	left -= t.wheel.FireDeferred(left/2, func(tm *wheel.Timer[timed]) { tm.Value.due(t, now) })
	for len(t.sweeping) > 0 && left > 0 {
		s := t.sweeping[0]
		if left = t.sweep(now, s, left); left > 0 {
			s.isSweeping = false
			t.sweeping[0] = nil
			t.sweeping = t.sweeping[1:]
		}
	}
	if len(t.sweeping) == 0 {
		t.sweeping = nil
	}
	for n := len(t.deferred); n > 0 && left > 0; n-- {
		l := t.deferred[0]
		t.deferred[0] = nil
		t.deferred = t.deferred[1:]
		l.isDeferred = false
		t.reconcile(now, l)
		left -= t.cfg.MaxWork
	}
	if len(t.deferred) == 0 {
		t.deferred = nil
	}
	t.wheel.FireDeferred(left, func(tm *wheel.Timer[timed]) { tm.Value.due(t, now) })
}

// Next is when Advance must be called; false: not before another input.
func (t *Table) Next() (int64, bool) { return t.wheel.Next() }

// Busy reports whether there is something for Work to do now.
func (t *Table) Busy() bool { return len(t.sweeping) > 0 || len(t.deferred) > 0 || t.wheel.Deferred() }

func (t *Table) arm(tm *wheel.Timer[timed], at int64) {
	if tm.Pending() && tm.Deadline() == at {
		return
	}
	if err := t.wheel.Add(tm, at); err != nil {
		panic("locktable: more timers than locks and waiters: " + err.Error())
	}
}
