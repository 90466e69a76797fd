package locktable

import (
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/wheel"
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
		keeps:    make(map[uint64]int64),
		many:     make(map[*lock]*many),
	}
	chance := cfg.Chance
	if chance == nil {
		chance = rand.NewPCG(cfg.Seed, 0x10c4)
	}
	t.shards = []shard{{slots: redisop.Slots}}
	if cfg.SlotOf != nil {
		t.routes = make([]redisop.Shard, redisop.Slots)
	}
	t.stats.Groups = make([]GroupStats, 1+len(cfg.NamePatterns))
	rng := rand.New(chance)
	t.contests = contest.NewShared(cfg.Contest, cfg.Lease, rng)
	t.renewalSeed = rng.Uint64()
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

// Advance fires timers that are due. If there are very many, renewals come first, and
// the rest are left for Work and for the next Advance.
func (t *Table) Advance(now int64) {
	n := 0
	t.ends = ends{at: now}
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
// sessions that ended, and requests for one lock that are answered together. All of it is in the
// backlog of the wheel, and each comes in its turn. Busy reports whether there is more. Work is
// called after Advance, as often as the caller has time.
func (t *Table) Work(now int64) {
	fire := func(tm *wheel.Timer[timed]) { tm.Value.due(t, now) }
	for t.budget = t.cfg.MaxWork; t.budget > 0 && t.wheel.FireDeferred(1, fire) > 0; {
		t.budget--
	}
}

// Next is when Advance must be called; false: not before another input.
func (t *Table) Next() (int64, bool) { return t.wheel.Next() }

// Busy reports whether there is something for Work to do now.
func (t *Table) Busy() bool { return t.wheel.Deferred() }
