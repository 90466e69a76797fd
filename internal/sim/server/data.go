package server

import (
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Data is what servers have of locks, by name, for a World that needs no more.
type Data map[string]*Lock

// Lock is what Redis has under the names of one lock.
type Lock struct {
	Key     redis.Key
	Counter redis.Counter
	Queue   redis.Queue

	Semaphore redis.Semaphore // under the same name
	ReadWrite redis.ReadWrite // and this
}

// Of returns what there is of a lock.
func (d Data) Of(name string) *Lock {
	l := d[name]
	if l == nil {
		l = &Lock{Key: redis.NoKey}
		d[name] = l
	}
	return l
}

// Keys are those of a lock that exist.
func (l *Lock) Keys() (keys KeySet) {
	if l.Key.Exists() {
		keys |= LockKey
	}
	if l.Counter.Exists {
		keys |= CounterKey
	}
	if len(l.Queue.Tickets) > 0 {
		keys |= QueueKey
	}
	if len(l.Queue.Signs) > 0 {
		keys |= SignsKey
	}
	if l.Semaphore.Exists {
		keys |= LockKey
	}
	if len(l.Semaphore.Places) > 0 {
		keys |= QueueKey | SignsKey
	}
	if l.ReadWrite.Mode != redisop.NoMode {
		keys |= LockKey
	}
	if len(l.ReadWrite.Places[0])+len(l.ReadWrite.Places[1]) > 0 {
		keys |= QueueKey | SignsKey
	}
	return keys
}

// Execute executes an operation of a run at a server.
func (d Data) Execute(c *Conn, r *Run, i int, now, clock int64) (reply redis.Reply, field string) {
	s, owner := c.Server, c.Owner
	for of, prefix := range s.Prefixes {
		if prefix == r.Prefix {
			owner = redis.Owner(of)
		}
	}
	l := d.Of(r.Ops[i].Name)
	run := r.Command(i, owner, now, clock)
	run.Prefixes, run.Queue, run.ReadOnly = s.Prefixes, &l.Queue, s.IsReplica
	slot, _ := s.world.Slot(s, r.Ops[i].Name)
	run.Migrates = slot.Place == Migrating
	run.Receivers = func(sidecar redis.Owner) int32 { return s.Receivers(s.OwnChannel(sidecar)) }
	if r.Ops[i].Of == redisop.KindPermits {
		run.Confirms = r.Confirms
		if c.User.denies("publish") {
			run.Receivers = func(redis.Owner) int32 { return 0 }
		}
		return run.RunPermits(&l.Semaphore), ""
	}
	if r.Ops[i].Of == redisop.KindReadWrite {
		run.Confirms = r.Confirms
		reply, _ = run.RunReadWrite(&l.ReadWrite, &l.Counter)
		if writer := l.ReadWrite.Writer(); writer != redis.NoOwner {
			field = s.Prefixes[writer] + "1"
		}
		return reply, field
	}
	run.Denied = redis.Denied{
		Publish: c.User.denies("publish"), Type: c.User.denies("type"),
		Channel: c.User.Channel != nil && c.User.Channel(s.channelOf(r.Ops[i].Name)),
	}
	var channel redis.Channel
	for range s.Receivers(s.channelOf(r.Ops[i].Name)) {
		channel.Subscribers = append(channel.Subscribers, int32(len(channel.Subscribers)))
	}
	reply = run.Run(&l.Key, &l.Counter, &channel)
	if reply.Outcome == redisop.HeldByOther && !reply.LeftFree || reply.Outcome == redisop.NotALock {
		field = redis.Describe(&l.Key, s.Prefixes, run.Denied)
	}
	return reply, field
}
