package redis_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// report runs a failing lap with less and less, as long as it still fails, and returns a
// text with what is left of it.
func (d *differential) report(l lap, err error) string {
	fails := func(l lap) bool { return d.run(l, nil) != nil }
	again := fails(l)
	if again {
		l = smaller(l, fails)
	}
	var log strings.Builder
	if e := d.run(l, &log); e != nil {
		err = e
	}
	kind := "redis"
	if d.inProcess() {
		kind = "miniredis"
	}
	return fmt.Sprintf("seed %d, user %q, prefix %q, counters expire after %v (fails again: %v): %v\n\nto replay: go test ./internal/sim/redis -run 'TestScriptsBehaveAsTheirModel/%s' -diff.seed=%d\n\nwhat is left of it:\n%s",
		l.seed, l.user, l.prefix, l.expiry, again, err, kind, l.seed, log.String())
}

// smaller leaves out of a lap all that it fails without.
func smaller(l lap, fails func(lap) bool) lap {
	l.rounds = fewer(l.rounds, func(rounds []round) bool {
		less := l
		less.rounds = rounds
		return fails(less)
	})
	for i := range l.rounds {
		with := func(rd round) bool {
			less := l
			less.rounds = slices.Clone(l.rounds)
			less.rounds[i] = rd
			return fails(less)
		}
		rd := l.rounds[i]
		rd.ops = fewer(rd.ops, func(ops []redisop.Op) bool { less := rd; less.ops = ops; return with(less) })
		rd.changes = fewer(rd.changes, func(changes []change) bool { less := rd; less.changes = changes; return with(less) })
		rd.subs = fewer(rd.subs, func(subs []subscription) bool { less := rd; less.subs = subs; return with(less) })
		for _, flag := range []*bool{&rd.forget, &rd.full, &rd.demoted} {
			was := *flag
			*flag = false
			*flag = was && !with(rd)
		}
		l.rounds = slices.Clone(l.rounds)
		l.rounds[i] = rd
	}
	return l
}

// fewer leaves out of a list all that it fails without: first large parts, then single
// elements.
func fewer[T any](list []T, fails func([]T) bool) []T {
	for size := len(list); size > 0; size /= 2 {
		for from := 0; from < len(list); {
			less := slices.Delete(slices.Clone(list), from, min(from+size, len(list)))
			if fails(less) {
				list = less
			} else {
				from += size
			}
		}
	}
	return list
}

func showOp(op *redisop.Op) string {
	kind := [...]string{"NoOp", "Take", "Renew", "Check", "Arrive", "Drop"}[op.Kind]
	text := fmt.Sprintf("%s %.40q num %d count %d lease %d", kind, op.Name, op.HoldID, op.Count, op.LeaseMS)
	if op.Kind == redisop.Take {
		text += fmt.Sprintf(" reserve %d counts %v held %v behind %v enqueue %v in order %v arrived %d", op.Reserve, op.Has(redisop.CountListeners), op.Has(redisop.RequireExisting), op.Has(redisop.AfterPendingDrop), op.Has(redisop.Enqueue), op.Has(redisop.InOrder), op.Arrived)
	}
	if op.Ticket != 0 || op.PassedMS != 0 {
		text += fmt.Sprintf(" ticket %d passed %d", op.Ticket, op.PassedMS)
	}
	return text
}

func showResult(res *redisop.Result) string {
	outcome := [...]string{"Done", "Other", "Missing", "Differs", "NotALock", "Unsent", "Unknown", "Refused", "Busy"}[res.Outcome]
	return fmt.Sprintf("%s token %d listeners %+v TTL %d field %q queued %v rank %d ticket %d recall %d left free %v waiting %d arrived %d first %d passed %v paused %v msg %q", outcome, res.Token, res.Listeners, res.TTLMS, res.Field,
		res.IsQueued, res.Rank, res.Ticket, res.Recall, res.LeftFree, res.Waiting, res.Arrived, res.FirstArrived, res.Passed, res.Paused, res.Msg)
}

// show is what there is under a key, or may be.
func (s *contents) show(key string) string {
	text := fmt.Sprintf("%.60q:", key)
	for i, k := range s.keys[key] {
		if i > 0 {
			text += " or"
		}
		text += showKey(&k)
	}
	for i, c := range s.counters[key] {
		if i > 0 {
			text += " or"
		}
		text += showCounter(&c)
	}
	lock := key
	if of, _, ok := queueOf(key); ok {
		lock = of
	}
	for i, q := range s.queues[lock] {
		if i > 0 {
			text += " or"
		}
		text += fmt.Sprintf(" queue %+v", *q)
	}
	if s.keys[key] == nil && s.counters[key] == nil {
		text += " no key"
	}
	return text
}

func showKey(k *redis.Key) string {
	switch {
	case !k.Exists():
		return " no key"
	case k.Other != nil:
		return showContent(k.Other, k.ExpireAt)
	}
	return fmt.Sprintf(" hash {%s%d: %d}%s", prefixes[k.Owner], k.Num, k.Count, showExpiry(k.ExpireAt))
}

func showCounter(c *counter) string {
	switch {
	case !c.Exists:
		return " no key"
	case c.Other != nil:
		return showContent(c.Other, c.ExpireAt)
	case c.slack > 0:
		return fmt.Sprintf(" string %d to %d%s", c.Value, c.Value+c.slack, showExpiry(c.ExpireAt))
	}
	return fmt.Sprintf(" string %d%s", c.Value, showExpiry(c.ExpireAt))
}

func showContent(c *redis.Content, expireAt int64) string {
	if c.Hash != nil {
		return fmt.Sprintf(" hash %q%s", c.Hash, showExpiry(expireAt))
	}
	return fmt.Sprintf(" %s %q%s", c.Type, c.Text, showExpiry(expireAt))
}

func showExpiry(at int64) string {
	if at == redis.NoExpiry {
		return ""
	}
	return fmt.Sprintf(", TTL %d", at/1e6)
}
