package sim

import (
	"github.com/locksidecar/locksidecar/internal/sim/redis"
)

// redissonClient is a program that uses the locks with Redisson. It takes, renews,
// releases and forces locks on its own account, and no host knows of it.
type redissonClient struct {
	id   redis.Owner
	name int8 // that it holds, or waits for; -1: none
	num  uint64
}

// firstRedisson is the id of the first Redisson client. Lower ones are hosts.
const firstRedisson redis.Owner = 100

// subscriber is the connection with which the client waits for a lock.
func (f *redissonClient) subscriber(n int) int32 { return int32(f.id)<<8 + int32(n) }

// endRedissonWaits ends the subscriptions of a lock by Redisson clients.
func (w *world) endRedissonWaits(n int) {
	for i := range w.redisson {
		w.redis.waiting[w.counterOf(n)].Unsubscribe(w.redisson[i].subscriber(n))
	}
}

func (w *world) redissonActs(f *redissonClient) {
	again := event{kind: evRedisson, arg: int32(f.id - firstRedisson)}
	if w.phase != faulty {
		return
	}
	if w.isEachDown() {
		w.after(100*ms, again)
		return
	}
	if f.name < 0 {
		f.name = int8(w.random.below(int64(w.plan.names)))
		f.num++
	}
	n := int(f.name)
	if w.isDown(n) {
		w.after(100*ms, again)
		return
	}
	w.expire(n)
	k := &w.redis.names[n].key
	switch {
	case w.redis.names[n].overwritten:
		f.name = -1
	case w.random.oneIn(w.plan.redissonForces) && k.Owner != redis.NoOwner:
		w.destroy(n, "forced by a Redisson client")
		w.publish(n)
		f.name = -1
	case k.Owner == f.id:
		switch w.random.below(3) {
		case 0:
			k.ExpireAt = w.now + 30*sec
		default:
			if w.random.oneIn(w.plan.redissonDeaths) {
				f.name = -1
				break
			}
			w.checkFirstListens(n)
			w.freeKey(n)
			w.publish(n)
			if w.trace.on {
				w.trace.add(w, n, nil, "Redisson %d releases", f.id)
			}
			w.redis.waiting[w.counterOf(n)].Unsubscribe(f.subscriber(n))
			f.name = -1
		}
	case k.Owner == redis.NoOwner:
		k.Owner, k.Num, k.Count = f.id, f.num, 1
		w.redis.names[n].programAt = w.now
		k.ExpireAt = w.now + w.random.magnitude(10*ms, 5*sec)
		if w.random.oneIn(10) {
			k.ExpireAt = redis.NoExpiry
		}
		if w.random.oneIn(3) {
			w.increment(n)
		}
		w.redis.waiting[w.counterOf(n)].Unsubscribe(f.subscriber(n))
		if w.trace.on {
			w.trace.add(w, n, nil, "Redisson %d takes until %s", f.id, clockString(k.ExpireAt))
		}
		w.keyChanged(n)
	case w.plan.polling:
		if w.random.oneIn(200) {
			f.name = -1
		}
		w.after(w.random.between(200*µs, 3*ms), again)
		return
	default:
		w.redis.waiting[w.counterOf(n)].Subscribe(f.subscriber(n))
		if w.random.oneIn(8) {
			w.redis.waiting[w.counterOf(n)].Unsubscribe(f.subscriber(n))
			f.name = -1
		}
	}
	w.after(w.random.magnitude(w.plan.thinkTime>>5, 2*w.plan.thinkTime), again)
}
