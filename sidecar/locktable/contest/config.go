package contest

import (
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Config sets the times of the contest. The zero value of a field stands for its default;
// negative values are not allowed.
//
// Turn, Linger and HostName are set by the daemon. The others are one value each, in every daemon: only
// tests, and the exploration, in whose world a millisecond is long, change them.
type Config struct {
	// While another sidecar waits for a lock, it passes between local owners for Turn; then it passes
	// to the first in the queue. Default: two round trips to Redis, within 200 µs and 20 ms. 0: it
	// passes after each grant.
	Turn moment.Span

	// While a foreign client is known to want a lock, or is likely to, a turn ends after
	// HandoffTime, too. Then the lock is released in Redis, and this sidecar backs off for
	// Backoff. Defaults 50 ms, 10 ms.
	HandoffTime time.Duration
	Backoff     time.Duration

	// A foreign client that polls, and does not subscribe, is not known to wait. So a lock that
	// passes between owners without a free moment is released after QuietTime, and stays free for
	// QuietPause. If a foreign client took it in that time, or had it for another reason, this
	// sidecar behaves for ForeignMemory as if it were known to wait, and QuietTime is as short as
	// PollerTime, however many other locks it has in between. Defaults 100 ms, 4 ms, 1 min, 30 ms.
	QuietTime     time.Duration
	QuietPause    time.Duration
	ForeignMemory time.Duration
	PollerTime    time.Duration

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
	// needs no round trip. See lingerTime. Default 5 ms. 0: no lock lingers.
	Linger moment.Span

	// How long a subscription outlives its last use, but no longer than until a few releases
	// were published that no local client waited for. Default 10 s.
	SubscriptionLinger time.Duration

	// HostName returns the name of the host of the sidecar that has this owner field in Redis;
	// "": it is not known yet, or the field is of a foreign client. It must not block. nil: no
	// name is known.
	HostName func(field string) string
}

func (c *Config) setDefaults() {
	def(&c.HandoffTime, redisop.FreeAfterSubscribed)
	def(&c.Backoff, redisop.FreeFor)
	def(&c.QuietTime, redisop.FreeAfter)
	def(&c.QuietPause, redisop.FreeForAlone)
	def(&c.ForeignMemory, time.Minute)
	def(&c.PollerTime, 30*time.Millisecond)
	c.PollerTime = min(c.PollerTime, c.QuietTime)
	def(&c.Poll, 5*time.Second)
	def(&c.PollDeaf, 25*time.Millisecond)
	def(&c.PollDeafLeast, 2*time.Millisecond)
	def(&c.WatchAfter, 100*time.Millisecond)
	def(&c.SubscriptionLinger, 10*time.Second)
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Shared is what the contests of a table share.
type Shared struct {
	cfg     Config
	linger  int64         // Config.Linger, ns; if no lock lingers, its default, which bounds latency
	lease   time.Duration // of the watchdog
	rng     *rand.Rand
	polling int   // locks that are polled because their subscription does not work
	trip    int64 // a short round trip to Redis, ns; see NoteAnswer
	latency int64 // how long Redis took to answer at answeredAt, ns; 0: it is not known

	answeredAt int64

	hot     recentTimes // until when locks that were released here are hot
	pollers recentTimes // of locks that a foreign client had which is not subscribed
}

// NewShared returns what the contests of a new table share. rng gives the random delays.
func NewShared(cfg Config, lease time.Duration, rng *rand.Rand) Shared {
	cfg.setDefaults()
	linger := cfg.Linger.Or(0)
	if linger == 0 {
		linger = 5 * time.Millisecond
	}
	return Shared{cfg: cfg, linger: int64(linger), lease: lease, rng: rng, trip: int64(20 * time.Millisecond)}
}

// RoundTrip is a short round trip to Redis.
func (s *Shared) RoundTrip() time.Duration { return time.Duration(s.trip) }

// Way is for how long a lock that another host passed on was on its way: for about as long as an answer of
// Redis takes now. An answer that an outage delayed counts little. If the last answer is old, a short round trip counts:
// of a thousand hosts that ask at one time, each waits once for all others. 0: it is not known.
func (s *Shared) Way(now int64) int64 {
	if now-s.answeredAt > int64(s.cfg.QuietTime) {
		return min(s.latency, s.trip)
	}
	return min(s.latency, s.longestWay())
}

// longestWay is the longest time, ns, that counts as a round trip to Redis and not as an outage.
func (s *Shared) longestWay() int64 { return 2*s.trip + int64(time.Millisecond) }

// NoteAnswer notes how long Redis took to answer, ns.
func (s *Shared) NoteAnswer(now, d int64) {
	s.answeredAt = now
	s.noteTrip(d)
	s.noteLatency(d)
}

// noteTrip notes a round trip. The shortest answers are what counts: the others are of a busy
// Redis or a busy host. It grows slowly, if the network has changed.
func (s *Shared) noteTrip(d int64) {
	if d < s.trip {
		s.trip = max(d, 0)
	} else {
		s.trip += (min(d, s.longestWay()) - s.trip) / 1024
	}
}

// noteLatency notes how slow Redis is now: up to what lingerTime and Way make use of.
func (s *Shared) noteLatency(d int64) {
	switch d = min(d, max(s.linger, s.longestWay())); {
	case d <= 0:
	case s.latency == 0:
		s.latency = d
	default:
		s.latency += (min(d, 2*s.latency) - s.latency) / 8 // a moment in which Redis or the host stood still counts little
	}
}

// Memory is what a host remembers of a lock: of others that want it, and of how it is used here.
// It outlives the contest, which exists only while the lock is contended.
type Memory struct {
	pollerAt    uint32 // when a foreign client was found to have the lock without being subscribed: see moment.ShortMillis; 0: it is not known
	hotUntil    uint32 // the lock is hot if it is acquired by then, see moment.ShortMoment; 0: it is not
	subscribers int16  // of the lock's channel, this sidecar among them, up to math.MaxInt16; −1: unknown
	hostsWait   bool   // there are tickets in the queue while this host has the lock, as far as is known
	isHot       bool   // it was acquired here by hotUntil: it lingers when it is released
}

// Remember returns the memory of a lock that the table has not known until now.
func (s *Shared) Remember(name string) Memory {
	i := cell(name)
	return Memory{pollerAt: s.pollers[i], hotUntil: s.hot[i]}
}

// HostsWait reports whether other sidecars are known to wait for a lock that this host has.
func (m *Memory) HostsWait() bool { return m.hostsWait }

// NoteHosts notes whether tickets wait for a lock that this host has.
func (m *Memory) NoteHosts(wait bool) { m.hostsWait = wait }

// IsHot reports whether the lock lingers when it is released.
func (m *Memory) IsHot() bool { return m.isHot }

// HasSubscribers reports whether clients are known to be subscribed to the lock's channel.
func (m *Memory) HasSubscribers() bool { return m.subscribers > 0 }

// NeedsCount reports whether the subscribers of the lock's channel are not known.
func (m *Memory) NeedsCount() bool { return m.subscribers < 0 }

// recentTimes remembers when something happened to locks, also those that the table has forgotten
// since. It has a fixed size: two names may share a cell, and then a lock may linger for a
// moment although it is not hot, or have free moments that no foreign client needs.
type recentTimes [1 << 10]uint32

func (r *recentTimes) note(name string, at uint32) { r[cell(name)] = at }

// cell is that of a name in recentTimes, which is 0 if nothing is known. The hash is FNV-1a.
func cell(name string) uint32 {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return h % uint32(len(recentTimes{}))
}

const never = moment.Never
