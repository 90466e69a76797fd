package locktable

import (
	"cmp"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Stats returns a copy of what was counted, with what there is now.
func (t *Table) Stats() Stats {
	s := t.stats
	s.Groups = slices.Clone(s.Groups)
	s.Sessions, s.Locks, s.Holds, s.Waiters = len(t.sessions), len(t.locks), len(t.byHold), t.waiting
	s.Unstored, s.IsRedisUp, s.RoundTrip = t.Unstored(), t.areUp(), t.contests.RoundTrip()
	s.Usage = t.usage()
	return s
}

// overdue returns the index of what is expected of a hold that has lasted longer; −1: it has not.
func (t *Table) overdue(name string, age time.Duration) int {
	for i := range t.cfg.Expected {
		if e := &t.cfg.Expected[i]; e.Names.Matches(name) {
			if age > e.Most {
				return i
			}
			break
		}
	}
	return -1
}

// Survey is what a walk over all locks finds. The walk is done in parts: see Table.Survey.
type Survey struct {
	Groups []GroupSurvey // as Stats.Groups
	Shards []ShardSurvey // by redisop.Shard; those after the last one have nothing

	// RenewalsLate is how many holds under the watchdog have less than half of their lease left
	// in Redis: their renewal was due a sixth of the lease ago or earlier.
	RenewalsLate int

	Overdue []int // holds that have lasted longer than expected, as Config.Expected

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
	Permits        int // of semaphores, that local clients have
	Capacity       int // of those that they have or want permits of, together: see LockRow.Of
	OldestWaiter   Oldest
	OldestHold     Oldest
}

// ShardSurvey is what there is of the locks of one shard.
type ShardSurvey struct {
	Holds, Waiters int
}

// OfShard is what there is of the locks of a shard.
func (v *Survey) OfShard(n redisop.Shard) ShardSurvey {
	if int(n) >= len(v.Shards) {
		return ShardSurvey{}
	}
	return v.Shards[n]
}

// shard returns the part of a shard.
func (v *Survey) shard(n redisop.Shard) *ShardSurvey {
	for int(n) >= len(v.Shards) {
		v.Shards = append(v.Shards, ShardSurvey{})
	}
	return &v.Shards[n]
}

// Add adds what there is of other names.
func (g *GroupSurvey) Add(o *GroupSurvey) {
	g.Holds += o.Holds
	g.Waiters += o.Waiters
	g.Permits += o.Permits
	g.Capacity += o.Capacity
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
		v.Overdue = make([]int, len(t.cfg.Expected))
		v.next = uint64(len(t.locks))
	}
	i := min(v.next, uint64(len(t.locks)))
	for ; i > 0 && most > 0; i, most = i-1, most-1 {
		l := t.locks[i-1]
		g, s := &v.Groups[l.group], v.shard(l.shard)
		before := g.Holds
		for h := range t.holdsOf(l) { // the oldest first
			if g.Holds == before {
				v.LongestHeld = rank(v.LongestHeld, l, now-h.granted)
			} else {
				most-- // each further one is as much work as a lock
			}
			g.Holds++
			s.Holds++
			if h.phase != HoldKept { // a kept one has ended for its client, and lasts for as long as that asked
				g.OldestHold.take(h.granted, l, h.session)
				if i := t.overdue(l.name, time.Duration(now-h.granted)); i >= 0 {
					v.Overdue[i]++
				}
			}
			if h.isRenewed() && t.validUntil(l)-now < int64(t.cfg.Lease)/2 {
				v.RenewalsLate++
			}
		}
		if m := t.manyOf(l); m != nil {
			g.Permits += int(m.units)
			g.Capacity += int(t.capacityOf(l, m))
		}
		if q := l.queue; q != nil && q.waiters.head != nil {
			g.Waiters += q.waiters.len
			s.Waiters += q.waiters.len
			v.MostWaited = rank(v.MostWaited, l, int64(q.waiters.len))
			g.OldestWaiter.take(q.waiters.head.request.since, l, q.waiters.head.request.session)
		}
	}
	v.next = i
	return i > 0
}
