package locktable

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// shardOf returns the shard that has a lock.
func (t *Table) shardOf(l *lock) *shard { return &t.shards[l.shard] }

// shardAt returns a shard, which may be one that was not known.
func (t *Table) shardAt(n redisop.Shard) *shard {
	for int(n) >= len(t.shards) {
		t.shards = append(t.shards, shard{})
	}
	return &t.shards[n]
}

// routeOf is which shard has the slot of a name.
func (t *Table) routeOf(name string) redisop.Shard {
	if t.routes == nil {
		return 0
	}
	return t.routes[t.cfg.SlotOf(name)]
}

// ShardOf is which shard has a lock of a name.
func (t *Table) ShardOf(name string) redisop.Shard {
	if l := t.byName[name]; l != nil {
		return l.shard
	}
	return t.routeOf(name)
}

// ShardOfHold is which shard has the lock of a hold; false: there is no such hold.
func (t *Table) ShardOfHold(id uint64) (n redisop.Shard, ok bool) {
	h := t.byHold[id]
	if h == nil {
		return 0, false
	}
	return h.lock.shard, true
}

// setRoutes notes which shards have slots, and reports whether any slot has another one than before.
func (t *Table) setRoutes(ranges []redisop.SlotRange) (changed bool) {
	for _, r := range ranges {
		t.shardAt(r.Shard)
		for slot := int(r.First); slot <= int(r.Last); slot++ {
			was := t.routes[slot]
			if was == r.Shard {
				continue
			}
			if !changed {
				t.routes, changed = slices.Clone(t.routes), true // which a clone of the table may share
			}
			t.shards[was].slots--
			t.shards[r.Shard].slots++
			t.routes[slot] = r.Shard
		}
	}
	return changed
}

// areUp reports whether each shard that has slots can be asked.
func (t *Table) areUp() bool {
	for i := range t.shards {
		if s := &t.shards[i]; s.slots > 0 && !s.isUp() {
			return false
		}
	}
	return true
}

// Paused notes that the caller took no input for long until now: the host was suspended, or
// the process stopped. A result of Redis may have arrived meanwhile that it has not read, so
// no time before now counts as a silence of Redis.
func (t *Table) Paused(now int64) {
	for i := range t.shards {
		t.shards[i].paused = now
	}
}

// tryUntil is when a request that waits for the next result of Redis only is answered at the
// latest.
func (t *Table) tryUntil(r *request) int64 {
	return max(r.since, t.shardOf(r.at.lock).paused) + int64(t.cfg.TryWithin)
}

// isSilent is IsSilent for the shard of a lock.
func (t *Table) isSilent(now int64, l *lock) bool {
	return t.shardOf(l).silence(now) >= t.cfg.TryWithin
}

// Silence is how long Redis has owed answers without giving any; of several shards, the one that has
// been silent for longest.
func (t *Table) Silence(now int64) (longest time.Duration) {
	for i := range t.shards {
		longest = max(longest, t.shards[i].silence(now))
	}
	return longest
}

// ShardSilence is Silence of one shard.
func (t *Table) ShardSilence(now int64, n redisop.Shard) time.Duration {
	return t.shardAt(n).silence(now)
}

// TryWithin is Config.TryWithin.
func (t *Table) TryWithin() time.Duration { return t.cfg.TryWithin }

// IsSilent reports whether a shard has been silent for so long that an acquire that does not
// wait is not to wait for it.
func (t *Table) IsSilent(now int64, n redisop.Shard) bool {
	return t.shardAt(n).silence(now) >= t.cfg.TryWithin
}

// SilentAt is when the next shard will be silent for so long, if it gives no answer until then; false:
// none owes any, or all that do are silent already.
func (t *Table) SilentAt(now int64) (at int64, ok bool) {
	for i := range t.shards {
		s := &t.shards[i]
		if due := s.silentSince() + int64(t.cfg.TryWithin); s.owed > 0 && due > now && (!ok || due < at) {
			at, ok = due, true
		}
	}
	return at, ok
}
