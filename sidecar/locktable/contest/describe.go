package contest

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A Description receives the state of a contest as a sequence of values: see locktable.Description,
// which has what each of them is for.
type Description interface {
	Value(x uint64)
	Time(at int64)
	Number(id uint64)
	Arrival(at uint64)
}

// Clone returns a copy for a cloned table. memory is that of the cloned lock.
func Clone(c *Contest, memory *Memory) Contest {
	n := *c
	n.memory = memory
	return n
}

// DescribeShared describes what the contests share.
func DescribeShared(d Description, now int64, s *Shared) {
	d.Value(uint64(s.polling))
	d.Value(uint64(s.trip))
	d.Value(uint64(s.latency))
	if s.latency > s.trip { // else its age makes no difference: see Way
		d.Value(uint64(min(now-s.answeredAt, int64(s.cfg.QuietTime)+1)))
	}
}

// DescribeMemory describes what a host remembers of a lock.
func DescribeMemory(d Description, s *Shared, now int64, m *Memory) {
	s.describeHeat(d, now, m.hotUntil)
	s.describePoller(d, now, m.pollerAt)
	d.Value(bit(m.isHot))
	d.Value(bit(m.hostsWait)<<16 | uint64(uint16(m.subscribers)))
}

// describeHeat describes until when a lock is hot; until is as Memory.hotUntil.
func (s *Shared) describeHeat(d Description, now int64, until uint32) {
	left := uint32(0)
	if s.isHotAt(now, until) {
		left = 1 + until - moment.ShortMoment(now)
	}
	d.Value(uint64(left))
}

// describePoller describes for how long a foreign client is remembered; at is as Memory.pollerAt. It
// matters only if its lock has free moments more often.
func (s *Shared) describePoller(d Description, now int64, at uint32) {
	if s.cfg.PollerTime == s.cfg.QuietTime {
		return
	}
	age := moment.ShortMillis(int64(s.cfg.ForeignMemory))
	if at != 0 {
		age = min(age, moment.ShortMillis(now)-at)
	}
	d.Value(uint64(age))
}

// Limits returns the times beyond which it makes no difference how long a key has been busy, and for
// how long it has been this host's.
func Limits(s *Shared) (busy, came time.Duration) {
	return max(s.cfg.QuietTime, redisop.FreeAfter), max(s.cfg.HandoffTime, s.cfg.Turn.Or(0))
}

// DescribePlace describes the ticket.
func DescribePlace(c *Contest, d Description, s *Shared, now int64) {
	p := &c.place
	d.Value(uint64(p.phase))
	if p.phase != placeNone {
		d.Number(p.ticket)
		d.Value(uint64(p.queues)<<32 | uint64(uint32(p.rank)))
		describeAge(d, now, p.since, s.cfg.WatchAfter)
		describeAge(d, now, p.validSince, s.lease)
		conn, isKnown := p.conn.Number()
		d.Value(uint64(conn)<<2 | bit(isKnown)<<1 | bit(p.mayHaveLock))
	}
}

// DescribeOrder describes what is known of arrivals. enqueues: a Take with Enqueue is in flight.
func DescribeOrder(c *Contest, d Description, now int64, enqueues, isOurs bool) {
	o := &c.order
	d.Time(max(o.retryAt, now))
	d.Value(bit(o.isDenied))
	if enqueues {
		d.Arrival(o.asked)
		d.Arrival(o.toServe.upTo)
	}
	if c.place.phase != placeNone {
		d.Arrival(c.place.arrived)
	}
	if isOurs { // only then does it matter which waiters are served
		d.Arrival(o.served.upTo)
	}
}

// DescribeWaiter describes what the order of arrivals means for a waiter. It returns a number of three
// bits.
func DescribeWaiter(c *Contest, enqueues, isOurs bool, w *Waiter) uint64 {
	cameLater := c.place.phase != placeNone && w.Arrived == 0 && w.Since > c.place.since
	return bit(enqueues && c.order.toServe.includes(w))<<2 | bit(cameLater)<<1 | bit(isOurs && c.order.served.includes(w))
}

// Describe describes the rest of the contest.
func Describe(c *Contest, d Description, s *Shared, now int64) {
	d.Value(uint64(c.phase)<<8 | uint64(c.sub)<<4 | bit(c.isPolling)<<3 | bit(c.remote.isKnown)<<2 | bit(c.remote.isSidecar)<<1)
	d.Time(max(c.nextTry, now))
	d.Time(max(c.backoffUntil, now))
	d.Time(max(c.foreignUntil, now))
	if c.remote.isKnown {
		describeAge(d, now, c.remote.askedAt, s.lease)
		d.Value(bit(c.remote.ttlMS >= 0))
		d.Time(max(c.remote.seenAt+moment.MS(max(c.remote.ttlMS, 0)), now))
	}
	d.Value(uint64(c.asked.want)<<16 | uint64(c.asked.of))
	if c.sub != unsubscribed {
		d.Time(max(c.subscribedUntil, now))
		d.Value(uint64(c.unneededMessages))
	}
}

// describeAge describes a time in the past, of which it matters only whether it is longer ago
// than a limit, and if it is not, for how long.
func describeAge(d Description, now, at int64, limit time.Duration) {
	d.Time(max(at, now-int64(limit)))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
